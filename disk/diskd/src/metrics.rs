//! The page for Prometheus of the disks of one process: their counters and latency distributions, the figures of the
//! pull engine, the cache and the stores.

use crate::preloads::share;
use crate::{DiskSession, NamedDisk};
use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing::get;
use headstart_block::{Error, Result};
use headstart_disk::stats::{DiskStats, SlowCause};
use headstart_disk::swarm::AgentConnection;
use headstart_lsmt::writable::SpaceStatus;
use headstart_preload::Preloaded;
use headstart_pull::EngineCounters;
use headstart_store::StoreCounters;
use headstart_telemetry::exposition::{self, MetricType, MetricValue, PageEncoder, PageFormat};
use headstart_trace::Recorder;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::TcpListener;

/// Serves the Prometheus page `/metrics` at `address` (HOST:PORT) until the runtime ends. Returns the URL of
/// the page.
///
/// # Errors
/// The error of listening at the address.
pub async fn serve(address: &str, session: Arc<DiskSession>) -> Result<String> {
    let failed = |e| Error::io("cannot listen", e);
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let app = Router::new().route("/metrics", get(page)).with_state(session);
    // Requests may use the name in the address.
    let name = address.rsplit_once(':').map(|(name, _)| name.to_owned());
    tokio::spawn(headstart_daemon::http::serve(listener, app, name.into_iter().collect()));
    Ok(format!("http://{bound}/metrics"))
}

async fn page(State(session): State<Arc<DiskSession>>, headers: HeaderMap) -> impl IntoResponse {
    let format = PageFormat::accepted(headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()));
    ([(CONTENT_TYPE, format.media_type())], render(session, format))
}

fn render(session: Arc<DiskSession>, format: PageFormat) -> String {
    exposition::page("headstart", format, move |page| encode(page, &session))
}

fn encode(page: &mut PageEncoder<'_>, session: &DiskSession) -> fmt::Result {
    latencies(page, &session.disks)?;
    requests(page, &session.disks)?;
    writable(page, &session.disks)?;
    local(page, &session.disks)?;
    link(page, &session.disks)?;
    pulling(page, &session.disks)?;
    slow_reads(page, &session.disks)?;
    preloading(page, &session.disks)?;
    cache(page, session)?;
    stores(page, session)?;
    if let Some(agent) = session.swarm.as_ref().and_then(|swarm| swarm.agent()) {
        swarm(page, session, &agent)?;
    }
    traces(page, session)
}

fn latencies(page: &mut PageEncoder<'_>, disks: &[NamedDisk]) -> fmt::Result {
    let help = "Time from a request's arrival until it was served; a miss waited for bytes from elsewhere.";
    let of_disk = |disk: &NamedDisk| {
        let stats = disk.disk.stats();
        [("hit", &stats.hits), ("miss", &stats.misses), ("write", &stats.writes), ("flush", &stats.flushes)]
            .map(|(kind, histogram)| (kind, histogram.snapshot()))
    };
    let samples = disks.iter().flat_map(|disk| {
        of_disk(disk).map(|(kind, values)| ([("disk", disk.name.as_str()), ("kind", kind)], values))
    });
    page.histograms("request_seconds", help, samples)
}

/// Adds a metric with one sample for each disk that has it.
fn each_disk<V: MetricValue>(
    page: &mut PageEncoder<'_>,
    (name, kind, help): (&str, MetricType, &str),
    disks: &[NamedDisk],
    value: impl Fn(&NamedDisk) -> Option<V>,
) -> fmt::Result {
    let samples = disks.iter().filter_map(|disk| Some(([("disk", disk.name.as_str())], value(disk)?)));
    page.each(name, kind, help, samples)
}

fn requests(page: &mut PageEncoder<'_>, disks: &[NamedDisk]) -> fmt::Result {
    let mut one = |name, kind, help, counter: fn(&DiskStats) -> &AtomicU64| {
        let value = |disk: &NamedDisk| Some(counter(disk.disk.stats()).load(Ordering::Relaxed));
        each_disk(page, (name, kind, help), disks, value)
    };
    one("read_bytes", MetricType::Counter, "Bytes read by clients.", |stats| &stats.read_bytes)?;
    one("written_bytes", MetricType::Counter, "Bytes written or zeroed by clients.", |stats| {
        &stats.written_bytes
    })?;
    one("request_errors", MetricType::Counter, "Requests that failed.", |stats| &stats.errors)?;
    one("waiting_reads", MetricType::Gauge, "Reads that wait for bytes from elsewhere.", |stats| {
        &stats.waiting
    })
}

