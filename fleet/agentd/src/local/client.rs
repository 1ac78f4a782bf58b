//! The disk's end.

use super::wire::{BlobWords, DirectoryId, FromAgent, FromDisk, Part, VERSION, receive, send, send_all};
use futures::FutureExt;
use futures::future::BoxFuture;
use headstart_block::{ByteRange, Digest, Error, ErrorKind, PlanItem, Result};
use headstart_cache::{Cache, CachedBlob};
use headstart_disk::SwarmClient;
use headstart_disk::swarm::{AgentConnection, BootTracker, Hinted};
use headstart_store::Urgency;
use headstart_swarm::tracker::{ImageKey, SliceAccess};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};

/// Messages that wait to be sent. An agent that does not take them is treated as away.
const OUTGOING_MAX: usize = 4096;

/// Messages that are sent at once.
const WORDS_AT_ONCE: usize = 64;

/// Parts of blobs that no other host has and that were not reported to the agent yet.
const UNREPORTED_MAX: usize = 256;

/// First reads in one message.
const ACCESSES_AT_ONCE: usize = 1024;

/// First reads of a disk that are kept for an agent that is away; more are dropped.
const UNSAID_MAX: usize = 4096;

/// The longest time for connecting and the agent's welcome.
const WELCOME: Duration = Duration::from_secs(2);

/// The interval of pings to an agent, while it has open wants.
const PING_EVERY: Duration = Duration::from_millis(500);

/// The longest silence of a pinged agent.
const SILENCE: Duration = Duration::from_secs(3);

/// The time for which a want is waited for longer than its agent may take for it.
const SLACK: Duration = Duration::from_secs(5);

/// The pauses between attempts to reach it: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The longest wait of a disk that attaches for its agent, if that does not answer at once.
const FIRST: Duration = Duration::from_millis(500);

/// The connection of a disk's process to the swarm, by way of the agent on its host. It reconnects by itself
/// until it is dropped.
pub struct AgentSwarm {
    shared: Arc<Shared>,
}

struct Shared {
    socket: PathBuf,
    cache: DirectoryId,
    state: Mutex<State>,
    connected: watch::Sender<bool>,
    lost: AtomicU64,
    wants: AtomicU64,
    unanswered: AtomicU64,
}

#[derive(Default)]
struct State {
    /// The joined blobs, by the digests of blobs, and of their trees' outboards.
    joined: HashMap<Digest, Joined>,
    next_blob: u32,
    next_want: u64,
    /// The queue of messages; `None` while the agent is away.
    outgoing: Option<mpsc::Sender<FromDisk>>,
    waiting: HashMap<u64, oneshot::Sender<()>>,
    /// The reports of blobs that no other host has, which are not urgent.
    unreported: Unreported,
    /// The disks that boot, by their numbers.
    booting: HashMap<u32, Booting>,
    next_disk: u32,
}

/// A disk that boots.
struct Booting {
    image: ImageKey,
    /// `true` if no agent was notified of it so far.
    is_new: bool,
    /// The hints that came for it and were not taken yet.
    hinted: Option<Hinted>,
}

#[derive(Clone)]
struct Joined {
    number: u32,
    of_tree: bool,
    words: BlobWords,
    origin: String,
    /// The digest of the tree's outboard.
    tree: Digest,
    disks: usize,
    /// The number of them that follow a plan.
    planned: usize,
    /// `false` if no other host has it, according to the agent.
    has_peers: bool,
}

/// The parts that disks fetched and read.
#[derive(Default)]
struct Unreported {
    local: Vec<Part>,
    read: Vec<Part>,
}

/// Adds a part to those that are reported later, if possible joined with the last.
fn note(parts: &mut Vec<Part>, part: Part) {
    match parts.last_mut().and_then(|last| Some((last.joined(part)?, last))) {
        Some((both, last)) => *last = both,
        None => parts.push(part),
    }
}

impl Joined {
    fn word(&self) -> FromDisk {
        FromDisk::Join { blob: self.number, words: self.words.clone(), origin: self.origin.clone() }
    }
}

impl State {
    /// Sends a message, if there is an agent; returns `true` if it was queued.
    fn say(&self, word: FromDisk) -> bool {
        self.outgoing.as_ref().is_some_and(|outgoing| outgoing.try_send(word).is_ok())
    }

    /// Reports a part of a blob: at once if other hosts have the blob.
    fn say_of(
        &mut self,
        blob: &Digest,
        range: ByteRange,
        what: fn(Part) -> FromDisk,
        later: fn(&mut Unreported) -> &mut Vec<Part>,
    ) {
        let Some(joined) = self.joined.get(blob) else { return };
        let part = Part::new(joined.number, joined.of_tree, range);
        if joined.has_peers {
            self.say(what(part));
        } else {
            let parts = later(&mut self.unreported);
            note(parts, part);
            if parts.len() > UNREPORTED_MAX {
                self.send_unreported();
            }
        }
    }

