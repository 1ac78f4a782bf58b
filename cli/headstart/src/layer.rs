//! `headstart layer`: single layer files, ZFile-wrapped, tar-wrapped or plain.

use crate::Threads;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgGroup, Subcommand};
use headstart_block::{BlockDevice, ByteSize, Error, FileSource, Result};
use headstart_command_line::report::{Fields, Outcome, Report};
use headstart_image::disk_file::DiskFormat;
use headstart_image::export::{ExportReport, export_disk};
use headstart_image::layer_file::{LayerFile, open_pair_files};
use headstart_image::new_image::check_size;
use headstart_image::progress::Progress;
use headstart_lsmt::{LayerForm, Stack};
use serde::Serialize;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Print the properties of a layer file
    #[command(after_help = "Example:\n  headstart layer inspect overlaybd.commit --json")]
    Inspect {
        /// The layer file
        file: PathBuf,
        /// Print every segment of its index: offset, length, mapped offset, zeroed (in sectors)
        #[arg(long)]
        segments: bool,
    },
    /// Write the merged view of a stack of layer files
    #[command(
        group = ArgGroup::new("stack").args(["layers", "pair"]).required(true).multiple(true),
        after_help = "Examples:\n  headstart layer export base.lsmt middle.lsmt top.lsmt -o disk.raw\n  \
                            headstart layer export base.lsmt --pair upper.data,upper.index -o disk.raw"
    )]
    Export {
        /// Layer files, oldest first
        layers: Vec<PathBuf>,
        /// An unsealed writable layer to go on top: its data file and its index file
        #[arg(long, value_name = "DATA,INDEX", value_parser = pair_parser())]
        pair: Option<Pair>,
        /// The file or device to write the disk to; what is there is overwritten
        #[arg(long, short)]
        output: PathBuf,
        /// raw (sparse) or qcow2
        #[arg(long, default_value = "raw")]
        format: DiskFormat,
        /// Size of the disk, in place of the size that the layers record
        #[arg(long)]
        size: Option<ByteSize>,
        #[command(flatten)]
        threads: Threads,
    },
    /// Check the structure of layer files and every checksum in them
    #[command(after_help = "Example:\n  headstart layer verify *.lsmt")]
    Verify {
        /// The layer files
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

/// The files of an unsealed writable layer.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) data: PathBuf,
    pub(crate) index: PathBuf,
}

/// Returns the parser of a pair's option: the names of both files, with a comma between them.
pub(crate) fn pair_parser() -> impl TypedValueParser<Value = Pair> {
    OsStringValueParser::new().try_map(|names| Pair::of(&names))
}

impl Pair {
    fn of(names: &OsStr) -> Result<Self> {
        let files: Vec<_> = names.as_bytes().split(|byte| *byte == b',').map(OsStr::from_bytes).collect();
        match files[..] {
            [data, index] if !data.is_empty() && !index.is_empty() => {
                Ok(Self { data: data.into(), index: index.into() })
            }
            _ => Err(Error::invalid("not the names of two files").remedy("give --pair DATA,INDEX")),
        }
    }
}

impl Command {
    pub(crate) fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        match self {
            Self::Inspect { file, segments } => Ok(Box::new(LayerReport::open(file, *segments)?)),
            Self::Export { layers, pair, output, format, size, threads } => {
                let stack = stack(layers, pair.as_ref(), *size)?;
                let pair = pair.iter().flat_map(|Pair { data, index }| [data, index]);
                let inputs: Vec<_> = layers.iter().chain(pair).map(PathBuf::as_path).collect();
                let report = export_disk(&stack, (output, &inputs), *format, threads.number(), progress)?;
                Ok(Box::new(Exported::new(output, report)))
            }
            Self::Verify { files } => verify(files, progress),
        }
    }
}

fn stack(files: &[PathBuf], pair: Option<&Pair>, size: Option<ByteSize>) -> Result<Stack> {
    let mut layers = Vec::with_capacity(files.len() + 1);
    for file in files {
        layers.push(LayerFile::open(file)?.layer);
    }
    if let Some(Pair { data, index }) = pair {
        layers.push(open_pair_files(data, index)?);
    }
    let mut stack = Stack::new(layers)?;
    if let Some(ByteSize(size)) = size {
        stack = stack.with_size(size);
    }
    check_size(stack.size())?;
    Ok(stack)
}

fn verify(files: &[PathBuf], progress: &dyn Progress) -> Result<Box<dyn Report>> {
    let mut report = VerifiedLayers { layers: Vec::new() };
    for path in files {
        let file = LayerFile::open(path)?;
        let checksums = file.verify(progress).map_err(|e| e.about(path.display()))?;
        report.layers.push(VerifiedLayer { path: path.display().to_string(), checksums });
    }
    Ok(Box::new(report))
}

