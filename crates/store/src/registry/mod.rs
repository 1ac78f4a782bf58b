//! OCI registries.

use crate::settings::Settings;
use crate::store::Store;
use headstart_block::{Error, Result};
use std::sync::Arc;

/// Opens a repository of a registry.
pub(crate) fn open(host: &str, repository: &str, _settings: &Settings) -> Result<Arc<dyn Store>> {
    Err(Error::unsupported("not yet").about(format!("oci://{host}/{repository}")))
}
