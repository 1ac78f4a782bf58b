//! Pins.

/// Keeps a range of a blob from eviction while it lives.
pub struct Pin {
    _private: (),
}