/// A metric of a writable layer: its name, kind, help, value.
type WritableGauge = (&'static str, MetricType, &'static str, fn(&SpaceStatus) -> Option<u64>);

const WRITABLE: &[WritableGauge] = &[
    ("writable_live_bytes", MetricType::Gauge, "Bytes in the writable directory that are read.", |s| {
        Some(s.live_bytes)
    }),
    (
        "writable_garbage_bytes",
        MetricType::Gauge,
        "Bytes there that were overwritten or discarded, and of the log.",
        |s| Some(s.garbage_bytes),
    ),
    (
        "writable_collected_bytes",
        MetricType::Counter,
        "Bytes of garbage that were given back to the file system.",
        |s| Some(s.collected_bytes),
    ),
    (
        "writable_copied_bytes",
        MetricType::Counter,
        "Bytes that were written again to free the blocks around them, or to merge small pieces.",
        |s| Some(s.copied_bytes),
    ),
    (
        "writable_copied_up_bytes",
        MetricType::Gauge,
        "Those of the bytes read that merging small pieces has copied up from the image.",
        |s| Some(s.copied_up_bytes),
    ),
    (
        "writable_throttled_writes",
        MetricType::Counter,
        "Writes and discards that waited until garbage was collected.",
        |s| Some(s.throttled_writes),
    ),
    (
        "writable_refused_writes",
        MetricType::Counter,
        "Writes and discards refused because the disk is in too many small pieces.",
        |s| Some(s.refused_writes),
    ),
    ("writable_waiting_writes", MetricType::Gauge, "Writes and discards that wait for that now.", |s| {
        Some(s.waiting_writes)
    }),
    (
        "writable_shared_bytes",
        MetricType::Gauge,
        "Bytes of files that the directories of clones have as well, and that all of them take once.",
        |s| Some(s.shared_bytes),
    ),
    ("writable_runs", MetricType::Gauge, "Runs of the map in memory, some 50 bytes each.", |s| Some(s.runs)),
    (
        "writable_max_bytes",
        MetricType::Gauge,
        "Most bytes that the directory may take, where limited.",
        |s| s.max_bytes,
    ),
];

fn writable(page: &mut PageEncoder<'_>, disks: &[NamedDisk]) -> fmt::Result {
    WRITABLE.iter().try_for_each(|(name, kind, help, value)| {
        each_disk(page, (*name, *kind, *help), disks, |disk| value(&disk.disk.writable()?.space()))
    })
}

fn local(page: &mut PageEncoder<'_>, disks: &[NamedDisk]) -> fmt::Result {
    let mut one = |name, help, value: fn(&NamedDisk) -> u64| {
        each_disk(page, (name, MetricType::Gauge, help), disks, |disk| Some(value(disk)))
    };
    one("image_bytes", "Bytes of the image's blobs as stored.", |disk| disk.local_bytes().1)?;
    one("image_local_bytes", "Bytes of them that are on this host.", |disk| disk.local_bytes().0)?;
    one(
        "image_unproven_bytes",
        "Of those, bytes on this host that neither a hash tree nor the digest of a whole blob proves.",
        |disk| disk.disk.puller().map_or(0, |puller| puller.blobs().unproven_bytes()),
    )
}

fn link(page: &mut PageEncoder<'_>, disks: &[NamedDisk]) -> fmt::Result {
    let estimate = |disk: &NamedDisk| Some(disk.disk.puller()?.estimate());
    let help = "Estimated bandwidth of the link in bytes a second.";
    let metric = ("bandwidth_bytes", MetricType::Gauge, help);
    each_disk(page, metric, disks, |disk| estimate(disk)?.bandwidth)?;
    let metric = ("round_trip_seconds", MetricType::Gauge, "Estimated round trip to the store.");
    each_disk(page, metric, disks, |disk| estimate(disk)?.round_trip.map(|time| time.as_secs_f64()))?;
    let help = "Estimated time until the disk is filled, if filling is on.";
    each_disk(page, ("fill_seconds", MetricType::Gauge, help), disks, |disk| {
        disk.disk.puller()?.progress().eta.map(|time| time.as_secs_f64())
    })
}

/// A counter of the pull engine: the name of its metric, labels, value.
type PullCounter = (&'static str, &'static [(&'static str, &'static str)], fn(&EngineCounters) -> u64);

