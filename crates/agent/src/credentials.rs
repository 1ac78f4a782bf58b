//! Who belongs to a cluster: its certificate authority, hosts' certificates, the gossip key.

use headstart_block::Result;
use std::path::Path;

/// What one host proves with that it belongs to its cluster.
pub struct Credentials {
    pub(crate) name: String,
}

impl Credentials {
    /// Reads what [`init`] made for one host.
    ///
    /// # Errors
    /// What the operating system reports; [`headstart_block::ErrorKind::Corrupt`] where a file is not what it should be.
    pub fn load(dir: &Path) -> Result<Self> {
        let _ = dir;
        Err(headstart_block::Error::unsupported("not yet"))
    }

    /// The host's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}
