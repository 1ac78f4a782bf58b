//! The time until a disk is there; see the file above.

use super::attach;
use super::images::Wide;
use super::nbd_client::NbdClient;
use headstart_testkit::fio::{median, verdict};
use headstart_testkit::nginx::Nginx;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TIMES: usize = 20;
const WANTED_MS: f64 = 30.0;

pub(crate) fn measure(image: &Wide) {
    let Wide { store, tag } = image;
    let socket = store.with_extension("sock");
    let local = || attach([image.local()], &socket);
    println!("\n{:52} {:>8} {:>8} {:>8}", "attach to first byte, ms", "median", "least", "most");
    let ms = tell("40 GiB, 4,500 segments in 20 layers, local", &socket, &local, &|| ());
    println!("  wanted less than {WANTED_MS}: {}", verdict(ms < WANTED_MS));
    if !Nginx::is_installed() {
        return;
    }
    let server = Nginx::serve(store.parent().expect("a parent"));
    let cache = store.with_extension("cache");
    let remote = || {
        let mut command = attach([format!("{}/store:{tag}", server.url())], &socket);
        command.arg("--cache").arg(&cache);
        command
    };
    tell("the same over HTTP, nothing in the cache", &socket, &remote, &|| {
        let _ = std::fs::remove_dir_all(&cache);
    });
    tell("the same over HTTP, all it needs in the cache", &socket, &remote, &|| ());
}

/// Times the program `TIMES` times, with `prepare` before each time; returns the median.
fn tell(what: &str, socket: &Path, command: &dyn Fn() -> Command, prepare: &dyn Fn()) -> f64 {
    let mut times = Vec::new();
    for _ in 0..TIMES {
        prepare();
        let _ = std::fs::remove_file(socket);
        times.push(first_byte(&mut command(), socket).as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    println!("  {what:50} {:>8.1} {:>8.1} {:>8.1}", median(times.clone()), times[0], times[TIMES - 1]);
    median(times)
}

fn first_byte(command: &mut Command, socket: &Path) -> Duration {
    let started = Instant::now();
    let attached = Attached::start(command);
    let mut client = NbdClient::connect(socket, "").expect("the disk is served");
    client.read(&mut [0; 4096], 0).expect("the first read is answered");
    let took = started.elapsed();
    drop(attached);
    took
}

/// The running program; it ends when this is dropped.
pub(crate) struct Attached(Child);

impl Attached {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.spawn().expect("headstart starts"))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
