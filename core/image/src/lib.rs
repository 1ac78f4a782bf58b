//! Images: OCI layout stores, import, export, commit, verify.
//!
//! An image is a manifest in a store: ordered layers, each a blob named by its SHA-256 and covered by a BLAKE3 hash
//! tree. This crate joins the two formats below it (ZFile and LSMT, which know nothing of each other) into blobs, keeps
//! blobs and manifests in OCI layout directories, and turns disks into images and back. It reads the images and layers
//! that OverlayBD's tools make, and these tools read those of this crate.
//!
//! The modules that name and hold an image, from the bottom up:
//!
//! | module | contents |
//! |---|---|
//! | [`tar_wrapper`] | finding a blob in the tar archive around it |
//! | [`blob`] | taking off the wrappers of a layer: tar, ZFile |
//! | [`manifest`] | manifests, configs, annotations: headstart's and OverlayBD's |
//! | [`reference`](mod@reference) | `file:///dir:tag`; from `headstart-store` |
//! | [`store`] | OCI layout directories that writers, readers and prune share |
//! | [`remote`] | an image in a remote store, for inspection |
//! | [`disk_form`] | the disk to which the tag of a container's image leads |
//! | [`forms`] | all disks that a container's image was converted to |
//! | [`store_access`] | an image in any store, for code that may block |
//! | [`verified_blob`] | a blob that is checked against its hash tree as it is read |
//! | [`named_image`] | an image with a name that the user gave: that of its export, or of its boots |
//! | [`image_key`] | the key under which trackers gather the reads of an image's disks |
//! | [`turbo`] | TurboOCI layers, whose data is in layers of another image |
//! | `image_blobs` | the common part of local and remote images, for opening and checking |
//! | `staged_image` | an image that was made here, as a store to copy it from |
//!
//! The modules that work with images:
//!
//! | module | function |
//! |---|---|
//! | [`disk_file`] | opens raw, qcow2, vhd, vhdx and vmdk disks |
//! | [`import`], [`commit`] | make layers of a disk, of a writable layer, of an image's layers |
//! | [`served_disk`] | a writable disk that a process serves, asked by its control socket |
//! | [`sealed_ahead`] | the blob of a layer that is written ahead of its commit |
//! | [`stacked`] | a disk goes on with the image that was made of it |
//! | [`kept_base`] | the copy of its base that a writable directory may have |
//! | [`cloned_base`] | the image of a clone is protected from deletion |
//! | [`new_layer`] | the storage form of a layer, and writing it |
//! | [`new_image`] | puts a new layer on top of an image's layers, and publishes the result |
//! | [`optimize`] | lays an image out again: the data that boots read comes first |
//! | [`open_image`], [`layer_file`] | open an image, or single layer files, as a disk |
//! | [`export`] | writes a disk out as sparse raw or qcow2 |
//! | [`acceleration`] | the trace that an image carries as its topmost layer |
//! | [`image_site`] | the place in which an image is made, and its publication in any store |
//! | [`converted_layers`] | the layers that conversions of containers' layers gave, found in any store |
//! | [`plan_artifact`] | publishes with an image the plan made from its boots, and finds it |
//! | [`managed_store`] | removes and prunes the images of a store that keeps leases |
//! | [`zfile_files`] | single compressed files |
//! | [`transfer`] | copies an image from one store to another |
//! | [`copies`] | copies and repairs an image by its name |
//! | [`verify`], [`diff`] | check an image, compare two |
//! | [`progress`] | reports the progress of work, and lets the caller stop the work |

#![forbid(unsafe_code)]

pub mod acceleration;
pub mod blob;
pub mod cloned_base;
pub mod commit;
pub mod converted_layers;
pub mod copies;
pub mod diff;
mod difference;
pub mod disk_file;
pub mod disk_form;
mod disk_size;
pub mod export;
pub mod forms;
mod image_blobs;
pub mod image_key;
pub mod image_site;
pub mod import;
pub mod kept_base;
pub mod layer_file;
pub mod managed_store;
pub mod manifest;
pub mod named_image;
pub mod new_image;
pub mod new_layer;
pub mod open_image;
mod opening;
pub mod optimize;
pub mod plan_artifact;
pub mod progress;
pub mod remote;
pub mod sealed_ahead;
pub mod served_disk;
pub mod stacked;
mod staged_image;
pub mod store;
pub mod store_access;
pub mod tar_wrapper;
pub mod transfer;
pub mod turbo;
pub mod verified_blob;
pub mod verify;
mod zero;
pub mod zfile_files;

pub use headstart_store::reference;
