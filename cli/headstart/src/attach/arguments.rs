//! The arguments of `headstart attach`.

use super::record_args::RecordArgs;
use super::times::parse_time;
use crate::socket_args::SocketArgs;
use crate::zfile::parse_packing;
use clap::Args;
use headstart_agentd::disk_process::PriorDisks;
use headstart_agentd::disks::images_record;
use headstart_block::{ByteRate, ByteSize, Digest, Error, Result};
use headstart_cache::PageCache;
use headstart_command_line::duration::duration;
use headstart_command_line::number::number;
use headstart_command_line::store_args::StoreArgs;
use headstart_disk::attach::is_local;
use headstart_diskd::control::ControlSettings;
use headstart_diskd::{DiskRequest, KeptDisk, PlanPolicy, ServerSettings, SessionSettings};
use headstart_export::Leftover;
use headstart_export::nbd::{Address, TlsSettings};
use headstart_export::vhost_user::QUEUES_MAX;
use headstart_image::named_image::NamedImage;
use headstart_image::new_layer::Packing;
use headstart_lsmt::writable::Limits;
use std::ffi::OsStr;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Smallest limit of a cache: with less, fetched bytes would be evicted at once.
const CACHE_SIZE_MIN: u64 = 4 << 20;

/// The times that `--offline-limit` may have: at most ten years.
pub(crate) const OFFLINE_LIMITS: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(3650 * 24 * 3600);

/// Hexadecimal digits of a disk's name at the kernel.
const DEVICE_NAME_DIGITS: usize = 16;

