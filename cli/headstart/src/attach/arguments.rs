//! The arguments of `headstart attach`.

use super::plans::{Places, Where, read_trace};
use super::recording::RecordArgs;
use crate::socket_args::SocketArgs;
use crate::store_args::StoreArgs;
use clap::Args;
use headstart_block::{ByteRate, ByteSize, Error, FileSource, Result};
use headstart_cache::Cache;
use headstart_command_line::images::NamedImage;
use headstart_disk::PlanSource;
use headstart_disk::attach::is_local;
use headstart_export::nbd::Address;
use headstart_export::vhost_user::QUEUES_MAX;
use headstart_lsmt::writable::Limits;
use headstart_plan::PlanFile;
use headstart_pull::{BLOCK_SIZE, Plan, PlanItem, Rest};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Smallest limit of a cache: with less, fetched bytes would be evicted at once.
const CACHE_SIZE_MIN: u64 = 4 << 20;

/// The longest time that a read waits for a store, without --deadline.
const DEADLINE: Duration = Duration::from_secs(5 * 60);

/// The first bytes of a file of plans.
const PLAN_MAGIC: &[u8] = b"HSPLAN\r\n";

/// The first bytes of a trace file of `OverlayBD`.
const TRACE_MAGIC: [u8; 4] = 0xC2EF_1820_u32.to_le_bytes();

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
          value_parser = clap::value_parser!(u16).range(1..=i64::from(QUEUES_MAX)))]
    pub(crate) queues: Option<u16>,
    /// Let clients of NBD and FUSE make the disk larger; without it only --size does
    #[arg(long, requires = "writable", help_heading = "Ways to serve the disk")]
    pub(crate) allow_resize: bool,
    /// Mount the disk as a file of this user's, with mode 0600: over this file, or as disk.raw in this directory;
    /// symbolic links of other users are refused
    #[arg(long, value_name = "PATH", help_heading = "Ways to serve the disk")]
    pub(crate) fuse: Option<PathBuf>,
    /// Make a /dev/ublkbN (experimental: not tested on any kernel yet)
    #[arg(long, help_heading = "Ways to serve the disk")]
    pub(crate) ublk: bool,
    /// Make a kernel block device through the kernel's nbd driver: /dev/nbdN or auto
    #[arg(long, value_name = "DEV", help_heading = "Ways to serve the disk")]
    pub(crate) device: Option<String>,
    /// Take writes into this directory, which is made where it is not there; without it the disk is read-only
    #[arg(long, value_name = "DIR")]
    pub(crate) writable: Option<PathBuf>,
    /// Copy the image into the writable directory before the disk is served, as `base`: from then on it needs no store,
    /// and that image is served by whatever tag of the store it is attached
    #[arg(long, requires = "writable")]
    pub(crate) keep_base: bool,
    /// Make the disk this large; at least as large as it is
    #[arg(long, requires = "writable")]
    pub(crate) size: Option<ByteSize>,
    /// Most bytes that the --writable directory of a disk takes, without the copy of --keep-base, 16M at least: the
    /// guest gets ENOSPC (over virtio an I/O error) for what goes beyond, and can write again after a discard
    /// [default: twice the data that is live, and 128M]
    #[arg(long, value_name = "SIZE", requires = "writable", value_parser = parse_writable_max)]
    pub(crate) writable_max: Option<ByteSize>,
    /// Where what was fetched is kept, shared by all disks of this host [default: /var/cache/headstart, or
    /// ~/.cache/headstart]
    #[arg(long, value_name = "DIR", help_heading = "Caching and preloading")]
    pub(crate) cache: Option<PathBuf>,
    /// Most bytes in the cache, 4M at least [default: what its disk has room for]
    #[arg(long, value_name = "SIZE", value_parser = parse_cache_size, help_heading = "Caching and preloading")]
    pub(crate) cache_size: Option<ByteSize>,
    /// What to preload: auto (as earlier boots are known to read), lazy or none (nothing), sequential, or a file: of
    /// plans, a trace of OverlayBD's, or a list of blocks of 2 MiB, one number a line
    #[arg(long, default_value = "auto", value_name = "POLICY", help_heading = "Caching and preloading")]
    pub(crate) policy: Policy,
    /// Plans for --policy auto, as `headstart train` writes them: a file, or a directory of such. What was
    /// published with the image comes first [default: plans in the cache's directory]
    #[arg(long, value_name = "PATH", help_heading = "Caching and preloading")]
    pub(crate) plans: Option<PathBuf>,
    /// For comparison, do as others do: a read that lacks bytes waits for all of their block of 2 MiB, and whole
    /// blocks are preloaded
    #[arg(long, help_heading = "Caching and preloading")]
    pub(crate) whole_blocks: bool,
    /// Fetch the rest of the image in the background at this rate, such as 5MB/s
    #[arg(long, value_name = "RATE", help_heading = "Caching and preloading")]
    pub(crate) fill: Option<ByteRate>,
    /// Attach no image of a store unless hash trees prove all of its bytes as they come: for images that others choose,
    /// whose store could give the guest anything until all of it is here
    #[arg(long, overrides_with = "require_tree")]
    pub(crate) require_tree: bool,
    /// Attach an image that is whole in the cache although its store refuses it: every user of the cache
    /// then reads what others fetched into it
    #[arg(long, overrides_with = "cached_although_denied", help_heading = "Caching and preloading")]
    pub(crate) cached_although_denied: bool,
    /// Time that a read waits for a store that does not answer before the guest gets an error, and a copy for
    /// --keep-base before the attach fails [default: 5m; for --keep-base 30s]
    #[arg(long, value_parser = parse_deadline, value_name = "TIME", help_heading = "Caching and preloading")]
    pub(crate) deadline: Option<Duration>,
    /// Ask the agent of this host first for what is missing, at its swarm.sock; it has to have the same --cache
    #[arg(long, value_name = "SOCK", help_heading = "Caching and preloading")]
    pub(crate) swarm: Option<PathBuf>,
    /// Let the agent of this host have the disk, by its agent.sock, which brings --cache and --swarm along: it is
    /// served by a process of its own until `headstart disk detach`, and started again should that die
    #[arg(long, value_name = "SOCK", conflicts_with_all = ["cache", "swarm", "pid_file", "rate_file"])]
    pub(crate) agent: Option<PathBuf>,
    /// What the agent calls the disk [default: NAME, or a name made of the image's]
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
        if self.plans.is_some() && self.policy != Policy::Auto {
            return Err(Error::invalid("--plans are for --policy auto").remedy("leave one of them out"));
        }
        let single = [
            (self.vhost_user.is_some(), "--vhost-user"),
            (self.fuse.is_some(), "--fuse"),
            (self.ublk, "--ublk"),
            (self.device.is_some(), "--device"),
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
        // The kernel's nbd driver is connected to a socket that only this process uses.
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

    pub(crate) fn pull_settings(&self) -> headstart_pull::Settings {
        let miss_rest = if self.whole_blocks { Rest::None } else { Rest::default() };
        let deadline = self.deadline.unwrap_or(DEADLINE);
        headstart_pull::Settings { deadline, miss_rest, ..headstart_pull::Settings::default() }
    }

    /// The directory of fetched bytes.
    pub(crate) fn cache_dir(&self) -> PathBuf {
        self.cache.clone().unwrap_or_else(Cache::default_dir)
    }

    /// The search for plans; `None` if the policy is a plan itself.
    pub(super) fn plan_source(&self) -> Option<Arc<dyn PlanSource>> {
        let places = match &self.policy {
            Policy::Auto => Where::All {
                files: self.plans.clone().unwrap_or_else(|| self.cache_dir().join("plans")),
                named: self.plans.is_some(),
            },
            Policy::Plans(file) => Where::Plans(file.clone()),
            Policy::Trace(file) => Where::Trace(file.clone()),
            Policy::Fixed(_) => return None,
        };
        Some(Arc::new(Places::new(places, &self.recording)))
    }
}

