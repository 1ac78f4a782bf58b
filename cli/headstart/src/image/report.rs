//! The reports of the `image` commands.

use headstart_block::words::count;
use headstart_block::{BlockDevice, ByteSize};
use headstart_command_line::printable;
use headstart_command_line::report::{Fields, Outcome};
use headstart_image::diff::Difference;
use headstart_image::disk_file::DiskFormat;
use headstart_image::manifest::Manifest;
use headstart_image::new_image::NewImageReport;
use headstart_image::open_image::{Coverage, OpenImage, OpenLayer};
use headstart_image::reference::Reference;
use headstart_image::served_disk::CommitMoment;
use headstart_image::store::ListEntry;
use headstart_image::transfer::TransferReport;
use headstart_image::verify::{Depth, Verdict};
use serde::Serialize;
use std::fmt;

/// An image that was made.
#[derive(Serialize)]
pub(super) struct Made {
    /// The reference of the image.
    image: String,
    /// The digest of its manifest.
    digest: String,
    /// The format of the imported disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<String>,
    /// The size of the disk in bytes.
    virtual_size: u64,
    /// Bytes at the end of the base's disk that the image's disk does not have, if the image's disk is smaller.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut_bytes: Option<u64>,
    /// The number of its layers.
    layers: usize,
    /// The digest of the new layer.
    layer: String,
    /// Bytes of the new layer as stored.
    layer_size: u64,
    /// Bytes of the disk that the new layer has.
    layer_data_bytes: u64,
    /// Segments of the new layer.
    layer_segments: u64,
    /// The digest that the tag named before, if it was moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    was: Option<String>,
    /// The way of its blobs into a remote store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pushed: Option<Pushed>,
    /// `true` if the disk that was committed goes on with the image as its base.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stacked: bool,
    /// The moment of the commit of a disk that is attached: `frozen` if all that was written to its file systems is in
    /// the image, `in_use` if its users may have had more to write.
    #[serde(skip_serializing_if = "Option::is_none")]
    moment: Option<&'static str>,
    /// The errors for which file systems that this host has mounted were not frozen; the others were.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_frozen: Option<String>,
}

/// The blobs of an image that was made in a remote store.
#[derive(Serialize)]
struct Pushed {
    /// Blobs that were sent.
    copied_blobs: u64,
    /// Their bytes.
    copied_bytes: u64,
    /// Blobs that the registry took over from another repository.
    mounted_blobs: u64,
    /// Their bytes.
    mounted_bytes: u64,
    /// Blobs that were there already.
    present_blobs: u64,
    /// Their bytes.
    present_bytes: u64,
}

impl Pushed {
    fn of(done: &TransferReport) -> Self {
        Self {
            copied_blobs: done.copied,
            copied_bytes: done.copied_bytes,
            mounted_blobs: done.mounted,
            mounted_bytes: done.mounted_bytes,
            present_blobs: done.present,
            present_bytes: done.present_bytes,
        }
    }

    /// The fields of the report.
    fn fields(&self) -> Vec<(&'static str, String)> {
        let blobs = |number, bytes| format!("{} in {}", ByteSize(bytes), count(number, "blob"));
        let mut fields = vec![("sent", blobs(self.copied_blobs, self.copied_bytes))];
        if self.mounted_blobs > 0 {
            fields.push(("taken over by the registry", blobs(self.mounted_blobs, self.mounted_bytes)));
        }
        if self.present_blobs > 0 {
            fields.push(("there already", blobs(self.present_blobs, self.present_bytes)));
        }
        fields
    }
}

