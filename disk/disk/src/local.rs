//! Images that are read where they are stored, without the cache.

use headstart_store::Location;

/// `true` if images in `location` are read where they are stored, without the cache.
#[must_use]
pub fn is_local(location: &Location) -> bool {
    matches!(location, Location::Directory(_))
}
