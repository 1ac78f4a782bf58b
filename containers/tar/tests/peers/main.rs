//! Archives that other programs write, and archives that another program reads, too.
//!
//! Method: the crate `tar`, GNU tar and Python write entries whose fields are known, in all formats that they have, and
//! every field is compared. Go reads its own test archives and thousands of damaged ones beside this reader, and the
//! two have to agree on every entry and on where an archive is wrong, but for the differences that the crate's
//! documentation lists.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a peer that does not do its part is a failure")]

mod gnu_tar;
mod go;
mod python;
mod support;
mod tar_crate;
