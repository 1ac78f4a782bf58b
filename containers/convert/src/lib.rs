//! Conversion of container images: the layers of an image, which are streams of tar entries, become layers of a disk
//! with a file system: ext4, or EROFS for what is only read.
//!
//! A layer is read once, from front to back, and is written as it is read. It needs no root, no mount, no kernel and no
//! temporary copy; the same layers give the same bytes on every machine.
//!
//! | module | subject |
//! |---|---|
//! | [`apply`] | [`Applier`]: the meaning of a layer's entries, as calls of a tree |
//! | [`file_tree`] | [`FileTree`]: the state that lower layers left, and that the calls change |
//! | [`content`] | [`EntryContent`]: files' bytes on their way from the tar to the tree |
//! | [`ext4_tree`] | [`Ext4Tree`]: an ext4 as such a tree |
//! | [`erofs_tree`] | [`ErofsTree`]: an EROFS as such a tree |
//! | [`file_system_tree`] | what both have in common |
//! | `estargz` | entries that serve lazy loading, and are left out |
//! | `extent_count` | the bound on the pieces in which layers store the disk |
//! | `layer_stream` | compressed bytes become a tar, with the digests of both |
//! | [`options`] | [`ConvertOptions`], and the names of layers that follow from them |
//! | `tar_conversion` | the file system of the parent, changed by a tar |
//! | [`layer`] | [`convert_layer`]: one layer |
//! | `turbo_layer` | one layer whose data stays in the container's layer |
//! | `kept_targets` | the container's layers that stay, for the store of the new image |
//! | [`parent_disk`] | the disk of the layers below |
//! | [`known_layers`] | [`KnownLayers`]: layers that were converted before |
//! | [`repository_layers`] | [`RepositoryLayers`]: those in stores of any kind |
//! | [`image`] | [`stage_image`]: all layers of an image |
//! | [`request`] | [`ConvertRequest`]: from the name of an image to a published one |
//! | [`single_layers`] | [`SingleLayers`]: each layer of an image by itself |
//! | `sibling_index` | an index that lists an image beside its original |

#![forbid(unsafe_code)]

pub mod apply;
pub mod content;
#[cfg(test)]
mod disk_trees;
pub mod erofs_tree;
mod estargz;
pub mod ext4_tree;
mod extent_count;
pub mod file_system_tree;
pub mod file_tree;
pub mod image;
mod kept_targets;
pub mod known_layers;
pub mod layer;
mod layer_stream;
#[cfg(test)]
mod model_tree;
pub mod options;
pub mod parent_disk;
#[cfg(test)]
mod raw_tar;
pub mod repository_layers;
pub mod request;
mod sibling_index;
pub mod single_layers;
mod tar_conversion;
#[cfg(test)]
mod test_layers;
mod turbo_layer;

pub use apply::{Applier, ApplyLimits, LayerCounts};
pub use content::EntryContent;
pub use erofs_tree::ErofsTree;
pub use ext4_tree::Ext4Tree;
pub use file_tree::{FileTree, LayerContent, NewNode, NodeAttributes, NodeKind, NodeStatus, NodeXattr};
pub use headstart_block::FileSystemKind;
pub use image::{LayerOutcome, StagedConversion, stage_image};
pub use known_layers::{KnownLayers, NoKnownLayers, StoredLayers};
pub use layer::{ConvertedLayer, LayerInput, convert_layer};
pub use options::{ConvertLimits, ConvertMode, ConvertOptions, chain_id};
pub use parent_disk::ParentDisk;
pub use repository_layers::RepositoryLayers;
pub use request::{ConvertReport, ConvertRequest, ConvertedForm};
pub use single_layers::SingleLayers;
pub use tar_conversion::{LayerPlace, WrittenFileSystem, empty_file_system};
