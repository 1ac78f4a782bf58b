//! ChannelSchedulers in virtual time, under a regular VM in a closed loop and a harvest VM that takes all that it can.

use super::*;
use crate::device::timing::Speeds;
use headstart_block::random::Random;
use headstart_testkit::soak;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

const PAGE: u32 = 16 << 10;

/// A regular VM like YCSB's workload A: threads that read or update, and think between.
#[derive(Clone, Copy, Debug)]
struct Load {
    threads: usize,
    /// Mean time that a thread thinks.
    think: Duration,
    channels: u16,
    /// Share of reads.
    reads: f64,
}

/// The operations of the harvest VM on every channel.
#[derive(Clone, Copy, Debug, Default)]
struct Harvest {
    /// Reads and programs of a page, half and half, always waiting, a channel.
    pages: usize,
    /// Erasures always waiting on the first channel.
    erasures: usize,
}

#[derive(Debug)]
struct Figures {
    /// Regular operations a second.
    rate: f64,
    p95: Duration,
    /// Harvest pages a second, all channels.
    harvest: f64,
    /// Erasures a second.
    erasures: f64,
    /// The longest that a harvest operation was in the scheduler.
    longest: Duration,
    /// The first channel's final duration of harvest programs, as a multiple of an undisturbed one.
    slow: f64,
}

struct BlockRun {
    schedulers: ChannelSchedulers,
    load: Load,
    /// One for each thread, so that it does the same whatever the harvest VM does, and the harvest VM's.
    random: Vec<Random>,
    tickets: u64,
    open: BTreeMap<u64, Open>,
}

struct Open {
    class: Class,
    channel: u16,
    erase: bool,
    since: Duration,
    thread: usize,
}

impl BlockRun {
    fn submit(&mut self, now: Duration, class: Class, channel: u16, work: Work, thread: usize) {
        let die = u16::try_from(self.random[thread].below(4)).unwrap();
        self.tickets += 1;
        let open = Open { class, channel, erase: work == Work::Erase, since: now, thread };
        self.open.insert(self.tickets, open);
        self.schedulers.submit(now, channel, Ticket(self.tickets), class, FlashOp { die, work });
    }

    fn regular(&mut self, now: Duration, thread: usize) {
        let channel = u16::try_from(self.random[thread].below(usize::from(self.load.channels))).unwrap();
        let read = self.random[thread].unit() < self.load.reads;
        let work = if read { Work::Read(4096) } else { Work::Program(PAGE) };
        self.submit(now, Class::Regular, channel, work, thread);
    }

    fn harvest(&mut self, now: Duration, channel: u16) {
        let thread = self.load.threads;
        let work = if self.random[thread].below(2) == 0 { Work::Read(PAGE) } else { Work::Program(PAGE) };
        self.submit(now, Class::Harvest, channel, work, thread);
    }

    fn erase(&mut self, now: Duration) {
        self.submit(now, Class::HarvestCollect, 0, Work::Erase, self.load.threads);
    }

    fn thinks(&mut self, thread: usize) -> Duration {
        self.load.think.mul_f64(-(1.0 - self.random[thread].unit()).ln())
    }
}

fn run(load: Load, harvest: Harvest, settings: SchedulerSettings, speeds: Speeds, seconds: u64) -> Figures {
    let geometry = Geometry { channels: load.channels, ..Geometry::default() };
    let schedulers = ChannelSchedulers::new(&geometry, Speed::Emulated(speeds), settings);
    let random = (0..=load.threads as u64).map(|thread| Random::new(thread << 32)).collect();
    let mut run = BlockRun { schedulers, load, random, tickets: 0, open: BTreeMap::new() };
    let mut thoughts: BinaryHeap<_> =
        (0..load.threads).map(|thread| Reverse((run.thinks(thread), thread))).collect();
    for channel in 0..load.channels {
        (0..harvest.pages).for_each(|_| run.harvest(Duration::ZERO, channel));
    }
    (0..harvest.erasures).for_each(|_| run.erase(Duration::ZERO));
    let end = Duration::from_secs(seconds);
    let (mut times, mut pages, mut erasures, mut done) = (Vec::new(), 0_u32, 0_u32, Vec::new());
    let mut longest = Duration::ZERO;
    loop {
        let thought = thoughts.peek().map(|Reverse(thought)| *thought);
        let Some(now) = [thought.map(|(at, _)| at), run.schedulers.next()].into_iter().flatten().min() else {
            break;
        };
        if now >= end {
            break;
        }
        if let Some((_, thread)) = thought.filter(|(at, _)| *at == now) {
            thoughts.pop();
            run.regular(now, thread);
        }
        run.schedulers.advance(now, &mut done);
        for Done { ticket, at } in done.drain(..) {
            let Open { class, channel, erase, since, thread } = run.open.remove(&ticket.0).unwrap();
            match class {
                Class::Regular => {
                    times.push(at - since);
                    thoughts.push(Reverse((now + run.thinks(thread), thread)));
                }
                _ if erase => {
                    erasures += 1;
                    run.erase(now);
                }
                _ => {
                    pages += 1;
                    longest = longest.max(at - since);
                    run.harvest(now, channel);
                }
            }
        }
    }
    times.sort_unstable();
    let count = u32::try_from(times.len()).unwrap();
    let seconds = end.as_secs_f64();
    let program = run.schedulers.program_times(end)[0].as_secs_f64();
    Figures {
        rate: f64::from(count) / seconds,
        p95: times.get(times.len() * 95 / 100).copied().unwrap_or_default(),
        harvest: f64::from(pages) / seconds,
        erasures: f64::from(erasures) / seconds,
        longest,
        slow: program / speeds.alone(Work::Program(PAGE)).as_secs_f64(),
    }
}

