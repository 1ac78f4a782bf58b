//! A store's `index.json`: the images and their tags, among other entries that other tools keep there.
//!
//! It is kept as the JSON value that it is, not as a structure of known fields: entries and fields that we do
//! not know must survive our changes. The same type reads the indexes of several platforms' images that are
//! blobs of a store.

use super::MAX_INDEX_SIZE;
use crate::media_type::{INDEX_DOCKER, INDEX_OCI, OVERLAYBD_IMAGE, OVERLAYBD_TURBO_IMAGE};
use crate::reference::{Selector, Tag};
use headstart_block::{Digest, Error, Result};
use serde_json::{Map, Value, json};

/// The digest algorithms of the OCI image specification, with the number of hexadecimal digits of each.
const ALGORITHMS: [(&str, usize); 4] = [("sha256", 64), ("sha384", 96), ("sha512", 128), ("blake3", 64)];

/// The annotation of an index's entry that is its tag.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// One entry of an index: the fields that are used here.
#[derive(Clone, Copy, Debug)]
pub struct LayoutEntry<'a> {
    /// The digest of the manifest or index that the entry refers to. `None` if it is missing or is not a
    /// sha256 digest; such entries are left untouched.
    pub digest: Option<Digest>,
    /// The media type that the entry states for the document; `None` if it states none.
    pub media_type: Option<&'a str>,
    /// The tag of the entry; `None` if it has no tag.
    pub tag: Option<&'a str>,
    value: &'a Value,
}

impl<'a> LayoutEntry<'a> {
    fn new(value: &'a Value) -> Self {
        Self {
            digest: value.get("digest").and_then(Value::as_str).and_then(|text| text.parse().ok()),
            media_type: value.get("mediaType").and_then(Value::as_str),
            tag: value.get("annotations").and_then(|a| a.get(REF_NAME)).and_then(Value::as_str),
            value,
        }
    }

    /// Returns the text of a field of the entry's platform, such as `os` or `architecture`. `None` if it has none.
    #[must_use]
    pub fn platform(&self, key: &str) -> Option<&'a str> {
        self.value.get("platform")?.get(key)?.as_str()
    }

    /// Returns an annotation of the entry. `None` if it has none of that key.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&'a str> {
        self.value.get("annotations")?.get(key)?.as_str()
    }

    /// `true` if the entry states the type of an artifact, so that it is no image.
    #[must_use]
    pub fn is_artifact(&self) -> bool {
        self.value.get("artifactType").is_some()
    }

    /// The damage of the entry; `None` if it is whole. Entries of other tools are whole: any media type, and a digest
    /// of any known algorithm.
    fn damage(&self) -> Option<String> {
        if !self.value.is_object() {
            return Some("is not a JSON object".to_owned());
        }
        match self.value.get("digest").and_then(Value::as_str) {
            None => Some("has no digest".to_owned()),
            Some(text) if is_digest(text) => None,
            Some(text) => Some(format!("has the digest `{}`, which is none", text.escape_debug())),
        }
    }

    fn is_for_this_platform(&self) -> bool {
        self.platform("os") == Some("linux") && self.platform("architecture") == Some("amd64")
    }

    /// `true` if the entry is an image of OverlayBD's, as it is listed beside the image that it was converted from.
    fn is_disk_image(&self) -> bool {
        let kind = self.value.get("artifactType").and_then(Value::as_str);
        matches!(kind, Some(OVERLAYBD_IMAGE | OVERLAYBD_TURBO_IMAGE))
    }

    fn is_selected(&self, selector: &Selector) -> bool {
        match selector {
            Selector::Tag(tag) => self.tag == Some(tag.as_str()),
            Selector::Digest(digest) => self.digest == Some(*digest),
        }
    }
}

/// `true` if a text is a digest of a known algorithm.
fn is_digest(text: &str) -> bool {
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.split_once(':').is_some_and(|(algorithm, hex)| {
        ALGORITHMS.contains(&(algorithm, hex.len())) && hex.bytes().all(is_digit)
    })
}

/// An `index.json` document, which lists images with their tags. Entries and fields that are not known here
/// are preserved.
#[derive(Clone, Debug)]
pub struct LayoutIndex {
    /// All fields but the entries.
    fields: Map<String, Value>,
    /// The entries; a document that has none is no index.
    manifests: Option<Vec<Value>>,
    /// `true` if the document has the field of its entries. Some tools write `null` there if there are none.
    has_field: bool,
}

impl LayoutIndex {
    /// Makes the index of a new layout, without entries.
    #[must_use]
    pub fn empty() -> Self {
        let fields = [("schemaVersion", json!(2)), ("mediaType", json!(INDEX_OCI))];
        let fields = fields.map(|(key, value)| (key.to_owned(), value)).into_iter().collect();
        Self { fields, manifests: Some(Vec::new()), has_field: true }
    }

