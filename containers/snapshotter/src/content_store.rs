//! containerd's store of content, which has the blobs of all images: a differ reads layers there, and puts new ones.
//!
//! A blob that nothing refers to is collected as garbage. A caller's lease does not reach proxied differs, so each blob
//! that is put there gets a lease of its own, which ends after an hour: containerd's own clients keep theirs for that
//! long or longer, and refer to the blob by then.

use crate::content_messages::{
    AbortRequest, CONTENT_SERVICE, ContentInfoMessage, CreateRequest, CreateResponse, LEASES_SERVICE,
    ReadContentRequest, ReadContentResponse, UpdateRequest, UpdateResponse, WriteAction, WriteContentRequest,
    WriteContentResponse,
};
use crate::messages::FieldMaskMessage;
use crate::remote::PackedLayer;
use futures::{Stream, stream};
use headstart_block::{Digest, saturating, to_usize};
use prost::Message;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};
use tokio::task::spawn_blocking;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

/// The header with the namespace of a call.
pub(crate) const NAMESPACE_HEADER: &str = "containerd-namespace";
/// The header with the lease of a call.
pub(crate) const LEASE_HEADER: &str = "containerd-lease";
/// The label of a blob with the digest of its uncompressed content.
const UNCOMPRESSED_LABEL: &str = "containerd.io/uncompressed";
/// The label of a lease with the time of its end.
const EXPIRE_LABEL: &str = "containerd.io/gc.expire";
/// The time for which a new blob stays without anything that refers to it.
const LEASE_TIME: Duration = Duration::from_secs(3600);
/// Bytes of a blob in one message.
const PART: u64 = 1 << 20;
/// The number of blobs that this process has put.
static PUT: AtomicU64 = AtomicU64::new(0);

/// containerd's store of content.
#[derive(Clone, Debug)]
pub struct ContentStore {
    socket: PathBuf,
}

/// The parts of a call that go on to the store.
#[derive(Clone, Debug)]
pub(crate) struct CallerHeaders {
    /// The namespace.
    pub namespace: MetadataValue<Ascii>,
    /// The lease.
    pub lease: Option<MetadataValue<Ascii>>,
    /// The time of the call, since 1970.
    pub at: Duration,
}

/// A connection to the store, in the namespace of a caller.
pub(crate) struct ContentSession {
    client: Grpc<Channel>,
    headers: CallerHeaders,
}

impl ContentStore {
    /// The store of the containerd that listens at `socket`.
    #[must_use]
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Connects to containerd.
    ///
    /// # Errors
    /// [`Code::Unavailable`] if it does not answer.
    pub(crate) async fn session(&self, headers: CallerHeaders) -> Result<ContentSession, Status> {
        let socket = self.socket.display();
        let failed = |error: tonic::transport::Error| {
            let text = format!(
                "{socket}: containerd does not answer there ({error}); name its socket by --containerd where the \
                 snapshotter is started"
            );
            Status::unavailable(text)
        };
        let endpoint = Endpoint::from_shared(format!("unix://{socket}")).map_err(failed)?;
        Ok(ContentSession { client: Grpc::new(endpoint.connect().await.map_err(failed)?), headers })
    }
}

