//! What Prometheus scrapes of a host that lends spare flash.

use super::rest::{Served, Vssd};
use crate::exposition::{Kind, Page};
use headstart_harvest::host::{BrokerStatus, FlashStatus, HostStatus, JournalStatus};

/// A number and what it is: the end of its metric's name, what it counts.
type Number = (&'static str, &'static str, u64);

/// A number of a vSSD: the end of its metric's name, what it is, the number.
type OfVssd = (&'static str, &'static str, fn(&Vssd) -> u64);

const VSSD: [OfVssd; 8] = [
    ("size_bytes", "Size of the disk that a vSSD's VM sees.", |vssd| vssd.status.size),
    ("channels", "Channels that a vSSD owns.", |vssd| u64::from(vssd.status.channels)),
    ("used_bytes", "Flash that holds what a vSSD's VM wrote.", |vssd| vssd.status.used),
    ("lent_bytes", "Flash of a vSSD that is lent, or in the pool to be lent.", |vssd| vssd.status.lent),
    ("borrowed_bytes", "Flash that a harvest vSSD has on lease.", |vssd| vssd.status.borrowed),
    ("leases", "gSSDs that a harvest vSSD has on lease.", |vssd| vssd.status.leases.len() as u64),
    ("clients", "Clients that have a vSSD open by NBD.", |vssd| vssd.clients as u64),
    ("forecast_bytes", "What a vSSD is forecast to need, or to do without.", |vssd| {
        vssd.status.forecast.as_ref().map_or(0, |forecast| forecast.capacity)
    }),
];

pub(super) fn render(served: &Served) -> String {
    page(&served.vssds(), &served.host.status())
}

pub(super) fn page(vssds: &[Vssd], status: &HostStatus) -> String {
    let mut page = Page::default();
    page.metric("headstart_harvest_info", Kind::Gauge, "The version of headstart.");
    page.sample("headstart_harvest_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    for (name, help, number) in VSSD {
        let name = format!("headstart_harvest_vssd_{name}");
        page.metric(&name, Kind::Gauge, help);
        for vssd in vssds {
            page.sample(
                &name,
                &[("vssd", &vssd.status.name), ("kind", vssd.status.kind.name())],
                number(vssd),
            );
        }
    }
    let name = "headstart_harvest_vssd_harvest_wear_ratio";
    page.metric(name, Kind::Gauge, "Of all erasures of a vSSD's channels, those for harvest VMs.");
    for vssd in vssds {
        page.sample(name, &[("vssd", &vssd.status.name)], vssd.status.harvest_wear);
    }
    numbers(&mut page, Kind::Gauge, &now(status));
    numbers(&mut page, Kind::Counter, &broker(&status.broker));
    numbers(&mut page, Kind::Counter, &flash(&status.flash));
    numbers(&mut page, Kind::Counter, &journal(&status.journal));
    page.finish()
}

/// Numbers without labels, each a metric of its own.
fn numbers(page: &mut Page, kind: Kind, numbers: &[Number]) {
    let ending = if matches!(kind, Kind::Counter) { "_total" } else { "" };
    for (name, help, value) in numbers {
        let metric = format!("headstart_harvest_{name}{ending}");
        page.metric(&metric, kind, help);
        page.sample(&metric, &[], value);
    }
}

fn now(status: &HostStatus) -> [Number; 10] {
    let HostStatus { flash, pool, leases, journal, .. } = status;
    let ready = || pool.iter().filter(|gssd| gssd.ready);
    [
        ("flash_bytes", "Flash of the host.", flash.size),
        ("flash_channels", "Channels of it.", u64::from(flash.channels)),
        ("flash_free_channels", "Of those, such that belong to no vSSD.", u64::from(flash.free_channels)),
        ("flash_bad_blocks", "Flash blocks that are not used any more.", flash.bad_blocks),
        ("pool_gssds", "gSSDs that nobody has on lease.", pool.len() as u64),
        ("pool_ready_gssds", "Of those, such that are erased and can be had.", ready().count() as u64),
        ("pool_ready_bytes", "Flash of these.", ready().map(|gssd| gssd.capacity).sum()),
        ("leased_gssds", "gSSDs that harvest VMs have on lease.", leases.len() as u64),
        ("leased_bytes", "Flash of these.", leases.iter().map(|lease| lease.capacity).sum()),
        ("journal_bytes", "What the journal has on disk.", journal.bytes),
    ]
}

fn broker(c: &BrokerStatus) -> [Number; 16] {
    [
        ("created_gssds", "gSSDs made.", c.created),
        ("returned_gssds", "gSSDs that went home.", c.returned),
        ("expired_gssds", "Of those, such that expired in the pool.", c.expired),
        ("requests", "Requests for spare flash.", c.requests),
        ("granted_requests", "Of those, granted in full.", c.granted),
        ("partly_granted_requests", "Of those, granted in part.", c.partly),
        ("refused_requests", "Of those, refused.", c.refused),
        ("leases", "gSSDs given to harvest VMs, for whatever cause.", c.leases),
        ("replacement_leases", "Of those, in the place of such that were taken back.", c.replacements),
        ("added_leases", "Of those, for a harvest VM that needs more than it asked for.", c.added),
        ("released_leases", "Leases that were given back.", c.released),
        ("early_reclamations", "Leases taken back before the time asked for was over.", c.early),
        ("migrated_leases", "Leases taken back whose data was moved elsewhere.", c.migrated),
        ("evictions", "Harvest VMs that lost data with a lease.", c.evicted),
        ("under_harvests", "Times that a harvest VM needed what was not there.", c.under_harvests),
        ("handover_erased_blocks", "Flash blocks erased for a change of hands.", c.erased_blocks),
    ]
}

fn flash(f: &FlashStatus) -> [Number; 5] {
    [
        ("flash_erasures", "Erasures of flash blocks, since the flash was made.", f.erasures),
        ("flash_harvest_erasures", "Of those, for harvest VMs.", f.harvest_erasures),
        ("flash_read_bytes", "Bytes read from flash.", f.read_bytes),
        ("flash_programmed_bytes", "Bytes programmed into flash.", f.programmed_bytes),
        ("written_bytes", "Bytes that VMs wrote.", f.written_bytes),
    ]
}

fn journal(j: &JournalStatus) -> [Number; 3] {
    [
        ("journal_records", "Records written into the journal.", j.records),
        ("journal_syncs", "Times that it was made durable.", j.syncs),
        ("journal_snapshots", "Snapshots that took the place of older records.", j.snapshots),
    ]
}
