//! The cost of many disks in one process; see the file above.

use super::attach;
use super::first_byte::Attached;
use super::images::Wide;
use super::nbd_client::NbdClient;
use headstart_testkit::fio::verdict;
use headstart_testkit::nginx::Nginx;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const DISKS: usize = 200;
const WANTED_MIB: f64 = 4.0;

pub(crate) fn measure(image: &Wide) {
    let Wide { store, tag } = image;
    let index = image.index_bytes() as f64;
    println!(
        "\n{DISKS} disks of 40 GiB, 4,500 segments in 20 layers, in one process; the index of each {:.0} KiB",
        index / 1024.0
    );
    tell("in a local directory", store, index, &image.local());
    if Nginx::is_installed() {
        let server = Nginx::serve(store.parent().expect("a parent"));
        tell("over HTTP, through the cache", store, index, &format!("{}/store:{tag}", server.url()));
    }
}

/// The resources that a process takes.
#[derive(Debug)]
struct Taken {
    ready: Duration,
    pss: f64,
    threads: f64,
}

fn tell(what: &str, store: &Path, index: f64, image: &str) {
    let [one, many] = [1, DISKS].map(|disks| take(store, disks, image));
    let more = (DISKS - 1) as f64;
    let mib = ((many.pss - one.pss) / more - index) / f64::from(1 << 20);
    println!(
        "  {what}: all answered after {:.2} s (one: {:.3} s); a disk more takes {mib:.2} MiB beyond its index \
         (wanted {WANTED_MIB}): {}, {:.2} threads",
        many.ready.as_secs_f64(),
        one.ready.as_secs_f64(),
        verdict(mib < WANTED_MIB),
        (many.threads - one.threads) / more
    );
}

/// Attaches `disks` disks and reads from each, over a connection that stays.
fn take(store: &Path, disks: usize, image: &str) -> Taken {
    let (socket, cache) = (store.with_extension("sock"), store.with_extension("cache"));
    let _ = fs::remove_file(&socket);
    let _ = fs::remove_dir_all(&cache);
    let mut command: Command = attach((0..disks).map(|disk| format!("d{disk}={image}")), &socket);
    command.arg("--cache").arg(&cache);
    let started = Instant::now();
    let attached = Attached::start(&mut command);
    let clients: Vec<_> = (0..disks)
        .map(|disk| {
            let mut client = NbdClient::connect(&socket, &format!("d{disk}")).expect("the disk is served");
            client.read(&mut [0; 4096], 0).expect("a read is answered");
            client
        })
        .collect();
    let ready = started.elapsed();
    // By then idle connections have released their threads and buffers.
    std::thread::sleep(Duration::from_secs(4));
    let taken = Taken {
        ready,
        pss: kib(attached.id(), "smaps_rollup", "Pss:") * 1024.0,
        threads: kib(attached.id(), "status", "Threads:"),
    };
    drop(clients);
    taken
}

/// A number out of a file about a process.
fn kib(process: u32, file: &str, name: &str) -> f64 {
    let text = fs::read_to_string(format!("/proc/{process}/{file}")).expect("a running process");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("the line");
    line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
}
