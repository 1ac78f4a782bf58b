//! The reads of disks on one host reach the others through a tracker; and a host that may not know an image learns
//! nothing of it.

use super::*;
use headstart_block::PlanItem;
use headstart_swarm::tracker::{HintAnswer, HintReport, ImageKey, SliceAccess};

const IMAGE: ImageKey = ImageKey(0x1234_5678_9abc_def0);

fn accesses(slices: &[u32]) -> Vec<SliceAccess> {
    (0..).zip(slices).map(|(at, slice)| SliceAccess { slice: *slice, at_ms: at * 10 }).collect()
}

fn items(items: &[(u64, u32)]) -> Vec<PlanItem> {
    items.iter().map(|(block, mask)| PlanItem { block: *block, mask: *mask }).collect()
}

/// A tracker that has counted a disk with two read slices, and a member that sends the frames of a test.
fn counted() -> (Cluster, TestHost, Boots, Rogue) {
    let cluster = Cluster::new(&["t", "b"]);
    let t = cluster.tracker("t", &[]);
    let boots = t.swarm.boots(IMAGE, true).unwrap();
    boots.read(&accesses(&[1, 2]));
    cluster.wait_until("it counts", || t.swarm.hint_counters().hints == 2);
    let rogue = Rogue::connect(&cluster, &cluster.credentials("b"), ("t", t.swarm.address())).unwrap();
    (cluster, t, boots, rogue)
}

fn report(image: ImageKey, joined: u32) -> HintReport {
    HintReport { image, joined, accesses: Vec::new(), epoch: 0, version: 0 }
}

/// The tracker's answer to a report without new reads.
fn asked(cluster: &Cluster, rogue: &mut Rogue, image: ImageKey) -> HintAnswer {
    rogue.send(cluster, &encoded(FrameKind::Report, &report(image, 0)));
    loop {
        let (header, body) = rogue.next(cluster).unwrap();
        let answer = (header.kind == FrameKind::Hints).then(|| frame::decode_answer(&body).unwrap());
        if let Some(answer) = answer.filter(|answer| answer.image == image) {
            break answer;
        }
    }
}

#[test]
fn a_disk_is_told_what_disks_of_other_hosts_read() {
    let cluster = Cluster::new(&["t", "a", "b"]);
    let mut t = cluster.tracker("t", &[]);
    let join = [t.swarm.address()];
    let a = cluster.host("a", Role::Agent, &join);
    let b = cluster.host("b", Role::Agent, &join);
    cluster.wait_until("they meet", || a.is_connected_to(2) && b.is_connected_to(2) && t.is_connected_to(2));
    assert!(t.swarm.status().tracker && !a.swarm.status().tracker);
    assert!(a.swarm.status().peers.iter().any(|peer| peer.name == "t" && peer.tracker));
    // The first disk gets no hints.
    let first = a.swarm.boots(IMAGE, true).unwrap();
    first.read(&accesses(&[70, 5, 64, 7]));
    let second = b.swarm.boots(IMAGE, true).unwrap();
    let plan = second.plan();
    cluster.wait_until("it is told", || plan.borrow().items.len() == 2);
    assert_eq!(plan.borrow().items, items(&[(2, 1 << 6 | 1), (0, 1 << 5 | 1 << 7)]));
    assert!((1..=2).contains(&plan.borrow().disks));
    // While both boot, each gets hints of the other's reads.
    second.read(&accesses(&[5, 200]));
    let plan = first.plan();
    cluster.wait_until("it is told more", || plan.borrow().items.iter().any(|item| item.block == 200 / 32));
    // Another disk of the same host gets hints at once; one of another image gets none.
    assert!(!b.swarm.boots(IMAGE, true).unwrap().plan().borrow().items.is_empty());
    assert!(b.swarm.boots(ImageKey(IMAGE.0 ^ 1), true).unwrap().plan().borrow().items.is_empty());
    let counters = b.swarm.hint_counters();
    assert_eq!((counters.reads, counters.foreseen), (2, 1));
    assert!(counters.hints >= 4 && counters.reports > 0 && t.swarm.hint_counters().tracked_reports > 0);
    drop((first, second));
    // The counts outlive their tracker. A host that is no tracker sends no hints.
    cluster.runtime.block_on(t.swarm.stop());
    drop(t);
    cluster.wait_until("it is gone", || a.is_connected_to(1));
    t = cluster.tracker("t", &[a.swarm.address()]);
    let plan = a.swarm.boots(ImageKey(7), true).unwrap().plan();
    cluster.wait_until("it is back", || t.is_connected_to(2));
    let own = t.swarm.boots(IMAGE, true).unwrap();
    cluster.wait_until("it knows", || own.plan().borrow().items.len() >= 3);
    assert!(plan.borrow().items.is_empty());
}

