//! Images of other tools, read through the crate's interface: from all kinds of sources, and golden ones.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod golden;
mod tools;
