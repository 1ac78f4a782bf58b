//! The duration of operations on one channel: a bus, dies, and one erasure at a time.
//!
//! The model is that of BlockFlex's SSD (section 4.6). Durations that the paper does not give are estimates:
//! * a *read* senses a page in its die (70 us), then moves the requested bytes over the bus. The die is held until the
//!   last byte has left its register;
//! * a *program* moves a page over the bus, then programs it (700 us): four dies in turn keep the bus busy;
//! * an *erasure* holds its die (4.2 ms) and leaves the bus free. A channel erases one block at a time. A channel of 64
//!   GiB has 16,384 blocks: erasing all of them takes 68 s, half of them 34 s, a quarter 17 s (section 5.6);
//! * the *bus* carries one transfer at a time, at 70 MB/s: 234 us for a page of 16 KiB.
//!
//! Erasures may be suspended if [`Speeds::suspend`] is set (it is not by default, as in the paper). Then a read or
//! program does not wait for the end of an erasure in its die: the erasure pauses for the operation, and ends later by
//! the duration of the pause, with the time that suspending and resuming take ("Reducing SSD Read Latency via NAND
//! Flash Program and Erase Suspension", FAST 2012). One erasure is suspended at most 32 times; further operations in
//! its die wait for its end.

use super::Geometry;
use std::ops::Range;
use std::time::Duration;

/// The kind of an operation on flash, with the number of bytes that it transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A read of this number of bytes: from one page on emulated flash, from any number on a file or a real device.
    Read(u32),
    /// A program that transfers this number of bytes: one page on emulated flash, any number on a file or a real
    /// device.
    Program(u32),
    /// An erasure of one block.
    Erase,
}

/// An operation on a channel, with all that its duration depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashOp {
    /// The die that the operation uses, by its number within the channel: [`Geometry::die`].
    pub die: u16,
    /// The kind of the operation, with the number of bytes that it transfers.
    pub work: Work,
}

impl FlashOp {
    /// Returns the number of bytes that the operation moves over the bus; 0 for an erasure.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        match self.work {
            Work::Read(bytes) | Work::Program(bytes) => bytes,
            Work::Erase => 0,
        }
    }
}

/// The speed of a channel's bus and dies. The default is the SSD of the BlockFlex paper (section 4.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speeds {
    /// Bandwidth of the bus, in bytes a second, at least 1.
    pub bus: u64,
    /// Duration of reading a page from the cell array to the die's register, without the transfer over the
    /// bus.
    pub read: Duration,
    /// Duration of programming a page from the die's register to the cell array, without the transfer over
    /// the bus.
    pub program: Duration,
    /// Duration of erasing one block.
    pub erase: Duration,
    /// Duration of suspending an erasure; resuming it takes as long again. `None` if erasures cannot be suspended.
    pub suspend: Option<Duration>,
}

impl Default for Speeds {
    fn default() -> Self {
        Self {
            bus: 70_000_000,
            read: Duration::from_micros(70),
            program: Duration::from_micros(700),
            erase: Duration::from_micros(4200),
            suspend: None,
        }
    }
}

impl Speeds {
    /// Returns the duration of the transfer of `bytes` bytes over the bus.
    #[must_use]
    pub fn transfer(&self, bytes: u32) -> Duration {
        Duration::from_nanos(u64::from(bytes).saturating_mul(1_000_000_000) / self.bus.max(1))
    }

    /// Returns the duration of an operation on an otherwise idle channel.
    #[must_use]
    pub fn alone(&self, work: Work) -> Duration {
        match work {
            Work::Read(bytes) => self.read + self.transfer(bytes),
            Work::Program(bytes) => self.transfer(bytes) + self.program,
            Work::Erase => self.erase,
        }
    }
}

/// The periods for which a started operation occupies its die and the bus, on the caller's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The period for which it occupies the die. An erasure may end later than this if it is suspended: see
    /// [`Timing::erasing`].
    pub die: Range<Duration>,
    /// The period for which it occupies the bus; empty for an erasure.
    pub bus: Range<Duration>,
}

