//! containerd's interface for containers, as far as it tells the program of one.
//!
//! A snapshotter is asked for snapshots, not for containers. containerd, nerdctl and Kubernetes name the snapshot of a
//! container like the container, and containerd asks for its mounts when the container starts: its record, with the
//! program, is there by then. While a container is made, mounts may be asked for as well, and there is no record yet.
//!
//! Fields and their numbers are those of `containerd.services.containers.v1`.

use crate::image_service::connect;
use headstart_block::{Error, ErrorKind, Result};
use prost::Message;
use serde::Deserialize;
use std::path::Path;
use std::time::Duration;
use tokio::time::timeout;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

/// The longest time for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The header with the namespace.
const NAMESPACE_HEADER: &str = "containerd-namespace";

/// `GetContainerRequest`.
#[derive(Clone, PartialEq, Eq, Message)]
struct ContainerRequest {
    #[prost(string, tag = "1")]
    id: String,
}

/// `GetContainerResponse`.
#[derive(Clone, PartialEq, Eq, Message)]
struct ContainerResponse {
    #[prost(message, optional, tag = "1")]
    container: Option<ContainerMessage>,
}

/// `Container`, as far as it is read.
#[derive(Clone, PartialEq, Eq, Message)]
struct ContainerMessage {
    #[prost(message, optional, tag = "5")]
    spec: Option<AnyMessage>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Eq, Message)]
struct AnyMessage {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// The specification of a container for the runtime, as far as it is read.
#[derive(Deserialize)]
struct RuntimeSpec {
    process: Option<RuntimeProcess>,
}

#[derive(Deserialize)]
struct RuntimeProcess {
    #[serde(default)]
    args: Vec<String>,
}

/// A container's namespace and id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerId {
    /// containerd's namespace.
    pub namespace: String,
    /// The id in it.
    pub id: String,
}

impl ContainerId {
    /// The container that may have the snapshot with this key: containerd puts its namespace and a number before the
    /// key that its client gave. `None` for keys that containerd has not made.
    #[must_use]
    pub fn of_snapshot(key: &str) -> Option<Self> {
        let mut parts = key.splitn(3, '/');
        let (namespace, number, id) = (parts.next()?, parts.next()?, parts.next()?);
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        (is_number && !namespace.is_empty() && !id.is_empty())
            .then(|| Self { namespace: namespace.to_owned(), id: id.to_owned() })
    }
}

/// Asks the containerd at `socket` for the arguments of a container's program, the program first. `None` if there is no
/// such container.
///
/// # Errors
/// [`ErrorKind::Unavailable`] if containerd does not answer; [`ErrorKind::Corrupt`] if it says nothing of the program.
pub async fn program_of(socket: &Path, container: &ContainerId) -> Result<Option<Vec<String>>> {
    let asked = timeout(TIMEOUT, ask(socket, container)).await;
    let late = |_| Error::new(ErrorKind::Unavailable, "containerd has not answered").about(socket.display());
    let Some(message) = asked.map_err(late)?? else { return Ok(None) };
    program(&message).map(Some).map_err(|error| error.about(format_args!("container {}", container.id)))
}

async fn ask(socket: &Path, container: &ContainerId) -> Result<Option<ContainerMessage>> {
    let unavailable = |cause| Error::new(ErrorKind::Unavailable, cause).about(socket.display());
    let mut client = connect(socket).await?;
    client.ready().await.map_err(|error| unavailable("containerd went away").caused_by(error))?;
    let mut request = Request::new(ContainerRequest { id: container.id.clone() });
    let namespace = container.namespace.parse();
    let namespace = namespace.map_err(|_| Error::invalid("is no namespace").about(&container.namespace))?;
    request.metadata_mut().insert(NAMESPACE_HEADER, namespace);
    let path = http::uri::PathAndQuery::from_static("/containerd.services.containers.v1.Containers/Get");
    let codec = ProstCodec::<ContainerRequest, ContainerResponse>::default();
    let failed = |status: Status| {
        let said = status.message().escape_debug().to_string();
        Error::new(ErrorKind::Unavailable, format!("containerd could not tell: {said}"))
            .about(socket.display())
    };
    match client.unary(request, path, codec).await {
        Ok(answer) => Ok(answer.into_inner().container),
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(failed(status)),
    }
}

/// The arguments of the program in the record of a container, whose specification is JSON in all versions.
fn program(container: &ContainerMessage) -> Result<Vec<String>> {
    let spec = container.spec.as_ref().map_or(&[][..], |spec| &spec.value);
    let spec: RuntimeSpec = serde_json::from_slice(spec)
        .map_err(|error| Error::corrupt("has no specification that is understood").caused_by(error))?;
    let arguments = spec.process.map(|process| process.args).unwrap_or_default();
    if arguments.is_empty() { Err(Error::corrupt("has no program")) } else { Ok(arguments) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_named_like_its_container() {
        let id = |namespace: &str, id: &str| {
            Some(ContainerId { namespace: namespace.to_owned(), id: id.to_owned() })
        };
        assert_eq!(ContainerId::of_snapshot("k8s.io/17/web"), id("k8s.io", "web"));
        assert_eq!(ContainerId::of_snapshot("default/1/a/b"), id("default", "a/b"));
        for key in ["web", "a/b", "a/b/c", "a//c", "/1/c", "a/1/"] {
            assert_eq!(ContainerId::of_snapshot(key), None, "{key}");
        }
    }

    #[test]
    fn the_program_is_in_the_specification() {
        let of = |json: &str| {
            let spec = AnyMessage { type_url: String::new(), value: json.as_bytes().to_vec() };
            program(&ContainerMessage { spec: Some(spec) })
        };
        let spec = r#"{"ociVersion": "1.1", "process": {"args": ["nginx", "-g", "x"], "cwd": "/"}}"#;
        assert_eq!(of(spec).unwrap(), ["nginx", "-g", "x"]);
        for wrong in ["", "{}", "[]", r#"{"process": {}}"#, r#"{"process": {"args": [1]}}"#] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        assert!(program(&ContainerMessage { spec: None }).is_err());
    }
}
