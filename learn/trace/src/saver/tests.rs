#![expect(clippy::disallowed_methods, reason = "what it works by is the clock")]

use super::*;
use crate::boots::RecordingPhase;
use crate::directory::DirectoryLimits;
use crate::file::{ReadLimits, read_file};
use headstart_block::ByteRange;
use headstart_testkit::wait::wait_until;
use std::path::Path;

const PACE: Pace = Pace {
    sample_every: Duration::from_millis(5),
    save_first: Duration::from_millis(10),
    save_every_max: Duration::from_millis(20),
    traces_an_hour: 6,
    traces_max: 64,
};
const TIMEOUT: Duration = Duration::from_secs(20);

fn recording(volume: &str, window: Duration) -> (Arc<Recorder>, Recording) {
    let recorder = Arc::new(Recorder::new(Instant::now(), window, 100));
    let creation = Creation { volume: volume.to_owned(), ..Creation::default() };
    let sample = |t_us| Some(LinkSample { t_us, bandwidth: Some(7), round_trip_us: None });
    (Arc::clone(&recorder), Recording { recorder, creation, sample: Box::new(sample) })
}

fn read(recorder: &Recorder, offset: u64) {
    let (range, now) = (ByteRange::between(offset, offset + 512), Instant::now());
    let boot = recorder.read_arrived(range, now);
    recorder.record(boot, Op::Read, range, now, Duration::ZERO);
}

fn traces(dir: &Path) -> Vec<Trace> {
    let paths = TraceDirectory::list(dir).unwrap();
    paths.iter().map(|path| read_file(path, &ReadLimits::default()).unwrap()).collect()
}

#[test]
fn traces_are_saved_in_between_and_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let directory = Arc::new(TraceDirectory::open(dir.path(), DirectoryLimits::default()).unwrap());
    let (a, first) = recording("a", TIMEOUT);
    let (_idle, second) = recording("b", TIMEOUT);
    let saver = Saver::start(directory, vec![first, second], PACE).unwrap();
    assert_eq!(saver.saved(), SavedBoots::default());
    read(&a, 0);
    wait_until("a trace is there", TIMEOUT, || traces(dir.path()).len() == 1);
    read(&a, 4096);
    assert!(saver.stop(TIMEOUT));
    let traces = traces(dir.path());
    assert_eq!((traces.len(), traces[0].records.len(), saver.saved().failures), (1, 2, 0));
    assert_eq!((saver.saved().requests, saver.saved().traces), (2, 1));
    assert!(traces[0].link.iter().all(|sample| sample.bandwidth == Some(7)));
    assert!(!traces[0].link.is_empty());
}

#[test]
fn a_trace_ends_with_the_window_and_the_next_boot_has_one_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let directory = Arc::new(TraceDirectory::open(dir.path(), DirectoryLimits::default()).unwrap());
    let (a, recording) = recording("a", Duration::from_secs(1));
    // Longer than the window: it has not begun.
    let attached_for = Duration::from_millis(1100);
    wait_until("more than a window goes by", TIMEOUT, || a.created().elapsed() >= attached_for);
    let saver = Saver::start(directory, vec![recording], PACE).unwrap();
    read(&a, 1 << 20);
    wait_until("the window is over, and its trace there", TIMEOUT, || {
        matches!(a.phase(Instant::now()), RecordingPhase::Idle { .. }) && traces(dir.path()).len() == 1
    });
    read(&a, 2 << 20);
    a.client_came();
    for n in 0..3 {
        read(&a, n * 4096);
    }
    assert!(saver.stop(TIMEOUT));
    let traces = traces(dir.path());
    let told: Vec<_> = traces
        .iter()
        .map(|trace| (trace.creation.volume.as_str(), trace.records.len(), trace.records[0].t_us))
        .collect();
    assert_eq!(told, [("a", 1, 0), ("a-boot-2", 3, 0)]);
    let waited: u64 = traces[0].creation.labels[ATTACHED_BEFORE].parse().unwrap();
    assert!(waited >= 1_100_000, "{waited}");
    assert!(traces[1].creation.created_us > traces[0].creation.created_us);
    assert_eq!((saver.saved().boots, saver.saved().traces), (2, 2));
}

