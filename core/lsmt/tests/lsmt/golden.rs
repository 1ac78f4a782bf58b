//! Every LSMT blob that the reference's tools made reads as they read it, and ours are the same bytes.
//!
//! Each case of the golden set is read three times: by the crate, by the plain reader, and, where the set has
//! the operations that made it, by playing those on a map of sectors. All three must agree, and with the
//! hashes that the set gives. Then every committed layer is written again from its operations.

use crate::golden_ops::{LiveRun, Op, live_runs, model, ops_of};
use crate::plain::{self, PlainDisk, PlainLayer, PlainPage};
use headstart_block::{BlockDevice, ByteRange, FileSource, ReadAt, SECTOR_SIZE};
use headstart_lsmt::format::{Page, UserTag};
use headstart_lsmt::{Layer, LayerForm, LayerMeta, LayerWriter, Segment, Stack, copy_segments, open_pair};
use headstart_testkit::golden_set::{GoldenSet, unhex};
use headstart_testkit::scene::{hex, sha256};
use headstart_zfile::{ZFileReader, is_zfile};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::io::Write as _;
use std::process::Command;
use std::sync::Arc;
use uuid::Uuid;

/// Takes the tar wrapper and the ZFile off a blob. The wrapper is one header, or three of which one is pax.
fn unwrapped(blob: Vec<u8>) -> Vec<u8> {
    let base = [0, 512, 1536].into_iter().find(|base| is_zfile(blob.get(*base..).unwrap_or_default()));
    let Some(base) = base else { return blob };
    // A ZFile ends with its trailer; in a tar, that is followed by padding.
    let mut inner = blob[base..].to_vec();
    if base > 0 {
        let end = inner.windows(8).rposition(|window| window == b"ZFile\0\x01\0").unwrap();
        inner.truncate(end + 512);
    }
    let reader = ZFileReader::open(inner).unwrap();
    let mut bytes = vec![0; reader.len() as usize];
    reader.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// The layers of a case as files, lowest first, without wrappers.
fn layer_files(set: &GoldenSet, case: &Value) -> Vec<Vec<u8>> {
    let entries = case["layers_low_to_high"].as_array().unwrap();
    entries.iter().map(|entry| unwrapped(set.raw(entry))).collect()
}

fn open_layers(files: &[Vec<u8>]) -> Vec<Layer> {
    files.iter().map(|file| Layer::open(Arc::new(file.clone())).unwrap()).collect()
}

/// Compares a disk with everything that a case expects of it.
fn check_disk(case: &Value, disk: &dyn BlockDevice) {
    let name = &case["name"];
    let expected = &case["expected"];
    assert_eq!(disk.size(), expected["vsize"], "{name}");
    if let Some(sha) = expected["sha256"].as_str() {
        assert_eq!(flat_sha256(disk), sha, "{name}");
    }
    let (blocks, sha) = nz4k_sha256(disk);
    assert_eq!(
        (json!(blocks), json!(sha)),
        (expected["nz4k_blocks"].clone(), expected["nz4k_sha256"].clone()),
        "{name}"
    );
    check_ranges(case, disk);
}

fn check_ranges(case: &Value, disk: &dyn BlockDevice) {
    for range in case["expected"]["ranges"].as_array().unwrap() {
        let mut bytes = vec![0xa5; range["length"].as_u64().unwrap() as usize];
        disk.read_at(&mut bytes, range["offset"].as_u64().unwrap()).unwrap();
        assert_eq!(sha256(&bytes), range["sha256"], "{}: {range}", case["name"]);
    }
}

fn flat_sha256(disk: &dyn BlockDevice) -> String {
    let mut hash = Sha256::new();
    let mut buf = vec![0; 1 << 20];
    for part in ByteRange::between(0, disk.size()).parts(buf.len() as u64) {
        let part_bytes = &mut buf[..part.len() as usize];
        disk.read_at(part_bytes, part.offset()).unwrap();
        hash.update(part_bytes);
    }
    hex(&hash.finalize())
}

/// Hashes the blocks of 4 KiB that are not all zeros; those are looked for in the extents that may have some.
fn nz4k_sha256(disk: &dyn BlockDevice) -> (u64, String) {
    let (mut hash, mut blocks) = (Sha256::new(), 0);
    let (mut offset, mut next_block) = (0, 0);
    while offset < disk.size() {
        let extent = disk.extent_at(offset).unwrap();
        assert_eq!(extent.range.offset(), offset);
        offset = extent.range.end();
        if extent.zero {
            continue;
        }
        for block in (extent.range.offset() / 4096).max(next_block)..extent.range.end().div_ceil(4096) {
            let mut bytes = vec![0; 4096.min(disk.size() - block * 4096) as usize];
            disk.read_at(&mut bytes, block * 4096).unwrap();
            if bytes.iter().any(|&byte| byte != 0) {
                hash.update(block.to_le_bytes());
                hash.update(&bytes);
                blocks += 1;
            }
            next_block = block + 1;
        }
    }
    (blocks, hex(&hash.finalize()))
}

/// Compares a disk with a model on every block where the model holds bytes.
fn check_model(name: &Value, disk: &dyn BlockDevice, model: &PlainDisk) {
    for block in model.written_blocks() {
        let mut bytes = vec![0; 4096];
        disk.read_at(&mut bytes, block * 4096).unwrap();
        assert!(bytes == model.read(block * 4096, 4096), "{name}: block {block}");
    }
}

/// Compares a page, as the plain reader sees it, with the set's fields, and our decoding of it with both.
fn check_page(expected: &Value, page: &PlainPage, bytes: &[u8]) {
    let seen = json!({
        "size": page.size, "flags": page.flags, "index_offset": page.index_offset, "index_size": page.index_size,
        "virtual_size": page.virtual_size, "uuid": page.uuid, "parent_uuid": page.parent_uuid,
        "version": page.version[0], "sub_version": page.version[1], "user_tag": page.user_tag,
        "reserved16_hex": hex(&page.reserved),
    });
    assert_eq!(&seen, expected);
    assert!(page.rest_is_zero);
    let ours = Page::decode(bytes.try_into().unwrap()).unwrap();
    assert_eq!(
        (ours.flags.0, ours.index_offset, ours.index_size, ours.virtual_size, ours.user_tag.to_text()),
        (page.flags, page.index_offset, page.index_size, page.virtual_size, page.user_tag.clone())
    );
    assert_eq!(ours.uuid.hyphenated().to_string().to_uppercase(), page.uuid);
    assert_eq!(ours.parent_uuid.hyphenated().to_string().to_uppercase(), page.parent_uuid);
    assert!(ours.encode() == bytes[..], "a page is written as it was read");
}

/// A table of the set as segments. Where `layers` is given, tags count from the top (0) down, as in merged tables.
fn segments_of(table: &Value, layers: Option<usize>) -> Vec<Segment> {
    let record = |record: &Value| {
        let [offset, len, moffset, zeroed, tag] =
            [0, 1, 2, 3, 4].map(|field| record[field].as_u64().unwrap());
        let make = if zeroed == 1 { Segment::zeroed } else { Segment::data };
        make(offset, len, moffset).with_layer(layers.map_or(0, |layers| (layers - 1 - tag as usize) as u8))
    };
    table.as_array().unwrap().iter().map(record).collect()
}

/// The reference leaves records apart that continue each other in one layer; our merged index joins them.
fn joined(segments: &[Segment]) -> Vec<Segment> {
    let mut joined: Vec<Segment> = Vec::new();
    for segment in segments {
        match joined.last_mut() {
            Some(last)
                if last.is_continued_by(*segment) && last.len() + segment.len() <= Segment::MAX_LEN =>
            {
                let make = if last.is_zeroed() { Segment::zeroed } else { Segment::data };
                let len = last.len() + segment.len();
                *last = make(last.offset(), len, last.moffset()).with_layer(last.layer());
            }
            _ => joined.push(*segment),
        }
    }
    joined
}

/// Compares a layer, as both readers see it, with its description in the set.
fn check_layer(entry: &Value, file: &[u8], layer: &Layer) -> PlainLayer {
    let plain = plain::sealed(file).unwrap();
    check_page(&entry["header"], &plain.header, &file[..4096]);
    check_page(&entry["trailer"], &plain.trailer, &file[file.len() - 4096..]);
    assert_eq!(sha256(&plain.table), entry["index_sha256"]);
    assert_eq!((layer.info().form, layer.info().file_size), (LayerForm::Sealed, file.len() as u64));
    assert_eq!(layer.info().virtual_size, plain.disk.size);
    assert_eq!(json!(layer.info().records), entry["index_records_on_disk"]);
    assert_eq!(json!(layer.segments().len()), entry["segments"]);
    assert_eq!(json!(plain.records.len()), entry["segments"]);
    if !entry["index"].is_null() {
        assert_eq!(layer.segments(), segments_of(&entry["index"], None));
        assert_eq!(json!(plain.records), entry["index"]);
    }
    let seen = layer.segments().iter();
    assert!(
        seen.map(|s| [s.offset(), s.len(), s.moffset(), s.is_zeroed().into()])
            .eq(plain.records.iter().map(|r| [r[0], r[1], r[2], r[3]]))
    );
    plain
}

#[test]
fn sealed_layers_and_stacks_give_their_bytes() {
    let Some(set) = GoldenSet::open() else { return };
    for case in set.cases("lsmt") {
        let files = layer_files(&set, case);
        let layers = open_layers(&files);
        let entries = case["layers_low_to_high"].as_array().unwrap();
        let mut by_plain_reader = PlainDisk::default();
        for ((entry, file), layer) in entries.iter().zip(&files).zip(&layers) {
            by_plain_reader.overlaid(&check_layer(entry, file, layer).disk);
        }
        let stack = Stack::new(layers).unwrap();
        check_disk(case, &stack);
        check_model(&case["name"], &stack, &by_plain_reader);
        assert_eq!(by_plain_reader.size, case["virtual_size"]);
        if !case["merged_index"].is_null() {
            let expected = segments_of(&case["merged_index"]["records"], Some(files.len()));
            assert_eq!(stack.index().segments(), joined(&expected), "{}", case["name"]);
        }
        if !case["ops"].is_null() {
            let mut by_ops = PlainDisk::default();
            for ops in case["ops"].as_array().unwrap() {
                by_ops.overlaid(&model(0, &ops_of(&set, ops.as_str().unwrap())));
            }
            by_ops.compare(&by_plain_reader).unwrap_or_else(|e| panic!("{}: {e}", case["name"]));
        }
    }
}

/// The reference's merge takes the virtual size from the top layer even where that is 0: the table is whole,
/// the size must come from elsewhere.
#[test]
fn a_merged_layer_without_a_size_still_has_its_bytes() {
    let Some(set) = GoldenSet::open() else { return };
    let case = set.case("merge5_vsize0");
    let files = layer_files(&set, case);
    let layers = open_layers(&files);
    check_layer(&case["layers_low_to_high"][0], &files[0], &layers[0]);
    assert_eq!(layers[0].info().virtual_size, 0);

    let whole = set.case("stack5_64g");
    let size = whole["expected"]["vsize"].as_u64().unwrap();
    let alone = Stack::new(layers.clone()).unwrap();
    assert_eq!(alone.size(), layers[0].segments().last().unwrap().end() * SECTOR_SIZE);
    let disk = alone.with_size(size);
    check_ranges(case, &disk);
    check_disk(whole, &disk);

    // Over an empty layer that has the size, the stack inherits it.
    let base = LayerMeta { virtual_size: size, ..LayerMeta::default() };
    let (base, _) = LayerWriter::new(Vec::new(), base).unwrap().finish().unwrap();
    let base = Layer::open(Arc::new(base)).unwrap();
    check_disk(whole, &Stack::new(vec![base, layers[0].clone()]).unwrap());
}

#[test]
fn unsealed_pairs_give_their_bytes() {
    let Some(set) = GoldenSet::open() else { return };
    for case in set.cases("lsmt-unsealed-pair") {
        let (data, index) = (set.raw(&case["data"]), set.raw(&case["index"]));
        let lowers: Vec<_> = case["lowers_low_to_high"].as_array().into_iter().flatten().collect();
        let below = if lowers.is_empty() { Vec::new() } else { layer_files(&set, set.case("stack3_64m")) };
        assert_eq!(below.len(), lowers.len());
        let top = open_pair(Arc::new(data.clone()), &index).unwrap();
        assert_eq!(top.info().form, LayerForm::Pair);

        let ops = ops_of(&set, case["ops"][0].as_str().unwrap());
        let by_ops = model(top.info().virtual_size, &ops);
        by_ops.compare(&plain::pair(&data, &index).unwrap()).unwrap();
        let live: Vec<_> = live_runs(&ops).iter().map(|run| (run.start / 512, run.end / 512)).collect();
        let covered = |runs: &[(u64, u64)]| runs.iter().flat_map(|run| run.0..run.1).collect::<Vec<_>>();
        let ours: Vec<_> = top.segments().iter().map(|segment| (segment.offset(), segment.end())).collect();
        assert_eq!(covered(&ours), covered(&live));

        let mut whole = PlainDisk::default();
        below.iter().for_each(|file| whole.overlaid(&plain::sealed(file).unwrap().disk));
        whole.overlaid(&by_ops);
        let mut layers = open_layers(&below);
        layers.push(top);
        let stack = Stack::new(layers).unwrap();
        check_disk(case, &stack);
        check_model(&case["name"], &stack, &whole);
    }
}

/// Extracts the one file of a sparse tar with its holes; `None` (said loudly) where there is no `tar`.
fn extract_sparse(set: &GoldenSet, case: &Value, dir: &std::path::Path) -> Option<FileSource> {
    let archive = set.path(case["file"].as_str().unwrap());
    let status = Command::new("tar").arg("-xzSf").arg(archive).arg("-C").arg(dir).status();
    if !status.is_ok_and(|status| status.success()) {
        let _ = writeln!(std::io::stderr(), "SKIPPED: no tar that extracts sparse files");
        return None;
    }
    Some(FileSource::open(dir.join(case["member"].as_str().unwrap())).unwrap())
}

#[test]
fn a_sparse_layer_gives_its_bytes_and_commits_to_the_same_blob() {
    let Some(set) = GoldenSet::open() else { return };
    let dir = tempfile::tempdir().unwrap();
    for case in set.cases("lsmt-sparse-rw") {
        let Some(file) = extract_sparse(&set, case, dir.path()) else { return };
        let mut bytes = vec![0; file.len() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        assert_eq!(sha256(&bytes), case["raw_sha256"]);
        let layer = Layer::open_file(file).unwrap();
        assert_eq!(layer.info().form, LayerForm::Sparse);
        let extents = case["data_extents_byte_offset_length"].as_array().unwrap().iter();
        let extents: Vec<_> = extents.map(|e| (e[0].as_u64().unwrap(), e[1].as_u64().unwrap())).collect();
        let by_plain_reader = plain::sparse(&bytes, &extents).unwrap();
        let covered: Vec<_> = layer.segments().iter().flat_map(|s| s.offset()..s.end()).collect();
        assert!(covered.iter().eq(by_plain_reader.sectors.keys()), "the holes are the set's");

        let stack = Stack::new(vec![layer]).unwrap();
        check_disk(case, &stack);
        check_model(
            &case["name"],
            &stack,
            &model(stack.size(), &ops_of(&set, case["ops"][0].as_str().unwrap())),
        );

        let committed = &set.case("sparse64m_committed")["layers_low_to_high"][0];
        let written = write_again(committed, |writer| {
            copy_segments(&stack, stack.index().segments().iter().copied(), writer, &mut |_| Ok(())).unwrap();
        });
        assert_eq!(sha256(&written), committed["raw_sha256"]);
    }
}

/// A layer with the header that the set gives in `entry`.
fn write_again(entry: &Value, fill: impl FnOnce(&mut LayerWriter<Vec<u8>>)) -> Vec<u8> {
    let header = &entry["header"];
    let id = |field: &str| Uuid::parse_str(header[field].as_str().unwrap()).unwrap();
    let meta = LayerMeta {
        virtual_size: header["virtual_size"].as_u64().unwrap(),
        uuid: id("uuid"),
        parent_uuid: id("parent_uuid"),
        user_tag: UserTag::new(header["user_tag"].as_str().unwrap()).unwrap(),
    };
    let mut writer = LayerWriter::new(Vec::new(), meta).unwrap();
    fill(&mut writer);
    let (bytes, summary) = writer.finish().unwrap();
    assert_eq!(summary.file_size, bytes.len() as u64);
    bytes
}

fn write_runs(writer: &mut LayerWriter<Vec<u8>>, runs: &[LiveRun]) {
    for LiveRun { start, end, op } in runs {
        match Op::bytes(op, *start, end - start) {
            Some(bytes) => writer.data(*start, &bytes).unwrap(),
            None => writer.zeroes(ByteRange::between(*start, *end)).unwrap(),
        }
    }
}

/// Not among these: sealed layers (flags 3 in the header), which are the writable file itself with its garbage,
/// and merged ones, see below.
#[test]
fn committed_layers_are_written_byte_for_byte() {
    let Some(set) = GoldenSet::open() else { return };
    let mut written = 0;
    for case in set.cases("lsmt").into_iter().filter(|case| !case["ops"].is_null()) {
        let files = layer_files(&set, case);
        let entries = case["layers_low_to_high"].as_array().unwrap();
        for ((entry, file), ops) in entries.iter().zip(&files).zip(case["ops"].as_array().unwrap()) {
            if entry["header"]["flags"] != 7 {
                continue;
            }
            let runs = live_runs(&ops_of(&set, ops.as_str().unwrap()));
            let ours = write_again(entry, |writer| write_runs(writer, &runs));
            assert!(sha256(&ours) == sha256(file), "{} is not the same file", entry["file"]);
            written += 1;
        }
    }
    assert_eq!(written, 18);
}

/// A merged layer of the reference keeps in each record the number of the layer it came from, and does not join
/// records of different layers; ours writes 0 and joins. The data and everything else is the same.
#[test]
fn flattened_stacks_have_the_data_of_merged_layers() {
    let Some(set) = GoldenSet::open() else { return };
    for (stack, merged) in
        [("stack3_64m", "merge3_raw"), ("stack3_64m", "merge3_tool"), ("stack5_64g", "merge5_vsize0")]
    {
        let stack = Stack::new(open_layers(&layer_files(&set, set.case(stack)))).unwrap();
        let merged = set.case(merged);
        let theirs = &layer_files(&set, merged)[0];
        let ours = write_again(&merged["layers_low_to_high"][0], |writer| {
            copy_segments(&stack, stack.index().segments().iter().copied(), writer, &mut |_| Ok(())).unwrap();
        });
        let (plain_ours, plain_theirs) = (plain::sealed(&ours).unwrap(), plain::sealed(theirs).unwrap());
        plain_ours.disk.compare(&plain_theirs.disk).unwrap();
        assert_eq!(plain_ours.header, plain_theirs.header);
        let data_end = plain_theirs.trailer.index_offset as usize;
        assert!(ours[..data_end] == theirs[..data_end], "{}: the data differs", merged["name"]);
        assert!(plain_ours.records.iter().all(|record| record[4] == 0));
    }
}

/// Blobs that the reference accepts must give the same bytes here; those that it rejects must be an error.
#[test]
fn mutated_layers_are_judged_as_the_reference_judges_them() {
    let Some(set) = GoldenSet::open() else { return };
    let case = set.case("mutations_basic64m");
    let base = set.bytes(case["base"].as_str().unwrap());
    assert_eq!(sha256(&base), case["base_raw_sha256"]);
    let base_disk = plain::sealed(&base).unwrap().disk;
    for mutation in case["mutations"].as_array().unwrap() {
        let name = mutation["mutation"].as_str().unwrap();
        let opened = Layer::open(Arc::new(mutated(&base, mutation)));
        match mutation["peer"]["outcome"].as_str().unwrap() {
            "rejected at open" => assert!(opened.is_err(), "{name}"),
            // The reference reads whole sectors only; ours reads the disk up to its odd end.
            "opens, read fails" => {
                let stack = Stack::new(vec![opened.unwrap()]).unwrap();
                assert_eq!(stack.size() % SECTOR_SIZE, 412, "{name}");
                let expected = base_disk.read(0, stack.size() as usize);
                assert!(flat_sha256(&stack) == sha256(&expected), "{name}");
            }
            // A layer alone without a size is as large as its content: its bytes are not lost.
            "accepted" if mutation["peer"]["size"] == 0 => {
                let layer = opened.unwrap();
                assert_eq!(layer.info().virtual_size, 0);
                let stack = Stack::new(vec![layer]).unwrap();
                assert!(flat_sha256(&stack) == sha256(&base_disk.read(0, stack.size() as usize)), "{name}");
                assert_eq!(stack.size(), (base_disk.sectors.last_key_value().unwrap().0 + 1) * SECTOR_SIZE);
            }
            "accepted" => {
                let stack = Stack::new(vec![opened.unwrap_or_else(|e| panic!("{name}: {e}"))]).unwrap();
                assert_eq!(stack.size(), mutation["peer"]["size"], "{name}");
                assert_eq!(flat_sha256(&stack), mutation["peer"]["sha256"], "{name}");
            }
            other => panic!("{name}: unknown outcome {other}"),
        }
    }
}

fn mutated(base: &[u8], mutation: &Value) -> Vec<u8> {
    let mut bytes = base.to_vec();
    for patch in mutation["patches"].as_array().unwrap() {
        let (at, patch) = (patch[0].as_u64().unwrap() as usize, unhex(patch[1].as_str().unwrap()));
        bytes[at..at + patch.len()].copy_from_slice(&patch);
    }
    let resized = bytes.len() as i64 + mutation["resize_bytes"].as_i64().unwrap_or(0);
    bytes.resize(resized as usize, 0);
    bytes
}
