//! Formats that the library lacks, through `qemu-img` where it is installed.

use super::{AllowedDirs, DiskFormat, MAX_CHAIN, chain, vmdk};
use crate::progress::{Progress, step};
use headstart_block::{Error, ErrorKind, Result};
use serde_json::Value;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use tempfile::TempPath;

/// Converts `path` to a sparse raw file in `scratch`, which goes away with the value returned.
pub(super) fn convert_to_raw(
    path: &Path,
    format: DiskFormat,
    allowed: &AllowedDirs,
    scratch: &Path,
    progress: &dyn Progress,
) -> Result<TempPath> {
    let size = check_chain(path, format, allowed)?;
    if matches!(format, DiskFormat::Vmdk | DiskFormat::Qcow2) {
        check_structure(path, format)?;
    }
    let raw = tempfile::Builder::new()
        .prefix("converted-")
        .tempfile_in(scratch)
        .map_err(|e| Error::io("cannot make a scratch file", e).about(scratch.display()))?
        .into_temp_path();
    let mut child = Command::new("qemu-img")
        .args(["convert", "-p", "-f", format.qemu_name(), "-O", "raw"])
        .args([absolute(path)?, raw.to_path_buf()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| not_installed(format, e))?;
    progress.begin("convert with qemu-img", size);
    // A pipe that nobody empties would stop it after 64 KiB of warnings.
    let complaints = child.stderr.take().map(|stderr| std::thread::spawn(move || head_of(stderr)));
    let status = follow(child, size, progress)?;
    let said = complaints.and_then(|thread| thread.join().ok()).unwrap_or_default();
    judge(status, &said)?;
    Ok(raw)
}

/// A path that cannot be taken for an option or a protocol (`nbd://...`).
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| Error::io("cannot make its path absolute", e))
}

/// Checks every file that the image, its backing chain, its extents and data files name; returns the disk's size.
/// Each is checked before `qemu-img` opens it: it would connect to a server whose address is in the place of a name.
fn check_chain(path: &Path, format: DiskFormat, allowed: &AllowedDirs) -> Result<u64> {
    let (mut path, mut format_name) = (absolute(path)?, Some(format.qemu_name().to_owned()));
    let mut size = None;
    for _ in 0..MAX_CHAIN {
        if format_name.as_ref().is_none_or(|name| name == "vmdk") {
            let file = chain::open_disk(&path)?;
            vmdk::check(&file, allowed).map_err(|e| e.about(path.display()))?;
        }
        // Without its backing file, which is next.
        let info = look_at(&path, format_name.as_deref(), format)?;
        let dir = path.parent().unwrap_or(Path::new("/"));
        check_names(&info, dir, allowed)?;
        let size = *size.get_or_insert(info["virtual-size"].as_u64().unwrap_or(0));
        let backing = ["full-backing-filename", "backing-filename"].map(|key| info[key].as_str());
        let Some(backing) = backing[0].or(backing[1]) else { return Ok(size) };
        path = dir.join(backing);
        format_name = info["backing-filename-format"].as_str().map(str::to_owned);
    }
    Err(Error::invalid(format!("a chain of more than {MAX_CHAIN} images, or one without end")))
}

/// What `qemu-img info` says of one file.
fn look_at(path: &Path, format_name: Option<&str>, format: DiskFormat) -> Result<Value> {
    let mut command = Command::new("qemu-img");
    command.args(["info", "--output=json"]).args(format_name.map(|name| ["-f", name]).into_iter().flatten());
    let output = command.arg(path).stdin(Stdio::null()).output().map_err(|e| not_installed(format, e))?;
    if !output.status.success() {
        return Err(failed(&String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|e| Error::new(ErrorKind::Io, "cannot understand what `qemu-img info` says").caused_by(e))
}

/// Converting, `qemu-img` takes what is past the end of a truncated file for zeros; only a check tells (of vhd and
/// vhdx, already opening). What else may be wrong with a qcow2 are its counts of references, which only writers need.
fn check_structure(path: &Path, format: DiskFormat) -> Result<()> {
    let output = Command::new("qemu-img")
        .args(["check", "-f", format.qemu_name()])
        .arg(absolute(path)?)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| not_installed(format, e))?;
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        // All right; leaks, which cost only space; no check for this variant.
        Some(0 | 3 | 63) => Ok(()),
        Some(2) if format == DiskFormat::Qcow2 && !said.contains("end of the file") => Ok(()),
        _ => Err(failed(said.lines().next().unwrap_or_default())
            .remedy("it is damaged or truncated: copy it again")),
    }
}

