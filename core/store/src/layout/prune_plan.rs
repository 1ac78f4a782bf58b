//! [`PrunePlan`]: the decision of a prune, for directories and object stores alike: the blobs that stay, with the
//! reasons.
//!
//! The plan reads nothing itself. It asks for documents ([`PrunePlan::wanted`]), gets them ([`PrunePlan::give`]), and
//! asks on until it can decide:
//!
//! ```text
//! 1. named       all that the index leads to; lists of artifacts only if their subjects were met
//! 2. candidates  small blobs that nothing named leads to: images without a name, or no images
//! 3. kept        images that leases name, and images that lost their last name not long ago
//! ```
//!
//! To be on the safe side with documents of later versions and other tools, *every* digest anywhere in a
//! document that is kept counts ([`collect_digests`]). A document that the index names has to be there, because it
//! might lead to anything; one that another document names may be missing, because other tools copy a single
//! platform's.
//!
//! An image that another one was optimized from is named by that one's manifest. As an image without a name it is kept
//! for a while like any other; later only its manifest stays, because only that was named.

use super::{
    LayoutIndex, Lease, MAX_DEPTH, Mark, collect_digests, image_document, leads_further, referrers_subject,
};
use crate::MAX_MANIFEST_SIZE;
use crate::reference::Tag;
use headstart_block::{Digest, Error, ErrorKind, Result};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

/// The annotation of a manifest with the digest of the manifest of the image of which this one is a new layout.
const OPTIMIZED_FROM: &str = "dev.headstart.optimized-from";

/// The rules that decide which images and blobs a prune deletes.
#[derive(Clone, Copy, Debug)]
pub struct PruneRules {
    /// The current time, from which all ages are measured.
    pub now: SystemTime,
    /// The duration for which an image is kept after it lost its last tag.
    pub older_than: Duration,
    /// The minimum age of a blob that may be deleted, counted from the time at which the blob was written. Zero: a
    /// blob of any age may be deleted.
    pub least_age: Duration,
    /// `true` if no blob may be deleted, because another writer publishes blobs before the image that needs
    /// them.
    pub keeps_all: bool,
    /// `true` if leases do not protect images.
    pub ignores_leases: bool,
}

/// A blob as it is listed in a store.
#[derive(Clone, Copy, Debug)]
pub struct StoredBlob {
    /// The sha256 digest of the blob.
    pub digest: Digest,
    /// The length of the blob in bytes.
    pub len: u64,
    /// The time at which the blob was written, by the clock of the store.
    pub written: SystemTime,
}

/// The content of the store that a prune examines.
#[derive(Debug)]
pub struct PruneInput<'a> {
    /// The index of the store, which lists the images with their tags.
    pub index: &'a LayoutIndex,
    /// All blobs of the store.
    pub blobs: Vec<StoredBlob>,
    /// The leases that are valid.
    pub leases: Vec<Lease>,
    /// The images whose leases have just ended. If such an image has no tag, the time for which it is kept starts now.
    pub ended: BTreeSet<Digest>,
    /// The images that are recorded to have lost their last tag, with the record of each.
    pub marks: BTreeMap<Digest, Mark>,
}

/// An image that no entry of the index names: it lost its last tag, or was never given one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UntaggedImage {
    /// The digest of the image's manifest.
    pub digest: Digest,
    /// The last tags that the image had; empty if they are not known.
    pub tags: Vec<String>,
    /// The time at which the image lost its last tag, or was first found without one.
    #[serde(skip)]
    pub since: SystemTime,
    /// The time from which a prune deletes the image, unless a lease protects it. `None` if that time is too
    /// late to be represented.
    #[serde(skip)]
    pub until: Option<SystemTime>,
    /// The disks whose leases are on the image. Each entry describes one disk for users, such as "the writable
    /// directory DIR on HOST". Empty if there are none.
    pub holders: Vec<String>,
    /// The manifest digests of the images that were made from this one by an optimization (the same disk with
    /// its data in another order).
    pub optimized: Vec<Digest>,
}

