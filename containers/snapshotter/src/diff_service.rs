//! The methods of containerd's interface for differs, by gRPC: for layers of blocks.
//!
//! containerd asks the differs of a list, one after the other, until one does not answer "unimplemented". This one
//! makes and applies layers of blocks; for everything else it answers so, and containerd's own differ, which walks
//! through files, does it.

use crate::content_store::{CallerHeaders, ContentStore, LEASE_HEADER, NAMESPACE_HEADER, digest_in};
use crate::diff_messages::{
    ApplyRequest, ApplyResponse, DIFF_SERVICE, DescriptorMessage, DiffRequest, DiffResponse,
};
use crate::fault::FaultResult;
use crate::layer_form::{BlobContent, BlobFate, LowerLayer, content_of, fate_of_blob, is_left_to_us};
use crate::messages::MountMessage;
use crate::snapshotter::Snapshotter;
use crate::wire::grpc;
use futures::future::BoxFuture;
use headstart_block::saturating;
use prost::Message;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{spawn, spawn_blocking};
use tonic::body::Body;
use tonic::server::UnaryService;
use tonic::{Code, Request, Response, Status};

/// The media type of a layer of blocks: OverlayBD's tools give it to theirs.
const MEDIA_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";
/// Bytes at the beginning of a blob that tell what it is.
const BEGINNING: u64 = 4 << 10;

/// The answer of a method.
type Answer<T> = Result<T, Status>;

/// The interface for differs of a [`Snapshotter`].
#[derive(Clone, Debug)]
pub struct DiffService {
    snapshotter: Arc<Snapshotter>,
    store: ContentStore,
}

impl DiffService {
    /// Makes the interface of a snapshotter, for the containerd with this store.
    #[must_use]
    pub fn new(snapshotter: Arc<Snapshotter>, store: ContentStore) -> Self {
        Self { snapshotter, store }
    }

    /// Answers a call, if it is one of this interface.
    pub(crate) async fn call_method(self, request: http::Request<Body>) -> http::Response<Body> {
        let path = request.uri().path().to_owned();
        let method =
            path.strip_prefix('/').and_then(|path| path.strip_prefix(DIFF_SERVICE)?.strip_prefix('/'));
        match method.unwrap_or_default() {
            "Apply" => grpc().unary(DiffMethod { service: self, run: apply }, request).await,
            "Diff" => grpc().unary(DiffMethod { service: self, run: diff }, request).await,
            _ => Status::unimplemented(format!("there is no method {}", path.escape_debug())).into_http(),
        }
    }

    /// The first bytes of a blob.
    async fn beginning(&self, headers: CallerHeaders, digest: &str) -> Answer<Vec<u8>> {
        self.store.session(headers).await?.beginning(digest, BEGINNING).await
    }

    /// The content of a blob that is to be applied on top of `below`. Clients that make images of their own lose
    /// annotations, all of them or those of TurboOCI. Layers on directories are never asked for.
    ///
    /// # Errors
    /// [`Code::Unimplemented`] if containerd does not give out a blob without annotations: most are tars, which need no
    /// help from here.
    async fn content(
        &self,
        headers: CallerHeaders,
        blob: &DescriptorMessage,
        below: &[LowerLayer],
    ) -> Answer<BlobContent> {
        let content = content_of(blob.annotations.keys(), || false);
        let is_on_disk = fate_of_blob(below, BlobContent::Blocks) == BlobFate::Kept;
        match content {
            BlobContent::Other if is_on_disk => match self.beginning(headers, &blob.digest).await {
                Ok(start) => Ok(content_of(blob.annotations.keys(), || self.snapshotter.is_layer(&start))),
                Err(status) => {
                    let (digest, why) = (&blob.digest, status.message());
                    tracing::warn!(
                        digest,
                        why,
                        "a layer on a disk is taken for a tar, as its first bytes cannot be read"
                    );
                    Err(not_mine())
                }
            },
            BlobContent::Blocks => {
                // Without these bytes, the annotation counts.
                let start = self.beginning(headers, &blob.digest).await.unwrap_or_default();
                let is_turbo = self.snapshotter.is_turbo_layer(&start);
                Ok(if is_turbo { BlobContent::Turbo } else { BlobContent::Blocks })
            }
            content => Ok(content),
        }
    }

    /// Runs what may block.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Snapshotter) -> FaultResult<T> + Send + 'static,
    ) -> Answer<T> {
        let snapshotter = Arc::clone(&self.snapshotter);
        let done = spawn_blocking(move || work(&snapshotter)).await;
        done.map_err(|_| Status::internal("the snapshotter failed"))?.map_err(Status::from)
    }
}

