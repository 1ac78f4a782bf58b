//! The choice of traces to learn from, for an image that has none of its own (ThinkAhead paper, section 5.4).
//!
//! The paper has three *tiers* of similar images: those of the same family, those of the same family and user, and
//! those of the same family, user and metadata (here: the label [`Metadata::meta`]). The narrowest tier with at least
//! five traces is chosen; if even the widest has fewer, the widest. Two cases that the paper leaves open are tiers of
//! their own here. The same image on disks of another size comes before all others, with any number of traces, because
//! the same blocks are at the same places. Images of the same family and metadata, of any user, come before those of
//! the same family alone: in figure 23 of the paper the former are alike (there: Meta3), the latter hardly (Meta1).
//!
//! An image with traces of its own is learned from these alone, even if they are fewer than five. With plans from one
//! or two own traces, a boot waits a third less at 2 MB/s than with plans from five traces of the family (46 s instead
//! of 69 s, on the average of 60 real boots), and little more than half as many bytes are pulled.
//!
//! An image belongs to the users that created disks of it. An image with very many users ([`USERS_MAX`]) is public, and
//! says nothing about any of them.
//!
//! The sets of similar images are known once training ends. Each is found by a key, which is made of the metadata that
//! the images share.

use crate::image_key::RecordedImage;
use headstart_trace::Creation;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The number of traces that a set of similar images must have together to be chosen. The same image on disks of other
/// sizes needs only one trace. If no set has enough, the widest of the sets that exist (the one that is last in
/// [`ChoiceReason::TIERS`]) is taken.
pub const TRACES_MIN: u64 = 5;

/// The maximum number of users of a private image. An image with more users is public and says nothing of its
/// users.
pub const USERS_MAX: usize = 16;

/// The metadata of a disk, by which similar images are found. An unknown value is empty, and does not count as equal to
/// any other value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The family of the image, such as the release of its operating system.
    pub family: String,
    /// The user that the disk is created for.
    pub user: String,
    /// The configuration of the disk: the label `meta_info` of its creation.
    pub meta: String,
}

impl Metadata {
    /// Returns the metadata of a creation: its family, its user and its label `meta_info`. The options of a
    /// creation are not used, because in published data sets they describe the guest's memory and the host.
    #[must_use]
    pub fn of(creation: &Creation) -> Self {
        let meta = creation.labels.get("meta_info").cloned().unwrap_or_default();
        Self { family: creation.family.clone(), user: creation.user.clone(), meta }
    }
}

/// The properties of an image, collected from the disks that were created from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// The family that the first disk with a known family has; empty if unknown.
    pub family: String,
    /// The configuration that the first disk with a known configuration has; empty if unknown.
    pub meta: String,
    /// The users that created disks of the image. At most one more than [`USERS_MAX`] is kept.
    pub users: BTreeSet<String>,
}

impl Profile {
    /// Adds the metadata of one more disk of the image.
    pub fn add(&mut self, metadata: &Metadata) {
        let fill = |known: &mut String, said: &String| {
            if known.is_empty() {
                known.clone_from(said);
            }
        };
        fill(&mut self.family, &metadata.family);
        fill(&mut self.meta, &metadata.meta);
        if !metadata.user.is_empty() && self.users.len() <= USERS_MAX {
            self.users.insert(metadata.user.clone());
        }
    }

    /// Returns the metadata to expect of a further disk of the image: its family, its configuration, and its
    /// user if it has exactly one. Unknown values are empty.
    #[must_use]
    pub fn metadata(&self) -> Metadata {
        let only = self.users.first().filter(|_| self.users.len() == 1);
        let user = only.cloned().unwrap_or_default();
        Metadata { family: self.family.clone(), user, meta: self.meta.clone() }
    }
}

