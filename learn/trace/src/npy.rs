//! NumPy's `.npy` files, as far as traces need them: a table of 64-bit numbers with four columns.
//!
//! | bytes | content |
//! |---|---|
//! | 6 | `\x93NUMPY` |
//! | 2 | version: 1.0, 2.0 or 3.0 |
//! | 2 (version 1) or 4 | length of the header, little-endian |
//! | that number | a Python dictionary with `descr`, `fortran_order` and `shape`, spaces, a newline |
//! | 32 a row | the numbers, row by row, or column by column in Fortran's order |
//!
//! The output is the same as NumPy's: version 1.0, little-endian, row by row, the numbers at a multiple of 64
//! bytes.
//!
//! The crate npyz is not used, because these files come from anywhere: its version 0.9.1 allocates as many bytes for
//! the header as the file says, up to 4 GiB, multiplies the shape unchecked, and reads brackets by recursion. The
//! checks that would have to precede a call of npyz would be as long as this module.

use headstart_block::{Error, Result, exact};

/// The number of columns in the table of a trace: operation, offset, length and time.
pub const COLUMNS: usize = 4;

/// A row of the table of a trace: one request, as operation, offset, length and time. The module
/// [`fast26`](crate::fast26) gives the units of these columns.
pub type NpyRow = [i64; COLUMNS];

const MAGIC: &[u8] = b"\x93NUMPY";
/// The multiple at which the numbers start, in bytes.
const ALIGN: usize = 64;
/// Digits for which NumPy leaves room, so that the number of rows can grow.
const ROWS_DIGITS: usize = 21;
/// Longest header that is looked at.
const HEADER_MAX: usize = 64 << 10;

/// Returns the content of a `.npy` file with these rows.
#[must_use]
pub fn encode(rows: &[NpyRow]) -> Vec<u8> {
    let count = rows.len().to_string();
    let mut header = format!("{{'descr': '<i8', 'fortran_order': False, 'shape': ({count}, {COLUMNS}), }}");
    let room = ROWS_DIGITS.saturating_sub(count.len());
    header.push_str(&" ".repeat(room));
    let prefix = MAGIC.len() + 4;
    let padding = ALIGN - (prefix + header.len() + 1) % ALIGN;
    header.push_str(&" ".repeat(padding));
    header.push('\n');
    let len: u16 = exact(header.len(), "the header has 128 bytes less the prefix, or a few more");
    let mut file = Vec::with_capacity(prefix + header.len() + size_of_val(rows));
    file.extend_from_slice(MAGIC);
    file.extend_from_slice(&[1, 0]);
    file.extend_from_slice(&len.to_le_bytes());
    file.extend_from_slice(header.as_bytes());
    file.extend(rows.iter().flatten().flat_map(|number| number.to_le_bytes()));
    file
}

