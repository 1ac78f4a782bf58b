//! The stream of a container's layer: compressed bytes go in, the tar comes out, and the digests of both are found on
//! the way.
//!
//! # Compression
//! The first bytes say how a layer is compressed, as with containerd; its media type does not count. gzip may have
//! several members, as layers for lazy loading and files that were put together have; zstd several frames, and frames
//! to be skipped. Anything else is taken for a tar that is not compressed. Bytes after the last member or frame which
//! are not the beginning of another are an error.
//!
//! # Threads
//! With a thread of its own, the stream is read, hashed and decompressed there, in parts of [`PART`] bytes of the tar,
//! of which a few wait for the reader. Parts are used again, so that nothing is allocated for a part. The reader gets
//! the same bytes and the same errors with and without that thread.
//!
//! # Index
//! A stream can be asked for an index of its restart points, if it is gzip. It is made in passing, which takes time
//! of the thread that decompresses, and one more thread; so the reader's thread finds the digest of the tar.

use crate::options::ConvertLimits;
use flate2::bufread::MultiGzDecoder;
use headstart_block::{Digest, Error, ErrorKind, Result, to_usize};
use headstart_container_source::LayerCompression;
use headstart_image::progress::{Progress, step};
use headstart_turbo::format::DEFAULT_SPAN;
use headstart_turbo::{IndexingReader, Spool};
use sha2::{Digest as _, Sha256};
use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

/// Bytes of the tar that are passed on at once: few enough to be still in a core's cache when they are hashed.
const PART: usize = 256 << 10;
/// Parts that wait for the reader at most.
const PARTS_WAITING: usize = 6;
/// Bytes of the compressed stream that are read at once.
const INPUT: usize = 128 << 10;
/// Bytes by which a compression is known.
const MAGIC: usize = 10;

/// The compressed bytes of a layer, and what its image says of them.
pub(crate) struct LayerStream<'a> {
    /// The bytes, from the first on.
    pub(crate) bytes: Box<dyn Read + Send + 'a>,
    /// Their number.
    pub(crate) size: u64,
    /// The bounds.
    pub(crate) limits: &'a ConvertLimits,
    /// The receiver of the number of bytes that were read.
    pub(crate) progress: &'a dyn Progress,
    /// `true` if an index is made of a gzip stream.
    pub(crate) is_indexed: bool,
}

/// The sums of a layer's stream, which was read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamSums {
    /// The digest of the compressed bytes.
    pub(crate) digest: Digest,
    /// The digest of the tar.
    pub(crate) diff_id: Digest,
    /// The length of the tar in bytes.
    pub(crate) tar_bytes: u64,
}

/// The tar of a layer, which knows the sums when all of it was read.
pub(crate) trait TarStream: Read {
    /// Returns the sums. The stream must have been read to its end.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it was not.
    fn sums(&self) -> Result<StreamSums>;

    /// Takes the bytes of the index; `None` if none was made. The sums are not known any more. The stream must have
    /// been read to its end.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it was not.
    fn take_index(&mut self) -> Result<Option<Spool>>;
}

impl<'a> LayerStream<'a> {
    /// Calls `use_tar` with the tar, which is decompressed by another thread if `has_thread`. Waits for that thread
    /// also after an error, as long as a read of the compressed bytes takes.
    ///
    /// # Errors
    /// Errors of `use_tar`, to which those of the stream come by way of [`Read`]; [`ErrorKind::Io`] if no thread can be
    /// started.
    pub(crate) fn with_tar<T>(
        self,
        has_thread: bool,
        use_tar: impl FnOnce(&mut dyn TarStream) -> Result<T>,
    ) -> Result<T> {
        if !has_thread {
            return use_tar(&mut DecodedTar::new(self, false)?);
        }
        thread::scope(|scope| {
            let (parts, received) = sync_channel(PARTS_WAITING);
            let (used, spare) = channel();
            let sha256 = self.is_indexed.then(Sha256::new);
            thread::Builder::new()
                .name("layer-decoder".to_owned())
                .spawn_scoped(scope, move || self.send_parts(&parts, &spare))
                .map_err(|e| Error::io("cannot start a thread that decompresses the layer", e))?;
            // Dropped at the end, which ends the thread.
            let mut tar =
                PipedTar { received, used, part: Vec::new(), at: 0, sha256, sums: None, index: None };
            use_tar(&mut tar)
        })
    }

