//! Which groups of a log count.

use super::super::log::{Log, replay_plain};
use super::sim::Machine;
use crate::Segment;
use crate::format::PAGE_SIZE;
use uuid::Uuid;

const HEADER: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// A log of one record a group, whose data starts at the given sectors.
fn log_of(uuid: Uuid, moffsets: &[u64]) -> Vec<u8> {
    let machine = Machine::default();
    machine.put("index", &HEADER);
    let file = machine.directory().open("index").unwrap();
    let mut log = Log::new(uuid);
    for moffset in moffsets {
        let group = log.write_group(&*file, &[Segment::data(5, 1, *moffset)]).unwrap();
        log.accept(&group);
    }
    machine.contents("index")
}

/// The mapped offsets that a log gives back, and its length after recovery.
fn recovered(uuid: Uuid, bytes: &[u8]) -> (Vec<u64>, usize) {
    let machine = Machine::default();
    machine.put("index", bytes);
    let file = machine.directory().open("index").unwrap();
    let mut found = Vec::new();
    Log::recover(&*file, uuid, 100, &mut |segment| found.push(segment.moffset())).unwrap();
    (found, machine.contents("index").len())
}

#[test]
fn a_group_counts_at_its_own_place_in_its_own_pair_only() {
    let (uuid, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let log = log_of(uuid, &[8, 9]);
    assert_eq!(recovered(uuid, &log), (vec![8, 9], PAGE_SIZE + 64));
    assert_eq!(recovered(other, &log[..PAGE_SIZE + 32]), (vec![], PAGE_SIZE));
    // The second group over the first, and the first behind the second.
    let (first, second) = (&log[PAGE_SIZE..PAGE_SIZE + 32], &log[PAGE_SIZE + 32..]);
    assert_eq!(recovered(uuid, &[&HEADER, second].concat()), (vec![], PAGE_SIZE));
    let replayed = [&log, first].concat();
    assert_eq!(recovered(uuid, &replayed), (vec![8, 9], PAGE_SIZE + 64));
}

#[test]
fn a_tail_that_ends_anywhere_is_dropped() {
    let uuid = Uuid::from_u128(1);
    let log = log_of(uuid, &[8, 9, 10]);
    for len in PAGE_SIZE..log.len() {
        let groups = (len - PAGE_SIZE) / 32;
        let (found, left) = recovered(uuid, &log[..len]);
        assert_eq!((found.len(), left), (groups, PAGE_SIZE + groups * 32));
    }
}

#[test]
fn a_log_without_seals_ends_where_it_makes_no_sense() {
    let machine = Machine::default();
    let records = [Segment::data(1, 2, 8), Segment::PADDING, Segment::data(3, 0, 8), Segment::data(4, 1, 99)];
    let garbage = [Segment::data(4, 2, 99), Segment::data(6, 1, 8)];
    let mut bytes = HEADER.to_vec();
    records.iter().chain(&garbage).for_each(|record| bytes.extend(record.to_record()));
    bytes.extend([1; 7]);
    machine.put("index", &bytes);
    let file = machine.directory().open("index").unwrap();
    let mut found = Vec::new();
    replay_plain(&*file, 100, &mut |segment| found.push(segment)).unwrap();
    assert_eq!(found, [records[0], records[3]]);
}
