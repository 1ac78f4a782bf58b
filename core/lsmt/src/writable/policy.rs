//! The decisions of garbage collection, without their execution: a pure state machine.
//!
//! # Bounds
//!
//! With `live` bytes of data that runs name and a *slack* `S` (128 MiB, or half of what the directory may take at
//! most), the files take at most
//!
//! * `2 * live + S` at any moment: a write or a discard that would go beyond `2 * live + 3/4 S` waits
//!   ([`Limits::admits`]); the last quarter is for a collector's own copies and for a new log beside the old one;
//! * `1.5 * live + S` a while after the last write: at most `live / 4 + S / 8` of dead sectors stay in blocks that are
//!   partly live, and the log is at most `S / 16` longer than one and a half times the log that it could be.
//!
//! # Order of steps
//!
//! Dead blocks are punched: a call for each range, which keeps flushes out of the file meanwhile, and writers too,
//! except for data that is kept in memory (`data_file.rs`). While clients write, only ranges of 64 KiB and more are
//! punched at once.
//! Shorter ranges wait, because their neighbours may die, too: as garbage comes nearer to the bound ([`PUNCHED_FROM`]),
//! first ranges of eight blocks and at last single blocks are punched, the longest first. Sectors that died since
//! the last flush need a flush first. Blocks that are partly dead are *evacuated*: their live data is written again
//! at the end of the file, in the order of the disk. First those with two dead sectors or more: a block with one
//! gives back an eighth of what it costs. Only a waiting writer has these evacuated as well.

use super::space::{BLOCK_SECTORS, CLASSES};
use headstart_block::{SECTOR_SIZE, saturating};
use std::time::Duration;

/// The garbage from which on ranges of each class are punched while clients write, in per cent of the amount that
/// makes them wait: of one block, of two, of four, of eight and more.
const PUNCHED_FROM: [u64; CLASSES] = [75, 60, 45, 20];

/// Bytes of room for copies more than before that make merging runs worth another try.
const WORTH_A_PASS: u64 = 1 << 20;

/// Bytes that evacuation moves at most beside twice the live data, until something has died otherwise.
const MOVED_BESIDES: u64 = 1 << 20;

/// Dead sectors beside live ones that are less than a block: moving the data around them gains too little.
const CRUMBS: u64 = (BLOCK_SECTORS - 1) * SECTOR_SIZE;

/// A record of the log.
const RECORD: u64 = 16;

/// The header of a log.
const LOG_HEADER: u64 = 4096;

/// Limits on the space and the memory of a writable disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that the directory may take beyond twice the live data. A slack of more than half of `max` counts as half
    /// of `max`. Default: 128 MiB.
    pub slack: u64,
    /// The largest number of bytes that the directory may take; writes that would exceed it fail with `NoSpace`.
    /// `None`, the default, sets no such limit.
    pub max: Option<u64>,
    /// Number of runs (entries of the map from the disk's sectors to stored data) above which the collector
    /// merges them. `None`, the default, is one for each 64 KiB of the disk's size, but at least 2^18.
    pub runs: Option<u64>,
    /// Bytes that merging runs may copy from the base in any case. More are copied only while the copied bytes do not
    /// exceed the live bytes that clients wrote. Default: 128 MiB.
    pub copied_up: u64,
    /// The longest time for which a write that needs runs to be merged waits for bytes of the base that are not on
    /// this host; then it fails. Default: 300 s.
    pub base_timeout: Duration,
    /// The longest time for which a write that has no room below [`max`](Self::max) waits for a commit that still reads
    /// data which later writes replaced; then it fails. Default: 300 s.
    pub commit_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            slack: 128 << 20,
            max: None,
            runs: None,
            copied_up: 128 << 20,
            base_timeout: Duration::from_secs(300),
            commit_timeout: Duration::from_secs(300),
        }
    }
}

impl Limits {
    /// The smallest value that [`max`](Self::max) may have, in bytes: 16 MiB.
    pub const MAX_LEAST: u64 = 16 << 20;

