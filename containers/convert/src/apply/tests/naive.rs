//! A second applier, slow and simple: paths are texts, a tree is a map from them to numbers of nodes, and every
//! question is answered by a look at all paths.

use super::support::Item;
use crate::file_tree::NodeKind;
use crate::model_tree::Row;
use headstart_tar::{TarEntry, TarKind, TarTime};
use std::collections::{BTreeMap, BTreeSet};

/// The applier's tree, and the paths that the current layer brought. Paths begin with `/`; the root's is `/`.
#[derive(Clone, Debug)]
pub(crate) struct NaiveTree {
    names: BTreeMap<String, usize>,
    nodes: Vec<Row>,
    brought: BTreeSet<String>,
}

/// A refusal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused;

/// The most components of a path. Without a small limit, paths through links grow so long that most of the time goes
/// into cleaning them.
pub(crate) const DEPTH: usize = 12;

type Outcome<T> = Result<T, Refused>;

impl NaiveTree {
    pub(crate) fn new() -> Self {
        let names = BTreeMap::from([("/".to_owned(), 0)]);
        Self { names, nodes: vec![directory()], brought: BTreeSet::new() }
    }

    pub(crate) fn next_layer(&mut self) {
        self.brought.clear();
    }

    pub(crate) fn rows(&self) -> BTreeMap<Vec<u8>, Row> {
        let mut firsts = BTreeMap::new();
        let rows = self.names.iter().map(|(path, number)| {
            let path = path.as_bytes()[1..].to_vec();
            let first = firsts.entry(*number).or_insert_with(|| path.clone()).clone();
            (path, Row { first, ..self.nodes[*number].clone() })
        });
        rows.collect()
    }

    fn row(&mut self, path: &str) -> &mut Row {
        &mut self.nodes[self.names[path]]
    }

    fn kind(&self, path: &str) -> Option<NodeKind> {
        self.names.get(path).map(|number| self.nodes[*number].kind)
    }

    /// The kind of what is at a path; none also for a path through a link.
    fn lstat(&self, path: &str) -> Outcome<Option<NodeKind>> {
        for (at, _) in path.match_indices('/').skip(1) {
            match self.kind(&path[..at]) {
                Some(NodeKind::Directory) => {}
                None | Some(NodeKind::Symlink) => return Ok(None),
                Some(_) => return Err(Refused),
            }
        }
        Ok(self.kind(path))
    }

    /// One pass of the walk: the path after it.
    fn pass(&self, path: &str, links: &mut u32) -> Outcome<String> {
        let Some((dir, name)) = path.trim_end_matches('/').rsplit_once('/') else {
            return Ok("/".to_owned());
        };
        let dir = self.pass(dir, links)?;
        if *links > 255 {
            return Err(Refused);
        }
        check_depth(&dir, name)?;
        let joined = clean(&format!("/{dir}/{name}"));
        if joined == "/" || self.lstat(&joined)? != Some(NodeKind::Symlink) {
            return Ok(joined);
        }
        *links += 1;
        let target = String::from_utf8(self.nodes[self.names[&joined]].bytes.clone()).unwrap();
        if target.starts_with('/') {
            check_depth("", &target)?;
            return Ok(target);
        }
        let dir = split(&joined).0;
        check_depth(dir, &target)?;
        Ok(clean(&format!("{dir}/{target}")))
    }

    fn root_path(&self, path: &str) -> Outcome<String> {
        let (mut path, mut links) = (format!("/{path}"), 0);
        loop {
            let before = links;
            path = self.pass(&path, &mut links)?;
            if links == before {
                return Ok(path);
            }
        }
    }

    fn is_kept(&self, path: &str) -> bool {
        self.brought.iter().any(|brought| brought == path || is_below(path, brought))
    }

    fn remove(&mut self, path: &str) {
        self.names.retain(|name, _| name != path && !is_below(path, name));
    }

    fn prune(&mut self, dir: &str) {
        let all: Vec<String> = self.names.keys().filter(|path| is_below(dir, path)).cloned().collect();
        for path in all {
            if !self.is_kept(&path) {
                self.names.remove(&path);
            }
        }
    }

    fn create(&mut self, path: &str, row: Row) {
        self.nodes.push(row);
        assert_eq!(self.names.insert(path.to_owned(), self.nodes.len() - 1), None);
    }

    fn make_parents(&mut self, dir: &str) -> Outcome<()> {
        match self.lstat(dir)? {
            Some(NodeKind::Directory) => return Ok(()),
            Some(_) => return Err(Refused),
            None => {}
        }
        self.make_parents(split(dir).0)?;
        self.create(dir, directory());
        self.brought.insert(dir.to_owned());
        Ok(())
    }

