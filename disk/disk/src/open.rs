//! Opening an image whose blobs are in a store, in as few steps as its form allows.
//!
//! A layer is opened by code that reads its blob like a file: head, trailer, indices. Here the blob is a
//! [`CachedBlob`], which reports the bytes that it lacks; these are fetched, and the layer is opened again. The bytes
//! that opening will read are guessed first, so that an image made by this project needs one step after the manifest:
//! all heads and all ends at once. For images of other tools the length of the end is guessed, and a short guess costs
//! one step more; all layers take their steps in parallel.

use crate::fetch::Fetcher;
use crate::need::Need;
use crate::opening::{Noting, Opening};
use crate::targets::{OpenedLayer, Target, Targets};
use futures::future::{try_join, try_join_all};
use headstart_block::{ByteRange, Error, ErrorKind, ReadAt, Result};
use headstart_cache::{BlobSpec, Cache, CachedBlob};
use headstart_image::manifest::{self, Manifest};
use headstart_image::open_image::{HEAD, opening_ranges_of, stack_layers};
use headstart_image::turbo::{InflatedCache, check_kinds};
use headstart_lsmt::Stack;
use headstart_store::{Reference, RetrySettings};
use std::sync::Arc;

/// The most bytes of all blobs of an image. Their description takes 704 MiB of memory and of the cache's disk, once
/// some bytes of each were fetched. Lengths come from manifests.
const IMAGE_MAX: u64 = 8 << 40;

/// The most bytes that are fetched in one range because opening met a gap.
const GAP_MAX: u64 = 64 << 20;

/// The most bytes of a boot layer's hash tree that are fetched with its head: all of the tree will be needed, because
/// the layer is preloaded whole, and page by page it would take a request for every few pages. The tree of a layer of
/// 128 MiB.
const BOOT_TREE_MAX: u64 = 512 << 10;

/// The number of times that the same range may come wrong.
const CORRUPT_TRIES: usize = 3;

/// The number of steps that opening a layer may take; a sound layer takes three at most.
const STEPS_MAX: u32 = 64;

/// An image whose layers are open.
pub(crate) struct OpenLayers {
    pub(crate) stack: Stack,
    /// The layers' blobs and their targets, each once.
    pub(crate) blobs: Vec<Arc<CachedBlob>>,
    /// The bytes by which each of them was opened; `None` if its hash tree proves them.
    pub(crate) openings: Vec<Option<Opening>>,
    /// The blob of each source of the stack, as a place in `blobs`.
    pub(crate) of_source: Vec<usize>,
    /// Uncompressed data of targets; `None` if there are none.
    pub(crate) inflated: Option<Arc<InflatedCache>>,
}

/// The blobs that `manifest` names, in the cache.
pub(crate) struct Located {
    /// The layers' blobs, each once.
    pub(crate) blobs: Vec<Arc<CachedBlob>>,
    /// The blob of each layer, as a place in `blobs`, lowest layer first.
    of_layer: Vec<usize>,
    /// The target of the layer of each blob.
    known: Vec<Target>,
    targets: Targets,
}

impl Located {
    pub(crate) fn new(cache: &Arc<Cache>, manifest: &Manifest, origin: &str) -> Result<Self> {
        let (mut blobs, mut of_layer) = (Vec::<Arc<CachedBlob>>::new(), Vec::new());
        let (mut known, targets) = (Vec::new(), Targets::new(cache, origin));
        check_lengths(manifest.disk_layers().map(|layer| layer.blob.size))?;
        for layer in manifest.disk_layers() {
            let digest = layer.blob.digest;
            let same = blobs.iter().position(|blob| blob.spec().digest == digest);
            of_layer.push(match same {
                Some(same) => same,
                None => {
                    let (len, tree) = (layer.blob.size, layer.tree);
                    let spec = BlobSpec { digest, len, tree, origin: Some(origin.to_owned()) };
                    let blob = cache.blob(&spec)?;
                    known.push(targets.look_up(layer, &blob));
                    blobs.push(blob);
                    blobs.len() - 1
                }
            });
        }
        Ok(Self { blobs, of_layer, known, targets })
    }

