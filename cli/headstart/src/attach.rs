//! `headstart attach`: images become disks, in the foreground and with everything in this one process.
//!
//! The disks themselves are opened and served by `headstart-diskd`. Here are arguments, words and reports.
//!
//! | module | content |
//! |---|---|
//! | [`arguments`], [`record_args`], [`times`] | the arguments |
//! | [`by_agent`] | disks that the agent of this host is to have |
//! | [`interrupts`] | the meaning of Ctrl-C while clients are connected |
//! | [`release`] | releasing the images of an agent's disk whose process is down |
//! | [`space`] | the space that writable layers take, for an agent |
//! | [`status`] | the live line |

mod arguments;
mod by_agent;
mod interrupts;
mod record_args;
mod release;
mod space;
mod status;
mod times;

pub(crate) use arguments::{Attach, OFFLINE_LIMITS};

use arguments::MetricsAddress;
use headstart_agentd::disk_process::{AgentConnector, PriorDisks, kept_images};
use headstart_agentd::disks::{Held, ends_for_good, failed_line, hold_pid_file, keep_images};
use headstart_block::words::count;
use headstart_block::{BlockDevice, ByteSize, Digest, Error, Result, saturating};
use headstart_command_line::printable;
use headstart_command_line::report::{Outcome, Report};
use headstart_command_line::terminal::{Terminal, print_above};
use headstart_diskd::control::open_controls;
use headstart_diskd::lines::VersionQuery;
use headstart_diskd::starts::StartSocket;
use headstart_diskd::{
    Copies, DiskAddress, DiskSession, Environment, Preloads, QemuVersion, RecordedBoots, ServerSettings,
    Servers, SwarmConnector, SyncThread, Totals, metrics,
};
use headstart_export::Leftover;
use headstart_image::progress::Progress;
use headstart_store::RateLimit;
use interrupts::{Answer, InterruptPolicy};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use status::StatusLine;
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

pub(crate) const EXAMPLES: &str = "Examples:\n  \
    headstart attach file:///srv/images:debian\n  \
    headstart attach oci://registry.lan/vm/debian:13 \\\n      \
    --nbd unix:/run/vm1.sock --writable /var/lib/vm1\n  \
    headstart attach oci://registry.lan/vm/debian:13 \\\n      \
    --plans /srv/plans --label family=debian-13\n  \
    headstart attach http://images.lan/store:debian \\\n      \
    --vhost-user /run/vm1.vhost --fill 20MB/s\n  \
    headstart attach http://images.lan/store:debian \\\n      \
    --nbd unix:/run/vm1.sock --socket-owner libvirt-qemu\n  \
    headstart attach file:///srv/images:debian \\\n      \
    --writable /var/lib/vm1 --writable-max 20G\n  \
    headstart attach oci://registry.lan/vm/debian:13 \\\n      \
    --agent /run/headstart/agent.sock --fuse /srv/vm1.raw\n  \
    headstart attach web=s3://images/vm:web db=s3://images/vm:db \\\n      \
    --nbd 127.0.0.1:10809\n\n\
    Each boot is recorded from its first read on (--record-time), also if the guest starts again on a disk that stays \
    attached: its read of the boot sector begins a trace if a hypervisor has just connected, if it is of that \
    sector alone and nothing was read for a second, or if nothing was read for 30 seconds. At most six boots of a disk \
    in an hour leave a trace.\n\n\
    Ctrl-C detaches the disks. While a client is connected, the first one only says so, and a second one detaches; \
    SIGTERM and SIGHUP detach at once.\n\n\
    With --json, standard output has JSON lines, one object a line: one when the disks can be used (`disks`, \
    `ways`, `metrics`, `ready_ms`), one when they were detached (`reads`, `hits_percent`, `waits`, \
    `preloads`, ...).";

/// The interval at which the signal to stop, failed servers and the status line are checked.
const LOOK: Duration = Duration::from_millis(50);

/// Threads that fetch, verify and store. Servers have threads of their own.
const RUNTIME_THREADS: usize = 2;

/// The number of open files for which the kernel makes room at the start: four for each of 250 layers, with its hash
/// tree, and some.
const FILES_EXPECTED: u32 = 1024;

/// Has the kernel make room for the open files of a disk. Each time that there are twice as many, it makes more room,
/// and in a process with several threads it waits until all processors have seen that: 40 ms in all for an image of 70
/// layers. To be called while this process has one thread.
pub(crate) fn make_room_for_files() {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // Best effort: without it, attaching takes longer. The room stays when the file is closed.
    if limit >= u64::from(FILES_EXPECTED) {
        let _ = fcntl_dupfd_cloexec(std::io::stderr(), FILES_EXPECTED.cast_signed() - 1);
    }
}