const PULL: &[PullCounter] = &[
    ("fetches", &[("priority", "miss")], |c| c.miss_fetches),
    ("fetches", &[("priority", "preload")], |c| c.preload_fetches),
    ("fetches", &[("priority", "left")], |c| c.fill_fetches),
    ("fetched_bytes", &[("priority", "miss")], |c| c.miss_bytes),
    ("fetched_bytes", &[("priority", "preload")], |c| c.preload_bytes),
    ("fetched_bytes", &[("priority", "left")], |c| c.fill_bytes),
    ("failed_fetches", &[("cause", "unavailable")], |c| c.failed_fetches),
    ("failed_fetches", &[("cause", "corrupt")], |c| c.corrupt),
    ("fetch_retries", &[], |c| c.retries),
    ("failed_reads", &[("cause", "deadline")], |c| c.failed_deadline),
    ("failed_reads", &[("cause", "permanent")], |c| c.failed_permanent),
    ("failed_reads", &[("cause", "corrupt")], |c| c.failed_corrupt),
    ("failed_reads", &[("cause", "refused")], |c| c.refused),
    ("joined_reads", &[], |c| c.joined),
    ("promoted_reads", &[], |c| c.promoted),
    ("rescued_reads", &[], |c| c.overtaken),
];

fn pulling(page: &mut PageEncoder<'_>, disks: &[NamedDisk]) -> fmt::Result {
    let counted: Vec<_> =
        disks.iter().filter_map(|d| Some((d.name.as_str(), d.disk.puller()?.counters()))).collect();
    PULL.chunk_by(|one, next| one.0 == next.0).try_for_each(|counters| {
        let name = counters[0].0;
        let help = format!("The pull engine's {}.", name.replace('_', " "));
        let samples = counters.iter().flat_map(|(_, labels, value)| {
            counted.iter().map(move |(disk, counters)| (([("disk", *disk)], *labels), value(counters)))
        });
        page.each(&format!("pull_{name}"), MetricType::Counter, &help, samples)
    })
}

fn slow_reads(page: &mut PageEncoder<'_>, disks: &[NamedDisk]) -> fmt::Result {
    let help =
        "Reads slower than a second: unforeseen by a plan, planned but late, while the store failed, other.";
    let samples = disks.iter().flat_map(|disk| {
        SlowCause::ALL.map(|cause| {
            let labels = [("disk", disk.name.as_str()), ("cause", cause.name())];
            (labels, disk.disk.stats().slow_by(cause))
        })
    });
    page.each("slow_reads", MetricType::Counter, help, samples)
}

/// A number of preloading: the name of its metric, help, value.
type PreloadGauge = (&'static str, &'static str, fn(&Preloaded) -> u64);

const PRELOAD: [PreloadGauge; 5] = [
    ("preloaded_bytes", "Bytes of the disk that were preloaded as planned.", |p| p.report.preloaded),
    ("preloaded_used_bytes", "Of those, bytes that were read.", |p| p.report.used),
    ("preloaded_due_bytes", "Of the preloaded bytes, those that should have been read by now.", |p| {
        p.report.due
    }),
    (
        "preloaded_due_used_bytes",
        "Of the bytes that should have been read by now, those that were read.",
        |p| p.report.due_used,
    ),
    ("preload_stopped", "1 if preloading was stopped because it did harm, otherwise 0.", |p| {
        p.report.stopped.is_some().into()
    }),
];

fn preloading(page: &mut PageEncoder<'_>, disks: &[NamedDisk]) -> fmt::Result {
    let done: Vec<_> =
        disks.iter().filter_map(|d| Some((d.name.as_str(), d.disk.preloader()?.preloaded()))).collect();
    let plans = done.iter().filter_map(|(disk, preloaded)| {
        Some([("disk", *disk), ("plan", preloaded.origin?.name()), ("from", preloaded.why.as_str())])
    });
    page.info("plan", "The plan that is followed: its place and its origin.", plans)?;
    for (name, help, value) in PRELOAD {
        let samples = done.iter().map(|(disk, preloaded)| ([("disk", *disk)], value(preloaded)));
        page.each(name, MetricType::Gauge, help, samples)?;
    }
    let accuracies = done.iter().filter_map(|(disk, preloaded)| {
        Some(([("disk", *disk)], share(preloaded.report.used, preloaded.report.preloaded)?))
    });
    let help = "The share of the preloaded bytes that was read, from 0 to 1.";
    page.each("preload_accuracy", MetricType::Gauge, help, accuracies)?;
    let switches = done.iter().flat_map(|(disk, preloaded)| {
        let switches = preloaded.report.switches;
        [("group", switches.groups), ("bandwidth", switches.bins)]
            .map(|(to, number)| ([("disk", *disk), ("to", to)], u64::from(number)))
    });
    let help = "Changes to another plan, for another group of boots or another bandwidth.";
    page.each("plan_switches", MetricType::Counter, help, switches)?;
    let failures = done.iter().map(|(disk, preloaded)| ([("disk", *disk)], preloaded.failures));
    let help = "Places that were searched for plans and could not be used.";
    page.each("plan_failures", MetricType::Counter, help, failures)
}

