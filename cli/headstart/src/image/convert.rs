//! `headstart image convert`: an image of a disk is made of a container's image.

use super::parse_new_image_anywhere;
use crate::swarm::{AfterPush, PushWarming};
use crate::zfile::LayerPacking;
use clap::{ArgGroup, Args};
use headstart_block::words::count;
use headstart_block::{ByteSize, Error, Result};
use headstart_command_line::report::{Fields, Outcome, Report};
use headstart_command_line::store_args::StoreArgs;
use headstart_container_source::{ImagePlatform, SourceName};
use headstart_convert::{
    ConvertLimits, ConvertMode, ConvertOptions, ConvertReport, ConvertRequest, ConvertedForm, FileSystemKind,
    LayerOutcome,
};
use headstart_image::progress::Progress;
use headstart_image::reference::{Location, Reference, Selector};
use serde::Serialize;
use std::fmt;
use std::path::Path;

pub(super) const EXAMPLES: &str = "Examples:\n  \
    headstart image convert oci://registry.lan/app:1 --referrer\n  \
    headstart image convert oci://registry.lan/app:1 --index\n  \
    headstart image convert oci://registry.lan/app:1 oci://registry.lan/app:1-disk\n  \
    headstart image convert oci://registry.lan/app:1 file:///srv/images:app\n  \
    headstart image convert oci://registry.lan/app:1 --referrer --warm\n  \
    headstart image convert oci://registry.lan/app:1 oci://registry.lan/app:1-turbo --mode turbo\n  \
    headstart image convert oci://registry.lan/app:1 oci://registry.lan/app:1-erofs --fs erofs\n  \
    docker save app:1 -o app.tar\n  \
    headstart image convert docker-archive:app.tar file:///srv/images:app\n\n\
    With --referrer and --index, users of the image go on to use its name: `headstart snapshotter` and `headstart \
    attach` find the disk by it. An image with a name of its own is used by that name.\n\n\
    Each layer becomes one layer of a disk with an ext4 file system; or with --fs erofs, an EROFS, which can only be \
    read: for images on which overlayfs, and no container, writes. The original stays as it is, with its digest and \
    signatures. The same layers and options give the same bytes on every machine, so layers that a store has from an \
    earlier conversion are neither read nor converted again. No root is needed.\n\n\
    With --mode turbo the data stays where it is: the new image has TurboOCI layers, as OverlayBD's convertor writes \
    them, with metadata only, and reads files from the source's layers. It is made and stored quickly, and read \
    somewhat slower. The source's layers must stay in the same store; another store gets copies of them. Layers in \
    zstd cannot be read that way, and become ordinary ones in the same image.";

/// Makes a disk of a container's image.
#[derive(Args)]
#[command(group = ArgGroup::new("form").args(["target", "referrer", "index"]).required(true).multiple(true))]
pub(crate) struct Convert {
    /// The container's image: oci://HOST/REPO:TAG or the like, oci-archive:FILE[:NAME] or docker-archive:FILE[:NAME]
    #[arg(value_parser = parse_source)]
    source: SourceName,
    /// The image to make, such as file:///DIR:TAG or oci://HOST/REPO:TAG; a tag that exists is moved to it
    #[arg(value_parser = parse_new_image_anywhere)]
    target: Option<Reference>,
    /// Publish the new image beside the source, as an artifact that belongs to it: programs that look for one find it
    /// by the source's name
    #[arg(long, conflicts_with_all = ["target", "index"])]
    referrer: bool,
    /// Publish the new image in an index that lists the source first. Without TARGET, the source's tag is moved to
    /// the index; TARGET must be in the source's store
    #[arg(long)]
    index: bool,
    /// The platform, such as linux/arm64 [default: Linux on the processor of this host]
    #[arg(long, value_name = "PLATFORM")]
    platform: Option<ImagePlatform>,
    /// The place of the data: native (in the layers of the new image) or turbo (in the source's layers, as they are)
    #[arg(long, default_value = "native", value_name = "MODE", value_parser = parse_mode)]
    mode: ConvertMode,
    /// The file system: ext4, or erofs for a disk that is only read
    #[arg(long = "fs", default_value = "ext4", value_name = "KIND", value_parser = parse_file_system)]
    file_system: FileSystemKind,
    /// Size of the disk: free space takes none in the image
    #[arg(long, default_value = "64G", value_name = "SIZE")]
    size: ByteSize,
    /// Find the layers that were converted before in this store, and keep the new ones there, so that all images of a
    /// registry share them [default: the new image's store]
    #[arg(long, value_name = "STORE")]
    layer_store: Option<Location>,
    /// Change a limit on layers that an error names, as NAME=NUMBER; for images whose maker is trusted. May be repeated
    #[arg(long = "limit", value_name = "NAME=NUMBER", value_parser = parse_limit)]
    limits: Vec<(String, u64)>,
    #[command(flatten)]
    packing: LayerPacking,
    #[command(flatten)]
    warming: PushWarming,
    #[command(flatten)]
    stores: StoreArgs,
}

