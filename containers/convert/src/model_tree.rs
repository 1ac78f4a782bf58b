//! Test support: a tree of files in memory.
//!
//! Numbers of removed nodes are given to new ones at once, the last one first, so that code that takes a number for a
//! node that is gone fails early. Calls that the trait does not allow panic.

use crate::file_tree::{FileTree, LayerContent, NewNode, NodeAttributes, NodeKind, NodeStatus, NodeXattr};
use headstart_block::{Error, Result, to_usize};
use headstart_tar::TarTime;
use std::collections::BTreeMap;

/// The content of a node, as its kind has it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Body {
    Directory(BTreeMap<Vec<u8>, usize>),
    File(Vec<u8>),
    Symlink(Vec<u8>),
    Device(NodeKind, u32, u32),
    Fifo,
}

#[derive(Clone, Debug)]
struct Node {
    body: Body,
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: TarTime,
    xattrs: Vec<NodeXattr>,
    links: u32,
}

/// One path of a tree, for comparisons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) kind: NodeKind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: TarTime,
    pub(crate) xattrs: Vec<NodeXattr>,
    /// The content of a file or the target of a link.
    pub(crate) bytes: Vec<u8>,
    pub(crate) device: (u32, u32),
    /// The first path of the node, which is the same for all of its names.
    pub(crate) first: Vec<u8>,
}

/// A tree in memory.
#[derive(Clone, Debug)]
pub(crate) struct ModelTree {
    nodes: Vec<Option<Node>>,
    free: Vec<usize>,
    /// The number of calls of `replace_content` whose content was the old one.
    pub(crate) kept_contents: u64,
}

impl ModelTree {
    /// An empty tree: a root with mode 0755.
    pub(crate) fn new() -> Self {
        let root = Node {
            body: Body::Directory(BTreeMap::new()),
            mode: 0o755,
            uid: 0,
            gid: 0,
            mtime: TarTime::default(),
            xattrs: Vec::new(),
            links: 1,
        };
        Self { nodes: vec![Some(root)], free: Vec::new(), kept_contents: 0 }
    }

    /// All paths and what they lead to, without following links. The root's path is empty.
    pub(crate) fn rows(&self) -> BTreeMap<Vec<u8>, Row> {
        let mut rows = BTreeMap::new();
        let mut pending = vec![(Vec::new(), 0)];
        while let Some((path, number)) = pending.pop() {
            let node = self.node(number);
            let (bytes, device) = match &node.body {
                Body::File(bytes) | Body::Symlink(bytes) => (bytes.clone(), (0, 0)),
                Body::Device(_, major, minor) => (Vec::new(), (*major, *minor)),
                Body::Directory(names) => {
                    for (name, child) in names {
                        let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
                        pending.push(([&path, slash, name].concat(), *child));
                    }
                    (Vec::new(), (0, 0))
                }
                Body::Fifo => (Vec::new(), (0, 0)),
            };
            let Node { mode, uid, gid, mtime, xattrs, .. } = node.clone();
            let row =
                Row { kind: kind(node), mode, uid, gid, mtime, xattrs, bytes, device, first: Vec::new() };
            rows.insert(path, (number, row));
        }
        self.check(rows.values().map(|(number, _)| *number));
        let mut firsts = BTreeMap::new();
        let named = rows.into_iter().map(|(path, (number, mut row))| {
            row.first.clone_from(firsts.entry(number).or_insert_with(|| path.clone()));
            (path, row)
        });
        named.collect()
    }

    /// Checks that counts of links are right, and that nothing is without a name.
    fn check(&self, seen: impl Iterator<Item = usize>) {
        let mut counts = BTreeMap::new();
        seen.for_each(|number| *counts.entry(number).or_insert(0) += 1);
        for (number, node) in self.nodes.iter().enumerate() {
            let links = node.as_ref().map_or(0, |node| node.links);
            assert_eq!(counts.get(&number).copied().unwrap_or(0), links, "node {number}");
        }
    }

    fn node(&self, number: usize) -> &Node {
        self.nodes[number].as_ref().expect("the node is there")
    }

    fn node_mut(&mut self, number: usize) -> &mut Node {
        self.nodes[number].as_mut().expect("the node is there")
    }

    fn directory(&mut self, number: usize) -> &mut BTreeMap<Vec<u8>, usize> {
        let Body::Directory(names) = &mut self.node_mut(number).body else {
            unreachable!("callers give directories")
        };
        names
    }

    fn add_name(&mut self, dir: usize, name: &[u8], number: usize) {
        assert!((1..=255).contains(&name.len()) && name != b"." && name != b"..", "{name:?}");
        assert!(!name.contains(&b'/') && !name.contains(&0), "{name:?}");
        assert_eq!(self.directory(dir).insert(name.to_vec(), number), None, "the name is free");
    }

    fn remove_name(&mut self, dir: usize, name: &[u8]) {
        let number = self.directory(dir).remove(name).expect("the name is there");
        if let Body::Directory(names) = &self.node(number).body {
            let names: Vec<_> = names.keys().cloned().collect();
            names.iter().for_each(|name| self.remove_name(number, name));
        }
        self.node_mut(number).links -= 1;
        if self.node(number).links == 0 {
            self.nodes[number] = None;
            self.free.push(number);
        }
    }
}

fn kind(node: &Node) -> NodeKind {
    match node.body {
        Body::Directory(_) => NodeKind::Directory,
        Body::File(_) => NodeKind::Regular,
        Body::Symlink(_) => NodeKind::Symlink,
        Body::Device(kind, ..) => kind,
        Body::Fifo => NodeKind::Fifo,
    }
}

