//! The disks of a host. Each is served by a process of its own, which does not depend on the agent.
//!
//! A disk's process runs `headstart attach`, in a session of its own. The agent starts the process, starts another one
//! if the process dies, and asks the process to end when the disk is to be detached. Reads and writes of clients do not
//! pass through the agent. So disks are served whatever happens to the agent, and the next agent finds them:
//!
//! ```text
//! DIR/disks/NAME.json    the disk's specification, and the number of restarts of its process
//! DIR/disks/NAME.pid     the number of the process, which holds a lock on this file as long as it lives
//! DIR/disks/NAME.images  the disk's images, with their manifests: written by the first process of the disk, read by
//!                        later ones. NAME.json records that this file was written; if the file is missing afterwards,
//!                        no further process serves the disk
//! DIR/disks/NAME.out     the process's output: one line when the disk was ready, one when it had ended in good order,
//!                        or one with the kind of its error
//! DIR/disks/NAME.log     the process's warnings; a log of more than 1 MiB becomes NAME.log.1 when a process starts
//! DIR/disks/NAME.space   the space that the disk's writable layers take
//! ```
//!
//! Only the lock shows that the process lives, because process numbers are used again. A process that does not get the
//! lock ends, so two processes never serve one disk, at whatever moment the agent was killed.
//!
//! A disk is detached only by its agent. If a process ends without being asked to by the agent, another one is started,
//! at once, or after a pause that grows each time if the processes before it did not last (`pauses`), even if the cause
//! was a signal that ends a process in good order. There is one exception: if a process ends before the disk was ever
//! ready, attaching fails, and no other process is started.
//!
//! The mount of a disk that is served by FUSE does not end with its process, which has one more process keep it
//! (`keeper`): programs that use it wait for the next process.
//!
//! An upgrade of the program interrupts no I/O: running processes go on with the version that they were started from,
//! and only processes that start later have the new version. So an older process may talk to a newer agent.
//!
//! | module | content |
//! |---|---|
//! | `record` | the files |
//! | `images` | the images that a disk has, whatever happens to their tags |
//! | `space` | the space that a disk's writable layers take |
//! | `process` | one process, started here or found |
//! | `pauses` | the pauses before it is started again |
//! | `keeper`, `keeper_places` | the process that keeps the mounts of the disks; its files |
//! | `ended` | the end of a process, and its cause |
//! | `supervisor` | the life of one disk |

mod ended;
mod images;
mod keeper;
mod keeper_places;
mod pauses;
mod process;
mod record;
mod space;
mod supervisor;

use headstart_block::guarded::GuardedDir;
use headstart_block::{Error, ErrorKind, Result, private};
use headstart_daemon::names::check_disk_name;
use headstart_store::ProxyUrl;
use keeper::KeeperProcess;
use parking_lot::{Mutex, MutexGuard};
use process::Process;
use record::Record;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use supervisor::Supervisor;
use tokio::sync::broadcast;
use utoipa::ToSchema;

pub use ended::failed_line;
pub use images::{DiskImage, KeptImage, images_record, keep_images};
pub use keeper_places::{keeper_pid_file, keeper_socket};
pub use process::{Held, hold_pid_file};
pub use record::ends_for_good;
pub use space::{DiskSpace, report_space};

/// The number of events that a slow watcher may be behind before it misses some.
const EVENTS_MAX: usize = 256;

/// A disk to be attached: its name, and the command line of the process that serves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskSpec {
    /// The name of the disk at this agent: 1 to 64 letters, digits, `-`, `_` and `.`, not `.` first.
    pub name: String,
    /// The arguments of `headstart attach`, one word each: the image, and the addresses to serve it at. The
    /// agent itself adds `--cache` and `--swarm`, so these are not allowed; environment variables are the
    /// agent's.
    pub arguments: Vec<String>,
    /// The directory from which relative paths in `arguments` start [default: the agent's own].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub directory: Option<PathBuf>,
    /// The program that has the disk for its own purposes; absent for a disk of users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<DiskHolder>,
}

/// A program that attaches a disk for its own purposes, and detaches it when it does not need it any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskHolder {
    /// The program in words, such as `the snapshotter of /var/lib/headstart/snapshotter`.
    pub program: String,
    /// The image by the name that users know.
    pub image: String,
}

