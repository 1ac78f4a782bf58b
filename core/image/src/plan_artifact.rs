//! Plans that travel with images: the plan made from an image's boots, as an artifact beside it.
//!
//! An artifact is a manifest of its own whose `subject` is the image's, so the image keeps its digest while its plans
//! change. Registries list the artifact beside the image, and remove it with the image; in directories and object
//! stores the list is an index under a tag (`headstart_store::referrers`). The content of the artifact is opaque here:
//! a file of plans for this image alone, as `headstart-plan` writes it.
//!
//! The manifest of the artifact has these fields and annotations:
//!
//! | field or annotation | value |
//! |---|---|
//! | `artifactType` | [`PLAN`] |
//! | `subject` | the image's manifest |
//! | `config` | the empty config of OCI, `{}` |
//! | `layers` | one: the file of plans, of media type [`PLAN`] |
//! | `dev.headstart.plan.generation` | the number of times that a plan was published: the highest is the newest |
//! | `dev.headstart.plan.traces` | the number of recorded boots from which the plan was made |
//! | `dev.headstart.plan.policy` | the policy that made the plan |
//! | `dev.headstart.plan.disk-of` | other images with the same disk, whose names the plan and its boots may have |
//!
//! There are no dates: the same plan published as the same generation is the same artifact, byte for byte. Publishing a
//! plan that is published already changes nothing. Several plans may be listed, because two hosts published at once, or
//! because a registry keeps old ones. Then the highest generation counts; among equal generations, the largest number
//! of traces; among those, the greatest digest. So all readers choose the same plan, and the next publication replaces
//! all of them.
//!
//! The list of a store is not trusted: an artifact counts only if its manifest matches its digest, is of this kind and
//! has this image as its subject, and if the file matches the digest in that manifest. An artifact that fails is
//! skipped, and the next is tried, up to four in all.

use crate::manifest::{MANIFEST_OCI, Manifest};
use bytes::Bytes;
use headstart_block::{ByteRange, Digest, Error, ErrorKind, Result};
use headstart_store::media_type::CONFIG_EMPTY;
use headstart_store::{Referrer, RetrySettings, Selector, Store, Urgency};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The artifact type of a published preload plan, and the media type of the plan file in it.
pub const PLAN: &str = "application/vnd.headstart.plan.v1";
/// Key of an annotation: the generation of the plan, which is the number of times that a plan was published
/// for the image, from 1.
pub const GENERATION: &str = "dev.headstart.plan.generation";
/// Key of an annotation: the number of boot traces from which the plan was made.
pub const TRACES: &str = "dev.headstart.plan.traces";
/// Key of an annotation: the name of the policy (planning algorithm) that made the plan.
pub const POLICY: &str = "dev.headstart.plan.policy";

/// Key of an annotation: the digests, with commas between them, of images with the same disk that the image has taken
/// the place of. The plan, and the boots that it was made from, may have the names of these.
pub const DISK_OF: &str = "dev.headstart.plan.disk-of";

/// The most images that are named as having the same disk; the latest.
const DISK_OF_MOST: usize = 8;

/// The largest plan file that is accepted from a store, in bytes. The plan file of one image usually has some
/// hundred kilobytes.
pub const PLAN_MAX: u64 = 64 << 20;

/// The config of an artifact that needs none.
pub(crate) const EMPTY_CONFIG: &[u8] = b"{}";

/// The number of artifacts that are tried before an error says that none is sound.
const MOST_TRIED: usize = 4;

/// Information about the origin of a plan, stored in the annotations of its artifact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The number of recorded boots from which the plan was made; 0 if that is not known.
    pub traces: u64,
    /// The name of the policy (planning algorithm) that made the plan; empty if that is not known.
    pub policy: String,
    /// The images with the same disk that the image has taken the place of, the latest first.
    pub disk_of: Vec<Digest>,
}

/// Describes the plan that [`publish`] left in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The digest of the manifest of the plan's artifact.
    pub digest: Digest,
    /// The generation of the plan: the number of times that a plan was published for the image, from 1.
    pub generation: u64,
    /// `true` if a plan was published by this call; `false` if the newest plan in the store was the same
    /// already.
    pub is_new: bool,
}