/// Arguments of `headstart attach`.
#[derive(Args)]
pub(crate) struct Attach {
    /// The image; several as NAME=IMAGE, each an export of that name
    #[arg(required = true, value_name = "[NAME=]IMAGE")]
    pub(crate) images: Vec<NamedImage>,
    /// Serve NBD at unix:/PATH or HOST:PORT [default: a Unix socket in a new directory, unless another way is given]
    #[arg(long, value_name = "ADDR", help_heading = "Ways to serve the disk")]
    pub(crate) nbd: Vec<Address>,
    /// Serve vhost-user-blk at this socket
    #[arg(long, value_name = "SOCK", help_heading = "Ways to serve the disk")]
    pub(crate) vhost_user: Option<PathBuf>,
    /// Request queues of vhost-user-blk [default: one a core, four at most]
    #[arg(long, value_name = "N", requires = "vhost_user", help_heading = "Ways to serve the disk",
          value_parser = number::<u16>(1..=QUEUES_MAX))]
    pub(crate) queues: Option<u16>,
    /// Let clients of NBD and FUSE make the --writable disk larger; without it only --size does
    #[arg(long, requires = "writable", help_heading = "Ways to serve the disk")]
    pub(crate) allow_resize: bool,
    /// Mount the disk as a file of this user's, with mode 0600: over this file, or as disk.raw in this directory;
    /// symbolic links of other users are refused
    #[arg(long, value_name = "PATH", help_heading = "Ways to serve the disk")]
    pub(crate) fuse: Option<PathBuf>,
    /// Make a /dev/ublkbN (experimental: tested on Linux 6.12 only)
    #[arg(long, help_heading = "Ways to serve the disk")]
    pub(crate) ublk: bool,
    /// Make a kernel block device through the kernel's nbd driver: /dev/nbdN or auto. A disk of an agent keeps its
    /// device when its process dies; reads at that moment wait for --deadline and ten seconds
    #[arg(long, value_name = "DEV", help_heading = "Ways to serve the disk")]
    pub(crate) device: Option<String>,
    /// Accept writes and store them in this directory, which is made if it is not there; without it the disk is
    /// read-only
    #[arg(long, value_name = "DIR")]
    pub(crate) writable: Option<PathBuf>,
    /// Make the disk of the lowest N layers of the image only: of a container's image, the files as that layer leaves
    /// them. Boots of such a disk are not recorded
    #[arg(long, value_name = "N", conflicts_with = "keep_base", value_parser = number::<u16>(1..=255))]
    pub(crate) lowest_layers: Option<u16>,
    /// Put the layer in this file on top of the image's layers, such as one that `headstart snapshotter` has sealed;
    /// the lowest comes first (may be repeated). Boots of such a disk are not recorded
    #[arg(long, value_name = "FILE", conflicts_with = "keep_base")]
    pub(crate) upper_layer: Vec<PathBuf>,
    /// Copy the image into the --writable directory before the disk is served, as `base`: from then on the disk needs
    /// no store, and that image is served whichever tag of the store is attached
    #[arg(long, requires = "writable")]
    pub(crate) keep_base: bool,
    /// Make the disk this large, at least as large as it is; needs --writable
    #[arg(long, requires = "writable")]
    pub(crate) size: Option<ByteSize>,
    /// Most bytes that the --writable directory of a disk takes, without the copy of --keep-base, 16M at least: the
    /// guest gets ENOSPC (over virtio an I/O error) for writes beyond, and can write again after a discard [default:
    /// twice the data that is live, and 128M]
    #[arg(long, value_name = "SIZE", requires = "writable", value_parser = parse_writable_max)]
    pub(crate) writable_max: Option<ByteSize>,
    /// Compress and hash what was written and not written over for a while before `image commit` comes, at a low
    /// priority, into a file in the --writable directory, on top of its other sizes: a commit then has little left to
    /// do. The layer may contain, unseen by readers of the disk, what was there for more than a second and is not any
    /// more. CODEC is that of the commit: lz4, zstd or none [default: zstd]
    #[arg(long, value_name = "CODEC", requires = "writable", num_args = 0..=1, require_equals = true,
          default_missing_value = "zstd", value_parser = parse_packing)]
    pub(crate) seal_ahead: Option<Packing>,
    /// The directory of the cache, shared by all disks of this host [default: /var/cache/headstart, or
    /// ~/.cache/headstart]
    #[arg(long, value_name = "DIR", help_heading = "Caching and preloading")]
    pub(crate) cache: Option<PathBuf>,
    /// Most bytes in the cache, 4M at least [default: the space that its file system has for it]
    #[arg(long, value_name = "SIZE", value_parser = parse_cache_size, help_heading = "Caching and preloading")]
    pub(crate) cache_size: Option<ByteSize>,
    /// Cached bytes that were decoded, in the kernel's page cache: drop (they leave it, since guests and mounted file
    /// systems keep what they read), keep, or auto (drop what no other disk of this host uses and no disk comes back
    /// to)
    #[arg(long, default_value = "auto", value_name = "WAY", help_heading = "Caching and preloading")]
    pub(crate) page_cache: PageCache,
    /// The source of the preloading order: auto (earlier boots), lazy or none (no preloading), sequential, or a file:
    /// of plans, a trace of OverlayBD's, or a list of blocks of 2 MiB, one number a line
    #[arg(long, default_value = "auto", value_name = "POLICY", help_heading = "Caching and preloading")]
    pub(crate) policy: PlanPolicy,
    /// Plans for --policy auto, as `headstart train` writes them: a file, or a directory of such files. Plans that
    /// were published with the image come first [default: plans in the cache's directory]
    #[arg(long, value_name = "PATH", help_heading = "Caching and preloading")]
    pub(crate) plans: Option<PathBuf>,
    /// For comparison, read as other systems do: a read that lacks bytes waits for all of their block of 2 MiB, and
    /// whole blocks are preloaded
    #[arg(long, help_heading = "Caching and preloading")]
    pub(crate) whole_blocks: bool,
    /// Fetch the rest of the image in the background at this rate, such as 5MB/s
    #[arg(long, value_name = "RATE", help_heading = "Caching and preloading")]
    pub(crate) fill: Option<ByteRate>,
    /// Attach no image of a store unless hash trees prove all of its bytes as they arrive: for images that others
    /// choose, whose store could otherwise give the guest anything until the image is complete here
    #[arg(long, overrides_with = "require_tree")]
    pub(crate) require_tree: bool,
    /// Attach an image that is whole in the cache although its store refuses it: every user of the cache can then read
    /// content that others fetched into it
    #[arg(long, overrides_with = "cached_although_denied", help_heading = "Caching and preloading")]
    pub(crate) cached_although_denied: bool,
    /// Attach an image that is whole in the cache only if its store let this host read it within this time, if the
    /// store is away; one that is named by its digest then does not wait for a store that answers late [default: a
    /// store is waited for, and no limit if it is away]
    #[arg(long, value_name = "TIME", value_parser = duration(OFFLINE_LIMITS), help_heading = "Caching and preloading")]
    pub(crate) offline_limit: Option<Duration>,
    /// Time that a read waits for a store that does not answer before the guest gets an error, and a copy for
    /// --keep-base before the attach fails [default: 5m; for --keep-base 30s]
    #[arg(long, value_parser = parse_deadline, value_name = "TIME", help_heading = "Caching and preloading")]
    pub(crate) deadline: Option<Duration>,
    /// Ask the agent of this host first for missing content, at its swarm.sock; the agent must have the same --cache
    #[arg(long, value_name = "SOCK", help_heading = "Caching and preloading")]
    pub(crate) swarm: Option<PathBuf>,
    /// Hand the disk to the agent of this host, by its agent.sock, which implies its --cache and --swarm: the disk is
    /// served by a process of its own until `headstart disk detach`, and that process is started again if it dies
    #[arg(long, value_name = "SOCK", conflicts_with_all = ["cache", "swarm", "pid_file", "rate_file", "keeper"])]
    pub(crate) agent: Option<PathBuf>,
    /// The agent's name for the disk [default: NAME, or a name made of the image's]
    #[arg(long = "as", value_name = "NAME", requires = "agent")]
    pub(crate) disk_name: Option<String>,
    /// Serve a disk of an agent, which knows the process by this file
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) pid_file: Option<PathBuf>,
    /// Give up the images of a disk of an agent that has no process and is not to be started again, and attach nothing
    #[arg(long, hide = true, requires = "pid_file")]
    pub(crate) release: bool,
    /// Keep to the rate in this file, together with others that do: an agent's
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) rate_file: Option<PathBuf>,
    /// Let the keeper at this socket keep the mount of --fuse, for the next process of the disk
    #[arg(long, value_name = "SOCK", hide = true, requires = "pid_file")]
    pub(crate) keeper: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) recording: RecordArgs,
    /// Serve metrics for Prometheus at HOST:PORT
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<MetricsAddress>,
    /// NBD over TLS: the server's certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "Ways to serve the disk")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// NBD over TLS: the certificate's key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "Ways to serve the disk")]
    pub(crate) tls_key: Option<PathBuf>,
    /// NBD over TLS: take only clients with a certificate of this authority (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "Ways to serve the disk")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) access: SocketArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

