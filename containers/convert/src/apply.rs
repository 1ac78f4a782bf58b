//! The meaning of a layer's entries: a pure applier, which gets tar entries and changes a tree of files.
//!
//! # Rules
//!
//! The measure is containerd's `pkg/archive` (read as of August 2026), because it is what most images meet. It has two
//! appliers. One writes into a tree that holds the lower layers, as [`FileTree`] does. The other writes the upper
//! directory of overlayfs, and is the one that containerd uses by default. They share the rules that follow, and
//! disagree in a few, under *Choices*.
//!
//! *Names.*
//! * A name is cleaned as a path, without a look at the tree: `a//b`, `a/./b`, `/a/b` and `x/../a/b` are `a/b`; a `..`
//!   that leads out of the root stays at the root (`path`). So no name is refused for its form.
//! * The directory that a name is in is looked for inside the root, through symbolic links (`resolve`). The last
//!   component is not followed: an entry replaces a link and does not write through it.
//! * A directory of the path that does not exist is made, also at the end of a dangling link, and also for a whiteout.
//!   If there is something else in its place, then the layer is refused.
//! * An entry that is the root itself is ignored unless it is a directory, as is a name that ends in a `..` that leads
//!   out.
//!
//! *Replacing.*
//! * A directory over a directory changes the attributes and keeps the names in it. Everything else over anything else
//!   removes the old first, a directory with all in it, and a symbolic link as itself. So the last of several
//!   entries with one name wins.
//! * A new file does not write into the old one: other names of the old file keep its content.
//! * A hard link removes the old name before it looks for its target, so that a hard link to itself is refused: there
//!   is no such file any more.
//!
//! *Hard links.*
//! * The directory of the target is looked for inside the root, through symbolic links. The target's last component is
//!   not followed, so that a hard link to a symbolic link is one more name for the link. After a `/` at the end there
//!   is no last component: then the whole target is followed.
//! * The target can be of a lower layer.
//! * A directory, a missing target and an empty target are refused.
//! * The attributes of the entry become those of the file, under all its names. Extended attributes are added: a tar
//!   writer may store them with the first name only.
//!
//! *Whiteouts.*
//! * The name alone makes an entry a whiteout. Kind, content and attributes do not matter.
//! * `.wh..wh..opq` makes the directory that it is in opaque: what lower layers have there goes, what this layer brings
//!   stays, and the marker may stand anywhere in the tar.
//! * `.wh.NAME` removes `NAME` from the directory: a file, a link as itself, a directory with all in it. There may be
//!   nothing to remove.
//! * `.wh.`, `.wh..` and `.wh...` would remove the directory itself or the one above, and are refused.
//! * Other names that begin with `.wh..wh.`, such as `.wh..wh.plnk` and `.wh..wh.aufs` of old aufs layers, are
//!   whiteouts of names that no layer has. In the middle of a path `.wh.` means nothing: `.wh.a/b` is a file in a
//!   directory.
//!
//! *Attributes.*
//! * Mode: permission bits, set-user-id, set-group-id and sticky, all as given, since the owner is set before them.
//!   A symbolic link has 0777, whatever its entry says.
//! * Owner and group: as given, except 4,294,967,295, which Linux takes for "as it is": a new node then gets 0.
//! * Times before 1970 and after 2262-04-11 (2^63 nanoseconds) become 1970-01-01.
//! * Extended attributes of namespaces that Linux does not have are left out, as are `user.` attributes of anything but
//!   files and directories: Linux refuses both, and containerd goes on without them. So are POSIX ACLs of symbolic
//!   links.
//! * Device numbers are those that Linux has: majors of 12 and minors of 20 bits. Larger ones are refused; containerd
//!   would cut them.
//! * A name of more than 255 bytes, a path of more than 4,095 and a link target that is empty or has more than 4,095
//!   are refused, as Linux refuses them.
//!
//! PAX headers, global ones among them, and kinds of entries that mean nothing here are the tar reader's.
//!
//! # Choices
//!
//! * *What the same layer brought survives its whiteouts*, whatever the order. The image specification demands it of
//!   both kinds ("only to resources in lower layers"). containerd's applier into a tree removes what `.wh.NAME` finds,
//!   and removes in an opaque directory what has no entry of its own, with the entries below; its applier for overlayfs
//!   fails on the first, and keeps the second. A directory of a lower layer that a whiteout names, and in which this
//!   layer brought something, stays with its attributes and loses the rest.
//! * *Extended attributes of a directory* that an entry lists again: those of the lower layer go, those that this
//!   layer set before stay, as with overlayfs. The applier into a tree adds in both cases, so that no layer could ever
//!   take one away.
//! * *The root's entry*: a directory `./` sets the root's attributes, as the image specification has it. containerd
//!   ignores it.
//! * *`trusted.` attributes* are kept, because layers list them for a reason, except `trusted.overlay.`: overlayfs
//!   above the disk would obey them, and so give a layer power over what it does not name. containerd sets none of
//!   them.
//! * *Directories that no entry lists* get mode 0755, owner and group 0, and the time 1970-01-01, where containerd
//!   takes the clock. A fixed time makes the directory's bytes the same in every image, and the same whatever else is
//!   in the layer.
//! * *Directory times* are set with the other attributes. containerd sets them again at the end, because the kernel
//!   changes them with each name in the directory. A [`FileTree`] does not, so nothing has to be remembered, and a
//!   directory of a lower layer keeps its time where containerd leaves the time of unpacking. A directory that the same
//!   layer replaces later has no effect: in containerd, its time goes to what its name then leads to, and the layer is
//!   refused if that is nothing.
//! * A regular file of a lower layer that has no other name is not removed but handed to the tree with its new content
//!   ([`FileTree::replace_content`]): a tree can see that the content is the old one.
//!
//! # A layer by itself
//!
//! A layer can also become a tree of its own, which overlayfs puts on those of the layers below
//! ([`Applier::keeping_whiteouts`]). Its whiteouts are kept in the form of overlayfs (`kept_whiteouts`).
//!
//! # Memory
//!
//! The applier remembers the names that the layer brought into directories of lower layers (`brought`): 16 bytes for
//! each, of which 6 MB stay in memory and the others are in a temporary file, and a bit for each directory that it made
//! or changed. Directories are listed part by part, so one that is emptied may have any number of names. The directory
//! of the last entry is remembered as well, because entries stand in the tar directory by directory.

