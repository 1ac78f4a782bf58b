//! [`ImageTrees`]: finds images whose layers are disks, attaches them and mounts their files.
//!
//! ```text
//!   ROOT/ID/          0700, one for each tree
//!     name            the tree's name, for the next start
//!     image           the name of its image that containerd pulled last, for people
//!     disk-name       the name of the tree's disk at the agent, which no other tree of any snapshotter has
//!     entrypoint      the name of the program in the image's config
//!     file-system     `ext4` or `erofs`, once the disk was mounted
//!     starts.sock     the socket at which the process of the disk is told of containers
//!     disk            an empty file, over which the agent mounts the disk, unless the disk is a block device
//!     fs/             the directory on which the disk's file system is mounted
//! ```
//!
//! Everything that this module does is done again without harm: what is mounted stays unless it has lost its disk, a
//! disk that the agent has is not attached twice. After a restart of the host, the trees come back when they are asked
//! for, and no registry is needed for an image that is whole in the cache.
//!
//! # When an image is attached
//!
//! At the first layer of it that containerd asks for, in whole: if that fails, containerd fetches and unpacks the layer
//! as without headstart. So an image is not taken for remote and then found to be out of reach. The plan of the image
//! is followed from that moment on, while containerd still prepares the container.
//!
//! The search for the form of an image that is a disk takes a few seconds at most, however many pulls there are: its
//! requests end then, and nothing of it is left. With a slower registry all layers of the image are fetched and
//! unpacked as without headstart, and the label of the first of them says why. Only an image that is a disk itself is
//! waited for, because containerd cannot unpack it.
//!
//! # When it goes
//!
//! With the last snapshot of any of its layers. A tree that was found for a pull is held until the first snapshot of it
//! is recorded. Before a tree goes, it is asked once more, under the tree's lock, whether it is used.

use crate::blank_disk::BlankDisk;
use crate::container_starts::{self, ContainerPrograms, StartedDisk};
use crate::converted::{ConvertedImage, WriterTrust};
use crate::file_system::{FILE_SYSTEM, is_noted_writable, note_file_system};
use crate::labels::WantedLayer;
use crate::outside_trust::OutsideTrust;
use crate::own_disks;
use crate::packed_layer::{is_layer, is_turbo_layer, pack};
use crate::tree_disks::{
    AttachOutcome, DISK_NAME, DISK_PREFIX, DiskOrder, STARTS_SOCKET, TreeDisks, disk_name, new_disk_name,
};
use crate::tree_locks::TreeLocks;
use crate::tree_name::TreeName;
use headstart_block::{Digest, Error, ErrorKind, Result, private};
use headstart_export::loop_mount::{is_mounted, is_served, mount_disk, unmount_disk};
use headstart_image::disk_form::FormWish;
use headstart_snapshotter::container_service::ContainerId;
use headstart_snapshotter::pull_secrets::PullSecrets;
use headstart_snapshotter::record::{DiskAccess, RemoteLayer, SnapshotLabels, SnapshotUsage};
use headstart_snapshotter::remote::{
    DiskClosing, LayerHold, LayeredDisk, ListedBlob, OwnDisk, PackedLayer, RemoteAnswer, RemoteLayerSource,
    SealedState, StartPlace,
};
use headstart_store::{Location, Reference, Selector, Stop, StorePrefix, StoreSettings};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::Instant;

/// The file with the name of a tree's image that users know.
const IMAGE_NAME: &str = "image";
/// The file with the name of the program in the image's config.
const ENTRYPOINT: &str = "entrypoint";
/// The time for which the answer of a registry holds: long enough for the layers of one image, which come one by one.
const ANSWER_HOLDS: Duration = Duration::from_secs(60);
/// Answers that are kept at most.
const ANSWERS_MOST: usize = 256;
/// A question to a registry: a repository, a tag or digest in it, and the digest of the manifest that is meant; if that
/// is not known, the chain id of the layer. The last part is the number of the pull with whose credentials it is
/// asked: what such a question has brought answers none that is asked with those of another pull, or without any.
type Question = (Location, Selector, Digest, Option<u64>);

