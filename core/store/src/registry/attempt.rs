//! [`Attempt`]: the credentials of one request, tried one after the other: pure, without I/O.
//!
//! There may be several credentials for a repository: those that pulls offer, those that a registry has accepted, and
//! those of docker's configuration. Each of them may be wrong or lack the right, and must not hide the others. So a
//! request is denied only when each has been refused to it:
//!
//! | shown | refused | what follows |
//! |---|---|---|
//! | a password | once | the next credential |
//! | a token, bought with a credential | for the first time | a new token for the same: the old one may have run out |
//! | | again | the next credential |
//! | a credential, to a token server | once | the next credential |
//!
//! Requests share nothing of this: one that begins while another is refused tries what it finds by itself. A request to
//! which a credential was refused fetches further tokens for itself, beside the one that all use. The first that the
//! registry takes comes into its place, unless the registry has taken that one, too.

use super::credential::Credential;

/// The credentials that one request shows at most, whatever a file has: more than one repository ever has.
const CREDENTIALS_MOST: usize = 16;

/// The credentials that were refused to one request.
#[derive(Clone, Debug, Default)]
pub(super) struct Attempt {
    refused: Vec<Credential>,
    /// The credentials of which one token was refused.
    renewed: Vec<Credential>,
    /// The tokens that were refused, by their generations.
    tokens: Vec<u64>,
    /// `true` once the registry has asked for another scheme.
    has_changed_scheme: bool,
}

impl Attempt {
    /// Notes that a credential was refused.
    pub(super) fn refuse(&mut self, credential: &Credential) {
        if !self.has_refused(credential) {
            self.refused.push(credential.clone());
        }
    }

    /// Notes that a token of a generation was refused that this credential has bought.
    pub(super) fn refuse_token_of(&mut self, credential: &Credential, generation: u64) {
        self.tokens.push(generation);
        if self.renewed.iter().any(|it| it.is_same(credential)) {
            self.refuse(credential);
        } else {
            self.renewed.push(credential.clone());
        }
    }

    /// `true` if a credential was refused: what such a request fetches is of use to few others.
    pub(super) fn has_refusals(&self) -> bool {
        !self.refused.is_empty()
    }

    /// `true` if the request may not show a token of this generation any more, which a credential has bought.
    pub(super) fn has_refused_token(&self, credential: &Credential, generation: u64) -> bool {
        self.tokens.contains(&generation) || self.has_refused(credential)
    }

    /// `true` if the request may not show this credential any more.
    pub(super) fn has_refused(&self, credential: &Credential) -> bool {
        self.refused.len() >= CREDENTIALS_MOST || self.refused.iter().any(|it| it.is_same(credential))
    }

    /// The credential to show next; `None` if all were refused. A password comes first with `by_password`.
    pub(super) fn next<'a>(&self, all: &'a [Credential], by_password: bool) -> Option<&'a Credential> {
        let left = || all.iter().filter(|credential| !self.has_refused(credential));
        let password = left().find(|credential| credential.is_password());
        password.filter(|_| by_password).or_else(|| left().next())
    }

    /// `true` the first time that the registry asks for another scheme: what was shown before says nothing then.
    pub(super) fn takes_new_scheme(&mut self) -> bool {
        !std::mem::replace(&mut self.has_changed_scheme, true)
    }
}

#[cfg(test)]
mod tests {
    use super::super::credential::Secret;
    use super::*;
    use proptest::prelude::*;

    fn password(number: usize) -> Credential {
        Credential::Password("u".to_owned(), Secret::new(&number.to_string()))
    }

