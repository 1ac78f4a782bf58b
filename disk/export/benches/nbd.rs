//! The NBD server beside nbdkit and qemu-nbd, all serving the same file from the page cache to the same client.
//!
//! ```text
//! cargo bench -p headstart-export --bench nbd
//! ```
//!
//! fio's nbd engine (one connection of libnbd over a Unix socket) reads at random in 4 KiB at queue depths 1 and 32,
//! and in sequence in 1 MiB at depth 4, in turn from every server, each in a process of its own:
//! `headstart_testkit::fio` describes this, and the set-up of the peers.
//!
//! Targets: at depth 32, 1.3 times the better peer or 0.9 of the ceiling if that is lower; at depth 1 and in sequence,
//! no worse than the better peer, where 5% is noise; CPU for an I/O at most that of the peer that uses least.

#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a benchmark: it prints, and a failed step ends it"
)]

use headstart_block::{BlockDevice, ByteRange, Error, Extent, FileSource, ReadAt, Result};
use headstart_export::nbd::{Address, NbdServer, NbdSettings};
use headstart_export::{Export, Server as _};
use headstart_testkit::fio::{Contestant, JOBS, Race, RacerRole, peers};
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const FILE_SIZE: usize = 512 << 20;
const ROUNDS: usize = 5;
const SECONDS: &str = "2";
/// The variable that is set for the process that serves: the file.
const SERVE: &str = "HEADSTART_BENCH_SERVE";

/// A file as a disk.
struct FileDisk(FileSource);

impl BlockDevice for FileDisk {
    fn size(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.read_at(buf, offset)
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        if offset >= self.0.len() {
            return Err(Error::invalid("past the end"));
        }
        Ok(Extent { range: ByteRange::between(offset, self.0.len()), zero: false })
    }
}

/// Runs the process that serves, until its input ends.
fn serve(arguments: &str) {
    let (file, socket) = arguments.split_once('|').expect("file and socket");
    let disk = FileDisk(FileSource::open(file).expect("the file"));
    let settings = NbdSettings::new(Address::Unix(socket.into()));
    let server =
        Box::new(NbdServer::start(&settings, vec![Export::new("", Arc::new(disk))]).expect("serves"));
    let _ = std::io::stdin().read(&mut [0]);
    server.stop().expect("stops");
}

fn main() {
    if let Ok(arguments) = std::env::var(SERVE) {
        serve(&arguments);
        return;
    }
    let dir = tempfile::tempdir().expect("a scratch directory");
    let file = dir.path().join("disk");
    write_file(&file);
    let Some(peers) = peers(&file, dir.path()) else { return };
    let socket = dir.path().join("ours.sock");
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.env(SERVE, format!("{}|{}", file.display(), socket.display()));
    let ours =
        Contestant::start("headstart", RacerRole::Ours, &mut command, &socket).expect("our server starts");
    let contestants: Vec<_> = std::iter::once(ours).chain(peers).collect();
    for job in &JOBS {
        let race = Race::run(job, &contestants, ROUNDS, SECONDS);
        print!("{}{}", race.table(), race.verdict(0));
    }
}

/// Bytes without holes, in the page cache.
fn write_file(path: &Path) {
    let mut file = fs::File::create(path).expect("a file");
    let mut state = 1u64;
    let mut part = vec![0; 1 << 20];
    for _ in 0..FILE_SIZE >> 20 {
        for word in part.chunks_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            word.copy_from_slice(&state.to_le_bytes());
        }
        file.write_all(&part).expect("space for the file");
    }
    file.sync_all().expect("a file on disk");
}