/// A moment's answer of a registry; `None`: the image has no form whose layers are disks.
type KnownAnswer = (Instant, Option<Arc<ConvertedImage>>);

/// The trees of this host's images.
pub struct ImageTrees {
    root: PathBuf,
    stores: StoreSettings,
    /// Repositories whose writers are trusted.
    trusted: Vec<StorePrefix>,
    runtime: Handle,
    disks: Arc<dyn TreeDisks>,
    /// The programs of containers; `None`: starts are not told apart.
    programs: Option<Arc<dyn ContainerPrograms>>,
    /// The longest time for finding the form of an image that is a disk.
    search_timeout: Duration,
    /// The empty disk; `None` if trees that begin empty are none of disks.
    blank: Option<BlankDisk>,
    /// The sibling that is taken of several.
    wish: FormWish,
    /// The pulls whose credentials are used; `None`: the stores' settings are all.
    pulls: Option<Arc<PullSecrets>>,
    /// The repositories that were said to be outside `trusted`.
    outside_trust: OutsideTrust,
    /// The answers of registries.
    answers: Mutex<HashMap<Question, KnownAnswer>>,
    /// The numbers of pulls that have found a tree and not recorded a snapshot of it yet; by id.
    held: Arc<Mutex<HashMap<String, usize>>>,
    locks: TreeLocks,
    /// For what is said once.
    complaint: Once,
}

