//! The behaviour of every flash, whatever is behind it.

use super::emulator::FlashFaults;
use super::forks::output_of;
use super::*;
use proptest::prelude::*;
use rustix::fs::{Advice, fadvise};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const SMALL: Geometry = Geometry { channels: 2, dies: 2, planes: 1, blocks: 2, pages: 8, page_size: 1024 };

/// Flash that can lose its process, or its power after a flush.
trait Subject: Sized {
    /// `None` if this host has no such thing.
    fn new() -> Option<Self>;
    fn flash(&self) -> &dyn Flash;
    fn reopened(self) -> Self;
    /// `true` if reopened flash still knows which pages are not erased.
    const KEEPS_RULES: bool;
}

struct InMemory(Emulator);

impl Subject for InMemory {
    const KEEPS_RULES: bool = true;

    fn new() -> Option<Self> {
        Some(Self(Emulator::new(SMALL, FlashFaults::default())))
    }

    fn flash(&self) -> &dyn Flash {
        &self.0
    }

    fn reopened(self) -> Self {
        self.0.flush().unwrap();
        Self(self.0.lose_power())
    }
}

struct InSparse(Emulator);

impl Subject for InSparse {
    const KEEPS_RULES: bool = true;

    fn new() -> Option<Self> {
        Some(Self(Emulator::in_file(SMALL, FlashFaults::default(), tempfile::tempfile().unwrap()).unwrap()))
    }

    fn flash(&self) -> &dyn Flash {
        &self.0
    }

    fn reopened(self) -> Self {
        self.0.flush().unwrap();
        Self(self.0.lose_power())
    }
}

struct InFile(FileFlash, TempDir);

impl Subject for InFile {
    const KEEPS_RULES: bool = false;

    fn new() -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("flash");
        Some(Self(FileFlash::create(&path, &FileFlash::table_beside(&path), SMALL).unwrap(), folder))
    }

    fn flash(&self) -> &dyn Flash {
        &self.0
    }

    fn reopened(self) -> Self {
        let Self(flash, folder) = self;
        drop(flash);
        let path = folder.path().join("flash");
        Self(FileFlash::open(&path, &FileFlash::table_beside(&path)).unwrap(), folder)
    }
}

/// A loop device, if this host has one to give.
struct InDevice {
    flash: Option<FileFlash>,
    device: String,
    folder: TempDir,
}

impl InDevice {
    fn attach() -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("device");
        std::fs::write(&path, vec![0xff; usize::try_from(SMALL.size()).unwrap()]).unwrap();
        let output = output_of("losetup", &["--find".as_ref(), "--show".as_ref(), path.as_os_str()]);
        let Some(output) = output.ok().filter(|output| output.status.success()) else {
            writeln!(std::io::stderr(), "SKIPPED: flash on a device: no loop device to be had")
                .unwrap_or_default();
            return None;
        };
        let device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Some(Self { flash: None, device, folder })
    }

    fn table(&self) -> PathBuf {
        self.folder.path().join("table")
    }
}

impl Drop for InDevice {
    fn drop(&mut self) {
        self.flash = None;
        let _ = output_of("losetup", &["--detach".as_ref(), self.device.as_ref()]);
    }
}

impl Subject for InDevice {
    const KEEPS_RULES: bool = false;

    fn new() -> Option<Self> {
        let mut subject = Self::attach()?;
        let larger = Geometry { blocks: SMALL.blocks + 1, ..SMALL };
        let path = Path::new(&subject.device);
        assert!(FileFlash::create(path, &subject.table(), larger).is_err());
        subject.flash = Some(FileFlash::create(path, &subject.table(), SMALL).unwrap());
        Some(subject)
    }

    fn flash(&self) -> &dyn Flash {
        self.flash.as_ref().unwrap()
    }

