//! Images that are read where they are stored, without the cache.

use headstart_store::Location;

/// Returns `true` if images in `location` are read directly, without the cache: `location` is a directory of
/// this host.
#[must_use]
pub fn is_local(location: &Location) -> bool {
    matches!(location, Location::Directory(_))
}
