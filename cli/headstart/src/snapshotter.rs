//! `headstart snapshotter`: containerd's images without pulling, in the foreground.
//!
//! | module | content |
//! |---|---|
//! | [`tree_disks`] | the disks of images, which the agent of this host has |
//! | [`attach_by`] | the way in which these become block devices |

mod attach_by;
mod tree_disks;

use crate::agent::AgentSocket;
use crate::attach::OFFLINE_LIMITS;
use crate::daemon::{self, LOOK};
use attach_by::AttachBy;
use clap::Args;
use headstart_agentd::client::AgentClient;
use headstart_block::{ByteSize, Error, ErrorKind, Result, saturating};
use headstart_cache::PageCache;
use headstart_command_line::duration::duration;
use headstart_command_line::report::Report;
use headstart_command_line::store_args::StoreArgs;
use headstart_command_line::terminal::Terminal;
use headstart_daemon::places::{run_dir, state_dir};
use headstart_export::socket::listen;
use headstart_export::{Leftover, SocketAccess};
use headstart_image::disk_form::FormWish;
use headstart_image::progress::Progress;
use headstart_image_trees::{BlankDisk, ImageTrees};
use headstart_snapshotter::content_store::ContentStore;
use headstart_snapshotter::diff_service::DiffService;
use headstart_snapshotter::image_proxy::ImageProxy;
use headstart_snapshotter::image_service::CONTAINERD_SOCKET;
use headstart_snapshotter::pull_secrets::PullSecrets;
use headstart_snapshotter::remote::TREES_DIRECTORY;
use headstart_snapshotter::server::{ServedInterfaces, serve};
use headstart_snapshotter::service::SnapshotService;
use headstart_snapshotter::{DiskAccess, SnapshotTime, Snapshotter, SnapshotterReport, SnapshotterSettings};
use headstart_store::{StorePrefix, StoreSettings};
use serde::Serialize;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tree_disks::{AgentDisks, ContainerdPrograms};

pub(crate) const EXAMPLES: &str = "Examples:\n  \
    headstart snapshotter --trust oci://registry.lan/apps\n  \
    headstart snapshotter --trust oci://registry.lan/apps --image-service\n  \
    headstart snapshotter --writable dir --container-quota 10G\n  \
    headstart snapshotter --root /srv/snapshots --socket /run/headstart/snap.sock \\\n      \
    --agent /run/headstart/agent.sock --plain-http registry.lan:5000\n\n\
    containerd finds it by its configuration (/etc/containerd/config.toml; docs/how-to/containerd.md has the same for \
    containerd 2):\n\n  \
    [proxy_plugins.headstart]\n    \
    type = \"snapshot\"\n    \
    address = \"/run/headstart/snapshotter.sock\"\n    \
    [proxy_plugins.headstart.exports]\n      \
    root = \"/var/lib/headstart/snapshotter\"\n  \
    [plugins.\"io.containerd.grpc.v1.cri\".containerd]\n    \
    snapshotter = \"headstart\"\n    \
    disable_snapshot_annotations = false\n\n\
    An image that `headstart image convert` has converted, under a name of its own or, in a repository that is \
    trusted, with --referrer or --index, is neither fetched nor unpacked: the agent of this host attaches it as a \
    disk, whose blocks come when they are read. All other images are as with containerd's own overlayfs, and so is \
    an image whose disk cannot be had; the label containerd.io/snapshot/headstart.fallback of the lowest snapshot \
    that was unpacked for this then says why. The snapshotter removes nothing when it ends, and containers run on \
    without it.";

/// The longest time for the answer of an agent that was named, at the start.
const AGENT_TIME: Duration = Duration::from_secs(2);

/// The name of the socket in the directory of sockets.
const SOCKET: &str = "snapshotter.sock";

/// Threads that talk to containerd. What takes long has threads of its own.
const RUNTIME_THREADS: usize = 2;