/// A plan that was found in a store, published with an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPlan {
    /// The digest of the manifest of the plan's artifact.
    pub digest: Digest,
    /// The plan file, which `headstart_plan::PlanFile` opens.
    pub bytes: Bytes,
    /// The generation of the plan: the number of times that a plan was published for the image, from 1; 0 if
    /// that is not known.
    pub generation: u64,
    /// Information about the origin of the plan.
    pub about: About,
}

/// An artifact, read and checked, except for the file itself.
struct Artifact {
    manifest: Bytes,
    digest: Digest,
    file: Digest,
    size: u64,
    generation: u64,
    about: About,
}

impl Artifact {
    /// Reads a manifest, `bytes`, that is listed as an artifact of `subject`.
    fn parse(bytes: Bytes, subject: &Digest) -> Result<Self> {
        let value: Value =
            serde_json::from_slice(&bytes).map_err(|e| Error::corrupt("is not JSON").caused_by(e))?;
        if value["artifactType"] != PLAN {
            return Err(Error::corrupt("is not an artifact with plans, though it is listed as one"));
        }
        if value["subject"]["digest"] != subject.to_string() {
            return Err(Error::corrupt("belongs to another image, though it is listed with this one"));
        }
        let Some([layer]) = value["layers"].as_array().map(Vec::as_slice) else {
            return Err(Error::corrupt("has not exactly one file of plans"));
        };
        if layer["mediaType"] != PLAN {
            return Err(Error::unsupported("has plans in a form that this version does not know"));
        }
        let file = layer["digest"].as_str().unwrap_or_default().parse::<Digest>()?;
        let size = layer["size"].as_u64().filter(|size| (1..=PLAN_MAX).contains(size)).ok_or_else(|| {
            Error::unsupported(format!("has a file of plans of no bytes, or more than {PLAN_MAX}"))
        })?;
        let annotation = |key| value["annotations"][key].as_str();
        let number = |key| annotation(key).and_then(|text| text.parse().ok()).unwrap_or_default();
        let text = |key| annotation(key).unwrap_or_default();
        let disk_of = text(DISK_OF).split(',').take(DISK_OF_MOST).filter_map(|text| text.parse().ok());
        let (traces, policy) = (number(TRACES), text(POLICY).to_owned());
        let about = About { traces, policy, disk_of: disk_of.collect() };
        let digest = Digest::of(&bytes);
        Ok(Self { generation: number(GENERATION), manifest: bytes, digest, file, size, about })
    }

    /// Fetches and checks the file.
    async fn file(&self, store: &dyn Store) -> Result<Bytes> {
        let range = ByteRange::between(0, self.size);
        // Urgent because a caller waits for it: a disk that has been attached.
        let once = || store.read(&self.file, range, Urgency::Demand);
        let bytes = RetrySettings::default().run(once, |_| ()).await?;
        if Digest::of(&bytes) != self.file {
            return Err(
                Error::corrupt("does not match its digest").about(format!("file of plans {}", self.file))
            );
        }
        Ok(bytes)
    }
}

/// The key of an order with the newest artifact first.
fn rank(listed: &Referrer) -> impl Ord + use<> {
    let number =
        |key| listed.annotations.get(key).and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
    Reverse((number(GENERATION), number(TRACES), listed.digest))
}

/// All that a store lists with `image`, the newest first.
async fn listed(store: &dyn Store, image: &Digest) -> Result<Vec<Referrer>> {
    let mut all = store.referrers(image, PLAN).await?;
    all.sort_by_cached_key(rank);
    Ok(all)
}

/// The newest of the listed artifacts that is sound, with its file if that is wanted; the errors of those before it are
/// logged.
async fn first_sound(
    store: &dyn Store,
    image: &Digest,
    all: &[Referrer],
    wanted: Wanted,
) -> Result<Option<(Artifact, Bytes)>> {
    let mut last = None;
    for entry in all.iter().take(MOST_TRIED) {
        let error = match read(store, image, &entry.digest, wanted).await {
            Ok(sound) => return Ok(Some(sound)),
            Err(error) => error.about(format!("plan {} of image {}@{image}", entry.digest, store.name())),
        };
        if !is_unsound(&error) {
            return Err(error);
        }
        tracing::debug!(%error, "a plan that is listed is passed over");
        last = Some(error);
    }
    last.map_or(Ok(None), Err)
}

/// The parts of an artifact to read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Manifest,
    File,
}

/// Returns `true` if an error says that an artifact is not valid, rather than that the store fails.
#[must_use]
pub fn is_unsound(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt | ErrorKind::Unsupported)
}

