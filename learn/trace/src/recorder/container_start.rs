//! The start of a container on the disk of its image.
//!
//! All containers of an image share one disk, whose file system is mounted when the image is pulled. The kernel reads
//! each block once and keeps it, so only the first container shows what a start reads:
//!
//! * Its start names the recording that goes on, from the first read of the mount on, if that is in the first half of
//!   its window; otherwise a new recording begins.
//! * Further containers with the same entrypoint change nothing: they read the same, mostly from memory.
//! * A container with another entrypoint ends the recording: from then on, reads are of both, and those that both need
//!   are missing. Its own start is not recorded.
//! * In a process that took the disk over from one that died, no start is recorded: the kernel has kept what was read
//!   before.

use super::{BootId, Recorder};
use crate::boots::RecordingPhase;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The start of the first container on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerStart {
    /// The name of its program, the same on all hosts.
    pub entrypoint: String,
    /// The boot in which it is recorded.
    pub boot: BootId,
    /// The time from the first read of that boot to the start of the container.
    pub after: Duration,
}

impl Recorder {
    /// Notes that a container with this entrypoint starts at the moment `now`. Returns `true` if its start is recorded.
    pub fn container_started(&self, entrypoint: &str, now: Instant) -> bool {
        if self.taken_over.load(Ordering::Relaxed) > 0 {
            return false;
        }
        let at_us = self.micros(now);
        let mut start = self.start.lock();
        if let Some(start) = &*start {
            let is_same = start.entrypoint == entrypoint;
            if !is_same {
                self.unmixed_us.fetch_min(at_us, Ordering::Relaxed);
            }
            return is_same && self.unmixed_us.load(Ordering::Relaxed) == u64::MAX;
        }
        let since_us = match self.phase(now) {
            RecordingPhase::Recording { since_us } => Some(since_us),
            RecordingPhase::Waiting | RecordingPhase::Idle { .. } => None,
        };
        let after = |since_us| Duration::from_micros(at_us.saturating_sub(since_us));
        let going_on = since_us.map(after).filter(|after| *after <= self.window / 2);
        let boot = if going_on.is_some() { self.boot() } else { BootId(self.clock.begin(at_us)) };
        let after = going_on.unwrap_or_default();
        *start = Some(ContainerStart { entrypoint: entrypoint.to_owned(), boot, after });
        true
    }

    /// Returns the start of the first container; `None` if none has started.
    #[must_use]
    pub fn container_start(&self) -> Option<ContainerStart> {
        self.start.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Op;
    use headstart_block::ByteRange;

    const WINDOW: Duration = Duration::from_secs(100);

    /// A recorder, and a read of it at a time.
    #[expect(clippy::disallowed_methods, reason = "any moment to count from")]
    fn recorder() -> (Recorder, impl Fn(&Recorder, u64)) {
        let created = Instant::now();
        let recorder = Recorder::new(created, WINDOW, 100);
        let read = move |recorder: &Recorder, s: u64| {
            let (range, at) = (ByteRange::between(1 << 20, 2 << 20), created + Duration::from_secs(s));
            let boot = recorder.read_arrived(range, at);
            recorder.record(boot, Op::Read, range, at, Duration::ZERO);
        };
        (recorder, read)
    }

    fn recorded(recorder: &Recorder) -> Vec<(Duration, u64)> {
        let mut all = Vec::new();
        recorder.drain(&mut |boot, record| {
            all.push((boot.since().unwrap(), record.t_us / 1_000_000));
            true
        });
        all
    }

    fn starts(recorder: &Recorder, s: u64, entrypoint: &str) -> bool {
        recorder.container_started(entrypoint, recorder.created() + Duration::from_secs(s))
    }

    #[test]
    fn a_start_after_the_mount_names_its_recording() {
        let (recorder, read) = recorder();
        read(&recorder, 10);
        assert!(starts(&recorder, 60, "nginx"));
        read(&recorder, 61);
        let start = recorder.container_start().unwrap();
        assert_eq!((start.entrypoint.as_str(), start.after.as_secs()), ("nginx", 50));
        assert_eq!(recorded(&recorder), [(Duration::from_secs(10), 0), (Duration::from_secs(10), 51)]);
        assert_eq!((recorder.boots(), start.boot), (1, recorder.boot()));
    }

    #[test]
    fn a_start_long_after_the_mount_or_without_one_begins_a_recording() {
        let (recorder, read) = recorder();
        read(&recorder, 10);
        assert!(starts(&recorder, 61, "nginx"));
        read(&recorder, 62);
        let ten = Duration::from_secs(10);
        assert_eq!(recorded(&recorder), [(ten, 0), (Duration::from_secs(61), 1)]);
        assert_eq!(recorder.container_start().unwrap().after, Duration::ZERO);
        let (idle, read) = self::recorder();
        assert!(starts(&idle, 5000, "nginx"));
        read(&idle, 5001);
        assert_eq!(recorded(&idle), [(Duration::from_secs(5000), 1)]);
    }

    #[test]
    fn a_process_that_took_the_disk_over_records_no_start_and_the_next_boot() {
        let (recorder, read) = recorder();
        recorder.took_over();
        read(&recorder, 1);
        assert!(!starts(&recorder, 2, "nginx"));
        read(&recorder, 3);
        assert_eq!((recorded(&recorder), recorder.container_start()), (Vec::new(), None));
        assert_eq!((recorder.boots(), recorder.boot().since()), (0, None));
        // A machine whose firmware reads the boot sector.
        let (range, at) = (ByteRange::between(0, 512), recorder.created() + Duration::from_secs(50));
        let boot = recorder.read_arrived(range, at);
        recorder.record(boot, Op::Read, range, at, Duration::ZERO);
        assert_eq!((recorded(&recorder), recorder.boots()), (vec![(Duration::from_secs(50), 0)], 1));
        // A read may be faster than the note.
        let (late, read) = self::recorder();
        read(&late, 1);
        late.took_over();
        read(&late, 2);
        assert_eq!((recorded(&late), late.boot().since()), (Vec::new(), None));
    }

    #[test]
    fn another_container_ends_the_recording_unless_it_starts_the_same() {
        let (recorder, read) = recorder();
        assert!(starts(&recorder, 1, "nginx"));
        read(&recorder, 2);
        assert!(starts(&recorder, 3, "nginx"));
        read(&recorder, 4);
        assert!(!starts(&recorder, 5, "sh"));
        read(&recorder, 6);
        assert!(!starts(&recorder, 7, "nginx"));
        read(&recorder, 8);
        read(&recorder, 5000);
        let one = Duration::from_secs(1);
        assert_eq!(recorded(&recorder), [(one, 1), (one, 3)]);
        assert_eq!(recorder.container_start().unwrap().entrypoint, "nginx");
    }
}
