//! The media types of layers.
//!
//! ```text
//! application/vnd.oci.image.layer.v1.tar                         +gzip  +zstd
//! application/vnd.oci.image.layer.nondistributable.v1.tar        +gzip  +zstd
//! application/vnd.docker.image.rootfs.diff.tar                   .gzip  .zstd
//! application/vnd.docker.image.rootfs.foreign.diff.tar           .gzip  .zstd
//! ```
//!
//! The second and the fourth are of layers that registries need not have, such as those of Windows.

use headstart_block::{Error, Result};

const OCI: &str = "application/vnd.oci.image.layer.v1.tar";
const OCI_FOREIGN: &str = "application/vnd.oci.image.layer.nondistributable.v1.tar";
const DOCKER: &str = "application/vnd.docker.image.rootfs.diff.tar";
const DOCKER_FOREIGN: &str = "application/vnd.docker.image.rootfs.foreign.diff.tar";

/// The compression of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerCompression {
    /// None: the layer is a tar archive.
    None,
    /// Gzip, in one or several members, as in eStargz.
    Gzip,
    /// Zstandard, in one or several frames, some of them skippable, as in zstd:chunked.
    Zstd,
}

impl LayerCompression {
    /// Returns the compression by the first bytes of a layer: four decide. A layer that begins neither as gzip nor as
    /// Zstandard is taken for a tar archive.
    #[must_use]
    pub fn of_bytes(first: &[u8]) -> Self {
        match first {
            [0x1f, 0x8b, ..] => Self::Gzip,
            // A frame of data, or a skippable frame.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            _ => Self::None,
        }
    }

    /// The ending of OCI's media types.
    fn oci_ending(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Gzip => "+gzip",
            Self::Zstd => "+zstd",
        }
    }

    /// The ending of Docker's media types.
    fn docker_ending(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Gzip => ".gzip",
            Self::Zstd => ".zstd",
        }
    }
}

/// Docker's media type of a layer with this compression.
pub(crate) fn docker_layer(compression: LayerCompression) -> String {
    format!("{DOCKER}{}", compression.docker_ending())
}

/// Returns the media type of a layer that is compressed in this way, where its image states `media_type`: that one,
/// unless it is wrong.
#[must_use]
pub fn layer_media_type(media_type: &str, compression: LayerCompression) -> String {
    let bases = [(OCI, false), (OCI_FOREIGN, false), (DOCKER, true), (DOCKER_FOREIGN, true)];
    match bases.into_iter().find(|(base, _)| media_type.starts_with(base)) {
        Some((base, true)) => format!("{base}{}", compression.docker_ending()),
        Some((base, false)) => format!("{base}{}", compression.oci_ending()),
        None => format!("{OCI}{}", compression.oci_ending()),
    }
}

/// The meaning of a layer's media type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerType {
    pub(crate) compression: LayerCompression,
    /// `true` if registries need not have the layer.
    pub(crate) is_foreign: bool,
}

impl LayerType {
    /// Returns the meaning of a media type.
    ///
    /// # Errors
    /// Unsupported if it is of no layer that is a tar archive.
    pub(crate) fn parse(media_type: &str) -> Result<Self> {
        use LayerCompression::{Gzip, None, Zstd};
        for (base, is_foreign) in [(OCI, false), (OCI_FOREIGN, true), (DOCKER, false), (DOCKER_FOREIGN, true)]
        {
            let compression = match media_type.strip_prefix(base) {
                Some("") => None,
                Some("+gzip" | ".gzip") => Gzip,
                Some("+zstd" | ".zstd") => Zstd,
                _ => continue,
            };
            return Ok(Self { compression, is_foreign });
        }
        let shown = media_type.chars().take(100).collect::<String>();
        let error = Error::unsupported(format!("has the media type `{}`", shown.escape_debug()));
        Err(if media_type.ends_with("+encrypted") {
            error.remedy("decrypt the image first: encrypted layers are not read")
        } else {
            error.remedy("only layers that are tar archives are read: plain, gzip or zstd")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ErrorKind;

    #[test]
    fn media_types_tell_the_compression() {
        use LayerCompression::{Gzip, None, Zstd};
        for (media_type, compression, is_foreign) in [
            ("application/vnd.oci.image.layer.v1.tar", None, false),
            ("application/vnd.oci.image.layer.v1.tar+gzip", Gzip, false),
            ("application/vnd.oci.image.layer.v1.tar+zstd", Zstd, false),
            ("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", Gzip, true),
            ("application/vnd.docker.image.rootfs.diff.tar", None, false),
            ("application/vnd.docker.image.rootfs.diff.tar.gzip", Gzip, false),
            ("application/vnd.docker.image.rootfs.diff.tar.zstd", Zstd, false),
            ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", Gzip, true),
        ] {
            assert_eq!(LayerType::parse(media_type).unwrap(), LayerType { compression, is_foreign });
        }
        for compression in [None, Gzip, Zstd] {
            assert_eq!(LayerType::parse(&docker_layer(compression)).unwrap().compression, compression);
        }
        for (media_type, says) in [
            ("application/vnd.oci.image.layer.v1.tar+gzip+encrypted", "decrypt"),
            ("application/vnd.oci.image.layer.v1.tar+lz4", "gzip or zstd"),
            ("application/vnd.in-toto+json", "in-toto"),
            ("", "``"),
            ("x\ny", "x\\ny"),
        ] {
            let error = LayerType::parse(media_type).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn a_media_type_that_is_wrong_is_corrected_within_its_family() {
        use LayerCompression::{Gzip, None, Zstd};
        for (media_type, compression, expected) in [
            (
                "application/vnd.oci.image.layer.v1.tar+gzip",
                Gzip,
                "application/vnd.oci.image.layer.v1.tar+gzip",
            ),
            ("application/vnd.oci.image.layer.v1.tar+zstd", None, "application/vnd.oci.image.layer.v1.tar"),
            (
                "application/vnd.oci.image.layer.nondistributable.v1.tar",
                Zstd,
                "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd",
            ),
            (
                "application/vnd.docker.image.rootfs.diff.tar",
                Gzip,
                "application/vnd.docker.image.rootfs.diff.tar.gzip",
            ),
            (
                "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
                None,
                "application/vnd.docker.image.rootfs.foreign.diff.tar",
            ),
            ("", Gzip, "application/vnd.oci.image.layer.v1.tar+gzip"),
        ] {
            assert_eq!(layer_media_type(media_type, compression), expected);
        }
    }

    #[test]
    fn the_first_bytes_tell_the_compression() {
        assert_eq!(LayerCompression::of_bytes(&[0x1f, 0x8b, 8, 0]), LayerCompression::Gzip);
        assert_eq!(LayerCompression::of_bytes(&[0x28, 0xb5, 0x2f, 0xfd]), LayerCompression::Zstd);
        assert_eq!(LayerCompression::of_bytes(&[0x52, 0x2a, 0x4d, 0x18, 0]), LayerCompression::Zstd);
        for first in [&b"etc/"[..], b"", b"\x1f", b"\0\0\0\0"] {
            assert_eq!(LayerCompression::of_bytes(first), LayerCompression::None);
        }
    }
}
