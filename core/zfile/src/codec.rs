//! The two codecs: contexts that are made once and used for many frames.
//!
//! All foreign calls of this crate are here. lz4 frames are raw lz4 blocks (no frame header, no size
//! prefix); zstd frames are complete zstd frames. There is no stored form: a frame that does not compress grows.
//!
//! Of lz4, `lz4-sys` has the C library and lists its usual calls, and the crate `lz4` wraps those. Both lack two
//! calls of that library: compression with a state of the caller's, which is allocated once and not for each frame,
//! and decompression that ends at the last byte that is wanted.

use headstart_block::{Error, Result, exact};
use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::str::FromStr;

// Declared here because `lz4-sys`, whose library they are in, does not list them.
unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe_partial(
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        target_size: c_int,
        dst_capacity: c_int,
    ) -> c_int;
}

/// The algorithm that compresses the frames of a ZFile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Fast to compress and very fast to decompress, with larger output than [`Codec::Zstd`].
    Lz4,
    /// Smaller output than [`Codec::Lz4`], a few times slower to decompress.
    Zstd,
}

impl Codec {
    /// The number in the header.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    /// The codec of a header's number.
    pub(crate) fn from_number(number: u8) -> Result<Self> {
        match number {
            1 => Ok(Self::Lz4),
            2 => Ok(Self::Zstd),
            0 => Err(Error::unsupported("is compressed with minilzo (codec 0), which no known writer uses")),
            other => Err(Error::unsupported(format!("is compressed with the unknown codec {other}"))
                .remedy("only lz4 (1) and zstd (2) are known")),
        }
    }

    /// Most bytes that a frame of `len` bytes can take once compressed.
    pub(crate) fn compressed_len_max(self, len: usize) -> usize {
        match self {
            // The library's LZ4_COMPRESSBOUND.
            Self::Lz4 => len + len / 255 + 16,
            Self::Zstd => zstd_safe::compress_bound(len),
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        })
    }
}

impl FromStr for Codec {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "lz4" => Ok(Self::Lz4),
            "zstd" => Ok(Self::Zstd),
            _ => Err(Error::invalid(format!("`{}` is not a codec", name.escape_debug()))
                .remedy("choose lz4 or zstd")),
        }
    }
}

/// Compresses frames; keeps its tables between them. The result never depends on earlier frames.
pub(crate) enum Compressor {
    Lz4 {
        /// The library's hash table. It is cleared for each frame: the variant of the call that trusts a
        /// used table is quicker on small frames, but its output depends on the frames before.
        state: Vec<u64>,
    },
    Zstd {
        context: zstd_safe::CCtx<'static>,
        level: i32,
    },
}

impl Compressor {
    /// `level` is zstd's; `None` is the library's default, 3.
    pub(crate) fn new(codec: Codec, level: Option<i32>) -> Result<Self> {
        match (codec, level) {
            (Codec::Lz4, None) => {
                // SAFETY: takes nothing and returns a constant.
                let bytes: usize = exact(unsafe { LZ4_sizeofState() }, "a state has a size");
                Ok(Self::Lz4 { state: vec![0; bytes.div_ceil(8)] })
            }
            (Codec::Lz4, Some(level)) => {
                Err(Error::invalid(format!("level {level} was asked for, but lz4 has no levels"))
                    .remedy("leave out the level, or choose zstd"))
            }
            (Codec::Zstd, level) => {
                let level = level.unwrap_or(zstd_safe::CLEVEL_DEFAULT);
                let (min, max) = (zstd_safe::min_c_level(), zstd_safe::max_c_level());
                if !(min..=max).contains(&level) {
                    return Err(Error::invalid(format!("{level} is not a zstd level"))
                        .remedy(format!("choose one from {min} to {max}")));
                }
                let context = zstd_safe::CCtx::try_create().ok_or_else(no_memory)?;
                Ok(Self::Zstd { context, level })
            }
        }
    }

    /// Compresses `frame` to the start of `out` and returns the number of bytes that it wrote.
    pub(crate) fn compress(&mut self, frame: &[u8], out: &mut [u8]) -> Result<usize> {
        match self {
            Self::Lz4 { state } => {
                let (frame_len, out_len) = (c_len(frame.len())?, c_len(out.len())?);
                // SAFETY: the state has the size that the library asked for and is aligned to 8 bytes; both
                // lengths are those of the slices; the library keeps no pointer.
                let written = unsafe {
                    LZ4_compress_fast_extState(
                        state.as_mut_ptr().cast(),
                        frame.as_ptr().cast(),
                        out.as_mut_ptr().cast(),
                        frame_len,
                        out_len,
                        1,
                    )
                };
                match usize::try_from(written) {
                    Ok(written @ 1..) => Ok(written),
                    _ => Err(Error::invalid("lz4 could not compress a frame into its bound")),
                }
            }
            Self::Zstd { context, level } => context.compress(out, frame, *level).map_err(|code| {
                Error::invalid(format!(
                    "zstd could not compress a frame: {}",
                    zstd_safe::get_error_name(code)
                ))
            }),
        }
    }
}

