//! The images that a disk of an agent has, from its first start to its end.
//!
//! A tag is resolved when a disk is attached, and never again: every later start of the disk's process (by an agent
//! after the process died, by the next version of the agent, by the host after a reboot) gets the same image, whatever
//! happened to the tag. So the disk's process itself writes the digests and the manifests to a file before it serves a
//! client, durably, and its successors read only that file.
//!
//! The same file has the id of the disk in each writable directory. A successor takes no other disk, and makes no new
//! one if the file system of the directory is not mounted.

use super::file;
use headstart_block::{Digest, Error, ErrorKind, Result, sync_dir_of};
use serde::{Deserialize, Deserializer, Serialize};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use utoipa::ToSchema;
use uuid::Uuid;

/// The end of the files' names, in place of the process file's own.
const ENDING: &str = "images";

/// The version that this release writes. Older ones are read as long as such files exist.
const VERSION: u32 = 1;

/// The largest accepted length of the file, in bytes: enough for some manifests.
const LEN_MAX: u64 = 64 << 20;

/// An image of a disk as the disk's process records it. Later processes of the disk use the same image,
/// whatever its tag refers to by then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptImage {
    /// The name of the image's export; empty if it has none. An export is a name by which clients choose one
    /// of several images of a process.
    pub name: String,
    /// The image's reference, as it was given when the disk was attached.
    pub image: String,
    /// The digest of the image's manifest.
    #[serde(deserialize_with = "parsed")]
    pub digest: Digest,
    /// The text of the image's manifest.
    pub manifest: String,
    /// The id of the disk in its writable directory. `None` if the image is attached read-only, or if an
    /// earlier version wrote the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writable: Option<Uuid>,
}

/// An image of a disk, for the disk's status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct DiskImage {
    /// The name of the image's export, by which clients choose it; empty if it has none.
    pub name: String,
    /// The image's reference, as it was given when the disk was attached.
    pub image: String,
    /// The digest of the manifest to which the reference pointed when the disk was attached. It does not
    /// change if the tag moves later.
    #[schema(value_type = String)]
    pub digest: Digest,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    version: u32,
    images: Vec<KeptImage>,
}

fn parsed<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Digest, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

/// The file beside the one of a disk's process.
fn beside(pid_file: &Path) -> PathBuf {
    pid_file.with_extension(ENDING)
}

/// The absolute path of the file that records the images of the disk whose PID file is `pid_file`. The disk's process
/// makes the file; it is removed when the disk is detached.
///
/// # Errors
/// An error if the current directory is not known.
pub fn images_record(pid_file: &Path) -> Result<PathBuf> {
    let path = beside(pid_file);
    std::path::absolute(&path).map_err(|e| Error::io("has no absolute path", e).about(path.display()))
}

/// Records the images of the disk whose PID file is `pid_file`, durably: the record survives a power loss.
///
/// # Errors
/// An error if the file cannot be written.
pub fn keep_images(pid_file: &Path, images: Vec<KeptImage>) -> Result<()> {
    let path = beside(pid_file);
    let failed = |e| Error::io("cannot write", e).about(path.display());
    let text = serde_json::to_vec(&Kept { version: VERSION, images })
        .map_err(|e| Error::invalid("is not a list of images").caused_by(e))?;
    headstart_daemon::file::replace(&path, &text, headstart_daemon::file::Readers::Owner)?;
    // The file that shows that this is no first start has to last as long.
    File::open(pid_file).and_then(|file| file.sync_all()).map_err(failed)?;
    sync_dir_of(&path).map_err(failed)
}

/// The remedy if the images of a disk are not known any more.
const ATTACH_AGAIN: &str = "detach the disk, and attach it again by the digest of its image";

/// The images of a process's disk that an earlier process has recorded. `must_be` is `true` if one did: then nothing
/// else is accepted.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if they have to be there and are not. Otherwise as [`kept_images`].
pub(super) fn images_before(pid_file: &Path, must_be: bool) -> Result<Option<Vec<KeptImage>>> {
    let images = kept_images(pid_file)?;
    if images.is_none() && must_be {
        let gone = Error::corrupt("is gone, and it recorded the disk's images");
        return Err(gone.about(beside(pid_file).display()).remedy(ATTACH_AGAIN));
    }
    Ok(images)
}

