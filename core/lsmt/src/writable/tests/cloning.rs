//! Clones on the real file system, and the description of a directory that shares files.

use super::super::state::{STATE, State};
use super::super::{BASE_DIR, Limits, Load, NewDisk, WritableDisk};
use super::sim::Machine;
use crate::LayerMeta;
use headstart_block::{BlockDevice, ErrorKind};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use uuid::Uuid;

const SIZE: u64 = 8 << 20;
const PART: usize = 64 << 10;

struct Scene(tempfile::TempDir);

impl Scene {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A new disk, filled with `byte`.
    fn disk(&self, name: &str, byte: u8) -> WritableDisk {
        let new = NewDisk { size: SIZE, parent: String::new(), uuid: Uuid::from_u128(5) };
        let disk = WritableDisk::create(self.path(name), None, &new).unwrap();
        fill(&disk, 0, byte);
        disk
    }

    fn open(&self, name: &str) -> WritableDisk {
        WritableDisk::open(self.path(name), None, "").unwrap()
    }

    fn version(&self, name: &str) -> u64 {
        let text = fs::read(self.path(name).join(STATE)).unwrap();
        serde_json::from_slice::<serde_json::Value>(&text).unwrap()["version"].as_u64().unwrap()
    }

    /// Bytes that all directories take together.
    fn taken(&self) -> u64 {
        let du = std::process::Command::new("du").arg("-s").arg("-B1").arg(self.0.path()).output().unwrap();
        let text = String::from_utf8(du.stdout).unwrap();
        text.split_whitespace().next().unwrap().parse().unwrap()
    }
}

/// Writes `byte` to the second half of the disk, from `from` on in quarters.
fn fill(disk: &WritableDisk, from: u64, byte: u8) {
    for start in (from * SIZE / 4..SIZE).step_by(PART) {
        disk.write_at(&[byte; PART], start).unwrap();
    }
    disk.flush().unwrap();
}

/// The byte of each quarter, which is all of one.
fn quarters(disk: &dyn BlockDevice) -> [u8; 4] {
    [0, 1, 2, 3].map(|quarter| {
        let mut bytes = vec![0xee; SIZE as usize / 4];
        disk.read_at(&mut bytes, quarter * SIZE / 4).unwrap();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "quarter {quarter}");
        bytes[0]
    })
}

fn collect_all(disk: &WritableDisk) {
    let steps = (0..10_000).take_while(|_| disk.collect(Load::Offline).unwrap()).count();
    assert!(steps < 10_000, "it never rests");
}

fn id(number: u128) -> Uuid {
    Uuid::from_u128(number << 64)
}

#[test]
fn a_clone_shares_its_files_until_one_of_the_disks_is_gone() {
    let scene = Scene::new();
    let source = scene.disk("a", 1);
    let before = scene.taken();
    let cloned = source.clone_to(scene.path("b"), id(2)).unwrap();
    assert_eq!((cloned.uuid, cloned.virtual_size, cloned.shared_pairs), (id(2), SIZE, 1));
    assert!(cloned.shared_bytes >= SIZE && scene.taken() < before + (64 << 10), "nothing was copied");
    let clone = scene.open("b");
    assert_eq!((clone.uuid(), quarters(&clone)), (id(2), [1; 4]));
    assert_eq!((scene.version("a"), scene.version("b")), (2, 2));
    assert_eq!(fs::metadata(scene.path("b/data")).unwrap().nlink(), 2);
    fill(&source, 2, 3);
    fill(&clone, 3, 4);
    assert_eq!((quarters(&source), quarters(&clone)), ([1, 1, 3, 3], [1, 1, 1, 4]));
    for (disk, pairs) in [(&source, 2), (&clone, 2)] {
        collect_all(disk);
        assert!(disk.space().shared_bytes >= SIZE && disk.usage().pairs == pairs, "{:?}", disk.usage());
    }
    drop((source, clone));
    // Without its clone, the source is as any other directory again, also for earlier versions.
    fs::remove_dir_all(scene.path("b")).unwrap();
    let source = scene.open("a");
    assert_eq!((source.space().shared_bytes, quarters(&source)), (0, [1, 1, 3, 3]));
    collect_all(&source);
    assert_eq!((source.usage().pairs, scene.version("a")), (1, 1));
    assert!(scene.taken() < before + (1 << 20), "what the clone kept is given back: {}", scene.taken());
    drop(source);
    assert_eq!(quarters(&scene.open("a")), [1, 1, 3, 3]);
}

