//! A host that breaks the rules, for `benches/swarm` to put among honest ones: `rogue CREDENTIALS NAME MANIFEST HOW
//! HOST@IP:PORT...`
//!
//! It has a certificate of the cluster, knows the image (MANIFEST is a file of an OCI layout), proves to every host
//! that it may read the blobs, announces that it has all of them, and misbehaves:
//!
//! | HOW | its answer to a request |
//! |---|---|
//! | `silent` | none |
//! | `promising` | a promise ten times a second, and never the bytes |
//! | `corrupt` | other bytes, at once |
//! | `endless` | other bytes, at once, and then again and again |
//!
//! A host that hangs up is called again a second later. Prints `connected N` when it is connected to N hosts, and ends
//! when it is told to.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a part of a measurement")]

use headstart_block::Digest;
use headstart_peer_net::frame::{
    self, FrameKind, HEADER, Header, Hello, VERSION_1, push_encoded, push_frame,
};
use headstart_swarm::{BlobId, Chunks, Message, RequestId};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const CHUNK: u64 = headstart_swarm::CHUNK_SIZE;
/// The interval between two promises; a ping is sent every [`PING_EVERY`] intervals.
const AGAIN: Duration = Duration::from_millis(100);
const PING_EVERY: u32 = 50;
const PAUSE: Duration = Duration::from_secs(1);
/// Frames that wait to be sent to one host.
const WAITING: usize = 64;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Silent,
    Promising,
    Corrupt,
    Endless,
}

/// A blob of the image, or the outboard of a blob's tree.
struct Blob {
    digest: Digest,
    len: u64,
    root: [u8; 32],
    file: File,
}

impl Blob {
    fn whole(&self) -> Chunks {
        Chunks { first: 0, count: u32::try_from(self.len.div_ceil(CHUNK)).unwrap() }
    }

    fn chunk(&self, chunk: u32) -> Vec<u8> {
        let range = Chunks::one(chunk).bytes(self.len);
        let mut bytes = vec![0; usize::try_from(range.len()).unwrap()];
        self.file.read_exact_at(&mut bytes, range.offset()).unwrap();
        bytes
    }

    /// The proof to the other end of a connection that this host may read the blob, or the other way round.
    fn proof(&self, binding: &[u8; 32], by_dialer: bool) -> [u8; 32] {
        let mut mac = blake3::Hasher::new_keyed(&self.root);
        mac.update(b"headstart swarm 1").update(binding).update(&[u8::from(!by_dialer)]);
        *mac.update(self.digest.as_bytes()).finalize().as_bytes()
    }
}

/// The blobs that a manifest names, each followed by its tree's outboard.
fn blobs(manifest: &Path) -> Vec<Blob> {
    let place = manifest.parent().unwrap();
    let value: Value = serde_json::from_slice(&std::fs::read(manifest).unwrap()).unwrap();
    let mut found = Vec::new();
    for layer in value["layers"].as_array().unwrap() {
        let said = |name: &str| layer["annotations"][format!("dev.headstart.{name}")].as_str().unwrap();
        let root = headstart_block::digest::parse_hex(said("tree-root")).unwrap();
        for name in [layer["digest"].as_str().unwrap(), said("tree-digest")] {
            let file = File::open(place.join(name.trim_start_matches("sha256:"))).unwrap();
            let len = file.metadata().unwrap().len();
            found.push(Blob { digest: name.parse().unwrap(), len, root, file });
        }
    }
    found
}

fn connector(credentials: &Path) -> TlsConnector {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let certificates = |name: &str| -> Vec<CertificateDer<'static>> {
        let pem = std::fs::read(credentials.join(name)).unwrap();
        CertificateDer::pem_slice_iter(&pem).map(Result::unwrap).collect()
    };
    let mut roots = RootCertStore::empty();
    certificates("ca.pem").into_iter().for_each(|certificate| roots.add(certificate).unwrap());
    let key = PrivateKeyDer::from_pem_file(credentials.join("host.key")).unwrap();
    let config = ClientConfig::builder_with_provider(provider);
    let mut config = config
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(certificates("host.pem"), key)
        .unwrap();
    config.alpn_protocols = vec![b"headstart-swarm/1".to_vec()];
    TlsConnector::from(Arc::new(config))
}

struct Rogue {
    name: String,
    how: How,
    connector: TlsConnector,
    blobs: Vec<Blob>,
    connected: AtomicUsize,
}

