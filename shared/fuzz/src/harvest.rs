//! The data that a host that harvests reads back: its journal; and demand series.

use headstart_block::{Error, ErrorKind, Result, Time};
use headstart_broker::{Broker, BrokerSettings};
use headstart_flash::VssdId;
use headstart_flash::custody::Custody;
use headstart_flash::device::{FlashBlock, Geometry};
use headstart_flash::journal::{self, Chain, FRONT, JournalRecord, Snapshots, decode, encode, front, repair};
use headstart_flash::vssd::{self, Change, Snapshot, Vssd};
use headstart_forecast::STEP;
use headstart_predictors::DemandSeries;

/// A small SSD: 2 channels of 32 blocks of 8 pages of 4 KiB.
pub const GEOMETRY: Geometry =
    Geometry { channels: 2, dies: 2, planes: 1, blocks: 16, pages: 8, page_size: 4 << 10 };
/// Steps of a series that are looked at: a line of a few bytes may be a hundred years.
const STEPS_MOST: usize = 10_000;

/// The vSSD whose changes a journal holds, on the first channel.
///
/// # Errors
/// None.
pub fn vssd() -> Result<Vssd> {
    let home: Vec<_> = GEOMETRY.blocks_of(0).map(|block| (FlashBlock(block), 0)).collect();
    Vssd::new(&vssd::VssdSettings::new(GEOMETRY, 12 * u64::from(GEOMETRY.block_size())), &home)
}

/// A host's journal, or its groups without the front: custody, the broker and a vSSD are recovered from it. What is
/// read is written again, and must then be the same.
///
/// # Errors
/// Fails if the input is not one, or says what cannot have happened.
///
/// # Panics
/// Panics if it is not the same.
pub fn harvest_journal(input: &[u8]) -> Result<()> {
    let whole;
    let input = if input.starts_with(&front(1)[..8]) {
        input
    } else {
        whole = [&front(1)[..], input].concat();
        &whole
    };
    let decoded = decode(input);
    let examined = repair::examine(input);
    if let (Ok(decoded), Ok(examined)) = (&decoded, &examined) {
        assert!(examined.records == decoded.records, "examined, it is another journal");
        assert!(decode(&examined.mended)?.records == decoded.records, "mended, it is another journal");
    }
    let decoded = decoded?;
    let (mut written, mut records) = (front(1), Vec::new());
    decoded.records.iter().try_for_each(|record| encode(record, &mut records))?;
    Chain::begin(1).append(&records, &mut written);
    assert!(
        written.len() >= FRONT && decode(&written)?.records == decoded.records,
        "written, it is another journal"
    );
    let steps = || {
        decoded.records.iter().filter_map(|record| match record {
            JournalRecord::Broker(step) => Some(step),
            _ => None,
        })
    };
    Custody::recover(GEOMETRY, steps())?;
    Broker::recover(BrokerSettings::default(), Time(0), steps(), &mut Vec::new())?;
    let (mut disk, mut snapshots) = (vssd()?, Snapshots::default());
    let damaged = |error| Error::new(ErrorKind::Corrupt, "is not a change").caused_by(error);
    for record in &decoded.records {
        match record {
            JournalRecord::Map { vssd: VssdId(_), change } => {
                disk.apply(&postcard::from_bytes::<Change>(change).map_err(damaged)?)?;
            }
            JournalRecord::Snapshot { vssd, part, last, map } => {
                let Some(map) = snapshots.add(*vssd, *part, *last, map.clone())? else { continue };
                // What is put together is what it was cut from.
                let cut = journal::parts(*vssd, &map).collect::<Vec<_>>();
                let mut again = Snapshots::default();
                let mut whole = None;
                for record in cut {
                    let JournalRecord::Snapshot { vssd, part, last, map } = record else { continue };
                    whole = again.add(vssd, part, last, map)?;
                }
                assert!(whole.as_ref() == Some(&map), "cut up, it is another map");
                let snapshot: Snapshot = postcard::from_bytes(&map).map_err(damaged)?;
                disk = Vssd::restore(&snapshot)?;
            }
            JournalRecord::Broker(_) | JournalRecord::Host { .. } | JournalRecord::Whole => {}
        }
    }
    disk.recovered(|_| 0, |block| block.0 % 2 == 0);
    Ok(())
}

/// A demand series, and the steps of three minutes that predictors see.
///
/// # Errors
/// Fails if the input is not one.
pub fn demand_series(input: &[u8]) -> Result<()> {
    let text = str::from_utf8(input).map_err(|_| Error::invalid("it is not text"))?;
    let series: DemandSeries = text.parse()?;
    let _ = series.steps(STEP).take(STEPS_MOST).count();
    Ok(())
}
