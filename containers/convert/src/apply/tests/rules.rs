//! The rules and choices of the applier's essay, one by one.

use super::support::{
    Item, apply, apply_alone, apply_within, dir, file, link, paths, row, symlink, tree_of, xattrs,
};
use crate::apply::ApplyLimits;
use crate::file_tree::NodeKind;
use crate::model_tree::ModelTree;
use headstart_block::{ByteRange, ErrorKind};
use headstart_tar::{TarKind, TarTime};

/// The error of the layer's last entry, on a tree of the others.
#[track_caller]
fn refused(items: &[Item]) -> String {
    let (last, base) = items.split_last().unwrap();
    let mut tree = tree_of(&[base]);
    let error = apply(&mut tree, std::slice::from_ref(last)).unwrap_err();
    let shown =
        format!("tar entry \"{}\"", last.entry.path.get(..256).unwrap_or(&last.entry.path).escape_ascii());
    assert!(error.to_string().starts_with(&shown), "{error}");
    error.to_string()
}

#[test]
fn names_are_cleaned() {
    let tree = tree_of(&[&[
        dir("./d"),
        file("d/./b", ""),
        file("d//c", ""),
        file("/abs/path", ""),
        file("x/../y", ""),
    ]]);
    assert_eq!(paths(&tree), ["abs", "abs/path", "d", "d/b", "d/c", "y"]);
}

#[test]
fn the_roots_entry_sets_its_attributes_if_it_is_a_directory() {
    let root = dir("./").mode(0o711).owner(5, 6).time(77);
    let tree = tree_of(&[&[root, file("/", "x"), symlink("x", "a/.."), dir("..").mode(0o700)]]);
    let row = row(&tree, "");
    assert_eq!((row.mode, row.uid, row.gid, row.mtime.seconds), (0o711, 5, 6, 77));
    let counts = apply(&mut ModelTree::new(), &[dir(".."), file(".", "x"), dir(".")]).unwrap();
    assert_eq!((counts.ignored_entries, counts.directories), (2, 1));
}

#[test]
fn unlisted_directories_are_all_the_same() {
    let tree = tree_of(&[&[file("a/b/c", "x").time(5).owner(7, 7), file("e/.wh.x", "")]]);
    for path in ["a", "a/b", "e"] {
        let row = row(&tree, path);
        assert_eq!((row.mode, row.uid, row.gid, row.mtime), (0o755, 0, 0, TarTime::default()));
    }
}

#[test]
fn the_last_entry_of_a_name_wins() {
    let tree = tree_of(&[&[file("f", "one"), link("f", "g"), file("f", "two").mode(0o600)]]);
    assert_eq!((row(&tree, "f").bytes, row(&tree, "f").mode), (b"two".to_vec(), 0o600));
    assert_eq!(row(&tree, "g").bytes, b"one");
}

#[test]
fn each_kind_replaces_each_other_kind() {
    let all = || {
        [
            dir("x"),
            file("x", "new"),
            symlink("to", "x"),
            link("other", "x"),
            Item::new(TarKind::Fifo, "x"),
            Item::new(TarKind::CharDevice, "x"),
            Item::new(TarKind::BlockDevice, "x"),
        ]
    };
    for old in all() {
        for new in all() {
            for is_one_layer in [true, false] {
                let mut base = vec![file("other", "o"), old.clone()];
                if old.entry.kind == TarKind::Directory {
                    base.extend([file("x/in", "1"), dir("x/deep"), link("other", "x/deep/o")]);
                }
                let tree = if is_one_layer {
                    base.push(new.clone());
                    tree_of(&[&base])
                } else {
                    tree_of(&[&base, std::slice::from_ref(&new)])
                };
                let is_merged = (old.entry.kind, new.entry.kind) == (TarKind::Directory, TarKind::Directory);
                assert_eq!(paths(&tree).len(), if is_merged { 5 } else { 2 });
                let expected = match new.entry.kind {
                    TarKind::Regular | TarKind::HardLink => NodeKind::Regular,
                    TarKind::Directory => NodeKind::Directory,
                    TarKind::Symlink => NodeKind::Symlink,
                    TarKind::Fifo => NodeKind::Fifo,
                    TarKind::CharDevice => NodeKind::CharDevice,
                    TarKind::BlockDevice => NodeKind::BlockDevice,
                };
                assert_eq!(row(&tree, "x").kind, expected);
            }
        }
    }
}

