//! `headstart-lab trace plot`: the figures of the ThinkAhead paper, for any data set.
//!
//! | module | content |
//! |---|---|
//! | [`figure`] | the figures and their names |
//! | [`creations`] | the figures of the table of creations: 3 to 7 and 14 |
//! | [`traces`] | the figures of all traces: 2, 8, 12, 13, 15, 18, 20, 22, 23 |
//! | [`boots`] | the figures of single boots: 9 and 16 |
//!
//! A figure is a picture, or the reason why the data set has none. Traces are read once, and only if one of the figures
//! needs them; the few that are drawn themselves are read again.

mod boots;
mod creations;
mod figure;
mod traces;

use crate::plots::{PlotDirectory, PlotFormat};
use clap::Args;
use figure::Figure;
use headstart_block::words::count;
use headstart_block::{Error, ErrorKind, Result};
use headstart_command_line::report::Outcome;
use headstart_image::progress::Progress;
use headstart_plot::Picture;
use headstart_trace::data_set::{DataSetLimits, Skipped};
use headstart_trace::stats::{
    BootCounts, Collector, CreationCurves, CreationFigures, Curves, Figures, MakerKind,
};
use headstart_trace::{DataSet, Trace};
use headstart_train::progress::cancelled;
use headstart_train::traces::read_all;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "\
Examples:
  headstart-lab trace plot /srv/fast26 -o plots
  headstart-lab trace plot /srv/cache/traces -o plots --figures 9,16 --format svg

Figures, numbered as in the paper (How Soon is Now?, FAST'26):
   2  reads that lie in several blocks         13  how much of a disk is read
   3  sizes of disks                           14  creations of the images with the most
   4  size of an image over its disk's         15  time from a creation to the first read
   5  images of which a user makes disks       16  the first blocks of two boots
   6  clusters in which an image is used       18  time from a read to the next
   7  images in use by the hour                20  distinct blocks that a boot reads
   8  how much of a boot is reads              22  how much blocks differ between boots
   9  what two boots read when                 23  how alike images are
  12  how alike an image's boots are";

#[derive(Args)]
pub(crate) struct Arguments {
    /// The traces: a directory of them, a data set of the FAST'26 layout, or one trace
    data_set: PathBuf,
    /// The directory to write the pictures to: figure-02.svg and so on; existing files of these names are replaced
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    /// The numbers of the figures, separated by commas [default: all that the data set has the data for]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    figures: Vec<Figure>,
    /// The formats of the pictures, separated by commas
    #[arg(long, value_enum, value_name = "FORMAT", value_delimiter = ',', default_value = "svg,png")]
    format: Vec<PlotFormat>,
}

/// A picture, or the reason why there is none.
type Drawn = Result<Picture, &'static str>;

/// The figures that were drawn, and those that were not.
#[derive(Serialize)]
pub(super) struct PlotReport {
    output: String,
    traces: usize,
    images: u64,
    figures: Vec<Written>,
    /// All files, for programs.
    files: Vec<String>,
    left_out: Vec<LeftOut>,
    skipped: Skipped,
}

#[derive(Serialize)]
struct Written {
    figure: Figure,
    title: String,
    /// A note on the figure: the part that is shown, or missing.
    note: String,
    files: Vec<String>,
}

#[derive(Serialize)]
struct LeftOut {
    figure: Figure,
    reason: &'static str,
}

/// The data of figures.
struct Material<'a> {
    set: &'a DataSet,
    creations: CreationFigures,
    creation_curves: CreationCurves,
    /// The figures of the traces; without data, if none of the requested figures needs them.
    figures: Figures,
    curves: Curves,
    /// The number of distinct blocks that each trace reads; `None` if it was not read.
    blocks: Vec<Option<usize>>,
    skipped: Skipped,
}

impl Arguments {
    pub(super) fn run(&self, progress: &dyn Progress) -> Result<PlotReport> {
        let set = DataSet::open(&self.data_set, &DataSetLimits::default())?;
        let wanted = if self.figures.is_empty() { Figure::all() } else { self.figures.clone() };
        let directory = PlotDirectory::open(&self.output, &self.format)?;
        let material = Material::gather(&set, &wanted, progress)?;
        let mut report = PlotReport {
            output: directory.path().display().to_string(),
            traces: set.len(),
            images: material.creations.images,
            figures: Vec::new(),
            files: Vec::new(),
            left_out: Vec::new(),
            skipped: Skipped::default(),
        };
        progress.begin_items("drawing", wanted.len() as u64);
        let data = self.data(&material);
        for figure in wanted {
            cancelled(progress)?;
            match material.draw(figure) {
                Ok(picture) => {
                    let note = picture.note.clone();
                    let below = format!("{data} {note}");
                    let picture = Picture { title: figure.title(), note: below.trim().to_owned(), ..picture };
                    let files = directory.save(&figure.file(), &picture)?;
                    report.files.extend_from_slice(&files);
                    report.figures.push(Written { figure, title: picture.title, note, files });
                }
                Err(reason) => report.left_out.push(LeftOut { figure, reason }),
            }
            progress.advance(1);
        }
        report.skipped = material.skipped;
        if report.figures.is_empty() {
            return Err(nothing(&report).about(self.data_set.display()));
        }
        Ok(report)
    }

