//! Images without hash trees, as other tools make them: their bytes are taken on their store's word until they are
//! found wrong, by the checksum of a frame or by the digest of the whole.

use super::{DISK, LIMIT, Rig, read_error, wait_until, with_deadline};
use headstart_block::{BlockDevice, ByteRange, Digest, ErrorKind};
use headstart_disk::attach::attach_remote;
use headstart_disk::{Disk, DiskHost, DiskOptions};
use headstart_lsmt::{LayerMeta, LayerWriter};
use headstart_store::{Reference, StoreSettings};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Puts a manifest into the rig's store, under a tag.
fn put_manifest(rig: &Rig, manifest: String, tag: &str) -> Reference {
    let inner = headstart_store::open(&rig.reference.location, &StoreSettings::default()).unwrap();
    let tagged = tag.parse().unwrap();
    rig.within_limit(inner.put_manifest(MANIFEST, manifest.into(), Some(&tagged))).unwrap();
    format!("file://{}/store:{tag}", rig.dir.path().display()).parse().unwrap()
}

/// The rig's image, whose frames have checksums, without its hash tree.
fn stripped(rig: &Rig) -> Reference {
    let inner = headstart_store::open(&rig.reference.location, &StoreSettings::default()).unwrap();
    let (_, bytes) = rig.within_limit(inner.manifest(&rig.reference.selector)).unwrap();
    let mut manifest: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    for layer in manifest["layers"].as_array_mut().unwrap() {
        let annotations = layer["annotations"].as_object_mut().unwrap();
        annotations.retain(|name, _| !name.starts_with("dev.headstart.tree-"));
    }
    put_manifest(rig, manifest.to_string(), "stripped")
}

/// An image of one bare layer, which nothing covers except its digest, and the offset of its table.
fn bare(rig: &Rig) -> (Reference, u64) {
    let meta = LayerMeta { virtual_size: DISK as u64, ..LayerMeta::default() };
    let mut writer = LayerWriter::new(Vec::new(), meta).unwrap();
    let half = DISK / 2;
    writer.data(0, &rig.content[..half / 2]).unwrap();
    writer.data(half as u64, &rig.content[half..half + half / 2]).unwrap();
    let (blob, _) = writer.finish().unwrap();
    let (digest, size) = (Digest::of(&blob), blob.len());
    let inner = headstart_store::open(&rig.reference.location, &StoreSettings::default()).unwrap();
    rig.within_limit(inner.put_blob(&digest, Arc::new(blob), &|_| Ok(()))).unwrap();
    let manifest = format!(
        r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}",
        "config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"{digest}","size":{size}}},
        "layers":[{{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"{digest}","size":{size},
        "annotations":{{"containerd.io/snapshot/overlaybd/version":"0.1.0",
        "containerd.io/snapshot/overlaybd/blob-digest":"{digest}",
        "containerd.io/snapshot/overlaybd/blob-size":"{size}"}}}}]}}"#
    );
    (put_manifest(rig, manifest, "bare"), 4096 + half as u64)
}

fn attach(rig: &Rig, host: &DiskHost, reference: &Reference, options: &DiskOptions) -> Arc<Disk> {
    let store = Arc::clone(&rig.store) as Arc<dyn headstart_store::Store>;
    rig.within_limit(attach_remote(host, store, reference, options)).unwrap().disk
}

fn filled() -> DiskOptions {
    DiskOptions { fill_rate: Some(1 << 40), ..with_deadline(LIMIT) }
}

fn blob_of(disk: &Disk) -> Digest {
    disk.puller().unwrap().blobs().data()[0].spec().digest
}

#[test]
fn frames_that_fail_their_checksum_are_fetched_again() {
    let rig = Rig::new();
    let (host, reference) = (rig.host(), stripped(&rig));
    let mut options = with_deadline(LIMIT);
    options.pull.miss_rest = headstart_pull::MissRest::None;
    let disk = attach(&rig, &host, &reference, &options);
    for n in 0..4 {
        rig.store.corrupt.store(1, Ordering::Relaxed);
        rig.check(&disk, n * (2 << 20) + 4096, 65_536);
    }
    rig.store.corrupt.store(u64::MAX, Ordering::Relaxed);
    let requests = rig.store.requests.load(Ordering::Relaxed);
    let error = read_error(&disk, 7 << 20);
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains(&blob_of(&disk).to_string()), "{error}");
    assert!(rig.store.requests.load(Ordering::Relaxed) < requests + 40, "not for ever");
    rig.store.corrupt.store(0, Ordering::Relaxed);
    rig.check(&disk, 0, DISK);
    assert_eq!(disk.stats().errors.load(Ordering::Relaxed), 1);
}

