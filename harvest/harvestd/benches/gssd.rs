//! The cost of gSSDs: making one of 64 GiB in memory and durably, finding one among 10,000, events of a large fleet;
//! and the work of a snapshot of a large map.
//!
//! Creation is everything except the work of FTL and flash: the lender's forecast, the broker's steps, custody of each
//! of the 16,384 blocks, the pool. `runs` is the number of runs that the lender's free blocks are scattered in. Durable
//! means that the steps are in a journal in the working directory and synced, each creation by itself or 64 together. A
//! file system whose own sync takes longer than the target cannot meet it with each creation by itself: its time
//! for a sync of 4 KiB is printed beside.

#![expect(clippy::print_stdout, reason = "prints its results")]
#![expect(clippy::disallowed_methods, reason = "measures time")]
#![expect(clippy::cast_precision_loss, reason = "figures have few digits")]

use headstart_block::random::Random;
use headstart_broker::gssd::{Grain, Offer, Pool, Want};
use headstart_broker::{
    BlockRun, Broker, BrokerAction as Action, BrokerEvent as Event, BrokerRequest, BrokerRequestId,
    BrokerSettings, BrokerStep, VssdKind,
};
use headstart_flash::custody::Custody;
use headstart_flash::device::{FlashBlock, Geometry};
use headstart_flash::journal::{Journal, JournalRecord};
use headstart_flash::vssd::{self, Place, Vssd};
use headstart_flash::{GssdId, Result, Time, VssdId};
use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

const HOME: VssdId = VssdId(1);
/// 64 GiB.
const BLOCKS: u32 = 16_384;
const HOUR: Duration = Duration::from_secs(3600);

fn main() -> Result<()> {
    for runs in [1, 4, 512, BLOCKS / 2] {
        create(runs)?;
    }
    snapshot()?;
    lookup(50, 8);
    lookup(1000, 64);
    fleet();
    Ok(())
}

/// Times the writing of the map of 128 GiB of which half was written at random: only the first figure holds up the
/// disk's I/O.
fn snapshot() -> Result<()> {
    let geometry = Geometry::default();
    let home: Vec<_> =
        (0..3).flat_map(|channel| geometry.blocks_of(channel)).map(|it| (FlashBlock(it), 0)).collect();
    let mut disk = Vssd::new(&vssd::VssdSettings::new(geometry, 128 << 30), &home)?;
    let (pages, mut random) = (disk.pages() as usize, Random::new(1));
    for _ in 0..pages * 3 / 4 {
        let page = u32::try_from(random.below(pages)).unwrap_or(0);
        if let Place::At(placement) = disk.place(page)? {
            drop(disk.commit(placement));
        }
    }
    let begun = Instant::now();
    let snapshot = disk.snapshot();
    let taken = begun.elapsed();
    let bytes = postcard::to_allocvec(&snapshot).unwrap_or_default();
    let encoded = begun.elapsed() - taken;
    drop(snapshot);
    let begun = Instant::now();
    let restored = postcard::from_bytes(&bytes).map(|snapshot| Vssd::restore(&snapshot));
    let whole =
        restored.is_ok_and(|restored| restored.is_ok_and(|it| it.usage().stored == disk.usage().stored));
    println!(
        "map of 128 GiB, {} pages written at random: taken in {taken:.1?}, {} bytes in {encoded:.1?}, restored \
         ({whole}) in {:.1?}",
        disk.usage().stored,
        bytes.len(),
        begun.elapsed()
    );
    Ok(())
}

/// Makes gSSDs and lets them go back again.
struct Maker {
    broker: Broker,
    custody: Custody,
    blocks: Vec<BlockRun>,
    steps: Vec<BrokerStep>,
    last: GssdId,
}

impl Maker {
    fn new(runs: u32) -> Result<Self> {
        let each = BLOCKS / runs;
        let run = |number: u32| BlockRun { first: FlashBlock(number * each * 2), count: each };
        let mut maker = Self {
            broker: Broker::new(BrokerSettings::default()),
            custody: Custody::new(Geometry::default()),
            blocks: (0..runs).map(run).collect(),
            steps: Vec::new(),
            last: GssdId(0),
        };
        let (kind, channels) = (VssdKind::Regular, (0..8).collect());
        let created = Event::Created { vssd: HOME, kind, bandwidth: 8, capacity: 8 * BLOCKS, channels };
        maker.event(created)?;
        Ok(maker)
    }

