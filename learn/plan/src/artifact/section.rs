//! The sections of a file of plans.

use super::wrong;
use crate::encoding::{Reader, Writer};
use crate::layers::{LayerPlans, Part};
use crate::plans::{Centroid, FirstRead, GroupPlans, ImagePlans, RatedPlan};
use crate::policy::Weights;
use crate::zero_shot::ChoiceReason;
use headstart_block::{PlanItem, Result};
use std::sync::Arc;

/// The version from which on files have the times of first reads.
const FIRST_READS: u32 = 2;

impl ChoiceReason {
    fn write(self, writer: &mut Writer) {
        writer.number(match self {
            Self::None => 0_u8,
            Self::Trained => 1,
            Self::Image => 2,
            Self::FamilyUserMeta => 3,
            Self::FamilyUser => 4,
            Self::FamilyMeta => 5,
            Self::Family => 6,
            Self::Layers { .. } => 7,
        });
        if let Self::Layers { known, all } = self {
            writer.number(known);
            writer.number(all);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(match reader.u64()? {
            0 => Self::None,
            1 => Self::Trained,
            2 => Self::Image,
            3 => Self::FamilyUserMeta,
            4 => Self::FamilyUser,
            5 => Self::FamilyMeta,
            6 => Self::Family,
            7 => Self::Layers { known: reader.number()?, all: reader.number()? },
            _ => return Err(wrong()),
        })
    }
}

/// Groups without a reason of their own.
pub(super) fn write_merged(groups: &[GroupPlans], writer: &mut Writer) {
    ChoiceReason::None.write(writer);
    write_groups(groups, writer);
}

fn write_groups(groups: &[GroupPlans], writer: &mut Writer) {
    writer.len(groups.len());
    groups.iter().for_each(|group| group.write(writer));
}

impl ImagePlans {
    pub(super) fn write(&self, writer: &mut Writer) {
        self.reason.write(writer);
        write_groups(&self.groups, writer);
    }

    pub(super) fn read(reader: &mut Reader<'_>, version: u32) -> Result<Self> {
        let reason = ChoiceReason::read(reader)?;
        let count = reader.count(5)?;
        let groups = (0..count).map(|_| GroupPlans::read(reader, version)).collect::<Result<_>>()?;
        Ok(Self { reason, groups })
    }
}

impl GroupPlans {
    fn write(&self, writer: &mut Writer) {
        writer.number(self.category);
        writer.number(self.traces);
        writer.numbers(self.centroid.order.iter().copied());
        let key = |item: &PlanItem| (item.block, item.mask);
        let mut items: Vec<PlanItem> =
            self.plans.iter().flat_map(|plan| plan.items.iter().copied()).collect();
        items.sort_unstable_by_key(key);
        items.dedup();
        writer.numbers(items.iter().map(|item| item.block));
        items.iter().for_each(|item| writer.bytes.extend(item.mask.to_le_bytes()));
        // 0, or the milliseconds and one.
        for same in items.chunk_by(|a, b| a.block == b.block) {
            let ms = same.first().and_then(|item| self.first_read_ms(item.block));
            writer.number(ms.map_or(0, |ms| u64::from(ms) + 1));
        }
        writer.len(self.plans.len());
        for (at, plan) in self.plans.iter().enumerate() {
            writer.number(plan.rate);
            writer.text(&plan.policy);
            writer.float(plan.score);
            writer.number(u8::from(plan.weights.is_some()));
            if let Some(Weights { alpha, beta }) = plan.weights {
                writer.float(alpha);
                writer.float(beta);
            }
            // 0, or the distance to the equal earlier plan.
            let equal = self.plans[..at].iter().rev().position(|earlier| earlier.items == plan.items);
            writer.len(equal.map_or(0, |back| back + 1));
            if equal.is_none() {
                writer.len(plan.items.len());
                for item in &*plan.items {
                    // All items are there.
                    let place = items.binary_search_by_key(&key(item), key);
                    writer.len(place.unwrap_or_default());
                }
            }
        }
    }

