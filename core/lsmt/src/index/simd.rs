//! The two counts of a search in the instructions that the CPU has.
//!
//! The only `unsafe` code of the index is here: loading an array into registers, and calling a function that
//! needs instructions of which [`Simd::is_available`] knows that they exist.

use super::WINDOW;
use super::search::{NODE, Search};
use crate::Segment;

/// The SIMD instructions that a lookup uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simd {
    /// 512-bit registers and masks: 16 keys in two comparisons, 8 segments in one.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 256-bit registers: 16 keys in four comparisons, 8 segments in two.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The instructions that the compiler makes of plain Rust; every CPU has them.
    Portable,
}

impl Simd {
    /// All variants that exist on the architecture of this build, fastest first. The CPU may lack some.
    pub const ALL: &[Self] = &[
        #[cfg(target_arch = "x86_64")]
        Self::Avx512,
        #[cfg(target_arch = "x86_64")]
        Self::Avx2,
        Self::Portable,
    ];

    /// The fastest variant that the CPU supports.
    #[must_use]
    pub fn best() -> Self {
        Self::ALL.iter().copied().find(|simd| simd.is_available()).unwrap_or(Self::Portable)
    }

    /// `true` if the CPU supports the instructions.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => is_x86_feature_detected!("avx512dq") && Self::Avx2.is_available(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("bmi2")
                    && is_x86_feature_detected!("popcnt")
            }
            Self::Portable => true,
        }
    }

    /// [`Search::find`] with these instructions, which must be available: [`Index`](super::Index) keeps to it.
    #[inline]
    pub(super) fn find(self, search: &Search, padded: &[Segment], start: u64) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an index holds only what is_available() said yes to.
            Self::Avx512 => unsafe { x86::find_avx512(search, padded, start) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Avx2 => unsafe { x86::find_avx2(search, padded, start) },
            Self::Portable => find_portable(search, padded, start),
        }
    }
}

/// The comparison `a <= b`, as 1 or 0, for numbers below 2^63: the sign of a difference, which every vector
/// instruction set has, where comparing 64-bit numbers is missing from SSE2.
#[inline(always)]
fn at_most(a: u64, b: u64) -> u64 {
    a.wrapping_sub(b + 1) >> (u64::BITS - 1)
}

#[inline(never)]
fn find_portable(search: &Search, padded: &[Segment], start: u64) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "at most the number of sectors counted")]
    fn count(sectors: impl Iterator<Item = u64>, start: u64) -> usize {
        sectors.map(|sector| at_most(sector, start)).sum::<u64>() as usize
    }
    search.find(
        padded,
        start,
        |keys, start| count(keys.iter().copied(), start),
        |segments, start| count(segments.iter().map(|segment| segment.end()), start),
    )
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    #![expect(clippy::cast_possible_wrap, reason = "sector numbers are below 2^51 and their masks as well")]

    use std::arch::x86_64::*;

    use super::*;
    use crate::segment::OFFSET_BITS;

    /// Mask of the offset in the first word of a segment.
    const OFFSET_MASK: i64 = Segment::PADDING_OFFSET as i64;

    // Without the byte masks of DQ this takes a quarter longer.
    #[target_feature(enable = "avx512dq,bmi2,popcnt")]
    pub(super) fn find_avx512(search: &Search, padded: &[Segment], start: u64) -> usize {
        search.find(
            padded,
            start,
            |keys, start| {
                let start = _mm512_set1_epi64(start as i64);
                let [low, high] = load_avx512(keys);
                let counts = [low, high].map(|keys| _mm512_cmple_epi64_mask(keys, start).count_ones());
                (counts[0] + counts[1]) as usize
            },
            |segments, start| {
                let [low, high] = load_avx512(segments);
                let even = _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0);
                let words = _mm512_permutex2var_epi64(low, even, high);
                let offsets = _mm512_and_si512(words, _mm512_set1_epi64(OFFSET_MASK));
                let ends = _mm512_add_epi64(offsets, _mm512_srli_epi64::<OFFSET_BITS>(words));
                _mm512_cmple_epi64_mask(ends, _mm512_set1_epi64(start as i64)).count_ones() as usize
            },
        )
    }

    #[target_feature(enable = "avx2,bmi2,popcnt")]
    pub(super) fn find_avx2(search: &Search, padded: &[Segment], start: u64) -> usize {
        search.find(
            padded,
            start,
            |keys, start| {
                let next = _mm256_set1_epi64x(start as i64 + 1);
                let [a, b, c, d] = load_avx2(keys).map(|keys| _mm256_cmpgt_epi64(next, keys));
                // A key's 64 equal bits are packed to 16, in any order, which are two bits of the mask.
                let packed = _mm256_packs_epi32(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
                _mm256_movemask_epi8(packed).count_ones() as usize / 2
            },
            |segments, start| {
                let next = _mm256_set1_epi64x(start as i64 + 1);
                let count = |low, high| {
                    let words = _mm256_unpacklo_epi64(low, high);
                    let offsets = _mm256_and_si256(words, _mm256_set1_epi64x(OFFSET_MASK));
                    let ends = _mm256_add_epi64(offsets, _mm256_srli_epi64::<{ OFFSET_BITS as i32 }>(words));
                    _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(next, ends))).count_ones()
                };
                let [a, b, c, d] = load_avx2(segments);
                (count(a, b) + count(c, d)) as usize
            },
        )
    }

    /// 128 bytes in two registers.
    #[inline]
    #[target_feature(enable = "avx512dq")]
    fn load_avx512<T: Plain>(items: &T) -> [__m512i; 2] {
        let from = (&raw const *items).cast::<__m512i>();
        // SAFETY: Plain promises 128 bytes, and the load asks for no alignment.
        unsafe { [_mm512_loadu_si512(from), _mm512_loadu_si512(from.add(1))] }
    }

    /// 128 bytes in four registers.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn load_avx2<T: Plain>(items: &T) -> [__m256i; 4] {
        let from = (&raw const *items).cast::<__m256i>();
        // SAFETY: Plain promises 128 bytes, and the load asks for no alignment.
        unsafe {
            [
                _mm256_loadu_si256(from),
                _mm256_loadu_si256(from.add(1)),
                _mm256_loadu_si256(from.add(2)),
                _mm256_loadu_si256(from.add(3)),
            ]
        }
    }

    /// A type that may be loaded into registers as it is.
    ///
    /// # Safety
    /// The type is 128 bytes long, all of them initialised.
    unsafe trait Plain {}

    // SAFETY: 16 numbers of 8 bytes.
    unsafe impl Plain for [u64; NODE] {}
    // SAFETY: 8 segments of two 8-byte words, which `repr(C)` keeps in order and without gaps.
    unsafe impl Plain for [Segment; WINDOW] {}

    const _: () = assert!(size_of::<[u64; NODE]>() == 128 && size_of::<[Segment; WINDOW]>() == 128);
}