    /// `true` if every byte of every blob is in the cache, those of targets included.
    pub(crate) fn are_whole(&self) -> bool {
        let is_whole = |blob: &Arc<CachedBlob>| blob.is_local(ByteRange::between(0, blob.len()));
        let has_target = |known: &Target| match known {
            Target::None => true,
            Target::Unknown => false,
            Target::Known(blob) => is_whole(blob),
        };
        self.blobs.iter().all(is_whole) && self.known.iter().all(has_target)
    }

    /// Opens all layers of the image `name`, fetching the bytes that this needs.
    pub(crate) async fn open(
        self,
        name: &Reference,
        manifest: &Manifest,
        fetcher: &Fetcher,
        retry: &RetrySettings,
    ) -> Result<OpenLayers> {
        let layers: Vec<_> = manifest.disk_layers().collect();
        let targets = &self.targets;
        let opening = self.blobs.iter().zip(&self.known).enumerate().map(|(n, (blob, known))| {
            // The same layer may be listed several times; its first description is as good as the others.
            let layer = self.of_layer.iter().position(|of| *of == n).map(|at| layers[at]);
            async move {
                let layer = layer.ok_or_else(|| Error::invalid("a blob without a layer"))?;
                let opened = open_layer(blob, layer, (targets, known), fetcher, retry).await;
                opened.map_err(|e| e.about(format!("{name}, layer {}", layer.blob.digest)))
            }
        });
        let (opened, openings): (Vec<_>, _) = try_join_all(opening).await?.into_iter().unzip();
        self.stack(manifest, &opened, openings)
    }

    /// Puts the layers of the blobs on top of each other.
    fn stack(
        self,
        manifest: &Manifest,
        opened: &[OpenedLayer],
        mut openings: Vec<Option<Opening>>,
    ) -> Result<OpenLayers> {
        check_kinds(opened.iter().filter_map(|opened| opened.target.as_ref()).map(|(_, kind)| *kind))?;
        let layers = self.of_layer.iter().map(|n| opened[*n].layer.clone()).collect();
        let stack = stack_layers(manifest, layers)?;
        let mut blobs = self.blobs;
        let mut of_source = Vec::with_capacity(stack.sources().len());
        for source in stack.sources() {
            let own = self.of_layer[source.layer];
            let target = opened[own].target.as_ref().filter(|_| source.is_target);
            of_source.push(match target {
                None => own,
                Some((target, _)) => match blobs.iter().position(|blob| Arc::ptr_eq(blob, target)) {
                    Some(same) => same,
                    None => {
                        blobs.push(Arc::clone(target));
                        openings.push(Some(Opening::of_nothing(target)));
                        blobs.len() - 1
                    }
                },
            });
        }
        check_lengths(blobs.iter().map(ReadAt::len))?;
        Ok(OpenLayers { stack, blobs, openings, of_source, inflated: self.targets.into_inflated() })
    }
}

/// Refuses an image of impossible size before space is taken for it.
fn check_lengths(blobs: impl Iterator<Item = u64>) -> Result<()> {
    let len = blobs.fold(0, u64::saturating_add);
    if len <= IMAGE_MAX {
        return Ok(());
    }
    Err(Error::unsupported(format!("its layers are said to have {len} bytes in all, more than {IMAGE_MAX}"))
        .remedy("split it into several images"))
}

