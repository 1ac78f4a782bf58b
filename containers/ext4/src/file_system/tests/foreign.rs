//! Layers over file systems that mke2fs and debugfs made.

use super::support::{Bytes, attributes, check, content, find, layer, long_name, put, put_dir, read_back};
use crate::file_system::{FileSystem, InodeNumber, NewInode};
use crate::support::{Image, skip_without};
use headstart_block::{ErrorKind, FileSource};
use headstart_file_blocks::{BlockSink, FileKind};
use std::path::Path;
use std::sync::Arc;

/// Options of mke2fs for parents that can be changed, besides the usual ones.
const PARENTS: [&[&str]; 7] = [
    &["-O", "^metadata_csum"],
    &["-O", "^metadata_csum,^64bit"],
    &["-O", "^metadata_csum,uninit_bg,^64bit"],
    &["-O", "^metadata_csum,^has_journal,^resize_inode,uninit_bg"],
    &["-O", "^metadata_csum,^flex_bg,^sparse_super,^has_journal,^resize_inode"],
    &["-O", "^metadata_csum,^dir_index,^ext_attr,^large_file,^huge_file,^dir_nlink,^extra_isize"],
    &[
        "-O",
        "^metadata_csum,^resize_inode,sparse_super2,uninit_bg",
        "-E",
        "lazy_itable_init=1",
        "-N",
        "20000",
    ],
];

/// Commands of debugfs that fill a parent: `many` files in /many, and some of each kind.
fn commands(many: u32) -> Vec<String> {
    let mut commands: Vec<_> = [
        "mkdir dir",
        "mkdir dir/sub",
        "mkdir many",
        "write 3 dir/same",
        "write 4 dir/changed",
        "write 5 dir/removed",
    ]
    .map(str::to_owned)
    .into();
    commands.extend((0..many).map(|n| format!("write 3000 many/a_file_with_a_rather_long_name_{n:0>100}")));
    commands.extend(
        [
            "write 2 dir/sub/with_two_names",
            "ln dir/sub/with_two_names other_name",
            "sif dir/sub/with_two_names links_count 2",
            "symlink short target",
            "mknod pipe p",
            "mknod null c 1 3",
            "ea_set dir/same user.comment value",
            "symlink long aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        ]
        .map(str::to_owned),
    );
    commands
}

/// The content of the files that [`Image::make`] offers to debugfs.
fn given(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251).to_le_bytes()[0] | 1).collect()
}

