//! Tests of streams: every form gives its bytes and its sums, and damage is an error.

use super::*;
use crate::test_layers::{Pieces, forms, gzip, noise, skippable, windowed, zstd};
use headstart_image::progress::Silent;

/// Reads a whole stream.
fn read_within(
    bytes: Vec<u8>,
    size: u64,
    limits: &ConvertLimits,
    has_thread: bool,
) -> Result<(Vec<u8>, StreamSums)> {
    let stream = LayerStream {
        bytes: Box::new(Pieces::new(bytes)),
        size,
        limits,
        progress: &Silent,
        is_indexed: false,
    };
    stream.with_tar(has_thread, |tar| {
        let mut content = Vec::new();
        tar.read_to_end(&mut content)?;
        Ok((content, tar.sums()?))
    })
}

/// The kind of the error and its text, which are the same with and without a thread.
#[track_caller]
fn refused(bytes: &[u8], size: u64, limits: &ConvertLimits) -> (ErrorKind, String) {
    let [inline, threaded] =
        [false, true].map(|has| read_within(bytes.to_vec(), size, limits, has).unwrap_err());
    assert_eq!(inline.to_string(), threaded.to_string());
    (inline.kind(), inline.to_string())
}

#[test]
fn every_form_gives_the_bytes_and_the_sums() {
    for len in [0, 1, 5, 1000, 300_000, 2_000_001] {
        let content = noise(len as u64, len);
        for (name, bytes) in forms(&content) {
            for has_thread in [false, true] {
                let (size, digest) = (bytes.len() as u64, Digest::of(&bytes));
                let (found, sums) =
                    read_within(bytes.clone(), size, &ConvertLimits::default(), has_thread).unwrap();
                assert!(found == content, "{name}, {len}");
                let diff_id = Digest::of(&content);
                assert_eq!(sums, StreamSums { digest, diff_id, tar_bytes: len as u64 }, "{name}, {len}");
            }
        }
    }
}

#[test]
fn streams_that_are_cut_off_are_errors() {
    let content = noise(1, 5000);
    for (name, bytes) in forms(&content) {
        for len in (0..bytes.len()).step_by(bytes.len() / 50) {
            let limits = ConvertLimits::default();
            let (kind, text) = refused(&bytes[..len], bytes.len() as u64, &limits);
            assert_eq!(kind, ErrorKind::Corrupt, "{name}, {len}: {text}");
            // The image itself may have been made of a file that was cut off.
            if len == 0 || name == "plain" || name.ends_with('s') {
                continue;
            }
            let (kind, text) = refused(&bytes[..len], len as u64, &limits);
            assert_eq!(kind, ErrorKind::Corrupt, "{name}, {len}: {text}");
        }
    }
}

#[test]
fn bytes_behind_the_end_are_errors() {
    let content = noise(2, 3000);
    for compressed in [gzip(&content, 6), zstd(&content, 3)] {
        for garbage in [&b"\0"[..], b"x", b"garbage behind the end", &[0; 600]] {
            let bytes = [&compressed, garbage].concat();
            let (kind, text) = refused(&bytes, bytes.len() as u64, &ConvertLimits::default());
            assert_eq!(kind, ErrorKind::Corrupt, "{text}");
            let (_, text) = refused(&bytes, compressed.len() as u64, &ConvertLimits::default());
            assert!(text.contains("has more than the"), "{text}");
        }
    }
}

#[test]
fn damage_is_an_error_or_changes_the_digest() {
    let content = noise(3, 20_000);
    for (name, bytes) in forms(&content) {
        for at in (0..bytes.len()).step_by(97) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x55;
            if let Ok((_, sums)) =
                read_within(damaged, bytes.len() as u64, &ConvertLimits::default(), at % 2 == 0)
            {
                assert_ne!(sums.digest, Digest::of(&bytes), "{name}, {at}");
            }
        }
    }
}

