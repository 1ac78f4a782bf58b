//! The tar wrapper: a blob as the only member of a tar archive.
//!
//! Container runtimes expect layers to be tar archives, so OverlayBD's tools can put one around a blob. The blob stays
//! contiguous and uncompressed in it; a reader only needs to know its start:
//!
//! ```text
//! 0     512  pax header (typeflag x): its member is text records "NN key=value\n"       } absent in
//! 512   ..   the records, padded to 512                                                 } old wrappers
//! ..    512  ustar header of the blob; its own size is 0 if the pax record has it
//! ..    ..   the blob, padding to 512, two blocks of zeros
//! ```
//!
//! `overlaybd-commit` writes the first form with one block of records (the blob is at 1536), the converter the second
//! for its base layer (the blob is at 512). As in OverlayBD, only POSIX headers (magic `ustar\0`, version `00`) with a
//! right checksum count; any other beginning means that the blob has no wrapper. The bytes after the blob are never
//! read.
//!
//! The crate `tar` is less strict: it also accepts headers of GNU's and of the oldest form, so it could find another
//! blob than OverlayBD does. It also reads from a stream, while a wrapper here is a range of a source.

use headstart_block::{ByteRange, Error, ReadAt, Result, to_usize};
use std::io::{IoSliceMut, Seek, SeekFrom, Write};

/// The number of bytes of a tar block: a header, and the unit that members are padded to.
const BLOCK: u64 = 512;

/// The same as the length of a buffer.
const HEADER: usize = 512;

/// The name of the blob in the archive.
const COMMIT_NAME: &[u8] = b"overlaybd.commit";

/// The place of the blob in the first form.
const WRITTEN_BLOB: u64 = 3 * BLOCK;

/// The most bytes of pax records: writers use one block; this leaves room for other tools' records.
const MAX_RECORDS: u64 = 64 * 1024;

// The places of the fields of a header.
const SIZE_FIELD: std::ops::Range<usize> = 124..136;
const CHECKSUM_FIELD: std::ops::Range<usize> = 148..156;
const TYPE_FIELD: usize = 156;
const MAGIC_FIELD: std::ops::Range<usize> = 257..265;

/// A POSIX tar header whose checksum is right.
struct Header([u8; HEADER]);

impl Header {
    /// `true` if it has the name that OverlayBD's tools give to the blob.
    fn is_named_commit(&self) -> bool {
        self.0.starts_with(COMMIT_NAME) && self.0[COMMIT_NAME.len()] == 0
    }

    /// The header at `offset`; `None` if there is none.
    fn read(source: &(impl ReadAt + ?Sized), offset: u64) -> Result<Option<Self>> {
        if offset.checked_add(BLOCK).is_none_or(|end| end > source.len()) {
            return Ok(None);
        }
        let mut bytes = [0; HEADER];
        source.read_at(&mut bytes, offset)?;
        let header = Self(bytes);
        let valid = &header.0[MAGIC_FIELD] == b"ustar\x0000" && header.checksum_is_right();
        Ok(valid.then_some(header))
    }

    /// The sum of all bytes, those of the checksum itself counted as spaces.
    fn checksum_is_right(&self) -> bool {
        let sum = |bytes: &[u8]| bytes.iter().map(|b| u64::from(*b)).sum::<u64>();
        let spaces = CHECKSUM_FIELD.len() as u64 * u64::from(b' ');
        octal(&self.0[CHECKSUM_FIELD]) == Some(sum(&self.0) - sum(&self.0[CHECKSUM_FIELD]) + spaces)
    }

    fn size(&self) -> Result<u64> {
        octal(&self.0[SIZE_FIELD]).ok_or_else(|| Error::corrupt("the size in its tar header is not a number"))
    }

    fn is_pax(&self) -> bool {
        self.0[TYPE_FIELD] == b'x'
    }

    /// `true` if the typeflag is 0, or NUL in its old form.
    fn is_file(&self) -> bool {
        matches!(self.0[TYPE_FIELD], b'0' | 0)
    }
}

