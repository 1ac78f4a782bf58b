//! The index in memory: the place of each frame in the blob.
//!
//! On disk the index lists compressed lengths; a reader needs positions, that is, running sums. Sums of
//! 64 bits would double the index, and images of 4 KiB frames have millions of them, so a sum is kept as
//! a `u32` counted from the start of its group of 4096 frames, and each group's start as a `u64`: 4.002
//! bytes a frame, and one addition to find a frame.

use headstart_block::{Error, Result};
use std::ops::Range;

/// Frames of a group, a power of two. A group takes at most 4096 x (2 x 64 KiB + 4 KiB) = 528 MiB, which
/// a `u32` holds (see [`frame_len_max`]).
const GROUP: usize = 1 << GROUP_BITS;
const GROUP_BITS: u32 = 12;

/// Longest frame as stored that a reader takes. Both codecs stay far below it, even where nothing
/// compresses; a longer one is damage, and would make a reader's scratch memory grow.
pub(crate) fn frame_len_max(frame_size: u32) -> u32 {
    2 * frame_size + 4096
}

/// Positions of all frames.
#[derive(Debug)]
pub(crate) struct Index {
    /// The offset of each group of frames in the blob.
    groups: Vec<u64>,
    /// The offset of each frame from its group's start; one entry more than frames.
    starts: Vec<u32>,
    /// The offset of the next frame.
    end: u64,
}

impl Index {
    /// An index that will get `frames` frames, the first at `start`. The caller has checked the number
    /// against the size of the blob.
    pub(crate) fn with_capacity(frames: usize, start: u64) -> Self {
        let mut index = Self {
            groups: Vec::with_capacity((frames >> GROUP_BITS) + 1),
            starts: Vec::with_capacity(frames + 1),
            end: start,
        };
        index.push_start();
        index
    }

    /// Adds a frame of `len` bytes as stored.
    pub(crate) fn push(&mut self, len: u32) -> Result<()> {
        self.end =
            self.end.checked_add(u64::from(len)).ok_or_else(|| Error::corrupt("index sums overflow"))?;
        self.push_start();
        Ok(())
    }

    fn push_start(&mut self) {
        if self.starts.len().is_multiple_of(GROUP) {
            self.groups.push(self.end);
        }
        // The last group is this frame's own. The difference fits as long as frames keep to their bound.
        let group = self.groups.last().copied().unwrap_or(self.end);
        debug_assert!(self.end - group <= u64::from(u32::MAX));
        #[expect(clippy::cast_possible_truncation, reason = "see GROUP")]
        self.starts.push((self.end - group) as u32);
    }

    /// Number of frames.
    pub(crate) fn frames(&self) -> usize {
        self.starts.len() - 1
    }

    /// The end of the last frame.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The offset of frame `frame` or, one past the last, the end of the last.
    ///
    /// # Panics
    /// Past that.
    pub(crate) fn start(&self, frame: usize) -> u64 {
        self.groups[frame >> GROUP_BITS] + u64::from(self.starts[frame])
    }

    /// The place of `frames` in the blob.
    pub(crate) fn place(&self, frames: Range<usize>) -> Range<u64> {
        self.start(frames.start)..self.start(frames.end)
    }

    /// The longest run of frames from the first of `frames` on that takes at most `bytes_max` bytes, but
    /// at least one frame.
    pub(crate) fn run(&self, frames: Range<usize>, bytes_max: u64) -> Range<usize> {
        let limit = self.start(frames.start).saturating_add(bytes_max);
        if self.start(frames.end) <= limit {
            return frames;
        }
        let (mut fits, mut too_far) = (frames.start + 1, frames.end);
        while fits + 1 < too_far {
            let middle = fits.midpoint(too_far);
            if self.start(middle) <= limit { fits = middle } else { too_far = middle }
        }
        frames.start..fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_right_across_groups() {
        let frames = 3 * GROUP + 5;
        let mut index = Index::with_capacity(frames, 512);
        let mut positions = vec![512];
        for frame in 0..frames {
            let len = u32::try_from(frame % 1000 + 1).unwrap() * 135;
            index.push(len).unwrap();
            positions.push(positions[frame] + u64::from(len));
        }
        assert_eq!(index.frames(), frames);
        assert_eq!((0..=frames).map(|i| index.start(i)).collect::<Vec<_>>(), positions);
        assert_eq!(index.end(), positions[frames]);
        for (from, bytes_max) in [(0, 0), (0, 5000), (100, 1 << 20), (4000, 1 << 20), (frames - 3, 1 << 30)] {
            let run = index.run(from..frames, bytes_max);
            let place = index.place(run.clone());
            assert!(run.len() == 1 || place.end - place.start <= bytes_max, "{from} {bytes_max}");
            assert!(run.end == frames || index.start(run.end + 1) - place.start > bytes_max);
        }
    }

    #[test]
    fn a_group_of_the_longest_frames_fits() {
        let longest = frame_len_max(65536);
        assert!((longest as u64) * (GROUP as u64) < u64::from(u32::MAX));
    }

    #[test]
    fn sums_past_u64_are_an_error() {
        let mut index = Index::with_capacity(1, u64::MAX - 3);
        assert!(index.push(4).is_err());
    }
}
