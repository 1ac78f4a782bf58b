//! Images with known trees: their layers, read by the tar reader and applied, give the trees.
//!
//! The images are stored beside the repository and are not part of it; without them the test says so and passes.

use crate::apply::{Applier, ApplyLimits, LayerCounts};
use crate::content::EntryContent;
use crate::file_tree::{FileTree, NodeKind};
use crate::model_tree::{ModelTree, Row};
use flate2::read::MultiGzDecoder;
use headstart_block::Result;
use headstart_tar::{TarLimits, TarReader};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// The folder of the images; `HEADSTART_SHARED` names another place for the folder of all shared data.
pub(crate) fn golden() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let shared = std::env::var_os("HEADSTART_SHARED").map_or(beside, PathBuf::from);
    let dir = shared.join("formats/golden-containers");
    if !dir.is_dir() {
        let _ = writeln!(std::io::stderr(), "SKIPPED: no golden images at {}", dir.display());
    }
    dir.is_dir().then_some(dir)
}

pub(crate) fn json(path: &Path) -> Value {
    let mut text = Vec::new();
    let file = File::open(path).unwrap();
    if path.extension().is_some_and(|extension| extension == "gz") {
        MultiGzDecoder::new(file).read_to_end(&mut text).unwrap();
    } else {
        text = fs::read(path).unwrap();
    }
    serde_json::from_slice(&text).unwrap()
}

