//! References: the names of an image and of the store that holds it.
//!
//! ```text
//! file:///dir:tag              an OCI layout directory
//! http://host:port/path:tag    an OCI layout behind a web server that honours ranges; https:// alike; read-only
//! s3://bucket/path:tag         an OCI layout in an object store; gs:// and az:// alike
//! oci://host:port/repo:tag     a repository of an OCI registry
//! ```
//!
//! In all forms, `@sha256:...` in place of `:tag` names the image with that manifest. If a reference has neither, the
//! tag is `latest`. In the last component of the path, the tag or digest is the text from `@sha` on, otherwise the text
//! after the last `:`. So a reference to a directory whose name has a colon must state a tag, and a directory whose
//! name has `@sha` in it cannot be a store.
//!
//! A reference never holds credentials: it appears in logs, in lists of processes and in files.

use headstart_block::{Digest, Error, Result};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use url::Url;

/// The tag that is used if a reference has neither a tag nor a digest.
pub const DEFAULT_TAG: &str = "latest";

/// The beginning of a digest: the names of all algorithms that OCI knows begin so. A mere `@` may be in a
/// directory's name.
const DIGEST_MARK: &str = "@sha";

/// The forms of stores, for the message about a text of another form.
const FORMS: [&str; 7] = [
    "file:///DIR",
    "http://HOST/PATH",
    "https://HOST/PATH",
    "s3://BUCKET/PATH",
    "gs://BUCKET/PATH",
    "az://CONTAINER/PATH",
    "oci://HOST/REPO",
];

/// The kind of thing that a text has to name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    Image,
    Store,
}

impl Named {
    /// The remedy of a text that names no such thing: how to write it, the store as in one of `forms`.
    fn remedy(self, forms: &[&str]) -> String {
        let tag = if self == Self::Image { ":TAG" } else { "" };
        let mut text = "write it as ".to_owned();
        for (n, form) in forms.iter().enumerate() {
            let between = match n {
                0 => "",
                n if n + 1 == forms.len() => " or ",
                _ => ", ",
            };
            text.extend([between, form, tag]);
        }
        text
    }

    /// The remedy of a text without a scheme, which may be a path.
    fn remedy_of(self, text: &str) -> String {
        match (text.starts_with('/'), self) {
            (true, Self::Store) => format!("write file://{}, if it is that directory", shown(text)),
            (_, Self::Image) => {
                let forms = self.remedy(&FORMS);
                format!(
                    "{forms}; a disk file becomes an image by `headstart image import`, an archive of a container's \
                     image by `headstart image convert oci-archive:FILE` or `docker-archive:FILE`"
                )
            }
            (false, Self::Store) => self.remedy(&FORMS),
        }
    }
}

/// A tag: the name of an image within its store. A tag has 1 to 128 ASCII letters, digits, `_`, `.` and `-`,
/// and does not start with `.` or `-`, as OCI registries require.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(String);

impl Tag {
    /// Returns the text of the tag.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns the digest of the manifest whose artifacts are listed under `tag`. `None` if `tag` does not have
/// the form of a [`referrers_tag`](crate::layout::referrers_tag).
#[must_use]
pub fn referrers_subject(tag: &str) -> Option<Digest> {
    tag.strip_prefix("sha256-").and_then(Digest::from_hex)
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

/// The selection of one image of a store, by its tag or by the digest of its manifest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Selector {
    /// The image to which this tag refers at present.
    Tag(Tag),
    /// The image with this manifest, which never changes.
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

/// The kinds of object store that are supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BucketScheme {
    /// Amazon S3, and servers that speak its protocol.
    S3,
    /// Google Cloud Storage.
    Gs,
    /// Azure Blob Storage; its buckets are called containers.
    Az,
}

impl BucketScheme {
    /// Returns the kind of object store for a URL scheme: `s3`, `gs` or `az`. `None` for any other text.
    #[must_use]
    pub fn of(scheme: &str) -> Option<Self> {
        [Self::S3, Self::Gs, Self::Az].into_iter().find(|known| known.as_str() == scheme)
    }

    /// Returns the URL scheme for this kind of object store: `s3`, `gs` or `az`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gs => "gs",
            Self::Az => "az",
        }
    }
}

/// The location of a store, which holds blobs and manifests: a local directory, or a remote store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// An OCI layout directory, as an absolute path.
    Directory(PathBuf),
    /// An OCI layout behind a web server: the URL of its top, without a slash at its end unless it is the
    /// server's top. It has no credentials, query or fragment.
    Http(Url),
    /// An OCI layout in an object store.
    Bucket {
        /// The kind of object store.
        scheme: BucketScheme,
        /// The bucket or container.
        bucket: String,
        /// The path of the layout in the bucket, without slashes at its ends; may be empty.
        path: String,
    },
    /// A repository of an OCI registry.
    Registry {
        /// The registry's name, with a port if the reference has one.
        host: String,
        /// The repository: path components of lower-case letters, digits and separators.
        repository: String,
    },
}

