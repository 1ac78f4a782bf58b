//! The memory of hosts that have many images.

use crate::agent::Agent;
use crate::containers::Host;
use crate::scene::Scene;
use std::fs;

/// Bytes beyond files that the process of a disk may have: twice of what development builds take for a small image from
/// which a container was started, which is four times of what releases take.
const DISK_MOST: u64 = 26 << 20;

/// The images of a host, each with a disk.
const DISKS: usize = 4;

/// The memory of a process that is of no file, in bytes.
fn anonymous(pid: u64) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn memory_of_disks(agent: &Agent<'_>) -> Vec<u64> {
    agent.disks().iter().map(|disk| anonymous(disk["pid"].as_u64().unwrap())).collect()
}

#[test]
fn a_disk_of_an_image_takes_a_few_megabytes_beyond_files() {
    let scene = Scene::new();
    let Some(host) = Host::start(&scene) else { return };
    host.convert("--referrer");
    host.pull(&host.image);
    host.containerd.run(&host.image, "first", "cat $(ls -d /bin/* /etc/*) > /dev/null; true");
    let registry = &host.registry_host;
    for number in 1..DISKS {
        let at = scene.path(&format!("disk-{number}"));
        fs::write(&at, "").unwrap();
        host.agent.attach(&format!(
            "oci://{} --as d{number} --fuse ~/disk-{number} --plain-http {registry}",
            host.image
        ));
    }
    let memory = memory_of_disks(&host.agent);
    assert_eq!(memory.len(), DISKS);
    assert!(memory.iter().all(|taken| *taken < DISK_MOST), "{memory:?}");
}
