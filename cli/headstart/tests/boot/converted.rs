//! A container's image as the root disk of a virtual machine.

use crate::attached::Attached;
use crate::repository;
use crate::scene::{Scene, run_tool};
use crate::tools::{find, installed, skipped};
use headstart_testkit::process::Process;
use headstart_testkit::shell_image;
use std::fs;
use std::process::Command;
use std::time::Duration;

/// The longest time for a boot in emulation, beside other tests.
const TIME_LIMIT: Duration = Duration::from_secs(240);
/// The program of the guest in place of init, which the kernel's command line has in quotes. There is no journal, so
/// the kernel has to write everything (`u`) before it resets the machine (`b`).
const PROGRAM: &str = "cat /etc/greeting; echo kept > /etc/written; ls /opt; echo u > /proc/sysrq-trigger; \
    sleep 3; echo THE-END; echo b > /proc/sysrq-trigger; sleep 60";

#[test]
#[ignore = "a boot in emulation: make test-platforms"]
fn a_converted_image_is_the_root_disk_of_a_machine_and_keeps_its_writes() {
    let kernel = repository().join("target/demo/debian.raw.kernel");
    let initrd = kernel.with_extension("initrd");
    if !kernel.is_file() || !initrd.is_file() {
        return skipped(&format!("there is no {} (scripts/demo-disk makes it)", kernel.display()));
    }
    if !installed(&["qemu-system-x86_64", "debugfs", "e2fsck"]) {
        return;
    }
    let scene = Scene::new();
    shell_image::write(&scene.path("image.tar"));
    scene.ok("image convert oci-archive:image.tar file://~/images:shell --size 256M");
    let attached = Attached::start(&scene, "file://~/images:shell --writable ~/vm --nbd unix:~/vm.sock");
    let disk = attached.uri();
    let command_line =
        format!("root=/dev/vda rw panic=-1 console=ttyS0 quiet init=/bin/sh -- -c \"{PROGRAM}\"");
    let mut guest = Process::start(
        Command::new(find("qemu-system-x86_64").unwrap())
            .args([
                "-accel",
                "tcg,thread=multi",
                "-m",
                "512",
                "-nodefaults",
                "-display",
                "none",
                "-no-reboot",
            ])
            .arg("-serial")
            .arg(format!("file:{}", scene.path("serial").display()))
            .arg("-kernel")
            .arg(&kernel)
            .arg("-initrd")
            .arg(&initrd)
            .args(["-append", &command_line])
            .args(["-drive", &format!("file={disk},format=raw,if=virtio")]),
    );
    guest.end(TIME_LIMIT);
    let said = String::from_utf8_lossy(&fs::read(scene.path("serial")).unwrap()).replace('\r', "");
    assert!(said.contains("two\n") && said.contains("THE-END"), "{said}\n{}", guest.output());
    let tool = |program: &str, arguments: &[&str]| {
        run_tool(find(program).unwrap().to_str().unwrap(), arguments, &scene.path("")).stdout
    };
    attached.detach();

    // What it wrote is on the disk.
    fs::create_dir(scene.path("mnt")).unwrap();
    let again = Attached::start(&scene, "file://~/images:shell --writable ~/vm --fuse ~/mnt");
    let file = again.uri();
    tool("e2fsck", &["-f", "-n", &file]);
    assert_eq!(tool("debugfs", &["-R", "cat /etc/written", &file]), b"kept\n");
    again.detach();
}
