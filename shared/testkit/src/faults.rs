//! An HTTP/1.1 proxy in front of a server that breaks messages, as a test orders while it runs, and records the
//! requests.
//!
//! ```no_run
//! use headstart_testkit::faults::{Fault, FaultProxy, Rule};
//! # let server: std::net::SocketAddr = ([127, 0, 0, 1], 80).into();
//!
//! let proxy = FaultProxy::start(server);
//! proxy.add(Rule::new(Fault::Corrupt { at: 100 }).on(|asked| asked.path.contains("/blobs/")).times(1));
//! // ... the product reads from proxy.url() ...
//! let log = proxy.log();
//! assert!(log.in_sequence() <= 3, "{log}");
//! ```
//!
//! Every request meets at most one fault, of the first [`FaultRule`] that applies; [`FaultProxy::set_outage`] takes
//! the whole server away and brings it back. To be slow as well, put a [shaper](crate::shaper) in front: client,
//! shaper, faults, server, so that refusals go over the slow link too.
//!
//! A client's connection has one connection to the server, and requests on it are passed on one after the other,
//! headers unchanged (so signatures, and the Host that redirects are built from, stay the same).

mod connection;
mod http;
mod log;

pub use log::{Asked, Log, LoggedRequest};

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// The treatment of a request.
///
/// Counts of bytes are of the answer's body, without framing. If the body is shorter than that, nothing happens.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The proxy answers; the server is not asked.
    Status {
        /// The status: 403, 503 ...
        code: u16,
        /// The headers beside Content-Length.
        headers: Vec<(String, String)>,
    },
    /// The connection is reset after `after` bytes; with `None`, without any answer.
    Reset {
        /// Bytes that are sent first.
        after: Option<u64>,
    },
    /// The connection is closed after `after` bytes, in good order but before the promised length.
    CutOff {
        /// Bytes that are sent first.
        after: u64,
    },
    /// The answer announces and has `len` bytes, whatever range was requested.
    Short {
        /// Length of the body.
        len: u64,
    },
    /// The server is asked for another range.
    WrongRange {
        /// The distance by which the range is further on in the file, in bytes.
        shift: u64,
        /// `true` if the answer reports its own range; otherwise it claims to be the requested one.
        honest: bool,
    },
    /// The server is asked for all of the file, and answers 200.
    IgnoreRange,
    /// A byte of the answer is another one.
    Corrupt {
        /// The place of that byte.
        at: u64,
    },
    /// The answer comes after a while.
    Late(Duration),
    /// The answer's body comes at this many bytes a second.
    Slow(u64),
    /// Nothing more comes after `after` bytes, for as long as the client waits; with `None`, not even the start of an
    /// answer.
    Hang {
        /// Bytes that are sent first.
        after: Option<u64>,
    },
}

impl Fault {
    /// An answer with this status and nothing else.
    pub fn status(code: u16) -> Self {
        Self::Status { code, headers: Vec::new() }
    }
}

/// A choice of requests, and the fault that they meet.
#[derive(Clone)]
pub struct FaultRule {
    fault: Fault,
    applies: Arc<dyn Fn(&Asked) -> bool + Send + Sync>,
    skip: u64,
    times: u64,
    chance: f64,
    random: u64,
}

impl FaultRule {
    /// A rule by which all requests meet `fault`.
    pub fn new(fault: Fault) -> Self {
        Self { fault, applies: Arc::new(|_| true), skip: 0, times: u64::MAX, chance: 1.0, random: 0 }
    }

    /// Restricts the rule to the requests for which `applies` returns `true`.
    #[must_use]
    pub fn on(mut self, applies: impl Fn(&Asked) -> bool + Send + Sync + 'static) -> Self {
        self.applies = Arc::new(applies);
        self
    }

    /// Restricts the rule to the requests whose path contains `part`.
    #[must_use]
    pub fn on_path(self, part: &str) -> Self {
        let part = part.to_owned();
        self.on(move |asked| asked.path.contains(&part))
    }

    /// Leaves out the first `count` of the requests.
    #[must_use]
    pub fn skip(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// Restricts the rule to `count` requests.
    #[must_use]
    pub fn times(mut self, count: u64) -> Self {
        self.times = count;
        self
    }

    /// Restricts the rule to a random part of the requests (0.25: every fourth on average), the same for the same seed.
    #[must_use]
    pub fn chance(mut self, chance: f64, seed: u64) -> Self {
        self.chance = chance;
        self.random = seed;
        self
    }

    fn meets(&mut self, asked: &Asked) -> Option<Fault> {
        if self.times == 0 || !(self.applies)(asked) {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        if self.chance < 1.0 && next_random(&mut self.random) as f64 / u64::MAX as f64 >= self.chance {
            return None;
        }
        self.times -= 1;
        Some(self.fault.clone())
    }
}

impl fmt::Debug for FaultRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, after {}, {} times", self.fault, self.skip, self.times)
    }
}

/// The next number of a SplitMix64 generator.
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The way in which the server is unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// The server is reachable.
    None,
    /// Connections are refused, and existing ones are reset.
    Refuse,
    /// Connections are accepted and nothing more happens on them; waiting requests go on when the outage ends.
    Hang,
}

