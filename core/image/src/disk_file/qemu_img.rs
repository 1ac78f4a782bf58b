//! Formats that the library lacks, through `qemu-img` if it is installed: with limits, without a network, and only with
//! files that were opened and checked here.

use super::confined::{self, Limits};
use super::source::Source;
use super::{AllowedDirs, DiskFormat};
use crate::progress::{Progress, step};
use headstart_block::{Error, ErrorKind, FileSource, Result};
use serde_json::Value;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use tempfile::TempPath;

/// The limits for looking at an image, which writes nothing.
const LOOK: Limits = Limits { memory: 2 << 30, seconds: 60, file: 0 };
/// The limits for reading and writing a disk, and the addition for each 32 MiB of it.
const CONVERT: Limits = Limits { memory: 4 << 30, seconds: 600, file: 1 << 20 };
const BYTES_EACH_SECOND: u64 = 32 << 20;

/// Converts `file` to a sparse raw file in `scratch`, which is removed with the returned value.
pub(super) fn convert_to_raw(
    file: &FileSource,
    format: DiskFormat,
    allowed: &AllowedDirs,
    scratch: &Path,
    progress: &dyn Progress,
) -> Result<TempPath> {
    let program = confined::find("qemu-img").map_err(|_| not_installed(format))?;
    // The path as `qemu-img` sees it.
    let scratch = std::path::absolute(scratch).map_err(|e| Error::io("cannot make its path absolute", e))?;
    let (_open, image) = Source::open(file, format, allowed, &scratch)?;
    let size = size_of(&program, &image.top)?;
    let limits = Limits {
        seconds: CONVERT.seconds + size / BYTES_EACH_SECOND,
        file: size.saturating_add(CONVERT.file),
        ..CONVERT
    };
    if format == DiskFormat::Vmdk {
        check_structure(&program, &image.disk, &limits)?;
    }
    let raw = tempfile::Builder::new()
        .prefix("converted-")
        .tempfile_in(&scratch)
        .map_err(|e| Error::io("cannot make a scratch file", e).about(scratch.display()))?
        .into_temp_path();
    let mut child = limits
        .command(&program)
        .args(["convert", "-p", "-O", "raw", &image.disk])
        .arg(&raw)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(not_run)?;
    progress.begin("convert with qemu-img", size);
    // Read by a thread, because a full pipe would stop it after 64 KiB of warnings.
    let complaints = child.stderr.take().map(|stderr| std::thread::spawn(move || head_of(stderr)));
    let status = follow(child, size, progress)?;
    let message = complaints.and_then(|thread| thread.join().ok()).unwrap_or_default();
    judge(status, &message, &limits)?;
    Ok(raw)
}

/// The size of the disk, in bytes.
fn size_of(program: &Path, image: &str) -> Result<u64> {
    let output = LOOK.command(program).args(["info", "--output=json", image]).output().map_err(not_run)?;
    judge(output.status, &String::from_utf8_lossy(&output.stderr), &LOOK)?;
    let info: Value = serde_json::from_slice(&output.stdout).map_err(|e| {
        Error::new(ErrorKind::Io, "cannot understand the output of `qemu-img info`").caused_by(e)
    })?;
    Ok(info["virtual-size"].as_u64().unwrap_or(0))
}

/// Kinds of vmdk that are not known here may be cut short, too: during a conversion, `qemu-img` takes bytes past the
/// end of a file for zeros; only a check finds that.
fn check_structure(program: &Path, image: &str, limits: &Limits) -> Result<()> {
    let output = limits.command(program).args(["check", image]).output().map_err(not_run)?;
    match output.status.code() {
        // No damage; leaks, which cost only space; no check for this variant.
        Some(0 | 3 | 63) => Ok(()),
        _ => judge(output.status, &String::from_utf8_lossy(&output.stderr), limits)
            .map_err(|e| e.remedy("it is damaged or truncated: copy it again")),
    }
}

/// The number of bytes of `qemu-img`'s complaints that are passed on.
const MESSAGE_MAX: u64 = 4096;

/// SIGHUP, SIGINT and SIGTERM.
const STOPPING: [i32; 3] = [1, 2, 15];

/// Reads the percentages that `qemu-img -p` prints until it ends; returns its exit status.
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
    // An unreadable part is only a part of a message.
    let _ = pipe.by_ref().take(MESSAGE_MAX).read_to_end(&mut head);
    let _ = io::copy(&mut pipe, &mut io::sink());
    String::from_utf8_lossy(&head).into_owned()
}

/// The result of a run by its end; `message` is the text that it wrote to standard error.
fn judge(status: ExitStatus, message: &str, limits: &Limits) -> Result<()> {
    if let Some(error) = limits.error(status) {
        return Err(error);
    }
    match status.signal() {
        None if status.success() => Ok(()),
        None => Err(failed(message)),
        // Ctrl-C at a terminal ends the child as well, and its end may be noticed first.
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
    // One line for any text, and the image not under the name that `qemu-img` was given.
    let mut message = stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    while let Some((start, end)) =
        message.find("'json:").and_then(|start| Some((start, start + message[start..].find("}'")? + 2)))
    {
        message.replace_range(start..end, "the image");
    }
    Error::corrupt(format!("qemu-img cannot read it: {message}"))
}

fn not_installed(format: DiskFormat) -> Error {
    Error::unsupported(format!("reading this kind of {format} takes qemu-img, which is not installed"))
        .remedy("install qemu-utils (Debian, Ubuntu) or qemu-img (Fedora), or convert it to raw or qcow2")
}

fn not_run(error: io::Error) -> Error {
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

    #[test]
    fn an_image_is_not_named_by_its_description() {
        let message =
            failed("qemu-img: Could not open 'json:{\"file\": {\"a\": 1}}': Image is corrupt\n").to_string();
        assert!(message.ends_with("qemu-img: Could not open the image: Image is corrupt"), "{message}");
    }
}
