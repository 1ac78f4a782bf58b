//! The finding about one feature.

use serde::Serialize;

/// The availability of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Availability {
    /// The feature can be used.
    Yes,
    /// The feature can be used in part, or may be usable.
    Limited,
    /// The feature cannot be used.
    No,
}

/// The finding about one feature.
#[derive(Clone, Debug, Serialize)]
pub struct HostFinding {
    /// The name of the feature.
    pub feature: &'static str,
    /// The availability of the feature; `yes`, `limited` or `no` in JSON.
    pub state: Availability,
    /// The details of the feature, or of the obstacle.
    pub detail: String,
    /// The remedy for a feature that is limited or missing; `None` if none is needed or known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl HostFinding {
    /// Creates a finding without a remedy.
    #[must_use]
    pub fn new(feature: &'static str, state: Availability, detail: impl Into<String>) -> Self {
        Self { feature, state, detail: detail.into(), remedy: None }
    }

    /// Sets the remedy; a second call replaces the first remedy.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}
