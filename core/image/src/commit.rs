//! Layers made of data that is written already: committing a writable layer, flattening an image.

use crate::disk_form::{FormWish, wanted_form};
use crate::kept_base;
use crate::layer_file::open_pair_files;
use crate::new_image::{Builder, NewImageReport};
use crate::new_layer::{LayerOutput, Packing, describe};
use crate::open_image::OpenImage;
use crate::optimize::Source;
use crate::progress::{Progress, step};
use crate::reference::{Location, Reference, Selector};
use crate::served_disk::{ServedCommitRequest, ServedDisk};
use crate::stacked::{CommittedLayer, stack_on};
use crate::store::{ImageStore, by_digest};
use crate::store_access::StoreAccess;
use headstart_block::{BlockDevice, Error, ErrorKind, Result, SECTOR_SIZE};
use headstart_lsmt::writable::WritableDisk;
use headstart_lsmt::{Layer, LayerWriter, Segment, Stack, copy_segments};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An unsealed (still writable) layer that is to become the top layer of a new image.
#[derive(Clone, Debug)]
pub enum Upper {
    /// A writable directory, which holds a writable layer and records its base image. If a process has its disk open,
    /// that process gives the layer, as of one moment, and the disk goes on.
    Writable {
        /// The path of the directory.
        dir: PathBuf,
        /// `true` to make the new image the base of the disk, in the place of the old base and of all that the layer
        /// has. The new image must be in a directory then.
        stack: bool,
    },
    /// The two files of a writable layer, which any tool for the format may have written.
    Pair {
        /// The path of the layer's data file.
        data: PathBuf,
        /// The path of the layer's index file.
        index: PathBuf,
    },
}

/// Publishes a new image under the tag `target`, which must be in a local directory: the layers of `base`, and on top
/// of them a new layer with the data of `upper`. `base` must be in a local directory, too. `None` as `base` means, for
/// a writable directory, the base that it records; if it records none, and for a pair of files, the image has no base.
///
/// # Errors
/// [`headstart_block::ErrorKind::Conflict`] if a writable directory is based on another image, or is in use by a
/// process that does not answer;
/// [`headstart_block::ErrorKind::Unsupported`] if `target` or the base is in a remote store;
/// [`headstart_block::ErrorKind::Invalid`] if `target` has a digest in place of a tag, or the base has the most layers
/// that an image can have; errors of reading the layers or writing to the store. No image is published then, unless
/// only the last step failed, the syncing of the store's directory.
pub fn commit(
    upper: &Upper,
    base: Option<&Reference>,
    target: &Reference,
    packing: &Packing,
    progress: &dyn Progress,
) -> Result<NewImageReport> {
    let noted = match (upper, base) {
        (Upper::Writable { dir, .. }, None) => noted_base(dir)?,
        _ => None,
    };
    let open = |base: &Reference| {
        let open = OpenImage::open(base)?;
        if !is_other_form(&open, upper) {
            return Ok(open);
        }
        let (form, _) =
            ImageStore::open(base.directory()?)?.wanted_form(&base.selector, FormWish::Writable)?;
        OpenImage::open(&by_digest(base, form.digest))
    };
    let base = base.or(noted.as_ref()).map(open).transpose();
    let base = base.map_err(|e| named_by_option(e, noted.is_some()))?;
    let builder = Builder::new(target, packing)?.on(base.as_ref(), progress)?;
    write_upper(builder, upper, base, progress, None)
}

/// Publishes a new image as [`commit`] does, in a store of any kind. `base` may be in any store, too; of one in a
/// remote store, only the beginnings and ends of the layers are read. The layers of the base are taken over where the
/// target is a repository of the same registry, are left alone where the target has them, and are copied otherwise;
/// the new layer alone is made here.
///
/// # Errors
/// Those of [`commit`], apart from that of remote stores; errors of the stores. No image is published then, but a store
/// that is not a directory may keep blobs that nothing refers to.
pub fn commit_and_push(
    upper: &Upper,
    base: Option<&Reference>,
    target: &Reference,
    packing: &Packing,
    stores: StoreAccess<'_>,
    progress: &dyn Progress,
) -> Result<NewImageReport> {
    let noted = match (upper, base) {
        (Upper::Writable { dir, .. }, None) => base_to_push_on(dir, &target.location),
        _ => None,
    };
    let open = |base: &Reference| {
        let open = Source::open(base, stores)?;
        if !is_other_form(open.image(), upper) {
            return Ok(open);
        }
        let store = stores.store(&base.location)?;
        let form = stores.runtime.block_on(wanted_form(&*store, &base.selector, FormWish::Writable))?;
        Source::open(&by_digest(base, form.digest), stores)
    };
    let base = base.or(noted.as_ref()).map(open).transpose();
    let base = base.map_err(|e| named_by_option(e, noted.is_some()))?;
    let mut builder = Builder::anywhere(target, packing)?;
    if let Some(base) = &base {
        builder = builder.on_layers(base.image(), base.config()?)?;
    }
    write_upper(builder, upper, base.map(Source::into_image), progress, Some(stores))
}

