//! Goal: clients that do not take their replies cost a bounded amount of memory, all together, and keep no other out.
//! Method: a server in a process that has no other test, and 64 clients that ask for 32 MiB again and again and
//! read nothing; the most memory that this process ever had counts.

#![allow(clippy::disallowed_methods, reason = "tests")]

use headstart_block::{BlockDevice, ByteRange, Error, ErrorKind, Extent, Result};
use headstart_export::nbd::proto::{NbdRequest, OptionHeader, command, option};
use headstart_export::nbd::{Address, NbdServer, NbdSettings};
use headstart_export::{Export, Server as _};
use headstart_testkit::process::is_alone;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const CLIENTS: usize = 64;
const LARGEST: u32 = 32 << 20;
/// The most memory that the process may have at any moment, in KiB.
const KIB_MAX: usize = 256 << 10;

/// A disk of ones that takes no memory. Its first half is local, its second half is remote.
struct Ones;

const SIZE: u64 = 1 << 30;

impl BlockDevice for Ones {
    fn size(&self) -> u64 {
        SIZE
    }

    fn read_at(&self, buf: &mut [u8], _: u64) -> Result<()> {
        buf.fill(1);
        Ok(())
    }

    fn read_local_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if offset >= SIZE / 2 {
            return Err(Error::new(ErrorKind::Absent, "elsewhere"));
        }
        self.read_at(buf, offset)
    }

    fn write_at(&self, _: &[u8], _: u64) -> Result<()> {
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        Ok(Extent { range: ByteRange::between(offset, SIZE), zero: false })
    }
}

/// The most memory that this process ever had, in KiB.
fn most_memory() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A client that has chosen the disk.
fn client(socket: &Path, structured: bool) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let receive = |stream: &mut UnixStream, len: usize| stream.read_exact(&mut vec![0; len]).unwrap();
    receive(&mut stream, 18);
    stream.write_all(&3u32.to_be_bytes()).unwrap();
    if structured {
        stream.write_all(&OptionHeader { option: option::STRUCTURED_REPLY, len: 0 }.encode()).unwrap();
        receive(&mut stream, 20);
    }
    stream.write_all(&OptionHeader { option: option::EXPORT_NAME, len: 0 }.encode()).unwrap();
    receive(&mut stream, 10);
    stream
}

/// Sends requests as a client of kind `number` does, until the server takes no more.
fn ask_for_much(stream: &mut UnixStream, number: usize) {
    let ask = |command, offset, len| NbdRequest { flags: 0, command, cookie: 9, offset, len }.encode();
    for round in 0..40 {
        let offset = if (number + round) % 4 < 2 { 0 } else { SIZE / 2 };
        let mut words = ask(command::READ, offset, LARGEST).to_vec();
        if number % 8 == 7 {
            // Writes are held in memory too.
            words.extend(ask(command::WRITE, 1, LARGEST));
            words.resize(words.len() + (1 << 20), 5);
        }
        if stream.write_all(&words).is_err() {
            return;
        }
    }
}

/// Reads 1 MiB as an honest client; returns the time that took.
fn reads(socket: &Path) -> Duration {
    let begun = Instant::now();
    let mut stream = client(socket, false);
    let request = NbdRequest { flags: 0, command: command::READ, cookie: 1, offset: 4096, len: 1 << 20 };
    stream.write_all(&request.encode()).unwrap();
    let mut reply = vec![0; 16 + (1 << 20)];
    stream.read_exact(&mut reply).unwrap();
    assert!(reply[16..].iter().all(|byte| *byte == 1));
    begun.elapsed()
}

#[test]
fn clients_that_read_nothing_cost_little_and_keep_nobody_out() {
    if !is_alone("nbd_memory::clients_that_read_nothing_cost_little_and_keep_nobody_out") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let settings = NbdSettings::new(Address::Unix(socket.clone()));
    assert_eq!(settings.connections_max, CLIENTS);
    let disk: Arc<dyn BlockDevice> = Arc::new(Ones);
    let server = NbdServer::start(&settings, vec![Export::new("", disk)]).unwrap();
    let mut greedy: Vec<_> = (0..CLIENTS).map(|number| client(&socket, number % 2 == 1)).collect();
    std::thread::scope(|scope| {
        for (number, stream) in greedy.iter_mut().enumerate() {
            scope.spawn(move || ask_for_much(stream, number));
        }
    });
    // They take all places, and all the memory that they may have. The server notices after a while that they take no
    // replies.
    std::thread::sleep(Duration::from_secs(3));
    let took = reads(&socket);
    let again = reads(&socket);
    let most = most_memory();
    let _ = writeln!(
        std::io::stderr(),
        "{CLIENTS} clients that read nothing: {} MiB at most; one more was served after {took:?}, then {again:?}",
        most >> 10
    );
    assert!(most < KIB_MAX, "{most} KiB");
    drop(greedy);
    Box::new(server).stop().unwrap();
}
