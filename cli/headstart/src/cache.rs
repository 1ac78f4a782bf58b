//! `headstart cache`: the cached parts of images on this host, and their removal.

use clap::{Args, Subcommand};
use headstart_block::words::count;
use headstart_block::{ByteSize, Digest, Error, ErrorKind, Result};
use headstart_cache::{Cache, CacheEntry, CacheSettings, EntryKind, Evicted, Findings, Usage, Verified};
use headstart_command_line::report::{Fields, Outcome, Report};
use headstart_image::progress::Progress;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) const EXAMPLES: &str = "Examples:\n  \
    headstart cache usage\n  \
    headstart cache verify --repair";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List the blobs in the cache: how much of each is here, and whether a disk uses it
    #[command(after_help = "Examples:\n  headstart cache list --dir /srv/cache\n  \
                      headstart cache list --dir /srv/cache --json")]
    List {
        #[command(flatten)]
        directory: Directory,
    },
    /// Print the size of the cache, and the space left on its file system
    #[command(after_help = "Example:\n  headstart cache usage --dir /srv/cache")]
    Usage {
        #[command(flatten)]
        directory: Directory,
    },
    /// Compare the content of the cache with hash trees and digests, to find what has changed since it arrived. Disks
    /// may be attached meanwhile
    #[command(after_help = "Examples:\n  headstart cache verify --dir /srv/cache\n  \
                      headstart cache verify --dir /srv/cache --repair\n\n\
                      The command ends with status 1 if it found damage that was not dropped. Parts of blobs without \
                      a hash tree cannot be compared before all of such a blob is here.")]
    Verify {
        /// Drop damaged content, so that it is fetched again when it is needed
        #[arg(long)]
        repair: bool,
        #[command(flatten)]
        directory: Directory,
    },
    /// Remove a blob and its hash tree; refused while a disk uses it
    #[command(after_help = "Example:\n  headstart cache remove --dir /srv/cache \\\n    \
                      sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")]
    Remove {
        /// The blob, as `cache list` shows it
        digest: Digest,
        #[command(flatten)]
        directory: Directory,
    },
    /// Give space back: the least useful content first, nothing that an attached disk has pinned
    #[command(after_help = "Examples:\n  headstart cache prune --dir /srv/cache --keep 10G\n  \
                      headstart cache prune --dir /srv/cache")]
    Prune {
        /// Bytes to keep, of the most useful content
        #[arg(long, value_name = "SIZE", default_value = "0")]
        keep: ByteSize,
        #[command(flatten)]
        directory: Directory,
    },
}

#[derive(Args)]
pub(crate) struct Directory {
    /// The cache directory [default: /var/cache/headstart, or ~/.cache/headstart for other users than root]
    #[arg(long, visible_alias = "cache")]
    dir: Option<PathBuf>,
}

impl Directory {
    fn path(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(Cache::default_dir)
    }

    /// The cache, if there is one: this makes none. A default cache that was never used is no error.
    fn find(&self) -> Result<Option<Arc<Cache>>> {
        let path = self.path();
        match Cache::open_existing(&path, CacheSettings::default()) {
            Ok(cache) => Ok(Some(cache)),
            Err(error) if error.kind() == ErrorKind::NotFound => match self.dir {
                None if path.is_dir() || path.symlink_metadata().is_err() => Ok(None),
                // Disks of images in directories leave only recorded boots there.
                Some(_) if Cache::is_begun(&path) => Ok(None),
                _ => Err(error.remedy(
                    "name the directory of `attach --cache` with --dir; the first image of a store that is attached \
                     makes a cache of an empty one",
                )),
            },
            Err(error) => Err(error),
        }
    }
}

impl Command {
    pub(crate) fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        match self {
            Self::List { directory } => {
                let listing = match directory.find()? {
                    Some(cache) => Listing { blobs: cache.list()?, absent: None },
                    None => Listing { blobs: Vec::new(), absent: Some(directory.path()) },
                };
                Ok(Box::new(listing))
            }
            Self::Usage { directory } => {
                let path = directory.path();
                let usage =
                    directory.find()?.map_or_else(|| Cache::usage_of_none(&path), |cache| cache.usage())?;
                Ok(Box::new(UsageReport { directory: path, usage }))
            }
            Self::Verify { repair, directory } => {
                let mut report = VerifyReport { repaired: *repair, ..VerifyReport::default() };
                if let Some(cache) = directory.find()? {
                    report.verify(&cache, progress)?;
                }
                Ok(Box::new(report))
            }
            Self::Remove { digest, directory } => {
                let cache = directory.find()?.ok_or_else(|| {
                    Error::new(ErrorKind::NotFound, "there is no cache yet")
                        .about(directory.path().display())
                        .remedy("name the directory of `attach --cache` with --dir")
                })?;
                Ok(Box::new(Removed { digest: *digest, bytes: cache.remove(digest)? }))
            }
            Self::Prune { keep, directory } => {
                let evicted =
                    directory.find()?.map_or_else(|| Ok(Evicted::default()), |cache| cache.prune(keep.0))?;
                Ok(Box::new(Pruned(evicted)))
            }
        }
    }
}

