//! The methods of containerd's snapshot interface, by gRPC.

use crate::fault::{FaultKind, SnapshotFault};
use crate::filter::SnapshotFilter;
use crate::messages::{
    CleanupRequest, CommitSnapshotRequest, InfoMessage, KindMessage, ListSnapshotsRequest,
    ListSnapshotsResponse, MountMessage, MountsRequest, MountsResponse, PrepareSnapshotRequest,
    PrepareSnapshotResponse, RemoveSnapshotRequest, SERVICE, StatSnapshotRequest, StatSnapshotResponse,
    TimestampMessage, UpdateSnapshotRequest, UpdateSnapshotResponse, UsageRequest, UsageResponse,
    ViewSnapshotRequest, ViewSnapshotResponse,
};
use crate::overlay::SnapshotMount;
use crate::record::{SnapshotKind, SnapshotLabels, SnapshotRecord, SnapshotTime};
use crate::snapshotter::Snapshotter;
use crate::wire::grpc;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt};
use headstart_block::saturating;
use prost::Message;
use std::sync::Arc;
use tonic::body::Body;
use tonic::server::{ServerStreamingService, UnaryService};
use tonic::{Code, Request, Response, Status};

/// Snapshots in one message of a list, as many as containerd puts into one.
const LIST_PART: usize = 100;
/// Bytes of snapshots in one message of a list, if it has more than one.
const LIST_PART_BYTES: usize = 1 << 20;

/// The answer of a method.
type Answer<T> = Result<T, Status>;

/// The snapshot interface of a [`Snapshotter`].
#[derive(Clone, Debug)]
pub struct SnapshotService {
    snapshotter: Arc<Snapshotter>,
}

impl SnapshotService {
    /// Makes the interface of a snapshotter.
    #[must_use]
    pub fn new(snapshotter: Arc<Snapshotter>) -> Self {
        Self { snapshotter }
    }

    /// Removes, in the background, what an earlier process did not get to remove: directories of snapshots, and remote
    /// layers.
    pub(crate) fn clean_up(&self) {
        let snapshotter = Arc::clone(&self.snapshotter);
        tokio::task::spawn_blocking(move || {
            snapshotter.recover_disks();
            if let Err(fault) = snapshotter.cleanup() {
                tracing::warn!(%fault, "directories of removed snapshots stay");
            }
            snapshotter.keep_used();
        });
    }

    /// Answers a call, if it is one of this interface.
    pub(crate) async fn call_method(self, request: http::Request<Body>) -> http::Response<Body> {
        let path = request.uri().path().to_owned();
        let method = path.strip_prefix('/').and_then(|path| path.strip_prefix(SERVICE)?.strip_prefix('/'));
        match method.unwrap_or_default() {
            "Prepare" => self.unary(prepare, request).await,
            "View" => self.unary(view, request).await,
            "Mounts" => self.unary(mounts, request).await,
            "Commit" => self.unary(commit, request).await,
            "Remove" => self.unary(remove, request).await,
            "Stat" => self.unary(stat, request).await,
            "Update" => self.unary(update, request).await,
            "List" => grpc().server_streaming(Method { service: self, run: list }, request).await,
            "Usage" => self.unary(usage, request).await,
            "Cleanup" => self.unary(cleanup, request).await,
            _ => Status::unimplemented(format!("there is no method {}", path.escape_debug())).into_http(),
        }
    }

    async fn unary<Q, A>(self, run: Run<Q, A>, request: http::Request<Body>) -> http::Response<Body>
    where
        Q: Message + Default + 'static,
        A: Message + Default + 'static,
    {
        grpc().unary(Method { service: self, run }, request).await
    }
}

/// A method as a function that may block.
type Run<Q, A> = fn(&Snapshotter, Q) -> Answer<A>;

struct Method<Q, A> {
    service: SnapshotService,
    run: Run<Q, A>,
}

impl<Q: Send + 'static, A: Send + 'static> Method<Q, A> {
    /// Runs the method where it may block. A caller that goes away does not end it half-way.
    fn answer(&self, request: Request<Q>) -> impl Future<Output = Answer<A>> + Send + 'static {
        let (snapshotter, run) = (Arc::clone(&self.service.snapshotter), self.run);
        let running = tokio::task::spawn_blocking(move || run(&snapshotter, request.into_inner()));
        async move { running.await.unwrap_or_else(|_| Err(Status::internal("the snapshotter failed"))) }
    }
}

impl<Q: Send + 'static, A: Send + 'static> UnaryService<Q> for Method<Q, A> {
    type Response = A;
    type Future = BoxFuture<'static, Answer<Response<A>>>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let answer = self.answer(request);
        Box::pin(async move { answer.await.map(Response::new) })
    }
}

impl<Q: Send + 'static, A: Send + 'static> ServerStreamingService<Q> for Method<Q, Vec<A>> {
    type Response = A;
    type ResponseStream = BoxStream<'static, Answer<A>>;
    type Future = BoxFuture<'static, Answer<Response<Self::ResponseStream>>>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let answer = self.answer(request);
        Box::pin(async move { answer.await.map(|parts| Response::new(stream::iter(parts).map(Ok).boxed())) })
    }
}

