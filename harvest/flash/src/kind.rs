//! The kinds of vSSDs.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
#[cfg(feature = "schema")]
use utoipa::ToSchema;

/// The kind of a vSSD (virtual SSD), which decides whether it lends or borrows flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum VssdKind {
    /// A regular VM's vSSD: its I/O has priority on its channels, and flash that it does not need for a while
    /// is lent.
    Regular,
    /// A vSSD that is not sold yet: all of its flash is lent until it is sold.
    Unsold,
    /// A harvest VM's vSSD: it borrows flash, and may lose the data stored there.
    Harvest,
}

impl VssdKind {
    /// All kinds, in the order of their declaration.
    pub const ALL: [Self; 3] = [Self::Regular, Self::Unsold, Self::Harvest];

    /// Returns the kind's name in commands and in JSON, for example `harvest`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Regular => "regular",
            Self::Unsold => "unsold",
            Self::Harvest => "harvest",
        }
    }
}

impl fmt::Display for VssdKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for VssdKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            Error::invalid(format!("`{}` is not a kind of vSSD", text.escape_debug()))
                .remedy("write regular, unsold or harvest")
        })
    }
}
