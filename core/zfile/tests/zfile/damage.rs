//! Goal: no damage, truncation or failing medium ever gives wrong bytes where a checksum covers them, a panic
//! or a hang. Method: every metadata byte flipped in several ways, thousands of data bytes, every length,
//! and writers that fail at every place.

use crate::plain::{mixed, noise};
use headstart_block::{Error, ErrorKind, FileSource, ReadAt, Result};
use headstart_testkit::golden_set::GoldenSet;
use headstart_zfile::{Codec, ZFileOptions, ZFileReader, ZFileWriter};
use std::io::{self, Write};

fn pack(content: &[u8], options: &ZFileOptions) -> Vec<u8> {
    let mut writer = ZFileWriter::new(Vec::new(), options).unwrap();
    writer.write_all(content).unwrap();
    writer.finish().unwrap().0
}

fn read_all(blob: Vec<u8>) -> Result<Vec<u8>> {
    let reader = ZFileReader::open(blob)?;
    let mut content = vec![0; usize::try_from(reader.len()).unwrap()];
    reader.read_at(&mut content, 0)?;
    Ok(content)
}

/// The content of a ZFile, read 1000 bytes at a time so that frames are decompressed in part.
fn read_in_small_pieces(blob: Vec<u8>) -> Result<Vec<u8>> {
    let reader = ZFileReader::open(blob)?;
    let mut content = vec![0; usize::try_from(reader.len()).unwrap()];
    for (i, piece) in content.chunks_mut(1000).enumerate() {
        reader.read_at(piece, i as u64 * 1000)?;
    }
    Ok(content)
}

/// Small blobs of both codecs with and without checksums, and one whose header was overwritten.
fn small_blobs() -> Vec<(String, Vec<u8>)> {
    let mut blobs = Vec::new();
    for codec in [Codec::Lz4, Codec::Zstd] {
        for crc in [true, false] {
            let options = ZFileOptions { codec, crc, frame_size: 4096, ..ZFileOptions::default() };
            blobs.push((format!("{codec} crc={crc}"), pack(&mixed(5, 30_000), &options)));
        }
    }
    if let Some(set) = GoldenSet::open() {
        blobs.push(("header overwritten".to_owned(), set.bytes("zfile/builder_ovw.zfile")));
        blobs.push(("64k".to_owned(), set.bytes("zfile/zstd_64k_crc_262151.zfile")));
    }
    blobs
}

#[test]
fn a_flipped_metadata_byte_gives_the_right_bytes_or_an_error() {
    for (name, blob) in small_blobs() {
        let right = read_all(blob.clone()).unwrap();
        let index_offset =
            usize::try_from(ZFileReader::open(blob.clone()).unwrap().info().index_offset).unwrap();
        for at in (0..512).chain(index_offset..blob.len()) {
            for flip in [0x01, 0x02, 0x04, 0x08, 0x10, 0x18, 0x20, 0x40, 0x80, 0xff] {
                let mut bad = blob.clone();
                bad[at] ^= flip;
                if let Ok(content) = read_all(bad) {
                    assert!(content == right, "{name}: byte {at} ^ {flip:#x}");
                }
            }
        }
    }
}

