//! QEMU boots from a vhost-user-blk disk: a real front end, a real driver (the firmware's).
//!
//! The boot sector reads another sector of the disk, writes it to another place, and prints it on the serial
//! port. Needs `qemu-system-x86_64`; runs without KVM.

use crate::memory_disk::MemoryDisk;
use headstart_block::BlockDevice;
use headstart_export::vhost_user::{VhostUserServer, VhostUserSettings};
use headstart_export::{Export, Server};
use headstart_testkit::process::installed;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

const READ_FROM: u16 = 1000;
const WRITTEN_TO: u16 = 2000;
const MESSAGE: &[u8] = b"the disk was read through shared memory\r\n\0";

/// The longest wait for the firmware, 4 MiB of memory and 60 instructions, emulated, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A boot sector: load sector `READ_FROM` to 0x7e00, store it as sector `WRITTEN_TO`, print it up to its first 0,
/// power off. If the disk fails, it powers off at once.
fn boot_sector() -> [u8; 512] {
    let [from_low, from_high] = READ_FROM.to_le_bytes();
    let [to_low, to_high] = WRITTEN_TO.to_le_bytes();
    let code = [
        0x31, 0xc0, // xor ax, ax
        0x8e, 0xd8, // mov ds, ax
        0x8e, 0xc0, // mov es, ax
        0xbe, 0x34, 0x7c, // mov si, packet
        0xb4, 0x42, // mov ah, 0x42: extended read
        0xcd, 0x13, // int 0x13
        0x72, 0x1e, // jc end
        0xc7, 0x06, 0x3c, 0x7c, to_low, to_high, // mov word [packet + 8], WRITTEN_TO
        0xb8, 0x00, 0x43, // mov ax, 0x4300: extended write
        0xbe, 0x34, 0x7c, // mov si, packet
        0xcd, 0x13, // int 0x13
        0x72, 0x0e, // jc end
        0xbe, 0x00, 0x7e, // mov si, 0x7e00
        0xac, // next: lodsb
        0x84, 0xc0, // test al, al
        0x74, 0x06, // jz end
        0xba, 0xf8, 0x03, // mov dx, 0x3f8
        0xee, // out dx, al
        0xeb, 0xf5, // jmp next
        0xb0, 0x01, // end: mov al, 1
        0xe6, 0xf4, // out 0xf4, al: isa-debug-exit
        0xf4, // hlt
        0xeb, 0xfd, // jmp hlt
        // packet: 16 bytes, 1 sector, to 0:0x7e00, from READ_FROM
        16, 0, 1, 0, 0x00, 0x7e, 0, 0, from_low, from_high, 0, 0, 0, 0, 0, 0,
    ];
    let mut sector = [0; 512];
    sector[..code.len()].copy_from_slice(&code);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

fn at(sector: u16) -> std::ops::Range<usize> {
    let start = usize::from(sector) * 512;
    start..start + 512
}

#[test]
fn qemu_boots_from_it_twice() {
    let qemu = "qemu-system-x86_64";
    if !installed(&[qemu]) {
        return;
    }
    let mut bytes = vec![0; 4 << 20];
    bytes[at(0)].copy_from_slice(&boot_sector());
    bytes[at(READ_FROM)][..MESSAGE.len()].copy_from_slice(MESSAGE);
    let disk = Arc::new(MemoryDisk::new(bytes, false));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.sock");
    let export = Export::new("boot", Arc::clone(&disk) as Arc<dyn BlockDevice>);
    let server = VhostUserServer::start(
        &path,
        &export,
        &VhostUserSettings { queues: 2, ..VhostUserSettings::default() },
    )
    .unwrap();
    for _ in 0..2 {
        let mut child = Command::new(qemu)
            .args(["-accel", "tcg", "-M", "pc,memory-backend=memory", "-m", "64M", "-nodefaults"])
            .args(["-display", "none", "-serial", "stdio", "-no-reboot"])
            .args(["-object", "memory-backend-memfd,id=memory,share=on,size=64M"])
            .args(["-chardev", &format!("socket,id=disk,path={}", path.display())])
            .args(["-device", "vhost-user-blk-pci,chardev=disk,num-queues=2,bootindex=1"])
            .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = child.stdout.take().unwrap();
        let (sender, printed) = mpsc::channel();
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = out.read_to_end(&mut text);
            let _ = sender.send(text);
        });
        let text = printed.recv_timeout(TIMEOUT);
        let _ = child.kill();
        child.wait().unwrap();
        let text = text.expect("QEMU ends in time");
        let message = String::from_utf8_lossy(&MESSAGE[..MESSAGE.len() - 1]);
        assert!(String::from_utf8_lossy(&text).contains(&*message), "{}", String::from_utf8_lossy(&text));
    }
    assert_eq!(disk.content()[at(WRITTEN_TO)][..MESSAGE.len()], *MESSAGE);
    Box::new(server).stop().unwrap();
}
