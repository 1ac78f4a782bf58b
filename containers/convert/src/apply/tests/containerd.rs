//! The cases of containerd's own tests of archives (`TestBreakouts`, `TestApplyTar`, `TestSymlinks`), as facts: a base,
//! a layer, and the outcome.

use super::support::{Item, apply, dir, file, followed, link, paths, row, symlink};
use crate::model_tree::ModelTree;

/// The outcome of a case.
enum Outcome {
    /// The layer is refused.
    Refused,
    /// The file has that content.
    Content(&'static str, &'static str),
    /// Both paths lead to the same file, links followed.
    Same(&'static str, &'static str),
    /// Both paths lead to files, but not to the same.
    Different(&'static str, &'static str),
    /// Both paths are symbolic links with one target.
    SameLink(&'static str, &'static str),
    /// There is nothing.
    Missing(&'static str),
    /// There is something.
    Exists(&'static str),
}
use Outcome::{Content, Different, Exists, Missing, Refused, Same, SameLink};

fn check(name: &str, base: &[Item], layer: &[Item], outcomes: &[Outcome]) {
    let mut tree = ModelTree::new();
    apply(&mut tree, base).unwrap();
    let result = apply(&mut tree, layer);
    if matches!(outcomes, [Refused]) {
        assert!(result.is_err(), "{name}");
        return;
    }
    assert!(result.is_ok(), "{name}: {result:?}");
    let rows = tree.rows();
    let first = |path: &str| row(&tree, &followed(&tree, path)).first;
    for outcome in outcomes {
        match *outcome {
            Refused => unreachable!("stands alone"),
            Content(path, content) => assert_eq!(row(&tree, path).bytes, content.as_bytes(), "{name}"),
            Same(a, b) => assert_eq!(first(a), first(b), "{name}"),
            Different(a, b) => assert_ne!(first(a), first(b), "{name}"),
            SameLink(a, b) => assert_eq!(row(&tree, a).bytes, row(&tree, b).bytes, "{name}"),
            Missing(path) => assert!(!rows.contains_key(path.as_bytes()), "{name}"),
            Exists(path) => assert!(rows.contains_key(path.as_bytes()), "{name}"),
        }
    }
}

fn etc() -> Vec<Item> {
    vec![dir("etc"), file("etc/passwd", "inside")]
}

/// `etc` and more.
fn with(more: &[Item]) -> Vec<Item> {
    etc().into_iter().chain(more.iter().cloned()).collect()
}

#[test]
fn links_are_followed_inside_of_the_root() {
    let unbroken = [Content("etc/unbroken", "unbroken")];
    let cases: [(&str, &[Item]); 4] = [
        ("absolute", &[dir("etc"), symlink("/etc", "localetc"), file("/localetc/unbroken", "unbroken")]),
        (
            "up and out",
            &[
                dir("etc"),
                dir("dummy"),
                symlink("/dummy/../etc", "localetc"),
                file("/localetc/unbroken", "unbroken"),
            ],
        ),
        (
            "multiple absolute",
            &[
                dir("etc"),
                dir("dummy"),
                symlink("/etc", "/dummy/etc"),
                symlink("/dummy/etc", "localetc"),
                file("/dummy/etc/unbroken", "unbroken"),
            ],
        ),
        (
            "multiple relative",
            &[
                dir("etc"),
                dir("dummy"),
                symlink("/etc", "/dummy/etc"),
                symlink("./dummy/etc", "localetc"),
                file("/localetc/unbroken", "unbroken"),
            ],
        ),
    ];
    for (name, layer) in cases {
        check(name, &[], layer, &unbroken);
    }
    let emptied =
        [dir("etc"), file("etc/emptied", "x"), symlink("/etc", "localetc"), file("/localetc/emptied", "")];
    check("empty file", &[], &emptied, &[Content("etc/emptied", "")]);
}

#[test]
fn hard_links_find_their_targets_inside_of_the_root() {
    let same = [Same("localpasswd", "/etc/passwd")];
    for target in ["/etc", "../../../../../../../etc", "upandout/../../../etc"] {
        let layer = with(&[symlink(target, "localetc"), link("/localetc/passwd", "localpasswd")]);
        check(target, &[], &layer, &same);
    }
    for target in ["../../../../../etc/passwd", "/etc/passwd"] {
        check(target, &[], &with(&[link(target, "localpasswd")]), &same);
    }
    for target in ["../../etc", "../downandout/../../etc"] {
        let more = [
            dir("breakouts"),
            dir("downandout"),
            symlink(target, "breakouts/d1"),
            link("/breakouts/d1/passwd", "breakouts/mypasswd"),
        ];
        check(target, &[], &with(&more), &[Same("/breakouts/mypasswd", "/etc/passwd")]);
    }
}

#[test]
fn odd_names_of_links_do_no_harm() {
    for name in ["..", ""] {
        let layer = with(&[symlink("/etc/", name), link("/etc/passwd", "localpasswd")]);
        check(name, &[], &layer, &[Same("/localpasswd", "/etc/passwd")]);
    }
    let same = [Same("/localetc/localpasswd", "/etc/passwd")];
    let hard = || link("/etc/passwd", "/localetc/localpasswd");
    check("parent", &[], &with(&[symlink("/etc/", "localetc/sub/.."), hard()]), &same);
    check("slash at the end", &[], &with(&[dir("localetc/"), hard()]), &same);
    for target in ["/etc", "../../etc"] {
        let base = with(&[dir("localetc")]);
        check("link over directory", &base, &[symlink(target, "localetc"), hard()], &same);
    }
    let base = with(&[symlink("/etc", "localetc")]);
    check("directory over link", &base, &[dir("/localetc/"), hard()], &same);
    let base = with(&[symlink("etc", "localetc"), link("/etc/passwd", "/localetc/localpasswd")]);
    let layer = [dir("/localetc/"), file("/localetc/localpasswd", "different")];
    let outcomes = [Different("/localetc/localpasswd", "/etc/passwd"), Exists("etc/localpasswd")];
    check("directory over link, and hard link", &base, &layer, &outcomes);
}

#[test]
fn whiteouts_of_the_directory_itself_are_refused() {
    for name in [".wh...", "etc/.wh...", ".wh..", "etc/.wh..", ".wh.", "etc/.wh."] {
        check(name, &etc(), &[file(name, "")], &[Refused]);
    }
}

#[test]
fn whiteouts_remove_what_they_name_and_no_more() {
    let with_link = |target: &str| with(&[file("/etc/whitedout", "ahhhh"), symlink(target, "localetc")]);
    let passwd = Content("etc/passwd", "inside");
    check("link", &with_link("/etc"), &[file(".wh.localetc", "")], &[passwd, Missing("localetc")]);
    let passwd = Content("etc/passwd", "inside");
    let outcomes = [passwd, Missing("etc/whitedout"), Exists("localetc")];
    check("path through a link", &with_link("/etc"), &[file("localetc/.wh.whitedout", "")], &outcomes);
    let passwd = Content("etc/passwd", "inside");
    let outcomes = [passwd, Content(".wh.etc/somefile", "non-empty")];
    check("name of a directory", &with_link("/etc"), &[file(".wh.etc/somefile", "non-empty")], &outcomes);
    let passwd = Content("etc/passwd", "inside");
    check("dead link", &with_link("/dne"), &[file("localetc/.wh.etc", "")], &[passwd, Exists("dne")]);
    check("relative path", &with_link("/dne"), &[file("dne/../.wh.etc", "")], &[Missing("etc/passwd")]);
}

#[test]
fn hard_links_to_symbolic_links_are_links_themselves() {
    let layer = [
        dir("etc"),
        symlink("/etc/passwd", "localpasswd"),
        link("localpasswd", "localpasswd-dup"),
        file("/etc/passwd", "after"),
    ];
    let outcomes = [Same("localpasswd-dup", "/etc/passwd"), SameLink("localpasswd", "localpasswd-dup")];
    check("before its target", &[], &layer, &outcomes);
    for target in ["../../../../../etc/passwd", "/etc/passwd"] {
        let layer = with(&[symlink(target, "passwdlink"), link("/passwdlink", "localpasswd")]);
        let outcomes = [SameLink("localpasswd", "passwdlink"), Same("/localpasswd", "/etc/passwd")];
        check(target, &[], &layer, &outcomes);
    }
    let mut tree = ModelTree::new();
    let layer = [file("p", "..").mode(0o400), symlink("p", "e"), link("e", "sketchylink").mode(0o777)];
    apply(&mut tree, &layer).unwrap();
    assert_eq!((row(&tree, "p").mode, row(&tree, "sketchylink").bytes), (0o400, b"p".to_vec()));
}

#[test]
fn directories_are_made_with_their_parents() {
    let layer = [
        dir("/etc/subdir"),
        dir("/etc/subdir2/"),
        dir("/etc/subdir2/more"),
        dir("/other/noparent-1/1"),
        dir("/other/noparent-2/2/"),
    ];
    let mut tree = ModelTree::new();
    apply(&mut tree, &[dir("/etc/")]).unwrap();
    let counts = apply(&mut tree, &layer).unwrap();
    assert_eq!((counts.directories, counts.unlisted_directories), (5, 3));
    let expected = [
        "etc",
        "etc/subdir",
        "etc/subdir2",
        "etc/subdir2/more",
        "other",
        "other/noparent-1",
        "other/noparent-1/1",
        "other/noparent-2",
        "other/noparent-2/2",
    ];
    assert_eq!(paths(&tree), expected);
}

#[test]
fn links_are_replaced_and_not_written_through() {
    let base = [dir("bin"), file("bin/actual", "x"), symlink("actual", "bin/app")];
    check("by a directory", &base, &[dir("bin/app"), file("bin/app/f", "y")], &[Content("bin/actual", "x")]);
    let outcomes = [Content("bin/actual", "x"), Content("bin/app", "y")];
    check("by a file", &base, &[file("bin/app", "y")], &outcomes);
    check("by a link", &base, &[symlink("/bin/actual", "bin/app")], &[Same("bin/app", "bin/actual")]);
}
