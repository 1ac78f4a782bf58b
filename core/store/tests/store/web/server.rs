//! A web server for one test: files from memory, ranges, and faults on demand.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A fault of one answer.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    Status(u16),
    /// The connection ends after half of the body.
    Short,
    /// The head promises a shorter body than was asked for.
    Shorter,
    /// The right number of bytes, from elsewhere.
    WrongRange,
    /// As if there were no ranges.
    Whole,
    /// The head promises an endless body.
    Huge,
    /// Chunks without end, for any request.
    Endless,
    /// The connection ends before the head.
    Reset,
    /// Nothing for this long, then all.
    Slow(Duration),
    /// Half of the body, then nothing.
    Stall,
    /// Says that the body is compressed.
    Compressed,
    /// A redirect to another path.
    Redirect(String),
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    faults: VecDeque<Fault>,
    requests: Vec<String>,
    /// The authorization that it requires, if any.
    authorization: Option<String>,
}

#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self { address: listener.local_addr().unwrap(), state: Arc::default() };
        let accepting = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = accepting.clone();
                tokio::spawn(async move { server.serve(stream).await });
            }
        });
        server
    }

    pub(crate) fn put(&self, path: &str, bytes: &[u8]) {
        self.state.lock().unwrap().files.insert(path.to_owned(), bytes.to_vec());
    }

    /// Serves only requests that show this header.
    pub(crate) fn require(&self, authorization: &str) {
        self.state.lock().unwrap().authorization = Some(authorization.to_owned());
    }

    /// Makes the next answers fail in these ways.
    pub(crate) fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state.lock().unwrap().faults = faults.into_iter().collect();
    }

    /// The requests since the last call, as `METHOD PATH RANGE`.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }

    async fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let (mut method, mut path, mut range) = (String::new(), String::new(), None);
            let mut shown = None;
            let mut line = String::new();
            while stream.read_line(&mut line).await.ok()? > 2 {
                if path.is_empty() {
                    let mut words = line.split(' ').map(str::to_owned);
                    (method, path) = (words.next()?, words.next()?);
                }
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
                    let (first, last) = value.trim().split_once('-')?;
                    range = Some((first.parse().ok()?, last.parse().ok()?));
                }
                if let Some((name, value)) = line.split_once(": ")
                    && name.eq_ignore_ascii_case("authorization")
                {
                    shown = Some(value.trim().to_owned());
                }
                line.clear();
            }
            if path.is_empty() {
                return None;
            }
            let (file, fault, stranger) = {
                let mut state = self.state.lock().unwrap();
                state.requests.push(format!("{method} {path} {range:?}"));
                let stranger = state.authorization.is_some() && state.authorization != shown;
                (state.files.get(&path).cloned(), state.faults.pop_front(), stranger)
            };
            if stranger {
                let text =
                    "HTTP/1.1 401 x\r\nWWW-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\n\r\n";
                stream.write_all(text.as_bytes()).await.ok()?;
                continue;
            }
            self.answer(&mut stream, &method, file, range, fault).await?;
        }
    }

    async fn answer(
        &self,
        stream: &mut BufReader<TcpStream>,
        method: &str,
        file: Option<Vec<u8>>,
        range: Option<(usize, usize)>,
        fault: Option<Fault>,
    ) -> Option<()> {
        let head = |status: u16, more: &str| format!("HTTP/1.1 {status} x\r\n{more}\r\n");
        let Some(file) = file else {
            let text = head(404, "Content-Length: 0\r\n");
            return stream.write_all(text.as_bytes()).await.ok();
        };
        let total = file.len();
        let (status, mut first, mut last) = match range {
            Some((first, _)) if first >= total => (416, 0, None),
            Some((first, last)) => (206, first, Some(last.min(total - 1))),
            None => (200, 0, total.checked_sub(1)),
        };
        let mut fields = String::new();
        let mut status = status;
        match &fault {
            Some(Fault::Reset) => return None,
            Some(Fault::Slow(pause)) => tokio::time::sleep(*pause).await,
            Some(Fault::Status(number)) => (status, last) = (*number, None),
            Some(Fault::Redirect(path)) => {
                fields = format!("Location: {path}\r\n");
                (status, last) = (307, None);
            }
            Some(Fault::Shorter) => last = last.map(|last| last - 1),
            Some(Fault::WrongRange) => (first, last) = (first + 1, last.map(|last| last + 1)),
            Some(Fault::Whole) => (status, first, last) = (200, 0, Some(total - 1)),
            Some(Fault::Compressed) => fields = "Content-Encoding: gzip\r\n".to_owned(),
            _ => {}
        }
        let body = last.map_or(&[][..], |last| &file[first..=last]);
        let len = match &fault {
            Some(Fault::Huge) => u64::MAX / 2,
            _ => body.len() as u64,
        };
        if status == 206 {
            fields += &format!("Content-Range: bytes {first}-{}/{total}\r\n", first + body.len() - 1);
        }
        let endless = matches!(fault, Some(Fault::Endless));
        fields += &if endless {
            "Transfer-Encoding: chunked\r\n".to_owned()
        } else {
            format!("Content-Length: {len}\r\n")
        };
        stream.write_all(head(status, &fields).as_bytes()).await.ok()?;
        if method == "HEAD" {
            return Some(());
        }
        match fault {
            Some(Fault::Short) => {
                stream.write_all(&body[..body.len() / 2]).await.ok()?;
                None
            }
            Some(Fault::Stall) => {
                stream.write_all(&body[..body.len() / 2]).await.ok()?;
                stream.flush().await.ok()?;
                std::future::pending().await
            }
            Some(Fault::Endless) => loop {
                stream.write_all(b"400\r\n").await.ok()?;
                stream.write_all(&[b'x'; 1024]).await.ok()?;
                stream.write_all(b"\r\n").await.ok()?;
            },
            _ => stream.write_all(body).await.ok(),
        }
    }
}