/// The decision of a prune: the blobs to delete and to keep.
#[derive(Debug)]
pub struct PruneDecision {
    /// The blobs to delete, in this order. Manifests of images come first, so that an interrupted prune
    /// leaves no image with missing blobs.
    pub deleted: Vec<StoredBlob>,
    /// The blobs that nothing needs, but that are too young to be deleted.
    pub young: Vec<StoredBlob>,
    /// The blobs that are needed and stay.
    pub kept: Vec<StoredBlob>,
    /// The images that are deleted, because their manifests are among the blobs to delete.
    pub images: Vec<UntaggedImage>,
    /// The images without a tag that are kept.
    pub untagged: Vec<UntaggedImage>,
    /// The tags of lists of artifacts whose subject (the manifest that they belong to) is gone. These entries
    /// are to be removed from the index.
    pub orphans: Vec<Tag>,
}

/// A request for a document (a manifest or an index) that has to be read to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The digest of the document.
    pub digest: Digest,
    /// The extent to which the document may be missing or damaged.
    pub need: DocumentNeed,
}

/// The extent to which a document may be missing or damaged without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentNeed {
    /// The document must be there and be readable.
    Required,
    /// The document may be missing, but must not be damaged.
    MayBeMissing,
    /// The document may be missing, damaged or no document: the index names it with a media type of another tool. If it
    /// is an image, it leads further, as an image whose media type is damaged does.
    MayBeForeign,
    /// The document may be missing or damaged. The blob was only guessed to be an image.
    MayBeAnything,
}

impl DocumentNeed {
    /// `true` if the decision can go on without the document after an error of this kind.
    #[must_use]
    pub fn allows(self, error: ErrorKind) -> bool {
        match self {
            Self::Required => false,
            Self::MayBeMissing => error == ErrorKind::NotFound,
            Self::MayBeForeign => {
                matches!(error, ErrorKind::NotFound | ErrorKind::Corrupt | ErrorKind::Unsupported)
            }
            Self::MayBeAnything => matches!(error, ErrorKind::NotFound | ErrorKind::Corrupt),
        }
    }
}

/// A traversal of documents that refer to other documents, such as indexes and manifests. The caller reads
/// the documents: [`wanted`](Self::wanted) names the next one, and [`give`](Self::give) takes its content.
#[derive(Debug, Default)]
pub struct Walk {
    /// All digests found so far: those at which the traversal started, and all that occur in the documents.
    pub found: BTreeSet<Digest>,
    /// The documents that were visited. Each is visited once, so a hostile store cannot make the traversal
    /// endless.
    pub read: BTreeSet<Digest>,
    waiting: Vec<(Wanted, usize)>,
    /// The depth of the document that was asked for last.
    depth: usize,
    /// Images that others were optimized from.
    optimized: BTreeMap<Digest, BTreeSet<Digest>>,
}

impl Walk {
    /// Adds a starting point: the document that an entry of the index refers to. `media_type` is the type
    /// that the entry states, if any.
    pub fn start(&mut self, digest: Digest, media_type: Option<&str>) {
        let known = leads_further(media_type);
        let need = if known { DocumentNeed::Required } else { DocumentNeed::MayBeForeign };
        self.found.insert(digest);
        self.waiting.push((Wanted { digest, need }, 0));
    }

    /// Begins at an image that may be gone in part.
    fn keep(&mut self, digest: Digest) {
        self.found.insert(digest);
        self.waiting.push((Wanted { digest, need: DocumentNeed::MayBeMissing }, 0));
    }

    /// Returns the next document to be read; `None` if the traversal is complete.
    pub fn wanted(&mut self) -> Option<Wanted> {
        while let Some((wanted, depth)) = self.waiting.pop() {
            if self.read.insert(wanted.digest) {
                self.depth = depth;
                return Some(wanted);
            }
        }
        None
    }

    /// Takes `bytes`, the content of the document `digest` that [`wanted`](Self::wanted) returned last, and adds the
    /// documents to which it refers. If that document is missing and [`Wanted::need`] allows that, the caller leaves
    /// this call out.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if `bytes` is not JSON, or if indexes are nested more deeply
    /// than [`MAX_DEPTH`].
    pub fn give(&mut self, digest: Digest, bytes: &[u8]) -> Result<()> {
        let document: Value =
            serde_json::from_slice(bytes).map_err(|e| Error::corrupt("is not JSON").caused_by(e))?;
        let mut leading = Vec::new();
        collect_digests(&document, &mut self.found, &mut leading);
        if self.depth == MAX_DEPTH && !leading.is_empty() {
            return Err(Error::corrupt("is an index of indexes without end"));
        }
        if let Some(source) = optimized_from(&document) {
            self.optimized.entry(source).or_default().insert(digest);
        }
        let next = leading.into_iter().map(|digest| Wanted { digest, need: DocumentNeed::MayBeMissing });
        self.waiting.extend(next.map(|wanted| (wanted, self.depth + 1)));
        Ok(())
    }
}

