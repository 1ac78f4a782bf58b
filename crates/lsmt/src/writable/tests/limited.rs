//! `--writable-max` holds whatever is done to keep other bounds.

use super::super::{Limits, Load, NewDisk, WritableDisk};
use super::collecting::{full_base, taken};
use headstart_block::{BlockDevice, ByteRange, ErrorKind};
use uuid::Uuid;

const SIZE: u64 = 64 << 20;
const MAX: u64 = 16 << 20;

/// Merging runs copies from the base what lies between them, and has room for that only below the limit.
#[test]
fn merging_runs_takes_no_more_than_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let new = NewDisk { size: SIZE, parent: String::new(), uuid: Uuid::from_u128(7) };
    let disk = WritableDisk::create(dir.path(), Some(full_base(SIZE)), &new).unwrap();
    disk.view_mut().limits = Limits { max: Some(MAX), runs: Some(256), ..Limits::default() };
    let (mut refused, step) = (0, 16 << 10);
    for place in (0..SIZE).step_by(step) {
        let done = if place % (step as u64 * 2) == 0 {
            disk.write_zeroes(ByteRange::new(place, 512).unwrap())
        } else {
            disk.write_at(&[7; 512], place)
        };
        if let Err(error) = done {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            refused += 1;
        }
        while disk.collect(Load::Busy).unwrap() {}
        assert!(taken(dir.path()) <= MAX, "{} at {place}", taken(dir.path()));
    }
    while disk.collect(Load::Quiet).unwrap() {}
    assert!(taken(dir.path()) <= MAX, "{}", taken(dir.path()));
    // What was not touched is as it was.
    let mut found = vec![0; 512];
    disk.read_at(&mut found, SIZE - 512).unwrap();
    assert!(found == [0xba; 512] && refused > 0, "{refused}");
}