/// Every name of a file, however deep `qemu-img` reports it; those that are not absolute are seen from `dir`.
fn check_names(info: &Value, dir: &Path, allowed: &AllowedDirs) -> Result<()> {
    match info {
        Value::Object(fields) => fields.iter().try_for_each(|(key, value)| match value {
            Value::String(name) if FILE_KEYS.contains(&key.as_str()) => {
                allowed.open(&dir.join(name)).map(drop)
            }
            _ => check_names(value, dir, allowed),
        }),
        Value::Array(items) => items.iter().try_for_each(|item| check_names(item, dir, allowed)),
        _ => Ok(()),
    }
}

/// The fields of `qemu-img info` that hold a path as it will be opened.
const FILE_KEYS: [&str; 3] = ["filename", "full-backing-filename", "data-file"];

/// Bytes of `qemu-img`'s complaints that are passed on.
const SAID_MAX: u64 = 4096;

/// SIGHUP, SIGINT and SIGTERM.
const STOPPING: [i32; 3] = [1, 2, 15];

/// Reads the percentages that `qemu-img -p` prints until it ends; says how it ended.
fn follow(mut child: Child, size: u64, progress: &dyn Progress) -> Result<ExitStatus> {
    let mut done = 0;
    let mut text = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        let mut buf = [0; 256];
        while let Ok(len @ 1..) = stdout.read(&mut buf) {
            text.push_str(&String::from_utf8_lossy(&buf[..len]));
            let now = percent(&text).map_or(done, |percent| size / 100 * percent.min(100));
            if let Err(cancelled) = step(progress, now.saturating_sub(done)) {
                let _ = child.kill();
                let _ = child.wait();
                return Err(cancelled);
            }
            done = done.max(now);
            text = text.rsplit('\r').next().unwrap_or_default().to_owned();
        }
    }
    let status = child.wait().map_err(|e| Error::io("cannot wait for qemu-img", e))?;
    step(progress, 0)?;
    Ok(status)
}

/// Reads all of `pipe`, and keeps the beginning.
fn head_of(mut pipe: impl Read) -> String {
    let mut head = Vec::new();
    // What cannot be read is only a part of a message.
    let _ = pipe.by_ref().take(SAID_MAX).read_to_end(&mut head);
    let _ = io::copy(&mut pipe, &mut io::sink());
    String::from_utf8_lossy(&head).into_owned()
}

/// What the end of a conversion means; `said` is what it wrote to standard error.
fn judge(status: ExitStatus, said: &str) -> Result<()> {
    match status.signal() {
        None if status.success() => Ok(()),
        None => Err(failed(said)),
        // Ctrl-C at a terminal ends the child as well, and we may hear of that first.
        Some(signal) if STOPPING.contains(&signal) => {
            Err(Error::new(ErrorKind::Cancelled, "stopped on request; nothing was changed"))
        }
        Some(signal) => Err(Error::new(ErrorKind::Io, format!("qemu-img was killed by signal {signal}"))),
    }
}

/// The last whole percentage in text like `    (42.01/100%)\r`.
fn percent(text: &str) -> Option<u64> {
    let (before, _) = text.rsplit_once("/100%")?;
    let (_, number) = before.rsplit_once('(')?;
    number.split('.').next()?.trim().parse().ok()
}

fn failed(stderr: &str) -> Error {
    if stderr.contains("No space left") {
        return Error::io("cannot convert it with qemu-img", rustix::io::Errno::NOSPC.into());
    }
    // One line, whatever it says.
    let said = stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    Error::corrupt(format!("qemu-img cannot read it: {said}"))
}

fn not_installed(format: DiskFormat, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound {
        return Error::unsupported(format!(
            "reading this kind of {format} takes qemu-img, which is not installed"
        ))
        .remedy("install qemu-utils (Debian, Ubuntu) or qemu-img (Fedora), or convert it to raw or qcow2");
    }
    Error::io("cannot run qemu-img", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_percentages() {
        assert_eq!(percent("    (0.00/100%)\r    (42.01/100%)\r"), Some(42));
        assert_eq!(percent("    (100.00/100%)"), Some(100));
        assert_eq!(percent("    (4"), None);
    }
}
