//! `kill -9` of attach: what was flushed is there, what was not is old or new, and the cache keeps what it had.
//!
//! # The model
//!
//! Every sector that is written says who it is: its number on the disk and the number of its write, over and over. For
//! each sector the test keeps what it may hold: what it held when the last flush ended, and what has been written to
//! it since that flush was sent. A flush that ends leaves the latest write that had ended before it was sent. After
//! a kill, what is read must be among that; then a flush, and what was read is what counts from then on.

use crate::attached::Attached;
use crate::image::Image;
use crate::nbd::Client;
use crate::soak;
use headstart_export::nbd::proto::command;
use headstart_testkit::faults::FaultProxy;
use headstart_testkit::nginx::Nginx;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const SECTOR: u64 = 512;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// What a sector may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// What the image has there.
    Image,
    Zeros,
    /// What the write of this number put there.
    Write(u64),
}

impl Held {
    fn bytes(self, image: &Image, sector: u64) -> Vec<u8> {
        match self {
            Self::Image => image.content[(sector * SECTOR) as usize..][..SECTOR as usize].to_vec(),
            Self::Zeros => vec![0; SECTOR as usize],
            Self::Write(number) => [sector.to_le_bytes(), number.to_le_bytes()].concat().repeat(32),
        }
    }
}

/// A write that was sent.
struct Sent {
    held: Held,
    ended: bool,
}

/// What the sectors of one client may hold: first what is durable, then the writes since, in their order. Sectors that
/// are not here hold the image's bytes.
#[derive(Default)]
struct Model {
    sectors: BTreeMap<u64, (Held, Vec<Arc<Mutex<Sent>>>)>,
    next: u64,
    flushes: u64,
}

impl Model {
    fn write(&mut self, sectors: std::ops::Range<u64>, zeros: bool) -> (Held, Arc<Mutex<Sent>>) {
        self.next += 1;
        let held = if zeros { Held::Zeros } else { Held::Write(self.next) };
        let sent = Arc::new(Mutex::new(Sent { held, ended: false }));
        for sector in sectors {
            self.sectors.entry(sector).or_insert((Held::Image, Vec::new())).1.push(Arc::clone(&sent));
        }
        (held, sent)
    }

    /// A flush ended that was sent when every write had ended: all of them are durable.
    fn flushed(&mut self) {
        self.flushes += 1;
        for (durable, writes) in self.sectors.values_mut() {
            if let Some(last) = writes.last() {
                assert!(last.lock().unwrap().ended);
                *durable = last.lock().unwrap().held;
            }
            writes.clear();
        }
    }

    /// Checks a sector, and takes what is there for durable.
    fn found(&mut self, image: &Image, sector: u64, bytes: &[u8]) {
        let (durable, writes) = self.sectors.entry(sector).or_insert((Held::Image, Vec::new()));
        let mut allowed = vec![*durable];
        allowed.extend(writes.iter().map(|sent| sent.lock().unwrap().held));
        let found = allowed.iter().find(|held| held.bytes(image, sector) == bytes);
        let Some(found) = found else {
            panic!("sector {sector} holds {:02x?}..., which is none of {allowed:?}", &bytes[..32]);
        };
        *durable = *found;
        writes.clear();
    }
}

/// A guest that writes into its part of the disk, until its disk is gone.
struct Guest {
    model: Model,
    /// Its sectors.
    part: std::ops::Range<u64>,
    random: Random,
}

impl Guest {
    fn work(&mut self, client: &mut Client) -> io::Result<()> {
        loop {
            let mut pending = BTreeMap::new();
            // Writes that do not touch each other: their order does not matter.
            let strips = (self.part.end - self.part.start) / 8;
            for strip in 0..1 + self.random.below(8) {
                let first = self.part.start + strip * strips + self.random.below(strips - 32);
                let len = 1 + self.random.below(32);
                let zeros = self.random.below(8) == 0;
                let (held, sent) = self.model.write(first..first + len, zeros);
                let (offset, bytes) = (first * SECTOR, (len * SECTOR) as usize);
                let cookie = if zeros {
                    client.send(command::WRITE_ZEROES, 0, offset, bytes, &[])?
                } else {
                    let Held::Write(number) = held else { unreachable!("what is no zeros is a write") };
                    let data: Vec<u8> = (first..first + len)
                        .flat_map(|sector| [sector.to_le_bytes(), number.to_le_bytes()].concat().repeat(32))
                        .collect();
                    client.send_write(offset, &data, self.random.below(16) == 0)?
                };
                pending.insert(cookie, sent);
            }
            while !pending.is_empty() {
                let (cookie, answer) = client.receive()?;
                answer.expect("a write succeeds");
                pending.remove(&cookie).unwrap().lock().unwrap().ended = true;
            }
            if self.random.below(4) == 0 {
                client.send(command::FLUSH, 0, 0, 0, &[])?;
                client.receive()?.1.expect("a flush succeeds");
                self.model.flushed();
            }
        }
    }

