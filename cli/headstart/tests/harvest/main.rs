//! `headstart harvest` as its users run it: vSSDs on a file, lent flash, restarts, mistakes.
//!
//! | module | subject |
//! |---|---|
//! | [`daemon`] | the daemon while it runs |
//! | [`disks`] | vSSDs as disks: written, resized, found again after restarts and kills |
//! | [`fio`] | load on a harvest disk while flash is lent, moved and taken back under it |
//! | [`damage`] | a journal and flash with damage |
//! | [`leases`] | spare flash: requested, used, given back |
//! | [`processes`] | the processes that serve vSSDs by vhost-user and as files: killed, stuck, started again |
//! | [`refusals`] | impossible requests, and their errors |
//! | [`sockets`] | the users that can open each vSSD |

#![allow(clippy::cast_possible_truncation, clippy::panic, clippy::unwrap_used, reason = "tests")]

mod daemon;
mod damage;
mod disks;
mod fio;
#[path = "../support/machine.rs"]
mod guest;
#[path = "../support/http.rs"]
mod http;
mod leases;
mod processes;
mod refusals;
#[path = "../support/refused.rs"]
mod refused;
#[path = "../support/restricted.rs"]
mod restricted;
mod sockets;
#[path = "../e2e/tools.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod tools;

use headstart_testkit::{disk, scene};
