//! The best of several values, and the first of equals, so that a result depends only on the compared values.

/// The value with the highest worth, and that worth; the first of equals.
pub(crate) fn first_best<T>(
    some: impl IntoIterator<Item = T>,
    mut worth: impl FnMut(&T) -> f64,
) -> Option<(T, f64)> {
    let mut best: Option<(T, f64)> = None;
    for one in some {
        let worth = worth(&one);
        if best.as_ref().is_none_or(|(_, best)| worth > *best) {
            best = Some((one, worth));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equals() {
        let worth = |at: &usize| [1.0, 3.0, 2.0, 3.0][*at];
        assert_eq!(first_best(0..4, worth), Some((1, 3.0)));
        assert_eq!(first_best(0..0, worth), None);
    }
}
