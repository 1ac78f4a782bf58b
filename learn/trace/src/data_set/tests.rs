//! Good and bad data sets of every form.
//!
//! Goal: all forms of one data set are the same; with any bytes in a file, the others are read and the reason is
//! counted; nothing depends on the number of threads. Method: small data sets are written, spoiled in each way, and
//! read.

use super::*;
use crate::fast26::{CREATIONS, Exporter};
use crate::npy::{self, NpyRow};
use crate::record::{Op, Record};
use crate::{DirectoryLimits, TraceDirectory};
use headstart_block::ByteRange;
use proptest::prelude::*;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

const SECOND: u64 = 1_000_000;
/// A change to the file of a trace.
type Spoil<'a> = &'a dyn Fn(&Path);

/// A time of this century, in seconds of Unix time.
const NOW: u64 = 1_800_000_000;
const SIZE: u64 = 4 << 30;

fn trace(volume: u64, image: &str, created_s: u64) -> Trace {
    let record = |n: u64| Record {
        t_us: 5 * SECOND + n * 300 + volume,
        op: if n.is_multiple_of(5) { Op::Write } else { Op::Read },
        range: ByteRange::between(n * 4096, n * 4096 + 8192),
        service_us: None,
    };
    let labels = [("image_type", "1"), ("meta_info", "base=")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    Trace {
        creation: Creation {
            volume: volume.to_string(),
            image: image.to_owned(),
            user: "u".to_owned(),
            size: SIZE,
            created_us: created_s * SECOND,
            labels: labels.into(),
            ..Creation::default()
        },
        records: (0..20 + volume % 7).map(record).collect(),
        ..Trace::default()
    }
}

/// Twelve traces of three images, in the order of a data set.
fn traces() -> Vec<Trace> {
    let image = |image: &'static str| (0..4).map(move |n| trace(1000 + n * 17 % 5, image, 5000 + n * 60));
    ["a", "b", "c"].into_iter().flat_map(image).collect()
}

fn table(dir: &Path, traces: &[Trace]) {
    let mut exporter = Exporter::new(dir).unwrap();
    // Added in another order than that of the list.
    traces.iter().rev().for_each(|trace| exporter.add(trace).unwrap());
    exporter.finish().unwrap();
}

fn parquet(dir: &Path, traces: &[Trace]) {
    for (n, trace) in traces.iter().enumerate() {
        // Volumes repeat from image to image.
        let directory = TraceDirectory::open(&dir.join(n.to_string()), DirectoryLimits::default()).unwrap();
        let path = directory.save(trace, false).unwrap();
        fs::rename(path, dir.join(format!("{n}.parquet"))).unwrap();
    }
}

fn open(path: &Path) -> DataSet {
    DataSet::open(path, &DataSetLimits::default()).unwrap()
}

fn all(set: &DataSet, threads: usize) -> (Vec<Result<Trace, String>>, Skipped) {
    let mut all = Vec::new();
    let skipped = set.for_each(threads, |index, trace| {
        assert_eq!(index, all.len());
        all.push(trace.map_err(|e| e.to_string()));
        Ok(())
    });
    (all, skipped.unwrap())
}

#[test]
fn every_form_of_a_data_set_reads_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let traces = traces();
    let expected: Vec<_> = traces.iter().cloned().map(Ok).collect();
    table(&dir.path().join("table"), &traces);
    parquet(&dir.path().join("parquet"), &traces);
    for form in ["table", "parquet"] {
        let set = open(&dir.path().join(form));
        assert_eq!(set.creations(), traces.iter().map(|t| t.creation.clone()).collect::<Vec<_>>());
        assert_eq!(set.groups().collect::<Vec<_>>(), [0..4, 4..8, 8..12]);
        for threads in [0, 1, 2, 5, 100] {
            assert_eq!(all(&set, threads), (expected.clone(), Skipped::default()), "{form} {threads}");
        }
        let odd = set.filter(|index, _| index % 2 == 1);
        let part = |range| set.part(range).creations().to_vec();
        assert_eq!((part(2..5), part(3..99).len()), (set.creations()[2..5].to_vec(), set.len() - 3));
        assert!(part(99..100).is_empty());
        let odd_traces: Vec<_> = expected.iter().skip(1).step_by(2).cloned().collect();
        assert_eq!(all(&odd, 2).0, odd_traces);
        assert!(set.stored_bytes() > 0 && set.read(12).is_err());
        assert_eq!(set.read(11).unwrap(), (traces[11].clone(), false));
    }
    let one = open(&dir.path().join("parquet/7.parquet"));
    assert_eq!(all(&one, 2).0, [expected[7].clone()]);
    let bare = open(&dir.path().join("table/trace/it1/b/4GB/1000.npy"));
    let Trace { creation, records, .. } = all(&bare, 2).0.remove(0).unwrap();
    let first = traces[4].creation.created_us + traces[4].records[0].t_us;
    assert_eq!((creation.volume.as_str(), creation.created_us, records[0].t_us), ("1000", first, 0));
    assert_eq!(records.len(), traces[4].records.len());
}