mod attributes;
mod brought;
mod kept_whiteouts;
mod name_set;
mod number_set;
mod path;
mod resolve;

#[cfg(test)]
pub(crate) mod tests;

use crate::file_tree::{FileTree, LayerContent, NewNode, NodeAttributes, NodeKind, NodeStatus, NodeXattr};
use attributes::{EPOCH, bounded_time, check_device, kept_xattrs, merged_xattrs};
use brought::Brought;
use headstart_block::{Error, Result};
use headstart_tar::{TarEntry, TarKind};
use kept_whiteouts::KeptWhiteouts;
use path::{PATH_BYTES, Place, check_name, components, place};
use resolve::{Resolved, not_a_directory, resolve, too_deep};

/// The start of the names of whiteouts.
const WHITEOUT: &[u8] = b".wh.";

/// The name of the marker that makes its directory opaque.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// The permissions of every symbolic link.
const SYMLINK_MODE: u32 = 0o777;

/// Bytes of an entry's name that a message shows.
const SHOWN_BYTES: usize = 256;

/// The number that is no owner and no group: `chown` leaves what is there.
const NO_ID: u32 = u32::MAX;

/// The attributes of a directory that no entry lists.
const UNLISTED: NodeAttributes<'_> =
    NodeAttributes { mode: 0o755, uid: 0, gid: 0, mtime: EPOCH, xattrs: &[] };

/// The limits of one layer. A layer beyond one of them is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApplyLimits {
    /// The most entries. The default is 4,194,304.
    pub entries: u64,
    /// The most components of a path, after its links are resolved. The default is 1,024; more than 2,047 cannot occur,
    /// because a path has at most 4,095 bytes.
    pub depth: usize,
}

impl Default for ApplyLimits {
    fn default() -> Self {
        Self { entries: 1 << 22, depth: 1024 }
    }
}

