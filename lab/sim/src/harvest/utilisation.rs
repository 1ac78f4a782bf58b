//! The used share of owned storage, without and with harvesting (BlockFlex, OSDI 2022, section 5.2, figures 15 to 17).
//!
//! As in the paper, the use of a regular VM's storage is the VM's own use plus that of harvest VMs that borrow from it,
//! as a share of the storage that the VM owns. For a server with unsold storage, it is the sold storage plus harvest
//! VMs' use of the rest, as a share of the server's storage. Storage that is leased and not used, or not leased, does
//! not count. For each VM or server, the average is over the whole time, and the maximum is that of the steps of three
//! minutes. A figure is the mean over VMs or servers, so that a small VM counts as much as a large one. Gains in GB, in
//! which size counts, are in [`super::outcome`].

use serde::Serialize;

/// Used shares of the storage of one regular VM or server, accumulated over time, with and without
/// harvesting.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StorageShares {
    seconds: f64,
    base: f64,
    with: f64,
    base_max: f64,
    with_max: f64,
}

impl StorageShares {
    /// Adds a span of `seconds` seconds: the mean and the greatest share that the owner used, and the mean share
    /// that harvest VMs used in addition, each 0 to 1.
    pub fn add(&mut self, seconds: f64, (mean, max): (f64, f64), harvested: f64) {
        self.seconds += seconds;
        self.base += seconds * mean;
        self.with += seconds * (mean + harvested);
        self.base_max = self.base_max.max(max);
        // Use never exceeds the storage: at the owner's greatest, harvest VMs had less.
        self.with_max = self.with_max.max((mean + harvested).max(max));
    }

    /// Returns the share that the owner used, averaged over time, 0 to 1; 0 if no span was added.
    #[must_use]
    pub fn average(&self) -> f64 {
        self.base / self.seconds.max(1.0)
    }

    /// Returns the share that the owner and harvest VMs used together, averaged over time, 0 to 1; 0 if no span was
    /// added.
    #[must_use]
    pub fn average_with(&self) -> f64 {
        self.with / self.seconds.max(1.0)
    }
}

/// Utilisation of a group of regular VMs or servers: means over the group, in which each counts the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Utilisation {
    /// The number of regular VMs or servers in the group.
    pub count: usize,
    /// Average used share without harvesting, 0 to 1.
    pub base: f64,
    /// Average used share with harvesting, 0 to 1.
    pub with: f64,
    /// Mean over the group of the greatest share that each used at any time, without harvesting, 0 to 1.
    pub base_max: f64,
    /// Mean over the group of the greatest share that each used at any time, with harvesting, 0 to 1.
    pub with_max: f64,
}

impl Utilisation {
    /// Computes the utilisation of a group; zeros if it is empty.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a number of things")]
    pub fn of<'a>(group: impl Iterator<Item = &'a StorageShares>) -> Self {
        let mut sum = Self::default();
        for one in group {
            let seconds = one.seconds.max(1.0);
            sum.count += 1;
            sum.base += one.base / seconds;
            sum.with += one.with / seconds;
            sum.base_max += one.base_max;
            sum.with_max += one.with_max;
        }
        let count = sum.count.max(1) as f64;
        Self {
            count: sum.count,
            base: sum.base / count,
            with: sum.with / count,
            base_max: sum.base_max / count,
            with_max: sum.with_max / count,
        }
    }

    /// Returns the ratio of [`Utilisation::with`] to [`Utilisation::base`]; 0 for an empty group. If nothing was used
    /// without harvesting, `base` counts as a billionth.
    #[must_use]
    pub fn times(&self) -> f64 {
        self.with / self.base.max(1e-9)
    }

    /// Returns the ratio of [`Utilisation::with_max`] to [`Utilisation::base_max`], with the same exceptions as
    /// [`times`](Self::times).
    #[must_use]
    pub fn times_max(&self) -> f64 {
        self.with_max / self.base_max.max(1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_are_over_time_and_then_over_things() {
        let (mut one, mut two) = (StorageShares::default(), StorageShares::default());
        one.add(300.0, (0.2, 0.3), 0.0);
        one.add(100.0, (0.6, 0.9), 0.4);
        two.add(50.0, (0.9, 1.0), 0.1);
        let group = Utilisation::of([one, two].iter());
        assert!((group.base - (0.3 + 0.9) / 2.0).abs() < 1e-9);
        assert!((group.with - (0.4 + 1.0) / 2.0).abs() < 1e-9);
        assert!((group.base_max - 0.95).abs() < 1e-9 && (group.with_max - 1.0).abs() < 1e-9);
        assert!((group.times() - 0.7 / 0.6).abs() < 1e-9);
        assert_eq!(Utilisation::of([].iter()).count, 0);
    }
}