    /// The slack in effect.
    pub(super) fn slack(&self) -> u64 {
        self.max.map_or(self.slack, |max| self.slack.min(max / 2))
    }

    /// Most bytes that one step of a write or discard may have.
    pub(super) fn step(&self) -> u64 {
        (self.slack() / 32 / 4096 * 4096).clamp(4096, 4 << 20)
    }

    /// `true` if a step that appends `added` bytes and takes `killed` live ones away keeps the bounds.
    pub(super) fn admits(&self, space: &Space, added: u64, killed: u64) -> bool {
        let slack = self.slack();
        let after = space.files() + added;
        let live = space.live.saturating_sub(killed);
        after <= 2 * live + space.held + slack - slack / 4
            && self.max.is_none_or(|max| added == 0 || after <= max - slack / 8)
    }

    /// The garbage in per cent of the amount that makes writes wait.
    pub(super) fn garbage_percent(&self, space: &Space) -> u64 {
        let slack = self.slack();
        space.garbage().saturating_mul(100) / (space.live + slack - slack / 4).max(1)
    }

    /// Most runs of a disk of `size` bytes: one for 64 KiB, and 2^18 at least.
    pub(super) fn runs_max(&self, size: u64) -> u64 {
        self.runs.unwrap_or_else(|| (size >> 16).max(1 << 18))
    }

    /// Most bytes that the file of pending records takes: there is room for it beside a new log, also below
    /// [`max`](Self::max).
    pub(super) fn pending(&self) -> u64 {
        self.slack() / 16
    }

    /// Bytes of live data that fit below [`max`](Self::max).
    pub(super) fn usable(&self) -> u64 {
        self.max.map_or(u64::MAX, |max| max - self.slack() / 2)
    }
}

/// The sizes that the bounds limit, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Space {
    /// Data that runs name.
    pub(super) live: u64,
    /// Data in the files, live or not, and the data that writes under way are about to add.
    pub(super) data: u64,
    /// The logs.
    pub(super) log: u64,
    /// Dead data that a commit still reads, or that is in files of other directories, too.
    pub(super) held: u64,
}

impl Space {
    /// Bytes of the files.
    pub(super) fn files(&self) -> u64 {
        self.data + self.log
    }

    /// Bytes that can be given back, and the log.
    pub(super) fn garbage(&self) -> u64 {
        self.files().saturating_sub(self.live + self.held)
    }
}

/// The state of a disk, as far as decisions depend on it; in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts {
    pub(super) space: Space,
    /// Records that the log of the active pair would have if it were written again, at most.
    pub(super) records: u64,
    /// Runs in the map of the active pair, and their limit.
    pub(super) runs: u64,
    pub(super) runs_max: u64,
    /// Bytes that merging runs may copy up.
    pub(super) copy_room: u64,
    /// `true` if merging runs cannot go on before bytes of the base have come.
    pub(super) awaits_base: bool,
    /// The log of the active pair.
    pub(super) log: u64,
    /// Bytes that died by records that are not durable.
    pub(super) dying: u64,
    /// Dead bytes in blocks that can be punched, by the class of their range.
    pub(super) ripe: [u64; CLASSES],
    /// Dead bytes in blocks that are partly live.
    pub(super) residue: u64,
    /// All bytes that have died in these ways since the disk was opened.
    pub(super) died: u64,
    /// Bytes that evacuation has moved since then: the same number dies by that, sooner or later.
    pub(super) evacuated: u64,
    /// `true` if there are frozen pairs that may be absorbed.
    pub(super) frozen: bool,
    /// `true` if there are runs that a commit has set aside and no longer needs.
    pub(super) set_aside: bool,
    /// `true` if holes can be punched.
    pub(super) can_punch: bool,
    pub(super) load: Load,
}

