//! The disk's end.

use super::wire::{BlobWords, DirectoryId, FromAgent, FromDisk, Part, VERSION, receive, send, send_all};
use futures::FutureExt;
use futures::future::BoxFuture;
use headstart_block::{ByteRange, Digest, Error, ErrorKind, PlanItem, Result};
use headstart_cache::{Cache, CachedBlob};
use headstart_disk::Swarm;
use headstart_disk::swarm::{Boot, Hinted};
use headstart_store::Urgency;
use headstart_swarm::tracker::{Access, ImageKey};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};

/// Words that wait to be sent. An agent that does not take them is as good as away.
const OUTGOING_MAX: usize = 4096;

/// Words that are sent at once.
const WORDS_AT_ONCE: usize = 64;

/// Parts of blobs that no other host has and that the agent is not told of yet.
const UNTOLD_MAX: usize = 256;

/// First reads that go in one word.
const ACCESSES_AT_ONCE: usize = 1024;

/// First reads of a disk that are kept for an agent that is away; more are forgotten.
const UNSAID_MAX: usize = 4096;

/// How long connecting and being welcomed may take.
const WELCOME: Duration = Duration::from_secs(2);

/// How often an agent is asked whether it is there, while something is wanted of it.
const PING_EVERY: Duration = Duration::from_millis(500);

/// How long it may say nothing then.
const SILENCE: Duration = Duration::from_secs(3);

/// By so much longer than its agent may take for a want is it waited for.
const SLACK: Duration = Duration::from_secs(5);

/// The pauses between tries to reach it: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How long a disk that attaches waits for its agent, where that does not answer at once.
const FIRST: Duration = Duration::from_millis(500);

/// The swarm as a disk's process sees it: through the agent of its host. It lives as long as somebody has it.
pub struct AgentSwarm {
    shared: Arc<Shared>,
}

/// How it stands with the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    /// Whether the agent is there now.
    pub connected: bool,
    /// How often it was lost.
    pub lost: u64,
    /// What it was asked for.
    pub wants: u64,
    /// What it was asked for and did not answer, for it was not there or went away.
    pub unanswered: u64,
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
    /// By the digests of blobs, and of their trees' outboards.
    joined: HashMap<Digest, Joined>,
    next_blob: u32,
    next_want: u64,
    /// Where words go; none while the agent is away.
    outgoing: Option<mpsc::Sender<FromDisk>>,
    waiting: HashMap<u64, oneshot::Sender<()>>,
    /// What of blobs that no other host has is to be told: soon is soon enough.
    untold: Untold,
    /// Disks that boot, by their numbers.
    booting: HashMap<u32, Booting>,
    next_disk: u32,
}

/// A disk that boots.
struct Booting {
    image: ImageKey,
    /// Whether no agent was told of it so far.
    is_new: bool,
    /// What came for it and was not taken yet.
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
    /// How many of them follow a plan.
    planned: usize,
    /// Whether no other host has it, as far as the agent has said.
    alone: bool,
}

/// What disks brought and read.
#[derive(Default)]
struct Untold {
    local: Vec<Part>,
    read: Vec<Part>,
}

