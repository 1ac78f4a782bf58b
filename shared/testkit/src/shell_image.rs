//! A small container image, made of this host's shell, as an OCI archive.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name of the image in containerd.
pub const NAME: &str = "example.test/shell:1";
/// The programs in it.
const PROGRAMS: [&str; 4] = ["/bin/sh", "/bin/cat", "/bin/sleep", "/bin/ls"];

/// A tree of files that a layer adds or changes.
struct Layer(tar::Builder<Vec<u8>>);

impl Layer {
    fn new() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }

    fn add(&mut self, path: &str, mode: u32, content: Option<&[u8]>) {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(if content.is_some() {
            tar::EntryType::Regular
        } else {
            tar::EntryType::Directory
        });
        header.set_mode(mode);
        header.set_mtime(1_600_000_000);
        let content = content.unwrap_or_default();
        header.set_size(content.len() as u64);
        if path == "/" {
            // The library has no name for the root.
            header.as_mut_bytes()[..2].copy_from_slice(b"./");
            header.set_cksum();
            self.0.append(&header, content).unwrap();
            return;
        }
        self.0.append_data(&mut header, path.trim_start_matches('/'), content).unwrap();
    }

    fn finish(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

/// The files that a program needs: itself, the linker and libraries.
fn files_of(program: &str) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(program).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let libraries = output.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from);
    libraries.chain([PathBuf::from(program)]).collect()
}

/// The layers of the image.
fn layers() -> Vec<Vec<u8>> {
    let mut base = Layer::new();
    base.add("/", 0o755, None);
    let files: BTreeSet<_> = PROGRAMS.into_iter().flat_map(files_of).collect();
    let directories: BTreeSet<_> = files.iter().flat_map(|file| file.ancestors().skip(1)).collect();
    for directory in directories.into_iter().filter(|path| path.parent().is_some()) {
        base.add(directory.to_str().unwrap(), 0o755, None);
    }
    for file in &files {
        base.add(file.to_str().unwrap(), 0o755, Some(&fs::read(file).unwrap()));
    }
    for directory in ["etc", "opt", "opt/opaque", "proc", "sys", "dev", "tmp"] {
        base.add(directory, 0o755, None);
    }
    for (file, content) in [("etc/greeting", "one\n"), ("etc/gone", "x"), ("opt/opaque/old", "x")] {
        base.add(file, 0o644, Some(content.as_bytes()));
    }
    let mut second = Layer::new();
    second.add("etc/greeting", 0o644, Some(b"two\n"));
    second.add("etc/.wh.gone", 0o644, Some(b""));
    second.add("opt/opaque", 0o755, None);
    second.add("opt/opaque/.wh..wh..opq", 0o644, Some(b""));
    second.add("opt/opaque/new", 0o644, Some(b"x"));
    let mut third = Layer::new();
    third.add("/", 0o751, None);
    third.add("opt/last", 0o644, Some(b"x"));
    [base, second, third].into_iter().map(Layer::finish).collect()
}

/// An archive that is being written.
struct Archive(tar::Builder<fs::File>);

impl Archive {
    fn add(&mut self, path: &str, bytes: &[u8]) {
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o644);
        header.set_size(bytes.len() as u64);
        self.0.append_data(&mut header, path, bytes).unwrap();
    }

    /// Adds a blob and returns its descriptor.
    fn blob(&mut self, kind: &str, bytes: &[u8]) -> Value {
        let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        self.add(&format!("blobs/sha256/{digest}"), bytes);
        let media_type = format!("application/vnd.oci.image.{kind}");
        json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len() })
    }
}

/// Writes the image to an archive at `path` and returns the number of its layers. Panics if that fails.
pub fn write(path: &Path) -> usize {
    let mut archive = Archive(tar::Builder::new(fs::File::create(path).unwrap()));
    archive.add("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#);
    let layers: Vec<_> = layers().iter().map(|layer| archive.blob("layer.v1.tar", layer)).collect();
    let diff_ids: Vec<_> = layers.iter().map(|layer| layer["digest"].clone()).collect();
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": { "Cmd": ["/bin/sh"], "Env": ["PATH=/bin"] },
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
    });
    let config = archive.blob("config.v1+json", config.to_string().as_bytes());
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": layers,
    });
    let mut manifest = archive.blob("manifest.v1+json", manifest.to_string().as_bytes());
    manifest["annotations"] = json!({ "io.containerd.image.name": NAME });
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    archive.add("index.json", index.to_string().as_bytes());
    archive.0.finish().unwrap();
    layers.len()
}
