//! The messages between the keeper and its clients: one packet each way, with a descriptor or none.
//!
//! ```text
//! question:  version (1), kind (1), length of the name (1), name, state     + a descriptor with `Keep`
//! answer:    version (1), kind (1), state or text                           + a descriptor with `Here`
//! ```

use headstart_block::{Error, Result, saturating};

/// The version of the messages. A keeper outlives the release that it was started from: a new version has to be
/// understood by keepers of this one, which refuse it.
const VERSION: u8 = 1;

/// The most descriptors of a message. There is one; another one, of builds that had two, is closed.
pub(super) const DESCRIPTORS_MAX: usize = 2;

/// The longest name of a disk, in bytes.
pub const NAME_MAX: usize = 64;

/// The longest state of a disk, in bytes.
pub(super) const STATE_MAX: usize = 4096;

/// The longest message, in bytes.
pub(super) const MESSAGE_MAX: usize = 3 + NAME_MAX + STATE_MAX;

/// The wish of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Question<'a> {
    /// Keep the descriptor that comes along for the disk of that name, in place of the one that is kept.
    Keep { name: &'a str, state: &'a [u8] },
    /// Send a duplicate of the descriptor of that disk. It stays kept.
    Take { name: &'a str },
    /// Drop the descriptor of that disk.
    Drop { name: &'a str },
}

/// The answer of the keeper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer<'a> {
    /// The wish is fulfilled.
    Done,
    /// The descriptor comes along, with the state of the disk.
    Here { state: &'a [u8] },
    /// Nothing is kept under that name.
    Nothing,
    /// The wish is refused, and why.
    Refused { why: &'a str },
}

impl<'a> Question<'a> {
    /// The name of the disk.
    pub(super) fn name(&self) -> &'a str {
        match self {
            Self::Keep { name, .. } | Self::Take { name } | Self::Drop { name } => name,
        }
    }

    /// The bytes of the packet.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let (kind, name, state): (u8, &str, &[u8]) = match self {
            Self::Keep { name, state } => (1, name, state),
            Self::Take { name } => (2, name, &[]),
            Self::Drop { name } => (3, name, &[]),
        };
        // A name that is too long gets a length that does not fit, and is refused.
        let len = saturating::<u8>(name.len());
        [&[VERSION, kind, len], name.as_bytes(), state].concat()
    }

    /// Understands a packet.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] for anything else than a question.
    pub(super) fn parse(packet: &'a [u8]) -> Result<Self> {
        let [version, kind, len, rest @ ..] = packet else {
            return Err(Error::invalid("a question to the keeper is too short"));
        };
        if *version != VERSION {
            return Err(Error::invalid(format!("the keeper does not speak version {version}")));
        }
        let Some((name, state)) = rest.split_at_checked(usize::from(*len)) else {
            return Err(Error::invalid("a question to the keeper is too short"));
        };
        let name = std::str::from_utf8(name).ok().filter(|name| is_name(name));
        let name = name.ok_or_else(|| Error::invalid("is not a name of a disk"))?;
        match (kind, state) {
            (1, state) if state.len() <= STATE_MAX => Ok(Self::Keep { name, state }),
            (2, []) => Ok(Self::Take { name }),
            (3, []) => Ok(Self::Drop { name }),
            _ => Err(Error::invalid("the keeper does not understand a question")),
        }
    }
}

impl<'a> Answer<'a> {
    /// The bytes of the packet.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let (kind, rest): (u8, &[u8]) = match self {
            Self::Done => (1, &[]),
            Self::Here { state } => (2, state),
            Self::Nothing => (3, &[]),
            Self::Refused { why } => (4, why.as_bytes()),
        };
        [&[VERSION, kind], rest].concat()
    }

    /// Understands a packet.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] for anything else than an answer.
    pub(super) fn parse(packet: &'a [u8]) -> Result<Self> {
        let wrong = || Error::invalid("the keeper's answer is not understood");
        match packet {
            [VERSION, 1] => Ok(Self::Done),
            [VERSION, 2, state @ ..] if state.len() <= STATE_MAX => Ok(Self::Here { state }),
            [VERSION, 3] => Ok(Self::Nothing),
            [VERSION, 4, why @ ..] => {
                std::str::from_utf8(why).map(|why| Self::Refused { why }).map_err(|_| wrong())
            }
            _ => Err(wrong()),
        }
    }
}

/// `true` for names that an agent gives disks: they are also names of files.
fn is_name(name: &str) -> bool {
    let is_allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    (1..=NAME_MAX).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_round_trip() {
        for question in [
            Question::Keep { name: "vm", state: b"{}" },
            Question::Keep { name: "a-b_c.d", state: b"" },
            Question::Take { name: "vm" },
            Question::Drop { name: &"x".repeat(NAME_MAX) },
        ] {
            assert_eq!(Question::parse(&question.bytes()).unwrap(), question);
            assert!(question.bytes().len() <= MESSAGE_MAX);
        }
        for answer in
            [Answer::Done, Answer::Here { state: b"{}" }, Answer::Nothing, Answer::Refused { why: "no" }]
        {
            assert_eq!(Answer::parse(&answer.bytes()).unwrap(), answer);
        }
    }

    #[test]
    fn names_that_lead_elsewhere_and_messages_that_are_too_long_are_refused() {
        for name in
            ["", ".", "..", ".hidden", "a/b", "a\0b", "ä", &"x".repeat(NAME_MAX + 1), &"x".repeat(300)]
        {
            assert!(Question::parse(&Question::Take { name }.bytes()).is_err(), "{name}");
        }
        let state = vec![0; STATE_MAX + 1];
        assert!(Question::parse(&Question::Keep { name: "vm", state: &state }.bytes()).is_err());
        assert!(Answer::parse(&Answer::Here { state: &state }.bytes()).is_err());
        // A later version is refused with words.
        let mut later = Question::Take { name: "vm" }.bytes();
        later[0] = 2;
        assert!(Question::parse(&later).unwrap_err().to_string().contains("version 2"));
    }

    proptest! {
        #[test]
        fn any_packet_is_understood_or_refused(packet in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(question) = Question::parse(&packet) {
                prop_assert_eq!(question.bytes(), packet.clone());
            }
            if let Ok(answer) = Answer::parse(&packet) {
                prop_assert_eq!(answer.bytes(), packet);
            }
        }
    }
}
