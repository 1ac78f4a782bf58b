//! `headstart-lab` as its users run it: every test starts the binary, and `headstart` where a test needs images or
//! disks.
//!
//! | module | subject |
//! |---|---|
//! | [`simulate`] | recorded boots, replayed on virtual time |
//! | [`simulate_fleet`] | many hosts that read the same image |
//! | [`replay`] | recorded reads against this server and others |
//! | [`trace`] | statistics of data sets, and data sets that are made up |
//! | [`plot`] | their figures, drawn |
//! | [`help`] | the command line itself |
//! | [`wrong_lines`] | command lines that are refused whatever is on this host |

#![allow(clippy::cast_possible_truncation, clippy::panic, clippy::unwrap_used, reason = "tests")]

mod help;
mod plot;
mod replay;
mod simulate;
mod simulate_fleet;
mod trace;
mod wrong_lines;
