//! The best of several values, and the first of equals, so that a result depends only on the compared values.

/// The value with the highest score, and that score; the first of equals.
pub(crate) fn first_best<T>(
    some: impl IntoIterator<Item = T>,
    mut score: impl FnMut(&T) -> f64,
) -> Option<(T, f64)> {
    let mut best: Option<(T, f64)> = None;
    for one in some {
        let score = score(&one);
        if best.as_ref().is_none_or(|(_, best)| score > *best) {
            best = Some((one, score));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equal_candidates_is_best() {
        let score = |at: &usize| [1.0, 3.0, 2.0, 3.0][*at];
        assert_eq!(first_best(0..4, score), Some((1, 3.0)));
        assert_eq!(first_best(0..0, score), None);
    }
}
