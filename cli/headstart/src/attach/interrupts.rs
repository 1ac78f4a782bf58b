//! The meaning of Ctrl-C for an attached disk: clients that are connected do not lose it by one key.
//!
//! Clients are counted at each look, every 50 ms. A change of all clients between two looks is not noticed: the user is
//! not asked again.

/// The answer to what was pressed since the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The disk goes on.
    Stay,
    /// The disk goes on, and the user is told that clients are connected.
    Ask,
    /// The disk is detached.
    Detach,
}

/// Remembers whether the user was asked about the clients that are connected. Once none is, the next client gets a
/// question of its own.
#[derive(Debug, Default)]
pub(super) struct InterruptPolicy {
    has_asked: bool,
}

impl InterruptPolicy {
    /// Returns what to do if `clients` are connected, and if there `was_interrupt` since the last call.
    pub(super) fn answer(&mut self, clients: usize, was_interrupt: bool) -> Answer {
        self.has_asked &= clients > 0;
        if !was_interrupt {
            return Answer::Stay;
        }
        if clients == 0 || self.has_asked {
            return Answer::Detach;
        }
        self.has_asked = true;
        Answer::Ask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_interrupt_detaches_a_disk_without_clients() {
        assert_eq!(InterruptPolicy::default().answer(0, true), Answer::Detach);
    }

    #[test]
    fn the_second_interrupt_detaches_a_disk_with_clients() {
        let mut policy = InterruptPolicy::default();
        let looks = [(1, false), (1, true), (2, false), (2, true)];
        let answers = looks.map(|(clients, was_interrupt)| policy.answer(clients, was_interrupt));
        assert_eq!(answers, [Answer::Stay, Answer::Ask, Answer::Stay, Answer::Detach]);
    }

    #[test]
    fn the_next_client_is_asked_for_anew() {
        let mut policy = InterruptPolicy::default();
        assert_eq!(policy.answer(1, true), Answer::Ask);
        assert_eq!(policy.answer(0, false), Answer::Stay);
        assert_eq!(policy.answer(1, true), Answer::Ask);
        assert_eq!(policy.answer(1, true), Answer::Detach);
    }
}