    /// Parses an index. Any JSON object is accepted; [`is_index`](Self::is_index) tells if the object is an
    /// index.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if `bytes` is not a JSON object, or if its field `manifests`
    /// is not a list; [`headstart_block::ErrorKind::Unsupported`] if `bytes` is longer than
    /// [`MAX_INDEX_SIZE`].
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        if bytes.len() as u64 > MAX_INDEX_SIZE {
            return Err(Error::unsupported(format!("is an index of more than {MAX_INDEX_SIZE} bytes")));
        }
        let mut fields: Map<String, Value> = serde_json::from_slice(bytes)
            .map_err(|e| Error::corrupt("is not an OCI image index").caused_by(e))?;
        match fields.remove("manifests") {
            None => Ok(Self { fields, manifests: None, has_field: false }),
            Some(Value::Null) => Ok(Self { fields, manifests: None, has_field: true }),
            Some(Value::Array(list)) => Ok(Self { fields, manifests: Some(list), has_field: true }),
            Some(_) => Err(Error::corrupt("is not an OCI image index: its `manifests` are not a list")),
        }
    }

    /// Checks that no entry of a store's index is damaged. A deletion must not be decided by a damaged one, because it
    /// is not known which image it names. Entries of other tools are no damage: those of any media type, and those
    /// whose digests are of another algorithm.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if an entry is not a JSON object, or has no digest of a known algorithm,
    /// or if the index has no list of entries at all. The message names the entry by its place and its tag.
    pub fn check_entries(&self) -> Result<()> {
        const REMEDY: &str = "bring back a copy of that file, or correct the entry in it";
        if !self.has_field && self.manifests.is_none() {
            return Err(Error::corrupt(
                "has no list `manifests`, so that it is not known which images there are",
            )
            .remedy("bring back a copy of that file"));
        }
        let damaged =
            (1..).zip(self.entries()).find_map(|(at, entry)| Some((at, entry.tag, entry.damage()?)));
        damaged.map_or(Ok(()), |(at, tag, damage): (u64, _, _)| {
            let tag = tag.map(|tag| format!(" (`{}`)", tag.escape_debug())).unwrap_or_default();
            Err(Error::corrupt(format!("entry {at}{tag} {damage}")).remedy(REMEDY))
        })
    }

    /// `true` if the media type that the document states is that of an index. A document that states no media type is
    /// an index if it has a field `manifests`.
    #[must_use]
    pub fn is_index(&self) -> bool {
        match self.media_type() {
            Some(media_type) => [INDEX_OCI, INDEX_DOCKER].contains(&media_type),
            None => self.manifests.is_some(),
        }
    }

    /// Returns the media type that the document states; `None` if it states none.
    #[must_use]
    pub fn media_type(&self) -> Option<&str> {
        self.fields.get("mediaType").and_then(Value::as_str)
    }

    /// Returns the JSON text of the index.
    ///
    /// # Errors
    /// None that are known: JSON values can always be written.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut fields = self.fields.clone();
        fields.insert("manifests".to_owned(), json!(self.manifests.as_deref().unwrap_or_default()));
        serde_json::to_vec(&fields).map_err(|e| Error::invalid("cannot make an index").caused_by(e))
    }

    /// Returns all entries in the order of the document.
    pub fn entries(&self) -> impl Iterator<Item = LayoutEntry<'_>> {
        self.manifests.iter().flatten().map(LayoutEntry::new)
    }

    /// Returns the entry with the given tag. If several entries have the tag, returns the first of them that is for
    /// Linux on amd64; if none of them is, the first of them. `None` if no entry has the tag.
    #[must_use]
    pub fn find(&self, tag: &Tag) -> Option<LayoutEntry<'_>> {
        let mut tagged = self.entries().filter(|entry| entry.tag == Some(tag.as_str())).peekable();
        let first = tagged.peek().copied();
        tagged.find(LayoutEntry::is_for_this_platform).or(first)
    }

    /// Returns the first entry for Linux on amd64 that is a disk image, converted from another entry; if there is none,
    /// the first entry for Linux on amd64. If there is none, either, but the index has exactly one entry, returns that
    /// one; otherwise `None`.
    #[must_use]
    pub fn for_this_platform(&self) -> Option<LayoutEntry<'_>> {
        let only = match self.manifests.as_deref() {
            Some([only]) => Some(LayoutEntry::new(only)),
            _ => None,
        };
        let ours = || self.entries().filter(LayoutEntry::is_for_this_platform);
        ours().find(LayoutEntry::is_disk_image).or_else(|| ours().next()).or(only)
    }

    /// Makes `tag` refer to the manifest `digest`. All earlier entries with the tag are replaced. `size` is
    /// the length of the manifest in bytes.
    pub fn set(&mut self, tag: &Tag, media_type: &str, digest: &Digest, size: u64) {
        let entry = json!({
            "mediaType": media_type, "digest": digest.to_string(), "size": size,
            "annotations": { REF_NAME: tag.as_str() },
        });
        let selector = Selector::Tag(tag.clone());
        let manifests = self.manifests.get_or_insert_default();
        let place = manifests.iter().position(|value| LayoutEntry::new(value).is_selected(&selector));
        manifests.retain(|value| !LayoutEntry::new(value).is_selected(&selector));
        // Those in front of the first are still there, so its place is within the list.
        manifests.insert(place.unwrap_or(manifests.len()), entry);
    }

    /// Adds an entry without a tag for the manifest `digest`, so that a prune keeps it. Does nothing if the
    /// index has an entry for it. `size` is the length of the manifest in bytes.
    pub fn keep(&mut self, media_type: &str, digest: &Digest, size: u64) {
        if self.entries().all(|entry| entry.digest != Some(*digest)) {
            let entry = json!({"mediaType": media_type, "digest": digest.to_string(), "size": size});
            self.manifests.get_or_insert_default().push(entry);
        }
    }

    /// Returns the tags of images, sorted and without duplicates. Tags of lists of artifacts are left out.
    #[must_use]
    pub fn tags(&self) -> Vec<Tag> {
        let tags = self.entries().filter_map(|entry| entry.tag);
        let mut tags: Vec<Tag> =
            tags.filter(|tag| !super::is_referrers_tag(tag)).filter_map(|tag| tag.parse().ok()).collect();
        tags.sort();
        tags.dedup();
        tags
    }

    /// Removes all entries with the given tag or digest. Returns `true` if there were any.
    pub fn remove(&mut self, selector: &Selector) -> bool {
        let manifests = self.manifests.get_or_insert_default();
        let before = manifests.len();
        manifests.retain(|value| !LayoutEntry::new(value).is_selected(selector));
        manifests.len() < before
    }
}