#[test]
fn a_path_through_a_file_is_refused() {
    for path in ["f/x", "f/x/y", "f/.wh.x", "l/x"] {
        assert!(
            refused(&[file("f", ""), symlink("f", "l"), file(path, "")]).contains("not a directory"),
            "{path}"
        );
    }
}

#[test]
fn directories_are_made_at_the_end_of_dangling_links() {
    let tree = tree_of(&[&[symlink("../no/where", "l"), file("l/f", "x")]]);
    assert_eq!(paths(&tree), ["l", "no", "no/where", "no/where/f"]);
}

#[test]
fn cycles_and_long_chains_of_links_are_refused() {
    assert!(refused(&[symlink("b", "a"), symlink("a", "b"), file("a/f", "")]).contains("255"));
    assert!(refused(&[symlink("a", "a"), link("a/x", "f")]).contains("255"));
    let chain = |links: usize| {
        let mut items: Vec<_> = (0..links).map(|n| symlink(format!("l{}", n + 1), format!("l{n}"))).collect();
        items.extend([dir(format!("l{links}")), file("l0/f", "")]);
        items
    };
    assert!(paths(&tree_of(&[&chain(255)])).contains(&"l255/f".to_owned()));
    assert!(refused(&chain(256)).contains("255"));
}

#[test]
fn a_link_that_changes_leads_elsewhere_at_once() {
    let layer = [
        dir("a"),
        dir("b"),
        symlink("a", "l"),
        file("l/1", ""),
        symlink("b", "l"),
        file("l/2", ""),
        dir("l"),
        file("l/3", ""),
        symlink("a", "b"),
        file("b/4", ""),
    ];
    assert_eq!(paths(&tree_of(&[&layer])), ["a", "a/1", "a/4", "b", "l", "l/3"]);
}

#[test]
fn hard_links_reach_lower_layers_and_share_their_attributes() {
    let base =
        [dir("a"), file("a/low", "x").xattr("user.x", "1").xattr("user.y", "1"), symlink("low", "a/l")];
    let upper = [
        dir("b"),
        link("a/low", "b/up").mode(0o4711).owner(1, 2).time(9).xattr("user.y", "2").xattr("user.z", "2"),
        link("a/l", "b/up_l").mode(0o600),
    ];
    let tree = tree_of(&[&base, &upper]);
    let low = row(&tree, "a/low");
    assert_eq!((low.mode, low.uid, low.gid, low.mtime.seconds), (0o4711, 1, 2, 9));
    assert_eq!(xattrs(&low), [("user.x", "1"), ("user.y", "2"), ("user.z", "2")]);
    assert_eq!(row(&tree, "b/up").first, b"a/low");
    let link = row(&tree, "b/up_l");
    assert_eq!((link.kind, link.mode, link.first), (NodeKind::Symlink, 0o777, b"a/l".to_vec()));
}

#[test]
fn hard_links_to_nothing_themselves_and_directories_are_refused() {
    for target in ["no", "no/file", "f/x", "f", "", "d", ".", "d/.", "d/..", "/", "l/", "d/"] {
        let items = [file("f", "1"), dir("d"), symlink("d", "l"), link(target, "f")];
        refused(&items);
    }
    assert!(refused(&[dir("d"), file("d/f", ""), link("d/f", "d")]).contains("does not exist"));
}

#[test]
fn a_slash_after_a_hard_links_target_follows_it() {
    let tree =
        tree_of(&[&[dir("d"), file("d/f", "x"), symlink("d/f", "l"), link("l/", "h"), link("l", "k")]]);
    assert_eq!((row(&tree, "h").first, row(&tree, "k").kind), (b"d/f".to_vec(), NodeKind::Symlink));
}

