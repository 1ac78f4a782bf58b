//! Single objects of a bucket, and the time of the store: what leases, copies and prunes are made of.

use super::BucketStore;
use crate::layout::too_long;
use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use headstart_block::{Error, ErrorKind, Result};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, UpdateVersion};
use std::time::SystemTime;

const CLOCK: &str = ".headstart/clock";

/// Leases and marks that are read at once.
const READS_IN_FLIGHT: usize = 16;

/// The time of an object by the store's clock.
pub(super) fn time_of(meta: &ObjectMeta) -> SystemTime {
    SystemTime::from(meta.last_modified)
}

impl BucketStore {
    /// The objects below a name, with the rest of their names.
    pub(super) async fn objects_below(&self, name: &str) -> Result<Vec<(String, ObjectMeta)>> {
        let prefix = self.path(name);
        let listing = self.objects.list(Some(&prefix)).try_collect::<Vec<_>>();
        let objects = self.call(name, super::WRITE_TIMEOUT, listing).await?;
        let rest = |path: &Path| {
            let parts = path.prefix_match(&prefix).into_iter().flatten();
            let parts = parts.map(|part| AsRef::<str>::as_ref(&part).to_owned());
            parts.collect::<Vec<_>>().join("/")
        };
        Ok(objects.into_iter().map(|meta| (rest(&meta.location), meta)).collect())
    }

    /// The time at which an object was written last; `None` if it is not there.
    pub(super) async fn written(&self, name: &str) -> Result<Option<SystemTime>> {
        let path = self.path(name);
        match self.call(name, self.first_byte, self.objects.head(&path)).await {
            Ok(meta) => Ok(Some(time_of(&meta))),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(super) async fn delete(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        match self.call(name, self.first_byte, self.objects.delete(&path)).await {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// The present, by the clock of the store.
    pub(super) async fn store_time(&self) -> Result<SystemTime> {
        self.put(CLOCK, Bytes::from_static(b"{}"), PutMode::Overwrite).await?;
        let time = self.written(CLOCK).await?;
        self.delete(CLOCK).await?;
        time.ok_or_else(|| {
            Error::new(ErrorKind::Conflict, "another process asks for its time at the same moment")
                .about(&self.location)
                .remedy("run it again")
        })
    }

    /// The present by the clock of the store. It is `here`, the present by the clock of this host, if nothing may be
    /// written there or others keep asking at the same moments.
    pub(super) async fn store_time_or(&self, here: SystemTime) -> Result<SystemTime> {
        for _ in 0..super::MOST_RACES {
            match self.store_time().await {
                Err(e) if e.kind() == ErrorKind::Conflict => {}
                Err(e) if matches!(e.kind(), ErrorKind::Denied | ErrorKind::ReadOnly) => return Ok(here),
                time => return time,
            }
        }
        Ok(here)
    }

    /// Reads the objects below a name, some at a time, in their order.
    pub(super) fn read_all<'s>(
        &'s self,
        below: &'s str,
        objects: Vec<(String, ObjectMeta)>,
        max_len: u64,
    ) -> impl Stream<Item = (String, ObjectMeta, Result<(Bytes, UpdateVersion)>)> + Unpin + 's {
        let read = move |(id, meta): (String, ObjectMeta)| async move {
            let read = match meta.size {
                len if len > max_len => Err(too_long()),
                _ => self.object(&format!("{below}/{id}"), max_len).await,
            };
            (id, meta, read)
        };
        Box::pin(stream::iter(objects).map(read).buffered(READS_IN_FLIGHT))
    }
}
