//! Thrift's compact protocol, as far as Parquet's footers and page headers need it.
//!
//! A struct is a sequence of fields; a field is a byte (distance of its id from the last one, type), then its value.
//! A list is a byte (length, type of the elements), then the elements. Numbers are zig-zag variable-length integers.
//! Every value takes a byte at least, so parsing takes memory in proportion to the bytes, whatever they
//! claim.

use headstart_block::{Error, Result};

/// Structs in lists in structs: Parquet's footer needs six.
const DEPTH_MAX: u32 = 12;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Int(i64),
    Bytes(&'a [u8]),
    List(Vec<Self>),
    Struct(Vec<(i16, Self)>),
    /// A value of a type that nothing here needs.
    Other,
}

impl<'a> Value<'a> {
    /// Parses a struct at the start of `bytes`; returns it with its length.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] where it is none.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<(Self, usize)> {
        let mut input = Input { bytes, at: 0 };
        let value = input.read_struct(0)?;
        Ok((value, input.at))
    }

    /// The field `id` of a struct.
    pub(super) fn field(&self, id: i16) -> Option<&Self> {
        match self {
            Self::Struct(fields) => fields.iter().find(|(found, _)| *found == id).map(|(_, value)| value),
            _ => None,
        }
    }

    /// The number in field `id`.
    pub(super) fn int(&self, id: i16) -> Option<i64> {
        match self.field(id) {
            Some(Self::Int(value)) => Some(*value),
            _ => None,
        }
    }

    /// The number of bytes or things in field `id`.
    pub(super) fn size(&self, id: i16) -> Option<usize> {
        usize::try_from(self.int(id)?).ok()
    }

    /// The bytes in field `id`.
    pub(super) fn bytes(&self, id: i16) -> Option<&'a [u8]> {
        match self.field(id) {
            Some(Self::Bytes(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// The list in field `id`.
    pub(super) fn list(&self, id: i16) -> Option<&[Self]> {
        match self.field(id) {
            Some(Self::List(values)) => Some(values),
            _ => None,
        }
    }
}

struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

fn malformed() -> Error {
    Error::corrupt("a Parquet structure is malformed")
}

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(len).ok_or_else(malformed)?;
        let bytes = self.bytes.get(self.at..end).ok_or_else(malformed)?;
        self.at = end;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8> {
        self.take(1)?.first().copied().ok_or_else(malformed)
    }

    fn unsigned(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(malformed())
    }

    fn signed(&mut self) -> Result<i64> {
        let value = self.unsigned()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    fn read_struct(&mut self, depth: u32) -> Result<Value<'a>> {
        let mut fields = Vec::new();
        let mut id = 0_i16;
        loop {
            let byte = self.byte()?;
            if byte == 0 {
                return Ok(Value::Struct(fields));
            }
            id = match byte >> 4 {
                0 => i16::try_from(self.signed()?).map_err(|_| malformed())?,
                distance => id.checked_add(i16::from(distance)).ok_or_else(malformed)?,
            };
            let kind = byte & 0xf;
            // In a field, a truth value is in its type.
            let value = if kind == 1 || kind == 2 { Value::Other } else { self.value(kind, depth)? };
            fields.push((id, value));
        }
    }

    fn value(&mut self, kind: u8, depth: u32) -> Result<Value<'a>> {
        if depth >= DEPTH_MAX {
            return Err(malformed());
        }
        Ok(match kind {
            1..=3 => {
                self.byte()?;
                Value::Other
            }
            4..=6 => Value::Int(self.signed()?),
            7 => {
                self.take(8)?;
                Value::Other
            }
            8 => {
                let len = usize::try_from(self.unsigned()?).map_err(|_| malformed())?;
                Value::Bytes(self.take(len)?)
            }
            9 | 10 => self.list(depth)?,
            12 => self.read_struct(depth + 1)?,
            // Maps and UUIDs are nowhere in Parquet's structures.
            _ => return Err(malformed()),
        })
    }

    fn list(&mut self, depth: u32) -> Result<Value<'a>> {
        let byte = self.byte()?;
        let len = match byte >> 4 {
            15 => self.unsigned()?,
            len => u64::from(len),
        };
        let mut values = Vec::new();
        for _ in 0..len {
            values.push(self.value(byte & 0xf, depth + 1)?);
        }
        Ok(Value::List(values))
    }
}
