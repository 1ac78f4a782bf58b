//! Layers that were converted from containers' layers, as artifacts of any store: they are found by the keys of their
//! conversions, and the same base is converted once for all images on it.
//!
//! An artifact is a manifest whose `subject` has the key as its digest. There is no manifest with that digest, which
//! the specification of registries allows: the list of artifacts of a digest is the only index of a store that needs no
//! database. A store may delete artifacts whose subject is missing, when it collects garbage; the layer is converted
//! again then, to the same bytes.
//!
//! | field | value |
//! |---|---|
//! | `artifactType` | [`CONVERTED_LAYER`] |
//! | `subject` | media type [`CONVERTED_LAYER`], digest: the key |
//! | `config` | the empty config of OCI, `{}` |
//! | `layers` | the layer with all its annotations, as in an image, and the blob of its hash tree |
//!
//! The list of a store is not trusted: an artifact counts if its manifest is of this kind and its layer states this
//! key. Writers of a repository can put any layer there, just as any image: the artifacts of a repository are
//! to be used only for images of the same writers.

use crate::manifest::{ImageLayer, MANIFEST_OCI};
use crate::plan_artifact::{EMPTY_CONFIG, is_unsound, put_blobs};
use crate::transfer::HASH_TREE;
use bytes::Bytes;
use futures::future::{join, try_join};
use futures::stream::{self, StreamExt, TryStreamExt};
use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_store::media_type::CONFIG_EMPTY;
use headstart_store::{Referrer, Selector, Store};
use serde_json::{Value, json};
use std::sync::Arc;

/// The type of the artifact of a converted layer, and the media type of its subject.
pub const CONVERTED_LAYER: &str = "application/vnd.headstart.converted-layer.v1";

/// The number of artifacts of one key that are tried. There is one, unless writers raced.
const MOST_TRIED: usize = 4;

/// The number of artifacts that are written to a registry at once. Other stores have one index of all, whose writers
/// wait for each other.
const AT_ONCE: usize = 8;

/// Returns the layer that the conversion with that key gave, if `store` has an artifact of it, the blob of the layer
/// and that of its hash tree. `None` if not; an artifact that is not valid is none.
///
/// # Errors
/// Errors of the store.
pub async fn find(store: &dyn Store, key: &Digest) -> Result<Option<ImageLayer>> {
    for artifact in listed(store, key).await?.iter().take(MOST_TRIED) {
        let Some(layer) = read(store, artifact, key).await? else { continue };
        if is_whole(store, &layer).await? {
            return Ok(Some(layer));
        }
    }
    Ok(None)
}

/// Returns a layer as [`find`] does, mostly the same one, but without asking if `store` has the blobs of it
/// ([`is_whole`]): for callers that have more to ask at the same time.
///
/// # Errors
/// Errors of the store.
pub async fn find_noted(store: &dyn Store, key: &Digest) -> Result<Option<ImageLayer>> {
    for artifact in listed(store, key).await?.iter().take(MOST_TRIED) {
        if let Some(layer) = read(store, artifact, key).await? {
            return Ok(Some(layer));
        }
    }
    Ok(None)
}

/// The artifacts that a store lists for a key.
async fn listed(store: &dyn Store, key: &Digest) -> Result<Vec<Referrer>> {
    match store.referrers(key, CONVERTED_LAYER).await {
        // The store may not be there yet.
        Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => Ok(Vec::new()),
        listed => listed,
    }
}

/// The layer of an artifact; `None` if the artifact is not valid.
async fn read(store: &dyn Store, artifact: &Referrer, key: &Digest) -> Result<Option<ImageLayer>> {
    match store.manifest(&Selector::Digest(artifact.digest)).await {
        Err(e) if is_unsound(&e) => {
            tracing::debug!(error = %e, artifact = %artifact.digest, "a converted layer is passed over");
            Ok(None)
        }
        manifest => Ok(parse(&manifest?.1, key)),
    }
}

