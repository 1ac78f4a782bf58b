//! Test support: tars that are written header by header, so that they have everything that a tar can have.

use headstart_block::to_usize;

/// Bytes of a header and of the unit of contents.
const BLOCK: usize = 512;

/// The attributes of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawMeta {
    pub(crate) mode: u32,
    pub(crate) uid: i64,
    pub(crate) gid: i64,
    pub(crate) mtime: i64,
}

/// Attributes that most entries have.
pub(crate) const PLAIN: RawMeta = RawMeta { mode: 0o644, uid: 1000, gid: 100, mtime: 1_700_000_000 };

/// A tar in the making.
#[derive(Clone, Default)]
pub(crate) struct RawTar(Vec<u8>);

impl RawTar {
    /// Adds an entry of a kind (the type flag).
    pub(crate) fn entry(mut self, kind: u8, name: &[u8], link: &[u8], meta: RawMeta, content: &[u8]) -> Self {
        self.header(kind, name, link, meta, (0, 0), content.len());
        self.content(content)
    }

    pub(crate) fn dir(self, name: &str) -> Self {
        self.entry(b'5', name.as_bytes(), b"", RawMeta { mode: 0o755, ..PLAIN }, b"")
    }

    pub(crate) fn file(self, name: &str, content: &[u8]) -> Self {
        self.entry(b'0', name.as_bytes(), b"", PLAIN, content)
    }

    pub(crate) fn symlink(self, target: &str, name: &str) -> Self {
        self.entry(b'2', name.as_bytes(), target.as_bytes(), RawMeta { mode: 0o777, ..PLAIN }, b"")
    }

    pub(crate) fn link(self, target: &str, name: &str) -> Self {
        self.entry(b'1', name.as_bytes(), target.as_bytes(), PLAIN, b"")
    }

    /// Adds a character (3) or block (4) device.
    pub(crate) fn device(mut self, kind: u8, name: &str, device: (i64, i64)) -> Self {
        self.header(kind, name.as_bytes(), b"", PLAIN, device, 0);
        self
    }

    /// Adds PAX records for the next entry.
    pub(crate) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        self.entry(b'x', b"pax", b"", PLAIN, &pax_records(records))
    }

    /// Adds PAX records for all later entries.
    pub(crate) fn global(self, records: &[(&str, &[u8])]) -> Self {
        self.entry(b'g', b"global", b"", PLAIN, &pax_records(records))
    }

    /// Adds a long name (`L`) or link target (`K`) for the next entry, as GNU tar does.
    pub(crate) fn gnu_long(self, kind: u8, name: &[u8]) -> Self {
        self.entry(kind, b"././@LongLink", b"", PLAIN, &[name, b"\0"].concat())
    }

    pub(crate) fn done(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 2 * BLOCK, 0);
        self.0
    }

    fn header(&mut self, kind: u8, name: &[u8], link: &[u8], meta: RawMeta, device: (i64, i64), size: usize) {
        let mut header = [0; BLOCK];
        header[..name.len()].copy_from_slice(name);
        let size = i64::try_from(size).unwrap();
        for (at, len, value) in [
            (100, 8, i64::from(meta.mode)),
            (108, 8, meta.uid),
            (116, 8, meta.gid),
            (124, 12, size),
            (136, 12, meta.mtime),
            (329, 8, device.0),
            (337, 8, device.1),
        ] {
            number(&mut header[at..at + len], value);
        }
        header[148..156].fill(b' ');
        header[156] = kind;
        header[157..157 + link.len()].copy_from_slice(link);
        // GNU's magic where a number has its form, the standard's otherwise.
        let is_gnu =
            meta.mtime < 0 || meta.mtime >> 33 != 0 || meta.uid >> 21 != 0 || matches!(kind, b'L' | b'K');
        header[257..265].copy_from_slice(if is_gnu { b"ustar  \0" } else { b"ustar\x0000" });
        let sum: u32 = header.iter().copied().map(u32::from).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend_from_slice(&header);
    }

    fn content(mut self, content: &[u8]) -> Self {
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(BLOCK), 0);
        self
    }
}

/// Writes a number as octal digits, or as base 256 if they are too few.
fn number(field: &mut [u8], value: i64) {
    let digits = field.len() - 1;
    if value >= 0 && value >> (3 * digits) == 0 {
        field[..digits].copy_from_slice(format!("{value:0digits$o}").as_bytes());
        return;
    }
    for (place, byte) in field.iter_mut().rev().enumerate() {
        *byte = (value >> (8 * place).min(63)).to_le_bytes()[0];
    }
    field[0] = if value < 0 { 0xff } else { 0x80 };
}

/// PAX records: each with its own length in front.
fn pax_records(records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut all = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let mut len = rest + 1;
        while len != rest + len.to_string().len() {
            len += 1;
        }
        all.extend_from_slice(format!("{len} {key}=").as_bytes());
        all.extend_from_slice(value);
        all.push(b'\n');
    }
    all
}

/// The value of `security.capability` that allows a program to open any socket (`cap_net_raw`).
pub(crate) fn net_raw() -> Vec<u8> {
    let words: [u32; 5] = [0x0200_0001, 1 << 13, 0, 0, 0];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn raw_tars_are_read_as_they_were_meant() {
    use headstart_tar::{TarLimits, TarReader};
    let far = RawMeta { mtime: 1 << 35, uid: 1 << 24, ..PLAIN };
    let tar = RawTar::default()
        .entry(b'0', b"far", b"", far, b"abc")
        .entry(b'0', b"early", b"", RawMeta { mtime: -5, ..PLAIN }, b"")
        .pax(&[("path", b"other"), ("SCHILY.xattr.user.a", b"1\n2")])
        .file("name", &[7; 1000])
        .done();
    let mut reader = TarReader::new(&tar[..], TarLimits::default());
    let mut found = Vec::new();
    while let Some(entry) = reader.next_entry().unwrap() {
        found.push(entry);
    }
    let names: Vec<_> = found.iter().map(|entry| entry.path.escape_ascii().to_string()).collect();
    assert_eq!(names, ["far", "early", "other"]);
    let numbers: Vec<_> = found.iter().map(|entry| (entry.mtime.seconds, entry.uid)).collect();
    assert_eq!(numbers, [(1 << 35, 1 << 24), (-5, 1000), (PLAIN.mtime, 1000)]);
    assert_eq!(found[2].xattrs, [(b"user.a".to_vec(), b"1\n2".to_vec())]);
    assert_eq!(to_usize(found[2].size), 1000);
}
