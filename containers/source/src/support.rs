//! Tar archives for tests.

use headstart_block::Digest;
use serde_json::{Value, json};
use std::io::Read as _;

/// A tar archive that a test fills.
pub(crate) struct TarFile(tar::Builder<Vec<u8>>);

impl Default for TarFile {
    fn default() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }
}

impl TarFile {
    fn append(&mut self, name: &str, kind: tar::EntryType, link: &str, content: &[u8]) {
        let mut header = tar::Header::new_gnu();
        // Not by the setters, which refuse hostile names.
        let old = header.as_old_mut();
        old.name[..name.len()].copy_from_slice(name.as_bytes());
        old.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        header.set_cksum();
        self.0.append(&header, content).unwrap();
    }

    /// Adds a file, whose name has at most 100 bytes.
    pub(crate) fn add(&mut self, name: &str, content: &[u8]) {
        self.append(name, tar::EntryType::Regular, "", content);
    }

    pub(crate) fn link(&mut self, name: &str, target: &str) {
        self.append(name, tar::EntryType::Symlink, target, b"");
    }

    pub(crate) fn hard_link(&mut self, name: &str, target: &str) {
        self.append(name, tar::EntryType::Link, target, b"");
    }

    pub(crate) fn special(&mut self, name: &str, kind: tar::EntryType) {
        self.append(name, kind, "", b"");
    }

    /// Adds a blob of an OCI layout, and returns its digest.
    pub(crate) fn blob(&mut self, content: &[u8]) -> Digest {
        let digest = Digest::of(content);
        self.add(&format!("blobs/sha256/{}", digest.hex()), content);
        digest
    }

    /// Adds a document as a blob, and returns a descriptor of it.
    pub(crate) fn document(&mut self, media_type: &str, document: &Value) -> Value {
        let bytes = document.to_string().into_bytes();
        json!({"mediaType": media_type, "size": bytes.len(), "digest": self.blob(&bytes)})
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

/// A config of Linux on amd64 whose layers have these contents.
pub(crate) fn config(contents: &[&[u8]]) -> Value {
    let ids: Vec<_> = contents.iter().map(|content| Digest::of(content)).collect();
    json!({"os": "linux", "architecture": "amd64", "rootfs": {"type": "layers", "diff_ids": ids}})
}

/// All bytes of a layer.
pub(crate) fn read_layer(layer: &crate::ContainerLayer) -> headstart_block::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    layer.open()?.read_to_end(&mut bytes)?;
    Ok(bytes)
}
