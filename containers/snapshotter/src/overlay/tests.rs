use super::*;
use crate::record::{RemoteLayer, SnapshotContent, SnapshotUsage};
use crate::table::{SnapshotTable, WantedTree};
use headstart_block::ErrorKind;
use std::fs;

fn root(options: &[&str]) -> (tempfile::TempDir, OverlayRoot) {
    let dir = tempfile::tempdir().unwrap();
    let options: Vec<_> = options.iter().map(|&option| option.to_owned()).collect();
    let root = OverlayRoot::open(&dir.path().join("root"), &options).unwrap();
    (dir, root)
}

fn tree(is_writable: bool, layers: &[u64]) -> SnapshotTree {
    let layers = layers.iter().map(|&id| (SnapshotId(id), SnapshotContent::Directory)).collect();
    SnapshotTree { id: SnapshotId(9), is_writable, disk: None, layers }
}

/// The only mount of a tree as one text, with `R` for the directory of snapshots.
fn shown(root: &OverlayRoot, tree: &SnapshotTree, remote: Option<&str>) -> String {
    let mounts = root.mounts(tree, remote);
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    let mount = &mounts[0];
    let text = format!("{} {} {}", mount.kind, mount.source, mount.options.join(" "));
    text.replace(&root.text(SnapshotPlace::All), "R")
}

#[test]
fn mounts_are_containerds() {
    // An option that takes the place of what depends on the kernel.
    let (_dir, root) = root(&["index=on"]);
    let user = if is_in_user_namespace() { "userxattr " } else { "" };
    let shown = |tree, remote| shown(&root, &tree, remote).replace(user, "");
    assert_eq!(shown(tree(true, &[]), None), "bind R/9/fs rw rbind");
    assert_eq!(shown(tree(false, &[]), None), "bind R/9/fs ro rbind");
    assert_eq!(shown(tree(false, &[4]), None), "bind R/4/fs ro rbind");
    let writable = "overlay overlay index=on workdir=R/9/work upperdir=R/9/fs";
    assert_eq!(shown(tree(true, &[4]), None), format!("{writable} lowerdir=R/4/fs"));
    assert_eq!(shown(tree(true, &[4, 2, 1]), None), format!("{writable} lowerdir=R/4/fs:R/2/fs:R/1/fs"));
    assert_eq!(shown(tree(false, &[4, 2]), None), "overlay overlay index=on lowerdir=R/4/fs:R/2/fs");
}

#[test]
fn remote_layers_are_one_lower_directory_below_the_others() {
    let (_dir, root) = root(&["index=on"]);
    let remote = |id| (SnapshotId(id), SnapshotContent::Remote(RemoteLayer(String::new())));
    let mut tree = tree(true, &[4]);
    tree.layers.extend([remote(2), remote(1)]);
    assert!(shown(&root, &tree, Some("/disk")).ends_with("lowerdir=R/4/fs:/disk"));
    tree.layers.remove(0);
    tree.is_writable = false;
    assert_eq!(shown(&root, &tree, Some("/disk")), "bind /disk ro rbind");
}

#[test]
fn a_created_snapshot_has_its_directories_with_their_modes_and_its_parents_owner() {
    let (_dir, root) = root(&[]);
    let mut table = SnapshotTable::default();
    let mode = |place| fs::metadata(root.path(place)).unwrap().mode() & 0o7777;
    let mut create = |is_writable, key: &str, parent: &str| {
        let wanted = if is_writable { WantedTree::Overlay } else { WantedTree::View };
        let made = table.create(wanted, key, parent, Default::default(), Default::default());
        let (id, steps) = made.unwrap();
        steps.iter().for_each(|step| root.carry_out(step).unwrap());
        for step in steps {
            if let SnapshotStep::Record(change) = step {
                table.apply(change).unwrap();
            }
        }
        if parent.is_empty() && is_writable {
            let commit = table.commit(
                "layer",
                (key, id),
                Default::default(),
                SnapshotUsage::default(),
                Default::default(),
            );
            for step in commit.unwrap() {
                if let SnapshotStep::Record(change) = step {
                    table.apply(change).unwrap();
                }
            }
        }
        id
    };
    let layer = create(true, "a", "");
    assert_eq!(
        [SnapshotPlace::Of(layer), SnapshotPlace::Upper(layer), SnapshotPlace::Work(layer)].map(mode),
        [0o700, 0o755, 0o711]
    );
    let upper = root.path(SnapshotPlace::Upper(layer));
    fs::set_permissions(&upper, Permissions::from_mode(0o1770)).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        lchown(&upper, Some(1234), Some(2345)).unwrap();
    }
    let child = create(true, "b", "layer");
    let found = fs::metadata(root.path(SnapshotPlace::Upper(child))).unwrap();
    assert_eq!(found.mode() & 0o7777, 0o1770);
    if is_root {
        assert_eq!((found.uid(), found.gid()), (1234, 2345));
    }
    let view = create(false, "v", "");
    assert!(!root.path(SnapshotPlace::Work(view)).exists() && root.path(SnapshotPlace::Upper(view)).is_dir());
}

#[test]
fn only_directories_of_no_snapshot_are_orphans() {
    let (_dir, root) = root(&[]);
    let all = root.path(SnapshotPlace::All);
    for name in ["1", "2", "new-2", "new-3", "007", "lost+found", "new-x", "-1"] {
        fs::create_dir(all.join(name)).unwrap();
    }
    let mut orphans = root.orphans(|id| id == SnapshotId(2)).unwrap();
    orphans.sort_by_key(|orphan| orphan.path.clone());
    let orphan = |name: &str, id| OrphanDirectory { path: all.join(name), id: SnapshotId(id) };
    assert_eq!(orphans, [orphan("1", 1), orphan("new-2", 2), orphan("new-3", 3)]);
}

#[test]
fn a_directory_in_the_way_is_a_fault() {
    let (_dir, root) = root(&[]);
    let (from, to) = (SnapshotPlace::New(SnapshotId(1)), SnapshotPlace::Of(SnapshotId(1)));
    let make = |place| root.carry_out(&SnapshotStep::MakeDirectory { place, mode: 0o700 });
    make(from).unwrap();
    assert_eq!(make(from).unwrap_err().kind, FaultKind::Failed);
    make(to).unwrap();
    assert_eq!(root.carry_out(&SnapshotStep::Rename { from, to }).unwrap_err().kind, FaultKind::Failed);
}

#[test]
fn paths_that_overlayfs_cannot_be_told_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a:b", "a,b", "a\\b"] {
        assert_eq!(OverlayRoot::open(&dir.path().join(name), &[]).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[test]
fn usage_counts_files_with_several_names_once_as_du_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("d")).unwrap();
    fs::write(path("d/large"), vec![1; 100_000]).unwrap();
    fs::hard_link(path("d/large"), path("again")).unwrap();
    std::os::unix::fs::symlink("/etc", path("link")).unwrap();
    File::create(path("sparse")).unwrap().set_len(1 << 30).unwrap();
    let usage = usage_of(dir.path()).unwrap();
    assert_eq!(usage.inodes, 5);
    let du =
        std::process::Command::new("du").args(["--block-size=1", "-s"]).arg(dir.path()).output().unwrap();
    let du = String::from_utf8(du.stdout).unwrap();
    assert_eq!(du.split_whitespace().next(), Some(usage.size.to_string().as_str()));
    assert_eq!(usage_of(&path("none")).unwrap_err().kind(), ErrorKind::NotFound);
}