    pub(crate) fn apply(&mut self, item: &Item) -> Outcome<()> {
        let entry = &item.entry;
        let cleaned = clean(std::str::from_utf8(&entry.path).unwrap());
        if cleaned.is_empty() || cleaned == "/" {
            if entry.kind == TarKind::Directory {
                let new = row(entry, NodeKind::Directory);
                *self.row("/") = new;
            }
            return Ok(());
        }
        if cleaned == ".." || cleaned.ends_with("/..") {
            return Ok(());
        }
        let (parent, name) = cleaned.rsplit_once('/').unwrap_or(("", &cleaned));
        let parent = self.root_path(parent)?;
        self.make_parents(&parent)?;
        if name == ".wh..wh..opq" {
            self.prune(&parent);
            return Ok(());
        }
        if let Some(name) = name.strip_prefix(".wh.") {
            if ["", ".", ".."].contains(&name) {
                return Err(Refused);
            }
            let path = clean(&format!("{parent}/{name}"));
            if self.is_kept(&path) {
                self.prune(&path);
            } else {
                self.remove(&path);
            }
            return Ok(());
        }
        check_depth(&parent, name)?;
        let path = clean(&format!("{parent}/{name}"));
        self.put(&path, item)?;
        self.brought.insert(path);
        Ok(())
    }

    fn put(&mut self, path: &str, item: &Item) -> Outcome<()> {
        let entry = &item.entry;
        if entry.kind == TarKind::Directory && self.kind(path) == Some(NodeKind::Directory) {
            let mut new = row(entry, NodeKind::Directory);
            if self.is_kept(path) {
                new.xattrs = union(&self.row(path).xattrs, &new.xattrs);
            }
            *self.row(path) = new;
            return Ok(());
        }
        self.remove(path);
        let kind = match entry.kind {
            TarKind::HardLink => return self.put_link(path, entry),
            TarKind::Directory => NodeKind::Directory,
            TarKind::Regular => NodeKind::Regular,
            TarKind::Symlink => NodeKind::Symlink,
            TarKind::Fifo => NodeKind::Fifo,
            TarKind::CharDevice => NodeKind::CharDevice,
            TarKind::BlockDevice => NodeKind::BlockDevice,
        };
        if kind == NodeKind::Symlink && entry.link_target.is_empty() {
            return Err(Refused);
        }
        let mut new = row(entry, kind);
        new.bytes = if kind == NodeKind::Symlink { entry.link_target.clone() } else { item.stored.clone() };
        self.create(path, new);
        Ok(())
    }

    fn put_link(&mut self, path: &str, entry: &TarEntry) -> Outcome<()> {
        let target = std::str::from_utf8(&entry.link_target).unwrap();
        let (dir, name) = target.rsplit_once('/').map_or(("", target), |(dir, name)| (dir, name));
        let target = clean(&format!("{}/{name}", self.root_path(dir)?));
        // A `.` at the end makes no file of a directory, and `..` always leads to one.
        let kind = self
            .lstat(&target)?
            .filter(|kind| *kind != NodeKind::Directory && name != "..")
            .ok_or(Refused)?;
        let number = self.names[&target];
        let mut new = row(entry, kind);
        let old = &self.nodes[number];
        new.xattrs = union(&old.xattrs, &new.xattrs);
        (new.bytes, new.device) = (old.bytes.clone(), old.device);
        self.nodes[number] = new;
        self.names.insert(path.to_owned(), number);
        Ok(())
    }
}

fn is_below(dir: &str, path: &str) -> bool {
    path != "/" && (dir == "/" || path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/')))
}

/// The directory and the name of a path that begins with `/`.
fn split(path: &str) -> (&str, &str) {
    let (dir, name) = path.rsplit_once('/').unwrap();
    (if dir.is_empty() { "/" } else { dir }, name)
}

/// Refuses a path that is too deep while the components of `tail` are joined to `dir`, one after the other.
fn check_depth(dir: &str, tail: &str) -> Outcome<()> {
    let mut depth = clean(&format!("/{dir}")).split('/').filter(|part| !part.is_empty()).count();
    for part in tail.split('/').filter(|part| !part.is_empty() && *part != ".") {
        depth = if part == ".." { depth.saturating_sub(1) } else { depth + 1 };
        if depth > DEPTH {
            return Err(Refused);
        }
    }
    Ok(())
}

/// Cleans a path; an empty one stands for `.`.
fn clean(path: &str) -> String {
    let is_absolute = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part != ".." {
            parts.push(part);
        } else if parts.last().is_some_and(|last| *last != "..") {
            parts.pop();
        } else if !is_absolute {
            parts.push(part);
        }
    }
    format!("{}{}", if is_absolute { "/" } else { "" }, parts.join("/"))
}

fn union(old: &[(Vec<u8>, Vec<u8>)], new: &[(Vec<u8>, Vec<u8>)]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let all: BTreeMap<_, _> = old.iter().chain(new).cloned().collect();
    all.into_iter().collect()
}

fn directory() -> Row {
    Row {
        kind: NodeKind::Directory,
        mode: 0o755,
        uid: 0,
        gid: 0,
        mtime: TarTime::default(),
        xattrs: Vec::new(),
        bytes: Vec::new(),
        device: (0, 0),
        first: Vec::new(),
    }
}

fn row(entry: &TarEntry, kind: NodeKind) -> Row {
    let is_special = !matches!(kind, NodeKind::Regular | NodeKind::Directory);
    let xattrs = entry.xattrs.iter().filter(|(name, _)| !(is_special && name.starts_with(b"user.")));
    Row {
        kind,
        mode: if kind == NodeKind::Symlink { 0o777 } else { entry.mode },
        uid: entry.uid,
        gid: entry.gid,
        mtime: entry.mtime,
        xattrs: xattrs.cloned().collect(),
        device: entry.device,
        ..directory()
    }
}