impl Location {
    /// Returns the path of the store, which must be a local directory.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Unsupported`] if it is a remote store.
    pub fn directory(&self) -> Result<&Path> {
        match self {
            Self::Directory(path) => Ok(path),
            _ => Err(Error::unsupported("this command works on a directory, not on a remote store")
                .about(self)
                .remedy("use file:///DIR:TAG; `headstart image pull` and `push` copy images from and to other stores")),
        }
    }

    /// `true` if the store is accessed over the network, `false` if it is a local directory.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        !matches!(self, Self::Directory(_))
    }
}

/// Parses a store without the name of an image: `file:///dir`, `oci://host/repo`.
impl FromStr for Location {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (scheme, rest) = split_scheme(text, Named::Store)?;
        let (_, path) = split_authority(scheme, rest);
        let name = path.rfind('/').map_or(path, |slash| &path[slash + 1..]);
        if name.contains(':') {
            return Err(Error::invalid("names an image, not a store")
                .about(shown(text))
                .remedy("leave out the tag: name the store alone, such as file:///DIR"));
        }
        Self::new(scheme, rest, text, Named::Store)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "file://{}", path.display()),
            Self::Http(url) => write!(f, "{url}"),
            Self::Bucket { scheme, bucket, path } => write!(f, "{}://{bucket}/{path}", scheme.as_str()),
            Self::Registry { host, repository } => write!(f, "oci://{host}/{repository}"),
        }
    }
}

/// The full name of an image: the store that holds it, and the tag or digest of the image in that store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    /// The location of the store.
    pub location: Location,
    /// The tag or digest that selects the image in the store.
    pub selector: Selector,
}

impl Reference {
    /// Returns the tag of the reference, for an image that is to be written.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the reference has a digest instead: a writer cannot choose
    /// the digest. Also if the tag has the form of one that names a list of artifacts: the image would not be
    /// listed, and the next artifact of the image with that digest would take its place.
    pub fn tag(&self) -> Result<&Tag> {
        match &self.selector {
            Selector::Tag(tag) if referrers_subject(tag.as_str()).is_some() => Err(Error::invalid(
                "has the name of a list of artifacts (sha256-DIGEST), which no image can have",
            )
            .about(self)
            .remedy("choose another tag")),
            Selector::Tag(tag) => Ok(tag),
            Selector::Digest(_) => {
                Err(Error::invalid("an image to be written is named by a tag, not by a digest")
                    .about(self)
                    .remedy(format!("write {}:TAG", self.location)))
            }
        }
    }

    /// Returns the path of the store, which must be a local directory.
    ///
    /// # Errors
    /// As [`Location::directory`].
    pub fn directory(&self) -> Result<&Path> {
        self.location.directory()
    }
}

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (scheme, rest) = split_scheme(text, Named::Image)?;
        let about = |error: Error| error.about(shown(text));
        let (authority, path) = split_authority(scheme, rest);
        let name = authority.len() + path.rfind('/').map_or(0, |slash| slash + 1);
        let (store, selector) = if let Some(at) = rest[name..].find(DIGEST_MARK).filter(|_| !path.is_empty())
        {
            let (store, digest) = (&rest[..name + at], &rest[name + at + 1..]);
            if store[name..].contains(':') {
                return Err(about(
                    Error::invalid("names both a tag and a digest").remedy("name one of them"),
                ));
            }
            (store, Selector::Digest(digest.parse().map_err(about)?))
        } else if let Some(colon) = rest[name..].rfind(':').filter(|_| !path.is_empty()) {
            (&rest[..name + colon], Selector::Tag(rest[name + colon + 1..].parse().map_err(about)?))
        } else {
            (rest, Selector::Tag(Tag::default()))
        };
        Ok(Self { location: Location::new(scheme, store, text, Named::Image)?, selector })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.location, self.selector)
    }
}

/// Parses the name of a store without a tag or digest, such as `file:///dir` or `oci://host/repo`, as
/// [`Location::from_str`] does.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if `text` is not the name of a store or also has a tag or digest.
pub fn parse_store(text: &str) -> Result<Location> {
    text.parse()
}

