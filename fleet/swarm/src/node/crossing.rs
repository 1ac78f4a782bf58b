//! Chunks that left for a peer without a request, so that a request that crosses them is not answered by sending them
//! again.

use crate::Time;
use crate::event::{BlobId, Chunks};
use headstart_block::saturating;
use std::collections::VecDeque;
use std::time::Duration;

/// The number of chunks that left for one peer without a request and may not have come yet.
const CROSSING: usize = 256;

/// The time until the peer advertises a chunk that was sent ahead: assumed before any was measured, and at most.
const ADVERT_DELAY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Chunks that left for a peer without a request and were not advertised by it yet.
#[derive(Debug, Default)]
pub(super) struct Crossing {
    departed: VecDeque<(Time, BlobId, u32)>,
    /// The recent time until such chunks were advertised, in microseconds, smoothed.
    advert_delay_us: Option<u64>,
}

impl Crossing {
    pub(super) fn on_departure(&mut self, now: Time, blob: BlobId, chunks: Chunks) {
        self.departed.extend(chunks.numbers().map(|chunk| (now, blob, chunk)));
        let too_many = self.departed.len().saturating_sub(CROSSING);
        self.departed.drain(..too_many);
    }

    /// Takes the peer's advert of a run.
    pub(super) fn on_advert(&mut self, now: Time, blob: BlobId, run: Chunks) {
        let mut latest = None;
        self.departed.retain(|(at, of, chunk)| {
            let is_it = *of == blob && run.numbers().contains(chunk);
            latest = if is_it { Some(*at) } else { latest };
            !is_it
        });
        let Some(took) = latest.map(|at| now.since(at).min(ADVERT_DELAY.1)) else { return };
        let took = saturating::<u64>(took.as_micros());
        self.advert_delay_us = Some(self.advert_delay_us.map_or(took, |before| (before * 7 + took) / 8));
    }

    /// `true` if a chunk may still be on its way.
    pub(super) fn holds(&self, now: Time, blob: BlobId, chunk: u32) -> bool {
        let span = self.advert_delay_us.map_or(ADVERT_DELAY.0, Duration::from_micros) * 3 / 2;
        let recent = self.departed.iter().rev().take_while(|(at, ..)| now.since(*at) < span);
        recent.into_iter().any(|(_, of, sent)| (*of, *sent) == (blob, chunk))
    }
}
