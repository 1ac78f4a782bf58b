//! The part of HTTP/1.1 that a proxy needs: heads, and the ends of bodies.

use headstart_block::to_usize;
use std::io::{self, BufRead, Read, Write};

/// The longest head, in bytes.
const LONGEST_HEAD: u64 = 64 << 10;
/// The most bytes that are passed on at once.
const PIECE: u64 = 64 << 10;

/// The first line and the headers of a request or an answer.
#[derive(Clone, Debug)]
pub(super) struct Head {
    first: String,
    headers: Vec<(String, String)>,
}

impl Head {
    /// Reads a head; `None` if the other side has ended instead.
    pub(super) fn read(reader: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut reader = reader.take(LONGEST_HEAD);
        let Some(first) = line(&mut reader)? else { return Ok(None) };
        let mut headers = Vec::new();
        loop {
            let line = line(&mut reader)?.ok_or(io::ErrorKind::UnexpectedEof)?;
            if line.is_empty() {
                return Ok(Some(Self { first, headers }));
            }
            let (name, value) = line.split_once(':').ok_or(io::ErrorKind::InvalidData)?;
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
    }

    /// Makes an answer with a body of this length.
    pub(super) fn answer(status: u16, headers: &[(String, String)], len: usize) -> Self {
        let mut head = Self { first: format!("HTTP/1.1 {status} Fault"), headers: headers.to_vec() };
        head.set("Content-Length", &len.to_string());
        head
    }

    /// A word of the first line: method, target and version of a request; version, status and reason of an answer.
    pub(super) fn word(&self, index: usize) -> &str {
        self.first.split(' ').nth(index).unwrap_or_default()
    }

    /// The status of an answer, 0 if it has none.
    pub(super) fn status(&self) -> u16 {
        self.word(1).parse().unwrap_or(0)
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter();
        all.find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.headers.retain(|(own, _)| !own.eq_ignore_ascii_case(name));
    }

    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.remove(name);
        self.headers.push((name.to_owned(), value.to_owned()));
    }

    pub(super) fn write(&self, mut sink: impl Write) -> io::Result<()> {
        let mut text = format!("{}\r\n", self.first);
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        sink.write_all(text.as_bytes())
    }