/// Octal digits, padded with spaces or NULs on either side. An empty field is 0, as the reference reads it.
fn octal(field: &[u8]) -> Option<u64> {
    let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
    let text = std::str::from_utf8(&field[..end]).ok()?.trim_matches(' ');
    match text {
        "" => Some(0),
        digits if digits.bytes().all(|b| b.is_ascii_digit()) => u64::from_str_radix(digits, 8).ok(),
        _ => None,
    }
}

/// The value of the last "size" among pax records; `None` if there is none.
fn pax_size(mut records: &[u8]) -> Result<Option<u64>> {
    let bad = || Error::corrupt("a record of its pax header is damaged");
    let mut size = None;
    // Some writers pad the records with NULs within their own length.
    while !records.is_empty() && records[0] != 0 {
        let space = records.iter().position(|b| *b == b' ').ok_or_else(bad)?;
        let len: usize = decimal(&records[..space]).and_then(|n| n.try_into().ok()).ok_or_else(bad)?;
        // The length counts itself, the space and the line feed.
        let (record, rest) = records.split_at_checked(len).ok_or_else(bad)?;
        let record = record.get(space + 1..).and_then(|r| r.strip_suffix(b"\n")).ok_or_else(bad)?;
        if let Some(value) = record.strip_prefix(b"size=") {
            size = Some(decimal(value).ok_or_else(bad)?);
        }
        records = rest;
    }
    Ok(size)
}

