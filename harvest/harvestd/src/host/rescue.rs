//! A directory whose host cannot be opened: its damage, and the data that can be saved.
//!
//! Nothing is guessed, because a map that is not the newest may name flash that another VM has by now. A journal is
//! repaired only where the right bytes are certain (`journal::repair`). A damaged table of flash is made again from the
//! journal, without the counts of erasures. With any other damage, all vSSDs can only be given up together
//! ([`discard_all`]).

use super::recover::{Known, lock_dir};
use headstart_block::{Error, ErrorKind, Result};
use headstart_broker::BlockRun;
use headstart_flash::VssdKind;
use headstart_flash::custody::Custody;
use headstart_flash::device::{FileFlash, FlashBlock, Geometry, table};
use headstart_flash::journal::Snapshots;
use headstart_flash::journal::repair::{Examined, JournalFault, examine};
use headstart_flash::replace::put_in_place;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The ending of the name of a file that was put aside.
const ASIDE: &str = "damaged";

/// The condition of one of a host's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartState {
    /// The file has no damage.
    Whole,
    /// The file is damaged or missing, and can be repaired.
    Mendable,
    /// The file is damaged or missing, and cannot be repaired.
    Lost,
}

/// One of a host's files, with its damage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RescuedPart {
    /// The role of the file: `journal`, `table` (wear and bad blocks) or `flash`.
    pub name: String,
    /// The path of the file.
    pub path: PathBuf,
    /// The condition of the file.
    pub state: PartState,
    /// Descriptions of the damage that was found, for people; empty if there is none.
    pub faults: Vec<String>,
}

/// A vSSD that is named in a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownVssd {
    /// The name of the vSSD.
    pub name: String,
    /// The kind of the vSSD.
    pub kind: VssdKind,
    /// Size of the vSSD in bytes, by the part of the journal that could be read.
    pub size: u64,
}

/// The result of examining a host's directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Examination {
    /// The directory that was examined.
    pub dir: PathBuf,
    /// The version of the journal's format; 0 if the journal could not be read.
    pub journal_version: u32,
    /// The host's files, with their damage.
    pub parts: Vec<RescuedPart>,
    /// The vSSDs in the part of the journal that could be read.
    pub vssds: Vec<KnownVssd>,
}

impl Examination {
    /// Returns the worst condition of any file.
    #[must_use]
    pub fn state(&self) -> PartState {
        let has = |state| self.parts.iter().any(|part| part.state == state);
        match (has(PartState::Lost), has(PartState::Mendable)) {
            (true, _) => PartState::Lost,
            (false, true) => PartState::Mendable,
            (false, false) => PartState::Whole,
        }
    }
}

/// Examines the directory of a host that is not running, and changes nothing. `flash` is the path of the flash; `None`
/// if the flash is in the directory. If no readable record of the journal names the flash, only the journal is
/// examined.
///
/// # Errors
/// NotFound if there is no journal; Conflict if a host has the directory open; Unsupported for a journal of a later
/// version, or with a record that this version does not know; Invalid for a file that is no journal; Corrupt if the
/// journal's header is damaged beyond repair; errors of the operating system.
pub fn check(dir: &Path, flash: Option<&Path>) -> Result<Examination> {
    let _lock = lock_there(dir)?;
    Ok(Found::look(dir, flash)?.examination)
}

/// Repairs all damage that can be repaired without losing durable data. The damaged files are kept beside the
/// repaired ones, under other names. Returns the damage found before the repair. `flash` is as for [`check`].
///
/// # Errors
/// As [`check`]; Corrupt if any file cannot be repaired without loss, and then nothing was changed.
pub fn rescue(dir: &Path, flash: Option<&Path>) -> Result<Examination> {
    let _lock = lock_there(dir)?;
    let found = Found::look(dir, flash)?;
    if let Some(lost) = found.examination.parts.iter().find(|part| part.state == PartState::Lost) {
        let error = Error::corrupt(lost.faults.join(", ")).about(lost.path.display());
        return Err(error.remedy(format!(
            "nothing was changed: bring back a copy of it that was made since `harvest serve` ended last, or give up \
             all vSSDs of this directory by `headstart harvest rescue {} --discard-all`",
            dir.display()
        )));
    }
    for part in &found.examination.parts {
        let mended = match part.name.as_str() {
            "journal" => Some(&found.journal),
            "table" => found.table.as_ref(),
            _ => None,
        };
        if let Some(mended) = mended.filter(|_| part.state == PartState::Mendable) {
            replace(&part.path, mended)?;
        }
    }
    Ok(found.examination)
}

