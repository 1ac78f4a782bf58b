use super::*;
use crate::support::TarFile;

fn scan(file: TarFile) -> Result<ArchiveFile> {
    ArchiveFile::scan(Arc::new(file.finish()))
}

fn content(archive: &ArchiveFile, name: &str) -> Result<Vec<u8>> {
    archive.small_file(name, 1 << 30)
}

#[test]
fn members_are_found_behind_contents_of_any_size() {
    let large = |seed: u8, len: usize| vec![seed; len];
    let mut file = TarFile::default();
    for (n, len) in [0, 1, 511, 512, 513, 262_144, 262_145, 700_001, 40_000].into_iter().enumerate() {
        file.add(&format!("./folder/{n}"), &large(u8::try_from(n).unwrap(), len));
    }
    let archive = scan(file).unwrap();
    for (n, len) in [0, 1, 511, 512, 513, 262_144, 262_145, 700_001, 40_000].into_iter().enumerate() {
        let name = format!("folder/{n}");
        assert!(archive.has(&name));
        assert_eq!(content(&archive, &name).unwrap(), large(u8::try_from(n).unwrap(), len), "{n}");
    }
    let error = content(&archive, "folder/9").unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string()),
        (ErrorKind::NotFound, "has no member \"folder/9\"".to_owned())
    );
    let error = archive.small_file("folder/8", 39_999).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn links_lead_to_members_of_the_archive_only() {
    let mut file = TarFile::default();
    file.add("a/layer.tar", b"content");
    file.link("b/layer.tar", "../a/layer.tar");
    file.link("c/layer.tar", "../b/layer.tar");
    file.hard_link("d.tar", "./a/layer.tar");
    file.link("out", "../x");
    file.link("e/out", "../../a/layer.tar");
    file.link("absolute", "/a/layer.tar");
    file.link("loop", "loop");
    file.link("nowhere", "x");
    let archive = scan(file).unwrap();
    for name in ["a/layer.tar", "b/layer.tar", "c/layer.tar", "d.tar", "./b//layer.tar"] {
        assert_eq!(content(&archive, name).unwrap(), b"content", "{name}");
    }
    for (name, says) in [
        ("out", "leads out"),
        ("e/out", "leads out"),
        ("absolute", "leads out"),
        ("loop", "more than 8 links"),
        ("nowhere", "which is not there"),
        ("../a/layer.tar", "outside of the archive"),
    ] {
        let error = content(&archive, name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn hostile_names_are_refused() {
    for name in ["../etc/passwd", "a/../../b", "a/.."] {
        let mut file = TarFile::default();
        file.add(name, b"x");
        let error = scan(file).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}");
        assert!(error.to_string().contains("leads out of it"), "{error}");
    }
    // The same name twice matters only to those that use it.
    let mut file = TarFile::default();
    file.add("a", b"1");
    file.add("b", b"2");
    file.add("./a", b"3");
    let archive = scan(file).unwrap();
    assert_eq!(content(&archive, "b").unwrap(), b"2");
    assert!(content(&archive, "a").unwrap_err().to_string().contains("several members \"a\""));
}

#[test]
fn cut_archives_are_errors_wherever_they_are_cut() {
    let mut file = TarFile::default();
    file.add("small", &[1; 700]);
    file.add("large", &[2; 300_000]);
    file.add("last", &[3; 700]);
    let bytes = file.finish();
    let whole = 512 + 1024 + 512 + 300_032 + 512 + 1024;
    for len in [100, 600, 1600, 200_000, 302_000, 302_300, whole - 500] {
        let scanned = ArchiveFile::scan(Arc::new(bytes[..len].to_vec()));
        let error = scanned.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{len}: {error}");
    }
    // The zeros at the end may be missing, those that fill up the last block among them.
    for len in [whole, whole - 300] {
        let archive = ArchiveFile::scan(Arc::new(bytes[..len].to_vec())).unwrap();
        assert_eq!(content(&archive, "last").unwrap(), [3; 700]);
    }
}

#[test]
fn other_files_are_refused_by_what_they_are() {
    for (bytes, says) in [
        (&b"\x1f\x8b\x08\x00more"[..], "gunzip"),
        (b"\x28\xb5\x2f\xfdmore", "zstd -d"),
        (b"BZh9", "bunzip2"),
        (b"\xfd7zXZ\0", "unxz"),
    ] {
        let error = ArchiveFile::scan(Arc::new(bytes.to_vec())).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(says), "{error}");
    }
    let error = ArchiveFile::scan(Arc::new(vec![b'x'; 1024])).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let empty = ArchiveFile::scan(Arc::new(Vec::<u8>::new())).unwrap();
    assert!(!empty.has("manifest.json"));
}

#[test]
fn an_archive_of_very_many_members_is_refused() {
    let mut file = TarFile::default();
    for n in 0..=MAX_MEMBERS {
        file.add(&n.to_string(), b"");
    }
    assert!(scan(file).err().unwrap().to_string().contains("more than 65536 members"));
}

#[test]
fn a_device_is_no_blob() {
    let mut file = TarFile::default();
    file.special("device", tar::EntryType::Char);
    let error = content(&scan(file).unwrap(), "device").unwrap_err();
    assert!(error.to_string().contains("not a plain file"), "{error}");
}