impl Made {
    pub(super) fn new(made: &NewImageReport, format: Option<DiskFormat>) -> Self {
        Self {
            image: made.reference.to_string(),
            digest: made.digest.to_string(),
            format: format.map(|format| format.to_string()),
            virtual_size: made.virtual_size,
            cut_bytes: made
                .base_size
                .and_then(|base| base.checked_sub(made.virtual_size))
                .filter(|cut| *cut > 0),
            layers: made.layers,
            layer: made.layer.to_string(),
            layer_size: made.layer_size,
            layer_data_bytes: made.summary.data_bytes,
            layer_segments: made.summary.segments,
            was: made.was.map(|was| was.to_string()),
            pushed: made.transfer.as_ref().map(Pushed::of),
            stacked: made.stacked,
            moment: made.moment.as_ref().map(|moment| match moment {
                CommitMoment::Frozen => "frozen",
                CommitMoment::InUse { .. } => "in_use",
            }),
            not_frozen: match &made.moment {
                Some(CommitMoment::InUse { error }) => error.clone(),
                _ => None,
            },
        }
    }
}

impl Made {
    /// The state of the file systems in the image of a disk that is attached.
    fn moment(&self) -> Option<String> {
        const SYNC: &str = "run `sync` or `fsfreeze` in its guest (QEMU's agent: guest-fsfreeze-freeze), or where it \
                            is mounted, and commit again to have it";
        Some(match (self.moment?, &self.not_frozen) {
            ("frozen", _) => {
                "whole: those that this host has mounted were frozen for a moment, without a loss".to_owned()
            }
            (_, None) => format!(
                "as after a loss of power, if one was in use: none of them is mounted in this mount namespace, and \
                 what was not written yet is missing; {SYNC}"
            ),
            (_, Some(error)) => format!(
                "as after a loss of power, where they could not be frozen ({error}): what was not written there yet \
                 is missing; end what writes there, and commit again to have it"
            ),
        })
    }
}

impl Outcome for Made {}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = self.format.as_ref().map(|format| format!(" ({format})")).unwrap_or_default();
        let (stored, data) = (ByteSize(self.layer_size), ByteSize(self.layer_data_bytes));
        let mut fields = vec![
            ("image", self.image.clone()),
            ("digest", self.digest.clone()),
            ("disk", format!("{}{format}", ByteSize(self.virtual_size))),
            ("layers", self.layers.to_string()),
            ("new layer", self.layer.clone()),
            (
                "it has",
                format!("{data} of data in {}, stored in {stored}", count(self.layer_segments, "segment")),
            ),
        ];
        if let Some(cut) = self.cut_bytes {
            let text = format!("the last {} of the base: this disk is smaller", ByteSize(cut));
            fields.push(("cut off", text));
        }
        fields.extend(self.pushed.iter().flat_map(Pushed::fields));
        fields.extend(self.was.clone().map(|was| ("was", was)));
        if self.stacked {
            fields.push(("the disk", "goes on with this image as its base".to_owned()));
        }
        fields.extend(self.moment().map(|text| ("its files", text)));
        Fields(&fields).fmt(f)
    }
}

/// The properties of an image.
#[derive(Serialize)]
pub(super) struct Inspection {
    /// The reference of the image.
    image: String,
    /// The digest of its manifest.
    digest: String,
    /// The program that made it, if it says so.
    made_by: Option<String>,
    /// The options that it was made with, if it says so.
    options: Option<String>,
    /// The size of the disk in bytes.
    virtual_size: u64,
    /// Bytes of the disk that hold data.
    data_bytes: u64,
    /// Bytes of all blobs as stored, hash trees included.
    stored_bytes: u64,
    /// Segments of the merged index of all layers.
    segments: usize,
    /// The image that it was optimized from.
    #[serde(skip_serializing_if = "Option::is_none")]
    optimized_from: Option<String>,
    /// The container's image that it was converted from. The name may lead to that image, beside which this one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    converted_from: Option<String>,
    /// The file system that the conversion made on the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    file_system: Option<String>,
    /// The layers, lowest first.
    layers: Vec<InspectedLayer>,
}

