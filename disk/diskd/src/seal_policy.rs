//! Decides which data is sealed ahead of a commit, and when: without a clock, a file or a thread.
//!
//! Data is *cold* once it has been on the disk for a while. What is sealed and overwritten later is *waste*: bytes in
//! the layer that no reader asks for. The policy waits longer as soon as there is much waste, gives a layer up that has
//! too much, and never takes more than two thirds of the time while clients write.

use headstart_lsmt::writable::{SealPass, SealedShare};
use std::collections::VecDeque;
use std::time::Duration;

/// The age at which data counts as cold, at first.
const AGE_MIN: Duration = Duration::from_millis(1000);

/// The age at which data counts as cold at the most.
const AGE_MAX: Duration = Duration::from_secs(64);

/// Bytes that are sealed at once: a commit waits for no more.
const PASS_BYTES: u64 = 8 << 20;

/// Bytes that have to be cold for a pass, unless they have been for [`AGE_MIN`].
const WORTH_A_PASS: u64 = 4 << 20;

/// Waste of which a layer may have one part for so many parts that show: 10%.
const WASTE_PARTS: u64 = 10;

/// Waste with which a layer is not given up in any case: sealing as much again costs nothing.
const WASTE_FREE: u64 = 4 << 20;

/// Bytes that are left to the file system. With less, the layer is given up.
const FREE_MIN: u64 = 512 << 20;

/// The pause after an error, or after the file system was full.
const PAUSE: Duration = Duration::from_secs(60);

/// Bytes that a commit may have to seal itself: it has to be done before its client gives up.
const REST_MAX: u64 = 2 << 30;

/// The facts at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SealFacts {
    /// The time since the beginning.
    pub(crate) now: Duration,
    /// Bytes that the disk's files took up since the beginning.
    pub(crate) written: u64,
    /// Bytes of data in the layer.
    pub(crate) stored: u64,
    /// Bytes that the file system has free.
    pub(crate) free: u64,
}

/// The next thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SealAction {
    /// Nothing at present.
    Rest,
    /// Seal up to `most` bytes of data that was there at the time `cold`.
    Pass { cold: Duration, most: u64 },
    /// Give the layer up.
    Discard,
}

/// The state of the decisions about one disk.
#[derive(Debug)]
pub(crate) struct SealPolicy {
    age: Duration,
    /// Bytes written by certain times, oldest first: those that may still be the last before data counts as cold.
    written: VecDeque<(Duration, u64)>,
    /// Bytes that were written by the time up to which the last pass sealed.
    sealed_to: u64,
    /// `true` if the last pass left cold data, or none was made.
    has_left: bool,
    /// Bytes of the layer that show on the disk, as of the last pass.
    showing: u64,
    /// `true` if the age was raised because of this layer already.
    is_warned: bool,
    /// The end of the last pass.
    last: Duration,
    /// No pass before this.
    not_before: Duration,
    /// Bytes that were written by the end of the last pass.
    written_then: u64,
}

impl SealPolicy {
    pub(crate) fn new() -> Self {
        Self {
            age: AGE_MIN,
            written: VecDeque::new(),
            sealed_to: 0,
            has_left: true,
            showing: 0,
            is_warned: false,
            last: Duration::ZERO,
            not_before: AGE_MIN,
            written_then: 0,
        }
    }

    /// The oldest time that a later pass may ask for.
    pub(crate) fn oldest(&self) -> Duration {
        self.written.front().map_or(Duration::ZERO, |(time, _)| *time)
    }

    pub(crate) fn next(&mut self, facts: &SealFacts) -> SealAction {
        self.note(facts);
        if facts.free < FREE_MIN {
            self.not_before = facts.now + PAUSE;
            return if facts.stored > 0 { self.discard() } else { SealAction::Rest };
        }
        let waste = facts.stored.saturating_sub(self.showing);
        if waste > WASTE_FREE.max(self.showing / WASTE_PARTS) {
            // What is overwritten so soon must not be sealed so soon.
            self.age = (self.age * 2).min(AGE_MAX);
            self.not_before = facts.now + self.age;
            return self.discard();
        }
        if waste > WASTE_FREE.max(self.showing / WASTE_PARTS) / 2 && !self.is_warned {
            self.is_warned = true;
            self.age = (self.age * 2).min(AGE_MAX);
        }
        let Some((cold, written)) = self.cold(facts.now).filter(|_| facts.now >= self.not_before) else {
            return SealAction::Rest;
        };
        let fresh = written.saturating_sub(self.sealed_to);
        let is_due = fresh >= WORTH_A_PASS || fresh > 0 && facts.now >= self.last + AGE_MIN;
        if !self.has_left && !is_due {
            return SealAction::Rest;
        }
        self.sealed_to = written;
        SealAction::Pass { cold, most: PASS_BYTES }
    }

