//! Streaming packer: bytes in, a ZFile out. The ZFile does not depend on the number of threads, nor on how the input is
//! divided into writes.
//!
//! # The way of the bytes
//! Input is collected in a batch of [`BATCH_SIZE`] bytes, a whole number of frames. A full batch is compressed by a
//! thread of the writer's pool. The caller's thread compresses it instead if there is no pool, or if each thread of
//! the pool has enough work; input that comes in large pieces is then compressed without being copied first. A bounded
//! number of batches is under way. Compressed batches go to the inner writer in the order of the input, one write each,
//! and the lengths of their frames to the index. [`ZFileWriter::finish`] compresses the rest (only the last frame of
//! all may be short), and appends index and trailer. The header is never overwritten, so the inner writer need not
//! seek, and uploads can begin at once.
//!
//! # Errors
//! An error of the inner writer or of a codec is returned by the call that finds it. That may be a later call than the
//! one that passed the bytes, because some batches are under way meanwhile. From then on every call fails, and the
//! bytes that the inner writer has are not a ZFile. Dropping a writer without [`ZFileWriter::finish`] ends its threads.
//!
//! # Memory
//! Two buffers of a batch's size for each batch under way, plus codec contexts, plus 4 bytes for each frame
//! written.

use crate::checksum::{self, raw};
use crate::codec::{Codec, Compressor};
use crate::format::{self, ENTRY_SIZE, FRAME_CRC_SIZE, FRAME_SIZE_MAX, FRAMES_MAX, HEADER_SIZE, ZFileInfo};
use crate::pool::{Batch, Pool};
use headstart_block::{Error, ErrorKind, Result, to_usize};
use std::fmt;
use std::io::{self, Write};

/// Bytes of input that are compressed as one batch: 256 KiB, a multiple of every frame size. A batch is large
/// enough that passing it to a thread costs little beside compressing it, and small enough to stay in a
/// core's cache.
pub const BATCH_SIZE: usize = 256 << 10;

/// Smallest frame that is written, in bytes.
const FRAME_SIZE_MIN: u32 = 4 << 10;
/// Most threads: far more than feed one stream.
const THREADS_MAX: usize = 256;

/// The options of a new ZFile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZFileOptions {
    /// The algorithm that compresses the frames. Default: zstd.
    pub codec: Codec,
    /// Uncompressed bytes in a frame: a power of two from 4 KiB to 64 KiB. Default: 32 KiB, because
    /// OverlayBD, the reference implementation, cannot read back 64 KiB frames that do not compress.
    pub frame_size: u32,
    /// `true` if each frame gets a checksum (CRC-32C). Default: `true`.
    pub crc: bool,
    /// Compression level of zstd, at most 22; negative levels are faster and compress less. `None`, the default, is
    /// level 3, as in OverlayBD. For lz4, which has no levels, this must be `None`.
    pub level: Option<i32>,
    /// Number of threads that compress, 1 to 256, with the caller's thread as one of them. Default: 1, which
    /// starts no other thread. The output is the same for every number.
    pub threads: usize,
}

impl Default for ZFileOptions {
    fn default() -> Self {
        Self { codec: Codec::Zstd, frame_size: 32 << 10, crc: true, level: None, threads: 1 }
    }
}

impl ZFileOptions {
    /// Checks that a frame may have `size` bytes of content, and returns the size as the type of the option.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] unless `size` is a power of two from 4 KiB to 64 KiB.
    pub fn check_frame_size(size: u64) -> Result<u32> {
        let is_right =
            |size: &u32| size.is_power_of_two() && (FRAME_SIZE_MIN..=FRAME_SIZE_MAX).contains(size);
        u32::try_from(size).ok().filter(is_right).ok_or_else(|| {
            Error::invalid(format!("{size} bytes is not a frame size"))
                .remedy("choose 4k, 8k, 16k, 32k or 64k")
        })
    }

    fn check(&self) -> Result<()> {
        Self::check_frame_size(self.frame_size.into())?;
        if !(1..=THREADS_MAX).contains(&self.threads) {
            return Err(Error::invalid(format!("cannot pack with {} threads", self.threads))
                .remedy(format!("choose 1 to {THREADS_MAX}")));
        }
        Ok(())
    }
}

/// A writer that compresses the bytes written to it into a ZFile; see the [module](self). The ZFile is
/// complete only after [`ZFileWriter::finish`].
pub struct ZFileWriter<W> {
    out: W,
    /// The caller's own.
    encoder: Encoder,
    /// The other threads, if there are any.
    pool: Option<Pool>,
    /// Most batches under way, so that each thread has one in hand, one to take next and one that waits
    /// for its turn to be written.
    under_way_max: u64,
    /// The batch that fills up.
    batch: Batch,
    /// Batches to be used again.
    spare: Vec<Batch>,
    /// Length of each frame written, as stored.
    index: Vec<u32>,
    info: ZFileInfo,
    /// The error after which the writer cannot go on.
    failed: Option<(ErrorKind, String)>,
}