async fn read(
    store: &dyn Store,
    image: &Digest,
    artifact: &Digest,
    wanted: Wanted,
) -> Result<(Artifact, Bytes)> {
    let (digest, bytes) = store.manifest(&Selector::Digest(*artifact)).await?;
    if digest != *artifact {
        return Err(Error::corrupt("is an index of several, not an artifact"));
    }
    let artifact = Artifact::parse(bytes, image)?;
    let file = match wanted {
        Wanted::Manifest => Bytes::new(),
        Wanted::File => artifact.file(store).await?,
    };
    Ok((artifact, file))
}

/// Finds the newest valid plan that was published with an image. `image` is the digest of the image's
/// manifest. `None` if no plan is listed with the image.
///
/// # Errors
/// Errors of the store; [`ErrorKind::Corrupt`], [`ErrorKind::Unsupported`] or [`ErrorKind::NotFound`] if plans are
/// listed, but none of the four newest can be used.
pub async fn find(store: &dyn Store, image: &Digest) -> Result<Option<FoundPlan>> {
    let all = listed(store, image).await?;
    let found = first_sound(store, image, &all, Wanted::File).await?;
    Ok(found.map(|(artifact, bytes)| {
        let Artifact { digest, generation, about, .. } = artifact;
        FoundPlan { digest, bytes, generation, about }
    }))
}

/// Finds the plan that was published with an image or, if there is none, with the image from which it was
/// optimized, which has the same disk. `image` is the digest of `manifest`. `None` if neither has a plan.
///
/// # Errors
/// As [`find`].
pub async fn find_known(store: &dyn Store, image: &Digest, manifest: &Manifest) -> Result<Option<FoundPlan>> {
    let own = find(store, image).await?;
    match manifest.optimized_from() {
        Some(source) if own.is_none() && source != *image => find(store, &source).await,
        _ => Ok(own),
    }
}

/// Publishes a plan file with an image, in place of the plan that was published before. `image` is the digest
/// of the image's manifest; `about` is recorded with the plan. If the newest published plan has the same
/// content and the same `about`, nothing changes.
///
/// # Errors
/// [`ErrorKind::Invalid`] if `plan` is empty or longer than [`PLAN_MAX`]; [`ErrorKind::NotFound`] if there is
/// no such image; [`ErrorKind::ReadOnly`] if the store cannot be written; [`ErrorKind::Conflict`] if other
/// writers keep changing the store at the same time; other errors of the store.
pub async fn publish(
    store: &Arc<dyn Store>,
    image: &Digest,
    plan: Bytes,
    about: &About,
) -> Result<Published> {
    if plan.is_empty() || plan.len() as u64 > PLAN_MAX {
        return Err(Error::invalid(format!("a file of plans has 1 to {PLAN_MAX} bytes, not {}", plan.len())));
    }
    // The entry is listed under the image itself, not under an index of several platforms' images.
    let (image, manifest) = store.manifest(&Selector::Digest(*image)).await?;
    Manifest::parse(&manifest).map_err(|e| e.about(format!("image {}@{image}", store.name())))?;
    let all = listed(&**store, &image).await?;
    let newest = match first_sound(&**store, &image, &all, Wanted::Manifest).await {
        // None of them is of any use then.
        Err(error) if is_unsound(&error) => None,
        newest => newest?.map(|(artifact, _)| artifact),
    };
    let file = Digest::of(&plan);
    if let Some(same) = newest.as_ref().filter(|old| old.file == file && old.about == *about)
        && store.blob_len(&file).await? == Some(plan.len() as u64)
    {
        return Ok(Published { digest: same.digest, generation: same.generation, is_new: false });
    }
    let generation = newest.map_or(0, |old| old.generation).saturating_add(1);
    let artifact = manifest_of(image, &manifest, &plan, generation, about);
    store.prepare_to_write().await?;
    let replaced: Vec<Digest> = all.iter().map(|entry| entry.digest).collect();
    let written = async {
        put_blobs(store, &[&plan]).await?;
        store.put_referrer(&image, MANIFEST_OCI, artifact.into(), &replaced).await
    };
    let written = written.await;
    // Also after a failure: no other process has to wait for this writer.
    store.done_writing().await;
    Ok(Published { digest: written?, generation, is_new: true })
}

