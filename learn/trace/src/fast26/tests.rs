//! Round trips of small data sets, strange names, damage. The shared data set has a test of its own (`tests/`).

use super::*;
use std::collections::BTreeMap;

fn trace(volume: &str, image: &str, created_us: u64) -> Trace {
    let record = |t_us, op, offset| Record {
        t_us,
        op,
        range: ByteRange::between(offset, offset + 4096),
        service_us: None,
    };
    Trace {
        creation: Creation {
            volume: volume.to_owned(),
            image: image.to_owned(),
            size: 5 << 29,
            created_us,
            options: "a=\"1\",2".to_owned(),
            labels: [(IMAGE_TYPE, "3"), (META_INFO, "base=")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..Creation::default()
        },
        records: vec![record(5, Op::Read, 0), record(5, Op::Write, 4096), record(7, Op::Read, 1 << 40)],
        ..Trace::default()
    }
}

fn import_all(dir: &Path) -> (Imported, Vec<Trace>) {
    let mut traces = Vec::new();
    let imported = import(dir, &ReadLimits::default(), |trace| {
        traces.push(trace);
        Ok(())
    });
    (imported.unwrap(), traces)
}

fn export_all(dir: &Path, traces: &[Trace]) {
    let mut exporter = Exporter::new(dir).unwrap();
    traces.iter().for_each(|trace| exporter.add(trace).unwrap());
    exporter.finish().unwrap();
}

#[test]
fn an_exported_data_set_comes_back_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let traces = ["7", "../v: é%", "", ".hidden", "a%41"]
        .map(|name| trace(name, &format!("oci://h/{name}"), 1_000_000_000_000));
    export_all(dir.path(), &traces);
    assert!(is_data_set(dir.path()));
    let (imported, mut back) = import_all(dir.path());
    assert_eq!((imported.traces, imported.records), (5, 15));
    assert!(imported.unreadable.is_empty() && imported.unlisted.is_empty(), "{imported:?}");
    let by_volume = |a: &Trace, b: &Trace| a.creation.volume.cmp(&b.creation.volume);
    let mut traces = traces.to_vec();
    traces.sort_by(by_volume);
    back.sort_by(by_volume);
    assert_eq!(back, traces);
}

#[test]
fn a_request_before_the_creation_stays_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    export_all(dir.path(), &[trace("1", "i", 1_000_000_000_000)]);
    let table = dir.path().join(CREATIONS);
    let text = fs::read_to_string(&table).unwrap().replace("1970-01-12 13:46:40", "1970-01-12 13:46:45");
    fs::write(&table, &text).unwrap();
    let (_, traces) = import_all(dir.path());
    assert_eq!((traces[0].creation.created_us, traces[0].records[0].t_us), (1_000_000_000_005, 0));
    let again = tempfile::tempdir().unwrap();
    export_all(again.path(), &traces);
    assert_eq!(fs::read_to_string(again.path().join(CREATIONS)).unwrap(), text);
    let path = "trace/it3/i/3GB/1.npy";
    assert_eq!(fs::read(again.path().join(path)).unwrap(), fs::read(dir.path().join(path)).unwrap());
}

#[test]
fn recorded_traces_keep_what_has_a_place() {
    let mut recorded = trace("v", "i", 1_000_000_500_000);
    recorded.creation.host = "h".to_owned();
    recorded.creation.labels = BTreeMap::from([("digest".to_owned(), "sha256:1".to_owned())]);
    recorded.records[0].service_us = Some(3);
    let row = CreationRow::of(&recorded.creation).unwrap();
    assert_eq!((row.image_type.as_str(), row.meta_info.as_str()), ("0", "host=h;digest=sha256:1"));
    assert_eq!(row.gmt_create, "1970-01-12 13:46:40");
    assert_eq!(row.path().unwrap(), Path::new("trace/it0/i/3GB/v.npy"));
}

