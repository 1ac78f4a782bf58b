//! The frame checksum by carry-less multiplication of whole registers, without a branch on the odd bytes.
//!
//! A raw CRC that starts from 0 does not see zeros in front of the data, and a start value is the same as
//! xoring it into the first four bytes. So the frame is taken as if zeros stood before it that fill it up
//! to a multiple of 256 bytes: the first registers are shifted, the start value is xored in from a
//! table at the place where the data begin, and all that follows are whole blocks of four registers.
//! (Loading the bytes before the frame and masking it out would be simpler, but waits for a cache line that
//! no other code needs: 100 ns.)
//!
//! Folding moves a register `d` bits on: `x * x^d mod P`, its halves being multiplied on their own. With
//! reflected bits a product comes out one bit off, hence the odd exponents in [`fold_by`].

use super::FRAME_SEED;
use std::arch::x86_64::{
    __m512i, _mm_crc32_u64, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_xor_si128, _mm512_clmulepi64_epi128,
    _mm512_extracti32x4_epi32, _mm512_loadu_si512, _mm512_maskz_permutexvar_epi8, _mm512_set_epi64,
    _mm512_setzero_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512,
};

/// Bytes of a register and of a block of four.
const REGISTER: usize = 64;
const BLOCK: usize = 4 * REGISTER;

/// The start value, with one block of zeros before it and zeros behind it.
static SEED_AT: [u8; 2 * BLOCK + REGISTER] = {
    let mut table = [0; 2 * BLOCK + REGISTER];
    let seed = FRAME_SEED.to_le_bytes();
    let mut i = 0;
    while i < seed.len() {
        table[BLOCK + i] = seed[i];
        i += 1;
    }
    table
};

/// The numbers from 0 to 63, with 64 zeros before them.
static NUMBER_AT: [u8; 2 * REGISTER] = {
    let mut table = [0; 2 * REGISTER];
    let mut i = 0u8;
    while (i as usize) < REGISTER {
        table[REGISTER + i as usize] = i;
        i += 1;
    }
    table
};

/// The checksum of a frame; `None` where the CPU cannot or the frame is too short to gain from it.
pub(super) fn of_frame(packed: &[u8]) -> Option<u32> {
    let able = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vbmi")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("sse4.2");
    if !able || packed.len() <= BLOCK {
        return None;
    }
    // SAFETY: the CPU has what the function needs.
    Some(unsafe { folded(packed) })
}

/// `x^n mod P`, reflected.
const fn power(n: u32) -> i64 {
    let mut value = 1u32 << 31;
    let mut i = 0;
    while i < n {
        value = value >> 1 ^ if value & 1 == 1 { 0x82f6_3b78 } else { 0 };
        i += 1;
    }
    value as i64
}

/// Multipliers that move the low and the high half of 128 bits on by `bits`.
const fn fold_by(bits: u32) -> (i64, i64) {
    (power(bits + 31), power(bits - 33))
}

#[target_feature(enable = "avx512f")]
fn everywhere((low, high): (i64, i64)) -> __m512i {
    _mm512_set_epi64(high, low, high, low, high, low, high, low)
}

/// The first 64 bytes.
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8]) -> __m512i {
    let bytes = &bytes[..REGISTER];
    // SAFETY: reads the 64 bytes of `bytes`.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// `x`, moved on by the multipliers `k`, plus `next`.
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold(x: __m512i, k: __m512i, next: __m512i) -> __m512i {
    let low = _mm512_clmulepi64_epi128(x, k, 0x00);
    let high = _mm512_clmulepi64_epi128(x, k, 0x11);
    // 0x96: the xor of all three.
    _mm512_ternarylogic_epi64(low, high, next, 0x96)
}

/// The checksum of a frame of more than a block.
#[target_feature(enable = "avx512f,avx512vbmi,vpclmulqdq,sse4.2")]
fn folded(packed: &[u8]) -> u32 {
    // `zeros` zero bytes come before the frame, which fill its first bytes up to a whole block.
    let zeros = packed.len().wrapping_neg() % BLOCK;
    let blocks = &packed[BLOCK - zeros..];
    let seed = |register: usize| load(&SEED_AT[BLOCK - zeros + register * REGISTER..]);
    let first = |register: usize| {
        // Of this register's bytes, as many are among the zeros, and the others begin there in the frame.
        let shift = zeros.saturating_sub(register * REGISTER).min(REGISTER);
        let from = (register * REGISTER).saturating_sub(zeros);
        #[expect(clippy::cast_possible_truncation, reason = "at most 64")]
        let mask = u64::MAX.checked_shl(shift as u32).unwrap_or(0);
        let data =
            _mm512_maskz_permutexvar_epi8(mask, load(&NUMBER_AT[REGISTER - shift..]), load(&packed[from..]));
        _mm512_xor_si512(data, seed(register))
    };
    let mut x = [first(0), first(1), first(2), first(3)];
    // The part of the start value that falls behind the first block, if that has only 1 to 3 bytes of the frame.
    let mut rest_of_seed = seed(4);
    let k = everywhere(const { fold_by(2048) });
    for block in blocks.chunks_exact(BLOCK) {
        for (register, x) in x.iter_mut().enumerate() {
            *x = fold(*x, k, load(&block[register * REGISTER..]));
        }
        x[0] = _mm512_xor_si512(x[0], rest_of_seed);
        rest_of_seed = _mm512_setzero_si512();
    }
    // The four are 64 bytes apart: move each on to the last.
    let last = fold(x[2], everywhere(const { fold_by(512) }), x[3]);
    let last = fold(x[1], everywhere(const { fold_by(1024) }), last);
    reduce(fold(x[0], everywhere(const { fold_by(1536) }), last))
}

/// The register of the CRC after the last 64 bytes.
#[target_feature(enable = "avx512f,vpclmulqdq,sse4.2")]
fn reduce(x: __m512i) -> u32 {
    // Move the first three quarters on to the fourth, which stays.
    const K: [(i64, i64); 3] = [fold_by(384), fold_by(256), fold_by(128)];
    let k = _mm512_set_epi64(0, 0, K[2].1, K[2].0, K[1].1, K[1].0, K[0].1, K[0].0);
    let moved = fold(x, k, _mm512_setzero_si512());
    let quarters = _mm_xor_si128(
        _mm_xor_si128(_mm512_extracti32x4_epi32(moved, 0), _mm512_extracti32x4_epi32(moved, 1)),
        _mm_xor_si128(_mm512_extracti32x4_epi32(moved, 2), _mm512_extracti32x4_epi32(x, 3)),
    );
    let crc = _mm_crc32_u64(0, _mm_cvtsi128_si64(quarters).cast_unsigned());
    #[expect(clippy::cast_possible_truncation, reason = "the instruction gives 32 bits")]
    (_mm_crc32_u64(crc, _mm_extract_epi64(quarters, 1).cast_unsigned()) as u32)
}
