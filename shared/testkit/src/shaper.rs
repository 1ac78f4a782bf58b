//! A simulated network link of a given rate and round-trip time: a TCP proxy between any client and any server.
//!
//! The kernels that tests run on have no netem (the kernel's own simulated link), and a comparison is fair only if the
//! traffic of all contestants goes through the same bottleneck. So the bottleneck is this proxy, in user space.
//! [`measure`] returns the real rate and round-trip time of a link on this machine at this moment.
//!
//! # The model
//!
//! A [`ShapedLink`] has two wires, up (towards the server) and down, each with the full rate, as on a duplex line. All
//! connections of all proxies on the link share them. The bytes that a connection sends are cut into parcels of about a
//! millisecond of wire time (at most 64 KiB). A parcel
//!
//! 1. gets the wire after the parcels that asked before it, and has left at `max(free, arrived) + length / rate`, where
//!    `free` is the time at which the wire is free of them, and `arrived` the time at which the parcel asked. No
//!    capacity is saved up while the wire is idle, so there is no burst at the full speed of memory;
//! 2. arrives half a round trip later. As many parcels of a connection are on their way at once as TCP's window would
//!    have: twice the bandwidth-delay product, and 1 MiB at least, but no more than 4,096 parcels.
//!
//! A connection offers its next parcel when the last one has left. So connections take turns, parcel by parcel, and a
//! small answer never queues behind all of a large one on another connection. The sockets' own flow control works as
//! usual: a receiver that does not read stops its sender.
//!
//! A new connection costs as much as TCP's handshake does: the client's first byte leaves one round trip after it
//! connected (the kernel of course reports at once that it is connected), and bytes that a server sends unasked arrive
//! after two. Not modelled: slow start, loss, and the bytes of TCP's and IP's own headers.
//!
//! # Precision
//!
//! All times are computed, not accumulated from sleeps: a thread that wakes late sends late, and the next parcel is
//! computed from the time at which the last one should have left (up to 50 ms late, so that a machine that stood still
//! does not follow up with a flood). Each connection has four threads, one reading and one writing in each direction,
//! because a sleeping thread is woken within a tenth of a millisecond, and the timers of async runtimes tick in whole
//! ones.

use headstart_block::{exact, saturating, to_usize};
use parking_lot::Mutex;
use rustix::net::sockopt::{set_socket_linger, set_socket_send_buffer_size};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// The most bytes that leave as one.
const LARGEST_PARCEL: u64 = 64 << 10;
/// The fewest bytes that leave as one: those of a packet.
const SMALLEST_PARCEL: u64 = 1460;
/// The most parcels of one connection on their way in one direction.
const IN_FLIGHT: u64 = 4096;
/// The smallest window of a connection, in bytes.
const SMALLEST_WINDOW: u64 = 1 << 20;
/// The bytes that the kernel may keep of a connection behind the wire, for a receiver that does not read.
const SEND_BUFFER: usize = 256 << 10;
/// The most time that a thread may wake late without its connection losing wire time.
const FORGIVEN: Duration = Duration::from_millis(50);
/// The time by which a server on this machine answers, or never.
const CONNECT_TIME_LIMIT: Duration = Duration::from_secs(5);

/// A simulated network link with a rate and a round-trip time, shared by any number of proxies. Clones refer
/// to the same link.
#[derive(Clone, Debug)]
pub struct ShapedLink {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The rate in bytes a second, `u64::MAX` for no limit.
    rate: AtomicU64,
    /// The round trip in nanoseconds.
    round_trip: AtomicU64,
    /// The times at which the wire up and the wire down are free.
    free_at: [Mutex<Instant>; 2],
}

impl ShapedLink {
    /// Creates a link that carries `rate` bytes a second in each direction (`None`: no limit; 0 counts as 1), with the
    /// round-trip time `round_trip`.
    pub fn new(rate: Option<u64>, round_trip: Duration) -> Self {
        let now = Instant::now();
        let link = Self {
            shared: Arc::new(Shared {
                rate: AtomicU64::new(0),
                round_trip: AtomicU64::new(0),
                free_at: [Mutex::new(now), Mutex::new(now)],
            }),
        };
        link.set(rate, round_trip);
        link
    }

