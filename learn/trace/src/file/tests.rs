//! Round trips, the first version, other people's readers, damage.

use super::write::GROUP_ROWS;
use super::*;
use crate::record::{Op, Record};
use crate::trace::{Creation, LinkSample, Trace};
use headstart_block::{ByteRange, ErrorKind};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use proptest::prelude::*;

/// A small trace with everything that a trace can have.
pub(crate) fn sample() -> Trace {
    let range = |offset, len| ByteRange::new(offset, len).unwrap();
    Trace {
        creation: Creation {
            volume: "v-1".to_owned(),
            image: "file:///images:debian".to_owned(),
            family: "debian-13".to_owned(),
            user: "u".to_owned(),
            cluster: "c".to_owned(),
            host: "h".to_owned(),
            options: "policy=lazy".to_owned(),
            size: 4 << 30,
            created_us: 1_800_000_000_123_456,
            labels: [("digest".to_owned(), "sha256:00".to_owned())].into(),
        },
        records: vec![
            Record { t_us: 5, op: Op::Read, range: range(0, 512), service_us: Some(80) },
            Record { t_us: 5, op: Op::Write, range: range(4096, 8192), service_us: None },
            Record {
                t_us: 1_000_000,
                op: Op::Read,
                range: range(u64::MAX - 4096, 4096),
                service_us: Some(0),
            },
        ],
        link: vec![
            LinkSample { t_us: 1_000_000, bandwidth: None, round_trip_us: None },
            LinkSample { t_us: 2_000_000, bandwidth: Some(10_000_000), round_trip_us: Some(20_000) },
        ],
        dropped: 7,
    }
}

#[test]
fn a_written_trace_reads_back() {
    for trace in [sample(), Trace::default()] {
        assert_eq!(read(&encode(&trace).unwrap(), &ReadLimits::default()).unwrap(), trace);
    }
}

/// A file of the first release, which must open for ever.
#[test]
fn a_file_of_version_1_is_read() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/version-1.parquet");
    assert_eq!(read_file(&file, &ReadLimits::default()).unwrap(), sample());
}

#[test]
fn other_parquet_readers_read_a_trace() {
    let trace = sample();
    let reader = SerializedFileReader::new(temporary(&encode(&trace).unwrap())).unwrap();
    let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 5);
    assert_eq!((rows[0].get_ulong(0).unwrap(), rows[0].get_ubyte(1).unwrap()), (5, 1));
    assert_eq!((rows[1].get_ulong(3).unwrap(), rows[1].get_uint(4).is_err()), (8192, true));
    assert_eq!((rows[4].get_ulong(5).unwrap(), rows[4].get_uint(6).unwrap()), (10_000_000, 20_000));
}

fn temporary(bytes: &[u8]) -> std::fs::File {
    use std::io::Write;
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

#[test]
fn several_groups_and_pages_read_back() {
    let record = |n: u64| Record {
        t_us: n,
        op: if n.is_multiple_of(3) { Op::Write } else { Op::Read },
        range: ByteRange::new(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 12 << 9, 4096).unwrap(),
        service_us: (!n.is_multiple_of(5)).then_some(u32::try_from(n).unwrap()),
    };
    let records = (0..GROUP_ROWS as u64 + 1000).map(record).collect();
    let trace = Trace { records, ..Trace::default() };
    let file = encode(&trace).unwrap();
    assert_eq!(read(&file, &ReadLimits::default()).unwrap(), trace);
    let limits = ReadLimits { records_max: trace.records.len() - 1, ..ReadLimits::default() };
    assert_eq!(read(&file, &limits).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn a_newer_version_is_refused_and_new_fields_are_not() {
    let file = encode(&sample()).unwrap();
    let changed = |from: &str, to: &str| {
        let at = file.windows(from.len()).position(|bytes| bytes == from.as_bytes()).unwrap();
        let mut file = file.clone();
        file[at..at + to.len()].copy_from_slice(to.as_bytes());
        read(&file, &ReadLimits::default())
    };
    let error = changed("\"version\":1", "\"version\":2").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("use a newer headstart"), "{error}");
    assert_eq!(changed("\"family\"", "\"fbmily\"").unwrap().creation.family, "");
    assert_eq!(changed("service_us", "service_uz").unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn damage_is_noticed_or_harmless() {
    let file = encode(&sample()).unwrap();
    for at in 0..file.len() {
        for mask in [1, 0x80, 0xff] {
            let mut file = file.clone();
            file[at] ^= mask;
            let _ = read(&file, &ReadLimits::default());
        }
        assert!(read(&file[..at], &ReadLimits::default()).is_err(), "cut to {at}");
    }
}

#[test]
fn too_many_labels_are_refused() {
    let mut trace = sample();
    trace.creation.labels.insert("much".to_owned(), "x".repeat(HEADER_MAX));
    assert_eq!(encode(&trace).unwrap_err().kind(), ErrorKind::Invalid);
}

fn records() -> impl Strategy<Value = Vec<Record>> {
    let one = (any::<u32>(), any::<bool>(), any::<u64>(), any::<u32>(), any::<Option<u32>>());
    let record = one.prop_map(|(t_us, read, offset, len, service_us)| Record {
        t_us: t_us.into(),
        op: if read { Op::Read } else { Op::Write },
        range: ByteRange::new(offset >> 1, len.into()).unwrap(),
        service_us,
    });
    prop::collection::vec(record, 0..200).prop_map(|mut records| {
        records.sort_by_key(|record| record.t_us);
        records
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_records_round_trip(records in records(), labels in prop::collection::btree_map(".*", ".*", 0..4)) {
        let creation = Creation { labels, ..Creation::default() };
        let trace = Trace { creation, records, ..Trace::default() };
        prop_assert_eq!(read(&encode(&trace).unwrap(), &ReadLimits::default()).unwrap(), trace);
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let len = u32::try_from(bytes.len()).unwrap().to_le_bytes();
        let _ = read(&[b"PAR1", &bytes[..], &len, b"PAR1"].concat(), &ReadLimits::default());
    }
}
