//! Stores in directories: copies write there whole images or none.

use futures::StreamExt;
use headstart_block::{ByteRange, Digest, Error, ErrorKind, ReadAt};
use headstart_store::layout::{LayoutDir, StagingDir, StalePolicy, remove_stale};
use headstart_store::media_type::MANIFEST_OCI;
use headstart_store::{Location, Selector, Store, StoreSettings, Tag, Urgency, open};
use std::path::Path;
use std::sync::Arc;

fn at(path: &Path) -> Arc<dyn Store> {
    open(&Location::Directory(path.to_owned()), &StoreSettings::default()).unwrap()
}

fn files(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_directory_gives_back_written_blobs_and_manifests() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let store = at(&root);
    assert_eq!(store.check().await.unwrap_err().kind(), ErrorKind::NotFound);
    let bytes: Vec<u8> = (0..20_000_000u32).map(|i| (i / 7) as u8).collect();
    let digest = Digest::of(&bytes);
    assert_eq!(store.blob_len(&digest).await.unwrap(), None);
    store.put_blob(&digest, Arc::new(bytes.clone()), &|_| Ok(())).await.unwrap();
    store.put_blob(&Digest::of(b""), Arc::new(Vec::new()), &|_| Ok(())).await.unwrap();
    store.check().await.unwrap();
    assert_eq!(store.blob_len(&digest).await.unwrap(), Some(20_000_000));
    let range = ByteRange::between(12_345_678, 12_400_000);
    let read = store.read(&digest, range, Urgency::Demand).await.unwrap();
    assert!(read == bytes[12_345_678..12_400_000]);
    let long = ByteRange::between(1, 19_999_999);
    let parts = store.read_stream(&digest, long, Urgency::Background).await.unwrap();
    let parts: Vec<_> = parts.map(Result::unwrap).collect().await;
    assert!(parts.iter().all(|part| part.len() <= 1 << 20), "it is never whole in memory");
    assert!(parts.concat() == bytes[1..19_999_999]);
    let past = ByteRange::between(0, 20_000_001);
    assert_eq!(store.read(&digest, past, Urgency::Demand).await.unwrap_err().kind(), ErrorKind::Corrupt);
    let missing = store.read(&Digest::of(b"?"), range, Urgency::Demand).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);

    let manifest = format!(r#"{{"config":{{"digest":"{digest}"}},"layers":[]}}"#);
    let tag: Tag = "v1".parse().unwrap();
    let name = store.put_manifest(MANIFEST_OCI, manifest.clone().into(), Some(&tag)).await.unwrap();
    let other = at(&root);
    assert_eq!(other.manifest(&Selector::Tag(tag.clone())).await.unwrap(), (name, manifest.into()));
    assert_eq!(other.tags().await.unwrap(), [tag]);
    drop(store);
    assert_eq!(files(&root.join(".headstart/staging")), [""; 0]);
}

#[tokio::test]
async fn failed_writes_leave_no_files() {
    let dir = tempfile::tempdir().unwrap();
    let store = at(dir.path());
    let bytes = vec![1; 10_000_000];
    let wrong = Digest::of(b"other");
    let error = store.put_blob(&wrong, Arc::new(bytes.clone()), &|_| Ok(())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let stop = |_| Err(Error::new(ErrorKind::Cancelled, "stop"));
    let digest = Digest::of(&bytes);
    let error = store.put_blob(&digest, Arc::new(bytes), &stop).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert_eq!(files(&dir.path().join("blobs/sha256")), [""; 0]);
    let staging = dir.path().join(".headstart/staging");
    let [own] = &files(&staging)[..] else { panic!("one writer, one directory") };
    assert_eq!(files(&staging.join(own)), ["early", "lease"]);

    // A manifest whose blobs are not there is not published.
    let manifest = format!(r#"{{"layers":[{{"digest":"{digest}"}}]}}"#);
    let tag = Tag::default();
    let error = store.put_manifest(MANIFEST_OCI, manifest.into(), Some(&tag)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(store.tags().await.unwrap().is_empty());
    assert_eq!(files(&dir.path().join("blobs/sha256")), [""; 0]);

    // Nor is a directory taken over that holds something else.
    let foreign = tempfile::tempdir().unwrap();
    std::fs::write(foreign.path().join("precious"), b"x").unwrap();
    let refused = at(foreign.path()).put_blob(&Digest::of(b""), Arc::new(Vec::new()), &|_| Ok(())).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn living_writers_are_seen_and_dead_ones_removed() {
    let dir = tempfile::tempdir().unwrap();
    let layout = LayoutDir::create_or_open(dir.path().join("store")).unwrap();
    let stale = layout.staging_dir().join("dead");
    std::fs::create_dir_all(&stale).unwrap();
    std::fs::write(stale.join("lease"), b"").unwrap();
    std::fs::write(stale.join("unfinished-0"), [0; 1000]).unwrap();
    let found = |policy| remove_stale(&layout, policy).unwrap();
    let counted = found(StalePolicy::Count);
    assert_eq!((counted.stale, counted.stale_bytes, counted.publishes_early), (1, 1000, false));
    let whole = StagingDir::new(&layout, false).unwrap();
    assert!(!stale.exists() && !found(StalePolicy::Count).publishes_early);
    let early = StagingDir::new(&layout, true).unwrap();
    assert!(found(StalePolicy::Delete).publishes_early && early.path().exists() && whole.path().exists());
    drop(early);
    assert!(!found(StalePolicy::Delete).publishes_early);
}

/// A blob with the length that a hostile manifest claims.
struct Endless(u64);

impl ReadAt for Endless {
    fn len(&self) -> u64 {
        self.0
    }

    fn read_at(&self, _: &mut [u8], _: u64) -> headstart_block::Result<()> {
        Err(Error::corrupt("is not that long"))
    }
}

#[tokio::test]
async fn a_length_that_is_a_lie_takes_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    let store = at(&dir.path().join("store"));
    for len in [1 << 45, u64::MAX / 2, u64::MAX] {
        let put = store.put_blob(&Digest::of(b"x"), Arc::new(Endless(len)), &|_| Ok(())).await;
        assert_eq!(put.unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
