//! The space that the files of a disk take.

use super::super::super::torn::TORN;
use super::Model;

impl Model {
    /// Checks the bound on the space that files take after an operation, before which `faults` faults had been seen.
    pub(super) fn check_space(&self, faults: u64) {
        let Some(slack) = self.slack else { return };
        let space = self.disk().space();
        let files = space.live_bytes + space.garbage_bytes;
        // Data that waits for faults to end does not count, nor do runs that commits have set aside.
        if !self.disk().generation().frozen.is_empty() {
            return;
        }
        let seen = self.machine.faults_seen();
        // A write that nothing happened to has kept the bound, whatever was before.
        if seen == faults && !self.machine.sync_failed() && !self.awaiting {
            assert!(files <= 2 * space.live_bytes + slack, "{space:?}");
            // A file whose removal has failed is a leftover until the disk is opened again.
            if seen > self.faults_before || !self.disk().collector.lock().is_swept() {
                return;
            }
            // Headers, the state, and pages that are partly used. The copy of the bytes that were cut off a log
            // does not count.
            let pairs = self.disk().usage().pairs as u64;
            let names = self.machine.directory().list().unwrap();
            let torn = names.iter().filter(|name| name.starts_with(TORN));
            let torn: usize = torn.map(|name| self.machine.contents(name).len().next_multiple_of(4096)).sum();
            let taken = self.machine.taken() - torn as u64;
            assert!(taken <= files + (4 * pairs + 1) * 4096, "{space:?} {taken}");
        }
    }
}