    fn event(&mut self, event: Event) -> Result<Option<GssdId>> {
        let (mut out, mut made) = (Vec::new(), None);
        self.broker.on_event(Time(0), event, &mut out);
        for action in out {
            match action {
                Action::Journal(step) => {
                    self.custody.apply(&step)?;
                    self.steps.push(step);
                }
                Action::Carve { gssd, .. } => made = Some(gssd),
                _ => {}
            }
        }
        Ok(made)
    }

    fn forecast(&mut self, capacity: u32) -> Result<Option<GssdId>> {
        self.event(Event::Forecast { vssd: HOME, bandwidth: 4, capacity, lasts: HOUR })
    }

    /// The time that it takes to make one.
    fn make(&mut self) -> Result<Duration> {
        let blocks = self.blocks.clone();
        let begun = Instant::now();
        let gssd = self.forecast(BLOCKS)?.unwrap_or(GssdId(0));
        self.event(Event::Carved { gssd, bandwidth: 4, capacity: BLOCKS, blocks })?;
        self.event(Event::Erased { gssd, bad: Vec::new() })?;
        let elapsed = begun.elapsed();
        assert_eq!(self.broker.pool().len(), 1);
        self.last = gssd;
        Ok(elapsed)
    }

    fn send_home(&mut self) -> Result<()> {
        self.forecast(0)?;
        drop(self.custody.take_returned(self.last));
        assert!(self.broker.pool().is_empty());
        Ok(())
    }
}

