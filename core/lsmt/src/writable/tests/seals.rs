//! The groups of a log that count.

use super::super::log::{GROUP_MAX, Log, replay_plain};
use super::sim::Machine;
use crate::Segment;
use crate::format::PAGE_SIZE;
use headstart_block::ErrorKind;
use uuid::Uuid;

const HEADER: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// A log of one record a group, whose data starts at the given sectors.
fn log_of(uuid: Uuid, moffsets: &[u64]) -> Vec<u8> {
    let machine = Machine::default();
    machine.put("index", &HEADER);
    let file = machine.directory().open("index").unwrap();
    let mut log = Log::new(uuid);
    for moffset in moffsets {
        let group = log.group(&[Segment::data(5, 1, *moffset)]);
        log.write_group(&*file, &group).unwrap();
        log.accept(&group);
    }
    machine.contents("index")
}

/// The mapped offsets that a log gives back, and its bytes that count.
fn recovered(uuid: Uuid, bytes: &[u8]) -> (Vec<u64>, usize) {
    let machine = Machine::default();
    machine.put("index", bytes);
    let file = machine.directory().open("index").unwrap();
    let mut found = Vec::new();
    let log = Log::recover(&*file, uuid, 100, None, &mut |segment| found.push(segment.moffset())).unwrap();
    (found, log.len() as usize)
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

/// The verdict of recovery on a log; a refused log must be left as it was.
fn judged(uuid: Uuid, bytes: &[u8]) -> Result<(usize, usize), ErrorKind> {
    let machine = Machine::default();
    machine.put("index", bytes);
    let file = machine.directory().open("index").unwrap();
    let mut records = 0;
    let found = Log::recover(&*file, uuid, u64::MAX, None, &mut |_| records += 1);
    match found {
        Ok(log) => Ok((records, log.len() as usize)),
        Err(error) => {
            assert!(error.to_string().contains("checksum"), "{error}");
            assert_eq!(machine.contents("index"), bytes);
            Err(error.kind())
        }
    }
}

/// A log of groups of the given sizes.
fn log_of_groups(uuid: Uuid, sizes: &[usize]) -> Vec<u8> {
    let machine = Machine::default();
    machine.put("index", &HEADER);
    let file = machine.directory().open("index").unwrap();
    let (mut log, mut sector) = (Log::new(uuid), 0);
    for size in sizes {
        let records: Vec<_> = (sector..).take(*size).map(|at| Segment::data(at, 1, 8 + at)).collect();
        sector += *size as u64;
        let group = log.group(&records);
        log.write_group(&*file, &group).unwrap();
        log.accept(&group);
    }
    machine.contents("index")
}

#[test]
fn groups_that_a_damaged_seal_merges_are_no_tail() {
    let uuid = Uuid::from_u128(1);
    // Together they are too long for a group, or not.
    for size in [40_000, 30_000, 255, 1] {
        let log = log_of_groups(uuid, &[size, size]);
        let seal = PAGE_SIZE + size * 16;
        for bit in 0..128 {
            let mut damaged = log.clone();
            damaged[seal + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(judged(uuid, &damaged), Err(ErrorKind::Corrupt), "bit {bit} of the seal of {size}");
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_but_in_the_last_group_is_noticed() {
    let uuid = Uuid::from_u128(1);
    for sizes in [&[1, 1][..], &[3, 255, 2], &[255, 7], &[254, 1, 300]] {
        let log = log_of_groups(uuid, sizes);
        let (last, records) = (sizes[sizes.len() - 1], sizes.iter().sum::<usize>());
        let last_group = log.len() - (last + 1) * 16;
        for at in PAGE_SIZE..log.len() {
            let mut damaged = log.clone();
            damaged[at] ^= 1 << (at % 8);
            match judged(uuid, &damaged) {
                Err(kind) => assert_eq!(kind, ErrorKind::Corrupt),
                // Nothing tells a damaged last group from one that was never finished.
                Ok(found) => {
                    assert!(at >= last_group, "byte {at} of {sizes:?}");
                    assert_eq!(found, (records - last, last_group));
                }
            }
        }
    }
}

#[test]
fn a_lost_sector_in_the_middle_is_noticed() {
    let uuid = Uuid::from_u128(1);
    // 32 records a sector: the last group starts at byte 2048 of the log, behind the seal of the one before.
    let log = log_of_groups(uuid, &[20, 106, 50]);
    for sector in 0..4 {
        for fill in [0, 0xff, 0x5a] {
            let mut damaged = log.clone();
            damaged[PAGE_SIZE + sector * 512..][..512].fill(fill);
            assert_eq!(judged(uuid, &damaged), Err(ErrorKind::Corrupt), "sector {sector}");
        }
    }
}

#[test]
fn a_record_that_damage_made_a_seal_hides_nothing() {
    let uuid = Uuid::from_u128(1);
    for sizes in [&[9, 9][..], &[300, 2, 600]] {
        let log = log_of_groups(uuid, sizes);
        let last_group = log.len() - (sizes[sizes.len() - 1] + 1) * 16;
        for record in (PAGE_SIZE..last_group).step_by(16) {
            for count in [0, 1, 3, u64::MAX] {
                let mut damaged = log.clone();
                damaged[record..record + 8].copy_from_slice(&(((1u64 << 50) - 1) | 1 << 50).to_le_bytes());
                damaged[record + 8..record + 16].copy_from_slice(&(count << 32).to_le_bytes());
                assert_eq!(judged(uuid, &damaged), Err(ErrorKind::Corrupt), "byte {record}");
            }
        }
    }
}

#[test]
fn more_than_an_interrupted_flush_can_leave_is_no_tail() {
    let uuid = Uuid::from_u128(1);
    let log = log_of_groups(uuid, &[5]);
    let largest = (GROUP_MAX + 1) * 16;
    assert_eq!(judged(uuid, &[&log[..], &vec![0; largest]].concat()), Ok((5, log.len())));
    assert_eq!(judged(uuid, &[&log[..], &vec![0; largest + 1]].concat()), Err(ErrorKind::Corrupt));
}

#[test]
fn a_last_seal_that_is_torn_at_any_byte_is_a_tail() {
    let uuid = Uuid::from_u128(1);
    for last in [1, 5, 256, 300, 65_535, 65_536] {
        let log = log_of_groups(uuid, &[2, last]);
        let left = PAGE_SIZE + 3 * 16;
        for torn in 1..=16 {
            let mut bytes = log.clone();
            let from = bytes.len() - torn;
            bytes[from..].fill(0);
            // If the missing bytes are zeros anyway, the seal is whole.
            let expected = if bytes == log { (2 + last, log.len()) } else { (2, left) };
            assert_eq!(judged(uuid, &bytes), Ok(expected), "{last}, {torn} bytes");
        }
    }
}
