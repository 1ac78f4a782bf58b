//! Single compressed files, with or without the tar archive that OverlayBD's tools put around them.

use crate::export::OutputFile;
use crate::progress::{Progress, step};
use crate::tar_wrapper::{SourceRange, locate};
use headstart_block::{ByteRange, Error, FileSource, ReadAt, Result, to_usize};
use headstart_zfile::{ZFileInfo, ZFileOptions, ZFileReader, ZFileWriter};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// Bytes copied at once.
const CHUNK: u64 = 1 << 20;

/// Opens a compressed file for reading its uncompressed bytes. The file is a ZFile, or a tar archive of OverlayBD's
/// tools with a ZFile in it.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if the file is not a ZFile, or if its head or index is damaged;
/// `Unsupported` if it has a form that this version cannot read; errors of opening the file.
pub fn open(path: &Path) -> Result<ZFileReader<Arc<dyn ReadAt>>> {
    let named = |e: Error| e.about(path.display());
    let file: Arc<dyn ReadAt> = Arc::new(FileSource::open(path)?);
    let inner = match locate(&file).map_err(named)? {
        Some(range) => Arc::new(SourceRange::new(file, range).map_err(named)?),
        None => file,
    };
    ZFileReader::open(inner).map_err(named)
}

/// Compresses the file `input` into the new file `output`, without a tar archive around it. Returns the properties of
/// the new file. An older file at `output` is replaced only when the new one is complete.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] for options that [`ZFileOptions`] does not allow, and if both files are the
/// same; errors of reading `input`
/// and writing `output`; [`headstart_block::ErrorKind::Cancelled`] if the user wants to stop.
pub fn pack(
    input: &Path,
    output: &Path,
    options: &ZFileOptions,
    progress: &dyn Progress,
) -> Result<ZFileInfo> {
    let source = FileSource::open(input)?;
    let file = OutputFile::create(output, &[input])?;
    let named = |e: Error| e.about(output.display());
    let mut writer = ZFileWriter::new(file.file(), options).map_err(named)?;
    progress.begin("pack", source.len());
    copy((&source, input), (&mut writer, output), progress)?;
    let (_, info) = writer.finish().map_err(named)?;
    file.keep()?;
    Ok(info)
}

/// Decompresses the file `input` into the new file `output`. Returns the properties of the compressed file. An older
/// file at `output` is replaced only when the new one is complete.
///
/// # Errors
/// As [`pack`]; as [`open`]; an error if a frame of `input` is damaged.
pub fn unpack(input: &Path, output: &Path, progress: &dyn Progress) -> Result<ZFileInfo> {
    let reader = open(input)?;
    let file = OutputFile::create(output, &[input])?;
    progress.begin("unpack", reader.len());
    copy((&reader, input), (&mut file.file(), output), progress)?;
    file.keep()?;
    Ok(reader.info().clone())
}

/// Copies a source from front to back. The paths are for messages.
fn copy(
    (source, input): (&dyn ReadAt, &Path),
    (out, output): (&mut dyn Write, &Path),
    progress: &dyn Progress,
) -> Result<()> {
    let mut buf = Vec::new();
    for part in ByteRange::between(0, source.len()).parts(CHUNK) {
        buf.resize(to_usize(part.len()), 0);
        source.read_at(&mut buf, part.offset()).map_err(|e| e.about(input.display()))?;
        out.write_all(&buf).map_err(|e| Error::from(e).about(output.display()))?;
        step(progress, part.len())?;
    }
    Ok(())
}