/// The image that an image was optimized from.
fn optimized_from(document: &Value) -> Option<Digest> {
    document.get("annotations")?.get(OPTIMIZED_FROM)?.as_str()?.parse().ok()
}

/// A list of artifacts whose subject was not met yet.
#[derive(Debug)]
struct List {
    subject: Digest,
    list: Option<Digest>,
    media_type: Option<String>,
    tag: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Named,
    Candidates,
    Kept,
}

/// The decision of a prune while it is being made. The caller reads the documents that it needs:
/// [`wanted`](Self::wanted) names the next one, and [`give`](Self::give) takes its content.
#[derive(Debug)]
pub struct PrunePlan {
    rules: PruneRules,
    blobs: Vec<StoredBlob>,
    leases: Vec<Lease>,
    ended: BTreeSet<Digest>,
    marks: BTreeMap<Digest, Mark>,
    walk: Walk,
    lists: Vec<List>,
    candidates: Vec<Digest>,
    images: Vec<UntaggedImage>,
    phase: Phase,
}

impl PrunePlan {
    /// Starts a decision by the given rules about the given content of a store.
    #[must_use]
    pub fn new(rules: PruneRules, input: PruneInput<'_>) -> Self {
        let (mut walk, mut lists) = (Walk::default(), Vec::new());
        for entry in input.index.entries() {
            let media_type = entry.media_type;
            if let Some((tag, subject)) = entry.tag.and_then(|tag| Some((tag, referrers_subject(tag)?))) {
                let media_type = media_type.map(str::to_owned);
                lists.push(List { subject, list: entry.digest, media_type, tag: tag.to_owned() });
            } else if let Some(digest) = entry.digest {
                walk.start(digest, media_type);
            }
        }
        let PruneInput { blobs, leases, ended, marks, .. } = input;
        let (candidates, images) = (Vec::new(), Vec::new());
        Self { rules, blobs, leases, ended, marks, walk, lists, candidates, images, phase: Phase::Named }
    }

    /// Returns the next document to be read, for [`PrunePlan::give`]; `None` if everything is known and
    /// [`PrunePlan::decide`] can be called.
    pub fn wanted(&mut self) -> Option<Wanted> {
        loop {
            if let Some(wanted) = self.walk.wanted() {
                return Some(wanted);
            }
            if self.follow_lists() {
                continue;
            }
            match self.phase {
                Phase::Named => {
                    self.candidates = self.find_candidates();
                    self.phase = Phase::Candidates;
                }
                Phase::Candidates => match self.candidates.pop() {
                    Some(digest) => return Some(Wanted { digest, need: DocumentNeed::MayBeAnything }),
                    None => {
                        self.keep_held();
                        self.phase = Phase::Kept;
                    }
                },
                Phase::Kept => return None,
            }
        }
    }

    /// Takes the content of the document `wanted`, the one that [`wanted`](Self::wanted) returned last. `bytes` is
    /// `None` if the document could not be read and [`Wanted::need`] allows that. If `need` does not allow it, the
    /// caller must abandon the plan: this call does not check it, and blobs that are needed could be deleted.
    ///
    /// # Errors
    /// As [`Walk::give`]; none for a document that was only guessed to be an image ([`DocumentNeed::MayBeAnything`]).
    pub fn give(&mut self, wanted: Wanted, bytes: Option<&[u8]>) -> Result<()> {
        let Some(bytes) = bytes else { return Ok(()) };
        match (wanted.need, image_document(bytes)) {
            (DocumentNeed::MayBeAnything, Some(document)) => self.note_image(wanted.digest, &document),
            // Any other document is not an image.
            (DocumentNeed::MayBeAnything | DocumentNeed::MayBeForeign, None) => {}
            _ => self.walk.give(wanted.digest, bytes)?,
        }
        Ok(())
    }

