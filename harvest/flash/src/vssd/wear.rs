//! The channels to swap so that all wear alike: FlashBlox's relaxed scheme, which BlockFlex relies on (section 4.3.2):
//! blocks of a channel are levelled by taking the least worn free one, channels by swapping whole ones every 19 days.
//!
//! To swap, both vSSDs drain their channel ([`Vssd::drain_slot`](super::Vssd::drain_slot) with a channel) to the rest
//! of their flash, and close it; both are erased; then each takes the other's place
//! ([`Vssd::replace_channel`](super::Vssd::replace_channel)). That needs a channel's worth of room in both, which is
//! there if SSDs are half empty, and costs no third channel. Writes go first: they take back a channel that is being
//! drained if there is no other room.

use std::time::Duration;

/// The interval between checks whether two channels should swap owners: 19 days, as in FlashBlox, whose wear
/// leveling the BlockFlex paper (section 4.3.2) uses.
pub const SWAP_PERIOD: Duration = Duration::from_secs(19 * 24 * 3600);

/// Counts of the erasures on a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelWear {
    /// The number of the channel.
    pub channel: u16,
    /// Number of erasures of the channel's blocks since the flash was made.
    pub total: u64,
    /// Number of erasures since the last check for a swap.
    pub recent: u64,
}

/// Two channels whose owners are to swap them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// The channel with the most erasures since the last check.
    pub hot: u16,
    /// The channel with the fewest erasures ever.
    pub cold: u16,
}

/// Chooses two channels to swap if the erasures of the most worn channel are more than `tolerance` percent above the
/// mean: the channel with the most erasures recently, and the channel with the fewest ever. `None` if no channel is so
/// far above the mean, or if the first of the two does not have more erasures, in all and recently, than the second.
#[must_use]
pub fn plan_swap(channels: &[ChannelWear], tolerance: u32) -> Option<Swap> {
    let most = u128::from(channels.iter().map(|channel| channel.total).max()?);
    let sum: u128 = channels.iter().map(|channel| u128::from(channel.total)).sum();
    if most * channels.len() as u128 * 100 <= sum * (100 + u128::from(tolerance)) {
        return None;
    }
    let hot = channels.iter().max_by_key(|channel| (channel.recent, channel.total))?;
    let cold = channels.iter().min_by_key(|channel| (channel.total, channel.recent))?;
    let pays = hot.channel != cold.channel && hot.total > cold.total && hot.recent > cold.recent;
    pays.then_some(Swap { hot: hot.channel, cold: cold.channel })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wear(list: &[(u64, u64)]) -> Vec<ChannelWear> {
        let channels = (0..).zip(list);
        channels.map(|(channel, &(total, recent))| ChannelWear { channel, total, recent }).collect()
    }

    #[test]
    fn the_fastest_wearing_channel_swaps_with_the_least_worn() {
        assert_eq!(plan_swap(&wear(&[(100, 5), (160, 9), (90, 1)]), 10), Some(Swap { hot: 1, cold: 2 }));
    }

    #[test]
    fn small_and_passing_differences_of_wear_cause_no_swap() {
        assert_eq!(plan_swap(&wear(&[(100, 5), (105, 9), (98, 1)]), 10), None);
        assert_eq!(plan_swap(&wear(&[(90, 9), (160, 1), (100, 1)]), 10), None, "the least worn catches up");
        assert_eq!(plan_swap(&[], 10), None);
    }

    /// A hot vSSD on one of four channels for ten years: the channels end alike.
    #[test]
    fn wear_evens_out() {
        let mut channels = wear(&[(0, 0); 4]);
        let mut loads = [1000_u64, 10, 10, 10];
        for _ in 0..192 {
            for (channel, load) in channels.iter_mut().zip(loads) {
                channel.total += load;
                channel.recent = load;
            }
            if let Some(swap) = plan_swap(&channels, 10) {
                loads.swap(swap.hot.into(), swap.cold.into());
            }
        }
        let most = channels.iter().map(|channel| channel.total).max().unwrap();
        let least = channels.iter().map(|channel| channel.total).min().unwrap();
        assert!(most * 100 < least * 115, "{channels:?}");
    }
}
