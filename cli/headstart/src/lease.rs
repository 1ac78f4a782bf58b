//! `headstart lease list` and `release`: the disks that keep images of a store.

use clap::{Args, Subcommand};
use headstart_block::guarded::shell_word;
use headstart_block::words::count;
use headstart_block::{Error, ErrorKind, Result};
use headstart_command_line::date::date;
use headstart_command_line::report::{Outcome, Report};
use headstart_command_line::store_args::StoreArgs;
use headstart_image::managed_store::{LeaseFilter, ManagedStore};
use headstart_image::reference::{Location, Reference};
use headstart_store::layout::{JudgedLease, LeaseHolder, Standing};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::SystemTime;

const LIST_EXAMPLES: &str = "\
Examples:
  headstart lease list file:///srv/images
  headstart lease list file:///srv/images --json";

const RELEASE_EXAMPLES: &str = "\
Examples:
  headstart lease release file:///srv/images --host node7
  headstart lease release file:///srv/images --writable /var/lib/vm1
  headstart lease release file:///srv/images:debian
  headstart lease release file:///srv/images --id damaged

Leases of attached disks end by themselves, and those of writable directories of this host with
the directory. Leases to release are those of hosts that are gone, of directories that cannot be
seen from here, of stores that were copied, and damaged ones (by --id). Leases in use on this host
are released only with --force. An image that loses its last lease is kept for another week.";

pub(crate) const EXAMPLES: &str = "Examples:\n  \
    headstart lease list file:///srv/images\n  \
    headstart lease release file:///srv/images --host node7";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List the attached disks and writable directories that keep images of a store
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// The store: file:///DIR or s3://BUCKET/PATH
        store: Location,
        #[command(flatten)]
        stores: StoreArgs,
    },
    /// End leases whose holders are gone, so that their images can be removed
    #[command(after_help = RELEASE_EXAMPLES)]
    Release(Release),
}

/// Ends leases.
#[derive(Args)]
pub(crate) struct Release {
    /// The store, with --host, --writable, --id or --all, or an image
    #[arg(value_name = "STORE|IMAGE")]
    place: Place,
    /// Only leases of this host
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Only the lease of this writable directory
    #[arg(long, value_name = "DIR")]
    writable: Option<PathBuf>,
    /// Only the lease with this id, as `headstart lease list` prints it
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// All whose holders are not known to be there
    #[arg(long)]
    all: bool,
    /// Even leases whose holders are there: content that their disks need can then be deleted
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    stores: StoreArgs,
}

/// A store, or an image in it.
#[derive(Clone, Debug)]
enum Place {
    Store(Location),
    Image(Reference),
}

impl FromStr for Place {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.parse() {
            Ok(location) => Ok(Self::Store(location)),
            Err(_) => text.parse().map(Self::Image),
        }
    }
}

impl Command {
    /// Checks the rules between arguments that clap cannot express.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if they do not select any leases.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::List { .. } => Ok(()),
            Self::Release(release) => release.check(),
        }
    }

    pub(crate) fn run(&self) -> Result<Box<dyn Report>> {
        match self {
            Self::List { store, stores } => {
                let leases = stores.with_stores(|access| {
                    ManagedStore::open(store, access.settings, access.runtime)?.leases(SystemTime::now())
                })?;
                Ok(Box::new(Leases { leases: leases.iter().map(Shown::of).collect() }))
            }
            Self::Release(release) => Ok(Box::new(release.run()?)),
        }
    }
}

impl Release {
    fn check(&self) -> Result<()> {
        let has_filter = self.host.is_some() || self.writable.is_some() || self.id.is_some() || self.all;
        match &self.place {
            Place::Store(location) if !has_filter => {
                Err(Error::invalid("no option or name selects the leases to release")
                    .about(location)
                    .remedy("name an image, or give --host, --writable, --id or --all"))
            }
            _ => Ok(()),
        }
    }

    fn run(&self) -> Result<Released> {
        let (location, image) = match &self.place {
            Place::Store(location) => (location, None),
            Place::Image(image) => (&image.location, Some(image)),
        };
        let (over, there) = self.stores.with_stores(|access| {
            let store = ManagedStore::open(location, access.settings, access.runtime)?;
            let filter = LeaseFilter {
                image: image.map(|image| store.digest(&image.selector)).transpose()?,
                host: self.host.clone(),
                writable: self.writable.clone(),
                id: self.id.clone(),
            };
            let chosen = store.leases(SystemTime::now())?.into_iter().filter(|lease| filter.has(lease));
            let (there, over): (Vec<_>, Vec<_>) =
                chosen.partition(|lease| lease.standing == Standing::Held && !self.force);
            if over.is_empty() {
                return Err(nothing(location, &there));
            }
            store.release(&over)?;
            Ok((over, there))
        })?;
        Ok(Released {
            released: over.iter().map(Shown::of).collect(),
            in_use: there.iter().map(Shown::of).collect(),
        })
    }
}

