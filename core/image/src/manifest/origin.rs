//! The origin of images that were converted from containers' images, as annotations record it.
//!
//! | on | annotation | value |
//! |---|---|---|
//! | layer | `dev.headstart.source-digest` | digest of the container's layer, as its image refers to it |
//! | layer | `dev.headstart.source-chain` | chain id of the container's layers up to this one |
//! | layer | `dev.headstart.conversion-key` | digest of all that the layer's blob depends on |
//! | manifest | `dev.headstart.converted-from` | digest of the manifest of the container's image |
//! | manifest | `dev.headstart.converted-from-type` | media type of that manifest |
//! | manifest | `dev.headstart.converter` | the version of the conversion, and its options |
//!
//! Nothing protects annotations: an image from elsewhere may claim any origin. They inform, and no decision may rest on
//! those of an image whose publisher is not trusted.

use super::{ImageLayer, Manifest};
use headstart_block::{Digest, FileSystemKind};

/// The key of a layer annotation of OverlayBD's tools: the file system of the disk, if it is not ext4.
const FILE_SYSTEM: &str = "containerd.io/snapshot/overlaybd/blob-fs-type";
const SOURCE_DIGEST: &str = "dev.headstart.source-digest";
const SOURCE_CHAIN: &str = "dev.headstart.source-chain";
const CONVERSION_KEY: &str = "dev.headstart.conversion-key";
const CONVERTED_FROM: &str = "dev.headstart.converted-from";
const CONVERTED_FROM_TYPE: &str = "dev.headstart.converted-from-type";
const CONVERTER: &str = "dev.headstart.converter";

/// The container's image from which an image was converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerOrigin {
    /// The digest of its manifest.
    pub manifest: Digest,
    /// The media type of its manifest.
    pub media_type: String,
    /// The version of the conversion, and the options that its result depends on, in words.
    pub converter: String,
}

impl ContainerOrigin {
    /// Returns what the content of the disk depends on, apart from the container's layers. Images with the same origin
    /// and the same words have the same disk, however their layers are packed.
    #[must_use]
    pub fn disk(&self) -> Vec<&str> {
        let decides = |word: &&str| {
            ["writer=", "fs=", "mode=", "size=", "alone"].iter().any(|known| word.starts_with(known))
        };
        let words: Vec<_> = self.converter.split(',').filter(decides).collect();
        // Another converter's words are not known.
        if words.is_empty() { vec![&self.converter] } else { words }
    }

    pub(super) fn annotations(&self) -> [(&'static str, String); 3] {
        [
            (CONVERTED_FROM, self.manifest.to_string()),
            (CONVERTED_FROM_TYPE, self.media_type.clone()),
            (CONVERTER, self.converter.clone()),
        ]
    }
}

impl Manifest {
    /// Returns the container's image from which the image was converted, as its annotations state it. `None` if they
    /// state none, or not validly.
    #[must_use]
    pub fn converted_from(&self) -> Option<ContainerOrigin> {
        let text = |key| self.annotations.get(key);
        Some(ContainerOrigin {
            manifest: text(CONVERTED_FROM)?.parse().ok()?,
            media_type: text(CONVERTED_FROM_TYPE)?.clone(),
            converter: text(CONVERTER)?.clone(),
        })
    }
}

impl Manifest {
    /// `true` if both images were made of one container's image and have the same disk, however their layers are
    /// packed.
    pub(crate) fn has_disk_of(&self, other: &Self) -> bool {
        match (self.converted_from(), other.converted_from()) {
            (Some(own), Some(other)) => own.manifest == other.manifest && own.disk() == other.disk(),
            _ => false,
        }
    }

    /// Returns the kind of file system on the disk of an image that was converted, such as `ext4`, as its annotations
    /// state it. `None` if they do not.
    #[must_use]
    pub fn file_system(&self) -> Option<&str> {
        // A boot layer repeats what is below it, and those of earlier versions have no annotation.
        let is_boot_layer = |layer: &ImageLayer| layer.boot_bytes().is_some();
        let own = |layer: &&ImageLayer| layer.annotations.contains_key(FILE_SYSTEM) || !is_boot_layer(layer);
        let of_layer =
            self.disk_layers().rev().find(own).and_then(|layer| layer.annotations.get(FILE_SYSTEM));
        let options =
            || self.annotations.get(CONVERTER)?.split(',').find_map(|word| word.strip_prefix("fs="));
        of_layer.map(String::as_str).or_else(options)
    }