/// Decompresses frames of either codec; makes a zstd context when it meets the first zstd frame.
#[derive(Default)]
pub(crate) struct Decompressor {
    zstd: Option<zstd_safe::DCtx<'static>>,
}

impl Decompressor {
    /// Decompresses a frame that must fill `out` exactly.
    pub(crate) fn decompress(&mut self, codec: Codec, frame: &[u8], out: &mut [u8]) -> Result<()> {
        let len = match codec {
            Codec::Lz4 => {
                let (frame_len, out_len) = (c_len(frame.len())?, c_len(out.len())?);
                // SAFETY: both lengths are those of the slices, which the library does not leave.
                let len = unsafe {
                    lz4_sys::LZ4_decompress_safe(
                        frame.as_ptr().cast(),
                        out.as_mut_ptr().cast(),
                        frame_len,
                        out_len,
                    )
                };
                usize::try_from(len).map_err(|_| Error::corrupt("is not valid lz4, or too long"))?
            }
            Codec::Zstd => {
                let context = match &mut self.zstd {
                    Some(context) => context,
                    none => none.insert(zstd_safe::DCtx::try_create().ok_or_else(no_memory)?),
                };
                context.decompress(out, frame).map_err(|code| {
                    Error::corrupt(format!("is not valid zstd: {}", zstd_safe::get_error_name(code)))
                })?
            }
        };
        check_len(len, out.len())
    }

    /// Decompresses an lz4 frame until the first `out.len()` bytes are there. Damage behind them goes
    /// unseen, so this is for frames whose checksum was right.
    #[expect(clippy::unused_self, reason = "the counterpart of `decompress`")]
    pub(crate) fn decompress_lz4_start(&mut self, frame: &[u8], out: &mut [u8]) -> Result<()> {
        let (frame_len, out_len) = (c_len(frame.len())?, c_len(out.len())?);
        // SAFETY: both lengths are those of the slices, which the library does not leave.
        let len = unsafe {
            LZ4_decompress_safe_partial(
                frame.as_ptr().cast(),
                out.as_mut_ptr().cast(),
                frame_len,
                out_len,
                out_len,
            )
        };
        let len = usize::try_from(len).map_err(|_| Error::corrupt("is not valid lz4"))?;
        check_len(len, out.len())
    }
}

fn check_len(len: usize, wanted: usize) -> Result<()> {
    if len != wanted {
        return Err(Error::corrupt(format!("decompresses to {len} bytes instead of {wanted}")));
    }
    Ok(())
}

/// A length as the C library takes it. Frames are far shorter than its limit.
fn c_len(len: usize) -> Result<c_int> {
    c_int::try_from(len).map_err(|_| Error::invalid("a frame of 2 GiB or more"))
}

fn no_memory() -> Error {
    Error::new(headstart_block::ErrorKind::Io, "no memory for a zstd context")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_text() -> Vec<u8> {
        (0..20_000u32).flat_map(|i| (i % 700).to_le_bytes()).collect()
    }

    #[test]
    fn a_frame_must_fill_its_place_exactly() {
        let text = some_text();
        for codec in [Codec::Lz4, Codec::Zstd] {
            let mut packed = vec![0; codec.compressed_len_max(text.len())];
            let len = Compressor::new(codec, None).unwrap().compress(&text, &mut packed).unwrap();
            packed.truncate(len);
            let mut decompressor = Decompressor::default();
            let mut out = vec![0; text.len() + 1];
            assert!(
                decompressor.decompress(codec, &packed, &mut out).is_err(),
                "{codec}: shorter than wanted"
            );
            out.truncate(text.len() - 1);
            assert!(
                decompressor.decompress(codec, &packed, &mut out).is_err(),
                "{codec}: longer than wanted"
            );
            out.push(0);
            decompressor.decompress(codec, &packed, &mut out).unwrap();
            assert!(out == text, "{codec}");
            assert!(decompressor.decompress(codec, &[], &mut out).is_err(), "{codec}: empty");
        }
    }

    #[test]
    fn the_start_of_an_lz4_frame_needs_not_its_rest() {
        let text = some_text();
        let mut packed = vec![0; Codec::Lz4.compressed_len_max(text.len())];
        let len = Compressor::new(Codec::Lz4, None).unwrap().compress(&text, &mut packed).unwrap();
        for wanted in [0, 1, 4095, 4096, text.len()] {
            let mut out = vec![0; wanted];
            Decompressor::default().decompress_lz4_start(&packed[..len], &mut out).unwrap();
            assert!(out == text[..wanted], "{wanted}");
        }
        let mut out = vec![0; text.len() + 1];
        assert!(Decompressor::default().decompress_lz4_start(&packed[..len], &mut out).is_err());
    }

    #[test]
    fn levels_are_zstds() {
        assert!(Compressor::new(Codec::Lz4, Some(1)).is_err());
        assert!(Compressor::new(Codec::Zstd, Some(23)).is_err());
        assert!(Compressor::new(Codec::Zstd, Some(-5)).is_ok());
        assert_eq!("zstd".parse::<Codec>().unwrap().to_string(), "zstd");
        assert!("gzip".parse::<Codec>().is_err());
    }
}
