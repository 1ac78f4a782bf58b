//! The shared data set of real boots: its numbers as its description gives them, and its bytes after a way through
//! Parquet.
//!
//! Goal: an import loses nothing, and the statistics count what the data set's authors counted. Method: import all,
//! save as Parquet, read back, compare the table of the description, export, compare every file.

#![allow(clippy::cast_precision_loss, clippy::unwrap_used, clippy::panic, reason = "tests")]

use headstart_trace::fast26::{self, CREATIONS, Exporter};
use headstart_trace::file::{ReadLimits, read_file};
use headstart_trace::stats::{self, RequestStats};
use headstart_trace::{DirectoryLimits, Trace, TraceDirectory};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

fn data_set() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/traces");
    if fast26::is_data_set(&path) {
        return Some(path);
    }
    let _ = writeln!(std::io::stderr(), "SKIPPED: there is no data set at {}", path.display());
    None
}

fn through_parquet(data_set: &Path, dir: &Path) -> Vec<Trace> {
    let directory = TraceDirectory::open(dir, DirectoryLimits::default()).unwrap();
    let imported =
        fast26::import(data_set, &ReadLimits::default(), |trace| directory.save(&trace, false).map(drop));
    let imported = imported.unwrap();
    assert!(imported.unreadable.is_empty() && imported.unlisted.is_empty(), "{imported:?}");
    let paths = TraceDirectory::list(dir).unwrap();
    assert_eq!(imported.traces, paths.len() as u64);
    paths.iter().map(|path| read_file(path, &ReadLimits::default()).unwrap()).collect()
}

#[test]
fn an_export_of_the_import_is_the_data_set() {
    let Some(data_set) = data_set() else { return };
    let dir = tempfile::tempdir().unwrap();
    let traces = through_parquet(&data_set, &dir.path().join("parquet"));
    assert_eq!(traces.len(), 70);
    let exported = dir.path().join("exported");
    let mut exporter = Exporter::new(&exported).unwrap();
    traces.iter().for_each(|trace| exporter.add(trace).unwrap());
    exporter.finish().unwrap();
    assert_eq!(fs::read(exported.join(CREATIONS)).unwrap(), fs::read(data_set.join(CREATIONS)).unwrap());
    let (mut level, mut files) = (vec![PathBuf::from("trace")], 0);
    while let Some(path) = level.pop() {
        if data_set.join(&path).is_dir() {
            level.extend(
                fs::read_dir(data_set.join(&path)).unwrap().map(|e| path.join(e.unwrap().file_name())),
            );
            continue;
        }
        assert!(
            fs::read(data_set.join(&path)).unwrap() == fs::read(exported.join(&path)).unwrap(),
            "{path:?}"
        );
        files += 1;
    }
    assert_eq!(files, 70);
    let bytes =
        |paths: Vec<PathBuf>| -> u64 { paths.iter().map(|path| path.metadata().unwrap().len()).sum() };
    let parquet = bytes(TraceDirectory::list(&dir.path().join("parquet")).unwrap());
    let records: usize = traces.iter().map(|trace| trace.records.len()).sum();
    let _ = writeln!(std::io::stderr(), "{parquet} bytes of Parquet for {records} records");
}

/// The description's table: of all boots of an image, the median of the distinct bytes in MB by 4 KiB, 64 KiB and 2
/// MiB, the median number of reads, and how many percent of reads cross a 2 MiB boundary.
const TABLE: [(&str, [u64; 3], u64, f64); 10] = [
    ("m-flaskredis", [123, 148, 394], 5040, 0.2),
    ("m-java", [126, 148, 394], 3870, 0.9),
    ("m-mariadb", [136, 157, 377], 4250, 0.6),
    ("m-nginx", [74, 86, 233], 2080, 1.1),
    ("m-node", [150, 174, 390], 4530, 0.5),
    ("m-postgres", [167, 191, 470], 4045, 1.5),
    ("m-redis", [141, 149, 277], 2540, 2.5),
    ("p-deb11srv", [79, 96, 289], 3020, 0.7),
    ("p-deb12min", [62, 71, 208], 1880, 1.2),
    ("p-deb13", [81, 98, 250], 3250, 0.3),
];

#[test]
fn the_numbers_are_those_of_its_description() {
    let Some(data_set) = data_set() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut images = BTreeMap::<String, Vec<RequestStats>>::new();
    for trace in through_parquet(&data_set, dir.path()) {
        images.entry(trace.creation.image).or_default().push(RequestStats::of(&trace.records));
    }
    assert_eq!(images.len(), TABLE.len());
    for ((image, stats), (name, distinct, reads, cross)) in images.iter().zip(TABLE) {
        assert_eq!(image, name);
        let median = |number: &dyn Fn(&RequestStats) -> u64| stats::median(stats.iter().map(number));
        for (unit, megabytes) in distinct.into_iter().enumerate() {
            let found = median(&|stats| stats.distinct_bytes[unit]);
            assert!(found.abs_diff(megabytes * 1_000_000) <= 1_000_000, "{image}: {found}, {megabytes} MB");
        }
        // The table gives these two numbers approximately.
        let found = median(&|stats| stats.reads);
        assert!(found.abs_diff(reads) <= 10, "{image}: {found} reads, {reads}");
        let mut total = RequestStats::default();
        stats.iter().for_each(|stats| total.add(stats));
        let found = total.cross_block_reads as f64 * 100.0 / total.reads as f64;
        assert!((found - cross).abs() < 0.25, "{image}: {found}% cross, {cross}%");
    }
}
