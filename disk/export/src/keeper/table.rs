//! The descriptors that are kept: no socket, no clock, any type of descriptor.

use super::wire::Question;
use std::collections::BTreeMap;

/// The result of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome<'a, D> {
    /// The wish is fulfilled.
    Done,
    /// This is kept under that name.
    Here(&'a D, &'a [u8]),
    /// Nothing is kept under that name.
    Nothing,
    /// The wish is refused, and why.
    Refused(&'static str),
}

/// The kept descriptors, by the names of their disks.
#[derive(Debug)]
pub(super) struct Table<D> {
    kept: BTreeMap<String, (D, Box<[u8]>)>,
    /// The most that are kept.
    most: usize,
}

impl<D> Table<D> {
    pub(super) fn new(most: usize) -> Self {
        Self { kept: BTreeMap::new(), most }
    }

    /// Answers a question, with which a descriptor may have come.
    pub(super) fn answer(&mut self, question: &Question<'_>, descriptor: Option<D>) -> Outcome<'_, D> {
        match (question, descriptor) {
            (Question::Keep { name, state }, Some(descriptor)) => {
                if self.kept.len() >= self.most && !self.kept.contains_key(*name) {
                    return Outcome::Refused("it keeps as many as it can");
                }
                self.kept.insert((*name).to_owned(), (descriptor, (*state).into()));
                Outcome::Done
            }
            (Question::Keep { .. }, None) => Outcome::Refused("no descriptor came"),
            (Question::Take { name }, _) => match self.kept.get(*name) {
                Some((descriptor, state)) => Outcome::Here(descriptor, state),
                None => Outcome::Nothing,
            },
            (Question::Drop { name }, _) => match self.kept.remove(*name) {
                Some(_) => Outcome::Done,
                None => Outcome::Nothing,
            },
        }
    }

    /// Drops those that `is_dead`.
    pub(super) fn sweep(&mut self, is_dead: impl Fn(&D) -> bool) {
        self.kept.retain(|_, (descriptor, _)| !is_dead(descriptor));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn a_descriptor_is_kept_taken_any_number_of_times_and_dropped() {
        let mut table = Table::new(2);
        let descriptor = Rc::new(7);
        let keep = Question::Keep { name: "vm", state: b"one" };
        let take = Question::Take { name: "vm" };
        assert_eq!(table.answer(&take, None), Outcome::Nothing);
        assert_eq!(table.answer(&keep, Some(Rc::clone(&descriptor))), Outcome::Done);
        for _ in 0..2 {
            assert_eq!(table.answer(&take, None), Outcome::Here(&descriptor, b"one"));
        }
        assert_eq!(table.answer(&Question::Take { name: "other" }, None), Outcome::Nothing);
        let drop = Question::Drop { name: "vm" };
        assert_eq!(table.answer(&drop, None), Outcome::Done);
        // It is closed, and not only forgotten.
        assert_eq!((Rc::strong_count(&descriptor), table.is_empty()), (1, true));
        assert_eq!(table.answer(&drop, None), Outcome::Nothing);
        assert_eq!(table.answer(&take, None), Outcome::Nothing);
    }

    #[test]
    fn the_next_one_of_a_name_replaces_the_one_before_and_the_number_is_bounded() {
        let mut table = Table::new(2);
        let first = Rc::new(1);
        let keep = |name| Question::Keep { name, state: b"" };
        table.answer(&keep("a"), Some(Rc::clone(&first)));
        table.answer(&keep("b"), Some(Rc::new(2)));
        assert!(matches!(table.answer(&keep("c"), Some(Rc::new(3))), Outcome::Refused(_)));
        assert_eq!(table.answer(&keep("a"), Some(Rc::new(4))), Outcome::Done);
        assert_eq!(Rc::strong_count(&first), 1);
        assert!(matches!(table.answer(&keep("a"), None), Outcome::Refused(_)));
        assert_eq!(table.answer(&Question::Take { name: "a" }, None), Outcome::Here(&Rc::new(4), b""));
        // Room that a dead one leaves is used.
        table.sweep(|descriptor| **descriptor == 2);
        assert_eq!(table.answer(&keep("c"), Some(Rc::new(5))), Outcome::Done);
        assert_eq!(table.answer(&Question::Take { name: "b" }, None), Outcome::Nothing);
    }
}
