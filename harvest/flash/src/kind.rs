//! The kinds of vSSDs.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
#[cfg(feature = "schema")]
use utoipa::ToSchema;

/// The kind of a vSSD. The journal has these by number: new ones are added at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum VssdKind {
    /// A regular VM's: its I/O goes first, and flash that it does not use for a while is lent.
    Regular,
    /// Not sold yet: all of it is lent until it is sold.
    Unsold,
    /// A harvest VM's: it may borrow, and may lose what it borrowed.
    Harvest,
}

impl VssdKind {
    /// All.
    pub const ALL: [Self; 3] = [Self::Regular, Self::Unsold, Self::Harvest];

    /// Its name.
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
            Error::invalid(format!("`{}` is no kind of vSSD", text.escape_debug()))
                .remedy("write regular, unsold or harvest")
        })
    }
}
