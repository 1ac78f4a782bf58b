//! Datagrams that only hosts of the cluster can make or read.
//!
//! ```text
//! 0    1   version, 1
//! 1    12  nonce, drawn
//! 13   ..  sealed by AES-256-GCM-SIV under the cluster's gossip key, with the version as associated data
//!          0  1  part, 0 of 1 (0x01), 0 of 2 (0x02) or 1 of 2 (0x12)
//!          1  8  the number of its message, drawn
//!          9  .. the message
//! ..   16  tag
//! ```
//!
//! The nonce is drawn, because hosts share only the key; the cipher is one that a repeated nonce does not break. The
//! library fills a datagram to the last byte, so a message that does not fit any more goes in two. Without security,
//! the sealed part is plain and there is no tag.

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use headstart_block::{Error, ErrorKind, Result};
use parking_lot::RwLock;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Most bytes of a datagram.
pub(super) const DATAGRAM: usize = 65_507;

const VERSION: u8 = 1;
const TAG: usize = 16;
const PART_HEAD: usize = 9;

/// Bytes of a message that fit into a datagram.
const ROOM: usize = DATAGRAM - 1 - NONCE_LEN - PART_HEAD - TAG;

/// Halves of messages whose other half has not come, at most.
const HALVES_MAX: usize = 64;

/// Seals and opens datagrams.
pub(crate) struct Seal {
    keys: RwLock<Keys>,
}

/// The gossip keys that are valid.
struct Keys {
    /// The key that seals; `None` without security.
    current: Option<([u8; 32], LessSafeKey)>,
    /// The key before, for datagrams of hosts that do not know the current one yet.
    previous: Option<LessSafeKey>,
}

fn usable(key: [u8; 32]) -> Result<LessSafeKey> {
    let key = UnboundKey::new(&AES_256_GCM_SIV, &key).map(LessSafeKey::new);
    key.map_err(|_| Error::new(ErrorKind::Invalid, "the gossip key cannot be used"))
}

/// A part of a message.
pub(super) struct Part {
    /// The index of the part, and the number of parts.
    index: u8,
    count: u8,
    message: u64,
    bytes: Vec<u8>,
}

impl Seal {
    pub(crate) fn new(key: Option<[u8; 32]>) -> Result<Self> {
        let current = key.map(|key| Ok::<_, Error>((key, usable(key)?))).transpose()?;
        Ok(Self { keys: RwLock::new(Keys { current, previous: None }) })
    }

    /// Seals by another key from now on, and opens datagrams of either key. Returns `false` if it is the same key.
    ///
    /// # Errors
    /// If it cannot be used.
    pub(crate) fn rekey(&self, key: [u8; 32]) -> Result<bool> {
        let new = usable(key)?;
        let mut keys = self.keys.write();
        if keys.current.as_ref().is_some_and(|(current, _)| *current == key) {
            return Ok(false);
        }
        keys.previous = keys.current.replace((key, new)).map(|(_, previous)| previous);
        Ok(true)
    }

    /// Opens only datagrams that are sealed by the current key.
    pub(crate) fn give_up_previous(&self) {
        self.keys.write().previous = None;
    }

    /// The datagrams that carry a message: one, or two if it does not fit.
    pub(crate) fn seal(&self, message: &[u8]) -> Option<Vec<Vec<u8>>> {
        let mut drawn = [0; 8];
        aws_lc_rs::rand::fill(&mut drawn).ok()?;
        if message.len() <= ROOM {
            return Some(vec![self.seal_part(0x01, drawn, message)?]);
        }
        if message.len() > 2 * ROOM {
            return None;
        }
        let (head, tail) = message.split_at(ROOM);
        Some(vec![self.seal_part(0x02, drawn, head)?, self.seal_part(0x12, drawn, tail)?])
    }

    fn seal_part(&self, part: u8, message: [u8; 8], bytes: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        aws_lc_rs::rand::fill(&mut nonce).ok()?;
        let mut sealed = Vec::with_capacity(PART_HEAD + bytes.len() + TAG);
        sealed.push(part);
        sealed.extend_from_slice(&message);
        sealed.extend_from_slice(bytes);
        let keys = self.keys.read();
        if let Some((_, key)) = &keys.current {
            let nonce = Nonce::assume_unique_for_key(nonce);
            key.seal_in_place_append_tag(nonce, Aad::from([VERSION]), &mut sealed).ok()?;
        }
        let mut datagram = Vec::with_capacity(1 + NONCE_LEN + sealed.len());
        datagram.push(VERSION);
        datagram.extend_from_slice(&nonce);
        datagram.append(&mut sealed);
        Some(datagram)
    }

