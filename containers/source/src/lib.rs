//! Container images of other tools: found, chosen by platform, and read as streams of layers.
//!
//! [`open()`](fn@open) finds an image by its [name](SourceName) and reads its documents. The [`ContainerImage`] has the
//! manifest, the config and the layers, lowest first; [`ContainerLayer::open`] gives the bytes of a layer as they are
//! stored, and checks them as they pass. Nothing is written to disk, and no layer is kept in memory.
//!
//! ```no_run
//! # use headstart_container_source::{ImagePlatform, SourceName, open};
//! # use headstart_store::StoreSettings;
//! # fn read(runtime: &tokio::runtime::Handle) -> headstart_block::Result<()> {
//! let name: SourceName = "docker-archive:app.tar".parse()?;
//! let image = open(&name, Some(&ImagePlatform::host()), &StoreSettings::default(), runtime)?;
//! for layer in &image.layers {
//!     std::io::copy(&mut layer.open()?, &mut std::io::sink())?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! All functions block, and must not be called in async code. The caller gives the runtime on which requests run.
//!
//! | module | subject |
//! |---|---|
//! | [`name`] | [`SourceName`]: the names of images, in stores and in archives |
//! | [`platform`] | [`ImagePlatform`]: the platforms that an image can run on, and the best one for a host |
//! | [`image`] | [`ContainerImage`] and [`ContainerLayer`]: an image as other crates use it |
//! | [`document`] | [`ImageDocument`]: manifests and indexes of OCI and of Docker, schema version 2 |
//! | [`layer_type`] | the media types of layers |
//! | [`open`](mod@open) | from a name to an image |
//! | `choose` | from an index to the manifest of one platform |
//! | `config` | the part of a config that counts here |
//! | `blob_place` | the places of blobs: a store, or an archive |
//! | `archive` | the members of a tar archive that is a file |
//! | `oci_archive`, `docker_archive` | images in archives |
//! | `docker_name` | names of images, completed as Docker does |
//! | `verified` | a stream that is checked against its digest as it passes |
//!
//! # Sources
//!
//! | name | source |
//! |---|---|
//! | `oci://HOST/REPO:TAG`, `file:///DIR:TAG`, `s3://...`, `https://...` | an image in a [store](headstart_store) |
//! | `oci-archive:PATH[:NAME]` | an OCI layout as a tar archive, as `skopeo` and `docker buildx` write it |
//! | `docker-archive:PATH[:NAME]` | the output of `docker save` and `podman save`, in its old and its new form |
//!
//! An archive has to be a regular file (or a block device), because blobs are in any order in it, and must not be
//! compressed as a whole. Its members are found in one pass over its headers, and read where they are: nothing is
//! unpacked, so no name in an archive can touch another file.
//!
//! # Platforms
//!
//! An index lists an image for several platforms. Without a platform, the one for Linux on this host's architecture is
//! taken; [`platform`] has the rules for variants. If no entry of an index matches, but the index has one image only,
//! that one is taken, and so is an image without an index. A platform that the caller *names* is binding: an image for
//! another one is refused, also by what its config says. Attestations and other artifacts are no images.
//!
//! # Checks
//!
//! | of | check |
//! |---|---|
//! | documents | at most 4 MiB; the digest by which they were found; a manifest is no index at the same time |
//! | config | at most 4 MiB; size and digest; one diff id for each layer |
//! | layers | at most [`MAX_LAYERS`](document::MAX_LAYERS); size and digest of the stored bytes, as they pass |
//! | archives | members lie in the file; no name has `..`; a name that is used occurs once; links stay inside |
//!
//! The *content* of a layer, which its diff id names, is not checked here but where it is decompressed.
//!
//! # Compression
//!
//! The media type of a layer hints at its compression ([`LayerCompression`]). The hint is what writers claim, and some
//! claim the wrong thing; the first bytes decide ([`LayerCompression::of_bytes`]). eStargz layers are gzip with several
//! members, zstd:chunked layers are zstd with skippable frames: readers of plain gzip and zstd read them if they read
//! on to the end.
//!
//! # Decisions
//!
//! * URLs in layers (`urls` of Docker's *foreign* layers) are never asked: an image could name any host. Such a layer
//!   is read if its store has it, and its absence is an error otherwise.
//! * Archives of `docker save` have no manifest in their old form. One is made of the config and the layers, in
//!   Docker's format: its digest depends on nothing else. In the new form (`index.json` beside `manifest.json`) the
//!   manifest that the archive has is taken, byte for byte.
//! * Layers in other formats (OverlayBD, encrypted ones) are refused by name.

#![forbid(unsafe_code)]

mod archive;
mod blob_place;
mod choose;
mod config;
mod docker_archive;
mod docker_name;
pub mod document;
pub mod image;
pub mod layer_type;
pub mod name;
mod oci_archive;
pub mod open;
pub mod platform;
#[cfg(test)]
mod support;
mod verified;

pub use document::ImageDocument;
pub use image::{ContainerImage, ContainerLayer};
pub use layer_type::{LayerCompression, layer_media_type};
pub use name::{ArchiveChoice, ArchivedImage, SourceName};
pub use open::{open, open_docker_archive, open_in_store, open_known, open_oci_archive};
pub use platform::ImagePlatform;
