//! A disk image and all files below it, open and checked, in the form in which `qemu-img` gets them: by the numbers of
//! their descriptors. It opens nothing by a name that an image gives, so no name can be changed between check and use,
//! and none can be a server's address.

use super::qcow2::Header;
use super::vmdk::{self, Descriptor};
use super::{AllowedDirs, DiskFormat, MAX_CHAIN, chain, vhd};
use headstart_block::{Error, FileSource, Result};
use rustix::io::FdFlags;
use serde_json::{Value, json};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tempfile::TempDir;

/// An image for `qemu-img`. The files are open, and inherited, as long as this value exists.
pub(super) struct Source {
    files: Vec<File>,
    dirs: Vec<TempDir>,
    scratch: PathBuf,
    allowed: AllowedDirs,
}

/// Names of an image as `qemu-img` takes them.
pub(super) struct Names {
    /// The image with all that is below it.
    pub(super) disk: String,
    /// The image alone: commands that look at one file take no more.
    pub(super) top: String,
}

impl Source {
    /// Opens and checks all files of `file`, a disk in `format`. Returns it with its names for `qemu-img`.
    ///
    /// # Errors
    /// Errors if a file is damaged, or may not be opened; errors of opening.
    pub(super) fn open(
        file: &FileSource,
        format: DiskFormat,
        allowed: &AllowedDirs,
        scratch: &Path,
    ) -> Result<(Self, Names)> {
        let (files, dirs, scratch) = (Vec::new(), Vec::new(), scratch.to_owned());
        let mut source = Self { files, dirs, scratch, allowed: allowed.clone() };
        let mut image = source.image(file, format, 1)?;
        let disk = format!("json:{image}");
        image.as_object_mut().and_then(|fields| fields.remove("backing"));
        Ok((source, Names { disk, top: format!("json:{image}") }))
    }

    /// One image with what is below it, as QEMU's block layer describes it; `depth` images are open with it.
    fn image(&mut self, file: &FileSource, format: DiskFormat, depth: usize) -> Result<Value> {
        let named = |e: Error| e.about(file.path().display());
        if depth > MAX_CHAIN {
            let cause = format!("a chain of more than {MAX_CHAIN} images, or one without end");
            return Err(named(Error::invalid(cause)));
        }
        let mut image = json!({ "driver": format.qemu_name() });
        image["file"] = match format {
            DiskFormat::Vmdk => {
                let descriptor = vmdk::check(file, &self.allowed).map_err(named)?;
                if let Some(parent) = &descriptor.parent {
                    image["backing"] = self.backing(file, parent, Some("vmdk"), depth)?;
                }
                self.vmdk_file(file, &descriptor).map_err(named)?
            }
            DiskFormat::Qcow2 => {
                let header = Header::read(file).map_err(named)?;
                let header = header.ok_or_else(|| named(Error::corrupt("is not a qcow2 image")))?;
                let data = header.open_data_file(file.path(), &self.allowed)?;
                header.check(file, data.as_ref()).map_err(named)?;
                if let Some(data) = &data {
                    image["data-file"] = self.file(data)?;
                }
                image["backing"] = match &header.backing {
                    Some(name) => self.backing(file, name, header.backing_format.as_deref(), depth)?,
                    None => Value::Null,
                };
                self.file(file)?
            }
            DiskFormat::Vhd => {
                vhd::check(file).map_err(named)?;
                self.file(file)?
            }
            DiskFormat::Raw | DiskFormat::Vhdx => self.file(file)?,
        };
        Ok(image)
    }

    /// The image `name`, on which the one in `above` is based.
    fn backing(
        &mut self,
        above: &FileSource,
        name: &str,
        format: Option<&str>,
        depth: usize,
    ) -> Result<Value> {
        let file = self.allowed.open(&chain::beside(above.path(), name))?;
        let unknown = |e: Error| Error::unsupported(e.to_string()).about(above.path().display());
        let format = match format {
            None => DiskFormat::of(&file)?,
            Some("file") => DiskFormat::Raw,
            Some("vpc") => DiskFormat::Vhd,
            Some(name) => DiskFormat::from_str(name).map_err(unknown)?,
        };
        self.image(&file, format, depth + 1)
    }

    /// An open file, by its number.
    fn file(&mut self, file: &FileSource) -> Result<Value> {
        let path = self.inherited(file)?;
        let cannot = |e| Error::io("cannot look at it", e).about(file.path().display());
        let is_device = file.file().metadata().map_err(cannot)?.file_type().is_block_device();
        let driver = if is_device { "host_device" } else { "file" };
        Ok(json!({ "driver": driver, "filename": path }))
    }

    /// The path under which programs that are started from here find an open file.
    fn inherited(&mut self, file: &FileSource) -> Result<String> {
        let cannot = |e| Error::io("cannot open it once more", e).about(file.path().display());
        let copy = file.file().try_clone().map_err(cannot)?;
        rustix::io::fcntl_setfd(&copy, FdFlags::empty()).map_err(|e| cannot(e.into()))?;
        let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
        self.files.push(copy);
        Ok(path)
    }

    /// The file of a vmdk: itself, or a descriptor with new names for its extents.
    fn vmdk_file(&mut self, file: &FileSource, descriptor: &Descriptor) -> Result<Value> {
        if vmdk::is_sparse(file)? {
            return self.file(file);
        }
        let cannot = |e| Error::io("cannot make a scratch file", e);
        let dir = tempfile::Builder::new().prefix("extents-").tempdir_in(&self.scratch).map_err(cannot)?;
        for (name, extent) in descriptor.extents.iter().enumerate() {
            let named = extent.file.as_deref().unwrap_or_default();
            let extent = self.allowed.open(&chain::beside(file.path(), named))?;
            let link = dir.path().join(name.to_string());
            std::os::unix::fs::symlink(self.inherited(&extent)?, link).map_err(cannot)?;
        }
        let path = dir.path().join("disk.vmdk");
        std::fs::write(&path, descriptor.renamed()?).map_err(cannot)?;
        self.dirs.push(dir);
        let path = path.to_str().ok_or_else(|| Error::invalid("the store's path is not text"))?;
        Ok(json!({ "driver": "file", "filename": path }))
    }
}
