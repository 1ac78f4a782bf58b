//! The fault proxy follows its orders, in front of a real web server.

use headstart_testkit::faults::{Fault, FaultProxy, FaultRule, Outage};
use headstart_testkit::nginx::Nginx;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const FILE_LEN: usize = 300_000;

/// nginx with one file behind a proxy.
struct Scene {
    _dir: TempDir,
    _nginx: Nginx,
    proxy: FaultProxy,
    file: Vec<u8>,
}

impl Scene {
    /// Starts the scene; `None`, with a printed line, without nginx.
    fn new() -> Option<Self> {
        if !Nginx::is_installed() {
            return None;
        }
        let dir = TempDir::new().unwrap();
        let file: Vec<u8> = (0..FILE_LEN).map(|n| (n * 7 / 5 % 251) as u8).collect();
        fs::write(dir.path().join("file"), &file).unwrap();
        let nginx = Nginx::serve(dir.path());
        let proxy = FaultProxy::start(nginx.addr());
        Some(Self { _dir: dir, _nginx: nginx, proxy, file })
    }

    fn client(&self) -> Client {
        Client::new(&self.proxy)
    }

    /// Requests a range on a connection of its own.
    fn get(&self, range: Range<usize>) -> io::Result<Answer> {
        self.client().get(range)
    }
}

/// A connection, with as little HTTP as the test needs.
struct Client {
    reader: BufReader<TcpStream>,
}

#[derive(Debug)]
struct Answer {
    status: u16,
    content_range: String,
    body: Vec<u8>,
}

impl Client {
    fn new(proxy: &FaultProxy) -> Self {
        let socket = TcpStream::connect(proxy.addr()).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { reader: BufReader::new(socket) }
    }

    fn get(&mut self, range: Range<usize>) -> io::Result<Answer> {
        let mut socket = self.reader.get_ref();
        write!(
            socket,
            "GET /file HTTP/1.1\r\nHost: test\r\nRange: bytes={}-{}\r\n\r\n",
            range.start,
            range.end - 1
        )?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if self.reader.read_until(b'\n', &mut head)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let head = String::from_utf8(head).unwrap();
        let header = |name: &str| {
            let mut lines = head.lines();
            lines.find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned()
        };
        let mut body = vec![0; header("Content-Length:").parse().unwrap()];
        self.reader.read_exact(&mut body)?;
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Ok(Answer { status, content_range: header("Content-Range:"), body })
    }
}

#[test]
fn without_faults_all_passes_and_is_remembered() {
    let Some(scene) = Scene::new() else { return };
    let mut client = scene.client();
    for range in [0..10, 10..FILE_LEN, 5..20] {
        let answer = client.get(range.clone()).unwrap();
        assert_eq!((answer.status, &answer.body), (206, &scene.file[range].to_vec()));
    }
    assert_eq!(scene.get(0..10).unwrap().status, 206);
    let log =
        scene.proxy.wait("end", Duration::from_secs(30), |log| log.iter().all(|r| r.finished.is_some()));
    assert_eq!((log.len(), log.in_sequence(), log.at_once()), (4, 4, 1), "{log}");
    assert_eq!((log.sent(), log.sent_again()), (FILE_LEN as u64 + 25, 25), "{log}");
    assert_eq!((log[2].connection, log[3].connection), (0, 1));
    assert_eq!(log[1].asked.range, Some(10..FILE_LEN as u64));
    assert_eq!(log[1].asked.host.as_deref(), Some("test"));
    scene.proxy.clear_log();
    assert!(scene.proxy.log().is_empty());
}

#[test]
fn answers_are_changed_and_cut_short() {
    let Some(scene) = Scene::new() else { return };
    let right = &scene.file[1000..2000];
    let with = |fault| {
        scene.proxy.clear_rules();
        scene.proxy.add(FaultRule::new(fault));
        // Twice on one connection: it stays usable.
        let mut client = scene.client();
        client.get(1000..2000).unwrap();
        client.get(1000..2000).unwrap()
    };
    let corrupt = with(Fault::Corrupt { at: 999 });
    assert_eq!(corrupt.body[..999], right[..999]);
    assert_ne!(corrupt.body[999], right[999]);
    let short = with(Fault::Short { len: 10 });
    assert_eq!((short.status, &short.body[..]), (206, &right[..10]));
    assert_eq!(short.content_range, format!("bytes 1000-1999/{FILE_LEN}"));
    let shifted = with(Fault::WrongRange { shift: 50, honest: false });
    assert_eq!((&shifted.body[..], &shifted.content_range), (&scene.file[1050..2050], &short.content_range));
    let honest = with(Fault::WrongRange { shift: 50, honest: true });
    assert_eq!(honest.content_range, format!("bytes 1050-2049/{FILE_LEN}"));
    let whole = with(Fault::IgnoreRange);
    assert_eq!((whole.status, whole.body.len()), (200, FILE_LEN));
    assert_eq!(with(Fault::status(503)).status, 503);
}