#[test]
fn bombs_are_refused() {
    let zeros = vec![0; 3 << 20];
    let limits = ConvertLimits { tar_bytes: 2 << 20, ..ConvertLimits::default() };
    for bytes in [gzip(&zeros, 9), zstd(&zeros, 3), gzip(&gzip(&zeros, 9), 9)] {
        let len = bytes.len() as u64;
        assert!(len < 10_000);
        let result = read_within(bytes.clone(), len, &limits, true);
        match result {
            // Decompressed once only.
            Ok((content, _)) => assert!(content.starts_with(&[0x1f, 0x8b])),
            Err(_) => {
                let (kind, text) = refused(&bytes, len, &limits);
                assert!(kind == ErrorKind::Unsupported && text.contains("`tar_bytes`"), "{text}");
            }
        }
    }
    let content = noise(5, 100);
    for (log, is_read) in [(20, true), (26, true), (27, false), (31, false)] {
        let bytes = windowed(&content, log);
        let result = read_within(bytes.clone(), bytes.len() as u64, &ConvertLimits::default(), false);
        assert_eq!(result.is_ok(), is_read, "{log}");
        if let Err(error) = result {
            assert!(error.to_string().contains("`zstd_window_log`"), "{error}");
        }
    }
}

#[test]
fn other_compressions_are_named() {
    let cases = [(&b"\xfd7zXZ\0\0\x04\xe6\xd6"[..], "xz"), (b"BZh91AY&SY\x12\x34", "bzip2")];
    for (bytes, name) in cases {
        let (kind, text) = refused(bytes, bytes.len() as u64, &ConvertLimits::default());
        assert!(kind == ErrorKind::Unsupported && text.contains(name), "{text}");
    }
}

#[test]
fn a_stream_of_skipped_frames_is_empty() {
    let bytes = [skippable(b"abc"), skippable(&[7; 100_000])].concat();
    let (content, _) =
        read_within(bytes.clone(), bytes.len() as u64, &ConvertLimits::default(), true).unwrap();
    assert!(content.is_empty());
}

/// A stream that fails after some bytes.
struct Failing(Vec<u8>);

impl Read for Failing {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() {
            let error = Error::new(ErrorKind::Unavailable, "does not answer").about("the store");
            return Err(error.into());
        }
        let len = buf.len().min(self.0.len());
        buf[..len].copy_from_slice(&self.0[..len]);
        self.0.drain(..len);
        Ok(len)
    }
}

#[test]
fn errors_of_the_source_come_through_whole() {
    for (name, bytes) in forms(&noise(6, 400_000)) {
        for has_thread in [false, true] {
            let (size, half) = (bytes.len() as u64, bytes[..bytes.len() / 2].to_vec());
            let stream = LayerStream {
                bytes: Box::new(Failing(half)),
                size,
                limits: &ConvertLimits::default(),
                progress: &Silent,
                is_indexed: false,
            };
            let error = stream
                .with_tar(has_thread, |tar| Ok(tar.read_to_end(&mut Vec::new()).map(drop)?))
                .unwrap_err();
            assert_eq!(
                (error.kind(), error.to_string()),
                (ErrorKind::Unavailable, "the store: does not answer".into()),
                "{name}"
            );
        }
    }
}

#[test]
fn a_reader_that_stops_ends_the_thread() {
    let bytes = noise(4, 20 << 20);
    let size = bytes.len() as u64;
    let limits = ConvertLimits::default();
    let stream = LayerStream {
        bytes: Box::new(Cursor::new(bytes)),
        size,
        limits: &limits,
        progress: &Silent,
        is_indexed: false,
    };
    let result = stream.with_tar(true, |tar| {
        tar.read_exact(&mut [0; 1000])?;
        assert!(tar.sums().is_err());
        Err::<(), _>(Error::invalid("enough"))
    });
    assert_eq!(result.unwrap_err().to_string(), "enough");
}