impl DiskSpec {
    /// The specification without passwords: URLs of proxies are shown without credentials and queries.
    fn shown(&self) -> Self {
        let mut arguments = self.arguments.clone();
        let mut is_proxy = false;
        for argument in &mut arguments {
            if is_proxy {
                *argument = format!("{:?}", ProxyUrl::from(argument.as_str()));
            } else if let Some(url) = argument.strip_prefix("--proxy=") {
                *argument = format!("--proxy={:?}", ProxyUrl::from(url));
            }
            is_proxy = argument == "--proxy";
        }
        Self { arguments, ..self.clone() }
    }
}

/// The state of a disk's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DiskState {
    /// The disk's process is not ready yet.
    Starting,
    /// The disk is served.
    Serving,
    /// The disk's process has ended without being asked to by the agent, and is started again soon.
    Restarting,
    /// The disk was asked to end.
    Detaching,
    /// The disk has ended in good order, and is not listed any more.
    Detached,
    /// The disk could not be attached, and is not listed any more.
    Failed,
}

/// The status of a disk that the agent manages.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct DiskStatus {
    /// The disk as it was requested, without passwords.
    #[serde(flatten)]
    pub spec: DiskSpec,
    /// The state of the disk's process.
    pub state: DiskState,
    /// The id of the process that serves the disk; null if there is none.
    pub pid: Option<u32>,
    /// The number of times that the agent started the disk's process again after an unexpected end or a
    /// failed start.
    pub restarts: u64,
    /// `true` if an earlier run of the agent started the disk's process.
    pub adopted: bool,
    /// The images of the disk. Empty until it is attached, and for a disk that an earlier version attached
    /// and still serves.
    pub images: Vec<DiskImage>,
    /// The output of `headstart attach --json` when the disk became ready, with `disks`, `ways`, `metrics`
    /// and `ready_ms`; null before.
    #[schema(value_type = Option<Object>)]
    pub ready: Option<serde_json::Value>,
    /// The output of the disk's process when it was detached, with `reads`, `hits_percent`, `clients` and so
    /// on; null before.
    #[schema(value_type = Option<Object>)]
    pub report: Option<serde_json::Value>,
    /// The cause of the last unexpected end or failed start of the disk's process; null if there was none.
    pub error: Option<String>,
    /// The kind of the error of a disk that could not be attached, for the answer to the request.
    #[serde(skip)]
    pub error_kind: Option<ErrorKind>,
    /// The space that the disk's writable layers take, at most a second old; absent if it has none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub space: Vec<DiskSpace>,
}

/// The settings that an agent applies to all of its disks.
pub struct DisksSettings {
    /// The directory of the disks' files: records, PID files, images, output and logs. It is created if it does not
    /// exist.
    pub dir: PathBuf,
    /// The directory of the keeper of mounts, which is made when the first disk is mounted.
    pub keeper: PathBuf,
    /// The path of the program that serves a disk, `headstart`.
    pub program: PathBuf,
    /// The directory of the cache that all disks share.
    pub cache: PathBuf,
    /// The path of the socket at which disks' processes reach the swarm. `None`: disks do not use the swarm.
    pub swarm: Option<PathBuf>,
    /// The path of the file by which the agent and its disks share one rate limit for reads from stores.
    pub rate: PathBuf,
    /// `true` if disks refuse to attach an image from a store unless hash trees prove its bytes.
    pub require_tree: bool,
    /// `true` if disks may attach an image that is completely in the cache even if its store refuses the
    /// credentials.
    pub cached_although_denied: bool,
}

/// The disks of a host, each served by a process of its own. Dropping this value does not end the processes.
pub struct Disks {
    settings: Arc<DisksSettings>,
    keeper: Arc<KeeperProcess>,
    supervisors: Mutex<BTreeMap<String, Arc<Supervisor>>>,
    events: broadcast::Sender<DiskStatus>,
}