/// The counts of a layer's entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerCounts {
    /// All entries.
    pub entries: u64,
    /// Directories, new ones and those that got new attributes.
    pub directories: u64,
    /// Regular files.
    pub files: u64,
    /// Regular files among them that took the place of a lower layer's.
    pub replaced_files: u64,
    /// Bytes of regular files, holes included.
    pub file_bytes: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Hard links.
    pub hard_links: u64,
    /// Devices and named pipes.
    pub special_files: u64,
    /// Whiteouts of single names.
    pub whiteouts: u64,
    /// Markers of opaque directories.
    pub opaque_markers: u64,
    /// Entries that stand for nothing, because their names are the root's or lead out of it.
    pub ignored_entries: u64,
    /// Directories that no entry listed before they were needed.
    pub unlisted_directories: u64,
    /// Extended attributes that were left out.
    pub ignored_xattrs: u64,
}

/// The directory of the last entry, so that the next one in it needs no walk.
#[derive(Debug)]
struct KnownParent<N> {
    /// The components of the path as in the entry, with `/` between them.
    asked: Vec<u8>,
    /// The path without links; all its directories exist.
    path: Resolved<N>,
}

/// The applier of one layer. See the [module](self) for the rules.
#[derive(Debug)]
pub struct Applier<'t, T: FileTree> {
    tree: &'t mut T,
    limits: ApplyLimits,
    counts: LayerCounts,
    brought: Brought,
    parent: Option<KnownParent<T::Node>>,
    /// The whiteouts of a layer that becomes a tree of its own; `None` if they remove what lower layers left.
    kept: Option<KeptWhiteouts>,
    /// `true` if the current entry removed a directory or a link, by which paths may lead elsewhere now.
    paths_changed: bool,
}

/// A place in the tree: a directory, by its path, and a name in it.
struct Spot<'a, N> {
    path: &'a Resolved<N>,
    dir: N,
    name: &'a [u8],
}

impl<'t, T: FileTree> Applier<'t, T> {
    /// An applier of one layer on what `tree` holds.
    pub fn new(tree: &'t mut T, limits: ApplyLimits) -> Self {
        let counts = LayerCounts::default();
        let brought = Brought::new();
        Self { tree, limits, counts, brought, parent: None, kept: None, paths_changed: false }
    }

    /// The same applier for a layer that becomes a tree of its own, which overlayfs puts on the trees of lower layers:
    /// whiteouts become marks for overlayfs. The tree must be empty.
    #[must_use]
    pub fn keeping_whiteouts(self) -> Self {
        Self { kept: Some(KeptWhiteouts::default()), ..self }
    }

    /// Applies the next entry of the layer. `content` is read if the entry is a regular file, and then to its end
    /// unless there is an error. After an error the tree is in the middle of a change, and has to be given up.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] for an entry that makes no sense on this tree,
    /// [`headstart_block::ErrorKind::Unsupported`] for one that no file system can hold or that is beyond a limit;
    /// errors of the tree and of the content. All name the entry.
    pub fn apply(&mut self, entry: &TarEntry, content: &mut dyn LayerContent) -> Result<()> {
        self.apply_entry(entry, content).map_err(|error| {
            let shown = entry.path.get(..SHOWN_BYTES).unwrap_or(&entry.path);
            error.about(format!("tar entry \"{}\"", shown.escape_ascii()))
        })
    }

    /// Ends the layer and returns its counts.
    ///
    /// # Errors
    /// Errors of the tree, if whiteouts are kept.
    pub fn finish(self) -> Result<LayerCounts> {
        if let Some(kept) = self.kept {
            kept.write(self.tree)?;
        }
        Ok(self.counts)
    }

    fn apply_entry(&mut self, entry: &TarEntry, content: &mut dyn LayerContent) -> Result<()> {
        if self.counts.entries == self.limits.entries {
            let cause = format!("is one entry more than the limit of {} for a layer", self.limits.entries);
            return Err(Error::unsupported(cause)
                .remedy("if the layer is trusted, raise the limit `entries` (--limit entries=NUMBER)"));
        }
        self.counts.entries += 1;
        match place(&entry.path) {
            Place::Root if entry.kind == TarKind::Directory => {
                self.counts.directories += 1;
                let root = self.tree.root();
                let xattrs = self.xattrs(entry, NodeKind::Directory)?;
                let old = self.tree.status(root)?;
                self.tree.set_attributes(root, &attributes(entry, Some(&old), &xattrs))
            }
            Place::Root | Place::Outside => {
                self.counts.ignored_entries += 1;
                Ok(())
            }
            Place::Inside { parents, name } => {
                let parent = self.enter(&parents)?;
                self.paths_changed = false;
                self.apply_in(&parent.path, name, entry, content)?;
                if !self.paths_changed {
                    self.parent = Some(parent);
                }
                Ok(())
            }
        }
    }