/// The plan of an image that another with the same disk is to take the place of, with the names of that disk. An error
/// is only logged.
pub(crate) async fn inherited(store: &dyn Store, old: Option<Digest>) -> Option<FoundPlan> {
    let old = old?;
    let found = find(store, &old).await;
    let found = found.inspect_err(|error| tracing::warn!(%error, "the plan of the form before is lost"));
    let mut plan = found.ok()??;
    let known = &mut plan.about.disk_of;
    known.retain(|known| *known != old);
    known.insert(0, old);
    known.truncate(DISK_OF_MOST);
    Some(plan)
}

/// Publishes an [`inherited`] plan with the image that has taken the place of the old one, unless it has one of its
/// own. `manifest` is the manifest of that image, which the store has. An error is only logged.
pub(crate) async fn hand_down(store: &Arc<dyn Store>, plan: Option<FoundPlan>, manifest: &Bytes) {
    let Some(plan) = plan else { return };
    if let Err(error) = put_inherited(store, &plan, manifest).await {
        tracing::warn!(%error, "the plan of the form before is lost");
    }
}

async fn put_inherited(store: &Arc<dyn Store>, plan: &FoundPlan, manifest: &Bytes) -> Result<()> {
    let image = Digest::of(manifest);
    if !listed(&**store, &image).await?.is_empty() {
        return Ok(());
    }
    let artifact = manifest_of(image, manifest, &plan.bytes, plan.generation, &plan.about);
    put_blobs(store, &[&plan.bytes]).await?;
    store.put_referrer(&image, MANIFEST_OCI, artifact.into(), &[]).await.map(drop)
}

/// Writes the small blobs that are not there yet, and the empty config.
pub(crate) async fn put_blobs(store: &Arc<dyn Store>, blobs: &[&Bytes]) -> Result<()> {
    for bytes in blobs.iter().map(|bytes| &bytes[..]).chain([EMPTY_CONFIG]) {
        let digest = Digest::of(bytes);
        if store.blob_len(&digest).await? != Some(bytes.len() as u64) {
            store.put_blob(&digest, Arc::new(bytes.to_vec()), &|_| Ok(())).await?;
        }
    }
    Ok(())
}

/// The artifact's manifest: the same for the same plan and generation.
fn manifest_of(image: Digest, subject: &[u8], plan: &[u8], generation: u64, about: &About) -> Vec<u8> {
    let mut annotations = BTreeMap::from([
        (GENERATION, generation.to_string()),
        (TRACES, about.traces.to_string()),
        (POLICY, about.policy.clone()),
    ]);
    if !about.disk_of.is_empty() {
        let known: Vec<_> = about.disk_of.iter().map(Digest::to_string).collect();
        annotations.insert(DISK_OF, known.join(","));
    }
    let artifact = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_OCI,
        "artifactType": PLAN,
        "config": {
            "mediaType": CONFIG_EMPTY, "digest": Digest::of(EMPTY_CONFIG).to_string(), "size": EMPTY_CONFIG.len(),
        },
        "layers": [{ "mediaType": PLAN, "digest": Digest::of(plan).to_string(), "size": plan.len() }],
        "subject": {
            "mediaType": crate::manifest::media_type(subject), "digest": image.to_string(), "size": subject.len(),
        },
        "annotations": annotations,
    });
    artifact.to_string().into_bytes()
}

/// Copies the newest plan of `image` along from one store to another, which has the image already. Returns the digest
/// of the copied artifact; `None` if the other store lacks nothing.
///
/// # Errors
/// Errors of the stores. The image is not harmed.
pub(crate) async fn take_along(
    source: &Arc<dyn Store>,
    target: &Arc<dyn Store>,
    image: &Digest,
) -> Result<Option<Digest>> {
    let theirs = listed(&**source, image).await?;
    let sound = first_sound(&**source, image, &theirs, Wanted::File).await?;
    let Some((artifact, file)) = sound else { return Ok(None) };
    let ours = listed(&**target, image).await?;
    let Some(entry) = theirs.iter().find(|entry| entry.digest == artifact.digest) else { return Ok(None) };
    if ours.first().is_some_and(|newest| rank(newest) <= rank(entry)) {
        return Ok(None);
    }
    put_blobs(target, &[&file]).await?;
    let replaced: Vec<Digest> = ours.iter().map(|entry| entry.digest).collect();
    target.put_referrer(image, MANIFEST_OCI, artifact.manifest, &replaced).await.map(Some)
}
