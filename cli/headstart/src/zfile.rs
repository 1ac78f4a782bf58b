//! `headstart zfile`: single compressed files.

use crate::Threads;
use clap::{Args, Subcommand};
use headstart_block::{ByteSize, Error, Result};
use headstart_command_line::number::named;
use headstart_command_line::report::{Fields, Outcome, Report};
use headstart_image::progress::Progress;
use headstart_image::zfile_files::{open, pack, unpack};
use headstart_zfile::{Codec, ZFileInfo, ZFileOptions};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Compress a file so that any part of it can be read
    #[command(
        after_help = "Example:\n  headstart zfile pack disk.raw -o disk.zf --codec lz4 --frame-size 4k"
    )]
    Pack {
        /// The file to compress
        input: PathBuf,
        /// The compressed file to write
        #[arg(long, short)]
        output: PathBuf,
        #[command(flatten)]
        packing: Packing,
    },
    /// Decompress a file
    #[command(after_help = "Example:\n  headstart zfile unpack disk.zf -o disk.raw")]
    Unpack {
        /// The compressed file
        input: PathBuf,
        /// The file to write its content to
        #[arg(long, short)]
        output: PathBuf,
    },
    /// Print the properties of a compressed file
    #[command(after_help = "Example:\n  headstart zfile inspect disk.zf --json")]
    Inspect {
        /// The compressed file
        input: PathBuf,
    },
}

/// The options of compressing a file.
#[derive(Args, Clone, Debug)]
pub(crate) struct Packing {
    /// lz4 (quick) or zstd (small)
    #[arg(long, default_value = "zstd", value_name = "CODEC")]
    codec: Codec,
    #[command(flatten)]
    frames: Frames,
}

/// The options of compressing a layer.
#[derive(Args, Clone, Debug)]
pub(crate) struct LayerPacking {
    /// lz4 (quick), zstd (small) or none (reads like a raw disk, and takes its space)
    #[arg(long, default_value = "zstd", value_name = "CODEC", value_parser = parse_codec)]
    codec: LayerCodec,
    #[command(flatten)]
    frames: Frames,
}

/// A codec, or none.
type LayerCodec = Option<Codec>;

fn parse_codec(text: &str) -> Result<LayerCodec> {
    match text {
        "none" => Ok(None),
        "lz4" | "zstd" => text.parse().map(Some),
        _ => {
            let error = Error::invalid(format!("`{}` is not a codec", text.escape_debug()));
            Err(error.remedy("choose lz4, zstd or none"))
        }
    }
}

/// Parses the codec of layers whose other options are the default ones.
pub(crate) fn parse_packing(text: &str) -> Result<headstart_image::new_layer::Packing> {
    use headstart_image::new_layer::Packing;
    // Two threads: the one that gives the data, and one that compresses.
    let options = |codec| ZFileOptions { codec, threads: 2, ..ZFileOptions::default() };
    parse_codec(text).map(|codec| codec.map_or(Packing::Plain, |codec| Packing::ZFile(options(codec))))
}

fn parse_frame_size(text: &str) -> Result<u32> {
    ZFileOptions::check_frame_size(text.parse::<ByteSize>()?.0)
}

/// The options of frames, for any codec.
#[derive(Args, Clone, Debug)]
struct Frames {
    /// Bytes compressed together, 4k to 64k: smaller reads less for a random access, larger compresses better
    #[arg(long, default_value = "32k", value_name = "SIZE", value_parser = parse_frame_size)]
    frame_size: u32,
    /// Level of zstd, 1 to 19 [default: 3]
    #[arg(long, value_name = "N", value_parser = named::<i32>("a level", 1..=19))]
    level: Option<i32>,
    /// Leave out the checksum of each frame
    #[arg(long)]
    no_crc: bool,
    #[command(flatten)]
    threads: Threads,
}

impl Packing {
    /// Checks that the options fit the codec.
    ///
    /// # Errors
    /// As [`LayerPacking::check`].
    fn check(&self) -> Result<()> {
        self.frames.check(Some(self.codec))
    }

    /// The options of the format.
    pub(crate) fn options(&self) -> ZFileOptions {
        self.frames.options(self.codec)
    }
}

impl LayerPacking {
    /// Checks that the options fit the codec.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] for a level of a codec that has none.
    pub(crate) fn check(&self) -> Result<()> {
        self.frames.check(self.codec)
    }

