//! One decision each.

use super::*;
use VssdKind::{Harvest, Regular, Unsold};

/// A lender that owns 4 channels and 100 blocks, and a borrower that owns 1 and 10.
fn host() -> Host {
    host_with(BrokerSettings::default())
}

fn host_with(settings: BrokerSettings) -> Host {
    let mut host = Host::new(settings);
    host.create(1, Regular, 4, 100);
    host.create(9, Harvest, 1, 10);
    host
}

fn granted(answer: BrokerAnswer) -> Vec<(u8, GssdId)> {
    match answer {
        BrokerAnswer::Granted(grant) => grant.slots,
        other => unreachable!("{other:?}"),
    }
}

#[test]
fn a_gssd_is_what_a_lender_can_spare_in_whole_grains() {
    let mut host = host();
    host.forecast(1, 3, 57, 100);
    let made = host.broker.gssd(GssdId(1)).unwrap();
    assert_eq!((made.bandwidth, made.capacity, made.expire), (3, 50, minutes(90)));
    assert_eq!((host.broker.pool().len(), made.lender, made.in_use), (1, VssdId(1), false));
    // One at a time, and none of less than a grain of anything.
    host.forecast(1, 4, 100, 100);
    assert_eq!(host.broker.gssds().count(), 1);
    for (bandwidth, capacity, lasts) in [(0, 50, 90), (1, 9, 90), (1, 50, 29)] {
        let mut host = host_with(BrokerSettings::default());
        host.forecast(1, bandwidth, capacity, lasts);
        assert_eq!(host.broker.gssds().count(), 0, "{bandwidth} {capacity} {lasts}");
    }
    // A lender cannot spare more than it owns.
    let mut host = host_with(BrokerSettings::default());
    host.forecast(1, 9, 900, 90);
    assert_eq!(host.broker.gssd(GssdId(1)).map(|gssd| (gssd.bandwidth, gssd.capacity)), Some((4, 100)));
}

#[test]
fn an_unsold_lender_lends_one_gssd_a_channel() {
    let mut host = host();
    host.create(2, Unsold, 4, 100);
    host.forecast(2, 4, 100, 90);
    let sizes = |host: &Host| {
        let pieces = host.broker.gssds().map(|(_, gssd)| (gssd.bandwidth, gssd.capacity));
        pieces.collect::<Vec<_>>()
    };
    assert_eq!(sizes(&host), [(1, 20); 4]);
    // A small request takes little.
    assert_eq!(granted(host.request(9, 1, 20, 60)).len(), 1);
    assert_eq!(granted(host.request(9, 2, 30, 60)).len(), 2);
    assert_eq!(host.broker.pool().len(), 1);
    host.event(BrokerEvent::Release { borrower: VssdId(9), gssd: None });
    host.forecast(2, 4, 100, 90);
    assert_eq!((sizes(&host).len(), host.broker.pool().len()), (4, 4));
    host.event(BrokerEvent::Deleted { vssd: VssdId(2) });
    assert!(host.broker.gssds().next().is_none());
    // As many parts as are a grain of each: of 25 blocks two, of 9 none.
    for (capacity, expected) in [(25, vec![(2, 10); 2]), (9, vec![])] {
        let mut host = Host::new(BrokerSettings::default());
        host.create(2, Unsold, 4, capacity);
        host.forecast(2, 4, capacity, 90);
        assert_eq!(sizes(&host), expected);
    }
}

#[test]
fn a_lender_carves_what_it_has() {
    let mut host = host();
    host.carves = 0;
    host.forecast(1, 2, 50, 90);
    assert_eq!((host.broker.gssds().count(), host.broker.counters().created), (0, 0));
    host.carves = 9;
    host.forecast(1, 2, 50, 30);
    // Less than a grain goes back to the lender, which is asked at the next forecast, not at once for
    // ever.
    assert!(host.broker.pool().is_empty());
    host.carves = 25;
    host.forecast(1, 2, 50, 90);
    assert_eq!(host.broker.gssds().map(|(_, gssd)| gssd.capacity).collect::<Vec<_>>(), [25]);
}