    /// Sends the delayed reports, first those of local parts.
    fn send_unreported(&mut self) {
        let Unreported { local, read } = std::mem::take(&mut self.unreported);
        local.into_iter().for_each(|part| _ = self.say(FromDisk::BecameLocal { part }));
        read.into_iter().for_each(|part| _ = self.say(FromDisk::Read { part }));
    }

    /// Reports a disk that boots.
    fn say_boots(&mut self, disk: u32) {
        let Some(booting) = self.booting.get(&disk) else { return };
        let is_new = booting.is_new;
        let said = self.say(FromDisk::Boots { disk, image: booting.image.0, is_new });
        if let Some(booting) = self.booting.get_mut(&disk) {
            booting.is_new = is_new && !said;
        }
    }

    fn part(&self, blob: &Digest, range: ByteRange) -> Option<Part> {
        let joined = self.joined.get(blob)?;
        Some(Part::new(joined.number, joined.of_tree, range))
    }
}

impl AgentSwarm {
    /// Connects to the agent at `socket`, and again whenever the connection breaks. Returns once the connection is
    /// made, or after half a second without one, which is no error: connecting goes on in the background. The agent
    /// must use the same cache directory as `cache`. The task that keeps the connection runs on `runtime`.
    ///
    /// # Errors
    /// An error if the cache's directory cannot be read.
    pub async fn start(socket: &Path, cache: &Cache, runtime: &Handle) -> Result<Arc<Self>> {
        let (connected, mut seen) = watch::channel(false);
        let shared = Arc::new(Shared {
            socket: socket.to_owned(),
            cache: DirectoryId::of(cache.dir())?,
            state: Mutex::default(),
            connected,
            lost: AtomicU64::new(0),
            wants: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
        });
        runtime.spawn(keep_connected(Arc::downgrade(&shared)));
        if timeout(FIRST, seen.wait_for(|connected| *connected)).await.is_err() {
            let socket = socket.display();
            tracing::warn!("no agent answers at {socket}: everything comes from the store until one does");
        }
        Ok(Arc::new(Self { shared }))
    }

    /// The state of the connection to the agent, with counters since this value was made.
    #[must_use]
    pub fn connection(&self) -> AgentConnection {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        AgentConnection {
            connected: *self.shared.connected.borrow(),
            lost: load(&self.shared.lost),
            wants: load(&self.shared.wants),
            unanswered: load(&self.shared.unanswered),
        }
    }

    async fn ask(&self, blob: &Digest, range: ByteRange, urgency: Urgency) {
        self.shared.wants.fetch_add(1, Ordering::Relaxed);
        let asked = {
            let mut state = self.shared.state();
            let want = state.next_want;
            state.next_want += 1;
            let urgent = urgency == Urgency::Demand;
            let word = state.part(blob, range).map(|part| FromDisk::Want { want, part, urgent });
            let (tell, told) = oneshot::channel();
            // This comes before the request, because the answer may come at once.
            state.waiting.insert(want, tell);
            if word.is_some_and(|word| state.say(word)) {
                Some((Waiting { shared: &self.shared, want }, told))
            } else {
                state.waiting.remove(&want);
                None
            }
        };
        let answered = match asked {
            Some((_waiting, told)) => told.await.is_ok(),
            None => false,
        };
        if !answered {
            self.shared.unanswered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A caller waits for the end of a want.
struct Waiting<'a> {
    shared: &'a Shared,
    want: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        if state.waiting.remove(&self.want).is_some() {
            state.say(FromDisk::Forget { want: self.want });
        }
    }
}

/// A disk that boots, until it is dropped.
struct AgentBoot {
    shared: Arc<Shared>,
    disk: u32,
    /// The reads that were not sent yet.
    unsaid: Vec<SliceAccess>,
}

impl AgentBoot {
    fn say(&mut self) {
        let state = self.shared.state();
        while !self.unsaid.is_empty() {
            let rest = self.unsaid.split_off(self.unsaid.len().min(ACCESSES_AT_ONCE));
            let accesses = std::mem::replace(&mut self.unsaid, rest);
            let said = state.say(FromDisk::First { disk: self.disk, accesses: accesses.clone() });
            if !said {
                self.unsaid.splice(..0, accesses);
                return;
            }
        }
    }
}

impl BootTracker for AgentBoot {
    fn read(&mut self, accesses: &[SliceAccess]) {
        let room = UNSAID_MAX.saturating_sub(self.unsaid.len());
        self.unsaid.extend(accesses.iter().take(room));
        self.say();
    }

