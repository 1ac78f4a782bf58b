//! The files of container images without pulling: each image is a disk, whose blocks come when they are read.
//!
//! [`ImageTrees`] is the source of remote layers of a [snapshotter](headstart_snapshotter). When containerd is about to
//! fetch a layer, it looks for a converted form of the image. If there is one, the image's disk is attached, its file
//! system is mounted, and the layer is neither fetched nor unpacked. Everything else stays as without headstart.
//!
//! | module | subject |
//! |---|---|
//! | [`labels`] | [`WantedLayer`]: containerd's labels, as the name of an image and of a layer in it |
//! | [`converted`] | [`ConvertedImage`]: an image whose layers are those of a disk, and their chain ids |
//! | [`container_starts`] | the program that starts in a container, and its name for recordings and plans |
//! | [`tree_name`] | [`TreeName`]: an image and a number of its layers, as the journal has it |
//! | [`tree_disks`] | [`TreeDisks`]: the agent, as the holder of disks |
//! | [`trees`] | [`ImageTrees`]: finds, attaches, mounts and removes |
//! | `outside_trust` | the warning about repositories that are not trusted |
//! | `own_disks` | disks that containers write to, and the layers that are made of them |
//! | `packed_layer` | those layers as blobs for images |
//! | `file_system` | the kind of a tree's file system, for disks over it |
//! | [`blank_disk`] | [`BlankDisk`]: the disk that a tree without a parent begins with |
//!
//! # From a tag to mounted files
//!
//! ```text
//! containerd -- Prepare(extract-1, labels: image, manifest, chain id) --> snapshotter -- find --> ImageTrees
//!   registry: manifest by digest; the converted sibling (referrer, entry of the index); config (chain ids)
//!   agent:    attach oci://...@sha256:SIBLING --fuse ROOT/trees/ID/disk     (a process of its own; plan, cache, swarm)
//!   kernel:   loop device over that file, ext4 or EROFS on ROOT/trees/ID/fs
//! containerd <-- "already exists" -- for every layer, without a byte of it
//! containerd -- Prepare(container, parent: top chain id) --> overlay, lowerdir=ROOT/trees/ID/fs
//! ```
//!
//! # The right files
//!
//! containerd names a layer by its chain id, which is a digest of the contents of that layer and of all below it, and
//! shares the snapshot of that name between all images of the host. It checks the contents of layers that it unpacks;
//! that those found here have the files of the original is checked nowhere. So an image could take the
//! place of any other. Two kinds are used:
//!
//! * an image that is a disk itself, if its config gives each layer the digest of the layer's blob: no other layer has
//!   that name, and the disk checks the blob against the digest;
//! * a sibling, or an image that claims other digests, in a repository whose writers the operator trusts
//!   ([`WriterTrust`]): the chain ids of the original are computed from its config, whose digest is in its manifest,
//!   and a sibling has to name the original's manifest and for each layer the same chain id; that its blocks have the
//!   same files is the word of its publisher.

#![forbid(unsafe_code)]

pub mod blank_disk;
pub mod container_starts;
pub mod converted;
mod file_system;
pub mod labels;
mod outside_trust;
mod own_disks;
mod packed_layer;
pub mod tree_disks;
mod tree_locks;
pub mod tree_name;
pub mod trees;

pub use blank_disk::BlankDisk;
pub use container_starts::ContainerPrograms;
pub use converted::{ConvertedImage, WriterTrust};
pub use labels::WantedLayer;
pub use tree_disks::{AttachOutcome, AttachedTree, DiskOrder, TreeDisks};
pub use tree_name::TreeName;
pub use trees::ImageTrees;
