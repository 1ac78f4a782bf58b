//! Hosts of the cluster, with certificate and proof, that do harm: they are dropped or avoided, the bytes that they
//! send are bounded, and wanted bytes come from other hosts.

use super::*;
use headstart_swarm::RejectReason;
use std::sync::atomic::AtomicU64;
use tokio::io::{ReadHalf, WriteHalf};

/// The number that a rogue gives to the blob.
const NUMBER: u32 = 1;

/// The way in which a rogue answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The rogue sends the requested chunk, and then goes on sending it.
    Endlessly,
    /// The rogue promises, again and again.
    WithPromises,
    /// The rogue has not got the chunks that it advertises, and goes on advertising them.
    WithLies,
    /// The rogue sends other bytes.
    Corruptly,
    /// The rogue sends the head of a frame, and then a byte from time to time.
    InDrops,
    /// The rogue does not answer.
    Never,
}

/// A rogue at work.
struct AtWork {
    sample: SampleBlob,
    way: Way,
    sent: Arc<AtomicU64>,
}

impl AtWork {
    /// Answers in its way until the connection ends.
    async fn run(self, stream: channel::Stream) {
        let (mut from, mut to) = tokio::io::split(stream);
        while let Some((header, body)) = next(&mut from).await {
            let Some(Message::Ask { request, chunks, .. }) =
                (header.kind == FrameKind::Message).then(|| frame::decode_message(&body).unwrap())
            else {
                continue;
            };
            if self.answer(&mut to, request, chunks).await.is_none() {
                return;
            }
        }
    }

