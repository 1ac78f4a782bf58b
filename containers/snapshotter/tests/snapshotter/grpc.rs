//! Each method through the socket, and the codes of its errors.

use crate::served::Served;
use headstart_block::ErrorKind;
use headstart_snapshotter::image_service::ImageService;
use headstart_snapshotter::messages::{
    CleanupRequest, CommitSnapshotRequest, FieldMaskMessage, InfoMessage, KindMessage, ListSnapshotsRequest,
    ListSnapshotsResponse, MountsRequest, MountsResponse, PrepareSnapshotRequest, PrepareSnapshotResponse,
    RemoveSnapshotRequest, SERVICE, StatSnapshotRequest, StatSnapshotResponse, UpdateSnapshotRequest,
    UpdateSnapshotResponse, UsageRequest, UsageResponse, ViewSnapshotRequest, ViewSnapshotResponse,
};
use prost::Message;
use std::collections::HashMap;
use std::path::Path;
use tempfile::TempDir;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

#[derive(Clone)]
struct Client(Grpc<Channel>);

impl Client {
    async fn connect(socket: &Path) -> Self {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
        Self(Grpc::new(endpoint.connect().await.unwrap()))
    }

    async fn call<Q, A>(&mut self, method: &str, request: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        self.0.ready().await.unwrap();
        let path = format!("/{SERVICE}/{method}").parse().unwrap();
        self.0
            .unary(Request::new(request), path, ProstCodec::default())
            .await
            .map(tonic::Response::into_inner)
    }

    /// The parts of a list.
    async fn list(&mut self, filters: &[&str]) -> Result<Vec<Vec<InfoMessage>>, Status> {
        self.0.ready().await.unwrap();
        let filters = filters.iter().map(|&filter| filter.to_owned()).collect();
        let request = Request::new(ListSnapshotsRequest { filters, ..Default::default() });
        let path = format!("/{SERVICE}/List").parse().unwrap();
        let codec = ProstCodec::<_, ListSnapshotsResponse>::default();
        let mut stream = self.0.server_streaming(request, path, codec).await?.into_inner();
        let mut parts = Vec::new();
        while let Some(part) = stream.message().await? {
            parts.push(part.info);
        }
        Ok(parts)
    }

    async fn prepare(&mut self, key: &str, parent: &str) -> Result<PrepareSnapshotResponse, Status> {
        let labels =
            HashMap::from([("kept".to_owned(), "1".to_owned()), ("empty".to_owned(), String::new())]);
        let (key, parent) = (key.to_owned(), parent.to_owned());
        self.call("Prepare", PrepareSnapshotRequest { key, parent, labels, ..Default::default() }).await
    }

    async fn commit(&mut self, name: &str, key: &str) -> Result<(), Status> {
        let request =
            CommitSnapshotRequest { name: name.to_owned(), key: key.to_owned(), ..Default::default() };
        self.call("Commit", request).await
    }

    async fn stat(&mut self, key: &str) -> Result<InfoMessage, Status> {
        let request = StatSnapshotRequest { key: key.to_owned(), ..Default::default() };
        self.call::<_, StatSnapshotResponse>("Stat", request).await.map(|answer| answer.info.unwrap())
    }

    async fn remove(&mut self, key: &str) -> Result<(), Status> {
        self.call("Remove", RemoveSnapshotRequest { key: key.to_owned(), ..Default::default() }).await
    }
}

fn code<T>(answer: Result<T, Status>) -> Code {
    answer.map_or_else(|status| status.code(), |_| Code::Ok)
}

