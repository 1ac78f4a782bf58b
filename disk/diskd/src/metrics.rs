//! The page for Prometheus of the disks of one process: their counters and latency distributions, the figures of the
//! pull engine, the cache and the stores.

use crate::preloads::share;
use crate::{DiskSession, NamedDisk};
use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use headstart_block::{Error, Result};
use headstart_disk::stats::SlowCause;
use headstart_disk::swarm::AgentConnection;
use headstart_lsmt::writable::SpaceStatus;
use headstart_preload::Preloaded;
use headstart_pull::EngineCounters;
use headstart_telemetry::exposition::{self, Kind, Page};
use headstart_trace::Recorder;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::TcpListener;

/// Serves `/metrics` at `address`, which is HOST:PORT, until the runtime ends; returns the URL.
///
/// # Errors
/// If it cannot listen.
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

async fn page(State(session): State<Arc<DiskSession>>) -> impl IntoResponse {
    ([(CONTENT_TYPE, exposition::TEXT)], render(&session))
}

fn render(session: &DiskSession) -> String {
    let mut page = Page::of("headstart");
    latencies(&mut page, &session.disks);
    requests(&mut page, &session.disks);
    writable(&mut page, &session.disks);
    local(&mut page, &session.disks);
    link(&mut page, &session.disks);
    pulling(&mut page, &session.disks);
    slow_reads(&mut page, &session.disks);
    preloading(&mut page, &session.disks);
    cache(&mut page, session);
    stores(&mut page, session);
    if let Some(agent) = session.swarm.as_ref().and_then(|swarm| swarm.agent()) {
        swarm(&mut page, session, &agent);
    }
    traces(&mut page, session);
    page.finish()
}

fn latencies(page: &mut Page, disks: &[NamedDisk]) {
    let name = "headstart_request_seconds";
    page.metric(
        name,
        Kind::Histogram,
        "Time from a request's arrival until it was served; a miss waited for bytes from elsewhere.",
    );
    for NamedDisk { name: disk, disk: served, .. } in disks {
        let stats = served.stats();
        let kinds = [
            ("hit", &stats.hits),
            ("miss", &stats.misses),
            ("write", &stats.writes),
            ("flush", &stats.flushes),
        ];
        for (kind, histogram) in kinds {
            page.distribution(name, &[("disk", disk), ("kind", kind)], &histogram.snapshot());
        }
    }
}