#[derive(Serialize)]
struct InspectedLayer {
    /// The digest of the blob.
    digest: String,
    /// Bytes of the blob.
    stored_bytes: u64,
    /// Bytes of the disk that the layer has.
    data_bytes: u64,
    /// Segments of the layer.
    segments: usize,
    /// The wrappers around the layer, outermost first.
    wrappers: Vec<String>,
    /// The guard of its bytes, such as a hash tree.
    coverage: &'static str,
    /// The layer's UUID.
    uuid: String,
    /// The UUID of the layer below, as the layer notes it.
    parent_uuid: String,
    /// The size of the disk in bytes, as the layer notes it.
    virtual_size: u64,
    /// For a boot layer: the number of its bytes, from its start on, that boots read.
    #[serde(skip_serializing_if = "Option::is_none")]
    boot_bytes: Option<u64>,
}

impl Inspection {
    pub(super) fn new(image: &OpenImage) -> Self {
        Self {
            image: image.reference.to_string(),
            digest: image.digest.to_string(),
            made_by: image.manifest.version().map(|version| format!("headstart {version}")),
            options: image.manifest.options().map(str::to_owned),
            virtual_size: image.disk().size(),
            data_bytes: image.data_bytes(),
            stored_bytes: image.manifest.stored_size(),
            segments: image.disk().index().len(),
            optimized_from: image.manifest.optimized_from().map(|digest| digest.to_string()),
            converted_from: image.manifest.converted_from().map(|origin| origin.manifest.to_string()),
            file_system: image.manifest.file_system().map(str::to_owned),
            layers: image.layers.iter().map(InspectedLayer::new).collect(),
        }
    }
}

impl InspectedLayer {
    fn new(layer: &OpenLayer) -> Self {
        Self {
            digest: layer.blob.blob.digest.to_string(),
            stored_bytes: layer.blob.blob.size,
            data_bytes: layer.data_bytes,
            segments: layer.segments,
            wrappers: layer.source.wrappers(),
            coverage: describe(layer.coverage()),
            uuid: layer.info.uuid.to_string(),
            parent_uuid: layer.info.parent_uuid.to_string(),
            virtual_size: layer.info.virtual_size,
            boot_bytes: layer.blob.boot_bytes(),
        }
    }
}

/// The guard of a layer's bytes, in words.
fn describe(coverage: Coverage) -> &'static str {
    match coverage {
        Coverage::Tree => "hash tree",
        Coverage::FrameChecksums => "frame checksums",
        Coverage::DigestOnly => "digest of the whole",
    }
}

impl Outcome for Inspection {}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (virtual_size, data, stored) =
            (ByteSize(self.virtual_size), ByteSize(self.data_bytes), ByteSize(self.stored_bytes));
        let mut fields = vec![
            ("image", self.image.clone()),
            ("digest", self.digest.clone()),
            ("made by", self.made_by.clone().unwrap_or_else(|| "another tool".to_owned())),
            ("options", self.options.clone().unwrap_or_else(|| "unknown".to_owned())),
            ("disk", format!("{virtual_size} ({} bytes)", self.virtual_size)),
            ("data", format!("{data}, {} of the disk", percent(self.data_bytes, self.virtual_size))),
            (
                "stored",
                format!(
                    "{stored}, {} of the data, hash trees included",
                    percent(self.stored_bytes, self.data_bytes)
                ),
            ),
            ("merged index", count(self.segments as u64, "segment")),
            ("layers", format!("{}, lowest first", self.layers.len())),
        ];
        let layers = fields.len() - 1;
        if let Some(from) = &self.optimized_from {
            fields.insert(layers, ("reordered from", from.clone()));
        }
        if let Some(from) = &self.converted_from {
            fields.insert(layers, ("converted from", from.clone()));
        }
        if let Some(kind) = &self.file_system {
            fields.insert(layers, ("file system", kind.clone()));
        }
        Fields(&fields).fmt(f)?;
        for layer in &self.layers {
            let (data, stored) = (ByteSize(layer.data_bytes), ByteSize(layer.stored_bytes));
            let wrappers =
                if layer.wrappers.is_empty() { "plain".to_owned() } else { layer.wrappers.join(", ") };
            write!(
                f,
                "\n  {}\n    {data} of data in {}, stored in {stored} ({wrappers}), guarded by {}",
                layer.digest,
                count(layer.segments as u64, "segment"),
                layer.coverage
            )?;
            if let Some(bytes) = layer.boot_bytes {
                write!(f, "\n    a boot layer: its first {} are what boots read, in order", ByteSize(bytes))?;
            }
        }
        Ok(())
    }
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "none".to_owned();
    }
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let percent = part as f64 * 100.0 / whole as f64;
    format!("{percent:.1}%")
}

