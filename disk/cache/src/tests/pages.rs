//! The pages that the kernel keeps of a blob's file, with each treatment of the page cache.

use super::{BOOT, Sample};
use crate::sidecar::CHUNK;
use crate::{Cache, CacheSettings, CachedBlob, PageCache};
use headstart_block::{ByteRange, ReadAt};
use headstart_testkit::files::cached_bytes;
use headstart_testkit::process::skipped;
use rustix::fs::statfs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const LEN: u64 = 4 << 20;
/// The type of file systems that are the page cache.
const TMPFS: i64 = 0x0102_1994;

struct Scene {
    dir: tempfile::TempDir,
    sample: Sample,
}

impl Scene {
    /// `None` if nothing can be seen here.
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        if statfs(dir.path()).unwrap().f_type as i64 == TMPFS {
            skipped("files in the temporary directory are in the page cache only");
            return None;
        }
        let scene = Self { dir, sample: Sample::new(LEN as usize, 5) };
        let (_cache, blob) = scene.open(PageCache::Keep);
        scene.sample.fill(&blob, whole());
        cached_bytes(&scene.file()).map(|_| scene)
    }

    fn open(&self, page_cache: PageCache) -> (Arc<Cache>, Arc<CachedBlob>) {
        let settings = CacheSettings { check_whole: false, page_cache, ..CacheSettings::default() };
        let cache = Cache::open_in_boot(self.dir.path(), settings, BOOT).unwrap();
        let blob = cache.blob(&self.sample.spec).unwrap();
        (cache, blob)
    }

    fn file(&self) -> PathBuf {
        let mut found = Vec::new();
        each_file(self.dir.path(), &mut |path, len| {
            if len == LEN {
                found.push(path.to_owned());
            }
        });
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    #[track_caller]
    fn cached(&self) -> u64 {
        cached_bytes(&self.file()).unwrap()
    }
}

fn each_file(dir: &Path, each: &mut dyn FnMut(&Path, u64)) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            each_file(&entry.path(), each);
        } else {
            each(&entry.path(), entry.metadata().unwrap().len());
        }
    }
}

fn whole() -> ByteRange {
    ByteRange::between(0, LEN)
}

/// Reads a range as a decoder does that gives all of it out.
fn decode(scene: &Scene, blob: &CachedBlob, range: ByteRange) {
    assert!(scene.sample.reads(blob, range));
    blob.note_decoded(range);
}

#[test]
fn what_was_decoded_leaves_and_the_rest_stays() {
    let Some(scene) = Scene::new() else { return };
    let (cache, blob) = scene.open(PageCache::Drop);
    assert!(blob.wants_decoded());
    assert!(!blob.tree().unwrap().wants_decoded(), "pages of a tree are used again and again");
    let half = ByteRange::between(0, LEN / 2 + 100);
    decode(&scene, &blob, half);
    // Reads the other half, and gives none of it out.
    assert!(scene.sample.reads(&blob, ByteRange::between(LEN / 2 + 100, LEN)));
    assert_eq!(scene.cached(), LEN);
    cache.sync().unwrap();
    // The kernel may keep the larger unit at the border whole.
    let left = scene.cached();
    assert!((LEN / 2..LEN * 3 / 4).contains(&left), "{left} bytes");
    assert!(scene.sample.reads(&blob, whole()), "dropped pages come from the disk again");
    decode(&scene, &blob, ByteRange::between(LEN / 2, LEN));
    cache.sync().unwrap();
    // The first half was used again: nothing above keeps it, so it stays.
    let left = scene.cached();
    assert!((LEN / 4..LEN * 3 / 4).contains(&left), "{left} bytes");
}

#[test]
fn nothing_leaves_if_the_kernel_is_to_decide() {
    let Some(scene) = Scene::new() else { return };
    let (cache, blob) = scene.open(PageCache::Keep);
    assert!(!blob.wants_decoded());
    decode(&scene, &blob, whole());
    cache.sync().unwrap();
    assert_eq!(scene.cached(), LEN);
}

#[test]
fn pages_stay_while_another_process_uses_the_blob() {
    let Some(scene) = Scene::new() else { return };
    let (cache, blob) = scene.open(PageCache::Auto);
    // Another handle meets the locks of this one as another process does.
    let (other_cache, other_blob) = scene.open(PageCache::Keep);
    assert!(blob.wants_decoded());
    decode(&scene, &blob, whole());
    cache.sync().unwrap();
    assert_eq!(scene.cached(), LEN);
    drop((other_blob, other_cache));
    cache.sync().unwrap();
    assert_eq!(scene.cached(), 0);
}

#[test]
fn chunks_that_were_come_back_to_stay() {
    let Some(scene) = Scene::new() else { return };
    let (cache, blob) = scene.open(PageCache::Auto);
    assert!(blob.wants_decoded());
    // The kernel drops whole folios, which may have 2 MiB.
    let again = ByteRange::between(32 * CHUNK, 64 * CHUNK);
    assert!(scene.sample.reads(&blob, again));
    (0..2).for_each(|_| cache.storage.state.next_epoch());
    decode(&scene, &blob, whole());
    cache.sync().unwrap();
    assert_eq!(scene.cached(), again.len());
}
