//! Clients that lie, stall, vanish and talk nonsense. After each, a correct one is served as before.

use super::raw_client::RawClient;
use super::test_disk::TestDisk;
use super::{Served, serve, serve_with};
use headstart_block::ByteRange;
use headstart_export::nbd::proto::{NbdRequest, OptionHeader, command, option};
use headstart_export::{ClientCounts, Export, Server};
use headstart_testkit::process::is_alone;
use headstart_testkit::wait::{wait_for_value, wait_until};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::io::Write as _;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const LEN: usize = 1 << 20;

/// The number of random sessions sent to one server.
const SESSIONS: u32 = 300;

fn check_serves(served: &Served) {
    let mut client = RawClient::open(&served.socket, false);
    client.read(77, 0, 512);
    let reply = client.reply(512);
    assert_eq!((reply.cookie, reply.error, reply.payload.len()), (77, 0, 512));
}

/// The number of threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn a_stalled_handshake_is_given_up() {
    let served = serve_with(TestDisk::new(vec![1; LEN], true), |settings| {
        settings.handshake_timeout = Duration::from_secs(2);
    });
    let begun = Instant::now();
    let mut silent = RawClient::connect(&served.socket);
    let mut slow = RawClient::connect(&served.socket);
    slow.stream.write_all(&[0, 0, 0]).unwrap();
    check_serves(&served);
    assert!(silent.is_closed() && slow.is_closed());
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    served.wait_until_empty();
}

#[test]
fn clients_beyond_the_limit_are_turned_away() {
    let served = serve_with(TestDisk::new(vec![1; LEN], true), |settings| settings.connections_max = 2);
    let clients = [(); 2].map(|()| {
        let mut client = RawClient::open(&served.socket, false);
        client.read(1, 0, 512);
        assert_eq!(client.reply(512).error, 0);
        client
    });
    // They wait for nothing, as a guest that is paused: they keep their places.
    assert!(RawClient::connect(&served.socket).is_closed());
    assert_eq!(served.server.connections(), 2);
    let [first, mut second] = clients;
    drop(first);
    let is_noticed = || served.server.connections() == 1;
    wait_until("the first client is missed", Duration::from_secs(60), is_noticed);
    check_serves(&served);
    second.read(2, 0, 512);
    assert_eq!(second.reply(512).cookie, 2);
}

#[test]
fn a_client_in_the_place_of_another_is_a_further_one() {
    let served = serve_with(TestDisk::new(vec![1; LEN], true), |_| {});
    let counts = || Server::clients(&*served.server);
    assert_eq!(counts(), ClientCounts::default());
    for ever in 1..=3 {
        let mut client = RawClient::open(&served.socket, false);
        client.read(1, 0, 512);
        assert_eq!(client.reply(512).error, 0);
        assert_eq!(counts(), ClientCounts { connected: 1, ever });
        drop(client);
        served.wait_until_empty();
        assert_eq!(counts(), ClientCounts { connected: 0, ever });
    }
}

/// A client that sends nothing at all, one that has chosen a disk and asks for nothing, and one that takes no replies
/// make room, in this order, for another that has something to ask.
#[test]
fn clients_that_do_not_use_their_places_make_room() {
    let served = serve_with(TestDisk::new(vec![1; 4 * LEN], true), |settings| settings.connections_max = 3);
    let mut greedy = RawClient::open(&served.socket, false);
    for cookie in 0..4 {
        greedy.read(cookie, 0, 4 * LEN as u32);
    }
    let mut mute = RawClient::connect(&served.socket);
    let mut idle = RawClient::open(&served.socket, true);
    let mut honest = Vec::new();
    for round in 0..3 {
        let mut client = RawClient::open(&served.socket, false);
        client.read(7, 0, 512);
        assert_eq!(client.reply(512).cookie, 7, "round {round}");
        honest.push(client);
    }
    assert!(mute.is_closed() && idle.is_closed() && greedy.is_closed());
    assert!(RawClient::connect(&served.socket).is_closed(), "an honest client had to go");
}

/// A client of one of several exports, which has asked for something.
fn asking(served: &Served, export: &str) -> RawClient {
    let mut client = RawClient::open_named(&served.socket, false, export);
    client.read(7, 0, 512);
    assert_eq!(client.reply(512).cookie, 7, "{export}");
    client
}

