//! Images made and described beside the repository: their layers come out as they are.
//!
//! The images are not part of the repository; without them the test says so and passes.

use headstart_block::Digest;
use headstart_container_source::{SourceName, open};
use headstart_store::StoreSettings;
use headstart_testkit::process::skipped;
use serde_json::{Value, json};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;

/// The folder of the images; `HEADSTART_SHARED` names another place for the folder of all shared data.
fn golden() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let shared = std::env::var_os("HEADSTART_SHARED").map_or(beside, PathBuf::from);
    let dir = shared.join("formats/golden-containers");
    if !dir.is_dir() {
        skipped(&format!("no golden images at {}", dir.display()));
    }
    dir.is_dir().then_some(dir)
}

/// Makes an OCI layout of the files of one image.
fn layout(image: &Path, to: &Path) -> Digest {
    let blobs = to.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    for file in fs::read_dir(image).unwrap() {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        fs::write(blobs.join(Digest::of(&bytes).hex()), bytes).unwrap();
    }
    let manifest = fs::read(image.join("manifest.json")).unwrap();
    let parsed: Value = serde_json::from_slice(&manifest).unwrap();
    let digest = Digest::of(&manifest);
    let media_type = parsed.get("mediaType").cloned();
    let media_type = media_type.unwrap_or_else(|| json!("application/vnd.oci.image.manifest.v1+json"));
    let entry = json!({
        "mediaType": media_type, "digest": digest, "size": manifest.len(),
        "annotations": {"org.opencontainers.image.ref.name": "latest"},
    });
    fs::write(to.join("index.json"), json!({"schemaVersion": 2, "manifests": [entry]}).to_string()).unwrap();
    fs::write(to.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    digest
}

#[test]
fn golden_images_are_read_layer_by_layer() {
    let Some(golden) = golden() else { return };
    let runtime = Runtime::new().unwrap();
    let mut images = 0;
    for image in fs::read_dir(golden).unwrap().map(|image| image.unwrap().path()) {
        let source = image.join("source");
        if !source.is_dir() {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let digest = layout(&source, dir.path());
        let open_here = |dir: &Path| {
            let name: SourceName = format!("file://{}", dir.display()).parse().unwrap();
            open(&name, None, &StoreSettings::default(), runtime.handle())
        };
        let found = open_here(dir.path()).unwrap();
        assert_eq!(found.manifest_digest, digest);
        for layer in &found.layers {
            let mut bytes = Vec::new();
            layer.open().unwrap().read_to_end(&mut bytes).unwrap();
            let mut content = Vec::new();
            match flate2::read::MultiGzDecoder::new(bytes.as_slice()).read_to_end(&mut content) {
                Ok(_) => {}
                Err(_) => content = bytes,
            }
            assert_eq!(Digest::of(&content), layer.diff_id, "{layer:?}");
        }
        // The same image converted by the reference implementation is a disk, and no container image.
        let native = tempfile::tempdir().unwrap();
        layout(&image.join("native"), native.path());
        let error = open_here(native.path()).unwrap_err().to_string();
        // With its name.
        assert!(error.starts_with(&format!("image file://{}", native.path().display())), "{error}");
        assert!(error.contains(": its layer 1 of ") && error.contains(" is a layer of OverlayBD"), "{error}");
        images += 1;
    }
    assert!(images >= 3, "{images}");
}