impl ImageTrees {
    /// Makes the source of trees in the directory `root`, which is made if it is not there. Converted images beside
    /// originals are used in the repositories `trusted`: their writers can decide the files of every image on this host
    /// that has a layer in common with one there. Asking a registry for the converted form of an image takes at most
    /// `search_timeout`. Requests run on `runtime`; all methods block, and must not be called on its threads.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn new(
        root: &Path,
        stores: StoreSettings,
        trusted: Vec<StorePrefix>,
        search_timeout: Duration,
        runtime: Handle,
        disks: Box<dyn TreeDisks>,
    ) -> Result<Self> {
        let failed = |error| Error::io("cannot make the directory", error).about(root.display());
        private::make_directory(root).map_err(failed)?;
        let root = fs::canonicalize(root).map_err(failed)?;
        let (answers, held, locks) = (Mutex::default(), Arc::default(), TreeLocks::default());
        let (blank, programs, pulls, complaint) = (None, None, None, Once::new());
        Ok(Self {
            root,
            stores,
            trusted,
            search_timeout,
            runtime,
            disks: disks.into(),
            programs,
            blank,
            wish: FormWish::default(),
            pulls,
            outside_trust: OutsideTrust::default(),
            answers,
            held,
            locks,
            complaint,
        })
    }

    /// Makes trees that begin empty ones of disks, if they are to be disks.
    #[must_use]
    pub fn with_blank(self, blank: Option<BlankDisk>) -> Self {
        Self { blank, ..self }
    }

    /// Chooses among several converted forms of an image.
    #[must_use]
    pub fn with_wish(self, wish: FormWish) -> Self {
        Self { wish, ..self }
    }

    /// Asks registries with the credentials that these pulls offer, while they go on, and with none that are kept:
    /// those are another pull's, and for disks that were attached then. The maker of an image can name any other image
    /// in its annotations, which clients hand on as labels, and would get its files with the credentials of an earlier
    /// pull.
    #[must_use]
    pub fn with_pulls(self, pulls: Option<Arc<PullSecrets>>) -> Self {
        Self { pulls, ..self }
    }

    /// The settings for asking the registry at `location` about an image that is pulled, and the number of the pull
    /// whose credentials are shown.
    fn stores_for(&self, location: &Location) -> (StoreSettings, Option<u64>) {
        let mut stores = self.stores.clone();
        let Some(pulls) = &self.pulls else { return (stores, None) };
        let pull = match location {
            Location::Registry { host, repository } => pulls.last_pull(&format!("{host}/{repository}")),
            _ => None,
        };
        stores.offered_alone = true;
        if pull.is_none() {
            stores.pull_credentials = None;
        }
        (stores, pull)
    }

    /// Tells the disks which containers start on them.
    #[must_use]
    pub fn with_programs(self, programs: Arc<dyn ContainerPrograms>) -> Self {
        Self { programs: Some(programs), ..self }
    }

    /// The form of an image whose layers are disks: asked for once for all layers of an image.
    fn image(&self, wanted: &WantedLayer) -> Result<Option<Arc<ConvertedImage>>> {
        // The same question for every layer, unless it is not known which image the name means.
        let meant = wanted.manifest.unwrap_or(wanted.chain);
        let (stores, pull) = self.stores_for(&wanted.location);
        let question = (wanted.location.clone(), wanted.selector.clone(), meant, pull);
        let now = Instant::now();
        if let Some((at, answer)) = self.answers.lock().get(&question)
            && now.duration_since(*at) < ANSWER_HOLDS
        {
            return Ok(answer.clone());
        }
        let is_trusted = self.trusted.iter().any(|prefix| prefix.allows(&wanted.location));
        let trust = if is_trusted { WriterTrust::Full } else { WriterTrust::None };
        let found = self.search(wanted, stores, trust);
        let found = match found {
            // Images of a kind that has no disks, such as those for other platforms, are containerd's.
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                tracing::debug!(%error, "no disk for this image");
                None
            }
            // The other layers of the image come soon, and must not wait as long again.
            Err(error) if error.kind() == ErrorKind::Unavailable && !wanted.is_disk => {
                self.remember(question, now, None);
                return Err(error);
            }
            found => found?.map(Arc::new),
        };
        let (location, selector) = (&wanted.location, &wanted.selector);
        if found.is_none() {
            match (!is_trusted).then(|| self.outside_trust.warning(location)).flatten() {
                Some(warning) => tracing::warn!("{warning}"),
                None => tracing::info!(%location, %selector, is_trusted, "an image is pulled and unpacked"),
            }
        }
        self.remember(question, now, found.clone());
        Ok(found)
    }

    fn remember(&self, question: Question, now: Instant, answer: Option<Arc<ConvertedImage>>) {
        let mut answers = self.answers.lock();
        answers.retain(|_, (at, _)| now.duration_since(*at) < ANSWER_HOLDS);
        if answers.len() < ANSWERS_MOST {
            answers.insert(question, (now, answer));
        }
    }

    /// Asks the registry for the form of an image whose layers are disks.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if that takes too long, unless the image is a disk itself; errors of the registry.
    fn search(
        &self,
        wanted: &WantedLayer,
        stores: StoreSettings,
        trust: WriterTrust,
    ) -> Result<Option<ConvertedImage>> {
        let (sender, stop) = Stop::new();
        let stores = StoreSettings { stop: Some(stop.clone()), ..stores };
        let (time, is_disk) = (self.search_timeout, wanted.is_disk);
        let timer = self.runtime.spawn(async move {
            if is_disk {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(time).await;
            sender.ask();
        });
        let search = || {
            let store = headstart_store::open(&wanted.location, &stores)?;
            ConvertedImage::find(&store, wanted, (trust, self.wish), stores.retry, &self.runtime)
        };
        let found = search();
        timer.abort();
        let is_late = |error: &Error| stop.is_requested() && error.kind() == ErrorKind::Cancelled;
        if !found.as_ref().is_err_and(is_late) {
            return found;
        }
        let text =
            format!("the registry has not answered within {time:?} whether it has a disk of the image");
        Err(Error::new(ErrorKind::Unavailable, text)
            .about(&wanted.location)
            .remedy("start the snapshotter with a longer --search-timeout"))
    }

    /// Mounts a tree, unless it is mounted, and returns its directory. `pulled` is the name of the image that
    /// containerd pulls, if it pulls one now, and its program.
    fn mounted(&self, tree: &TreeName, pulled: Option<(&str, &str)>) -> Result<PathBuf> {
        let id = tree.id();
        let lock = self.locks.of(&id);
        let _locked = lock.lock();
        let directory = self.root.join(&id);
        let (disk, files) = (directory.join("disk"), directory.join("fs"));
        if is_mounted(&files)? {
            if is_served(&disk, &files)? {
                return Ok(files);
            }
            // The process of the disk and its keeper died at once. Programs that use these files get errors; new ones
            // get the files of the next process.
            tracing::warn!(%tree, directory = %files.display(), "the files of an image are mounted anew: they failed");
            unmount_disk(&files)?;
        }
        make_places(&directory, tree).map_err(|error| {
            Error::io("cannot make the places of an image's files", error).about(directory.display())
        })?;
        let name = disk_name(&directory, &id)?;
        let known_as = noted(&directory.join(IMAGE_NAME), pulled.map(|(image, _)| image));
        let known_as = known_as.unwrap_or_else(|| tree.image.to_string());
        let entrypoint = noted(&directory.join(ENTRYPOINT), pulled.map(|(_, entrypoint)| entrypoint));
        let order = DiskOrder {
            tree,
            image: &known_as,
            file: &disk,
            writable: None,
            most: None,
            starts: &directory.join(STARTS_SOCKET),
            entrypoint: entrypoint.as_deref().unwrap_or_default(),
        };
        let attached = self.disks.attach(&name, &order)?;
        let served = attached.device.as_deref().unwrap_or(&disk);
        mount_disk(served, &files).inspect_err(|_| {
            // The next call attaches the disk anew: this one serves no mount.
            if attached.outcome == AttachOutcome::New
                && let Err(error) = self.disks.detach(&name)
            {
                tracing::warn!(%error, "a disk without use stays attached");
            }
        })?;
        note_file_system(&directory, &files)?;
        tracing::info!(%tree, directory = %files.display(), "the files of an image are mounted");
        Ok(files)
    }

    /// Unmounts a tree, detaches its disk and removes its places, unless it is used.
    fn remove_unused(&self, id: &str, is_used: impl Fn() -> bool) -> Result<()> {
        let lock = self.locks.of(id);
        let _locked = lock.lock();
        if self.held.lock().contains_key(id) || is_used() {
            return Ok(());
        }
        let directory = self.root.join(id);
        while unmount_disk(&directory.join("fs"))? {}
        self.disks.detach(&disk_name(&directory, id)?)?;
        let failed = |error| Error::io("cannot be removed", error).about(directory.display());
        // One by one: if something is still mounted there, its files must not be touched.
        for place in [fs::remove_dir(directory.join("fs")), fs::remove_file(directory.join("disk"))] {
            gone(place).map_err(failed)?;
        }
        // A process that was killed leaves its socket, and the mark beside it.
        let socket = [STARTS_SOCKET.to_owned(), format!(".{STARTS_SOCKET}.headstart")];
        let names = ["name", IMAGE_NAME, ENTRYPOINT, FILE_SYSTEM, "disk-name.new", DISK_NAME];
        for name in names.into_iter().chain(socket.iter().map(String::as_str)) {
            gone(fs::remove_file(directory.join(name))).map_err(failed)?;
        }
        gone(fs::remove_dir(&directory)).map_err(failed)?;
        tracing::info!(id, "an image without snapshots is unmounted");
        Ok(())
    }

    /// Keeps a tree until the hold is dropped.
    fn hold(&self, id: String) -> LayerHold {
        *self.held.lock().entry(id.clone()).or_default() += 1;
        let held = Arc::clone(&self.held);
        LayerHold::new(move || {
            let mut held = held.lock();
            if let Some(count) = held.get_mut(&id) {
                *count -= 1;
                if *count == 0 {
                    held.remove(&id);
                }
            }
        })
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

    /// Says once that containerd does not name its images, unless it has named one. `true` if it is said now.
    fn complain_of_labels(&self) -> bool {
        let mut is_said = false;
        self.complaint.call_once(|| {
            is_said = true;
            tracing::warn!(
                "containerd names no image with the layers that it asks for, so all are fetched: its configuration \
                 needs disable_snapshot_annotations = false and, for ctr of containerd 2, the export \
                 enable_remote_snapshot_annotations = \"true\"; nerdctl and BuildKit name them only to a snapshotter \
                 whose plugin is called overlaybd"
            );
        });
        is_said
    }

    /// Finds the layer that containerd wants, in an image that is attached and mounted.
    fn look_for(&self, wanted: &WantedLayer) -> Result<Found> {
        let Some(image) = self.image(wanted)? else { return Ok(Found::Nothing) };
        let Some(tree) = image.tree(&wanted.chain) else { return Ok(Found::Nothing) };
        let whole = image.whole();
        let hold = self.hold(whole.id());
        let name = Reference { location: wanted.location.clone(), selector: wanted.selector.clone() };
        match self.mounted(&whole, Some((&name.to_string(), &image.entrypoint))) {
            Ok(_) => {
                let blob = image.listed_blob(&wanted.chain);
                Ok(Found::Layer(Box::new(FoundLayer { tree, blob, hold })))
            }
            Err(error) if image.is_wanted_itself() => Ok(Found::OnlyHere(error)),
            Err(error) => Err(error),
        }
    }
}

/// A layer of an image that is mounted.
struct FoundLayer {
    tree: TreeName,
    /// The layer's blob, if containerd knows the layer by it.
    blob: Option<ListedBlob>,
    hold: LayerHold,
}

/// The outcome of a search.
enum Found {
    Layer(Box<FoundLayer>),
    /// The image is a disk itself, and cannot be attached now.
    OnlyHere(Error),
    Nothing,
}

impl RemoteLayerSource for ImageTrees {
    fn find(&self, labels: &SnapshotLabels) -> Result<RemoteAnswer> {
        let Some(wanted) = WantedLayer::of(labels)? else {
            self.complain_of_labels();
            return Ok(RemoteAnswer::NotMine);
        };
        // containerd does name images. BuildKit, too, leaves the names out where it unpacks a layer that it has as
        // another image's.
        self.complaint.call_once(|| ());
        match self.look_for(&wanted) {
            // The layers share the image's cache, so one more takes no space.
            Ok(Found::Layer(found)) => {
                let FoundLayer { tree, blob, hold } = *found;
                Ok(RemoteAnswer::Present { layer: tree.layer(), blob, usage: SnapshotUsage::default(), hold })
            }
            Ok(Found::OnlyHere(error)) => Ok(RemoteAnswer::Unavailable(error)),
            Err(error) if wanted.is_disk => Ok(RemoteAnswer::Unavailable(error)),
            Ok(Found::Nothing) => Ok(RemoteAnswer::NotMine),
            Err(error) => Err(error),
        }
    }

    fn attach(&self, disk: &LayeredDisk) -> Result<PathBuf> {
        self.mounted(&TreeName::of(disk)?, None)
    }

    fn blank(&self) -> Result<Option<RemoteLayer>> {
        self.blank.as_ref().map(|blank| blank.image().map(|tree| tree.layer())).transpose()
    }

    fn image_of(&self, disk: &LayeredDisk) -> String {
        TreeName::of(disk).map_or_else(|_| disk.image.0.clone(), |tree| tree.image.to_string())
    }

    fn can_be_written(&self, disk: &LayeredDisk) -> Result<bool> {
        let tree = TreeName { above: Vec::new(), ..TreeName::of(disk)? };
        // The only images in directories of this host are those of empty disks.
        if matches!(tree.image.location, Location::Directory(_)) {
            return Ok(true);
        }
        let whole = TreeName { lowest: None, ..tree.clone() };
        let known = [&whole, &tree].iter().find_map(|tree| is_noted_writable(&self.root.join(tree.id())));
        if let Some(known) = known {
            return Ok(known);
        }
        // An earlier version has mounted it, and noted nothing.
        let files = self.mounted(&tree, None)?;
        note_file_system(&self.root.join(tree.id()), &files)
    }

    fn open_own(&self, disk: &OwnDisk) -> Result<PathBuf> {
        own_disks::open(&*self.disks, &TreeName::of(&disk.below)?, disk)
    }

    fn may_start(&self, key: &str, place: StartPlace<'_>) {
        let Some((programs, container)) = self.programs.as_ref().zip(ContainerId::of_snapshot(key)) else {
            return;
        };
        let directory = match place {
            StartPlace::Own(place) => place.to_owned(),
            // A disk whose name makes no sense has no process.
            StartPlace::Image(disk) => match TreeName::of(disk) {
                Ok(tree) => self.root.join(tree.id()),
                Err(_) => return,
            },
        };
        let expected = noted(&directory.join(ENTRYPOINT), None).unwrap_or_default();
        let disk = StartedDisk { socket: directory.join(STARTS_SOCKET), expected };
        container_starts::tell(Arc::clone(&self.disks), Arc::clone(programs), container, disk);
    }

    fn close_own(&self, place: &Path, closing: DiskClosing) -> Result<()> {
        own_disks::close(&*self.disks, place, closing)
    }

    fn seal(&self, place: &Path, layer: &Path, state: SealedState) -> Result<()> {
        own_disks::seal(&*self.disks, place, layer, state)
    }

    fn directory_of(&self, disk: &LayeredDisk) -> Result<PathBuf> {
        Ok(self.root.join(TreeName::of(disk)?.id()).join("fs"))
    }

    fn handed_out(&self, place: &Path, access: DiskAccess) -> Result<Option<PathBuf>> {
        own_disks::handed_out(place, access)
    }

    fn pack(&self, layer: &Path) -> Result<PackedLayer> {
        pack(layer, &self.root)
    }

    fn is_layer(&self, beginning: &[u8]) -> bool {
        is_layer(beginning)
    }

    fn is_turbo_layer(&self, beginning: &[u8]) -> bool {
        is_turbo_layer(beginning)
    }

    fn recover(&self, place: &Path) -> Result<()> {
        own_disks::recover(place)
    }

    fn keep_only(&self, used: &dyn Fn() -> Vec<LayeredDisk>) {
        let removed = self.trees().and_then(|trees| {
            trees.iter().try_for_each(|(id, name)| {
                let layers = names(&used())?;
                // The lock of a tree that is used may be held for long, by a disk that is being attached.
                if is_used(id, name.as_ref(), &layers) {
                    return Ok(());
                }
                let is_used_now =
                    || names(&used()).map_or(true, |layers| is_used(id, name.as_ref(), &layers));
                self.remove_unused(id, is_used_now).or_else(|error| {
                    tracing::warn!(%error, id, "an image that is not used stays mounted");
                    Ok(())
                })
            })
        });
        if let Err(error) = removed {
            tracing::warn!(%error, "images that are not used stay mounted");
        }
    }
}

/// The trees of disks.
///
/// # Errors
/// One of them is no tree's: a later version's, whose trees must not be taken for unused.
fn names(disks: &[LayeredDisk]) -> Result<Vec<TreeName>> {
    disks.iter().map(TreeName::of).collect()
}

/// `true` if a tree is that of one of the layers: a whole image is used as long as there is a snapshot of any of its
/// layers. The name is `None` if it was lost.
fn is_used(id: &str, name: Option<&TreeName>, layers: &[TreeName]) -> bool {
    let is_whole_of = |tree: &TreeName| {
        let is_whole = tree.lowest.is_none() && tree.above.is_empty();
        is_whole && layers.iter().any(|layer| layer.image == tree.image)
    };
    layers.iter().any(|layer| layer.id() == id) || name.is_some_and(is_whole_of)
}

/// The text that is now noted in a file, or was noted there before; `None` if there is none.
fn noted(path: &Path, text: Option<&str>) -> Option<String> {
    match text {
        Some(text) => {
            // Best effort: nothing depends on it.
            let _ = fs::write(path, text);
            Some(text.to_owned())
        }
        None => fs::read_to_string(path).ok().filter(|text| !text.is_empty()),
    }
}

/// Makes the directory of a tree, and what is in it.
fn make_places(directory: &Path, tree: &TreeName) -> std::io::Result<()> {
    if !directory.exists() {
        // Trees of earlier versions go on under their own names.
        private::make_directory(directory)?;
        let (name, new) = (directory.join(DISK_NAME), directory.join("disk-name.new"));
        fs::write(&new, new_disk_name(DISK_PREFIX))?;
        fs::rename(new, name)?;
    }
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

#[cfg(test)]
mod tests;
