//! [`Credential`]: what one user shows to a registry, and the secrets in it.

use std::fmt;
use std::sync::Arc;

/// A secret that no log shows.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(Arc<str>);

impl Secret {
    pub(super) fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The secret itself, for the one header or form that it belongs in.
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// The credential that can be shown to a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Credential {
    /// None, with the reason if one was expected.
    Nothing(Option<String>),
    /// A user and a password.
    Password(String, Secret),
    /// A token that buys other tokens.
    Identity(Secret),
}

impl Credential {
    /// `true` if it is a user with a password.
    pub(super) fn is_password(&self) -> bool {
        matches!(self, Self::Password(..))
    }

    /// `true` if both are shown as the same: nothing is nothing, whatever the reason.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self == other || matches!((self, other), (Self::Nothing(_), Self::Nothing(_)))
    }
}