/// A reference as messages may show it. People write credentials into it, though it must hold none, and even
/// credentials with a slash in them. All text before an `@` in front of the host goes, and so does text before an
/// `@` that begins no digest.
fn shown(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://").filter(|(scheme, _)| *scheme != "file") else {
        return text.escape_debug().to_string();
    };
    let end = rest.find(DIGEST_MARK).unwrap_or(rest.len());
    let begin = rest[..end].rfind('@').map_or(0, |at| at + 1);
    format!("{scheme}://{}", &rest[begin..]).escape_debug().to_string()
}

/// The text before `://`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheme {
    File,
    Http,
    Bucket(BucketScheme),
    Oci,
}

/// The scheme, and the text behind `://`.
fn split_scheme(text: &str, named: Named) -> Result<(Scheme, &str)> {
    let invalid = |cause: &'static str| Error::invalid(cause).about(shown(text));
    let (scheme, rest) = text.split_once("://").ok_or_else(|| {
        let is_not = match named {
            Named::Image => "is not an image reference",
            Named::Store => "is not the name of a store",
        };
        invalid(is_not).remedy(named.remedy_of(text))
    })?;
    let scheme = match scheme {
        "file" => Scheme::File,
        "http" | "https" => Scheme::Http,
        "oci" => Scheme::Oci,
        other => Scheme::Bucket(BucketScheme::of(other).ok_or_else(|| {
            invalid("is of a kind of store that is not known").remedy(named.remedy(&FORMS))
        })?),
    };
    if text.contains(|c: char| c.is_control()) {
        return Err(invalid("has a control character in it"));
    }
    if scheme != Scheme::File && text.contains([' ', '\\', '?', '#']) {
        return Err(invalid("has a blank, `\\`, `?` or `#` in it: no store is named so"));
    }
    Ok((scheme, rest))
}

/// Host or bucket, and the path after it, which begins with a slash or is empty.
fn split_authority(scheme: Scheme, rest: &str) -> (&str, &str) {
    match scheme {
        Scheme::File => ("", rest),
        _ => rest.split_at(rest.find('/').unwrap_or(rest.len())),
    }
}

impl Location {
    /// Parses the text between `://` and the selector; `text` is the whole, for messages.
    fn new(scheme: Scheme, rest: &str, text: &str, named: Named) -> Result<Self> {
        let (authority, path) = split_authority(scheme, rest);
        let path = path.trim_end_matches('/');
        refuse_digest(path).map_err(|e| e.about(shown(text)))?;
        let invalid = |cause: &'static str, form: &str| {
            Error::invalid(cause).about(shown(text)).remedy(named.remedy(&[form]))
        };
        match scheme {
            Scheme::File if !rest.starts_with('/') => Err(invalid("has no absolute path", "file:///DIR")),
            Scheme::File if path.is_empty() => Err(invalid("names no directory", "file:///DIR")),
            Scheme::File => Ok(Self::Directory(PathBuf::from(path))),
            Scheme::Http => Self::http(authority, path, text, named),
            Scheme::Bucket(scheme) => {
                let path = path.trim_start_matches('/');
                let form = format!("{}://BUCKET/PATH", scheme.as_str());
                let form = form.as_str();
                let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
                if authority.is_empty() || !authority.chars().all(allowed) {
                    return Err(invalid("names no bucket", form));
                }
                if !path.is_empty() && path.split('/').any(|part| matches!(part, "" | "." | "..")) {
                    return Err(invalid("has an empty component, `.` or `..` in its path", form));
                }
                Ok(Self::Bucket { scheme, bucket: authority.to_owned(), path: path.to_owned() })
            }
            Scheme::Oci => {
                let form = "oci://HOST/REPOSITORY";
                let repository = path.trim_start_matches('/');
                if !is_host(authority) {
                    return Err(invalid("names no registry", form));
                }
                if repository.len() > 255 || !repository.split('/').all(is_repository_part) {
                    return Err(invalid("names no repository in lower case", form));
                }
                Ok(Self::Registry { host: authority.to_owned(), repository: repository.to_owned() })
            }
        }
    }

    fn http(authority: &str, path: &str, text: &str, named: Named) -> Result<Self> {
        if authority.contains('@') {
            // The text itself is not repeated: it may hold a password.
            return Err(Error::invalid("a reference must not hold credentials: it stands in logs")
                .about(format!("http store {}", authority.rsplit('@').next().unwrap_or_default()))
                .remedy("leave them out; give them in docker's configuration file"));
        }
        let form = || named.remedy(&["http://HOST/PATH"]);
        let bad = || Error::invalid("is not a URL of a web server").about(shown(text)).remedy(form());
        let scheme = if text.starts_with("https") { "https" } else { "http" };
        let url = Url::parse(&format!("{scheme}://{authority}{path}")).map_err(|e| bad().caused_by(e))?;
        // Dots may have changed the path: the printed text must parse again to the same location.
        refuse_digest(url.path()).map_err(|e| e.about(shown(text)))?;
        if authority.is_empty() || url.path().len() > 1 && url.path().ends_with('/') {
            return Err(bad());
        }
        Ok(Self::Http(url))
    }
}

