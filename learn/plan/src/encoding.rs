//! Numbers and texts as bytes: the encoding of the files of plans and of knowledge.
//!
//! Numbers have seven bits a byte, the lowest first, the highest bit for "more follows"; those that may be negative
//! are zigzag. Reading trusts nothing: each number of things is checked against the remaining bytes, so that the
//! memory that is allocated for them stays in proportion to the file.

use headstart_block::{Error, Result};

/// Longest text that is read.
pub(crate) const TEXT_MAX: usize = 64 << 10;

/// The writer of the encoding.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

impl Writer {
    #[expect(clippy::cast_possible_truncation, reason = "the lowest bits")]
    pub(crate) fn number(&mut self, number: impl Into<u64>) {
        let mut left: u64 = number.into();
        while left >= 0x80 {
            self.bytes.push(left as u8 | 0x80);
            left >>= 7;
        }
        self.bytes.push(left as u8);
    }

    pub(crate) fn len(&mut self, len: usize) {
        self.number(len as u64);
    }

    /// Writes a number that may be negative.
    pub(crate) fn signed(&mut self, number: i64) {
        self.number((number << 1 ^ number >> 63).cast_unsigned());
    }

    pub(crate) fn float(&mut self, number: f64) {
        self.bytes.extend(number.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.len(bytes.len());
        self.bytes.extend(bytes);
    }

    /// Writes a text; one that is too long to be read is cut.
    pub(crate) fn text(&mut self, text: &str) {
        let mut end = text.len().min(TEXT_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes(&text.as_bytes()[..end]);
    }

    /// Writes numbers, each as its difference to the last.
    pub(crate) fn numbers(&mut self, numbers: impl ExactSizeIterator<Item = u64>) {
        self.len(numbers.len());
        let mut last = 0_u64;
        for number in numbers {
            self.signed(number.wrapping_sub(last).cast_signed());
            last = number;
        }
    }
}

/// The reader of the encoding.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

pub(crate) fn short() -> Error {
    Error::corrupt("ends in the middle of something")
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, left) = self.bytes.split_at_checked(len).ok_or_else(short)?;
        self.bytes = left;
        Ok(taken)
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64> {
        // Most numbers are small.
        match *self.bytes {
            [low, ref left @ ..] if low < 0x80 => {
                self.bytes = left;
                Ok(u64::from(low))
            }
            [low, high, ref left @ ..] if high < 0x80 => {
                self.bytes = left;
                Ok(u64::from(low & 0x7f) | u64::from(high) << 7)
            }
            _ => self.long(),
        }
    }

    fn long(&mut self) -> Result<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, left) = self.bytes.split_first().ok_or_else(short)?;
            self.bytes = left;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Error::corrupt("has a number of more than 64 bits"))
    }

    /// Reads a number that fits the type.
    pub(crate) fn number<T: TryFrom<u64>>(&mut self) -> Result<T> {
        T::try_from(self.u64()?).map_err(|_| Error::corrupt("has a number that is too large"))
    }

    pub(crate) fn signed(&mut self) -> Result<i64> {
        let bits = self.u64()?;
        Ok((bits >> 1).cast_signed() ^ -(bits & 1).cast_signed())
    }

    /// Reads the number of things that follow, each of at least `least` bytes.
    pub(crate) fn count(&mut self, least: usize) -> Result<usize> {
        let count: usize = self.number()?;
        if count > self.bytes.len() / least.max(1) {
            return Err(short());
        }
        Ok(count)
    }

    pub(crate) fn float(&mut self) -> Result<f64> {
        let bytes = self.take(8)?.try_into().map_err(|_| short())?;
        Ok(f64::from_le_bytes(bytes))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.count(1)?;
        self.take(len)
    }

    pub(crate) fn text(&mut self) -> Result<String> {
        let bytes = self.bytes()?;
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= TEXT_MAX);
        text.map(str::to_owned).ok_or_else(|| Error::corrupt("has a text that is not valid"))
    }

    pub(crate) fn numbers(&mut self) -> Result<Vec<u64>> {
        let count = self.count(1)?;
        let mut last = 0_u64;
        let mut next = || {
            last = last.wrapping_add(self.signed()?.cast_unsigned());
            Ok(last)
        };
        (0..count).map(|_| next()).collect()
    }

    /// The remaining bytes.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.bytes
    }

    /// The number of remaining bytes.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Checks that all bytes were read.
    pub(crate) fn end(&self) -> Result<()> {
        if self.is_empty() { Ok(()) } else { Err(Error::corrupt("has more than belongs there")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_encoding_round_trips(numbers: Vec<u64>, signed: i64, float: f64, text: String) {
            let mut writer = Writer::default();
            writer.numbers(numbers.iter().copied());
            numbers.iter().for_each(|number| writer.number(*number));
            writer.signed(signed);
            writer.float(float);
            writer.text(&text);
            let mut reader = Reader::new(&writer.bytes);
            prop_assert_eq!(&reader.numbers().unwrap(), &numbers);
            let again: Vec<u64> = numbers.iter().map(|_| reader.u64().unwrap()).collect();
            prop_assert_eq!(again, numbers);
            prop_assert_eq!(reader.signed().unwrap(), signed);
            prop_assert_eq!(reader.float().unwrap().to_bits(), float.to_bits());
            prop_assert_eq!(reader.text().unwrap(), text);
            prop_assert!(reader.end().is_ok());
        }
    }

    #[test]
    fn malformed_numbers_and_texts_are_refused() {
        assert!(Reader::new(&[0x80]).u64().is_err());
        assert!(Reader::new(&[0xff; 10]).u64().is_err());
        assert!(Reader::new(&[0xff, 1]).number::<u8>().is_ok());
        assert!(Reader::new(&[0x80, 2]).number::<u8>().is_err());
        assert!(Reader::new(&[100, 1]).count(1).is_err(), "more things than bytes");
        assert!(Reader::new(&[2, 0xc3, 0x28]).text().is_err());
        assert!(Reader::new(&[1]).end().is_err());
        let mut writer = Writer::default();
        writer.text(&"\u{e9}".repeat(TEXT_MAX));
        assert_eq!(Reader::new(&writer.bytes).text().unwrap().len(), TEXT_MAX);
    }
}