/// The demand of clients on a disk, which decides how much garbage its collector collects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Load {
    /// Clients write, and no write waits for space.
    #[default]
    Busy,
    /// No client has written for a while; see [`Load::of`].
    Quiet,
    /// A write or discard waits for space.
    Pressed,
    /// The disk has no clients; everything that can be freed is to be freed.
    Offline,
}

/// The next step of a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Rest,
    /// Makes the records durable that have killed sectors.
    Flush,
    /// Punches dead ranges of this class and higher ones.
    Punch {
        class: usize,
    },
    /// Writes the log again, without records that others cover.
    CompactLog,
    /// Joins runs that were set aside with those above them.
    Reunite,
    /// Moves data of frozen pairs into the active one.
    Absorb,
    /// Moves live data out of blocks with at least `least` dead sectors.
    Evacuate {
        least: u64,
    },
    /// Merges the runs of windows that have at least `least` of them.
    Coarsen {
        least: u64,
    },
    /// Copies all live data, if holes cannot be punched.
    CopyAll,
}

/// The memory of a collector from step to step.
#[derive(Debug, Default)]
pub(super) struct Policy {
    /// The pass of evacuation that goes on: its least number of dead sectors.
    pass: Option<u64>,
    series: Option<Series>,
    /// The pass of merging runs that goes on: the least number of a window.
    coarse: Option<u64>,
    /// The number of runs when no pass could merge any, and the bytes that could be copied up at that time.
    unmerged: Option<(u64, u64)>,
}

/// Passes of evacuation, one after another.
///
/// A pass takes data out of blocks that other data is in, too: the next pass moves that. And the blocks at both ends of
/// its copies may be dead in part, so that there may always be something to move. So a series ends when it has moved
/// twice the live data and [`MOVED_BESIDES`], until something has died otherwise.
#[derive(Debug)]
struct Series {
    least: u64,
    /// [`Facts::evacuated`] at the start, and the bytes that had died otherwise.
    started: u64,
    died_otherwise: i128,
    /// [`Facts::evacuated`] and [`Facts::died`] at the start of the last pass.
    last: (u64, u64),
}

impl Series {
    fn new(least: u64, facts: &Facts) -> Self {
        let last = (facts.evacuated, facts.died);
        Self { least, started: facts.evacuated, died_otherwise: died_otherwise(facts), last }
    }

    /// The bytes that have died since by anything but evacuation.
    fn died_since(&self, facts: &Facts) -> u64 {
        saturating(died_otherwise(facts) - self.died_otherwise)
    }

    /// `true` if another pass may find something to move and moving it is worth it. That needs a last pass that
    /// moved something, or more than `news` bytes that died since.
    fn goes_on(&self, news: u64, facts: &Facts) -> bool {
        let (evacuated, died) = self.last;
        (facts.evacuated > evacuated || facts.died - died > news)
            && facts.evacuated - self.started < 2 * facts.space.live + MOVED_BESIDES
    }
}

/// The bytes that died by anything but evacuation. The number is too small by the bytes that evacuation moved and
/// that die later.
fn died_otherwise(facts: &Facts) -> i128 {
    i128::from(facts.died) - i128::from(facts.evacuated)
}

impl Policy {
    /// Notes that a pass of evacuation has come to the end of the disk.
    pub(super) fn pass_ended(&mut self) {
        self.pass = None;
    }

    /// Notes that a pass of merging runs has come to the end of the disk. `merged` is `true` if it has merged
    /// something; `facts` has the runs and the room for copies that it left.
    pub(super) fn coarse_pass_ended(&mut self, merged: bool, facts: &Facts) {
        let Facts { runs, runs_max, copy_room, .. } = *facts;
        let least = self.coarse.take().filter(|_| runs > runs_max - runs_max / 8);
        // Clients may have made as many as were merged.
        self.coarse =
            least.and_then(|least| if merged { Some(8) } else { Some(least / 2).filter(|it| *it >= 2) });
        self.unmerged = least.filter(|_| self.coarse.is_none()).map(|_| (runs, copy_room));
    }

