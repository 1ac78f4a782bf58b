//! [`ImageTrees`]: finds images whose layers are disks, attaches them and mounts their files.
//!
//! ```text
//!   ROOT/ID/          0700, one for each tree
//!     name            the tree's name, for the next start
//!     disk            an empty file, over which the agent mounts the disk
//!     fs/             the directory on which the disk's file system is mounted
//! ```
//!
//! Everything that this module does is done again without harm: what is mounted stays, a disk that the agent has is not
//! attached twice. After a restart of the host, the trees come back when they are asked for, and no registry is needed
//! for an image that is whole in the cache.
//!
//! # When an image is attached
//!
//! At the first layer of it that containerd asks for, in whole: if that fails, containerd fetches and unpacks the layer
//! as without headstart. So an image is not taken for remote and then found to be out of reach. The plan of the image
//! is followed from that moment on, while containerd still prepares the container.

use crate::converted::{ConvertedImage, SiblingPolicy};
use crate::labels::WantedLayer;
use crate::tree_name::TreeName;
use headstart_block::{Digest, Error, ErrorKind, Result, private};
use headstart_export::loop_mount::{is_mounted, mount_disk, unmount_disk};
use headstart_snapshotter::record::{RemoteLayer, SnapshotLabels, SnapshotUsage};
use headstart_snapshotter::remote::{RemoteAnswer, RemoteLayerSource};
use headstart_store::{Location, Selector, StoreSettings};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::Instant;

/// The beginning of the names of the agent's disks that belong here.
const DISK_PREFIX: &str = "tree-";
/// The file system of the disks: the only one that the conversion makes.
const FILE_SYSTEM: &std::ffi::CStr = c"ext4";
/// The time for which the answer of a registry holds: long enough for the layers of one image, which come one by one.
const ANSWER_HOLDS: Duration = Duration::from_secs(60);
/// Answers that are kept at most.
const ANSWERS_MOST: usize = 256;
/// The time that containerd has, from its first question about an image, to commit a snapshot of it. Until then its
/// tree counts as used.
const PULL_TAKES: Duration = Duration::from_secs(900);

/// The disks of trees: the agent of this host has them.
pub trait TreeDisks: Send + Sync {
    /// Serves the disk of a tree as the file `file`, which is there and empty, and returns when it can be read. A disk
    /// of that name that is there already is left as it is.
    ///
    /// # Errors
    /// Errors of the agent; those of attaching.
    fn attach(&self, name: &str, tree: &TreeName, file: &Path) -> Result<()>;

    /// Detaches a disk. One that is not there is no error.
    ///
    /// # Errors
    /// Errors of the agent.
    fn detach(&self, name: &str) -> Result<()>;
}

/// A question to a registry: a repository, a tag or digest in it, and the digest of the manifest that is meant; if that
/// is not known, the chain id of the layer.
type Question = (Location, Selector, Digest);

/// A moment's answer of a registry; `None`: the image has no form whose layers are disks.
type KnownAnswer = (Instant, Option<Arc<ConvertedImage>>);

/// The trees of this host's images.
pub struct ImageTrees {
    root: PathBuf,
    stores: StoreSettings,
    policy: SiblingPolicy,
    runtime: Handle,
    disks: Box<dyn TreeDisks>,
    /// The answers of registries.
    answers: Mutex<HashMap<Question, KnownAnswer>>,
    /// The trees that were attached by this process for a pull, and when; by id.
    pulled: Mutex<HashMap<String, Instant>>,
    /// A lock for each tree, by id.
    locks: Mutex<HashMap<String, Arc<Mutex<()>>>>,
}

