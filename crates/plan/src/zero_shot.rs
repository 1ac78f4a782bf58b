//! Whose traces to learn from for an image that has hardly any of its own (paper, section 5.4).
//!
//! Images of the same family, then of the same user, then of the same metadata: the narrowest choice that has five
//! traces. Between the last two the paper's figure 23 puts one more: images of equal metadata are alike (its Meta3)
//! whoever made them, those of a family alone (Meta1) hardly.

use headstart_trace::Creation;
use std::fmt;

/// Fewer traces are not enough to learn from.
pub const TRACES_MIN: usize = 5;

/// What is known of an image from its creations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The operating system's release.
    pub family: String,
    /// Whose it is.
    pub user: String,
    /// Its configuration.
    pub meta: String,
    /// The size of its disks.
    pub size: u64,
}

impl Metadata {
    /// Of a creation: its family, user and the label `meta_info`. Its options are left out: in data sets they tell of
    /// the guest's memory and of the host.
    #[must_use]
    pub fn of(creation: &Creation) -> Self {
        let meta = creation.labels.get("meta_info").cloned().unwrap_or_default();
        let (family, user) = (creation.family.clone(), creation.user.clone());
        Self { family, user, meta, size: creation.size }
    }
}

/// Why a plan was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It was made from the image's own traces.
    Trained,
    /// From images of the same family, user and metadata.
    FamilyUserMeta,
    /// From images of the same family and user.
    FamilyUser,
    /// From images of the same family and metadata.
    FamilyMeta,
    /// From images of the same family.
    Family,
    /// There is none.
    None,
}

impl Reason {
    /// The tiers, the narrowest first.
    const TIERS: [Self; 4] = [Self::FamilyUserMeta, Self::FamilyUser, Self::FamilyMeta, Self::Family];

    fn admits(self, wanted: &Metadata, known: &Metadata) -> bool {
        let same = |a: &str, b: &str| !a.is_empty() && a == b;
        let (user, meta) = (same(&wanted.user, &known.user), wanted.meta == known.meta);
        same(&wanted.family, &known.family)
            && match self {
                Self::FamilyUserMeta => user && meta,
                Self::FamilyUser => user,
                Self::FamilyMeta => meta,
                Self::Family => true,
                Self::Trained | Self::None => false,
            }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Trained => "trained",
            Self::FamilyUserMeta => "zero-shot: family+user+meta",
            Self::FamilyUser => "zero-shot: family+user",
            Self::FamilyMeta => "zero-shot: family+meta",
            Self::Family => "zero-shot: family",
            Self::None => "none",
        })
    }
}

/// Which of the `known` images, each with its number of traces, to learn from; those with the wanted disk size
/// first, then those with the most traces, whose parameters are the ones to reuse.
///
/// Where not even the family has five traces, what it has is taken.
#[must_use]
pub fn select(wanted: &Metadata, known: &[(Metadata, usize)]) -> (Reason, Vec<usize>) {
    let mut widest = (Reason::None, Vec::new());
    for tier in Reason::TIERS {
        let admitted = |at: &usize| known[*at].1 > 0 && tier.admits(wanted, &known[*at].0);
        let mut images: Vec<_> = (0..known.len()).filter(admitted).collect();
        let traces: usize = images.iter().map(|at| known[*at].1).sum();
        if images.is_empty() {
            continue;
        }
        images.sort_by_key(|at| (known[*at].0.size != wanted.size, std::cmp::Reverse(known[*at].1)));
        widest = (tier, images);
        if traces >= TRACES_MIN {
            break;
        }
    }
    widest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(family: &str, user: &str, meta: &str, size: u64) -> Metadata {
        Metadata { family: family.into(), user: user.into(), meta: meta.into(), size }
    }

    #[test]
    fn the_narrowest_choice_that_has_enough() {
        let known = [
            (image("debian", "a", "x", 4), 2),
            (image("debian", "a", "y", 4), 3),
            (image("debian", "b", "x", 8), 9),
            (image("fedora", "a", "x", 4), 99),
            (image("debian", "b", "y", 4), 0),
        ];
        let chosen = |family, user, meta, size| select(&image(family, user, meta, size), &known);
        assert_eq!(chosen("debian", "a", "x", 4), (Reason::FamilyUser, vec![1, 0]));
        assert_eq!(chosen("debian", "b", "x", 8), (Reason::FamilyUserMeta, vec![2]));
        assert_eq!(chosen("debian", "c", "x", 4), (Reason::FamilyMeta, vec![0, 2]));
        assert_eq!(chosen("debian", "c", "z", 8), (Reason::Family, vec![2, 1, 0]));
        assert_eq!(chosen("suse", "a", "x", 4), (Reason::None, vec![]));
        assert_eq!(chosen("", "a", "x", 4).0, Reason::None, "nothing known is not the same as equal");
        assert_eq!(Reason::FamilyUser.to_string(), "zero-shot: family+user");
    }

    #[test]
    fn too_few_are_better_than_none() {
        let known = [(image("debian", "a", "x", 4), 1)];
        assert_eq!(select(&image("debian", "b", "y", 4), &known), (Reason::Family, vec![0]));
    }
}