    fn read(reader: &mut Reader<'_>, version: u32) -> Result<Self> {
        let (category, traces) = (reader.number()?, reader.u64()?);
        let order = reader.numbers()?;
        let blocks = reader.numbers()?;
        let masks = reader.take(blocks.len().saturating_mul(4))?.chunks_exact(4);
        let item = |(block, mask): (u64, &[u8])| {
            let mask = mask.iter().rev().fold(0, |mask, byte| mask << 8 | u32::from(*byte));
            PlanItem { block, mask }
        };
        let items: Vec<PlanItem> = blocks.into_iter().zip(masks).map(item).collect();
        let first_reads =
            if version < FIRST_READS { Arc::default() } else { read_first_reads(reader, &items)? };
        let count = reader.count(11)?;
        let (mut plans, mut places) = (Vec::with_capacity(count), Vec::new());
        for _ in 0..count {
            let plan = read_plan(reader, &items, &plans, &mut places)?;
            plans.push(plan);
        }
        let (entrypoint, centroid) = (String::new(), Centroid { order });
        Ok(Self { category, entrypoint, traces, centroid, plans, first_reads })
    }
}

/// Reads the times at which the blocks of items, which come sorted, are read first.
fn read_first_reads(reader: &mut Reader<'_>, items: &[PlanItem]) -> Result<Arc<[FirstRead]>> {
    let mut reads = Vec::new();
    for same in items.chunk_by(|a, b| a.block == b.block) {
        let known = reader.u64()?.checked_sub(1).map(u32::try_from);
        if let (Some(known), Some(item)) = (known, same.first()) {
            reads.push(FirstRead { block: item.block, ms: known.map_err(|_| wrong())? });
        }
    }
    // They are searched by bisection.
    if !reads.is_sorted_by(|a, b| a.block < b.block) {
        return Err(wrong());
    }
    Ok(reads.into())
}

/// Reads a plan; `places` is room for the places of its items among `items`.
fn read_plan(
    reader: &mut Reader<'_>,
    items: &[PlanItem],
    earlier: &[RatedPlan],
    places: &mut Vec<usize>,
) -> Result<RatedPlan> {
    let (rate, policy, score) = (reader.u64()?, reader.text()?, reader.float()?);
    let weights = match reader.u64()? {
        0 => None,
        _ => Some(Weights { alpha: reader.float()?, beta: reader.float()? }),
    };
    let back: usize = reader.number()?;
    let items = if back > 0 {
        let equal = earlier.len().checked_sub(back).and_then(|at| earlier.get(at));
        Arc::clone(&equal.ok_or_else(wrong)?.items)
    } else {
        let count = reader.count(1)?;
        places.clear();
        for _ in 0..count {
            let place: usize = reader.number()?;
            if place >= items.len() {
                return Err(wrong());
            }
            places.push(place);
        }
        // The length is known, so the shared slice is made in place.
        places.iter().map(|place| items[*place]).collect()
    };
    Ok(RatedPlan { rate, policy, weights, score, items })
}

impl LayerPlans {
    pub(super) fn write(&self, writer: &mut Writer) {
        writer.number(self.traces);
        writer.text(&self.policy);
        writer.len(self.parts.len());
        for (rate, part) in &self.parts {
            writer.number(*rate);
            writer.numbers(part.keys().copied());
            for (position, mask) in part.values() {
                writer.number(*position);
                writer.bytes.extend(mask.to_le_bytes());
            }
        }
        writer.numbers(self.first_reads.keys().copied());
        self.first_reads.values().for_each(|ms| writer.number(*ms));
    }

    pub(super) fn read(reader: &mut Reader<'_>, version: u32) -> Result<Self> {
        let (traces, policy) = (reader.u64()?, reader.text()?);
        let count = reader.count(2)?;
        let mut plans = Self { traces, policy, ..Self::default() };
        for _ in 0..count {
            let rate = reader.u64()?;
            let mut part = Part::new();
            for block in reader.numbers()? {
                let position = reader.number()?;
                let mask = reader.take(4)?.iter().rev().fold(0, |mask, byte| mask << 8 | u32::from(*byte));
                part.insert(block, (position, mask));
            }
            plans.parts.insert(rate, part);
        }
        if version >= FIRST_READS {
            for block in reader.numbers()? {
                plans.first_reads.insert(block, reader.number()?);
            }
        }
        Ok(plans)
    }
}
