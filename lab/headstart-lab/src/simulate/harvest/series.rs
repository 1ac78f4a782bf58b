//! Demand series of a directory, in the form of `data/harvest`: `bandwidth/` and `capacity/`.

use headstart_block::small_file::read_small;
use headstart_block::{Error, ErrorKind, Result};
use headstart_sim::harvest::DemandSeries;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// The most bytes of a series.
const BYTES_MAX: u64 = 64 << 20;

type List = Vec<Arc<DemandSeries>>;

/// The series of both kinds.
pub(super) fn read(directory: &Path) -> Result<(List, List)> {
    Ok((list(&directory.join("bandwidth"))?, list(&directory.join("capacity"))?))
}

/// All series of a directory, by name.
fn list(directory: &Path) -> Result<List> {
    let failed = |e| Error::io("cannot be read", e).about(directory.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    let series: List = paths.iter().map(|path| one(path).map(Arc::new)).collect::<Result<_>>()?;
    if series.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "has no demand series")
            .about(directory.display())
            .remedy("give a directory with files in bandwidth/ and capacity/, lines of `duration_s level`"));
    }
    Ok(series)
}

fn one(path: &Path) -> Result<DemandSeries> {
    let text = read_small(path, BYTES_MAX)?;
    let text = String::from_utf8(text).map_err(|_| Error::invalid("is not text").about(path.display()))?;
    text.parse::<DemandSeries>().map_err(|e| e.about(path.display()))
}