    /// Decompresses the stream until it ends, there is an error, or the receiver is gone.
    fn send_parts(self, parts: &SyncSender<Result<Piped>>, spare: &Receiver<Vec<u8>>) {
        let send_all = || -> Result<Option<Piped>> {
            let hashes = !self.is_indexed;
            let mut tar = DecodedTar { hashes, ..DecodedTar::new(self, true)? };
            loop {
                let mut part = spare.try_recv().unwrap_or_default();
                part.resize(PART, 0);
                let len = fill(&mut tar, &mut part)?;
                if len == 0 {
                    let sums = tar.sums()?;
                    return Ok(Some(Piped::End(sums, tar.take_index()?)));
                }
                part.truncate(len);
                if parts.send(Ok(Piped::Part(part))).is_err() {
                    return Ok(None);
                }
            }
        };
        if let Some(last) = send_all().transpose() {
            // An error of sending says that the receiver is gone, which needs nothing any more.
            let _ = parts.send(last);
        }
    }
}

/// Returns the compression of a stream by its first bytes, and the whole stream.
///
/// # Errors
/// Errors of reading it.
pub(crate) fn peek<'a>(
    mut bytes: Box<dyn Read + Send + 'a>,
) -> Result<(LayerCompression, Box<dyn Read + Send + 'a>)> {
    let mut first = vec![0; MAGIC];
    let len = fill(&mut bytes, &mut first)?;
    first.truncate(len);
    Ok((LayerCompression::of_bytes(&first), Box::new(Cursor::new(first).chain(bytes))))
}

/// Reads until `buf` is full or the stream ends, and returns the number of bytes.
fn fill(tar: &mut impl Read, buf: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match tar.read(rest) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(done)
}

/// A message of the thread that decompresses.
enum Piped {
    /// The next bytes of the tar: not empty.
    Part(Vec<u8>),
    /// The end of the tar, with the index if one was made.
    End(StreamSums, Option<Spool>),
}

/// The tar, from the thread that decompresses.
struct PipedTar {
    received: Receiver<Result<Piped>>,
    /// The way back of parts that were read.
    used: Sender<Vec<u8>>,
    part: Vec<u8>,
    /// The bytes of the part that were read.
    at: usize,
    /// The hash of the tar, if it is found here.
    sha256: Option<Sha256>,
    sums: Option<StreamSums>,
    index: Option<Spool>,
}

impl Read for PipedTar {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.at == self.part.len() && self.sums.is_none() && !buf.is_empty() {
            let ended = || Error::invalid("the layer cannot be read on after an error");
            match self.received.recv().map_err(|_| ended())?? {
                Piped::Part(part) => {
                    if let Some(sha256) = &mut self.sha256 {
                        sha256.update(&part);
                    }
                    let _ = self.used.send(std::mem::replace(&mut self.part, part));
                    self.at = 0;
                }
                Piped::End(sums, index) => {
                    let diff_id = self.sha256.as_ref().map_or(sums.diff_id, digest_of);
                    self.sums = Some(StreamSums { diff_id, ..sums });
                    self.index = index;
                }
            }
        }
        let rest = &self.part[self.at..];
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        self.at += len;
        Ok(len)
    }
}

impl TarStream for PipedTar {
    fn sums(&self) -> Result<StreamSums> {
        self.sums.ok_or_else(not_read_yet)
    }

    fn take_index(&mut self) -> Result<Option<Spool>> {
        self.sums.take().ok_or_else(not_read_yet)?;
        Ok(self.index.take())
    }
}

fn digest_of(sha256: &Sha256) -> Digest {
    Digest::from_bytes(sha256.clone().finalize().into())
}

fn not_read_yet() -> Error {
    Error::invalid("the layer was not read to its end")
}

/// The compressed bytes, counted and hashed.
struct CompressedBytes<'a> {
    bytes: Box<dyn Read + Send + 'a>,
    size: u64,
    read: u64,
    sha256: Sha256,
    progress: &'a dyn Progress,
}