#[test]
fn a_look_at_the_disk_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let directory = Arc::new(TraceDirectory::open(dir.path(), DirectoryLimits::default()).unwrap());
    let (a, recording) = recording("a", TIMEOUT);
    let saver = Saver::start(directory, vec![recording], PACE).unwrap();
    read(&a, 0);
    // Also if it was written already.
    wait_until("a trace is there", TIMEOUT, || traces(dir.path()).len() == 1);
    for _ in 0..3 * OPEN_MAX {
        a.client_came();
        read(&a, 0);
        a.client_left();
    }
    a.client_came();
    for n in 0..READS_MIN as u64 {
        read(&a, n * 4096);
    }
    a.client_left();
    a.client_came();
    read(&a, 0);
    assert!(saver.stop(TIMEOUT));
    let lens: Vec<_> = traces(dir.path()).iter().map(|trace| trace.records.len()).collect();
    assert_eq!(lens, [READS_MIN, 1]);
    let looks = 3 * OPEN_MAX as u64 + 1;
    let wanted = SavedBoots {
        boots: looks + 2,
        traces: 2,
        looks,
        requests: READS_MIN as u64 + 1,
        requests_of_looks: looks,
        ..SavedBoots::default()
    };
    assert_eq!((saver.saved(), a.boots()), (wanted, looks + 2));
}

#[test]
fn a_directory_that_fails_harms_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let gone = dir.path().join("gone");
    let directory = Arc::new(TraceDirectory::open(&gone, DirectoryLimits::default()).unwrap());
    std::fs::remove_dir(&gone).unwrap();
    let (a, recording) = recording("a", TIMEOUT);
    read(&a, 0);
    let saver = Saver::start(directory, vec![recording], PACE).unwrap();
    wait_until("two failures", TIMEOUT, || saver.saved().failures > 1);
    assert_eq!(saver.saved().requests, 0);
    // Once it works again, nothing was lost.
    std::fs::create_dir(&gone).unwrap();
    read(&a, 4096);
    assert!(saver.stop(TIMEOUT));
    assert_eq!(traces(&gone)[0].records.len(), 2);
}

/// Begins boots without end, as a guest can, each longer than a look.
fn boots_without_end(recorder: &Recorder, boots: u64) {
    for _ in 0..boots {
        recorder.client_came();
        for n in 0..READS_MIN as u64 {
            read(recorder, n * 4096);
        }
        recorder.client_left();
    }
}

#[test]
fn a_disk_that_boots_without_end_leaves_so_many_traces_an_hour_and_others_have_theirs() {
    let dir = tempfile::tempdir().unwrap();
    let directory = Arc::new(TraceDirectory::open(dir.path(), DirectoryLimits::default()).unwrap());
    let of = |volume: &str| {
        let recorder = Arc::new(Recorder::new(Instant::now(), TIMEOUT, 2000));
        let creation = Creation { volume: volume.to_owned(), ..Creation::default() };
        (Arc::clone(&recorder), Recording { recorder, creation, sample: Box::new(|_| None) })
    };
    let ((wild, first), (tame, second)) = (of("wild"), of("tame"));
    boots_without_end(&wild, 100);
    boots_without_end(&tame, 2);
    let saver = Saver::start(directory, vec![first, second], PACE).unwrap();
    assert!(saver.stop(TIMEOUT));
    let volumes: Vec<_> = traces(dir.path()).into_iter().map(|trace| trace.creation.volume).collect();
    let of_wild = volumes.iter().filter(|volume| volume.starts_with("wild")).count();
    assert_eq!((of_wild, volumes.len()), (6, 8), "{volumes:?}");
    let reads = READS_MIN as u64;
    let wanted = SavedBoots {
        boots: 102,
        traces: 8,
        beyond: 94,
        requests: 8 * reads,
        requests_beyond: 94 * reads,
        ..SavedBoots::default()
    };
    assert_eq!(saver.saved(), wanted);
}

#[test]
fn the_oldest_traces_of_a_disk_give_way_to_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let directory = Arc::new(TraceDirectory::open(dir.path(), DirectoryLimits::default()).unwrap());
    let other = Trace {
        creation: Creation { volume: "other".to_owned(), ..Creation::default() },
        ..Trace::default()
    };
    directory.save(&other, false).unwrap();
    let recorder = Arc::new(Recorder::new(Instant::now(), TIMEOUT, 2000));
    let creation = Creation { volume: "a".to_owned(), ..Creation::default() };
    let recording = Recording { recorder: Arc::clone(&recorder), creation, sample: Box::new(|_| None) };
    boots_without_end(&recorder, 10);
    let pace = Pace { traces_an_hour: 9, traces_max: 3, ..PACE };
    let saver = Saver::start(directory, vec![recording], pace).unwrap();
    assert!(saver.stop(TIMEOUT));
    let volumes: Vec<_> = traces(dir.path()).into_iter().map(|trace| trace.creation.volume).collect();
    assert_eq!(volumes, ["other", "a-boot-7", "a-boot-8", "a-boot-9"]);
    assert_eq!((saver.directory().evicted(), saver.saved().traces, saver.saved().beyond), (6, 9, 1));
}