impl<W: Write> ZFileWriter<W> {
    /// Starts a ZFile, and writes its header to `out`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a frame size, a level or a number of threads that [`ZFileOptions`] does not allow;
    /// errors of `out`; [`ErrorKind::Io`] if a thread cannot be started or memory for a codec is missing.
    pub fn new(mut out: W, options: &ZFileOptions) -> Result<Self> {
        options.check()?;
        let make = || {
            let mut encoder = Encoder::new(options)?;
            Ok(move |batch: &mut Batch| encoder.encode_batch(batch))
        };
        let others = options.threads - 1;
        let pool = (others > 0).then(|| Pool::new(others, make)).transpose()?;
        let info = ZFileInfo {
            codec: options.codec,
            frame_size: options.frame_size,
            crc: options.crc,
            frames: 0,
            original_size: 0,
            compressed_size: HEADER_SIZE as u64,
            index_offset: HEADER_SIZE as u64,
            index_crc: 0,
            digest: true,
            header_valid: false,
        };
        out.write_all(&format::encode_header(&info)).map_err(cannot_write)?;
        Ok(Self {
            out,
            encoder: Encoder::new(options)?,
            pool,
            under_way_max: 3 * options.threads as u64,
            batch: Batch::default(),
            spare: Vec::new(),
            index: Vec::new(),
            info,
            failed: None,
        })
    }

    /// Compresses the remaining input, writes index and trailer, flushes `out`, and returns `out` and the
    /// description of the ZFile.
    ///
    /// # Errors
    /// Errors of `out` or of the codec; [`ErrorKind::Invalid`] for more than 10^9 frames; if an earlier call failed,
    /// the cause of that failure.
    pub fn finish(self) -> Result<(W, ZFileInfo)> {
        self.finish_locating(0).map(|(out, info, _)| (out, info))
    }

    /// Completes the ZFile as [`ZFileWriter::finish`] does. The third value returned is the offset, in bytes of the
    /// compressed file, of the frame that holds byte `offset` of the content. For an `offset` at or past the end of the
    /// content, that is the last frame or the end of all frames. A reader that will need the content from byte `offset`
    /// on can fetch the compressed file from there.
    ///
    /// # Errors
    /// As [`ZFileWriter::finish`].
    pub fn finish_locating(mut self, offset: u64) -> Result<(W, ZFileInfo, u64)> {
        self.check_failed()?;
        if !self.batch.input.is_empty() {
            self.compress_batch()?;
        }
        self.drain(true)?;
        let frame = to_usize(offset / self.info.frame_size as u64);
        let before = self.index.iter().take(frame).map(|len| u64::from(*len)).sum::<u64>();
        self.write_index()?;
        self.info.compressed_size += HEADER_SIZE as u64;
        let trailer = format::encode_trailer(&self.info);
        self.out.write_all(&trailer).and_then(|()| self.out.flush()).map_err(cannot_write)?;
        Ok((self.out, self.info, HEADER_SIZE as u64 + before))
    }

    fn write_index(&mut self) -> Result<()> {
        if self.info.frames > FRAMES_MAX {
            return Err(Error::invalid(format!(
                "{} frames are more than a ZFile can have",
                self.info.frames
            ))
            .remedy("use larger frames"));
        }
        let mut bytes = std::mem::take(&mut self.batch.output);
        for lengths in self.index.chunks(BATCH_SIZE / ENTRY_SIZE) {
            bytes.clear();
            bytes.extend(lengths.iter().flat_map(|len| len.to_le_bytes()));
            self.info.index_crc = raw(self.info.index_crc, &bytes);
            self.out.write_all(&bytes).map_err(cannot_write)?;
        }
        self.info.compressed_size += self.info.index_size();
        Ok(())
    }

    /// Takes some of `bytes`; returns their number.
    fn accept(&mut self, bytes: &[u8]) -> Result<usize> {
        let whole_batch = bytes.len() >= BATCH_SIZE && self.batch.input.is_empty();
        let taken = bytes.len().min(BATCH_SIZE - self.batch.input.len());
        if whole_batch && self.is_our_turn() {
            self.encoder.encode(&bytes[..taken], &mut self.batch)?;
            self.hand_on()?;
        } else {
            // Grows to its full size at once, or never.
            self.batch.input.reserve_exact(BATCH_SIZE - self.batch.input.len());
            self.batch.input.extend_from_slice(&bytes[..taken]);
            if self.batch.input.len() == BATCH_SIZE {
                self.compress_batch()?;
            }
        }
        self.info.original_size += taken as u64;
        Ok(taken)
    }

    /// `true` if the caller's thread has to compress the next batch.
    fn is_our_turn(&self) -> bool {
        self.pool.as_ref().is_none_or(Pool::is_busy)
    }

    /// Compresses the batch that filled up, or has it compressed, and begins the next.
    fn compress_batch(&mut self) -> Result<()> {
        if self.is_our_turn() {
            self.encoder.encode_batch(&mut self.batch)?;
            return self.hand_on();
        }
        let batch = self.next_batch();
        if let Some(pool) = &mut self.pool {
            pool.give(batch)?;
        }
        self.drain(false)
    }

