//! Bits that flip in a cache, unnoticed by its users.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Flips a bit of the blob with this digest (64 hexadecimal digits) in the cache at `dir`; `at` returns its place, by
/// the blob's length.
#[track_caller]
pub(crate) fn flip(dir: &Path, digest: &str, at: impl Fn(u64) -> u64) {
    let is_data = |path: &Path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with(digest) && name.ends_with(".data")
    };
    let path = fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path()).find(|path| is_data(path));
    let path = path.unwrap_or_else(|| panic!("{digest} is not in the cache"));
    let file = File::options().read(true).write(true).open(path).unwrap();
    let (mut byte, at) = ([0], at(file.metadata().unwrap().len()));
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}
