//! The program `overlaybd-commit`, if this one is called by that name: `BuildKit` calls it for layers of blocks.
//!
//! `BuildKit` builds images whose layers are disks' with a snapshotter that it knows by the name `overlaybd`. The
//! sealed layer that a build step has left becomes a blob by `/opt/overlaybd/bin/overlaybd-commit`: OverlayBD's
//! program, or a link to this one. The options are those that `BuildKit` gives, and no others.

use clap::Parser;
use headstart_block::{Error, ErrorKind, Result};
use headstart_command_line::program;
use headstart_command_line::report::print_error;
use headstart_image::layer_file::LayerFile;
use headstart_image::tar_wrapper;
use headstart_zfile::{Codec, ZFileOptions, ZFileWriter};
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The name by which this program is that one.
const NAME: &str = "overlaybd-commit";

const EXAMPLE: &str = "Example:\n  overlaybd-commit --commit_sealed overlaybd.sealed out -z -t -f";

/// Make a blob for images of a sealed layer of blocks, with OverlayBD's options, as BuildKit calls it
#[derive(Parser)]
#[command(name = NAME, version, after_help = EXAMPLE)]
pub(crate) struct OverlaybdCommit {
    /// The layer is sealed: one file
    #[arg(long = "commit_sealed", required = true)]
    is_sealed: bool,
    /// Compress it, as a ZFile
    #[arg(short = 'z', required = true)]
    is_compressed: bool,
    /// Put a tar archive around it
    #[arg(short = 't')]
    is_wrapped: bool,
    /// Write over a file that is there
    #[arg(short = 'f')]
    is_forced: bool,
    /// The sealed layer
    layer: PathBuf,
    /// The blob to write
    blob: PathBuf,
}

impl OverlaybdCommit {
    /// `true` if this process is to be that program.
    pub(crate) fn is_called() -> bool {
        let called = env::args_os().next();
        called.is_some_and(|word| Path::new(&word).file_name().is_some_and(|name| name == NAME))
    }

    /// Runs that program: it is silent, unless it fails.
    pub(crate) fn main() -> ExitCode {
        match program::parse::<Self>().map(|command| command.run()) {
            Ok(Ok(())) => ExitCode::SUCCESS,
            Ok(Err(error)) => print_error(&error),
            Err(status) => status,
        }
    }

    /// `true` if the blob would be written over the layer.
    fn is_same_file(&self) -> bool {
        let [layer, blob] = [&self.layer, &self.blob].map(fs::metadata);
        layer.is_ok_and(|layer| blob.is_ok_and(|blob| (layer.dev(), layer.ino()) == (blob.dev(), blob.ino())))
    }

    /// Writes the blob. What is there if that fails is removed.
    ///
    /// # Errors
    /// The layer is none; the blob is there; errors of reading and writing.
    fn run(&self) -> Result<()> {
        // Also checks that it is one.
        LayerFile::open(&self.layer)?;
        if self.is_same_file() {
            return Err(Error::invalid("is the layer itself")
                .about(self.blob.display())
                .remedy("name another file"));
        }
        let failed = |error: io::Error| Error::from(error).about(self.blob.display());
        let mut options = OpenOptions::new();
        options.write(true).create(true).create_new(!self.is_forced).truncate(self.is_forced);
        let mut blob = options.open(&self.blob).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Error::new(ErrorKind::Conflict, "is there already")
                .about(self.blob.display())
                .remedy("give -f to write over it"),
            _ => failed(error),
        })?;
        let written = if self.is_wrapped {
            tar_wrapper::wrap(&mut blob, |blob| pack(&self.layer, blob))
        } else {
            pack(&self.layer, &mut blob)
        };
        written.and_then(|()| blob.sync_all().map_err(failed)).inspect_err(|_| {
            let _ = fs::remove_file(&self.blob);
        })
    }
}

/// Compresses a layer. The codec is that of OverlayBD's program, which every version of OverlayBD reads.
fn pack(layer: &Path, blob: &mut File) -> Result<()> {
    let failed = |error: io::Error| Error::from(error).about(layer.display());
    let options = ZFileOptions { codec: Codec::Lz4, ..ZFileOptions::default() };
    let mut writer = ZFileWriter::new(blob, &options)?;
    io::copy(&mut File::open(layer).map_err(failed)?, &mut writer).map_err(failed)?;
    writer.finish().map(drop)
}