#[test]
fn opaque_markers_keep_what_the_layer_brings_in_any_order() {
    let base = [
        dir("d"),
        file("d/a", ""),
        file("d/b", ""),
        dir("d/sub"),
        file("d/sub/old", ""),
        dir("d/gone"),
        file("d/gone/x", ""),
        file("d/deep/er/old", ""),
        file("e", ""),
    ];
    let brought =
        [dir("d"), file("d/new", ""), dir("d/sub"), file("d/sub/kept", ""), file("d/deep/er/new", "")];
    for at in 0..=brought.len() {
        let mut layer = brought.to_vec();
        layer.insert(at, file("d/.wh..wh..opq", ""));
        let tree = tree_of(&[&base, &layer]);
        let expected = ["d", "d/deep", "d/deep/er", "d/deep/er/new", "d/new", "d/sub", "d/sub/kept", "e"];
        assert_eq!(paths(&tree), expected, "{at}");
    }
    assert_eq!(paths(&tree_of(&[&base, &[file(".wh..wh..opq", ""), file("x", "")]])), ["x"]);
}

#[test]
fn a_hard_link_in_an_opaque_directory_is_brought_by_its_name() {
    let base = [dir("d"), file("d/a", "x")];
    let tree = tree_of(&[&base, &[link("d/a", "d/b"), file("d/.wh..wh..opq", "")]]);
    assert_eq!(
        (paths(&tree), row(&tree, "d/b").bytes),
        (vec!["d".to_owned(), "d/b".to_owned()], b"x".to_vec())
    );
}

#[test]
fn whiteouts_keep_what_the_layer_brings_in_any_order() {
    let base = [dir("d"), file("d/old", ""), dir("d/s"), file("d/s/old", ""), file("f", "old")];
    let brought = [file("d/s/new", ""), file("f", "new")];
    for at in 0..=brought.len() {
        let mut layer = brought.to_vec();
        layer.splice(at..at, [file(".wh.d", ""), file(".wh.f", ""), file(".wh.nothing", "")]);
        let tree = tree_of(&[&base, &layer]);
        assert_eq!(paths(&tree), ["d", "d/s", "d/s/new", "f"], "{at}");
        assert_eq!(row(&tree, "f").bytes, b"new");
    }
}

#[test]
fn the_next_layer_can_remove_all_that_was_brought() {
    let tree = tree_of(&[&[dir("d"), file("d/f", "")], &[file("d/g", "")], &[file("d/.wh..wh..opq", "")]]);
    assert_eq!(paths(&tree), ["d"]);
    let tree = tree_of(&[&[dir("d"), file("d/f", "")], &[file("d/g", "")], &[file(".wh.d", "")]]);
    assert!(paths(&tree).is_empty());
}

#[test]
fn a_directory_that_was_removed_and_made_again_is_the_layers_own() {
    // The tree gives the number of the removed directory to the next node.
    let base = [dir("d"), dir("d/x"), file("d/x/old", ""), dir("e"), file("e/old", "")];
    let layer = [
        file("d/x/f", ""),
        file("d/x", "now a file"),
        dir("y"),
        file("y/.wh..wh..opq", ""),
        file("e/.wh.old", ""),
    ];
    assert_eq!(paths(&tree_of(&[&base, &layer])), ["d", "d/x", "e", "y"]);
}

#[test]
fn aufs_metadata_removes_nothing() {
    let tree = tree_of(&[
        &[file("a", "")],
        &[dir(".wh..wh.plnk"), file(".wh..wh.aufs", ""), file(".wh..wh.orph", "")],
    ]);
    assert_eq!(paths(&tree), ["a"]);
}

#[test]
fn a_whiteout_of_a_name_that_no_file_can_have_is_refused() {
    let name = |len| [b".wh.".as_slice(), &[b'x'; 300][..len]].concat();
    tree_of(&[&[file(name(255), "")]]);
    assert!(refused(&[file(name(256), "")]).contains("256 bytes"));
}

