//! `headstart image`: arguments and dispatch; the reports are in [`report`].

mod convert;
mod copy;
mod forms;
mod layers;
mod list;
mod look;
mod optimize;
mod prune;
mod pull;
mod push;
mod report;

use crate::Threads;
use crate::layer::{Exported, Pair, pair_parser};
use crate::zfile::LayerPacking;
use clap::{ArgGroup, Args, Subcommand};
use headstart_block::{Error, Result};
use headstart_command_line::report::Report;
use headstart_command_line::store_args::StoreArgs;
use headstart_image::commit::{Upper, commit, commit_and_push, flatten};
use headstart_image::diff::diff;
use headstart_image::disk_file::{DiskFile, DiskFormat};
use headstart_image::export::export_disk;
use headstart_image::import::import_disk;
use headstart_image::open_image::OpenImage;
use headstart_image::progress::Progress;
use headstart_image::reference::Reference;
use report::{DiffReport, Made};
use std::path::PathBuf;

pub(crate) const EXAMPLES: &str = "Examples:\n  \
    headstart image import debian.qcow2 file:///srv/images:debian\n  \
    headstart image list file:///srv/images\n  \
    headstart image push file:///srv/images:debian oci://registry.lan/vm/debian:12";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Make an image of a disk (raw, qcow2, vmdk, vhd, vhdx)
    #[command(after_help = "Examples:\n  headstart image import debian.qcow2 file:///srv/images:debian\n  \
                            headstart image import debian-patched.raw file:///srv/images:patched \\\n    \
                            --base file:///srv/images:debian\n  \
                            headstart image import vm1-snapshot.qcow2 file:///srv/images:vm1 --allow-dir /var/lib/vm1")]
    Import(Import),
    /// Make a disk image of a container's image
    #[command(
        after_help = convert::EXAMPLES,
        override_usage = "headstart image convert [OPTIONS] <SOURCE> <TARGET|--referrer|--index>"
    )]
    Convert(convert::Convert),
    /// Make a disk of each layer of a container's image, for containerd's EROFS snapshotter
    #[command(after_help = layers::EXAMPLES)]
    Layers(layers::Layers),
    /// Write an image's disk to a file or device
    #[command(after_help = "Example:\n  headstart image export file:///srv/images:debian -o debian.raw")]
    Export(Export),
    /// Print the properties of an image: its layers, sizes, savings
    #[command(after_help = "Examples:\n  headstart image inspect file:///srv/images:debian --json\n  \
                            headstart image inspect oci://registry.lan/vm/debian:12\n  \
                            headstart image inspect oci://registry.lan/app:1 --forms")]
    Inspect(look::Inspect),
    /// Check that an image matches its digest
    #[command(after_help = "Examples:\n  headstart image verify --deep file:///srv/images:debian\n  \
                            headstart image verify file:///srv/images:debian \\\n    \
                            --repair-from oci://registry.lan/vm/debian:12\n  \
                            headstart image verify https://images.lan/debian:12")]
    Verify(look::Verify),
    /// List the images of a store
    #[command(after_help = "Examples:\n  headstart image list file:///srv/images\n  \
                            headstart image list oci://registry.lan/vm/debian --plain-http registry.lan")]
    List(list::List),
    /// Copy an image from a directory to another store
    #[command(after_help = "Examples:\n  \
        headstart image push file:///srv/images:debian oci://registry.lan/vm/debian:12\n  \
        headstart image push file:///srv/images:debian s3://images/debian\n  \
        headstart image push file:///srv/images:debian oci://registry.lan/vm/debian:12 --warm\n  \
        AWS_ENDPOINT_URL=http://127.0.0.1:9000 headstart image push file:///srv/images:debian \\\n    \
        s3://images/debian:12 --plain-http 127.0.0.1:9000\n\n\
        A target without a tag takes the source's. Blobs that it already has are not copied: run the\n\
        command again to go on after a failure.")]
    Push(push::Push),
    /// Copy an image from another store to a directory
    #[command(after_help = "Examples:\n  \
        headstart image pull oci://registry.lan/vm/debian:12 file:///srv/images\n  \
        headstart image pull https://images.lan/debian:12 file:///srv/images:debian --limit-rate 10MB/s\n\n\
        Blobs that are here already are not copied: run the command again to go on after a failure,\n\
        also within a large blob. --check reads them, and replaces damaged ones.")]
    Pull(pull::Pull),
    /// Copy an image between any two stores
    #[command(after_help = "Example:\n  \
        headstart image copy oci://registry.lan/vm/debian:12 gs://images/debian --ca-file lan.pem")]
    Copy(copy::Copy),
    /// Make an image of a writable layer and the image below it
    #[command(
        after_help = "Examples:\n  headstart image commit --writable /var/lib/vm1 file:///srv/images:vm1\n  \
                            headstart image commit --pair upper.data,upper.index \\\n    \
                            --base file:///srv/images:debian file:///srv/images:vm1\n  \
                            headstart image commit --push --writable /var/lib/vm1 \\\n    \
                            oci://registry.lan/vm/vm1:1\n  \
                            headstart image commit --stack --writable /var/lib/vm1 file:///srv/images:vm1-2"
    )]
    Commit(Commit),
    /// Make an image of one layer that holds the same disk
    #[command(
        after_help = "Example:\n  headstart image flatten file:///srv/images:vm1 file:///srv/images:vm1-flat"
    )]
    Flatten {
        /// The image
        image: Reference,
        /// The image to make: file:///DIR:TAG; a tag that exists is moved to it
        #[arg(value_parser = parse_new_image)]
        target: Reference,
        #[command(flatten)]
        packing: LayerPacking,
    },
    /// Write an image in a new order, so that the blocks that boots read come first
    #[command(after_help = optimize::EXAMPLES)]
    Optimize(optimize::Optimize),
    /// List the ranges in which the disks of two images differ
    #[command(
        after_help = "Example:\n  headstart image diff file:///srv/images:debian file:///srv/images:vm1"
    )]
    Diff {
        /// One image
        left: Reference,
        /// The other
        right: Reference,
    },
    /// Remove an image's tag; its blobs go with a later prune
    #[command(after_help = prune::REMOVE_EXAMPLES)]
    Remove(prune::Remove),
    /// Delete the blobs that no image and no disk needs
    #[command(after_help = prune::PRUNE_EXAMPLES)]
    Prune(prune::Prune),
}