#[test]
fn clones_of_clones_live_on_without_each_other() {
    let scene = Scene::new();
    let first = scene.disk("a", 1);
    first.clone_to(scene.path("b"), id(2)).unwrap();
    let second = scene.open("b");
    fill(&second, 2, 2);
    let cloned = second.clone_to(scene.path("c"), id(3)).unwrap();
    assert_eq!(cloned.shared_pairs, 2);
    drop(second);
    // One whose top is empty needs no new pair.
    let third = scene.open("c");
    assert_eq!(third.clone_to(scene.path("d"), id(4)).unwrap().shared_pairs, 2);
    assert_eq!(third.usage().pairs, 3);
    fill(&third, 3, 3);
    fs::remove_dir_all(scene.path("b")).unwrap();
    drop(first);
    fs::remove_dir_all(scene.path("a")).unwrap();
    collect_all(&third);
    assert_eq!(quarters(&third), [1, 1, 2, 3]);
    assert_eq!(quarters(&scene.open("d")), [1, 1, 2, 2]);
    fs::remove_dir_all(scene.path("d")).unwrap();
    collect_all(&third);
    assert_eq!((third.usage().pairs, quarters(&third)), (1, [1, 1, 2, 3]));
    // Its layer is that of any disk.
    let (layer, summary) = third.commit(Vec::new(), LayerMeta::default()).unwrap();
    assert!(layer.len() as u64 > SIZE && summary.data_bytes == SIZE);
}

#[test]
fn upper_pairs_are_absorbed_while_lower_ones_are_shared() {
    let scene = Scene::new();
    let disk = scene.disk("a", 1);
    disk.clone_to(scene.path("b"), id(2)).unwrap();
    fill(&disk, 2, 2);
    disk.write_zeroes(headstart_block::ByteRange::between(SIZE / 4, SIZE / 2)).unwrap();
    disk.clone_to(scene.path("c"), id(3)).unwrap();
    fill(&disk, 3, 3);
    assert_eq!(disk.usage().pairs, 3);
    fs::remove_dir_all(scene.path("c")).unwrap();
    collect_all(&disk);
    assert_eq!((disk.usage().pairs, quarters(&disk)), (2, [1, 0, 2, 3]));
    drop(disk);
    assert_eq!(quarters(&scene.open("a")), [1, 0, 2, 3]);
    assert_eq!(quarters(&scene.open("b")), [1; 4]);
}

/// Dead data that the clone needs does not count as garbage, which the collector could give back.
#[test]
fn writes_do_not_wait_for_space_that_a_clone_needs() {
    let scene = Scene::new();
    let disk = scene.disk("a", 1);
    for byte in [2, 3] {
        fill(&disk, 0, byte);
    }
    disk.clone_to(scene.path("b"), id(2)).unwrap();
    disk.set_limits(Limits { slack: 1 << 20, ..Limits::default() }).unwrap();
    for byte in [4, 5, 6] {
        fill(&disk, 0, byte);
        assert!(disk.space().garbage_percent <= 100, "{:?}", disk.space());
    }
    drop(disk);
    // So it is when the directory is opened again, where the holes are only known to the file system.
    let disk = scene.open("a");
    disk.set_limits(Limits { slack: 1 << 20, ..Limits::default() }).unwrap();
    fill(&disk, 0, 7);
    assert_eq!((quarters(&disk), quarters(&scene.open("b"))), ([7; 4], [3; 4]));
}

#[test]
fn a_place_that_is_taken_or_elsewhere_is_refused_and_nothing_changes() {
    let scene = Scene::new();
    let disk = scene.disk("a", 1);
    let kind = |path: PathBuf| disk.clone_to(path, id(2)).unwrap_err().kind();
    assert_eq!(kind(scene.path("a")), ErrorKind::Conflict);
    fs::write(scene.path("file"), "x").unwrap();
    assert_eq!(kind(scene.path("file")), ErrorKind::Conflict);
    fs::create_dir(scene.path("full")).unwrap();
    fs::write(scene.path("full/x"), "x").unwrap();
    assert_eq!(kind(scene.path("full")), ErrorKind::Conflict);
    assert_eq!(kind(scene.path("none/b")), ErrorKind::NotFound);
    let elsewhere = Path::new("/dev/shm");
    if fs::metadata(elsewhere).is_ok_and(|it| it.dev() != fs::metadata(scene.0.path()).unwrap().dev()) {
        let error = disk.clone_to(elsewhere.join("headstart-clone"), id(2)).unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unsupported && error.to_string().contains("file system"),
            "{error}"
        );
        assert!(!elsewhere.join("headstart-clone").exists());
    } else {
        headstart_testkit::process::skipped("/dev/shm is not another file system");
    }
    disk.stack_and_commit(Vec::new(), LayerMeta::default()).unwrap();
    assert_eq!(kind(scene.path("b")), ErrorKind::Conflict);
    disk.abandon_commit().unwrap();
    let names = |dir: &Path| {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    };
    assert_eq!(names(scene.0.path()), ["a", "file", "full"]);
    assert_eq!((scene.version("a"), quarters(&disk)), (1, [1; 4]));
    // An empty directory is a place.
    fs::create_dir(scene.path("empty")).unwrap();
    disk.clone_to(scene.path("empty"), id(2)).unwrap();
    assert_eq!(quarters(&scene.open("empty")), [1; 4]);
}

