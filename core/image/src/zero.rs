//! Finding zeros, so that they cost neither time nor space.

/// The unit in which zeros are looked for: a page, and the block of most file systems.
pub(crate) const BLOCK: usize = 4096;

/// `true` if all bytes are zero.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    // Blocks of data mostly differ early; whole chunks let the compiler compare by vectors.
    let (chunks, rest) = bytes.as_chunks::<256>();
    chunks.iter().all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
        && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_single_byte_anywhere() {
        for len in [0, 1, 255, 256, 257, 4096] {
            let mut bytes = vec![0u8; len];
            assert!(is_zero(&bytes));
            for at in 0..len {
                bytes[at] = 1;
                assert!(!is_zero(&bytes), "{at} of {len}");
                bytes[at] = 0;
            }
        }
    }
}