#[test]
fn a_flipped_data_byte_gives_an_error() {
    for (name, blob) in small_blobs() {
        let reader = ZFileReader::open(blob.clone()).unwrap();
        let (crc, index_offset) = (reader.info().crc, reader.info().index_offset);
        let dice = noise(11, 8 * 2500);
        for die in dice.chunks_exact(8) {
            let at = u64::from_le_bytes(die.try_into().unwrap());
            let at = usize::try_from(512 + at / 256 % (index_offset - 512)).unwrap();
            let mut bad = blob.clone();
            bad[at] ^= die[0].max(1);
            // Without a checksum wrong bytes cannot always be told from right ones, but nothing may break.
            let results = [read_all(bad.clone()), read_in_small_pieces(bad)];
            for result in results {
                match result {
                    Ok(_) => assert!(!crc, "{name}: byte {at}"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corrupt);
                        assert!(error.to_string().contains("frame "), "{name}: {error}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_truncated_blob_is_refused_at_every_length() {
    for (name, blob) in small_blobs() {
        if blob.len() > 60_000 {
            continue;
        }
        for len in 0..blob.len() {
            let result = ZFileReader::open(blob[..len].to_vec());
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Corrupt, "{name}: {len} of {}", blob.len());
        }
    }
}

#[test]
fn arbitrary_bytes_never_panic() {
    let header = pack(&[], &ZFileOptions::default());
    for seed in 0..3000 {
        let mut blob = noise(seed, 512 + usize::try_from(seed).unwrap());
        let keep = [24, 32, 33, 72, 96, 512][usize::try_from(seed % 6).unwrap()];
        blob[..keep].copy_from_slice(&header[..keep]);
        if blob.len() >= 1024 && seed % 2 == 0 {
            let trailer = blob.len() - 512;
            blob[trailer..trailer + 40].copy_from_slice(&header[512..552]);
        }
        // Digests off: let the fields themselves be looked at.
        blob[32] = [3, 11][usize::try_from(seed % 2).unwrap()];
        if let Ok(reader) = ZFileReader::open(blob) {
            let _ = reader.verify();
        }
    }
}

/// An index that claims more than the blob holds is refused before anything is allocated for it.
#[test]
fn huge_claims_cost_nothing() {
    let mut blob = pack(&[], &ZFileOptions { crc: false, ..ZFileOptions::default() });
    blob[32] = 0b1011;
    blob[40..48].copy_from_slice(&512u64.to_le_bytes());
    for frames in [1u64, 1000, 1_000_000_000, 1_000_000_001, u64::MAX / 4, u64::MAX] {
        blob[48..56].copy_from_slice(&frames.to_le_bytes());
        for original in [frames, frames.saturating_mul(32768), u64::MAX] {
            blob[56..64].copy_from_slice(&original.to_le_bytes());
            assert!(ZFileReader::open(blob.clone()).is_err(), "{frames} {original}");
        }
    }
}

/// Takes `room` bytes, then fails.
#[derive(Debug)]
struct Full {
    room: usize,
    error: fn() -> io::Error,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match bytes.len().min(self.room) {
            0 => Err((self.error)()),
            taken => {
                self.room -= taken;
                Ok(taken)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_comes_back_as_one_wherever_it_shows() {
    let content = noise(2, 1 << 20);
    for threads in [1, 3] {
        let options = ZFileOptions { threads, ..ZFileOptions::default() };
        let size = pack(&content, &options).len();
        for room in [0, 511, 512, 513, 300_000, size - 513, size - 512, size - 1] {
            let out = Full { room, error: || io::ErrorKind::StorageFull.into() };
            let result = ZFileWriter::new(out, &options).and_then(|mut writer| {
                let written = content.chunks(10_000).try_for_each(|piece| writer.write_all(piece));
                if written.is_err() {
                    assert!(writer.write_all(b"more").is_err() && writer.flush().is_err());
                }
                written?;
                writer.finish().map(|_| ())
            });
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{threads} {room}: {error}");
        }
        ZFileWriter::new(Full { room: size, error: || io::ErrorKind::StorageFull.into() }, &options)
            .and_then(|mut writer| {
                writer.write_all(&content)?;
                writer.finish()
            })
            .unwrap();
    }
}

#[test]
fn a_full_disk_shows_before_much_more_is_taken() {
    for threads in [1, 4] {
        let options = ZFileOptions { threads, ..ZFileOptions::default() };
        let out = Full { room: 512, error: || io::ErrorKind::StorageFull.into() };
        let mut writer = ZFileWriter::new(out, &options).unwrap();
        let taken = (0..1000).take_while(|_| writer.write_all(&[0; 64 << 10]).is_ok()).count();
        assert!(taken <= 4 * 12, "{taken} pieces of 64 KiB");
    }
}

#[test]
fn our_own_errors_pass_through_the_writer_whole() {
    let error = || io::Error::other(Error::new(ErrorKind::Cancelled, "stopped").about("the import"));
    for threads in [1, 2] {
        let options = ZFileOptions { threads, ..ZFileOptions::default() };
        let mut writer = ZFileWriter::new(Full { room: 512, error }, &options).unwrap();
        let error = loop {
            if let Err(error) = writer.write_all(&noise(1, 100_000)) {
                break Error::from(error);
            }
        };
        assert_eq!(
            (error.kind(), error.to_string()),
            (ErrorKind::Cancelled, "the import: stopped".to_owned())
        );
        // Does not go round for ever.
        assert!(writer.write_all(b"more").is_err());
        assert_eq!(writer.finish().unwrap_err().kind(), ErrorKind::Cancelled);
    }
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let default = ZFileOptions::default;
    for options in [
        ZFileOptions { frame_size: 0, ..default() },
        ZFileOptions { frame_size: 2048, ..default() },
        ZFileOptions { frame_size: 5000, ..default() },
        ZFileOptions { frame_size: 128 << 10, ..default() },
        ZFileOptions { threads: 0, ..default() },
        ZFileOptions { level: Some(99), ..default() },
        ZFileOptions { level: Some(99), threads: 2, ..default() },
        ZFileOptions { codec: Codec::Lz4, level: Some(3), ..default() },
    ] {
        let error = ZFileWriter::new(Vec::new(), &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{options:?}");
    }
}

#[test]
fn dropping_a_writer_ends_its_threads() {
    for _ in 0..50 {
        let mut writer =
            ZFileWriter::new(Vec::new(), &ZFileOptions { threads: 3, ..ZFileOptions::default() }).unwrap();
        writer.write_all(&noise(1, 700_000)).unwrap();
    }
}

/// Blobs of early writers have no digests. Contradictions are found when the blob is opened anyway.
#[test]
fn contradictions_are_found_without_digests() {
    let options = ZFileOptions { frame_size: 4096, ..ZFileOptions::default() };
    let mut blob = pack(&mixed(6, 30_000), &options);
    let (trailer, index) = (blob.len() - 512, blob.len() - 512 - 8 * 4);
    blob[32] &= !16;
    blob[trailer + 32] &= !16;
    assert_eq!(read_all(blob.clone()).unwrap(), mixed(6, 30_000));
    let index_offset = 40;
    for at in
        [index, trailer + index_offset, trailer + 72, trailer + 73, trailer + 76, trailer + 88, 73, 76, 88]
    {
        let mut bad = blob.clone();
        bad[at] ^= 1;
        let error = ZFileReader::open(bad).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported), "{at}: {error}");
    }
}

/// A frame that fails leaves nothing behind in the thread that could be taken for the frame before it.
#[test]
fn a_damaged_frame_does_not_spoil_the_one_remembered() {
    let content = mixed(8, 40_000);
    for codec in [Codec::Lz4, Codec::Zstd] {
        let mut blob = pack(&content, &ZFileOptions { codec, frame_size: 4096, ..ZFileOptions::default() });
        let end = ZFileReader::open(blob.clone()).unwrap().info().index_offset - 4;
        let at = usize::try_from(end).unwrap();
        // The last frame's checksum: its content decompresses and only then is found wrong.
        blob[at] ^= 1;
        let reader = ZFileReader::open(blob).unwrap();
        let mut buf = [0; 100];
        for _ in 0..3 {
            reader.read_at(&mut buf, 4096).unwrap();
            assert_eq!(buf, content[4096..4196]);
            assert!(reader.read_at(&mut buf, 39_900).is_err());
        }
    }
}

/// Verifying reads the source, not a frame that a thread remembers of it.
#[test]
fn verify_sees_damage_to_a_frame_that_was_just_read() {
    let content = mixed(9, 5000);
    let options = ZFileOptions { frame_size: 8192, ..ZFileOptions::default() };
    let mut blob = pack(&content, &options);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("blob");
    std::fs::write(&path, &blob).unwrap();
    let reader = ZFileReader::open(FileSource::open(&path).unwrap()).unwrap();
    let mut buf = [0; 100];
    reader.read_at(&mut buf, 10).unwrap();
    reader.verify().unwrap();
    blob[600] ^= 1;
    std::fs::write(&path, &blob).unwrap();
    assert_eq!(reader.verify().unwrap_err().kind(), ErrorKind::Corrupt);
}
