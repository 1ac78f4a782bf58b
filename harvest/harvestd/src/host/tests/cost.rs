//! The cost of writes in programs of flash.

use super::kit::{Machine, spec};
use headstart_block::random::Random;
use headstart_flash::VssdKind;
use headstart_flash::device::Geometry;
use headstart_flash::device::emulator::FlashFaults;

/// The order of writes.
#[derive(Clone, Copy, Debug)]
enum Order {
    Sequential,
    Random,
}

/// Bytes programmed for each byte written, with pages of 16 KiB, on a disk that was written full once before.
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn amplification(order: Order, size: usize) -> f64 {
    let mut machine = Machine::new(Geometry::of_size(128 << 20).unwrap(), FlashFaults::default());
    let host = machine.restart();
    host.create("disk", spec(VssdKind::Regular, 4, None)).unwrap();
    let disk = host.disk("disk").unwrap();
    let bytes = vec![7; 1 << 20];
    for at in 0..disk.size() >> 20 {
        disk.write_at(&bytes, at << 20).unwrap();
    }
    disk.flush().unwrap();
    let before = host.status().flash;
    let (mut random, places) = (Random::new(1), disk.size() / size as u64);
    let count = (24 << 20) / size as u64;
    for step in 0..count {
        let at = match order {
            Order::Sequential => step % places,
            Order::Random => random.below(usize::try_from(places).unwrap()) as u64,
        };
        disk.write_at(&bytes[..size], at * size as u64).unwrap();
        if step % 64 == 0 {
            disk.flush().unwrap();
        }
    }
    let after = host.status().flash;
    let programmed = after.programmed_bytes - before.programmed_bytes;
    programmed as f64 / (after.written_bytes - before.written_bytes) as f64
}

#[test]
fn small_writes_cost_a_page_each() {
    let mut found = Vec::new();
    for (order, size, least, most) in [
        (Order::Sequential, 1 << 20, 1.0, 1.1),
        (Order::Sequential, 128 << 10, 1.0, 1.1),
        (Order::Sequential, 16 << 10, 1.0, 1.2),
        (Order::Sequential, 4 << 10, 4.0, 6.5),
        (Order::Random, 16 << 10, 1.0, 8.0),
        (Order::Random, 4 << 10, 4.0, 32.0),
    ] {
        let cost = amplification(order, size);
        found.push((order, size, cost, (least..most).contains(&cost)));
    }
    assert!(found.iter().all(|(_, _, _, right)| *right), "{found:#?}");
}