#[test]
fn damaged_traces_are_named_and_the_rest_is_read() {
    let dir = tempfile::tempdir().unwrap();
    export_all(dir.path(), &["1", "2", "3"].map(|volume| trace(volume, "i", 1_000_000_000_000)));
    let file = |volume: &str| dir.path().join(format!("trace/it3/i/3GB/{volume}.npy"));
    fs::remove_file(file("1")).unwrap();
    fs::write(file("2"), npy::encode(&[[2, 0, 0, 0]])).unwrap();
    fs::write(file("4"), npy::encode(&[])).unwrap();
    let (imported, traces) = import_all(dir.path());
    assert_eq!((imported.traces, traces.len(), imported.unreadable.len()), (1, 1, 2));
    assert!(imported.unreadable[0].contains("1.npy") && imported.unreadable[1].contains("2.npy"));
    assert_eq!(imported.unlisted, ["trace/it3/i/3GB/4.npy"]);
    let refused = Exporter::new(dir.path()).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
}

#[test]
fn names_do_not_lead_out_of_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    export_all(dir.path(), &[trace("1", "i", 0)]);
    let table = dir.path().join(CREATIONS);
    let text = fs::read_to_string(&table).unwrap();
    for (from, to) in
        [(",i,", ",../i,"), (",i,", ",..,"), ("\n1,", "\n/etc/x,"), (",3,", ",,"), (",i,", ",,")]
    {
        fs::write(&table, text.replace(from, to)).unwrap();
        let error = import(dir.path(), &ReadLimits::default(), |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{to}: {error}");
    }
    let volume_twice = [trace("1", "i", 0), trace("1", "i", 5)];
    let again = tempfile::tempdir().unwrap();
    let mut exporter = Exporter::new(again.path()).unwrap();
    exporter.add(&volume_twice[0]).unwrap();
    assert_eq!(exporter.add(&volume_twice[1]).unwrap_err().kind(), ErrorKind::Conflict);
    // Nor does a file that is there already.
    let elsewhere = again.path().join("elsewhere");
    std::os::unix::fs::symlink(&elsewhere, again.path().join("trace/it3/i/3GB/2.npy")).unwrap();
    assert_eq!(exporter.add(&trace("2", "i", 0)).unwrap_err().kind(), ErrorKind::Conflict);
    assert!(!elsewhere.exists());
}

#[test]
fn requests_that_are_none_are_refused() {
    for row in [[2, 0, 0, 10], [1, -1, 0, 10], [1, 0, -1, 10], [1, 0, 0, 9], [-1, 0, 0, 10]] {
        assert!(records(&[row], 10).is_err(), "{row:?}");
    }
    let sorted = records(&[[1, 0, 0, 12], [0, 5, 5, 11]], 10).unwrap();
    assert_eq!(sorted.iter().map(|record| record.t_us).collect::<Vec<_>>(), [1, 2]);
    let mut huge = trace("1", "i", u64::MAX);
    assert_eq!(rows(&huge).unwrap_err().kind(), ErrorKind::Invalid);
    huge.creation.created_us = 0;
    huge.records[0].range = ByteRange::new(1 << 63, 0).unwrap();
    assert_eq!(rows(&huge).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn a_row_by_itself_tells_a_creation() {
    let row = [("image_id", "m-a"), ("device_size", "4096"), ("user_id", "u"), ("meta_info", "base=x")];
    let column = |name: &str| row.iter().find(|(known, _)| *known == name).map(|(_, v)| (*v).to_owned());
    let creation = creation_of(column).unwrap();
    assert_eq!((creation.image.as_str(), creation.user.as_str(), creation.size), ("m-a", "u", 4096));
    assert_eq!((creation.labels[META_INFO].as_str(), creation.created_us), ("base=x", 0));
    assert_eq!(creation_of(|_| None).unwrap().image, "");
    for (name, text) in [("device_size", "4G"), ("device_size", "-1"), ("gmt_create", "yesterday")] {
        let error = creation_of(|column| (column == name).then(|| text.to_owned())).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
}
