//! Orders of events that a test cannot choose with real clients.

use super::raw_client::{DATA_HEADER, RawClient};
use super::test_disk::TestDisk;
use super::{serve, serve_with};
use headstart_block::{ByteRange, ErrorKind};
use headstart_export::nbd::proto::{Errno, NbdRequest, chunk, command, command_flag};
use headstart_export::{Export, Server};
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

const LEN: usize = 12 << 20;

#[test]
fn a_read_that_waits_lets_local_ones_pass() {
    for structured in [false, true] {
        let served = serve(TestDisk::new(TestDisk::patterned(LEN), false));
        served.disk.lose(ByteRange::between(0, 4096));
        let mut client = RawClient::open(&served.socket, structured);
        client.read(1, 0, 4096);
        client.read(2, 4096, 512);
        assert_eq!(client.reply(512).cookie, 2);
        client.send(command::FLUSH, 0, 3, 0, 0);
        assert_eq!(client.reply(0).cookie, 3);
        served.disk.arrive();
        let late = client.reply(4096);
        let skip = if structured { DATA_HEADER } else { 0 };
        assert_eq!((late.cookie, late.error, late.done), (1, 0, true));
        assert!(late.payload[skip..] == served.disk.bytes()[..4096]);
    }
}

#[test]
fn a_large_read_sends_what_is_local_before_it_waits() {
    let served = serve(TestDisk::new(vec![5; LEN], true));
    served.disk.lose(ByteRange::between(600_000, 700_000));
    let mut client = RawClient::open(&served.socket, true);
    client.read(1, 0, 1 << 20);
    let mut got = vec![0; 1 << 20];
    let mut put = |reply: &super::raw_client::Reply| {
        assert_eq!((reply.cookie, reply.kind), (1, Some(chunk::OFFSET_DATA)));
        let at = u64::from_be_bytes(reply.payload[..8].try_into().unwrap()) as usize;
        got[at..at + reply.payload.len() - 8].copy_from_slice(&reply.payload[8..]);
    };
    for _ in 0..2 {
        let reply = client.reply(0);
        assert!(!reply.done);
        put(&reply);
    }
    client.read(2, 1 << 20, 512);
    assert_eq!(client.reply(0).cookie, 2);
    served.disk.arrive();
    loop {
        let reply = client.reply(0);
        put(&reply);
        if reply.done {
            break;
        }
    }
    assert!(got.iter().all(|byte| *byte == 5));
}

/// A client does not know a request any more once the last chunk of its reply has come.
#[test]
fn the_end_of_a_reply_does_not_overtake_its_beginning() {
    let mut bytes = vec![5; LEN];
    bytes[..40_960].fill(0);
    let served = serve(TestDisk::new(bytes, true));
    served.disk.lose(ByteRange::between(40_960, 65_536));
    *served.disk.bringing.lock().unwrap() = ByteRange::between(1 << 20, (1 << 20) + 512);
    let mut client = RawClient::open(&served.socket, true);
    let request =
        |cookie, offset, len| NbdRequest { flags: 0, command: command::READ, cookie, offset, len }.encode();
    // In one message, so that both are served before a reply is sent.
    client.stream.write_all(&[request(1, 0, 65_536), request(2, 1 << 20, 512)].concat()).unwrap();
    let replies: Vec<_> = (0..3).map(|_| client.reply(0)).collect();
    let of_first: Vec<_> =
        replies.iter().filter(|reply| reply.cookie == 1).map(|reply| (reply.kind, reply.done)).collect();
    assert_eq!(of_first, [(Some(chunk::OFFSET_HOLE), false), (Some(chunk::OFFSET_DATA), true)]);
    assert!(replies.iter().any(|reply| reply.cookie == 2 && reply.done));
}

