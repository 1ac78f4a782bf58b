//! The disks and images that are measured.

use headstart_image::open_image::OpenImage;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const BLOCK: u64 = 4096;
/// Layers of the images with many.
const LAYERS: u64 = 20;
/// Size of the disk that speed is measured on.
const DISK: u64 = 512 << 20;
/// Changes of that disk from one layer to the next, of one to sixteen blocks each.
const CHANGES: u64 = 240;
/// Size of the disk that attaching is measured on, and its segments, of 4 KiB each.
const WIDE_DISK: u64 = 40 << 30;
const WIDE_SEGMENTS: u64 = 4500;

/// One disk's content in several forms.
pub(crate) struct Images {
    /// The raw disk.
    pub(crate) raw: PathBuf,
    /// One layer, not compressed.
    pub(crate) flat: String,
    /// 20 layers of lz4 in frames of 4 KiB.
    pub(crate) layered: String,
    /// One layer as it is made by default.
    pub(crate) default: String,
}

/// Numbers that are the same every time.
struct Numbers(u64);

impl Numbers {
    /// A number below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Makes a disk of this machine's own files and its images in `dir`.
pub(crate) fn make(dir: &Path) -> Images {
    fs::create_dir_all(dir).expect("a directory");
    let (raw, store) = (dir.join("disk.raw"), dir.join("store"));
    let content = content(DISK + (32 << 20));
    fs::write(&raw, &content[..DISK as usize]).expect("space for the disk");
    let disk = fs::File::options().write(true).open(&raw).expect("the disk");
    let mut numbers = Numbers(1);
    let lz4 = ["--codec", "lz4", "--frame-size", "4k"];
    for layer in 0..LAYERS {
        if layer > 0 {
            for _ in 0..CHANGES {
                let len = (1 + numbers.below(16)) * BLOCK;
                let from = numbers.below((content.len() as u64 - len) / BLOCK) * BLOCK;
                let to = numbers.below((DISK - len) / BLOCK) * BLOCK;
                disk.write_all_at(&content[from as usize..(from + len) as usize], to).expect("space");
            }
        }
        import(&raw, &image(&store, "lz4", layer), layer_below(&store, "lz4", layer).as_deref(), &lz4);
    }
    let [flat, default] = ["flat", "default"].map(|name| image(&store, name, 0));
    import(&raw, &flat, None, &["--codec", "none"]);
    import(&raw, &default, None, &[]);
    forget(&raw);
    let blobs = fs::read_dir(store.join("blobs/sha256")).expect("a store");
    blobs.for_each(|blob| forget(&blob.expect("a blob").path()));
    Images { raw, flat, layered: image(&store, "lz4", LAYERS - 1), default }
}

/// Drops a file from the page cache. The way in which it was written decides the size of the cache's pages, and so the
/// speed of copying; after reading again, all files are cached in the same way.
fn forget(path: &Path) {
    let file = fs::File::open(path).expect("a file");
    file.sync_all().expect("written");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("dropped");
}

/// An image in a store.
pub(crate) struct Wide {
    /// The store's directory.
    pub(crate) store: PathBuf,
    pub(crate) tag: String,
}

impl Wide {
    /// Its reference.
    pub(crate) fn local(&self) -> String {
        format!("file://{}:{}", self.store.display(), self.tag)
    }

    /// Bytes of its index in memory: 16 for a segment, 4 for a frame.
    pub(crate) fn index_bytes(&self) -> u64 {
        let reference = self.local().parse().expect("a reference");
        let image = OpenImage::open(&reference).expect("the image");
        let frames: u64 =
            image.layers.iter().filter_map(|layer| layer.source.zfile()).map(|info| info.frames).sum();
        image.disk().index().segments().len() as u64 * 16 + frames * 4
    }
}

/// Makes the image that attaching is measured with in `dir`.
pub(crate) fn make_wide(dir: &Path) -> Wide {
    fs::create_dir_all(dir).expect("a directory");
    let (raw, store) = (dir.join("disk.raw"), dir.join("store"));
    let disk = fs::File::create(&raw).expect("a file");
    disk.set_len(WIDE_DISK).expect("a sparse file");
    let mut numbers = Numbers(2);
    // Data at every other block at the most, so that each write is a segment of its own.
    let places = WIDE_DISK / BLOCK / WIDE_SEGMENTS;
    for layer in 0..LAYERS {
        for place in (0..WIDE_SEGMENTS).filter(|place| place % LAYERS == layer) {
            let block: Vec<u8> = (0..BLOCK).map(|_| numbers.below(256) as u8).collect();
            let at = place * places + numbers.below(places - 1);
            disk.write_all_at(&block, at * BLOCK).expect("space");
        }
        import(&raw, &image(&store, "wide", layer), layer_below(&store, "wide", layer).as_deref(), &[]);
    }
    fs::remove_file(&raw).expect("removed");
    Wide { store, tag: format!("wide-{}", LAYERS - 1) }
}

fn image(store: &Path, name: &str, layer: u64) -> String {
    format!("file://{}:{name}-{layer}", store.display())
}

fn layer_below(store: &Path, name: &str, layer: u64) -> Option<String> {
    layer.checked_sub(1).map(|below| image(store, name, below))
}

fn import(disk: &Path, image: &str, base: Option<&str>, packing: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headstart"));
    command.args(["--quiet", "image", "import"]).arg(disk).arg(image).args(packing);
    if let Some(base) = base {
        command.args(["--base", base]);
    }
    let status = command.stdout(Stdio::null()).status().expect("headstart starts");
    assert!(status.success(), "{command:?} failed");
}

/// `len` bytes of this machine's files, each padded to whole blocks as on a disk.
fn content(len: u64) -> Vec<u8> {
    let mut content = Vec::new();
    for dir in ["/usr/bin", "/usr/lib", "/usr/share"] {
        add_files(Path::new(dir), len as usize, &mut content);
    }
    assert!(content.len() as u64 >= len, "this machine has fewer than {len} bytes of files in /usr");
    content.truncate(len as usize);
    content
}

fn add_files(dir: &Path, len: usize, content: &mut Vec<u8>) {
    let mut entries: Vec<_> = fs::read_dir(dir).map(|dir| dir.flatten().collect()).unwrap_or_default();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type();
        if content.len() >= len {
            return;
        } else if kind.as_ref().is_ok_and(fs::FileType::is_dir) {
            add_files(&entry.path(), len, content);
        } else if kind.is_ok_and(|kind| kind.is_file())
            && let Ok(mut file) = fs::File::open(entry.path())
            && file.read_to_end(content).is_ok()
        {
            content.resize(content.len().next_multiple_of(BLOCK as usize), 0);
        }
    }
}
