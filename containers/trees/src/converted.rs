//! The form of an image whose layers are those of a disk.
//!
//! An image can *be* one (its layers are OverlayBD's), or have a *sibling*: an artifact that belongs to its manifest,
//! or the entry of a converted image in the index that its name leads to. `headstart image convert` writes all three.
//!
//! Of several siblings, one is taken by the rule of [`FormSearch`]: the newest, or where containers write to disks of
//! their own, the newest whose file system can be written to.

use crate::container_starts::entrypoint_name;
use crate::labels::WantedLayer;
use crate::tree_name::TreeName;
use futures::future::{OptionFuture, join};
use headstart_block::{ByteRange, Digest, Error, ErrorKind, Result};
use headstart_container_source::{ContainerImage, open_in_store, open_known};
use headstart_convert::chain_id;
use headstart_image::disk_form::{FORMS, FormSearch, FormWish};
use headstart_image::manifest::{BLOB_DIGEST, BlobRef, Config, ImageLayer, MAX_MANIFEST_SIZE, Manifest};
use headstart_snapshotter::remote::ListedBlob;
use headstart_store::{Location, Reference, Referrer, RetrySettings, Selector, Store, Urgency, unless_away};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// The trust in what the writers of a repository say of their images without a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterTrust {
    /// Their word counts: converted images that stand beside originals are used.
    Full,
    /// Only what digests prove counts: images whose layers have the digests that containerd knows them by.
    None,
}

/// The way in which a disk's image was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FoundAs {
    /// containerd pulls that image.
    Itself,
    /// containerd pulls its original.
    Sibling,
}

/// An image whose layers are those of a disk, and the chain ids of the layers that containerd asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertedImage {
    /// The image, by its digest.
    pub image: Reference,
    /// The chain ids of the layers of the image that containerd knows, lowest first; not empty.
    chains: Vec<Digest>,
    /// The number of its lowest layers that are those of the disk; `None` for all. containerd unpacks the others.
    lowest: Option<usize>,
    /// The blobs of these layers, if the image is one that containerd pulls itself.
    blobs: Vec<ListedBlob>,
    /// `true` if its file system is one that can only be read.
    is_only_read: bool,
    found_as: FoundAs,
    /// The name of the program that the image's config names; empty if it names none.
    pub entrypoint: String,
}

impl ConvertedImage {
    /// Finds the form of an image whose layers are those of a disk. `None` if there is none. Blocks, and must not be
    /// called on a thread of `runtime`.
    ///
    /// # Errors
    /// Errors of the store; [`ErrorKind::Corrupt`] if a document is damaged, or if the only siblings
    /// say that they are another image's; [`ErrorKind::Denied`] if the image claims layers that it does not have.
    pub fn find(
        store: &Arc<dyn Store>,
        wanted: &WantedLayer,
        (trust, wish): (WriterTrust, FormWish),
        retry: RetrySettings,
        runtime: &Handle,
    ) -> Result<Option<Self>> {
        let search = Search { store, location: &wanted.location, trust, wish, retry, runtime };
        let own = wanted.manifest.map_or_else(|| wanted.selector.clone(), Selector::Digest);
        let has_siblings = trust == WriterTrust::Full;
        // Round trips to a registry are most of the time that a pull takes.
        let known = wanted.manifest.filter(|_| has_siblings && !wanted.is_disk);
        // Asking ends with the set: an error of the first request is not to wait for it.
        let mut asking = JoinSet::new();
        if let Some(digest) = known {
            asking.spawn_on(ask_for_siblings(Arc::clone(store), wanted.selector.clone(), digest), runtime);
        }
        let named = search.first_manifest(&own)?;
        if let Some(image) = search.itself(wanted, &named)? {
            return Ok(Some(image));
        }
        if !has_siblings {
            return Ok(None);
        }
        let original = search.original(&own, named)?;
        let lost = |_| Error::new(ErrorKind::Unavailable, "the search for siblings broke off");
        let answers = match runtime.block_on(asking.join_next()) {
            Some(answers) => answers.map_err(lost)?,
            None => runtime.block_on(ask_for_siblings(
                Arc::clone(store),
                wanted.selector.clone(),
                original.manifest_digest,
            )),
        };
        let chains = chains(original.layers.iter().map(|layer| &layer.diff_id));
        let sibling = search.sibling(answers, &original.manifest_digest, &chains)?;
        Ok(sibling.map(|image| Self { entrypoint: program_in(&original.config), ..image }))
    }