/// A metric with one sample a disk.
fn each_disk(
    page: &mut Page,
    name: &str,
    kind: Kind,
    help: &str,
    disks: &[NamedDisk],
    value: impl Fn(&NamedDisk) -> Option<f64>,
) {
    page.each(name, kind, help, disks.iter().map(|disk| ([("disk", disk.name.as_str())], value(disk))));
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus has nothing but doubles")]
fn number(value: u64) -> f64 {
    value as f64
}

fn requests(page: &mut Page, disks: &[NamedDisk]) {
    let load = |counter: &AtomicU64| Some(number(counter.load(Ordering::Relaxed)));
    let mut one = |name, kind, help, value: &dyn Fn(&NamedDisk) -> Option<f64>| {
        each_disk(page, name, kind, help, disks, value);
    };
    one("headstart_read_bytes_total", Kind::Counter, "Bytes read by clients.", &|d| {
        load(&d.disk.stats().read_bytes)
    });
    one("headstart_written_bytes_total", Kind::Counter, "Bytes written or zeroed by clients.", &|d| {
        load(&d.disk.stats().written_bytes)
    });
    one("headstart_request_errors_total", Kind::Counter, "Requests that failed.", &|d| {
        load(&d.disk.stats().errors)
    });
    one("headstart_waiting_reads", Kind::Gauge, "Reads that wait for bytes from elsewhere.", &|d| {
        load(&d.disk.stats().waiting)
    });
}

/// A metric of a writable layer: its name, kind, help, value.
type WritableGauge = (&'static str, Kind, &'static str, fn(&SpaceStatus) -> Option<u64>);

const WRITABLE: &[WritableGauge] = &[
    ("headstart_writable_live_bytes", Kind::Gauge, "Bytes in the writable directory that are read.", |s| {
        Some(s.live_bytes)
    }),
    (
        "headstart_writable_garbage_bytes",
        Kind::Gauge,
        "Bytes there that were overwritten or discarded, and of the log.",
        |s| Some(s.garbage_bytes),
    ),
    (
        "headstart_writable_collected_bytes_total",
        Kind::Counter,
        "Bytes of garbage that were given back to the file system.",
        |s| Some(s.collected_bytes),
    ),
    (
        "headstart_writable_copied_bytes_total",
        Kind::Counter,
        "Bytes that were written again to free the blocks around them, or to merge small pieces.",
        |s| Some(s.copied_bytes),
    ),
    (
        "headstart_writable_copied_up_bytes",
        Kind::Gauge,
        "Those of the bytes read that merging small pieces has copied up from the image.",
        |s| Some(s.copied_up_bytes),
    ),
    (
        "headstart_writable_throttled_writes_total",
        Kind::Counter,
        "Writes and discards that waited until garbage was collected.",
        |s| Some(s.throttled_writes),
    ),
    (
        "headstart_writable_refused_writes_total",
        Kind::Counter,
        "Writes and discards refused because the disk is in too many small pieces.",
        |s| Some(s.refused_writes),
    ),
    ("headstart_writable_waiting_writes", Kind::Gauge, "Writes and discards that wait for that now.", |s| {
        Some(s.waiting_writes)
    }),
    ("headstart_writable_runs", Kind::Gauge, "Runs of the map in memory, some 50 bytes each.", |s| {
        Some(s.runs)
    }),
    (
        "headstart_writable_max_bytes",
        Kind::Gauge,
        "Most bytes that the directory may take, where limited.",
        |s| s.max_bytes,
    ),
];

fn writable(page: &mut Page, disks: &[NamedDisk]) {
    for (name, kind, help, value) in WRITABLE {
        each_disk(page, name, *kind, help, disks, |disk| value(&disk.disk.writable()?.space()).map(number));
    }
}

fn local(page: &mut Page, disks: &[NamedDisk]) {
    let mut one = |name, help, value: &dyn Fn(&NamedDisk) -> Option<f64>| {
        each_disk(page, name, Kind::Gauge, help, disks, value);
    };
    one("headstart_image_bytes", "Bytes of the image's blobs as stored.", &|d| {
        Some(number(d.local_bytes().1))
    });
    one("headstart_image_local_bytes", "Bytes of them that are on this host.", &|d| {
        Some(number(d.local_bytes().0))
    });
    one(
        "headstart_image_unproven_bytes",
        "Of those, bytes on this host that neither a hash tree nor the digest of a whole blob proves.",
        &|d| Some(number(d.disk.puller().map_or(0, |puller| puller.blobs().unproven_bytes()))),
    );
}

fn link(page: &mut Page, disks: &[NamedDisk]) {
    let mut one = |name, help, value: &dyn Fn(&NamedDisk) -> Option<f64>| {
        each_disk(page, name, Kind::Gauge, help, disks, value);
    };
    let estimate = |d: &NamedDisk| Some(d.disk.puller()?.estimate());
    one("headstart_bandwidth_bytes", "Estimated bandwidth of the link in bytes a second.", &|d| {
        estimate(d)?.bandwidth.map(number)
    });
    one("headstart_round_trip_seconds", "Estimated round trip to the store.", &|d| {
        estimate(d)?.round_trip.map(|time| time.as_secs_f64())
    });
    one("headstart_fill_seconds", "Estimated time until the disk is filled, if filling is on.", &|d| {
        d.disk.puller()?.progress().eta.map(|time| time.as_secs_f64())
    });
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

fn pulling(page: &mut Page, disks: &[NamedDisk]) {
    let counted: Vec<_> =
        disks.iter().filter_map(|d| Some((d.name.as_str(), d.disk.puller()?.counters()))).collect();
    let mut last = "";
    for (name, labels, value) in PULL {
        let metric = format!("headstart_pull_{name}_total");
        if *name != last {
            page.metric(&metric, Kind::Counter, &format!("The pull engine's {}.", name.replace('_', " ")));
            last = name;
        }
        for (disk, counters) in &counted {
            let labels: Vec<_> = [("disk", *disk)].into_iter().chain(labels.iter().copied()).collect();
            page.sample(&metric, &labels, value(counters));
        }
    }
}

fn slow_reads(page: &mut Page, disks: &[NamedDisk]) {
    let name = "headstart_slow_reads_total";
    let help =
        "Reads slower than a second: unforeseen by a plan, planned but late, while the store failed, other.";
    page.metric(name, Kind::Counter, help);
    for disk in disks {
        for cause in SlowCause::ALL {
            let labels = [("disk", disk.name.as_str()), ("cause", cause.name())];
            page.sample(name, &labels, disk.disk.stats().slow_by(cause));
        }
    }
}

/// A metric of preloaded bytes: its name, help, value.
type PreloadGauge = (&'static str, &'static str, fn(&Preloaded) -> Option<f64>);

const PRELOAD: &[PreloadGauge] = &[
    ("headstart_preloaded_bytes", "Bytes of the disk that were preloaded as planned.", |p| {
        Some(number(p.report.preloaded))
    }),
    ("headstart_preloaded_used_bytes", "Of those, bytes that were read.", |p| Some(number(p.report.used))),
    (
        "headstart_preloaded_due_bytes",
        "Of the preloaded bytes, those that should have been read by now.",
        |p| Some(number(p.report.due)),
    ),
    (
        "headstart_preloaded_due_used_bytes",
        "Of the bytes that should have been read by now, those that were read.",
        |p| Some(number(p.report.due_used)),
    ),
    ("headstart_preload_accuracy", "The share of the preloaded bytes that was read, from 0 to 1.", |p| {
        share(p.report.used, p.report.preloaded)
    }),
    ("headstart_preload_stopped", "1 if preloading was stopped because it did harm, otherwise 0.", |p| {
        Some(if p.report.stopped.is_some() { 1.0 } else { 0.0 })
    }),
];

fn preloading(page: &mut Page, disks: &[NamedDisk]) {
    let done: Vec<_> =
        disks.iter().filter_map(|d| Some((d.name.as_str(), d.disk.preloader()?.preloaded()))).collect();
    page.metric("headstart_plan_info", Kind::Gauge, "The plan that is followed: its place and its origin.");
    for (disk, preloaded) in &done {
        let Some(origin) = preloaded.origin else { continue };
        let labels = [("disk", *disk), ("plan", origin.name()), ("from", preloaded.why.as_str())];
        page.sample("headstart_plan_info", &labels, 1);
    }
    for (name, help, value) in PRELOAD {
        page.metric(name, Kind::Gauge, help);
        for (disk, preloaded) in &done {
            if let Some(value) = value(preloaded) {
                page.sample(name, &[("disk", disk)], value);
            }
        }
    }
    let name = "headstart_plan_switches_total";
    page.metric(
        name,
        Kind::Counter,
        "Changes to another plan, for another group of boots or another bandwidth.",
    );
    for (disk, preloaded) in &done {
        let switches = preloaded.report.switches;
        for (to, number) in [("group", switches.groups), ("bandwidth", switches.bins)] {
            page.sample(name, &[("disk", disk), ("to", to)], number);
        }
    }
    let name = "headstart_plan_failures_total";
    page.metric(name, Kind::Counter, "Places that were searched for plans and could not be used.");
    for (disk, preloaded) in &done {
        page.sample(name, &[("disk", disk)], preloaded.failures);
    }
}

fn cache(page: &mut Page, session: &DiskSession) {
    let Some(cache) = &session.cache else { return };
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
    page.numbers("headstart_cache", Kind::Counter, &numbers);
}

fn stores(page: &mut Page, session: &DiskSession) {
    let counted: Vec<_> = session.stores.iter().map(|store| (store.location(), store.counters())).collect();
    let mut one = |name: &str, help: &str, value: &dyn Fn(&headstart_store::StoreCounters) -> u64| {
        let metric = format!("headstart_store_{name}_total");
        page.metric(&metric, Kind::Counter, help);
        for (location, counters) in &counted {
            page.sample(&metric, &[("store", location)], value(counters));
        }
    };
    one("requests", "Requests sent to the store.", &|c| c.requests);
    one("bytes", "Bytes of blobs received.", &|c| c.bytes);
    one("retries", "Metadata calls tried again.", &|c| c.retries);
    one("hedges", "Demand reads sent a second time.", &|c| c.hedges);
    one("hedges_won", "Second requests that were answered first.", &|c| c.hedges_won);
    one("errors", "Reads that failed.", &|c| c.errors);
}

fn swarm(page: &mut Page, session: &DiskSession, connection: &AgentConnection) {
    let name = "headstart_swarm_connected";
    page.metric(name, Kind::Gauge, "1 if the agent of this host is connected, otherwise 0.");
    page.sample(name, &[], u8::from(connection.connected));
    let numbers = [
        ("lost_connections", "Times that the connection to the agent was lost.", connection.lost),
        ("wants", "Ranges that were requested from the agent.", connection.wants),
        (
            "unanswered_wants",
            "Ranges that were requested from the agent and not answered, because it was away or went away.",
            connection.unanswered,
        ),
    ];
    page.numbers("headstart_swarm", Kind::Counter, &numbers);
    let name = "headstart_swarm_brought_bytes_total";
    page.metric(name, Kind::Counter, "Bytes that other hosts delivered while the disk waited for them.");
    for disk in &session.disks {
        let brought = disk.disk.puller().map_or(0, |puller| puller.brought_by_swarm());
        page.sample(name, &[("disk", &disk.name)], brought);
    }
}

fn traces(page: &mut Page, session: &DiskSession) {
    let mut one = |name, help, value: fn(&Recorder) -> u64| {
        each_disk(page, name, Kind::Counter, help, &session.disks, |disk| {
            disk.recorder.as_deref().map(|recorder| number(value(recorder)))
        });
    };
    one("headstart_trace_records_total", "Requests that were recorded.", Recorder::recorded);
    one(
        "headstart_trace_dropped_records_total",
        "Requests that arrived while the recorder was full.",
        Recorder::dropped,
    );
    one("headstart_trace_boots_total", "Boots that began.", Recorder::boots);
    let Some(traces) = &session.traces else { return };
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
    page.numbers("headstart_trace", Kind::Counter, &numbers);
}