#[test]
fn connections_are_broken_where_the_rule_says() {
    let Some(scene) = Scene::new() else { return };
    let with = |fault| {
        scene.proxy.clear_rules();
        scene.proxy.add(FaultRule::new(fault));
        scene.get(0..FILE_LEN).unwrap_err().kind()
    };
    assert_eq!(with(Fault::Reset { after: None }), io::ErrorKind::ConnectionReset);
    assert_eq!(with(Fault::Reset { after: Some(100_000) }), io::ErrorKind::ConnectionReset);
    assert_eq!(with(Fault::CutOff { after: 100_000 }), io::ErrorKind::UnexpectedEof);
    let log =
        scene.proxy.wait("end", Duration::from_secs(30), |log| log.iter().all(|r| r.finished.is_some()));
    assert!(log.iter().all(|request| request.broken), "{log}");
    assert_eq!(log.iter().map(|r| r.sent).collect::<Vec<_>>(), [0, 100_000, 100_000], "{log}");
}

#[test]
fn answers_are_late_slow_or_hang() {
    let Some(scene) = Scene::new() else { return };
    let since = Instant::now();
    scene.proxy.add(FaultRule::new(Fault::Late(Duration::from_millis(100))).times(1));
    assert_eq!(scene.get(0..10).unwrap().body, scene.file[..10]);
    assert!(since.elapsed() >= Duration::from_millis(100));
    scene.proxy.add(FaultRule::new(Fault::Slow(100_000)).times(1));
    assert_eq!(scene.get(0..30_000).unwrap().body, scene.file[..30_000]);
    assert!(since.elapsed() >= Duration::from_millis(380));
    for (number, after) in [(3, None), (4, Some(10))] {
        scene.proxy.add(FaultRule::new(Fault::Hang { after }).times(1));
        let mut client = scene.client();
        client.reader.get_ref().set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert_eq!(client.get(0..20).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // The request has met its fault, so that no later one does.
        scene.proxy.wait("request", Duration::from_secs(30), |log| log.len() == number);
    }
    // Hung clients that went away are noticed, and the others never waited.
    assert_eq!(scene.get(0..10).unwrap().body, scene.file[..10]);
    scene.proxy.wait("end", Duration::from_secs(30), |log| log.iter().all(|r| r.finished.is_some()));
}

#[test]
fn rules_choose_requests_by_path_and_count() {
    let Some(scene) = Scene::new() else { return };
    scene
        .proxy
        .add(FaultRule::new(Fault::status(403)).on(|asked| asked.range == Some(0..1)).skip(1).times(2));
    scene.proxy.add(FaultRule::new(Fault::status(404)).on_path("nowhere"));
    let statuses = |ranges: &[Range<usize>]| {
        let mut client = scene.client();
        ranges.iter().map(|range| client.get(range.clone()).unwrap().status).collect::<Vec<_>>()
    };
    assert_eq!(statuses(&[0..1, 0..2, 0..1, 0..1, 0..1]), [206, 206, 403, 403, 206]);
    scene.proxy.clear_rules();
    scene.proxy.add(FaultRule::new(Fault::status(503)).chance(0.25, 1));
    let met = statuses(&vec![0..1; 400]).into_iter().filter(|status| *status == 503).count();
    assert!((60..140).contains(&met), "{met} of 400");
}

#[test]
fn the_server_goes_away_and_comes_back() {
    let Some(scene) = Scene::new() else { return };
    let mut client = scene.client();
    client.get(0..1).unwrap();
    for _ in 0..3 {
        scene.proxy.set_outage(Outage::Refuse);
        assert!(client.get(0..1).is_err());
        let refused = TcpStream::connect(scene.proxy.addr()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        scene.proxy.set_outage(Outage::None);
        client = scene.client();
        assert_eq!(client.get(0..1).unwrap().status, 206);
    }
    scene.proxy.set_outage(Outage::Hang);
    let since = Instant::now();
    thread::scope(|scope| {
        let old = scope.spawn(|| client.get(0..1).unwrap().status);
        let new = scope.spawn(|| scene.get(0..1).unwrap().status);
        thread::sleep(Duration::from_millis(100));
        scene.proxy.set_outage(Outage::None);
        assert_eq!((old.join().unwrap(), new.join().unwrap()), (206, 206));
    });
    assert!(since.elapsed() >= Duration::from_millis(100));
}

#[test]
fn a_dropped_proxy_keeps_nobody_waiting() {
    let Some(scene) = Scene::new() else { return };
    let mut client = scene.client();
    scene.proxy.add(FaultRule::new(Fault::Hang { after: None }));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.get(0..1).unwrap_err());
        scene.proxy.wait("request", Duration::from_secs(30), |log| log.len() == 1);
        drop(scene.proxy);
        assert_ne!(waiting.join().unwrap().kind(), io::ErrorKind::WouldBlock);
    });
}