/// A server takes the path of the local read first.
#[test]
fn a_local_read_leaves_wrong_frames_to_who_may_wait() {
    let rig = Rig::new();
    let (host, reference) = (rig.host(), stripped(&rig));
    let disk = attach(&rig, &host, &reference, &with_deadline(LIMIT));
    rig.store.corrupt.store(u64::MAX, Ordering::Relaxed);
    let blobs = Arc::clone(disk.puller().unwrap().blobs());
    let before = blobs.local_bytes().0;
    disk.prefetch(ByteRange::between(4 << 20, (4 << 20) + 4096));
    wait_until("it is here", LIMIT, || blobs.local_bytes().0 > before && blobs.unproven_bytes() > 0);
    wait_until("its way is known to be long", LIMIT, || {
        disk.read_local_at(&mut [0; 4096], 4 << 20).is_err_and(|e| e.kind() == ErrorKind::Absent)
    });
    rig.store.corrupt.store(0, Ordering::Relaxed);
    rig.check(&disk, 4 << 20, 4096);
    assert_eq!(disk.stats().errors.load(Ordering::Relaxed), 0);
}

#[test]
fn a_layer_that_does_not_open_is_fetched_again() {
    let rig = Rig::new();
    let (host, reference) = (rig.host(), stripped(&rig));
    rig.store.corrupt.store(2, Ordering::Relaxed);
    let disk = attach(&rig, &host, &reference, &with_deadline(LIMIT));
    rig.check(&disk, 0, DISK);
}

#[test]
fn wrong_bytes_that_nothing_covers_are_found_out_when_all_is_here() {
    let rig = Rig::new();
    let (host, (reference, _)) = (rig.host(), bare(&rig));
    rig.store.wrong_at.lock().unwrap().insert(1 << 20, 1);
    let disk = attach(&rig, &host, &reference, &filled());
    wait_until("it is found out", LIMIT, || host.cache.counters().wrong_blobs == 1);
    wait_until("it is fetched again, and right", LIMIT, || host.cache.counters().proven_blobs == 1);
    assert_eq!(disk.puller().unwrap().blobs().unproven_bytes(), 0);
    rig.check(&disk, 0, DISK / 4);
    rig.check(&disk, DISK / 2, DISK / 4);
    assert_eq!(host.cache.counters().wrong_blobs, 1);
}

#[test]
fn a_store_that_is_always_wrong_is_not_asked_for_ever() {
    let rig = Rig::new();
    let (host, (reference, _)) = (rig.host(), bare(&rig));
    rig.store.wrong_at.lock().unwrap().insert(1 << 20, u64::MAX);
    let disk = attach(&rig, &host, &reference, &filled());
    wait_until("it is given up", LIMIT, || disk.puller().unwrap().blobs().data()[0].is_refused());
    assert_eq!(host.cache.counters().wrong_blobs, 3);
    wait_until("nothing of it is here", LIMIT, || disk.puller().unwrap().blobs().local_bytes().0 == 0);
    let requests = || rig.store.requests.load(Ordering::Relaxed);
    let before = requests();
    for offset in [0, 1 << 20, DISK as u64 / 2] {
        let error = read_error(&disk, offset);
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{text}");
        assert!(text.contains(&blob_of(&disk).to_string()) && text.contains("repair"), "{text}");
        // As a server reads first.
        let local = disk.read_local_at(&mut [0; 512], offset).unwrap_err();
        assert_eq!(local.kind(), ErrorKind::Corrupt, "{local}");
    }
    assert!(requests() <= before + 2, "{} more requests", requests() - before);
    // The store is repaired: a new attach begins again.
    drop(disk);
    rig.store.wrong_at.lock().unwrap().clear();
    let host = rig.host();
    let disk = attach(&rig, &host, &reference, &filled());
    wait_until("it is right", LIMIT, || host.cache.counters().proven_blobs == 1);
    rig.check(&disk, 0, DISK / 4);
}

/// The index is in use when the blob that it came from turns out wrong.
#[test]
fn a_disk_that_was_opened_by_a_wrong_index_serves_no_more() {
    let rig = Rig::new();
    let (host, (reference, table)) = (rig.host(), bare(&rig));
    // The place of the first segment's data: a sector further on.
    rig.store.wrong_at.lock().unwrap().insert(table + 8, 1);
    let disk = attach(&rig, &host, &reference, &filled());
    wait_until("it is found out", LIMIT, || host.cache.counters().wrong_blobs == 1);
    let mut buf = vec![0; 4096];
    wait_until("it serves no more", LIMIT, || {
        disk.read_at(&mut buf, 0).is_err_and(|e| e.to_string().contains("attach it again"))
    });
    assert!(read_error(&disk, DISK as u64 - 512).to_string().contains(&blob_of(&disk).to_string()));
    wait_until("it is right", LIMIT, || host.cache.counters().proven_blobs == 1);
    let again = attach(&rig, &host, &reference, &with_deadline(LIMIT));
    rig.check(&again, 0, DISK / 4);
    drop(disk);
}
