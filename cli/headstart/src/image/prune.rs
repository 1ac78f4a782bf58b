//! `headstart image remove` and `prune`: names and blobs are deleted, except those of disks.

use clap::Args;
use headstart_block::words::count;
use headstart_block::{ByteSize, Error, ErrorKind, Result};
use headstart_command_line::date::date;
use headstart_command_line::report::{Outcome, Report};
use headstart_command_line::store_args::StoreArgs;
use headstart_image::managed_store::ManagedStore;
use headstart_image::reference::{Reference, Selector, parse_store};
use headstart_image::store::{PruneOptions, PruneReport, Removal, UntaggedImage};
use headstart_image::store_access::StoreAccess;
use serde::Serialize;
use std::fmt;
use std::time::{Duration, SystemTime};

pub(super) const REMOVE_EXAMPLES: &str = "\
Examples:
  headstart image remove file:///srv/images:vm1
  headstart image remove file:///srv/images:vm1 --dry-run

An image that an attached disk or a writable directory needs keeps its last name, unless --force
takes it away; its blobs stay as long as they are needed anyway. `headstart lease list` shows
which disks need which images.";

pub(super) const PRUNE_EXAMPLES: &str = "\
Examples:
  headstart image prune file:///srv/images --dry-run
  headstart image prune file:///srv/images --older-than 1d

Images without a tag are kept for a week, counted from the loss of the last one or from the end of
a later lease, and as long as an attached disk or a writable directory needs them. `headstart
lease list` shows these needs, `headstart lease release` ends the leases of a host that is gone.

The store's notes of layers that `image convert` made go with these layers: remove the tags of
converted images, and the next prune after their time removes both.";

/// Removes a tag.
#[derive(Args)]
pub(crate) struct Remove {
    /// The image
    image: Reference,
    /// Only print the tags and images, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Take the last name away from an image that disks need
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    stores: StoreArgs,
}

/// Deletes blobs.
#[derive(Args)]
pub(crate) struct Prune {
    /// The store: file:///DIR or s3://BUCKET/PATH
    store: String,
    /// Only print the blobs, and delete nothing
    #[arg(long)]
    dry_run: bool,
    /// Keep images without a tag for this long, such as 12h or 30d; in an object store a week at least
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = parse_age)]
    older_than: Duration,
    /// Delete images without a tag even if disks need them: data that was written on top of them is lost
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    stores: StoreArgs,
}

fn parse_age(text: &str) -> Result<Duration> {
    let bad = |e| {
        let text = text.escape_debug();
        Error::invalid(format!("`{text}` is not a time")).caused_by(e).remedy("write it as 12h, 7d or 0s")
    };
    humantime::parse_duration(text).map_err(bad)
}

impl Remove {
    pub(super) fn run(&self) -> Result<Box<dyn Report>> {
        let removal = self.stores.with_stores(|access| {
            let store = ManagedStore::open(&self.image.location, access.settings, access.runtime)?;
            let removal = store.remove(&self.image.selector, self.force, self.dry_run, SystemTime::now());
            removal.map_err(|error| match error.kind() {
                ErrorKind::NotFound => self.nameless(access).unwrap_or(error),
                _ => error,
            })
        })?;
        Ok(Box::new(Removed::new(&self.image, removal, self.dry_run)))
    }

    /// The error for an image that is there and has no name that could be removed.
    fn nameless(&self, access: StoreAccess<'_>) -> Option<Error> {
        let Selector::Digest(_) = self.image.selector else { return None };
        let store = headstart_store::open(&self.image.location, access.settings).ok()?;
        let is_there = access.runtime.block_on(store.manifest(&self.image.selector)).is_ok();
        is_there.then(|| {
            let prune = format!("headstart image prune {}", self.image.location);
            Error::new(ErrorKind::NotFound, "it is there, but has no name: there is nothing to remove")
                .about(&self.image)
                .remedy(format!(
                    "`{prune}` deletes such images a week after they lost the last name (--older-than)"
                ))
        })
    }
}

impl Prune {
    pub(super) fn run(&self) -> Result<Box<dyn Report>> {
        let Self { older_than, force, dry_run, .. } = *self;
        let options = PruneOptions { now: SystemTime::now(), older_than, force, dry_run };
        let location = parse_store(&self.store)?;
        let (report, young_blobs) = self.stores.with_stores(|access| {
            ManagedStore::open(&location, access.settings, access.runtime)?.prune(&options)
        })?;
        Ok(Box::new(Pruned { young_blobs, ..Pruned::new(report, dry_run) }))
    }
}

/// An image whose tag was removed.
#[derive(Serialize)]
struct Removed {
    /// The reference that was named.
    image: String,
    /// `true` if nothing was removed.
    dry_run: bool,
    /// The tags that are gone.
    tags: Vec<String>,
    /// The images that have no name any more.
    untagged: Vec<String>,
    /// The disks that need them.
    holders: Vec<String>,
}

impl Removed {
    fn new(image: &Reference, removal: Removal, dry_run: bool) -> Self {
        Self {
            image: image.to_string(),
            dry_run,
            tags: removal.tags,
            untagged: removal.nameless.iter().map(ToString::to_string).collect(),
            holders: removal.holders,
        }
    }
}