async fn open_layer(
    blob: &Arc<CachedBlob>,
    layer: &manifest::ImageLayer,
    (targets, known): (&Targets, &Target),
    fetcher: &Fetcher,
    retry: &RetrySettings,
) -> Result<(OpenedLayer, Option<Opening>)> {
    let guess = opening_ranges_of(layer);
    for range in &guess {
        // An index that was changed in the cache since it came would make another disk.
        if let Err(error) = tokio::task::block_in_place(|| blob.recheck(*range)) {
            tracing::warn!(%error, "cannot forget what is wrong");
        }
    }
    let is_boot_layer = layer.boot_bytes().is_some();
    let pages = match blob.tree() {
        Some(tree) if is_boot_layer && tree.len() <= BOOT_TREE_MAX => Pages::All,
        _ => Pages::Needed,
    };
    let finding = targets.find(layer, known, fetcher.store(), retry);
    let (target, ()) = try_join(finding, bring_with(blob, &guess, pages, fetcher, retry)).await?;
    let has_tree = blob.spec().tree.is_some();
    let (mut wrong, mut is_noting) = (Vec::new(), !has_tree);
    for _ in 0..STEPS_MAX {
        let noting = is_noting.then(|| Noting::begin(blob));
        let source = match &noting {
            Some(noting) => Arc::clone(noting) as Arc<dyn ReadAt>,
            None => Arc::clone(blob) as Arc<dyn ReadAt>,
        };
        let error = match targets.open(layer, source, target.as_ref()) {
            Ok(opened) => {
                if let Some(error) = wrong.pop() {
                    let digest = blob.spec().digest;
                    tracing::warn!(%error, blob = %digest, "a layer came wrong from its store; it was fetched again");
                }
                return Ok((opened, noting.filter(|_| !has_tree).map(|noting| noting.finish())));
            }
            Err(error) => error,
        };
        if let Some(absent) = error.absent_range() {
            bring(blob, &[widen(blob, absent)], fetcher, retry).await?;
            continue;
        }
        // Bytes without a proof may have come wrong, and bytes that came right may have been changed since. If they
        // stayed in the cache, the layer would never open.
        let may_be = matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported);
        if may_be && !is_noting {
            is_noting = true;
            continue;
        }
        let read = noting.filter(|_| may_be).map(|noting| noting.finish().ranges);
        let Some(mut read) = read else { return Err(error) };
        // Also the bytes that opening would have read next: they came with these.
        read.extend(&guess);
        let mut dropped = false;
        for range in &read {
            dropped |= blob.discard_wrong(*range)?;
        }
        if !dropped || wrong.len() + 1 >= CORRUPT_TRIES {
            return Err(error);
        }
        wrong.push(error);
        bring(blob, &read, fetcher, retry).await?;
    }
    Err(Error::corrupt("its ends cannot be read in a sensible number of steps"))
}

/// The range to fetch if opening met a gap: at the end of the blob all bytes up to those that are in the cache, since
/// indices are read from front to back.
fn widen(blob: &CachedBlob, absent: ByteRange) -> ByteRange {
    let mut end_starts = blob.len();
    blob.missing(ByteRange::between(0, blob.len()), &mut |run| end_starts = run.end());
    if absent.offset() >= HEAD && absent.offset() < end_starts && end_starts - absent.offset() <= GAP_MAX {
        return ByteRange::between(absent.offset(), end_starts);
    }
    absent
}

/// The pages of a hash tree that are fetched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pages {
    /// Pages that the ranges need.
    Needed,
    All,
}

/// Fetches ranges and the pages of the hash tree that they need, all at once.
async fn bring(
    blob: &Arc<CachedBlob>,
    ranges: &[ByteRange],
    fetcher: &Fetcher,
    retry: &RetrySettings,
) -> Result<()> {
    bring_with(blob, ranges, Pages::Needed, fetcher, retry).await
}

async fn bring_with(
    blob: &Arc<CachedBlob>,
    ranges: &[ByteRange],
    wanted: Pages,
    fetcher: &Fetcher,
    retry: &RetrySettings,
) -> Result<()> {
    let (mut runs, mut pages) = (Vec::new(), Vec::new());
    for range in ranges {
        blob.missing(*range, &mut |run| {
            runs.push(run);
            if wanted == Pages::Needed {
                blob.tree_missing(run, &mut |run| pages.push(run));
            }
        });
    }
    if let Some(tree) = blob.tree().filter(|_| wanted == Pages::All) {
        tree.missing(ByteRange::between(0, tree.len()), &mut |run| pages.push(run));
    }
    let data = runs.into_iter().map(|run| (blob, run));
    let tree = blob.tree().map(|tree| pages.into_iter().map(move |run| (tree, run))).into_iter().flatten();
    let fetching =
        data.chain(tree).map(|(blob, run)| retry.run(move || bring_right(blob, run, fetcher), |_| ()));
    try_join_all(fetching).await?;
    Ok(())
}

/// Fetches a range; wrong bytes are fetched again at once, as the pull engine does.
async fn bring_right(blob: &Arc<CachedBlob>, range: ByteRange, fetcher: &Fetcher) -> Result<bool> {
    for _ in 1..CORRUPT_TRIES {
        match fetcher.fetch(blob, range, &Need::DEMAND, &|| ()).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                tracing::warn!(%error, "wrong bytes came from the store; they are fetched again");
            }
            result => return result,
        }
    }
    fetcher.fetch(blob, range, &Need::DEMAND, &|| ()).await
}