/// The properties of a layer file.
#[derive(Serialize)]
struct LayerReport {
    /// The path of the file.
    path: String,
    /// Bytes of the file.
    stored_size: u64,
    /// The wrappers around the layer, outermost first.
    wrappers: Vec<String>,
    /// `sealed`, `unsealed pair` or `unsealed sparse`.
    form: &'static str,
    /// The size of the disk in bytes.
    virtual_size: u64,
    /// The layer's UUID.
    uuid: String,
    /// The UUID of the layer below.
    parent_uuid: String,
    /// The text that the layer carries.
    user_tag: String,
    /// Segments of the layer.
    segments: usize,
    /// Bytes of the disk that the layer has.
    data_bytes: u64,
    /// Bytes of the disk that the layer has as zeros.
    zeroed_bytes: u64,
    /// With `--segments`, each segment: place on the disk, length, place in the data, all in sectors, and
    /// 1 for zeros.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<Vec<(u64, u64, u64, u8)>>,
}

impl LayerReport {
    fn open(path: &Path, with_segments: bool) -> Result<Self> {
        let stored_size = headstart_block::ReadAt::len(&FileSource::open(path)?);
        let file = LayerFile::open(path)?;
        let (info, segments) = (file.layer.info(), file.layer.segments());
        let bytes = |zeroed: bool| -> u64 {
            segments
                .iter()
                .filter(|segment| segment.is_zeroed() == zeroed)
                .map(|segment| segment.len() * 512)
                .sum()
        };
        Ok(Self {
            path: path.display().to_string(),
            stored_size,
            wrappers: file.source.wrappers(),
            form: match info.form {
                LayerForm::Sealed => "sealed",
                LayerForm::Pair => "unsealed pair",
                LayerForm::Sparse => "unsealed sparse",
            },
            virtual_size: info.virtual_size,
            uuid: info.uuid.to_string(),
            parent_uuid: info.parent_uuid.to_string(),
            user_tag: info.user_tag.clone(),
            segments: segments.len(),
            data_bytes: bytes(false),
            zeroed_bytes: bytes(true),
            index: with_segments.then(|| {
                segments.iter().map(|s| (s.offset(), s.len(), s.moffset(), u8::from(s.is_zeroed()))).collect()
            }),
        })
    }
}

impl Outcome for LayerReport {}

impl fmt::Display for LayerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wrappers = if self.wrappers.is_empty() { "none".to_owned() } else { self.wrappers.join(", ") };
        let fields = [
            ("file", self.path.clone()),
            ("stored", ByteSize(self.stored_size).to_string()),
            ("wrapped in", wrappers),
            ("form", self.form.to_owned()),
            ("virtual size", format!("{} ({} bytes)", ByteSize(self.virtual_size), self.virtual_size)),
            ("uuid", self.uuid.clone()),
            ("parent uuid", self.parent_uuid.clone()),
            ("user tag", self.user_tag.escape_debug().to_string()),
            ("segments", self.segments.to_string()),
            ("data", ByteSize(self.data_bytes).to_string()),
            ("zeroed", ByteSize(self.zeroed_bytes).to_string()),
        ];
        Fields(&fields).fmt(f)?;
        for (offset, len, moffset, zeroed) in self.index.iter().flatten() {
            write!(
                f,
                "\n{offset:>12} {len:>6} {moffset:>12} {}",
                if *zeroed == 1 { "zeroed" } else { "data" }
            )?;
        }
        Ok(())
    }
}

/// Layer files that are right.
#[derive(Serialize)]
struct VerifiedLayers {
    /// The layers that were checked.
    layers: Vec<VerifiedLayer>,
}

#[derive(Serialize)]
struct VerifiedLayer {
    /// The path of the file.
    path: String,
    /// `true` if its data has checksums, which were checked; the structure always is.
    checksums: bool,
}

impl Outcome for VerifiedLayers {}

impl fmt::Display for VerifiedLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, layer) in self.layers.iter().enumerate() {
            let newline = if i == 0 { "" } else { "\n" };
            let what = if layer.checksums {
                "structure and every checksum right"
            } else {
                "structure right; no checksums"
            };
            write!(f, "{newline}{}: {what}", layer.path)?;
        }
        Ok(())
    }
}

/// A disk that was written out.
#[derive(Serialize)]
pub(crate) struct Exported {
    /// The path of the output.
    path: String,
    /// The size of the disk in bytes.
    virtual_size: u64,
    /// Bytes of data that were written.
    data_bytes: u64,
}

impl Exported {
    pub(crate) fn new(path: &Path, report: ExportReport) -> Self {
        Self {
            path: path.display().to_string(),
            virtual_size: report.virtual_size,
            data_bytes: report.data_bytes,
        }
    }
}

impl Outcome for Exported {}

impl fmt::Display for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (virtual_size, data) = (ByteSize(self.virtual_size), ByteSize(self.data_bytes));
        write!(f, "{}: {virtual_size} disk, {data} of data", self.path)
    }
}
