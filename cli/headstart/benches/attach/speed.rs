//! The speed of a disk; see the file above.

use super::{attach, images};
use headstart_testkit::fio::{Contestant, JOBS, Race, RacerRole, peers, verdict};
use std::path::Path;

const ROUNDS: usize = 5;
const SECONDS: &str = "1";
/// The least part of the flat image's rate that the 20 layers must reach.
const OF_FLAT: f64 = 0.8;

pub(crate) fn measure(dir: &Path) {
    let images = images::make(dir);
    let Some(peers) = peers(&images.raw, dir) else { return };
    let ours = [
        ("headstart, flat", &images.flat),
        ("headstart, 20 x lz4 4 KiB", &images.layered),
        ("headstart, zstd 32 KiB", &images.default),
    ];
    let contestants: Vec<_> = ours
        .into_iter()
        .enumerate()
        .map(|(number, (name, image))| {
            let socket = dir.join(format!("{number}.sock"));
            let mut command = attach([image.clone()], &socket);
            Contestant::start(name, RacerRole::Ours, &mut command, &socket).expect("headstart serves")
        })
        .chain(peers)
        .collect();
    contestants.iter().for_each(Contestant::warm_up);
    for job in &JOBS {
        let race = Race::run(job, &contestants, ROUNDS, SECONDS);
        print!("{}{}{}", race.table(), race.verdict(0), layered(&race));
    }
}

/// The rates of the 20 layers relative to the flat image, and to that image's goal.
fn layered(race: &Race<'_>) -> String {
    const FLAT: usize = 0;
    const LAYERED: usize = 1;
    let to_flat = race.rate_ratio(LAYERED, FLAT);
    let mut text = format!(
        "  20 layers of lz4: {to_flat:.2} of the flat image (wanted {OF_FLAT}): {}\n",
        verdict(to_flat >= OF_FLAT)
    );
    if let Some((fastest, thriftiest)) = race.best_peers() {
        let (to_peer, wanted) = (race.rate_ratio(LAYERED, fastest), OF_FLAT * race.job().target);
        let (cpu, cpu_wanted) = (race.cpu_ratio(LAYERED, thriftiest), 1.0 / OF_FLAT);
        text += &format!(
            "  20 layers of lz4: {to_peer:.2} of the better peer (wanted {wanted:.2}): {}; {cpu:.2} of the CPU of \
             the thriftiest (wanted {cpu_wanted:.2}): {}\n",
            verdict(to_peer >= wanted),
            verdict(cpu <= cpu_wanted)
        );
    }
    text
}