impl Disks {
    /// Takes over the disks in the directory of the settings: adopts their processes, and starts again those
    /// that have ended. A record that cannot be read is logged and left as it is.
    ///
    /// # Errors
    /// An error if the directory cannot be created or read, or belongs to neither root nor this user; or if other users
    /// may write to it and their permission cannot be removed.
    pub fn open(settings: DisksSettings) -> Result<Arc<Self>> {
        private::make_directory(&settings.dir)
            .map_err(|e| Error::io("cannot make the directory", e).about(settings.dir.display()))?;
        // The records in it name the commands that are run.
        let own = GuardedDir::open_own(&settings.dir)?;
        private::close(own.handle()).map_err(|e| private::not_closed(&settings.dir, e))?;
        own.check_closed()?;
        own.check_entries()?;
        let (events, _) = broadcast::channel(EVENTS_MAX);
        let settings = Arc::new(settings);
        let keeper = KeeperProcess::new(Arc::clone(&settings));
        let disks = Arc::new(Self { settings, keeper, supervisors: Mutex::default(), events });
        for record in record::all(&disks.settings.dir)? {
            match record {
                Ok(record) => {
                    let name = record.spec.name.clone();
                    let supervisor = disks.keep(record);
                    disks.supervisors().insert(name, supervisor);
                }
                Err(error) => tracing::warn!(%error, "a disk is left alone"),
            }
        }
        Ok(disks)
    }

    fn supervisors(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Supervisor>>> {
        self.supervisors.lock()
    }

    fn keep(self: &Arc<Self>, record: Record) -> Arc<Supervisor> {
        let name = record.spec.name.clone();
        let disks = Arc::downgrade(self);
        let over = move || {
            if let Some(disks) = disks.upgrade() {
                disks.supervisors().remove(&name);
            }
        };
        self.keeper.start_for(&record.spec);
        let (settings, keeper) = (Arc::clone(&self.settings), Arc::clone(&self.keeper));
        Supervisor::start((settings, keeper), record, self.events.clone(), over)
    }

    /// Attaches a disk, and returns its status when clients can use it.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if there is a disk of that name, or a process that serves one; [`ErrorKind::Invalid`] if
    /// the name or an argument is not valid; the error of the disk's process if that ends before it is ready, such as
    /// [`ErrorKind::NoDevice`]; errors of the operating system.
    pub async fn attach(self: &Arc<Self>, spec: DiskSpec) -> Result<DiskStatus> {
        check_disk_name(&spec.name)?;
        check_arguments(&spec)?;
        let supervisor = {
            let mut supervisors = self.supervisors();
            if supervisors.contains_key(&spec.name) {
                return Err(Error::new(ErrorKind::Conflict, "there is a disk of that name")
                    .about(&spec.name)
                    .remedy("give it another name, or detach the other first"));
            }
            let record = Record::new(spec);
            clear(&self.settings.dir, &record)?;
            record.write(&self.settings.dir)?;
            let name = record.spec.name.clone();
            let supervisor = self.keep(record);
            supervisors.insert(name, Arc::clone(&supervisor));
            supervisor
        };
        let status = supervisor.started().await;
        match (status.state, &status.error) {
            (DiskState::Failed, error) => {
                let why = error.clone().unwrap_or_else(|| "its process has ended".to_owned());
                let kind = status.error_kind.unwrap_or(ErrorKind::Invalid);
                Err(Error::new(kind, why).about(&status.spec.name))
            }
            _ => Ok(status),
        }
    }

    /// Detaches a disk, and returns its last status when all writes to it are durable and its process has
    /// ended. A disk that a program has for its own purposes ([`DiskSpec::holder`]) is detached only with `force`,
    /// which that program uses itself.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no disk of that name, [`ErrorKind::Conflict`] if a program holds it,
    /// [`ErrorKind::Unavailable`] if the process does not end in time; it may still end later.
    pub async fn detach(&self, name: &str, force: bool) -> Result<DiskStatus> {
        let supervisor = self.supervisors().get(name).cloned().ok_or_else(|| not_found(name))?;
        match supervisor.status().spec.holder {
            Some(holder) if !force => Err(is_held(name, &holder)),
            _ => supervisor.detach().await,
        }
    }

    /// The present status of the disk `name`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no disk of that name.
    pub fn get(&self, name: &str) -> Result<DiskStatus> {
        let status = self.supervisors().get(name).map(|supervisor| supervisor.status());
        status.map(|status| self.with_space(status)).ok_or_else(|| not_found(name))
    }

    /// The status of all disks, sorted by name.
    #[must_use]
    pub fn list(&self) -> Vec<DiskStatus> {
        let all: Vec<_> = self.supervisors().values().map(|supervisor| supervisor.status()).collect();
        all.into_iter().map(|status| self.with_space(status)).collect()
    }

    fn with_space(&self, status: DiskStatus) -> DiskStatus {
        let space = space::space_of(&self.settings.dir, &status.spec.name);
        DiskStatus { space, ..status }
    }

    /// A receiver of the status of a disk each time that it changes from now on, without the space of its writable
    /// layers (`space` is empty). A receiver that falls more than 256 changes behind misses the oldest.
    #[must_use]
    pub fn watch(&self) -> broadcast::Receiver<DiskStatus> {
        self.events.subscribe()
    }
}

/// Removes files of an earlier disk of the same name, so that none of them is taken for the new one's.
fn clear(dir: &Path, record: &Record) -> Result<()> {
    if let Some(process) = Process::find(dir, &record.spec.name) {
        let serves =
            format!("the process {} serves a disk of that name that this agent does not know", process.pid);
        return Err(Error::new(ErrorKind::Conflict, serves)
            .about(&record.spec.name)
            .remedy("end that process first, or give the disk another name"));
    }
    record.remove(dir);
    Ok(())
}

/// The error of a disk that a program needs.
fn is_held(name: &str, DiskHolder { program, image }: &DiskHolder) -> Error {
    Error::new(ErrorKind::Conflict, format!("{program} has it for containers of the image {image}"))
        .about(name)
        .remedy(format!(
            "remove the image from containerd, and the disk goes by itself; with `headstart disk detach {name} \
             --force` it goes now, and its containers get errors"
        ))
}

fn not_found(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, "there is no disk of that name").about(name)
}