/// Parses the content of a `.npy` file and returns its rows.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if `file` is not the content of such a file or was cut short,
/// [`headstart_block::ErrorKind::Unsupported`] if the table does not have four columns of 64-bit integers or the
/// file's version is unknown.
pub fn decode(file: &[u8]) -> Result<Vec<NpyRow>> {
    let malformed = || Error::corrupt("is not a NumPy file");
    let rest = file.strip_prefix(MAGIC).ok_or_else(malformed)?;
    let ([major, _], rest) = rest.split_first_chunk::<2>().ok_or_else(malformed)?;
    let (len, rest) = match major {
        1 => {
            let (len, rest) = rest.split_first_chunk::<2>().ok_or_else(malformed)?;
            (usize::from(u16::from_le_bytes(*len)), rest)
        }
        2 | 3 => {
            let (len, rest) = rest.split_first_chunk::<4>().ok_or_else(malformed)?;
            (u32::from_le_bytes(*len) as usize, rest)
        }
        _ => return Err(Error::unsupported(format!("is a NumPy file of version {major}"))),
    };
    let (header, data) = rest.split_at_checked(len).filter(|_| len <= HEADER_MAX).ok_or_else(malformed)?;
    let header = Header::parse(std::str::from_utf8(header).map_err(|_| malformed())?)?;
    let (numbers, rest) = data.as_chunks::<8>();
    if header.rows.checked_mul(COLUMNS) != Some(numbers.len()) || !rest.is_empty() {
        return Err(Error::corrupt(format!("has {} bytes of numbers for {} rows", data.len(), header.rows)));
    }
    let number = |bytes: &[u8; 8]| {
        if header.big_endian { i64::from_be_bytes(*bytes) } else { i64::from_le_bytes(*bytes) }
    };
    if !header.fortran_order {
        let (rows, _) = numbers.as_chunks::<COLUMNS>();
        return Ok(rows.iter().map(|row| row.each_ref().map(number)).collect());
    }
    let mut rows = vec![NpyRow::default(); header.rows];
    for (column, numbers) in numbers.chunks(header.rows.max(1)).enumerate() {
        for (row, bytes) in rows.iter_mut().zip(numbers) {
            if let Some(place) = row.get_mut(column) {
                *place = number(bytes);
            }
        }
    }
    Ok(rows)
}

/// Most bytes of a file with `rows` rows.
pub(crate) fn len_max(rows: usize) -> u64 {
    (rows as u64).saturating_mul(size_of::<NpyRow>() as u64).saturating_add((HEADER_MAX + ALIGN) as u64)
}

/// The content of the dictionary.
struct Header {
    big_endian: bool,
    fortran_order: bool,
    rows: usize,
}

impl Header {
    fn parse(text: &str) -> Result<Self> {
        let malformed = || Error::corrupt("its NumPy header is malformed");
        let text = text.trim();
        let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).ok_or_else(malformed)?;
        let (mut descr, mut order, mut shape) = (None, None, None);
        let mut rest = inner.trim();
        while !rest.is_empty() {
            let (key, after) = quoted(rest).ok_or_else(malformed)?;
            let after = after.trim_start().strip_prefix(':').ok_or_else(malformed)?.trim_start();
            // A value ends at a comma that is not within parentheses.
            let from = if after.starts_with('(') { after.find(')').ok_or_else(malformed)? } else { 0 };
            let end = after.get(from..).and_then(|tail| tail.find(',')).map_or(after.len(), |at| from + at);
            let value = after.get(..end).ok_or_else(malformed)?.trim();
            match key {
                "descr" => descr = Some(value),
                "fortran_order" => order = Some(value),
                "shape" => shape = Some(value),
                _ => return Err(malformed()),
            }
            rest = after.get(end..).ok_or_else(malformed)?.trim_start_matches(',').trim_start();
        }
        let descr = descr.and_then(quoted).ok_or_else(malformed)?.0;
        let big_endian = match descr {
            "<i8" => false,
            ">i8" => true,
            _ => {
                let descr = descr.escape_debug();
                return Err(Error::unsupported(format!("has numbers of type `{descr}`; a trace has `<i8`")));
            }
        };
        let fortran_order = match order {
            Some("True") => true,
            Some("False") => false,
            _ => return Err(malformed()),
        };
        Ok(Self { big_endian, fortran_order, rows: rows(shape.ok_or_else(malformed)?)? })
    }
}

/// The rows of a shape `(rows, 4)`.
fn rows(shape: &str) -> Result<usize> {
    let inner = shape.strip_prefix('(').and_then(|shape| shape.strip_suffix(')'));
    let mut sizes =
        inner.unwrap_or_default().trim_end().trim_end_matches(',').split(',').map(|size| size.trim().parse());
    match (sizes.next(), sizes.next(), sizes.next()) {
        (Some(Ok(rows)), Some(Ok(COLUMNS)), None) => Ok(rows),
        _ => {
            let shape = shape.escape_debug();
            Err(Error::unsupported(format!("has the shape {shape}; a trace has (n, {COLUMNS})")))
        }
    }
}

