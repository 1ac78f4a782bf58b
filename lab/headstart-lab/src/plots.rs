//! Pictures into files: the common parts of commands that draw.

use clap::ValueEnum;
use headstart_block::guarded::{not_made_in, refuse_links};
use headstart_block::{Error, Result};
use headstart_image::export::OutputFile;
use headstart_plot::Picture;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Pixels of a PNG for each of an SVG: sharp on most screens and in print.
const SCALE: f64 = 2.0;

/// The format of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlotFormat {
    /// Lines and letters: for browsers and documents, at any size
    Svg,
    /// Pixels
    Png,
}

impl PlotFormat {
    /// The format of a file's name; `None` if the name is not that of a picture.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let extension = path.extension()?;
        [Self::Svg, Self::Png].into_iter().find(|format| extension == format.extension())
    }

    /// The extension of a file's name.
    fn extension(self) -> &'static str {
        match self {
            Self::Svg => "svg",
            Self::Png => "png",
        }
    }

    /// The picture as the bytes of a file.
    pub(crate) fn bytes(self, picture: &Picture) -> Result<Vec<u8>> {
        match self {
            Self::Svg => Ok(picture.svg().into_bytes()),
            Self::Png => picture.png(SCALE),
        }
    }
}

/// Writes a picture, replacing any file that is there.
///
/// # Errors
/// As [`OutputFile::fill`].
pub(crate) fn write_picture(file: OutputFile, bytes: &[u8]) -> Result<()> {
    let write = |out: &mut dyn Write| out.write_all(bytes).map_err(|e| Error::io("cannot be written", e));
    file.fill(write).map(drop)
}

/// A directory that pictures are written into.
pub(crate) struct PlotDirectory {
    dir: PathBuf,
    formats: Vec<PlotFormat>,
}

impl PlotDirectory {
    /// Makes the directory if it is not there, and checks that it can be written, before long work.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`](headstart_block::ErrorKind::Denied) if a symbolic link of another user leads there; errors
    /// of the operating system.
    pub(crate) fn open(dir: &Path, formats: &[PlotFormat]) -> Result<Self> {
        refuse_links(dir)?;
        let about = |cause: &'static str| move |e| not_made_in(dir, cause, e).about(dir.display());
        fs::create_dir_all(dir).map_err(about("cannot be made"))?;
        // Its own error names a temporary file, which the user does not know.
        tempfile::tempfile_in(dir).map_err(|e| about("cannot be written")(e.kind().into()))?;
        let mut formats = formats.to_vec();
        formats.dedup();
        Ok(Self { dir: dir.to_owned(), formats })
    }

    /// The path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    /// Writes a picture in each format and returns the paths. Existing files of these names are replaced.
    pub(crate) fn save(&self, name: &str, picture: &Picture) -> Result<Vec<String>> {
        let mut files = Vec::with_capacity(self.formats.len());
        for format in &self.formats {
            let path = self.dir.join(format!("{name}.{}", format.extension()));
            let bytes = format.bytes(picture)?;
            write_picture(OutputFile::create(&path, &[])?, &bytes)?;
            files.push(path.display().to_string());
        }
        Ok(files)
    }
}
