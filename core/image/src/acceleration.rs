//! Acceleration layers: a trace that travels inside an image, as its topmost layer, for `OverlayBD`'s prefetcher.
//!
//! The layer is no part of the disk. Its blob is a tar archive with one file, `trace`, not compressed. Its annotation
//! ([`ACCELERATION_LAYER`]) names its kind. The content of the file is opaque here; `headstart_plan` reads and writes
//! it.
//!
//! Adding such a layer to an image makes a new image: the manifest and its digest differ, but the disk is the same. The
//! new manifest names the original image ([`OPTIMIZED_FROM`]; if the source names an original itself, that one), so
//! that knowledge about one serves the other.

use crate::manifest::{
    ACCELERATION_LAYER, BLOB_DIGEST, BLOB_SIZE, Config, ImageLayer, MAX_MANIFEST_SIZE, Manifest,
    OPTIMIZED_FROM, OVERLAYBD_VERSION, OVERLAYBD_VERSION_NATIVE, media_type,
};
use crate::tar_wrapper;
use crate::transfer::put_trees;
use bytes::Bytes;
use headstart_block::{ByteRange, Digest, Error, Result};
use headstart_store::{RetrySettings, Selector, Store, Tag, Urgency};
use serde_json::{Value, json};
use std::sync::Arc;

/// The largest acceleration layer that is read, in bytes.
const LAYER_MAX: u64 = (64 << 20) + (64 << 10);

/// The name of the file in the layer.
const FILE_NAME: &[u8] = b"trace";

/// The number of bytes of a block of a tar archive.
const BLOCK: usize = 512;

/// Returns the recorded boot trace that an image carries in its acceleration layer, for OverlayBD's
/// prefetcher. If there are several such layers, the topmost counts. `None` if the image has no such layer.
///
/// # Errors
/// Errors of the store; [`headstart_block::ErrorKind::Corrupt`] if the layer does not match its digest or its
/// file is cut short; `Unsupported` if the layer is too large or is not a tar archive.
pub async fn trace_of(store: &dyn Store, manifest: &Manifest) -> Result<Option<Bytes>> {
    let Some(layer) = manifest.layers.iter().rev().find(|layer| layer.is_acceleration()) else {
        return Ok(None);
    };
    let about = |e: Error| e.about(format!("acceleration layer {} of {}", layer.blob.digest, store.name()));
    read_trace(store, layer).await.map(Some).map_err(about)
}

async fn read_trace(store: &dyn Store, layer: &ImageLayer) -> Result<Bytes> {
    if layer.blob.size > LAYER_MAX {
        return Err(Error::unsupported(format!("has {} bytes, more than a trace", layer.blob.size)));
    }
    let blob = read_blob(store, &layer.blob.digest, layer.blob.size).await?;
    let file = tar_wrapper::locate(&blob[..])?;
    let file = file.ok_or_else(|| Error::unsupported("is not a tar archive"))?;
    match (usize::try_from(file.offset()), usize::try_from(file.end())) {
        (Ok(from), Ok(to)) if to <= blob.len() => Ok(blob.slice(from..to)),
        _ => Err(Error::corrupt("is shorter than it says")),
    }
}

/// A whole blob, checked against its digest.
async fn read_blob(store: &dyn Store, digest: &Digest, len: u64) -> Result<Bytes> {
    let once = || store.read(digest, ByteRange::between(0, len), Urgency::Demand);
    let bytes = if len == 0 { Bytes::new() } else { RetrySettings::default().run(once, |_| ()).await? };
    if Digest::of(&bytes) != *digest {
        return Err(Error::corrupt("does not match its digest"));
    }
    Ok(bytes)
}

/// Publishes a copy of an image in the same store, under `tag`, with `trace` as its acceleration layer (a
/// layer that only holds a recorded boot trace). `image` is the digest of the source image's manifest. An
/// older acceleration layer is replaced. Returns the digest of the new image's manifest. The same image and
/// trace give the same digest.
///
/// # Errors
/// [`headstart_block::ErrorKind::NotFound`] if there is no such image; `Corrupt` or `Unsupported` if its manifest or
/// config is not that of an image, or is too large; errors of the store.
pub async fn with_trace(store: &Arc<dyn Store>, image: &Digest, trace: &[u8], tag: &Tag) -> Result<Digest> {
    let (image, bytes) = store.manifest(&Selector::Digest(*image)).await?;
    let about = |e: Error| e.about(format!("image {}@{image}", store.name()));
    let before = Manifest::parse(&bytes).map_err(about)?;
    if before.config.size > MAX_MANIFEST_SIZE {
        return Err(about(Error::unsupported("has a config that is too large")));
    }
    let config = read_blob(&**store, &before.config.digest, before.config.size).await?;
    let config = Config::parse(&config).map_err(about)?;

    let layer: Bytes = archive(trace).into();
    let layers: Vec<Digest> = before.disk_layers().map(|layer| layer.blob.digest).collect();
    let config: Bytes = config.on_top_of(&before, Digest::of(&layer)).into();
    let manifest: Bytes = manifest_with(&bytes, image, &before, &layer, &config)?.into();
    // The result is read by the same rules as the manifests of other tools.
    let after = Manifest::parse(&manifest)?;
    debug_assert_eq!(layers, after.disk_layers().map(|layer| layer.blob.digest).collect::<Vec<_>>());

    store.prepare_to_write().await?;
    let written = write_accelerated(store, &after, manifest, [&layer, &config], tag).await;
    // Also after a failure: no other process has to wait for this writer.
    store.done_writing().await;
    written
}