/// Open disks, and what is needed to serve them.
struct Opened<'a> {
    session: &'a Arc<DiskSession>,
    before: PriorDisks,
    servers: ServerSettings,
}

impl Attach {
    pub(crate) fn run(&self, terminal: &Terminal, quiet: bool, json: bool) -> Result<Box<dyn Report>> {
        if let Some(socket) = &self.agent {
            return self.by_agent(socket);
        }
        if let Some(pid_file) = self.pid_file.as_deref().filter(|_| self.release) {
            return self.release(pid_file);
        }
        // An agent gives each disk the options of this warning.
        if self.pid_file.is_none() {
            self.warn_of_idle();
        }
        // Sockets of an earlier process of the same disk are replaced, even those of earlier versions.
        let held = self.pid_file.as_deref().map(hold_pid_file).transpose()?;
        if let Some(file) = &self.pid_file {
            headstart_command_line::log::bound(
                file.with_extension("log"),
                headstart_daemon::pid_file::LOG_MAX,
            );
        }
        terminal.serves();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RUNTIME_THREADS)
            .thread_name("fetch")
            .enable_all()
            .build()
            .map_err(|e| Error::io("cannot start threads", e))?;
        let copies = Copies::default();
        let result = self.run_on((&runtime, &copies), held, terminal, quiet, json);
        if let (Err(error), Some(_)) = (&result, &self.pid_file) {
            // Without it, the agent has the words of the error alone.
            let _ = writeln!(std::io::stdout(), "{}", failed_line(error));
        }
        copies.end(&runtime);
        // Fetches and name look-ups that hang are not waited for.
        runtime.shutdown_timeout(Duration::from_secs(1));
        Ok(Box::new(result?))
    }

    fn run_on(
        &self,
        (runtime, copies): (&Runtime, &Copies),
        held: Option<Held>,
        terminal: &Terminal,
        quiet: bool,
        json: bool,
    ) -> Result<Detached> {
        let started = Instant::now();
        let qemu = self.vhost_user.is_some().then(QemuVersion::ask);
        let mut settings = self.store.settings_to_serve()?;
        // A problem with the rate must not keep the disk from its guest.
        let shared_rate = self.rate_file.as_deref().map(RateLimit::shared).transpose();
        settings.shared_rate = shared_rate.unwrap_or_else(|error| {
            tracing::warn!(%error, "the agent's rate does not hold for this disk");
            None
        });
        let before = PriorDisks::of(held);
        let of_session = self.session_settings(&before, quiet)?;
        let swarm = self.swarm.as_deref().map(AgentConnector::new);
        let session = DiskSession::open(
            &of_session,
            &Environment {
                stores: &settings,
                copies,
                runtime: runtime.handle(),
                swarm: swarm.as_ref().map(|swarm| swarm as &dyn SwarmConnector),
                progress: terminal,
                notify: &|line| print_above(&format!("headstart: {line}")),
            },
        )?;
        let session = Arc::new(session);
        let leftover = if before.is_nothing() { Leftover::IsUnknown } else { Leftover::IsOurs };
        let servers = self.server_settings(&of_session, leftover);
        let opened = Opened { session: &session, before, servers };
        let detached = self.serve_session(runtime, opened, (started, qemu), terminal, (quiet, json));
        if detached.is_err() {
            session.give_up();
        }
        detached
    }

    /// Serves open disks until they are to be detached.
    fn serve_session(
        &self,
        runtime: &Runtime,
        Opened { session, before, servers }: Opened<'_>,
        (started, qemu): (Instant, Option<VersionQuery>),
        terminal: &Terminal,
        (quiet, json): (bool, bool),
    ) -> Result<Detached> {
        let images = kept_images(session);
        if let Some(file) = self.pid_file.as_ref().filter(|_| !before.is_noted(&images)) {
            keep_images(file, images)?;
        }
        let mut servers = Servers::start(&servers, qemu, session)?;
        let metrics = match &self.metrics {
            Some(address) => Some(Self::serve_metrics(address, runtime, session)?),
            None => None,
        };
        let controls = open_controls(session, &servers, &self.control_settings());
        let starts = self.open_starts(session, &before);
        self.announce(session, &servers, metrics, started.elapsed(), json)?;
        session.is_served();
        let ended = serve(session, &servers, self.pid_file.as_deref(), terminal, quiet);
        drop((controls, starts));
        let is_for_good = is_for_good(self.pid_file.as_deref());
        let stopped = if is_for_good { servers.stop() } else { servers.leave() };
        let closed = session.close(is_for_good);
        let report = Detached::of(session);
        drop(servers);
        let clients = ended?;
        stopped.and(closed)?;
        Ok(Detached { clients, ..report })
    }

    /// Opens the socket that is told of containers. Without it, the disk is served all the same.
    fn open_starts(&self, session: &Arc<DiskSession>, before: &PriorDisks) -> Option<StartSocket> {
        let path = self.recording.starts.as_ref()?;
        let leftover = if before.is_nothing() { Leftover::IsUnknown } else { Leftover::IsOurs };
        let opened = StartSocket::open(path, leftover, session);
        opened
            .inspect_err(
                |error| tracing::warn!(%error, "starts of containers are not told apart on this disk"),
            )
            .ok()
    }

    /// Serves the page of `--metrics`; returns its URL.
    fn serve_metrics(
        address: &MetricsAddress,
        runtime: &Runtime,
        session: &Arc<DiskSession>,
    ) -> Result<String> {
        let served = runtime.block_on(metrics::serve(&address.to_string(), Arc::clone(session)));
        served.map_err(|e| e.about(format!("--metrics {address}")))
    }

    /// Prints that the disks can be used, and the warnings.
    fn announce(
        &self,
        session: &DiskSession,
        servers: &Servers,
        metrics: Option<String>,
        took: Duration,
        json: bool,
    ) -> Result<()> {
        let addresses = servers.addresses.as_slice();
        let warnings: Vec<_> = session.warnings.iter().chain(&servers.warnings).map(String::as_str).collect();
        for warning in &warnings {
            print_above(&format!("headstart: warning: {warning}"));
        }
        let warnings = if self.pid_file.is_some() { warnings } else { Vec::new() };
        let ready_ms = saturating::<u64>(took.as_millis());
        let mut out = std::io::stdout().lock();
        let written = if json {
            let disks = session.disks.iter().map(|disk| ReadyDisk {
                name: &disk.name,
                image: &disk.image,
                digest: disk.digest,
                converted_from: disk.manifest.converted_from().map(|origin| origin.manifest),
                kept_in: disk.kept_in.as_deref(),
                size: disk.disk.size(),
                writable: !disk.disk.is_read_only(),
            });
            let ready = Ready { disks: disks.collect(), ways: addresses, metrics, warnings, ready_ms };
            writeln!(out, "{}", serde_json::to_string(&ready).unwrap_or_default())
        } else {
            let mut text = Vec::new();
            print_ready(&mut text, session, addresses, metrics.as_deref(), ready_ms)
                .and_then(|()| out.write_all(printable::lines(&String::from_utf8_lossy(&text)).as_bytes()))
        };
        written.and_then(|()| out.flush()).map_err(|e| Error::io("cannot write to standard output", e))
    }
}