impl ContentSession {
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let metadata = request.metadata_mut();
        metadata.insert(NAMESPACE_HEADER, self.headers.namespace.clone());
        if let Some(lease) = &self.headers.lease {
            metadata.insert(LEASE_HEADER, lease.clone());
        }
        request
    }

    async fn ready(&mut self) -> Result<(), Status> {
        self.client
            .ready()
            .await
            .map_err(|error| Status::unavailable(format!("containerd went away: {error}")))
    }

    async fn ask<Q, A>(&mut self, service: &str, method: &str, message: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        self.ready().await?;
        let request = self.request(message);
        let answer = self.client.unary(request, path_of(service, method)?, ProstCodec::default()).await;
        answer.map(tonic::Response::into_inner)
    }

    /// The first bytes of a blob, at most `most`.
    ///
    /// # Errors
    /// [`Code::NotFound`] if there is none; errors of containerd.
    pub(crate) async fn beginning(&mut self, digest: &str, most: u64) -> Result<Vec<u8>, Status> {
        let mut start = Vec::new();
        let mut parts = self.read(digest, saturating(most)).await?;
        while let Some(part) = parts.message().await? {
            start.extend_from_slice(&part.data);
        }
        start.truncate(to_usize(most));
        Ok(start)
    }

    /// Copies a blob into a new file.
    ///
    /// # Errors
    /// [`Code::NotFound`] if there is none; [`Code::DataLoss`] if it has another length; errors of containerd and of
    /// writing.
    pub(crate) async fn copy(&mut self, digest: &str, size: u64, to: &Arc<File>) -> Result<(), Status> {
        let mut parts = self.read(digest, 0).await?;
        let mut at = 0;
        while let Some(part) = parts.message().await? {
            let (file, len) = (Arc::clone(to), part.data.len() as u64);
            if at + len > size {
                break;
            }
            blocking(move || file.write_all_at(&part.data, at)).await?;
            at += len;
        }
        if at == size {
            return Ok(());
        }
        Err(Status::data_loss(format!("{digest}: containerd has another number of bytes of it than {size}")))
    }

    async fn read(
        &mut self,
        digest: &str,
        size: i64,
    ) -> Result<tonic::Streaming<ReadContentResponse>, Status> {
        self.ready().await?;
        let request = self.request(ReadContentRequest { digest: digest.to_owned(), offset: 0, size });
        let path = path_of(CONTENT_SERVICE, "Read")?;
        let answer = self.client.server_streaming(request, path, ProstCodec::default()).await;
        answer.map(tonic::Response::into_inner)
    }

    /// Puts a layer into the store, where its content is its own uncompressed form, under a lease. `reference` names it
    /// while it is made; a name is found if that is empty.
    ///
    /// # Errors
    /// Errors of containerd and of reading.
    pub(crate) async fn put(
        &mut self,
        layer: &PackedLayer,
        reference: &str,
        mut labels: HashMap<String, String>,
    ) -> Result<(), Status> {
        if self.headers.lease.is_none() {
            self.headers.lease = Some(self.lease().await?);
        }
        let digest = layer.digest.to_string();
        labels.insert(UNCOMPRESSED_LABEL.to_owned(), digest.clone());
        let number = PUT.fetch_add(1, Ordering::Relaxed);
        let own = || format!("headstart-{}-{number}-{digest}", std::process::id());
        let reference = if reference.is_empty() { own() } else { reference.to_owned() };
        match self.write(layer, &reference, labels).await {
            // Content that is there already may have come without the label.
            Err(status) if status.code() == Code::AlreadyExists => self.label_as_uncompressed(&digest).await,
            Err(status) => {
                // Best effort: it goes by itself after a day.
                let _: Result<(), _> =
                    self.ask(CONTENT_SERVICE, "Abort", AbortRequest { r#ref: reference }).await;
                Err(status)
            }
            Ok(()) => Ok(()),
        }
    }

    async fn write(
        &mut self,
        layer: &PackedLayer,
        reference: &str,
        labels: HashMap<String, String>,
    ) -> Result<(), Status> {
        self.ready().await?;
        let first = WriteContentRequest {
            r#ref: reference.to_owned(),
            total: saturating(layer.size),
            expected: layer.digest.to_string(),
            ..WriteContentRequest::default()
        };
        let (parts, failure) = parts_of(layer, first, labels);
        let request = self.request(parts);
        let path = path_of(CONTENT_SERVICE, "Write")?;
        let codec = ProstCodec::<_, WriteContentResponse>::default();
        let mut answers = self.client.streaming(request, path, codec).await?.into_inner();
        let mut is_committed = false;
        while let Some(answer) = answers.message().await? {
            is_committed |= answer.action() == WriteAction::Commit;
        }
        match failure.lock().take() {
            Some(error) => Err(Status::unknown(format!("the new layer cannot be read: {error}"))),
            None if is_committed => Ok(()),
            None => Err(Status::unavailable("containerd has ended a blob before it was whole")),
        }
    }

    /// A lease that ends by itself.
    async fn lease(&mut self) -> Result<MetadataValue<Ascii>, Status> {
        let end = humantime::format_rfc3339_seconds(UNIX_EPOCH + self.headers.at + LEASE_TIME).to_string();
        let labels = HashMap::from([(EXPIRE_LABEL.to_owned(), end)]);
        let request = CreateRequest { id: String::new(), labels };
        let made: CreateResponse = self.ask(LEASES_SERVICE, "Create", request).await?;
        let id = made.lease.unwrap_or_default().id;
        id.parse().map_err(|_| Status::internal("containerd has made a lease with a name that is none"))
    }

    async fn label_as_uncompressed(&mut self, digest: &str) -> Result<(), Status> {
        let labels = HashMap::from([(UNCOMPRESSED_LABEL.to_owned(), digest.to_owned())]);
        let info = ContentInfoMessage { digest: digest.to_owned(), labels, ..ContentInfoMessage::default() };
        let mask = FieldMaskMessage { paths: vec![format!("labels.{UNCOMPRESSED_LABEL}")] };
        let request = UpdateRequest { info: Some(info), update_mask: Some(mask) };
        self.ask::<_, UpdateResponse>(CONTENT_SERVICE, "Update", request).await.map(|_| ())
    }
}

fn path_of(service: &str, method: &str) -> Result<http::uri::PathAndQuery, Status> {
    format!("/{service}/{method}").parse().map_err(|_| Status::internal("a method without a path"))
}

/// Runs what may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Status> {
    let done = spawn_blocking(work).await.unwrap_or_else(|_| Err(io::Error::other("the work was stopped")));
    done.map_err(|error| Status::unknown(error.to_string()))
}