#[derive(Args)]
pub(crate) struct Import {
    /// The disk: a file or a block device
    disk: PathBuf,
    /// The image to make: file:///DIR:TAG; a tag that exists is moved to it
    #[arg(value_parser = parse_new_image)]
    target: Reference,
    /// Make a layer of only the differences from this image, on top of its layers
    #[arg(long, value_name = "IMAGE")]
    base: Option<Reference>,
    /// Format of the disk: raw, qcow2, vmdk, vhd, vhdx [default: found by its content]. If raw is given, archives,
    /// empty files and sizes that are no multiple of 512 bytes are taken, too: the image has the file's size, and
    /// writable disks of it end with a whole sector
    #[arg(long)]
    format: Option<DiskFormat>,
    /// Let the disk name files (backing files, data files, extents) in this directory; without it, none, not even in
    /// the disk's own directory
    #[arg(long, value_name = "DIR")]
    allow_dir: Vec<PathBuf>,
    #[command(flatten)]
    packing: LayerPacking,
}

#[derive(Args)]
pub(crate) struct Export {
    /// The image
    image: Reference,
    /// The file or device to write the disk to; what is there is overwritten
    #[arg(long, short)]
    output: PathBuf,
    /// raw (sparse) or qcow2 [default: raw]
    #[arg(long)]
    format: Option<DiskFormat>,
    #[command(flatten)]
    threads: Threads,
}

#[derive(Args)]
#[command(group = ArgGroup::new("upper").args(["writable", "pair"]).required(true))]
pub(crate) struct Commit {
    /// The image to make: file:///DIR:TAG, with --push an image in any store; a tag that exists is moved to it
    #[arg(value_parser = parse_new_image_anywhere)]
    target: Reference,
    /// Make the image in a registry or another remote store, without a copy of its base here: layers that the store
    /// has stay there, those in another repository of the same registry are taken over by the registry, and only the
    /// new layer is sent
    #[arg(long)]
    push: bool,
    /// A writable directory, as `attach --writable` makes it; --pair serves in its place. Its disk may be attached: it
    /// goes on, and the image has what was there at one moment
    #[arg(long, value_name = "DIR")]
    writable: Option<PathBuf>,
    /// Make the new image, which is in a directory then, the base of the disk: what was committed leaves the writable
    /// directory, and the disk is attached again with the new image, not with the old one
    #[arg(long, requires = "writable", conflicts_with = "push")]
    stack: bool,
    /// An unsealed writable layer of OverlayBD: its data file and its index file
    #[arg(long, value_name = "DATA,INDEX", value_parser = pair_parser())]
    pair: Option<Pair>,
    /// The image that it was written on [default: of a writable directory, the one that it records, if that is in
    /// a store on this host or kept in it by `attach --keep-base`; with --push, in any store]
    #[arg(long, value_name = "IMAGE")]
    base: Option<Reference>,
    #[command(flatten)]
    packing: LayerPacking,
    #[command(flatten)]
    stores: StoreArgs,
}