#[test]
fn attributes_are_taken_as_they_are() {
    let mut device = Item::new(TarKind::CharDevice, "tty").mode(0o620).owner(0, 5);
    device.entry.device = (4095, 1_048_575);
    let layer = [
        dir("d").mode(0o3777).owner(4_000_000_000, 1).time(8_589_934_597),
        file("f", "").mode(0o6755).owner(2, 3).time(-1),
        symlink("f", "l").mode(0o640).owner(7, 8),
        device,
    ];
    let tree = tree_of(&[&layer]);
    let d = row(&tree, "d");
    assert_eq!((d.mode, d.uid, d.gid, d.mtime.seconds), (0o3777, 4_000_000_000, 1, 8_589_934_597));
    let f = row(&tree, "f");
    assert_eq!((f.mode, f.uid, f.gid, f.mtime), (0o6755, 2, 3, TarTime::default()));
    assert_eq!((row(&tree, "l").mode, row(&tree, "l").uid), (0o777, 7));
    assert_eq!((row(&tree, "tty").device, row(&tree, "tty").mode), ((4095, 1_048_575), 0o620));
}

#[test]
fn the_largest_id_leaves_the_owner() {
    let nobody = u32::MAX;
    let tree = tree_of(&[
        &[dir("d").owner(1, 2)],
        &[dir("d").owner(nobody, 7), file("f", "").owner(nobody, nobody)],
    ]);
    assert_eq!((row(&tree, "d").uid, row(&tree, "d").gid), (1, 7));
    assert_eq!((row(&tree, "f").uid, row(&tree, "f").gid), (0, 0));
}

#[test]
fn a_directory_keeps_its_time_when_names_in_it_change() {
    let base = [dir("d").time(5), file("d/a", ""), file("d/b", "")];
    let tree = tree_of(&[&base, &[file("d/.wh.a", ""), file("d/b", "new"), file("d/c", "")]]);
    assert_eq!(row(&tree, "d").mtime.seconds, 5);
}

#[test]
fn attributes_of_a_lower_directory_are_replaced_and_those_of_this_layer_kept() {
    let low = dir("d").xattr("user.keep", "1").xattr("user.old", "1");
    let tree = tree_of(&[
        std::slice::from_ref(&low),
        &[dir("d").xattr("user.keep", "2"), file("d/f", ""), dir("d").xattr("user.more", "3")],
    ]);
    assert_eq!(xattrs(&row(&tree, "d")), [("user.keep", "2"), ("user.more", "3")]);
    let counts =
        apply(&mut ModelTree::new(), &[symlink("x", "l").xattr("user.a", "").xattr("trusted.a", "")])
            .unwrap();
    assert_eq!(counts.ignored_xattrs, 1);
}

#[test]
fn content_that_did_not_change_is_offered_to_the_tree() {
    let base = [file("f", "same"), file("g", "old"), file("h", "linked"), link("h", "i")];
    let mut tree = tree_of(&[&base]);
    let layer = [file("f", "same").mode(0o600), file("g", "new"), file("h", "linked"), file("f", "same")];
    let counts = apply(&mut tree, &layer).unwrap();
    assert_eq!((counts.files, counts.replaced_files, tree.kept_contents), (4, 2, 1));
    assert_eq!((row(&tree, "g").bytes, row(&tree, "i").first), (b"new".to_vec(), b"i".to_vec()));
}

#[test]
fn sparse_files_have_their_holes() {
    let layer = [file("s", "abcd").sparse(20, &[ByteRange::between(2, 3), ByteRange::between(10, 13)])];
    let tree = tree_of(&[&layer]);
    assert_eq!(row(&tree, "s").bytes, *b"\0\0a\0\0\0\0\0\0\0bcd\0\0\0\0\0\0\0");
    assert_eq!(apply(&mut ModelTree::new(), &layer).unwrap().file_bytes, 20);
}