    /// Changes the rate and the round-trip time of the link. Bytes already on their way are not affected.
    pub fn set(&self, rate: Option<u64>, round_trip: Duration) {
        self.shared.rate.store(rate.unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
        let nanoseconds = saturating::<u64>(round_trip.as_nanos());
        self.shared.round_trip.store(nanoseconds, Ordering::Relaxed);
    }

    /// The rate of the link in bytes a second, in each direction; `None` if there is no limit.
    pub fn rate(&self) -> Option<u64> {
        Some(self.shared.rate.load(Ordering::Relaxed)).filter(|rate| *rate != u64::MAX)
    }

    /// The round-trip time of the link: twice the delay in one direction.
    pub fn round_trip(&self) -> Duration {
        Duration::from_nanos(self.shared.round_trip.load(Ordering::Relaxed))
    }

    fn parcel(&self) -> usize {
        let millisecond = self.rate().unwrap_or(u64::MAX) / 1000;
        to_usize(millisecond.clamp(SMALLEST_PARCEL, LARGEST_PARCEL))
    }

    /// The number of parcels of a connection that may be on their way.
    fn window(&self) -> usize {
        let product = |rate: u64| u128::from(rate) * self.round_trip().as_nanos() / 1_000_000_000;
        let window = self.rate().map_or(u128::MAX, |rate| (2 * product(rate)).max(SMALLEST_WINDOW.into()));
        let parcels = window / self.parcel().max(1) as u128;
        exact(parcels.min(IN_FLIGHT.into()), "it is at most IN_FLIGHT")
    }

    /// Takes the wire for `len` bytes that were there at `arrived`; returns the time at which the last of them has
    /// left.
    fn leaves_at(&self, way: Way, arrived: Instant, len: usize) -> Instant {
        let Some(rate) = self.rate() else { return arrived };
        let nanoseconds = u128::from(len as u64) * 1_000_000_000 / u128::from(rate);
        let takes = Duration::from_nanos(saturating(nanoseconds));
        let free_at = &self.shared.free_at[way as usize];
        let mut free_at = free_at.lock();
        *free_at = (*free_at).max(arrived) + takes;
        *free_at
    }
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Up = 0,
    Down = 1,
}

/// Counters of a [`Shaper`] since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes from clients to the server.
    pub up: u64,
    /// Bytes from the server to clients.
    pub down: u64,
    /// Connections that clients have made to the proxy.
    pub connections: u64,
}

/// A TCP proxy in front of one server that delays all traffic as a [`ShapedLink`] says. Dropping it refuses
/// new connections and breaks the existing ones.
#[derive(Debug)]
pub struct Shaper {
    addr: SocketAddr,
    listener: Arc<TcpListener>,
    proxy: Arc<Proxy>,
}

#[derive(Debug)]
struct Proxy {
    link: ShapedLink,
    to: SocketAddr,
    moved: [AtomicU64; 2],
    connections: AtomicU64,
    open: Mutex<Vec<Weak<TcpStream>>>,
    ended: AtomicBool,
}

impl Shaper {
    /// Starts a proxy in front of the server at `to`, on a free loopback port. Returns an error of the operating system
    /// if the proxy cannot listen, or its thread cannot be started. The proxy connects to the server only when a client
    /// connects; if the server cannot be reached within 5 seconds, the client's connection is reset.
    pub fn start(link: &ShapedLink, to: SocketAddr) -> io::Result<Self> {
        Self::start_at(link, (Ipv4Addr::LOCALHOST, 0).into(), to)
    }

    /// Starts a proxy as [`start`](Self::start) does, but listening at the address `listen`.
    pub fn start_at(link: &ShapedLink, listen: SocketAddr, to: SocketAddr) -> io::Result<Self> {
        let listener = Arc::new(TcpListener::bind(listen)?);
        let addr = listener.local_addr()?;
        let proxy = Arc::new(Proxy {
            link: link.clone(),
            to,
            moved: [AtomicU64::new(0), AtomicU64::new(0)],
            connections: AtomicU64::new(0),
            open: Mutex::new(Vec::new()),
            ended: AtomicBool::new(false),
        });
        let accepting = (Arc::clone(&listener), Arc::clone(&proxy));
        thread::Builder::new().name("shaper".to_owned()).spawn(move || accept(&accepting.0, &accepting.1))?;
        Ok(Self { addr, listener, proxy })
    }