/// Writes the artifacts of layers that the conversions with these keys gave. The blobs of the layers and of their hash
/// trees must be in the store.
///
/// # Errors
/// [`ErrorKind::Invalid`] if a layer has no hash tree; errors of the store.
pub async fn publish(store: &Arc<dyn Store>, layers: &[(Digest, ImageLayer)]) -> Result<()> {
    if !store.drops_unnamed_blobs() {
        put_blobs(store, &[]).await?;
        return put_artifacts(store, layers, 1).await;
    }
    // Nearly always the empty config is there, and waiting for that answer would be a round trip. A registry that lacks
    // it refuses the artifacts.
    let (config, put) = join(put_blobs(store, &[]), put_artifacts(store, layers, AT_ONCE)).await;
    config?;
    match put {
        Err(error) => {
            tracing::debug!(%error, "the notes of converted layers are written once more");
            put_artifacts(store, layers, AT_ONCE).await
        }
        put => put,
    }
}

async fn put_artifacts(
    store: &Arc<dyn Store>,
    layers: &[(Digest, ImageLayer)],
    at_once: usize,
) -> Result<()> {
    let put = |(key, layer): &(Digest, ImageLayer)| {
        let artifact = artifact(key, layer).map(Bytes::from);
        let key = *key;
        async move { store.put_referrer(&key, MANIFEST_OCI, artifact?, &[]).await.map(drop) }
    };
    stream::iter(layers.iter().map(put)).buffer_unordered(at_once).try_collect().await
}

/// `true` if the store has the blob of a layer and that of its hash tree, each with its length.
///
/// # Errors
/// Errors of the store.
pub async fn is_whole(store: &dyn Store, layer: &ImageLayer) -> Result<bool> {
    let Some(tree) = layer.tree else { return Ok(false) };
    let (blob, outboard) = try_join(store.blob_len(&layer.blob.digest), store.blob_len(&tree.digest)).await?;
    Ok(blob == Some(layer.blob.size) && outboard == Some(tree.size))
}

fn artifact(key: &Digest, layer: &ImageLayer) -> Result<Vec<u8>> {
    let tree = layer.tree.ok_or_else(|| Error::invalid("a layer without a hash tree is not kept"))?;
    let descriptor = |media_type: &str, digest: &Digest, size: u64| {
        let digest = digest.to_string();
        json!({ "mediaType": media_type, "digest": digest, "size": size })
    };
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_OCI,
        "artifactType": CONVERTED_LAYER,
        "config": descriptor(CONFIG_EMPTY, &Digest::of(EMPTY_CONFIG), EMPTY_CONFIG.len() as u64),
        "layers": [layer.to_json()?, descriptor(HASH_TREE, &tree.digest, tree.size)],
        "subject": descriptor(CONVERTED_LAYER, key, 0),
    });
    Ok(manifest.to_string().into_bytes())
}

/// The layer of an artifact. `None` if it is none of this kind, or of another key.
fn parse(manifest: &[u8], key: &Digest) -> Option<ImageLayer> {
    let value: Value = serde_json::from_slice(manifest).ok()?;
    let is_of_kind =
        value["artifactType"] == CONVERTED_LAYER && value["subject"]["digest"] == key.to_string();
    let layer = value["layers"].get(0).filter(|_| is_of_kind)?;
    let layer = ImageLayer::from_json(layer).ok()?;
    layer.origin().is_some_and(|origin| origin.key == *key).then_some(layer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{LayerOrigin, Tree};
    use headstart_hash_tree::{TreeRoot, outboard_len};

    fn layer(key: Digest) -> ImageLayer {
        let tree = Tree { root: TreeRoot::of(b"x"), digest: Digest::of(b"tree"), size: outboard_len(1000) };
        let origin = LayerOrigin { digest: Digest::of(b"a"), chain: Digest::of(b"b"), key };
        ImageLayer::new(Digest::of(b"x"), 1000, tree).with_origin(&origin)
    }

    #[test]
    fn an_artifact_gives_back_its_layer_for_its_key_alone() {
        let [key, other] = [b"key", b"two"].map(|text| Digest::of(text));
        let manifest = artifact(&key, &layer(key)).unwrap();
        assert_eq!(parse(&manifest, &key), Some(layer(key)));
        assert_eq!(parse(&manifest, &other), None);
        // A layer that states another key than the subject.
        assert_eq!(parse(&artifact(&key, &layer(other)).unwrap(), &key), None);
        for other in [&b"{}"[..], b"", b"[]", br#"{"layers":[]}"#] {
            assert_eq!(parse(other, &key), None);
        }
    }
}
