//! The generator's statistics are the paper's; and the same seed gives the same.

use super::accuracy::accuracy;
use super::availability::{self, Available};
use super::ceiling::Rules;
use super::fleet::{Fleet, FleetSettings};
use super::foresight::Foresight;
use super::planner::planned;
use super::statistics::{DemandStatistics, OrderedNumbers};
use super::world::{HarvestModel, StorageSource, simulate};
use headstart_broker::gssd::Grain;
use headstart_forecast::PredictorKind;

fn near(what: &str, is: f64, should: f64, by: f64) {
    assert!((is - should).abs() <= by, "{what}: {is:.3}, not {should}");
}

fn fleet() -> Fleet {
    let part = FleetSettings::part(1500, 8);
    Fleet::generate(&FleetSettings { servers: 1400, requests: 4000, history: 0, ..part })
}

#[test]
fn demand_is_as_in_section_2_1() {
    let fleet = fleet();
    let is = DemandStatistics::of(&fleet);
    near("mean bandwidth", is.vm_bandwidth.mean(), 0.092, 0.004);
    near("mean bandwidth of servers", is.server_bandwidth.mean(), 0.086, 0.01);
    assert!(is.vm_bandwidth.max() < 0.34 && is.server_bandwidth.max() < 0.31);
    near("a fifth uses nothing", is.vm_capacity.quantile(0.195), 0.03, 0.02);
    near("half use at most", is.vm_capacity.quantile(0.5), 0.264, 0.02);
    near("a fifth uses", is.vm_capacity.quantile(0.8), 0.90, 0.02);
    near("mean capacity", is.vm_capacity.mean(), 0.43, 0.015);
    let low: OrderedNumbers = is.vm_capacity.numbers().iter().copied().filter(|mean| *mean < 0.6).collect();
    near("mean capacity of those under 60%", low.mean(), 0.20, 0.015);
    near("mean of maxima", is.vm_capacity_max.mean(), 0.49, 0.02);
    near("some unsold", is.unsold.at_least(1e-6), 0.70, 0.03);
    near("mean of half", is.unsold.mean_between(0.5, 1.0), 0.173, 0.01);
    near("a fifth has", is.unsold.quantile(0.8), 0.201, 0.02);
}

/// The shares for one hour, and so on.
fn at(line: &Available, hours: u32) -> f64 {
    let place = availability::HOURS.iter().position(|one| *one == hours).unwrap();
    line.share[place]
}

#[test]
fn availability_is_as_in_section_2_2() {
    let fleet = fleet();
    for line in availability::allocated(&fleet) {
        near(&line.request, at(&line, 12), 0.92, 0.02);
        near(&line.request, at(&line, 72), 0.78, 0.03);
        assert!(at(&line, 1) > 0.95, "{line:?}");
    }
    let servers = availability::unallocated(&fleet);
    near("128 GB for an hour", at(&servers[0], 1), 0.50, 0.03);
    near("128 GB for 12 hours", at(&servers[0], 12), 0.32, 0.03);
    assert!(servers.windows(2).all(|two| at(&two[0], 6) > at(&two[1], 6)));
    let lots = availability::lots(&fleet);
    for (line, expected) in lots.iter().zip([[0.94, 0.76, 0.62], [0.87, 0.59, 0.42], [0.78, 0.43, 0.25]]) {
        for (hours, expected) in [1, 6, 12].into_iter().zip(expected) {
            near(&format!("{} for {hours} h", line.request), at(line, hours), expected, 0.03);
        }
    }
}

#[test]
fn requests_are_as_in_section_5_2() {
    let fleet = fleet();
    let sizes: Vec<_> = fleet.requests.iter().map(|request| request.gigabytes).collect();
    assert_eq!((sizes.iter().min(), sizes.iter().max()), (Some(&32), Some(&512)));
    assert!(sizes.iter().all(|size| size % 16 == 0));
    let days: OrderedNumbers =
        fleet.requests.iter().map(|request| f64::from(request.lasts) / 86_400.0).collect();
    near("shortest", days.numbers()[0] * 48.0, 1.0, 0.1);
    near("longest", days.max(), 8.5, 0.1);
    near("mean", days.mean(), 2.1, 0.05);
    for request in fleet.requests.iter().take(100) {
        let demand = request.demand();
        let used = demand.capacity.over(0, request.lasts);
        assert!(used.max <= 0.95 && used.max >= 0.85 && demand.bandwidth.over(0, request.lasts).max <= 1.0);
        assert_eq!(u32::from(request.channels), request.gigabytes.div_ceil(64));
    }
}

#[test]
fn the_same_seed_gives_the_same_fleet() {
    let settings = FleetSettings::part(40, 2);
    let fleet = Fleet::generate(&settings);
    assert_eq!(fleet, Fleet::generate(&settings));
    assert_ne!(fleet, Fleet::generate(&FleetSettings { seed: 2, ..settings }));
    assert!(fleet.vms.iter().all(|vm| vm.server < fleet.regular_servers));
}

#[test]
fn a_small_fleet_is_harvested() {
    let fleet = Fleet::generate(&FleetSettings { history: 2, ..FleetSettings::part(60, 3) });
    let shipped = Foresight::product(PredictorKind::Default);
    let run = |source, foresight| simulate(&fleet, &HarvestModel::new(source, foresight));
    let is = run(StorageSource::Regular, shipped);
    assert_eq!(is, run(StorageSource::Regular, shipped), "by its seed");
    assert!(
        is.gain > 0.0
            && is.gain <= is.leased
            && is.gain <= is.ceiling
            && is.ceiling <= is.needed.min(is.lendable)
    );
    assert!(is.capacity.times() > 1.2 && is.bandwidth.times() > 1.2, "{is:?}");
    assert!(is.capacity.with_max <= 1.0 && is.bandwidth.with_max <= 1.0);
    assert!(is.early() < 0.1, "{}", is.early());
    let oracle = run(StorageSource::Regular, Foresight::Clairvoyant);
    assert!(oracle.gain <= oracle.ceiling && is.gain > 0.7 * oracle.gain);
    let planned = planned(&fleet, Rules::of(&Grain::default()));
    assert!(planned <= oracle.ceiling && is.gain < planned, "{} {planned}", is.gain);
    let unsold = run(StorageSource::Unsold, shipped);
    assert!(unsold.gain > 0.0 && unsold.gain <= unsold.ceiling);
    assert!(unsold.capacity_low.count == 0 || unsold.capacity_low.times() > 1.1);
}

#[test]
fn more_is_covered_with_a_margin() {
    let fleet = Fleet::generate(&FleetSettings { history: 0, ..FleetSettings::part(1, 1) });
    let lines = accuracy(&fleet, 1);
    assert_eq!(lines.len(), 12);
    for line in lines {
        assert!(line.covered.windows(2).all(|two| two[0] <= two[1] + 1e-9), "{line:?}");
        assert!(line.minutes == 0 || line.covered[0] > 0.5, "{line:?}");
    }
}