impl Attach {
    /// Checks the rules between arguments that clap cannot express.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if they do not fit together.
    pub(crate) fn check(&self) -> Result<()> {
        if self.plans.is_some() && self.policy != PlanPolicy::Auto {
            return Err(Error::invalid("--plans are for --policy auto").remedy("leave one of them out"));
        }
        let single = [
            (self.vhost_user.is_some(), "--vhost-user"),
            (self.fuse.is_some(), "--fuse"),
            (self.ublk, "--ublk"),
            (self.device.is_some(), "--device"),
            (!self.upper_layer.is_empty(), "--upper-layer"),
        ];
        if self.images.len() > 1 {
            if let Some((_, option)) = single.iter().find(|(given, _)| *given) {
                return Err(Error::invalid(format!("{option} serves one image"))
                    .remedy("serve several images over NBD, or start one process for each"));
            }
            for (n, image) in self.images.iter().enumerate() {
                if image.name.is_empty() {
                    return Err(Error::invalid("several images need a name each")
                        .about(&image.reference)
                        .remedy("write NAME=IMAGE"));
                }
                if self.images[..n].iter().any(|other| other.name == image.name) {
                    return Err(Error::invalid(format!(
                        "another image has the name `{}` already",
                        image.name
                    ))
                    .about(&image.reference)
                    .remedy("give each a name of its own"));
                }
            }
        }
        Ok(())
    }

    /// Warns of options that have no effect for these images and servers.
    pub(crate) fn warn_of_idle(&self) {
        let is_local = self.images.iter().all(|image| is_local(&image.reference.location));
        let about_stores = "has no effect: images in directories of this host are read where they are";
        let (owner, mode) = (self.access.socket_owner.is_some(), self.access.socket_mode.is_some());
        // The kernel's nbd driver is connected to sockets that only this process uses.
        let has_socket = self.nbd.iter().any(|address| matches!(address, Address::Unix(_)))
            || self.vhost_user.is_some()
            || self.fuse.is_some()
            || self.nbd.is_empty() && !self.has_other_servers();
        let about_sockets = "has no effect: the disk has no Unix socket and no FUSE file";
        for (is_idle, option, why) in [
            (is_local && self.plans.is_some(), "--plans", about_stores),
            (is_local && self.swarm.is_some(), "--swarm", about_stores),
            (!has_socket && owner, "--socket-owner", about_sockets),
            (!has_socket && mode, "--socket-mode", about_sockets),
        ] {
            if is_idle {
                tracing::warn!("{option} {why}");
            }
        }
    }

    /// `true` if a server other than NBD was requested.
    pub(crate) fn has_other_servers(&self) -> bool {
        self.vhost_user.is_some() || self.fuse.is_some() || self.ublk || self.device.is_some()
    }

    /// The settings of the session, for disks that had these images before.
    ///
    /// # Errors
    /// If the disks had other images.
    pub(super) fn session_settings(&self, before: &PriorDisks, quiet: bool) -> Result<SessionSettings> {
        let disks = self.images.iter().map(|image| before.request(image)).collect::<Result<_>>()?;
        self.settings_of(disks, quiet)
    }

