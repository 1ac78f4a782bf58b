//! Conversions of plans before a disk follows them: a plan made of a list, the order in which an image stores the
//! slices, whole blocks.

use headstart_block::PlanItem;
use headstart_plan::{Centroid, GroupPlans, ImagePlans, RatedPlan};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The divisor of the bytes in one place that gives the number that may be fetched though the plan does not name them.
const HOLES_PART: u64 = 8;

/// Returns plans that consist of one list of items, which is followed for every boot and at every bandwidth.
#[must_use]
pub fn of_items(items: &[PlanItem]) -> ImagePlans {
    let plan =
        RatedPlan { rate: 0, policy: "list".to_owned(), weights: None, score: 0.0, items: items.into() };
    let group = GroupPlans {
        category: 0,
        entrypoint: String::new(),
        traces: 0,
        centroid: Centroid::default(),
        first_reads: Arc::from([]),
        plans: vec![plan],
    };
    ImagePlans::of_own(vec![group])
}

/// Returns the plans reordered for an image whose boot layer stores slices contiguously in the order `order`. Each
/// returned plan names first its slices of that layer, in the layer's order, so that one sequential read fetches them,
/// and then its other slices. If a plan has at least seven eighths of the layer's slices, the missing ones are added.
#[must_use]
pub fn laid_out(mut plans: ImagePlans, order: &[PlanItem]) -> ImagePlans {
    for plan in plans.groups.iter_mut().flat_map(|group| &mut group.plans) {
        plan.items = reordered(&plan.items, order).into();
    }
    plans
}

fn reordered(items: &[PlanItem], order: &[PlanItem]) -> Vec<PlanItem> {
    let mut wanted = HashMap::<u64, u32>::new();
    items.iter().for_each(|item| *wanted.entry(item.block).or_default() |= item.mask);
    let count = |items: &[PlanItem]| items.iter().map(|item| u64::from(item.mask.count_ones())).sum::<u64>();
    let of_plan = |item: &PlanItem| item.mask & wanted.get(&item.block).copied().unwrap_or(0);
    let laid: Vec<_> = order.iter().map(|item| PlanItem { block: item.block, mask: of_plan(item) }).collect();
    // A few holes cost more than the slices in them.
    let whole = count(&laid) * HOLES_PART >= count(order) * (HOLES_PART - 1);
    let first = if whole { order.to_vec() } else { laid };
    for item in &first {
        if let Some(wanted) = wanted.get_mut(&item.block) {
            *wanted &= !item.mask;
        }
    }
    let rest = items.iter().map(|item| {
        let wanted = wanted.entry(item.block).or_default();
        let mask = item.mask & *wanted;
        *wanted &= !mask;
        PlanItem { block: item.block, mask }
    });
    let rest: Vec<_> = rest.collect();
    first.into_iter().chain(rest).filter(|item| item.mask != 0).collect()
}

/// Returns the plans with whole blocks (2 MiB) instead of slices; each block is named once, at the position
/// of its first item.
#[must_use]
pub fn in_whole_blocks(mut plans: ImagePlans) -> ImagePlans {
    for plan in plans.groups.iter_mut().flat_map(|group| &mut group.plans) {
        let mut known = HashSet::new();
        let blocks = plan.items.iter().map(|item| item.block).filter(|block| known.insert(*block));
        plan.items = blocks.map(PlanItem::whole).collect();
    }
    plans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(items: &[(u64, u32)]) -> Vec<PlanItem> {
        items.iter().map(|(block, mask)| PlanItem { block: *block, mask: *mask }).collect()
    }

    #[test]
    fn slices_in_one_place_come_in_the_order_of_the_data() {
        let order = items(&[(3, 0xff), (1, 0xff), (3, 0xff00)]);
        let plan = items(&[(1, 0x1ff), (3, 0xff), (7, 1), (3, 0xff00)]);
        assert_eq!(reordered(&plan, &order), items(&[(3, 0xff), (1, 0xff), (3, 0xff00), (1, 0x100), (7, 1)]));
        // A small hole is read over, a large one is left out.
        let plan = items(&[(1, 0xff), (3, 0xfffe)]);
        assert_eq!(reordered(&plan, &order), order);
        let plan = items(&[(1, 0xff), (3, 0xf0)]);
        assert_eq!(reordered(&plan, &order), items(&[(3, 0xf0), (1, 0xff)]));
        assert_eq!(reordered(&[], &order), []);
        assert_eq!(reordered(&plan, &[]), plan);
    }

    #[test]
    fn a_block_without_slices_comes_at_its_first_place() {
        let plans = in_whole_blocks(of_items(&items(&[(3, 1), (1, 2), (3, 4)])));
        assert_eq!(plans.groups[0].plans[0].items.to_vec(), [3, 1].map(PlanItem::whole));
    }
}