pub(super) fn parse_source(text: &str) -> Result<SourceName> {
    text.parse().map_err(|error: Error| match reference_of_docker_name(text) {
        Some(reference) => {
            let error = Error::invalid("is a name as Docker completes it").about(text.escape_debug());
            error.remedy(format!("write it as {reference}"))
        }
        None => error,
    })
}

/// The reference of an image that is named as Docker names images; `None` if the text is no such name.
fn reference_of_docker_name(text: &str) -> Option<String> {
    let has_name_chars = |part: &str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-:@".contains(c))
    };
    let archives = ["tar", "gz", "tgz", "zst", "oci"];
    let is_archive =
        Path::new(text).extension().is_some_and(|end| archives.iter().any(|known| end == *known));
    if is_archive
        || !text.starts_with(|c: char| c.is_ascii_alphanumeric())
        || !text.split('/').all(has_name_chars)
    {
        return None;
    }
    let name = match text.split_once('/') {
        None => format!("docker.io/library/{text}"),
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => text.to_owned(),
        Some(_) => format!("docker.io/{text}"),
    };
    let reference = format!("oci://{name}");
    reference.parse::<Reference>().is_ok().then_some(reference)
}

fn parse_mode(text: &str) -> Result<ConvertMode> {
    match text {
        "native" => Ok(ConvertMode::Native),
        "turbo" => Ok(ConvertMode::Turbo),
        _ => {
            let error = Error::invalid(format!("`{}` is not a mode", text.escape_debug()));
            Err(error.remedy("choose native or turbo"))
        }
    }
}

fn parse_file_system(text: &str) -> Result<FileSystemKind> {
    FileSystemKind::named(text).ok_or_else(|| {
        let error = Error::invalid(format!("`{}` is not a file system of disks", text.escape_debug()));
        error.remedy("choose ext4 or erofs")
    })
}

/// A limit and its new value, which is checked together with the name.
fn parse_limit(text: &str) -> Result<(String, u64)> {
    let parsed = text.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
    let (name, value) = parsed.ok_or_else(|| {
        let error = Error::invalid(format!("`{}` is not NAME=NUMBER", text.escape_debug()));
        error.remedy("give a limit and a number, such as entries=8000000")
    })?;
    ConvertLimits::default().set(name, value)?;
    Ok((name.to_owned(), value))
}

impl Convert {
    pub(super) fn check(&self) -> Result<()> {
        let form = self.form()?;
        self.packing.check()?;
        self.options()?.check()?;
        let target = match &form {
            ConvertedForm::Image(target) => &target.location,
            ConvertedForm::Referrer | ConvertedForm::Index(_) => return Ok(()),
        };
        self.warming.check(target)?;
        match &self.layer_store {
            Some(other) if !target.is_remote() => {
                Err(Error::invalid("keeps no layers for an image in a directory").about(other).remedy(
                    "leave out --layer-store: a directory knows the layers that were converted into it",
                ))
            }
            _ => Ok(()),
        }
    }

    /// The form in which the new image is published.
    fn form(&self) -> Result<ConvertedForm> {
        if let (Some(target), false) = (&self.target, self.index) {
            return Ok(ConvertedForm::Image(target.clone()));
        }
        let SourceName::Store(source) = &self.source else {
            return Err(Error::invalid("is an archive, beside which nothing can be published")
                .about(&self.source)
                .remedy("name the image to make in place of --referrer and --index"));
        };
        if self.referrer {
            return Ok(ConvertedForm::Referrer);
        }
        let named = self.target.as_ref().unwrap_or(source);
        if named.location != source.location {
            return Err(Error::invalid("an index lists images of its own store")
                .about(named)
                .remedy(format!("name a tag of {}, or leave it out", source.location)));
        }
        let Selector::Tag(tag) = &named.selector else {
            return Err(Error::invalid("has no tag that could name the index")
                .about(named)
                .remedy(format!("give one: {}:TAG", source.location)));
        };
        Ok(ConvertedForm::Index(tag.clone()))
    }