/// The blobs of a cache.
#[derive(Serialize)]
struct Listing {
    /// The blobs in the cache.
    blobs: Vec<CacheEntry>,
    /// The place where a cache was looked for and is none.
    #[serde(skip)]
    absent: Option<PathBuf>,
}

impl Outcome for Listing {}

fn name(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::Verified => "verified",
        EntryKind::Whole => "whole",
        EntryKind::Unverified => "unverified",
        EntryKind::HashTree => "hash tree",
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.absent {
            return write!(f, "{}: there is no cache yet", place.display());
        }
        write!(f, "{:>12}  {:>12}  {:>6}  {:10}  {:6}  DIGEST", "LOCAL", "SIZE", "PART", "KIND", "USE")?;
        for blob in &self.blobs {
            let part = (blob.local_bytes.saturating_mul(100)).checked_div(blob.len).unwrap_or(100);
            let usage = match (blob.pinned_bytes, blob.in_use) {
                (0, false) => "-",
                (0, true) => "in use",
                _ => "pinned",
            };
            let [local, len] = [blob.local_bytes, blob.len].map(|bytes| ByteSize(bytes).to_string());
            let (kind, digest) = (name(blob.kind), blob.digest);
            write!(f, "\n{local:>12}  {len:>12}  {part:>5}%  {kind:10}  {usage:6}  {digest}")?;
        }
        Ok(())
    }
}

/// The content of a cache, in bytes.
#[derive(Serialize)]
struct UsageReport {
    /// The directory of the cache.
    directory: PathBuf,
    #[serde(flatten)]
    usage: Usage,
}

impl Outcome for UsageReport {}

impl fmt::Display for UsageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usage = &self.usage;
        let fields = [
            ("cache", self.directory.display().to_string()),
            ("blobs", format!("{}, {} in use", usage.blobs, usage.blobs_in_use)),
            ("local", ByteSize(usage.local_bytes).to_string()),
            ("other files", ByteSize(usage.sidecar_bytes).to_string()),
            ("free on its disk", ByteSize(usage.free_bytes).to_string()),
        ];
        Fields(&fields).fmt(f)
    }
}

/// The findings in a cache.
#[derive(Default, Serialize)]
struct VerifyReport {
    /// The findings of each blob.
    blobs: Vec<Verified>,
    /// The findings of all blobs together.
    #[serde(flatten)]
    found: Findings,
    /// `true` if damaged parts were dropped.
    repaired: bool,
}

impl VerifyReport {
    fn verify(&mut self, cache: &Arc<Cache>, progress: &dyn Progress) -> Result<()> {
        progress.begin("verifying", cache.usage()?.local_bytes);
        let mut read = |bytes| {
            progress.advance(bytes);
            match progress.is_cancelled() {
                true => Err(Error::new(ErrorKind::Cancelled, "stopped")),
                false => Ok(()),
            }
        };
        cache.verify(self.repaired, &mut read, &mut |blob| {
            self.found += blob.found;
            self.blobs.push(blob);
        })
    }
}

impl Outcome for VerifyReport {
    fn is_right(&self) -> bool {
        self.repaired || self.found.wrong_bytes == 0
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Findings { right_bytes, wrong_bytes, unproven_bytes } = self.found;
        for Verified { digest, found, .. } in self.blobs.iter().filter(|blob| blob.found.wrong_bytes > 0) {
            writeln!(f, "{digest}: {} are damaged", ByteSize(found.wrong_bytes))?;
        }
        let (blobs, right) = (count(self.blobs.len() as u64, "blob"), ByteSize(right_bytes));
        write!(f, "{blobs} checked: {right}, ")?;
        match (wrong_bytes, self.repaired) {
            (0, _) => write!(f, "no damage")?,
            (wrong, true) => write!(f, "and {} that were damaged and are dropped", ByteSize(wrong))?,
            (wrong, false) => write!(f, "and {} that are damaged; --repair drops them", ByteSize(wrong))?,
        }
        match unproven_bytes {
            0 => Ok(()),
            unproven => write!(f, "; {} cannot be compared with anything", ByteSize(unproven)),
        }
    }
}

/// A blob that was removed.
#[derive(Serialize)]
struct Removed {
    /// The digest of the blob.
    digest: Digest,
    /// Bytes of it that were in the cache.
    bytes: u64,
}

impl Outcome for Removed {}

impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "removed {}: {} given back", self.digest, ByteSize(self.bytes))
    }
}

/// The result of a prune.
#[derive(Serialize)]
#[serde(transparent)]
struct Pruned(Evicted);

impl Outcome for Pruned {}

impl fmt::Display for Pruned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (given, left) = (ByteSize(self.0.bytes), ByteSize(self.0.left_bytes));
        write!(f, "{given} given back, {left} left in {}", count(self.0.left_blobs, "blob"))
    }
}