impl ImageTrees {
    /// Makes the source of trees in the directory `root`, which is made if it is not there. Requests run on `runtime`;
    /// all methods block, and must not be called on its threads.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn new(
        root: &Path,
        stores: StoreSettings,
        policy: SiblingPolicy,
        runtime: Handle,
        disks: Box<dyn TreeDisks>,
    ) -> Result<Self> {
        let failed = |error| Error::io("cannot make the directory", error).about(root.display());
        private::make_directory(root).map_err(failed)?;
        let root = fs::canonicalize(root).map_err(failed)?;
        let (answers, pulled, locks) = (Mutex::default(), Mutex::default(), Mutex::default());
        Ok(Self { root, stores, policy, runtime, disks, answers, pulled, locks })
    }

    /// The form of an image whose layers are disks: asked for once for all layers of an image.
    fn image(&self, wanted: &WantedLayer) -> Result<Option<Arc<ConvertedImage>>> {
        // The same question for every layer, unless it is not known which image the name means.
        let meant = wanted.manifest.unwrap_or(wanted.chain);
        let question = (wanted.location.clone(), wanted.selector.clone(), meant);
        let now = Instant::now();
        if let Some((at, answer)) = self.answers.lock().get(&question)
            && now.duration_since(*at) < ANSWER_HOLDS
        {
            return Ok(answer.clone());
        }
        let store = headstart_store::open(&wanted.location, &self.stores)?;
        // A host that does not answer must not hold up a pull for long.
        self.runtime.block_on(store.check())?;
        let found = ConvertedImage::find(&store, wanted, self.policy, self.stores.retry, &self.runtime);
        let found = match found {
            // Images of a kind that has no disks, such as those for other platforms, are containerd's.
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                tracing::debug!(%error, "no disk for this image");
                None
            }
            found => found?.map(Arc::new),
        };
        let mut answers = self.answers.lock();
        answers.retain(|_, (at, _)| now.duration_since(*at) < ANSWER_HOLDS);
        if answers.len() < ANSWERS_MOST {
            answers.insert(question, (now, found.clone()));
        }
        Ok(found)
    }

    /// Mounts a tree, unless it is mounted, and returns its directory.
    fn mounted(&self, tree: &TreeName) -> Result<PathBuf> {
        let id = tree.id();
        let lock = Arc::clone(self.locks.lock().entry(id.clone()).or_default());
        let _held = lock.lock();
        let directory = self.root.join(&id);
        let (disk, files) = (directory.join("disk"), directory.join("fs"));
        if is_mounted(&files)? {
            return Ok(files);
        }
        make_places(&directory, tree).map_err(|error| {
            Error::io("cannot make the places of an image's files", error).about(directory.display())
        })?;
        let name = disk_name(&id);
        self.disks.attach(&name, tree, &disk)?;
        mount_disk(&disk, FILE_SYSTEM, &files).inspect_err(|_| {
            // The next call attaches the disk anew: this one serves no mount.
            if let Err(error) = self.disks.detach(&name) {
                tracing::warn!(%error, "a disk without use stays attached");
            }
        })?;
        tracing::info!(%tree, directory = %files.display(), "the files of an image are mounted");
        Ok(files)
    }

    /// Unmounts a tree, detaches its disk and removes its places.
    fn remove(&self, id: &str) -> Result<()> {
        let lock = Arc::clone(self.locks.lock().entry(id.to_owned()).or_default());
        let _held = lock.lock();
        let directory = self.root.join(id);
        unmount_disk(&directory.join("fs"))?;
        self.disks.detach(&disk_name(id))?;
        let failed = |error| Error::io("cannot be removed", error).about(directory.display());
        // One by one: if something is still mounted there, its files must not be touched.
        for place in [fs::remove_dir(directory.join("fs")), fs::remove_file(directory.join("disk"))] {
            gone(place).map_err(failed)?;
        }
        gone(fs::remove_file(directory.join("name"))).map_err(failed)?;
        gone(fs::remove_dir(&directory)).map_err(failed)?;
        self.locks.lock().remove(id);
        Ok(())
    }

    /// The trees that have places here: their ids, and their names unless these were lost.
    fn trees(&self) -> Result<Vec<(String, Option<TreeName>)>> {
        let failed = |error| Error::io("cannot be listed", error).about(self.root.display());
        let mut trees = Vec::new();
        for entry in fs::read_dir(&self.root).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(id) = entry.file_name().into_string() else { continue };
            let name = fs::read_to_string(entry.path().join("name")).ok();
            trees.push((id, name.and_then(|name| name.parse().ok())));
        }
        Ok(trees)
    }

    /// `true` if containerd asked for this tree a short time ago, and may be about to commit a snapshot of it.
    fn is_pulled(&self, id: &str) -> bool {
        let mut pulled = self.pulled.lock();
        pulled.retain(|_, at| at.elapsed() < PULL_TAKES);
        pulled.contains_key(id)
    }
}

impl RemoteLayerSource for ImageTrees {
    fn find(&self, labels: &SnapshotLabels, _parents: &[RemoteLayer]) -> Result<RemoteAnswer> {
        let Some(wanted) = WantedLayer::of(labels)? else { return Ok(RemoteAnswer::NotMine) };
        let Some(image) = self.image(&wanted)? else { return Ok(RemoteAnswer::NotMine) };
        let Some(tree) = image.tree(&wanted.chain) else { return Ok(RemoteAnswer::NotMine) };
        let whole = image.whole();
        self.pulled.lock().insert(whole.id(), Instant::now());
        self.mounted(&whole)?;
        // The layers share the image's cache, so one more takes no space.
        Ok(RemoteAnswer::Present { layer: tree.layer(), usage: SnapshotUsage::default() })
    }

    fn attach(&self, layers: &[RemoteLayer]) -> Result<PathBuf> {
        let top = layers.first().ok_or_else(|| Error::invalid("a tree without layers"))?;
        self.mounted(&top.0.parse()?)
    }

    fn keep_only(&self, layers: &[RemoteLayer]) {
        let names: Vec<TreeName> = layers.iter().filter_map(|layer| layer.0.parse().ok()).collect();
        let ids: BTreeSet<_> = names.iter().map(TreeName::id).collect();
        // A whole image is attached as long as there is a snapshot of any of its layers.
        let is_used = |id: &str, name: &Option<TreeName>| {
            let is_whole_of =
                |tree: &TreeName| tree.lowest.is_none() && names.iter().any(|name| name.image == tree.image);
            ids.contains(id) || name.as_ref().is_some_and(is_whole_of)
        };
        let trees = self.trees().unwrap_or_else(|error| {
            tracing::warn!(%error, "images that are not used stay mounted");
            Vec::new()
        });
        for (id, name) in trees {
            if is_used(&id, &name) || self.is_pulled(&id) {
                continue;
            }
            if let Err(error) = self.remove(&id) {
                tracing::warn!(%error, id, "an image that is not used stays mounted");
            }
        }
    }
}

fn disk_name(id: &str) -> String {
    format!("{DISK_PREFIX}{id}")
}

/// Makes the directory of a tree, and what is in it.
fn make_places(directory: &Path, tree: &TreeName) -> std::io::Result<()> {
    private::make_directory(&directory.join("fs"))?;
    fs::write(directory.join("name"), tree.to_string())?;
    // A disk may be mounted over it, and may not answer.
    match OpenOptions::new().write(true).create_new(true).open(directory.join("disk")) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// A removal, for which something that is not there is no failure.
fn gone(removed: std::io::Result<()>) -> std::io::Result<()> {
    match removed {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
