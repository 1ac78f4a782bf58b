//! The part of a config that counts here: the platform, and the digests of the layers' contents.

use crate::platform::ImagePlatform;
use headstart_block::{Digest, Error, Result};
use serde::Deserialize;

/// The facts of a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigFacts {
    /// `None` if the config states none.
    pub(crate) platform: Option<ImagePlatform>,
    /// The digests of the layers' contents, lowest first.
    pub(crate) diff_ids: Vec<Digest>,
}

/// The fields of a config that are used; all may be missing in what tools write.
#[derive(Deserialize)]
struct Fields {
    os: Option<String>,
    architecture: Option<String>,
    variant: Option<String>,
    rootfs: Option<RootFs>,
}

#[derive(Deserialize)]
struct RootFs {
    r#type: Option<String>,
    diff_ids: Option<Vec<String>>,
}

impl ConfigFacts {
    /// Parses the config of an image of `layers` layers.
    ///
    /// # Errors
    /// Corrupt if it is no config, or has another number of layers; Unsupported if they are not layers of files.
    pub(crate) fn parse(bytes: &[u8], layers: usize) -> Result<Self> {
        let fields: Fields = serde_json::from_slice(bytes)
            .map_err(|e| Error::corrupt("is not the config of an image").caused_by(e))?;
        let rootfs = fields.rootfs.unwrap_or(RootFs { r#type: None, diff_ids: None });
        if let Some(kind) = rootfs.r#type.filter(|kind| kind != "layers" && !kind.is_empty()) {
            let shown: String = kind.chars().take(40).collect();
            return Err(Error::unsupported(format!("has a rootfs of the type `{}`", shown.escape_debug())));
        }
        let ids = rootfs.diff_ids.unwrap_or_default();
        if ids.len() != layers {
            let cause = format!("has {} diff ids, but its manifest has {layers} layers", ids.len());
            return Err(Error::corrupt(cause));
        }
        let diff_ids = ids.iter().map(|id| id.parse()).collect::<Result<_>>()?;
        let platform = match (fields.os.as_deref(), fields.architecture.as_deref()) {
            (Some(os), Some(architecture)) if !os.is_empty() && !architecture.is_empty() => {
                Some(ImagePlatform::new(os, architecture, fields.variant.as_deref()))
            }
            _ => None,
        };
        Ok(Self { platform, diff_ids })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ErrorKind;
    use serde_json::json;

    fn parse(config: &serde_json::Value, layers: usize) -> Result<ConfigFacts> {
        ConfigFacts::parse(config.to_string().as_bytes(), layers)
    }

    #[test]
    fn a_config_tells_platform_and_contents() {
        let id = Digest::of(b"content");
        let config = json!({
            "os": "linux", "architecture": "arm", "variant": "v6", "history": [1], "config": null,
            "rootfs": {"type": "layers", "diff_ids": [id, id]},
        });
        let facts = parse(&config, 2).unwrap();
        assert_eq!(facts.platform.unwrap().to_string(), "linux/arm/v6");
        assert_eq!(facts.diff_ids, [id, id]);
        let empty = parse(&json!({"rootfs": {"type": "layers", "diff_ids": null}}), 0).unwrap();
        assert_eq!(empty, ConfigFacts { platform: None, diff_ids: Vec::new() });
    }

    #[test]
    fn a_config_of_another_image_is_refused() {
        for (config, kind, says) in [
            (json!({}), ErrorKind::Corrupt, "0 diff ids, but its manifest has 1 layers"),
            (json!({"rootfs": {"diff_ids": ["x"]}}), ErrorKind::Invalid, "`x` is not a digest"),
            (json!({"rootfs": {"diff_ids": "x"}}), ErrorKind::Corrupt, "not the config"),
            (json!({"rootfs": {"type": "zfs"}}), ErrorKind::Unsupported, "`zfs`"),
            (json!([]), ErrorKind::Corrupt, "not the config"),
        ] {
            let error = parse(&config, 1).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