/// Parses the name of an image to be made, which is in a directory and not named by a digest. Without a tag, `latest`
/// is meant.
fn parse_new_image(text: &str) -> Result<Reference> {
    let image: Reference = text.parse()?;
    image.directory()?;
    image.tag()?;
    Ok(image)
}

/// Parses the name of an image to be made, which may be in any store and has a tag.
fn parse_new_image_anywhere(text: &str) -> Result<Reference> {
    let image: Reference = text.parse()?;
    image.tag()?;
    Ok(image)
}

impl Command {
    /// Checks the rules between arguments that clap cannot express.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if they do not fit together.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Convert(convert) => convert.check(),
            Self::Layers(layers) => layers.check(),
            Self::Push(push) => push.check(),
            Self::Pull(pull) => pull.check(),
            Self::Copy(copy) => copy.check(),
            Self::Commit(commit) => commit.check(),
            Self::Import(Import { packing, .. }) | Self::Flatten { packing, .. } => packing.check(),
            Self::Optimize(optimize) => optimize.check(),
            _ => Ok(()),
        }
    }

    pub(crate) fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        match self {
            Self::Import(import) => import.run(progress),
            Self::Convert(convert) => convert.run(progress),
            Self::Layers(layers) => layers.run(progress),
            Self::Export(export) => export.run(progress),
            Self::Inspect(inspect) => inspect.run(),
            Self::Verify(verify) => verify.run(progress),
            Self::List(list) => list.run(),
            Self::Push(push) => push.run(progress),
            Self::Pull(pull) => pull.run(progress),
            Self::Copy(copy) => copy.run(progress),
            Self::Commit(commit) => commit.run(progress),
            Self::Flatten { image, target, packing } => {
                let made = flatten(image, target, &packing.options(), progress)?;
                Ok(Box::new(Made::new(&made, None)))
            }
            Self::Optimize(optimize) => optimize.run(progress),
            Self::Diff { left, right } => Ok(Box::new(DiffReport::new(&diff(left, right, progress)?))),
            Self::Remove(remove) => remove.run(),
            Self::Prune(prune) => prune.run(),
        }
    }
}

impl Import {
    fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        let file =
            DiskFile { path: self.disk.clone(), format: self.format, allowed_dirs: self.allow_dir.clone() };
        let packing = self.packing.options();
        let (made, format) = import_disk(&file, self.base.as_ref(), &self.target, &packing, progress)?;
        Ok(Box::new(Made::new(&made, Some(format))))
    }
}

impl Export {
    fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        let ending = self.output.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        let named =
            ["qcow2", "vmdk", "vhd", "vhdx", "vdi"].into_iter().find(|it| ending.eq_ignore_ascii_case(it));
        if let (Some(named), None) = (named, self.format) {
            let place = self.output.display();
            tracing::warn!(
                "{place} becomes a raw disk, though it is called .{named}; there is --format qcow2"
            );
        }
        let image = OpenImage::open(&self.image)?;
        let format = self.format.unwrap_or(DiskFormat::Raw);
        let report = export_disk(image.disk(), (&self.output, &[]), format, self.threads.number(), progress)
            .map_err(|e| e.about(&self.image))?;
        Ok(Box::new(Exported::new(&self.output, report)))
    }
}

impl Commit {
    fn check(&self) -> Result<()> {
        self.packing.check()?;
        match (self.push, self.target.location.is_remote()) {
            (false, true) => Err(Error::invalid("is not in a directory")
                .about(&self.target)
                .remedy("give --push, to make the image in a remote store")),
            (true, false) => Err(Error::invalid("is in a directory, where an image is made without --push")
                .about(&self.target)
                .remedy("leave out --push, or name an image in a registry")),
            _ => Ok(()),
        }
    }

    fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        let upper = match (&self.writable, &self.pair) {
            (Some(dir), _) => Upper::Writable { dir: dir.clone(), stack: self.stack },
            (None, Some(Pair { data, index })) => Upper::Pair { data: data.clone(), index: index.clone() },
            (None, None) => {
                return Err(Error::invalid("nothing to commit").remedy("give --writable or --pair"));
            }
        };
        let (base, packing) = (self.base.as_ref(), self.packing.options());
        let made = if self.push {
            self.stores.with_stores(|stores| {
                commit_and_push(&upper, base, &self.target, &packing, stores, progress)
            })?
        } else {
            commit(&upper, base, &self.target, &packing, progress)?
        };
        Ok(Box::new(Made::new(&made, None)))
    }
}