#[test]
fn a_request_is_met_by_several_or_in_part_or_not_at_all() {
    let mut host = host();
    host.create(2, Regular, 4, 100);
    host.forecast(1, 1, 20, 600);
    host.forecast(2, 2, 40, 300);
    assert_eq!(host.request(9, 1, 70, 60), BrokerAnswer::Short { channels: 3, blocks: 60 });
    assert_eq!(host.request(9, 1, 20, 601), BrokerAnswer::Short { channels: 0, blocks: 0 });
    assert_eq!(host.request(9, 0, 0, 60), BrokerAnswer::Nothing);
    assert_eq!(host.request(1, 1, 10, 60), BrokerAnswer::NoBorrower);
    let BrokerAnswer::Partly(grant) = host.request_as(9, 1, 70, 60, true, false) else { unreachable!() };
    assert_eq!((grant.bandwidth, grant.capacity, grant.expire), (3, 60, minutes(300)));
    host.event(BrokerEvent::Release { borrower: VssdId(9), gssd: None });
    assert_eq!(host.broker.pool().len(), 2);
    let slots = granted(host.request(9, 3, 60, 60));
    assert_eq!(slots.iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), [1, 2]);
    let leased = host.broker.gssd(slots[0].1).unwrap();
    assert_eq!(
        (leased.in_use, leased.vm_id.as_deref(), leased.borrower),
        (true, Some("job"), Some(VssdId(9)))
    );
    let counters = host.broker.counters();
    assert_eq!((counters.granted, counters.partly, counters.refused, counters.released), (1, 1, 4, 2));
}

#[test]
fn a_released_gssd_is_pooled_unless_its_lender_needs_it_soon() {
    for (lasts, pooled) in [(61, 1), (59, 0)] {
        let mut host = host();
        host.forecast(1, 1, 20, lasts);
        granted(host.request(9, 1, 20, 10));
        host.wait(if lasts == 61 { 14 } else { 30 });
        host.event(BrokerEvent::Release { borrower: VssdId(9), gssd: None });
        assert_eq!(host.broker.pool().len(), pooled, "{lasts}");
        assert_eq!(host.broker.slots(VssdId(9)).count(), 0);
    }
}

#[test]
fn the_newest_forecast_dates_and_expired_ones_leave_the_pool() {
    let mut host = host();
    host.forecast(1, 1, 20, 60);
    host.wait(14);
    host.forecast(1, 1, 20, 40);
    assert_eq!(host.broker.gssd(GssdId(1)).unwrap().expire, minutes(60));
    host.wait(15);
    assert_eq!(host.broker.gssd(GssdId(1)).unwrap().expire, minutes(54));
    host.wait(59);
    assert_eq!(host.broker.pool().len(), 1, "only every 15 minutes");
    host.wait(60);
    assert_eq!((host.broker.gssds().count(), host.broker.counters().expired), (0, 1));
}

#[test]
fn an_unused_gssd_follows_its_lenders_forecasts() {
    let mut host = host();
    host.forecast(1, 2, 40, 60);
    host.forecast(1, 2, 30, 60);
    let sizes = |host: &Host| host.broker.gssds().map(|(_, gssd)| gssd.capacity).collect::<Vec<_>>();
    assert_eq!(sizes(&host), [30], "smaller at once");
    host.forecast(1, 2, 40, 60);
    assert_eq!(sizes(&host), [30]);
    host.wait(15);
    assert_eq!(sizes(&host), [40], "larger at the timer");
    host.forecast(1, 1, 40, 60);
    assert_eq!(host.broker.gssds().map(|(_, gssd)| gssd.bandwidth).collect::<Vec<_>>(), [1]);
}

