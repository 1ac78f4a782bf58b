//! The memory that a vSSD takes.

use crate::device::{FlashBlock, Geometry};
use crate::vssd::{Place, Vssd, VssdSettings};

/// The paper: 288 KB for 128 GB (section 4.3.2).
#[test]
fn the_map_of_128_gb_is_below_288_kb() {
    let geometry = Geometry::default();
    let settings = VssdSettings::new(geometry, 128 << 30);
    let count = u32::try_from(settings.blocks_needed(settings.size)).unwrap();
    let home: Vec<_> = (0..count).map(|block| (FlashBlock(block), 0)).collect();
    let mut vssd = Vssd::new(&settings, &home).unwrap();
    let empty = vssd.memory();
    assert!(empty.map < 288_000, "{empty:?}");
    assert_eq!((empty.overlays, empty.logs), (0, 0));
    // A group of 256 MiB, in order: only the first few pages are mapped by themselves.
    for page in 0..64 * 256 {
        if let Place::At(to) = vssd.place(page).unwrap() {
            vssd.commit(to);
        }
    }
    let full = vssd.memory();
    assert_eq!(full.map, empty.map);
    assert!(vssd.map.patches() < 64, "{}", vssd.map.patches());
    // Then at random.
    let before = vssd.map.patches();
    for page in 0..100_000_u32 {
        if let Place::At(to) = vssd.place(page.wrapping_mul(2_654_435_761) % (8 << 20)).unwrap() {
            vssd.commit(to);
        }
    }
    let (memory, patches) = (vssd.memory(), vssd.map.patches() - before);
    let each = (memory.overlays + memory.logs) as f64 / patches as f64;
    assert!(patches > 90_000 && each < 36.0, "{patches} patches of {each} bytes: {memory:?}");
}