    /// The packing of the layer.
    pub(crate) fn options(&self) -> headstart_image::new_layer::Packing {
        use headstart_image::new_layer::Packing;
        self.codec.map_or(Packing::Plain, |codec| Packing::ZFile(self.frames.options(codec)))
    }

    /// The number of threads.
    pub(crate) fn threads(&self) -> usize {
        self.frames.threads.number()
    }

    /// The packing; that of zstd is at `level` if no level was given.
    pub(crate) fn options_at(&self, level: i32) -> headstart_image::new_layer::Packing {
        let level = Some(level).filter(|_| self.codec == Some(Codec::Zstd));
        let frames = Frames { level: self.frames.level.or(level), ..self.frames.clone() };
        Self { frames, ..self.clone() }.options()
    }
}

impl Frames {
    fn check(&self, codec: LayerCodec) -> Result<()> {
        let cause = match (codec, self.level) {
            (Some(Codec::Zstd), _) | (_, None) => return Ok(()),
            (Some(Codec::Lz4), Some(_)) => "--level was given, but lz4 has no levels",
            (None, Some(_)) => "--level was given, but without a codec nothing is compressed",
        };
        Err(Error::invalid(cause).remedy("leave out --level, or choose zstd"))
    }

    fn options(&self, codec: Codec) -> ZFileOptions {
        ZFileOptions {
            codec,
            frame_size: self.frame_size,
            crc: !self.no_crc,
            level: self.level,
            threads: self.threads.number(),
        }
    }
}

impl Command {
    /// Checks the rules between arguments that clap cannot express.
    ///
    /// # Errors
    /// As [`LayerPacking::check`].
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Pack { packing, .. } => packing.check(),
            Self::Unpack { .. } | Self::Inspect { .. } => Ok(()),
        }
    }

    pub(crate) fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        match self {
            Self::Pack { input, output, packing } => {
                let info = pack(input, output, &packing.options(), progress)?;
                Ok(Box::new(ZFileReport::new(output, &info)))
            }
            Self::Unpack { input, output } => {
                Ok(Box::new(ZFileReport::new(input, &unpack(input, output, progress)?)))
            }
            Self::Inspect { input } => Ok(Box::new(ZFileReport::new(input, open(input)?.info()))),
        }
    }
}

/// The properties of a ZFile.
#[derive(Serialize)]
struct ZFileReport {
    /// The path of the file.
    path: String,
    /// The codec of the frames.
    codec: String,
    /// Bytes of content in a frame.
    frame_size: u32,
    /// The number of frames.
    frames: u64,
    /// `true` if each frame has a checksum.
    frame_checksums: bool,
    /// `true` if header, trailer and index have checksums.
    metadata_checksums: bool,
    /// `true` if the header alone tells the place of the index.
    header_complete: bool,
    /// Bytes of the content.
    original_size: u64,
    /// Bytes of the file.
    compressed_size: u64,
    /// The offset of the index in bytes.
    index_offset: u64,
    /// The checksum of the index.
    index_crc: u32,
}

impl ZFileReport {
    fn new(path: &Path, info: &ZFileInfo) -> Self {
        Self {
            path: path.display().to_string(),
            codec: info.codec.to_string(),
            frame_size: info.frame_size,
            frames: info.frames,
            frame_checksums: info.crc,
            metadata_checksums: info.digest,
            header_complete: info.header_valid,
            original_size: info.original_size,
            compressed_size: info.compressed_size,
            index_offset: info.index_offset,
            index_crc: info.index_crc,
        }
    }
}

impl Outcome for ZFileReport {}

impl fmt::Display for ZFileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes| format!("{} ({bytes} bytes)", ByteSize(bytes));
        let yes_no = |yes| if yes { "yes" } else { "no" }.to_owned();
        let fields = [
            ("file", self.path.clone()),
            ("content", size(self.original_size)),
            ("compressed", size(self.compressed_size)),
            ("codec", self.codec.clone()),
            ("frames", format!("{} of {}", self.frames, ByteSize(self.frame_size.into()))),
            ("frame checksums", yes_no(self.frame_checksums)),
            ("metadata checksums", yes_no(self.metadata_checksums)),
        ];
        Fields(&fields).fmt(f)
    }
}
