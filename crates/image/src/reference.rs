//! References: how people name an image.
//!
//! `file:///dir:tag` is the image tagged `tag` in the OCI layout directory `/dir`, `file:///dir@sha256:...`
//! the one with that manifest. Without either, the tag is `latest`. The selector is what follows `@sha...` or
//! the last `:` of the last path component, so a directory whose name has a colon needs its tag written out,
//! and one whose name has `@sha` in it cannot be a store.

use crate::digest::Digest;
use headstart_block::{Error, Result};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The tag of a reference that names none.
pub const DEFAULT_TAG: &str = "latest";

const SCHEME: &str = "file://";

/// What begins a digest: all algorithms that OCI knows are called so. A mere `@` may be in a directory's name.
const DIGEST_MARK: &str = "@sha";

/// The name of an image within its store: letters, digits, `_`, `.` and `-`, not starting with the last
/// two, at most 128 of them (what OCI allows in a registry).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(String);

impl Tag {
    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Tag {
    fn default() -> Self {
        Self(DEFAULT_TAG.to_owned())
    }
}

impl FromStr for Tag {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        let valid =
            matches!(text.len(), 1..=128) && text.chars().all(allowed) && !text.starts_with(['.', '-']);
        if !valid {
            return Err(Error::invalid(format!("`{}` is not a tag", text.escape_debug())).remedy(
                "a tag is 1 to 128 letters, digits, `_`, `.` and `-`, not starting with the last two",
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which image of a store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Selector {
    /// The one with this tag, whatever it is now.
    Tag(Tag),
    /// The one with this manifest, for ever.
    Digest(Digest),
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => write!(f, ":{tag}"),
            Self::Digest(digest) => write!(f, "@{digest}"),
        }
    }
}

/// An image in a store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    /// The store: an OCI layout directory, as an absolute path.
    pub root: PathBuf,
    /// The image in it.
    pub selector: Selector,
}

impl Reference {
    /// The tag, for what is about to be written.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] where it names a digest: that cannot be chosen.
    pub fn tag(&self) -> Result<&Tag> {
        match &self.selector {
            Selector::Tag(tag) => Ok(tag),
            Selector::Digest(_) => {
                Err(Error::invalid("an image to be written is named by a tag, not by a digest")
                    .about(self)
                    .remedy(format!("write {SCHEME}{}:TAG", self.root.display())))
            }
        }
    }
}

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let path = local_path(text)?;
        let about = |error: Error| error.about(text);
        let name = path.rfind('/').map_or(0, |slash| slash + 1);
        let (root, selector) = if let Some(at) = path[name..].find(DIGEST_MARK) {
            let (root, digest) = (&path[..name + at], &path[name + at + 1..]);
            if root[name..].contains(':') {
                return Err(about(
                    Error::invalid("names both a tag and a digest").remedy("name one of them"),
                ));
            }
            (root, Selector::Digest(digest.parse().map_err(about)?))
        } else if let Some(colon) = path[name..].rfind(':') {
            (&path[..name + colon], Selector::Tag(path[name + colon + 1..].parse().map_err(about)?))
        } else {
            (path, Selector::Tag(Tag::default()))
        };
        Ok(Self { root: directory(root, text)?, selector })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}{}", self.root.display(), self.selector)
    }
}

/// The directory of a store alone, `file:///dir`, for what concerns all of its images.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] where it is something else or names an image,
/// [`headstart_block::ErrorKind::Unsupported`] for stores that are not directories.
pub fn parse_store(text: &str) -> Result<PathBuf> {
    let path = local_path(text)?;
    let name = path.rfind('/').map_or(path, |slash| &path[slash + 1..]);
    if name.contains(':') {
        return Err(Error::invalid("names an image, not a store")
            .about(text)
            .remedy("write file:///DIR alone"));
    }
    directory(path, text)
}

/// What follows `file://`, if that is an absolute path.
fn local_path(text: &str) -> Result<&str> {
    let invalid = |cause: &'static str| Err(Error::invalid(cause).about(text.escape_debug()));
    let remedy = "write it as file:///DIR:TAG, with the absolute path of a directory";
    let path = match text.split_once("://") {
        Some(("file", path)) => path,
        Some((scheme @ ("oci" | "s3" | "gs" | "az"), _)) => {
            return Err(Error::unsupported(format!("{scheme}:// stores come with a later version"))
                .about(text)
                .remedy("use file:///DIR:TAG"));
        }
        Some(_) => return invalid("is of a kind of store that is not known").map_err(|e| e.remedy(remedy)),
        None => return invalid("is not an image reference").map_err(|e| e.remedy(remedy)),
    };
    if path.contains(|c: char| c.is_control()) {
        return invalid("has a control character in it");
    }
    if !path.starts_with('/') {
        return invalid("has no absolute path").map_err(|e| e.remedy(remedy));
    }
    Ok(path)
}