fn parse_cache_size(text: &str) -> Result<ByteSize> {
    let size: ByteSize = text.parse()?;
    if size.0 < CACHE_SIZE_MIN {
        let least = ByteSize(CACHE_SIZE_MIN);
        return Err(Error::invalid(format!("{size} are too few: all in the cache would be thrown out"))
            .remedy(format!("give {least} at least; `headstart cache prune` empties a cache")));
    }
    Ok(size)
}

fn parse_writable_max(text: &str) -> Result<ByteSize> {
    let size: ByteSize = text.parse()?;
    let least = ByteSize(Limits::MAX_LEAST);
    if size < least {
        return Err(Error::invalid(format!("a writable layer of {size} has no room to work"))
            .remedy(format!("give {least} at least")));
    }
    Ok(size)
}

fn parse_deadline(text: &str) -> Result<Duration> {
    let deadline = super::parse_time(text)?;
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

/// The policy of preloading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The best plan that is found.
    Auto,
    /// The plans in a file for the image.
    Plans(PathBuf),
    /// The reads in a trace of `OverlayBD`.
    Trace(PathBuf),
    /// This plan, in any case.
    Fixed(Plan),
}

impl Policy {
    /// The plan that needs no search.
    pub(crate) fn plan(&self) -> Plan {
        match self {
            Self::Auto | Self::Plans(_) | Self::Trace(_) => Plan::Lazy,
            Self::Fixed(plan) => plan.clone(),
        }
    }