/// Gives up all vSSDs of a directory, so that a new host can be made there. The journal is kept under another name. The
/// table of the flash and `exports.json` are removed. Flash in the directory itself is emptied; flash at the path
/// `flash` stays as it is.
/// Returns the vSSDs and files that were given up, as far as they could be read. `flash` is as for [`check`].
///
/// # Errors
/// NotFound if there is neither a journal nor a table; Conflict if a host has the directory open; errors of the
/// operating system. A file that is damaged or cannot be read is no error: it is in the result.
pub fn discard_all(dir: &Path, flash: Option<&Path>) -> Result<Examination> {
    let _lock = lock_there(dir)?;
    let (path, table) = places(dir, flash);
    let journal = dir.join("journal");
    let examination = match Found::look(dir, flash) {
        Ok(found) => found.examination,
        Err(error) => {
            let faults = vec![error.to_string()];
            let part = RescuedPart {
                name: "journal".to_owned(),
                path: journal.clone(),
                state: PartState::Lost,
                faults,
            };
            Examination { dir: dir.to_owned(), journal_version: 0, parts: vec![part], vssds: Vec::new() }
        }
    };
    if !journal.exists() && !table.exists() {
        let error = Error::new(ErrorKind::NotFound, "there is no journal and no flash there");
        return Err(error.about(dir.display()));
    }
    let failed =
        |path: &Path, error: io::Error| Error::io("cannot be put aside", error).about(path.display());
    let absent = |done: io::Result<()>| match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    };
    // The flash's own file first: without its journal its content could not be told.
    if flash.is_none() && path.is_file() {
        let emptied = File::options().write(true).open(&path).and_then(|flash| flash.set_len(0));
        emptied.map_err(|error| failed(&path, error))?;
    }
    absent(std::fs::remove_file(&table)).map_err(|error| failed(&table, error))?;
    absent(std::fs::rename(&journal, aside(&journal))).map_err(|error| failed(&journal, error))?;
    absent(std::fs::remove_file(dir.join("exports.json"))).map_err(|error| failed(dir, error))?;
    Ok(examination)
}

/// The places of the flash and its table.
fn places(dir: &Path, flash: Option<&Path>) -> (PathBuf, PathBuf) {
    use std::os::unix::fs::FileTypeExt;
    let path = flash.map_or_else(|| dir.join("flash"), Path::to_owned);
    let is_device = std::fs::metadata(&path).is_ok_and(|metadata| metadata.file_type().is_block_device());
    let table = if is_device { dir.join("flash.table") } else { FileFlash::table_beside(&path) };
    (path, table)
}

fn lock_there(dir: &Path) -> Result<File> {
    if !dir.is_dir() {
        return Err(Error::new(ErrorKind::NotFound, "there is no such directory").about(dir.display()));
    }
    lock_dir(dir)
}

/// The findings, with replacements.
struct Found {
    examination: Examination,
    journal: Vec<u8>,
    table: Option<Vec<u8>>,
}

impl Found {
    fn look(dir: &Path, flash: Option<&Path>) -> Result<Self> {
        let journal = dir.join("journal");
        let about = |error: Error| error.about(journal.display());
        let bytes = std::fs::read(&journal).map_err(|error| about(Error::io("cannot be read", error)))?;
        let examined = examine(&bytes).map_err(about)?;
        let (known, nonsense) = known_of(&examined);
        let mut part = journal_part(journal, &examined);
        if let Some(error) = nonsense.filter(|_| part.state != PartState::Lost) {
            part.state = PartState::Lost;
            part.faults.push(format!("its records make no sense: {error}"));
        }
        let geometry = known
            .geometry
            .ok_or_else(|| Error::corrupt("it does not name its flash").about(part.path.display()));
        let mut parts = vec![part];
        let mut mended = None;
        if let Ok(geometry) = geometry {
            let (path, table) = places(dir, flash);
            let (part, bytes) = table_part(&table, &geometry, &known);
            parts.extend([part, flash_part(path, &geometry)]);
            mended = bytes;
        }
        let mut vssds: Vec<KnownVssd> = known
            .vssds
            .iter()
            .filter_map(|(id, vssd)| {
                let about = known.made.get(id)?;
                Some(KnownVssd { name: about.name.clone(), kind: about.kind, size: vssd.size() })
            })
            .collect();
        vssds.sort_by(|one, other| one.name.cmp(&other.name));
        let examination =
            Examination { dir: dir.to_owned(), journal_version: examined.version, parts, vssds };
        Ok(Self { examination, journal: examined.mended, table: mended })
    }
}

