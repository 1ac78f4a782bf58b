//! `headstart attach` as users run it, with its default options: the speed of a disk, the time until it is there, its
//! size.
//!
//! ```text
//! cargo bench -p headstart --bench attach            all
//! cargo bench -p headstart --bench attach -- speed   one part: speed, first or many
//! ```
//!
//! **speed**: fio's nbd engine reads one disk's content from a flat image (one layer, not compressed), from 20 layers
//! of lz4 in frames of 4 KiB, each a scattered change of the one below, and, for information, from one layer as `image
//! import` makes it by default; and from the raw disk through nbdkit and qemu-nbd, in turn, as described in
//! `headstart_testkit::fio`. Every server reads from the page cache and has been read once from front to back, so that
//! this one has checked its hash trees. Goals for the flat image: at depth 32, 1.3 times the better peer or 0.9 of the
//! client's ceiling; at depth 1 and in sequence, the better peer within 5%; no more CPU for an I/O than the peer that
//! uses least. Goal for the 20 layers: 0.8 of the flat image in the same round, or of that image's goal.
//!
//! **first**: from starting the program to the first 4 KiB read answered over NBD, of an image of 40 GiB and 4,500
//! segments in 20 layers: from a local directory, and for information from a web server on this host with the cache
//! empty and full.
//!
//! **many**: 200 disks of that image in one process: the time until all of them have answered a read, and the memory
//! and threads that each additional disk takes, with a client connected and idle.

#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "a benchmark: it prints, reads the clock, and a failed step ends it"
)]

#[path = "attach/first_byte.rs"]
mod first_byte;
#[path = "attach/images.rs"]
mod images;
#[path = "attach/many_disks.rs"]
mod many_disks;
#[path = "attach/nbd_client.rs"]
mod nbd_client;
#[path = "attach/speed.rs"]
mod speed;

use std::path::Path;
use std::process::Command;

fn main() {
    // Cargo adds --bench.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_wanted = |part: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == part);
    let dir = tempfile::tempdir().expect("a scratch directory");
    if is_wanted("speed") {
        speed::measure(&dir.path().join("speed"));
    }
    if is_wanted("first") || is_wanted("many") {
        let image = images::make_wide(&dir.path().join("wide"));
        if is_wanted("first") {
            first_byte::measure(&image);
        }
        if is_wanted("many") {
            many_disks::measure(&image);
        }
    }
}

/// The command that attaches images given as `[NAME=]IMAGE` and serves them at `socket`.
fn attach(images: impl IntoIterator<Item = String>, socket: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headstart"));
    command.args(["--quiet", "attach"]).args(images).arg(format!("--nbd=unix:{}", socket.display()));
    command
}