/// `true` if the base that a tag has led to is a form that can only be read, and the disk is based on another one.
fn is_other_form(base: &OpenImage, upper: &Upper) -> bool {
    let Upper::Writable { dir, .. } = upper else { return false };
    matches!(base.reference.selector, Selector::Tag(_))
        && base.manifest.is_only_read()
        && WritableDisk::inspect(dir).is_ok_and(|info| info.parent != base.digest.to_string())
}

/// An error of opening the base, which the user can name if it was only noted.
fn named_by_option(error: Error, is_noted: bool) -> Error {
    if is_noted { error.remedy("name a copy of the image that it was written on by --base") } else { error }
}

/// Puts the data of `upper` on top and publishes the image: in a directory, or by `stores`.
fn write_upper(
    builder: Builder<'_>,
    upper: &Upper,
    base: Option<OpenImage>,
    progress: &dyn Progress,
    stores: Option<StoreAccess<'_>>,
) -> Result<NewImageReport> {
    match upper {
        Upper::Writable { dir, stack } => commit_writable(builder, dir, *stack, base, (stores, progress)),
        Upper::Pair { data, index } => {
            commit_pair(builder, open_pair_files(data, index)?, base.as_ref(), progress, stores)
        }
    }
}

/// The image that a writable directory is based on, if it records one.
fn noted_base(dir: &Path) -> Result<Option<Reference>> {
    if let Some(kept) = kept_base::find(dir) {
        return Ok(Some(kept));
    }
    let Some(base) = recorded_base(dir) else { return Ok(None) };
    if base.location.is_remote() {
        return Err(Error::unsupported(format!("is based on {base}, which is not in a directory"))
            .about(dir.display())
            .remedy(format!(
                "run `headstart image pull {base} file:///DIR:TAG`, and name that by --base; or make the image in a \
                 registry, by --push"
            )));
    }
    Ok(Some(base))
}

/// The image that a writable directory is based on, for an image in `target`: in a registry that may have its layers
/// already, if possible, otherwise in the directory's own copy.
fn base_to_push_on(dir: &Path, target: &Location) -> Option<Reference> {
    let registry = |location: &Location| match location {
        Location::Registry { host, .. } => Some(host.clone()),
        _ => None,
    };
    let recorded = recorded_base(dir);
    let is_beside = |base: &Reference| {
        base.location == *target
            || registry(&base.location).is_some_and(|host| registry(target) == Some(host))
    };
    recorded.clone().filter(is_beside).or_else(|| kept_base::find(dir)).or(recorded)
}

/// The image that a writable directory is based on, under the name that it had when the disk was attached last.
fn recorded_base(dir: &Path) -> Option<Reference> {
    // Damage of the directory is reported when it is opened.
    let info = WritableDisk::inspect(dir).ok()?;
    let noted = info.reference?.parse::<Reference>().ok()?;
    Some(by_digest(&noted, info.parent.parse().ok()?))
}

fn commit_writable(
    mut builder: Builder<'_>,
    dir: &Path,
    stack: bool,
    base: Option<OpenImage>,
    (stores, progress): (Option<StoreAccess<'_>>, &dyn Progress),
) -> Result<NewImageReport> {
    if stack && builder.target().location.is_remote() {
        return Err(Error::unsupported(
            "is not in a directory of this host, where the disk could go on with it",
        )
        .about(builder.target())
        .remedy("leave out --stack, or make the image in a directory and push it"));
    }
    let parent = base.as_ref().map(|base| base.digest.to_string()).unwrap_or_default();
    let base = base.map(|base| Arc::new(base.into_disk()));
    let disk = match WritableDisk::open(dir, base.clone().map(|base| base as Arc<dyn BlockDevice>), &parent) {
        Ok(disk) => disk,
        Err(error) if error.kind() == ErrorKind::Conflict => {
            // Processes of earlier versions do not answer.
            let served = ServedDisk::connect(dir).ok_or(error)?;
            let served = ServedSource { served, dir, stack, parent, base };
            return commit_served(builder, served, (stores, progress));
        }
        Err(error) => return Err(error),
    };
    if let Some(base) = &base {
        builder.hide_past_end(base, disk.size())?;
    }
    let commit = if stack { disk.begin_stack()? } else { disk.begin_commit()? };
    progress.begin("commit", commit.data_bytes());
    let target = builder.target();
    let mut written = None;
    let made =
        builder.publish(stores.map(|stores| (stores, progress)), commit.virtual_size(), |output, meta| {
            let (output, summary) = commit.write(Watched { output, progress }, meta)?;
            written = Some(summary);
            Ok((output.output, summary))
        })?;
    let Some(written) = written.filter(|_| stack) else { return Ok(made) };
    let committed = CommittedLayer::Written(written);
    let stacked = stack_on(&disk, dir, target, (made.digest, committed), disk.uuid());
    let stacked = stacked.map_err(|e| not_stacked(&e, target))?;
    stacked.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    Ok(NewImageReport { stacked: true, ..made })
}

/// A disk that another process serves, to be committed.
struct ServedSource<'a> {
    served: ServedDisk,
    dir: &'a Path,
    stack: bool,
    /// The name that the base has for the disk.
    parent: String,
    base: Option<Arc<Stack>>,
}