    fn hinted(&mut self) -> Option<Hinted> {
        self.say();
        self.shared.state().booting.get_mut(&self.disk)?.hinted.take()
    }
}

impl Drop for AgentBoot {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.booting.remove(&self.disk);
        state.say(FromDisk::Booted { disk: self.disk });
    }
}

impl SwarmClient for AgentSwarm {
    fn agent(&self) -> Option<AgentConnection> {
        Some(self.connection())
    }

    fn join(&self, blob: &Arc<CachedBlob>, origin: &str) {
        let (Some(words), Some(tree)) = (BlobWords::of(blob.spec()), blob.spec().tree) else { return };
        let mut state = self.shared.state();
        if let Some(joined) = state.joined.get_mut(&blob.spec().digest) {
            joined.disks += 1;
            return;
        }
        let number = state.next_blob;
        state.next_blob += 1;
        let joined = Joined {
            number,
            of_tree: false,
            words,
            origin: origin.to_owned(),
            tree: tree.digest,
            disks: 1,
            planned: 0,
            has_peers: true,
        };
        state.say(joined.word());
        state.joined.insert(tree.digest, Joined { of_tree: true, ..joined.clone() });
        state.joined.insert(blob.spec().digest, joined);
    }

    fn leave(&self, blob: &Digest) {
        let mut state = self.shared.state();
        let Some(joined) = state.joined.get_mut(blob) else { return };
        joined.disks -= 1;
        if joined.disks > 0 {
            return;
        }
        let (number, tree) = (joined.number, joined.tree);
        state.send_unreported();
        state.joined.remove(blob);
        state.joined.remove(&tree);
        state.say(FromDisk::Leave { blob: number });
    }

    fn bring<'a>(&'a self, blob: &'a Digest, range: ByteRange, urgency: Urgency) -> BoxFuture<'a, ()> {
        if self.shared.state().joined.get(blob).is_some_and(|joined| !joined.has_peers) {
            return std::future::ready(()).boxed();
        }
        self.ask(blob, range, urgency).boxed()
    }

    fn longest(&self) -> Duration {
        headstart_swarm::NodeSettings::default().longest() + SLACK
    }

    fn became_local(&self, blob: &Digest, range: ByteRange) {
        let word = |part| FromDisk::BecameLocal { part };
        self.shared.state().say_of(blob, range, word, |unreported| &mut unreported.local);
    }

    fn read(&self, blob: &Digest, range: ByteRange) {
        let word = |part| FromDisk::Read { part };
        self.shared.state().say_of(blob, range, word, |unreported| &mut unreported.read);
    }

    fn planned(&self, blob: &Digest, running: bool) {
        let mut state = self.shared.state();
        let Some(joined) = state.joined.get_mut(blob) else { return };
        let before = joined.planned > 0;
        joined.planned = if running { joined.planned + 1 } else { joined.planned.saturating_sub(1) };
        let (blob, now) = (joined.number, joined.planned > 0);
        if now != before {
            state.say(FromDisk::Planned { blob, running: now });
        }
    }

    fn boot(&self, image: ImageKey) -> Option<Box<dyn BootTracker>> {
        Some(Box::new(self.shared.boot(image)))
    }
}

