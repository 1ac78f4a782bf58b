//! Sketches against the sets that they stand for.