#[test]
fn a_lender_that_needs_its_blocks_gets_them_and_the_data_moves() {
    let mut host = host();
    host.create(2, Regular, 4, 100);
    host.forecast(1, 2, 40, 600);
    let slots = granted(host.request(9, 2, 40, 300));
    assert_eq!(slots, [(1, GssdId(1))]);
    host.forecast(2, 2, 50, 600);
    host.event(BrokerEvent::SpacePressure { lender: VssdId(1), bandwidth: 0, capacity: 5 });
    assert_eq!(host.broker.slots(VssdId(9)).collect::<Vec<_>>(), [(2, GssdId(2))]);
    assert!(host.done.contains(&BrokerAction::Return { gssd: GssdId(1), lender: VssdId(1) }));
    assert_eq!(host.broker.lent(VssdId(1)).count(), 0, "nothing more until the next forecast");
    let attached = host.done.iter().position(|action| matches!(action, BrokerAction::Attach { slot: 2, .. }));
    let evacuated = host.done.iter().position(|action| matches!(action, BrokerAction::Evacuate { .. }));
    assert!(attached < evacuated, "there must be a place to move it to");
    let counters = host.broker.counters();
    assert_eq!((counters.early, counters.migrated, counters.replacements, counters.evicted), (1, 1, 1, 0));
    assert_eq!(host.reports(), [""; 0]);
}

#[test]
fn one_gssd_of_the_same_size_takes_the_place_of_another() {
    let mut host = host();
    host.carves = 25;
    host.create(2, Regular, 4, 100);
    host.create(3, Regular, 4, 100);
    for lender in [1, 2, 3] {
        host.forecast(lender, 2, 50, 600);
    }
    granted(host.request(9, 2, 20, 300));
    let leased = |host: &Host| host.broker.slots(VssdId(9)).map(|(_, id)| id).collect::<Vec<_>>();
    let until = host.broker.until(leased(&host)[0]);
    let lender = host.broker.gssd(leased(&host)[0]).unwrap().lender;
    host.event(BrokerEvent::SpacePressure { lender, bandwidth: 0, capacity: 5 });
    assert_eq!(leased(&host).len(), 1, "not two, although 25 blocks are no whole grains");
    assert_eq!(host.broker.counters().replacements, 1);
    assert_eq!(host.broker.until(leased(&host)[0]), until, "for as long");
}

#[test]
fn a_forecast_takes_back_what_is_leased_after_so_many() {
    let mut host = host_with(BrokerSettings { forecasts_to_reclaim: 2, ..BrokerSettings::default() });
    host.forecast(1, 2, 40, 600);
    granted(host.request(9, 2, 40, 300));
    host.forecast(1, 1, 40, 600);
    host.forecast(1, 1, 40, 600);
    assert_eq!(host.broker.slots(VssdId(9)).count(), 1, "its I/O goes first in any case");
    host.forecast(1, 2, 39, 600);
    host.forecast(1, 2, 40, 600);
    host.forecast(1, 2, 39, 600);
    assert_eq!(host.broker.slots(VssdId(9)).count(), 1);
    host.forecast(1, 2, 39, 600);
    assert_eq!(host.broker.slots(VssdId(9)).count(), 0);
    // The rest that can still be spared is offered again.
    assert_eq!(host.broker.gssds().map(|(_, gssd)| gssd.capacity).collect::<Vec<_>>(), [30]);

    let mut host = host_with(BrokerSettings { reclaim_for_bandwidth: true, ..BrokerSettings::default() });
    host.forecast(1, 2, 40, 600);
    granted(host.request(9, 2, 40, 300));
    host.forecast(1, 1, 40, 600);
    assert_eq!(host.broker.slots(VssdId(9)).count(), 0);
}

#[test]
fn a_borrower_is_told_what_it_loses_when_and_why() {
    let mut host = host();
    host.create(2, Regular, 4, 100);
    host.forecast(1, 2, 40, 600);
    host.forecast(2, 1, 20, 600);
    granted(host.request(9, 3, 60, 300));
    host.fits = false;
    host.now = minutes(10);
    host.event(BrokerEvent::SpacePressure { lender: VssdId(2), bandwidth: 0, capacity: 1 });
    assert_eq!(
        host.reports(),
        [
            "harvest VM job: evicted before its time: gSSD 2 was taken back because its owner needs it now, and its \
          data could not be moved (no space); 2 gSSDs of 60 flash blocks are lost with the disk on them; run the job \
          again from its last checkpoint, with a request for less or for a shorter time if this is refused"
        ]
    );
    let Some(BrokerAction::Report(BrokerReport { at, vm, .. })) =
        host.done.iter().find(|action| matches!(action, BrokerAction::Report(_)))
    else {
        unreachable!()
    };
    assert_eq!((*at, vm.as_str()), (minutes(10), "job"));
    // The lender that did not need its blocks offers them again.
    assert_eq!((host.broker.pool().len(), host.broker.slots(VssdId(9)).count()), (1, 0));
    let counters = host.broker.counters();
    assert_eq!((counters.early, counters.evicted, counters.evicted_leases), (1, 1, 2));
}

