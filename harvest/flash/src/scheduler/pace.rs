//! The speed of a channel: emulated flash, or a token bucket.

use crate::device::Geometry;
use crate::device::timing::{FlashOp, Span, Speeds, Timing, Work};
use headstart_block::saturating;
use std::time::Duration;

/// The source of a channel's speed: a model of flash, or the flash itself with an optional limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speed {
    /// Emulated flash: each operation takes as long as on flash with these speeds.
    Emulated(Speeds),
    /// A real device or a file, whose operations take time of their own, with an optional limit by a token bucket.
    Bucket {
        /// The limit of the channel in bytes a second, at least 1. `None`: no limit.
        rate: Option<u64>,
        /// The capacity of the token bucket: the number of bytes that may be transferred at once.
        burst: u64,
    },
}

/// The source of a channel's speed, with its state.
#[derive(Clone, Debug)]
pub(super) enum Pace {
    Emulated(Timing),
    Bucket(Bucket),
}

/// A token bucket, as the moment when it will be full again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    rate: Option<u64>,
    /// The time that it takes to fill.
    depth: Duration,
    full: Duration,
}

impl Pace {
    pub(super) fn new(geometry: &Geometry, speed: Speed) -> Self {
        match speed {
            Speed::Emulated(speeds) => Self::Emulated(Timing::new(geometry, speeds)),
            Speed::Bucket { rate, burst } => {
                Self::Bucket(Bucket { rate, depth: spend(rate, burst), full: Duration::ZERO })
            }
        }
    }

    pub(super) fn is_bucket(&self) -> bool {
        matches!(self, Self::Bucket(_))
    }

    pub(super) fn dies(&self) -> usize {
        match self {
            Self::Emulated(timing) => timing.dies(),
            Self::Bucket(_) => 1,
        }
    }

    pub(super) fn ready(&self, op: FlashOp) -> Duration {
        match self {
            Self::Emulated(timing) => timing.ready(op),
            Self::Bucket(bucket) => bucket.full.saturating_sub(bucket.depth),
        }
    }

    pub(super) fn start(&mut self, now: Duration, op: FlashOp) -> Span {
        match self {
            Self::Emulated(timing) => timing.start(now, op),
            Self::Bucket(bucket) => {
                bucket.full = bucket.full.max(now) + spend(bucket.rate, u64::from(op.bytes()));
                Span { die: now..now, bus: now..now }
            }
        }
    }

    /// The duration of a page's program on an otherwise idle channel; at least a tenth of a millisecond if it is
    /// unknown.
    pub(super) fn alone(&self, page: u32) -> Duration {
        match self {
            Self::Emulated(timing) => timing.speeds().alone(Work::Program(page)),
            Self::Bucket(bucket) => spend(bucket.rate, page.into()).max(Duration::from_micros(100)),
        }
    }

    pub(super) fn erasing(&self) -> Option<Duration> {
        match self {
            Self::Emulated(timing) => timing.erasing(),
            Self::Bucket(_) => None,
        }
    }
}

fn spend(rate: Option<u64>, bytes: u64) -> Duration {
    let nanos = rate.map(|rate| u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1)));
    Duration::from_nanos(nanos.map_or(0, saturating))
}
