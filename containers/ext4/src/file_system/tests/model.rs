//! Random layers, beside a model of their files.

use super::support::{Bytes, Disk, attributes, check, content, layer, new, read_back};
use crate::file_system::{FileSystem, InodeNumber, NewInode};
use crate::support::skip_without;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// One change of a random layer; numbers choose among what is there.
#[derive(Clone, Debug)]
enum Change {
    Directory(u16, u8),
    File(u16, u8, u16, u64),
    Link(u16, u8, u16),
    Symlink(u16, u8, u16),
    Remove(u16, u16),
    Attributes(u16, u16),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        2 => (any::<u16>(), any::<u8>()).prop_map(|(dir, name)| Change::Directory(dir, name)),
        6 => (any::<u16>(), any::<u8>(), 0..20_000_u16, 0..4_u64)
            .prop_map(|(dir, name, len, seed)| Change::File(dir, name, len, seed)),
        2 => (any::<u16>(), any::<u8>(), any::<u16>()).prop_map(|(dir, name, file)| Change::Link(dir, name, file)),
        1 => (any::<u16>(), any::<u8>(), 1..200_u16).prop_map(|(dir, name, len)| Change::Symlink(dir, name, len)),
        3 => (any::<u16>(), any::<u16>()).prop_map(|(dir, name)| Change::Remove(dir, name)),
        1 => (any::<u16>(), 0..0o1000_u16).prop_map(|(node, mode)| Change::Attributes(node, mode)),
    ]
}

#[derive(Clone, Debug, PartialEq)]
enum ModelNode {
    Directory(BTreeMap<Vec<u8>, usize>),
    File(Vec<u8>),
    Symlink(Vec<u8>),
}

/// The files as a plain list of nodes; node 0 is the root directory.
#[derive(Clone, Default)]
struct Model {
    nodes: Vec<(ModelNode, u16)>,
    inodes: BTreeMap<usize, InodeNumber>,
}

impl Model {
    /// Directories that can be reached, and other nodes.
    fn reachable(&self) -> (Vec<usize>, Vec<usize>) {
        let (mut dirs, mut others, mut at) = (vec![0], Vec::new(), 0);
        while at < dirs.len() {
            if let ModelNode::Directory(names) = &self.nodes[dirs[at]].0 {
                for &node in names.values() {
                    let list = if matches!(self.nodes[node].0, ModelNode::Directory(_)) {
                        &mut dirs
                    } else {
                        &mut others
                    };
                    list.push(node);
                }
            }
            at += 1;
        }
        (dirs, others)
    }

    fn names(&mut self, dir: usize) -> &mut BTreeMap<Vec<u8>, usize> {
        match &mut self.nodes[dir].0 {
            ModelNode::Directory(names) => names,
            _ => unreachable!("node {dir} is no directory"),
        }
    }

    fn add(&mut self, dir: usize, name: &[u8], node: ModelNode, mode: u16, inode: InodeNumber) {
        self.nodes.push((node, mode));
        let number = self.nodes.len() - 1;
        self.inodes.insert(number, inode);
        self.names(dir).insert(name.to_vec(), number);
    }
}

