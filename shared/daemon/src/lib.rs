//! The parts that all daemons of the project are built from.
//!
//! | module | content |
//! |---|---|
//! | [`client`] | the client of a daemon on this host |
//! | [`mod@file`] | small files that are replaced atomically and durably |
//! | [`http`] | the interface for programs over HTTP: its servers, and the form of its errors |
//! | [`names`] | names of disks |
//! | [`places`] | the default directories of daemons |
//! | [`pid_file`] | processes that a daemon starts and supervises: their locks and logs |

#![forbid(unsafe_code)]

pub mod client;
pub mod file;
pub mod http;
pub mod names;
pub mod pid_file;
pub mod places;
