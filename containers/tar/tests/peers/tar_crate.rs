//! Random entries, written by the crate `tar`.

use crate::support::{ListedFile, whole};
use headstart_tar::{TarEntry, TarKind, TarTime};
use proptest::prelude::*;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use tar::{Builder, EntryType, Header};

fn name() -> impl Strategy<Value = Vec<u8>> {
    let component = |longest| prop::collection::vec(prop_oneof![b'a'..=b'z', 0x80..=0xff_u8], 1..longest);
    let long = prop_oneof![
        component(250),
        prop::collection::vec(component(60), 1..8).prop_map(|parts| parts.join(&b'/')),
    ];
    prop_oneof![
        3 => component(20),
        // The writer stores as much of a long path in the header as is UTF-8, and refuses a path if that is nothing.
        2 => (b'a'..=b'z', long).prop_map(|(first, rest)| [vec![first], rest].concat()),
    ]
}

fn entry() -> impl Strategy<Value = ListedFile> {
    use TarKind::{BlockDevice, CharDevice, Directory, Fifo, HardLink, Regular, Symlink};
    let kinds = vec![Regular, Regular, HardLink, Symlink, CharDevice, BlockDevice, Directory, Fifo];
    let times = (
        prop_oneof![0..1_i64 << 33, Just(0), (1 << 33)..1_i64 << 50],
        prop::option::of(0..1_000_000_000_u32),
    );
    let xattrs = prop::collection::btree_map("[a-z.]{1,9}", prop::collection::vec(any::<u8>(), 0..40), 0..3);
    let ids = || prop_oneof![0..2000_u32, any::<u32>()];
    let content = prop::collection::vec(any::<u8>(), 0..2000);
    let fields = (name(), prop::sample::select(kinds), 0..0o10000_u32, (ids(), ids()), times, name(), xattrs);
    (fields, content, (0_u32..1 << 12, 0_u32..1 << 20)).prop_map(|(fields, mut content, numbers)| {
        let (path, kind, mode, (uid, gid), (seconds, fraction), target, xattrs) = fields;
        if kind != Regular {
            content.clear();
        }
        let entry = TarEntry {
            path,
            kind,
            mode,
            uid,
            gid,
            mtime: TarTime { seconds, nanoseconds: fraction.unwrap_or(0) },
            size: content.len() as u64,
            stored_size: content.len() as u64,
            link_target: if matches!(kind, HardLink | Symlink) { target } else { Vec::new() },
            device: if matches!(kind, CharDevice | BlockDevice) { numbers } else { (0, 0) },
            xattrs: xattrs.into_iter().map(|(name, value)| (name.into_bytes(), value)).collect(),
            sparse: None,
            header_offset: 0,
            content_offset: 0,
        };
        ListedFile { entry, content }
    })
}

fn append(builder: &mut Builder<Vec<u8>>, file: &ListedFile) {
    let entry = &file.entry;
    let mut records = Vec::new();
    if entry.mtime.nanoseconds > 0 {
        let time = format!("{}.{:09}", entry.mtime.seconds, entry.mtime.nanoseconds);
        records.push(("mtime".to_owned(), time.into_bytes()));
    }
    for (name, value) in &entry.xattrs {
        records.push((format!("SCHILY.xattr.{}", str::from_utf8(name).unwrap()), value.clone()));
    }
    builder
        .append_pax_extensions(records.iter().map(|(key, value)| (key.as_str(), value.as_slice())))
        .unwrap();
    let mut header = Header::new_gnu();
    header.set_entry_type(match entry.kind {
        TarKind::Regular => EntryType::Regular,
        TarKind::HardLink => EntryType::Link,
        TarKind::Symlink => EntryType::Symlink,
        TarKind::CharDevice => EntryType::Char,
        TarKind::BlockDevice => EntryType::Block,
        TarKind::Directory => EntryType::Directory,
        TarKind::Fifo => EntryType::Fifo,
    });
    header.set_mode(entry.mode);
    header.set_uid(u64::from(entry.uid));
    header.set_gid(u64::from(entry.gid));
    header.set_mtime(u64::try_from(entry.mtime.seconds).unwrap());
    header.set_size(entry.size);
    header.set_device_major(entry.device.0).unwrap();
    header.set_device_minor(entry.device.1).unwrap();
    let path = |bytes: &[u8]| Path::new(OsStr::from_bytes(bytes)).to_owned();
    if entry.link_target.is_empty() {
        builder.append_data(&mut header, path(&entry.path), file.content.as_slice()).unwrap();
    } else {
        builder.append_link(&mut header, path(&entry.path), path(&entry.link_target)).unwrap();
    }
}

proptest! {
    #[test]
    fn entries_of_the_crate_tar_are_read_as_they_were_written(
        files in prop::collection::vec(entry(), 0..8)
    ) {
        let mut builder = Builder::new(Vec::new());
        for file in &files {
            append(&mut builder, file);
        }
        let archive = builder.into_inner().unwrap();
        let mut found = whole(&archive);
        for file in &mut found {
            (file.entry.header_offset, file.entry.content_offset) = (0, 0);
        }
        prop_assert_eq!(found, files);
    }
}
