//! The metrics of a host that lends spare flash, for Prometheus.

use super::export_process::ExportProcessStatus;
use super::vssd::ServedVssd;
use crate::host::{FlashStatus, HostStatus, JournalStatus};
use headstart_broker::Counters;
use headstart_telemetry::exposition::{self, MetricType, MetricValue, Number, PageEncoder, PageFormat};
use std::fmt;

/// A number of a vSSD: the end of its metric's name, its help text, the number.
type OfVssd = (&'static str, &'static str, fn(&ServedVssd) -> u64);

const VSSD: [OfVssd; 10] = [
    ("size_bytes", "Size of the disk that a vSSD's VM sees.", |vssd| vssd.status.size),
    ("channels", "Channels that a vSSD owns.", |vssd| u64::from(vssd.status.channels)),
    ("used_bytes", "Flash that holds data of a vSSD's VM.", |vssd| vssd.status.used),
    ("lent_bytes", "Flash of a vSSD that is lent, or in the pool to be lent.", |vssd| vssd.status.lent),
    ("offered_bytes", "Flash of a vSSD that can be requested.", |vssd| vssd.status.offered),
    ("erasing_bytes", "Flash of a vSSD that can be requested once it is erased.", |vssd| vssd.status.erasing),
    ("leased_bytes", "Flash of a vSSD that harvest vSSDs have on lease.", |vssd| vssd.status.leased),
    ("borrowed_bytes", "Flash that a harvest vSSD has on lease.", |vssd| vssd.status.borrowed),
    ("leases", "gSSDs that a harvest vSSD has on lease.", |vssd| vssd.status.leases.len() as u64),
    ("clients", "Clients that have a vSSD open by NBD.", |vssd| vssd.clients as u64),
];

const VSSD_IO: [OfVssd; 2] = [
    ("read_bytes", "Bytes that a vSSD's VM read.", |vssd| vssd.status.read_bytes),
    ("written_bytes", "Bytes that a vSSD's VM wrote.", |vssd| vssd.status.written_bytes),
];

/// The page of the metrics of a host and its vSSDs. Counters begin at zero with each daemon, as Prometheus expects;
/// only erasures of flash go on.
pub(super) fn page(vssds: Vec<ServedVssd>, status: HostStatus, format: PageFormat) -> String {
    exposition::page("headstart_harvest", format, move |page| encode(page, &vssds, &status))
}

fn encode(page: &mut PageEncoder<'_>, vssds: &[ServedVssd], status: &HostStatus) -> fmt::Result {
    for (kind, numbers) in [(MetricType::Gauge, &VSSD[..]), (MetricType::Counter, &VSSD_IO[..])] {
        for (name, help, number) in numbers {
            of_vssds(page, name, kind, help, vssds.iter().map(|vssd| (vssd, Some(number(vssd)))))?;
        }
    }
    let wear = vssds.iter().map(|vssd| (vssd, Some(vssd.status.harvest_wear)));
    let help = "Of all erasures of a vSSD's channels, those for harvest VMs.";
    of_vssds(page, "harvest_wear_ratio", MetricType::Gauge, help, wear)?;
    let forecast = |vssd: &ServedVssd| vssd.status.forecast.as_ref().map(|forecast| forecast.capacity);
    let forecasts = vssds.iter().map(|vssd| (vssd, forecast(vssd)));
    let help = "Flash that a harvest vSSD is forecast to need, or that another one is forecast to spare.";
    of_vssds(page, "forecast_bytes", MetricType::Gauge, help, forecasts)?;
    let processes = |number: fn(&ExportProcessStatus) -> u64| {
        vssds.iter().map(move |vssd| (vssd, vssd.process.as_ref().map(number)))
    };
    let help = "1 while the process that serves a vSSD by vhost-user or as a file does so, otherwise 0.";
    of_vssds(page, "process_up", MetricType::Gauge, help, processes(|process| process.serving.into()))?;
    let help = "Times that this process died and was started again.";
    of_vssds(page, "process_restarts", MetricType::Counter, help, processes(|process| process.restarts))?;
    page.numbers("", MetricType::Gauge, &now(status))?;
    page.numbers("", MetricType::Counter, &broker(&status.broker))?;
    page.numbers("", MetricType::Counter, &flash(&status.flash))?;
    page.numbers("", MetricType::Counter, &journal(&status.journal))
}

