//! Small data sets of recorded boots, in the layout of the traces that were published for FAST'26.

use crate::scene::Scene;
use std::fs;

/// Two creations.
const CREATIONS: [&str; 3] = [
    "volume_id,image_type,image_id,device_size,user_id,cluster_id,gmt_create,extra_info,meta_info,image_family",
    "7,1,p-a,4294967296,u,c,2026-11-21 18:57:43,mem=1,base=,debian-12",
    "8,1,p-a,4294967296,u,c,2026-11-21 18:58:43,mem=2,base=,debian-12",
];

/// Returns the bytes of a NumPy file (`.npy`) with `rows`: an array of little-endian 64-bit integers with four columns.
pub fn npy(rows: &[[i64; 4]]) -> Vec<u8> {
    let header = format!("{{'descr': '<i8', 'fortran_order': False, 'shape': ({}, 4), }}", rows.len());
    let numbers = rows.iter().flatten().flat_map(|number| number.to_le_bytes());
    let start = [&b"\x93NUMPY\x01\0\x76\0"[..], format!("{header:117}\n").as_bytes()].concat();
    start.into_iter().chain(numbers).collect()
}

/// Writes a small data set in the layout of the FAST'26 traces, with two boots, to the directory `set` of the
/// scene.
pub fn data_set(scene: &Scene) {
    // 2026-11-21 18:57:43 UTC and five seconds.
    let start = 1_795_287_468_000_000;
    let dir = scene.path("set/trace/it1/p-a/4GB");
    fs::create_dir_all(&dir).unwrap();
    fs::write(scene.path("set/VD_creation_meta.csv"), CREATIONS.map(|line| format!("{line}\r\n")).concat())
        .unwrap();
    let first = [[1, 0, 4096, start], [1, (2 << 20) - 4096, 8192, start + 7], [0, 0, 512, start + 1_000_000]];
    fs::write(dir.join("7.npy"), npy(&first)).unwrap();
    fs::write(dir.join("8.npy"), npy(&[[1, 0, 65536, start + 60_000_000]])).unwrap();
}

/// Writes a data set in the layout of the FAST'26 traces to the directory `set` of the scene. It has five
/// boots, numbered from `first`, of the image `image`, whose disk has `size` bytes. Each boot reads 4 KiB at
/// each of `places` (byte offsets), `apart_us` microseconds apart.
pub fn boots(
    scene: &Scene,
    set: &str,
    (image, size): (&str, u64),
    first: i64,
    (places, apart_us): (&[i64], i64),
) {
    let mut table = "volume_id,image_type,image_id,device_size,gmt_create\n".to_owned();
    let dir = scene.path(set).join(format!("trace/it1/{image}/1GB"));
    fs::create_dir_all(&dir).unwrap();
    for boot in first..first + 5 {
        table += &format!("{boot},1,{image},{size},2026-11-21 18:5{}:43\n", boot % 10);
        let start = 1_795_287_468_000_000 + boot * 60_000_000;
        let rows: Vec<_> =
            places.iter().zip(0..).map(|(at, n)| [1, *at, 4096, start + n * apart_us]).collect();
        fs::write(dir.join(format!("{boot}.npy")), npy(&rows)).unwrap();
    }
    fs::write(scene.path(set).join("VD_creation_meta.csv"), table).unwrap();
}
