//! Attaches with the same writable directory at the same time.

use crate::Rig;
use headstart_block::{BlockDevice, ErrorKind};
use headstart_disk::attach::attach_local;
use headstart_disk::{DiskOptions, WritableOptions};
use std::sync::Barrier;

/// The number of rounds of two attaches: chance decides which of their steps meet.
const ROUNDS: usize = 20;

#[test]
fn one_of_two_attaches_wins_a_new_directory_and_keeps_what_it_wrote() {
    let rig = Rig::new();
    for round in 0..ROUNDS {
        let dir = rig.dir.path().join(format!("vms/{round}"));
        let writable = Some(WritableOptions { dir: dir.clone(), ..WritableOptions::default() });
        let options = DiskOptions { writable, ..DiskOptions::default() };
        let start = Barrier::new(2);
        let attach = || {
            start.wait();
            attach_local(&rig.reference, &options)
        };
        let attached = std::thread::scope(|scope| {
            let other = scope.spawn(attach);
            [attach(), other.join().unwrap()]
        });
        let mut winners = Vec::new();
        for attached in attached {
            match attached {
                Ok(attached) => winners.push(attached.disk),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
            }
        }
        assert_eq!(winners.len(), 1);
        let disk = winners.remove(0);
        disk.write_at(&[7; 4096], 8192).unwrap();
        disk.flush().unwrap();
        drop(disk);
        let again = attach_local(&rig.reference, &options).unwrap();
        assert!(again.made.is_none(), "it was made anew");
        let mut read = [0; 4096];
        again.disk.read_at(&mut read, 8192).unwrap();
        assert_eq!(read, [7; 4096]);
    }
}