    /// The way in which a registry takes a credential.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Taken {
        Well,
        /// The first token has run out, or is refused for a reason that passes.
        AtSecond,
        /// The token server knows the user, and the registry refuses its tokens.
        ByTokenServerAlone,
        No,
    }

    /// One request: what it shows, and whether it is let in.
    fn request(all: &[Credential], taken: &[Taken], is_bearer: bool) -> (Vec<usize>, bool) {
        let (mut attempt, mut shown) = (Attempt::default(), Vec::new());
        while let Some(credential) = attempt.next(all, !is_bearer) {
            let at = all.iter().position(|it| it == credential).unwrap();
            shown.push(at);
            assert!(shown.len() <= 2 * all.len(), "it ends: {shown:?}");
            let tries = shown.iter().filter(|it| **it == at).count();
            match (taken[at], is_bearer) {
                (Taken::Well, _) => return (shown, true),
                (Taken::AtSecond, true) if tries == 2 => return (shown, true),
                (Taken::AtSecond | Taken::ByTokenServerAlone, true) => {
                    attempt.refuse_token_of(credential, shown.len() as u64);
                }
                (_, _) => attempt.refuse(credential),
            }
        }
        (shown, false)
    }

    #[test]
    fn what_is_shown_after_each_answer() {
        use Taken::{AtSecond, ByTokenServerAlone as Alone, No, Well};
        let cases: [(&[Taken], bool, &[usize], bool); 9] = [
            (&[Well], true, &[0], true),
            (&[Alone, Well], true, &[0, 0, 1], true),
            (&[Alone, No, AtSecond], true, &[0, 0, 1, 2, 2], true),
            (&[No, Alone], true, &[0, 1, 1], false),
            (&[Well], false, &[0], true),
            (&[No, No, No, Well], false, &[0, 1, 2, 3], true),
            (&[Alone, AtSecond], false, &[0, 1], false),
            (&[], true, &[], false),
            (&[], false, &[], false),
        ];
        for (taken, is_bearer, shown, is_let_in) in cases {
            let all: Vec<_> = (0..taken.len()).map(password).collect();
            let is = request(&all, taken, is_bearer);
            assert_eq!(is, (shown.to_vec(), is_let_in), "{taken:?} {is_bearer}");
        }
    }

    #[test]
    fn a_password_comes_before_what_cannot_be_shown_as_one() {
        let all = [Credential::Identity(Secret::new("t")), password(1), Credential::Nothing(None)];
        let mut attempt = Attempt::default();
        assert_eq!(attempt.next(&all, true), Some(&all[1]));
        assert_eq!(attempt.next(&all, false), Some(&all[0]));
        attempt.refuse(&all[1]);
        attempt.refuse(&Credential::Nothing(Some("a helper that hangs".to_owned())));
        assert_eq!(attempt.next(&all, true), Some(&all[0]));
        attempt.refuse(&all[0]);
        assert_eq!(attempt.next(&all, true), None);
        assert!(attempt.takes_new_scheme() && !attempt.takes_new_scheme());
    }

    /// Two requests whose tokens take each other's place.
    #[test]
    fn tokens_of_two_credentials_by_turns_are_no_way_round_the_table() {
        let (mut attempt, all) = (Attempt::default(), [password(0), password(1)]);
        for (generation, credential) in [(1, &all[0]), (2, &all[1]), (3, &all[0])] {
            assert!(
                !attempt.has_refused_token(credential, generation) && !attempt.has_refusals(),
                "{generation}"
            );
            attempt.refuse_token_of(credential, generation);
            assert!(attempt.has_refused_token(credential, generation));
        }
        assert!(attempt.has_refusals() && attempt.has_refused_token(&all[0], 4));
        assert!(attempt.has_refused_token(&all[1], 2) && !attempt.has_refused_token(&all[1], 4));
        attempt.refuse_token_of(&all[1], 4);
        assert_eq!(attempt.next(&all, false), None);
    }

    #[test]
    fn a_file_with_new_credentials_at_each_look_does_not_hold_a_request_for_ever() {
        let mut attempt = Attempt::default();
        let mut number = 0;
        while let Some(credential) = attempt.next(&[password(number)], true).cloned() {
            attempt.refuse(&credential);
            number += 1;
        }
        assert_eq!(number, CREDENTIALS_MOST);
    }

    proptest! {
        #[test]
        fn a_request_is_denied_only_when_each_credential_was_refused(
            taken in prop::collection::vec(
                prop::sample::select(vec![Taken::Well, Taken::AtSecond, Taken::ByTokenServerAlone, Taken::No]), 0..12
            ),
            is_bearer: bool,
        ) {
            let all: Vec<_> = (0..taken.len()).map(password).collect();
            let (shown, is_let_in) = request(&all, &taken, is_bearer);
            let is_right = |taken: &Taken| *taken == Taken::Well || is_bearer && *taken == Taken::AtSecond;
            prop_assert_eq!(is_let_in, taken.iter().any(is_right));
            let tried: std::collections::BTreeSet<_> = shown.into_iter().collect();
            let first = taken.iter().position(is_right).map_or(all.len(), |at| at + 1);
            prop_assert_eq!(tried, (0..first).collect());
        }
    }
}
