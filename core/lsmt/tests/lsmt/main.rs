//! LSMT files through the interface of the crate, compared with a plain reader and with the reference's files.
//!
//! | module | subject |
//! |---|---|
//! | [`layer_writer`] | layers as they are written |
//! | [`stack`] | layers on top of each other |
//! | [`target`] | layers with a part of their bytes in another file |
//! | [`sparse`] | layers whose index is the map of a file's holes |
//! | [`golden`], [`writable_golden`] | the files and the operations of the reference implementation |
//! | [`hostile`] | damaged and hostile files |
//!
//! [`plain`] is a plain reader of the format that shares no code with the crate, [`random_layers`] makes layers,
//! [`golden_ops`] reads the recipes of the golden set, and [`counted`] counts memory.

#![allow(clippy::cast_possible_truncation, clippy::panic, clippy::unwrap_used, reason = "tests")]

#[path = "../../../../shared/fuzz/tests/support/counted.rs"]
mod counted;
mod golden;
mod golden_ops;
mod hostile;
mod layer_writer;
mod plain;
mod random_layers;
mod sparse;
mod stack;
mod target;
mod writable_golden;
