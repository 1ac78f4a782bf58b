//! The agent's metrics for Prometheus. The disks' processes have metrics of their own.

use super::Served;
use crate::disks::DiskState;
use crate::pin_manager::PinStatus;
use crate::scrub::ScrubCounts;
use headstart_telemetry::exposition::{self, MetricType, Number, PageEncoder, PageFormat};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const STATES: [(DiskState, &str); 4] = [
    (DiskState::Starting, "starting"),
    (DiskState::Serving, "serving"),
    (DiskState::Restarting, "restarting"),
    (DiskState::Detaching, "detaching"),
];

/// The page of the agent's metrics.
pub(super) fn render(served: Arc<Served>, pins: Vec<PinStatus>, format: PageFormat) -> String {
    exposition::page("headstart_agent", format, move |page| encode(page, &served, &pins))
}

fn encode(page: &mut PageEncoder<'_>, served: &Served, pins: &[PinStatus]) -> fmt::Result {
    let disks = served.disks.list();
    let states = STATES.map(|(state, name)| {
        ([("state", name)], disks.iter().filter(|disk| disk.state == state).count() as u64)
    });
    page.each("disks", MetricType::Gauge, "Disks that the agent looks after, by what they do.", states)?;
    let help = "How often a disk's process died and was started again.";
    let restarts = disks.iter().map(|disk| ([("disk", disk.spec.name.as_str())], disk.restarts));
    page.each("disk_restarts", MetricType::Counter, help, restarts)?;
    page.numbers("cache_", MetricType::Counter, &cached(served))?;
    if let Some(swarm) = &served.swarm {
        let status = swarm.status();
        let sum = |number: fn(&PinStatus) -> u64| pins.iter().map(number).sum();
        page.numbers(
            "swarm_",
            MetricType::Gauge,
            &[
                ("peers", "Hosts that this host is connected to.", status.peers.len() as u64),
                ("blobs", "Blobs that this host shares.", status.blobs.len() as u64),
                ("pinned_images", "Images that hosts of the swarm keep together.", pins.len() as u64),
                ("kept_bytes", "Bytes of these that this host keeps.", sum(|pin| pin.bytes)),
                ("kept_lacking_bytes", "Of those, bytes that are not here.", sum(|pin| pin.lacking_bytes)),
                (
                    "tracked_images",
                    "Images for which this host, as a tracker, counts the reads of disks.",
                    swarm.hint_counters().tracked_images,
                ),
            ],
        )?;
        if let Some(seconds) = swarm.certificate_seconds() {
            let help = "Seconds until this host's certificate ends; 0 once it has.";
            page.numbers("swarm_", MetricType::Gauge, &[("certificate_seconds", help, seconds)])?;
        }
        page.numbers("swarm_", MetricType::Counter, &connections(&swarm.counters()))?;
        page.numbers("swarm_", MetricType::Counter, &decisions(&swarm.node_counters()))?;
        page.numbers("swarm_", MetricType::Counter, &hints(&swarm.hint_counters()))?;
    }
    if let Some(proxy) = &served.proxy {
        page.numbers("proxy_", MetricType::Counter, &proxied(&proxy.counters()))?;
    }
    Ok(())
}

fn cached(served: &Served) -> [Number; 3] {
    let scrub = |count: fn(&ScrubCounts) -> &AtomicU64| {
        served.scrub.as_deref().map_or(0, |counts| count(counts).load(Ordering::Relaxed))
    };
    [
        (
            "damaged_bytes",
            "Bytes of the cache that were right before, that the agent found damaged, and that it dropped.",
            served.cache.counters().damaged_bytes,
        ),
        (
            "scrubbed_bytes",
            "Bytes of the cache that --scrub-rate has checked.",
            scrub(|counts| &counts.bytes),
        ),
        ("scrub_rounds", "Times that it has checked all of the cache.", scrub(|counts| &counts.rounds)),
    ]
}