/// Applies a layer of the set.
pub(crate) fn apply_tar<T: FileTree>(tree: &mut T, path: &Path) -> Result<LayerCounts> {
    let file = File::open(path).unwrap();
    let is_gzip = path.extension().is_some_and(|extension| extension == "gz");
    let input: Box<dyn Read> = if is_gzip { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    apply_reader(tree, input)
}

/// Applies the layer that a tar is.
pub(crate) fn apply_reader<T: FileTree>(tree: &mut T, input: impl Read) -> Result<LayerCounts> {
    let mut reader = TarReader::new(input, TarLimits::default());
    let mut applier = Applier::new(tree, ApplyLimits::default());
    while let Some(entry) = reader.next_entry().unwrap() {
        applier.apply(&entry, &mut EntryContent::new(&entry, &mut reader))?;
    }
    let counts = applier.finish().unwrap();
    reader.finish().unwrap();
    Ok(counts)
}

/// The text of bytes in a tree file: those that are not printable, and `%`, as `%XX`.
fn escaped(bytes: &[u8]) -> String {
    let escape = |byte: &u8| match byte {
        b'%' => "%25".to_owned(),
        0x21..=0x7e => char::from(*byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    bytes.iter().map(escape).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A row in the form of a tree file, without its links.
fn described(path: &[u8], row: &Row) -> Value {
    let kind = match row.kind {
        NodeKind::Regular => "reg",
        NodeKind::Directory => "dir",
        NodeKind::Symlink => "sym",
        NodeKind::CharDevice => "chr",
        NodeKind::BlockDevice => "blk",
        NodeKind::Fifo => "fifo",
        NodeKind::Socket => "sock",
    };
    let mut value = serde_json::json!({
        "path": format!("/{}", escaped(path)),
        "type": kind,
        "mode": format!("{:04o}", row.mode),
        "uid": row.uid,
        "gid": row.gid,
        "mtime": [row.mtime.seconds, row.mtime.nanoseconds],
    });
    match row.kind {
        NodeKind::Regular => {
            value["size"] = row.bytes.len().into();
            value["sha256"] = hex(&Sha256::digest(&row.bytes)).into();
        }
        NodeKind::Symlink => value["target"] = escaped(&row.bytes).into(),
        NodeKind::CharDevice | NodeKind::BlockDevice => {
            value["rdev"] = serde_json::json!([row.device.0, row.device.1]);
        }
        _ => {}
    }
    if !row.xattrs.is_empty() {
        let pairs = row.xattrs.iter().map(|(name, value)| (escaped(name), hex(value).into()));
        value["xattrs"] = Value::Object(pairs.collect());
    }
    value
}

/// The tree in the form of a tree file: by path, with the paths of the same node.
fn description(rows: &BTreeMap<Vec<u8>, Row>) -> BTreeMap<String, Value> {
    let mut groups: BTreeMap<&[u8], Vec<String>> = BTreeMap::new();
    for (path, row) in rows.iter().filter(|(_, row)| row.kind != NodeKind::Directory) {
        groups.entry(&row.first).or_default().push(format!("/{}", escaped(path)));
    }
    let mut all = BTreeMap::new();
    for (path, row) in rows {
        let mut value = described(path, row);
        if let Some(group) = groups.get(row.first.as_slice()).filter(|group| group.len() > 1) {
            value["group"] = group.clone().into();
        }
        all.insert(format!("/{}", escaped(path)), value);
    }
    all
}

/// A tree file in the same form.
fn expectation(tree: &Value) -> BTreeMap<String, Value> {
    let rows = tree.as_array().unwrap();
    let mut groups: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
    for row in rows {
        if let Some(group) = row["group"].as_u64() {
            groups.entry(group).or_default().push(row["path"].clone());
        }
    }
    let mut all = BTreeMap::new();
    for row in rows {
        let mut value = row.clone();
        value.as_object_mut().unwrap().remove("nlink");
        if let Some(group) = row["group"].as_u64() {
            value["group"] = groups[&group].clone().into();
        }
        all.insert(row["path"].as_str().unwrap().to_owned(), value);
    }
    all
}

/// `true` if the set says that unpackers differ in that field.
fn is_free(unspecified: &Value, path: &str, field: &str) -> bool {
    let has = |list: &Value, text: &str| list.as_array().unwrap().iter().any(|item| item == text);
    unspecified
        .as_array()
        .unwrap()
        .iter()
        .any(|rule| has(&rule["paths"], path) && has(&rule["fields"], field))
}

/// Every difference that matters.
pub(crate) fn differences(
    expected: &Value,
    unspecified: &Value,
    rows: &BTreeMap<Vec<u8>, Row>,
) -> Vec<String> {
    let (mut expected, mut actual) = (expectation(expected), description(rows));
    // Trees are written down without the root if no entry names it.
    if !expected.contains_key("/") {
        actual.remove("/");
    }
    let paths: Vec<_> = expected.keys().chain(actual.keys()).cloned().collect();
    let mut found = Vec::new();
    for path in paths {
        let (want, have) = (expected.remove(&path), actual.remove(&path));
        let (Some(want), Some(have)) = (&want, &have) else {
            if want.is_some() || have.is_some() {
                found.push(format!("{path}: {want:?} and {have:?}"));
            }
            continue;
        };
        for field in
            ["type", "mode", "uid", "gid", "mtime", "size", "sha256", "target", "rdev", "xattrs", "group"]
        {
            let is_unsaid = field == "mtime" && want[field].is_null();
            if want[field] != have[field] && !is_unsaid && !is_free(unspecified, &path, field) {
                found.push(format!("{path}: {field}: {} and {}", want[field], have[field]));
            }
        }
    }
    found
}

#[test]
fn golden_layers_give_the_golden_trees() {
    let Some(dir) = golden() else { return };
    let set = json(&dir.join("golden.json"));
    let mut trees = 0;
    for case in set["cases"].as_array().unwrap() {
        let layers = case["source"]["layers"].as_array().unwrap();
        let mut tree = ModelTree::new();
        for (layer, expected) in layers.iter().zip(case["trees"].as_array().unwrap()) {
            let counts = apply_tar(&mut tree, &dir.join(layer["file"].as_str().unwrap())).unwrap();
            assert_eq!(counts.ignored_entries + counts.ignored_xattrs, 0, "{counts:?}");
            let file = expected["file"].as_str().unwrap();
            let found = differences(&json(&dir.join(file)), &expected["unspecified"], &tree.rows());
            assert!(found.is_empty(), "{file}: {found:#?}");
            trees += 1;
        }
    }
    assert!(trees >= 7, "{trees}");
}
