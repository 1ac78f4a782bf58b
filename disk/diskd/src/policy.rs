//! The policy of preloading, as the user names it: a word such as `auto`, or a file that holds plans, a trace or a list
//! of blocks.

use crate::plans::read_trace;
use headstart_block::small_file::read_to_end_of_small;
use headstart_block::{Error, FileSource, Result};
use headstart_plan::PlanFile;
use headstart_pull::{BLOCK_SIZE, Plan, PlanItem};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The first bytes of a file of plans.
const PLAN_MAGIC: &[u8] = b"HSPLAN\r\n";

/// The longest list of blocks that is read, in bytes: some million blocks.
const LIST_MAX: u64 = 64 << 20;

/// The first bytes of a trace file of `OverlayBD`.
const TRACE_MAGIC: [u8; 4] = 0xC2EF_1820_u32.to_le_bytes();

/// The policy that chooses the preload plan of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanPolicy {
    /// The best plan that is found in all locations.
    Auto,
    /// A plan for the image from this file of plans.
    Plans(PathBuf),
    /// The order of reads in this trace file of `OverlayBD`'s prefetcher.
    Trace(PathBuf),
    /// This plan, for every image.
    Fixed(Plan),
}

impl PlanPolicy {
    /// The plan that needs no search.
    pub(crate) fn plan(&self) -> Plan {
        match self {
            Self::Auto | Self::Plans(_) | Self::Trace(_) => Plan::Lazy,
            Self::Fixed(plan) => plan.clone(),
        }
    }

    /// The name of the kind of policy.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Plans(_) => "plans",
            Self::Trace(_) => "trace",
            Self::Fixed(Plan::Lazy) => "lazy",
            Self::Fixed(Plan::Sequential) => "sequential",
            Self::Fixed(Plan::List(_)) => "list",
        }
    }
}

impl FromStr for PlanPolicy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => return Ok(Self::Auto),
            "lazy" | "none" => return Ok(Self::Fixed(Plan::Lazy)),
            "sequential" => return Ok(Self::Fixed(Plan::Sequential)),
            _ => {}
        }
        let path = Path::new(text);
        let cannot = |e| {
            Error::io("is none of auto, lazy, none and sequential, and cannot be read as a file", e)
                .about(text)
        };
        let mut start = Vec::new();
        let file = File::open(path).map_err(cannot)?;
        (&file).take(PLAN_MAGIC.len() as u64).read_to_end(&mut start).map_err(cannot)?;
        if start == PLAN_MAGIC {
            PlanFile::open(FileSource::open(path)?).map_err(|e| e.about(text))?;
            return Ok(Self::Plans(path.to_owned()));
        }
        if start.starts_with(&TRACE_MAGIC) {
            read_trace(path).map_err(|e| e.about(text))?;
            return Ok(Self::Trace(path.to_owned()));
        }
        // The rest of the same file: a pipe gives its bytes once.
        read_to_end_of_small(&file, LIST_MAX)
            .and_then(|rest| {
                let list = String::from_utf8([start, rest].concat());
                list_of_blocks(&list.map_err(|_| Error::invalid("is neither plans nor a list of blocks"))?)
            })
            .map(|items| Self::Fixed(Plan::List(items.into())))
            .map_err(|e| e.about(text))
    }
}

/// Parses a list of blocks, with one number on each line.
fn list_of_blocks(list: &str) -> Result<Vec<PlanItem>> {
    let lines = list.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty());
    let items = lines.map(|(n, line)| {
        let block = line.parse().ok().filter(|block: &u64| block.checked_mul(BLOCK_SIZE).is_some());
        block.map(PlanItem::whole).ok_or_else(|| {
            Error::invalid(format!("line {}: `{}` is not a number of a block", n + 1, line.escape_debug()))
        })
    });
    items.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_a_word_or_a_list() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("list");
        let policy = |list: &str| {
            std::fs::write(&file, list).unwrap();
            file.to_str().unwrap().parse::<PlanPolicy>()
        };
        assert_eq!("auto".parse::<PlanPolicy>().unwrap(), PlanPolicy::Auto);
        for nothing in ["lazy", "none"] {
            assert_eq!(nothing.parse::<PlanPolicy>().unwrap(), PlanPolicy::Fixed(Plan::Lazy));
        }
        assert_eq!(policy("7\n\n 3 \n").unwrap().plan(), Plan::List([7, 3].map(PlanItem::whole).into()));
        for (list, line) in [("7\nx\n", "line 2"), ("-1", "line 1"), ("99999999999999999", "line 1")] {
            assert!(policy(list).unwrap_err().to_string().contains(line), "{list}");
        }
        for refused in ["/nowhere/list", "/dev/zero"] {
            assert!(refused.parse::<PlanPolicy>().is_err(), "{refused}");
        }
        // A pipe gives its bytes once.
        let (from, mut to) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut to, b"123456789\n3\n").unwrap();
        drop(to);
        let pipe = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&from));
        let items = [123_456_789, 3].map(PlanItem::whole).into();
        assert_eq!(pipe.parse::<PlanPolicy>().unwrap().plan(), Plan::List(items));
    }
}