    fn reopened(mut self) -> Self {
        self.flash = None;
        let flash = FileFlash::open(Path::new(&self.device), &self.table()).unwrap();
        // The device's cache is no proof that the device has the data: look below.
        let below = std::fs::read(self.folder.path().join("device")).unwrap();
        let blocks = below.chunks(SMALL.block_size() as usize);
        assert!((0..).zip(blocks).all(|(block, bytes)| whole(&flash, block) == bytes));
        self.flash = Some(flash);
        self
    }
}

fn whole(flash: &dyn Flash, block: u32) -> Vec<u8> {
    let mut bytes = vec![1; SMALL.block_size() as usize];
    flash.read(FlashBlock(block), 0, &mut bytes).unwrap();
    bytes
}

fn keeps_its_promises<S: Subject>() {
    let Some(subject) = S::new() else { return };
    let flash = subject.flash();
    assert_eq!(flash.geometry(), SMALL);
    for block in 0..SMALL.total_blocks() {
        assert!(whole(flash, block).iter().all(|byte| *byte == 0));
        assert!(!flash.is_bad(FlashBlock(block)));
        assert_eq!(flash.wear(FlashBlock(block)), 0);
    }
    let block = FlashBlock(5);
    flash.program(block, 1, &[7; 2048]).unwrap();
    flash.program(block, 6, &[8; 1024]).unwrap();
    let mut part = [9; 2000];
    flash.read(block, 500, &mut part).unwrap();
    assert!(part[..524].iter().all(|byte| *byte == 0) && part[524..].iter().all(|byte| *byte == 7));
    for page in [0, 1, 2, 5, 6] {
        let refused = flash.program(block, page, &[9; 1024]);
        assert!(
            matches!(refused, Err(FlashError::NotErased(FlashBlock(5), it)) if it == page),
            "{refused:?}"
        );
    }
    for (outside, page, len) in [(5, 7, 2048), (5, 8, 1024), (5, 7, 100), (8, 0, 1024), (u32::MAX, 0, 1024)] {
        assert!(matches!(
            flash.program(FlashBlock(outside), page, &vec![1; len]),
            Err(FlashError::Failed(_))
        ));
    }
    assert!(matches!(flash.read(block, 8000, &mut part), Err(FlashError::Failed(_))));
    assert!(matches!(flash.read(FlashBlock(8), 0, &mut part), Err(FlashError::Failed(_))));
    assert!(flash.erase(FlashBlock(8)).is_err() && flash.is_bad(FlashBlock(8)));
    flash.program(block, 7, &[3; 1024]).unwrap();
    let held = whole(flash, 5);
    flash.flush().unwrap();

    let subject = subject.reopened();
    let flash = subject.flash();
    assert_eq!(whole(flash, 5), held);
    assert_eq!(flash.program(block, 7, &[3; 1024]).is_err(), S::KEEPS_RULES);
    flash.erase(block).unwrap();
    assert_eq!((flash.wear(block), flash.wear(FlashBlock(4))), (1, 0));
    flash.program(block, 0, &[4; 1024]).unwrap();
    flash.program(FlashBlock(4), 0, &[4; 1024]).unwrap();
    let erased = flash.erase_many(&[FlashBlock(4), FlashBlock(9), block]);
    assert_eq!(erased.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);

    let subject = subject.reopened();
    let flash = subject.flash();
    assert!([4, 5].iter().all(|block| whole(flash, *block).iter().all(|byte| *byte == 0)));
    assert_eq!((flash.wear(block), flash.wear(FlashBlock(4))), (2, 1));
}

#[test]
fn every_device_keeps_the_contract() {
    keeps_its_promises::<InMemory>();
    keeps_its_promises::<InSparse>();
    keeps_its_promises::<InFile>();
    keeps_its_promises::<InDevice>();
}