/// A method that takes the headers of its caller.
type RunDiff<Q, A> = fn(DiffService, CallerHeaders, Q) -> BoxFuture<'static, Answer<A>>;

struct DiffMethod<Q, A> {
    service: DiffService,
    run: RunDiff<Q, A>,
}

impl<Q, A> UnaryService<Q> for DiffMethod<Q, A>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
{
    type Response = A;
    type Future = BoxFuture<'static, Answer<Response<A>>>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (service, run) = (self.service.clone(), self.run);
        let metadata = request.metadata();
        let lease = metadata.get(LEASE_HEADER).cloned();
        let at = Duration::from_secs(saturating(service.snapshotter.now().seconds));
        let headers = metadata
            .get(NAMESPACE_HEADER)
            .cloned()
            .map(|namespace| CallerHeaders { namespace, lease, at })
            .ok_or_else(|| Status::failed_precondition("the call names no namespace of containerd"));
        // A caller that goes away does not end it half-way.
        Box::pin(async move {
            let running = spawn(run(service, headers?, request.into_inner()));
            let answer = running.await.unwrap_or_else(|_| Err(Status::internal("the differ failed")));
            answer.map(Response::new)
        })
    }
}

/// The place that mounts are of: the directory for the writes of overlayfs, or the directory or device that is mounted.
/// `None` for mounts that are never of one layer.
fn place_of(mounts: &[MountMessage]) -> Option<PathBuf> {
    let [mount] = mounts else { return None };
    if mount.r#type != "overlay" {
        return Some(PathBuf::from(&mount.source));
    }
    mount.options.iter().find_map(|option| option.strip_prefix("upperdir=")).map(PathBuf::from)
}

/// The answer by which containerd asks its next differ.
fn not_mine() -> Status {
    Status::unimplemented("this is no layer of blocks")
}

fn diff(
    service: DiffService,
    headers: CallerHeaders,
    request: DiffRequest,
) -> BoxFuture<'static, Answer<DiffResponse>> {
    Box::pin(async move {
        if !is_left_to_us(&request.media_type) {
            return Err(not_mine());
        }
        let (Some(left), Some(right)) = (place_of(&request.left), place_of(&request.right)) else {
            return Err(not_mine());
        };
        let media_type = request.media_type;
        let made = service.blocking(move |it| it.changed_blocks(&left, &right, &media_type)).await?;
        let layer = made.ok_or_else(not_mine)?;
        service.store.session(headers).await?.put(&layer, &request.r#ref, request.labels).await?;
        let diff = DescriptorMessage {
            media_type: MEDIA_TYPE.to_owned(),
            digest: layer.digest.to_string(),
            size: saturating(layer.size),
            annotations: layer.annotations.into_iter().collect(),
        };
        tracing::info!(digest = diff.digest, size = diff.size, "a layer of blocks is in containerd's store");
        Ok(DiffResponse { diff: Some(diff) })
    })
}

