//! The merged view: one sorted table for a whole stack of layers (DADI section 3.2, Algorithm 2).
//!
//! DADI's recursion walks the top layer and descends into the layer below for each of its holes. Overlaying
//! is associative, though: laying A over B and the result over C gives what A over (B over C) gives. So the
//! stack is folded like a knock-out tournament: neighbouring layers in pairs, then neighbouring pairs, each
//! by one linear pass over two sorted tables ([`overlay`]). Every segment takes part in at most ⌈log2 n⌉
//! passes: O(M log n) for M segments in n layers, whatever their sizes, and at most 8 levels of recursion.
//!
//! A zeroed run is a run like any other here: it hides what is below it and stays in the result, because
//! the result may itself become the upper side of another overlay. Runs that are side by side on the disk
//! and in the same layer's file are joined as they are written, so cutting a run in two never leaves two.

use crate::Segment;

/// The largest number of layers that a merged view can have: the layer number of a segment has eight bits,
/// and the format reserves one value.
pub const MAX_LAYERS: usize = 255;

/// Merges the segments of `layers`, lowest layer first, into one view of the disk: each sector comes from the
/// topmost layer that has a segment for it.
///
/// The segments of each layer must be sorted by their offset on the disk and must not overlap. The segments of the
/// result are sorted and do not overlap either. Each carries the position of its layer in `layers`
/// ([`Segment::layer`]). Segments that continue each other ([`Segment::is_continued_by`]) are joined, up to
/// [`Segment::MAX_LEN`].
///
/// # Panics
/// If there are more than [`MAX_LAYERS`] layers.
#[must_use]
pub fn merge(layers: &[&[Segment]]) -> Vec<Segment> {
    assert!(layers.len() <= MAX_LAYERS, "a stack of {} layers: more than {MAX_LAYERS}", layers.len());
    merge_from(0, layers)
}

/// Merges `layers`, the lowest of which is number `first` of the stack.
fn merge_from(first: usize, layers: &[&[Segment]]) -> Vec<Segment> {
    match *layers {
        [] => Vec::new(),
        [layer] => {
            #[expect(clippy::cast_possible_truncation, reason = "merge() takes at most 255 layers")]
            let tag = first as u8;
            let mut out = Vec::with_capacity(layer.len());
            layer.iter().for_each(|segment| push(&mut out, segment.with_layer(tag)));
            out
        }
        _ => {
            let (lower, upper) = layers.split_at(layers.len() / 2);
            overlay(&merge_from(first + lower.len(), upper), &merge_from(first, lower))
        }
    }
}

/// Merges two lists of segments in one pass, and returns the result in the order of the disk. Where both lists cover a
/// sector, `upper` counts; the hidden parts of `lower` are left out. Each list must be sorted by the offset on the
/// disk, and its segments must not overlap each other. Segments keep their layer numbers; those that continue each
/// other are joined, as by `merge`.
#[must_use]
pub fn overlay(upper: &[Segment], lower: &[Segment]) -> Vec<Segment> {
    let mut out = Vec::with_capacity(upper.len() + lower.len());
    let mut rest = lower.iter().copied();
    // The first lower segment of which some part, this part, may still show.
    let mut low = rest.next();
    for &top in upper {
        while let Some(segment) = low.filter(|segment| segment.end() <= top.offset()) {
            push(&mut out, segment);
            low = rest.next();
        }
        if let Some(segment) = low.filter(|segment| segment.offset() < top.offset()) {
            push(&mut out, segment.clip(segment.offset(), top.offset()));
        }
        push(&mut out, top);
        while low.is_some_and(|segment| segment.end() <= top.end()) {
            low = rest.next();
        }
        // Here the segment ends behind `top`, so the rest of it is not empty.
        low = low.map(|segment| segment.clip(top.end(), segment.end()));
    }
    low.into_iter().chain(rest).for_each(|segment| push(&mut out, segment));
    out
}