    /// Notes what a pass did that was begun at the time `began`.
    pub(crate) fn passed(&mut self, began: Duration, facts: &SealFacts, pass: &SealPass) {
        self.has_left = pass.left_bytes > 0;
        self.showing = pass.share.sealed_bytes;
        // While clients write, a third of the time is theirs.
        let is_busy = facts.written > self.written_then;
        let rest = if is_busy { facts.now.saturating_sub(began) / 2 } else { Duration::ZERO };
        (self.last, self.not_before, self.written_then) = (facts.now, facts.now + rest, facts.written);
    }

    /// Notes that the layer was lost by an error.
    pub(crate) fn failed(&mut self, now: Duration) {
        self.discard();
        self.not_before = now + PAUSE;
    }

    /// Notes that a commit took the layer: the next one begins once there is something new.
    pub(crate) fn taken(&mut self, facts: &SealFacts) {
        self.discard();
        (self.has_left, self.age) = (false, AGE_MIN);
        self.written.retain(|(_, written)| *written >= facts.written);
        self.sealed_to = facts.written;
    }

    /// `true` if a commit that finds `share` of its data in a layer with `stored` bytes is to complete that layer.
    pub(crate) fn is_worth_completing(share: SealedShare, stored: u64) -> bool {
        let waste = stored.saturating_sub(share.sealed_bytes);
        waste <= share.sealed_bytes / WASTE_PARTS && share.unsealed_bytes <= REST_MAX
    }

    fn discard(&mut self) -> SealAction {
        (self.showing, self.has_left, self.is_warned, self.sealed_to) = (0, true, false, 0);
        SealAction::Discard
    }

    fn note(&mut self, facts: &SealFacts) {
        if self.written.back().is_none_or(|(_, written)| *written < facts.written) {
            self.written.push_back((facts.now, facts.written));
        }
        // One at or before the time that counts as cold is kept, and one that may count later.
        while self.written.get(1).is_some_and(|(time, _)| *time + AGE_MAX <= facts.now) {
            self.written.pop_front();
        }
    }

