//! Lists of archives with their files' content, and programs that may be absent.

use headstart_block::{Error, Result};
use headstart_tar::{TarEntry, TarLimits, TarReader};
use std::io::Write as _;
use std::process::{Command, Stdio};

/// The most bytes of a file's content that are compared.
pub(crate) const CONTENT_MAX: u64 = 4 << 20;

/// An entry and the start of its file's content, holes included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedFile {
    pub(crate) entry: TarEntry,
    pub(crate) content: Vec<u8>,
}

/// The entries in front of the first error, and that error.
pub(crate) fn list(archive: &[u8]) -> (Vec<ListedFile>, Option<Error>) {
    let mut reader = TarReader::new(archive, TarLimits::default());
    let mut files = Vec::new();
    loop {
        let listed = match reader.next_entry() {
            Ok(Some(entry)) => content_of(&mut reader, &entry).map(|content| ListedFile { entry, content }),
            Ok(None) => return (files, None),
            Err(e) => Err(e),
        };
        match listed {
            Ok(file) => files.push(file),
            Err(e) => return (files, Some(e)),
        }
    }
}

/// All entries of an archive that has no fault.
#[track_caller]
pub(crate) fn whole(archive: &[u8]) -> Vec<ListedFile> {
    let (files, error) = list(archive);
    assert!(error.is_none(), "{error:?} after {:?}", files.last());
    files
}

fn content_of(reader: &mut TarReader<&[u8]>, entry: &TarEntry) -> Result<Vec<u8>> {
    let mut content = vec![0; usize::try_from(entry.size.min(CONTENT_MAX)).unwrap()];
    let whole = [(0, entry.size)];
    let extents: Vec<_> = match &entry.sparse {
        Some(extents) => extents.iter().map(|extent| (extent.offset(), extent.end())).collect(),
        None => whole.to_vec(),
    };
    for (start, end) in extents.into_iter().filter(|(start, _)| *start < CONTENT_MAX) {
        let (start, end) = (usize::try_from(start).unwrap(), usize::try_from(end.min(CONTENT_MAX)).unwrap());
        let mut rest = &mut content[start..end];
        while !rest.is_empty() {
            let n = reader.read_content(rest)?;
            assert!(n > 0, "the content of {entry:?} is too short");
            rest = &mut rest[n..];
        }
    }
    Ok(content)
}

/// `true` if a program is there; if not, prints that a test is skipped.
pub(crate) fn installed(program: &str, version: &str) -> bool {
    let found = Command::new(program).arg(version).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_there = found.is_ok_and(|status| status.success());
    if !is_there {
        let test = std::thread::current().name().unwrap_or("?").to_owned();
        let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {program} is not installed");
    }
    is_there
}

/// The output of a program that has to succeed.
#[track_caller]
pub(crate) fn output(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", output.stderr.escape_ascii());
    output.stdout
}
