//! The time that a clone takes: of a disk of 10 GiB with 1 GiB written in pieces of 64 KiB, and of one with a sixteenth
//! of that.
//!
//! *attached* clones a disk that is open, after one more piece was written, so that each clone freezes the active pair.
//! *detached* is what `headstart disk clone` does with a directory that no process has open: it opens the disk, which
//! reads its log, and clones it. Both make their files durable: five syncs for each of the two directories, so that the
//! storage decides. *open* is the time until the clone can be read. `HEADSTART_BENCH_DIR` names the directory of the
//! files.

#![expect(clippy::print_stdout, reason = "prints its results")]
#![expect(clippy::disallowed_methods, reason = "measures time")]

use headstart_block::BlockDevice;
use headstart_lsmt::writable::{NewDisk, WritableDisk};
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};
use uuid::Uuid;

const DISK: u64 = 10 << 30;
const PIECE: usize = 64 << 10;
const RUNS: u64 = 25;

fn main() -> Result<(), Box<dyn Error>> {
    println!("written   attached ms (worst)   detached ms (worst)   open ms (worst)   one sync ms");
    for written in [64 << 20, 1 << 30] {
        let dir = match std::env::var_os("HEADSTART_BENCH_DIR") {
            Some(dir) => tempfile::tempdir_in(dir)?,
            None => tempfile::tempdir()?,
        };
        let source = dir.path().join("source");
        let disk = fill(&source, written)?;
        drop(disk);
        let detached = measure(|run| {
            let asked = Instant::now();
            let disk = WritableDisk::open_alone(&source)?;
            clone(&disk, &dir.path().join(format!("detached{run}")))?;
            Ok(asked.elapsed())
        })?;
        let open = measure(|run| {
            let asked = Instant::now();
            let clone = WritableDisk::open_alone(dir.path().join(format!("detached{run}")))?;
            clone.read_at(&mut [0; 4096], 0)?;
            Ok(asked.elapsed())
        })?;
        let disk = WritableDisk::open_alone(&source)?;
        let attached = measure(|run| {
            disk.write_at(&[1; PIECE], run * 3 * PIECE as u64)?;
            clone(&disk, &dir.path().join(format!("attached{run}")))
        })?;
        let sync = measure(|run| sync(&dir.path().join(format!("sync{run}"))))?;
        println!(
            "{:>4} MiB   {:>11} ({:>5})   {:>11} ({:>5})   {:>7} ({:>5})   {:>11}",
            written >> 20,
            ms(attached.0),
            ms(attached.1),
            ms(detached.0),
            ms(detached.1),
            ms(open.0),
            ms(open.1),
            ms(sync.0),
        );
    }
    Ok(())
}

/// A disk with pieces at even distances.
fn fill(path: &Path, written: u64) -> Result<WritableDisk, Box<dyn Error>> {
    let disk = WritableDisk::create(
        path,
        None,
        &NewDisk { size: DISK, parent: String::new(), uuid: Uuid::from_u128(1) },
    )?;
    let pieces = written / PIECE as u64;
    for piece in 0..pieces {
        disk.write_at(&[7; PIECE], piece * (DISK / pieces) / 4096 * 4096)?;
    }
    disk.flush()?;
    Ok(disk)
}

/// The median and the longest of some runs.
fn measure(
    mut run: impl FnMut(u64) -> Result<Duration, Box<dyn Error>>,
) -> Result<(Duration, Duration), Box<dyn Error>> {
    let mut times = (0..RUNS).map(&mut run).collect::<Result<Vec<_>, _>>()?;
    times.sort_unstable();
    Ok((times[times.len() / 2], times[times.len() - 1]))
}

fn clone(disk: &WritableDisk, path: &Path) -> Result<Duration, Box<dyn Error>> {
    let asked = Instant::now();
    disk.clone_to(path, Uuid::from_u128(2))?;
    Ok(asked.elapsed())
}

/// The time that a small new file takes to be durable, for comparison.
fn sync(path: &Path) -> Result<Duration, Box<dyn Error>> {
    std::fs::write(path, [0; 4096])?;
    let asked = Instant::now();
    std::fs::File::open(path)?.sync_data()?;
    Ok(asked.elapsed())
}

fn ms(time: Duration) -> String {
    format!("{:.2}", time.as_secs_f64() * 1e3)
}