    /// The settings of a session of these disks.
    ///
    /// # Errors
    /// If the file of process numbers has no path.
    pub(super) fn settings_of(&self, disks: Vec<DiskRequest>, quiet: bool) -> Result<SessionSettings> {
        Ok(SessionSettings {
            disks,
            writable: self.writable.clone(),
            keep_base: self.keep_base,
            size: self.size,
            writable_max: self.writable_max,
            cache: self.cache.clone(),
            cache_size: self.cache_size,
            page_cache: self.page_cache,
            policy: self.policy.clone(),
            plans: self.plans.clone(),
            lowest: self.lowest_layers.map(usize::from),
            uppers: self.upper_layer.clone(),
            whole_blocks: self.whole_blocks,
            fill: self.fill,
            require_tree: self.require_tree,
            cached_although_denied: self.cached_although_denied,
            offline_limit: self.offline_limit,
            deadline: self.deadline,
            recording: self.recording.settings(self.lowest_layers.is_none() && self.upper_layer.is_empty()),
            images_record: self.pid_file.as_deref().map(images_record).transpose()?,
            warn_of_silence: !quiet,
        })
    }

    /// The settings of the control sockets.
    pub(super) fn control_settings(&self) -> ControlSettings {
        ControlSettings { is_restarted: self.pid_file.is_some(), seal_ahead: self.seal_ahead.clone() }
    }

    /// The servers of a session with these settings.
    pub(super) fn server_settings(&self, session: &SessionSettings, leftover: Leftover) -> ServerSettings {
        let disk = self.pid_file.as_deref().and_then(Path::file_stem).and_then(OsStr::to_str);
        let certificate = self.tls_cert.as_ref().zip(self.tls_key.as_ref());
        ServerSettings {
            nbd: self.nbd.clone(),
            tls: certificate.map(|(certificate, key)| TlsSettings {
                certificate: certificate.clone(),
                key: key.clone(),
                client_ca: self.tls_client_ca.clone(),
            }),
            vhost_user: self.vhost_user.clone(),
            queues: self.queues,
            fuse: self.fuse.clone(),
            keeper: self.keeper.clone(),
            kept: disk.zip(self.pid_file.as_deref()).map(|(disk, pid_file)| KeptDisk {
                disk: disk.to_owned(),
                device: device_name(pid_file),
                lowest: session.lowest,
                uppers: session.uppers.clone(),
            }),
            ublk: self.ublk,
            device: self.device.clone(),
            deadline: session.pull().deadline,
            allow_resize: self.allow_resize,
            access: self.access.access(),
            socket_record: self.pid_file.as_ref().map(|file| file.with_extension("socket")),
            leftover,
        }
    }
}

/// The name on this host of the disk whose process has this file of process numbers: agents of several directories may
/// have disks of the same name.
pub(super) fn device_name(pid_file: &Path) -> String {
    let path = std::path::absolute(pid_file).unwrap_or_else(|_| pid_file.to_owned());
    Digest::of(path.as_os_str().as_encoded_bytes()).hex()[..DEVICE_NAME_DIGITS].to_owned()
}

fn parse_cache_size(text: &str) -> Result<ByteSize> {
    let size: ByteSize = text.parse()?;
    if size.0 < CACHE_SIZE_MIN {
        let least = ByteSize(CACHE_SIZE_MIN);
        return Err(Error::invalid(format!("{size} is too small: nothing would stay in the cache"))
            .remedy(format!("give at least {least}; `headstart cache prune` empties a cache")));
    }
    Ok(size)
}

fn parse_writable_max(text: &str) -> Result<ByteSize> {
    let size: ByteSize = text.parse()?;
    let least = ByteSize(Limits::MAX_LEAST);
    if size < least {
        return Err(Error::invalid(format!("a writable directory of {size} has no room to work"))
            .remedy(format!("give {least} at least")));
    }
    Ok(size)
}

fn parse_deadline(text: &str) -> Result<Duration> {
    let deadline = parse_time(text)?;
    if deadline.is_zero() {
        return Err(
            Error::invalid("no read could wait for the store").remedy("give a time such as 30s or 5m")
        );
    }
    Ok(deadline)
}

/// The address of the metrics: HOST:PORT.
#[derive(Clone, Debug)]
pub(crate) struct MetricsAddress(String);

impl FromStr for MetricsAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            Error::invalid(format!("`{}` is not an address", text.escape_debug()))
                .remedy("write it as HOST:PORT, such as 127.0.0.1:9100")
        };
        match text.parse() {
            Ok(Address::Tcp(..)) => Ok(Self(text.to_owned())),
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