/// Reads all of a content, holes included.
fn read_all(content: &mut dyn LayerContent) -> Result<Vec<u8>> {
    let (mut stored, mut buf) = (Vec::new(), [0; 700]);
    while let n @ 1.. = content.read(&mut buf)? {
        stored.extend_from_slice(&buf[..n]);
    }
    let Some(extents) = content.extents() else {
        assert_eq!(stored.len() as u64, content.size());
        return Ok(stored);
    };
    let (mut all, mut rest) = (vec![0; to_usize(content.size())], stored.as_slice());
    for extent in extents {
        let (start, len) = (to_usize(extent.offset()), to_usize(extent.len()));
        all[start..start + len].copy_from_slice(&rest[..len]);
        rest = &rest[len..];
    }
    assert!(rest.is_empty(), "stored bytes are those of the extents");
    Ok(all)
}

impl FileTree for ModelTree {
    type Node = usize;

    fn number(node: usize) -> u64 {
        node as u64
    }

    fn root(&self) -> usize {
        0
    }

    fn lookup(&mut self, dir: usize, name: &[u8]) -> Result<Option<usize>> {
        Ok(self.directory(dir).get(name).copied())
    }

    fn status(&mut self, node: usize) -> Result<NodeStatus> {
        let node = self.node(node);
        let size = match &node.body {
            Body::File(bytes) | Body::Symlink(bytes) => bytes.len() as u64,
            _ => 0,
        };
        let Node { mode, uid, gid, mtime, links, .. } = *node;
        Ok(NodeStatus { kind: kind(node), mode, uid, gid, mtime, links, size })
    }

    fn link_target(&mut self, node: usize) -> Result<Vec<u8>> {
        let Body::Symlink(target) = &self.node(node).body else { unreachable!("callers give links") };
        Ok(target.clone())
    }

    fn xattrs(&mut self, node: usize) -> Result<Vec<NodeXattr>> {
        Ok(self.node(node).xattrs.clone())
    }

    fn names(&mut self, dir: usize, part: u32) -> Result<Option<Vec<Vec<u8>>>> {
        // By the last bit of the names, so that parts are not in the order of names.
        let is_in = |name: &&Vec<u8>| u32::from(name.last().is_some_and(|byte| byte & 1 != 0)) == part;
        Ok((part < 2).then(|| self.directory(dir).keys().filter(is_in).cloned().collect()))
    }

    fn create(
        &mut self,
        dir: usize,
        name: &[u8],
        node: NewNode<'_>,
        attributes: &NodeAttributes<'_>,
    ) -> Result<usize> {
        let body = match node {
            NewNode::Directory => Body::Directory(BTreeMap::new()),
            NewNode::File => Body::File(Vec::new()),
            NewNode::Symlink { target } => Body::Symlink(target.to_vec()),
            NewNode::CharDevice { major, minor } => Body::Device(NodeKind::CharDevice, major, minor),
            NewNode::BlockDevice { major, minor } => Body::Device(NodeKind::BlockDevice, major, minor),
            NewNode::Fifo => Body::Fifo,
        };
        let (mode, uid, gid, mtime) = (attributes.mode, attributes.uid, attributes.gid, attributes.mtime);
        let new = Some(Node { body, mode, uid, gid, mtime, xattrs: attributes.xattrs.to_vec(), links: 1 });
        let number = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        self.nodes[number] = new;
        self.add_name(dir, name, number);
        Ok(number)
    }

    fn link(&mut self, dir: usize, name: &[u8], node: usize) -> Result<()> {
        assert_ne!(kind(self.node(node)), NodeKind::Directory);
        self.node_mut(node).links += 1;
        self.add_name(dir, name, node);
        Ok(())
    }

    fn unlink(&mut self, dir: usize, name: &[u8]) -> Result<()> {
        let node = self.directory(dir)[name];
        assert_ne!(kind(self.node(node)), NodeKind::Directory);
        self.remove_name(dir, name);
        Ok(())
    }

    fn remove_tree(&mut self, dir: usize, name: &[u8]) -> Result<()> {
        let node = self.directory(dir)[name];
        assert_eq!(kind(self.node(node)), NodeKind::Directory);
        self.remove_name(dir, name);
        Ok(())
    }

    fn set_attributes(&mut self, node: usize, attributes: &NodeAttributes<'_>) -> Result<()> {
        let node = self.node_mut(node);
        assert!(attributes.xattrs.is_sorted_by(|a, b| a.0 < b.0));
        node.mode = attributes.mode;
        node.uid = attributes.uid;
        node.gid = attributes.gid;
        node.mtime = attributes.mtime;
        node.xattrs = attributes.xattrs.to_vec();
        Ok(())
    }

    fn write_content(&mut self, node: usize, content: &mut dyn LayerContent) -> Result<()> {
        let bytes = read_all(content)?;
        match &mut self.node_mut(node).body {
            Body::File(old) if old.is_empty() => *old = bytes,
            other => return Err(Error::invalid(format!("{other:?} is no new file"))),
        }
        Ok(())
    }

    fn replace_content(
        &mut self,
        dir: usize,
        name: &[u8],
        node: usize,
        attributes: &NodeAttributes<'_>,
        content: &mut dyn LayerContent,
    ) -> Result<()> {
        assert_eq!((self.directory(dir)[name], self.node(node).links), (node, 1));
        self.set_attributes(node, attributes)?;
        let new = Body::File(read_all(content)?);
        let is_kept = self.node(node).body == new;
        self.kept_contents += u64::from(is_kept);
        self.node_mut(node).body = new;
        Ok(())
    }
}