    fn options(&self) -> Result<ConvertOptions> {
        let packing = self.packing.options();
        let threads = self.packing.threads();
        let (mode, file_system, size) = (self.mode, self.file_system, self.size.0);
        let mut limits = ConvertLimits::default();
        for (name, value) in &self.limits {
            limits.set(name, *value)?;
        }
        Ok(ConvertOptions { mode, file_system, alone: false, size, packing, threads, limits })
    }

    pub(super) fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        let (form, options) = (self.form()?, self.options()?);
        let request = ConvertRequest {
            source: &self.source,
            platform: self.platform.as_ref(),
            form: &form,
            layer_store: self.layer_store.as_ref(),
            options: &options,
        };
        let warming = self.warming.of_push()?;
        let done = self.stores.with_stores(|stores| request.make(stores, progress))?;
        let warmed = warming.filter(|_| done.location.is_remote()).map(|warming| {
            // By its digest: the tag of a sibling is that of the original.
            let selector = Selector::Digest(done.digest);
            let image = Reference { location: done.location.clone(), selector };
            let after = warming.warm(&image, &self.stores);
            Warmed { is_right: warming.is_right(&after), after }
        });
        Ok(Box::new(Converted { warmed, ..Converted::new(&self.source, &form, &done) }))
    }
}

/// An image that was converted.
#[derive(Serialize)]
struct Converted {
    /// The reference of the new image.
    image: String,
    /// The digest of its manifest.
    digest: String,
    /// The image that it was converted from, as it was named.
    source: String,
    /// The digest of that image's manifest.
    converted_from: String,
    /// The platform of the image, if it states one.
    #[serde(skip_serializing_if = "Option::is_none")]
    platform: Option<String>,
    /// The size of the disk in bytes.
    virtual_size: u64,
    /// Bytes of all layers as stored, without their hash trees.
    stored_bytes: u64,
    /// Bytes of the layers that were converted now.
    added_bytes: u64,
    /// The layers, lowest first.
    layers: Vec<ConvertedLayerReport>,
    /// The digest that the tag named before, if it was moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    was: Option<String>,
    /// The results on each root, if it was warmed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    warmed: Option<Warmed>,
}

/// The warming of an image that was converted.
#[derive(Serialize)]
#[serde(transparent)]
struct Warmed {
    after: AfterPush,
    /// `true` if it succeeded or was not requested this time.
    #[serde(skip)]
    is_right: bool,
}

/// A layer of an image that was converted.
#[derive(Serialize)]
struct ConvertedLayerReport {
    /// The digest of the new layer.
    digest: String,
    /// Bytes of the new layer as stored.
    size: u64,
    /// The digest of the container's layer.
    converted_from: Option<String>,
    /// `true` if an earlier conversion made it.
    known: bool,
    /// `true` if its data is in the container's layer (TurboOCI).
    turbo: bool,
    /// The counts of a layer that was converted now.
    #[serde(skip_serializing_if = "Option::is_none")]
    counts: Option<EntryCounts>,
}

/// The counts of the entries of a container's layer.
#[derive(Serialize)]
struct EntryCounts {
    /// Bytes of its tar.
    tar_bytes: u64,
    /// All entries.
    entries: u64,
    /// Regular files.
    files: u64,
    /// Bytes of the regular files.
    file_bytes: u64,
    /// Names that it removes from the layers below.
    whiteouts: u64,
    /// Entries that stand for nothing, such as those whose names lead out of the root.
    ignored_entries: u64,
    /// Extended attributes that no file system in a container keeps.
    ignored_xattrs: u64,
}

impl ConvertedLayerReport {
    fn new(outcome: &LayerOutcome) -> Self {
        let counts = outcome.converted.as_ref().map(|converted| EntryCounts {
            tar_bytes: converted.tar_bytes,
            entries: converted.entries.entries,
            files: converted.entries.files,
            file_bytes: converted.entries.file_bytes,
            whiteouts: converted.entries.whiteouts,
            ignored_entries: converted.entries.ignored_entries,
            ignored_xattrs: converted.entries.ignored_xattrs,
        });
        Self {
            digest: outcome.layer.blob.digest.to_string(),
            size: outcome.layer.blob.size,
            converted_from: outcome.layer.origin().map(|origin| origin.digest.to_string()),
            known: outcome.converted.is_none(),
            turbo: outcome.layer.is_turbo(),
            counts,
        }
    }
}