/// Adds a part to those that are told later, often to the last.
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
    /// Says something, where somebody listens; whether so.
    fn say(&self, word: FromDisk) -> bool {
        self.outgoing.as_ref().is_some_and(|outgoing| outgoing.try_send(word).is_ok())
    }

    /// Tells of a part of a blob: at once where others have it.
    fn say_of(
        &mut self,
        blob: &Digest,
        range: ByteRange,
        what: fn(Part) -> FromDisk,
        later: fn(&mut Untold) -> &mut Vec<Part>,
    ) {
        let Some(joined) = self.joined.get(blob) else { return };
        let part = Part::new(joined.number, joined.of_tree, range);
        if !joined.alone {
            self.say(what(part));
        } else {
            let parts = later(&mut self.untold);
            note(parts, part);
            if parts.len() > UNTOLD_MAX {
                self.tell();
            }
        }
    }

    /// Tells what was not told yet, first what is here.
    fn tell(&mut self) {
        let Untold { local, read } = std::mem::take(&mut self.untold);
        local.into_iter().for_each(|part| _ = self.say(FromDisk::BecameLocal { part }));
        read.into_iter().for_each(|part| _ = self.say(FromDisk::Read { part }));
    }

    /// Tells of a disk that boots.
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
    /// Reaches the agent at `socket`, now and whenever it is there; returns when it was reached, or soon. What the
    /// agent brings has to end up in `cache`.
    ///
    /// # Errors
    /// Where the cache's directory cannot be looked at. An agent that is not there is no error.
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

    /// How it stands.
    #[must_use]
    pub fn connection(&self) -> Connection {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Connection {
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
            // Told before it is asked for: the answer may come at once.
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

/// Somebody waits for the end of a want.
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
    /// What was read and not said yet.
    unsaid: Vec<Access>,
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

impl Boot for AgentBoot {
    fn read(&mut self, accesses: &[Access]) {
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

impl Swarm for AgentSwarm {
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
            alone: false,
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
        state.tell();
        state.joined.remove(blob);
        state.joined.remove(&tree);
        state.say(FromDisk::Leave { blob: number });
    }

    fn bring<'a>(&'a self, blob: &'a Digest, range: ByteRange, urgency: Urgency) -> BoxFuture<'a, ()> {
        if self.shared.state().joined.get(blob).is_some_and(|joined| joined.alone) {
            return std::future::ready(()).boxed();
        }
        self.ask(blob, range, urgency).boxed()
    }

    fn longest(&self) -> Duration {
        headstart_swarm::Settings::default().longest() + SLACK
    }

    fn became_local(&self, blob: &Digest, range: ByteRange) {
        let word = |part| FromDisk::BecameLocal { part };
        self.shared.state().say_of(blob, range, word, |untold| &mut untold.local);
    }

    fn read(&self, blob: &Digest, range: ByteRange) {
        let word = |part| FromDisk::Read { part };
        self.shared.state().say_of(blob, range, word, |untold| &mut untold.read);
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

    fn boot(&self, image: ImageKey) -> Option<Box<dyn Boot>> {
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
        // Nothing in here panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Introduces itself and tells what it has.
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
        // It sees for itself what is here.
        state.untold = Untold::default();
        state.joined.values_mut().for_each(|joined| joined.alone = false);
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
            state.joined.values_mut().for_each(|joined| joined.alone = false);
            std::mem::take(&mut state.waiting)
        };
        self.lost.fetch_add(1, Ordering::Relaxed);
        self.connected.send_replace(false);
        // Whoever waits sees that nothing comes, and by then that the agent is away.
        drop(waiting);
    }

    fn take(&self, word: FromAgent) {
        match word {
            FromAgent::Answer { want } => {
                if let Some(waiting) = self.state().waiting.remove(&want) {
                    // It may have gone this very moment.
                    let _ = waiting.send(());
                }
            }
            FromAgent::Hinted { disk, items, disks } => {
                if let Some(booting) = self.state().booting.get_mut(&disk) {
                    let items = items.into_iter().map(|(block, mask)| PlanItem { block, mask }).collect();
                    booting.hinted = Some(Hinted { items, disks });
                }
            }
            FromAgent::Company { blob, any } => {
                let mut state = self.state();
                if any {
                    state.tell();
                }
                let of_it = state.joined.values_mut().filter(|joined| joined.number == blob);
                of_it.for_each(|joined| joined.alone = !any);
            }
            FromAgent::Welcome | FromAgent::Refused { .. } | FromAgent::Pong => {}
        }
    }
}

/// Connects again and again, as long as somebody has the swarm.
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
            // That does not mend by itself: whoever looks for the cause should find it.
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

/// Says and hears words until one of the two ends.
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
                    shared.state().tell();
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
            // An agent that takes nothing is away, too.
            let sent = timeout(SILENCE, send_all(&mut writing, &said)).await;
            sent.map_err(|_| Error::new(ErrorKind::Unavailable, "the agent takes nothing"))??;
        }
    };
    tokio::select! {
        ended = hearing => ended,
        ended = saying => ended,
    }
}