/// Writes the blobs of an image that it does not share with its source image, and then the image.
async fn write_accelerated(
    store: &Arc<dyn Store>,
    after: &Manifest,
    manifest: Bytes,
    blobs: [&Bytes; 2],
    tag: &Tag,
) -> Result<Digest> {
    for blob in blobs {
        let digest = Digest::of(blob);
        if store.blob_len(&digest).await? != Some(blob.len() as u64) {
            store.put_blob(&digest, Arc::new(blob.to_vec()), &|_| Ok(())).await?;
        }
    }
    let mut trees = Vec::new();
    for tree in after.layers.iter().filter_map(|layer| layer.tree) {
        if store.drops_unnamed_blobs() && store.blob_len(&tree.digest).await? == Some(tree.size) {
            trees.push(tree.digest);
        }
    }
    put_trees(store, after, &manifest, |digest| trees.contains(&digest)).await?;
    store.put_manifest(&media_type(&manifest), manifest, Some(tag)).await
}

/// The manifest with another config and the layer on top; all its other fields stay, known here or not.
fn manifest_with(
    bytes: &[u8],
    image: Digest,
    before: &Manifest,
    layer: &[u8],
    config: &[u8],
) -> Result<Vec<u8>> {
    let wrong = || Error::corrupt("is not an image manifest");
    let mut value: Value = serde_json::from_slice(bytes).map_err(|e| wrong().caused_by(e))?;
    let (digest, size) = (Digest::of(layer).to_string(), layer.len());
    let added = json!({
        "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest, "size": size,
        "annotations": {
            ACCELERATION_LAYER: "yes", BLOB_DIGEST: digest, BLOB_SIZE: size.to_string(),
            OVERLAYBD_VERSION: OVERLAYBD_VERSION_NATIVE,
        },
    });
    let layers = value.get_mut("layers").and_then(Value::as_array_mut).ok_or_else(wrong)?;
    layers.retain(|layer| layer["annotations"][ACCELERATION_LAYER] != "yes");
    layers.push(added);
    value["config"]["digest"] = json!(Digest::of(config).to_string());
    value["config"]["size"] = json!(config.len());
    if !value["annotations"].is_object() {
        value["annotations"] = json!({});
    }
    value["annotations"][OPTIMIZED_FROM] = json!(before.known_as(image).to_string());
    serde_json::to_vec(&value).map_err(|e| wrong().caused_by(e))
}

/// A tar archive with a trace as its only file. It has no dates: the same trace gives the same bytes.
fn archive(trace: &[u8]) -> Vec<u8> {
    let mut header = [0_u8; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, FILE_NAME);
    put(100, b"0000444\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{:011o}\0", trace.len()).as_bytes());
    put(136, b"00000000000\0");
    // The checksum counts itself as blanks.
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = header.to_vec();
    archive.extend(trace);
    archive.resize(archive.len().next_multiple_of(BLOCK) + 2 * BLOCK, 0);
    archive
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::CONFIG_OCI;
    use headstart_block::ErrorKind;

    #[test]
    fn an_archive_has_the_file_and_nothing_else() {
        for len in [0, 1, 511, 512, 513, 100_000] {
            let trace: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
            let archive = archive(&trace);
            let range = tar_wrapper::locate(&archive).unwrap().unwrap();
            assert_eq!((range.offset(), range.len()), (512, len));
            assert_eq!(archive[512..][..trace.len()], trace);
            assert!(archive.len().is_multiple_of(512) && archive.ends_with(&[0; 1024]));
            assert_eq!(&archive[..6], b"trace\0");
        }
    }

    #[test]
    fn hostile_layers_are_errors() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let location = headstart_store::Location::Directory(dir.path().join("store"));
        let store = headstart_store::open(&location, &headstart_store::StoreSettings::default()).unwrap();
        let read = |bytes: Vec<u8>, size: u64| {
            let digest = Digest::of(&bytes);
            let descriptor = json!({
                "mediaType": "m", "digest": digest.to_string(), "size": size,
                "annotations": { ACCELERATION_LAYER: "yes" },
            });
            let manifest = json!({
                "schemaVersion": 2, "layers": [descriptor],
                "config": { "mediaType": CONFIG_OCI, "digest": digest.to_string(), "size": 2 },
            });
            let manifest = Manifest::parse(manifest.to_string().as_bytes()).unwrap();
            runtime.block_on(async {
                store.put_blob(&digest, Arc::new(bytes), &|_| Ok(())).await.unwrap();
                trace_of(&*store, &manifest).await
            })
        };
        let good = archive(b"a trace");
        let len = good.len() as u64;
        assert_eq!(read(good.clone(), len).unwrap().unwrap(), &b"a trace"[..]);
        assert_eq!(read(good.clone(), len - 512).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(read(good[..512].to_vec(), 512).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(read(vec![7; 2000], 2000).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(read(good, LAYER_MAX + 1).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
