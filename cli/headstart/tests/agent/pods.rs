//! Pods, run by the interface by which Kubernetes runs them, on images of a registry that wants a password.

use crate::containers::{Host, HostSettings};
use crate::scene::{Scene, run_tool};
use headstart_block::Digest;
use headstart_testkit::registry::{PASSWORD, RegistryAccess, USER};
use prost::Message;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tokio::runtime::{Builder, Runtime};
use tonic::Request;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

/// The namespaces of the host, in place of the pod's own: without a network plugin, a pod has no network of its own.
const NODE: i32 = 2;

/// Messages of `runtime.v1`, with the fields that are used here.
#[derive(Clone, PartialEq, Message)]
struct ImageSpec {
    #[prost(string, tag = "1")]
    image: String,
}

#[derive(Clone, PartialEq, Message)]
struct AuthConfig {
    #[prost(string, tag = "1")]
    username: String,
    #[prost(string, tag = "2")]
    password: String,
}

#[derive(Clone, PartialEq, Message)]
struct PullImageRequest {
    #[prost(message, optional, tag = "1")]
    image: Option<ImageSpec>,
    #[prost(message, optional, tag = "2")]
    auth: Option<AuthConfig>,
    #[prost(message, optional, tag = "3")]
    sandbox_config: Option<PodSandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    namespace: String,
}

#[derive(Clone, PartialEq, Message)]
struct NamespaceOption {
    #[prost(int32, tag = "1")]
    network: i32,
}

#[derive(Clone, PartialEq, Message)]
struct SandboxSecurityContext {
    #[prost(message, optional, tag = "1")]
    namespace_options: Option<NamespaceOption>,
}

#[derive(Clone, PartialEq, Message)]
struct LinuxPodSandboxConfig {
    #[prost(message, optional, tag = "2")]
    security_context: Option<SandboxSecurityContext>,
}