/// Waits for the signal to stop, or for a server that fails. Returns the number of clients that are connected then.
fn serve(
    session: &Arc<DiskSession>,
    servers: &Servers,
    pid_file: Option<&Path>,
    terminal: &Terminal,
    quiet: bool,
) -> Result<usize> {
    let mut line = StatusLine::new(quiet);
    let mut space_reporter = space::SpaceReporter::new(pid_file);
    let mut sizes = sizes(session);
    let sync = session.cache.clone().map(SyncThread::start);
    let (held, mut policy) = (terminal.hold_interrupts(), InterruptPolicy::default());
    let result = loop {
        // A client that comes after these looks at the signals is among those that are counted.
        let (is_cancelled, was_interrupt) = (terminal.is_cancelled(), held.take());
        let counts = servers.clients();
        let clients = counts.connected;
        if is_cancelled {
            if clients > 0 {
                let connected = connected(clients);
                let asked = if is_for_good(pid_file) {
                    "detach at once,"
                } else {
                    "end, and not by its agent, which starts it again,"
                };
                print_above(&format!("headstart: asked by a signal to {asked} though {connected}"));
            }
            break Ok(clients);
        }
        match policy.answer(counts, was_interrupt) {
            Answer::Stay => {}
            Answer::Ask => {
                let connected = connected(clients);
                print_above(&format!("headstart: {connected}; Ctrl-C again detaches nevertheless"));
            }
            Answer::Detach => {
                terminal.stop();
                break Ok(clients);
            }
        }
        if let Some(error) = servers.failed() {
            break Err(error);
        }
        let now = self::sizes(session);
        if now != sizes {
            servers.resized();
            sizes = now;
        }
        line.refresh(session);
        space_reporter.refresh(session);
        std::thread::sleep(LOOK);
    };
    drop(held);
    line.clear();
    drop(sync);
    result
}