#[test]
fn paths_without_a_data_set_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let fails = |path: &Path| DataSet::open(path, &DataSetLimits::default()).unwrap_err();
    assert_eq!(fails(&dir.path().join("nothing")).kind(), ErrorKind::NotFound);
    let empty = fails(dir.path());
    assert_eq!(empty.kind(), ErrorKind::NotFound);
    assert!(empty.to_string().contains("name a directory"), "{empty}");
    fs::write(dir.path().join("file"), "text").unwrap();
    assert_eq!(fails(&dir.path().join("file")).kind(), ErrorKind::Corrupt);
    parquet(&dir.path().join("parquet"), &traces());
    let few = DataSetLimits { traces_max: 11, ..DataSetLimits::default() };
    assert_eq!(DataSet::open(&dir.path().join("parquet"), &few).unwrap_err().kind(), ErrorKind::Invalid);
    fs::write(dir.path().join(CREATIONS), "").unwrap();
    assert_eq!(fails(dir.path()).kind(), ErrorKind::NotFound);
    fs::write(dir.path().join(CREATIONS), [0xff, 0, b'\n', b'"', b'\n', 0xfe]).unwrap();
    assert!(open(dir.path()).skipped().count(SkipReason::BadMetadata) > 0);
}

/// A data set in which the image `a` is sound, and `spoil` damages image `b`'s only file.
fn spoiled(spoil: impl Fn(&Path)) -> (Vec<Result<Trace, String>>, Skipped) {
    let dir = tempfile::tempdir().unwrap();
    let good = trace(1, "a", NOW);
    table(dir.path(), &[good.clone(), trace(2, "b", NOW)]);
    spoil(&dir.path().join("trace/it1/b/4GB/2.npy"));
    let set = open(dir.path());
    let (read, mut skipped) = all(&set, 2);
    skipped.add(set.skipped());
    assert_eq!(read[0], Ok(good));
    (read, skipped)
}

fn rows(path: &Path, change: impl Fn(&mut Vec<NpyRow>)) {
    let mut rows = npy::decode(&fs::read(path).unwrap()).unwrap();
    change(&mut rows);
    fs::write(path, npy::encode(&rows)).unwrap();
}