    async fn answer(&self, to: &mut To, request: RequestId, chunks: Chunks) -> Option<()> {
        let coming = Message::Pending { request, chunks };
        match self.way {
            Way::Never => {}
            Way::WithPromises => {
                for _ in 0..3 {
                    self.say(to, &coming).await?;
                }
            }
            Way::WithLies => {
                self.say(
                    to,
                    &Message::Reject { request, chunks, why: RejectReason::Missing, others: Vec::new() },
                )
                .await?;
                self.say(to, &self.advert()).await?;
            }
            Way::Corruptly => self.send_chunk(to, request, chunks.first, false).await?,
            Way::Endlessly => {
                for chunk in chunks.numbers() {
                    self.send_chunk(to, request, chunk, true).await?;
                }
                loop {
                    self.send_chunk(to, request, chunks.first, true).await?;
                }
            }
            Way::InDrops => {
                let header = Header { kind: FrameKind::Chunk, len: 65536, a: request.0, b: chunks.first };
                self.send(to, &header.encode()).await?;
                loop {
                    self.send(to, &[0x55]).await?;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        Some(())
    }

    fn advert(&self) -> Message {
        let runs = vec![Chunks::touched(ByteRange::between(0, self.sample.spec.len))];
        Message::Have { blob: headstart_swarm::BlobId(NUMBER), runs }
    }

    async fn say(&self, to: &mut To, message: &Message) -> Option<()> {
        let mut frame = Vec::new();
        push_encoded(&mut frame, FrameKind::Message, message).unwrap();
        self.send(to, &frame).await
    }

    async fn send_chunk(&self, to: &mut To, request: RequestId, chunk: u32, good: bool) -> Option<()> {
        let range = Chunks::one(chunk).bytes(self.sample.spec.len);
        let (start, end) = (usize::try_from(range.offset()).unwrap(), usize::try_from(range.end()).unwrap());
        let mut bytes = self.sample.bytes[start..end].to_vec();
        if !good {
            bytes.fill(0x55);
        }
        let mut frame = Vec::new();
        push_frame(&mut frame, FrameKind::Chunk, request.0, chunk, &bytes);
        self.send(to, &frame).await
    }

    /// Sends bytes; `None` if the connection is closed.
    async fn send(&self, to: &mut To, bytes: &[u8]) -> Option<()> {
        to.write_all(bytes).await.ok()?;
        to.flush().await.ok()?;
        self.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Some(())
    }
}

type To = WriteHalf<channel::Stream>;

async fn next(stream: &mut ReadHalf<channel::Stream>) -> Option<(Header, Vec<u8>)> {
    let mut header = [0; HEADER];
    stream.read_exact(&mut header).await.ok()?;
    let header = Header::decode(&header).unwrap();
    let mut body = vec![0; header.len];
    stream.read_exact(&mut body).await.ok()?;
    Some((header, body))
}

/// A host that wants all of a blob, another that has it, and a rogue that claims to have it.
struct Scene {
    cluster: Cluster,
    reader: TestHost,
    wanted: SharedBlob,
    sample: SampleBlob,
    sent: Arc<AtomicU64>,
    _honest: (TestHost, SharedBlob),
}

impl Scene {
    fn new(len: usize, seed: u64, way: Way) -> Self {
        let cluster = Cluster::new(&["a", "b", "c"]);
        let (sample, same) = (sample(len, seed), sample(len, seed));
        let reader = cluster.host("a", Role::Agent, &[]);
        let honest = cluster.host("c", Role::Agent, &[reader.swarm.address()]);
        honest.fill(&sample);
        let at_honest = honest.attach(&sample);
        let wanted = reader.attach(&sample);
        // The outboard is here: only the chunks that the rogue spoils are requested from it.
        wanted.tree().unwrap().blob().insert(0, &sample.outboard).unwrap();
        // Nothing is prefetched before it is wanted.
        wanted.planned(true);
        cluster.wait_until("they share the blob", || reader.shares_with(1));
        let mut rogue =
            Rogue::connect(&cluster, &cluster.credentials("b"), ("a", reader.swarm.address())).unwrap();
        let root = *sample.spec.tree.unwrap().root.as_bytes();
        rogue.prove(&cluster, NUMBER, &sample.spec, &root);
        let sent = Arc::new(AtomicU64::new(0));
        let at_work = AtWork { sample: same, way, sent: Arc::clone(&sent) };
        rogue.say(&cluster, &at_work.advert());
        cluster.wait_until("both have advertised", || {
            reader.swarm.node_counters().withheld >= 2 * len.div_ceil(65536) as u64
        });
        cluster.runtime.spawn(at_work.run(rogue.stream));
        Self { cluster, reader, wanted, sample, sent, _honest: (honest, at_honest) }
    }

    /// All of the blob comes, in the end from the other host, and is right.
    #[track_caller]
    fn all_is_brought(&self) {
        let all = ByteRange::between(0, self.sample.spec.len);
        for part in all.parts(1 << 20) {
            bring(&self.cluster, &self.wanted, part);
        }
        assert_same(self.wanted.blob(), &self.sample, all);
    }

    #[track_caller]
    fn is_dropped(&self) {
        self.cluster.wait_until("it is dropped", || self.reader.is_connected_to(1));
    }
}

#[test]
fn a_peer_that_sends_without_end_is_dropped() {
    let scene = Scene::new(4 << 20, 11, Way::Endlessly);
    scene.all_is_brought();
    scene.is_dropped();
    let counters = scene.reader.swarm.counters();
    assert_eq!((counters.dropped_corrupt, counters.dropped_other), (0, 1), "{counters:?}");
    // The bytes that were received in vain, and those that were sent, including sockets' buffers.
    assert!(counters.stray_bytes < 12 << 20, "{counters:?}");
    assert!(scene.sent.load(Ordering::Relaxed) < 64 << 20);
}

#[test]
fn a_peer_that_sends_wrong_bytes_is_replaced_by_others() {
    let scene = Scene::new(4 << 20, 12, Way::Corruptly);
    scene.all_is_brought();
    scene.is_dropped();
    let counters = scene.reader.swarm.counters();
    assert_eq!((counters.dropped_corrupt, counters.dropped_other), (1, 0), "{counters:?}");
}

#[test]
fn a_peer_that_lies_about_its_chunks_is_replaced_by_others() {
    let scene = Scene::new(4 << 20, 13, Way::WithLies);
    scene.all_is_brought();
    let counters = scene.reader.swarm.node_counters();
    assert!(counters.not_from_peers == 0 && counters.corrupt == 0, "{counters:?}");
}

#[test]
fn a_peer_that_breaks_its_promises_times_out() {
    for (seed, way) in [(14, Way::WithPromises), (15, Way::Never), (16, Way::InDrops)] {
        let scene = Scene::new(2 << 20, seed, way);
        scene.all_is_brought();
        assert!(scene.reader.swarm.node_counters().timeouts > 0, "{way:?}");
    }
}

/// Only roots may send unrequested chunks, and not without end.
#[test]
fn a_peer_that_pushes_without_end_is_dropped() {
    for is_root in [false, true] {
        let cluster = Cluster::new(&["a", "b"]);
        let sample = sample(1 << 20, 17);
        let a = cluster.host("a", Role::Agent, &[]);
        let at_a = a.attach(&sample);
        at_a.tree().unwrap().blob().insert(0, &sample.outboard).unwrap();
        let root = *sample.spec.tree.unwrap().root.as_bytes();
        let credentials = cluster.credentials("b");
        let mut rogue = Rogue::connect_as(&cluster, &credentials, ("a", a.swarm.address()), is_root).unwrap();
        rogue.prove(&cluster, NUMBER, &sample.spec, &root);
        cluster.wait_until("they share the blob", || a.shares_with(1));
        let mut frame = Vec::new();
        push_frame(&mut frame, FrameKind::Push, NUMBER, 0, &sample.bytes[..65536]);
        for _ in 0..1000 {
            rogue.send(&cluster, &frame);
            if a.is_connected_to(0) {
                break;
            }
        }
        cluster.wait_until("it is dropped", || a.is_connected_to(0));
        let counters = a.swarm.counters();
        assert!(counters.stray_bytes < 20 << 20 && counters.dropped_other == 1, "{counters:?}");
        // A root may send it once.
        assert_eq!(at_a.blob().local_bytes(), if is_root { 65536 } else { 0 });
    }
}

/// Chunks that cannot be checked yet wait in bounded memory.
#[test]
fn unchecked_chunks_take_bounded_memory() {
    let cluster = Cluster::new(&["a", "b"]);
    let sample = sample(40 << 20, 18);
    let a = cluster.host("a", Role::Agent, &[]);
    let at_a = a.attach(&sample);
    let root = *sample.spec.tree.unwrap().root.as_bytes();
    let credentials = cluster.credentials("b");
    let mut rogue = Rogue::connect_as(&cluster, &credentials, ("a", a.swarm.address()), true).unwrap();
    rogue.prove(&cluster, NUMBER, &sample.spec, &root);
    cluster.wait_until("they share the blob", || a.shares_with(1));
    for chunk in 0..600 {
        let start = chunk << 16;
        let mut frame = Vec::new();
        let number = u32::try_from(chunk).unwrap();
        push_frame(&mut frame, FrameKind::Push, NUMBER, number, &sample.bytes[start..start + 65536]);
        rogue.send(&cluster, &frame);
    }
    cluster.wait_until("all have come", || a.swarm.counters().received_bytes >= 600 << 16);
    assert!(a.swarm.host.verification_queue.bytes() <= 16 << 20);
    assert_eq!(at_a.blob().local_bytes(), 0);
}

/// A host that no longer shares a blob is not asked for it, and not taken for a liar.
#[test]
fn a_peer_that_leaves_a_blob_is_not_blamed() {
    let cluster = Cluster::new(&["a", "b"]);
    let sample = sample(8 << 20, 19);
    let a = cluster.host("a", Role::Agent, &[]);
    let at_a = a.attach(&sample);
    at_a.planned(true);
    let root = *sample.spec.tree.unwrap().root.as_bytes();
    let mut rogue = Rogue::connect(&cluster, &cluster.credentials("b"), ("a", a.swarm.address())).unwrap();
    rogue.prove(&cluster, NUMBER, &sample.spec, &root);
    let runs = vec![Chunks { first: 0, count: 128 }];
    rogue.say(&cluster, &Message::Have { blob: headstart_swarm::BlobId(NUMBER), runs });
    cluster.wait_until("it has advertised", || a.swarm.node_counters().withheld == 128);
    let mut frame = Vec::new();
    push_frame(&mut frame, FrameKind::Withdrawn, NUMBER, 0, &[]);
    rogue.send(&cluster, &frame);
    cluster.wait_until("it has left", || a.shares_with(0));
    for chunk in 0..128_u64 {
        let range = ByteRange::between(chunk << 16, (chunk + 1) << 16);
        let want = async { tokio::time::timeout(LONG, at_a.want(range, Urgency::Demand)).await };
        assert_eq!(cluster.runtime.block_on(want).unwrap(), [range]);
    }
    assert!(a.is_connected_to(1) && a.swarm.node_counters().dropped == 0);
}