    /// `true` if the connection ends with this message.
    pub(super) fn closes(&self) -> bool {
        self.header("Connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
            || [self.word(0), self.word(2)].contains(&"HTTP/1.0")
    }

    pub(super) fn is_chunked(&self) -> bool {
        let encoding = self.header("Transfer-Encoding").unwrap_or_default();
        encoding.to_ascii_lowercase().ends_with("chunked")
    }

    fn content_length(&self) -> io::Result<Option<u64>> {
        let parsed = self.header("Content-Length").map(str::parse).transpose();
        parsed.map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// The body of the request with this head.
    pub(super) fn request_body(&self) -> io::Result<Body> {
        Ok(if self.is_chunked() {
            Body::Chunked { left: 0, ended: false }
        } else {
            Body::Known { left: self.content_length()?.unwrap_or(0) }
        })
    }

    /// The body of the answer with this head, to a request of this method.
    pub(super) fn answer_body(&self, method: &str) -> io::Result<Body> {
        Ok(if method == "HEAD" || [204, 304].contains(&self.status()) || self.status() < 200 {
            Body::Known { left: 0 }
        } else if self.is_chunked() {
            Body::Chunked { left: 0, ended: false }
        } else {
            self.content_length()?.map_or(Body::ToTheEnd, |left| Body::Known { left })
        })
    }
}

/// Reads a line, without its end; `None` if there is none.
fn line(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let text = line.strip_suffix('\n').ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(Some(text.strip_suffix('\r').unwrap_or(text).to_owned()))
}

/// The rest of a body.
#[derive(Debug)]
pub(super) enum Body {
    Known { left: u64 },
    Chunked { left: u64, ended: bool },
    ToTheEnd,
}

impl Body {
    /// The next bytes of the body, at most `most`, without framing; empty at its end.
    pub(super) fn next(&mut self, reader: &mut impl BufRead, most: u64) -> io::Result<Vec<u8>> {
        let most = most.clamp(1, PIECE);
        match self {
            Self::Known { left } => {
                let bytes = some(reader, most.min(*left))?;
                if bytes.is_empty() && *left > 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                *left -= bytes.len() as u64;
                Ok(bytes)
            }
            Self::ToTheEnd => some(reader, most),
            Self::Chunked { ended: true, .. } => Ok(Vec::new()),
            Self::Chunked { left, ended } => {
                if *left == 0 {
                    let size = line(reader)?.ok_or(io::ErrorKind::UnexpectedEof)?;
                    let size = size.split(';').next().unwrap_or_default().trim();
                    *left = u64::from_str_radix(size, 16).map_err(|_| io::ErrorKind::InvalidData)?;
                    if *left == 0 {
                        *ended = true;
                        while line(reader)?.is_some_and(|trailer| !trailer.is_empty()) {}
                        return Ok(Vec::new());
                    }
                }
                let bytes = some(reader, most.min(*left))?;
                if bytes.is_empty() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                *left -= bytes.len() as u64;
                if *left == 0 {
                    line(reader)?;
                }
                Ok(bytes)
            }
        }
    }
}

/// Reads the bytes that are there, at most `most`, and waits for the first.
fn some(reader: &mut impl BufRead, most: u64) -> io::Result<Vec<u8>> {
    if most == 0 {
        return Ok(Vec::new());
    }
    let there = reader.fill_buf()?;
    let len = there.len().min(to_usize(most));
    let bytes = there[..len].to_vec();
    reader.consume(len);
    Ok(bytes)
}

/// Writes bytes of a body, framed if it is chunked. Empty ones end it.
pub(super) fn write_piece(mut sink: impl Write, bytes: &[u8], chunked: bool) -> io::Result<()> {
    if !chunked {
        return sink.write_all(bytes);
    }
    let mut framed = format!("{:x}\r\n", bytes.len()).into_bytes();
    framed.extend_from_slice(bytes);
    framed.extend_from_slice(b"\r\n");
    sink.write_all(&framed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(mut body: Body, mut bytes: &[u8]) -> io::Result<(Vec<u8>, usize)> {
        let mut content = Vec::new();
        loop {
            let piece = body.next(&mut bytes, 3)?;
            if piece.is_empty() {
                return Ok((content, bytes.len()));
            }
            content.extend(piece);
        }
    }

    #[test]
    fn heads_are_read_changed_and_written() {
        let mut text: &[u8] = b"GET /a?b HTTP/1.1\r\nRange: bytes=1-2\r\nHost:x\r\n\r\nrest";
        let mut head = Head::read(&mut text).unwrap().unwrap();
        assert_eq!(text, b"rest");
        assert_eq!((head.word(0), head.word(1), head.header("range")), ("GET", "/a?b", Some("bytes=1-2")));
        head.set("RANGE", "bytes=3-4");
        let mut written = Vec::new();
        head.write(&mut written).unwrap();
        assert_eq!(written, b"GET /a?b HTTP/1.1\r\nHost: x\r\nRANGE: bytes=3-4\r\n\r\n");
        assert!(Head::read(&mut &b""[..]).unwrap().is_none());
        assert!(Head::read(&mut &b"GET / HTTP/1.1\r\nHost"[..]).is_err());
        assert!(Head::read(&mut &vec![b'a'; 100_000][..]).is_err());
    }

    #[test]
    fn bodies_end_where_they_should() {
        let chunked = || Body::Chunked { left: 0, ended: false };
        let (bytes, rest) =
            content(chunked(), b"5\r\nhello\r\n3;x=y\r\n, w\r\n0\r\nA: b\r\n\r\nnext").unwrap();
        assert_eq!((&bytes[..], rest), (&b"hello, w"[..], 4));
        assert_eq!(content(Body::Known { left: 4 }, b"abcdef").unwrap(), (b"abcd".to_vec(), 2));
        assert_eq!(content(Body::ToTheEnd, b"abcdef").unwrap(), (b"abcdef".to_vec(), 0));
        assert!(content(Body::Known { left: 9 }, b"abcdef").is_err());
        assert!(content(chunked(), b"5\r\nhel").is_err());
        let mut written = Vec::new();
        write_piece(&mut written, b"hello", true).unwrap();
        write_piece(&mut written, b"", true).unwrap();
        assert_eq!(content(chunked(), &written).unwrap(), (b"hello".to_vec(), 0));
    }
}