fn create(runs: u32) -> Result<()> {
    let mut maker = Maker::new(runs)?;
    let mut in_memory = Vec::new();
    for _ in 0..200 {
        in_memory.push(maker.make()?);
        maker.send_home()?;
        maker.steps.clear();
    }
    let path = Path::new("bench-journal.tmp");
    let journal = Journal::create(path, &[])?;
    let (mut alone, mut together, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    let durable = |maker: &mut Maker, count: u32| -> Result<Duration> {
        let mut sum = Duration::ZERO;
        for _ in 0..count {
            sum += maker.make()?;
            let begun = Instant::now();
            for step in maker.steps.drain(..) {
                journal.append(&JournalRecord::Broker(step))?;
            }
            sum += begun.elapsed();
            maker.send_home()?;
            maker.steps.clear();
        }
        let begun = Instant::now();
        let lsn = journal.append(&JournalRecord::Whole)?;
        journal.sync(lsn)?;
        Ok((sum + begun.elapsed()) / count)
    };
    for _ in 0..30 {
        alone.push(durable(&mut maker, 1)?);
        together.push(durable(&mut maker, 64)?);
        plain.push(sync_time()?);
    }
    std::fs::remove_file(path)?;
    println!(
        "create 64 GiB in {runs:5} runs: {:7.1} us in memory (target 20), durable {:6.0} us alone, {:6.0} us each of \
         64 (target 2000); a plain sync {:6.0} us",
        median(in_memory),
        median(alone),
        median(together),
        median(plain)
    );
    Ok(())
}

fn sync_time() -> Result<Duration> {
    let path = Path::new("bench-sync.tmp");
    let mut file = File::create(path)?;
    file.write_all(&[1; 4096])?;
    file.sync_data()?;
    let begun = Instant::now();
    file.write_all(&[1; 4096])?;
    file.sync_data()?;
    let elapsed = begun.elapsed();
    std::fs::remove_file(path)?;
    Ok(elapsed)
}

/// Finds gSSDs among 10,000 of up to `units` grains and `channels` channels.
fn lookup(units: usize, channels: usize) {
    const COUNT: u64 = 10_000;
    let (pool, mut random) = (Pool::new(Grain::default()), Random::new(1));
    let mut draw = |below: usize| u32::try_from(random.below(below)).unwrap_or(0);
    let mut offer = || Offer {
        bandwidth: u16::try_from(1 + draw(channels)).unwrap_or(1),
        capacity: (1 + draw(units)) * 4096,
        expire: Time(u64::from(draw(10_000))),
    };
    for id in 0..COUNT {
        assert!(pool.insert(GssdId(id), offer()));
    }
    let wants: Vec<Want> = (0..100_000)
        .map(|_| offer())
        .map(|offer| Want { bandwidth: offer.bandwidth, capacity: offer.capacity, until: offer.expire })
        .collect();
    let begun = Instant::now();
    let found = wants.iter().filter(|want| black_box(pool.find(want)).is_some()).count();
    let find = begun.elapsed().as_secs_f64() * 1e6 / wants.len() as f64;
    let begun = Instant::now();
    for want in &wants {
        for (id, offer) in black_box(pool.take_many(want, 1, true)) {
            pool.insert(id, offer);
        }
    }
    let taken = begun.elapsed().as_secs_f64() * 1e6 / wants.len() as f64;
    // The longest search: no gSSD has both.
    let none = Want { bandwidth: u16::MAX, capacity: 1, until: Time(0) };
    let begun = Instant::now();
    (0..10_000).for_each(|_| assert_eq!(black_box(pool.find(black_box(&none))), None));
    let worst = begun.elapsed().as_secs_f64() * 1e6 / 1e4;
    println!(
        "pool of 10,000 ({units} sizes x {channels} channels): find {find:.3} us (target 0.5; {found} of {} found), \
         take and insert {taken:.3} us, in vain {worst:.3} us",
        wants.len()
    );
}

/// 4,000 homes and 60,000 requests, without flash behind them.
fn fleet() {
    let mut broker = Broker::new(BrokerSettings { journal: false, ..BrokerSettings::default() });
    let (mut out, mut events, mut random) = (Vec::new(), 0_u64, Random::new(2));
    let borrower = |number: u32| VssdId(10_000 + number);
    let mut feed = |broker: &mut Broker, now: u64, event: Event| {
        let mut queue = vec![event];
        while let Some(event) = queue.pop() {
            events += 1;
            broker.on_event(Time(now), event, &mut out);
            for action in out.drain(..) {
                match action {
                    Action::Carve { gssd, bandwidth, capacity, .. } => {
                        queue.push(Event::Carved { gssd, bandwidth, capacity, blocks: Vec::new() });
                    }
                    Action::Erase { gssd } => queue.push(Event::Erased { gssd, bad: Vec::new() }),
                    Action::Evacuate { gssd, .. } => queue.push(Event::Evacuated { gssd }),
                    Action::Detach { gssd, .. } => queue.push(Event::Detached { gssd }),
                    _ => {}
                }
            }
        }
    };
    let begun = Instant::now();
    let created =
        |vssd, kind| Event::Created { vssd, kind, bandwidth: 8, capacity: 8 * BLOCKS, channels: Vec::new() };
    (0..4000).for_each(|home| feed(&mut broker, 0, created(VssdId(home), VssdKind::Regular)));
    let mut next = 0;
    for step in 0..480_u64 {
        let now = step * 180_000_000;
        for home in 0..4000 {
            let spare = u32::try_from(random.below(12)).unwrap_or(0) / 10 + u32::from(home % 7 > 0);
            let capacity = spare * BLOCKS;
            feed(
                &mut broker,
                now,
                Event::Forecast { vssd: VssdId(home), bandwidth: 4, capacity, lasts: HOUR * 6 },
            );
        }
        for _ in 0..125 {
            let (request, vm) = (BrokerRequestId(u64::from(next)), format!("vm-{next}"));
            feed(&mut broker, now, created(borrower(next), VssdKind::Harvest));
            let capacity = 8192 << random.below(5);
            let (bandwidth, lasts, borrower) = (1, HOUR, borrower(next));
            let request = BrokerRequest {
                request,
                vm,
                borrower,
                bandwidth,
                capacity,
                lasts,
                partial: false,
                grow: false,
            };
            feed(&mut broker, now, Event::Request(request));
            next += 1;
        }
        if next > 2500 {
            (next - 2500..next - 2375).for_each(|old| {
                feed(&mut broker, now, Event::Release { borrower: borrower(old), gssd: None });
            });
        }
        feed(&mut broker, now, Event::Tick);
    }
    let elapsed = begun.elapsed();
    println!(
        "a day of 4,000 homes and 60,000 requests: {:.2} s, {:.2} us an event of {events}; {:?}",
        elapsed.as_secs_f64(),
        elapsed.as_secs_f64() * 1e6 / events as f64,
        broker.counters()
    );
}

/// In microseconds.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}