fn image(mke2fs: &Path, options: &[&str], many: u32) -> Image {
    let commands = commands(many);
    Image::make(mke2fs, "200M", options, &commands.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Adds, removes and replaces files.
fn change<S: BlockSink>(fs: &mut FileSystem<S>, many: u32) {
    let root = fs.root();
    let dir = find(fs, root, b"dir").unwrap();
    fs.replace(dir, b"same", &attributes(0o600), &mut Bytes::new(given(300_000))).unwrap();
    fs.replace(dir, b"changed", &attributes(0o600), &mut Bytes::new(content(1, 400_000))).unwrap();
    assert!(fs.remove(dir, b"removed").unwrap());
    let sub = find(fs, dir, b"sub").unwrap();
    assert!(fs.remove(sub, b"with_two_names").unwrap());
    let directory = find(fs, root, b"many").unwrap();
    for n in (0..many).step_by(3) {
        let name = format!("a_file_with_a_rather_long_name_{n:0>100}");
        assert!(fs.remove(directory, name.as_bytes()).unwrap());
    }
    for number in 0..400 {
        put(fs, directory, long_name(number).as_bytes(), &content(number, 100)).unwrap();
    }
    let new = put_dir(fs, root, b"new").unwrap();
    for number in 0..400 {
        put(fs, new, long_name(number).as_bytes(), b"").unwrap();
        put_dir(fs, new, format!("directory {number}").as_bytes()).unwrap();
    }
    let mut with_xattrs = attributes(0o755);
    with_xattrs.xattrs.insert(b"user.long".to_vec(), vec![7; 3000]);
    fs.set_attributes(new, &with_xattrs).unwrap();
    fs.create(new, b"link", &NewInode::Symlink(&[b'x'; 1000]), &attributes(0o777)).unwrap();
    for name in [&b"short"[..], b"long", b"null"] {
        assert!(fs.remove(root, name).unwrap());
    }
}

/// Checks that a changed parent has the files that it must have.
fn compare<S: BlockSink>(fs: &mut FileSystem<S>, many: u32) {
    let root = fs.root();
    let names: Vec<_> = fs.all_entries(root).unwrap().into_keys().collect();
    assert_eq!(names, [&b"dir"[..], b"lost+found", b"many", b"new", b"other_name", b"pipe"]);
    let dir = find(fs, root, b"dir").unwrap();
    assert_eq!(fs.all_entries(dir).unwrap().len(), 3);
    for (name, expected) in [(&b"same"[..], given(300_000)), (b"changed", content(1, 400_000))] {
        let file = find(fs, dir, name).unwrap();
        assert_eq!(fs.status(file).unwrap().mode, 0o600);
        assert!(read_back(fs, file) == expected && fs.xattrs(file).unwrap().is_empty());
    }
    let other = find(fs, root, b"other_name").unwrap();
    assert_eq!(fs.status(other).unwrap().links, 1);
    assert!(read_back(fs, other) == given(200_000));
    let directory = find(fs, root, b"many").unwrap();
    let left = (many - many.div_ceil(3)) as usize;
    let entries = fs.all_entries(directory).unwrap();
    assert_eq!(entries.len(), left + 400);
    for (name, &file) in entries.iter().step_by(7) {
        assert_eq!(fs.lookup(directory, name).unwrap(), Some(file));
        assert!(fs.status(file).unwrap().size > 0);
    }
    let new = find(fs, root, b"new").unwrap();
    assert_eq!((fs.all_entries(new).unwrap().len(), fs.status(new).unwrap().links), (801, 402));
    assert_eq!(fs.xattrs(new).unwrap()[&b"user.long"[..]], vec![7; 3000]);
    let link = find(fs, new, b"link").unwrap();
    assert_eq!(fs.link_target(link).unwrap(), [b'x'; 1000]);
}

#[test]
fn layers_over_file_systems_of_mke2fs_are_clean() {
    let Some(programs) = skip_without("layers over other file systems", &["mke2fs", "debugfs", "e2fsck"])
    else {
        return;
    };
    for (number, options) in PARENTS.iter().enumerate() {
        let many = if number == 0 { 1000 } else { 150 };
        let parent = image(&programs[0], options, many);
        check(&parent.path());
        let dir = tempfile::tempdir().unwrap();
        let [first, second, look] = ["first", "second", "look"].map(|name| dir.path().join(name));
        let mut fs = layer(&parent.path(), &first);
        change(&mut fs, many);
        fs.finish().unwrap();
        check(&first);
        let mut fs = layer(&first, &second);
        compare(&mut fs, many);
        let root = fs.root();
        assert!(fs.remove(root, b"new").unwrap() && fs.remove(root, b"many").unwrap());
        fs.finish().unwrap();
        check(&second);
        let mut fs = layer(&second, &look);
        assert_eq!(fs.all_entries(root).unwrap().len(), 4, "{options:?}");
        assert_eq!(fs.finish().unwrap().1.metadata_blocks, 0, "nothing was changed: {options:?}");
    }
}

#[test]
fn directories_stay_linear_without_the_feature_for_an_index() {
    let Some(programs) = skip_without("linear directories", &["mke2fs", "debugfs", "e2fsck"]) else { return };
    for (options, indexed) in [("^metadata_csum,^dir_index", false), ("^metadata_csum", true)] {
        let parent =
            Image::make(&programs[0], "32M", &["-O", options], &["mkdir dir", "write 3000 dir/file"]);
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        let mut fs = layer(&parent.path(), &top);
        let root = fs.root();
        let directory = find(&mut fs, root, b"dir").unwrap();
        for number in 0..500 {
            put(&mut fs, directory, long_name(number).as_bytes(), b"").unwrap();
        }
        fs.finish().unwrap();
        check(&top);
        let mut fs = layer(&top, &dir.path().join("look"));
        let inode = fs.state.inode(directory.0).unwrap();
        assert!(inode.size > 5 * 4096);
        assert_eq!(inode.is_indexed(), indexed);
        assert_eq!(fs.all_entries(directory).unwrap().len(), 501);
        for number in 0..500 {
            assert!(fs.lookup(directory, long_name(number).as_bytes()).unwrap().is_some());
        }
    }
}

#[test]
fn other_features_are_refused_by_name() {
    let Some(programs) = skip_without("features that are refused", &["mke2fs"]) else { return };
    let cases = [
        ("metadata_csum", "metadata_csum"),
        ("^metadata_csum,encrypt", "encrypt"),
        ("^metadata_csum,casefold", "casefold"),
        ("^metadata_csum,inline_data", "inline_data"),
        ("^metadata_csum,quota", "quota"),
        ("^metadata_csum,bigalloc", "bigalloc"),
        ("^metadata_csum,mmp", "mmp"),
        ("^metadata_csum,meta_bg,^resize_inode", "meta_bg"),
        ("^metadata_csum,ea_inode", "ea_inode"),
        ("^metadata_csum,large_dir", "large_dir"),
        ("^metadata_csum,verity", "verity"),
        ("^metadata_csum,^filetype", "filetype"),
        ("^metadata_csum,^extent,^64bit", "extent"),
    ];
    for (features, name) in cases {
        let parent = Image::make(&programs[0], "64M", &["-O", features], &[]);
        let source = Arc::new(FileSource::open(parent.path()).unwrap());
        let error = FileSystem::open(source, super::support::Record::default()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(name), "{features}: {error}");
    }
}

#[test]
fn a_disk_without_a_file_system_or_with_too_few_blocks_is_refused() {
    let open =
        |disk: Vec<u8>| FileSystem::open(Arc::new(disk), super::support::Record::default()).err().unwrap();
    assert_eq!(open(vec![0; 1 << 20]).kind(), ErrorKind::Corrupt);
    assert_eq!(open(Vec::new()).kind(), ErrorKind::Corrupt);
    let (record, _) = super::support::recorded(4 << 20).finish().unwrap();
    let mut disk = vec![0; 4 << 20];
    record.apply(&mut disk);
    disk.pop();
    assert!(open(disk).to_string().contains("but the disk has 4194303 bytes"));
}

#[test]
fn a_file_is_not_taken_for_a_directory() {
    let mut fs = super::support::recorded(4 << 20);
    let root = fs.root();
    put(&mut fs, root, b"file", b"content").unwrap();
    let file = find(&mut fs, root, b"file").unwrap();
    assert_eq!(fs.status(file).unwrap().kind, FileKind::Regular);
    assert_eq!(fs.lookup(file, b"x").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(fs.all_entries(file).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(fs.remove(file, b"x").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(put(&mut fs, file, b"x", b"").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(fs.link(root, b"x", root).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(fs.link_target(file).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(fs.write_content(file, &mut Bytes::new(vec![1])).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(fs.status(InodeNumber(0)).is_err() && fs.status(InodeNumber(1 << 30)).is_err());
}
