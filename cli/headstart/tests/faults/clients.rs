//! Clients that vanish, stall and come in crowds: other clients do not notice, and nothing of theirs is left.

use crate::attached::Attached;
use crate::image::Image;
use crate::nbd::Client;
use headstart_testkit::faults::{FaultProxy, Outage};
use headstart_testkit::nginx::Nginx;
use headstart_testkit::wait::wait_until;
use std::thread;
use std::time::{Duration, Instant};

/// The longest time for reads of local bytes here, where two cores serve all tests. Other reads wait for minutes.
const LOCAL: Duration = Duration::from_secs(10);

/// A disk whose first MiB is local and whose store answers no more.
struct Away {
    image: Image,
    attached: Attached,
    proxy: FaultProxy,
    /// Threads and open files of the process at rest.
    at_rest: (usize, usize),
    _nginx: Nginx,
}

impl Away {
    fn new() -> Option<Self> {
        if !Nginx::is_installed() {
            return None;
        }
        let image = Image::new(16);
        let nginx = image.serve();
        let proxy = FaultProxy::start(nginx.addr());
        let words = "--writable ~/writable";
        let attached = Attached::start(&image.scene, &format!("{}/store:v1", proxy.url()), "~/cache", words);
        for _ in 0..3 {
            image.check(0, &attached.client().read(0, 1 << 20).unwrap());
        }
        // The blocks of its reads come in the background.
        thread::sleep(Duration::from_millis(500));
        let at_rest = attached.threads_and_files();
        proxy.set_outage(Outage::Hang);
        Some(Self { image, attached, proxy, at_rest, _nginx: nginx })
    }

    /// A client that reads local bytes is served as always.
    #[track_caller]
    fn others_are_served(&self) {
        let since = Instant::now();
        let mut client = self.attached.client();
        for offset in (0..1 << 20).step_by(1 << 16) {
            self.image.check(offset, &client.read(offset, 4096).unwrap());
        }
        assert!(since.elapsed() < LOCAL, "{:?}", since.elapsed());
    }

    /// All resources of clients are released. A few connections to the store may be new.
    #[track_caller]
    fn comes_to_rest(&self) {
        self.proxy.set_outage(Outage::None);
        self.attached.read_all(&self.image, 1 << 20);
        let (threads, files) = self.at_rest;
        wait_until("threads and files are given back", Duration::from_secs(60), || {
            let now = self.attached.threads_and_files();
            now.0 <= threads + 2 && now.1 <= files + 70
        });
        println!("at rest {:?}, then {:?}", self.at_rest, self.attached.threads_and_files());
    }
}

#[test]
fn clients_that_vanish_in_a_miss_leave_nothing() {
    let Some(away) = Away::new() else { return };
    for round in 0..20u64 {
        let mut client = away.attached.client();
        for n in 0..20 {
            client.send_read((2 << 20) + (round * 20 + n) * 4096, 4096).unwrap();
        }
        if round % 4 == 0 {
            away.others_are_served();
        }
        drop(client);
    }
    away.others_are_served();
    away.comes_to_rest();
}

#[test]
fn clients_that_send_half_requests_harm_no_other() {
    let Some(away) = Away::new() else { return };
    let mut holding = Vec::new();
    for part in [1, 4, 27, 28, 29, 100, 4000] {
        let mut client = away.attached.client();
        client.send_part_of_write(4096, part);
        holding.push(client);
        let mut gone = away.attached.client();
        gone.send_part_of_write(4096, part);
    }
    away.others_are_served();
    drop(holding);
    away.comes_to_rest();
    // A partial write was not applied.
    away.image.check(0, &away.attached.client().read(0, 8192).unwrap());
}

#[test]
fn many_connections_harm_no_other_client() {
    let Some(away) = Away::new() else { return };
    // All connections except one are used.
    let clients: Vec<_> = (0..63u64)
        .map(|n| {
            let mut client = away.attached.client();
            client.send_read((2 << 20) + n * 131_072, 4096).unwrap();
            client
        })
        .collect();
    away.others_are_served();
    let mut last = None;
    // The server may not have noticed yet that the previous client has gone.
    wait_until("there is room for the last", Duration::from_secs(30), || {
        last = Client::connect(&away.attached.socket).ok();
        last.is_some()
    });
    // A connection without a request would make room.
    away.image.check(0, &last.as_mut().unwrap().read(0, 4096).unwrap());
    for _ in 0..20 {
        assert!(Client::connect(&away.attached.socket).is_err(), "there is no end to how many there may be");
    }
    drop(last);
    away.proxy.set_outage(Outage::None);
    for (n, mut client) in (0..).zip(clients) {
        away.image.check((2 << 20) + n * 131_072, &client.receive().unwrap().1.unwrap());
    }
    away.comes_to_rest();
}

/// A client that sends many requests and takes no answers.
#[test]
fn a_client_that_does_not_read_harms_no_other() {
    let Some(away) = Away::new() else { return };
    let mut client = away.attached.client();
    client.stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    // The client stops when its requests are not taken any more either.
    let asked = (0..100_000).take_while(|_| client.send_read(0, 1 << 20).is_ok()).count();
    assert!(asked < 100_000, "there is no end to what it may ask");
    away.others_are_served();
    drop(client);
    away.comes_to_rest();
}