#[test]
fn a_lease_stays_as_long_as_its_lender_does_not_need_it() {
    let mut host = host();
    host.create(2, Unsold, 4, 100);
    host.forecast(1, 1, 20, 60);
    granted(host.request(9, 1, 20, 30));
    host.wait(59);
    host.forecast(1, 1, 20, 60);
    host.wait(100);
    assert_eq!(host.broker.slots(VssdId(9)).count(), 1, "dated later when it was due");
    host.wait(120);
    assert_eq!(host.broker.slots(VssdId(9)).count(), 0);
    let counters = host.broker.counters();
    assert_eq!((counters.early, counters.migrated), (0, 1), "the time asked for was over");
    let [report] = &host.reports()[..] else { unreachable!("{:?}", host.reports()) };
    assert!(
        report.contains("gSSD 1 of 20 flash blocks was taken back because the time that its owner"),
        "{report}"
    );

    let mut host = host_with(BrokerSettings { overstay: Some(MINUTE * 5), ..BrokerSettings::default() });
    host.forecast(1, 1, 20, 600);
    granted(host.request(9, 1, 20, 30));
    host.wait(34);
    assert_eq!(host.broker.slots(VssdId(9)).count(), 1);
    host.fits = false;
    host.wait(35);
    assert_eq!((host.broker.slots(VssdId(9)).count(), host.broker.pool().len()), (0, 1));
    assert!(host.reports()[0].contains("because the time asked for is over"), "{:?}", host.reports());
}

#[test]
fn a_borrower_that_needs_more_gets_more_or_is_told_once() {
    let mut host = host();
    host.create(2, Regular, 4, 100);
    host.forecast(1, 2, 40, 600);
    granted(host.request_as(9, 2, 40, 300, false, true));
    host.forecast(9, 3, 50, 60);
    assert_eq!(host.reports(), [""; 0], "its own and what it harvested");
    host.forecast(9, 3, 60, 60);
    host.forecast(9, 3, 60, 60);
    assert_eq!(host.reports().len(), 1, "{:?}", host.reports());
    assert!(host.reports()[0].contains("needs 3 channels and 60 flash blocks and has 3 and 50"));
    host.forecast(2, 1, 20, 600);
    host.forecast(9, 3, 60, 60);
    assert_eq!((host.broker.counters().added, host.broker.slots(VssdId(9)).count()), (1, 2));
    host.now = minutes(1);
    host.forecast(9, 3, 30, 60);
    assert_eq!(host.broker.counters().waste_block_seconds, 40 * 60);
}

#[test]
fn a_lender_that_is_pressed_waits_for_what_is_being_moved() {
    let mut host = host();
    host.moves = false;
    host.forecast(1, 2, 40, 600);
    granted(host.request(9, 2, 40, 300));
    let (gssd, borrower, slot) = (GssdId(1), VssdId(9), 1);
    let evacuate = BrokerAction::Evacuate { gssd, borrower, slot };
    assert_eq!((host.broker.evacuation(gssd), host.broker.awaits(&evacuate)), (None, false));
    host.now = minutes(3);
    host.event(BrokerEvent::Release { borrower, gssd: Some(gssd) });
    let released = Evacuation { borrower, slot, since: minutes(3), pressed_since: None };
    assert_eq!((host.broker.evacuation(gssd), host.broker.awaits(&evacuate)), (Some(released), true));
    assert!(!host.broker.awaits(&BrokerAction::Evacuate { gssd, borrower, slot: 2 }));
    for minute in [5, 6] {
        host.now = minutes(minute);
        host.event(BrokerEvent::SpacePressure { lender: VssdId(1), bandwidth: 0, capacity: 1 });
        let pressed_since = Evacuation { pressed_since: Some(minutes(5)), ..released };
        assert_eq!(host.broker.evacuation(gssd), Some(pressed_since), "as long as it has been so");
    }
    host.moves = true;
    host.event(BrokerEvent::Evacuated { gssd });
    assert_eq!((host.broker.evacuation(gssd), host.broker.awaits(&evacuate)), (None, false));
}