    /// The tree of files as the layer with a chain id leaves it. `None` if the image has no such layer.
    #[must_use]
    pub fn tree(&self, chain: &Digest) -> Option<TreeName> {
        let at = self.chains.iter().position(|known| known == chain)?;
        let lowest = if at + 1 < self.chains.len() { Some(at + 1) } else { self.lowest };
        Some(TreeName { image: self.image.clone(), lowest, above: Vec::new() })
    }

    /// The blob of the layer with a chain id, if the manifest that containerd has lists this blob.
    #[must_use]
    pub fn listed_blob(&self, chain: &Digest) -> Option<ListedBlob> {
        let at = self.chains.iter().position(|known| known == chain)?;
        self.blobs.get(at).copied()
    }

    /// `true` if containerd asks for layers of this image itself, which it cannot unpack.
    #[must_use]
    pub fn is_wanted_itself(&self) -> bool {
        self.found_as == FoundAs::Itself
    }

    /// The tree of all files of the disk.
    #[must_use]
    pub fn whole(&self) -> TreeName {
        TreeName { image: self.image.clone(), lowest: self.lowest, above: Vec::new() }
    }
}

/// The name of the program in the config of an image; empty if it has none.
fn program_in(config: &[u8]) -> String {
    let config: Value = serde_json::from_slice(config).unwrap_or_default();
    let words = |field: &str| -> Vec<String> {
        let words = config["config"][field].as_array().into_iter().flatten();
        words.filter_map(|word| word.as_str().map(str::to_owned)).collect()
    };
    entrypoint_name(&[words("Entrypoint"), words("Cmd")].concat())
}

/// The chain ids of layers with these diff ids, lowest first.
fn chains<'a>(diff_ids: impl Iterator<Item = &'a Digest>) -> Vec<Digest> {
    let mut below = None;
    let next = |diff_id: &Digest| {
        let chain = chain_id(below.as_ref(), diff_id);
        below = Some(chain);
        chain
    };
    diff_ids.map(next).collect()
}

/// The manifest, if it is one of a disk: every layer says where its blob is.
fn disk_manifest(bytes: &[u8]) -> Option<Manifest> {
    let manifest = Manifest::parse(bytes).ok()?;
    let is_disk = manifest.layers.iter().all(|layer| layer.annotations.contains_key(BLOB_DIGEST));
    (is_disk && !manifest.layers.is_empty()).then_some(manifest)
}

/// The manifest, if its lowest layer is a disk's.
fn manifest_on_disk(bytes: &[u8]) -> Option<Manifest> {
    let manifest = Manifest::parse(bytes).ok()?;
    manifest.layers.first()?.annotations.contains_key(BLOB_DIGEST).then_some(manifest)
}

/// The number of lowest layers that are those of a disk; `None` if all are. Clients that make an image of a container
/// put a layer on those of its image: one of blocks, whose annotations some of them lose, or a tar.
fn lowest_of_disk(manifest: &Manifest, diff_ids: &[Digest]) -> Option<usize> {
    let is_of_disk = |(at, layer): (usize, &ImageLayer)| {
        // What is said to be compressed, and is its own uncompressed form, is no compressed tar.
        let is_compressed = ["gzip", "zstd"].iter().any(|word| layer.blob.media_type.ends_with(word));
        let is_itself = diff_ids.get(at).is_some_and(|diff_id| *diff_id == layer.blob.digest);
        layer.annotations.contains_key(BLOB_DIGEST) || (is_compressed && is_itself)
    };
    manifest.layers.iter().enumerate().position(|layer| !is_of_disk(layer))
}

/// Answers of a registry about the siblings of an image.
struct SiblingAnswers {
    /// The artifacts that belong to it, of each kind.
    referrers: Result<Vec<Vec<Referrer>>>,
    /// The image that the tag leads to, if there is one: its digest and its manifest.
    tagged: Option<Result<(Digest, Vec<u8>)>>,
}

/// Asks for all that may be siblings of an original, which `selector` leads to, at once.
async fn ask_for_siblings(store: Arc<dyn Store>, selector: Selector, original: Digest) -> SiblingAnswers {
    let referrers = store.referrers_of_types(&original, &FORMS);
    // The tag may lead to an index that lists a converted image beside the original.
    let tag = Some(&selector).filter(|selector| matches!(selector, Selector::Tag(_)));
    let tagged = OptionFuture::from(tag.map(|tag| store.manifest(tag)));
    let (referrers, tagged) = join(referrers, tagged).await;
    let tagged = tagged.map(|found| found.map(|(digest, bytes)| (digest, bytes.into())));
    SiblingAnswers { referrers, tagged }
}