/// One export's clients take all places, and ask for something each. Clients of another one get their share anyway,
/// from those whose last request is the oldest, and lose none of it to newcomers of the first.
#[test]
fn no_export_keeps_the_clients_of_another_one_out() {
    let served = serve_with(TestDisk::new(vec![1; LEN], true), |settings| settings.connections_max = 8);
    for name in ["b", "c"] {
        served.server.add(Export::new(name, Arc::clone(&served.disk) as _)).unwrap();
    }
    let pause = || std::thread::sleep(Duration::from_millis(5));
    let mut greedy = Vec::new();
    for _ in 0..8 {
        greedy.push(asking(&served, "disk"));
        pause();
    }
    // The first client that came is the last that asked.
    greedy[0].read(8, 0, 512);
    assert_eq!(greedy[0].reply(512).cookie, 8);
    let mut others = Vec::new();
    for _ in 0..4 {
        others.push(asking(&served, "b"));
        pause();
    }
    for (number, client) in greedy.iter_mut().enumerate() {
        let has_gone = (1..5).contains(&number);
        if has_gone {
            assert!(client.is_closed(), "{number}");
        } else {
            client.read(9, 0, 512);
            assert_eq!(client.reply(512).cookie, 9, "{number}");
        }
    }
    // Four each: neither gets more, and no client that asked loses a place for it.
    for export in ["disk", "b"] {
        assert!(RawClient::open_named(&served.socket, false, export).is_closed(), "{export}");
    }
    let third = asking(&served, "c");
    // Of the two that hold most, the one that has been silent for longest made room.
    assert!(others[0].is_closed());
    drop((greedy, others, third));
    served.wait_until_empty();
}

/// Clients that never choose an export have places of their own, and keep no other out.
#[test]
fn clients_in_their_handshake_take_no_places_of_those_that_have_chosen() {
    let served = serve_with(TestDisk::new(vec![1; LEN], true), |settings| settings.connections_max = 2);
    served.server.add(Export::new("b", Arc::clone(&served.disk) as _)).unwrap();
    let mut honest = [asking(&served, "disk"), asking(&served, "b")];
    let mut silent: Vec<_> = (0..2).map(|_| RawClient::connect(&served.socket)).collect();
    std::thread::sleep(Duration::from_millis(1100));
    // In its turn it is one of the clients in their handshake.
    assert!(RawClient::open_named(&served.socket, false, "b").is_closed());
    assert!(silent[0].is_closed(), "a handshake that goes nowhere made no room");
    for client in &mut honest {
        client.read(1, 0, 512);
        assert_eq!(client.reply(512).cookie, 1);
    }
}

/// A client that takes its replies slowly is served to the end; one that takes none is given up.
#[test]
fn only_a_client_that_takes_nothing_is_given_up() {
    let served = serve_with(TestDisk::new(vec![1; LEN], true), |settings| {
        settings.send_timeout = Duration::from_secs(2);
    });
    let mut slow = RawClient::open(&served.socket, false);
    let mut silent = RawClient::open(&served.socket, false);
    for client in [&mut slow, &mut silent] {
        client.read(1, 0, LEN as u32);
    }
    slow.bytes(16).unwrap();
    for _ in 0..LEN / (128 << 10) {
        std::thread::sleep(Duration::from_millis(400));
        slow.bytes(128 << 10).unwrap();
    }
    while served.server.connections() > 1 {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(silent.is_closed());
    slow.read(2, 0, 512);
    assert_eq!(slow.reply(512).cookie, 2);
}

#[test]
fn a_client_that_vanishes_mid_request_leaves_nothing() {
    let served = serve(TestDisk::new(vec![1; LEN], false));
    served.disk.lose(ByteRange::between(0, 65536));
    let mut client = RawClient::open(&served.socket, true);
    for cookie in 0..100 {
        client.read(cookie, 0, 512);
    }
    client.send(command::WRITE, 0, 1000, 65536, 200_000);
    client.stream.write_all(&[2; 100_000]).unwrap();
    while served.disk.waiting.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    client.stream.shutdown(Shutdown::Both).unwrap();
    drop(client);
    served.disk.arrive();
    served.wait_until_empty();
    assert!(served.disk.bytes().iter().all(|byte| *byte == 1), "half a write was made");
    check_serves(&served);
}

#[test]
fn a_client_that_does_not_take_its_replies_harms_no_other() {
    let served = serve(TestDisk::new(vec![1; LEN], true));
    let mut greedy = RawClient::open(&served.socket, true);
    greedy.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let request =
        NbdRequest { flags: 0, command: command::READ, cookie: 1, offset: 0, len: 1 << 20 }.encode();
    // Until the socket is full, because the server must stop receiving, not store replies.
    for _ in 0..100_000 {
        if greedy.stream.write_all(&request).is_err() {
            break;
        }
    }
    check_serves(&served);
    drop(greedy);
    served.wait_until_empty();
}

#[test]
fn a_disk_that_panics_costs_its_client_alone() {
    let served = serve(TestDisk::new(vec![1; LEN], false));
    let mut client = RawClient::open(&served.socket, true);
    served.disk.panics.store(true, Ordering::Relaxed);
    client.read(1, 0, 512);
    assert!(client.is_closed());
    // The same in a worker pool, which does a flush.
    let mut client = RawClient::open(&served.socket, true);
    client.send(command::FLUSH, 0, 1, 0, 0);
    assert!(client.is_closed());
    served.disk.panics.store(false, Ordering::Relaxed);
    served.wait_until_empty();
    check_serves(&served);
}

#[test]
fn a_write_without_end_is_not_awaited_in_memory() {
    let served = serve(TestDisk::new(vec![1; LEN], false));
    let mut client = RawClient::open(&served.socket, false);
    client.send(command::WRITE, 0, 1, 0, u32::MAX);
    assert!(client.is_closed());
}

/// A session that makes sense, in messages.
fn valid_session() -> Vec<Vec<u8>> {
    let ask = |option: u32, data: &[u8]| {
        let header = OptionHeader { option, len: u32::try_from(data.len()).unwrap() };
        [&header.encode()[..], data].concat()
    };
    let context = [&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 15][..], b"base:allocation"].concat();
    let request = |command: u16, flags: u16, offset: u64, len: u32| {
        NbdRequest { flags, command, cookie: 0x0102_0304, offset, len }.encode().to_vec()
    };
    vec![
        3u32.to_be_bytes().to_vec(),
        ask(option::LIST, &[]),
        ask(option::STRUCTURED_REPLY, &[]),
        ask(option::SET_META_CONTEXT, &context),
        ask(option::INFO, &[0, 0, 0, 4, b'd', b'i', b's', b'k', 0, 1, 0, 1]),
        ask(option::GO, &[0; 6]),
        request(command::READ, 0, 4096, 70_000),
        [request(command::WRITE, 0, 512, 1000), vec![9; 1000]].concat(),
        request(command::BLOCK_STATUS, 0, 0, LEN as u32),
        request(command::WRITE_ZEROES, 1, 100, 10_000),
        request(command::TRIM, 0, 100, 10_000),
        request(command::CACHE, 0, 0, 4096),
        request(command::FLUSH, 0, 0, 0),
        request(command::READ, 4, 0, 4096),
        request(command::DISCONNECT, 0, 0, 0),
    ]
}