/// The place of an error of reading, which ends the stream of a blob's parts.
type ReadFailure = Arc<parking_lot::Mutex<Option<io::Error>>>;

/// The messages that put a blob: its parts, each at its offset, and its end with the labels.
fn parts_of(
    layer: &PackedLayer,
    first: WriteContentRequest,
    labels: HashMap<String, String>,
) -> (impl Stream<Item = WriteContentRequest> + Send + 'static, ReadFailure) {
    let failure = ReadFailure::default();
    let (file, size, noted) = (Arc::clone(&layer.file), layer.size, Arc::clone(&failure));
    let state = Some((0, labels));
    let parts = stream::unfold(state, move |state| {
        let (file, first, noted) = (Arc::clone(&file), first.clone(), Arc::clone(&noted));
        async move {
            let (at, labels) = state?;
            let message = WriteContentRequest { offset: saturating(at), ..first };
            if at == size {
                // An offset of zero would begin anew: it is that of all bytes.
                let end = WriteContentRequest { action: WriteAction::Commit.into(), labels, ..message };
                return Some((end, None));
            }
            let len = PART.min(size - at);
            let read = spawn_blocking(move || {
                let mut data = vec![0; to_usize(len)];
                file.read_exact_at(&mut data, at).map(|()| data)
            });
            match read.await.unwrap_or_else(|_| Err(io::Error::other("the work was stopped"))) {
                Ok(data) => {
                    let part = WriteContentRequest { action: WriteAction::Write.into(), data, ..message };
                    Some((part, Some((at + len, labels))))
                }
                Err(error) => {
                    *noted.lock() = Some(error);
                    None
                }
            }
        }
    });
    (parts, failure)
}

/// The digest in a descriptor.
pub(crate) fn digest_in(text: &str) -> Result<Digest, Status> {
    text.parse().map_err(|error: headstart_block::Error| Status::invalid_argument(error.to_string()))
}