const ALONE: Harvest = Harvest { pages: 0, erasures: 0 };

fn loads() -> Vec<Load> {
    let load = |(threads, channels, think)| Load {
        threads,
        think: Duration::from_micros(think),
        channels,
        reads: 0.5,
    };
    let of = [
        (1, 1, 0),
        (1, 1, 3000),
        (1, 4, 10_000),
        (4, 1, 0),
        (4, 1, 1000),
        (4, 4, 3000),
        (10, 1, 0),
        (10, 2, 300),
        (10, 4, 0),
        (10, 4, 3000),
        (10, 4, 50_000),
    ];
    of.map(load).to_vec()
}

/// Every second load, and in `make soak` each of them.
fn sampled_loads() -> impl Iterator<Item = Load> {
    loads().into_iter().step_by(if soak::is_on() { 1 } else { 2 })
}

/// The bound: 5% of throughput, and 5% of P95 latency or one program time.
fn assert_spared(alone: &Figures, with: &Figures, share: f64, load: Load) {
    let program = Speeds::default().alone(Work::Program(PAGE));
    assert!(with.rate >= alone.rate * (1.0 - share), "{load:?}: {alone:?}, {with:?}");
    assert!(with.p95 <= alone.p95.mul_f64(1.05).max(alone.p95 + program), "{load:?}: {alone:?}, {with:?}");
}

#[test]
fn a_regular_vm_hardly_feels_a_harvest_vm_that_saturates() {
    let settings = SchedulerSettings::default();
    for load in sampled_loads() {
        let speeds = Speeds::default();
        let alone = run(load, ALONE, settings, speeds, 4);
        let with = run(load, Harvest { pages: 8, erasures: 0 }, settings, speeds, 4);
        assert_spared(&alone, &with, 0.05, load);
        let both = run(load, Harvest { pages: 8, erasures: 4 }, settings, speeds, 4);
        assert_spared(&alone, &both, 0.05, load);
        assert!(with.longest < settings.limit.mul_f64(1.2), "{load:?}: {with:?}");
    }
}

/// The waits that harvest VMs cause each other do not make a channel slow; the operations of its regular VM do.
#[test]
fn a_channel_is_slow_where_others_use_it() {
    let nobody = Load { threads: 0, think: Duration::ZERO, channels: 2, reads: 0.5 };
    let harvest = Harvest { pages: 64, erasures: 4 };
    let slow = |load| run(load, harvest, SchedulerSettings::default(), Speeds::default(), 3).slow;
    assert!(slow(nobody) < 1.001, "{}", slow(nobody));
    for load in loads().into_iter().filter(|load| load.think.is_zero()) {
        assert!(slow(load) > 1.25, "{load:?}: {}", slow(load));
    }
}

#[test]
fn erasures_cost_a_regular_vm_less_than_a_part_in_66() {
    for load in sampled_loads() {
        let alone = run(load, ALONE, SchedulerSettings::default(), Speeds::default(), 6);
        let with =
            run(load, Harvest { pages: 0, erasures: 4 }, SchedulerSettings::default(), Speeds::default(), 6);
        assert_spared(&alone, &with, 0.015, load);
        assert!(with.erasures > 2.0, "{load:?}: {with:?}");
    }
}

/// With suspension, the same cost lets a multiple of erasures through.
#[test]
fn suspension_makes_erasures_cheap() {
    let load = Load { threads: 10, think: Duration::from_millis(1), channels: 4, reads: 0.5 };
    let harvest = Harvest { pages: 0, erasures: 4 };
    let suspend = Speeds { suspend: Some(Duration::from_micros(50)), ..Speeds::default() };
    let alone = run(load, ALONE, SchedulerSettings::default(), suspend, 6);
    let (with, without) = (
        run(load, harvest, SchedulerSettings::default(), suspend, 6),
        run(load, harvest, SchedulerSettings::default(), Speeds::default(), 6),
    );
    assert!(with.rate > alone.rate * 0.985, "{alone:?} {with:?}");
    assert!(with.erasures > 4.0 * without.erasures, "{with:?} {without:?}");
}