/// The directory without slashes at its end; the root directory is no store.
fn directory(path: &str, text: &str) -> Result<PathBuf> {
    match path.trim_end_matches('/') {
        "" => Err(Error::invalid("names no directory").about(text).remedy("write it as file:///DIR:TAG")),
        path if path.rsplit('/').next().is_some_and(|name| name.contains(DIGEST_MARK)) => {
            Err(Error::invalid("names a directory that looks like a digest").about(text))
        }
        path => Ok(PathBuf::from(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ErrorKind;
    use proptest::prelude::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn parses_and_prints() {
        for (text, root, printed) in [
            ("file:///var/images:debian-12", "/var/images", "file:///var/images:debian-12"),
            ("file:///var/images", "/var/images", "file:///var/images:latest"),
            ("file:///var/images/:a", "/var/images", "file:///var/images:a"),
            ("file:///a:b/c:d", "/a:b/c", "file:///a:b/c:d"),
            ("file:///a/b:c:d", "/a/b:c", "file:///a/b:c:d"),
            ("file:///a@b/c@d", "/a@b/c@d", "file:///a@b/c@d:latest"),
            ("file:///a b/ü:1", "/a b/ü", "file:///a b/ü:1"),
        ] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!((reference.root.to_str().unwrap(), reference.to_string().as_str()), (root, printed));
        }
        let text = format!("file:///a/b@{DIGEST}");
        let reference: Reference = text.parse().unwrap();
        assert_eq!(reference.selector, Selector::Digest(Digest::of(b"")));
        assert_eq!(reference.to_string(), text);
        assert_eq!(reference.tag().unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn refuses_with_the_way_out() {
        for (text, kind, says) in [
            ("oci://host/repo:tag", ErrorKind::Unsupported, "later version"),
            ("s3://bucket/path:tag", ErrorKind::Unsupported, "file:///DIR:TAG"),
            ("gs://bucket/path:tag", ErrorKind::Unsupported, "file:///DIR:TAG"),
            ("az://bucket/path:tag", ErrorKind::Unsupported, "file:///DIR:TAG"),
            ("http://host/x", ErrorKind::Invalid, "file:///DIR:TAG"),
            ("debian:12", ErrorKind::Invalid, "file:///DIR:TAG"),
            ("/var/images:x", ErrorKind::Invalid, "file:///DIR:TAG"),
            ("", ErrorKind::Invalid, "file:///DIR:TAG"),
            ("file://", ErrorKind::Invalid, "absolute"),
            ("file://rel/dir:tag", ErrorKind::Invalid, "absolute"),
            ("file:///", ErrorKind::Invalid, "no directory"),
            ("file:///:tag", ErrorKind::Invalid, "no directory"),
            ("file:///a:", ErrorKind::Invalid, "is not a tag"),
            ("file:///a:.hidden", ErrorKind::Invalid, "is not a tag"),
            ("file:///a:b c", ErrorKind::Invalid, "is not a tag"),
            ("file:///a@sha256:00", ErrorKind::Invalid, "is not a digest"),
            ("file:///a\n:b", ErrorKind::Invalid, "control"),
        ] {
            let error = text.parse::<Reference>().unwrap_err();
            assert_eq!(error.kind(), kind, "{text}");
            assert!(error.to_string().contains(says), "{error}");
        }
        let both = format!("file:///a:tag@{DIGEST}").parse::<Reference>().unwrap_err();
        assert!(both.to_string().contains("both a tag and a digest"), "{both}");
        assert!(format!("file:///a:{}", "x".repeat(129)).parse::<Reference>().is_err());
    }

    #[test]
    fn a_store_alone() {
        assert_eq!(parse_store("file:///var/images/").unwrap(), PathBuf::from("/var/images"));
        for text in ["file:///var/images:tag", "file:///", "/var/images", "s3://bucket"] {
            assert!(parse_store(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_parses_prints_as_itself(text in "file:///([a-z:@./]|@sha|@sha256:){0,12}|\\PC*") {
            if let Ok(reference) = text.parse::<Reference>() {
                prop_assert_eq!(reference.to_string().parse::<Reference>().unwrap(), reference);
            }
        }
    }
}