    /// Begins at the lists whose subjects were met; `false` if there is none. Artifacts may have artifacts.
    fn follow_lists(&mut self) -> bool {
        let lists = std::mem::take(&mut self.lists);
        let (alive, waiting): (Vec<_>, Vec<_>) =
            lists.into_iter().partition(|list| self.walk.read.contains(&list.subject));
        self.lists = waiting;
        for List { list, media_type, .. } in &alive {
            if let Some(digest) = list {
                self.walk.start(*digest, media_type.as_deref());
            }
        }
        !alive.is_empty()
    }

    /// The blobs that may be images without a name: those that nothing leads to, and those that are only named as
    /// the image that another one was optimized from.
    fn find_candidates(&self) -> Vec<Digest> {
        let Walk { found, read, optimized, .. } = &self.walk;
        let may_be = |digest: &Digest| {
            !found.contains(digest) || optimized.contains_key(digest) && !read.contains(digest)
        };
        let small = self.blobs.iter().filter(|blob| blob.len <= MAX_MANIFEST_SIZE);
        let mut candidates: Vec<_> = small.map(|blob| blob.digest).filter(may_be).collect();
        // Popped from the end.
        candidates.reverse();
        candidates
    }

    fn note_image(&mut self, digest: Digest, document: &Value) {
        let PruneRules { now, older_than, .. } = self.rules;
        // Other tools took its name away, or a writer died before naming it: it is noticed now.
        let Mark { tags, since } =
            self.marks.remove(&digest).unwrap_or(Mark { tags: Vec::new(), since: now });
        let since = if self.ended.contains(&digest) { since.max(now) } else { since };
        let mut manifests = vec![digest];
        collect_digests(document, &mut BTreeSet::new(), &mut manifests);
        let holders = holders_of(&self.leases, &manifests.into_iter().collect());
        let until = since.checked_add(older_than);
        self.images.push(UntaggedImage { digest, tags, since, until, holders, optimized: Vec::new() });
    }

    /// Begins at images that leases name, and at images whose time has not come.
    fn keep_held(&mut self) {
        let PruneRules { now, older_than, ignores_leases, .. } = self.rules;
        for lease in self.leases.iter().filter(|_| !ignores_leases) {
            self.walk.found.extend(lease.blobs.iter());
            self.walk.keep(lease.image);
        }
        let is_due =
            |image: &&UntaggedImage| older_than.is_zero() || image.until.is_some_and(|until| until <= now);
        let kept: Vec<_> =
            self.images.iter().filter(|image| !is_due(image)).map(|image| image.digest).collect();
        kept.into_iter().for_each(|digest| self.walk.keep(digest));
    }

    /// Returns the decision. The caller must call this only after [`wanted`](PrunePlan::wanted) has returned
    /// `None`; otherwise the decision may delete blobs that are needed.
    #[must_use]
    pub fn decide(self) -> PruneDecision {
        let Self { rules, blobs, walk, lists, images, .. } = self;
        let is_kept = |digest: &Digest| rules.keeps_all || walk.found.contains(digest);
        let is_young = |blob: &StoredBlob| {
            rules.now.duration_since(blob.written).map_or(true, |age| age < rules.least_age)
        };
        let (kept, unneeded): (Vec<_>, Vec<_>) = blobs.into_iter().partition(|blob| is_kept(&blob.digest));
        let (young, mut deleted): (Vec<_>, Vec<_>) =
            unneeded.into_iter().partition(|blob| !rules.least_age.is_zero() && is_young(blob));
        let goes: BTreeSet<_> = deleted.iter().map(|blob| blob.digest).collect();
        // Only now is the whole set of kept blobs known.
        let optimized = |digest: &Digest| -> Vec<Digest> {
            walk.optimized.get(digest).into_iter().flatten().copied().collect()
        };
        let images =
            images.into_iter().map(|image| UntaggedImage { optimized: optimized(&image.digest), ..image });
        let (images, untagged): (Vec<_>, Vec<_>) = images.partition(|image| goes.contains(&image.digest));
        let manifests: BTreeSet<_> = images.iter().map(|image| image.digest).collect();
        deleted.sort_by_key(|blob| !manifests.contains(&blob.digest));
        let orphans =
            lists.iter().filter(|_| !rules.keeps_all).filter_map(|list| list.tag.parse().ok()).collect();
        PruneDecision { deleted, young, kept, images, untagged, orphans }
    }
}