/// Refuses a last component that looks like a digest, because it would be read as a selector when printed.
fn refuse_digest(path: &str) -> Result<()> {
    if path.rsplit('/').next().is_some_and(|name| name.contains(DIGEST_MARK)) {
        return Err(Error::invalid("names a directory that looks like a digest"));
    }
    Ok(())
}

fn is_host(text: &str) -> bool {
    // `[` and `]` are around an IPv6 address.
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
    !text.is_empty() && text.chars().all(allowed) && !text.starts_with(':') && !text.ends_with(':')
}

/// `true` for a path component of the distribution specification: runs of lower-case letters and digits, with `.`,
/// `_`, `__` or any number of `-` between.
fn is_repository_part(part: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let separators = part.split(is_word).filter(|separator| !separator.is_empty());
    part.starts_with(is_word)
        && part.ends_with(is_word)
        && separators.into_iter().all(|s| matches!(s, "." | "_" | "__") || s.bytes().all(|b| b == b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ErrorKind;
    use proptest::prelude::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn parses_and_prints() {
        for (text, location, printed) in [
            ("file:///var/images:debian-12", "file:///var/images", "file:///var/images:debian-12"),
            ("file:///var/images", "file:///var/images", "file:///var/images:latest"),
            ("file:///var/images/:a", "file:///var/images", "file:///var/images:a"),
            ("file:///a:b/c:d", "file:///a:b/c", "file:///a:b/c:d"),
            ("file:///a/b:c:d", "file:///a/b:c", "file:///a/b:c:d"),
            ("file:///a@b/c@d", "file:///a@b/c@d", "file:///a@b/c@d:latest"),
            ("file:///a b/ü:1", "file:///a b/ü", "file:///a b/ü:1"),
            ("http://host:8080/a/b:1", "http://host:8080/a/b", "http://host:8080/a/b:1"),
            ("https://Host/a/b/", "https://host/a/b", "https://host/a/b:latest"),
            ("http://host:8080", "http://host:8080/", "http://host:8080/:latest"),
            ("http://127.0.0.1:81/:x", "http://127.0.0.1:81/", "http://127.0.0.1:81/:x"),
            ("s3://bucket/a/b:1", "s3://bucket/a/b", "s3://bucket/a/b:1"),
            ("gs://bucket", "gs://bucket/", "gs://bucket/:latest"),
            ("az://box/:v", "az://box/", "az://box/:v"),
            ("oci://host:5000/a/b-c__d.e:1", "oci://host:5000/a/b-c__d.e", "oci://host:5000/a/b-c__d.e:1"),
            ("oci://[::1]:5000/x", "oci://[::1]:5000/x", "oci://[::1]:5000/x:latest"),
        ] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!(reference.to_string(), printed, "{text}");
            assert_eq!(reference.location.to_string(), location, "{text}");
        }
        for text in [
            format!("file:///a/b@{DIGEST}"),
            format!("http://h:1/a@{DIGEST}"),
            format!("http://h:1/@{DIGEST}"),
            format!("s3://b/a@{DIGEST}"),
            format!("oci://h/a/b@{DIGEST}"),
        ] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!(reference.selector, Selector::Digest(Digest::of(b"")));
            assert_eq!(reference.to_string(), text);
            assert_eq!(reference.tag().unwrap_err().kind(), ErrorKind::Invalid);
        }
    }

    #[test]
    fn no_new_image_has_the_name_of_a_list_of_artifacts() {
        let of = |tag: &str| format!("oci://h/r:{tag}").parse::<Reference>().unwrap();
        let list = crate::layout::referrers_tag(&Digest::of(b"x"));
        let error = of(&list).tag().unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(text.contains(&list) && text.contains("choose another tag"), "{text}");
        for other in ["sha256-abc", &list[..list.len() - 1], &list.to_uppercase(), &format!("{list}.sig")] {
            assert!(of(other).tag().is_ok(), "{other}");
        }
    }

    #[test]
    fn refuses_with_the_way_out() {
        for (text, says) in [
            ("debian:12", "file:///DIR:TAG"),
            ("debian.raw", "headstart image import"),
            ("/var/images:x", "file:///DIR:TAG"),
            ("ftp://host/x", "oci://HOST/REPO:TAG"),
            ("", "file:///DIR:TAG"),
            ("file://", "absolute"),
            ("file://rel/dir:tag", "absolute"),
            ("file:///", "no directory"),
            ("file:///:tag", "no directory"),
            ("file:///a:", "is not a tag"),
            ("file:///a:.hidden", "is not a tag"),
            ("file:///a:b c", "is not a tag"),
            ("file:///a@sha256:00", "is not a digest"),
            ("file:///a\n:b", "control"),
            ("http://", "http://HOST/PATH:TAG"),
            ("http:///path:tag", "http://HOST/PATH:TAG"),
            ("http://host/a?b:c", "`?`"),
            ("http://host:99999/a", "http://HOST/PATH:TAG"),
            ("s3://", "BUCKET"),
            ("s3:///path:tag", "BUCKET"),
            ("s3://bucket:tag", "BUCKET"),
            ("s3://bucket/a/../b:tag", "`..`"),
            ("s3://bucket/a//b:tag", "empty component"),
            ("oci://host", "REPOSITORY"),
            ("oci://host:5000", "REPOSITORY"),
            ("oci://host/Repo:tag", "lower case"),
            ("oci://host/a..b:tag", "REPOSITORY"),
            ("oci://user@host/a:tag", "no registry"),
        ] {
            let error = text.parse::<Reference>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
            assert!(error.to_string().contains(says), "{error}");
        }
        let both = format!("file:///a:tag@{DIGEST}").parse::<Reference>().unwrap_err();
        assert!(both.to_string().contains("both a tag and a digest"), "{both}");
        assert!(format!("file:///a:{}", "x".repeat(129)).parse::<Reference>().is_err());
        let secret = "http://user:secret@host/path:tag".parse::<Reference>().unwrap_err();
        assert!(
            !secret.to_string().contains("secret") && secret.to_string().contains("credentials"),
            "{secret}"
        );
    }

    #[test]
    fn credentials_are_not_repeated() {
        for text in [
            "oci://user:secret@host/a:tag",
            "oci://user:secret@host/a/Upper:tag",
            "http://user:secret@host/path:bad tag",
            "https://user:secret@host/path?x:tag",
            "http://user:secret@host/a:tag@sha256:00",
            "http://user:secret@host/a@sha256:00",
            "http://user:secret@host/a:.tag",
            "s3://user:secret@bucket/a:tag",
            "ftp://user:secret@host/a",
            "http://user:sec/ret@host/a:tag",
        ] {
            let error = text.parse::<Reference>().unwrap_err().to_string();
            assert!(!error.contains("sec") && !error.contains("user"), "{error}");
            let error = parse_store(text).unwrap_err().to_string();
            assert!(!error.contains("sec") && !error.contains("user"), "{error}");
        }
        let error = "file:///a@b/c:d e".parse::<Reference>().unwrap_err().to_string();
        assert!(error.contains("file:///a@b/c:d e"), "{error}");
    }

    #[test]
    fn a_store_is_named_without_a_tag() {
        let directory = parse_store("file:///var/images/").unwrap();
        assert_eq!(directory.directory().unwrap(), Path::new("/var/images"));
        for text in ["http://h:1/a", "http://h:1", "s3://bucket", "s3://bucket/a", "oci://h:1/repo/x"] {
            let remote = parse_store(text).unwrap();
            assert_eq!(remote.directory().unwrap_err().kind(), ErrorKind::Unsupported, "{text}");
            assert!(remote.is_remote());
        }
        for (text, says) in [
            ("file:///var/images:tag", "leave out the tag"),
            ("file:///", "write it as file:///DIR"),
            ("/var/images", "write file:///var/images"),
            (
                "images",
                "write it as file:///DIR, http://HOST/PATH, https://HOST/PATH, s3://BUCKET/PATH, gs://BUCKET/PATH, ",
            ),
            ("images", "az://CONTAINER/PATH or oci://HOST/REPO"),
            ("oci://h/repo:tag", "leave out the tag"),
            ("oci://h", "write it as oci://HOST/REPOSITORY"),
            ("s3://", "write it as s3://BUCKET/PATH"),
        ] {
            let error = parse_store(text).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains(":TAG"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn a_parsed_reference_round_trips(
            text in "(file|https?|s3|oci)://([a-z0-9:@./A%_-]|@sha|@sha256:){0,16}|\
                     file:///([a-z:@./]|@sha){0,12}|\\PC*",
        ) {
            if let Ok(reference) = text.parse::<Reference>() {
                prop_assert_eq!(reference.to_string().parse::<Reference>().unwrap(), reference);
            }
        }
    }
}