impl Outcome for Removed {}

impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is = if self.dry_run { "would be removed" } else { "removed" };
        write!(f, "{} {is}; ", self.image)?;
        for image in &self.untagged {
            write!(f, "{image} has no name any more; ")?;
        }
        if !self.holders.is_empty() {
            write!(f, "it is needed by {}; ", self.holders.join(", "))?;
        }
        f.write_str("`headstart image prune` frees the blobs that no other image needs, after a week")
    }
}

/// The result of a prune.
#[derive(Serialize)]
struct Pruned {
    /// Blobs that were deleted.
    blobs: u64,
    /// Bytes of the deleted blobs.
    bytes: u64,
    /// `true` if nothing was deleted.
    dry_run: bool,
    /// Images that were deleted.
    images: Vec<Untagged>,
    /// Images without a tag that were kept.
    untagged: Vec<Untagged>,
    /// Leases that were over, and were removed.
    ended_leases: u64,
    /// Directories of dead writers and beginnings of blobs from interrupted copies, and their bytes.
    stale_writers: u64,
    /// Bytes of these directories and beginnings of blobs.
    stale_bytes: u64,
    /// Notes of conversions whose layers are gone, and that were removed.
    conversions: u64,
    /// Blobs that nothing needs, but that are too young to be deleted from an object store.
    #[serde(skip_serializing_if = "Option::is_none")]
    young_blobs: Option<u64>,
}

/// An image without a tag.
#[derive(Serialize)]
struct Untagged {
    /// The digest of the image's manifest.
    digest: String,
    /// The last tags of the image.
    tags: Vec<String>,
    /// The start of its grace period: the time when it lost its last tag, when a lease on it ended after that, or when
    /// a prune first found it without a tag.
    untagged_since: String,
    /// The time from which a prune deletes it, unless a disk or an image holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_until: Option<String>,
    /// The disks and writable directories that need it.
    holders: Vec<String>,
    /// The images that were optimized from it, because of which its manifest stays.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    optimized: Vec<String>,
}

impl Untagged {
    fn new(image: UntaggedImage, is_kept: bool) -> Self {
        Self {
            digest: image.digest.to_string(),
            tags: image.tags,
            untagged_since: date(image.since),
            kept_until: image.until.filter(|_| is_kept).map(date),
            holders: image.holders,
            optimized: image.optimized.iter().map(ToString::to_string).collect(),
        }
    }

    /// The digest, the last tags, and the time since which it has none.
    fn name(&self) -> String {
        let (digest, since) = (&self.digest, &self.untagged_since);
        match self.tags.as_slice() {
            [] => format!("{digest} (without a tag since {since})"),
            tags => format!("{digest} (was {}; without a tag since {since})", tags.join(", ")),
        }
    }
}

impl Pruned {
    fn new(report: PruneReport, dry_run: bool) -> Self {
        Self {
            blobs: report.blobs,
            bytes: report.bytes,
            dry_run,
            images: report.images.into_iter().map(|image| Untagged::new(image, false)).collect(),
            untagged: report.untagged.into_iter().map(|image| Untagged::new(image, true)).collect(),
            ended_leases: report.ended_leases,
            stale_writers: report.stale_writers,
            stale_bytes: report.stale_bytes,
            conversions: report.conversions,
            young_blobs: None,
        }
    }
}

impl Outcome for Pruned {}

impl fmt::Display for Pruned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let would = if self.dry_run { "would be " } else { "" };
        for image in &self.images {
            write!(f, "{would}deleted: {}", image.name())?;
            match image.holders.as_slice() {
                [] => writeln!(f)?,
                holders => writeln!(f, ", although it is needed by {}", holders.join(", "))?,
            }
        }
        for image in &self.untagged {
            let name = image.name();
            match (image.holders.as_slice(), &image.kept_until, image.optimized.as_slice()) {
                ([], Some(until), []) => writeln!(f, "kept until {until}: {name}")?,
                ([], None, []) => writeln!(f, "kept: {name}")?,
                ([], _, made) => {
                    writeln!(f, "kept: {name}, because {} was optimized from it", made.join(", "))?;
                }
                (holders, _, _) => writeln!(f, "kept: {name}, needed by {}", holders.join(", "))?,
            }
        }
        if self.ended_leases > 0 {
            writeln!(f, "{} of disks that are gone {would}ended", count(self.ended_leases, "lease"))?;
        }
        if self.stale_writers > 0 {
            let (left, bytes) = (count(self.stale_writers, "beginning"), ByteSize(self.stale_bytes));
            writeln!(f, "{left} of copies that broke off, {bytes}, {would}deleted")?;
        }
        if self.conversions > 0 {
            writeln!(f, "{} of layers that are gone {would}removed", count(self.conversions, "note"))?;
        }
        if let Some(young) = self.young_blobs.filter(|young| *young > 0) {
            writeln!(f, "{} that nothing needs kept: not a week old", count(young, "blob"))?;
        }
        write!(f, "{} {would}deleted, {} {would}freed", count(self.blobs, "blob"), ByteSize(self.bytes))
    }
}
