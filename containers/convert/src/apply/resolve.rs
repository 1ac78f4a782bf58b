//! Paths through symbolic links, which never lead out of the root.
//!
//! The rules are those of `RootPath` in containerd's continuity library. It is not the kernel's walk, and the
//! differences decide what hostile and odd layers do:
//!
//! * A path is walked in passes. A pass goes through its components from the left, and joins each to the path so far.
//!   If there is a symbolic link at the joined path, then the link's target takes its place: a relative one is joined
//!   to the directory that the link is in, an absolute one replaces all. Passes are repeated until one meets no link.
//! * Joining is lexical: `..` takes the last component away, also if that was a link that the same pass has not
//!   looked at. Only where an absolute target is the whole path does its text go into the next pass as it is.
//! * At the root `..` does nothing, so no path leads out.
//! * Where there is nothing, the rest of the path is taken as it stands: a link may lead to a place that does not exist
//!   yet.
//! * 256 links are followed. A path that needs more is refused, as is a cycle.
//! * A component that is neither a directory nor a link cannot have components after it.
//!
//! In one detail the rules are better than containerd's. A target can put a path through a second link whose place in
//! the path is not its end. containerd asks the kernel of the host about such a path, which follows an absolute link
//! out of the root. Here the component is left as it is, and the next pass comes to the link at its end.
//!
//! Work is bounded: paths have at most 4,095 bytes and as many components as the limit on depth says, also between the
//! passes; each component of a pass costs one lookup.

use super::path::{PATH_BYTES, check_name, components};
use crate::file_tree::{FileTree, NodeKind};
use headstart_block::{Error, Result};

/// The number of links that may have been followed before the next component is looked at, as in containerd.
const MAX_LINKS: u32 = 255;

/// A path without links, and the directories that it leads through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resolved<N> {
    /// The components of the path. Each is a name, neither empty nor `.` nor `..`.
    pub(super) names: Vec<Vec<u8>>,
    /// The root, and then the directories that the first components lead to, as far as they exist.
    pub(super) directories: Vec<N>,
    /// The node at the path, if it is neither a directory nor a link.
    pub(super) other: Option<N>,
}

impl<N: Copy> Resolved<N> {
    /// The directory at the path; `None` if there is nothing, or a node of another kind.
    pub(super) fn directory(&self) -> Option<N> {
        self.directories.get(self.names.len()).copied()
    }
}

/// Resolves a path inside the root of `tree`. `depth` is the most components that a path may have.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if the path leads through a file, through too many links, or is too deep or
/// too long; errors of the tree.
pub(super) fn resolve<'a, T: FileTree>(
    tree: &mut T,
    path: impl Iterator<Item = &'a [u8]>,
    depth: usize,
) -> Result<Resolved<T::Node>> {
    let mut todo: Vec<Vec<u8>> = path.map(<[u8]>::to_vec).collect();
    let mut links = 0;
    loop {
        let before = links;
        let mut pass = Pass::new(tree, depth);
        // The target of the last link, if it is all of the path so far, as it was stored.
        let mut stored = None;
        for component in &todo {
            stored = None;
            if links > MAX_LINKS {
                return Err(Error::corrupt(format!("leads through more than {MAX_LINKS} symbolic links")));
            }
            pass.join(component)?;
            let Found::Link(link) = pass.look()? else { continue };
            links += 1;
            let target = pass.tree.link_target(link)?;
            let is_absolute = target.starts_with(b"/");
            if is_absolute {
                pass.clear();
            } else {
                pass.join(b"..")?;
            }
            components(&target).try_for_each(|component| pass.join(component))?;
            stored = is_absolute.then_some(target);
        }
        if links == before {
            return pass.end();
        }
        todo = match stored {
            Some(target) => components(&target).map(<[u8]>::to_vec).collect(),
            None => pass.names,
        };
    }
}

/// The node at the end of the path so far.
enum Found<N> {
    /// A directory.
    Directory,
    /// A symbolic link.
    Link(N),
    /// A node of another kind.
    Other(N),
    /// Nothing, or a path through a link that a later pass will follow.
    Nothing,
}

/// One walk through the components of a path.
struct Pass<'t, T: FileTree> {
    tree: &'t mut T,
    depth: usize,
    names: Vec<Vec<u8>>,
    /// The bytes of all names, and one more for each.
    bytes: usize,
    /// The root and the directories of the first names: all that were looked up so far.
    directories: Vec<T::Node>,
}

impl<'t, T: FileTree> Pass<'t, T> {
    fn new(tree: &'t mut T, depth: usize) -> Self {
        let directories = vec![tree.root()];
        Self { tree, depth, names: Vec::new(), bytes: 0, directories }
    }

    /// Starts again at the root.
    fn clear(&mut self) {
        self.names.clear();
        self.bytes = 0;
        self.directories.truncate(1);
    }

    /// Joins a component to the path, lexically.
    fn join(&mut self, component: &[u8]) -> Result<()> {
        match component {
            b"." => {}
            b".." => {
                self.bytes -= self.names.pop().map_or(0, |name| name.len() + 1);
                self.directories.truncate(self.names.len() + 1);
            }
            name => {
                check_name(name)?;
                self.bytes += name.len() + 1;
                self.names.push(name.to_vec());
                if self.bytes > PATH_BYTES {
                    return Err(Error::unsupported(format!("has a path of more than {PATH_BYTES} bytes")));
                }
                if self.names.len() > self.depth {
                    return Err(too_deep(self.depth));
                }
            }
        }
        Ok(())
    }

    /// Looks up the path so far.
    fn look(&mut self) -> Result<Found<T::Node>> {
        while let Some(name) = self.names.get(self.directories.len() - 1) {
            let is_last = self.directories.len() == self.names.len();
            // The root is always there.
            let Some(dir) = self.directories.last().copied() else { break };
            let Some(node) = self.tree.lookup(dir, name)? else { return Ok(Found::Nothing) };
            match self.tree.status(node)?.kind {
                NodeKind::Directory => self.directories.push(node),
                NodeKind::Symlink if is_last => return Ok(Found::Link(node)),
                NodeKind::Symlink => return Ok(Found::Nothing),
                _ if is_last => return Ok(Found::Other(node)),
                _ => return Err(not_a_directory(&self.names[..self.directories.len()])),
            }
        }
        Ok(Found::Directory)
    }

    /// The path, after a pass that met no link.
    fn end(mut self) -> Result<Resolved<T::Node>> {
        let other = match self.look()? {
            Found::Other(node) => Some(node),
            _ => None,
        };
        Ok(Resolved { names: self.names, directories: self.directories, other })
    }
}

/// The error of a path that needs a directory where something else is.
pub(super) fn not_a_directory(names: &[Vec<u8>]) -> Error {
    Error::corrupt(format!("leads through /{}, which is not a directory", names.join(&b'/').escape_ascii()))
}

/// The error of a path of too many components.
pub(super) fn too_deep(depth: usize) -> Error {
    Error::unsupported(format!("has a path of more than {depth} components"))
        .remedy("if the layer is trusted, raise the limit `depth` (--limit depth=NUMBER)")
}
