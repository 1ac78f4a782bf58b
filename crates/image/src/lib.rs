//! Images: OCI layout stores, import, export, commit, verify, hash trees.

pub mod digest;
pub mod disk_file;
pub mod export;
pub mod hash_tree;
pub mod manifest;
pub mod progress;
pub mod reference;
pub mod store;
pub mod tar_wrapper;
mod zero;
mod difference;
