//! An HTTP/1.1 proxy in front of a server that breaks messages, as a test orders while it runs, and records the
//! requests.
//!
//! ```no_run
//! use headstart_testkit::faults::{Fault, FaultProxy, FaultRule};
//! # let server: std::net::SocketAddr = ([127, 0, 0, 1], 80).into();
//!
//! let proxy = FaultProxy::start(server);
//! proxy.add(FaultRule::new(Fault::Corrupt { at: 100 }).on(|asked| asked.path.contains("/blobs/")).times(1));
//! // ... the product reads from proxy.url() ...
//! let log = proxy.log();
//! assert!(log.in_sequence() <= 3, "{log}");
//! ```
//!
//! Every request meets at most one fault: that of the first [`FaultRule`] that applies. [`FaultProxy::set_outage`]
//! makes the whole server unreachable, and reachable again. For a slow link as well, put a [shaper](crate::shaper)
//! between the client and this proxy, so that the proxy's own answers go over the slow link too.
//!
//! For each connection of a client the proxy has one connection to the server. Requests on it are passed on one after
//! the other, with unchanged headers: signatures, and the Host from which redirects are built, stay the same. There are
//! two exceptions: the proxy answers `Expect` itself and leaves it out, and a fault may change the Range.

mod connection;
mod http;
mod log;

pub use log::{Log, LoggedRequest, ProxiedRequest};

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// The way in which a request is disturbed.
///
/// Counts of bytes refer to the body of the answer, without framing. If the body is shorter than such a
/// count, the fault has no effect.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The proxy answers with a status and an empty body, and does not ask the server.
    Status {
        /// The HTTP status, such as 403 or 503.
        code: u16,
        /// Headers of the answer, in addition to Content-Length.
        headers: Vec<(String, String)>,
    },
    /// The connection is reset.
    Reset {
        /// Bytes of the body that are sent before the reset. `None`: not even the head of the answer is sent.
        after: Option<u64>,
    },
    /// The connection is closed in an orderly way before the announced length of the body is reached.
    CutOff {
        /// Bytes of the body that are sent before the connection is closed.
        after: u64,
    },
    /// The answer's body is cut to its first `len` bytes, and Content-Length, if the answer has it, is changed to that.
    /// So the answer looks complete, but has less than was requested.
    Short {
        /// Length to which the body is cut, in bytes.
        len: u64,
    },
    /// The server is asked for another range.
    WrongRange {
        /// The range that the server is asked for begins and ends this many bytes after the requested range.
        shift: u64,
        /// `true` if the answer's Content-Range is the range that it contains; `false` if it is the requested one.
        honest: bool,
    },
    /// The server is asked for all of the file, and answers 200.
    IgnoreRange,
    /// One byte of the answer's body is changed.
    Corrupt {
        /// Offset of that byte in the body.
        at: u64,
    },
    /// The answer is delayed by this duration.
    Late(Duration),
    /// The answer's body is sent at this rate, in bytes a second.
    Slow(u64),
    /// The answer stops, and the connection stays open until the client closes it.
    Hang {
        /// Bytes of the body that are sent before the answer stops. `None`: not even its head is sent.
        after: Option<u64>,
    },
}

impl Fault {
    /// A fault by which the proxy answers with the status `code` and an empty body, without asking the
    /// server.
    pub fn status(code: u16) -> Self {
        Self::Status { code, headers: Vec::new() }
    }
}

/// A fault, and the conditions under which a request gets it. A request gets the fault of the first rule that
/// applies.
#[derive(Clone)]
pub struct FaultRule {
    fault: Fault,
    applies: Arc<dyn Fn(&ProxiedRequest) -> bool + Send + Sync>,
    skip: u64,
    times: u64,
    chance: f64,
    random: u64,
}

impl FaultRule {
    /// A rule that applies to every request.
    pub fn new(fault: Fault) -> Self {
        Self { fault, applies: Arc::new(|_| true), skip: 0, times: u64::MAX, chance: 1.0, random: 0 }
    }

    /// Restricts the rule to the requests for which `applies` returns `true`. Replaces the restriction of an earlier
    /// call of `on` or `on_path`.
    #[must_use]
    pub fn on(mut self, applies: impl Fn(&ProxiedRequest) -> bool + Send + Sync + 'static) -> Self {
        self.applies = Arc::new(applies);
        self
    }

    /// Restricts the rule to the requests whose path contains `part`. Replaces the restriction of an earlier call of
    /// `on` or `on_path`.
    #[must_use]
    pub fn on_path(self, part: &str) -> Self {
        let part = part.to_owned();
        self.on(move |asked| asked.path.contains(&part))
    }

    /// Makes the rule ignore the first `count` requests that `on` or `on_path` lets through. A probability set by
    /// `chance` is used only for the requests after these.
    #[must_use]
    pub fn skip(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// Makes the rule apply to at most `count` requests.
    #[must_use]
    pub fn times(mut self, count: u64) -> Self {
        self.times = count;
        self
    }

    /// Makes the rule apply to a request only with the probability `chance`, 0 to 1. The same `seed` gives
    /// the same choices.
    #[must_use]
    pub fn chance(mut self, chance: f64, seed: u64) -> Self {
        self.chance = chance;
        self.random = seed;
        self
    }

    fn meets(&mut self, asked: &ProxiedRequest) -> Option<Fault> {
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

/// The way in which the proxy makes the server unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// The server is reachable.
    None,
    /// Connections are refused, and existing ones are reset.
    Refuse,
    /// Connections are accepted and nothing more happens on them; waiting requests go on when the outage ends.
    Hang,
}

/// An HTTP proxy in front of one server that disturbs requests as its [`FaultRule`]s say, and logs all of
/// them. Dropping it breaks all connections.
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
    /// Starts a proxy in front of the server at `to`, on a free loopback port and without rules. Panics if
    /// there is no free port.
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

    /// The address at which the proxy listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The URL of the proxy, `http://` and its address, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Adds a rule with a lower priority than the existing ones.
    pub fn add(&self, rule: FaultRule) {
        self.shared.lock().rules.push(rule);
    }

    /// Removes all rules. A fault that a running request has already got remains.
    pub fn clear_rules(&self) {
        self.shared.lock().rules.clear();
    }

    /// Starts an outage of the given kind, replacing the present one; [`Outage::None`] ends it.
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

    /// The requests that the proxy received since it was started, or since the last
    /// [`FaultProxy::clear_log`].
    pub fn log(&self) -> Log {
        Log(self.shared.lock().log.clone())
    }

    /// Removes all requests from the log. Requests that are still running will not appear in it.
    pub fn clear_log(&self) {
        let mut state = self.shared.lock();
        state.log.clear();
        state.log_era += 1;
    }

    /// Waits until `wanted` returns `true` for the log, and returns the log. Panics after `limit`, with
    /// `what` and the log.
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
