//! The meaning of signals that ask a command to stop: those that come together are one request.
//!
//! A second request cuts the command off, and leaves unfinished files behind. One request often comes as several
//! signals, and a burst of them is no second request.

use std::time::{Duration, Instant};

/// The time after a request to stop in which SIGTERM and SIGHUP belong to it. Programs send these, and one request of
/// theirs may be several signals: systemd sends both (`SendSIGHUP=`), coreutils' `timeout` the same one to the process
/// and to its group, a terminal and its shell one each when a session ends. On a busy host such signals are tenths of
/// a second apart. A program that cannot wait for a second sends SIGKILL.
const TOGETHER: Duration = Duration::from_secs(1);

/// The time in which Ctrl-C (SIGINT) belongs to an earlier signal. Programs that pass it on to a process that has it
/// from the terminal already do so within milliseconds. A person who presses it again takes 150 ms at least, and means
/// it.
const ONE_PRESS: Duration = Duration::from_millis(100);

/// The meaning of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// None: the signal belongs to one that came before.
    Nothing,
    /// Ctrl-C, which the command has a meaning of its own for.
    Interrupt,
    /// The command is to stop.
    Stop,
    /// The command was asked before, and is to end at once.
    CutOff,
}

/// Remembers the signals of a command.
#[derive(Debug, Default)]
pub(crate) struct SignalPolicy {
    /// The time of the request to stop.
    asked_at: Option<Instant>,
    /// The time of the last Ctrl-C that was held and counted.
    interrupted_at: Option<Instant>,
}

impl SignalPolicy {
    /// The meaning of a signal that came at `now`: of Ctrl-C if it `is_interrupt`, otherwise of SIGTERM or SIGHUP. With
    /// `is_held`, Ctrl-C is no request to stop.
    pub(crate) fn meaning(&mut self, is_interrupt: bool, is_held: bool, now: Instant) -> Meaning {
        let span = if is_interrupt { ONE_PRESS } else { TOGETHER };
        let belongs_to = |earlier: Option<Instant>| {
            earlier.is_some_and(|earlier| now.saturating_duration_since(earlier) < span)
        };
        if is_interrupt && is_held {
            if belongs_to(self.interrupted_at) {
                return Meaning::Nothing;
            }
            self.interrupted_at = Some(now);
            return Meaning::Interrupt;
        }
        if belongs_to(self.asked_at) {
            Meaning::Nothing
        } else if self.ask(now) {
            Meaning::CutOff
        } else {
            Meaning::Stop
        }
    }

    /// Notes a request to stop at `now`; returns `true` if there was one before.
    pub(crate) fn ask(&mut self, now: Instant) -> bool {
        let was_asked = self.asked_at.is_some();
        self.asked_at.get_or_insert(now);
        was_asked
    }

    /// The time of the request to stop.
    pub(crate) fn asked_at(&self) -> Option<Instant> {
        self.asked_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INT: bool = true;
    /// SIGTERM or SIGHUP.
    const TERM: bool = false;

    /// The meanings of signals at these milliseconds, without a command that holds Ctrl-C.
    fn meanings<const N: usize>(signals: [(u64, bool); N]) -> [Meaning; N] {
        let (mut policy, start) = (SignalPolicy::default(), Instant::now());
        signals
            .map(|(ms, is_interrupt)| policy.meaning(is_interrupt, false, start + Duration::from_millis(ms)))
    }

    #[test]
    fn signals_of_programs_within_a_second_are_one_request() {
        let all = meanings([(0, TERM), (0, TERM), (300, TERM), (999, TERM), (1000, TERM)]);
        assert_eq!(all[0], Meaning::Stop);
        assert_eq!(all[1..4], [Meaning::Nothing; 3]);
        assert_eq!(all[4], Meaning::CutOff);
    }

    #[test]
    fn a_program_that_asks_again_and_again_is_heard_after_a_second() {
        let all = meanings([(0, TERM), (600, TERM), (1200, TERM)]);
        assert_eq!(all, [Meaning::Stop, Meaning::Nothing, Meaning::CutOff]);
    }

    #[test]
    fn a_key_that_is_pressed_again_is_a_second_request() {
        let all = meanings([(0, INT), (3, INT), (99, INT), (150, INT)]);
        assert_eq!(all, [Meaning::Stop, Meaning::Nothing, Meaning::Nothing, Meaning::CutOff]);
        assert_eq!(meanings([(0, TERM), (150, INT)]), [Meaning::Stop, Meaning::CutOff]);
        assert_eq!(meanings([(0, INT), (150, TERM)]), [Meaning::Stop, Meaning::Nothing]);
    }

    #[test]
    fn one_press_of_a_held_key_is_counted_once_and_the_next_one_counts() {
        let (mut policy, start) = (SignalPolicy::default(), Instant::now());
        let pressed = [0, 2, 60, 150, 151].map(|ms| start + Duration::from_millis(ms));
        let all = pressed.map(|now| policy.meaning(INT, true, now));
        let [first, second] = [Meaning::Interrupt, Meaning::Nothing];
        assert_eq!(all, [first, second, second, first, second]);
        // The command stops, and nothing is held any more.
        assert!(!policy.ask(start + Duration::from_millis(180)));
        let after = |ms| start + Duration::from_millis(ms);
        assert_eq!(policy.meaning(INT, false, after(200)), Meaning::Nothing);
        assert_eq!(policy.meaning(INT, false, after(400)), Meaning::CutOff);
    }

    #[test]
    fn a_program_stops_a_command_that_holds_the_key() {
        let (mut policy, start) = (SignalPolicy::default(), Instant::now());
        assert_eq!(policy.meaning(INT, true, start), Meaning::Interrupt);
        assert_eq!(policy.meaning(TERM, true, start), Meaning::Stop);
        assert_eq!(policy.meaning(TERM, true, start), Meaning::Nothing);
    }
}