/// The times that `--search-timeout` may have.
const SEARCH_TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(600);

/// The heading of options for what containers write.
const CONTAINERS: &str = "Writes of containers";

/// The file of credentials that came with pulls, in the root directory.
const PULL_SECRETS: &str = "pull-credentials";

/// The directory of images of empty disks in the root directory.
const EMPTY_DISKS: &str = "empty";

/// The way in which active snapshots are written to.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum WritableMode {
    /// A directory, which overlayfs puts over the files below.
    Overlayfs,
    /// A disk of its own, mounted.
    Dir,
    /// A disk of its own, as a block device.
    Dev,
}

impl WritableMode {
    fn access(self) -> Option<DiskAccess> {
        match self {
            Self::Overlayfs => None,
            Self::Dir => Some(DiskAccess::Directory),
            Self::Dev => Some(DiskAccess::Device),
        }
    }
}

/// Arguments of `headstart snapshotter`.
#[derive(Args)]
pub(crate) struct SnapshotterArgs {
    /// Use the converted images that stand beside originals in repositories that begin with this, such as
    /// oci://registry.lan/apps. Everyone with the right to write there can decide the files of every image on this
    /// host that has a layer in common with an image there (may be repeated) [default: only images that are disks
    /// themselves]
    #[arg(long, value_name = "STORE")]
    trust: Vec<StorePrefix>,
    /// The directory of all snapshots [default: snapshotter in /var/lib/headstart, or in ~/.local/state/headstart]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// The socket for containerd [default: snapshotter.sock in /run/headstart, or in headstart in $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "SOCK")]
    socket: Option<PathBuf>,
    /// containerd's socket, at which it is asked for the programs of containers (starts of the same program of an image
    /// are learned from together), and takes layers of blocks if it asks for the changes of a container
    #[arg(long, value_name = "SOCK", default_value = CONTAINERD_SOCKET)]
    containerd: PathBuf,
    /// Serve Kubernetes' interface for images on the same socket, too, passing all calls on to containerd, and keep the
    /// credentials of pulls for disks: the kubelet's --image-service-endpoint names the snapshotter's socket then
    /// [default: credentials come from docker's configuration alone]
    #[arg(long)]
    image_service: bool,
    /// The longest time for asking a registry whether it has a disk of an image; then the image is fetched and unpacked
    /// as without the snapshotter
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = duration(SEARCH_TIMEOUTS))]
    search_timeout: Duration,
    /// The time for which an image that is whole in the cache starts while its registry is away, or before a registry
    /// that is slow has answered, since the registry has last let this host read it
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = duration(OFFLINE_LIMITS))]
    offline_limit: Duration,
    /// The way in which the disks of images become block devices: ublk (the kernel's ublk driver; experimental, in
    /// builds with that feature), nbd (the kernel's nbd driver), loop (a loop device over a file of FUSE) or auto (one
    /// in which containers go on when the process of their disk dies, as `headstart doctor` says, and a loop device for
    /// a disk whose device fails). Disks of their own (--writable) are always behind a loop device
    #[arg(long, value_name = "WAY", value_enum, hide_possible_values = true, default_value = "auto")]
    attach_by: AttachBy,
    /// Cached bytes that were decoded, in the kernel's page cache: see `headstart attach` [default: auto]
    #[arg(long, value_name = "WAY")]
    page_cache: Option<PageCache>,
    /// The way in which containers on a disk write: overlayfs (into a directory, which overlayfs puts over the files of
    /// the disk), dir (to a disk of their own, mounted) or dev (to a disk of their own, handed out as a block device).
    /// A snapshot's label containerd.io/snapshot/overlaybd.writable says otherwise for that one
    #[arg(
        long,
        value_name = "MODE",
        value_enum,
        hide_possible_values = true,
        default_value = "overlayfs",
        help_heading = CONTAINERS
    )]
    writable: WritableMode,
    /// Make active snapshots without a parent disks, too, of this size, such as 64G. Layers that containerd unpacks
    /// stay directories [default: only snapshots of converted images are disks]
    #[arg(long, value_name = "SIZE", help_heading = CONTAINERS)]
    empty_disk: Option<ByteSize>,
    /// The most space that a container's writes may take, unless its label containerd.io/snapshot/max-size says
    /// otherwise, such as 10G. Disks hold it: dir says "no space left", dev gives I/O errors and takes 16M at least. On
    /// overlayfs it is held, against mistakes and not each attacker, where the file system of --root has project quotas
    /// (ext4, XFS); where it has not, the label containerd.io/snapshot/headstart.quota says so [default: no limit]
    #[arg(long, value_name = "SIZE", help_heading = CONTAINERS)]
    container_quota: Option<ByteSize>,
    /// An option for every mount of overlayfs, such as volatile (may be repeated)
    #[arg(long, value_name = "OPTION", help_heading = CONTAINERS)]
    mount_option: Vec<String>,
    #[command(flatten)]
    agent: AgentSocket,
    #[command(flatten)]
    store: StoreArgs,
}

