//! Running a virtual machine here, and its speed.
//!
//! `/dev/kvm` alone proves little: on some machines (nested ones above all) it is there, and guests hang, often only
//! after their first instructions. So a guest is run through its whole firmware: from a disk of one sector, whose
//! program writes a number to the device that ends QEMU with it.

use crate::finding::{Availability, HostFinding};
use crate::trial::{Trial, find, run};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const FEATURE: &str = "kvm";

/// The time for the guest; one that works takes less than a second.
const GUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The program of the boot sector: `mov al, 0x10; out 0xf4, al; hlt; jmp -3`.
const CODE: [u8; 7] = [0xb0, 0x10, 0xe6, 0xf4, 0xf4, 0xeb, 0xfd];
/// The last bytes of a boot sector.
const SIGNATURE: [u8; 2] = [0x55, 0xaa];

/// The status with which QEMU's `isa-debug-exit` ends when 0x10 is written to it.
const RAN: i32 = (0x10 << 1) | 1;

pub(crate) fn kvm() -> HostFinding {
    let device = Path::new("/dev/kvm");
    if !device.exists() {
        return HostFinding::new(
            FEATURE,
            Availability::No,
            "there is no /dev/kvm: guests run 10 to 50 times slower (TCG)",
        )
        .remedy("load kvm_intel or kvm_amd; in a virtual machine, have nested virtualization turned on");
    }
    let open = std::fs::OpenOptions::new().read(true).write(true).open(device);
    if let Err(error) = open {
        return HostFinding::new(FEATURE, Availability::No, format!("/dev/kvm cannot be opened: {error}"))
            .remedy("add this user to the group kvm, or give the device to the container");
    }
    let not_tried = |why: &str| {
        HostFinding::new(FEATURE, Availability::Limited, format!("there is /dev/kvm; not tried, {why}"))
    };
    if !cfg!(target_arch = "x86_64") {
        return not_tried("since the trial is for x86-64");
    }
    let Some(qemu) = find("qemu-system-x86_64") else {
        return not_tried("since there is no QEMU").remedy("install it: apt-get install qemu-system-x86");
    };
    match run_guest(&qemu) {
        Ok(trial) => judged(&trial, &qemu),
        Err(error) => not_tried(&format!("since there is no room for a guest's disk: {error}")),
    }
}

/// The finding of a trial that the program `qemu` made.
fn judged(trial: &Trial, qemu: &Path) -> HostFinding {
    let qemu = qemu.display();
    let no = |detail| HostFinding::new(FEATURE, Availability::No, format!("there is /dev/kvm, but {detail}"));
    match trial {
        Trial::Ended(status) if status.code() == Some(RAN) => {
            HostFinding::new(FEATURE, Availability::Yes, "a virtual machine ran")
        }
        Trial::TookTooLong => {
            let limit = GUEST_TIMEOUT.as_secs();
            no(format!("a trial guest of {qemu} was not done after {limit} s, and was stopped")).remedy(
                "if this host is busy, run `headstart doctor` again when it is not; otherwise KVM hangs here: use \
                 QEMU's own emulation, -accel tcg",
            )
        }
        Trial::Ended(status) => no(format!("{qemu} does not run a guest ({status})"))
            .remedy(format!("see what it says: {qemu} -accel kvm -display none")),
        Trial::NotStarted => HostFinding::new(
            FEATURE,
            Availability::Limited,
            format!("there is /dev/kvm; not tried, since {qemu} does not start"),
        ),
    }
}

fn run_guest(qemu: &Path) -> std::io::Result<Trial> {
    let mut sector = [0; 512];
    sector[..CODE.len()].copy_from_slice(&CODE);
    sector[510..].copy_from_slice(&SIGNATURE);
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(&sector)?;
    file.flush()?;
    let disk = format!("file={},format=raw,if=ide,snapshot=on", file.path().display());
    let mut command = Command::new(qemu);
    command.args([
        "-accel",
        "kvm",
        "-machine",
        "pc",
        "-m",
        "32",
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
    ]);
    command.args(["-display", "none", "-serial", "none", "-monitor", "none"]);
    command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=1", "-drive", &disk]);
    Ok(run(&mut command, GUEST_TIMEOUT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_guest_is_told_from_a_host_without_kvm() {
        let found = judged(&Trial::TookTooLong, Path::new("/usr/bin/qemu-system-x86_64"));
        assert_eq!(found.state, Availability::No);
        let said = format!("{}; {}", found.detail, found.remedy.unwrap());
        for part in ["/dev/kvm", "/usr/bin/qemu-system-x86_64", "after 5 s", "headstart doctor", "-accel tcg"]
        {
            assert!(said.contains(part), "no `{part}` in: {said}");
        }
    }
}
