//! `kill -9` of attach: answered writes are there, flushed or not, others are old or new; the cache keeps its bytes.
//!
//! # The model
//!
//! Every written sector identifies itself: its number on the disk and the number of its write, over and over. For each
//! sector the test has the possible contents: that of the last answered write, and those of writes that were sent
//! since. After a kill, the read content must be one of these, because the guest goes on: its next flush covers all
//! writes that were answered before. A flush before the read makes the content the one that stays.

use crate::attached::Attached;
use crate::image::Image;
use crate::nbd::Client;
use headstart_export::nbd::proto::command;
use headstart_testkit::faults::FaultProxy;
use headstart_testkit::nginx::Nginx;
use headstart_testkit::soak;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

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

/// The possible contents of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// The image's bytes.
    Image,
    Zeros,
    /// The bytes of the write with this number.
    Write(u64),
}

impl Held {
    fn bytes(self, image: &Image, sector: u64) -> Vec<u8> {
        match self {
            Self::Image => image.content[(sector * SECTOR) as usize..][..SECTOR as usize].to_vec(),
            Self::Zeros => vec![0; SECTOR as usize],
            Self::Write(number) => stamp(sector, number),
        }
    }
}

/// The content of a sector that identifies itself.
fn stamp(sector: u64, number: u64) -> Vec<u8> {
    [sector.to_le_bytes(), number.to_le_bytes()].concat().repeat(32)
}

/// The possible contents of a sector: the answered one, then the writes since, in their order.
#[derive(Clone)]
struct Sector {
    answered: Held,
    written: Vec<Held>,
}

/// The possible contents of one client's sectors. Sectors that are not here have the image's bytes.
#[derive(Default)]
struct Model {
    sectors: BTreeMap<u64, Sector>,
    next: u64,
    flushes: u64,
}

impl Model {
    fn sector(&mut self, sector: u64) -> &mut Sector {
        self.sectors.entry(sector).or_insert(Sector { answered: Held::Image, written: Vec::new() })
    }

    fn write(&mut self, sectors: Range<u64>, zeros: bool) -> Held {
        self.next += 1;
        let held = if zeros { Held::Zeros } else { Held::Write(self.next) };
        sectors.for_each(|sector| self.sector(sector).written.push(held));
        held
    }

    /// Records that every write to these sectors was answered.
    fn is_answered(&mut self, sectors: Range<u64>) {
        for (_, sector) in self.sectors.range_mut(sectors) {
            sector.answered = sector.written.pop().unwrap_or(sector.answered);
            sector.written.clear();
        }
    }

    /// Checks a sector, and takes the content as the one that stays.
    fn found(&mut self, image: &Image, number: u64, bytes: &[u8]) {
        let sector = self.sector(number);
        let mut allowed = [sector.answered].into_iter().chain(sector.written.drain(..));
        let before = sector.answered;
        let found = allowed.find(|held| held.bytes(image, number) == bytes);
        drop(allowed);
        let Some(found) = found else {
            panic!("sector {number} holds {:02x?}..., neither {before:?} nor what came since", &bytes[..32]);
        };
        sector.answered = found;
    }
}

/// A guest that writes into its part of the disk, until its disk is gone.
struct Guest {
    model: Model,
    /// Its sectors.
    part: Range<u64>,
    random: Random,
}

impl Guest {
    fn work(&mut self, client: &mut Client) -> io::Result<()> {
        loop {
            let mut pending = BTreeMap::new();
            // Writes that do not touch each other: their order does not matter.
            let strip = (self.part.end - self.part.start) / 8;
            for n in 0..1 + self.random.below(8) {
                let first = self.part.start + n * strip + self.random.below(strip - 32);
                let sectors = first..first + 1 + self.random.below(32);
                let (zeros, durable) = (self.random.below(8) == 0, self.random.below(16) == 0);
                let held = self.model.write(sectors.clone(), zeros);
                let offset = first * SECTOR;
                let cookie = if let Held::Write(number) = held {
                    let data: Vec<u8> = sectors.clone().flat_map(|sector| stamp(sector, number)).collect();
                    client.send_write(offset, &data, durable)?
                } else {
                    let len = (sectors.end - sectors.start) * SECTOR;
                    client.send(command::WRITE_ZEROES, 0, offset, len as usize, &[])?
                };
                pending.insert(cookie, sectors);
            }
            while !pending.is_empty() {
                let (cookie, answer) = client.receive()?;
                answer.expect("a write succeeds");
                self.model.is_answered(pending.remove(&cookie).unwrap());
            }
            if self.random.below(4) == 0 {
                client.send(command::FLUSH, 0, 0, 0, &[])?;
                client.receive()?.1.expect("a flush succeeds");
                self.model.flushes += 1;
            }
        }
    }

    /// Reads all of its part back.
    fn check(&mut self, image: &Image, client: &mut Client) {
        // The flush makes the read content the one that stays.
        client.send(command::FLUSH, 0, 0, 0, &[]).unwrap();
        client.receive().unwrap().1.unwrap();
        let len = (self.part.end - self.part.start) * SECTOR;
        let bytes = client.read(self.part.start * SECTOR, len as usize).unwrap();
        for (sector, bytes) in self.part.clone().zip(bytes.chunks(SECTOR as usize)) {
            self.model.found(image, sector, bytes);
        }
    }
}

/// `true` if the guests have done enough for this number of kills.
fn is_load(guests: &[Guest], kills: u64) -> bool {
    let (writes, flushes) = guests
        .iter()
        .fold((0, 0), |(writes, flushes), guest| (writes + guest.model.next, flushes + guest.model.flushes));
    println!("{writes} writes, {flushes} flushes");
    writes > 20 * kills && flushes > kills
}

#[test]
fn answered_writes_survive_kill_9() {
    if !Nginx::is_installed() {
        return;
    }
    let image = Image::new(8);
    let nginx = image.serve();
    let reference = format!("{}/store:v1", nginx.url());
    let sectors = image.len() / SECTOR;
    let mut random = Random(1);
    // Two guests have halves of the disk, except a MiB in the middle and at the end without writes.
    let mut guests = [0, 1].map(|n: u64| Guest {
        model: Model::default(),
        part: n * sectors / 2..n * sectors / 2 + sectors / 2 - 2048,
        random: Random(n + 7),
    });
    let rounds = if soak::is_on() { 100 } else { 10 };
    // On a busy machine it takes more rounds until all that is a load.
    for round in 0..10 * rounds {
        if round >= rounds && is_load(&guests, rounds) {
            break;
        }
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
    assert!(is_load(&guests, rounds), "so few writes and flushes are no load");
    let mut attached = Attached::start(&image.scene, &reference, "~/cache", "--writable ~/writable");
    guests.iter_mut().for_each(|guest| guest.check(&image, &mut attached.client()));
    attached.detach();
}

/// Killed while it reads and fills its cache: no wrong byte is in there, and hardly any is fetched twice.
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
    let rounds = if soak::is_on() { 40 } else { 8 };
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
                    // It ends when the process is killed; by itself only if this test has failed before that.
                    let until = Instant::now() + Duration::from_secs(60);
                    while Instant::now() < until {
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
    // Bytes that were on their way when a process was killed come twice, and so do the manifest and partial units.
    assert!(again < layer / 2, "{again} of {layer} bytes were sent again\n{}", proxy.log());
}