#[test]
fn an_evacuation_is_promoted_when_its_lender_is_under_pressure() {
    let mut host = host();
    host.moves = false;
    host.forecast(1, 2, 40, 600);
    granted(host.request(9, 2, 40, 300));
    host.now = minutes(3);
    host.forecast(1, 2, 0, 600);
    assert_eq!(host.broker.evacuation(GssdId(1)).unwrap().pressed_since, None);
    host.now = minutes(4);
    host.event(BrokerEvent::SpacePressure { lender: VssdId(1), bandwidth: 0, capacity: 1 });
    let evacuation = host.broker.evacuation(GssdId(1)).unwrap();
    assert_eq!((evacuation.since, evacuation.pressed_since), (minutes(3), Some(minutes(4))));
    // After a crash time is counted from the start again.
    let steps: Vec<BrokerStep> = host.broker.snapshot(Vec::new(), |_| Vec::new());
    let settings = host.broker.settings().clone();
    let recovered = Broker::recover(settings, minutes(9), &steps, &mut Vec::new()).unwrap();
    let evacuation = recovered.evacuation(GssdId(1)).unwrap();
    assert_eq!((evacuation.since, evacuation.pressed_since), (minutes(9), None));
}

#[test]
fn a_borrower_gives_one_back_if_the_rest_has_space() {
    let mut host = host();
    host.create(2, Regular, 4, 100);
    host.forecast(1, 2, 40, 600);
    host.forecast(2, 2, 40, 600);
    granted(host.request(9, 4, 80, 300));
    host.fits = false;
    host.event(BrokerEvent::Release { borrower: VssdId(9), gssd: Some(GssdId(1)) });
    assert_eq!(host.broker.slots(VssdId(9)).count(), 2);
    assert!(host.reports()[0].contains("gSSD 1 was not given back"), "{:?}", host.reports());
    host.fits = true;
    host.event(BrokerEvent::Release { borrower: VssdId(9), gssd: Some(GssdId(1)) });
    assert_eq!((host.broker.slots(VssdId(9)).count(), host.broker.pool().len()), (1, 1));
}

#[test]
fn a_lender_has_back_what_nobody_uses() {
    let mut host = host_with(BrokerSettings { per_home: 2, ..BrokerSettings::default() });
    host.forecast(1, 2, 40, 600);
    granted(host.request(9, 2, 40, 300));
    host.forecast(1, 4, 100, 600);
    assert_eq!(host.broker.pool().len(), 1);
    host.event(BrokerEvent::Unpool { lender: VssdId(1) });
    assert_eq!(
        (host.broker.pool().len(), host.broker.lent(VssdId(1)).count()),
        (0, 1),
        "what is leased stays"
    );
    host.forecast(1, 4, 100, 600);
    assert_eq!(host.broker.pool().len(), 1);
}