    /// Notes that the base may be readable again.
    pub(super) fn may_merge_again(&mut self) {
        self.unmerged = None;
    }

    fn merging(&mut self, facts: &Facts) -> Option<u64> {
        let is_news = self.unmerged.is_none_or(|(runs, room)| {
            facts.runs.abs_diff(runs) > facts.runs_max / 64
                || facts.copy_room > room.saturating_add(WORTH_A_PASS)
        });
        if self.coarse.is_none() && facts.runs > facts.runs_max && is_news {
            self.coarse = Some(8);
        }
        self.coarse.filter(|_| !facts.awaits_base)
    }

    pub(super) fn next(&mut self, limits: &Limits, facts: &Facts) -> Action {
        let slack = limits.slack();
        let pressed = matches!(facts.load, Load::Pressed | Load::Offline);
        let at_once = pressed || facts.load == Load::Quiet;
        if !facts.can_punch {
            return Self::without_holes(slack, facts);
        }
        if let Some(class) = Self::punching(limits, facts, at_once) {
            return Action::Punch { class };
        }
        let enough = if pressed { slack / 32 } else { slack / 8 };
        if facts.dying >= enough && facts.dying > 0 {
            return Action::Flush;
        }
        let offline = facts.load == Load::Offline;
        let needed = LOG_HEADER + RECORD * facts.records;
        let allowed =
            if offline { needed + needed / 8 } else { needed + RECORD * facts.records / 2 + slack / 16 };
        if facts.log > allowed {
            return Action::CompactLog;
        }
        if facts.set_aside {
            return Action::Reunite;
        }
        if facts.frozen {
            return Action::Absorb;
        }
        if let Some(least) = self.merging(facts) {
            return Action::Coarsen { least };
        }
        if let Some(least) = self.evacuation(slack, facts, pressed) {
            return Action::Evacuate { least };
        }
        if at_once && facts.dying > 0 { Action::Flush } else { Action::Rest }
    }

    /// The lowest class of ranges to punch now.
    fn punching(limits: &Limits, facts: &Facts, at_once: bool) -> Option<usize> {
        let percent = limits.garbage_percent(&facts.space);
        let mut classes = PUNCHED_FROM.iter().enumerate();
        let (class, _) = classes.find(|(_, from)| at_once || percent >= **from)?;
        let ripe: u64 = facts.ripe[class..].iter().sum();
        let enough = if at_once { 1 } else { limits.slack() / 64 };
        (ripe >= enough.max(1)).then_some(class)
    }

    fn evacuation(&mut self, slack: u64, facts: &Facts, pressed: bool) -> Option<u64> {
        let least = if pressed { 1 } else { 2 };
        if let Some(pass) = &mut self.pass {
            *pass = least.min(*pass);
            return Some(*pass);
        }
        let allowed = if pressed { 0 } else { facts.space.live / 4 + slack / 8 };
        let (worth, news) = if facts.load == Load::Offline { (CRUMBS, 0) } else { (slack / 64, slack / 64) };
        if facts.residue <= allowed.max(worth) {
            return None;
        }
        match self.series.as_mut().filter(|series| series.least <= least) {
            Some(series) if series.died_since(facts) <= news => {
                if !series.goes_on(news, facts) {
                    return None;
                }
                series.last = (facts.evacuated, facts.died);
            }
            _ => self.series = Some(Series::new(least, facts)),
        }
        self.pass = Some(least);
        self.pass
    }

    fn without_holes(slack: u64, facts: &Facts) -> Action {
        let garbage = facts.space.data.saturating_sub(facts.space.live);
        let (garbage, allowed) = match facts.load {
            Load::Offline => (garbage, 0),
            Load::Pressed => (garbage + facts.space.log, slack / 8),
            Load::Busy | Load::Quiet => (garbage + facts.space.log, facts.space.live / 4 + slack / 2),
        };
        if garbage > allowed { Action::CopyAll } else { Action::Rest }
    }
}