fn decimal(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Returns the range of bytes of `source` that holds the layer's blob, if the blob is wrapped in a tar
/// archive as OverlayBD's tools make them. `None` if `source` does not begin with a valid tar header.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if the archive is damaged or ends before the blob does;
/// `Unsupported` if its first member is not a file, as in ordinary container layers; errors of `source`.
pub fn locate(source: &(impl ReadAt + ?Sized)) -> Result<Option<ByteRange>> {
    let Some((file, data, size)) = first_member(source)? else { return Ok(None) };
    if !file.is_file() {
        return Err(Error::unsupported("the first member of this tar archive is not a file")
            .remedy("an ordinary container image becomes a disk by `headstart image convert`"));
    }
    let size = size.map_or_else(|| file.size(), Ok)?;
    match ByteRange::new(data, size) {
        Some(range) if range.end() <= source.len() => Ok(Some(range)),
        _ => Err(Error::corrupt(format!(
            "its tar wrapper holds {size} bytes at {data}, but there are only {} in all",
            source.len()
        ))
        .remedy("it is truncated: fetch or copy it again")),
    }
}

/// The bytes of the blob in `beginning`, the first bytes of an archive that OverlayBD's tools have made: the first
/// member is a file and has their name. `None` for any other beginning, also for one that is too short. The name counts
/// here, because an ordinary archive may begin with any file.
#[must_use]
pub fn wrapped_beginning(beginning: &[u8]) -> Option<&[u8]> {
    let (file, data, _) = first_member(beginning).ok()??;
    let is_wrapper = file.is_file() && file.is_named_commit();
    beginning.get(usize::try_from(data).ok()?..).filter(|_| is_wrapper)
}

/// The header of the first member of an archive that is a wrapper, the place of its content, and its size if a pax
/// record has it. `None` if there is no valid header.
fn first_member(source: &(impl ReadAt + ?Sized)) -> Result<Option<(Header, u64, Option<u64>)>> {
    let Some(first) = Header::read(source, 0)? else { return Ok(None) };
    Ok(Some(if first.is_pax() {
        let len = first.size()?;
        if len > MAX_RECORDS || BLOCK + len > source.len() {
            return Err(Error::corrupt(format!("its pax header claims {len} bytes of records")));
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_RECORDS")]
        let mut records = vec![0; len as usize];
        source.read_at(&mut records, BLOCK)?;
        let at = BLOCK + len.next_multiple_of(BLOCK);
        let file = Header::read(source, at)?
            .ok_or_else(|| Error::corrupt("no valid tar header follows its pax header"))?;
        let size = pax_size(&records)?;
        (file, at + BLOCK, size)
    } else {
        (first, BLOCK, None)
    }))
}

/// Writes a blob in a wrapper of the first form, which has room for blobs of any size. `write` writes the blob. Nothing
/// may be in `output` before.
///
/// # Errors
/// Those of `write` and of `output`.
pub fn wrap<W: Write + Seek>(output: &mut W, write: impl FnOnce(&mut W) -> Result<()>) -> Result<()> {
    output.seek(SeekFrom::Start(WRITTEN_BLOB))?;
    write(output)?;
    let end = output.stream_position()?;
    let size =
        end.checked_sub(WRITTEN_BLOB).ok_or_else(|| Error::invalid("a blob that ends before its start"))?;
    // Padding, and two blocks that end an archive.
    let zeros = to_usize(end.next_multiple_of(BLOCK) - end) + 2 * HEADER;
    output.write_all(&[0; 3 * HEADER][..zeros])?;
    let record = size_record(size);
    output.seek(SeekFrom::Start(0))?;
    output.write_all(&new_header(b"overlaybd.pax", b'x', record.len()))?;
    let mut records = [0; HEADER];
    records[..record.len()].copy_from_slice(record.as_bytes());
    output.write_all(&records)?;
    output.write_all(&new_header(COMMIT_NAME, b'0', 0))?;
    output.seek(SeekFrom::End(0))?;
    Ok(())
}

/// The pax record of a size. Its length counts its own digits.
fn size_record(size: u64) -> String {
    let rest = format!(" size={size}\n");
    let len = rest.len() + if rest.len() + 1 < 10 { 1 } else { 2 };
    format!("{len}{rest}")
}

/// The header of a member.
fn new_header(name: &[u8], kind: u8, size: usize) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let mut set = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    set(0, name);
    for (at, number) in [(100, "0000644\0"), (108, "0000000\0"), (116, "0000000\0"), (136, "00000000000\0")] {
        set(at, number.as_bytes());
    }
    set(SIZE_FIELD.start, format!("{size:011o}\0").as_bytes());
    set(CHECKSUM_FIELD.start, b"        ");
    set(TYPE_FIELD, &[kind]);
    set(MAGIC_FIELD.start, b"ustar\x0000");
    let sum: u32 = header.iter().copied().map(u32::from).sum();
    header[CHECKSUM_FIELD].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// A range of bytes of another source, readable as a source of its own. Offset 0 is the start of the range.
#[derive(Debug)]
pub struct SourceRange<S> {
    source: S,
    range: ByteRange,
}

impl<S: ReadAt> SourceRange<S> {
    /// Makes a source of the bytes `range` of `source`.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if `range` ends after the end of `source`.
    pub fn new(source: S, range: ByteRange) -> Result<Self> {
        if range.end() > source.len() {
            return Err(Error::corrupt(format!("{range} is not within its {} bytes", source.len())));
        }
        Ok(Self { source, range })
    }
}

impl<S> SourceRange<S> {
    /// Checks that a read is inside: otherwise a read past the end would return the bytes behind the range.
    fn check_inside(&self, wanted: usize, offset: u64) -> Result<()> {
        let len = self.range.len();
        if offset.checked_add(wanted as u64).is_none_or(|end| end > len) {
            return Err(Error::corrupt(format!(
                "needs {wanted} bytes at offset {offset}, but there are only {len} in all"
            )));
        }
        Ok(())
    }
}

impl<S: ReadAt> ReadAt for SourceRange<S> {
    fn len(&self) -> u64 {
        self.range.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.check_inside(buf.len(), offset)?;
        self.source.read_at(buf, self.range.offset() + offset)
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        self.check_inside(bufs.iter().map(|buf| buf.len()).sum(), offset)?;
        self.source.read_vectored_at(bufs, self.range.offset() + offset)
    }

    fn decode_unit(&self) -> u64 {
        self.source.decode_unit()
    }

    fn stored_range(&self, range: ByteRange) -> ByteRange {
        let start = self.range.offset().saturating_add(range.offset());
        let end = self.range.offset().saturating_add(range.end());
        self.source.stored_range(ByteRange::between(start, end).intersect(self.range))
    }

    fn wants_decoded(&self) -> bool {
        self.source.wants_decoded()
    }

    fn note_decoded(&self, range: ByteRange) {
        let start = self.range.offset().saturating_add(range.offset());
        let end = self.range.offset().saturating_add(range.end());
        self.source.note_decoded(ByteRange::between(start, end).intersect(self.range));
    }

    fn as_slice(&self) -> Option<&[u8]> {
        let bytes = self.source.as_slice()?;
        bytes.get(usize::try_from(self.range.offset()).ok()?..usize::try_from(self.range.end()).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ErrorKind;
    use proptest::prelude::*;
    use std::io::{Cursor, Read};

    /// A header as `overlaybd-commit` writes it, except for names and times, which are never read.
    fn header(kind: u8, size: &str) -> Vec<u8> {
        let mut header = vec![0u8; 512];
        header[..16].copy_from_slice(b"overlaybd.commit");
        header[124..124 + size.len()].copy_from_slice(size.as_bytes());
        header[148..156].fill(b' ');
        header[156] = kind;
        header[257..265].copy_from_slice(b"ustar\x0000");
        sign(&mut header);
        header
    }

    fn sign(header: &mut [u8]) {
        header[148..156].fill(b' ');
        let sum: u64 = header[..512].iter().map(|b| u64::from(*b)).sum();
        header[148..156].copy_from_slice(format!("{sum:6o}\0 ").as_bytes());
    }

    fn padded(bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    fn pax_wrapped(records: &str, own_size: &str, blob: &[u8]) -> Vec<u8> {
        let length = format!("{:11o}", records.len());
        [
            header(b'x', &length),
            padded(records.as_bytes()),
            header(b'0', own_size),
            padded(blob),
            vec![0; 1024],
        ]
        .concat()
    }

    #[test]
    fn what_is_wrapped_is_found_and_is_a_tar() {
        for len in [0, 1, 511, 512, 513, 700, 99_999, 100_000, 1 << 20] {
            let blob: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let mut file = Cursor::new(Vec::new());
            wrap(&mut file, |file| Ok(file.write_all(&blob)?)).unwrap();
            let wrapped = file.into_inner();
            assert_eq!(wrapped.len() % 512, 0, "{len}");
            let range = locate(&wrapped).unwrap().unwrap();
            assert_eq!((range.offset(), range.len()), (1536, blob.len() as u64));
            let mut archive = tar::Archive::new(&wrapped[..]);
            let members: Vec<_> = archive
                .entries()
                .unwrap()
                .map(|member| {
                    let mut member = member.unwrap();
                    let mut content = Vec::new();
                    member.read_to_end(&mut content).unwrap();
                    (member.path().unwrap().display().to_string(), content)
                })
                .collect();
            assert_eq!(members, [("overlaybd.commit".to_owned(), blob)], "{len}");
        }
        // Sizes that the header of a member cannot have.
        assert_eq!(size_record(1 << 43), "22 size=8796093022208\n");
    }

    #[test]
    fn finds_the_blob_behind_a_pax_header() {
        let wrapped = pax_wrapped("12 size=700\n", "          0", &[7; 700]);
        let range = locate(&wrapped).unwrap().unwrap();
        assert_eq!((range.offset(), range.len()), (1536, 700));
        // More records than a block holds, with the size among others.
        let comment = format!("{} comment={}\n", 1000, "x".repeat(1000 - 14));
        let wrapped = pax_wrapped(&format!("{comment}12 size=700\n"), "          0", &[7; 700]);
        assert_eq!(locate(&wrapped).unwrap().unwrap().offset(), 512 + 1024 + 512);
        // No size record: then the header's own size counts.
        let wrapped = pax_wrapped("11 mtime=0\n", "00000001274", &[7; 700]);
        assert_eq!(locate(&wrapped).unwrap().unwrap().len(), 700);
    }

    #[test]
    fn finds_the_blob_behind_a_plain_header() {
        let wrapped = [header(b'0', "00000001274"), padded(&[7; 700])].concat();
        let range = locate(&wrapped).unwrap().unwrap();
        assert_eq!((range.offset(), range.len()), (512, 700));
    }

    #[test]
    fn a_wrapper_is_known_by_its_beginning_and_an_archive_with_another_file_is_none() {
        let pax = pax_wrapped("13 size=9000\n", "          0", &[7; 9000]);
        let plain = [header(b'0', "00000021450"), padded(&[7; 9000])].concat();
        for (archive, at) in [(&pax, 1536), (&plain, 512)] {
            assert_eq!(wrapped_beginning(&archive[..4096]).unwrap(), &archive[at..4096]);
            assert_eq!(wrapped_beginning(&archive[..at - 1]), None);
        }
        let mut other = plain;
        other[..16].copy_from_slice(b"overlaybd.commi2");
        sign(&mut other);
        let directory = [header(b'5', "00000000000"), vec![0; 1024]].concat();
        for bytes in [other, directory, vec![0; 4096], vec![7; 4096], Vec::new()] {
            assert_eq!(wrapped_beginning(&bytes), None);
        }
    }

    #[test]
    fn other_things_are_no_wrapper() {
        let mut gnu = header(b'0', "00000000000");
        gnu[257..265].copy_from_slice(b"ustar  \0");
        sign(&mut gnu);
        let mut wrong_sum = header(b'0', "00000000000");
        wrong_sum[0] ^= 1;
        for bytes in [vec![], vec![0; 511], vec![0; 4096], gnu, wrong_sum] {
            assert!(locate(&bytes).unwrap().is_none());
        }
    }

    #[test]
    fn damaged_wrappers_are_errors() {
        for wrapped in [
            pax_wrapped("12 size=7000\n", "          0", &[7; 700]),
            pax_wrapped("99 size=700\n", "          0", &[7; 700]),
            pax_wrapped("0 size=700\n", "          0", &[7; 700]),
            pax_wrapped("2 size=700\n", "          0", &[7; 700]),
            pax_wrapped("12 size=-70\n", "          0", &[7; 700]),
            pax_wrapped("31 size=18446744073709551616\n", "          0", &[7; 700]),
            pax_wrapped("30 size=18446744073709551615\n", "          0", &[7; 700]),
            [header(b'0', "77777777777"), padded(&[7; 700])].concat(),
            [header(b'0', "0000000zzzz"), padded(&[7; 700])].concat(),
            [header(b'x', "77777777777"), padded(&[7; 700])].concat(),
            [header(b'x', "00000000014"), padded(b"12 size=700\n"), padded(&[7; 700])].concat(),
        ] {
            assert_eq!(locate(&wrapped).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        let directory = [header(b'5', "00000000000"), vec![0; 1024]].concat();
        assert_eq!(locate(&directory).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_range_ends_where_it_ends() {
        let bytes: Vec<u8> = (0..100).collect();
        let range = SourceRange::new(&bytes, ByteRange::between(10, 20)).unwrap();
        assert_eq!((ReadAt::len(&range), range.as_slice()), (10, Some(&bytes[10..20])));
        let mut buf = [0; 4];
        range.read_at(&mut buf, 6).unwrap();
        assert_eq!(buf, [16, 17, 18, 19]);
        for offset in [7, 10, u64::MAX] {
            assert_eq!(range.read_at(&mut buf, offset).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        assert!(SourceRange::new(&bytes, ByteRange::between(99, 101)).is_err());
    }

    proptest! {
        /// Goal: the parser stands hostile input. The header is signed again after each change, so that the code behind
        /// the checksum is reached.
        #[test]
        fn hostile_wrappers_never_panic_nor_lie(changes in prop::collection::vec((0usize..2048, any::<u8>()), 1..6)) {
            let mut bytes = pax_wrapped("12 size=700\n", "          0", &[7; 700]);
            for (at, value) in changes {
                bytes[at] = value;
            }
            sign(&mut bytes[..512]);
            sign(&mut bytes[1024..1536]);
            if let Ok(Some(range)) = locate(&bytes) {
                prop_assert!(range.end() <= ReadAt::len(&bytes));
            }
        }
    }
}