fn apply(
    service: DiffService,
    headers: CallerHeaders,
    request: ApplyRequest,
) -> BoxFuture<'static, Answer<ApplyResponse>> {
    Box::pin(async move {
        let blob = request.diff.unwrap_or_default();
        let Some(place) = place_of(&request.mounts) else { return Err(not_mine()) };
        let found = service.blocking(move |it| it.snapshot_at(&place)).await?;
        let Some(target) = found else { return Err(not_mine()) };
        let content = service.content(headers.clone(), &blob, &target.below).await?;
        match fate_of_blob(&target.below, content) {
            BlobFate::Unpacked => return Err(not_mine()),
            BlobFate::Refused(why) => {
                return Err(Status::new(Code::FailedPrecondition, format!("{}: {why}", blob.digest)));
            }
            BlobFate::Kept => {}
        }
        let mut session = service.store.session(headers).await?;
        let digest = digest_in(&blob.digest)?;
        let size = u64::try_from(blob.size)
            .map_err(|_| Status::invalid_argument(format!("{digest}: a blob of {} bytes", blob.size)))?;
        let place = target.clone();
        let layer = service.blocking(move |it| it.new_layer_file(&place)).await?;
        session.copy(&blob.digest, size, &layer.file).await?;
        service.blocking(move |it| it.keep_layer(&target, &layer, &digest)).await?;
        // The blob is its own uncompressed form: images name layers of blocks so.
        let applied =
            DescriptorMessage { media_type: MEDIA_TYPE.to_owned(), annotations: Default::default(), ..blob };
        Ok(ApplyResponse { applied: Some(applied) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer_form::BLOB_DIGEST;
    use crate::snapshotter::tests::blocks::with_known_disk;
    use crate::snapshotter::tests::no_labels;
    use headstart_block::Digest;
    use std::collections::HashMap;
    use tonic::metadata::MetadataValue;

    fn message(mounts: Vec<crate::overlay::SnapshotMount>) -> Vec<MountMessage> {
        mounts.into_iter().map(|it| mount(it.kind, &it.source, &it.options)).collect()
    }

    fn headers() -> CallerHeaders {
        CallerHeaders { namespace: MetadataValue::from_static("x"), lease: None, at: Duration::ZERO }
    }

    #[tokio::test]
    async fn only_layers_of_blocks_need_containerds_store() {
        let dir = tempfile::tempdir().unwrap();
        let (snapshotter, disk) = with_known_disk(dir.path());
        let on_nothing = message(snapshotter.prepare("extract-1 a", "", no_labels()).unwrap());
        let on_disk = message(snapshotter.prepare("extract-2 b", &disk, no_labels()).unwrap());
        let dead = ContentStore::new(dir.path().join("no containerd"));
        let service = DiffService::new(Arc::new(snapshotter), dead);
        let digest = Digest::of(b"blob").to_string();
        let named = HashMap::from([(BLOB_DIGEST.to_owned(), digest.clone())]);
        for (mounts, annotations, code) in [
            (&on_nothing, HashMap::new(), Code::Unimplemented),
            (&on_disk, HashMap::new(), Code::Unimplemented),
            (&on_nothing, named.clone(), Code::FailedPrecondition),
            (&on_disk, named, Code::Unavailable),
        ] {
            let media_type = "application/vnd.oci.image.layer.v1.tar+gzip".to_owned();
            let blob = DescriptorMessage { media_type, digest: digest.clone(), size: 4, annotations };
            let mounts = mounts.clone();
            let request = ApplyRequest { diff: Some(blob.clone()), mounts, ..ApplyRequest::default() };
            let status = apply(service.clone(), headers(), request).await.unwrap_err();
            assert_eq!(status.code(), code, "{blob:?}: {status}");
            let says_how = status.message().contains("--containerd");
            assert_eq!(says_how, code == Code::Unavailable, "{status}");
        }
    }

    #[tokio::test]
    async fn a_layer_of_a_form_that_was_named_is_for_other_differs() {
        let dir = tempfile::tempdir().unwrap();
        let (snapshotter, disk) = with_known_disk(dir.path());
        let left = message(snapshotter.view("left", &disk, no_labels()).unwrap());
        let writable = [("containerd.io/snapshot/overlaybd.writable".to_owned(), "dir".to_owned())];
        let right = message(snapshotter.prepare("one", &disk, writable.into()).unwrap());
        let dead = ContentStore::new(dir.path().join("no containerd"));
        let service = DiffService::new(Arc::new(snapshotter), dead);
        for (form, code) in [
            ("", Code::Unavailable),
            ("application/vnd.oci.image.layer.v1.tar", Code::Unimplemented),
            ("application/vnd.oci.image.layer.v1.tar+gzip", Code::Unimplemented),
            ("application/vnd.oci.image.layer.v1.tar+zstd", Code::Unimplemented),
        ] {
            let (left, right, media_type) = (left.clone(), right.clone(), form.to_owned());
            let request = DiffRequest { left, right, media_type, ..DiffRequest::default() };
            let status = diff(service.clone(), headers(), request).await.unwrap_err();
            assert_eq!(status.code(), code, "{form}: {status}");
        }
    }

    fn mount(kind: &str, source: &str, options: &[impl ToString]) -> MountMessage {
        MountMessage {
            r#type: kind.to_owned(),
            source: source.to_owned(),
            target: String::new(),
            options: options.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn mounts_are_of_the_place_that_is_written_to() {
        let overlay =
            mount("overlay", "overlay", &["index=off", "workdir=/7/work", "upperdir=/7/fs", "lowerdir=/6"]);
        let view = mount("overlay", "overlay", &["lowerdir=/6:/5"]);
        let bind = mount("bind", "/trees/a/fs", &["ro", "rbind"]);
        let device = mount("ext4", "/dev/loop3", &["rw"]);
        for (mounts, place) in [
            (vec![overlay], Some("/7/fs")),
            (vec![view], None),
            (vec![bind.clone()], Some("/trees/a/fs")),
            (vec![device], Some("/dev/loop3")),
            (vec![bind.clone(), bind], None),
            (Vec::new(), None),
        ] {
            assert_eq!(place_of(&mounts), place.map(PathBuf::from), "{mounts:?}");
        }
    }
}
