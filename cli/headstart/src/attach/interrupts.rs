//! The meaning of Ctrl-C for an attached disk: clients that are connected do not lose it by one key.
//!
//! The user is asked about the clients that are connected at that moment, and about no other: if a client has come
//! since, be it in the place of one that has left, the next Ctrl-C asks again.

use headstart_export::ClientCounts;

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

/// Remembers the clients that the user was asked about.
#[derive(Debug, Default)]
pub(super) struct InterruptPolicy {
    /// [`ClientCounts::ever`] at the last question.
    asked_about: Option<u64>,
}

impl InterruptPolicy {
    /// Returns what to do about `clients`, and if there `was_interrupt` since the last call.
    pub(super) fn answer(&mut self, clients: ClientCounts, was_interrupt: bool) -> Answer {
        if !was_interrupt {
            return Answer::Stay;
        }
        if clients.connected == 0 || self.asked_about == Some(clients.ever) {
            return Answer::Detach;
        }
        self.asked_about = Some(clients.ever);
        Answer::Ask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers to Ctrl-C, pressed at these counts of clients: connected, ever.
    fn answers<const N: usize>(looks: [(usize, u64); N]) -> [Answer; N] {
        let mut policy = InterruptPolicy::default();
        looks.map(|(connected, ever)| policy.answer(ClientCounts { connected, ever }, true))
    }

    #[test]
    fn one_interrupt_detaches_a_disk_without_clients() {
        assert_eq!(answers([(0, 0)]), [Answer::Detach]);
        assert_eq!(answers([(0, 3)]), [Answer::Detach]);
    }

    #[test]
    fn the_second_interrupt_detaches_a_disk_with_clients() {
        let mut policy = InterruptPolicy::default();
        let clients = ClientCounts { connected: 2, ever: 5 };
        let looks = [false, true, false, true];
        let answers = looks.map(|was_interrupt| policy.answer(clients, was_interrupt));
        assert_eq!(answers, [Answer::Stay, Answer::Ask, Answer::Stay, Answer::Detach]);
    }

    #[test]
    fn clients_that_stay_when_another_leaves_are_not_asked_about_again() {
        assert_eq!(answers([(2, 2), (1, 2)]), [Answer::Ask, Answer::Detach]);
    }

    #[test]
    fn the_next_client_is_asked_for_anew() {
        assert_eq!(answers([(1, 1), (1, 2), (1, 2)]), [Answer::Ask, Answer::Ask, Answer::Detach]);
    }

    #[test]
    fn a_client_that_joins_is_asked_for_anew() {
        assert_eq!(answers([(1, 1), (2, 2), (2, 2)]), [Answer::Ask, Answer::Ask, Answer::Detach]);
    }
}
