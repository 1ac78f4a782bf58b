//! The media types of OCI and Docker documents.

/// The media type of an image's manifest in the OCI format.
pub const MANIFEST_OCI: &str = "application/vnd.oci.image.manifest.v1+json";
/// The media type of an image's manifest in Docker's format.
pub const MANIFEST_DOCKER: &str = "application/vnd.docker.distribution.manifest.v2+json";
/// The media type of an index, which lists the manifests of several platforms, in the OCI format.
pub const INDEX_OCI: &str = "application/vnd.oci.image.index.v1+json";
/// The media type of an index, which lists the manifests of several platforms, in Docker's format.
pub const INDEX_DOCKER: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// The media type of an image's config in the OCI format.
pub const CONFIG_OCI: &str = "application/vnd.oci.image.config.v1+json";
/// The media type of an image's config in Docker's format.
pub const CONFIG_DOCKER: &str = "application/vnd.docker.container.image.v1+json";
/// The media type of the empty config, which consists of the two bytes `{}`. An artifact that needs no config has this
/// one.
pub const CONFIG_EMPTY: &str = "application/vnd.oci.empty.v1+json";
/// The artifact type of an image of OverlayBD's that belongs to a container's image with the same content, as
/// OverlayBD's convertor writes it.
pub const OVERLAYBD_IMAGE: &str = "application/vnd.containerd.overlaybd.native.v1+json";
/// As [`OVERLAYBD_IMAGE`], of an image with TurboOCI layers, whose data is in the layers of the container's image.
pub const OVERLAYBD_TURBO_IMAGE: &str = "application/vnd.containerd.overlaybd.turbo.v1+json";