/// The proxy, on a port of its own. Dropping it breaks all connections.
#[derive(Debug)]
pub struct FaultProxy {
    addr: SocketAddr,
    listener: Arc<TcpListener>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    to: SocketAddr,
    since: Instant,
    connections: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    rules: Vec<FaultRule>,
    outage: Outage,
    log: Vec<LoggedRequest>,
    /// The number of times that the log was emptied: requests from before are not in it.
    log_era: u64,
    open: Vec<Weak<TcpStream>>,
    /// The number of times that connections were refused: those from before an outage are broken.
    refusals: u64,
    ended: bool,
}

impl FaultProxy {
    /// A proxy in front of the server at `to`. Panics if this machine has no port for it.
    #[track_caller]
    pub fn start(to: SocketAddr) -> Self {
        let listener = Arc::new(listen_for_good());
        let addr = listener.local_addr().expect("a bound socket has an address");
        let state = State {
            rules: Vec::new(),
            outage: Outage::None,
            log: Vec::new(),
            log_era: 0,
            open: Vec::new(),
            refusals: 0,
            ended: false,
        };
        let shared = Arc::new(Shared {
            to,
            since: Instant::now(),
            connections: AtomicU64::new(0),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let accepting = (Arc::clone(&listener), Arc::clone(&shared));
        thread::spawn(move || accept(&accepting.0, &accepting.1));
        Self { addr, listener, shared }
    }

    /// The address that clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The URL of its root, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Adds a rule behind the existing ones.
    pub fn add(&self, rule: FaultRule) {
        self.shared.lock().rules.push(rule);
    }

    /// Takes all rules away. A request that has met its fault already goes on with it.
    pub fn clear_rules(&self) {
        self.shared.lock().rules.clear();
    }

    /// Takes the server away, or brings it back.
    #[track_caller]
    pub fn set_outage(&self, outage: Outage) {
        let mut state = self.shared.lock();
        let before = std::mem::replace(&mut state.outage, outage);
        if outage == Outage::Refuse {
            state.refusals += 1;
            // On Linux a listener that is shut down keeps its port, refuses, and can listen again.
            let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Read);
            state.open.drain(..).filter_map(|socket| socket.upgrade()).for_each(|socket| abort(&socket));
        } else if before == Outage::Refuse {
            rustix::net::listen(&self.listener, 1024).expect("the port is still ours");
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// The requests since the start or since [`FaultProxy::clear_log`].
    pub fn log(&self) -> Log {
        Log(self.shared.lock().log.clone())
    }

    /// Forgets the requests so far, including those that still run.
    pub fn clear_log(&self) {
        let mut state = self.shared.lock();
        state.log.clear();
        state.log_era += 1;
    }

    /// Waits until `wanted` returns `true` for the log. Panics after `limit`, with the log.
    #[track_caller]
    pub fn wait(&self, what: &str, limit: Duration, wanted: impl Fn(&Log) -> bool) -> Log {
        let until = Instant::now() + limit;
        loop {
            let log = self.log();
            if wanted(&log) {
                return log;
            }
            assert!(Instant::now() < until, "no {what}:\n{log}");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.ended = true;
        state.open.drain(..).filter_map(|socket| socket.upgrade()).for_each(|socket| abort(&socket));
        drop(state);
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Read);
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits while a hanging outage lasts; an error if the connection, made in this era, is broken.
    fn pass(&self, era: u64) -> io::Result<()> {
        self.wait_while(|state| state.outage == Outage::Hang);
        let state = self.lock();
        if state.ended || state.refusals != era { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }

    /// Waits while `waiting`, or for the end of the proxy.
    fn wait_while(&self, waiting: impl Fn(&State) -> bool) {
        self.changed.wait_while(&mut self.lock(), |state| !state.ended && waiting(state));
    }

    /// Waits for `time`, or for the end of the proxy.
    fn pause(&self, time: Duration) {
        self.changed.wait_while_for(&mut self.lock(), |state| !state.ended, time);
    }
}

/// Listens on a port that is kept while the proxy does not listen: Linux keeps only ports that were asked for by
/// number.
fn listen_for_good() -> TcpListener {
    const TRIES: usize = 20;
    let any = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr();
    let mut listeners = (0..TRIES).filter_map(|_| TcpListener::bind(any().ok()?).ok());
    listeners.next().expect("this machine has a free port")
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while !shared.lock().ended {
        let Ok((client, _)) = listener.accept() else {
            shared.wait_while(|state| state.outage == Outage::Refuse);
            continue;
        };
        let client = Arc::new(client);
        let mut state = shared.lock();
        if state.outage == Outage::Refuse {
            abort(&client);
            continue;
        }
        state.open.retain(|socket| socket.strong_count() > 0);
        state.open.push(Arc::downgrade(&client));
        let era = state.refusals;
        drop(state);
        let number = shared.connections.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(shared);
        thread::spawn(move || connection::serve(&shared, &client, number, era));
    }
}

/// Makes the connection end in a reset, once all holders have dropped it.
fn abort(socket: &TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Read);
}
