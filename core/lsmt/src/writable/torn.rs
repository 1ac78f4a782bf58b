//! The damaged end of a log: cutting it off, keeping a copy, and the remedies that errors and warnings name.

use super::files::{Directory, LogFile};
use super::log::Log;
use super::state::PairFiles;
use headstart_block::{Result, to_usize};

/// The file with the bytes that were cut off a log last. Earlier ones have a number behind that, the latest of them 1.
pub(super) const TORN: &str = "index.torn";

/// The number of earlier files with cut-off bytes that are kept.
const EARLIER: u32 = 3;

/// Bytes copied at once.
const CHUNK: usize = 256 << 10;

/// The remedy for a pair without its headers.
pub(super) fn remedy_without_header(files: &PairFiles) -> String {
    let PairFiles { data, index } = files;
    format!("restore {data} and {index} from a copy of one moment: `headstart disk repair` cannot mend this")
}

/// The remedy for a damaged pair in `directory`.
pub(super) fn remedy(files: &PairFiles, directory: &str) -> String {
    let PairFiles { data, index } = files;
    format!(
        "restore {data} and {index} from a copy of one moment; or copy the directory, and give up what is lost by \
         `headstart disk repair {directory}`"
    )
}

/// Cuts off the bytes behind the whole groups of a log, and keeps a copy of them.
pub(super) fn cut_tail(directory: &dyn Directory, file: &dyn LogFile, name: &str, log: &Log) -> Result<()> {
    let (position, len) = (log.len(), file.len()?);
    if position >= len {
        return Ok(());
    }
    let (index, bytes) = (format!("{}/{name}", directory.name()), len - position);
    match keep_tail(directory, file, position, TORN) {
        // A crash has made the file longer, and that is all.
        Ok(false) => {}
        Ok(true) => tracing::warn!(
            index,
            position,
            bytes,
            copy = TORN,
            "the last records of a writable layer are not whole, after a crash or by damage: they were cut off"
        ),
        Err(error) => tracing::warn!(
            index, position, bytes, %error,
            "the last records of a writable layer are not whole, after a crash or by damage: they were cut off, and \
             could not be copied"
        ),
    }
    file.set_len(position)
}

/// Warns of data that no record names.
pub(super) fn warn_of_data(data: &str, bytes: u64) {
    tracing::warn!(
        data,
        bytes,
        "data behind the last record of a writable layer is dropped: it was not flushed, or the index was shortened"
    );
}

/// Gives the file `name`, and each of the earlier ones, the next number. Removes the last one.
fn keep_earlier(directory: &dyn Directory, name: &str) -> Result<()> {
    let numbered = |number: u32| if number == 0 { name.to_owned() } else { format!("{name}.{number}") };
    let names = directory.list()?;
    for number in (0..EARLIER).rev().filter(|number| names.contains(&numbered(*number))) {
        directory.rename(&numbered(number), &numbered(number + 1))?;
    }
    directory.sync()
}

/// Copies the bytes behind byte `from` of a file to the file `name`, durably; `false` if there are none but zeros.
/// Earlier copies move on only for a copy that is whole: a full disk removes none of them.
pub(super) fn keep_tail(
    directory: &dyn Directory,
    file: &dyn LogFile,
    from: u64,
    name: &str,
) -> Result<bool> {
    let new = format!("{name}.new");
    let copied = copy_tail(directory, file, from, &new).and_then(|is_copied| {
        if is_copied {
            keep_earlier(directory, name)?;
            directory.rename(&new, name)?;
            directory.sync()?;
        }
        Ok(is_copied)
    });
    if copied.is_err() {
        // Best effort: a copy that there was no room for is not kept in part.
        let _ = directory.remove(&new);
    }
    copied
}

/// Copies the bytes behind byte `from` of a file to a new file, durably; makes no file if there are none but zeros.
fn copy_tail(directory: &dyn Directory, file: &dyn LogFile, from: u64, new: &str) -> Result<bool> {
    let (mut at, len) = (from, file.len()?);
    let mut copy: Option<Box<dyn LogFile>> = None;
    let mut bytes = Vec::new();
    while at < len {
        bytes.resize(to_usize(len - at).min(CHUNK), 0);
        file.read_at(&mut bytes, at)?;
        if copy.is_none() && bytes.iter().any(|byte| *byte != 0) {
            copy = Some(directory.create(new)?);
        }
        if let Some(copy) = &copy {
            copy.write_at(&bytes, at - from)?;
        }
        at += bytes.len() as u64;
    }
    copy.as_ref().map_or(Ok(()), |copy| copy.sync())?;
    Ok(copy.is_some())
}

/// Puts a copy of the first `len` bytes of a file into the place of its name, durably. Other names of the file keep all
/// of it. Until then the copy has the name `new`, which a crash leaves.
pub(super) fn replace_by_beginning(
    directory: &dyn Directory,
    file: &dyn LogFile,
    (name, new): (&str, &str),
    len: u64,
) -> Result<()> {
    let copy = directory.create(new)?;
    let mut bytes = Vec::new();
    let mut at = 0;
    while at < len {
        bytes.resize(to_usize(len - at).min(CHUNK), 0);
        file.read_at(&mut bytes, at)?;
        copy.write_at(&bytes, at)?;
        at += bytes.len() as u64;
    }
    copy.sync()?;
    directory.rename(new, name)?;
    directory.sync()
}