    /// The address at which the proxy listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The counters since the start. Bytes count as soon as they enter the link, before they arrive.
    pub fn moved(&self) -> Moved {
        Moved {
            up: self.proxy.moved[Way::Up as usize].load(Ordering::Relaxed),
            down: self.proxy.moved[Way::Down as usize].load(Ordering::Relaxed),
            connections: self.proxy.connections.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Shaper {
    fn drop(&mut self) {
        self.proxy.ended.store(true, Ordering::SeqCst);
        // On Linux this ends the listening, and wakes the thread that accepts.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Read);
        let open = std::mem::take(&mut *self.proxy.open.lock());
        for socket in open.iter().filter_map(Weak::upgrade) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Proxy {
    /// Remembers the sockets, to break them when the proxy is dropped; `false` if that has happened already.
    fn keep(&self, sockets: &[&Arc<TcpStream>]) -> bool {
        let mut open = self.open.lock();
        open.retain(|socket| socket.strong_count() > 0);
        open.extend(sockets.iter().map(|socket| Arc::downgrade(socket)));
        // The thread that ends the proxy sets the flag before it takes the lock: either it finds these sockets, or the
        // flag is seen here.
        !self.ended.load(Ordering::SeqCst)
    }
}

fn accept(listener: &TcpListener, proxy: &Arc<Proxy>) {
    while !proxy.ended.load(Ordering::SeqCst) {
        let Ok((client, _)) = listener.accept() else { continue };
        proxy.connections.fetch_add(1, Ordering::Relaxed);
        let (proxy, connected) = (Arc::clone(proxy), Instant::now());
        // A client that cannot have its threads sees its connection closed.
        let _ = thread::Builder::new()
            .name("shaper".to_owned())
            .spawn(move || connect(&proxy, client, connected));
    }
}

/// One connection: the handshake, then both ways until both have ended.
fn connect(proxy: &Arc<Proxy>, client: TcpStream, connected: Instant) {
    let round_trip = proxy.link.round_trip();
    let client = Arc::new(client);
    let Ok(server) = TcpStream::connect_timeout(&proxy.to, CONNECT_TIME_LIMIT) else {
        sleep_until(connected + round_trip);
        abort(&client);
        return;
    };
    let server = Arc::new(server);
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let _ = set_socket_send_buffer_size(&client, SEND_BUFFER);
    if !proxy.keep(&[&client, &server]) {
        return;
    }
    for (way, source, sink, opens_at) in [
        (Way::Up, &client, &server, connected + round_trip),
        (Way::Down, &server, &client, connected + round_trip + round_trip / 2),
    ] {
        let (sender, receiver) = sync_channel(proxy.link.window());
        let (reading, from, proxy) = (Arc::clone(source), Arc::clone(source), Arc::clone(proxy));
        let to = Arc::clone(sink);
        let spawn = |work: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name("shaper".to_owned()).spawn(work).is_ok()
        };
        if !spawn(Box::new(move || send(&proxy, way, &reading, opens_at, &sender)))
            || !spawn(Box::new(move || deliver(&receiver, &from, &to)))
        {
            abort(&client);
            abort(&server);
        }
    }
}

/// Bytes on their way, or the end of the connection behind the last of them.
struct Parcel {
    due: Instant,
    content: Content,
}

enum Content {
    Bytes(Vec<u8>),
    /// The sender has no more bytes.
    End,
    /// The connection broke.
    Reset,
}

/// Puts the bytes of `source` on the wire, until it ends.
fn send(proxy: &Proxy, way: Way, mut source: &TcpStream, opens_at: Instant, line: &SyncSender<Parcel>) {
    let link = &proxy.link;
    let mut buffer = vec![0; link.parcel()];
    sleep_until(opens_at);
    let mut left = opens_at;
    loop {
        buffer.resize(link.parcel(), 0);
        let was_there = rustix::io::ioctl_fionread(source).is_ok_and(|bytes| bytes > 0);
        let read = source.read(&mut buffer);
        let now = Instant::now();
        // Bytes that had come before the look were there when the parcel before them left.
        let arrived = if was_there { left.max(now.checked_sub(FORGIVEN).unwrap_or(now)) } else { now };
        let content = match read {
            Ok(0) => Content::End,
            Ok(len) => Content::Bytes(buffer[..len].to_vec()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => Content::Reset,
        };
        let Content::Bytes(bytes) = &content else {
            let _ = line.send(Parcel { due: arrived + link.round_trip() / 2, content });
            return;
        };
        proxy.moved[way as usize].fetch_add(bytes.len() as u64, Ordering::Relaxed);
        left = link.leaves_at(way, arrived, bytes.len());
        if line.send(Parcel { due: left + link.round_trip() / 2, content }).is_err() {
            return;
        }
        sleep_until(left);
    }
}

/// Delivers the parcels when they are due.
fn deliver(line: &Receiver<Parcel>, source: &TcpStream, mut sink: &TcpStream) {
    while let Ok(parcel) = line.recv() {
        sleep_until(parcel.due);
        match parcel.content {
            Content::Bytes(bytes) => {
                if sink.write_all(&bytes).is_err() {
                    break;
                }
            }
            Content::End => {
                let _ = sink.shutdown(Shutdown::Write);
                return;
            }
            Content::Reset => {
                abort(sink);
                return;
            }
        }
    }
    // The receiver is gone: the sender is notified, and the thread that reads from it wakes.
    abort(source);
}

/// Makes the connection end in a reset, once all holders have dropped it.
fn abort(socket: &TcpStream) {
    let _ = set_socket_linger(socket, Some(Duration::ZERO));
    let _ = socket.shutdown(Shutdown::Read);
}

fn sleep_until(time: Instant) {
    let wait = time.saturating_duration_since(Instant::now());
    if !wait.is_zero() {
        thread::sleep(wait);
    }
}

/// The measured properties of a [`ShapedLink`] on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// The rate of a single connection, in bytes a second.
    pub rate: f64,
    /// The duration from sending a request on an existing connection to the arrival of an answer of one byte;
    /// the median of five.
    pub round_trip: Duration,
    /// The duration from opening a connection to the arrival of the first byte of an answer. By the model of
    /// this module it is two round-trip times.
    pub connect: Duration,
}

/// Measures an idle link with a server on this machine. The rate is measured with as many bytes as the link carries in
/// `during` (at 10^9 bytes a second if it has no limit); a longer duration is more exact. Fails if a socket cannot be
/// used.
pub fn measure(link: &ShapedLink, during: Duration) -> io::Result<Measured> {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let shaper = Shaper::start(link, server.local_addr()?)?;
    thread::scope(|scope| {
        let serving = scope.spawn(move || serve_zeros(&server));
        let measured = measure_through(&shaper, link, during);
        // This ends the connection, which ends the server.
        drop(shaper);
        serving.join().unwrap_or_else(|_| Err(io::Error::other("the server panicked")))?;
        measured
    })
}

fn measure_through(shaper: &Shaper, link: &ShapedLink, during: Duration) -> io::Result<Measured> {
    let since = Instant::now();
    let mut connection = TcpStream::connect(shaper.addr())?;
    connection.set_nodelay(true)?;
    ask(&mut connection, 1)?;
    let connect = since.elapsed();

    let mut round_trips = [Duration::ZERO; 5];
    for round_trip in &mut round_trips {
        *round_trip = ask(&mut connection, 1)?;
    }
    round_trips.sort();
    let round_trip = round_trips[round_trips.len() / 2];

    let per_second = u128::from(link.rate().unwrap_or(1_000_000_000));
    let len = saturating::<u64>(per_second * during.as_millis() / 1000).max(1);
    let took = ask(&mut connection, len)?.saturating_sub(link.round_trip());
    Ok(Measured { rate: len as f64 / took.as_secs_f64(), round_trip, connect })
}

/// Asks for `len` bytes; returns the time until all were there.
fn ask(connection: &mut TcpStream, len: u64) -> io::Result<Duration> {
    let since = Instant::now();
    connection.write_all(&len.to_le_bytes())?;
    let got = io::copy(&mut connection.take(len), &mut io::sink())?;
    if got < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(since.elapsed())
}

/// Serves one connection that sends numbers, with as many zeros each.
fn serve_zeros(server: &TcpListener) -> io::Result<()> {
    let (mut client, _) = server.accept()?;
    client.set_nodelay(true)?;
    let mut number = [0; 8];
    while client.read_exact(&mut number).is_ok() {
        io::copy(&mut io::repeat(0).take(u64::from_le_bytes(number)), &mut client)?;
    }
    Ok(())
}