    /// The name of the kind of policy.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Plans(_) => "plans",
            Self::Trace(_) => "trace",
            Self::Fixed(Plan::Lazy) => "lazy",
            Self::Fixed(Plan::Sequential) => "sequential",
            Self::Fixed(Plan::List(_)) => "list",
        }
    }
}

impl FromStr for Policy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => return Ok(Self::Auto),
            "lazy" | "none" => return Ok(Self::Fixed(Plan::Lazy)),
            "sequential" => return Ok(Self::Fixed(Plan::Sequential)),
            _ => {}
        }
        let path = Path::new(text);
        let cannot = |e| {
            Error::io("is none of auto, lazy, none and sequential, and cannot be read as a file", e)
                .about(text)
        };
        let mut start = Vec::new();
        let file = File::open(path).map_err(cannot)?;
        file.take(PLAN_MAGIC.len() as u64).read_to_end(&mut start).map_err(cannot)?;
        if start == PLAN_MAGIC {
            PlanFile::open(FileSource::open(path)?).map_err(|e| e.about(text))?;
            return Ok(Self::Plans(path.to_owned()));
        }
        if start.starts_with(&TRACE_MAGIC) {
            read_trace(path).map_err(|e| e.about(text))?;
            return Ok(Self::Trace(path.to_owned()));
        }
        list_of_blocks(&std::fs::read_to_string(path).map_err(cannot)?)
            .map(|items| Self::Fixed(Plan::List(items.into())))
            .map_err(|e| e.about(text))
    }
}

/// Parses a list of blocks, with one number on each line.
fn list_of_blocks(list: &str) -> Result<Vec<PlanItem>> {
    let lines = list.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty());
    let items = lines.map(|(n, line)| {
        let block = line.parse().ok().filter(|block: &u64| block.checked_mul(BLOCK_SIZE).is_some());
        block.map(PlanItem::whole).ok_or_else(|| {
            Error::invalid(format!("line {}: `{}` is no number of a block", n + 1, line.escape_debug()))
        })
    });
    items.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_a_word_or_a_list() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("list");
        let policy = |list: &str| {
            std::fs::write(&file, list).unwrap();
            file.to_str().unwrap().parse::<Policy>()
        };
        assert_eq!("auto".parse::<Policy>().unwrap(), Policy::Auto);
        for nothing in ["lazy", "none"] {
            assert_eq!(nothing.parse::<Policy>().unwrap(), Policy::Fixed(Plan::Lazy));
        }
        assert_eq!(policy("7\n\n 3 \n").unwrap().plan(), Plan::List([7, 3].map(PlanItem::whole).into()));
        for (list, line) in [("7\nx\n", "line 2"), ("-1", "line 1"), ("99999999999999999", "line 1")] {
            assert!(policy(list).unwrap_err().to_string().contains(line), "{list}");
        }
        assert!("/nowhere/list".parse::<Policy>().is_err());
    }
}