impl SnapshotterArgs {
    pub(crate) fn run(&self, terminal: &Terminal, json: bool) -> Result<Box<dyn Report>> {
        let farewell = "the snapshotter has ended; snapshots and containers stay as they are";
        daemon::run("snapshots", RUNTIME_THREADS, farewell, terminal, |runtime| {
            self.run_on(runtime, terminal, json)
        })
    }

    /// The credentials of pulls, in the file that the stores use.
    fn secrets(&self, root: &Path, stores: &mut StoreSettings) -> Arc<PullSecrets> {
        let path = stores.pull_credentials.get_or_insert_with(|| root.join(PULL_SECRETS)).clone();
        Arc::new(PullSecrets::new(path, self.offline_limit))
    }

    /// The most bytes of a container.
    fn quota(&self) -> Result<Option<u64>> {
        match self.container_quota {
            Some(ByteSize(0)) => Err(Error::invalid("no container could write anything")
                .about("--container-quota 0")
                .remedy("leave it out for no limit, or give a size such as 10G")),
            quota => Ok(quota.map(|ByteSize(size)| size)),
        }
    }

    fn run_on(&self, runtime: &Runtime, terminal: &Terminal, json: bool) -> Result<()> {
        self.attach_by.check()?;
        let quota = self.quota()?;
        let root = self.root.clone().unwrap_or_else(|| state_dir().join("snapshotter"));
        let socket = self.socket.clone().unwrap_or_else(|| run_dir().join(SOCKET));
        let (mut words, mut stores) = (self.store.words(), self.store.settings_to_serve()?);
        let secrets = self.image_service.then(|| self.secrets(&root, &mut stores));
        if let Some(secrets) = &secrets {
            words.push(format!("--pull-credentials={}", secrets.path().display()));
        }
        if let Some(way) = self.page_cache {
            words.push(format!("--page-cache={way}"));
        }
        words.push(format!("--offline-limit={}s", self.offline_limit.as_secs()));
        let handle = runtime.handle().clone();
        let agent = self.agent.client()?;
        let disks = AgentDisks::new(agent.clone(), handle, words, &root, self.attach_by.way());
        let trees = ImageTrees::new(
            &root.join(TREES_DIRECTORY),
            stores,
            self.trust.clone(),
            self.search_timeout,
            runtime.handle().clone(),
            Box::new(disks),
        )?;
        let root =
            root.canonicalize().map_err(|error| Error::io("cannot be found", error).about(root.display()))?;
        let blank = self.empty_disk.map(|ByteSize(size)| BlankDisk::new(root.join(EMPTY_DISKS), size));
        let programs =
            ContainerdPrograms { socket: self.containerd.clone(), runtime: runtime.handle().clone() };
        let wish = self.writable.access().map_or(FormWish::Newest, |_| FormWish::Writable);
        let trees = trees
            .with_blank(blank)
            .with_programs(Arc::new(programs))
            .with_wish(wish)
            .with_pulls(secrets.clone());
        let settings = SnapshotterSettings {
            mount_options: self.mount_option.clone(),
            own_disks: self.writable.access(),
            quota,
            ..SnapshotterSettings::new(&root)
        };
        let (snapshotter, report) = Snapshotter::open(settings, Box::new(trees), now)?;
        if let Some(size) = self.empty_disk {
            snapshotter.check_blank().map_err(|error| error.about(format_args!("--empty-disk {size}")))?;
        }
        if let Some(directory) = socket.parent() {
            headstart_block::private::make_directory(directory)
                .map_err(|error| Error::io("cannot make the directory", error).about(directory.display()))?;
        }
        let (listener, _socket) = listen(&socket, &SocketAccess::default(), Leftover::IsUnknown)?;
        let failed = |error| Error::io("cannot listen there", error).about(socket.display());
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = runtime.block_on(async { UnixListener::from_std(listener) }).map_err(failed)?;
        let away = if self.agent.is_named() { why_away(runtime, &agent) } else { None };
        daemon::announce(&Ready::new(&socket, &root, &report, away), json)?;
        let end = async {
            while !terminal.is_cancelled() {
                tokio::time::sleep(LOOK).await;
            }
        };
        let snapshotter = Arc::new(snapshotter);
        let diff = DiffService::new(Arc::clone(&snapshotter), ContentStore::new(self.containerd.clone()));
        let _entered = runtime.enter();
        let images = secrets.map(|secrets| ImageProxy::new(&self.containerd, secrets)).transpose()?;
        let snapshots = SnapshotService::new(snapshotter);
        let interfaces = ServedInterfaces { snapshots, diff: Some(diff), images };
        runtime.block_on(serve(listener, interfaces, end))
    }
}