    /// `true` if the file system that the annotations state is one that is only read: EROFS.
    #[must_use]
    pub fn is_only_read(&self) -> bool {
        self.file_system() == Some(FileSystemKind::Erofs.name())
    }
}

/// The container's layer from which a layer was converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerOrigin {
    /// The digest of the container's layer as stored, mostly compressed.
    pub digest: Digest,
    /// The chain id: a digest of the content of that layer and of all below it.
    pub chain: Digest,
    /// The digest of all that the layer's blob depends on: the chain id, the version of the conversion and its options.
    pub key: Digest,
}

impl ImageLayer {
    /// Returns the same layer with annotations of its origin.
    #[must_use]
    pub fn with_origin(mut self, origin: &LayerOrigin) -> Self {
        let LayerOrigin { digest, chain, key } = origin;
        for (name, value) in [(SOURCE_DIGEST, digest), (SOURCE_CHAIN, chain), (CONVERSION_KEY, key)] {
            self.annotations.insert(name.to_owned(), value.to_string());
        }
        self
    }

    /// Returns the same layer with an annotation of its file system, such as `erofs`. Layers without it have ext4.
    #[must_use]
    pub fn with_file_system(mut self, kind: FileSystemKind) -> Self {
        self.annotations.insert(FILE_SYSTEM.to_owned(), kind.name().to_owned());
        self
    }

    /// `true` if the layer's annotations state a file system.
    #[must_use]
    pub fn states_file_system(&self) -> bool {
        self.annotations.contains_key(FILE_SYSTEM)
    }

    /// Returns the kind of file system that the layer is a part of, as its annotations state it.
    #[must_use]
    pub fn file_system(&self) -> &str {
        self.annotations.get(FILE_SYSTEM).map_or(FileSystemKind::Ext4.name(), String::as_str)
    }

    /// Returns the origin that the layer's annotations state. `None` if they state none, or not validly.
    #[must_use]
    pub fn origin(&self) -> Option<LayerOrigin> {
        let digest = |key| self.annotations.get(key)?.parse().ok();
        Some(LayerOrigin {
            digest: digest(SOURCE_DIGEST)?,
            chain: digest(SOURCE_CHAIN)?,
            key: digest(CONVERSION_KEY)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, NewImage, Tree};
    use super::*;
    use headstart_hash_tree::{TreeRoot, outboard_len};

    #[test]
    fn origins_are_read_as_they_were_written() {
        let tree = Tree { root: TreeRoot::of(b"x"), digest: Digest::of(b"tree"), size: outboard_len(1000) };
        let origin = LayerOrigin { digest: Digest::of(b"a"), chain: Digest::of(b"b"), key: Digest::of(b"c") };
        let layer = ImageLayer::new(Digest::of(b"x"), 1000, tree);
        assert_eq!(layer.origin(), None);
        let from = ContainerOrigin {
            manifest: Digest::of(b"manifest"),
            media_type: "application/vnd.docker.distribution.manifest.v2+json".to_owned(),
            converter: "1,size=4096".to_owned(),
        };
        let config =
            br#"{"created":"2026-01-01T00:00:00Z","config":{"Cmd":["sh"]},"history":[{"comment":"x"}]}"#;
        let mut image = NewImage {
            layers: vec![layer.with_origin(&origin)],
            virtual_size: 4096,
            options: "plain".to_owned(),
            config: Config::parse(config).unwrap(),
            optimized_from: None,
            converted_from: Some(from.clone()),
            belongs_to: None,
        };
        let documents = image.documents().unwrap();
        let manifest = Manifest::parse(&documents.manifest).unwrap();
        assert_eq!(
            (manifest.converted_from(), manifest.layers[0].origin()),
            (Some(from.clone()), Some(origin))
        );
        assert_eq!(manifest.file_system(), None);
        let disk = |converter: &str| {
            let origin = ContainerOrigin { converter: converter.to_owned(), ..from.clone() };
            origin.disk().join(",")
        };
        let ext4 = disk("writer=1,fs=ext4,size=4096,zstd,frame=32768,crc");
        assert_eq!(ext4, disk("writer=1,fs=ext4,size=4096,lz4,frame=4096"));
        let others =
            ["writer=1,fs=erofs,size=4096,zstd", "writer=1,fs=ext4,mode=turbo,size=4096,zstd", "another"];
        assert!(others.iter().all(|other| disk(other) != ext4));
        let config = |image: &NewImage| String::from_utf8(image.documents().unwrap().config).unwrap();
        assert!(config(&image).contains(r#""history":[{"comment":"x"}]"#) && config(&image).contains("2026"));
        image.converted_from = None;
        assert!(!config(&image).contains("history") && config(&image).contains(r#""Cmd":["sh"]"#));
        let manifest = Manifest::parse(&image.documents().unwrap().manifest).unwrap();
        assert_eq!(manifest.converted_from(), None);
    }
}