#[cfg(test)]
#[expect(clippy::panic, reason = "tests")]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const SECTOR: u64 = 512;
    const SLACK: u64 = 256 << 10;
    const LIMITS: Limits = Limits {
        slack: SLACK,
        max: None,
        runs: None,
        copied_up: 0,
        base_timeout: Duration::ZERO,
        commit_timeout: Duration::ZERO,
    };

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Sector {
        Live(u64),
        Dying,
        Dead,
    }

    /// A disk without bytes: its data file block by block, and the numbers of its log.
    #[derive(Default)]
    struct Model {
        blocks: BTreeMap<u64, Vec<Sector>>,
        map: BTreeMap<u64, (u64, usize)>,
        next: u64,
        records: u64,
        policy: Policy,
        died: u64,
        evacuated: u64,
        throttled: bool,
    }

    impl Model {
        fn count(&self, wanted: impl Fn(&[Sector]) -> usize) -> u64 {
            self.blocks.values().map(|block| wanted(block) as u64).sum::<u64>() * SECTOR
        }

        fn facts(&self, load: Load) -> Facts {
            let count = |of: Sector| move |block: &[Sector]| block.iter().filter(|it| **it == of).count();
            let full = |block: &[Sector]| block.len() == 8 && block.iter().all(|it| *it == Sector::Dead);
            let live = self.map.len() as u64 * SECTOR;
            let log = LOG_HEADER + RECORD * self.records;
            Facts {
                space: Space { live, data: self.count(<[Sector]>::len), log, held: 0 },
                records: self.map.len() as u64,
                runs: 0,
                runs_max: 1,
                copy_room: 0,
                awaits_base: false,
                log,
                dying: self.count(count(Sector::Dying)),
                ripe: [self.count(|block| if full(block) { 8 } else { 0 }), 0, 0, 0],
                residue: self.count(|block| if full(block) { 0 } else { count(Sector::Dead)(block) }),
                died: self.died,
                evacuated: self.evacuated,
                frozen: false,
                set_aside: false,
                can_punch: true,
                load,
            }
        }

        fn append(&mut self, sector: u64) {
            self.kill(sector);
            let block = self.next / 8;
            let slots = self.blocks.entry(block).or_default();
            slots.push(Sector::Live(sector));
            self.map.insert(sector, (block, slots.len() - 1));
            self.next += 1;
            self.records += 1;
        }

        fn kill(&mut self, sector: u64) {
            if let Some((block, slot)) = self.map.remove(&sector) {
                self.blocks.get_mut(&block).unwrap()[slot] = Sector::Dying;
            }
        }

        /// Does the step that the policy chooses; `false` if it chooses none.
        fn step(&mut self, load: Load) -> bool {
            let facts = self.facts(load);
            match self.policy.next(&LIMITS, &facts) {
                Action::Rest => return false,
                Action::Flush => {
                    self.died += facts.dying;
                    let all = self.blocks.values_mut().flatten();
                    all.filter(|it| **it == Sector::Dying).for_each(|it| *it = Sector::Dead);
                }
                Action::Punch { .. } => {
                    let dead =
                        |block: &Vec<Sector>| block.len() == 8 && block.iter().all(|it| *it == Sector::Dead);
                    self.blocks.retain(|_, block| !dead(block));
                }
                Action::CompactLog => self.records = facts.records,
                Action::Evacuate { least } => {
                    let dead = |block: &&Vec<Sector>| {
                        block.iter().filter(|it| **it == Sector::Dead).count() as u64 >= least
                    };
                    let sparse = self.blocks.values().filter(dead).flatten();
                    let moved: Vec<_> = sparse
                        .filter_map(|it| if let Sector::Live(sector) = it { Some(*sector) } else { None })
                        .take(64)
                        .collect();
                    moved.iter().for_each(|sector| self.append(*sector));
                    self.evacuated += moved.len() as u64 * SECTOR;
                    if moved.len() < 64 {
                        self.policy.pass_ended();
                    }
                }
                other => panic!("{other:?}"),
            }
            true
        }

        fn files(&self) -> u64 {
            self.facts(Load::Busy).space.files()
        }

        fn tend(&mut self, load: Load) {
            let steps = (0..100_000).take_while(|_| self.step(load)).count();
            assert!(steps < 100_000, "it never rests");
        }
    }

    /// Facts of a disk with nine dead sectors beside live ones.
    fn sparse(died: u64, evacuated: u64) -> Facts {
        Facts {
            space: Space { live: 64 << 10, data: 80 << 10, log: LOG_HEADER, held: 0 },
            residue: 9 * SECTOR,
            runs_max: 1,
            log: LOG_HEADER,
            can_punch: true,
            load: Load::Offline,
            died,
            evacuated,
            ..Facts::default()
        }
    }

    #[test]
    fn passes_that_leave_as_much_as_they_found_end() {
        let mut policy = Policy::default();
        let began = policy.next(&LIMITS, &sparse(0, 0));
        assert_eq!(began, Action::Evacuate { least: 1 });
        policy.pass_ended();
        let most = (128 << 10) + MOVED_BESIDES;
        assert_eq!(policy.next(&LIMITS, &sparse(0, most - SECTOR)), Action::Evacuate { least: 1 });
        policy.pass_ended();
        assert_eq!(policy.next(&LIMITS, &sparse(most / 2, most)), Action::Rest, "what it moved dies later");
        assert_eq!(policy.next(&LIMITS, &sparse(most, most)), Action::Rest);
        let others = most + SECTOR;
        assert_eq!(policy.next(&LIMITS, &sparse(others, most)), Action::Evacuate { least: 1 });
        policy.pass_ended();
        assert_eq!(policy.next(&LIMITS, &sparse(others, most)), Action::Rest, "nothing was moved");
    }

    #[test]
    fn garbage_is_100_per_cent_where_writes_begin_to_wait() {
        const MIB: u64 = 1 << 20;
        let limits = Limits { slack: 8 * MIB, ..LIMITS };
        for (garbage, percent) in [(LOG_HEADER, 0), (2 * MIB, 25), (8 * MIB, 100), (12 * MIB, 150)] {
            let data = 3 * MIB + garbage - LOG_HEADER;
            let space = Space { live: 2 * MIB, data, log: LOG_HEADER, held: MIB };
            assert_eq!(limits.garbage_percent(&space), percent, "{space:?}");
            assert_eq!(limits.admits(&space, 0, 0), percent <= 100, "{space:?}");
        }
    }

    #[test]
    fn a_step_is_a_small_part_of_the_slack_in_whole_blocks() {
        let slacks =
            [(0, 4096), (300 << 10, 8192), (1 << 20, 32 << 10), (128 << 20, 4 << 20), (1 << 30, 4 << 20)];
        for (slack, step) in slacks {
            assert_eq!(Limits { slack, ..LIMITS }.step(), step);
        }
        assert_eq!(Limits { max: Some(16 << 20), ..Limits::default() }.step(), 256 << 10);
    }

    #[test]
    fn merging_that_did_not_help_is_tried_again_when_there_is_something_new() {
        const RUNS: u64 = 7000;
        let facts = |runs, copy_room| Facts { runs, runs_max: 6400, copy_room, ..sparse(0, 0) };
        let merges = |runs, room, is_told| {
            let mut policy = Policy::default();
            for least in [8, 4, 2] {
                assert_eq!(policy.next(&LIMITS, &facts(RUNS, 0)), Action::Coarsen { least });
                policy.coarse_pass_ended(false, &facts(RUNS, 0));
            }
            if is_told {
                policy.may_merge_again();
            }
            policy.next(&LIMITS, &facts(runs, room)) == Action::Coarsen { least: 8 }
        };
        assert!(!merges(RUNS, 0, false) && merges(RUNS, 0, true));
        // More runs or fewer, by a part of 64.
        assert!(!merges(RUNS + 100, 0, false) && !merges(RUNS - 100, 0, false));
        assert!(merges(RUNS + 101, 0, false) && merges(RUNS - 101, 0, false));
        assert!(!merges(RUNS, WORTH_A_PASS, false) && merges(RUNS, WORTH_A_PASS + 1, false));
        // Never below the limit.
        assert!(merges(6401, 0, false) && !merges(6400, 0, false) && !merges(6400, 0, true));
    }

    /// To the byte: twice the live data and three quarters of the slack, and the limit without an eighth of the slack.
    #[test]
    fn steps_are_admitted_up_to_the_bounds() {
        const MIB: u64 = 1 << 20;
        let limits = Limits { slack: 8 * MIB, max: Some(32 * MIB), ..LIMITS };
        let cases = [
            // Bytes that are live, held, added and killed, and the most bytes of the files after the step.
            (MIB, 0, 4096, 0, 8 * MIB),
            (MIB, MIB, 4096, 0, 9 * MIB),
            (3 * MIB, 0, 0, 2 * MIB, 8 * MIB),
            (20 * MIB, 0, 4096, 0, 31 * MIB),
            // A discard takes no space, so that no limit stops it.
            (20 * MIB, 0, 0, 4096, 46 * MIB - 2 * 4096),
        ];
        for (live, held, added, killed, most) in cases {
            let space = Space { live, data: most - added - LOG_HEADER, log: LOG_HEADER, held };
            assert!(limits.admits(&space, added, killed), "{space:?}");
            let beyond = Space { data: space.data + 1, ..space };
            assert!(!limits.admits(&beyond, added, killed), "{space:?}");
        }
    }

    #[test]
    fn sectors_that_died_are_flushed_before_other_work_once_they_are_many() {
        let loads = [Load::Busy, Load::Quiet, Load::Pressed, Load::Offline];
        for (load, many) in loads.into_iter().zip([SLACK / 8, SLACK / 8, SLACK / 32, SLACK / 32]) {
            let next = |dying| {
                let facts = Facts { load, dying, set_aside: true, ..sparse(0, 0) };
                Policy::default().next(&LIMITS, &facts)
            };
            assert_eq!([many, many - SECTOR].map(next), [Action::Flush, Action::Reunite], "{load:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

        #[test]
        fn bounds_hold_at_any_moment_and_in_quiet(
            writes in vec((0u64..2000, 1u64..40, 0u8..8), 1..400), tends in 0u8..3,
        ) {
            let mut model = Model::default();
            for (number, (start, len, kind)) in writes.into_iter().enumerate() {
                // Runs, single sectors apart from each other, discards.
                let stride = if kind < 3 { 1 } else { 9 };
                for sector in (0..len).map(|n| start + n * stride) {
                    let (added, killed) = if kind == 7 { (0, SECTOR) } else { (SECTOR, 0) };
                    while !LIMITS.admits(&model.facts(Load::Busy).space, added, killed) {
                        model.throttled = true;
                        prop_assert!(model.step(Load::Pressed), "a writer waits for nothing");
                    }
                    if kind == 7 { model.kill(sector) } else { model.append(sector) }
                    model.records += u64::from(kind == 7);
                    let live = model.map.len() as u64 * SECTOR;
                    prop_assert!(model.files() <= 2 * live + SLACK, "{} {live}", model.files());
                }
                if tends == 0 && number % 7 == 0 {
                    model.step(Load::Busy);
                }
            }
            let live = model.map.len() as u64 * SECTOR;
            model.tend(Load::Quiet);
            prop_assert!(model.files() <= live + live / 2 + SLACK);
            model.tend(Load::Offline);
            prop_assert!(model.files() <= live + RECORD * model.map.len() as u64 * 9 / 8 + LOG_HEADER * 2);
        }
    }
}
