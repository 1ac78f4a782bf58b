//! Questions and orders to the driver about devices, from any thread.

use super::recovery::{DeviceMark, FoundDevice, is_believed};
use crate::STOP_TIMEOUT;
use headstart_block::{Error, ErrorKind, Result, SECTOR_SIZE};
use libublk::UblkError;
use libublk::ctrl::UblkCtrl;
use libublk::sys;
use rustix::io::Errno;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The directory in which the kernel lists the devices of the driver.
const DEVICES: &str = "/sys/class/ublk-char";

/// The error of the driver with its number in words, which the library leaves out.
pub(super) fn driver_error(cause: &'static str, error: UblkError) -> Error {
    let source = match error {
        UblkError::UringIOError(code) | UblkError::OtherError(code) => {
            io::Error::from_raw_os_error(code.saturating_neg())
        }
        UblkError::IOError(error) => error,
        other => io::Error::other(other.to_string()),
    };
    Error::io(cause, source)
}

/// `true` if the driver answers that an earlier process still has the device.
pub(super) fn is_busy(answer: i32) -> bool {
    answer == -Errno::BUSY.raw_os_error()
}

/// The devices of the driver that this user has made. One that goes meanwhile is left out.
pub(super) fn find_devices() -> Vec<FoundDevice> {
    let mut devices: Vec<_> = numbers(Path::new(DEVICES)).into_iter().filter_map(found).collect();
    devices.sort_unstable_by_key(|device| device.number);
    devices
}

fn numbers(directory: &Path) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok()).collect()
}

fn found(number: u32) -> Option<FoundDevice> {
    let control = UblkCtrl::new_simple(i32::try_from(number).ok()?).ok()?;
    let info = control.dev_info();
    if !is_believed(info.flags, info.owner_uid, rustix::process::getuid().as_raw()) {
        return None;
    }
    let recovery = u64::from(sys::UBLK_F_USER_RECOVERY | sys::UBLK_F_USER_RECOVERY_REISSUE);
    let recovers = info.flags & recovery == recovery;
    let is_dead = u32::from(info.state) == sys::UBLK_S_DEV_DEAD;
    let mut params = sys::ublk_params::default();
    // One that was never started may have no size.
    if !is_dead {
        control.get_params(&mut params).ok()?;
    }
    let size = params.basic.dev_sectors.saturating_mul(SECTOR_SIZE);
    Some(FoundDevice { number, word: info.ublksrv_flags, recovers, is_dead, size })
}

/// Stops and removes a device, in a thread that has as long as it takes: the kernel may wait for programs that have the
/// device open.
///
/// # Errors
/// Errors of the driver; [`ErrorKind::Unavailable`] if it takes longer than `limit`.
pub(super) fn remove(number: u32, limit: Duration) -> Result<()> {
    let device = format!("/dev/ublkb{number}");
    let (done, removed) = mpsc::channel();
    let run = move || {
        let _ = done.send(remove_at_leisure(number));
    };
    let spawned = thread::Builder::new().name("ublk-stop".to_owned()).spawn(run);
    spawned.map_err(|error| Error::io("cannot start a thread", error))?;
    match removed.recv_timeout(limit) {
        Ok(removed) => removed.map_err(|error| {
            driver_error("the kernel's ublk driver does not remove it", error).about(&device)
        }),
        Err(_) => Err(Error::new(ErrorKind::Unavailable, "the kernel has not removed it yet")
            .about(&device)
            .remedy("unmount it, and end the programs that have it open")),
    }
}

fn remove_at_leisure(number: u32) -> std::result::Result<(), UblkError> {
    let id = i32::try_from(number).map_err(|_| UblkError::InvalidVal)?;
    let control = UblkCtrl::new_simple(id)?;
    control.kill_dev()?;
    // The first does not wait for programs that have it open, and is there since Linux 6.9.
    control.del_dev_async().or_else(|_| control.del_dev()).map(drop)
}

/// Takes the devices of a disk, which has no process any more, from the kernel.
///
/// # Errors
/// Errors of the driver.
pub fn release(disk: &str) -> Result<()> {
    let mark = DeviceMark::of_disk(disk);
    let devices = find_devices();
    let ours = devices.iter().filter(|device| mark.is_of_disk(device.word));
    ours.map(|device| remove(device.number, STOP_TIMEOUT)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_listed_by_their_character_devices() {
        let root = tempfile::tempdir().unwrap();
        for name in ["ublkc0", "ublkc17", "ublkb3", "ublkc", "ublkcx"] {
            fs::write(root.path().join(name), "").unwrap();
        }
        let mut found = numbers(root.path());
        found.sort_unstable();
        assert_eq!(found, [0, 17]);
        assert!(numbers(&root.path().join("absent")).is_empty());
    }

    #[test]
    fn errors_of_the_driver_say_what_the_kernel_says() {
        let error = driver_error("the kernel makes no ublk device", UblkError::UringIOError(-22));
        assert!(error.to_string().contains("Invalid argument"), "{error}");
        assert!(is_busy(-16) && !is_busy(0) && !is_busy(-22));
    }
}
