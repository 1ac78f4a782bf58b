//! A stream that is checked against its digest as it passes.
//!
//! The last bytes are given only if the whole is right. So a consumer that was given as many bytes as the stream has
//! knows that they are right, also one that does not read on to the end of the stream.

use headstart_block::{Digest, Error, Result, to_usize};
use sha2::{Digest as _, Sha256};
use std::io::{self, Read};

/// A reader of a blob of known size and digest.
pub(crate) struct VerifiedReader<R> {
    inner: R,
    /// The name of the blob, for messages.
    thing: String,
    digest: Digest,
    size: u64,
    left: u64,
    sha256: Sha256,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Reading,
    Verified,
    Failed,
}

impl<R: Read> VerifiedReader<R> {
    /// Makes a reader of the `size` bytes that `inner` begins with; errors are about `thing`.
    pub(crate) fn new(inner: R, digest: Digest, size: u64, thing: String) -> Self {
        Self { inner, thing, digest, size, left: size, sha256: Sha256::new(), state: State::Reading }
    }

    fn next(&mut self, buf: &mut [u8]) -> Result<usize, io::Error> {
        let most = to_usize(self.left.min(buf.len() as u64));
        let mut read = 0;
        if most > 0 {
            read = self.inner.read(&mut buf[..most])?;
            if read == 0 {
                let cause = format!("ends after {} of its {} bytes", self.size - self.left, self.size);
                return Err(Error::corrupt(cause).remedy("fetch or copy it again").into());
            }
            self.sha256.update(&buf[..read]);
            self.left -= read as u64;
        }
        if self.left == 0 {
            let found = Digest::from_bytes(std::mem::take(&mut self.sha256).finalize().into());
            if found != self.digest {
                let cause = format!("its content has the digest {found}, not {}", self.digest);
                return Err(Error::corrupt(cause).remedy("fetch or copy it again").into());
            }
            self.state = State::Verified;
        }
        Ok(read)
    }
}

impl<R: Read> Read for VerifiedReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.state {
            State::Verified => return Ok(0),
            State::Failed => {
                return Err(Error::invalid("cannot be read on after an error").about(&self.thing).into());
            }
            State::Reading if buf.is_empty() => return Ok(0),
            State::Reading => {}
        }
        match self.next(buf) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                self.state = State::Failed;
                Err(named(error.into(), &self.thing).into())
            }
            read => read,
        }
    }
}

/// The same error about `thing`, with its own thing as a part of the cause.
pub(crate) fn named(error: Error, thing: &str) -> Error {
    let kind = error.kind();
    let text = error.to_string();
    let named = error.about(thing);
    if named.to_string() != text {
        return named;
    }
    Error::new(kind, "cannot be read").about(thing).caused_by(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ErrorKind;

    fn read(content: &[u8], digest: Digest, size: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        VerifiedReader::new(content, digest, size, "layer 1".to_owned()).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    #[test]
    fn right_bytes_pass() {
        let content: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        assert_eq!(read(&content, Digest::of(&content), 100_000).unwrap(), content);
        assert_eq!(read(b"", Digest::of(b""), 0).unwrap(), b"");
        // Bytes behind the blob are another one's.
        assert_eq!(read(b"blob, more", Digest::of(b"blob"), 4).unwrap(), b"blob");
    }

    #[test]
    fn wrong_bytes_are_errors_that_name_the_layer() {
        for (content, digest, size, says) in [
            (&b"blob"[..], Digest::of(b"glob"), 4, "digest"),
            (b"blob", Digest::of(b"blob"), 5, "ends after 4 of its 5 bytes"),
            (b"blob", Digest::of(b"blob"), 3, "digest"),
            (b"", Digest::of(b"x"), 0, "digest"),
            (b"", Digest::of(b"x"), u64::MAX, "ends after 0"),
        ] {
            let error = read(content, digest, size).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(
                error.to_string().starts_with("layer 1: ") && error.to_string().contains(says),
                "{error}"
            );
        }
    }

    #[test]
    fn the_last_byte_is_given_only_if_all_are_right() {
        let mut reader = VerifiedReader::new(&b"blob"[..], Digest::of(b"other"), 4, String::new());
        let mut buf = [0; 3];
        assert_eq!(reader.read(&mut buf).unwrap(), 3);
        assert!(reader.read(&mut buf).is_err());
        assert!(reader.read(&mut buf).unwrap_err().to_string().contains("after an error"));
    }

    #[test]
    fn errors_keep_their_kind_and_their_thing() {
        let inner = || Error::new(ErrorKind::Denied, "refuses");
        assert_eq!(named(inner(), "layer").to_string(), "layer: refuses");
        let both = named(inner().about("host"), "layer");
        assert_eq!(
            (both.kind(), both.to_string()),
            (ErrorKind::Denied, "layer: cannot be read: host: refuses".to_owned())
        );
    }
}
