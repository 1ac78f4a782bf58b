//! Figures 9 and 16: single boots.
//!
//! The choice of boots follows from the number of blocks that they read: one boot in the middle of its image's, or two
//! at the quarters. So if most are whole boots, the shown ones are, too.

use super::{Drawn, Material};
use headstart_plot::{Axis, Chart, Picture, Series};
use headstart_trace::stats::{BLOCK, boot};
use headstart_trace::{Op, Trace};
use std::collections::BTreeSet;

/// Images that figure 9 shows.
const IMAGES: usize = 2;
/// Blocks that figure 16 shows of each boot.
const FIRST: usize = 200;

impl Material<'_> {
    /// The boots of each image and size of disk by the number of blocks that they read, the group with the most first.
    fn by_blocks(&self) -> Vec<Vec<usize>> {
        let of_group = |group: std::ops::Range<usize>| {
            let blocks = |index: &usize| self.blocks.get(*index).copied().flatten();
            let mut boots: Vec<_> =
                group.filter(|index| blocks(index).is_some_and(|blocks| blocks > 0)).collect();
            boots.sort_by_key(|index| (blocks(index), *index));
            boots
        };
        let mut groups: Vec<_> = self.set.groups().map(of_group).filter(|boots| !boots.is_empty()).collect();
        groups.sort_by_key(|boots| std::cmp::Reverse(boots.len()));
        groups
    }

    fn read(&self, index: usize) -> Result<Trace, &'static str> {
        self.set.read(index).map(|(trace, _)| trace).map_err(|_| "a trace cannot be read any more")
    }
}

/// A boot's name: its image, its disk.
fn name(trace: &Trace) -> String {
    let (image, volume) = (&trace.creation.image, &trace.creation.volume);
    if image.is_empty() { volume.clone() } else { format!("{image}, disk {volume}") }
}

/// The blocks of these boots' disks, or up to the last read one if a size is not known.
#[expect(clippy::cast_precision_loss, reason = "a plot")]
fn blocks_axis(traces: &[&Trace]) -> Axis {
    let of_trace = |trace: &&Trace| {
        let read =
            trace.records.iter().filter(|record| record.op == Op::Read).map(|record| record.range.end());
        trace.creation.size.max(read.max().unwrap_or_default())
    };
    let bytes = traces.iter().map(of_trace).max().unwrap_or_default();
    let blocks = bytes.div_ceil(BLOCK).max(1) as f64;
    Axis::linear("block of 2 MiB").from(0.0).to(blocks)
}

/// Figure 9.
pub(super) fn patterns(material: &Material<'_>) -> Drawn {
    material.readable()?;
    let mut picture = Picture::new("").columns(2).panel(440.0, 320.0);
    let mut shown = BTreeSet::new();
    for boots in material.by_blocks() {
        let Some(index) = boots.get(boots.len() / 2) else { continue };
        let trace = material.read(*index)?;
        // An image on disks of several sizes is one image.
        if shown.len() == IMAGES || !shown.insert(trace.creation.image_id().to_owned()) {
            continue;
        }
        #[expect(clippy::cast_precision_loss, reason = "a plot")]
        let points = boot::pattern(&trace).into_iter().map(|(t_us, block)| (t_us as f64 / 1e6, block as f64));
        let axes = (Axis::linear("time since the first request [s]").from(0.0), blocks_axis(&[&trace]));
        let series = Series::stripes("", points.collect());
        picture = picture.with(Chart::new(axes.0, axes.1).titled(name(&trace)).with(series));
    }
    if picture.charts.is_empty() {
        return Err("no trace has reads");
    }
    let note = "Of each of the two images with the most boots, the one in the middle by blocks read.";
    Ok(Picture { columns: picture.charts.len(), ..picture }.note(note))
}

/// Figure 16.
pub(super) fn first_blocks(material: &Material<'_>) -> Drawn {
    material.readable()?;
    let groups = material.by_blocks();
    let boots = groups.first().filter(|boots| boots.len() > 1);
    let boots = boots.ok_or("no image has two boots on disks of one size")?;
    let at = |part: usize| boots.get((boots.len() - 1) * part / 4).copied().unwrap_or_default();
    let (lower, upper) = if boots.len() < 4 { (at(0), at(4)) } else { (at(1), at(3)) };
    let traces = [material.read(lower)?, material.read(upper)?];
    let orders = traces.each_ref().map(|trace| boot::first_blocks(trace, FIRST));
    let common = common_order(&orders[0], &orders[1]);
    let axis = blocks_axis(&traces.each_ref());
    let mut picture = Picture::new("").columns(2).panel(440.0, 320.0);
    for ((trace, order), common) in traces.iter().zip(&orders).zip(&common) {
        picture = picture.with(order_chart(order, common, axis.clone()).titled(name(trace)));
    }
    let kept = common[0].len();
    let note =
        format!("Of {} blocks, {kept} are in the same order in both.", orders[0].len().min(orders[1].len()));
    Ok(picture.note(note))
}

/// A boot's first blocks: those in the order of the other boot, and the others.
#[expect(clippy::cast_precision_loss, reason = "a plot")]
fn order_chart(order: &[u64], common: &BTreeSet<usize>, blocks: Axis) -> Chart {
    let points = |kept: bool| {
        let some = order.iter().enumerate().filter(|(rank, _)| common.contains(rank) == kept);
        some.map(|(rank, block)| (rank as f64 + 1.0, *block as f64)).collect()
    };
    Chart::new(Axis::linear("order of the first read"), blocks)
        .with(Series::points("in the same order in both", points(true)).small())
        .with(Series::points("in another order, or in one boot only", points(false)).small())
}

/// The places, in both lists, of a longest common subsequence.
fn common_order(a: &[u64], b: &[u64]) -> [BTreeSet<usize>; 2] {
    // The lengths of common subsequences of the rests from each pair of places on: a table of at most 201 by 201.
    let mut lengths = vec![vec![0_u16; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            lengths[i][j] = if a[i] == b[j] {
                lengths[i + 1][j + 1] + 1
            } else {
                lengths[i + 1][j].max(lengths[i][j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut places = [BTreeSet::new(), BTreeSet::new()];
    while i < a.len() && j < b.len() {
        if a[i] == b[j] {
            places[0].insert(i);
            places[1].insert(j);
            (i, j) = (i + 1, j + 1);
        } else if lengths[i + 1][j] >= lengths[i][j + 1] {
            i += 1;
        } else {
            j += 1;
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_common_order_is_found() {
        let [a, b] = common_order(&[1, 2, 3, 4, 5], &[2, 9, 1, 4, 3, 5]);
        assert_eq!((a.len(), b.len()), (3, 3));
        assert!(a.contains(&4) && b.contains(&5));
        assert_eq!(common_order(&[], &[1]), [BTreeSet::new(), BTreeSet::new()]);
    }
}