impl Converted {
    fn new(source: &SourceName, form: &ConvertedForm, done: &ConvertReport) -> Self {
        let digest = Selector::Digest(done.digest);
        let selector = match form {
            ConvertedForm::Image(target) => target.selector.clone(),
            ConvertedForm::Index(tag) => Selector::Tag(tag.clone()),
            ConvertedForm::Referrer => digest,
        };
        let image = Reference { location: done.location.clone(), selector };
        let layers: Vec<_> = done.layers.iter().map(ConvertedLayerReport::new).collect();
        let new = layers.iter().filter(|layer| !layer.known);
        Self {
            image: image.to_string(),
            digest: done.digest.to_string(),
            source: source.to_string(),
            converted_from: done.original.digest.to_string(),
            platform: done.platform.as_ref().map(ToString::to_string),
            virtual_size: done.virtual_size,
            stored_bytes: layers.iter().map(|layer| layer.size).sum(),
            added_bytes: new.map(|layer| layer.size).sum(),
            layers,
            was: done.was.map(|was| was.to_string()),
            warmed: None,
        }
    }

    /// Sums a count over the layers that were converted now.
    fn sum(&self, count: impl Fn(&EntryCounts) -> u64) -> u64 {
        self.layers.iter().filter_map(|layer| layer.counts.as_ref()).map(count).sum()
    }
}

impl Outcome for Converted {
    fn is_right(&self) -> bool {
        self.warmed.as_ref().is_none_or(|warmed| warmed.is_right)
    }
}

impl fmt::Display for Converted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.layers.iter().filter(|layer| layer.known).count();
        let layers = match known {
            0 => self.layers.len().to_string(),
            known => format!("{}, {known} of them converted before", self.layers.len()),
        };
        let turbo = self.layers.iter().filter(|layer| layer.turbo).count();
        let layers = match turbo {
            0 => layers,
            turbo if turbo == self.layers.len() => format!("{layers}; their data is in the source's layers"),
            turbo => format!("{layers}; the data of {turbo} is in the source's layers"),
        };
        let stored = format!("{}, {} of them new", ByteSize(self.stored_bytes), ByteSize(self.added_bytes));
        let mut fields = vec![
            ("image", self.image.clone()),
            ("digest", self.digest.clone()),
            ("made from", format!("{} ({})", self.source, self.converted_from)),
        ];
        fields.extend(self.platform.clone().map(|platform| ("platform", platform)));
        fields.push(("disk", ByteSize(self.virtual_size).to_string()));
        fields.push(("layers", layers));
        fields.push(("stored", stored));
        let files = self.sum(|counts| counts.files);
        if files > 0 {
            let bytes = ByteSize(self.sum(|counts| counts.file_bytes));
            fields.push(("new layers have", format!("{bytes} in {}", count(files, "file"))));
        }
        let ignored = self.sum(|counts| counts.ignored_entries) + self.sum(|counts| counts.ignored_xattrs);
        if ignored > 0 {
            let what = "entries outside of the root and attributes that containers do not keep";
            fields.push(("left out", format!("{ignored} ({what})")));
        }
        fields.extend(self.was.clone().map(|was| ("was", was)));
        Fields(&fields).fmt(f)?;
        self.warmed.as_ref().map_or(Ok(()), |warmed| warmed.after.fmt(f))
    }
}

#[cfg(test)]
mod tests {
    use super::parse_source;

    #[test]
    fn names_of_docker_are_refused_with_the_reference_to_write() {
        for (text, reference) in [
            ("nginx", "oci://docker.io/library/nginx"),
            ("nginx:1.27", "oci://docker.io/library/nginx:1.27"),
            ("grafana/grafana:11", "oci://docker.io/grafana/grafana:11"),
            ("registry.lan/app:1", "oci://registry.lan/app:1"),
            ("localhost:5000/app:1", "oci://localhost:5000/app:1"),
        ] {
            let error = parse_source(text).unwrap_err().to_string();
            assert!(error.ends_with(&format!("write it as {reference}")), "{error}");
        }
        for text in ["app.tar", "./app", "/srv/app:1", "app 1", "docker://registry.lan/app:1", "a//b", ""] {
            let error = parse_source(text).unwrap_err().to_string();
            assert!(!error.contains("as Docker"), "{error}");
        }
    }
}
