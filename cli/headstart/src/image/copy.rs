//! `headstart image copy`, and what `push` and `pull` share with it.

use crate::swarm::{AfterPush, OnPush, PushWarming};
use clap::Args;
use headstart_block::words::count;
use headstart_block::{ByteSize, Error, Result};
use headstart_command_line::report::{Fields, Outcome, Report};
use headstart_command_line::store_args::StoreArgs;
use headstart_image::copies::CopyRequest;
use headstart_image::progress::Progress;
use headstart_image::reference::{Location, Reference, Selector, Tag};
use headstart_image::transfer::{PlanFate, TransferReport};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// Copies between any two stores.
#[derive(Args)]
pub(crate) struct Copy {
    /// The image
    source: Reference,
    /// The target of the copy; without a tag, the source's
    target: Target,
    #[command(flatten)]
    check: CheckArg,
    #[command(flatten)]
    warming: PushWarming,
    #[command(flatten)]
    stores: StoreArgs,
}

/// The treatment of blobs that the target has already.
#[derive(Args, Clone, Copy)]
pub(super) struct CheckArg {
    /// Read every byte of the blobs that the target already has, and copy damaged ones again
    #[arg(long)]
    check: bool,
}

impl Copy {
    pub(super) fn check(&self) -> Result<()> {
        check(&self.source, &self.target, Some(&self.warming))
    }

    pub(super) fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        let warm = self.warming.of_push()?;
        copy(&self.source, &self.target, self.check, &self.stores, warm.as_ref(), progress)
    }
}

/// The target of a copy: a store, with or without a tag.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) location: Location,
    tag: Option<Tag>,
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Ok(location) = text.parse() {
            return Ok(Self { location, tag: None });
        }
        let reference: Reference = text.parse()?;
        let tag = Some(reference.tag()?.clone());
        Ok(Self { location: reference.location, tag })
    }
}

impl Target {
    /// The tag of the target, otherwise that of the source.
    fn tag(&self, source: &Reference) -> Result<Tag> {
        match (&self.tag, &source.selector) {
            (Some(tag), _) | (None, Selector::Tag(tag)) => Ok(tag.clone()),
            (None, Selector::Digest(_)) => Err(Error::invalid("the source has no tag to take over")
                .about(&self.location)
                .remedy(format!("give one: {}:TAG", self.location))),
        }
    }
}

/// Checks that the arguments of a copy fit together.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if neither the source nor the target has a tag, or if other hosts are to
/// fetch an image from a directory.
pub(super) fn check(source: &Reference, target: &Target, warming: Option<&PushWarming>) -> Result<()> {
    target.tag(source)?;
    warming.map_or(Ok(()), |warming| warming.check(&target.location))
}

/// Copies an image, and has the swarm's roots fetch it if that is requested.
pub(super) fn copy(
    source: &Reference,
    target: &Target,
    check: CheckArg,
    stores: &StoreArgs,
    warm: Option<&OnPush<'_>>,
    progress: &dyn Progress,
) -> Result<Box<dyn Report>> {
    let tag = target.tag(source)?;
    // Other hosts cannot get an image from a directory.
    let warm = warm.filter(|_| target.location.is_remote());
    let request = CopyRequest { source, target: &target.location, tag: &tag, check: check.check };
    let done = stores.with_stores_on(None, |stores| request.make(stores, progress))?;
    let image = Reference { location: target.location.clone(), selector: Selector::Tag(tag) };
    let warmed = warm.map(|warm| warm.warm(&image, stores));
    let is_right = warm.zip(warmed.as_ref()).is_none_or(|(warm, warmed)| warm.is_right(warmed));
    Ok(Box::new(Copied { warmed, is_right, ..Copied::new(&image, &done) }))
}

