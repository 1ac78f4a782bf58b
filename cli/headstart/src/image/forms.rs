//! `headstart image inspect --forms`: the disks that a container's image was converted to.

use headstart_block::words::count;
use headstart_block::{ByteSize, Digest, Error, ErrorKind, Result};
use headstart_command_line::printable;
use headstart_command_line::report::{Fields, Outcome};
use headstart_image::forms::{FormPlace, ImageForm, forms};
use headstart_image::manifest::Manifest;
use headstart_image::plan_artifact::{find_known, is_unsound};
use headstart_image::reference::{Reference, Selector};
use headstart_image::store_access::StoreAccess;
use headstart_store::Store;
use serde::Serialize;
use std::fmt;

/// The forms of a container's image.
#[derive(Serialize)]
pub(super) struct Forms {
    /// The reference of the image.
    image: String,
    /// The digest of the container's image.
    original: String,
    /// `true` if `attach` takes forms by this name: a digest of the container's image names no disk.
    #[serde(skip)]
    is_attachable: bool,
    /// The forms, in the order in which they are looked at: of two of a kind, the newer one first.
    forms: Vec<Form>,
}

/// A disk that a container's image was converted to.
#[derive(Serialize)]
struct Form {
    /// The digest of its manifest.
    digest: String,
    /// The place in which it was found: `named`, `index` or `referrer`.
    place: &'static str,
    /// The file system of the disk.
    file_system: Option<String>,
    /// `true` if its data is in the container's layers (`--mode turbo`).
    turbo: Option<bool>,
    /// The packing of its layers, if it says so.
    options: Option<String>,
    /// The size of the disk in bytes.
    virtual_size: Option<u64>,
    /// Bytes of all blobs as stored.
    stored_bytes: Option<u64>,
    /// The number of layers.
    layers: Option<usize>,
    /// The plan that is published with it.
    plan: Option<FormPlan>,
    /// `true` if hosts take it by this name for what is only read: `attach`, and containers on overlayfs.
    is_for_reading: bool,
    /// `true` if hosts take it by this name for what is written to: `attach --writable`, and containers on disks of
    /// their own.
    is_for_writing: bool,
    /// The cause why it, or its plan, cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// The plan of a form.
#[derive(Serialize)]
struct FormPlan {
    /// The number of the publication, from 1.
    generation: u64,
    /// The boots from which it was made.
    traces: u64,
}

impl Forms {
    /// Finds the forms of an image.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if it was made of no container's image; errors of the store.
    pub(super) fn find(image: &Reference, stores: StoreAccess<'_>) -> Result<Self> {
        let store = stores.store(&image.location)?;
        stores.runtime.block_on(Self::in_store(&*store, image)).map_err(|error| error.about(image))
    }

    async fn in_store(store: &dyn Store, image: &Reference) -> Result<Self> {
        let Some(found) = forms(store, &image.selector).await? else {
            return Err(Error::invalid(
                "is a disk that was made of no container's image: it has no other forms",
            )
            .remedy("leave out --forms"));
        };
        let taken = found.taken();
        let leads_to_disk = found.forms.first().is_some_and(|form| form.place != FormPlace::Referrer);
        let is_attachable = leads_to_disk || matches!(image.selector, Selector::Tag(_));
        let mut listed = Vec::new();
        for form in found.forms {
            listed.push(Form::of(store, form, &taken).await?);
        }
        let original = found.original.to_string();
        Ok(Self { image: image.to_string(), original, is_attachable, forms: listed })
    }
}

impl Form {
    async fn of(store: &dyn Store, form: ImageForm, taken: &[Option<Digest>; 2]) -> Result<Self> {
        let ImageForm { digest, manifest, place } = form;
        let mut problem = manifest.as_ref().err().map(|error| match error.kind() {
            ErrorKind::NotFound => "gone: the store lists it, and has it no more".to_owned(),
            _ => error.to_string(),
        });
        let manifest = manifest.ok();
        let plan = match &manifest {
            Some(manifest) => match find_known(store, &digest, manifest).await {
                Err(error) if is_unsound(&error) => {
                    problem = Some(error.to_string());
                    None
                }
                found => found?,
            },
            None => None,
        };
        let manifest = manifest.as_ref();
        let [is_for_reading, is_for_writing] = taken.map(|taken| taken == Some(digest));
        Ok(Self {
            digest: digest.to_string(),
            place: match place {
                FormPlace::Named => "named",
                FormPlace::Index => "index",
                FormPlace::Referrer => "referrer",
            },
            file_system: manifest.and_then(Manifest::file_system).map(str::to_owned),
            turbo: manifest.map(|manifest| manifest.turbo_targets().next().is_some()),
            options: manifest.and_then(Manifest::options).map(str::to_owned),
            virtual_size: manifest.and_then(|manifest| manifest.virtual_size),
            stored_bytes: manifest.map(Manifest::stored_size),
            layers: manifest.map(|manifest| manifest.layers.len()),
            plan: plan.map(|plan| FormPlan { generation: plan.generation, traces: plan.about.traces }),
            is_for_reading,
            is_for_writing,
            problem,
        })
    }

    /// The uses for which hosts take it.
    fn uses(&self) -> &'static str {
        match (self.is_for_reading, self.is_for_writing) {
            (true, true) => "reading, writing",
            (true, false) => "reading",
            (false, true) => "writing",
            (false, false) => "-",
        }
    }
}

impl Outcome for Forms {}

impl fmt::Display for Forms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = [("image", self.image.clone()), ("original", self.original.clone())];
        write!(f, "{}", Fields(&fields))?;
        if self.forms.is_empty() {
            return f.write_str("\n\nno forms yet: `headstart image convert` makes one");
        }
        write!(f, "\n\n{:71}  {:6}  {:6}  {:8}", "DIGEST", "FILES", "DATA", "FOUND")?;
        write!(f, "  {:>12}  {:16}  {:22}  PACKING", "STORED", "TAKEN FOR", "PLAN")?;
        for form in &self.forms {
            let files = form.file_system.as_deref().unwrap_or("?");
            let data = form.turbo.map_or("?", |turbo| if turbo { "turbo" } else { "native" });
            let stored = form.stored_bytes.map_or("?".to_owned(), |bytes| ByteSize(bytes).to_string());
            let plan = form.plan.as_ref().map_or("-".to_owned(), |plan| {
                format!("generation {}, {}", plan.generation, count(plan.traces, "trace"))
            });
            let (files, uses) = (printable::line(files), form.uses());
            write!(f, "\n{:71}  {files:6}  {data:6}  {:8}", form.digest, form.place)?;
            write!(f, "  {stored:>12}  {uses:16}  {plan:22}")?;
            write!(f, "  {}", printable::line(form.options.as_deref().unwrap_or("?")))?;
            if let Some(problem) = &form.problem {
                write!(f, "\n  {}", printable::line(problem))?;
            }
        }
        let uses = if self.is_attachable {
            "reading: `attach`, and containers on overlayfs; writing: `attach --writable`, and containers on disks of \
             their own"
        } else {
            "reading: containers on overlayfs; writing: containers on disks of their own; `attach` takes a tag, or the \
             digest of a form"
        };
        write!(f, "\n\n{uses}\nSTORED: with the hash trees")
    }
}
