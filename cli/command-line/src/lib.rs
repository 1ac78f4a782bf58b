//! The common parts of the command lines of `headstart` and `headstart-lab`.
//!
//! | module | content |
//! |---|---|
//! | [`program`] | the run of a program: its options, its terminal, its exit status |
//! | [`report`] | the report of a command, for people or as JSON |
//! | [`terminal`] | requests of the user to stop, and progress |
//! | `signals` | signals that come together, and second ones |
//! | `bar` | the progress bar, and lines above it |
//! | [`log`] | the messages of all crates while a command works |
//! | [`printable`] | text that a terminal shows and does not obey |
//! | [`name`] | the name of the program in its messages |
//! | [`runtime`] | threads for requests to stores |
//! | [`store_args`] | options of every command that reaches a store over a network |
//! | [`training`] | the objective of plans |
//! | [`number`] | whole numbers within bounds, as arguments |
//! | [`duration`] | times within bounds, as arguments |
//! | [`megabytes`] | bandwidths as arguments and in reports |
//! | [`date`] | times of the calendar in reports |

#![forbid(unsafe_code)]

mod bar;
pub mod date;
pub mod duration;
pub mod log;
pub mod megabytes;
pub mod name;
pub mod number;
pub mod printable;
pub mod program;
pub mod report;
pub mod runtime;
mod signals;
pub mod store_args;
pub mod terminal;
pub mod training;