/// Options of `headstart attach` that an agent sets itself, or that make no disk.
const NOT_FOR_DISKS: [&str; 11] = [
    "--agent",
    "--as",
    "--cache",
    "--keeper",
    "--swarm",
    "--pid-file",
    "--release",
    "--rate-file",
    "--help",
    "-h",
    "--version",
];

fn check_arguments(spec: &DiskSpec) -> Result<()> {
    let option = |word: &String| {
        let name = word.split('=').next().unwrap_or_default();
        NOT_FOR_DISKS.into_iter().find(|option| *option == name)
    };
    match spec.arguments.iter().find_map(option) {
        None => Ok(()),
        Some(option) => Err(Error::invalid(format!("`{option}` is not for a disk of an agent"))
            .about(&spec.name)
            .remedy("leave it out")),
    }
}

/// A file of a disk.
fn file(dir: &Path, name: &str, ending: &str) -> PathBuf {
    dir.join(format!("{name}.{ending}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A process that ends in good order before it was seen ready, for example by a signal in that moment.
    #[tokio::test]
    async fn a_first_process_that_was_ended_is_a_failure_with_a_cause_and_holds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        // The command `sh attach --json ...` runs the file of that name.
        let script = "echo \"$@\" >> runs; : > disks/vm.images; echo '{\"reads\":0}'\n";
        fs::write(at("attach"), script).unwrap();
        let settings = DisksSettings {
            dir: at("disks"),
            keeper: at("keeper"),
            program: PathBuf::from("/bin/sh"),
            cache: at("cache"),
            swarm: None,
            rate: at("rate"),
            require_tree: false,
            cached_although_denied: false,
        };
        let disks = Disks::open(settings).unwrap();
        let spec = DiskSpec {
            name: "vm".to_owned(),
            arguments: vec!["s3://b/v:1".to_owned()],
            directory: Some(dir.path().to_owned()),
            holder: None,
        };
        let error = disks.attach(spec).await.unwrap_err();
        assert_eq!(error.to_string(), "vm: it was asked to end, and not by its agent");
        assert!(disks.list().is_empty());
        // The image of the process is released by a process of the same arguments.
        let runs = fs::read_to_string(at("runs")).unwrap();
        let runs: Vec<_> = runs.lines().collect();
        assert_eq!(runs.len(), 2, "{runs:?}");
        assert!(!runs[0].contains("--release") && runs[1].contains("--release"), "{runs:?}");
        assert!(runs.iter().all(|run| run.ends_with("s3://b/v:1")), "{runs:?}");
    }
}