#[test]
fn names_paths_and_targets_are_as_long_as_linux_has_them() {
    tree_of(&[&[file("x".repeat(255), ""), symlink("y".repeat(4095), "l")]]);
    assert!(refused(&[file("x".repeat(256), "")]).contains("256 bytes"));
    assert!(refused(&[file(format!("{}/f", "x".repeat(256)), "")]).contains("256 bytes"));
    assert!(refused(&[symlink("y".repeat(4096), "l")]).contains("4095"));
    for target in ["", "a\0b"] {
        refused(&[symlink(target, "l")]);
    }
    assert!(refused(&[file("a\0b", "")]).contains("NUL"));
    let long = vec!["x".repeat(255); 15].join("/");
    let to_long = |name: &str| [symlink(&long, "l"), dir(&long), file(format!("l/{name}"), "")];
    tree_of(&[&to_long(&"y".repeat(255))]);
    assert!(refused(&to_long(&format!("{}/z", "y".repeat(255)))).contains("more than 4095 bytes"));
}

#[test]
fn limits_are_named() {
    let limits = ApplyLimits { entries: 3, depth: 4 };
    let error = |items: &[Item]| {
        let error = apply_within(&mut ModelTree::new(), items, limits).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        error.to_string()
    };
    assert!(apply_within(&mut ModelTree::new(), &[file("a/b/c/d", ""), file("e", "")], limits).is_ok());
    assert!(error(&[dir("a"), dir("a"), dir("a"), dir("a")]).contains("raise the limit `entries`"));
    assert!(error(&[file("a/b/c/d/e", "")]).contains("raise the limit `depth`"));
    assert!(error(&[dir("a/b/c/d"), symlink("a/b/c/d", "l"), file("l/e/f", "")]).contains("limit `depth`"));
}

#[test]
fn devices_that_linux_has_not_are_refused() {
    let mut device = Item::new(TarKind::BlockDevice, "b");
    device.entry.device = (4096, 0);
    assert!(refused(&[device]).contains("4096:0"));
}

#[test]
fn whiteouts_of_a_layer_by_itself_become_marks_of_overlayfs() {
    let opaque = |tree: &ModelTree, path| xattrs(&row(tree, path)).contains(&("trusted.overlay.opaque", "y"));
    let layer = [
        file("a/.wh.gone", ""),
        // In any order, and whatever comes of the names later.
        file(".wh.f", ""),
        file("f", "new"),
        file(".wh.d", ""),
        dir("d").mode(0o700),
        file("d/own", ""),
        file("o/.wh..wh..opq", ""),
        dir("o").mode(0o750).owner(3, 4),
        file("later/.wh.x", ""),
        file("later", "a file now"),
    ];
    let tree = apply_alone(&layer).unwrap();
    assert_eq!(paths(&tree), ["a", "a/gone", "d", "d/own", "f", "later", "o"]);
    let mark = row(&tree, "a/gone");
    assert_eq!((mark.kind, mark.device, mark.mode), (NodeKind::CharDevice, (0, 0), 0));
    assert!(opaque(&tree, "d") && opaque(&tree, "o") && !opaque(&tree, "a"));
    assert_eq!((row(&tree, "o").mode, row(&tree, "o").uid, row(&tree, "d").mode), (0o750, 3, 0o700));
    assert_eq!(row(&tree, "f").bytes, b"new");
    let error = apply_alone(&[file(".wh..wh..opq", "")]).unwrap_err();
    assert!(error.to_string().contains("removes all files of the layers below"), "{error}");
}

#[test]
fn whiteouts_of_a_layer_by_itself_take_bounded_memory() {
    let long = "x".repeat(200);
    let items: Vec<_> = (0..140_000).map(|n| file(format!("d/.wh.{n}{long}"), "")).collect();
    let error = apply_alone(&items).unwrap_err();
    assert!(error.to_string().contains("one whiteout more"), "{error}");
    assert!(apply_alone(&items[..100_000]).is_ok());
}