#[test]
fn each_kind_of_damage_has_its_reason() {
    let cut = |path: &Path| fs::write(path, &fs::read(path).unwrap()[..200]).unwrap();
    let floats = |path: &Path| {
        let text = fs::read(path).unwrap();
        fs::write(path, [&text[..20], b"'<f8'", &text[25..]].concat()).unwrap();
    };
    // 100 million rows that take no space on the disk: reading them all takes 3.2 GB of memory.
    let hundred_million = |path: &Path| {
        let header = "{'descr': '<i8', 'fortran_order': False, 'shape': (100000000, 4), }";
        fs::write(path, [b"\x93NUMPY\x01\0\x76\0", format!("{header:117}\n").as_bytes()].concat()).unwrap();
        fs::File::options().write(true).open(path).unwrap().set_len(128 + 3_200_000_000).unwrap();
    };
    let directory = |path: &Path| {
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
    };
    let cases: [(SkipReason, Spoil<'_>); 15] = [
        (SkipReason::Damaged, &cut),
        (SkipReason::Damaged, &|path| fs::write(path, b"").unwrap()),
        (SkipReason::WrongType, &floats),
        (SkipReason::TooLarge, &hundred_million),
        (SkipReason::Missing, &|path| fs::remove_file(path).unwrap()),
        (SkipReason::Unreadable, &directory),
        (SkipReason::Empty, &|path| rows(path, Vec::clear)),
        (SkipReason::Time, &|path| rows(path, |rows| rows[3][3] = -1)),
        (SkipReason::Time, &|path| rows(path, |rows| rows[3][3] = 0)),
        (SkipReason::Time, &|path| rows(path, |rows| rows[3][3] = i64::MAX)),
        (SkipReason::NoRequest, &|path| rows(path, |rows| rows[3][0] = 2)),
        (SkipReason::NoRequest, &|path| rows(path, |rows| rows[3][2] = -512)),
        (SkipReason::NoRequest, &|path| rows(path, |rows| rows[3][2] = (1 << 30) + 1)),
        (SkipReason::PastDisk, &|path| rows(path, |rows| rows[3][1] = 1 << 62)),
        (SkipReason::PastDisk, &|path| rows(path, |rows| rows[3][1] = SIZE.cast_signed() - 8191)),
    ];
    for (number, (reason, spoil)) in cases.into_iter().enumerate() {
        let (read, skipped) = spoiled(spoil);
        let error = read[1].as_ref().unwrap_err();
        assert!(error.contains("2.npy"), "{number}: {error}");
        let reasons: Vec<_> = skipped.reasons().map(|(reason, count)| (reason, count.count)).collect();
        assert_eq!(reasons, [(reason, 1)], "{number}: {error}");
        assert_eq!((skipped.total(), skipped.mended()), (1, 0));
        assert!(skipped.to_string().contains(reason.text()), "{skipped}");
    }
}

#[test]
fn unsorted_traces_are_mended() {
    let (read, skipped) = spoiled(|path| rows(path, |rows| rows.reverse()));
    assert_eq!(read[1].as_ref().unwrap().records.len(), trace(2, "b", NOW).records.len());
    assert!(read[1].as_ref().unwrap().records.is_sorted_by_key(|record| record.t_us));
    assert_eq!((skipped.total(), skipped.mended()), (0, 1));
    let dir = tempfile::tempdir().unwrap();
    let mut unsorted = trace(1, "a", 5000);
    unsorted.records.swap(3, 7);
    parquet(dir.path(), &[unsorted]);
    let (read, skipped) = all(&open(dir.path()), 1);
    assert_eq!((read, skipped.mended()), (vec![Ok(trace(1, "a", 5000))], 1));
}

#[test]
fn metadata_that_make_no_sense_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    table(dir.path(), &traces());
    let path = dir.path().join(CREATIONS);
    let text = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines[1] = lines[1].replace("4294967296", "much");
    lines[2] = lines[2].replace("1970-", "long ago");
    lines[3] = "../../x".to_owned() + &lines[3];
    lines[4].truncate(5);
    let repeated = lines[5].clone();
    lines.push(repeated);
    lines.remove(6);
    fs::write(&path, lines.join("\n")).unwrap();
    let set = open(dir.path());
    // No valid row names the file of a row that makes no sense.
    let counts: Vec<_> = set.skipped().reasons().map(|(reason, count)| (reason, count.count)).collect();
    assert_eq!(counts, [(SkipReason::Unlisted, 5), (SkipReason::BadMetadata, 4), (SkipReason::Repeated, 1)]);
    assert_eq!((set.len(), all(&set, 2).1.total()), (7, 0));
}

#[test]
fn columns_may_be_missing_or_more() {
    let dir = tempfile::tempdir().unwrap();
    table(dir.path(), &traces()[..1]);
    let text = "more,gmt_create,image_id,device_size,volume_id,image_type\n9,1970-01-01 01:23:20,a,4294967296,1000,1\n";
    fs::write(dir.path().join(CREATIONS), text).unwrap();
    let (read, skipped) = all(&open(dir.path()), 1);
    assert_eq!(read[0].as_ref().unwrap().records, traces()[0].records);
    assert!(skipped.is_empty());
}