/// An image that was copied.
#[derive(Serialize)]
struct Copied {
    /// The reference of the copy.
    image: String,
    /// The digest of its manifest.
    digest: Option<String>,
    /// Blobs that were copied.
    copied_blobs: u64,
    /// Bytes that were copied.
    copied_bytes: u64,
    /// Bytes of the copied blobs that were there already, from interrupted copies.
    resumed_bytes: u64,
    /// Blobs that were there already.
    present_blobs: u64,
    /// Bytes of the blobs that were there already.
    present_bytes: u64,
    /// Blobs that the registry took over from another of its repositories, which were not sent.
    mounted_blobs: u64,
    /// Bytes of the blobs that were taken over.
    mounted_bytes: u64,
    /// Those of the copied blobs that were there but damaged.
    repaired_blobs: u64,
    /// Hash trees that the source does not have.
    lost_trees: u64,
    /// The artifact with the plan that was copied with the image.
    plan: Option<String>,
    /// `true` if the plan of the image could not be copied.
    lost_plan: bool,
    /// The digest that the tag named before, if it was moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    was: Option<String>,
    /// The result of fetching the image to the swarm's roots.
    #[serde(skip_serializing_if = "Option::is_none")]
    warmed: Option<AfterPush>,
    #[serde(skip)]
    is_right: bool,
}

impl Copied {
    fn new(image: &Reference, done: &TransferReport) -> Self {
        Self {
            image: image.to_string(),
            digest: done.digest.map(|digest| digest.to_string()),
            copied_blobs: done.copied,
            copied_bytes: done.copied_bytes,
            resumed_bytes: done.resumed_bytes,
            present_blobs: done.present,
            present_bytes: done.present_bytes,
            mounted_blobs: done.mounted,
            mounted_bytes: done.mounted_bytes,
            repaired_blobs: done.repaired,
            lost_trees: done.lost_trees,
            plan: match done.plan {
                PlanFate::Copied(digest) => Some(digest.to_string()),
                PlanFate::Unchanged | PlanFate::Lost => None,
            },
            lost_plan: done.plan == PlanFate::Lost,
            was: done.was.map(|was| was.to_string()),
            warmed: None,
            is_right: true,
        }
    }
}

impl Outcome for Copied {
    fn is_right(&self) -> bool {
        self.is_right
    }
}

impl fmt::Display for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blobs = |number, bytes| format!("{} in {}", ByteSize(bytes), count(number, "blob"));
        let mut copied = blobs(self.copied_blobs, self.copied_bytes);
        if self.resumed_bytes > 0 {
            let resumed = ByteSize(self.resumed_bytes);
            copied = format!("{copied}; {resumed} more of these were there, of a copy that broke off");
        }
        let mut fields = vec![
            ("image", self.image.clone()),
            ("digest", self.digest.clone().unwrap_or_default()),
            ("copied", copied),
            ("there already", blobs(self.present_blobs, self.present_bytes)),
        ];
        if self.mounted_blobs > 0 {
            fields.push(("taken over by the registry", blobs(self.mounted_blobs, self.mounted_bytes)));
        }
        if self.repaired_blobs > 0 {
            let repaired = format!("{} of those copied, damaged before", count(self.repaired_blobs, "blob"));
            fields.push(("repaired", repaired));
        }
        if self.lost_trees > 0 {
            let lost = format!("{}, which the source does not have", count(self.lost_trees, "hash tree"));
            fields.push(("not copied", lost));
        }
        if self.plan.is_some() || self.lost_plan {
            let plan = if self.lost_plan { "could not be copied" } else { "taken along" };
            fields.push(("plan", plan.to_owned()));
        }
        fields.extend(self.was.clone().map(|was| ("was", was)));
        Fields(&fields).fmt(f)?;
        self.warmed.iter().try_for_each(|warmed| write!(f, "{warmed}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ErrorKind;

    #[test]
    fn a_target_takes_over_the_tag() {
        let tag = |source: &str, target: &str| {
            target.parse::<Target>().unwrap().tag(&source.parse().unwrap()).map(|tag| tag.to_string())
        };
        assert_eq!(tag("file:///a:x", "oci://h:5000/r").unwrap(), "x");
        assert_eq!(tag("file:///a:x", "oci://h:5000/r:y").unwrap(), "y");
        assert_eq!(tag("file:///a", "s3://bucket/").unwrap(), "latest");
        let digest = format!("file:///a@sha256:{}", "0".repeat(64));
        assert_eq!(tag(&digest, "file:///b:z").unwrap(), "z");
        assert_eq!(tag(&digest, "file:///b").unwrap_err().kind(), ErrorKind::Invalid);
        assert!(digest.parse::<Target>().is_err());
    }
}
