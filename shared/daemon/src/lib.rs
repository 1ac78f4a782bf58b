//! The parts that daemons of every wing are built from.
//!
//! | module | content |
//! |---|---|
//! | [`mod@file`] | small files that are replaced atomically and durably |
//! | [`http`] | the interface for programs over HTTP: its servers, and the form of its errors |
//! | [`names`] | names of disks |
//! | [`pid_file`] | processes that a daemon starts and supervises: their locks and logs |

#![forbid(unsafe_code)]

pub mod file;
pub mod http;
pub mod names;
pub mod pid_file;