#[test]
fn a_harvest_vm_gets_what_a_regular_one_leaves() {
    let load =
        |threads, think| Load { threads, think: Duration::from_millis(think), channels: 2, reads: 0.5 };
    // Pages a second that two buses carry.
    let all = 2.0 * 70e6 / f64::from(PAGE);
    let part =
        |load, harvest| run(load, harvest, SchedulerSettings::default(), Speeds::default(), 6).harvest / all;
    let pages = Harvest { pages: 16, erasures: 0 };
    // No operations; a few operations now and then; a VM that leaves gaps of a page's time.
    assert!(part(load(0, 0), pages) > 0.95, "{}", part(load(0, 0), pages));
    assert!(part(load(1, 10), pages) > 0.85, "{}", part(load(1, 10), pages));
    assert!(part(load(4, 50), pages) > 0.85, "{}", part(load(4, 50), pages));
    assert!(part(load(4, 3), pages) > 0.2, "{}", part(load(4, 3), pages));
    // And all the erasures of the paper where it does nothing.
    let figures = run(
        load(0, 0),
        Harvest { pages: 0, erasures: 8 },
        SchedulerSettings::default(),
        Speeds::default(),
        6,
    );
    assert!((237.0..239.0).contains(&figures.erasures), "{figures:?}");
}

/// The budget, not the luck of one run: without it the same VM loses a multiple.
#[test]
fn without_a_budget_it_would_lose() {
    let load = Load { threads: 4, think: Duration::from_millis(1), channels: 2, reads: 0.5 };
    let free = SchedulerSettings { share: 1.0, guard: Duration::ZERO, ..SchedulerSettings::default() };
    let alone = run(load, ALONE, free, Speeds::default(), 5);
    let with = run(load, Harvest { pages: 8, erasures: 0 }, free, Speeds::default(), 5);
    assert!(with.rate < alone.rate * 0.9, "{alone:?} {with:?}");
}

#[derive(Clone, Debug)]
struct Coming {
    after: u64,
    class: Class,
    die: u16,
    work: Work,
}

fn coming() -> impl Strategy<Value = Vec<Coming>> {
    let work = prop_oneof![
        4 => Just(Work::Read(4096)),
        4 => Just(Work::Program(PAGE)),
        1 => Just(Work::Erase)
    ];
    let one = (0..4000_u64, prop::sample::select(Class::ALL.to_vec()), 0..4_u16, work);
    prop::collection::vec(
        one.prop_map(|(after, class, die, work)| Coming { after, class, die, work }),
        1..120,
    )
}

/// Drives a scheduler at each event, or as late as possible.
fn drive(coming: &[Coming], promptly: bool) -> Vec<Done> {
    let mut scheduler = ChannelScheduler::new(
        &Geometry::default(),
        Speed::Emulated(Speeds::default()),
        SchedulerSettings::default(),
    );
    let mut budget = Budget::new(&SchedulerSettings::default());
    let (mut done, mut now) = (Vec::new(), Duration::ZERO);
    for (number, one) in (0..).zip(coming) {
        now += Duration::from_micros(one.after);
        while let Some(next) = scheduler.next(&budget).filter(|next| promptly && *next < now) {
            scheduler.advance(next, &mut budget, &mut done);
        }
        scheduler.submit(
            now,
            Ticket(number),
            one.class,
            FlashOp { die: one.die, work: one.work },
            &mut budget,
        );
    }
    while let Some(next) = scheduler.next(&budget).filter(|_| promptly) {
        scheduler.advance(next, &mut budget, &mut done);
    }
    scheduler.advance(now + Duration::from_secs(1000), &mut budget, &mut done);
    assert_eq!(scheduler.next(&budget), None);
    done
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn all_is_done_once_in_order_however_late(coming in coming()) {
        let done = drive(&coming, true);
        prop_assert_eq!(&done, &drive(&coming, false));
        let tickets: BTreeSet<_> = done.iter().map(|done| done.ticket).collect();
        prop_assert!(tickets.len() == coming.len() && done.len() == coming.len());
        prop_assert!(done.is_sorted_by_key(|done| done.at));
        let at: BTreeMap<_, _> = done.iter().map(|done| (done.ticket.0, done.at)).collect();
        let mut last: BTreeMap<(Class, u16), Duration> = BTreeMap::new();
        let (mut erasures, mut came) = (Vec::new(), Duration::ZERO);
        for (number, one) in (0..).zip(&coming) {
            came += Duration::from_micros(one.after);
            let least = came + Speeds::default().alone(one.work);
            prop_assert!(at[&number] >= least);
            // Of a class on a die, in the order in which they came.
            let last = last.entry((one.class, one.die)).or_default();
            prop_assert!(at[&number] > *last);
            *last = at[&number];
            if one.work == Work::Erase {
                erasures.push(at[&number]);
            }
        }
        erasures.sort_unstable();
        prop_assert!(erasures.windows(2).all(|pair| pair[1] - pair[0] >= Speeds::default().erase));
    }
}

fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

/// A scheduler of a file: `rate` bytes a second, 64 KiB at once.
fn bucket(rate: Option<u64>) -> (ChannelScheduler, Budget) {
    let speed = Speed::Bucket { rate, burst: 64 << 10 };
    (
        ChannelScheduler::new(&Geometry::default(), speed, SchedulerSettings::default()),
        Budget::new(&SchedulerSettings::default()),
    )
}

fn tickets(scheduler: &mut ChannelScheduler, budget: &mut Budget, now: Duration) -> Vec<u64> {
    let mut done = Vec::new();
    scheduler.advance(now, budget, &mut done);
    done.iter().map(|done| done.ticket.0).collect()
}

const READ: FlashOp = FlashOp { die: 3, work: Work::Read(PAGE) };

#[test]
fn a_bucket_has_its_rate() {
    let (mut scheduler, mut budget) = bucket(Some(16_384_000));
    (0..100).for_each(|number| {
        scheduler.submit(Duration::ZERO, Ticket(number), Class::Regular, READ, &mut budget);
    });
    // Four fill the burst, one more goes into debt; then one a millisecond.
    assert_eq!(tickets(&mut scheduler, &mut budget, Duration::ZERO), [0, 1, 2, 3, 4]);
    assert!(tickets(&mut scheduler, &mut budget, micros(999)).is_empty());
    assert_eq!(tickets(&mut scheduler, &mut budget, micros(10_000)), (5..15).collect::<Vec<_>>());
    assert_eq!(tickets(&mut scheduler, &mut budget, micros(1_000_000)).len(), 85);
}

#[test]
fn on_a_file_harvest_waits_for_quiet() {
    let (mut scheduler, mut budget) = bucket(None);
    scheduler.submit(micros(0), Ticket(0), Class::Regular, READ, &mut budget);
    (1..9).for_each(|number| scheduler.submit(micros(0), Ticket(number), Class::Harvest, READ, &mut budget));
    assert_eq!(tickets(&mut scheduler, &mut budget, micros(5000)), [0]);
    scheduler.ended(micros(5000), Class::Regular, &mut budget);
    // Two milliseconds after the last regular one, two at a time.
    assert_eq!(scheduler.next(&budget), Some(micros(7000)));
    assert_eq!(tickets(&mut scheduler, &mut budget, micros(7000)), [1, 2]);
    assert!(tickets(&mut scheduler, &mut budget, micros(9000)).is_empty());
    scheduler.ended(micros(9000), Class::Harvest, &mut budget);
    assert_eq!(tickets(&mut scheduler, &mut budget, micros(9000)), [3]);
    // With a regular one always on its way, one after the bound.
    scheduler.passed(micros(9000), 1);
    scheduler.ended(micros(9000), Class::Harvest, &mut budget);
    assert!(tickets(&mut scheduler, &mut budget, micros(49_999)).is_empty());
    assert_eq!(tickets(&mut scheduler, &mut budget, micros(50_000)), [4]);
    scheduler.ended(micros(50_000), Class::Harvest, &mut budget);
    assert!(tickets(&mut scheduler, &mut budget, micros(99_999)).is_empty());
    assert_eq!(tickets(&mut scheduler, &mut budget, micros(100_000)), [5]);
}

#[test]
fn a_channel_without_an_owner_or_place_does_no_harm() {
    let geometry = Geometry { channels: 2, ..Geometry::default() };
    let mut schedulers =
        ChannelSchedulers::new(&geometry, Speed::Emulated(Speeds::default()), SchedulerSettings::default());
    schedulers.set_owner(7, 1);
    schedulers.submit(Duration::ZERO, 7, Ticket(0), Class::Regular, READ);
    assert_eq!(schedulers.next(), None);
    schedulers.set_owner(1, 9);
    schedulers.submit(Duration::ZERO, 1, Ticket(1), Class::Regular, READ);
    let mut done = Vec::new();
    schedulers.advance(micros(1_000_000), &mut done);
    assert_eq!(done, [Done { ticket: Ticket(1), at: Speeds::default().alone(READ.work) }]);
    assert_eq!(schedulers.budget(9).map(Budget::spent), Some([Duration::ZERO; 2]));
    assert!(schedulers.scheduler(1).is_some_and(|scheduler| scheduler.waiting(Class::Regular) == 0));
}