#[test]
fn more_misses_than_threads_are_announced_and_all_answered() {
    let served = serve(TestDisk::new(vec![5; LEN], true));
    served.disk.lose(ByteRange::between(0, 1 << 20));
    let mut client = RawClient::open(&served.socket, true);
    for cookie in 0..200 {
        client.read(cookie, cookie * 4096, 4096);
    }
    client.read(1000, 1 << 20, 512);
    assert_eq!(client.reply(0).cookie, 1000);
    let announced = served.disk.prefetched.lock().unwrap().len();
    assert!(announced >= 150, "{announced}");
    served.disk.arrive();
    let mut cookies: Vec<u64> = (0..200).map(|_| client.reply(0).cookie).collect();
    cookies.sort_unstable();
    assert!(cookies.into_iter().eq(0..200));
}

/// A hole is not read, and the disk is told anyway that it was asked for.
#[test]
fn reads_of_holes_are_told_to_the_disk() {
    let mut bytes = vec![0; LEN];
    bytes[..4096].fill(7);
    let served = serve(TestDisk::new(bytes, true));
    let mut client = RawClient::open(&served.socket, true);
    client.send(command::READ, 0, 1, 0, 1 << 20);
    let mut answered = 0;
    loop {
        let reply = client.reply(1 << 20);
        answered += match reply.kind {
            Some(chunk::OFFSET_HOLE) => u32::from_be_bytes(reply.payload[8..12].try_into().unwrap()) as usize,
            _ => reply.payload.len() - 8,
        };
        if reply.done {
            break;
        }
    }
    assert_eq!(answered, 1 << 20);
    let told: Vec<ByteRange> = served.disk.holes_read.lock().unwrap().clone();
    assert!(told.iter().any(|hole| hole.end() == 1 << 20 && hole.len() > 1 << 19), "{told:?}");
}