/// The source of the traces that a chosen plan was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChoiceReason {
    /// The plan was made from the image's own traces.
    Trained,
    /// The plan was made from plans of other images that share layers with the image.
    Layers {
        /// The number of the image's layers that have plans.
        known: u32,
        /// The number of all layers of the image.
        all: u32,
    },
    /// The plan was made from traces of the same image on disks of other sizes.
    Image,
    /// The plan was made from images of the same family, user and configuration ([`Metadata::meta`]).
    FamilyUserMeta,
    /// The plan was made from images of the same family and user.
    FamilyUser,
    /// The plan was made from images of the same family and configuration ([`Metadata::meta`]).
    FamilyMeta,
    /// The plan was made from images of the same family.
    Family,
    /// There is no plan.
    None,
}

impl ChoiceReason {
    /// The choices for an image without traces of its own, by the properties that other images share with it. The
    /// choice of the most similar images is first.
    pub const TIERS: [Self; 5] =
        [Self::Image, Self::FamilyUserMeta, Self::FamilyUser, Self::FamilyMeta, Self::Family];

    /// The key of the tier for such a disk; `None` if the metadata that it demands are not known.
    pub(crate) fn key(self, image: &str, metadata: &Metadata) -> Option<String> {
        let Metadata { family, user, meta } = metadata;
        let parts: &[&str] = match self {
            Self::Image => &["i", image],
            Self::FamilyUserMeta => &["fum", family, user, meta],
            Self::FamilyUser => &["fu", family, user],
            Self::FamilyMeta => &["fm", family, meta],
            Self::Family => &["f", family],
            Self::Trained | Self::Layers { .. } | Self::None => return None,
        };
        // Unknown values are not equal. A unit separator is in no name; if it were, two keys were one.
        parts.iter().all(|part| !part.is_empty()).then(|| parts.join("\u{1f}"))
    }
}

impl fmt::Display for ChoiceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Trained => "trained",
            Self::Layers { known, all } => return write!(f, "layers: {known} of {all}"),
            Self::Image => "zero-shot: image",
            Self::FamilyUserMeta => "zero-shot: family+user+meta",
            Self::FamilyUser => "zero-shot: family+user",
            Self::FamilyMeta => "zero-shot: family+meta",
            Self::Family => "zero-shot: family",
            Self::None => "none",
        })
    }
}

/// A set of images that share the properties of one of [`ChoiceReason::TIERS`], such as the family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tier {
    /// The images of the set.
    pub images: BTreeSet<RecordedImage>,
    /// The number of traces that the images have together.
    pub traces: u64,
}

/// All sets of similar images from whose traces plans for a further image can be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChoiceTiers {
    by_key: BTreeMap<String, Tier>,
}

impl ChoiceTiers {
    /// Adds an image with `traces` traces to each set that it belongs to. An image without traces is ignored.
    pub fn add(&mut self, image: &RecordedImage, profile: &Profile, traces: u64) {
        if traces == 0 {
            return;
        }
        let users: Vec<&str> = if profile.users.len() > USERS_MAX {
            vec![""]
        } else {
            profile.users.iter().map(String::as_str).chain([""]).collect()
        };
        let mut keys = BTreeSet::new();
        for user in users {
            let metadata = Metadata { user: user.to_owned(), ..profile.metadata() };
            keys.extend(ChoiceReason::TIERS.iter().filter_map(|tier| tier.key(&image.image, &metadata)));
        }
        for key in keys {
            let tier = self.by_key.entry(key).or_default();
            if tier.images.insert(image.clone()) {
                tier.traces = tier.traces.saturating_add(traces);
            }
        }
    }

    /// All tiers, by key.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &Tier)> {
        self.by_key.iter()
    }
}