/// Returns a description of each disk that needs one of `images`, for users, such as "the writable directory
/// DIR on HOST". The result is sorted and without duplicates. `images` are digests of manifests.
#[must_use]
pub fn holders_of(leases: &[Lease], images: &BTreeSet<Digest>) -> Vec<String> {
    let of = leases.iter().filter(|lease| images.contains(&lease.image));
    of.map(ToString::to_string).collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::super::{HostId, LeaseHolder, referrers_tag};
    use super::*;
    use crate::media_type::{INDEX_OCI, MANIFEST_OCI};
    use proptest::prelude::*;
    use serde_json::json;

    const DAY: Duration = Duration::from_secs(86400);

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + 1000 * DAY
    }

    /// A generated document of a store.
    #[derive(Clone, Debug)]
    struct Made {
        /// 0: an image; 1: one that was optimized; 2: an index of platforms; 3: an artifact, with its subject's list.
        kind: u8,
        /// The document before it that it is about.
        other: usize,
        /// Its layer, which others may have, too.
        layer: u8,
        /// Days since it was written, and since it lost its name, if that is known.
        age: u64,
        mark: Option<u64>,
        is_tagged: bool,
        is_leased: bool,
        has_ended: bool,
        /// `true` if it is missing: no whole image may lead to it.
        is_gone: bool,
    }

    fn made() -> impl Strategy<Value = Made> {
        let flags = (prop::bool::weighted(0.4), prop::bool::weighted(0.2), prop::bool::weighted(0.1));
        let mark = prop::option::of(0_u64..20);
        (0_u8..4, any::<prop::sample::Index>(), 0_u8..4, 0_u64..20, mark, flags, prop::bool::weighted(0.1))
            .prop_map(|(kind, other, layer, age, mark, (is_tagged, is_leased, has_ended), is_gone)| {
                let other = other.index(64);
                Made { kind, other, layer, age, mark, is_tagged, is_leased, has_ended, is_gone }
            })
    }

    /// A document in the model.
    struct Document {
        digest: Digest,
        bytes: Vec<u8>,
        mentioned: Vec<Digest>,
        leading: Vec<Digest>,
        is_image: bool,
        optimized_from: Option<Digest>,
    }

    #[derive(Default)]
    struct World {
        documents: BTreeMap<Digest, Document>,
        blobs: BTreeMap<Digest, StoredBlob>,
        roots: Vec<Digest>,
        /// Subjects and their lists.
        lists: BTreeMap<Digest, Digest>,
        leases: Vec<Lease>,
        ended: BTreeSet<Digest>,
        marks: BTreeMap<Digest, Mark>,
        index: Option<LayoutIndex>,
    }

    impl World {
        fn of(all: &[Made]) -> Self {
            let (mut world, mut index) = (Self::default(), LayoutIndex::empty());
            let mut digests = Vec::<Digest>::new();
            for (number, made) in all.iter().enumerate() {
                let other = digests.get(made.other % number.max(1)).copied();
                let layer = Digest::of(&[made.layer]);
                let config = Digest::of(format!("config {number}").as_bytes());
                let mut document = Self::document(made, number, other, (config, layer));
                document.digest = Digest::of(&document.bytes);
                let (digest, kind) = (document.digest, made.kind);
                digests.push(digest);
                for blob in [digest, config, layer] {
                    world.add_blob(blob, made.age);
                }
                if made.is_gone && !made.is_tagged && kind != 3 {
                    world.blobs.remove(&digest);
                }
                if made.is_tagged && kind != 3 {
                    index.set(&format!("t{number}").parse().unwrap(), media_type(kind), &digest, 1);
                    world.roots.push(digest);
                }
                if let (3, Some(subject)) = (kind, other) {
                    let listed =
                        json!({"mediaType": MANIFEST_OCI, "digest": digest.to_string(), "artifactType": "x"});
                    let bytes = json!({"schemaVersion": 2, "manifests": [listed]}).to_string().into_bytes();
                    let list = Digest::of(&bytes);
                    index.set(&referrers_tag(&subject).parse().unwrap(), INDEX_OCI, &list, 1);
                    world.lists.insert(subject, list);
                    world.add_blob(list, made.age);
                    let (mentioned, leading) = (vec![digest], vec![digest]);
                    let list = Document {
                        digest: list,
                        bytes,
                        mentioned,
                        leading,
                        is_image: false,
                        optimized_from: None,
                    };
                    world.documents.insert(list.digest, list);
                }
                if made.is_leased {
                    world.leases.push(lease(digest, vec![layer]));
                }
                if made.has_ended {
                    world.ended.insert(digest);
                }
                if let Some(days) = made.mark {
                    let since = now() - u32::try_from(days).unwrap() * DAY;
                    world.marks.insert(digest, Mark { tags: Vec::new(), since });
                }
                world.documents.insert(digest, document);
            }
            world.index = Some(index);
            world
        }

        fn add_blob(&mut self, digest: Digest, age: u64) {
            let written = now() - u32::try_from(age).unwrap() * DAY;
            self.blobs.insert(digest, StoredBlob { digest, len: 1, written });
        }

        fn document(made: &Made, number: usize, other: Option<Digest>, of: (Digest, Digest)) -> Document {
            let (config, layer) = of;
            let descriptor =
                |digest: &Digest, kind: &str| json!({"mediaType": kind, "digest": digest.to_string()});
            let mut value = json!({"schemaVersion": 2, "number": number});
            let (mut mentioned, mut leading) = (Vec::new(), Vec::new());
            if made.kind != 2 {
                value["config"] = descriptor(&config, "config");
                value["layers"] = json!([descriptor(&layer, "layer")]);
                mentioned = vec![config, layer];
            }
            let mut optimized_from = None;
            match (made.kind, other) {
                (1, Some(other)) => {
                    value["annotations"] = json!({OPTIMIZED_FROM: other.to_string()});
                    mentioned.push(other);
                    optimized_from = Some(other);
                }
                (2, other) => {
                    value["manifests"] = other.iter().map(|other| descriptor(other, MANIFEST_OCI)).collect();
                    mentioned.extend(other);
                    leading.extend(other);
                }
                (3, Some(other)) => {
                    value["subject"] = descriptor(&other, MANIFEST_OCI);
                    mentioned.push(other);
                    leading.push(other);
                }
                _ => {}
            }
            let is_image = match made.kind {
                2 => other.is_some(),
                3 => other.is_none(),
                _ => true,
            };
            let bytes = value.to_string().into_bytes();
            Document { digest: config, bytes, mentioned, leading, is_image, optimized_from }
        }

        /// Everything that can be reached from `roots`, added to the earlier results.
        fn close(&self, roots: &[Digest], found: &mut BTreeSet<Digest>, read: &mut BTreeSet<Digest>) {
            found.extend(roots);
            for root in roots {
                let document = self.documents.get(root).filter(|_| self.blobs.contains_key(root));
                if let Some(document) = document.filter(|_| !read.contains(root)) {
                    read.insert(*root);
                    found.extend(&document.mentioned);
                    self.close(&document.leading, found, read);
                } else {
                    read.insert(*root);
                }
            }
            loop {
                let alive = self
                    .lists
                    .iter()
                    .filter(|(subject, list)| read.contains(subject) && !read.contains(list));
                let Some((_, list)) = alive.min() else { return };
                self.close(&[*list], found, read);
            }
        }

        /// The images without a name, and the blobs that a prune deletes.
        fn decide(&self, rules: &PruneRules) -> (BTreeSet<Digest>, BTreeSet<Digest>) {
            let (mut found, mut read) = (BTreeSet::new(), BTreeSet::new());
            self.close(&self.roots, &mut found, &mut read);
            let named = |source: &Digest| {
                read.iter().any(|digest| {
                    let document = self.documents.get(digest).filter(|_| self.blobs.contains_key(digest));
                    document.is_some_and(|document| document.optimized_from == Some(*source))
                })
            };
            let images =
                self.documents.values().filter(|it| it.is_image && self.blobs.contains_key(&it.digest));
            let images = images.map(|it| it.digest);
            let nameless: BTreeSet<_> =
                images.filter(|it| !found.contains(it) || named(it) && !read.contains(it)).collect();
            let stays = |image: &&Digest| {
                let since = self.marks.get(image).map_or(now(), |mark| mark.since);
                let since = if self.ended.contains(image) { now() } else { since };
                now().duration_since(since).unwrap() < rules.older_than
            };
            let mut kept: Vec<_> = nameless.iter().filter(stays).copied().collect();
            let counting = self.leases.iter().filter(|_| !rules.ignores_leases);
            kept.extend(counting.clone().map(|lease| lease.image));
            found.extend(counting.flat_map(|lease| &lease.blobs));
            self.close(&kept, &mut found, &mut read);
            let old = self.blobs.values().filter(|blob| {
                now().duration_since(blob.written).unwrap() >= rules.least_age && !rules.keeps_all
            });
            (nameless, old.map(|blob| blob.digest).filter(|digest| !found.contains(digest)).collect())
        }

        /// The decision of the plan; `None` if documents lead too far.
        fn plan(&self, rules: PruneRules) -> Option<PruneDecision> {
            let (index, blobs) = (self.index.as_ref().unwrap(), self.blobs.values().copied().collect());
            let (leases, ended, marks) = (self.leases.clone(), self.ended.clone(), self.marks.clone());
            let mut plan = PrunePlan::new(rules, PruneInput { index, blobs, leases, ended, marks });
            while let Some(wanted) = plan.wanted() {
                let there =
                    self.documents.get(&wanted.digest).filter(|_| self.blobs.contains_key(&wanted.digest));
                assert!(there.is_some() || wanted.need != DocumentNeed::Required, "what is named is there");
                plan.give(wanted, there.map(|document| &document.bytes[..])).ok()?;
            }
            Some(plan.decide())
        }
    }

    fn media_type(kind: u8) -> &'static str {
        if kind == 2 { INDEX_OCI } else { MANIFEST_OCI }
    }

    fn lease(image: Digest, blobs: Vec<Digest>) -> Lease {
        let host =
            HostId { name: "h".to_owned(), machine: None, boot: "b".to_owned(), root: None, pids: None };
        let holder = LeaseHolder::Attach { record: None };
        Lease::new(holder, image, blobs, "file:///s:t".to_owned(), host)
    }

    proptest! {
        #[test]
        fn a_prune_plan_decides_as_a_plain_model(
            all in prop::collection::vec(made(), 0..8), older_than in 0_u32..10, least_age in 0_u32..10,
            keeps_all in prop::bool::weighted(0.1), ignores_leases in prop::bool::weighted(0.2),
        ) {
            let world = World::of(&all);
            let (older_than, least_age) = (older_than * DAY, least_age * DAY);
            let rules = PruneRules { now: now(), older_than, least_age, keeps_all, ignores_leases };
            let (nameless, deleted) = world.decide(&rules);
            let decision = world.plan(rules);
            prop_assume!(decision.is_some());
            let decision = decision.unwrap();
            let digests = |blobs: &[StoredBlob]| blobs.iter().map(|blob| blob.digest).collect::<BTreeSet<_>>();
            prop_assert_eq!(digests(&decision.deleted), deleted.clone());
            let sets = [&decision.deleted, &decision.young, &decision.kept].map(|blobs| digests(blobs));
            prop_assert_eq!(sets.iter().map(BTreeSet::len).sum::<usize>(), world.blobs.len());
            let images = |images: &[UntaggedImage]| images.iter().map(|it| it.digest).collect::<BTreeSet<_>>();
            prop_assert_eq!(images(&decision.images), nameless.intersection(&deleted).copied().collect());
            prop_assert_eq!(images(&decision.untagged), nameless.difference(&deleted).copied().collect());
            // Manifests go first.
            let first = decision.deleted.iter().take(decision.images.len()).map(|blob| blob.digest);
            prop_assert_eq!(first.collect::<BTreeSet<_>>(), images(&decision.images));
            // The holders are reported even for an image that is deleted anyway.
            for image in decision.untagged.iter().chain(&decision.images) {
                let is_held = world.leases.iter().any(|lease| lease.image == image.digest);
                prop_assert!(!is_held || !image.holders.is_empty());
            }
        }
    }
}
