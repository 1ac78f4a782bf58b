//! The hash of names by which large directories are indexed.
//!
//! A directory with an index (see `htree`) has its entries in the order of a hash of their names. Three hashes are in
//! use; the superblock names the one for new directories, and each index names its own:
//!
//! | number | name | |
//! |---|---|---|
//! | 0 | legacy | of the first implementations |
//! | 1 | half MD4 | the usual one: three rounds of eight steps of MD4 |
//! | 2 | TEA | a block cipher, the Tiny Encryption Algorithm, as a compression function |
//!
//! The last two begin with the *seed*, four words of the superblock, or with MD4's own initial state if the seed is
//! zero. A name is taken in parts of 32 bytes (half MD4) or 16 bytes (TEA), which become big-endian words. What is
//! missing in the last part is filled with the number of bytes that are left of the name, in each byte.
//!
//! The C programs that defined these hashes took the bytes of a name as `char`, which has a sign on some machines and
//! none on others. So each hash has two variants, which differ for names with bytes above 127. A flag of the superblock
//! says which one counts for the file system.
//!
//! A hash has two words. The *major* one is the key of the index. Its lowest bit is 0: the index uses that bit for
//! another purpose. The *minor* one orders names with equal major hashes where their order matters.

use headstart_block::{Error, Result, saturating};

/// Number of the hash of the first implementations.
pub(crate) const LEGACY: u8 = 0;
/// Number of the hash by half of MD4.
pub(crate) const HALF_MD4: u8 = 1;
/// Number of the hash by the Tiny Encryption Algorithm.
pub(crate) const TEA: u8 = 2;
/// Number of a hash with four values only, so that tests have equal hashes.
#[cfg(test)]
pub(crate) const COARSE: u8 = 200;

/// The major hash that means the end of a directory to readers; no name may have it.
const END: u32 = 0xffff_fffe;
/// The major hash of names that would have [`END`].
const BEFORE_END: u32 = 0xffff_fffc;
/// The state that MD4 begins with, in place of a seed of zeros.
const INITIAL: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// The hash that a directory is indexed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HashSettings {
    /// Number of the hash: [`LEGACY`], [`HALF_MD4`] or [`TEA`]. Others are taken for [`HALF_MD4`], so
    /// [`HashSettings::with_version`] refuses them before they are used.
    pub(crate) version: u8,
    /// The superblock's seed.
    pub(crate) seed: [u32; 4],
    /// `true` if bytes of names above 127 are positive numbers.
    pub(crate) unsigned: bool,
}

impl HashSettings {
    /// The settings for an index that names hash `version` itself.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Unsupported`] for other numbers than those of the three hashes.
    pub(crate) fn with_version(self, version: u8) -> Result<Self> {
        match version {
            LEGACY | HALF_MD4 | TEA => Ok(Self { version, ..self }),
            #[cfg(test)]
            COARSE => Ok(Self { version, ..self }),
            _ => Err(Error::unsupported(format!(
                "a directory is indexed by hash {version}, which is not known here"
            ))
            .remedy("make the file system without encrypted or case-insensitive directories")),
        }
    }

    /// The major hash of a name. An even number, never 0xfffffffe.
    pub(crate) fn hash(&self, name: &[u8]) -> u32 {
        self.hashes(name).0
    }

    /// The major and the minor hash of a name. The minor one is 0 for the legacy hash.
    fn hashes(&self, name: &[u8]) -> (u32, u32) {
        let (major, minor) = match self.version {
            LEGACY => (self.legacy(name), 0),
            TEA => self.tea(name),
            #[cfg(test)]
            COARSE => (u32::from(name[0] % 4) << 28, 0),
            _ => self.half_md4(name),
        };
        let major = major & !1;
        (if major == END { BEFORE_END } else { major }, minor)
    }

