//! The journal of a host with spare flash.

use headstart_block::{Error, Result, Time};
use headstart_broker::{BlockRun, Broker, BrokerAction, BrokerEvent, BrokerSettings, VssdKind};
use headstart_flash::device::FlashBlock;
use headstart_flash::journal::{self, JournalRecord as Entry};
use headstart_flash::vssd::{Change, ChangeKind, Place};
use headstart_flash::{GssdId, VssdId};
use headstart_fuzz::harvest::{GEOMETRY, vssd};
use std::time::Duration;

/// A vSSD lends, another borrows; a third's page is written and goes away again.
pub(crate) fn journal() -> Result<Vec<u8>> {
    let (mut broker, mut actions) = (Broker::new(BrokerSettings::default()), Vec::new());
    let created = |vssd, kind, channel| BrokerEvent::Created {
        vssd: VssdId(vssd),
        kind,
        bandwidth: 1,
        capacity: 32,
        channels: vec![channel],
    };
    let lent = GEOMETRY.blocks_of(0).map(FlashBlock);
    for event in [
        created(1, VssdKind::Regular, 0),
        created(2, VssdKind::Harvest, 1),
        BrokerEvent::Forecast {
            vssd: VssdId(1),
            bandwidth: 1,
            capacity: 9000,
            lasts: Duration::from_secs(9000),
        },
        BrokerEvent::Carved { gssd: GssdId(0), bandwidth: 1, capacity: 32, blocks: BlockRun::gather(lent) },
        BrokerEvent::Erased { gssd: GssdId(0), bad: vec![FlashBlock(3)] },
        BrokerEvent::Deleted { vssd: VssdId(2) },
    ] {
        broker.on_event(Time(1), event, &mut actions);
    }
    let (mut written, mut chain) = (Vec::new(), journal::Chain::begin(1));
    let mut add = |entry: &Entry| -> Result<()> {
        let mut records = Vec::new();
        journal::encode(entry, &mut records)?;
        chain.append(&records, &mut written);
        Ok(())
    };
    for action in actions {
        if let BrokerAction::Journal(step) = action {
            add(&Entry::Broker(step))?;
        }
    }
    let mut disk = vssd()?;
    let snapshot = postcard::to_allocvec(&disk.snapshot()).map_err(|_| Error::invalid("too long"))?;
    // In two parts, as if it were long.
    let vssd = VssdId(1);
    let (first, second) = snapshot.split_at(snapshot.len() / 2);
    for (part, map) in (0..).zip([first, second]) {
        let part = Entry::Snapshot { vssd, part, last: part == 1, map: map.to_vec() };
        add(&part)?;
    }
    let Place::At(placement) = disk.place(5)? else { return Err(Error::invalid("there is room")) };
    let mut changes: Vec<_> = disk.commit(placement).into_iter().collect();
    changes.push(Change { number: 2, what: ChangeKind::Lost { page: 5 } });
    changes.push(Change { number: 3, what: ChangeKind::Unmap { first: 0, count: 9 } });
    for change in changes {
        let change = postcard::to_allocvec(&change).map_err(|_| Error::invalid("too long"))?;
        add(&Entry::Map { vssd, change })?;
    }
    add(&Entry::Whole)?;
    Ok(written)
}
