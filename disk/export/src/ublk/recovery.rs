//! Devices that outlive their processes: the one that is a disk's, and what becomes of the others.
//!
//! The driver keeps a word of 64 bits for the server of each device and gives it out with the device's state. A device
//! that waits for the next process has a *mark* there: 40 bits of a digest of the disk's name, and 24 of a digest of
//! its content. So nothing is kept on disk that could be older than the device. With 1000 disks on a host, two names
//! have the same 40 bits on one host in two million.

use crate::kernel_nbd::KeptDevice;
use headstart_block::Digest;

/// The bits of a mark that are of the content.
const CONTENT_BITS: u32 = 24;
const CONTENT: u64 = (1 << CONTENT_BITS) - 1;

/// The flag of a device that a user without privileges has made, by the driver's interface.
const UNPRIVILEGED: u64 = 1 << 5;

/// `true` if a device with these flags is one that this user's processes have made, so that its word is believed: a
/// user without privileges may write another disk's there, and would then be given that disk's content.
pub(super) fn is_believed(flags: u64, owner: u32, user: u32) -> bool {
    flags & UNPRIVILEGED == 0 && owner == user
}

/// The word at the driver by which a device is known as that of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceMark(u64);

impl DeviceMark {
    /// The mark of a disk of a size, which a device cannot change.
    pub(super) fn of(kept: &KeptDevice, size: u64) -> Self {
        let content = word_of(&format!("{} {size}", kept.identity)) & CONTENT;
        Self(Self::of_disk(&kept.disk).0 | content)
    }

    /// The mark of a disk without content.
    pub(super) fn of_disk(disk: &str) -> Self {
        Self(word_of(disk) & !CONTENT)
    }

    pub(super) fn word(self) -> u64 {
        self.0
    }

    pub(super) fn is_of_disk(self, word: u64) -> bool {
        self.0 & !CONTENT == word & !CONTENT
    }
}

/// The first bytes of a digest.
fn word_of(text: &str) -> u64 {
    Digest::of(text.as_bytes()).as_bytes().iter().take(8).fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// A device of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundDevice {
    pub(super) number: u32,
    /// The word of its server at the driver.
    pub(super) word: u64,
    /// `true` if it waits for the next process when its own dies, and sends requests again that the dead one had.
    pub(super) recovers: bool,
    /// `true` if it was never started, or was stopped.
    pub(super) is_dead: bool,
    /// In bytes.
    pub(super) size: u64,
}

/// The fate of the devices of a disk whose next process begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TakeoverPlan {
    /// The device to go on with; `None`: a new one is made.
    pub(super) take: Option<u32>,
    /// The devices that no process can go on with.
    pub(super) remove: Vec<u32>,
}

impl TakeoverPlan {
    /// The plan for the disk that has a mark and a size. Devices of others are not touched.
    pub(super) fn of(found: &[FoundDevice], mark: DeviceMark, size: u64) -> Self {
        let mut plan = Self::default();
        for device in found.iter().filter(|device| mark.is_of_disk(device.word)) {
            let is_same =
                device.word == mark.word() && device.size == size && device.recovers && !device.is_dead;
            if is_same && plan.take.is_none() {
                plan.take = Some(device.number);
            } else {
                plan.remove.push(device.number);
            }
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(disk: &str, identity: &str, size: u64) -> DeviceMark {
        let kept = KeptDevice { disk: disk.to_owned(), identity: identity.to_owned() };
        DeviceMark::of(&kept, size)
    }

    fn found(number: u32, mark: DeviceMark) -> FoundDevice {
        FoundDevice { number, word: mark.word(), recovers: true, is_dead: false, size: 4096 }
    }

    #[test]
    fn a_mark_is_of_the_disk_and_its_content_and_stays_the_same() {
        let vm = mark("vm-1", "abc", 4096);
        assert!(DeviceMark::of_disk("vm-1").is_of_disk(vm.word()));
        assert!(!DeviceMark::of_disk("vm-2").is_of_disk(vm.word()));
        for other in [mark("vm-1", "abd", 4096), mark("vm-1", "abc", 8192)] {
            assert!(other != vm && vm.is_of_disk(other.word()), "{other:?}");
        }
        // The next process may be of a later version. The first digits of SHA-256 of `vm-1` and of `abc 4096`.
        let digits = |text: &str, from, to| Digest::of(text.as_bytes()).hex()[from..to].to_owned();
        let word = digits("vm-1", 0, 10) + &digits("abc 4096", 10, 16);
        assert_eq!(format!("{:016x}", vm.word()), word);
    }

    #[test]
    fn the_device_with_the_same_content_is_taken_over_and_those_of_others_stay() {
        let vm = mark("vm-1", "abc", 4096);
        let others = [
            found(0, mark("vm-2", "abc", 4096)),
            FoundDevice { number: 1, word: 0, recovers: true, is_dead: false, size: 4096 },
        ];
        assert_eq!(TakeoverPlan::of(&others, vm, 4096), TakeoverPlan::default());
        let plan = TakeoverPlan::of(&[others[0], found(3, vm), others[1]], vm, 4096);
        assert_eq!(plan, TakeoverPlan { take: Some(3), remove: vec![] });
    }

    #[test]
    fn devices_of_the_disk_that_cannot_go_on_are_removed() {
        let vm = mark("vm-1", "abc", 4096);
        let devices = [
            found(0, mark("vm-1", "before", 4096)),
            FoundDevice { is_dead: true, ..found(1, vm) },
            FoundDevice { recovers: false, ..found(2, vm) },
            // Its mark is the disk's by chance: 24 bits are of the size.
            FoundDevice { size: 8192, ..found(3, vm) },
            found(4, vm),
            found(5, vm),
        ];
        let plan = TakeoverPlan::of(&devices, vm, 4096);
        assert_eq!(plan, TakeoverPlan { take: Some(4), remove: vec![0, 1, 2, 3, 5] });
        assert_eq!(TakeoverPlan::of(&devices[..4], vm, 4096).take, None);
    }

    #[test]
    fn a_device_of_another_user_is_not_believed() {
        assert!(is_believed(0, 0, 0) && is_believed(!UNPRIVILEGED, 1000, 1000));
        assert!(!is_believed(UNPRIVILEGED, 0, 0), "made by a user without privileges");
        assert!(!is_believed(0, 1000, 0) && !is_believed(0, 0, 1000));
    }
}
