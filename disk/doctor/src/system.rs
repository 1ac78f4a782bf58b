//! The kernel, the processor, limits, and the cache's directory.

use crate::finding::{Availability, HostFinding};
use headstart_block::ByteSize;
use headstart_cache::Cache;
use rustix::fs::{FallocateFlags, fallocate, fstatvfs, statfs};
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The files that 200 disks in one process open, with room for their clients.
const FILES_WANTED: u64 = 8192;

/// The least useful size: a smaller cache evicts bytes that it has just fetched.
const ROOM_WANTED: u64 = 4 << 30;

/// File systems by their magic numbers; `true` if processes on one host can share a cache there.
const FILE_SYSTEMS: [(u64, &str, bool); 9] = [
    (0xef53, "ext4", true),
    (0x5846_5342, "xfs", true),
    (0x9123_683e, "btrfs", true),
    (0x2fc1_2fc1, "zfs", true),
    (0x794c_7630, "overlayfs", true),
    (0x0102_1994, "tmpfs", true),
    (0x6969, "nfs", false),
    (0x0102_1997, "9p", false),
    (0x6573_5546, "fuse", false),
];

pub(crate) fn kernel() -> HostFinding {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (5, 4) {
        HostFinding::new("kernel", Availability::Yes, release)
    } else {
        HostFinding::new(
            "kernel",
            Availability::Limited,
            format!("{release} is older than what is tested (5.4)"),
        )
    }
}

pub(crate) fn processor() -> HostFinding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut used = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        let features = [
            ("SSE4.2", is_x86_feature_detected!("sse4.2")),
            ("PCLMULQDQ", is_x86_feature_detected!("pclmulqdq")),
            ("AVX2", is_x86_feature_detected!("avx2")),
            ("AVX-512", is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl")),
            ("SHA", is_x86_feature_detected!("sha")),
        ];
        used.extend(features.iter().filter(|(_, there)| *there).map(|(name, _)| *name));
    }
    #[cfg(target_arch = "aarch64")]
    {
        used.extend(["NEON"]);
    }
    let fast = used.iter().any(|name| ["AVX2", "NEON"].contains(name));
    let detail = format!("{cores} cores; used by checksums and hash trees: {}", used.join(", "));
    HostFinding::new("processor", if fast { Availability::Yes } else { Availability::Limited }, detail)
}

pub(crate) fn limits() -> HostFinding {
    let limit = |resource| getrlimit(resource).current.unwrap_or(u64::MAX);
    let (files, locked) = (limit(Resource::Nofile), limit(Resource::Memlock));
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let locked = if locked == u64::MAX { "unlimited".to_owned() } else { ByteSize(locked).to_string() };
    let detail = format!("{files} open files (at most {most}), {locked} of locked memory");
    if files >= FILES_WANTED {
        return HostFinding::new("limits", Availability::Yes, detail);
    }
    HostFinding::new(
        "limits",
        Availability::Limited,
        format!("{detail}: enough for some {} disks", files / 32),
    )
    .remedy(format!("ulimit -n {FILES_WANTED}, or LimitNOFILE={FILES_WANTED} in the unit"))
}

pub(crate) fn io_uring() -> HostFinding {
    match fs::read_to_string("/proc/sys/kernel/io_uring_disabled").as_deref().map(str::trim) {
        Ok("0") => HostFinding::new("io_uring", Availability::Yes, "allowed (only ublk needs it)"),
        Ok("1") => {
            HostFinding::new("io_uring", Availability::Limited, "for privileged users (only ublk needs it)")
        }
        Ok(_) => HostFinding::new("io_uring", Availability::No, "turned off (only ublk needs it)")
            .remedy("sysctl kernel.io_uring_disabled=0"),
        Err(_) => HostFinding::new(
            "io_uring",
            Availability::Limited,
            "this kernel does not say (only ublk needs it)",
        ),
    }
}

/// The finding about the cache's directory, or its nearest existing parent, because it is made when it is needed.
pub(crate) fn cache(directory: Option<&Path>) -> HostFinding {
    let wanted = directory.map_or_else(Cache::default_dir, Path::to_owned);
    let there = nearest(&wanted);
    let tried =
        if there.is_dir() { try_directory(&there) } else { Err(std::io::Error::other("is not a directory")) };
    match tried {
        Ok((file_system, shared, punches, room)) => {
            let detail = format!("{}: {file_system}, {} free", wanted.display(), ByteSize(room));
            let limited =
                |why: &str| HostFinding::new("cache", Availability::Limited, format!("{detail}; {why}"));
            let elsewhere = "keep it on a local ext4 or xfs: --cache DIR";
            if !shared {
                limited("processes cannot share it safely there").remedy(elsewhere)
            } else if !punches {
                limited("no holes can be punched, so nothing can be thrown out of a blob").remedy(elsewhere)
            } else if file_system == "tmpfs" {
                limited("it lies in memory and is gone after a reboot").remedy(elsewhere)
            } else if room < ROOM_WANTED {
                limited("little room").remedy("free some, or keep the cache in another place: --cache DIR")
            } else {
                HostFinding::new("cache", Availability::Yes, detail)
            }
        }
        Err(error) => HostFinding::new("cache", Availability::No, format!("{}: {error}", there.display()))
            .remedy("give a directory that this user may write to: --cache DIR"),
    }
}

/// The longest part of a path that exists.
fn nearest(path: &Path) -> PathBuf {
    path.ancestors().find(|path| path.symlink_metadata().is_ok()).unwrap_or(Path::new("/")).to_owned()
}

/// Its file system; `true` if processes can share it; `true` if holes can be punched; and the free bytes.
fn try_directory(path: &Path) -> std::io::Result<(&'static str, bool, bool, u64)> {
    const LEN: usize = 1 << 20;
    let mut file = tempfile::tempfile_in(path)?;
    #[expect(
        clippy::cast_sign_loss,
        reason = "a magic number is 32 bits, whatever type this platform gives it"
    )]
    let magic = statfs(path)?.f_type as u64 & 0xffff_ffff;
    let known = FILE_SYSTEMS.iter().find(|(number, ..)| *number == magic);
    let (_, name, shared) = known.copied().unwrap_or((0, "an unknown file system", true));
    file.write_all(&vec![1; LEN])?;
    file.sync_all()?;
    let before = file.metadata()?.blocks();
    let punched = fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, LEN as u64);
    let punches = punched.is_ok() && file.metadata()?.blocks() < before;
    let free = fstatvfs(&file)?;
    Ok((name, shared, punches, free.f_bavail.saturating_mul(free.f_frsize)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_tried() {
        let directory = tempfile::tempdir().unwrap();
        let finding = cache(Some(&directory.path().join("a/b")));
        assert_ne!(finding.state, Availability::No, "{}", finding.detail);
        assert_eq!(cache(Some(Path::new("/proc/x"))).state, Availability::No);
        let file = directory.path().join("file");
        fs::write(&file, "x").unwrap();
        for taken in [file.join("a"), file] {
            let finding = cache(Some(&taken));
            assert!(finding.state == Availability::No && finding.detail.contains("is not a directory"));
        }
    }
}