/// The reason why an agent does not answer; `None` if it does. Without one, images are unpacked, and it may come later:
/// so this is no error.
fn why_away(runtime: &Runtime, agent: &AgentClient) -> Option<String> {
    let asked = runtime.block_on(async { timeout(AGENT_TIME, agent.list()).await });
    let late = |_| Err(Error::new(ErrorKind::Unavailable, "the agent does not answer"));
    let answer = asked.unwrap_or_else(late).map_err(|error| error.about(agent.socket().display()));
    answer.err().map(|error| error.to_string())
}

/// The time, for snapshots.
fn now() -> SnapshotTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    SnapshotTime { seconds: saturating(since.as_secs()), nanos: since.subsec_nanos() }
}

/// The output once containerd can connect.
#[derive(Serialize)]
struct Ready<'a> {
    /// The path of the socket for containerd.
    socket: &'a Path,
    /// The directory of all snapshots.
    root: &'a Path,
    /// The number of snapshots that were there.
    snapshots: usize,
    /// The keys of snapshots whose directories are missing.
    missing: &'a [String],
    /// The reason why no image can be a disk for now: the agent that `--agent` names does not answer. `null` if it
    /// does, or if none was named.
    agent_error: Option<String>,
}

impl<'a> Ready<'a> {
    fn new(
        socket: &'a Path,
        root: &'a Path,
        report: &'a SnapshotterReport,
        agent_error: Option<String>,
    ) -> Self {
        Self { socket, root, snapshots: report.snapshots, missing: &report.missing, agent_error }
    }
}

impl fmt::Display for Ready<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "snapshots for containerd at {}: {} in {}",
            self.socket.display(),
            self.snapshots,
            self.root.display()
        )?;
        self.missing.iter().try_for_each(|key| write!(f, "\nthe directory of snapshot {key} is missing"))?;
        match &self.agent_error {
            Some(error) => write!(f, "\nno image is a disk until there is an agent: {error}"),
            None => Ok(()),
        }
    }
}