    /// The last noted time whose data is cold, and the bytes that were written by then.
    fn cold(&self, now: Duration) -> Option<(Duration, u64)> {
        self.written.iter().rev().find(|(time, _)| *time + self.age <= now).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const TICK: Duration = Duration::from_millis(100);

    /// A disk of blocks of 1 MiB: for each, the time of its last write and the place that it was written to.
    #[derive(Default)]
    struct SimDisk {
        blocks: BTreeMap<u8, (Duration, u64)>,
        /// Places in the layer.
        sealed: BTreeMap<u64, ()>,
        written: u64,
        now: Duration,
        discards: Vec<Duration>,
        appended: u64,
    }

    impl SimDisk {
        fn facts(&self, free: u64) -> SealFacts {
            let stored = (self.sealed.len() as u64) << 20;
            SealFacts { now: self.now, written: self.written << 20, stored, free }
        }

        fn write(&mut self, block: u8) {
            self.written += 1;
            self.blocks.insert(block, (self.now, self.written));
        }

        fn share(&self) -> SealedShare {
            let sealed =
                self.blocks.values().filter(|(_, place)| self.sealed.contains_key(place)).count() as u64;
            SealedShare {
                sealed_bytes: sealed << 20,
                unsealed_bytes: (self.blocks.len() as u64 - sealed) << 20,
            }
        }

        /// Does what the policy decides; returns whether it did anything.
        fn tick(&mut self, policy: &mut SealPolicy, free: u64) -> bool {
            self.now += TICK;
            let facts = self.facts(free);
            match policy.next(&facts) {
                SealAction::Rest => false,
                SealAction::Discard => {
                    assert!(facts.stored > 0);
                    self.sealed.clear();
                    self.discards.push(self.now);
                    true
                }
                SealAction::Pass { cold, most } => {
                    assert!(free >= FREE_MIN && cold + AGE_MIN <= self.now && cold >= policy.oldest());
                    let cold: Vec<_> = self
                        .blocks
                        .values()
                        .filter(|(time, place)| *time <= cold && !self.sealed.contains_key(place))
                        .map(|(_, place)| *place)
                        .collect();
                    let taken = cold.len().min((most >> 20) as usize);
                    self.sealed.extend(cold[..taken].iter().map(|place| (*place, ())));
                    self.appended += taken as u64;
                    let left_bytes = ((cold.len() - taken) as u64) << 20;
                    let pass =
                        SealPass { share: self.share(), appended_bytes: (taken as u64) << 20, left_bytes };
                    policy.passed(self.now, &self.facts(free), &pass);
                    true
                }
            }
        }
    }

    proptest! {
        /// Each step is a number of ticks, then writes to some blocks; few blocks make much waste.
        #[test]
        fn seals_all_that_stays_and_wastes_little(
            steps in vec((0u32..30, vec(any::<u8>(), 0..12), 1u8..=255), 0..80),
            full in vec(any::<bool>(), 0..80),
        ) {
            let (mut disk, mut policy) = (SimDisk::default(), SealPolicy::new());
            for (number, (ticks, writes, blocks)) in steps.iter().enumerate() {
                let is_full = full.get(number).copied().unwrap_or(false) && number % 5 == 0;
                for _ in 0..*ticks {
                    let _ = disk.tick(&mut policy, if is_full { FREE_MIN - 1 } else { FREE_MIN });
                    prop_assert!(!is_full || disk.sealed.is_empty());
                }
                writes.iter().for_each(|block| disk.write(block % blocks));
            }
            // Layers are given up ever more rarely: each one makes the next wait longer.
            let spans: Vec<_> = disk.discards.windows(2).map(|pair| pair[1] - pair[0]).collect();
            prop_assert!(spans.iter().all(|span| *span >= AGE_MIN), "{spans:?}");
            // Once nothing is written any more, all is sealed, with no more waste than a commit takes.
            for _ in 0..5_000 {
                let _ = disk.tick(&mut policy, FREE_MIN);
            }
            let share = disk.share();
            prop_assert_eq!(share.unsealed_bytes, 0);
            let waste = disk.facts(FREE_MIN).stored - share.sealed_bytes;
            prop_assert!(waste <= WASTE_FREE.max(share.sealed_bytes / WASTE_PARTS));
            // Then it rests.
            let appended = disk.appended;
            for _ in 0..1_000 {
                prop_assert!(!disk.tick(&mut policy, FREE_MIN));
            }
            prop_assert_eq!(disk.appended, appended);
        }

        /// A commit completes a layer only if little of it is waste.
        #[test]
        fn a_layer_that_is_completed_has_little_waste(
            sealed_bytes in 0u64..1 << 40, unsealed_bytes in 0u64..1 << 40, waste in 0u64..1 << 38,
        ) {
            let share = SealedShare { sealed_bytes, unsealed_bytes };
            if SealPolicy::is_worth_completing(share, sealed_bytes + waste) {
                prop_assert!(waste * 10 <= sealed_bytes);
                prop_assert!(unsealed_bytes <= 2 << 30);
            }
        }
    }

    #[test]
    fn data_that_is_written_over_all_the_time_is_sealed_ever_more_rarely() {
        let (mut disk, mut policy) = (SimDisk::default(), SealPolicy::new());
        // 40 MiB every two seconds, for ten minutes.
        for _ in 0..300 {
            (0..40).for_each(|block| disk.write(block));
            for _ in 0..20 {
                let _ = disk.tick(&mut policy, u64::MAX);
            }
        }
        assert!(disk.discards.len() < 4, "{:?}", disk.discards);
        assert!(disk.appended < disk.written / 50, "{} of {}", disk.appended, disk.written);
    }

    #[test]
    fn after_a_commit_it_waits_for_new_data() {
        let (mut disk, mut policy) = (SimDisk::default(), SealPolicy::new());
        (0..40).for_each(|block| disk.write(block));
        while disk.share().unsealed_bytes > 0 {
            let _ = disk.tick(&mut policy, u64::MAX);
        }
        disk.sealed.clear();
        policy.taken(&disk.facts(u64::MAX));
        for _ in 0..1_000 {
            assert!(!disk.tick(&mut policy, u64::MAX));
        }
        disk.write(100);
        while disk.share().unsealed_bytes > 0 {
            let _ = disk.tick(&mut policy, u64::MAX);
        }
    }
}