#[test]
fn a_clone_that_was_interrupted_is_made_again_and_takes_the_copy_of_the_image_along() {
    let scene = Scene::new();
    let disk = scene.disk("a", 1);
    let blobs = scene.path("a").join(BASE_DIR).join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join("0123"), "blob").unwrap();
    fs::write(scene.path("a").join(BASE_DIR).join("index.json"), "{}").unwrap();
    fs::create_dir_all(scene.path("a").join(BASE_DIR).join(".headstart/leases")).unwrap();
    let left = scene.path(".b.cloning");
    fs::create_dir_all(left.join(BASE_DIR).join("blobs")).unwrap();
    fs::hard_link(scene.path("a/data"), left.join("data")).unwrap();
    fs::write(left.join(STATE), "half").unwrap();
    disk.clone_to(scene.path("b"), id(2)).unwrap();
    assert!(!left.exists());
    assert_eq!(quarters(&scene.open("b")), [1; 4]);
    let base = scene.path("b").join(BASE_DIR);
    assert_eq!(fs::read(base.join("blobs/sha256/0123")).unwrap(), b"blob");
    assert!(base.join("index.json").exists() && !base.join(".headstart").exists());
}

#[test]
fn a_repair_leaves_the_log_of_the_other_directory_whole() {
    let scene = Scene::new();
    let disk = scene.disk("a", 1);
    fill(&disk, 2, 2);
    disk.clone_to(scene.path("b"), id(2)).unwrap();
    drop(disk);
    // Damage in one of the shared files is in both directories. A copy is brought back in one of them.
    let (ours, theirs) = (scene.path("a/index"), scene.path("b/index"));
    let whole = fs::read(&ours).unwrap();
    let mut damaged = whole.clone();
    let place = damaged.len() - 24;
    damaged[place] ^= 0xff;
    fs::write(&ours, &damaged).unwrap();
    assert_eq!(fs::read(&theirs).unwrap(), damaged, "one file");
    assert!(WritableDisk::open(scene.path("b"), None, "").is_err());
    let repaired = WritableDisk::repair(scene.path("a")).unwrap();
    assert_eq!(repaired.len(), 1, "{repaired:?}");
    assert_eq!(fs::read(&theirs).unwrap(), damaged);
    drop(scene.open("a"));
    fs::write(&theirs, &whole).unwrap();
    assert_eq!(quarters(&scene.open("b")), [1, 1, 2, 2]);
    assert!(fs::metadata(&ours).unwrap().len() < whole.len() as u64);
}

/// As version 0.2.0 wrote it, with two pairs that a clone shares.
const SHARED: &str = include_str!("state-v2.json");

#[test]
fn the_description_of_shared_files_is_understood_and_refused_by_version() {
    let load = |text: &str| {
        let machine = Machine::default();
        machine.put(STATE, text.as_bytes());
        State::load(&*machine.directory())
    };
    let state = load(SHARED).unwrap();
    assert_eq!(state.shared, ["data", "data.3"]);
    assert_eq!(state.numbers(), [0, 3, 4]);
    // Without shared files, it is written as before.
    let machine = Machine::default();
    State { shared: Vec::new(), ..state.clone() }.store(&*machine.directory()).map_err(|e| e.error).unwrap();
    let text = String::from_utf8(machine.contents(STATE)).unwrap();
    assert!(text.contains("\"version\": 1") && !text.contains("shared"), "{text}");
    state.store(&*machine.directory()).map_err(|e| e.error).unwrap();
    assert_eq!(String::from_utf8(machine.contents(STATE)).unwrap(), SHARED.trim_end());
    // A later version, the active pair, and a pair that is none.
    let error = load(&SHARED.replace("\"version\": 2", "\"version\": 3")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    for other in ["data.4", "data.7"] {
        let error = load(&SHARED.replace("    \"data.3\"\n", &format!("    \"{other}\"\n"))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}

/// The cost of a clone does not depend on the data of the disk.
#[test]
fn a_clone_takes_as_many_steps_for_much_data_as_for_little() {
    let steps = |sectors: usize| {
        let machine = Machine::default();
        let new = NewDisk { size: 64 << 20, parent: String::new(), uuid: id(1) };
        let disk = WritableDisk::create_in(machine.directory(), None, &new).unwrap();
        for place in 0..sectors {
            disk.write_at(&[7; 512], place as u64 * 2048).unwrap();
        }
        disk.flush().unwrap();
        let before = machine.steps();
        disk.clone_to("clone", id(2)).unwrap();
        machine.steps() - before
    };
    let few = steps(1);
    assert_eq!((steps(3000), few < 40), (few, true), "{few}");
}