#[derive(Clone, Debug)]
enum BrokerStep {
    Program { block: u32, skip: u32, pages: u32, byte: u8 },
    Erase(u32),
    EraseMany(Vec<u32>),
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<BrokerStep>> {
    let step = prop_oneof![
        6 => (0..8_u32, 0..2_u32, 1..4_u32, any::<u8>())
            .prop_map(|(block, skip, pages, byte)| BrokerStep::Program { block, skip, pages, byte }),
        3 => (0..8_u32).prop_map(BrokerStep::Erase),
        1 => prop::collection::btree_set(0..8_u32, 0..8).prop_map(|it| BrokerStep::EraseMany(it.into_iter().collect())),
        1 => Just(BrokerStep::Reopen),
    ];
    prop::collection::vec(step, 0..60)
}

fn is_as_the_model<S: Subject>(steps: &[BrokerStep]) {
    let mut subject = S::new().unwrap();
    let mut model: BTreeMap<u32, (u32, Vec<u8>, u32)> =
        (0..8).map(|block| (block, (0, vec![0; SMALL.block_size() as usize], 0))).collect();
    for step in steps {
        let flash = subject.flash();
        match step {
            BrokerStep::Program { block, skip, pages, byte } => {
                let (next, bytes, _) = model.get_mut(block).unwrap();
                let first = *next + skip;
                let inside = first + pages <= SMALL.pages;
                let data = vec![*byte; (pages * SMALL.page_size) as usize];
                assert_eq!(flash.program(FlashBlock(*block), first, &data).is_ok(), inside);
                if inside {
                    let at = (first * SMALL.page_size) as usize;
                    bytes[at..at + data.len()].copy_from_slice(&data);
                    *next = first + pages;
                }
            }
            BrokerStep::Erase(block) => {
                flash.erase(FlashBlock(*block)).unwrap();
                erase(&mut model, *block);
            }
            BrokerStep::EraseMany(blocks) => {
                let numbers: Vec<_> = blocks.iter().copied().map(FlashBlock).collect();
                assert!(flash.erase_many(&numbers).iter().all(Result::is_ok));
                blocks.iter().for_each(|block| erase(&mut model, *block));
            }
            BrokerStep::Reopen => subject = subject.reopened(),
        }
        for (block, (_, bytes, wear)) in &model {
            assert_eq!(&whole(subject.flash(), *block), bytes);
            assert_eq!(subject.flash().wear(FlashBlock(*block)), *wear);
        }
    }
}

/// The file below a device is shorter than the device: the system reports EIO beyond its end, as for sectors that are
/// gone.
#[test]
fn a_device_says_which_page_cannot_be_read() {
    let Some(subject) = InDevice::new() else { return };
    let flash = subject.flash();
    let (block, other) = (FlashBlock(5), FlashBlock(0));
    flash.program(other, 0, &[1; 8192]).unwrap();
    flash.program(block, 0, &[2; 8192]).unwrap();
    flash.flush().unwrap();
    let cut_at = |len| {
        let below = File::options().write(true).open(subject.folder.path().join("device")).unwrap();
        below.set_len(len).unwrap();
        let device = File::open(&subject.device).unwrap();
        fadvise(&device, 0, None, Advice::DontNeed).unwrap();
    };
    // In pages of memory, which are four of its own.
    cut_at(5 * 8192 + 4096);
    assert!(flash.read(block, 0, &mut [0; 4096]).is_ok());
    let read = flash.read(block, 2048, &mut [0; 6144]);
    assert!(matches!(read, Err(FlashError::Unreadable(FlashBlock(5), 4))), "{read:?}");
    assert!(flash.answers(block));
    cut_at(0);
    assert!(matches!(flash.read(other, 0, &mut [0; 1024]), Err(FlashError::Unreadable(FlashBlock(0), 0))));
    assert!(!flash.answers(block));
}

fn erase(model: &mut BTreeMap<u32, (u32, Vec<u8>, u32)>, block: u32) {
    let (next, bytes, wear) = model.get_mut(&block).unwrap();
    *next = 0;
    bytes.fill(0);
    *wear += 1;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_device_behaves_as_the_model(steps in steps()) {
        is_as_the_model::<InMemory>(&steps);
        is_as_the_model::<InSparse>(&steps);
        is_as_the_model::<InFile>(&steps);
    }
}