/// The verdict on an image.
#[derive(Serialize)]
pub(super) struct Verified {
    /// The reference of the image.
    image: String,
    /// The digest of its manifest.
    digest: String,
    /// `true` if every byte was read.
    deep: bool,
    /// `true` if it is in a store whose images are read in full only by copying them.
    #[serde(skip)]
    is_remote: bool,
    /// `true` if nothing is wrong.
    right: bool,
    /// Blobs that were fetched again, if a repair was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    repaired_blobs: Option<u64>,
    /// The layers, lowest first.
    layers: Vec<VerifiedLayer>,
    /// The problems, in words.
    problems: Vec<String>,
}

#[derive(Serialize)]
struct VerifiedLayer {
    /// The digest of the blob.
    digest: String,
    /// The guard of its bytes; `None` if it has a problem.
    coverage: Option<&'static str>,
}

impl Verified {
    pub(super) fn new(image: &Reference, depth: Depth, verdict: &Verdict) -> Self {
        let problems: Vec<_> = verdict.problems().map(ToString::to_string).collect();
        let layers = verdict.layers.iter().map(|layer| VerifiedLayer {
            digest: layer.blob.to_string(),
            coverage: layer.verdict.as_ref().ok().map(|coverage| describe(*coverage)),
        });
        Self {
            image: image.to_string(),
            digest: verdict.digest.to_string(),
            deep: depth == Depth::Deep,
            is_remote: image.location.is_remote(),
            right: problems.is_empty(),
            repaired_blobs: None,
            layers: layers.collect(),
            problems,
        }
    }

    /// Adds the number of blobs that were fetched again before the check.
    pub(super) fn with_repaired(self, repaired_blobs: Option<u64>) -> Self {
        Self { repaired_blobs, ..self }
    }
}

impl Outcome for Verified {
    fn is_right(&self) -> bool {
        self.right
    }
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match (self.right, self.deep) {
            (true, true) => "every byte is right",
            (true, false) if self.is_remote => {
                "digests of metadata and structure are right; data was not read (`headstart image pull` checks every \
                 byte)"
            }
            (true, false) => {
                "digests of metadata and structure are right; data was not read (--deep reads every byte)"
            }
            (false, _) => "WRONG",
        };
        write!(f, "{} {}: {what}", self.image, self.digest)?;
        for layer in &self.layers {
            let coverage = match (layer.coverage, self.deep) {
                (None, _) => "WRONG".to_owned(),
                (Some(coverage), true) => format!("right, guarded by {coverage}"),
                // The check did not read the data.
                (Some(coverage), false) => {
                    format!("structure is right, data not read; guarded by {coverage}")
                }
            };
            write!(f, "\n  {} {coverage}", layer.digest)?;
        }
        if let Some(repaired) = self.repaired_blobs {
            write!(f, "\n{} fetched again", count(repaired, "blob"))?;
        }
        for problem in &self.problems {
            write!(f, "\n{}", printable::line(problem))?;
        }
        Ok(())
    }
}

/// The images of a store.
#[derive(Serialize)]
pub(super) struct Listing {
    /// The images, by their tags.
    images: Vec<ListedImage>,
}

