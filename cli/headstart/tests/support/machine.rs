//! A virtual machine that writes to its disk, reads it and compares, round after round, and prints a sign of life.
//!
//! The machine is QEMU, the driver its firmware's, and the program a boot sector. For eight seconds, or the given
//! number, it writes the number of the round to one place, reads the image's bytes at another and writes them to a
//! third, reads the number back and compares it, and prints a dot: the test records the time of each.

use crate::disk::noise;
use crate::scene::{Scene, run_tool};
use crate::tools::find;
use headstart_testkit::wait::wait_for;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest time until the machine has done its work: much longer than it takes, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

const SECTOR: usize = 512;

/// The number of sectors at the start that hold the image's content.
const IMAGE: u64 = 0x1_0000;

/// The number of sectors behind that to which numbers of rounds are written, over and over; copies are behind those.
const PLACES: u64 = 0x4000;

/// The number of sectors by which each round reads further on.
const STRIDE: u64 = 137;

/// The place in the code of the number of ticks that it runs for.
const TICKS: usize = 28;

#[rustfmt::skip]
const CODE: [u8; 217] = [
    // start: ds = es = ss = 0; sp = 0x7c00; sti; cld
    0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0, 0xbc, 0, 0x7c, 0xfb, 0xfc,
    0x88, 0x16, 0, 6, // mov [0x600], dl: the drive
    0x66, 0x31, 0xdb, // xor ebx, ebx: the number of the round
    // mov ebp, [0x46c]; add ebp, 146: in eight seconds, in ticks
    0x66, 0x8b, 0x2e, 0x6c, 4, 0x66, 0x81, 0xc5, 0x92, 0, 0, 0,
    0xbf, 0, 0x80, 0x66, 0x89, 0xd8, 0xb9, 0x80, 0, 0x66, 0xf3, 0xab, // next: fill the sector at 0x8000 with the number
    0xe8, 0x6c, 0, 0xb9, 0, 0x80, 0xb4, 0x43, 0xe8, 0x7b, 0, // call place; cx = 0x8000; write
    0x66, 0x69, 0xf3, 0x89, 0, 0, 0, 0x66, 0x81, 0xe6, 0xff, 0xff, 0, 0, // imul esi, ebx, 137; and esi, 0xffff
    0xb9, 0, 0x84, 0xb4, 0x42, 0xe8, 0x65, 0, // cx = 0x8400; read
    0xe8, 0x4b, 0, 0x66, 0x81, 0xce, 0, 0x40, 0, 0, // call place; or esi, 0x4000
    0xb9, 0, 0x84, 0xb4, 0x43, 0xe8, 0x53, 0, // cx = 0x8400; write
    0xe8, 0x39, 0, 0xb9, 0, 0x82, 0xb4, 0x42, 0xe8, 0x48, 0, // call place; cx = 0x8200; read
    // compare the sectors at 0x8000 and 0x8200; jne fail
    0xbe, 0, 0x80, 0xbf, 0, 0x82, 0xb9, 0x80, 0, 0x66, 0xf3, 0xa7, 0x75, 0x1c,
    0xb0, 0x2e, 0xe8, 0x30, 0, // print '.'
    0x66, 0x43, 0x66, 0xa1, 0x6c, 4, 0x66, 0x29, 0xe8, 0x78, 0x98, // inc ebx; mov eax, [0x46c]; sub eax, ebp; js next
    0xb0, 0x21, 0xe8, 0x20, 0, // print '!'
    0xb0, 1, 0xe6, 0xf4, 0xf4, 0xeb, 0xf9, // off: out 0xf4, al: isa-debug-exit; hlt; jmp off
    0xb0, 0x45, 0xe8, 0x14, 0, 0xeb, 0xf2, // fail: print 'E'; jmp off
    // place: esi = ebx & 0x3fff | 0x10000
    0x66, 0x89, 0xde, 0x66, 0x81, 0xe6, 0xff, 0x3f, 0, 0, 0x66, 0x81, 0xce, 0, 0, 1, 0, 0xc3,
    0xba, 0xf8, 3, 0xee, 0xc3, // print: out 0x3f8, al
    0x89, 0x0e, 0xcd, 0x7c, 0x66, 0x89, 0x36, 0xd1, 0x7c, // io: mov [packet + 4], cx; mov [packet + 8], esi
    0xbe, 0xc9, 0x7c, 0xb0, 0, 0x8a, 0x16, 0, 6, 0xcd, 0x13, // mov si, packet; mov al, 0; mov dl, [0x600]; int 0x13
    0x72, 0xcc, 0xc3, // jc fail; ret
    0x10, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // packet: 16 bytes, 1 sector, from or to 0:cx, at esi
];

/// Makes the file `disk.raw` of a scene: 48 MiB whose first 32 are noise, and the boot sector.
pub(crate) fn make_bootable(scene: &Scene) {
    make_bootable_for(scene, 8);
}