    /// Reads all of its part back.
    fn check(&mut self, image: &Image, client: &mut Client) {
        // So that what is read now is what stays.
        client.send(command::FLUSH, 0, 0, 0, &[]).unwrap();
        client.receive().unwrap().1.unwrap();
        let len = (self.part.end - self.part.start) * SECTOR;
        let bytes = client.read(self.part.start * SECTOR, len as usize).unwrap();
        for (sector, bytes) in self.part.clone().zip(bytes.chunks(SECTOR as usize)) {
            self.model.found(image, sector, bytes);
        }
    }
}

#[test]
fn nothing_flushed_is_lost_by_kill_9() {
    if !Nginx::is_installed() {
        return;
    }
    let image = Image::new(8);
    let nginx = image.serve();
    let reference = format!("{}/store:v1", nginx.url());
    let sectors = image.len() / SECTOR;
    let mut random = Random(1);
    // Two guests on halves of the disk, but for a MiB in the middle and at the end that nobody writes to.
    let mut guests = [0, 1].map(|n: u64| Guest {
        model: Model::default(),
        part: n * sectors / 2..n * sectors / 2 + sectors / 2 - 2048,
        random: Random(n + 7),
    });
    let rounds = if soak() { 100 } else { 20 };
    for round in 0..rounds {
        let mut attached = Attached::start(&image.scene, &reference, "~/cache", "--writable ~/writable");
        for guest in &mut guests {
            guest.check(&image, &mut attached.client());
        }
        image.check(
            image.len() / 2 - (1 << 20),
            &attached.client().read(image.len() / 2 - (1 << 20), 1 << 20).unwrap(),
        );
        let time = Duration::from_millis(10 + random.below(if round % 4 == 0 { 400 } else { 60 }));
        thread::scope(|scope| {
            for guest in &mut guests {
                let mut client = attached.client();
                scope.spawn(move || {
                    let broken = guest.work(&mut client).expect_err("works until the disk is gone");
                    assert_ne!(broken.kind(), io::ErrorKind::WouldBlock, "an answer is missing");
                });
            }
            thread::sleep(time);
            attached.process.kill();
        });
    }
    let (writes, flushes) = guests
        .iter()
        .fold((0, 0), |(writes, flushes), guest| (writes + guest.model.next, flushes + guest.model.flushes));
    println!("{rounds} kills, {writes} writes, {flushes} flushes");
    assert!(writes > 20 * rounds && flushes > rounds, "{writes} writes and {flushes} flushes are no load");
    let mut attached = Attached::start(&image.scene, &reference, "~/cache", "--writable ~/writable");
    guests.iter_mut().for_each(|guest| guest.check(&image, &mut attached.client()));
    attached.detach();
}

/// Killed while it reads and fills its cache: nothing wrong is in there, and hardly anything is fetched twice.
#[test]
fn the_cache_survives_kill_9() {
    if !Nginx::is_installed() {
        return;
    }
    let image = Image::new(16);
    let (nginx, layer) = (image.serve(), image.layer().1);
    let proxy = FaultProxy::start(nginx.addr());
    let reference = format!("{}/store:v1", proxy.url());
    let mut random = Random(3);
    let rounds = if soak() { 40 } else { 8 };
    let mut local = 0;
    for _ in 0..rounds {
        let mut attached = Attached::start(&image.scene, &reference, "~/cache", "");
        let now = attached.metric("headstart_image_local_bytes", "");
        assert!(now >= local, "{now} bytes are left of {local}");
        thread::scope(|scope| {
            for seed in 0..4 {
                let (mut client, image) = (attached.client(), &image);
                let mut random = Random(random.below(1 << 60) + seed);
                scope.spawn(move || {
                    loop {
                        let offset = random.below(image.len() / 4096 - 16) * 4096;
                        let Ok((_, answer)) = client.send_read(offset, 65_536).and_then(|_| client.receive())
                        else {
                            return;
                        };
                        image.check(offset, &answer.unwrap());
                    }
                });
            }
            thread::sleep(Duration::from_millis(20 + random.below(60)));
            local = attached.metric("headstart_image_local_bytes", "");
            attached.process.kill();
        });
    }
    let attached = Attached::start(&image.scene, &reference, "~/cache", "");
    attached.read_all(&image, 1 << 20);
    let (again, sent) = (proxy.log().to("/blobs/").sent_again(), proxy.log().sent());
    println!("{rounds} kills; of {layer} bytes {sent} were sent, {again} of them again");
    // What was on its way when a process was killed comes twice, and so do the manifest and what is no whole unit.
    assert!(again < layer / 2, "{again} of {layer} bytes were sent again\n{}", proxy.log());
}