    /// Opens a datagram; `None` if no host of the cluster made it.
    pub(super) fn open(&self, datagram: &mut [u8]) -> Option<Part> {
        let (head, sealed) = datagram.split_at_mut_checked(1 + NONCE_LEN)?;
        let (version, nonce) = head.split_first()?;
        if *version != VERSION {
            return None;
        }
        let keys = self.keys.read();
        let mut again = keys.previous.as_ref().map(|_| sealed.to_vec());
        let opened = match &keys.current {
            None => sealed,
            Some((_, key)) => {
                let opened = open_by(key, nonce, sealed);
                match (opened, &keys.previous, &mut again) {
                    (Some(opened), ..) => opened,
                    (None, Some(previous), Some(again)) => open_by(previous, nonce, again)?,
                    _ => return None,
                }
            }
        };
        let (head, bytes) = opened.split_at_checked(PART_HEAD)?;
        let (part, message) = head.split_first()?;
        let message = u64::from_le_bytes(message.try_into().ok()?);
        let (index, count) = (part >> 4, part & 0xf);
        let fits = (1..=2).contains(&count) && index < count;
        fits.then(|| Part { index, count, message, bytes: bytes.to_vec() })
    }
}

fn open_by<'a>(key: &LessSafeKey, nonce: &[u8], sealed: &'a mut [u8]) -> Option<&'a mut [u8]> {
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    key.open_in_place(nonce, Aad::from([VERSION]), sealed).ok()
}

/// The message that a part completes. A half waits for the other one.
pub(super) fn whole(
    halves: &mut VecDeque<(SocketAddr, Part)>,
    from: SocketAddr,
    part: Part,
) -> Option<Vec<u8>> {
    if part.count == 1 {
        return Some(part.bytes);
    }
    let is_other = |(sender, half): &(SocketAddr, Part)| {
        *sender == from && half.message == part.message && half.index != part.index
    };
    let Some((_, other)) = halves.iter().position(is_other).and_then(|at| halves.remove(at)) else {
        if halves.len() >= HALVES_MAX {
            halves.pop_front();
        }
        halves.push_back((from, part));
        return None;
    };
    let (mut head, tail) =
        if part.index == 0 { (part.bytes, other.bytes) } else { (other.bytes, part.bytes) };
    head.extend_from_slice(&tail);
    Some(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_the_key_changes_both_are_opened_and_the_earlier_one_seals_nothing() {
        let [ours, earlier, later] = [1, 1, 2].map(|key| Seal::new(Some([key; 32])).unwrap());
        let opens = |seal: &Seal, by: &Seal| {
            let mut datagram = by.seal(b"hello").unwrap().remove(0);
            seal.open(&mut datagram).is_some_and(|part| part.bytes == b"hello")
        };
        assert!(opens(&ours, &earlier) && !opens(&ours, &later));
        assert!(ours.rekey([2; 32]).unwrap() && !ours.rekey([2; 32]).unwrap());
        assert!(opens(&ours, &earlier) && opens(&ours, &later));
        assert!(opens(&later, &ours) && !opens(&earlier, &ours));
        ours.give_up_previous();
        assert!(!opens(&ours, &earlier) && opens(&ours, &later));
    }

    #[test]
    fn only_who_has_the_key_opens() {
        let seal = Seal::new(Some([1; 32])).unwrap();
        for len in [0, 1, 1000, 65_000, 65_507, 100_000] {
            let message: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let datagrams = seal.seal(&message).unwrap();
            assert!(datagrams.iter().all(|datagram| datagram.len() <= DATAGRAM));
            let from = SocketAddr::from(([127, 0, 0, 1], 1));
            let mut halves = VecDeque::new();
            let mut came = None;
            // The parts come in the wrong order, too.
            for mut datagram in datagrams.into_iter().rev() {
                let mut wrong = datagram.clone();
                assert!(Seal::new(Some([2; 32])).unwrap().open(&mut wrong).is_none());
                let mut flipped = datagram.clone();
                if let Some(last) = flipped.last_mut() {
                    *last ^= 1;
                }
                assert!(seal.open(&mut flipped).is_none());
                came = whole(&mut halves, from, seal.open(&mut datagram).unwrap());
            }
            assert_eq!(came.as_deref(), Some(&message[..]));
        }
        assert!(seal.open(&mut []).is_none());
        assert!(seal.open(&mut [1; 40]).is_none());
    }
}