impl Read for CompressedBytes<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // One byte more than there should be, to find that there are more.
        let wanted = to_usize((self.size - self.read + 1).min(buf.len() as u64));
        let len = loop {
            match self.bytes.read(&mut buf[..wanted]) {
                // Not passed on: decompressors would take it for the end of the stream.
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                result => break result.map_err(cannot_read)?,
            }
        };
        if len as u64 > self.size - self.read {
            let cause = format!("has more than the {} bytes that its image says", self.size);
            return Err(Error::corrupt(cause).into());
        }
        if len == 0 && !buf.is_empty() && self.read < self.size {
            let cause = format!("ends after {} of {} bytes", self.read, self.size);
            return Err(Error::corrupt(cause).remedy("fetch it again").into());
        }
        self.read += len as u64;
        self.sha256.update(&buf[..len]);
        step(self.progress, len as u64)?;
        Ok(len)
    }
}

fn cannot_read(error: io::Error) -> Error {
    error.downcast::<Error>().unwrap_or_else(|e| Error::io("cannot read the compressed bytes", e))
}

/// The compressed bytes, after the first ones were looked at.
type Input<'a> = BufReader<Chain<Cursor<Vec<u8>>, CompressedBytes<'a>>>;

/// The way in which an index is made.
struct IndexMaking {
    has_thread: bool,
}

/// The decompressor of a layer.
enum Decoder<'a> {
    Plain(Input<'a>),
    Gzip(Box<MultiGzDecoder<Input<'a>>>),
    Indexed(Box<IndexingReader<Input<'a>>>),
    Zstd(ZstdDecoder<Input<'a>>),
    /// All was read, and the index taken.
    Used,
}

impl<'a> Decoder<'a> {
    fn new(
        mut bytes: CompressedBytes<'a>,
        limits: &ConvertLimits,
        index: Option<IndexMaking>,
    ) -> Result<Self> {
        let mut first = vec![0; MAGIC];
        let len = fill(&mut bytes, &mut first)?;
        first.truncate(len);
        refuse_other_compression(&first)?;
        let compression = LayerCompression::of_bytes(&first);
        let input = BufReader::with_capacity(INPUT, Cursor::new(first).chain(bytes));
        Ok(match (compression, index) {
            (LayerCompression::None, _) => Self::Plain(input),
            (LayerCompression::Gzip, Some(IndexMaking { has_thread })) => {
                let reader = IndexingReader::new(input, DEFAULT_SPAN)?;
                Self::Indexed(Box::new(if has_thread { reader.with_thread()? } else { reader }))
            }
            (LayerCompression::Gzip, None) => Self::Gzip(Box::new(MultiGzDecoder::new(input))),
            (LayerCompression::Zstd, _) => Self::Zstd(ZstdDecoder::new(input, limits.zstd_window_log)?),
        })
    }

    /// The decoder of a stream that was read to its end, without the window of zstd: what follows needs the memory.
    fn ended(self) -> Self {
        match self {
            Self::Zstd(decoder) => Self::Plain(decoder.input),
            other => other,
        }
    }

    /// The compressed bytes; `None` if the index was taken.
    fn compressed(&self) -> Option<&CompressedBytes<'a>> {
        let input = match self {
            Self::Plain(input) => input,
            Self::Gzip(decoder) => decoder.get_ref(),
            Self::Indexed(reader) => reader.get_ref(),
            Self::Zstd(decoder) => &decoder.input,
            Self::Used => return None,
        };
        Some(input.get_ref().get_ref().1)
    }
}

/// Refuses a layer whose first bytes are those of a compression that no image may use.
fn refuse_other_compression(first: &[u8]) -> Result<()> {
    let by = match first {
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => "xz",
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, 0x53, 0x59] => "bzip2",
        _ => return Ok(()),
    };
    let cause = format!("is compressed by {by}, which no image may use");
    Err(Error::unsupported(cause).remedy("compress it by gzip or zstd"))
}

impl Read for Decoder<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(input) => input.read(buf),
            Self::Gzip(decoder) => decoder.read(buf).map_err(|e| {
                // An error of the source goes on as it is.
                e.downcast::<Error>()
                    .unwrap_or_else(|e| {
                        Error::corrupt("is not valid gzip").caused_by(e).remedy("fetch it again")
                    })
                    .into()
            }),
            Self::Indexed(reader) => reader.read(buf),
            Self::Zstd(decoder) => decoder.read(buf),
            Self::Used => Ok(0),
        }
    }
}