/// Reads that have to be decoded are done by several threads, which wait for nothing.
#[test]
fn a_queue_of_work_is_shared() {
    const READ: u32 = 64 << 10;
    for structured in [false, true] {
        for decode_unit in [0, 4096, 32 << 10] {
            let mut disk = TestDisk::new(TestDisk::patterned(LEN), true);
            disk.decode_unit = decode_unit;
            let served = serve(disk);
            served.disk.lose(ByteRange::between(1 << 20, 2 << 20));
            let mut client = RawClient::open(&served.socket, structured);
            // All at once, so that others wait behind each.
            let requests = (0..96).flat_map(|n| {
                let offset = n * u64::from(READ);
                NbdRequest { flags: 0, command: command::READ, cookie: offset, offset, len: READ }.encode()
            });
            client.stream.write_all(&requests.collect::<Vec<u8>>()).unwrap();
            let (mut got, mut answered, mut done) = (vec![0; 96 * READ as usize], 0, 0);
            while done < 96 {
                let reply = client.reply(READ as usize);
                assert_eq!(reply.error, 0);
                let (at, bytes) = match reply.kind {
                    None => (reply.cookie, &reply.payload[..]),
                    Some(chunk::OFFSET_DATA) => {
                        (u64::from_be_bytes(reply.payload[..8].try_into().unwrap()), &reply.payload[8..])
                    }
                    // The bytes are zeros already.
                    Some(_) => (reply.cookie, &[][..]),
                };
                got[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
                answered += bytes.len();
                done += u32::from(reply.done);
                // Reads of remote bytes keep no other read waiting.
                if done == 80 {
                    served.disk.arrive();
                }
            }
            assert!(answered > 0 && got == served.disk.bytes()[..got.len()]);
            let several = served.disk.readers.lock().unwrap().len() > 1;
            let cores = std::thread::available_parallelism().unwrap().get();
            assert_eq!(several, decode_unit > 0 && cores > 1, "unit {decode_unit}");
        }
    }
}

/// The store is away, and a guest that has many reads waiting makes its writes durable.
#[test]
fn a_flush_does_not_wait_for_reads() {
    let served = serve(TestDisk::new(vec![5; LEN], false));
    served.disk.lose(ByteRange::between(0, 1 << 20));
    let mut client = RawClient::open(&served.socket, true);
    for cookie in 0..100 {
        client.read(cookie, cookie * 4096, 4096);
    }
    let flushes = [(command::FLUSH, 0, 0, 0), (command::WRITE_ZEROES, command_flag::FUA, 2 << 20, 4096)];
    for (cookie, (command, flags, offset, len)) in (1000..).zip(flushes) {
        client.send(command, flags, cookie, offset, len);
        assert_eq!(client.reply(0).cookie, cookie);
    }
    assert_eq!(served.disk.flushes.load(Ordering::SeqCst), 2);
    served.disk.arrive();
}

#[test]
fn simple_replies_carry_large_reads_and_errors() {
    let served = serve(TestDisk::new(TestDisk::patterned(40 << 20), false));
    let mut client = RawClient::open(&served.socket, false);
    for len in [1 << 20, (1 << 20) + 1, 32 << 20] {
        client.read(1, 3, len);
        let reply = client.reply(len as usize);
        assert!(reply.payload == served.disk.bytes()[3..3 + len as usize]);
    }
    client.read(2, 0, (32 << 20) + 1);
    assert_eq!(client.reply(0).error, Errno::Inval as u32);
    *served.disk.fail.lock().unwrap() = Some(ErrorKind::Io);
    client.read(3, 0, 512);
    assert_eq!(client.reply(512).error, Errno::Io as u32);
}

#[test]
fn an_error_carries_its_message() {
    let served = serve(TestDisk::new(vec![5; LEN], false));
    *served.disk.fail.lock().unwrap() = Some(ErrorKind::Unavailable);
    let mut client = RawClient::open(&served.socket, true);
    client.read(1, 0, 512);
    let reply = client.reply(0);
    assert_eq!((reply.kind, reply.error), (Some(chunk::ERROR), Errno::Io as u32));
    // Details of the failure are for the log, because they name files of this host.
    let said = String::from_utf8_lossy(&reply.payload[6..]).into_owned();
    assert!(said.ends_with("the server's log has more") && !said.contains("test disk"), "{said}");
}

#[test]
fn a_refused_write_does_not_lose_the_stream() {
    let served = serve(TestDisk::new(vec![5; LEN], true));
    let mut client = RawClient::open(&served.socket, false);
    for len in [512u32, 100_000] {
        client.send(command::WRITE, 0, 1, 0, len);
        client.stream.write_all(&vec![1; len as usize]).unwrap();
        client.read(2, 0, 512);
        assert_eq!(client.reply(0).error, Errno::Perm as u32);
        assert_eq!(client.reply(512).payload, [5; 512]);
    }
}

#[test]
fn a_disk_grows_on_request_where_that_is_allowed() {
    let served = serve(TestDisk::new(vec![5; LEN], false));
    let mut client = RawClient::open(&served.socket, false);
    client.send(command::RESIZE, 0, 1, LEN as u64 * 2, 0);
    assert_eq!(client.reply(0).error, Errno::Perm as u32);
    assert_eq!(served.disk.bytes().len(), LEN);
    drop((client, served));
    let served = serve_with(TestDisk::new(vec![5; LEN], false), |settings| settings.allow_resize = true);
    let mut client = RawClient::open(&served.socket, false);
    client.send(command::RESIZE, 0, 1, LEN as u64 * 2, 0);
    assert_eq!(client.reply(0).error, 0);
    client.read(2, LEN as u64 * 2 - 512, 512);
    assert_eq!(client.reply(512).payload, [0; 512]);
    client.send(command::RESIZE, 0, 3, 512, 0);
    assert_eq!(client.reply(0).error, Errno::Inval as u32);
}

#[test]
fn fua_is_flushed_before_its_answer() {
    let served = serve(TestDisk::new(vec![5; LEN], false));
    let mut client = RawClient::open(&served.socket, false);
    for (number, command) in [command::WRITE_ZEROES, command::TRIM].into_iter().enumerate() {
        client.send(command, command_flag::FUA, 1, 0, 4096);
        assert_eq!(client.reply(0).error, 0);
        assert_eq!(served.disk.flushes.load(Ordering::SeqCst), number as u64 + 1);
    }
}

#[test]
fn a_goodbye_waits_for_what_is_in_flight() {
    let served = serve(TestDisk::new(vec![5; LEN], true));
    served.disk.lose(ByteRange::between(0, 4096));
    let mut client = RawClient::open(&served.socket, false);
    client.read(1, 0, 4096);
    client.send(command::DISCONNECT, 0, 2, 0, 0);
    sleep(Duration::from_millis(50));
    served.disk.arrive();
    assert_eq!(client.reply(4096).payload.len(), 4096);
    assert!(client.is_closed());
    served.wait_until_empty();
}

#[test]
fn a_stop_finishes_what_it_was_asked_and_flushes() {
    let served = serve(TestDisk::new(vec![5; LEN], false));
    served.disk.lose(ByteRange::between(0, 4096));
    let mut idle = RawClient::open(&served.socket, true);
    let mut client = RawClient::open(&served.socket, false);
    client.read(1, 0, 4096);
    client.read(2, 8192, 512);
    assert_eq!(client.reply(512).cookie, 2);
    let stopping = std::thread::spawn(move || served.server.stop());
    sleep(Duration::from_millis(50));
    served.disk.arrive();
    assert_eq!(client.reply(4096).payload.len(), 4096);
    assert!(client.is_closed() && idle.is_closed());
    stopping.join().unwrap().unwrap();
    assert_eq!(served.disk.flushes.load(Ordering::SeqCst), 1);
    assert!(!served.socket.exists());
}

#[test]
fn a_stop_does_not_wait_for_ever() {
    let served = serve(TestDisk::new(vec![5; LEN], true));
    served.disk.lose(ByteRange::between(0, 4096));
    let mut client = RawClient::open(&served.socket, false);
    client.read(1, 0, 4096);
    while served.disk.waiting.load(Ordering::SeqCst) == 0 {
        sleep(Duration::from_millis(5));
    }
    let begun = Instant::now();
    served.server.stop().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert!(client.is_closed());
    served.disk.arrive();
}

#[test]
fn exports_come_and_go_while_others_are_served() {
    let served = serve(TestDisk::new(vec![5; LEN], false));
    let other = Arc::new(TestDisk::new(vec![6; LEN], false));
    let export = || Export::new("other", Arc::clone(&other) as _);
    served.server.add(export()).unwrap();
    assert_eq!(served.server.add(export()).unwrap_err().kind(), ErrorKind::Invalid);
    let mut stays = RawClient::open_named(&served.socket, false, "disk");
    let mut goes = RawClient::open_named(&served.socket, false, "other");
    for (client, byte) in [(&mut stays, 5), (&mut goes, 6)] {
        client.read(1, 0, 512);
        assert_eq!(client.reply(512).payload, [byte; 512]);
    }
    assert_eq!(["disk", "other", "none"].map(|name| served.server.clients(name)), [1, 1, 0]);
    // A request in flight is finished before its export goes.
    other.lose(ByteRange::between(0, 4096));
    goes.read(2, 0, 4096);
    while other.waiting.load(Ordering::SeqCst) == 0 {
        sleep(Duration::from_millis(5));
    }
    std::thread::scope(|scope| {
        let removing = scope.spawn(|| served.server.remove("other"));
        sleep(Duration::from_millis(50));
        other.arrive();
        assert_eq!(goes.reply(4096).payload.len(), 4096);
        assert!(goes.is_closed());
        assert!(removing.join().unwrap().unwrap());
    });
    assert_eq!(other.flushes.load(Ordering::SeqCst), 1);
    assert!(!served.server.remove("other").unwrap());
    stays.read(2, 0, 512);
    assert_eq!(stays.reply(512).payload, [5; 512]);
    served.server.add(export()).unwrap();
    RawClient::open_named(&served.socket, false, "other").read(1, 0, 512);
}