    /// Writes the batch that the caller's thread compressed, or leaves it with the pool until its turn
    /// comes, and begins the next.
    fn hand_on(&mut self) -> Result<()> {
        let batch = self.next_batch();
        match &mut self.pool {
            Some(pool) => {
                pool.keep(batch);
                self.drain(false)
            }
            None => self.emit(batch),
        }
    }

    /// Begins a batch, and returns the previous one.
    fn next_batch(&mut self) -> Batch {
        std::mem::replace(&mut self.batch, self.spare.pop().unwrap_or_default())
    }

    /// Writes the batches that are ready; waits until all are, or, without `all`, until few enough are
    /// under way.
    fn drain(&mut self, all: bool) -> Result<()> {
        while let Some(pool) = &mut self.pool {
            let wait = all || pool.under_way() >= self.under_way_max;
            match pool.take(wait)? {
                Some(batch) => self.emit(batch)?,
                None => break,
            }
        }
        Ok(())
    }

    /// Writes a compressed batch and notes its frames.
    fn emit(&mut self, mut batch: Batch) -> Result<()> {
        self.out.write_all(&batch.output[..batch.used]).map_err(cannot_write)?;
        self.index.extend_from_slice(&batch.frames);
        self.info.frames += batch.frames.len() as u64;
        self.info.index_offset += batch.used as u64;
        self.info.compressed_size = self.info.index_offset;
        batch.input.clear();
        self.spare.push(batch);
        Ok(())
    }

    fn check_failed(&self) -> Result<()> {
        match &self.failed {
            None => Ok(()),
            Some((kind, cause)) => Err(Error::new(*kind, format!("failed before: {cause}"))),
        }
    }

    /// Runs `step`, unless one failed before, and remembers its failure.
    fn guard<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T>) -> io::Result<T> {
        self.check_failed().map_err(io_error)?;
        step(self).map_err(|error| {
            self.failed = Some((error.kind(), error.to_string()));
            io_error(error)
        })
    }
}

impl<W: Write> Write for ZFileWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.guard(|writer| {
            let mut rest = bytes;
            while !rest.is_empty() {
                let taken = writer.accept(rest)?;
                rest = &rest[taken..];
            }
            Ok(bytes.len())
        })
    }

    /// Writes all batches that are full and flushes the inner writer. Input that does not fill a batch stays
    /// here: the offsets of frames must not depend on flushes.
    fn flush(&mut self) -> io::Result<()> {
        self.guard(|writer| {
            writer.drain(true)?;
            writer.out.flush().map_err(cannot_write)
        })
    }
}

impl<W> fmt::Debug for ZFileWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZFileWriter").field("info", &self.info).finish_non_exhaustive()
    }
}

/// An error of the inner writer; one of ours is given back as it was.
fn cannot_write(error: io::Error) -> Error {
    match error.downcast::<Error>() {
        Ok(ours) => ours,
        Err(error) => Error::io("cannot write the ZFile", error),
    }
}

/// An error for our caller. One that says that the user cancelled must not become
/// [`io::ErrorKind::Interrupted`]: `write_all` would try again for ever.
fn io_error(error: Error) -> io::Error {
    match error.kind() {
        ErrorKind::Cancelled => io::Error::other(error),
        _ => error.into(),
    }
}

/// Compresses batches: one thread's context and the frame's form.
struct Encoder {
    compressor: Compressor,
    /// Size of a frame, of a compressed frame at most with its checksum, and of the checksum, in bytes.
    frame_size: usize,
    stored_max: usize,
    crc: bool,
}

impl Encoder {
    fn new(options: &ZFileOptions) -> Result<Self> {
        let frame_size = options.frame_size as usize;
        Ok(Self {
            compressor: Compressor::new(options.codec, options.level)?,
            frame_size,
            stored_max: options.codec.compressed_len_max(frame_size) + FRAME_CRC_SIZE,
            crc: options.crc,
        })
    }

    fn encode_batch(&mut self, batch: &mut Batch) -> Result<()> {
        let input = std::mem::take(&mut batch.input);
        let result = self.encode(&input, batch);
        batch.input = input;
        result
    }

    /// Compresses the frames of `input` to the output of `batch`.
    fn encode(&mut self, input: &[u8], batch: &mut Batch) -> Result<()> {
        let room = input.len().div_ceil(self.frame_size) * self.stored_max;
        if batch.output.len() < room {
            batch.output.resize(room, 0);
        }
        batch.frames.clear();
        batch.used = 0;
        for frame in input.chunks(self.frame_size) {
            let out = &mut batch.output[batch.used..];
            let mut len = self.compressor.compress(frame, out)?;
            if self.crc {
                let crc = checksum::of_frame(&out[..len]);
                out[len..len + FRAME_CRC_SIZE].copy_from_slice(&crc.to_le_bytes());
                len += FRAME_CRC_SIZE;
            }
            batch.used += len;
            #[expect(clippy::cast_possible_truncation, reason = "little more than a frame's size")]
            batch.frames.push(len as u32);
        }
        Ok(())
    }
}
