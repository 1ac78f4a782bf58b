//! qcow2 files that were cut short: refused, or the same disk; never another one.

use headstart_image::disk_file::DiskFile;
use headstart_image::progress::Silent;
use proptest::prelude::*;
use std::io::Write;

/// The number of bytes of a cluster, the smallest that there are, so that small files have many of each kind.
const CLUSTER: usize = 512;
/// The number of entries of a table.
const TABLE: usize = CLUSTER / 8;

/// The form of a cluster's bytes.
#[derive(Clone, Debug)]
enum Cluster {
    Nowhere,
    /// Uncompressed, filled with this byte.
    Plain(u8),
    /// Compressed, a pattern from this byte on.
    Compressed(u8),
}

fn clusters() -> impl Strategy<Value = Vec<Cluster>> {
    let cluster = prop_oneof![
        2 => Just(Cluster::Nowhere),
        2 => (1..=255u8).prop_map(Cluster::Plain),
        2 => any::<u8>().prop_map(Cluster::Compressed),
    ];
    proptest::collection::vec(cluster, 1..150)
}

fn content(cluster: &Cluster) -> [u8; CLUSTER] {
    match cluster {
        Cluster::Nowhere => [0; CLUSTER],
        Cluster::Plain(byte) => [*byte; CLUSTER],
        Cluster::Compressed(byte) => std::array::from_fn(|n| byte.wrapping_add((n * n / 7) as u8)),
    }
}

/// A qcow2 of `clusters`, the last of which has `in_last` bytes of the disk. `tables_last` gives the place of the
/// tables.
fn qcow2(clusters: &[Cluster], in_last: usize, tables_last: bool) -> Vec<u8> {
    let tables = clusters.len().div_ceil(TABLE);
    let size = (clusters.len() - 1) * CLUSTER + in_last;
    // The header, the table of the counts of references, the table of tables.
    let mut file = vec![0; 3 * CLUSTER];
    let mut places = Vec::new();
    if !tables_last {
        places.extend((0..tables).map(|n| (3 + n) * CLUSTER));
        file.resize((3 + tables) * CLUSTER, 0);
    }
    let entries: Vec<u64> = clusters.iter().map(|cluster| append(&mut file, cluster)).collect();
    if tables_last {
        file.resize(file.len().next_multiple_of(CLUSTER), 0);
        places.extend((0..tables).map(|n| file.len() + n * CLUSTER));
        file.resize(file.len() + tables * CLUSTER, 0);
    }
    for (n, (place, entries)) in places.iter().zip(entries.chunks(TABLE)).enumerate() {
        let at = 2 * CLUSTER + n * 8;
        file[at..at + 8].copy_from_slice(&(*place as u64 | 1 << 63).to_be_bytes());
        for (n, entry) in entries.iter().enumerate() {
            file[place + n * 8..place + n * 8 + 8].copy_from_slice(&entry.to_be_bytes());
        }
    }
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"QFI\xfb\0\0\0\x03");
    put(20, &9u32.to_be_bytes());
    put(24, &(size as u64).to_be_bytes());
    put(36, &(tables as u32).to_be_bytes());
    put(40, &(2 * CLUSTER as u64).to_be_bytes());
    put(48, &(CLUSTER as u64).to_be_bytes());
    put(56, &1u32.to_be_bytes());
    put(96, &4u32.to_be_bytes());
    put(100, &104u32.to_be_bytes());
    file
}

/// Appends the cluster's bytes to `file`; returns its entry in the table.
fn append(file: &mut Vec<u8>, cluster: &Cluster) -> u64 {
    match cluster {
        Cluster::Nowhere => 0,
        Cluster::Plain(_) => {
            file.resize(file.len().next_multiple_of(CLUSTER), 0);
            let place = file.len() as u64;
            file.extend(content(cluster));
            place | 1 << 63
        }
        Cluster::Compressed(_) => {
            let mut packer = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
            packer.write_all(&content(cluster)).unwrap();
            let packed = packer.finish().unwrap();
            let (start, end) = (file.len(), file.len() + packed.len());
            let more_sectors = (end - 1) / 512 - start / 512;
            file.extend(packed);
            start as u64 | (more_sectors as u64) << 61 | 1 << 62
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_truncated_qcow2_is_refused_or_the_same_disk(
        clusters in clusters(),
        in_last in 1..=CLUSTER,
        tables_last: bool,
        cut in 0..=1000usize,
        near_end: bool,
    ) {
        let whole = qcow2(&clusters, in_last, tables_last);
        let mut disk: Vec<u8> = clusters.iter().flat_map(content).collect();
        disk.truncate((clusters.len() - 1) * CLUSTER + in_last);
        let len = if near_end { whole.len().saturating_sub(cut) } else { whole.len() * cut / 1000 };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.qcow2");
        std::fs::write(&path, &whole[..len]).unwrap();
        let image = DiskFile::at(&path).open(dir.path(), &Silent);
        if len == whole.len() {
            prop_assert!(image.is_ok(), "{:?}", image.err());
        }
        if let Ok(image) = image {
            let mut bytes = vec![0; image.device().size() as usize];
            image.device().read_at(&mut bytes, 0).unwrap();
            prop_assert!(bytes == disk, "{len} of {} bytes are another disk", whole.len());
        }
    }
}