#[derive(Clone, PartialEq, Message)]
struct PodSandboxConfig {
    #[prost(message, optional, tag = "1")]
    metadata: Option<PodSandboxMetadata>,
    #[prost(string, tag = "3")]
    log_directory: String,
    #[prost(message, optional, tag = "8")]
    linux: Option<LinuxPodSandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct RunPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    config: Option<PodSandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerMetadata {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct LinuxContainerSecurityContext {
    #[prost(message, optional, tag = "3")]
    namespace_options: Option<NamespaceOption>,
}

#[derive(Clone, PartialEq, Message)]
struct LinuxContainerConfig {
    #[prost(message, optional, tag = "2")]
    security_context: Option<LinuxContainerSecurityContext>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    image: Option<ImageSpec>,
    #[prost(string, repeated, tag = "3")]
    command: Vec<String>,
    #[prost(message, optional, tag = "15")]
    linux: Option<LinuxContainerConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct CreateContainerRequest {
    #[prost(string, tag = "1")]
    pod_sandbox_id: String,
    #[prost(message, optional, tag = "2")]
    config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    sandbox_config: Option<PodSandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct ExecSyncRequest {
    #[prost(string, tag = "1")]
    container_id: String,
    #[prost(string, repeated, tag = "2")]
    cmd: Vec<String>,
    #[prost(int64, tag = "3")]
    timeout: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ExecSyncResponse {
    #[prost(bytes = "vec", tag = "1")]
    stdout: Vec<u8>,
}

/// A request or an answer with one id, or one name.
#[derive(Clone, PartialEq, Message)]
struct Id {
    #[prost(string, tag = "1")]
    id: String,
}

/// Kubernetes' part.
struct Kubelet {
    runtime: Runtime,
    client: Grpc<Channel>,
    pod: PodSandboxConfig,
}

impl Kubelet {
    fn connect(host: &Host<'_>) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let socket = host.containerd.socket();
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
        let client = Grpc::new(runtime.block_on(endpoint.connect()).unwrap());
        let name = host.containerd.id_of("pod");
        let metadata = PodSandboxMetadata { uid: name.clone(), name, namespace: "default".to_owned() };
        let options = Some(NamespaceOption { network: NODE });
        let linux = LinuxPodSandboxConfig {
            security_context: Some(SandboxSecurityContext { namespace_options: options }),
        };
        let log_directory = host.scene.path("logs").display().to_string();
        let pod = PodSandboxConfig { metadata: Some(metadata), log_directory, linux: Some(linux) };
        Self { runtime, client, pod }
    }

    #[track_caller]
    fn ask<Q: Message + 'static, A: Message + Default + 'static>(&mut self, method: &str, request: Q) -> A {
        let service = if method.ends_with("Image") { "ImageService" } else { "RuntimeService" };
        let path = format!("/runtime.v1.{service}/{method}").parse().unwrap();
        let client = &mut self.client;
        let answer = self.runtime.block_on(async {
            client.ready().await.unwrap();
            client.unary(Request::new(request), path, ProstCodec::default()).await
        });
        answer.unwrap_or_else(|status| panic!("{method}: {status}")).into_inner()
    }

    #[track_caller]
    fn pull(&mut self, image: &str) {
        let auth = AuthConfig { username: USER.to_owned(), password: PASSWORD.to_owned() };
        let spec = ImageSpec { image: image.to_owned() };
        let sandbox_config = Some(self.pod.clone());
        let request = PullImageRequest { image: Some(spec), auth: Some(auth), sandbox_config };
        let pulled: Id = self.ask("PullImage", request);
        assert!(pulled.id.starts_with("sha256:"), "{pulled:?}");
    }

    /// Starts a container in the pod.
    #[track_caller]
    fn start(&mut self, pod: &str, image: &str, command: &[&str]) -> String {
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name: "app".to_owned() }),
            image: Some(ImageSpec { image: image.to_owned() }),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            linux: Some(LinuxContainerConfig {
                security_context: Some(LinuxContainerSecurityContext {
                    namespace_options: Some(NamespaceOption { network: NODE }),
                }),
            }),
        };
        let sandbox_config = Some(self.pod.clone());
        let request =
            CreateContainerRequest { pod_sandbox_id: pod.to_owned(), config: Some(config), sandbox_config };
        let made: Id = self.ask("CreateContainer", request);
        let () = self.ask("StartContainer", made.clone());
        made.id
    }

    #[track_caller]
    fn exec(&mut self, container: &str, script: &str) -> String {
        let cmd = ["/bin/sh", "-c", script].map(str::to_owned).into();
        let request = ExecSyncRequest { container_id: container.to_owned(), cmd, timeout: 30 };
        let said: ExecSyncResponse = self.ask("ExecSync", request);
        String::from_utf8(said.stdout).unwrap()
    }
}

/// Publishes the image that holds pods: the shell's, with a program that does nothing.
fn publish_pause(host: &Host<'_>, options: &[&str]) {
    let copy = |options: &[&str], from: &str, to: &str| {
        let fixed = ["--insecure-policy", "copy", "--quiet"];
        run_tool("skopeo", &[&fixed[..], options, &[from, to]].concat(), &host.scene.path("."));
    };
    copy(&[], "oci-archive:image.tar", "dir:pause");
    let image = host.scene.path("pause");
    let read = |path: &Path| serde_json::from_slice::<Value>(&fs::read(path).unwrap()).unwrap();
    let mut manifest = read(&image.join("manifest.json"));
    let old = manifest["config"]["digest"].as_str().unwrap().to_owned();
    let mut config = read(&image.join(old.strip_prefix("sha256:").unwrap()));
    config["config"]["Entrypoint"] = json!(["/bin/sleep", "100000"]);
    config["config"]["Cmd"] = json!([]);
    let config = config.to_string();
    let digest = Digest::of(config.as_bytes());
    fs::write(image.join(digest.hex()), &config).unwrap();
    manifest["config"]["digest"] = digest.to_string().into();
    manifest["config"]["size"] = config.len().into();
    fs::write(image.join("manifest.json"), manifest.to_string()).unwrap();
    let to = format!("docker://{}/pause:1", host.registry_host);
    copy(&[&["--dest-tls-verify=false"], options].concat(), "dir:pause", &to);
}

#[test]
fn a_pod_of_kubernetes_runs_on_a_disk_from_a_registry_with_a_password() {
    let scene = Scene::new();
    let credentials = format!("{USER}:{PASSWORD}");
    let options = ["--dest-creds", &credentials];
    let (clients, access) = (RegistryAccess::Password, "--docker-config ~/docker");
    let settings = HostSettings { clients, access, ..HostSettings::default() };
    let Some(mut host) = Host::start_with(&scene, &settings) else { return };
    let registry = host.registry_host.clone();
    // As `docker login` leaves it. containerd does not hand Kubernetes' credentials on.
    fs::create_dir(scene.path("docker")).unwrap();
    let login = json!({"auths": { &registry: {"username": USER, "password": PASSWORD} }});
    fs::write(scene.path("docker/config.json"), login.to_string()).unwrap();
    publish_pause(&host, &options);
    host.convert("--referrer");
    let mut kubelet = Kubelet::connect(&host);
    let image = host.image.clone();
    kubelet.pull(&image);
    assert_eq!(host.fetched(), 2, "a manifest and a config: {}", host.snapshotter.output());
    // It has the same layers, and its files are those of the same disk.
    kubelet.pull(&format!("{registry}/pause:1"));
    assert_eq!(host.fetched(), 4, "{}", host.snapshotter.output());
    assert_eq!((host.trees(), host.agent.disks().len()), (1, 1));

    let pod: Id = {
        let config = Some(kubelet.pod.clone());
        kubelet.ask("RunPodSandbox", RunPodSandboxRequest { config })
    };
    let container = kubelet.start(&pod.id, &image, &["/bin/sleep", "1000"]);
    let look = "cat /etc/greeting; echo x > /etc/written; cat /etc/written";
    assert_eq!(kubelet.exec(&container, look), "two\nx\n");
    host.restart_snapshotter();
    assert_eq!(kubelet.exec(&container, "cat /etc/greeting /etc/written"), "two\nx\n");
    let () = kubelet.ask("StopPodSandbox", pod.clone());
    let () = kubelet.ask("RemovePodSandbox", pod);
}