fn apply(fs: &mut FileSystem<Disk>, model: &mut Model, change: &Change) {
    let (dirs, others) = model.reachable();
    let pick = |from: &[usize], number: u16| from[usize::from(number) % from.len()];
    match *change {
        Change::Directory(dir, name)
        | Change::File(dir, name, ..)
        | Change::Link(dir, name, _)
        | Change::Symlink(dir, name, _) => {
            let dir = pick(&dirs, dir);
            let name = format!("{name:0width$}", width = usize::from(name).max(1)).into_bytes();
            let at = model.inodes[&dir];
            if model.names(dir).contains_key(&name) {
                if let (&Change::File(_, _, len, seed), Some(&node)) = (change, model.names(dir).get(&name))
                    && matches!(model.nodes[node].0, ModelNode::File(_))
                {
                    let bytes = content(seed, usize::from(len / 8 * 8));
                    let file =
                        fs.replace(at, &name, &attributes(0o640), &mut Bytes::new(bytes.clone())).unwrap();
                    model.add(dir, &name, ModelNode::File(bytes), 0o640, file);
                }
                return;
            }
            match *change {
                Change::Directory(..) => {
                    let made = fs.create(at, &name, &NewInode::Directory, &attributes(0o755)).unwrap();
                    model.add(dir, &name, ModelNode::Directory(BTreeMap::new()), 0o755, made);
                }
                Change::File(_, _, len, seed) => {
                    let bytes = content(seed, usize::from(len));
                    let made = fs.create(at, &name, &NewInode::Regular, &attributes(0o644)).unwrap();
                    fs.write_content(made, &mut Bytes::new(bytes.clone())).unwrap();
                    model.add(dir, &name, ModelNode::File(bytes), 0o644, made);
                }
                Change::Link(_, _, file) if !others.is_empty() => {
                    let node = pick(&others, file);
                    fs.link(at, &name, model.inodes[&node]).unwrap();
                    model.names(dir).insert(name, node);
                }
                Change::Symlink(_, _, len) => {
                    let target = vec![b't'; usize::from(len)];
                    let made = fs.create(at, &name, &NewInode::Symlink(&target), &attributes(0o777)).unwrap();
                    model.add(dir, &name, ModelNode::Symlink(target), 0o777, made);
                }
                _ => {}
            }
        }
        Change::Remove(dir, name) => {
            let dir = pick(&dirs, dir);
            let at = model.inodes[&dir];
            let names = model.names(dir);
            let Some(name) = names.keys().nth(usize::from(name) % names.len().max(1)).cloned() else {
                return;
            };
            names.remove(&name);
            assert!(fs.remove(at, &name).unwrap());
        }
        Change::Attributes(node, mode) => {
            let node = pick(&[dirs, others].concat(), node);
            fs.set_attributes(model.inodes[&node], &attributes(mode)).unwrap();
            model.nodes[node].1 = mode;
        }
    }
}

fn compare(fs: &mut FileSystem<Disk>, model: &Model, node: usize, inode: InodeNumber) {
    let status = fs.status(inode).unwrap();
    assert_eq!(status.mode, model.nodes[node].1, "node {node}");
    match &model.nodes[node].0 {
        ModelNode::Directory(names) => {
            let found = fs.all_entries(inode).unwrap();
            assert_eq!(found.keys().collect::<Vec<_>>(), names.keys().collect::<Vec<_>>());
            for (name, &node) in names {
                assert_eq!(fs.lookup(inode, name).unwrap(), Some(found[name]));
                compare(fs, model, node, found[name]);
            }
        }
        ModelNode::File(bytes) => assert!(read_back(fs, inode) == *bytes, "node {node}"),
        ModelNode::Symlink(target) => assert_eq!(fs.link_target(inode).unwrap(), *target),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn random_layers_are_clean_and_hold_the_files_of_a_plain_model(
        layers in proptest::collection::vec(proptest::collection::vec(change(), 0..60), 1..4),
    ) {
        let Some(_) = skip_without("random layers", &["e2fsck"]) else { return Ok(()) };
        let dir = tempfile::tempdir().unwrap();
        let mut model = Model::default();
        model.nodes.push((ModelNode::Directory(BTreeMap::new()), 0o755));
        let mut below = dir.path().join("0");
        let fs = new(&below, 300 << 20);
        model.inodes.insert(0, fs.root());
        fs.finish().unwrap();
        for (number, changes) in (1..).zip(&layers) {
            let path = dir.path().join(number.to_string());
            let mut fs = layer(&below, &path);
            for change in changes {
                apply(&mut fs, &mut model, change);
            }
            fs.finish().unwrap();
            check(&path);
            let mut fs = layer(&path, &dir.path().join("look"));
            let root = fs.root();
            compare(&mut fs, &model, 0, root);
            below = path;
        }
    }
}
