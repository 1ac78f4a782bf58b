//! The value of plans from similar images for an image without traces, beside that of plans from its own.
//!
//! `cargo run --release -p headstart-plan --example zero_shot -- DIR [POLICY [FASTER [OWN]]]`
//!
//! Each image in turn is left out, and planned for from the others by the metadata of its creations (or left out
//! except for OWN of its boots, and planned for from these); and it is trained on its boots but for two, rotating.
//! Both are tested on those two. By the reason of the choice: open-loop hit rates (plans for hits), and closed-loop
//! delays in seconds of hot ranges (plans for boots).

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::too_many_lines,
    reason = "an example"
)]

use headstart_plan::evaluate::{BootEvaluator, BootLink, Evaluator, Misses};
use headstart_plan::knowledge::KnowledgeSettings;
use headstart_plan::policy::Objective;
use headstart_plan::zero_shot::Metadata;
use headstart_plan::{
    Bandwidth, BlockTable, CompactTrace, ImagePlans, Knowledge, RecordedImage, TrainConfig, train,
};
use headstart_trace::DataSet;
use headstart_trace::data_set::DataSetLimits;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const RATES: [u64; 6] = [2, 4, 6, 8, 10, 30];
const BOOT: Objective = Objective::Boot { round_trip: 20_000_000, misses: Misses::RangeThenRest, hot: true };

/// The score of plans on a boot at each rate.
fn score(
    plans: &ImagePlans,
    boot: &CompactTrace,
    block_table: &BlockTable,
    objective: Objective,
) -> Vec<f64> {
    // The evaluators know the blocks of the boot: other pulled blocks must be known, too.
    let mut block_table = block_table.clone();
    let at = |rate: u64| {
        let items = plans.groups.first().and_then(|group| group.at(rate)).map(|plan| plan.items.to_vec());
        let items = items.unwrap_or_default();
        let mut blocks: Vec<u64> = items.iter().map(|item| item.block).collect();
        blocks.sort_unstable();
        block_table.add(&blocks);
        let items: Vec<_> =
            items.iter().filter_map(|item| Some((block_table.id(item.block)?, item.mask))).collect();
        match objective {
            Objective::Hits => {
                let order: Vec<_> = items.iter().map(|(id, _)| *id).collect();
                Evaluator::new(&block_table, Bandwidth::new(rate)).evaluate(&order, boot).hit_rate()
            }
            Objective::Boot { round_trip, misses, .. } => {
                let link = BootLink { bandwidth: Bandwidth::new(rate), round_trip, misses };
                BootEvaluator::new(&block_table, link).evaluate(&items, boot).delay_s()
            }
        }
    };
    rates(objective).iter().map(|rate| rate.bytes()).map(at).collect()
}

fn rates(objective: Objective) -> Vec<Bandwidth> {
    let of = if objective == Objective::Hits { Bandwidth::mib } else { Bandwidth::mb };
    RATES.iter().map(|rate| of(*rate)).collect()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let policy = arguments.get(1).map_or("search", String::as_str);
    let faster = arguments.get(2).map_or(1, |faster| faster.parse().unwrap());
    let kept: usize = arguments.get(3).map_or(0, |own| own.parse().unwrap());
    let dir = Path::new(&arguments[0]);
    let data = DataSet::open(dir, &DataSetLimits::default()).unwrap();
    let labels = std::fs::read_to_string(dir.join("labels.csv")).unwrap_or_default();
    let is_normal = |volume: &str| {
        let label = labels.lines().find_map(|line| line.strip_prefix(volume)?.strip_prefix(','));
        label.is_none_or(|label| label.trim().split(',').next() == Some("normal"))
    };
    let images: BTreeSet<_> = data.creations().iter().map(|c| c.image.clone()).collect();
    let learn = |data: &DataSet| {
        let mut knowledge = Knowledge::new(KnowledgeSettings { faster, ..KnowledgeSettings::default() });
        knowledge.learn(data, 0, &mut |_| Ok(())).unwrap();
        knowledge
    };
    for objective in [Objective::Hits, BOOT] {
        let (policy_name, rates) = (policy.to_owned(), rates(objective));
        let config = TrainConfig { policy: policy_name, objective, rates, ..TrainConfig::default() };
        let mut sums: BTreeMap<String, (Vec<f64>, Vec<f64>, usize)> = BTreeMap::new();
        for image in &images {
            let own = data.filter(|_, creation| creation.image == *image);
            for turn in 0..own.len() / 2 {
                let is_test = |at: usize| at / 2 == turn;
                let volumes = own.creations().iter().enumerate().filter(|(at, _)| !is_test(*at)).take(kept);
                let volumes: Vec<_> = volumes.map(|(_, creation)| &creation.volume).collect();
                let others = data.filter(|_, c| c.image != *image || volumes.contains(&&c.volume));
                let plans = |data: &DataSet| train::all(&learn(data), &config, &mut |_| Ok(())).unwrap();
                let (others, trained) = (plans(&others), plans(&own.filter(|at, _| !is_test(at))));
                for (at, creation) in own.creations().iter().enumerate() {
                    if !is_test(at) || !is_normal(&creation.volume) {
                        continue;
                    }
                    let mut block_table = BlockTable::new(creation.size);
                    let (trace, _) = own.read(at).unwrap();
                    let boot = CompactTrace::of(&trace, &mut block_table).faster(faster, &block_table);
                    let (key, metadata) = (RecordedImage::of(creation), Metadata::of(creation));
                    let (zero, best) = (others.choose(&key, &metadata), trained.choose(&key, &metadata));
                    for reason in [
                        format!("{image:12} {}", zero.reason),
                        format!("~ {}", zero.reason),
                        "~ all".to_owned(),
                    ] {
                        let empty = || (vec![0.0; RATES.len()], vec![0.0; RATES.len()], 0);
                        let sum = sums.entry(reason).or_insert_with(empty);
                        let add = |sum: &mut Vec<f64>, plans: &ImagePlans| {
                            let score = score(plans, &boot, &block_table, objective);
                            sum.iter_mut().zip(score).for_each(|(sum, score)| *sum += score);
                        };
                        add(&mut sum.0, &best);
                        add(&mut sum.1, &zero);
                        sum.2 += 1;
                    }
                }
            }
        }
        println!(
            "{objective:?} by {policy}, guests {faster} times as fast; {RATES:?} MB/s: own / from others"
        );
        for (reason, (own, others, count)) in sums {
            print!("  {reason:42} {count:3}");
            for (own, others) in own.iter().zip(&others) {
                print!("  {:7.3} /{:7.3}", own / count as f64, others / count as f64);
            }
            println!();
        }
    }
}
