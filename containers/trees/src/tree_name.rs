//! [`TreeName`]: the files of an image, as one of its layers leaves them.

use headstart_block::{Digest, Error, Result};
use headstart_snapshotter::record::RemoteLayer;
use headstart_snapshotter::remote::LayeredDisk;
use headstart_store::{Reference, Selector};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The separator of the image and the number of its layers.
const MARK: char = '#';
/// Hexadecimal digits of a tree's id: 64 bits, so that two of a host's trees do not have the same by chance.
pub(crate) const ID_DIGITS: usize = 16;

/// A tree of files: an image whose layers are those of a disk, and the number of its lowest layers that count.
///
/// The text of an image's tree is `REFERENCE@sha256:DIGEST#LAYERS`. The snapshotter's journal has it, so a tree is
/// found again without a registry. Files of layers on top of the image follow, each in a line of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TreeName {
    /// The image, by its digest.
    pub image: Reference,
    /// The number of layers, from the lowest on; 1 at least. `None` for all layers of the image.
    pub lowest: Option<usize>,
    /// The files of layers on top of the image's, the lowest one first.
    pub above: Vec<PathBuf>,
}

impl TreeName {
    /// The id of the tree on this host: a part of names of files and disks.
    #[must_use]
    pub fn id(&self) -> String {
        Digest::of(self.to_string().as_bytes()).hex()[..ID_DIGITS].to_owned()
    }

    /// The name as the snapshotter keeps it, which knows the layers on top by itself.
    #[must_use]
    pub fn layer(&self) -> RemoteLayer {
        RemoteLayer(Self { above: Vec::new(), ..self.clone() }.to_string())
    }

    /// The name of a disk that the snapshotter describes.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the image is none that this program has named.
    pub fn of(disk: &LayeredDisk) -> Result<Self> {
        Ok(Self { above: disk.above.clone(), ..disk.image.0.parse()? })
    }
}

impl fmt::Display for TreeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{MARK}", self.image)?;
        match self.lowest {
            Some(lowest) => lowest.fmt(f)?,
            None => f.write_str("all")?,
        }
        self.above.iter().try_for_each(|file| write!(f, "\n{}", file.display()))
    }
}

impl FromStr for TreeName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::corrupt("is not the name of an image's tree").about(text.escape_debug());
        let mut lines = text.split('\n');
        let (image, lowest) = lines.next().and_then(|line| line.rsplit_once(MARK)).ok_or_else(wrong)?;
        let image: Reference = image.parse().map_err(|error: Error| wrong().caused_by(error))?;
        let lowest = match lowest {
            "all" => None,
            count => Some(count.parse::<usize>().ok().filter(|count| *count > 0).ok_or_else(wrong)?),
        };
        // A tag would mean another image one day.
        if matches!(image.selector, Selector::Tag(_)) {
            return Err(wrong());
        }
        Ok(Self { image, lowest, above: lines.map(PathBuf::from).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written() {
        let digest = Digest::of(b"x");
        for text in [format!("oci://h:5000/a/b@{digest}#all"), format!("file:///d@{digest}#3")] {
            let name: TreeName = text.parse().unwrap();
            assert_eq!(name.to_string(), text);
            assert_eq!(name.layer().0, text);
            assert_eq!(name.id().len(), ID_DIGITS);
            let above = TreeName { above: vec!["/a b".into(), "/c#d".into()], ..name.clone() };
            assert_eq!(above.to_string().parse::<TreeName>().unwrap(), above);
            assert!(above.layer() == name.layer() && above.id() != name.id());
        }
        for wrong in
            ["", "#", "oci://h/a:1#all", &format!("oci://h/a@{digest}"), &format!("oci://h/a@{digest}#0")]
        {
            assert!(wrong.parse::<TreeName>().is_err(), "{wrong}");
        }
    }
}