fn commit_served(
    mut builder: Builder<'_>,
    from: ServedSource<'_>,
    (stores, progress): (Option<StoreAccess<'_>>, &dyn Progress),
) -> Result<NewImageReport> {
    let ServedSource { served, dir, stack, parent, base } = from;
    let mut commit = served.commit(ServedCommitRequest {
        parent,
        parent_uuid: builder.parent_uuid(),
        packing: describe(builder.packing()),
        stack,
    })?;
    let size = commit.virtual_size;
    if let Some(base) = &base {
        builder.hide_past_end(base, size)?;
    }
    progress.begin("commit", commit.data_bytes);
    let moment = commit.moment.clone();
    let (target, pushing) = (builder.target(), stores.map(|stores| (stores, progress)));
    let made = match commit.sealed.take() {
        Some(sealed) => builder.publish_staged(pushing, size, |staging, _, _| {
            let staged = sealed.stage(dir, staging)?;
            step(progress, commit.data_bytes)?;
            Ok(staged)
        }),
        None => builder.publish(pushing, size, |output, _| {
            let mut watched = Watched { output, progress };
            let summary = commit.copy_to(&mut watched)?;
            Ok((watched.output, summary))
        }),
    }?;
    if stack {
        let stacked = commit.stack(target.to_string(), made.digest.to_string());
        stacked.map_err(|e| not_stacked(&e, target))?;
    }
    Ok(NewImageReport { stacked: stack, moment: Some(moment), ..made })
}

/// The error of a disk that does not go on with the image that was made of it.
fn not_stacked(error: &Error, target: &Reference) -> Error {
    Error::new(error.kind(), format!("{target} was made, but the disk goes on with its old base: {error}"))
}

fn commit_pair(
    mut builder: Builder<'_>,
    upper: Layer,
    base: Option<&OpenImage>,
    progress: &dyn Progress,
    stores: Option<StoreAccess<'_>>,
) -> Result<NewImageReport> {
    let own_size = upper.info().virtual_size;
    let base_size = base.map_or(0, |base| base.disk().size());
    let upper = Stack::new(vec![upper])?;
    let size = if own_size == 0 { base_size.max(upper.size()) } else { own_size };
    if let Some(base) = base {
        builder.hide_past_end(base.disk(), size)?;
    }
    publish_segments(builder, &upper.with_size(size), Zeroed::Kept, progress, stores)
}

/// Reports the bytes that pass through, and ends the work if the user wants to stop.
struct Watched<'a> {
    output: LayerOutput,
    progress: &'a dyn Progress,
}

impl Write for Watched<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        step(self.progress, buf.len() as u64)?;
        self.output.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

/// Publishes a new image under the tag `target`. Its only layer holds the whole disk of the image `source`. Both must
/// be in local directories.
///
/// # Errors
/// [`headstart_block::ErrorKind::Unsupported`] if `source` or `target` is in a remote store;
/// [`headstart_block::ErrorKind::Invalid`] if `target` has a digest in place of a tag; errors of reading the image or
/// writing to the store. No image is published then, unless only the last step failed, the syncing of the store's
/// directory.
pub fn flatten(
    source: &Reference,
    target: &Reference,
    packing: &Packing,
    progress: &dyn Progress,
) -> Result<NewImageReport> {
    let disk = OpenImage::open(source)?.into_disk();
    publish_segments(Builder::new(target, packing)?, &disk, Zeroed::Dropped, progress, None)
}

/// The treatment of zeroed segments: kept to hide data below, or dropped if there is nothing below.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zeroed {
    Kept,
    Dropped,
}

fn publish_segments(
    builder: Builder<'_>,
    disk: &Stack,
    zeroed: Zeroed,
    progress: &dyn Progress,
    stores: Option<StoreAccess<'_>>,
) -> Result<NewImageReport> {
    let inside = disk.index().lookup(0, disk.size().div_ceil(SECTOR_SIZE));
    let kept = inside.filter(|segment| zeroed == Zeroed::Kept || !segment.is_zeroed());
    let segments: Vec<Segment> = kept.collect();
    progress.begin("write layer", segments.iter().map(|segment| segment.len() * SECTOR_SIZE).sum());
    let write = |output, meta| {
        let mut layer = LayerWriter::new(output, meta)?;
        copy_segments(disk, segments, &mut layer, &mut |bytes| step(progress, bytes))?;
        layer.finish()
    };
    builder.publish(stores.map(|stores| (stores, progress)), disk.size(), write)
}