#[derive(Serialize)]
struct ListedImage {
    /// The tag; null for an image without one.
    tag: Option<String>,
    /// The digest of the manifest.
    digest: Option<String>,
    /// The size of the disk in bytes.
    virtual_size: Option<u64>,
    /// The number of layers.
    layers: Option<usize>,
    /// Bytes of all blobs as stored.
    stored_bytes: Option<u64>,
    /// The container's image to which the tag leads, if the listed image is the disk that was made of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    beside: Option<String>,
    /// The cause why it is not an image that can be opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

impl Listing {
    pub(super) fn new(entries: Vec<ListEntry>) -> Self {
        let images = entries.into_iter().map(|entry| {
            let manifest = entry.image.as_ref().ok().map(|image| &image.manifest);
            ListedImage {
                tag: entry.tag.clone(),
                digest: entry.digest.map(|digest| digest.to_string()),
                virtual_size: manifest.and_then(|manifest| manifest.virtual_size),
                layers: manifest.map(|manifest| manifest.layers.len()),
                stored_bytes: manifest.map(Manifest::stored_size),
                beside: entry.beside.map(|digest| digest.to_string()),
                problem: entry.image.as_ref().err().map(ToString::to_string),
            }
        });
        Self { images: images.collect() }
    }
}

impl Outcome for Listing {}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: Option<u64>| bytes.map_or("?".to_owned(), |bytes| ByteSize(bytes).to_string());
        let tags: Vec<_> =
            self.images.iter().map(|image| printable::line(image.tag.as_deref().unwrap_or("-"))).collect();
        let width = tags.iter().map(String::len).max().unwrap_or(0).max("TAG".len());
        write!(f, "{:width$}  {:>12}  {:>12}  {:>6}  DIGEST", "TAG", "DISK", "STORED", "LAYERS")?;
        for (image, tag) in self.images.iter().zip(&tags) {
            let (disk, stored) = (size(image.virtual_size), size(image.stored_bytes));
            let layers = image.layers.map_or("?".to_owned(), |layers| layers.to_string());
            let digest = image.digest.as_deref().unwrap_or("?");
            write!(f, "\n{tag:width$}  {disk:>12}  {stored:>12}  {layers:>6}  {digest}")?;
            if let Some(original) = &image.beside {
                write!(f, "\n{:width$}  made of the container's image {original}, and beside it", "")?;
            }
            if let Some(problem) = &image.problem {
                write!(f, "\n{:width$}  {}", "", printable::line(problem))?;
            }
        }
        Ok(())
    }
}

/// The differences between two images.
#[derive(Serialize)]
pub(super) struct DiffReport {
    /// `true` if both disks have the same content and size.
    same: bool,
    /// The sizes of both disks in bytes.
    virtual_sizes: [u64; 2],
    /// Bytes in ranges that differ.
    differing_bytes: u64,
    /// Offsets and lengths in bytes.
    ranges: Vec<(u64, u64)>,
}

impl DiffReport {
    pub(super) fn new(difference: &Difference) -> Self {
        Self {
            same: difference.is_empty(),
            virtual_sizes: difference.sizes,
            differing_bytes: difference.bytes(),
            ranges: difference.ranges.iter().map(|range| (range.offset(), range.len())).collect(),
        }
    }
}

impl Outcome for DiffReport {
    fn is_right(&self) -> bool {
        self.same
    }
}

impl fmt::Display for DiffReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.same {
            return f.write_str("the disks are the same");
        }
        let [left, right] = self.virtual_sizes.map(ByteSize);
        if left != right {
            writeln!(f, "the disks have {left} and {right}")?;
        }
        write!(
            f,
            "{} differ, in {}",
            ByteSize(self.differing_bytes),
            count(self.ranges.len() as u64, "range")
        )?;
        for (offset, len) in &self.ranges {
            write!(f, "\n  {len:>12} bytes at {offset}")?;
        }
        Ok(())
    }
}
