//! Images: OCI layout stores, import, export, commit, verify, hash trees.

pub mod blob;
pub mod commit;
pub mod diff;
mod difference;
pub mod digest;
pub mod disk_file;
pub mod export;
pub mod hash_tree;
pub mod import;
pub mod layer_file;
pub mod manifest;
pub mod new_image;
mod new_layer;
pub mod open_image;
pub mod progress;
pub mod reference;
pub mod store;
pub mod tar_wrapper;
pub mod verify;
mod zero;
