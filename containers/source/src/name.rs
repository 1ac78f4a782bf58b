//! The names of images, in stores and in archives.
//!
//! ```text
//! oci://host/repo:tag             an image in a store: as headstart_store::reference has it
//! file:///dir:tag
//! docker-archive:path             the only image of an archive of `docker save`
//! docker-archive:path:name        the image with this name: `repo:tag`, `host:port/repo:tag`
//! docker-archive:path:@0          the image with this number, from 0
//! oci-archive:path[:name|:@0]     the same for an OCI layout as an archive
//! ```
//!
//! Archives are named as `skopeo` and `podman` name them: the path ends at the first `:`, and may be relative.

use headstart_block::{Error, Result};
use headstart_store::Reference;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

const DOCKER_ARCHIVE: &str = "docker-archive:";
const OCI_ARCHIVE: &str = "oci-archive:";

/// The name of an image that is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceName {
    /// An image in a store: a directory, web server, object store or registry.
    Store(Reference),
    /// An image in an archive that `docker save` wrote.
    DockerArchive(ArchivedImage),
    /// An image in an OCI layout that is a tar archive.
    OciArchive(ArchivedImage),
}

/// The place of an image in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchivedImage {
    /// The path of the archive, as the name has it: it may be relative.
    pub path: PathBuf,
    /// The selection of one of the archive's images.
    pub choice: ArchiveChoice,
}

/// The selection of one of an archive's images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchiveChoice {
    /// The only image that there is.
    Only,
    /// The image with this name. Names of Docker are completed as Docker does: `app` is also
    /// `docker.io/library/app:latest`.
    Name(String),
    /// The image with this number, counted from 0 in the order of the archive's list.
    Number(usize),
}

impl FromStr for ArchivedImage {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = |cause: String| Error::invalid(cause).about(text.escape_debug());
        if text.chars().any(char::is_control) {
            return Err(invalid("has control characters".to_owned()));
        }
        let (path, choice) = match text.split_once(':') {
            None => (text, ArchiveChoice::Only),
            Some((path, choice)) => (path, choice.parse().map_err(|e: Error| e.about(text))?),
        };
        if path.is_empty() {
            let remedy = "write it as docker-archive:PATH[:NAME] or oci-archive:PATH[:NAME]";
            return Err(invalid("names no file".to_owned()).remedy(remedy));
        }
        Ok(Self { path: path.into(), choice })
    }
}

impl FromStr for ArchiveChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(Error::invalid("has an empty name behind its path"));
        }
        let Some(number) = text.strip_prefix('@') else { return Ok(Self::Name(text.to_owned())) };
        let number = number.parse().map_err(|_| {
            let cause = format!("`{}` is not the number of an image", text.escape_debug());
            Error::invalid(cause).remedy("write @0 for the first image")
        })?;
        Ok(Self::Number(number))
    }
}

impl fmt::Display for ArchivedImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        match &self.choice {
            ArchiveChoice::Only => Ok(()),
            ArchiveChoice::Name(name) => write!(f, ":{name}"),
            ArchiveChoice::Number(number) => write!(f, ":@{number}"),
        }
    }
}

impl FromStr for SourceName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(rest) = text.strip_prefix(DOCKER_ARCHIVE) {
            return Ok(Self::DockerArchive(rest.parse()?));
        }
        if let Some(rest) = text.strip_prefix(OCI_ARCHIVE) {
            return Ok(Self::OciArchive(rest.parse()?));
        }
        let remedy = match text.split_once(':') {
            Some(("docker", _)) => Some("write it as oci://HOST/REPO:TAG"),
            Some(("oci", rest)) if !rest.starts_with("//") => Some("write it as file:///DIR:TAG"),
            Some(("docker-daemon" | "containers-storage", _)) => {
                Some("save it into a file first, and name that as docker-archive:PATH")
            }
            _ => None,
        };
        match remedy {
            Some(remedy) => {
                Err(Error::invalid("is no name of an image here").about(text.escape_debug()).remedy(remedy))
            }
            None => Ok(Self::Store(text.parse()?)),
        }
    }
}

impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(reference) => reference.fmt(f),
            Self::DockerArchive(image) => write!(f, "{DOCKER_ARCHIVE}{image}"),
            Self::OciArchive(image) => write!(f, "{OCI_ARCHIVE}{image}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ErrorKind;
    use proptest::prelude::*;

    #[test]
    fn names_of_stores_and_archives_are_told_apart() {
        let archived = |path: &str, choice| ArchivedImage { path: path.into(), choice };
        let named = |name: &str| ArchiveChoice::Name(name.to_owned());
        for (text, expected) in [
            ("docker-archive:/a/b.tar", SourceName::DockerArchive(archived("/a/b.tar", ArchiveChoice::Only))),
            ("docker-archive:b.tar:x", SourceName::DockerArchive(archived("b.tar", named("x")))),
            (
                "docker-archive:b.tar:localhost:5000/x:1",
                SourceName::DockerArchive(archived("b.tar", named("localhost:5000/x:1"))),
            ),
            ("oci-archive:b.tar:@3", SourceName::OciArchive(archived("b.tar", ArchiveChoice::Number(3)))),
            ("oci://h/app:1", SourceName::Store("oci://h/app:1".parse().unwrap())),
            ("file:///d:tag", SourceName::Store("file:///d:tag".parse().unwrap())),
        ] {
            let name: SourceName = text.parse().unwrap();
            assert_eq!((&name, name.to_string()), (&expected, text.to_owned()));
        }
    }

    #[test]
    fn other_names_are_refused_with_a_remedy() {
        for (text, says) in [
            ("docker-archive:", "docker-archive:PATH"),
            ("docker-archive::x", "docker-archive:PATH"),
            ("oci-archive:a:", "empty name"),
            ("oci-archive:a:@x", "@0"),
            ("oci-archive:a:@-1", "@0"),
            ("oci-archive:a\n:b", "control"),
            ("docker://busybox", "oci://HOST/REPO:TAG"),
            ("oci:dir:tag", "file:///DIR:TAG"),
            ("docker-daemon:busybox:1", "docker-archive:PATH"),
            ("busybox", "oci://HOST/REPO:TAG"),
            ("", "oci://HOST/REPO:TAG"),
        ] {
            let error = text.parse::<SourceName>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    proptest! {
        #[test]
        fn a_parsed_name_round_trips(text in "(docker-archive:|oci-archive:|oci://h/)[a-z0-9:@./]{0,12}|\\PC*") {
            if let Ok(name) = text.parse::<SourceName>() {
                prop_assert_eq!(name.to_string().parse::<SourceName>().unwrap(), name);
            }
        }
    }
}
