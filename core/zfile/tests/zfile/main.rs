//! ZFiles through the interface of the crate.
//!
//! | module | subject |
//! |---|---|
//! | [`roundtrip`] | packed content reads back |
//! | [`golden`] | blobs of the reference implementation |
//! | [`damage`] | damaged blobs and failing media |
//! | [`decoded`] | what a source hears of frames that were read |
//! | [`allocation`] | the memory that reads and opening take |
//!
//! [`plain`] is a plain reader of the format that shares no code with the crate; [`golden_zfile`] finds the blobs of
//! the golden set.

#![allow(clippy::panic, clippy::unwrap_used, reason = "tests may panic")]

mod allocation;
mod damage;
mod decoded;
mod golden;
mod golden_zfile;
mod plain;
mod roundtrip;