struct Search<'a> {
    store: &'a Arc<dyn Store>,
    location: &'a Location,
    trust: WriterTrust,
    wish: FormWish,
    retry: RetrySettings,
    runtime: &'a Handle,
}

impl Search<'_> {
    fn manifest(&self, selector: &Selector) -> Result<(Digest, Vec<u8>)> {
        let (digest, bytes) = self.runtime.block_on(self.store.manifest(selector))?;
        Ok((digest, bytes.into()))
    }

    /// The manifest that is asked for first: a registry that is away is found out within seconds.
    fn first_manifest(&self, selector: &Selector) -> Result<(Digest, Vec<u8>)> {
        let asked = unless_away(&**self.store, self.store.manifest(selector));
        let (digest, bytes) = self.runtime.block_on(asked)?;
        Ok((digest, bytes.into()))
    }

    /// The image with a manifest, if its own layers are those of a disk.
    fn itself(
        &self,
        wanted: &WantedLayer,
        (digest, bytes): &(Digest, Vec<u8>),
    ) -> Result<Option<ConvertedImage>> {
        let Some(manifest) = manifest_on_disk(bytes) else { return Ok(None) };
        let config = self.config(&manifest.config)?;
        let diff_ids = Config::parse(&config)?.diff_ids();
        let lowest = lowest_of_disk(&manifest, &diff_ids).or_else(|| self.known(&manifest, &diff_ids));
        let manifest = manifest.lowest(lowest)?;
        let chains = chains(diff_ids.iter().take(lowest.unwrap_or(usize::MAX)));
        // The name leads to an index, and the store prefers disks: containerd does not.
        let is_sibling = wanted.manifest.is_none() && manifest.converted_from().is_some();
        if is_sibling && !chains.contains(&wanted.chain) {
            return Ok(None);
        }
        self.check_diff_ids(*digest, &manifest, &diff_ids)?;
        let image = self.image(*digest, &manifest, chains, FoundAs::Itself)?;
        Ok(Some(ConvertedImage { lowest, entrypoint: program_in(&config), ..image }))
    }

    /// The image that containerd pulls, which `selector` leads to; `named` is the manifest that the store has chosen.
    fn original(&self, selector: &Selector, named: (Digest, Vec<u8>)) -> Result<ContainerImage> {
        let store = Arc::clone(self.store);
        // Of an index the store may choose another image than containerd does.
        if *selector == Selector::Digest(named.0) {
            open_known(store, selector, named, None, self.retry, self.runtime)
        } else {
            open_in_store(store, selector, None, self.retry, self.runtime)
        }
    }

    /// The config of an image, checked against its digest.
    fn config(&self, config: &BlobRef) -> Result<Vec<u8>> {
        let about = |error: Error| error.about(format_args!("config {}", config.digest));
        if config.size > MAX_MANIFEST_SIZE {
            return Err(about(Error::unsupported(format!("a config of {} bytes", config.size))));
        }
        let range = ByteRange::between(0, config.size);
        let once = || self.store.read(&config.digest, range, Urgency::Demand);
        let bytes = self.runtime.block_on(self.retry.run(once, |_| ()))?;
        if Digest::of(&bytes) != config.digest {
            return Err(about(Error::corrupt("its content has another digest")));
        }
        Config::parse(&bytes).map_err(about)?;
        Ok(bytes.into())
    }

    /// The sibling of an original that is wanted, of those that fit.
    ///
    /// # Errors
    /// By the rule of [`FormSearch`].
    fn sibling(
        &self,
        answers: SiblingAnswers,
        original: &Digest,
        chains: &[Digest],
    ) -> Result<Option<ConvertedImage>> {
        let mut search = FormSearch::new(self.wish);
        let look = |found: Result<(Digest, Vec<u8>)>| {
            let sibling = self.sibling_of(found?, original, chains)?;
            Ok(sibling.map(|sibling| {
                let is_only_read = sibling.is_only_read;
                (sibling, is_only_read)
            }))
        };
        // As for disks that are attached: an index names its form, referrers are only beside the image.
        if let Some(tagged) = answers.tagged {
            search.look(look(tagged))?;
        }
        if !search.has_found() {
            answers.referrers?.iter().for_each(|listed| search.list(listed));
        }
        while let Some(form) = search.next_form() {
            search.look(look(self.manifest(&Selector::Digest(form))))?;
        }
        Ok(search.end()?.map(|taken| taken.form))
    }

    /// The image with a digest and a manifest, if it is a sibling of an original.
    fn sibling_of(
        &self,
        (digest, bytes): (Digest, Vec<u8>),
        original: &Digest,
        chains: &[Digest],
    ) -> Result<Option<ConvertedImage>> {
        match disk_manifest(&bytes) {
            Some(manifest) if is_of(&manifest, original) => {
                self.image(digest, &manifest, chains.to_vec(), FoundAs::Sibling).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The number of layers that containerd knows, if the disk has more and their writers are not trusted: what is
    /// above would be in the files of every image that has the same layers below.
    fn known(&self, manifest: &Manifest, diff_ids: &[Digest]) -> Option<usize> {
        let has_more = manifest.disk_layers().count() > diff_ids.len();
        (self.trust == WriterTrust::None && has_more).then_some(diff_ids.len())
    }

    /// Checks that the layers of a disk have the digests by which containerd knows them: it shares layers between all
    /// images of a host by these, and an image could claim those of another.
    fn check_diff_ids(&self, digest: Digest, manifest: &Manifest, diff_ids: &[Digest]) -> Result<()> {
        if self.trust == WriterTrust::Full {
            return Ok(());
        }
        let layers = manifest.disk_layers().map(|layer| layer.blob.digest);
        match layers.zip(diff_ids).position(|(layer, diff_id)| layer != *diff_id) {
            None => Ok(()),
            Some(number) => {
                let image = Reference { location: self.location.clone(), selector: Selector::Digest(digest) };
                let text = format!("its layer {number} is not the one that its config claims");
                Err(Error::new(ErrorKind::Denied, text).about(&image).remedy(format!(
                    "if everybody with the right to write there is trusted, start the snapshotter with --trust {}",
                    self.location
                )))
            }
        }
    }

    /// Checks that the layers of a disk are those with these chain ids.
    fn image(
        &self,
        digest: Digest,
        manifest: &Manifest,
        chains: Vec<Digest>,
        found_as: FoundAs,
    ) -> Result<ConvertedImage> {
        let image = Reference { location: self.location.clone(), selector: Selector::Digest(digest) };
        let wrong = |cause: String| Error::corrupt(cause).about(&image).remedy("convert the image again");
        // More layers than containerd knows are those of an optimization, above all others.
        let count = manifest.disk_layers().count();
        if chains.is_empty() || count < chains.len() {
            return Err(wrong(format!("has {count} layers, the original {}", chains.len())));
        }
        // What was committed or optimized by earlier versions states no file system.
        let is_stated = |layer: &&ImageLayer| layer.states_file_system() || layer.origin().is_some();
        let kinds: BTreeSet<_> =
            manifest.disk_layers().filter(is_stated).map(ImageLayer::file_system).collect();
        if kinds.len() > 1 {
            let kinds = kinds.into_iter().collect::<Vec<_>>().join(", ");
            return Err(wrong(format!("its layers are of several file systems: {}", kinds.escape_debug())));
        }
        for (number, (layer, chain)) in manifest.disk_layers().zip(&chains).enumerate() {
            // An image that is named itself has chain ids of its own, and its origins are the original's.
            let is_same = layer.origin().is_some_and(|origin| origin.chain == *chain);
            if found_as == FoundAs::Sibling && !is_same {
                return Err(wrong(format!("its layer {number} was made of another image's layer")));
            }
        }
        let listed =
            |layer: &ImageLayer| ListedBlob { digest: layer.blob.digest, is_turbo: layer.is_turbo() };
        let blobs = match found_as {
            FoundAs::Itself => manifest.disk_layers().map(listed).collect(),
            FoundAs::Sibling => Vec::new(),
        };
        let (is_only_read, entrypoint) = (manifest.is_only_read(), String::new());
        Ok(ConvertedImage { image, chains, blobs, is_only_read, lowest: None, found_as, entrypoint })
    }
}

/// `true` if a converted image says that it was made of the image with the manifest `original`.
fn is_of(manifest: &Manifest, original: &Digest) -> bool {
    manifest.converted_from().is_some_and(|from| from.manifest == *original)
}