#[tokio::test]
async fn every_method_is_answered_and_survives_a_kill() {
    let dir = TempDir::new().unwrap();
    let mut served = Served::start(dir.path());
    let mut client = Client::connect(&served.socket).await;
    let mounts = client.prepare("a", "").await.unwrap().mounts;
    assert_eq!(
        (mounts.len(), mounts[0].r#type.as_str(), &mounts[0].options[..]),
        (1, "bind", &["rw".to_owned(), "rbind".to_owned()][..])
    );
    std::fs::write(Path::new(&mounts[0].source).join("file"), vec![1; 10_000]).unwrap();
    let usage: UsageResponse =
        client.call("Usage", UsageRequest { key: "a".to_owned(), ..Default::default() }).await.unwrap();
    assert!(usage.inodes == 2 && usage.size >= 10_000, "{usage:?}");
    client.commit("layer", "a").await.unwrap();
    client.prepare("b", "layer").await.unwrap();
    let view = ViewSnapshotRequest { key: "v".to_owned(), parent: "layer".to_owned(), ..Default::default() };
    let view: ViewSnapshotResponse = client.call("View", view).await.unwrap();
    assert_eq!(view.mounts[0].source, mounts[0].source);

    served.restart();
    let mut client = Client::connect(&served.socket).await;
    let again: MountsResponse =
        client.call("Mounts", MountsRequest { key: "v".to_owned(), ..Default::default() }).await.unwrap();
    assert_eq!(again.mounts, view.mounts);
    let info = client.stat("b").await.unwrap();
    assert_eq!((info.kind(), info.parent.as_str()), (KindMessage::Active, "layer"));
    assert_eq!(info.labels, HashMap::from([("kept".to_owned(), "1".to_owned())]));
    assert!(info.created_at.unwrap().seconds > 1_600_000_000 && info.created_at == info.updated_at);
    assert_eq!(client.stat("layer").await.unwrap().labels, HashMap::new());
    let update = UpdateSnapshotRequest {
        info: Some(InfoMessage {
            name: "b".to_owned(),
            labels: HashMap::from([("x".to_owned(), "2".to_owned())]),
            ..Default::default()
        }),
        update_mask: Some(FieldMaskMessage { paths: vec!["labels.x".to_owned()] }),
        ..Default::default()
    };
    let updated: UpdateSnapshotResponse = client.call("Update", update).await.unwrap();
    assert_eq!(updated.info.unwrap().labels.len(), 2);
    let listed = client.list(&["kind==committed", "labels.x==2"]).await.unwrap().concat();
    assert_eq!(listed.iter().map(|info| info.name.as_str()).collect::<Vec<_>>(), ["b", "layer"]);
    for key in ["b", "v", "layer"] {
        client.remove(key).await.unwrap();
    }
    client.call::<_, ()>("Cleanup", CleanupRequest::default()).await.unwrap();
    assert_eq!((client.list(&[]).await.unwrap().len(), served.directories()), (0, 0));
}

#[tokio::test]
async fn errors_have_the_codes_on_which_containerd_acts() {
    let dir = TempDir::new().unwrap();
    let served = Served::start(dir.path());
    let mut client = Client::connect(&served.socket).await;
    client.prepare("a", "").await.unwrap();
    client.commit("layer", "a").await.unwrap();
    client.prepare("b", "layer").await.unwrap();
    assert_eq!(code(client.prepare("b", "").await), Code::AlreadyExists);
    assert_eq!(code(client.prepare("c", "none").await), Code::NotFound);
    assert_eq!(code(client.prepare("c", "b").await), Code::InvalidArgument);
    assert_eq!(code(client.commit("layer", "b").await), Code::AlreadyExists);
    assert_eq!(code(client.commit("layer", "none").await), Code::NotFound);
    assert_eq!(code(client.commit("x", "layer").await), Code::FailedPrecondition);
    assert_eq!(code(client.remove("none").await), Code::NotFound);
    assert_eq!(code(client.stat("none").await), Code::NotFound);
    let status = client.remove("layer").await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::FailedPrecondition, "cannot remove snapshot layer, which has children")
    );
    let mounts = client
        .call::<_, MountsResponse>("Mounts", MountsRequest { key: "layer".to_owned(), ..Default::default() });
    assert_eq!(code(mounts.await), Code::FailedPrecondition);
    assert_eq!(code(client.list(&["name="]).await), Code::InvalidArgument);
    let update = UpdateSnapshotRequest {
        info: Some(InfoMessage { name: "b".to_owned(), ..Default::default() }),
        update_mask: Some(FieldMaskMessage { paths: vec!["parent".to_owned()] }),
        ..Default::default()
    };
    assert_eq!(code(client.call::<_, UpdateSnapshotResponse>("Update", update).await), Code::InvalidArgument);
    assert_eq!(code(client.call::<_, ()>("Rename", CleanupRequest::default()).await), Code::Unimplemented);
    std::fs::remove_dir_all(served.root.join("snapshots/2")).unwrap();
    let usage =
        client.call::<_, UsageResponse>("Usage", UsageRequest { key: "b".to_owned(), ..Default::default() });
    assert_eq!(code(usage.await), Code::Unknown);
}

#[tokio::test]
async fn a_snapshotter_that_passes_no_pulls_on_says_how_it_would() {
    let dir = TempDir::new().unwrap();
    let served = Served::start(dir.path());
    let mut service = ImageService::connect(&served.socket).await.unwrap();
    let error = service.pull("reg.lan/a:1", None).await.unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(text.starts_with(served.socket.to_str().unwrap()), "{text}");
    assert!(text.contains("without --image-service; name containerd's socket by --containerd"), "{text}");
}

#[tokio::test]
async fn many_calls_at_once_give_each_its_own_snapshot_and_a_list_in_parts() {
    let dir = TempDir::new().unwrap();
    let served = Served::start(dir.path());
    let client = Client::connect(&served.socket).await;
    let calls = (0..250).map(|number| {
        let mut client = client.clone();
        tokio::spawn(async move { client.prepare(&format!("key {}", number % 240), "").await })
    });
    let (mut made, mut taken) = (0, 0);
    for call in calls.collect::<Vec<_>>() {
        match call.await.unwrap() {
            Ok(_) => made += 1,
            Err(status) => {
                assert_eq!(status.code(), Code::AlreadyExists);
                taken += 1;
            }
        }
    }
    assert_eq!((made, taken, served.directories()), (240, 10, 240));
    let parts = client.clone().list(&[]).await.unwrap();
    assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [100, 100, 40]);
}