/// The choice to learn from for a disk of `image`: the image itself at other sizes, otherwise the narrowest choice
/// that has five traces. If even the widest has fewer, it is taken. `find` returns the choice of a tier's key, with
/// its number of traces.
pub(crate) fn select<T>(
    image: &str,
    metadata: &Metadata,
    find: impl Fn(&str) -> Option<(T, u64)>,
) -> Option<(ChoiceReason, T)> {
    let mut widest = None;
    for reason in ChoiceReason::TIERS {
        let found = reason.key(image, metadata).and_then(|key| find(&key));
        if let Some((tier, traces)) = found {
            widest = Some((reason, tier));
            if traces >= TRACES_MIN || reason == ChoiceReason::Image {
                break;
            }
        }
    }
    widest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(family: &str, user: &str, meta: &str) -> Metadata {
        Metadata { family: family.into(), user: user.into(), meta: meta.into() }
    }

    fn tiers() -> ChoiceTiers {
        let mut tiers = ChoiceTiers::default();
        let images = [
            ("a", 4, "debian", "ann", "x", 2),
            ("b", 4, "debian", "ann", "y", 3),
            ("c", 8, "debian", "bob", "x", 9),
            ("d", 4, "fedora", "ann", "x", 99),
            ("e", 4, "debian", "bob", "y", 0),
        ];
        for (image, size, family, user, meta, traces) in images {
            let mut profile = Profile::default();
            profile.add(&metadata(family, user, meta));
            tiers.add(&RecordedImage { image: image.into(), size }, &profile, traces);
        }
        tiers
    }

    fn selected<'a>(
        tiers: &'a ChoiceTiers,
        image: &str,
        metadata: &Metadata,
    ) -> Option<(ChoiceReason, &'a Tier)> {
        select(image, metadata, |key| tiers.by_key.get(key).map(|tier| (tier, tier.traces)))
    }

    #[test]
    fn the_narrowest_choice_that_has_enough() {
        let tiers = tiers();
        let chosen = |image, family, user, meta| {
            let found = selected(&tiers, image, &metadata(family, user, meta));
            found.map(|(reason, tier)| {
                let names: String = tier.images.iter().map(|key| key.image.as_str()).collect();
                (reason, names, tier.traces)
            })
        };
        let some = |reason, names: &str, traces| Some((reason, names.to_owned(), traces));
        assert_eq!(chosen("n", "debian", "ann", "x"), some(ChoiceReason::FamilyUser, "ab", 5));
        assert_eq!(chosen("n", "debian", "bob", "x"), some(ChoiceReason::FamilyUserMeta, "c", 9));
        assert_eq!(chosen("n", "debian", "eve", "x"), some(ChoiceReason::FamilyMeta, "ac", 11));
        assert_eq!(chosen("n", "debian", "eve", "z"), some(ChoiceReason::Family, "abc", 14));
        assert_eq!(chosen("c", "debian", "eve", "z"), some(ChoiceReason::Image, "c", 9));
        assert_eq!(
            chosen("a", "suse", "ann", "x"),
            some(ChoiceReason::Image, "a", 2),
            "too few are better than none"
        );
        assert_eq!(chosen("n", "suse", "ann", "x"), None);
        assert_eq!(chosen("n", "", "ann", "x"), None, "nothing known is not the same as equal");
    }

    #[test]
    fn an_image_of_everybody_is_of_nobody() {
        let (mut tiers, mut profile) = (ChoiceTiers::default(), Profile::default());
        (0..100).for_each(|user| profile.add(&metadata("debian", &format!("u{user}"), "x")));
        assert_eq!((profile.users.len(), profile.metadata().user), (USERS_MAX + 1, String::new()));
        tiers.add(&RecordedImage::default(), &profile, 100);
        let reason = |user| selected(&tiers, "n", &metadata("debian", user, "z")).unwrap().0;
        assert_eq!((reason("u0"), reason("u50")), (ChoiceReason::Family, ChoiceReason::Family));
    }

    #[test]
    fn reasons_are_as_people_read_them() {
        assert_eq!(ChoiceReason::FamilyUser.to_string(), "zero-shot: family+user");
        assert_eq!(ChoiceReason::Layers { known: 2, all: 3 }.to_string(), "layers: 2 of 3");
    }
}
