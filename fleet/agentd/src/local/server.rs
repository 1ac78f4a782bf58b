//! The agent's end.

use super::wire::{
    DirectoryId, FromAgent, FromDisk, Part, REPORTS_PEERS, UNDERSTOOD, VERSION, receive, send, send_all,
};
use crate::stores::{Attached, Stores};
use headstart_block::{ByteRange, Error, Result};
use headstart_export::socket::{Leftover, SocketAccess, SocketFile};
use headstart_peer_net::{Boots, SharedBlob, Swarm};
use headstart_swarm::tracker::ImageKey;
use headstart_swarm::{ReaderId, Urgency};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

/// The longest time until a disk introduces itself.
const HELLO: Duration = Duration::from_secs(5);

/// The most wants of one disk at a time; more are over at once.
const WANTS_MAX: usize = 4096;

/// The most blobs of one process.
const BLOBS_MAX: usize = 4096;

/// The most disks of one process that boot.
const BOOTING_MAX: usize = 1024;

/// The most processes of disks.
const CONNECTIONS_MAX: usize = 16 << 10;

/// The most messages that are sent at once.
const WORDS_AT_ONCE: usize = 64;

/// The time without another host that has a blob after which its disks are notified.
const ABSENCE_MIN: Duration = Duration::from_secs(1);

/// The most answers that wait for their disk to take them.
const ANSWERS_MAX: usize = 1024;

/// The server of the socket at which disks' processes on this host reach the swarm. Dropping it ends the
/// server and removes the socket.
pub struct LocalServer {
    task: AbortHandle,
    _socket: SocketFile,
}