/// The content of the records, and the reason that not all of them could be used.
fn known_of(examined: &Examined) -> (Known, Option<Error>) {
    let (mut known, mut snapshots) = (Known::default(), Snapshots::default());
    let used = examined.records.iter().try_for_each(|record| known.add(&mut snapshots, record.clone()));
    known.forget_deleted();
    (known, used.err())
}

fn journal_part(path: PathBuf, examined: &Examined) -> RescuedPart {
    let mut state = PartState::Whole;
    let faults = examined.faults.iter().map(|fault| {
        let (is, text) = match fault {
            JournalFault::Front => {
                (PartState::Mendable, "its first bytes are damaged; there is a copy".to_owned())
            }
            JournalFault::Copied { at } => (
                PartState::Mendable,
                format!("it is damaged at byte {at}; there is a copy of what was there"),
            ),
            JournalFault::Bit { at, bit } => {
                (PartState::Mendable, format!("bit {bit} of byte {at} is wrong"))
            }
            // That is usual after a crash, and nothing is lost by it.
            JournalFault::Torn { at, bytes } => {
                (PartState::Whole, format!("{bytes} bytes from byte {at} on were being written in a crash"))
            }
            JournalFault::Damaged { at } => (
                PartState::Lost,
                format!("it is damaged at byte {at} by more than one bit, and what is there was durable"),
            ),
        };
        if state != PartState::Lost && is != PartState::Whole {
            state = is;
        }
        text
    });
    let faults = faults.collect();
    RescuedPart { name: "journal".to_owned(), path, state, faults }
}

/// The table of flash, and its replacement.
fn table_part(path: &Path, geometry: &Geometry, known: &Known) -> (RescuedPart, Option<Vec<u8>>) {
    let part = |state, fault: Option<String>| {
        let faults = fault.into_iter().collect();
        RescuedPart { name: "table".to_owned(), path: path.to_owned(), state, faults }
    };
    let bad = || {
        let custody = Custody::recover(*geometry, &known.steps).map(|custody| custody.bad());
        custody.unwrap_or_default().into_iter().flat_map(BlockRun::blocks).collect::<Vec<FlashBlock>>()
    };
    let anew = || Some(table::anew(geometry, bad().into_iter()));
    let costs = "it can be made again from the journal, without its counts of erasures";
    match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            (part(PartState::Mendable, Some(format!("it is missing; {costs}"))), anew())
        }
        Err(error) => (part(PartState::Lost, Some(format!("it cannot be read: {error}"))), None),
        Ok(bytes) => match (table::decode(&bytes), table::mended(&bytes)) {
            (Ok((there, _)), _) if there == *geometry => (part(PartState::Whole, None), None),
            (Ok(_), _) => (part(PartState::Lost, Some("it is of other flash".to_owned())), None),
            (Err(_), Some(mended)) => {
                (part(PartState::Mendable, Some("one bit of it is wrong".to_owned())), Some(mended))
            }
            (Err(error), None) if error.kind() == ErrorKind::Unsupported => {
                (part(PartState::Lost, Some(error.to_string())), None)
            }
            (Err(_), None) => (part(PartState::Mendable, Some(format!("it is damaged; {costs}"))), anew()),
        },
    }
}

fn flash_part(path: PathBuf, geometry: &Geometry) -> RescuedPart {
    use std::io::{Seek, SeekFrom};
    let len = File::open(&path).and_then(|mut file| file.seek(SeekFrom::End(0)));
    let fault = match len {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Some("it is missing; name it by --flash where it is elsewhere".to_owned())
        }
        Err(error) => Some(format!("it cannot be read: {error}")),
        Ok(len) if len < geometry.size() => {
            Some(format!("it has {len} bytes, not the {} that it had", geometry.size()))
        }
        Ok(_) => None,
    };
    let state = if fault.is_some() { PartState::Lost } else { PartState::Whole };
    RescuedPart { name: "flash".to_owned(), path, state, faults: fault.into_iter().collect() }
}

fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ASIDE);
    PathBuf::from(name)
}

/// Puts bytes in a file's place, durably. The file stays beside it.
fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let replaced = || -> io::Result<()> {
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        match std::fs::remove_file(aside(path)).and_then(|()| std::fs::hard_link(path, aside(path))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Nothing was put aside before, or there is nothing to put aside.
                match std::fs::hard_link(path, aside(path)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            done => done?,
        }
        put_in_place(Path::new(&new), path).map_err(|(error, _)| error)
    };
    replaced().map_err(|error| Error::io("cannot be put right", error).about(path.display()))
}
