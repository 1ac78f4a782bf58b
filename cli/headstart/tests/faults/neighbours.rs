//! Processes that share a cache: the parts that one has claimed and does not fetch, the other fetches itself, soon.
//!
//! Both processes have the same image from the same web server, each through a proxy of its own, so that one can be
//! stuck alone.

use crate::attached::Attached;
use crate::image::Image;
use headstart_testkit::faults::{Fault, FaultProxy, FaultRule, Outage};
use headstart_testkit::nginx::Nginx;
use headstart_testkit::wait::wait_until;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Longer than any wait for a neighbour's claims, however many there are. Waiting for each of its claims as long as for
/// the first would take 36 s.
const SOON: Duration = Duration::from_secs(25);

struct Pair {
    image: Image,
    stuck: Attached,
    other: Attached,
    proxies: [FaultProxy; 2],
    _nginx: Nginx,
}

impl Pair {
    /// Two processes, the first of which has claimed a part of each MiB and does not get it.
    fn new() -> Option<Self> {
        if !Nginx::is_installed() {
            return None;
        }
        let image = Image::new(12);
        let nginx = image.serve();
        let proxies = [(); 2].map(|()| FaultProxy::start(nginx.addr()));
        let [stuck, other] = [0, 1].map(|n: usize| {
            Attached::start(&image.scene, &format!("{}/store:v1", proxies[n].url()), "~/cache", "")
        });
        proxies[0].set_outage(Outage::Hang);
        let mut client = stuck.client();
        let parts = image.len() >> 20;
        for n in 0..parts {
            client.send_read(n << 20, 100_000).unwrap();
        }
        // The reads wait for the store, so they have claimed.
        assert!(client.is_silent_for(Duration::from_millis(500)));
        wait_until("all of them wait", SOON, || stuck.metric("headstart_waiting_reads", "") == parts);
        // The claimed parts are still wanted.
        std::mem::forget(client);
        Some(Self { image, stuck, other, proxies, _nginx: nginx })
    }

    /// The other process reads all of the disk.
    #[track_caller]
    fn other_reads_all(&self) -> Duration {
        let since = Instant::now();
        self.other.read_all(&self.image, 1 << 20);
        assert_eq!(self.other.metric("headstart_request_errors_total", ""), 0);
        since.elapsed()
    }
}

#[test]
fn a_neighbour_whose_store_hangs_is_not_waited_for() {
    let Some(pair) = Pair::new() else { return };
    let took = pair.other_reads_all();
    println!("beside a neighbour whose store hangs: {took:?}");
    assert!(took < SOON, "{took:?}");
    // The stuck process has the bytes that the other fetched.
    pair.stuck.read_all(&pair.image, 1 << 20);
    assert!(pair.proxies[1].log().sent() > pair.image.layer().1 / 2);
}

#[test]
fn a_neighbour_that_was_killed_is_not_waited_for() {
    let mut took = Duration::MAX;
    for _ in 0..5 {
        let Some(mut pair) = Pair::new() else { return };
        let image = &pair.image;
        let mut client = pair.other.client();
        client.send_read(5 << 20, 100_000).unwrap();
        assert!(client.is_silent_for(Duration::from_millis(200)), "nothing was claimed");
        let since = Instant::now();
        pair.stuck.process.kill();
        image.check(5 << 20, &client.receive().unwrap().1.unwrap());
        took = since.elapsed();
        println!("after the neighbour was killed: {took:?}");
        let all = pair.other_reads_all();
        assert!(all < SOON, "{all:?}");
        // The wait for a living process that does not fetch its claims is three seconds. A machine that stands still
        // takes as long.
        if took < Duration::from_millis(2500) {
            return;
        }
    }
    panic!("{took:?}");
}

#[test]
fn a_neighbour_that_is_stopped_is_not_waited_for() {
    let Some(mut pair) = Pair::new() else { return };
    pair.stuck.process.signal(Signal::STOP);
    let took = pair.other_reads_all();
    println!("beside a neighbour that is stopped: {took:?}");
    assert!(took < SOON, "{took:?}");
    // Awake again, the process goes on with the present bytes.
    pair.stuck.process.signal(Signal::CONT);
    pair.stuck.read_all(&pair.image, 1 << 20);
}

/// The process is stopped at any moment of its work, with any locks that it holds then.
#[test]
fn a_neighbour_that_is_stopped_at_work_is_not_waited_for() {
    if !Nginx::is_installed() {
        return;
    }
    let image = Image::new(12);
    let nginx = image.serve();
    let proxy = FaultProxy::start(nginx.addr());
    // The delay makes the work last for a while.
    proxy.add(FaultRule::new(Fault::Late(Duration::from_millis(20))).on_path("/blobs/"));
    let slow = format!("{}/store:v1", proxy.url());
    let reference = format!("{}/store:v1", nginx.url());
    for round in 0..4 {
        let cache = format!("~/cache-{round}");
        let mut stopped = Attached::start(&image.scene, &slow, &cache, "--policy sequential");
        let other = Attached::start(&image.scene, &reference, &cache, "");
        std::thread::sleep(Duration::from_millis(round * 10));
        stopped.process.signal(Signal::STOP);
        let since = Instant::now();
        other.read_all(&image, 1 << 20);
        let took = since.elapsed();
        println!("beside a neighbour that was stopped at work: {took:?}");
        assert!(took < SOON, "{took:?}");
        // A third process can still attach.
        let since = Instant::now();
        let third = Attached::start(&image.scene, &reference, &cache, "");
        third.read_all(&image, 1 << 20);
        assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
        stopped.process.signal(Signal::CONT);
        stopped.read_all(&image, 1 << 20);
    }
}