impl Rogue {
    /// Serves one connection until the other end closes it.
    async fn visit(&self, host: &str, address: &str) -> Outcome<()> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let name = ServerName::try_from(host.to_owned())?;
        let mut stream = self.connector.connect(name, socket).await?;
        let mut binding = [0; 32];
        stream.get_ref().1.export_keying_material(&mut binding[..], b"EXPORTER-headstart-swarm", None)?;
        let hello = Hello {
            version: VERSION_1,
            name: self.name.clone(),
            is_root: false,
            is_tracker: false,
            nonce: [7; 32],
        };
        let mut first = Vec::new();
        push_encoded(&mut first, FrameKind::Hello, &hello)?;
        for (number, blob) in (0..).zip(&self.blobs) {
            push_frame(&mut first, FrameKind::Proof, number, 0, &blob.proof(&binding, true));
        }
        stream.write_all(&first).await?;
        println!("connected {}", self.connected.fetch_add(1, Ordering::Relaxed) + 1);
        let ended = self.talk(stream, &binding).await;
        self.connected.fetch_sub(1, Ordering::Relaxed);
        ended
    }

    async fn talk(&self, stream: TlsStream<TcpStream>, binding: &[u8; 32]) -> Outcome<()> {
        let (mut reading, mut writing) = tokio::io::split(stream);
        let (say, mut said) = mpsc::channel::<Vec<u8>>(WAITING);
        let visit = Visit { say, theirs: HashMap::new(), promised: Arc::default(), again: Arc::default() };
        let write = async move {
            while let Some(bytes) = said.recv().await {
                writing.write_all(&bytes).await?;
                writing.flush().await?;
            }
            Outcome::Ok(())
        };
        let (say, promised, again) =
            (visit.say.clone(), Arc::clone(&visit.promised), Arc::clone(&visit.again));
        let keep_on = async move {
            for tick in 0u32.. {
                let mut out = Vec::new();
                if tick.is_multiple_of(PING_EVERY) {
                    push_frame(&mut out, FrameKind::Ping, 0, 0, &[]);
                }
                for (request, chunks) in promised.lock().unwrap().iter() {
                    out.extend(encoded(&coming(*request, *chunks))?);
                }
                let chunk = again.lock().unwrap().clone();
                out.extend(&chunk);
                say.send(out).await?;
                // Chunks go as fast as the link takes them.
                if chunk.is_empty() {
                    tokio::time::sleep(AGAIN).await;
                }
            }
            Outcome::Ok(())
        };
        let read = async move {
            let mut visit = visit;
            let mut header = [0; HEADER];
            loop {
                reading.read_exact(&mut header).await?;
                let header = Header::decode(&header)?;
                let mut body = vec![0; header.len];
                reading.read_exact(&mut body).await?;
                match header.kind {
                    FrameKind::Proof => visit.proved(self, header.a, &body, binding).await?,
                    FrameKind::Message => visit.heard(self, frame::decode_message(&body)?).await?,
                    FrameKind::Bye => return Outcome::Ok(()),
                    _ => {}
                }
            }
        };
        tokio::select! {
            ended = read => ended,
            ended = write => ended,
            ended = keep_on => ended,
        }
    }
}

/// One connection.
struct Visit<'a> {
    say: mpsc::Sender<Vec<u8>>,
    /// The blobs by the numbers that the other end gave them.
    theirs: HashMap<u32, &'a Blob>,
    /// Requests that are promised.
    promised: Arc<Mutex<BTreeMap<RequestId, Chunks>>>,
    /// The frame that is sent for ever.
    again: Arc<Mutex<Vec<u8>>>,
}

impl<'a> Visit<'a> {
    /// Handles a proof: both share a blob, and this host announces all of it.
    async fn proved(
        &mut self,
        rogue: &'a Rogue,
        number: u32,
        proof: &[u8],
        binding: &[u8; 32],
    ) -> Outcome<()> {
        for (ours, blob) in (0..).zip(&rogue.blobs) {
            if blob.proof(binding, false)[..] == *proof {
                self.theirs.insert(number, blob);
                let have = Message::Have { blob: BlobId(ours), runs: vec![blob.whole()] };
                self.say.send(encoded(&have)?).await?;
            }
        }
        Ok(())
    }

    async fn heard(&self, rogue: &Rogue, message: Message) -> Outcome<()> {
        match (message, rogue.how) {
            (Message::Cancel { request }, _) => {
                self.promised.lock().unwrap().remove(&request);
            }
            (Message::Ask { request, chunks, .. }, How::Promising) => {
                self.promised.lock().unwrap().insert(request, chunks);
                self.say.send(encoded(&coming(request, chunks))?).await?;
            }
            (Message::Ask { request, blob, chunks, .. }, How::Corrupt | How::Endless) => {
                let Some(blob) = self.theirs.get(&blob.0) else { return Ok(()) };
                for chunk in chunks.numbers() {
                    let mut bytes = blob.chunk(chunk);
                    if rogue.how == How::Corrupt {
                        bytes.fill(0x55);
                    }
                    let mut frame = Vec::new();
                    push_frame(&mut frame, FrameKind::Chunk, request.0, chunk, &bytes);
                    if rogue.how == How::Endless {
                        self.again.lock().unwrap().clone_from(&frame);
                    }
                    self.say.send(frame).await?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn coming(request: RequestId, chunks: Chunks) -> Message {
    Message::Pending { request, chunks }
}

fn encoded(message: &Message) -> Outcome<Vec<u8>> {
    let mut out = Vec::new();
    push_encoded(&mut out, FrameKind::Message, message)?;
    Ok(out)
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().unwrap();
    let (credentials, name, manifest) = (PathBuf::from(next()), next(), PathBuf::from(next()));
    let how = match next().as_str() {
        "silent" => How::Silent,
        "promising" => How::Promising,
        "corrupt" => How::Corrupt,
        "endless" => How::Endless,
        other => unreachable!("`{other}` is neither silent, promising, corrupt nor endless"),
    };
    let (connector, blobs) = (connector(&credentials), blobs(&manifest));
    let rogue = Arc::new(Rogue { name, how, connector, blobs, connected: AtomicUsize::new(0) });
    let visits = arguments.map(|host| {
        let rogue = Arc::clone(&rogue);
        async move {
            let (name, address) = host.split_once('@').unwrap();
            loop {
                if let Err(error) = rogue.visit(name, address).await {
                    println!("{name}: {error}");
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    });
    futures::future::join_all(visits).await;
}