/// The most times that one erasure is suspended: it has to end, whatever other operations come.
const SUSPENSIONS: u32 = 32;

/// A model of one channel's timing: tells when operations can start and when they end. The caller passes the
/// time in.
#[derive(Clone, Debug)]
pub struct Timing {
    speeds: Speeds,
    bus: Duration,
    dies: Vec<Duration>,
    erasing: Option<Erasing>,
}

#[derive(Clone, Copy, Debug)]
struct Erasing {
    die: u16,
    until: Duration,
    /// The time at which the die is done with the operation that suspended the erasure.
    free: Duration,
    suspended: u32,
}

impl Timing {
    /// Returns the model of an idle channel.
    #[must_use]
    pub fn new(geometry: &Geometry, speeds: Speeds) -> Self {
        let dies = vec![Duration::ZERO; usize::from(geometry.dies.max(1))];
        Self { speeds, bus: Duration::ZERO, dies, erasing: None }
    }

    /// Returns the speeds of the channel.
    #[must_use]
    pub fn speeds(&self) -> &Speeds {
        &self.speeds
    }

    /// Returns the number of dies of the channel, at least 1.
    #[must_use]
    pub fn dies(&self) -> usize {
        self.dies.len()
    }

    /// Returns the earliest time at which the operation may start, on the caller's clock; the time may be in the past.
    /// A read may start before the bus is free, because it senses the page first. A program may start as early as a
    /// read, although it needs the bus first. Otherwise reads could keep programs waiting for ever.
    #[must_use]
    pub fn ready(&self, op: FlashOp) -> Duration {
        let die = match self.suspendable(op) {
            Some((_, free)) => free,
            None => self.dies[self.slot(op.die)],
        };
        match op.work {
            Work::Read(_) | Work::Program(_) => die.max(self.bus.saturating_sub(self.speeds.read)),
            Work::Erase => die.max(self.erasing.map_or(Duration::ZERO, |erasing| erasing.until)),
        }
    }

    /// Starts an operation at `now`, or at the time at which it is [ready](Self::ready) if that is later.
    /// Returns the periods for which it occupies the die and the bus; it ends when the die's period ends.
    pub fn start(&mut self, now: Duration, op: FlashOp) -> Span {
        let slot = self.slot(op.die);
        let suspend = self.suspendable(op);
        let start = now.max(self.ready(op));
        let held = suspend.map(|(pause, _)| pause).filter(|_| self.dies[slot] > start);
        let begin = start + held.unwrap_or_default();
        let span = match op.work {
            Work::Read(bytes) => {
                let out = self.bus.max(begin + self.speeds.read);
                let end = out + self.speeds.transfer(bytes);
                Span { die: start..end, bus: out..end }
            }
            Work::Program(bytes) => {
                let into = self.bus.max(begin);
                let end = into + self.speeds.transfer(bytes);
                Span { die: start..end + self.speeds.program, bus: into..end }
            }
            Work::Erase => Span { die: start..start + self.speeds.erase, bus: start..start },
        };
        if op.work == Work::Erase {
            self.erasing = Some(Erasing { die: op.die, until: span.die.end, free: start, suspended: 0 });
        } else {
            self.bus = self.bus.max(span.bus.end);
        }
        match (&mut self.erasing, held) {
            (Some(erasing), Some(pause)) => {
                // The die is its operation's, then the erasure's again, which goes on where it was.
                erasing.until += span.die.end - start + pause;
                erasing.suspended += 1;
                erasing.free = span.die.end;
                self.dies[slot] = erasing.until;
            }
            _ => self.dies[slot] = self.dies[slot].max(span.die.end),
        }
        span
    }

    /// Returns the time at which the last started erasure ends, if it is not suspended again; `None` before
    /// the first erasure.
    #[must_use]
    pub fn erasing(&self) -> Option<Duration> {
        self.erasing.map(|erasing| erasing.until)
    }