    /// Finds the directory with the path `parents`, or makes it.
    fn enter(&mut self, parents: &[&[u8]]) -> Result<KnownParent<T::Node>> {
        if let Some(known) = self.parent.take()
            && components(&known.asked).eq(parents.iter().copied())
        {
            return Ok(known);
        }
        let mut path = resolve(self.tree, parents.iter().copied(), self.limits.depth)?;
        if path.other.is_some() {
            return Err(not_a_directory(&path.names));
        }
        while let (Some(name), Some(dir)) =
            (path.names.get(path.directories.len() - 1), path.directories.last().copied())
        {
            let new = self.tree.create(dir, name, NewNode::Directory, &UNLISTED)?;
            self.mark(&path, name)?;
            self.brought.add(T::number(new));
            self.counts.unlisted_directories += 1;
            path.directories.push(new);
        }
        Ok(KnownParent { asked: parents.join(&b'/'), path })
    }

    /// Remembers that the layer brought `name` in the last of the path's directories.
    fn mark(&mut self, path: &Resolved<T::Node>, name: &[u8]) -> Result<()> {
        let mut name = name;
        for (level, dir) in path.directories.iter().enumerate().rev() {
            if !self.brought.mark(T::number(*dir), name)? || level == 0 {
                break;
            }
            name = &path.names[level - 1];
        }
        Ok(())
    }

    /// Applies an entry to the directory at `path`, which exists.
    fn apply_in(
        &mut self,
        path: &Resolved<T::Node>,
        name: &[u8],
        entry: &TarEntry,
        content: &mut dyn LayerContent,
    ) -> Result<()> {
        let dir = path.directory().ok_or_else(|| not_a_directory(&path.names))?;
        if name == OPAQUE {
            self.counts.opaque_markers += 1;
            return match &mut self.kept {
                Some(kept) => kept.remove_all(&path.names),
                None => self.prune(dir),
            };
        }
        if let Some(original) = name.strip_prefix(WHITEOUT) {
            self.counts.whiteouts += 1;
            return self.white_out(path, dir, original);
        }
        check_name(name)?;
        if path.names.len() >= self.limits.depth {
            return Err(too_deep(self.limits.depth));
        }
        if path.names.iter().map(|name| name.len() + 1).sum::<usize>() + name.len() > PATH_BYTES {
            return Err(Error::unsupported(format!("has a path of more than {PATH_BYTES} bytes")));
        }
        self.put(&Spot { path, dir, name }, entry, content)?;
        self.mark(path, name)
    }

    /// Puts the node of an entry in its place.
    fn put(
        &mut self,
        spot: &Spot<'_, T::Node>,
        entry: &TarEntry,
        content: &mut dyn LayerContent,
    ) -> Result<()> {
        let (major, minor) = entry.device;
        match entry.kind {
            TarKind::Directory => self.put_directory(spot, entry),
            TarKind::Regular => self.put_file(spot, entry, content),
            TarKind::HardLink => self.put_hard_link(spot, entry),
            TarKind::Symlink => {
                let target = &entry.link_target;
                if target.is_empty() || target.len() > PATH_BYTES || target.contains(&0) {
                    let cause = "is a symbolic link whose target is empty, is longer than 4095 bytes or has a NUL byte";
                    return Err(Error::unsupported(cause));
                }
                self.counts.symlinks += 1;
                self.put_other(spot, entry, NodeKind::Symlink, NewNode::Symlink { target })
            }
            TarKind::CharDevice => {
                check_device(major, minor)?;
                self.counts.special_files += 1;
                self.put_other(spot, entry, NodeKind::CharDevice, NewNode::CharDevice { major, minor })
            }
            TarKind::BlockDevice => {
                check_device(major, minor)?;
                self.counts.special_files += 1;
                self.put_other(spot, entry, NodeKind::BlockDevice, NewNode::BlockDevice { major, minor })
            }
            TarKind::Fifo => {
                self.counts.special_files += 1;
                self.put_other(spot, entry, NodeKind::Fifo, NewNode::Fifo)
            }
        }
    }

