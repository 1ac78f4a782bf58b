//! Goal: a disk that is attached and idle costs little memory and no threads beyond its two, even after it was busy.
//! Method: 200 servers in a process that has no other test; each serves large reads, then nothing.

#![allow(clippy::disallowed_methods, reason = "tests")]

use headstart_block::{BlockDevice, ByteRange, Extent, Result};
use headstart_export::nbd::proto::{NbdRequest, OptionHeader, option};
use headstart_export::nbd::{Address, NbdServer, NbdSettings};
use headstart_export::{Export, Server as _};
use headstart_testkit::process::is_alone;
use headstart_testkit::wait::wait_for_value;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

const DISKS: usize = 200;
/// The most memory that a server may keep for an idle disk, in KiB: an eighth of the limit for a whole disk.
const KIB_MAX: usize = 512;

/// The longest wait until threads without work have ended, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A disk of ones that takes no memory.
struct Ones;

impl BlockDevice for Ones {
    fn size(&self) -> u64 {
        1 << 30
    }

    fn read_at(&self, buf: &mut [u8], _: u64) -> Result<()> {
        buf.fill(1);
        Ok(())
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        Ok(Extent { range: ByteRange::between(offset, 1 << 30), zero: false })
    }
}

/// Memory and threads of this process.
fn status(key: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A client that reads 1 MiB and 4 KiB by simple replies.
fn busy_client(socket: &std::path::Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    let receive = |stream: &mut UnixStream, len: usize| stream.read_exact(&mut vec![0; len]).unwrap();
    receive(&mut stream, 18);
    let name = OptionHeader { option: option::EXPORT_NAME, len: 0 }.encode();
    stream.write_all(&[&3u32.to_be_bytes()[..], &name].concat()).unwrap();
    receive(&mut stream, 10);
    for len in [1 << 20, 4096] {
        let request = NbdRequest { flags: 0, command: 0, cookie: 0, offset: 0, len };
        stream.write_all(&request.encode()).unwrap();
        receive(&mut stream, 16 + len as usize);
    }
    stream
}

#[test]
fn idle_disks_cost_little() {
    if !is_alone("nbd_idle::idle_disks_cost_little") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn BlockDevice> = Arc::new(Ones);
    let (memory, threads) = (status("VmRSS"), status("Threads"));
    let attached: Vec<_> = (0..DISKS)
        .map(|number| {
            let socket = dir.path().join(number.to_string());
            let settings = NbdSettings::new(Address::Unix(socket.clone()));
            let server = NbdServer::start(&settings, vec![Export::new("", Arc::clone(&disk))]).unwrap();
            (busy_client(&socket), Box::new(server))
        })
        .collect();
    let seen = || (status("Threads").saturating_sub(threads), status("VmRSS").saturating_sub(memory) / DISKS);
    // The threads of their work end after a while, and give their memory back.
    let (_, each) =
        wait_for_value("two threads a disk, and little memory in KiB", TIMEOUT, seen, |(threads, each)| {
            *threads == 2 * DISKS && *each < KIB_MAX
        });
    let _ = writeln!(std::io::stderr(), "an idle disk takes {each} KiB");
    for (client, server) in attached {
        drop(client);
        server.stop().unwrap();
    }
    wait_for_value("no thread is left", TIMEOUT, || status("Threads"), |now| *now == threads);
}