impl Shared {
    fn boot(self: &Arc<Self>, image: ImageKey) -> AgentBoot {
        let mut state = self.state();
        let disk = state.next_disk;
        state.next_disk += 1;
        state.booting.insert(disk, Booting { image, is_new: true, hinted: None });
        state.say_boots(disk);
        AgentBoot { shared: Arc::clone(self), disk, unsaid: Vec::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Connects, introduces the disk and sends its state.
    async fn connect(&self) -> Result<(UnixStream, mpsc::Receiver<FromDisk>)> {
        let stream = UnixStream::connect(&self.socket).await;
        let mut stream = stream.map_err(|e| Error::io("cannot connect", e))?;
        send(&mut stream, &FromDisk::Hello { version: VERSION, cache: self.cache }).await?;
        match receive(&mut stream).await? {
            Some(FromAgent::Welcome) => {}
            Some(FromAgent::Refused { why }) => return Err(Error::new(ErrorKind::Denied, why)),
            _ => return Err(Error::corrupt("it does not say whether one is welcome")),
        }
        let (outgoing, words) = mpsc::channel(OUTGOING_MAX);
        let mut state = self.state();
        state.outgoing = Some(outgoing);
        // The agent sees in the cache which parts are here.
        state.unreported = Unreported::default();
        state.joined.values_mut().for_each(|joined| joined.has_peers = true);
        for joined in state.joined.values().filter(|joined| !joined.of_tree) {
            state.say(joined.word());
            if joined.planned > 0 {
                state.say(FromDisk::Planned { blob: joined.number, running: true });
            }
        }
        let booting: Vec<_> = state.booting.keys().copied().collect();
        booting.into_iter().for_each(|disk| state.say_boots(disk));
        drop(state);
        self.connected.send_replace(true);
        Ok((stream, words))
    }

    fn disconnected(&self) {
        let waiting = {
            let mut state = self.state();
            state.outgoing = None;
            state.joined.values_mut().for_each(|joined| joined.has_peers = true);
            std::mem::take(&mut state.waiting)
        };
        self.lost.fetch_add(1, Ordering::Relaxed);
        self.connected.send_replace(false);
        // Each waiting caller sees that no bytes come, and by then that the agent is away.
        drop(waiting);
    }

    fn take(&self, word: FromAgent) {
        match word {
            FromAgent::Answer { want } => {
                if let Some(waiting) = self.state().waiting.remove(&want) {
                    // The caller may have gone this very moment.
                    let _ = waiting.send(());
                }
            }
            FromAgent::Hinted { disk, items, disks } => {
                if let Some(booting) = self.state().booting.get_mut(&disk) {
                    let items = items.into_iter().map(|(block, mask)| PlanItem { block, mask }).collect();
                    booting.hinted = Some(Hinted { items, disks });
                }
            }
            FromAgent::Peers { blob, any } => {
                let mut state = self.state();
                if any {
                    state.send_unreported();
                }
                let of_it = state.joined.values_mut().filter(|joined| joined.number == blob);
                of_it.for_each(|joined| joined.has_peers = any);
            }
            FromAgent::Welcome | FromAgent::Refused { .. } | FromAgent::Pong => {}
        }
    }
}

/// Connects again and again, as long as the swarm has an owner.
async fn keep_connected(shared: Weak<Shared>) {
    let mut pause = RETRY.0;
    let mut said = false;
    loop {
        let Some(alive) = shared.upgrade() else { return };
        let connected = timeout(WELCOME, alive.connect()).await;
        drop(alive);
        match connected {
            Ok(Ok((stream, words))) => {
                pause = RETRY.0;
                said = false;
                let ended = converse(&shared, stream, words).await;
                let Some(alive) = shared.upgrade() else { return };
                alive.disconnected();
                tracing::debug!(?ended, "the agent is away");
            }
            // This state does not mend by itself, so the log should have the cause.
            Ok(Err(error)) if error.kind() == ErrorKind::Denied && !said => {
                said = true;
                tracing::warn!(%error, "the agent refuses this disk: everything comes from the store");
            }
            _ => {}
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY.1);
    }
}

/// Sends and receives messages until one of the two ends.
async fn converse(
    shared: &Weak<Shared>,
    stream: UnixStream,
    mut words: mpsc::Receiver<FromDisk>,
) -> Result<()> {
    let (reading, mut writing) = stream.into_split();
    let mut reading = tokio::io::BufReader::new(reading);
    let (heard, mut last) = watch::channel(Instant::now());
    let hearing = async {
        while let Some(word) = receive::<FromAgent>(&mut reading).await? {
            heard.send_replace(Instant::now());
            let Some(shared) = shared.upgrade() else { return Ok(()) };
            shared.take(word);
        }
        Ok(())
    };
    let saying = async {
        let mut ticks = tokio::time::interval(PING_EVERY);
        let mut asked: Option<Instant> = None;
        let mut said = Vec::new();
        loop {
            said.clear();
            tokio::select! {
                count = words.recv_many(&mut said, WORDS_AT_ONCE) => if count == 0 {
                    return Ok(());
                },
                _ = ticks.tick() => {
                    let Some(shared) = shared.upgrade() else { return Ok(()) };
                    shared.state().send_unreported();
                    let heard = *last.borrow_and_update();
                    asked = asked.filter(|asked| *asked > heard);
                    if shared.state().waiting.is_empty() {
                        asked = None;
                        continue;
                    }
                    if asked.is_some_and(|asked| asked.elapsed() > SILENCE) {
                        return Err(Error::new(ErrorKind::Unavailable, "the agent does not answer"));
                    }
                    asked.get_or_insert_with(Instant::now);
                    said.push(FromDisk::Ping);
                }
            }
            // An agent that takes no messages is away, too.
            let sent = timeout(SILENCE, send_all(&mut writing, &said)).await;
            sent.map_err(|_| Error::new(ErrorKind::Unavailable, "the agent takes nothing"))??;
        }
    };
    tokio::select! {
        ended = hearing => ended,
        ended = saying => ended,
    }
}