fn nothing(location: &Location, there: &[JudgedLease]) -> Error {
    let names: Vec<_> =
        there.iter().filter_map(|lease| Some(lease.found.lease.as_ref().ok()?.to_string())).collect();
    if names.is_empty() {
        return Error::new(ErrorKind::NotFound, "there is no such lease")
            .about(location)
            .remedy(format!("`headstart lease list {location}` shows those that there are"));
    }
    Error::new(ErrorKind::Conflict, format!("in use by {}", names.join(", ")))
        .about(location)
        .remedy("detach it, or delete the writable directory; --force releases it anyway")
}

/// A lease in the output.
#[derive(Serialize)]
struct Shown {
    /// The name of the lease, for `lease release --id`.
    id: String,
    /// The digest of the image's manifest.
    image: Option<String>,
    /// The reference that the disk was attached by.
    reference: Option<String>,
    /// `attach` or `writable`.
    kind: Option<&'static str>,
    /// The writable directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    directory: Option<String>,
    /// The name of the host.
    host: Option<String>,
    /// The number of the process.
    pid: Option<u32>,
    /// The time when the lease was written.
    written: String,
    /// `held`, `over`, `unknown` if this host cannot decide, or `damaged` if it is no readable lease.
    state: &'static str,
    #[serde(skip)]
    holder: String,
}

impl Shown {
    fn of(judged: &JudgedLease) -> Self {
        let lease = judged.found.lease.as_ref().ok();
        let (kind, directory) = match lease.map(|lease| &lease.holder) {
            Some(LeaseHolder::Attach { .. }) => (Some("attach"), None),
            Some(LeaseHolder::Writable { dir, .. }) => (Some("writable"), Some(dir.display().to_string())),
            None => (None, None),
        };
        let problem = || judged.found.lease.as_ref().err().map(ToString::to_string).unwrap_or_default();
        Self {
            id: judged.found.id.clone(),
            image: lease.map(|lease| lease.image.to_string()),
            reference: lease.map(|lease| lease.reference.clone()),
            kind,
            directory,
            host: lease.map(|lease| lease.host.name.clone()),
            pid: lease.map(|lease| lease.pid),
            written: date(judged.found.written),
            state: match (&judged.found.lease, judged.standing) {
                (_, Standing::Over) => "over",
                (_, Standing::Held) => "held",
                (Err(e), Standing::Foreign) if is_damage(e) => "damaged",
                (_, Standing::Foreign) => "unknown",
            },
            holder: lease.map_or_else(problem, ToString::to_string),
        }
    }
}

/// `true` unless a lease is one of a later release, or one that only another user may read.
fn is_damage(error: &Error) -> bool {
    !matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Denied)
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let image = self.image.as_deref().unwrap_or("?");
        // Every user that can write leases chooses their names, and these go to terminals and shells.
        let id = shell_word(&self.id);
        let state = if self.state == "over" { "ended" } else { self.state };
        write!(f, "{image}  {state}: {}, since {}  (id {id})", self.holder, self.written)
    }
}

/// The leases of a store.
#[derive(Serialize)]
struct Leases {
    /// The leases of the store.
    leases: Vec<Shown>,
}

impl Outcome for Leases {}

impl fmt::Display for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for lease in &self.leases {
            writeln!(f, "{lease}")?;
        }
        f.write_str(&count(self.leases.len() as u64, "lease"))
    }
}

/// Leases that were ended.
#[derive(Serialize)]
struct Released {
    /// The leases that were removed.
    released: Vec<Shown>,
    /// Requested leases that are in use.
    in_use: Vec<Shown>,
}

impl Outcome for Released {}

impl fmt::Display for Released {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for lease in &self.released {
            writeln!(f, "released: {lease}")?;
        }
        for lease in &self.in_use {
            writeln!(f, "in use: {lease}")?;
        }
        write!(f, "{} released", count(self.released.len() as u64, "lease"))
    }
}