    /// The time that it takes to suspend the erasure in the die of this operation, and the earliest moment of the
    /// suspension.
    fn suspendable(&self, op: FlashOp) -> Option<(Duration, Duration)> {
        let erasing =
            self.erasing.filter(|erasing| erasing.die == op.die && erasing.suspended < SUSPENSIONS)?;
        let alone = op.work != Work::Erase && erasing.until == self.dies[self.slot(op.die)];
        self.speeds.suspend.filter(|_| alone).map(|pause| (pause, erasing.free))
    }

    fn slot(&self, die: u16) -> usize {
        usize::from(die) % self.dies.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u32 = 16 << 10;

    fn channel() -> Timing {
        Timing::new(&Geometry::default(), Speeds::default())
    }

    fn micros(time: Duration) -> u128 {
        time.as_micros()
    }

    /// The end of `count` operations that are started as soon as they are ready, on dies in turn.
    fn run(timing: &mut Timing, count: u16, dies: u16, work: Work) -> Duration {
        let ops = (0..count).map(|number| FlashOp { die: number % dies, work });
        ops.map(|op| timing.start(timing.ready(op), op).die.end).last().unwrap_or_default()
    }

    #[test]
    fn one_operation_takes_its_die_and_bus_time() {
        let speeds = Speeds::default();
        assert_eq!(micros(speeds.transfer(PAGE)), 234);
        for (work, time) in [(Work::Read(PAGE), 304), (Work::Read(4096), 128), (Work::Program(PAGE), 934)] {
            assert_eq!(micros(channel().start(Duration::ZERO, FlashOp { die: 0, work }).die.end), time);
            assert_eq!(micros(speeds.alone(work)), time);
        }
    }

    #[test]
    fn four_dies_keep_the_bus_busy_and_one_does_not() {
        let rate = |dies, work| {
            let end = run(&mut channel(), 1000, dies, work);
            1000.0 * f64::from(PAGE) / end.as_secs_f64() / 1e6
        };
        assert!(rate(4, Work::Program(PAGE)) > 69.5, "{}", rate(4, Work::Program(PAGE)));
        assert!((17.0..18.0).contains(&rate(1, Work::Program(PAGE))));
        assert!(rate(4, Work::Read(PAGE)) > 69.5);
        assert!((53.0..55.0).contains(&rate(1, Work::Read(PAGE))));
    }

    #[test]
    fn a_channel_is_erased_in_the_papers_time() {
        for (share, seconds) in [(4, 17.2), (2, 34.4), (1, 68.8)] {
            let end = run(&mut channel(), 16_384 / share, 4, Work::Erase).as_secs_f64();
            assert!((end - seconds).abs() < 0.1, "{end}");
        }
    }

    #[test]
    fn the_bus_is_free_during_an_erasure() {
        let mut timing = channel();
        timing.start(Duration::ZERO, FlashOp { die: 0, work: Work::Erase });
        let read = |die| FlashOp { die, work: Work::Read(PAGE) };
        assert_eq!(micros(timing.start(Duration::ZERO, read(1)).die.end), 304);
        assert_eq!(micros(timing.ready(read(0))), 4200);
        assert_eq!(micros(timing.start(Duration::ZERO, read(0)).die.end), 4504);
    }

    #[test]
    fn an_erasure_is_suspended_and_ends_later() {
        let pause = Duration::from_micros(50);
        let mut timing =
            Timing::new(&Geometry::default(), Speeds { suspend: Some(pause), ..Speeds::default() });
        timing.start(Duration::ZERO, FlashOp { die: 0, work: Work::Erase });
        let read = FlashOp { die: 0, work: Work::Read(PAGE) };
        let at = Duration::from_micros(1000);
        assert_eq!(micros(timing.start(at, read).die.end), 1354);
        assert_eq!(timing.erasing().map(micros), Some(4200 + 354 + 50));
        // The die is one operation's at a time, suspended or not.
        assert_eq!(micros(timing.ready(read)), 1354);
        assert_eq!(micros(timing.start(at, read).die.end), 1708);
        // Not for ever.
        for _ in 0..100 {
            timing.start(Duration::ZERO, read);
        }
        assert!(timing.erasing().is_some_and(|end| end < Duration::from_micros(20_000)));
        assert!(timing.ready(read) > timing.erasing().unwrap_or_default());
    }
}