fn prepare(snapshotter: &Snapshotter, request: PrepareSnapshotRequest) -> Answer<PrepareSnapshotResponse> {
    let made = snapshotter.prepare(&request.key, &request.parent, SnapshotLabels::from_iter(request.labels));
    Ok(PrepareSnapshotResponse { mounts: messages_of(made?) })
}

fn view(snapshotter: &Snapshotter, request: ViewSnapshotRequest) -> Answer<ViewSnapshotResponse> {
    let made = snapshotter.view(&request.key, &request.parent, SnapshotLabels::from_iter(request.labels));
    Ok(ViewSnapshotResponse { mounts: messages_of(made?) })
}

#[expect(clippy::needless_pass_by_value, reason = "all methods have the same form")]
fn mounts(snapshotter: &Snapshotter, request: MountsRequest) -> Answer<MountsResponse> {
    Ok(MountsResponse { mounts: messages_of(snapshotter.mounts(&request.key)?) })
}

fn commit(snapshotter: &Snapshotter, request: CommitSnapshotRequest) -> Answer<()> {
    Ok(snapshotter.commit(&request.name, &request.key, SnapshotLabels::from_iter(request.labels))?)
}

#[expect(clippy::needless_pass_by_value, reason = "all methods have the same form")]
fn remove(snapshotter: &Snapshotter, request: RemoveSnapshotRequest) -> Answer<()> {
    Ok(snapshotter.remove(&request.key)?)
}

#[expect(clippy::needless_pass_by_value, reason = "all methods have the same form")]
fn stat(snapshotter: &Snapshotter, request: StatSnapshotRequest) -> Answer<StatSnapshotResponse> {
    Ok(StatSnapshotResponse { info: Some(message_of(snapshotter.stat(&request.key)?)) })
}

fn update(snapshotter: &Snapshotter, request: UpdateSnapshotRequest) -> Answer<UpdateSnapshotResponse> {
    let info = request.info.unwrap_or_default();
    let paths = request.update_mask.unwrap_or_default().paths;
    let updated = snapshotter.update(&info.name, &SnapshotLabels::from_iter(info.labels), &paths)?;
    Ok(UpdateSnapshotResponse { info: Some(message_of(updated)) })
}

#[expect(clippy::needless_pass_by_value, reason = "all methods have the same form")]
fn list(snapshotter: &Snapshotter, request: ListSnapshotsRequest) -> Answer<Vec<ListSnapshotsResponse>> {
    let filter = SnapshotFilter::parse(&request.filters)?;
    let (mut parts, mut part, mut bytes) = (Vec::new(), ListSnapshotsResponse::default(), 0);
    for message in snapshotter.list(&filter).into_iter().map(message_of) {
        let len = message.encoded_len();
        if !part.info.is_empty() && (part.info.len() == LIST_PART || bytes + len > LIST_PART_BYTES) {
            parts.push(std::mem::take(&mut part));
            bytes = 0;
        }
        bytes += len;
        part.info.push(message);
    }
    parts.extend((!part.info.is_empty()).then_some(part));
    Ok(parts)
}

#[expect(clippy::needless_pass_by_value, reason = "all methods have the same form")]
fn usage(snapshotter: &Snapshotter, request: UsageRequest) -> Answer<UsageResponse> {
    let usage = snapshotter.usage(&request.key)?;
    Ok(UsageResponse { size: saturating(usage.size), inodes: saturating(usage.inodes) })
}

fn cleanup(snapshotter: &Snapshotter, _request: CleanupRequest) -> Answer<()> {
    Ok(snapshotter.cleanup()?)
}

impl From<SnapshotFault> for Status {
    fn from(fault: SnapshotFault) -> Self {
        let code = match fault.kind {
            FaultKind::NotFound => Code::NotFound,
            FaultKind::AlreadyExists => Code::AlreadyExists,
            FaultKind::FailedPrecondition => Code::FailedPrecondition,
            FaultKind::InvalidArgument => Code::InvalidArgument,
            FaultKind::Unavailable => Code::Unavailable,
            // As containerd's own snapshotters have it.
            FaultKind::Failed => Code::Unknown,
        };
        Self::new(code, fault.text)
    }
}

fn messages_of(mounts: Vec<SnapshotMount>) -> Vec<MountMessage> {
    let message = |mount: SnapshotMount| MountMessage {
        r#type: mount.kind.to_owned(),
        source: mount.source,
        target: String::new(),
        options: mount.options,
    };
    mounts.into_iter().map(message).collect()
}

fn message_of(record: SnapshotRecord) -> InfoMessage {
    let kind = match record.kind() {
        SnapshotKind::View => KindMessage::View,
        SnapshotKind::Active => KindMessage::Active,
        SnapshotKind::Committed => KindMessage::Committed,
    };
    let time = |time: SnapshotTime| TimestampMessage { seconds: time.seconds, nanos: saturating(time.nanos) };
    InfoMessage {
        kind: kind.into(),
        created_at: Some(time(record.created)),
        updated_at: Some(time(record.updated)),
        name: record.key,
        parent: record.parent.unwrap_or_default(),
        labels: record.labels.into_iter().collect(),
    }
}