/// A decompressor of zstd frames, one after the other.
struct ZstdDecoder<R> {
    input: R,
    context: DCtx<'static>,
    /// `true` from the first byte of a frame to its end.
    is_in_frame: bool,
}

impl<R: BufRead> ZstdDecoder<R> {
    fn new(input: R, window_log: u32) -> Result<Self> {
        let failed = |code| Error::invalid(format!("a limit cannot be set: {}", error_name(code)));
        let mut context = DCtx::try_create()
            .ok_or_else(|| Error::new(ErrorKind::Io, "there is no memory for decompression"))?;
        context.set_parameter(DParameter::WindowLogMax(window_log)).map_err(failed)?;
        Ok(Self { input, context, is_in_frame: false })
    }
}

fn error_name(code: usize) -> &'static str {
    zstd_safe::get_error_name(code)
}

impl<R: BufRead> Read for ZstdDecoder<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while !buf.is_empty() {
            let available = self.input.fill_buf()?;
            let at_end = available.is_empty();
            if at_end && !self.is_in_frame {
                break;
            }
            let mut from = InBuffer::around(available);
            let mut to = OutBuffer::around(&mut *buf);
            let left = self.context.decompress_stream(&mut to, &mut from).map_err(|code| {
                let name = error_name(code);
                let cause = Error::corrupt(format!("is not valid zstd, or needs too much memory: {name}"));
                cause.remedy(
                    "fetch it again, or raise the limit `zstd_window_log` (--limit zstd_window_log=31)",
                )
            })?;
            let (taken, made) = (from.pos(), to.pos());
            self.is_in_frame = left > 0;
            self.input.consume(taken);
            if made > 0 {
                return Ok(made);
            }
            if at_end && self.is_in_frame {
                let cause = Error::corrupt("its last zstd frame is cut off").remedy("fetch it again");
                return Err(cause.into());
            }
        }
        Ok(0)
    }
}

/// The tar, decompressed as it is read.
struct DecodedTar<'a> {
    decoder: Decoder<'a>,
    sha256: Sha256,
    /// `true` if the digest of the tar is found here, and not by its reader.
    hashes: bool,
    bytes: u64,
    limit: u64,
    is_ended: bool,
}

impl<'a> DecodedTar<'a> {
    fn new(stream: LayerStream<'a>, has_threads: bool) -> Result<Self> {
        let LayerStream { bytes, size, limits, progress, is_indexed } = stream;
        let compressed = CompressedBytes { bytes, size, read: 0, sha256: Sha256::new(), progress };
        let index = is_indexed.then_some(IndexMaking { has_thread: has_threads });
        let decoder = Decoder::new(compressed, limits, index)?;
        let limit = limits.tar_bytes;
        Ok(Self { decoder, sha256: Sha256::new(), hashes: true, bytes: 0, limit, is_ended: false })
    }
}

impl Read for DecodedTar<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.decoder.read(buf)?;
        if self.hashes {
            self.sha256.update(&buf[..len]);
        }
        self.bytes += len as u64;
        if len == 0 && !buf.is_empty() && !self.is_ended {
            self.is_ended = true;
            self.decoder = std::mem::replace(&mut self.decoder, Decoder::Used).ended();
        }
        if self.bytes > self.limit {
            let cause = format!("has more than {} bytes when it is decompressed", self.limit);
            let remedy = "if the layer is trusted, raise the limit `tar_bytes` (--limit tar_bytes=NUMBER)";
            return Err(Error::unsupported(cause).remedy(remedy).into());
        }
        Ok(len)
    }
}

impl TarStream for DecodedTar<'_> {
    fn sums(&self) -> Result<StreamSums> {
        let compressed = self.decoder.compressed().filter(|_| self.is_ended).ok_or_else(not_read_yet)?;
        let (digest, diff_id) = (digest_of(&compressed.sha256), digest_of(&self.sha256));
        Ok(StreamSums { digest, diff_id, tar_bytes: self.bytes })
    }

    fn take_index(&mut self) -> Result<Option<Spool>> {
        if !self.is_ended {
            return Err(not_read_yet());
        }
        match std::mem::replace(&mut self.decoder, Decoder::Used) {
            Decoder::Indexed(reader) => Ok(Some(reader.finish()?.bytes)),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;
