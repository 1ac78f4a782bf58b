//! Goal: a blob that the reference packed reads here as it was, one that it refuses is refused, and one that it
//! crashes on or reads wrongly is an error. Method: every ZFile of the golden set, whole and in ranges, from
//! memory and from a file; every mutation beside the reference's verdict.

use crate::golden_zfile::{number, zfile};
use crate::plain::PlainZFile;
use headstart_block::{FileSource, ReadAt, Result};
use headstart_testkit::golden_set::{GoldenSet, unhex};
use headstart_testkit::scene::sha256;
use headstart_zfile::{Codec, ZFileReader, is_zfile};
use serde_json::Value;

fn read_all<S: ReadAt>(reader: &ZFileReader<S>) -> Result<Vec<u8>> {
    let mut content = vec![0; usize::try_from(reader.len()).unwrap()];
    reader.read_at(&mut content, 0)?;
    Ok(content)
}

fn check_case<S: ReadAt>(name: &str, reader: &ZFileReader<S>, case: &Value) {
    let (info, parameters) = (reader.info(), &case["parameters"]);
    assert_eq!(info.codec.to_string(), parameters["algo"], "{name}");
    assert_eq!(info.frame_size as usize, number(&parameters["block_size"]), "{name}");
    assert_eq!(u64::from(info.crc), parameters["verify"].as_u64().unwrap(), "{name}");
    assert_eq!(info.frames, case["blocks"].as_u64().unwrap(), "{name}");
    assert_eq!(info.header_valid, parameters["header_overwritten"].as_bool().unwrap(), "{name}");
    let expected = &case["expected"];
    assert_eq!(reader.len(), expected["size"].as_u64().unwrap(), "{name}");
    assert_eq!(sha256(&read_all(reader).unwrap()), expected["sha256"], "{name}");
    reader.verify().unwrap();
    for range in expected["ranges"].as_array().unwrap() {
        let (offset, asked) = (number(&range["offset"]), number(&range["length"]));
        let returned = number(&range["bytes_returned"]);
        let mut buf = vec![0; returned];
        reader.read_at(&mut buf, offset as u64).unwrap();
        assert_eq!(sha256(&buf), range["sha256"], "{name}: {range}");
        if returned < asked {
            assert!(reader.read_at(&mut vec![0; asked], offset as u64).is_err(), "{name}: {range}");
        }
    }
}

#[test]
fn every_zfile_of_the_golden_set_reads_as_expected() {
    let Some(set) = GoldenSet::open() else { return };
    let dir = tempfile::tempdir().unwrap();
    let cases = set.cases("zfile");
    assert!(cases.len() >= 30, "{}", cases.len());
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let blob = zfile(&set, case);
        assert!(is_zfile(&blob[..24]) && !is_zfile(&blob[..23]) && !is_zfile(&blob[1..]), "{name}");
        let plain = PlainZFile::parse(&blob);
        assert_eq!(sha256(&plain.content), case["expected"]["sha256"], "{name}: by the plain reader");

        let path = dir.path().join(name);
        std::fs::write(&path, &blob).unwrap();
        check_case(name, &ZFileReader::open(FileSource::open(&path).unwrap()).unwrap(), case);
        check_case(name, &ZFileReader::open(blob).unwrap(), case);
    }
}

/// The result of reading a mutated blob.
fn outcome(blob: Vec<u8>) -> Result<Vec<u8>> {
    let reader = ZFileReader::open(blob)?;
    let content = read_all(&reader)?;
    reader.verify()?;
    Ok(content)
}

#[test]
fn mutations_give_the_right_bytes_or_an_error() {
    let Some(set) = GoldenSet::open() else { return };
    let cases: Vec<_> = set.cases("mutations").into_iter().filter(|case| case["format"] == "zfile").collect();
    assert!(cases.len() >= 2, "{}", cases.len());
    // Where the reference reads on and we do not: it checks no trailer digest, ignores a dictionary that
    // is not there, and takes any original size.
    let stricter = ["trailer digest wrong", "use_dict 1", "original size + 1", "original size - 1"];
    for case in cases {
        let base = set.bytes(case["base"].as_str().unwrap());
        let right = outcome(base.clone()).unwrap();
        for mutation in case["mutations"].as_array().unwrap() {
            let name = mutation["mutation"].as_str().unwrap();
            let mut blob = base.clone();
            for patch in mutation["patches"].as_array().unwrap() {
                let (at, bytes) = (number(&patch[0]), unhex(patch[1].as_str().unwrap()));
                blob[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            let resize = mutation["resize_bytes"].as_i64().unwrap_or(0);
            blob.resize(blob.len().checked_add_signed(isize::try_from(resize).unwrap()).unwrap(), 0);
            let peer = &mutation["peer"];
            let accepted = peer["outcome"] == "accepted" && peer["sha256"] == sha256(&right);
            match outcome(blob) {
                Ok(content) => {
                    assert!(content == right, "{name}: wrong bytes");
                    assert!(accepted, "{name}: the reference has {peer}");
                }
                Err(error) => assert!(!accepted || stricter.contains(&name), "{name}: {error}"),
            }
        }
    }
}

/// Only header and trailer of this blob are in the set, so its frames are made up: 132,309 of them, of the
/// lengths that put the index where it is. Opening is all that can be tried.
#[test]
fn the_garbage_of_the_most_used_base_layer_is_overlooked() {
    let Some(set) = GoldenSet::open() else { return };
    let case = set.case("real_world_base_layer");
    let expected = &case["expected"]["zfile"];
    let (frames, index_offset) = (number(&expected["blocks"]), number(&expected["index_offset"]));
    let mut blob = unhex(case["header_512_hex"].as_str().unwrap());
    blob.resize(index_offset, 0);
    let (len, longer) = ((index_offset - 512) / frames, (index_offset - 512) % frames);
    for frame in 0..frames {
        blob.extend(u32::try_from(len + usize::from(frame < longer)).unwrap().to_le_bytes());
    }
    blob.extend(unhex(case["trailer_512_hex"].as_str().unwrap()));
    assert_eq!(blob.len(), number(&case["raw_size"]));

    let reader = ZFileReader::open(blob).unwrap();
    let info = reader.info();
    assert_eq!((info.codec, info.frame_size, info.crc, info.digest), (Codec::Lz4, 4096, true, false));
    assert_eq!((info.frames, info.index_offset), (frames as u64, index_offset as u64));
    assert_eq!(info.original_size, expected["original_file_size"].as_u64().unwrap());
    let error = reader.verify().unwrap_err().to_string();
    assert!(error.contains("frame 0 (") && error.contains("at offset 512"), "{error}");
}