fn cache(page: &mut PageEncoder<'_>, session: &DiskSession) -> fmt::Result {
    let Some(cache) = &session.cache else { return Ok(()) };
    let counters = cache.counters();
    let numbers = [
        ("inserted_bytes", "Bytes put into the cache by this process.", counters.inserted_bytes),
        (
            "bypassed_bytes",
            "Bytes kept in memory because the cache's disk did not accept them.",
            counters.bypassed_bytes,
        ),
        ("evicted_bytes", "Bytes evicted by this process.", counters.evicted_bytes),
        ("corrupt_inserts", "Ranges that were received and failed their check.", counters.corrupt_inserts),
        ("failed_reads", "Reads of the cache's files that failed.", counters.failed_reads),
        (
            "proven_blobs",
            "Blobs without a hash tree that were whole and matched their digest.",
            counters.proven_blobs,
        ),
        (
            "wrong_blobs",
            "Blobs without a hash tree that were whole, did not match their digest and were dropped.",
            counters.wrong_blobs,
        ),
        (
            "damaged_bytes",
            "Bytes of the cache that were right before, were found damaged, and were dropped.",
            counters.damaged_bytes,
        ),
    ];
    page.numbers("cache_", MetricType::Counter, &numbers)
}

fn stores(page: &mut PageEncoder<'_>, session: &DiskSession) -> fmt::Result {
    let counted: Vec<_> = session.stores.iter().map(|store| (store.location(), store.counters())).collect();
    let mut one = |name: &str, help, value: fn(&StoreCounters) -> u64| {
        let samples =
            counted.iter().map(|(location, counters)| ([("store", location.as_str())], value(counters)));
        page.each(&format!("store_{name}"), MetricType::Counter, help, samples)
    };
    one("requests", "Requests sent to the store.", |c| c.requests)?;
    one("bytes", "Bytes of blobs received.", |c| c.bytes)?;
    one("retries", "Metadata calls tried again.", |c| c.retries)?;
    one("hedges", "Demand reads sent a second time.", |c| c.hedges)?;
    one("hedges_won", "Second requests that were answered first.", |c| c.hedges_won)?;
    one("errors", "Reads that failed.", |c| c.errors)
}

fn swarm(page: &mut PageEncoder<'_>, session: &DiskSession, connection: &AgentConnection) -> fmt::Result {
    let connected = u64::from(connection.connected);
    let help = "1 if the agent of this host is connected, otherwise 0.";
    page.numbers("swarm_", MetricType::Gauge, &[("connected", help, connected)])?;
    let numbers = [
        ("lost_connections", "Times that the connection to the agent was lost.", connection.lost),
        ("wants", "Ranges that were requested from the agent.", connection.wants),
        (
            "unanswered_wants",
            "Ranges that were requested from the agent and not answered, because it was away or went away.",
            connection.unanswered,
        ),
    ];
    page.numbers("swarm_", MetricType::Counter, &numbers)?;
    let help = "Bytes that other hosts delivered while the disk waited for them.";
    each_disk(page, ("swarm_brought_bytes", MetricType::Counter, help), &session.disks, |disk| {
        Some(disk.disk.puller().map_or(0, |puller| puller.brought_by_swarm()))
    })
}

fn traces(page: &mut PageEncoder<'_>, session: &DiskSession) -> fmt::Result {
    let mut one = |name, help, value: fn(&Recorder) -> u64| {
        each_disk(page, (name, MetricType::Counter, help), &session.disks, |disk| {
            disk.recorder.as_deref().map(value)
        })
    };
    one("trace_records", "Requests that were recorded.", Recorder::recorded)?;
    one("trace_dropped_records", "Requests that arrived while the recorder was full.", Recorder::dropped)?;
    one("trace_boots", "Boots that began.", Recorder::boots)?;
    let Some(traces) = &session.traces else { return Ok(()) };
    let saved = traces.saved();
    let numbers = [
        ("evicted_files", "Traces that were removed to keep the directory's limits.", traces.evicted()),
        ("failed_saves", "Traces that could not be saved.", saved.failures),
        ("written_files", "Boots that have a trace.", saved.traces),
        ("looks", "Boots that ended after a few reads and left no trace.", saved.looks),
        (
            "beyond_budget",
            "Boots that left no trace because their disk had reached its limit of traces.",
            saved.beyond,
        ),
    ];
    page.numbers("trace_", MetricType::Counter, &numbers)
}
