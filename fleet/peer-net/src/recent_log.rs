//! The recent requests to a root, kept over a restart, so that the restarted root can predict at once what its agents
//! will request next.
//!
//! ```text
//! headstart recent 1\n    then the list, postcard
//! ```

use crate::Swarm;
use headstart_block::{Error, Result};
use headstart_daemon::file::{self, Readers};
use headstart_swarm::recent::{Recent, Saved};
use std::path::Path;

/// The first bytes of the file.
const MAGIC: &[u8] = b"headstart recent 1\n";

/// The largest accepted file, in bytes: the longest list takes a tenth of it.
const LEN_MAX: u64 = 64 << 20;

/// The most requests that are loaded from it.
const REQUESTS_MAX: usize = 1 << 16;

impl Swarm {
    /// Loads the list of agents' recent requests that [`write_recent`](Self::write_recent) has saved at
    /// `path`, and replaces the present list. Does nothing if there is no such file.
    ///
    /// # Errors
    /// An error if the file cannot be read or has invalid content.
    pub fn remember(&self, path: &Path) -> Result<()> {
        let Some(bytes) = file::read(path, LEN_MAX)? else { return Ok(()) };
        let saved = decode(&bytes).map_err(|e| e.about(path.display()))?;
        self.host.core().node.set_recent(Recent::load(&saved, REQUESTS_MAX));
        Ok(())
    }

    /// Saves the list of recent requests that agents have sent to this host at `path`. Does nothing if the
    /// list is empty.
    ///
    /// # Errors
    /// An error if the file cannot be written.
    pub fn write_recent(&self, path: &Path) -> Result<()> {
        let saved = {
            let core = self.host.core();
            let recent = core.node.recent();
            if recent.is_empty() {
                return Ok(());
            }
            recent.save()
        };
        file::replace(path, &encode(&saved)?, Readers::Owner)
    }
}

fn encode(saved: &Saved) -> Result<Vec<u8>> {
    postcard::to_extend(saved, MAGIC.to_vec()).map_err(|e| Error::invalid("cannot be kept").caused_by(e))
}

fn decode(bytes: &[u8]) -> Result<Saved> {
    let nonsense = || Error::corrupt("is not a list of recent requests of this version").remedy("remove it");
    let list = bytes.strip_prefix(MAGIC).ok_or_else(nonsense)?;
    let (saved, rest) = postcard::take_from_bytes(list).map_err(|e| nonsense().caused_by(e))?;
    if rest.is_empty() { Ok(saved) } else { Err(nonsense()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_swarm::{BlobKey, Chunks, PeerKey};

    #[test]
    fn a_recent_log_round_trips_and_damage_is_refused() {
        let mut recent = Recent::new(100);
        for agent in 1..4 {
            recent.on_request(PeerKey(agent), BlobKey(7), Chunks { first: 3, count: 50 }, |_| true);
        }
        let bytes = encode(&recent.save()).unwrap();
        assert_eq!(decode(&bytes).unwrap(), recent.save());
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut]).is_err(), "{cut}");
        }
        assert!(decode(&[&bytes[..], &[0]].concat()).is_err());
    }
}