/// The text in quotes at the start of `text`, and what follows.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text.get(1..)?.split_once(quote)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ErrorKind;

    const ROWS: [NpyRow; 2] = [[1, 4096, 512, 1_700_000_000_000_000], [0, i64::MAX, i64::MIN, -1]];

    fn file(version: u8, header: &str, numbers: &[u8]) -> Vec<u8> {
        let len = header.len();
        let len = if version == 1 {
            u16::try_from(len).unwrap().to_le_bytes().to_vec()
        } else {
            u32::try_from(len).unwrap().to_le_bytes().to_vec()
        };
        [MAGIC, &[version, 0], &len, header.as_bytes(), numbers].concat()
    }

    #[test]
    fn writes_what_numpy_writes() {
        let file = encode(&ROWS);
        let header = "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 4), }";
        assert_eq!(&file[..10], b"\x93NUMPY\x01\0\x76\0");
        assert_eq!(&file[10..128], format!("{header:117}\n").as_bytes());
        assert_eq!(file.len(), 128 + 64);
        assert_eq!(decode(&file).unwrap(), ROWS);
        assert!(decode(&encode(&[])).unwrap().is_empty());
    }

    #[test]
    fn reads_all_versions_orders_and_byte_orders() {
        let numbers = |swap: bool, big: bool| -> Vec<u8> {
            let by_column = (0..4).flat_map(|column| ROWS.map(|row| row[column]));
            let numbers: Vec<i64> =
                if swap { by_column.collect() } else { ROWS.iter().flatten().copied().collect() };
            let bytes = |n: i64| if big { n.to_be_bytes() } else { n.to_le_bytes() };
            numbers.into_iter().flat_map(bytes).collect()
        };
        for version in 1..=3 {
            for (swap, order) in [(false, "False"), (true, "True")] {
                for (big, descr) in [(false, "'<i8'"), (true, "\">i8\"")] {
                    let header =
                        format!("{{'shape': (2, 4,), \"fortran_order\": {order}, 'descr': {descr}}}  \n");
                    let file = file(version, &header, &numbers(swap, big));
                    assert_eq!(decode(&file).unwrap(), ROWS, "{version} {order} {descr}");
                }
            }
        }
    }

    #[test]
    fn refuses_what_is_no_trace() {
        let header = |descr: &str, order: &str, shape: &str| {
            format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n")
        };
        for (text, kind) in [
            (header("'<f8'", "False", "(0, 4)"), ErrorKind::Unsupported),
            (header("[('a', '<i8')]", "False", "(0, 4)"), ErrorKind::Corrupt),
            (header("'<i8'", "Maybe", "(0, 4)"), ErrorKind::Corrupt),
            (header("'<i8'", "False", "(0,)"), ErrorKind::Unsupported),
            (header("'<i8'", "False", "(0, 3)"), ErrorKind::Unsupported),
            (header("'<i8'", "False", "(0, 4, 1)"), ErrorKind::Unsupported),
            (header("'<i8'", "False", "(99999999999999999999, 4)"), ErrorKind::Unsupported),
            (header("'<i8'", "False", "(4611686018427387904, 4)"), ErrorKind::Corrupt),
            (header("'<i8'", "False", "(1, 4)"), ErrorKind::Corrupt),
            ("{'descr': '<i8', 'fortran_order': False, 'shape': (0, 4".to_owned(), ErrorKind::Corrupt),
            ("{'descr'".to_owned(), ErrorKind::Corrupt),
            ("{'é': 1, 'descr': '<i8'}".to_owned(), ErrorKind::Corrupt),
        ] {
            let error = decode(&file(1, &text, &[])).unwrap_err();
            assert_eq!(error.kind(), kind, "{text}: {error}");
        }
        assert!(decode(&file(9, "", &[])).is_err());
        let whole = encode(&ROWS);
        for len in 0..whole.len() {
            assert!(decode(&whole[..len]).is_err(), "{len}");
        }
    }
}