/// Adds a metric of each vSSD that has it.
fn of_vssds<'a>(
    page: &mut PageEncoder<'_>,
    name: &str,
    kind: MetricType,
    help: &str,
    values: impl Iterator<Item = (&'a ServedVssd, Option<impl MetricValue>)>,
) -> fmt::Result {
    let labels =
        |vssd: &'a ServedVssd| [("vssd", vssd.status.name.as_str()), ("kind", vssd.status.kind.name())];
    let samples = values.filter_map(|(vssd, value)| Some((labels(vssd), value?)));
    page.each(&format!("vssd_{name}"), kind, help, samples)
}

fn now(status: &HostStatus) -> [Number; 12] {
    let HostStatus { flash, pool, leases, journal, .. } = status;
    let ready = || pool.iter().filter(|gssd| gssd.ready);
    [
        ("flash_bytes", "Flash of the host.", flash.size),
        ("flash_channels", "Channels of the flash.", u64::from(flash.channels)),
        ("flash_free_channels", "Of those, channels that belong to no vSSD.", u64::from(flash.free_channels)),
        ("flash_bad_blocks", "Flash blocks that are not used any more.", flash.bad_blocks),
        ("pool_gssds", "gSSDs that are not on lease.", pool.len() as u64),
        ("pool_ready_gssds", "Of those, gSSDs that are erased and can be requested.", ready().count() as u64),
        ("pool_ready_bytes", "Flash of these.", ready().map(|gssd| gssd.capacity).sum()),
        ("leased_gssds", "gSSDs that harvest VMs have on lease.", leases.len() as u64),
        ("leased_bytes", "Flash of these.", leases.iter().map(|lease| lease.capacity).sum()),
        ("journal_bytes", "Bytes of the journal on disk.", journal.bytes),
        (
            "journal_full",
            "1 while nothing is written, made or lent because the journal's disk is full, otherwise 0.",
            { u64::from(journal.full.is_some()) },
        ),
        (
            "stopped",
            "1 if nothing is made durable any more until the daemon is started again, otherwise 0.",
            { u64::from(status.stopped.is_some()) },
        ),
    ]
}

fn broker(c: &Counters) -> [Number; 19] {
    [
        ("created_gssds", "gSSDs made.", c.created),
        ("returned_gssds", "gSSDs that went back to their lender.", c.returned),
        ("expired_gssds", "Of those, gSSDs that expired in the pool.", c.expired),
        ("requests", "Requests for spare flash.", c.requests),
        ("granted_requests", "Of those, granted in full.", c.granted),
        ("partly_granted_requests", "Of those, granted in part.", c.partly),
        ("refused_requests", "Of those, refused.", c.refused),
        ("leases", "gSSDs given to harvest VMs, for any cause.", c.leases),
        ("replacement_leases", "Of those, gSSDs that replace others that were taken back.", c.replacements),
        ("added_leases", "Of those, gSSDs for a harvest VM that needs more than it requested.", c.added),
        ("released_leases", "Leases that were given back.", c.released),
        ("early_reclamations", "Leases taken back before the requested time was over.", c.early),
        ("migrated_leases", "Leases taken back whose data was moved elsewhere.", c.migrated),
        ("evictions", "Harvest VMs that lost data with a lease.", c.evicted),
        ("evicted_leases", "Leases that ended with those.", c.evicted_leases),
        ("under_harvests", "Times that a harvest VM needed more flash than there was.", c.under_harvests),
        (
            "waste_block_seconds",
            "Leased flash blocks that a harvest VM was forecast not to need, times seconds.",
            c.waste_block_seconds,
        ),
        ("handover_erased_blocks", "Flash blocks erased because they changed hands.", c.erased_blocks),
        ("handover_bad_blocks", "Flash blocks that could not be erased then.", c.bad_blocks),
    ]
}

fn flash(f: &FlashStatus) -> [Number; 6] {
    [
        ("flash_erasures", "Erasures of flash blocks, since the flash was made.", f.erasures),
        ("flash_harvest_erasures", "Of those, for harvest VMs.", f.harvest_erasures),
        ("flash_read_bytes", "Bytes read from flash.", f.read_bytes),
        ("flash_programmed_bytes", "Bytes programmed into flash.", f.programmed_bytes),
        ("written_bytes", "Bytes that VMs wrote.", f.written_bytes),
        (
            "flash_unreadable_pages",
            "Pages that could not be read any more, and are lost.",
            f.unreadable_pages,
        ),
    ]
}

fn journal(j: &JournalStatus) -> [Number; 3] {
    [
        ("journal_records", "Records written into the journal.", j.records),
        ("journal_syncs", "Times that the journal was made durable.", j.syncs),
        ("journal_snapshots", "Snapshots that replaced older records.", j.snapshots),
    ]
}
