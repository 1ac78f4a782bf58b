//! The agent's end.

use super::wire::{DirectoryId, FromAgent, FromDisk, Part, VERSION, receive, send};
use crate::peers::{Boots, SharedBlob, Swarm};
use crate::stores::Stores;
use headstart_block::{ByteRange, Error, Result};
use headstart_swarm::Urgency;
use headstart_swarm::tracker::ImageKey;
use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

/// How long a disk may take to introduce itself.
const HELLO: Duration = Duration::from_secs(5);

/// Wants of one disk at a time; more are over at once.
const WANTS_MAX: usize = 4096;

/// Blobs of one process.
const BLOBS_MAX: usize = 4096;

/// Disks of one process that boot.
const BOOTING_MAX: usize = 1024;

/// Processes of disks.
const CONNECTIONS_MAX: usize = 16 << 10;

/// Answers that wait for their disk to take them.
const ANSWERS_MAX: usize = 1024;

/// Where disks of this host find the swarm. It ends when dropped, and its socket goes away.
pub struct LocalServer {
    socket: PathBuf,
    task: AbortHandle,
}

impl LocalServer {
    /// Listens at `socket`, in the place of who listened there before. `dir` is the cache's directory; `stores`
    /// are those of disks' blobs.
    ///
    /// # Errors
    /// Where it cannot listen, or the cache is not there.
    pub fn start(socket: &Path, swarm: Arc<Swarm>, dir: &Path, stores: Arc<Stores>) -> Result<Self> {
        let about = |e: Error| e.about(socket.display());
        let cache = DirectoryId::of(dir)?;
        let listener = bind(socket).map_err(about)?;
        let host = Arc::new(HostSide { swarm, cache, stores });
        let task = tokio::spawn(accept(listener, host)).abort_handle();
        Ok(Self { socket: socket.to_owned(), task })
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// A socket for this user alone. One that is there belongs to an agent that is gone: who calls this has its lock.
pub(crate) fn bind(socket: &Path) -> Result<UnixListener> {
    match std::fs::remove_file(socket) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(Error::io("cannot replace", e)),
        _ => {}
    }
    let listener = UnixListener::bind(socket).map_err(|e| {
        let is_long = e.kind() == std::io::ErrorKind::InvalidInput;
        let failed = Error::io("cannot listen", e);
        if is_long { failed.remedy("name a shorter directory by --dir") } else { failed }
    })?;
    let only_mine = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(socket, only_mine).map_err(|e| Error::io("cannot protect", e))?;
    Ok(listener)
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

/// What a disk has.
struct DiskSide {
    blobs: HashMap<u32, Arc<SharedBlob>>,
    wants: HashMap<u64, AbortHandle>,
    tasks: JoinSet<u64>,
    booting: HashMap<u32, Booting>,
    answers: mpsc::Sender<FromAgent>,
}

async fn serve(mut stream: UnixStream, host: &HostSide) -> Result<()> {
    let hello = timeout(HELLO, receive(&mut stream)).await;
    let refusal = match hello.map_err(|e| Error::invalid("no word came").caused_by(e))?? {
        Some(FromDisk::Hello { version, .. }) if version != VERSION => {
            Some(format!("it speaks version {VERSION} and not {version}; use programs of one release"))
        }
        Some(FromDisk::Hello { cache, .. }) if cache != host.cache => {
            Some("it has another cache directory; give both the same --cache".to_owned())
        }
        Some(FromDisk::Hello { .. }) => None,
        _ => Some("that is no disk".to_owned()),
    };
    if let Some(why) = refusal {
        return send(&mut stream, &FromAgent::Refused { why }).await;
    }
    send(&mut stream, &FromAgent::Welcome).await?;
    let (reading, mut writing) = stream.into_split();
    let mut reading = tokio::io::BufReader::new(reading);
    let (answers, mut words) = mpsc::channel(ANSWERS_MAX);
    let saying = async {
        while let Some(word) = words.recv().await {
            send(&mut writing, &word).await?;
        }
        Ok(())
    };
    let hearing = async {
        let mut disk = DiskSide {
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

/// A disk that boots.
struct Booting {
    boots: Boots,
    /// Sends what it is to preload.
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
                // It looks into the cache's directory.
                let shared = tokio::task::block_in_place(|| host.swarm.open(&words.spec(), store));
                match shared {
                    Ok(shared) => _ = self.blobs.insert(blob, Arc::new(shared)),
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
                if let Some(blob) = self.blobs.get(&blob) {
                    blob.planned(running);
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
        let Some((blob, range)) = self.blobs.get(&part.blob).zip(part.range()) else { return };
        if let Some(blob) = of(blob, part) {
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
        let Some((blob, range)) = wanted.filter(|_| self.wants.len() < WANTS_MAX) else {
            return self.say(FromAgent::Answer { want }).await;
        };
        let (blob, answers) = (Arc::clone(blob), self.answers.clone());
        let urgency = if urgent { Urgency::Demand } else { Urgency::Background };
        let task = self.tasks.spawn(async move {
            if let Some(blob) = of(&blob, part) {
                // What comes from elsewhere, the disk sees in the cache.
                let _ = blob.want(range, urgency).await;
            }
            let _ = answers.send(FromAgent::Answer { want }).await;
            want
        });
        self.wants.insert(want, task);
    }

    async fn say(&self, word: FromAgent) {
        // Who does not take it has gone.
        let _ = self.answers.send(word).await;
    }
}

fn of(blob: &SharedBlob, part: Part) -> Option<&SharedBlob> {
    if part.of_tree { blob.tree() } else { Some(blob) }
}
