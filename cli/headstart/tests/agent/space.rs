//! The space that the writable layer of an agent's disk takes is bounded and listed.

use crate::agent::Agent;
use crate::attached::TIMEOUT;
use crate::images::{noisy, tool};
use crate::tools::installed;
use headstart_testkit::wait::wait_for_value;
use std::os::unix::fs::MetadataExt;

#[test]
fn the_space_of_a_disk_is_listed() {
    if !installed(&["nbdsh"]) {
        return;
    }
    let scene = noisy(4);
    let agent = Agent::start(&scene, "a", "");
    let words = "vm=file://~/store:v1 --size 64M --writable ~/vm --writable-max 32M --nbd unix:~/d.sock";
    let disk = agent.attach(words);
    let script = "\
        for round in range(20):\n  \
          for mib in range(8): h.pwrite(bytes([round + 1]) * 1048576, (mib + 20) << 20)\n\
        h.flush()";
    tool(&scene, "nbdsh", &["-u", disk["ready"]["ways"][0]["uri"].as_str().unwrap(), "-c", script]);
    let taken = || -> u64 {
        let files = std::fs::read_dir(scene.path("vm")).unwrap();
        files.filter_map(|file| Some(file.ok()?.metadata().ok()?.blocks() * 512)).sum()
    };
    let (space, _) = wait_for_value(
        "garbage is collected",
        TIMEOUT,
        || (agent.disks()[0]["space"][0].clone(), taken()),
        |(space, taken)| {
            let collected = space["collected_bytes"].as_u64() >= Some(140 << 20);
            collected && space["garbage_bytes"].as_u64() <= Some(1 << 20) && *taken <= 10 << 20
        },
    );
    assert_eq!((space["live_bytes"].as_u64(), space["max_bytes"].as_u64()), (Some(8 << 20), Some(32 << 20)));
    let said = scene.ok(&format!("disk list {}", agent.option())).stdout;
    assert!(said.contains("8 MiB written"), "{said}");
    agent.detach("vm");
    assert_eq!(scene.names("a/disks"), [""; 0]);
}