impl LocalServer {
    /// Starts to listen at `socket`; a socket that an earlier agent left is replaced. `dir` is the cache's
    /// directory. `stores` opens the stores from which the agent fetches the blobs of disks for other hosts.
    ///
    /// # Errors
    /// An error if the socket cannot be listened at, or if the cache's directory does not exist.
    pub fn start(socket: &Path, swarm: Arc<Swarm>, dir: &Path, stores: Arc<Stores>) -> Result<Self> {
        let cache = DirectoryId::of(dir)?;
        let (listener, file) = bind(socket, &SocketAccess::default())?;
        let host = Arc::new(HostSide { swarm, cache, stores });
        let task = tokio::spawn(accept(listener, host)).abort_handle();
        Ok(Self { task, _socket: file })
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Listens at `socket`, for the users that `access` names. A socket that is already there belongs to an agent that is
/// gone: the caller has the lock of its directory.
fn bind(socket: &Path, access: &SocketAccess) -> Result<(UnixListener, SocketFile)> {
    let (listener, file) = headstart_export::socket::listen(socket, access, Leftover::IsOurs)?;
    let about = |e| Error::io("cannot listen there", e).about(socket.display());
    listener.set_nonblocking(true).map_err(about)?;
    Ok((UnixListener::from_std(listener).map_err(about)?, file))
}

struct HostSide {
    swarm: Arc<Swarm>,
    cache: DirectoryId,
    stores: Arc<Stores>,
}

async fn accept(listener: UnixListener, host: Arc<HostSide>) {
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                while connections.try_join_next().is_some() {}
                if connections.len() < CONNECTIONS_MAX {
                    let host = Arc::clone(&host);
                    connections.spawn(async move {
                        if let Err(error) = serve(stream, &host).await {
                            tracing::debug!(%error, "a disk has hung up");
                        }
                    });
                }
            }
            Err(error) => {
                tracing::warn!(%error, "no disk can connect at present");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// The agent's state of a disk's process.
struct DiskSide {
    reader: ReaderId,
    gets_peer_reports: bool,
    blobs: HashMap<u32, Joined>,
    wants: HashMap<u64, AbortHandle>,
    tasks: JoinSet<u64>,
    booting: HashMap<u32, Booting>,
    answers: mpsc::Sender<FromAgent>,
}

async fn serve(mut stream: UnixStream, host: &HostSide) -> Result<()> {
    let hello = timeout(HELLO, receive(&mut stream)).await;
    let mut spoken = VERSION;
    let refusal = match hello.map_err(|e| Error::invalid("no word came").caused_by(e))?? {
        Some(FromDisk::Hello { version, .. }) if !(UNDERSTOOD..=VERSION).contains(&version) => {
            Some(format!("it speaks version {VERSION} and not {version}; use programs of one release"))
        }
        Some(FromDisk::Hello { cache, .. }) if cache != host.cache => {
            Some("it has another cache directory; give both the same --cache".to_owned())
        }
        Some(FromDisk::Hello { version, .. }) => {
            spoken = version;
            None
        }
        _ => Some("that is not a disk".to_owned()),
    };
    if let Some(why) = refusal {
        return send(&mut stream, &FromAgent::Refused { why }).await;
    }
    send(&mut stream, &FromAgent::Welcome).await?;
    let (reading, mut writing) = stream.into_split();
    let mut reading = tokio::io::BufReader::new(reading);
    let (answers, mut words) = mpsc::channel(ANSWERS_MAX);
    let saying = async {
        let mut said = Vec::new();
        while words.recv_many(&mut said, WORDS_AT_ONCE).await > 0 {
            send_all(&mut writing, &said).await?;
            said.clear();
        }
        Ok(())
    };
    let hearing = async {
        let mut disk = DiskSide {
            reader: host.swarm.new_reader(),
            gets_peer_reports: spoken >= REPORTS_PEERS,
            blobs: HashMap::new(),
            wants: HashMap::new(),
            tasks: JoinSet::new(),
            booting: HashMap::new(),
            answers,
        };
        while let Some(word) = receive(&mut reading).await? {
            disk.take(word, host).await?;
        }
        Ok(())
    };
    tokio::select! {
        ended = hearing => ended,
        ended = saying => ended,
    }
}

/// A blob of a disk's.
struct Joined {
    blob: Arc<SharedBlob>,
    /// The task that reports whether other hosts have it.
    peer_reports: Option<AbortHandle>,
    /// The attachment, because of which other hosts may name its store meanwhile.
    _attached: Attached,
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.peer_reports.take().inspect(AbortHandle::abort);
    }
}

impl Joined {
    fn new(
        number: u32,
        blob: SharedBlob,
        attached: Attached,
        tells: bool,
        answers: &mpsc::Sender<FromAgent>,
    ) -> Self {
        let blob = Arc::new(blob);
        let peer_reports = blob.peers_changed().filter(|_| tells).map(|changes| {
            tokio::spawn(report_peers(number, Arc::clone(&blob), changes, answers.clone())).abort_handle()
        });
        Self { blob, peer_reports, _attached: attached }
    }
}

/// Reports that no other host has a blob, so that its disk sends no wants and delays its reports; and reports at once
/// when another host has it.
async fn report_peers(
    number: u32,
    blob: Arc<SharedBlob>,
    mut changes: watch::Receiver<()>,
    answers: mpsc::Sender<FromAgent>,
) -> Option<()> {
    loop {
        until_peers(&blob, &mut changes, false).await?;
        // A short absence is not reported, for example when one host goes as another comes, or hosts begin together.
        if let Ok(there) = timeout(ABSENCE_MIN, until_peers(&blob, &mut changes, true)).await {
            there?;
            continue;
        }
        answers.send(FromAgent::Peers { blob: number, any: false }).await.ok()?;
        until_peers(&blob, &mut changes, true).await?;
        answers.send(FromAgent::Peers { blob: number, any: true }).await.ok()?;
    }
}

/// Returns when any other host has the blob (`any`), or none has; `None` if that will not be known any more.
async fn until_peers(blob: &SharedBlob, changes: &mut watch::Receiver<()>, any: bool) -> Option<()> {
    while {
        changes.borrow_and_update();
        blob.has_peers() != any
    } {
        changes.changed().await.ok()?;
    }
    Some(())
}

/// A disk that boots.
struct Booting {
    boots: Boots,
    /// The task that sends the hints.
    task: AbortHandle,
}

impl Drop for Booting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Booting {
    fn new(disk: u32, boots: Boots, answers: mpsc::Sender<FromAgent>) -> Self {
        let mut plan = boots.plan();
        let telling = async move {
            loop {
                let hinted = plan.borrow_and_update().clone();
                let items: Vec<_> = hinted.items.iter().map(|item| (item.block, item.mask)).collect();
                let word = FromAgent::Hinted { disk, items, disks: hinted.disks };
                if !hinted.items.is_empty() && answers.send(word).await.is_err() {
                    return;
                }
                if plan.changed().await.is_err() {
                    return;
                }
            }
        };
        Self { boots, task: tokio::spawn(telling).abort_handle() }
    }
}

impl DiskSide {
    async fn take(&mut self, word: FromDisk, host: &HostSide) -> Result<()> {
        match word {
            FromDisk::Hello { .. } => return Err(Error::corrupt("a second hello")),
            FromDisk::Join { blob, words, origin } => {
                if self.blobs.len() >= BLOBS_MAX {
                    return Err(Error::corrupt("it has too many blobs"));
                }
                let store = host.stores.get(&origin);
                // Opening reads the cache's directory.
                let open = || host.swarm.open_for(Some(self.reader), &words.spec(), store);
                let shared = tokio::task::block_in_place(open);
                match shared {
                    Ok(shared) => {
                        let attached = host.stores.attach(&origin);
                        let tells = self.gets_peer_reports;
                        let joined = Joined::new(blob, shared, attached, tells, &self.answers);
                        self.blobs.insert(blob, joined);
                    }
                    Err(error) => tracing::warn!(%error, "a blob does not go through the swarm"),
                }
            }
            FromDisk::Leave { blob } => _ = self.blobs.remove(&blob),
            FromDisk::Want { want, part, urgent } => self.want(want, part, urgent).await,
            FromDisk::Forget { want } => {
                if let Some(task) = self.wants.remove(&want) {
                    task.abort();
                }
            }
            FromDisk::BecameLocal { part } => self.with(part, SharedBlob::became_local),
            FromDisk::Read { part } => self.with(part, SharedBlob::read),
            FromDisk::Planned { blob, running } => {
                if let Some(joined) = self.blobs.get(&blob) {
                    joined.blob.planned(running);
                }
            }
            FromDisk::Boots { disk, image, is_new } => {
                let fits = self.booting.len() < BOOTING_MAX && !self.booting.contains_key(&disk);
                let boots = fits.then(|| host.swarm.boots(ImageKey(image), is_new)).flatten();
                if let Some(boots) = boots {
                    self.booting.insert(disk, Booting::new(disk, boots, self.answers.clone()));
                }
            }
            FromDisk::First { disk, accesses } => {
                if let Some(booting) = self.booting.get(&disk) {
                    booting.boots.read(&accesses);
                }
            }
            FromDisk::Booted { disk } => _ = self.booting.remove(&disk),
            FromDisk::Ping => self.say(FromAgent::Pong).await,
        }
        Ok(())
    }

    fn with(&self, part: Part, what: impl FnOnce(&SharedBlob, ByteRange)) {
        let Some((joined, range)) = self.blobs.get(&part.blob).zip(part.range()) else { return };
        if let Some(blob) = of(&joined.blob, part) {
            what(blob, range);
        }
    }

    async fn want(&mut self, want: u64, part: Part, urgent: bool) {
        while let Some(ended) = self.tasks.try_join_next() {
            if let Ok(want) = ended {
                self.wants.remove(&want);
            }
        }
        let wanted = self.blobs.get(&part.blob).zip(part.range());
        let Some((joined, range)) = wanted.filter(|_| self.wants.len() < WANTS_MAX) else {
            return self.say(FromAgent::Answer { want }).await;
        };
        let (blob, answers) = (Arc::clone(&joined.blob), self.answers.clone());
        let urgency = if urgent { Urgency::Demand } else { Urgency::Background };
        let task = self.tasks.spawn(async move {
            if let Some(blob) = of(&blob, part) {
                // The disk finds bytes from other hosts in the cache.
                let _ = blob.want(range, urgency).await;
            }
            let _ = answers.send(FromAgent::Answer { want }).await;
            want
        });
        self.wants.insert(want, task);
    }

    async fn say(&self, word: FromAgent) {
        // A disk that does not take it has gone.
        let _ = self.answers.send(word).await;
    }
}

fn of(blob: &SharedBlob, part: Part) -> Option<&SharedBlob> {
    if part.of_tree { blob.tree() } else { Some(blob) }
}