#[test]
fn a_tracker_answers_only_what_it_is_asked_and_nobody_else_is_believed() {
    let (cluster, t, boots, mut rogue) = counted();
    // The host is no tracker: its hints are ignored.
    let hints = vec![headstart_swarm::tracker::Hint { slice: 9, disks: 9, mean_ms: 0 }];
    let lie = HintAnswer { image: IMAGE, epoch: 1, version: 1 << 40, disks: 9, hints };
    rogue.send(&cluster, &encoded(FrameKind::Hints, &lie));
    // An image with an unknown number is one without reads.
    assert!(asked(&cluster, &mut rogue, ImageKey(1)).hints.is_empty());
    let told = asked(&cluster, &mut rogue, IMAGE);
    assert_eq!((told.disks, told.hints.len()), (1, 2));
    assert!(boots.plan().borrow().items.iter().all(|item| item.mask & 1 << 9 == 0));
    // Nonsense ends the connection.
    let mut frame = Vec::new();
    push_frame(&mut frame, FrameKind::Report, 0, 0, &[0xff; 100]);
    rogue.send(&cluster, &frame);
    while rogue.next(&cluster).is_some() {}
    cluster.wait_until("it is dropped", || t.swarm.counters().dropped_other == 1);
}

/// A member that names more images than there is room for pushes out its own, and none that another host reported.
#[test]
fn a_member_that_makes_images_up_pushes_out_its_own() {
    let (cluster, t, _boots, mut rogue) = counted();
    for image in 0..1500 {
        rogue.send(&cluster, &encoded(FrameKind::Report, &report(ImageKey(image), 1)));
    }
    cluster.wait_until("it has heard all", || t.swarm.hint_counters().tracked_reports >= 1500);
    assert_eq!(t.swarm.hint_counters().tracked_images, 257);
    let told = asked(&cluster, &mut rogue, IMAGE);
    assert_eq!((told.disks, told.hints.len()), (1, 2));
}

fn encoded(kind: FrameKind, body: &impl serde::Serialize) -> Vec<u8> {
    let mut frame = Vec::new();
    push_encoded(&mut frame, kind, body).unwrap();
    frame
}

#[test]
fn the_longest_report_and_answer_fit_a_frame() {
    use headstart_swarm::tracker::{Hint, REPORT_MAX};
    let access = SliceAccess { slice: u32::MAX, at_ms: u32::MAX };
    let mut report = HintReport {
        image: ImageKey(u64::MAX),
        joined: u32::MAX,
        accesses: vec![access; REPORT_MAX],
        epoch: u64::MAX,
        version: u64::MAX,
    };
    let hint = Hint { slice: u32::MAX, disks: u32::MAX, mean_ms: u32::MAX };
    let (image, epoch, version) = (report.image, u64::MAX, u64::MAX);
    let mut answer =
        HintAnswer { image, epoch, version, disks: u32::MAX, hints: vec![hint; frame::HINTS_MAX] };
    assert_eq!(frame::decode_report(&encoded(FrameKind::Report, &report)[HEADER..]).unwrap(), report);
    assert_eq!(frame::decode_answer(&encoded(FrameKind::Hints, &answer)[HEADER..]).unwrap(), answer);
    assert!(frame::HINTS_MAX >= headstart_swarm::tracker::TrackerSettings::default().hints_max);
    report.accesses = vec![SliceAccess { slice: 0, at_ms: 0 }; REPORT_MAX + 1];
    answer.hints = vec![Hint { slice: 0, disks: 0, mean_ms: 0 }; frame::HINTS_MAX + 1];
    assert!(frame::decode_report(&encoded(FrameKind::Report, &report)[HEADER..]).is_err());
    assert!(frame::decode_answer(&encoded(FrameKind::Hints, &answer)[HEADER..]).is_err());
}