/// The images of a process's disk, if an earlier process has recorded them.
///
/// # Errors
/// [`ErrorKind::Corrupt`] and [`ErrorKind::Unsupported`] if the record cannot be understood: the tag is not resolved
/// instead.
pub(super) fn kept_images(pid_file: &Path) -> Result<Option<Vec<KeptImage>>> {
    let path = beside(pid_file);
    let about = |e: Error| e.about(path.display());
    let Some(text) = headstart_daemon::file::read(&path, LEN_MAX)? else { return Ok(None) };
    let Kept { version, images } = serde_json::from_slice(&text).map_err(|e| {
        about(Error::corrupt("does not say which images the disk has").caused_by(e)).remedy(ATTACH_AGAIN)
    })?;
    if version != VERSION {
        return Err(about(Error::unsupported(format!("is of version {version}")))
            .remedy("start the agent of the release that wrote it"));
    }
    match images.iter().find(|image| Digest::of(image.manifest.as_bytes()) != image.digest) {
        None => Ok(Some(images)),
        Some(image) => {
            let cause = format!("its manifest of {} is not the one of {}", image.image, image.digest);
            Err(about(Error::corrupt(cause)).remedy(ATTACH_AGAIN))
        }
    }
}

/// Removes the record of an earlier disk of the same name.
pub(super) fn forget_images(pid_file: &Path) -> Result<()> {
    let path = beside(pid_file);
    match fs::remove_file(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("cannot remove", e).about(path.display()))
        }
        _ => Ok(()),
    }
}

/// The recorded images of a disk; empty if there is no readable record.
pub(super) fn images_of(dir: &Path, name: &str) -> Vec<DiskImage> {
    let kept = kept_images(&file(dir, name, "pid")).unwrap_or_else(|error| {
        tracing::warn!(%error, disk = name, "which images the disk has is not known");
        None
    });
    let images = kept.unwrap_or_default().into_iter();
    images.map(|KeptImage { name, image, digest, .. }| DiskImage { name, image, digest }).collect()
}

impl KeptImage {
    /// Returns the image among `images` that was attached with the export name `name` and the reference `image`.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if none was: the disk's arguments have changed.
    pub fn find<'i>(images: &'i [Self], name: &str, image: &str) -> Result<&'i Self> {
        images.iter().find(|kept| kept.name == name && kept.image == image).ok_or_else(|| {
            Error::new(ErrorKind::Conflict, "is not what the disk was attached with")
                .about(image)
                .remedy("detach the disk, and attach it again")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str, manifest: &str) -> KeptImage {
        let digest = Digest::of(manifest.as_bytes());
        KeptImage {
            name: name.to_owned(),
            image: "file:///s:v1".to_owned(),
            digest,
            manifest: manifest.to_owned(),
            writable: None,
        }
    }

    #[test]
    fn kept_images_are_read_unless_they_are_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let pid_file = dir.path().join("vm.1.pid");
        fs::write(&pid_file, "1\n").unwrap();
        assert_eq!(kept_images(&pid_file).unwrap(), None);
        let written_on =
            KeptImage { writable: Some(Uuid::from_u128(7)), ..image("a", "{\"x\": \"\u{e9}\"}\n") };
        let images = vec![written_on, image("b", "{}")];
        keep_images(&pid_file, images.clone()).unwrap();
        assert_eq!(kept_images(&pid_file).unwrap().as_ref(), Some(&images));
        assert_eq!(images_of(dir.path(), "vm.1").len(), 2);
        assert_eq!(KeptImage::find(&images, "b", "file:///s:v1").unwrap(), &images[1]);
        assert_eq!(KeptImage::find(&images, "", "file:///s:v1").unwrap_err().kind(), ErrorKind::Conflict);
        let whole = fs::read_to_string(dir.path().join("vm.1.images")).unwrap();
        // A record without an id is that of a version that wrote none.
        assert_eq!(whole.matches("\"writable\"").count(), 1, "{whole}");
        let damaged = [
            (whole[..whole.len() - 3].to_owned(), ErrorKind::Corrupt),
            (whole.replace("\"{}\"", "\"{ }\""), ErrorKind::Corrupt),
            (whole.replace("\"version\":1", "\"version\":2"), ErrorKind::Unsupported),
        ];
        for (text, kind) in damaged {
            fs::write(dir.path().join("vm.1.images"), &text).unwrap();
            assert_eq!(kept_images(&pid_file).unwrap_err().kind(), kind, "{text}");
        }
        forget_images(&pid_file).unwrap();
        forget_images(&pid_file).unwrap();
        assert_eq!(images_before(&pid_file, false).unwrap(), None);
        assert_eq!(images_before(&pid_file, true).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
