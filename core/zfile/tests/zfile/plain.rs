//! A slow, plain reader of ZFiles, made from the notes on the format alone.
//!
//! It shares no code with the crate: bytes are sliced, checksums go bit by bit, and frames are decompressed
//! by codecs written in Rust. What the crate writes must read the same here.

/// A ZFile taken apart.
#[derive(Debug)]
pub(crate) struct PlainZFile {
    pub(crate) header: PlainPart,
    pub(crate) trailer: PlainPart,
    pub(crate) entries: Vec<u32>,
    pub(crate) content: Vec<u8>,
}

/// Fields of a header or trailer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlainPart {
    pub(crate) size: u32,
    pub(crate) digest: u32,
    pub(crate) flags: u64,
    pub(crate) index_offset: u64,
    pub(crate) index_size: u64,
    pub(crate) original_file_size: u64,
    pub(crate) index_crc: u32,
    pub(crate) block_size: u32,
    pub(crate) algo: u8,
    pub(crate) level: u8,
    pub(crate) use_dict: u8,
    pub(crate) dict_size: u32,
    pub(crate) verify: u8,
}

impl PlainPart {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        assert_eq!(bytes.len(), 512);
        assert_eq!(&bytes[..24], b"ZFile\0\x01\0tuji.yyf@Alibaba");
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let part = Self {
            size: u32_at(24),
            digest: u32_at(28),
            flags: u64_at(32),
            index_offset: u64_at(40),
            index_size: u64_at(48),
            original_file_size: u64_at(56),
            index_crc: u32_at(64),
            block_size: u32_at(72),
            algo: bytes[76],
            level: bytes[77],
            use_dict: bytes[78],
            dict_size: u32_at(84),
            verify: bytes[88],
        };
        if part.flags & 16 != 0 {
            let mut blank = bytes.to_vec();
            blank[28..32].fill(0);
            assert_eq!(crc32c(0, &blank), part.digest, "digest");
        }
        part
    }
}

impl PlainZFile {
    /// Takes `blob` apart; panics where it is not as the notes say.
    pub(crate) fn parse(blob: &[u8]) -> Self {
        let header = PlainPart::parse(&blob[..512]);
        let trailer = PlainPart::parse(&blob[blob.len() - 512..]);
        assert_eq!(header.flags & 3, 3);
        assert_eq!(trailer.flags & 7, 6);
        // The fields that count: the header's where it says so, otherwise the trailer's.
        let used = if header.flags & 8 != 0 { &header } else { &trailer };
        let index_at = usize::try_from(used.index_offset).unwrap();
        let index = &blob[index_at..index_at + 4 * usize::try_from(used.index_size).unwrap()];
        if used.flags & 16 != 0 {
            assert_eq!(crc32c(0, index), used.index_crc, "index crc");
        }
        let entries: Vec<u32> =
            index.chunks(4).map(|entry| u32::from_le_bytes(entry.try_into().unwrap())).collect();
        let mut content = Vec::new();
        let mut at = 512;
        for entry in &entries {
            let frame = &blob[at..at + *entry as usize];
            at += frame.len();
            content.extend(decode_frame(used, frame));
            assert!(content.len().is_multiple_of(used.block_size as usize) || at == index_at);
        }
        assert_eq!(at, index_at, "frames end where the index starts");
        assert_eq!(content.len() as u64, used.original_file_size);
        assert_eq!(index_at + index.len() + 512, blob.len(), "nothing between index and trailer");
        Self { header, trailer, entries, content }
    }
}

fn decode_frame(part: &PlainPart, frame: &[u8]) -> Vec<u8> {
    let packed = match part.verify {
        0 => frame,
        _ => {
            let (packed, crc) = frame.split_at(frame.len() - 4);
            assert_eq!(crc32c(100_007, packed).to_le_bytes(), crc, "frame crc");
            packed
        }
    };
    match part.algo {
        1 => lz4_flex::block::decompress(packed, part.block_size as usize).unwrap(),
        2 => {
            let mut out = Vec::with_capacity(part.block_size as usize + 1);
            ruzstd::decoding::FrameDecoder::new().decode_all_to_vec(packed, &mut out).unwrap();
            out
        }
        other => panic!("codec {other}"),
    }
}

/// CRC-32C without the usual inversions, bit by bit.
pub(crate) fn crc32c(start: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(start, |register, byte| {
        (0..8).fold(register ^ u32::from(*byte), |r, _| r >> 1 ^ if r & 1 == 1 { 0x82f6_3b78 } else { 0 })
    })
}

/// Reproducible bytes without pattern.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Reproducible bytes, some of which compress well, some badly and some not at all.
pub(crate) fn mixed(seed: u64, len: usize) -> Vec<u8> {
    let dice = noise(seed, len / 512 + 8);
    let mut bytes = Vec::with_capacity(len + 4096);
    for (i, die) in dice.iter().enumerate() {
        let run = 64 + usize::from(*die) * 8;
        match die % 4 {
            0 => bytes.extend(std::iter::repeat_n(0, run)),
            1 => bytes.extend(noise(seed + i as u64, run)),
            2 => bytes.extend((0..run).map(|k| b"the quick brown fox "[k % 20] ^ (k / 97).to_le_bytes()[0])),
            _ => bytes.extend(noise(seed, run).iter().map(|byte| byte & 0x13)),
        }
        if bytes.len() >= len {
            break;
        }
    }
    bytes.resize(len, 0x5a);
    bytes
}
