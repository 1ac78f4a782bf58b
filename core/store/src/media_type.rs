//! The media types of OCI and Docker documents.

/// Manifests as OCI names them.
pub const MANIFEST_OCI: &str = "application/vnd.oci.image.manifest.v1+json";
/// Manifests as Docker names them.
pub const MANIFEST_DOCKER: &str = "application/vnd.docker.distribution.manifest.v2+json";
/// Indexes (several manifests, one for each platform) as OCI names them.
pub const INDEX_OCI: &str = "application/vnd.oci.image.index.v1+json";
/// Indexes as Docker names them.
pub const INDEX_DOCKER: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// Configs as OCI names them.
pub const CONFIG_OCI: &str = "application/vnd.oci.image.config.v1+json";
/// Configs as Docker names them.
pub const CONFIG_DOCKER: &str = "application/vnd.docker.container.image.v1+json";
/// The config of an artifact that has none: the two bytes `{}`.
pub const CONFIG_EMPTY: &str = "application/vnd.oci.empty.v1+json";
