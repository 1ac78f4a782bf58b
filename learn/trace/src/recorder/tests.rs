#![expect(clippy::disallowed_methods, reason = "what it records is the time")]

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn range(offset: u64, len: u64) -> ByteRange {
    ByteRange::between(offset, offset + len)
}

fn drained(recorder: &Recorder) -> Vec<(BootId, Record)> {
    let mut records = Vec::new();
    recorder.drain(&mut |boot, record| {
        records.push((boot, record));
        true
    });
    records.sort_by_key(|(boot, record)| (*boot, record.t_us));
    records
}

/// Reads at once, `after` the creation.
fn read(recorder: &Recorder, range: ByteRange, after: Duration) -> BootId {
    let arrived = recorder.created() + after;
    let boot = recorder.read_arrived(range, arrived);
    recorder.record(boot, Op::Read, range, arrived, Duration::ZERO);
    boot
}

#[test]
fn a_full_recorder_keeps_the_earliest_records_and_counts_the_rest() {
    let created = Instant::now();
    let recorder = Recorder::new(created, WINDOW, 3);
    let boot = recorder.read_arrived(range(0, 4096), created);
    for n in 0..5 {
        let arrived = created + Duration::from_millis(10 - n);
        recorder.record(boot, Op::Read, range(n * 4096, 4096), arrived, Duration::from_micros(n));
    }
    recorder.record(boot, Op::Write, range(0, 512), created + WINDOW + SECOND, Duration::ZERO);
    assert_eq!(recorder.dropped(), 2);
    let seen: Vec<_> =
        drained(&recorder).iter().map(|(_, r)| (r.t_us, r.range.offset(), r.service_us)).collect();
    assert_eq!(seen, [(8000, 8192, Some(2)), (9000, 4096, Some(1)), (10_000, 0, Some(0))]);
    // Records that were taken out make room.
    recorder.record(boot, Op::Write, range(0, 512), created, Duration::ZERO);
    assert_eq!((drained(&recorder).len(), recorder.dropped(), recorder.recorded()), (1, 2, 4));
}

#[test]
fn times_count_from_the_first_read_of_each_boot() {
    let recorder = Recorder::new(Instant::now(), WINDOW, 100);
    assert_eq!(recorder.phase(recorder.created() + WINDOW * 2), RecordingPhase::Waiting);
    // A write does not begin a boot.
    let written = recorder.created() + SECOND;
    recorder.record(recorder.boot(), Op::Write, range(0, 512), written, Duration::ZERO);
    let first = read(&recorder, range(1 << 20, 512), WINDOW * 2);
    read(&recorder, range(0, 4096), WINDOW * 2 + SECOND);
    // After the window nothing is recorded, until the boot sector is read again.
    read(&recorder, range(8192, 512), WINDOW * 3 + SECOND);
    assert_eq!(
        recorder.phase(recorder.created() + WINDOW * 3 + SECOND),
        RecordingPhase::Idle { since_us: 720_000_000 }
    );
    let second = read(&recorder, range(0, 512), WINDOW * 3 + SECOND * 3);
    read(&recorder, range(4096, 512), WINDOW * 3 + SECOND * 4);
    let seen: Vec<_> = drained(&recorder).iter().map(|(boot, record)| (*boot, record.t_us)).collect();
    assert_eq!(seen, [(first, 0), (first, 1_000_000), (second, 0), (second, 1_000_000)]);
    assert_eq!(
        (recorder.boots(), first.since(), second.since()),
        (2, Some(WINDOW * 2), Some(WINDOW * 3 + SECOND * 3))
    );
}

#[test]
fn a_read_that_waits_is_no_pause() {
    let recorder = Recorder::new(Instant::now(), WINDOW, 100);
    let arrived = recorder.created() + SECOND;
    let first = recorder.read_arrived(range(1 << 20, 512), arrived);
    recorder.record(first, Op::Read, range(1 << 20, 512), arrived, SECOND * 60);
    assert_eq!(read(&recorder, range(0, 4096), SECOND * 62), first);
    assert_ne!(read(&recorder, range(0, 4096), SECOND * 93), first);
}

#[test]
fn a_client_that_comes_when_none_is_there_starts_anew() {
    let recorder = Recorder::new(Instant::now(), WINDOW, 100);
    let sector = range(0, 4096);
    recorder.client_came();
    let first = read(&recorder, sector, SECOND);
    // A second connection of the same client.
    recorder.client_came();
    assert_eq!(read(&recorder, sector, SECOND * 2), first);
    recorder.client_left();
    recorder.client_left();
    recorder.client_came();
    let second = read(&recorder, sector, SECOND * 3);
    assert_ne!(second, first);
    assert_eq!(read(&recorder, sector, SECOND * 4), second);
    // A client that begins at another place reads a disk, but does not boot it.
    recorder.client_left();
    recorder.client_came();
    assert_eq!(read(&recorder, range(1 << 20, 512), SECOND * 5), second);
    assert_eq!(read(&recorder, sector, SECOND * 6), second);
}

#[test]
fn many_threads_record_without_loss() {
    let created = Instant::now();
    let recorder = Recorder::new(created, WINDOW, 40_000);
    let boot = recorder.read_arrived(range(512, 512), created);
    let mut records = Vec::new();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let recorder = &recorder;
            scope.spawn(move || {
                for n in 0..20_000 {
                    let op = if n % 2 == 0 { Op::Read } else { Op::Write };
                    recorder.record(boot, op, range(thread << 40 | n, 512), created, SECOND);
                }
            });
        }
        // Reading meanwhile gives whole records only.
        while records.len() < 40_000 {
            records.extend(drained(&recorder));
        }
    });
    records.extend(drained(&recorder));
    let mut offsets: Vec<_> = records.iter().map(|(_, record)| record.range.offset()).collect();
    offsets.sort_unstable();
    offsets.dedup();
    let all = records.len() as u64;
    assert_eq!((offsets.len() as u64, all + recorder.dropped(), recorder.recorded()), (all, 80_000, all));
    assert!(records.iter().all(|(of, r)| {
        *of == boot && r.range.len() == 512 && (r.op == Op::Read) == (r.range.offset() % 2 == 0)
    }));
}

#[test]
fn threads_that_begin_together_begin_one_boot() {
    for _ in 0..50 {
        let recorder = Recorder::new(Instant::now(), WINDOW, 100);
        std::thread::scope(|scope| {
            for n in 0..4 {
                let recorder = &recorder;
                scope.spawn(move || read(recorder, range(n * 4096, 512), SECOND));
            }
        });
        let records = drained(&recorder);
        assert_eq!((recorder.boots(), records.len()), (1, 4));
        assert!(records.iter().all(|(boot, _)| *boot == records[0].0));
    }
}