/// The same for a machine that runs for `seconds`.
pub(crate) fn make_bootable_for(scene: &Scene, seconds: u32) {
    let mut bytes = noise(137, usize::try_from(IMAGE).unwrap() * SECTOR);
    bytes[..CODE.len()].copy_from_slice(&CODE);
    // There are 18.2 ticks a second.
    bytes[TICKS..TICKS + 4].copy_from_slice(&(seconds * 182).div_ceil(10).to_le_bytes());
    bytes[SECTOR - 2..SECTOR].copy_from_slice(&[0x55, 0xaa]);
    bytes.resize(bytes.len() + 2 * usize::try_from(PLACES).unwrap() * SECTOR, 0);
    fs::write(scene.path("disk.raw"), bytes).unwrap();
}

/// A running machine, and the times of its output. Killed when dropped.
pub(crate) struct Machine {
    child: Child,
    printed: Arc<Mutex<Vec<(Instant, u8)>>>,
    listening: Option<JoinHandle<()>>,
}

impl Machine {
    /// Boots from the disk at this socket; if the socket goes away, the machine connects again each second.
    pub(crate) fn boot(scene: &Scene, socket: &str) -> Self {
        Self::boot_with(scene, socket, "memory-backend-memfd,id=memory,share=on,size=64M")
    }

    /// The same with its memory in a file that others may shorten.
    pub(crate) fn boot_in(scene: &Scene, socket: &str, memory: &Path) -> Self {
        let memory = format!("memory-backend-file,id=memory,share=on,size=64M,mem-path={}", memory.display());
        Self::boot_with(scene, socket, &memory)
    }

    fn boot_with(scene: &Scene, socket: &str, memory: &str) -> Self {
        let mut child = Command::new(find("qemu-system-x86_64").unwrap())
            .args(["-accel", "tcg", "-M", "pc,memory-backend=memory", "-m", "64M", "-nodefaults"])
            .args(["-display", "none", "-serial", "stdio", "-no-reboot"])
            // The machine's ticks begin again at midnight.
            .args(["-rtc", "base=2026-01-01T12:00:00"])
            .args(["-object", memory])
            .args(["-chardev", &format!("socket,id=disk,reconnect=1,path={}", scene.path(socket).display())])
            .args(["-device", "vhost-user-blk-pci,chardev=disk,num-queues=1,bootindex=1"])
            .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = child.stdout.take().unwrap();
        let printed = Arc::<Mutex<Vec<_>>>::default();
        let heard = Arc::clone(&printed);
        let listening = std::thread::spawn(move || {
            let mut bytes = [0; 64];
            while let Ok(len @ 1..) = out.read(&mut bytes) {
                let now = Instant::now();
                heard.lock().unwrap().extend(bytes[..len].iter().map(|byte| (now, *byte)));
            }
        });
        Self { child, printed, listening: Some(listening) }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The number of rounds so far.
    pub(crate) fn rounds(&self) -> u64 {
        self.printed.lock().unwrap().iter().filter(|(_, byte)| *byte == b'.').count() as u64
    }

    #[track_caller]
    pub(crate) fn wait_for_rounds(&mut self, rounds: u64) {
        wait_for(&format!("{rounds} rounds"), TIMEOUT, || {
            let now = self.rounds();
            assert!(now >= rounds || self.is_running(), "it ended after {now} rounds of {rounds}");
            if now >= rounds { Ok(()) } else { Err(now) }
        });
    }

    /// Waits for its end, which has to be a good one; returns its rounds, and the longest time of one of them.
    #[track_caller]
    pub(crate) fn end(mut self) -> (u64, Duration) {
        wait_for("it has ended", TIMEOUT, || {
            if self.is_running() { Err(format!("{} rounds", self.rounds())) } else { Ok(()) }
        });
        self.listening.take().unwrap().join().unwrap();
        let printed = self.printed.lock().unwrap().clone();
        let text: Vec<u8> = printed.iter().map(|(_, byte)| *byte).collect();
        let text = String::from_utf8_lossy(&text);
        let first = text.find('.').unwrap_or_else(|| panic!("it never ran: {text}"));
        let ran = text[first..].trim_end();
        assert!(ran.ends_with('!') && !ran.contains('E'), "it ended badly: {ran}");
        let longest = printed[first..].windows(2).map(|pair| pair[1].0 - pair[0].0).max();
        (self.rounds(), longest.unwrap())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Checks that the disk at `uri` has all writes of `rounds` rounds.
#[track_caller]
pub(crate) fn check_rounds(scene: &Scene, uri: &str, rounds: u64) {
    let copied = run_tool(find("nbdcopy").unwrap().to_str().unwrap(), &[uri, "out.raw"], &scene.path(""));
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    let (image, found) = (scene.bytes("disk.raw"), scene.bytes("out.raw"));
    let at = |sector: u64| {
        usize::try_from(sector).unwrap() * SECTOR..usize::try_from(sector + 1).unwrap() * SECTOR
    };
    for round in rounds.saturating_sub(PLACES)..rounds {
        let place = IMAGE + round % PLACES;
        let number = u32::try_from(round).unwrap().to_le_bytes().repeat(SECTOR / 4);
        assert!(found[at(place)] == number, "the number of round {round} is lost");
        let copied = &image[at(round * STRIDE % IMAGE)];
        assert!(found[at(place + PLACES)] == *copied, "what round {round} copied is lost");
    }
    assert!(found[..image.len() / 3 * 2] == image[..image.len() / 3 * 2], "the image is another one");
}