    fn put_directory(&mut self, spot: &Spot<'_, T::Node>, entry: &TarEntry) -> Result<()> {
        self.counts.directories += 1;
        let mut xattrs = self.xattrs(entry, NodeKind::Directory)?;
        if let Some(node) = self.tree.lookup(spot.dir, spot.name)? {
            let old = self.tree.status(node)?;
            if old.kind == NodeKind::Directory {
                if self.brought.has(T::number(spot.dir), spot.name)? {
                    xattrs = merged_xattrs(self.tree.xattrs(node)?, xattrs);
                }
                return self.tree.set_attributes(node, &attributes(entry, Some(&old), &xattrs));
            }
            self.remove(spot.dir, spot.name, node)?;
        }
        let attributes = attributes(entry, None, &xattrs);
        let new = self.tree.create(spot.dir, spot.name, NewNode::Directory, &attributes)?;
        self.mark(spot.path, spot.name)?;
        self.brought.add(T::number(new));
        Ok(())
    }

    fn put_file(
        &mut self,
        spot: &Spot<'_, T::Node>,
        entry: &TarEntry,
        content: &mut dyn LayerContent,
    ) -> Result<()> {
        self.counts.files += 1;
        self.counts.file_bytes = self.counts.file_bytes.saturating_add(content.size());
        let xattrs = self.xattrs(entry, NodeKind::Regular)?;
        let attributes = attributes(entry, None, &xattrs);
        if let Some(node) = self.tree.lookup(spot.dir, spot.name)? {
            let status = self.tree.status(node)?;
            let is_alone = status.kind == NodeKind::Regular && status.links == 1;
            if is_alone && !self.brought.has(T::number(spot.dir), spot.name)? {
                self.counts.replaced_files += 1;
                return self.tree.replace_content(spot.dir, spot.name, node, &attributes, content);
            }
            self.remove(spot.dir, spot.name, node)?;
        }
        let new = self.tree.create(spot.dir, spot.name, NewNode::File, &attributes)?;
        self.tree.write_content(new, content)
    }

    fn put_other(
        &mut self,
        spot: &Spot<'_, T::Node>,
        entry: &TarEntry,
        kind: NodeKind,
        node: NewNode<'_>,
    ) -> Result<()> {
        let xattrs = self.xattrs(entry, kind)?;
        self.vacate(spot)?;
        let mut attributes = attributes(entry, None, &xattrs);
        if kind == NodeKind::Symlink {
            attributes.mode = SYMLINK_MODE;
        }
        self.tree.create(spot.dir, spot.name, node, &attributes).map(drop)
    }

    fn put_hard_link(&mut self, spot: &Spot<'_, T::Node>, entry: &TarEntry) -> Result<()> {
        self.counts.hard_links += 1;
        self.vacate(spot)?;
        let node = self.find_link_target(&entry.link_target)?;
        let old = self.tree.status(node)?;
        self.tree.link(spot.dir, spot.name, node)?;
        let new = self.xattrs(entry, old.kind)?;
        let xattrs = merged_xattrs(self.tree.xattrs(node)?, new);
        let mut attributes = attributes(entry, Some(&old), &xattrs);
        if old.kind == NodeKind::Symlink {
            attributes.mode = SYMLINK_MODE;
        }
        self.tree.set_attributes(node, &attributes)
    }

    /// Finds the node that a hard link leads to, which is not a directory.
    fn find_link_target(&mut self, target: &[u8]) -> Result<T::Node> {
        let is_a =
            |what: &str| Error::corrupt(format!("is a hard link to {}, {what}", target.escape_ascii()));
        let split = target.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (parent, name) = target.split_at(split);
        let path = resolve(self.tree, components(parent), self.limits.depth)?;
        let node = match (name, path.directory()) {
            (b"" | b".", None) => path.other,
            (b"" | b"." | b"..", _) => return Err(is_a("which is a directory")),
            (_, Some(dir)) => {
                check_name(name)?;
                self.tree.lookup(dir, name)?
            }
            (_, None) => None,
        };
        let node = node.ok_or_else(|| is_a("which does not exist"))?;
        if self.tree.status(node)?.kind == NodeKind::Directory {
            return Err(is_a("which is a directory"));
        }
        Ok(node)
    }

