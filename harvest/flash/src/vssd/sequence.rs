//! Writes that follow each other: only those may fill a data block in place.

/// Streams watched at a time.
const STREAMS: usize = 8;
/// Pages that a stream may be ahead of itself or behind: writes in flight overtake each other.
const WINDOW: u32 = 64;
/// Pages after which a stream counts as one.
const ENOUGH: u32 = 16;

/// The streams written last.
#[derive(Clone, Debug, Default)]
pub(super) struct Sequence {
    streams: [Stream; STREAMS],
    clock: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    next: u32,
    run: u32,
    used: u64,
}

impl Sequence {
    /// Takes a write of a page; `true` if it continues earlier writes.
    pub(super) fn saw(&mut self, page: u32) -> bool {
        self.clock += 1;
        let near = |stream: &&mut Stream| stream.run > 0 && stream.next.abs_diff(page) <= WINDOW;
        if let Some(stream) = self.streams.iter_mut().find(near) {
            stream.run = stream.run.saturating_add(1);
            stream.next = stream.next.max(page.saturating_add(1));
            stream.used = self.clock;
            return stream.run >= ENOUGH;
        }
        if let Some(oldest) = self.streams.iter_mut().min_by_key(|stream| stream.used) {
            *oldest = Stream { next: page.saturating_add(1), run: 1, used: self.clock };
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::random::Random;

    #[test]
    fn streams_are_told_from_noise() {
        let (mut sequence, mut random) = (Sequence::default(), Random::new(1));
        let mut found = [0; 3];
        for step in 0..1000 {
            found[0] += usize::from(sequence.saw(step));
            found[1] += usize::from(sequence.saw(1_000_000 + (step ^ 3)));
            found[2] += usize::from(sequence.saw(u32::try_from(random.below(1 << 31)).unwrap() | 1 << 31));
        }
        assert_eq!(found, [985, 985, 0]);
    }
}