    /// A description of the data, in a line under each picture's title.
    fn data(&self, material: &Material<'_>) -> String {
        let name = self.data_set.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|| self.data_set.display().to_string());
        let traces = count(material.set.len() as u64, "trace");
        format!("Data set {name}: {traces} of {}.", count(material.creations.images, "image"))
    }
}

fn nothing(report: &PlotReport) -> Error {
    let reasons: Vec<_> =
        report.left_out.iter().map(|left| format!("figure {}: {}", left.figure, left.reason)).collect();
    let error = Error::new(ErrorKind::NotFound, format!("has nothing to draw ({})", reasons.join("; ")));
    match report.skipped.total() {
        0 => error,
        skipped => {
            error.remedy(format!("{} skipped: `headstart-lab trace stats` says why", count(skipped, "trace")))
        }
    }
}

impl<'a> Material<'a> {
    fn gather(set: &'a DataSet, wanted: &[Figure], progress: &dyn Progress) -> Result<Self> {
        let mut skipped = Skipped::default();
        skipped.add(set.skipped());
        let mut blocks = vec![None; set.len()];
        let mut collector = Collector::default();
        if wanted.iter().any(|figure| figure.needs_traces()) {
            let boil = |trace: Trace| (BootCounts::of(&trace), trace.creation);
            let found = read_all(set, ("reading traces", 0), progress, boil, |index, (boot, creation)| {
                collector.add(&creation, &boot);
                if let Some(blocks) = blocks.get_mut(index) {
                    *blocks = Some(boot.blocks.len());
                }
                Ok(())
            })?;
            skipped.add(&found);
        }
        let (creations, creation_curves) = CreationFigures::with_curves(set.creations());
        let (figures, curves) = collector.finish_with_curves();
        Ok(Self { set, creations, creation_curves, figures, curves, blocks, skipped })
    }

    fn draw(&self, figure: Figure) -> Drawn {
        match figure.number() {
            2 => traces::cross_blocks(self),
            3 => creations::sizes(self),
            4 => creations::ratios(self),
            5 => creations::users(self),
            6 => creations::clusters(self),
            7 => creations::hours(self),
            8 => traces::reads(self),
            9 => boots::patterns(self),
            12 => traces::cosines(self),
            13 => traces::accesses(self),
            14 => creations::popular(self),
            15 => traces::grace(self),
            16 => boots::first_blocks(self),
            18 => traces::intervals(self),
            20 => traces::unique_blocks(self),
            22 => traces::deviations(self),
            23 => traces::likeness(self),
            _ => Err("it is not among the figures"),
        }
    }

    /// The reason why there are no figures of traces.
    fn readable(&self) -> Result<(), &'static str> {
        if self.blocks.iter().any(Option::is_some) { Ok(()) } else { Err("no trace can be read") }
    }
}

/// The name of a kind of image in a legend, and its style there: the same in all figures.
fn kind_name(kind: &str) -> (&'static str, usize) {
    match kind {
        "public" => ("public images", 0),
        "user" => ("images of users", 1),
        _ => ("other images", 2),
    }
}

/// The number of an image's kind in [`kind_name`].
fn style_of(image: &str) -> usize {
    match MakerKind::of(image) {
        MakerKind::Public => 0,
        MakerKind::User => 1,
        MakerKind::Other => 2,
    }
}

impl Outcome for PlotReport {
    fn is_right(&self) -> bool {
        self.skipped.total() == 0
    }
}

impl fmt::Display for PlotReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (figures, traces) = (self.figures.len() as u64, self.traces as u64);
        let (traces, images) = (count(traces, "trace"), count(self.images, "image"));
        write!(f, "{} of {traces} of {images} into {}", count(figures, "figure"), self.output)?;
        for Written { figure, title, note, .. } in &self.figures {
            write!(f, "\n{figure:>3}  {title}")?;
            if !note.is_empty() {
                write!(f, "\n     {note}")?;
            }
        }
        if !self.left_out.is_empty() {
            write!(f, "\n\nleft out:")?;
        }
        for LeftOut { figure, reason } in &self.left_out {
            write!(f, "\n{figure:>3}  {reason}")?;
        }
        if !self.skipped.is_empty() {
            write!(f, "\n\n{}", self.skipped)?;
        }
        Ok(())
    }
}