    /// Removes what is called `original` in `dir`, except what this layer brought.
    fn white_out(&mut self, path: &Resolved<T::Node>, dir: T::Node, original: &[u8]) -> Result<()> {
        if matches!(original, b"" | b"." | b"..") {
            return Err(Error::corrupt("is a whiteout of the directory that it is in, or of the one above"));
        }
        check_name(original)?;
        if let Some(kept) = &mut self.kept {
            return kept.remove(&path.names, original);
        }
        if self.brought.is_new(T::number(dir)) {
            return Ok(());
        }
        let Some(node) = self.tree.lookup(dir, original)? else { return Ok(()) };
        if !self.brought.has(T::number(dir), original)? {
            return self.remove(dir, original, node);
        }
        if self.tree.status(node)?.kind == NodeKind::Directory {
            return self.prune(node);
        }
        Ok(())
    }

    /// Removes everything in a directory that this layer did not bring.
    fn prune(&mut self, dir: T::Node) -> Result<()> {
        let mut pending = vec![dir];
        while let Some(dir) = pending.pop() {
            let number = T::number(dir);
            if self.brought.is_new(number) {
                continue;
            }
            let mut part = 0;
            while let Some(names) = self.tree.names(dir, part)? {
                part += 1;
                for name in names {
                    let Some(node) = self.tree.lookup(dir, &name)? else { continue };
                    if !self.brought.has(number, &name)? {
                        self.remove(dir, &name, node)?;
                    } else if self.tree.status(node)?.kind == NodeKind::Directory {
                        pending.push(node);
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes what is in the way of a node that is not a directory.
    fn vacate(&mut self, spot: &Spot<'_, T::Node>) -> Result<()> {
        match self.tree.lookup(spot.dir, spot.name)? {
            Some(node) => self.remove(spot.dir, spot.name, node),
            None => Ok(()),
        }
    }

    /// Removes `node`, which is called `name` in `dir`: a directory with all in it.
    fn remove(&mut self, dir: T::Node, name: &[u8], node: T::Node) -> Result<()> {
        let kind = self.tree.status(node)?.kind;
        if kind != NodeKind::Directory {
            self.paths_changed |= kind == NodeKind::Symlink;
            return self.tree.unlink(dir, name);
        }
        self.paths_changed = true;
        let mut pending = vec![node];
        while let Some(gone) = pending.pop() {
            if !self.brought.knows(T::number(gone)) {
                continue;
            }
            let mut part = 0;
            while let Some(names) = self.tree.names(gone, part)? {
                part += 1;
                for name in names {
                    let below = self.tree.lookup(gone, &name)?;
                    pending.extend(below.filter(|node| self.brought.knows(T::number(*node))));
                }
            }
            self.brought.forget(T::number(gone));
        }
        self.tree.remove_tree(dir, name)
    }

    /// The extended attributes that an entry gives to a node of that kind.
    fn xattrs(&mut self, entry: &TarEntry, kind: NodeKind) -> Result<Vec<NodeXattr>> {
        let kept = kept_xattrs(&entry.xattrs, kind)?;
        self.counts.ignored_xattrs += (entry.xattrs.len() - kept.len()) as u64;
        Ok(kept)
    }
}

/// The attributes that an entry gives to a new node, or to one whose state was `old`.
fn attributes<'a>(entry: &TarEntry, old: Option<&NodeStatus>, xattrs: &'a [NodeXattr]) -> NodeAttributes<'a> {
    let id = |id, old: Option<u32>| if id == NO_ID { old.unwrap_or(0) } else { id };
    NodeAttributes {
        mode: entry.mode & 0o7777,
        uid: id(entry.uid, old.map(|old| old.uid)),
        gid: id(entry.gid, old.map(|old| old.gid)),
        mtime: bounded_time(entry.mtime),
        xattrs,
    }
}