/// `true` if the disks of a process with this file of process numbers are detached by its end.
fn is_for_good(pid_file: Option<&Path>) -> bool {
    pid_file.is_none_or(ends_for_good)
}

/// The number of connected clients, in words.
fn connected(clients: usize) -> String {
    let is = if clients == 1 { "is" } else { "are" };
    format!("{} {is} connected", count(clients as u64, "client"))
}

fn sizes(session: &DiskSession) -> Vec<u64> {
    session.disks.iter().map(|disk| disk.disk.size()).collect()
}

/// The output once the disks can be used.
#[derive(Serialize)]
struct Ready<'a> {
    disks: Vec<ReadyDisk<'a>>,
    ways: &'a [DiskAddress],
    metrics: Option<String>,
    /// The warnings for the user, if an agent passes them on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<&'a str>,
    /// The time from the start of the program, in milliseconds.
    ready_ms: u64,
}

#[derive(Serialize)]
struct ReadyDisk<'a> {
    name: &'a str,
    image: &'a str,
    digest: Digest,
    /// The container's image that it was converted from. The name may lead to that image, beside which this one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    converted_from: Option<Digest>,
    /// The copy that the image is read from, if its writable directory keeps one.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_in: Option<&'a Path>,
    size: u64,
    writable: bool,
}

fn print_ready(
    out: &mut impl Write,
    session: &DiskSession,
    addresses: &[DiskAddress],
    metrics: Option<&str>,
    ready_ms: u64,
) -> std::io::Result<()> {
    for disk in &session.disks {
        let access = if disk.disk.is_read_only() { "read-only" } else { "writable" };
        let size = ByteSize(disk.disk.size());
        let kept = disk.kept_in.as_ref().map(|dir| format!(" ({}), kept in {},", disk.digest, dir.display()));
        let (image, kept) = (&disk.image, kept.unwrap_or_default());
        let name = if session.disks.len() > 1 { format!("{}: ", disk.name) } else { String::new() };
        let made = disk.manifest.converted_from();
        let made = made.map(|origin| format!(", made of the container's image {},", origin.manifest));
        let made = made.unwrap_or_default();
        writeln!(out, "{name}{image}{kept}{made} is a disk of {size}, {access}, after {ready_ms} ms")?;
    }
    for address in addresses {
        writeln!(out, "  {}", address.uri)?;
        if let Some(qemu) = &address.qemu {
            writeln!(out, "    {qemu}")?;
        }
    }
    if let Some(metrics) = metrics {
        writeln!(out, "  metrics: {metrics}")?;
    }
    writeln!(out, "Ctrl-C detaches (twice while a client is connected).")
}

/// The output at the end.
#[derive(Serialize)]
struct Detached {
    /// The names of the disks, if there are several.
    #[serde(skip)]
    names: Vec<String>,
    reads: u64,
    hits_percent: f64,
    fetched_bytes: u64,
    local_bytes: u64,
    image_bytes: u64,
    /// Clients that were connected when the disks were detached.
    clients: usize,
    #[serde(flatten)]
    preloads: Preloads,
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded: Option<RecordedBoots>,
}

impl Detached {
    fn of(session: &DiskSession) -> Self {
        let totals = Totals::of(session);
        let names = session.disks.iter().map(|disk| disk.name.clone());
        Self {
            names: names.filter(|_| session.disks.len() > 1).collect(),
            reads: totals.hits + totals.misses,
            hits_percent: totals.hit_rate(),
            fetched_bytes: totals.fetched,
            local_bytes: totals.local,
            image_bytes: totals.all,
            clients: 0,
            preloads: Preloads::of(session),
            recorded: RecordedBoots::of(session),
        }
    }
}

impl Outcome for Detached {
    /// This is the second of two JSON lines.
    fn is_line(&self) -> bool {
        true
    }
}

impl fmt::Display for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.names.as_slice() {
            [] => write!(f, "detached: {}", count(self.reads, "read"))?,
            names => write!(f, "detached {}: {}", names.join(", "), count(self.reads, "read"))?,
        }
        if self.reads > 0 {
            write!(f, ", {:.1}% of them without waiting", self.hits_percent)?;
        }
        if self.image_bytes > 0 {
            let (fetched, local) = (ByteSize(self.fetched_bytes), ByteSize(self.local_bytes));
            write!(f, "; fetched {fetched}; {local} of {} are on this host", ByteSize(self.image_bytes))?;
        }
        write!(f, "{}", self.preloads)?;
        match &self.recorded {
            Some(recorded) => write!(f, "\n{recorded}"),
            None => Ok(()),
        }
    }
}