    fn legacy(&self, name: &[u8]) -> u32 {
        let (mut last, mut before) = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
        for &byte in name {
            let mixed = last ^ self.widen(byte).wrapping_mul(7_152_373);
            let mut next = before.wrapping_add(mixed);
            if next & 0x8000_0000 != 0 {
                next = next.wrapping_sub(0x7fff_ffff);
            }
            (last, before) = (next, last);
        }
        last << 1
    }

    fn half_md4(&self, name: &[u8]) -> (u32, u32) {
        let mut state = self.initial();
        for start in (0..name.len()).step_by(32) {
            half_md4_part(&mut state, &self.words(&name[start..]));
        }
        (state[1], state[2])
    }

    fn tea(&self, name: &[u8]) -> (u32, u32) {
        let mut state = self.initial();
        for start in (0..name.len()).step_by(16) {
            tea_part(&mut state, &self.words(&name[start..]));
        }
        (state[0], state[1])
    }

    fn initial(&self) -> [u32; 4] {
        if self.seed == [0; 4] { INITIAL } else { self.seed }
    }

    /// The first `N` words of what is left of a name.
    fn words<const N: usize>(&self, rest: &[u8]) -> [u32; N] {
        let left: u32 = saturating(rest.len());
        let filling = left | left << 8;
        let filling = filling | filling << 16;
        let mut words = [filling; N];
        for (word, bytes) in words.iter_mut().zip(rest.chunks(4)) {
            // With a sign, a byte takes part of the sum away from the bytes before it.
            *word = bytes.iter().fold(filling, |sum, &byte| (sum << 8).wrapping_add(self.widen(byte)));
        }
        words
    }

    /// A byte of a name as a word, with its sign if it has one.
    fn widen(&self, byte: u8) -> u32 {
        if self.unsigned { u32::from(byte) } else { i32::from(byte.cast_signed()).cast_unsigned() }
    }
}

/// One round: eight steps, each of which mixes one word into the state. `order` names the words.
fn round(
    state: &mut [u32; 4],
    words: &[u32; 8],
    order: [usize; 8],
    turns: [u32; 4],
    mix: impl Fn(u32, u32, u32) -> u32,
    constant: u32,
) {
    for (step, word) in order.into_iter().enumerate() {
        let [a, b, c, d] = *state;
        let sum = a.wrapping_add(mix(b, c, d)).wrapping_add(words[word]).wrapping_add(constant);
        *state = [d, sum.rotate_left(turns[step % 4]), b, c];
    }
}

fn half_md4_part(state: &mut [u32; 4], words: &[u32; 8]) {
    let before = *state;
    let choice = |x: u32, y: u32, z: u32| z ^ (x & (y ^ z));
    // A sum, and not an "or", as in MD4: the two never have a bit in common.
    let majority = |x: u32, y: u32, z: u32| (x & y) + ((x ^ y) & z);
    let parity = |x: u32, y: u32, z: u32| x ^ y ^ z;
    round(state, words, [0, 1, 2, 3, 4, 5, 6, 7], [3, 7, 11, 19], choice, 0);
    round(state, words, [1, 3, 5, 7, 0, 2, 4, 6], [3, 5, 9, 13], majority, 0x5a82_7999);
    round(state, words, [3, 7, 2, 6, 1, 5, 0, 4], [3, 9, 11, 15], parity, 0x6ed9_eba1);
    for (word, before) in state.iter_mut().zip(before) {
        *word = word.wrapping_add(before);
    }
}

fn tea_part(state: &mut [u32; 4], words: &[u32; 4]) {
    let [a, b, c, d] = *words;
    let (mut left, mut right, mut sum) = (state[0], state[1], 0_u32);
    let half = |other: u32, sum: u32, up: u32, down: u32| {
        (other << 4).wrapping_add(up) ^ other.wrapping_add(sum) ^ (other >> 5).wrapping_add(down)
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9e37_79b9);
        left = left.wrapping_add(half(right, sum, a, b));
        right = right.wrapping_add(half(left, sum, c, d));
    }
    state[0] = state[0].wrapping_add(left);
    state[1] = state[1].wrapping_add(right);
}

#[cfg(test)]
mod tests;