#[test]
fn unsold_space_is_lent_until_it_is_sold() {
    let mut host = host();
    host.create(2, Unsold, 4, 100);
    host.forecast(2, 4, 100, 720);
    assert_eq!(granted(host.request(9, 1, 20, 600)).len(), 1);
    host.event(BrokerEvent::Deleted { vssd: VssdId(2) });
    // Its data was not moved to other gSSDs of the same lender.
    assert_eq!((host.broker.counters().replacements, host.broker.slots(VssdId(9)).count()), (0, 0));
    assert!(host.broker.vssds().all(|(id, _)| id != VssdId(2)));
    assert!(
        !host.done.iter().any(|action| matches!(action, BrokerAction::Wipe { .. })),
        "nobody wrote to it"
    );
    assert_eq!(host.broker.counters().early, 1);
    host.event(BrokerEvent::Deleted { vssd: VssdId(1) });
    assert!(host.done.contains(&BrokerAction::Wipe { vssd: VssdId(1) }));
    host.event(BrokerEvent::Deleted { vssd: VssdId(9) });
    assert_eq!((host.broker.vssds().count(), host.broker.gssds().count()), (0, 0));
}

#[test]
fn a_borrower_has_at_most_255_gssds() {
    let mut host = host();
    for lender in 0..300 {
        host.create(100 + lender, Regular, 1, 10);
        host.forecast(100 + lender, 1, 10, 600);
    }
    assert_eq!(host.request(9, 1, 2560, 60), BrokerAnswer::Short { channels: 300, blocks: 3000 });
    assert_eq!(granted(host.request(9, 255, 2550, 60)).len(), 255);
    assert!(matches!(host.request(9, 1, 10, 60), BrokerAnswer::Short { channels: 45, blocks: 450 }));
}

#[test]
fn late_and_unknown_events_are_ignored() {
    let mut host = host();
    host.forecast(1, 2, 40, 600);
    let before = host.broker.snapshot(Vec::new(), |_| Vec::new());
    let (gssd, borrower, vssd) = (GssdId(1), VssdId(9), VssdId(77));
    let events = [
        BrokerEvent::Evacuated { gssd },
        BrokerEvent::EvacuationFailed { gssd, cause: String::new() },
        BrokerEvent::Detached { gssd },
        BrokerEvent::Erased { gssd, bad: Vec::new() },
        BrokerEvent::Erased { gssd: GssdId(5), bad: Vec::new() },
        BrokerEvent::Carved { gssd, bandwidth: 1, capacity: 1, blocks: Vec::new() },
        BrokerEvent::Release { borrower, gssd: Some(gssd) },
        BrokerEvent::Release { borrower, gssd: None },
        BrokerEvent::Deleted { vssd },
        BrokerEvent::Wiped { vssd: VssdId(1), bad: Vec::new() },
        BrokerEvent::SpacePressure { lender: vssd, bandwidth: 1, capacity: 1 },
        BrokerEvent::Forecast { vssd, bandwidth: 1, capacity: 1, lasts: MINUTE },
    ];
    let count = events.len() as u64;
    events.into_iter().for_each(|event| host.event(event));
    assert_eq!(host.broker.counters().ignored, count);
    assert_eq!(host.broker.snapshot(Vec::new(), |_| Vec::new()), before);
}

#[test]
fn steps_that_cannot_follow_one_another_are_refused() {
    let (gssd, vssd) = (GssdId(1), VssdId(1));
    let created =
        BrokerStep::Created { vssd, kind: Regular, bandwidth: 1, capacity: 10, channels: Vec::new() };
    let carved = BrokerStep::Carved {
        gssd,
        lender: vssd,
        bandwidth: 1,
        capacity: 10,
        expire: minutes(60),
        blocks: Vec::new(),
    };
    let bad: [&[BrokerStep]; 8] = [
        std::slice::from_ref(&carved),
        &[created.clone(), created.clone()],
        &[created.clone(), carved.clone(), carved.clone()],
        &[created.clone(), BrokerStep::Erased { gssd, bad: Vec::new() }],
        &[created.clone(), carved.clone(), BrokerStep::Returned { gssd }],
        &[created.clone(), carved.clone(), BrokerStep::Detached { gssd }],
        &[created.clone(), carved.clone(), BrokerStep::Deleted { vssd, bad: Vec::new() }],
        &[
            created,
            carved.clone(),
            BrokerStep::Leased { gssd, vm: String::new(), borrower: vssd, slot: 1, until: minutes(1) },
        ],
    ];
    for steps in bad {
        let error =
            Broker::recover(BrokerSettings::default(), minutes(0), steps, &mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}
