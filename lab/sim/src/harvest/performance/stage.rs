//! The start of runs: flash, vSSDs that are full and aged, blocks that are lent.

use headstart_block::random::Random;
use headstart_block::{Error, Result, exact};
use headstart_flash::device::{FlashBlock, Geometry};
use headstart_flash::vssd::{CollectStep, Effort, Place, Vssd, VssdSettings};
use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks, each with its number of erasures.
pub(super) type Blocks = Vec<(FlashBlock, u32)>;

/// Blocks of a die where collecting does not matter.
pub(super) const FEW: u32 = 32;

/// Flash of BlockFlex's dies and pages, with fewer blocks: `blocks` a die instead of 4,096. The duration of an
/// operation does not depend on the number of blocks; the success of collecting does, as it keeps some open on every
/// die.
pub(super) fn flash(channels: u16, blocks: u32) -> Geometry {
    Geometry { channels, planes: 1, blocks, ..Geometry::default() }
}

/// All blocks of channels.
pub(super) fn blocks(geometry: &Geometry, channels: Range<u16>) -> Blocks {
    channels.flat_map(|channel| geometry.blocks_of(channel)).map(|number| (FlashBlock(number), 0)).collect()
}

/// The bytes of a disk that fills `share` of `blocks` blocks.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "a size for a test")]
#[expect(clippy::cast_sign_loss, reason = "at least zero")]
pub(super) fn size(geometry: &Geometry, blocks: usize, share: f64) -> u64 {
    // Whole groups of the interleave, so that every logical block can be filled in place.
    let group = u64::from(WIDTH) / 4;
    let count = (blocks as f64 * share) as u64 / group * group;
    count.max(group) * u64::from(geometry.block_size())
}

/// The number of logical blocks that neighbours are spread over: as of a disk of 128 GB, though these are smaller.
const WIDTH: u32 = 64;

/// A vSSD of `bytes`.
pub(super) fn vssd(geometry: &Geometry, home: &[(FlashBlock, u32)], bytes: u64) -> Result<Vssd> {
    let settings = VssdSettings { interleave: WIDTH, ..VssdSettings::new(*geometry, bytes) };
    Vssd::new(&settings, home)
}

/// Writes all pages, in order, in no time.
pub(super) fn fill(vssd: &mut Vssd) -> Result<()> {
    (0..vssd.pages()).try_for_each(|page| write(vssd, page))
}

/// Overwrites `times` pages for each that it has, at random, in no time: collecting has to begin sooner.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count for a test")]
pub(super) fn age(vssd: &mut Vssd, times: f64, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    let (pages, count) = (vssd.pages() as usize, (f64::from(vssd.pages()) * times) as u64);
    for _ in 0..count {
        write(vssd, exact(random.below(pages), "a disk's pages have numbers of 32 bits"))?;
    }
    Ok(())
}

fn write(vssd: &mut Vssd, page: u32) -> Result<()> {
    loop {
        while vssd.is_short() && collect(vssd)? {}
        match vssd.place(page)? {
            Place::At(placement) => {
                vssd.commit(placement);
                return Ok(());
            }
            Place::Collect if collect(vssd)? => {}
            _ => return Err(Error::invalid("has no room").about("vSSD")),
        }
    }
}

/// Does one step of collecting; `true` if there was one.
fn collect(vssd: &mut Vssd) -> Result<bool> {
    match vssd.collect_next(Effort::Needed) {
        Some(CollectStep::Copy { to, .. }) => drop(vssd.commit(to)),
        Some(CollectStep::Erase { block }) => vssd.erased(block, 1)?,
        Some(CollectStep::Sync { up_to }) => vssd.durable(up_to),
        None => return Ok(false),
    }
    Ok(true)
}

/// Lends `share` of the blocks of each of its channels; they are clean.
pub(super) fn lend(vssd: &mut Vssd, geometry: &Geometry, share: f64) -> Result<Blocks> {
    let mut counts: BTreeMap<u16, u32> = BTreeMap::new();
    let (channels, _) = vssd.lendable(0);
    for (channel, _) in channels {
        counts.insert(channel, part(geometry.channel_blocks(), share));
    }
    let wanted: Vec<_> = counts.into_iter().collect();
    let (blocks, _) = vssd.lend(&wanted, 0)?;
    Ok(blocks.into_iter().map(|block| (block, 0)).collect())
}

/// A share of a number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a small number")]
pub(super) fn part(of: u32, share: f64) -> u32 {
    (f64::from(of) * share) as u32
}