fn proxied(c: &headstart_range_proxy::ProxyCounters) -> [Number; 6] {
    [
        ("requests", "Requests to the range proxy.", c.requests),
        ("served_requests", "Of those, requests that the cache and the swarm answered.", c.served),
        (
            "served_bytes",
            "Bytes that the range proxy's clients got from the cache and the swarm.",
            c.served_bytes,
        ),
        (
            "filled_bytes",
            "Bytes that the clients' servers delivered because the swarm could not.",
            c.filled_bytes,
        ),
        ("checks", "Times that a server was asked whether a client may read a blob.", c.checks),
        ("impostors", "Of those, servers that had other bytes than the blob's.", c.impostors),
    ]
}

fn connections(c: &headstart_peer_net::SwarmCounters) -> [Number; 14] {
    [
        ("connections", "Connections that were made, either way.", c.connections),
        ("refused_connections", "Connections that were refused.", c.refused_connections),
        ("dropped_corrupt", "Hosts that were dropped because they sent wrong bytes.", c.dropped_corrupt),
        (
            "dropped_other",
            "Hosts that were dropped because of false claims, slowness or nonsense.",
            c.dropped_other,
        ),
        ("sent_bytes", "Bytes of chunks that went to other hosts.", c.sent_bytes),
        ("received_bytes", "Bytes of chunks that came from other hosts.", c.received_bytes),
        (
            "stray_bytes",
            "Bytes of chunks that arrived and were not requested, or not any more.",
            c.stray_bytes,
        ),
        ("fetched_bytes", "Bytes that the agent fetched from stores for other hosts.", c.fetched_bytes),
        ("brought_bytes", "Bytes of disks' requests that other hosts delivered.", c.brought_bytes),
        ("elsewhere_bytes", "Bytes of disks' requests that were left to the store.", c.elsewhere_bytes),
        ("refused_datagrams", "Datagrams that no host of the cluster sealed.", c.refused_datagrams),
        ("renewed_certificates", "Times that this host's certificate was renewed.", c.renewed_certificates),
        (
            "signed_certificates",
            "Certificates of other hosts that this one renewed, as an authority.",
            c.signed_certificates,
        ),
        ("refused_requests", "Requests for certificates that this host refused.", c.refused_requests),
    ]
}

fn hints(c: &headstart_peer_net::HintCounters) -> [Number; 6] {
    [
        ("first_reads", "Slices of images that disks read for the first time while they booted.", c.reads),
        ("foreseen_reads", "Of those, slices that other disks were known to have read.", c.foreseen),
        ("hints", "Hints that came from trackers: slices that other disks read.", c.hints),
        ("unreported_reads", "First reads that were too many to be reported.", c.dropped),
        ("reports", "Reports of disks' reads to trackers.", c.reports),
        ("tracked_reports", "Such reports that this host received as a tracker.", c.tracked_reports),
    ]
}

fn decisions(c: &headstart_swarm::NodeCounters) -> [Number; 14] {
    [
        ("wants", "Ranges that disks requested.", c.wants),
        ("elsewhere_chunks", "Chunks of disks' requests that were left to the store.", c.not_from_peers),
        ("demand_chunks", "Chunks that came from other hosts because a read waited.", c.on_demand),
        (
            "background_chunks",
            "Chunks that came from other hosts for the background work of disks.",
            c.in_background,
        ),
        ("prefetched_chunks", "Chunks that came from other hosts as they advertised them.", c.prefetched),
        ("prefetched_read_chunks", "Of those, chunks that were read since.", c.prefetched_read),
        ("store_chunks", "Chunks that came to this host from the store.", c.from_store),
        ("served_chunks", "Chunks that were sent to other hosts.", c.served),
        ("withheld_chunks", "Chunks that others advertised and that were not prefetched.", c.withheld),
        (
            "resets",
            "Resets of the count of unread bytes, because withheld prefetches would have been hits often enough.",
            c.resets,
        ),
        ("timeouts", "Requests that were given up because their host was silent too long.", c.timeouts),
        ("broken_promises", "Of those, requests whose host had promised to answer.", c.broken),
        ("corrupt_chunks", "Chunks that arrived with wrong bytes.", c.corrupt),
        ("duplicate_chunks", "Chunks that arrived twice.", c.duplicate),
    ]
}