#[test]
fn limits_bound_what_is_read() {
    let dir = tempfile::tempdir().unwrap();
    table(&dir.path().join("table"), &traces());
    parquet(&dir.path().join("parquet"), &traces());
    for form in ["table", "parquet"] {
        let read = ReadLimits { records_max: 21, ..ReadLimits::default() };
        let set =
            DataSet::open(&dir.path().join(form), &DataSetLimits { trace: read, ..DataSetLimits::default() })
                .unwrap();
        let more = traces().iter().filter(|trace| trace.records.len() > 21).count() as u64;
        assert_eq!(all(&set, 2).1.count(SkipReason::TooLarge), more);
        let read = ReadLimits { file_bytes_max: 100, ..ReadLimits::default() };
        let set =
            DataSet::open(&dir.path().join(form), &DataSetLimits { trace: read, ..DataSetLimits::default() })
                .unwrap();
        assert_eq!(all(&set, 2).1.count(SkipReason::TooLarge), 12);
    }
}

#[test]
fn reading_ends_with_the_first_error_of_the_taker() {
    let dir = tempfile::tempdir().unwrap();
    parquet(dir.path(), &traces());
    let set = open(dir.path());
    for threads in [1, 3] {
        let (made, mut taken) = (AtomicUsize::new(0), 0);
        let map = |_, _| made.fetch_add(1, Ordering::Relaxed);
        let ended = set.map_each(threads, map, |index, _| {
            taken += 1;
            if index == 2 { Err(Error::new(ErrorKind::Cancelled, "enough")) } else { Ok(()) }
        });
        assert_eq!((ended.unwrap_err().kind(), taken), (ErrorKind::Cancelled, 3));
        assert!(made.load(Ordering::Relaxed) <= 3 + threads * (AHEAD + 2));
    }
}

#[test]
fn a_panic_of_the_mapper_is_passed_on() {
    let dir = tempfile::tempdir().unwrap();
    parquet(dir.path(), &traces());
    let set = open(dir.path());
    let run = || set.map_each(2, |index, _| assert_ne!(index, 5), |_, _| Ok(()));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// All traces are read or counted, with any bytes in the place of traces and tables.
    #[test]
    fn damaged_data_sets_never_panic(
        at in prop::collection::vec((0_usize..4000, any::<u8>()), 1..8),
        cut in prop::option::of(0_usize..1500),
        which in 0_usize..3,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = if which == 0 {
            parquet(dir.path(), &[trace(1, "a", 5000)]);
            dir.path().join("0.parquet")
        } else {
            table(dir.path(), &[trace(1, "a", 5000)]);
            dir.path().join(if which == 1 { "trace/it1/a/4GB/1.npy" } else { CREATIONS })
        };
        let mut bytes = fs::read(&path).unwrap();
        for (at, byte) in at {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        bytes.truncate(cut.unwrap_or(bytes.len()));
        fs::write(&path, &bytes).unwrap();
        if let Ok(set) = DataSet::open(dir.path(), &DataSetLimits::default()) {
            let (read, skipped) = all(&set, 2);
            prop_assert_eq!(read.iter().filter(|read| read.is_err()).count() as u64, skipped.total());
            prop_assert!(read.len() as u64 + set.skipped().total() >= 1);
        }
    }
}

/// Any number of threads does for any amount of work.
#[test]
fn threads_are_as_many_as_there_is_work() {
    for (count, threads) in [(0, 0), (0, 5), (1, 0), (1, 9), (3, 1), (7, 3), (3, 1000)] {
        let mut taken = Vec::new();
        let take = |index, made| {
            taken.push((index, made));
            Ok(())
        };
        in_order(count, threads, &|index| index * 2, take).unwrap();
        assert_eq!(taken, (0..count).map(|index| (index, index * 2)).collect::<Vec<_>>());
    }
}
