//! Blobs read as streams that break: from a store in memory whose streams end as a test orders.

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use headstart_block::{ByteRange, Digest, Error, ErrorKind, ReadAt, Result, to_usize};
use headstart_store::blob_reader::BlobReader;
use headstart_store::store::Copied;
use headstart_store::{
    Location, RetrySettings, Selector, Stop, Store, StoreCounters, StoreSettings, Tag, Urgency, open,
};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;

const PART: usize = 10_000;

/// A store of one blob, whose streams break.
struct Breaking {
    blob: Vec<u8>,
    /// The number of parts that a stream gives before it breaks with an error of this kind.
    breaks: Option<(usize, ErrorKind)>,
    streams: AtomicUsize,
    stop: Option<Stop>,
}

impl Breaking {
    fn new(len: usize, breaks: Option<(usize, ErrorKind)>) -> Arc<Self> {
        let blob = (0..len).map(|at| u8::try_from(at * at % 251).unwrap()).collect();
        Arc::new(Self { blob, breaks, streams: AtomicUsize::new(0), stop: None })
    }

    fn unsupported<T>() -> Result<T> {
        Err(Error::unsupported("is not part of the test"))
    }
}

#[async_trait]
impl Store for Breaking {
    fn location(&self) -> String {
        "breaking".to_owned()
    }

    fn stop(&self) -> Option<&Stop> {
        self.stop.as_ref()
    }

    async fn check(&self) -> Result<()> {
        Self::unsupported()
    }

    async fn manifest(&self, _: &Selector) -> Result<(Digest, Bytes)> {
        Self::unsupported()
    }

    async fn read(&self, _: &Digest, range: ByteRange, _: Urgency) -> Result<Bytes> {
        if self.stop.is_some() {
            std::future::pending::<()>().await;
        }
        Ok(self.blob[to_usize(range.offset())..to_usize(range.end())].to_vec().into())
    }

    async fn read_stream<'s>(
        &'s self,
        blob: &Digest,
        range: ByteRange,
        urgency: Urgency,
    ) -> Result<BoxStream<'s, Result<Bytes>>> {
        self.streams.fetch_add(1, Ordering::Relaxed);
        let bytes = self.read(blob, range, urgency).await?;
        let parts: Vec<_> = bytes.chunks(PART).map(|part| Ok(Bytes::copy_from_slice(part))).collect();
        Ok(match self.breaks {
            Some((most, kind)) if most < parts.len() => {
                let error = stream::iter([Err(Error::new(kind, "broke"))]);
                stream::iter(parts).take(most).chain(error).boxed()
            }
            _ => stream::iter(parts).boxed(),
        })
    }

    async fn blob_len(&self, _: &Digest) -> Result<Option<u64>> {
        Self::unsupported()
    }

    async fn put_blob(&self, _: &Digest, _: Arc<dyn ReadAt>, _: Copied<'_>) -> Result<()> {
        Self::unsupported()
    }

    async fn put_manifest(&self, _: &str, _: Bytes, _: Option<&Tag>) -> Result<Digest> {
        Self::unsupported()
    }

    async fn tags(&self) -> Result<Vec<Tag>> {
        Self::unsupported()
    }

    fn counters(&self) -> StoreCounters {
        StoreCounters::default()
    }
}

fn quick() -> RetrySettings {
    let pause = Duration::from_millis(1);
    RetrySettings { first: pause, most: pause, deadline: Duration::from_millis(300) }
}

/// Reads a range of the blob of `store`.
fn read(store: &Arc<Breaking>, range: ByteRange) -> Result<Vec<u8>> {
    let runtime = Runtime::new().unwrap();
    let store: Arc<dyn Store> = Arc::<Breaking>::clone(store);
    let mut reader = BlobReader::new(store, Digest::of(b"blob"), range, quick(), runtime.handle());
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[test]
fn a_stream_that_breaks_goes_on_where_it_broke() {
    // More than are fetched ahead, and more than the least progress between two breaks.
    let store = Breaking::new(6 << 20, Some((30, ErrorKind::Unavailable)));
    let range = ByteRange::between(12_345, (6 << 20) - 1);
    assert!(read(&store, range).unwrap() == store.blob[12_345..(6 << 20) - 1]);
    let streams = (to_usize(range.len())).div_ceil(30 * PART);
    assert_eq!(store.streams.load(Ordering::Relaxed), streams);
}

#[test]
fn a_few_bytes_are_no_progress() {
    let store = Breaking::new(3 << 20, Some((1, ErrorKind::Unavailable)));
    // The sum of them is.
    assert!(read(&store, ByteRange::between(0, 3 << 20)).unwrap() == store.blob);
    let store = Breaking::new(3 << 20, Some((0, ErrorKind::Unavailable)));
    let error = read(&store, ByteRange::between(0, 3 << 20)).unwrap_err();
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::Unavailable, "broke".to_owned()));
    assert!(store.streams.load(Ordering::Relaxed) > 2);
}

#[test]
fn an_error_that_retries_do_not_clear_ends_the_stream() {
    let store = Breaking::new(1 << 20, Some((90, ErrorKind::Denied)));
    let error = read(&store, ByteRange::between(0, 1 << 20)).unwrap_err();
    assert_eq!((error.kind(), store.streams.load(Ordering::Relaxed)), (ErrorKind::Denied, 1));
}

#[test]
fn an_empty_range_needs_no_store() {
    let store = Breaking::new(10, None);
    assert!(read(&store, ByteRange::between(5, 5)).unwrap().is_empty());
    assert_eq!(store.streams.load(Ordering::Relaxed), 0);
}

#[test]
fn a_reader_that_waits_ends_with_the_request_to_stop() {
    let (sender, stop) = Stop::new();
    let mut store = Breaking::new(10, None);
    Arc::get_mut(&mut store).unwrap().stop = Some(stop);
    let asking = std::thread::spawn(move || sender.ask());
    let error = read(&store, ByteRange::between(0, 10)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    asking.join().unwrap();
}

#[test]
fn an_index_is_given_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&Location::Directory(dir.path().join("store")), &StoreSettings::default()).unwrap();
    let runtime = Runtime::new().unwrap();
    let (index_type, manifest_type) =
        ("application/vnd.oci.image.index.v1+json", "application/vnd.oci.image.manifest.v1+json");
    let manifest = format!(r#"{{"schemaVersion":2,"mediaType":"{manifest_type}","layers":[]}}"#);
    runtime.block_on(async {
        let inner = store.put_manifest(manifest_type, manifest.clone().into(), None).await.unwrap();
        let index = format!(
            r#"{{"schemaVersion":2,"mediaType":"{index_type}","manifests":[{{"digest":"{inner}","size":1,
            "mediaType":"{manifest_type}","platform":{{"os":"linux","architecture":"amd64"}}}}]}}"#
        );
        let tag: Tag = "latest".parse().unwrap();
        let outer = store.put_manifest(index_type, index.clone().into(), Some(&tag)).await.unwrap();
        let selector = Selector::Tag(tag);
        assert_eq!(store.document(&selector).await.unwrap(), (outer, index.into()));
        assert_eq!(store.manifest(&selector).await.unwrap().0, inner);
        let by_digest = store.document(&Selector::Digest(inner)).await.unwrap();
        assert_eq!(by_digest, (inner, manifest.into()));
    });
}