/// Appends `next`, joined to the last segment where that is one run with it.
fn push(out: &mut Vec<Segment>, next: Segment) {
    match out.last_mut() {
        Some(last) if last.is_continued_by(next) && last.len() + next.len() <= Segment::MAX_LEN => {
            *last = last.lengthened(next.len());
        }
        _ => out.push(next),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// The content of one sector of the disk: its layer, then the sector of the layer's file unless zeroed.
    type Owner = Option<(u8, Option<u64>)>;

    /// The disk sector by sector, painted layer by layer.
    fn paint(disk: &mut [Owner], layer: u8, segments: &[Segment]) {
        for segment in segments {
            for sector in segment.offset()..segment.end() {
                let at = segment.moffset() + sector - segment.offset();
                disk[usize::try_from(sector).unwrap()] = Some((layer, (!segment.is_zeroed()).then_some(at)));
            }
        }
    }

    fn owners(segments: &[Segment], sectors: usize) -> Vec<Owner> {
        let mut disk = vec![None; sectors];
        segments.iter().for_each(|&segment| paint(&mut disk, segment.layer(), &[segment]));
        disk
    }

    fn is_sorted_and_joined(segments: &[Segment]) -> bool {
        segments.windows(2).all(|pair| {
            pair[0].end() <= pair[1].offset()
                && !(pair[0].is_continued_by(pair[1]) && pair[0].len() + pair[1].len() <= Segment::MAX_LEN)
        }) && segments.iter().all(|segment| segment.len() > 0)
    }

    /// A layer from (gap, length, zeroed) steps; data is mapped in order, so neighbours may join.
    fn layer(steps: &[(u64, u64, bool)]) -> Vec<Segment> {
        let (mut offset, mut moffset) = (0, 8);
        let mut segments = Vec::new();
        for &(gap, len, zeroed) in steps {
            let make = if zeroed { Segment::zeroed } else { Segment::data };
            let segment = make(offset + gap, len, moffset).with_layer(77);
            (offset, moffset) = (segment.end(), segment.mend());
            segments.push(segment);
        }
        segments
    }

    proptest! {
        #[test]
        fn the_top_layer_wins_every_sector(
            layers in vec(vec((prop_oneof![Just(0), 0u64..12], 1u64..9, any::<bool>()), 0..12), 0..9)
        ) {
            let layers: Vec<_> = layers.iter().map(|steps| layer(steps)).collect();
            let mut disk = vec![None; 256];
            for (number, segments) in layers.iter().enumerate() {
                paint(&mut disk, u8::try_from(number).unwrap(), segments);
            }
            let views: Vec<_> = layers.iter().map(Vec::as_slice).collect();
            let merged = merge(&views);
            prop_assert_eq!(owners(&merged, disk.len()), disk);
            prop_assert!(is_sorted_and_joined(&merged), "{:?}", merged);
        }
    }

    #[test]
    fn no_layers_and_empty_layers_give_an_empty_view() {
        assert_eq!(merge(&[]), []);
        assert_eq!(merge(&[&[], &[], &[]]), []);
    }

    #[test]
    fn tags_on_disk_are_overwritten() {
        let only = [Segment::data(5, 3, 8).with_layer(200)];
        assert_eq!(merge(&[&[], &only]), [Segment::data(5, 3, 8).with_layer(1)]);
    }

    #[test]
    fn runs_join_up_to_the_longest_that_a_segment_names() {
        let half = Segment::MAX_LEN / 2;
        let run = [
            Segment::data(0, half, 8),
            Segment::data(half, Segment::MAX_LEN - half, 8 + half),
            Segment::data(Segment::MAX_LEN, 1, 8 + Segment::MAX_LEN),
        ];
        let joined = [Segment::data(0, Segment::MAX_LEN, 8), run[2]];
        assert_eq!(merge(&[&run]), joined);
    }

    #[test]
    fn a_full_stack_of_the_most_layers_merges() {
        // Layer i covers [i, 1000 - i): nested, so every layer shows at both its edges.
        let layers: Vec<_> = (0..MAX_LAYERS as u64).map(|i| [Segment::data(i, 1000 - 2 * i, 8)]).collect();
        let views: Vec<_> = layers.iter().map(|layer| &layer[..]).collect();
        let merged = merge(&views);
        assert_eq!(merged.len(), 2 * MAX_LAYERS - 1);
        assert!(
            merged
                .iter()
                .zip(0..)
                .take(MAX_LAYERS)
                .all(|(s, i)| u64::from(s.layer()) == i && s.offset() == i)
        );
    }
}