/// A change of a valid session.
#[derive(Clone, Debug)]
enum Change {
    Byte { at: usize, to: u8 },
    Cut { at: usize },
    Twice { message: usize },
    Gone { message: usize },
    Swap { one: usize, other: usize },
    Insert { at: usize, bytes: Vec<u8> },
}

fn change() -> impl Strategy<Value = Change> {
    let (at, message) = (0usize..4000, 0usize..15);
    prop_oneof![
        4 => (at.clone(), any::<u8>()).prop_map(|(at, to)| Change::Byte { at, to }),
        1 => at.clone().prop_map(|at| Change::Cut { at }),
        1 => message.clone().prop_map(|message| Change::Twice { message }),
        1 => message.clone().prop_map(|message| Change::Gone { message }),
        1 => (message.clone(), message).prop_map(|(one, other)| Change::Swap { one, other }),
        1 => (at, any::<Vec<u8>>()).prop_map(|(at, bytes)| Change::Insert { at, bytes }),
    ]
}

fn hostile_session(changes: &[Change]) -> Vec<u8> {
    let mut messages = valid_session();
    for change in changes {
        let len = messages.len();
        match change {
            Change::Twice { message } if len > 0 => {
                messages.insert(message % len, messages[message % len].clone());
            }
            Change::Gone { message } if len > 0 => drop(messages.remove(message % len)),
            Change::Swap { one, other } if len > 0 => messages.swap(one % len, other % len),
            _ => {}
        }
    }
    let mut bytes = messages.concat();
    for change in changes {
        let len = bytes.len();
        match change {
            Change::Byte { at, to } if len > 0 => bytes[at % len] = *to,
            Change::Cut { at } if len > 0 => bytes.truncate(at % len),
            Change::Insert { at, bytes: more } => {
                drop(bytes.splice(at % (len + 1)..at % (len + 1), more.clone()));
            }
            _ => {}
        }
    }
    bytes
}

#[test]
fn random_sessions_do_no_harm() {
    // Threads are counted.
    if !is_alone("nbd::hostile::random_sessions_do_no_harm") {
        return;
    }
    let served = serve_with(TestDisk::new(vec![1; LEN], false), |settings| {
        settings.handshake_timeout = Duration::from_secs(5);
    });
    let before = threads();
    let config = Config { cases: SESSIONS, failure_persistence: None, ..Config::default() };
    let strategy = (proptest::collection::vec(change(), 0..4), 1usize..2000);
    TestRunner::new(config)
        .run(&strategy, |(changes, part)| {
            let mut client = RawClient::connect(&served.socket);
            client.stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
            for part in hostile_session(&changes).chunks(part) {
                // The server may have hung up, and is right to.
                if client.stream.write_all(part).is_err() {
                    break;
                }
            }
            let _ = client.stream.shutdown(Shutdown::Write);
            prop_assert!(client.is_closed(), "the server neither answers nor closes");
            Ok(())
        })
        .unwrap();
    check_serves(&served);
    served.wait_until_empty();
    // A leak would be one for each session.
    let what = format!("there are hardly more threads than the {before} of the beginning");
    let limit = before + SESSIONS as usize / 2;
    wait_for_value(&what, Duration::from_secs(60), threads, |now| *now < limit);
}
