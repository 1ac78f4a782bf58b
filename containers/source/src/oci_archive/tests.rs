use super::*;
use crate::open::open_oci_archive;
use crate::support::{TarFile, config, read_layer};
use crate::{ContainerImage, ImagePlatform};
use headstart_store::media_type::{CONFIG_OCI, INDEX_OCI, MANIFEST_OCI};
use serde_json::{Value, json};

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// An archive with the head of a layout.
fn layout() -> TarFile {
    let mut file = TarFile::default();
    file.add(LAYOUT_FILE, br#"{"imageLayoutVersion":"1.0.0"}"#);
    file
}

/// Adds an image of these layers, and returns its descriptor.
fn image(file: &mut TarFile, layers: &[&[u8]], architecture: &str) -> Value {
    let mut config = config(layers);
    config["architecture"] = json!(architecture);
    let config = file.document(CONFIG_OCI, &config);
    let layer =
        |content: &&[u8]| json!({"mediaType": LAYER, "size": content.len(), "digest": Digest::of(content)});
    let descriptors: Vec<_> = layers.iter().map(layer).collect();
    for layer in layers {
        file.blob(layer);
    }
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST_OCI, "config": config, "layers": descriptors,
    });
    let mut descriptor = file.document(MANIFEST_OCI, &manifest);
    descriptor["platform"] = json!({"os": "linux", "architecture": architecture});
    descriptor
}

fn named(mut descriptor: Value, name: &str) -> Value {
    descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": name});
    descriptor
}

fn finish(mut file: TarFile, entries: &[Value]) -> Vec<u8> {
    let index = json!({"schemaVersion": 2, "mediaType": INDEX_OCI, "manifests": entries});
    file.add(INDEX_FILE, index.to_string().as_bytes());
    file.finish()
}

fn open(archive: &[u8], choice: &str, platform: Option<&str>) -> Result<ContainerImage> {
    let choice = if choice.is_empty() { ArchiveChoice::Only } else { choice.parse()? };
    let platform = platform.map(|platform| platform.parse::<ImagePlatform>().unwrap());
    open_oci_archive(Arc::new(archive.to_vec()), "archive", &choice, platform.as_ref())
}

#[test]
fn an_image_is_read_with_its_layers() {
    let mut file = layout();
    let descriptor = image(&mut file, &[b"low", b"high", b"low"], "amd64");
    let archive = finish(file, std::slice::from_ref(&descriptor));
    // The blob that two layers share occurs twice in the file.
    assert!(open(&archive, "", None).unwrap().layers[1].open().is_ok());
    let mut file = layout();
    let descriptor = image(&mut file, &[b"low", b"high"], "amd64");
    let image = open(&finish(file, std::slice::from_ref(&descriptor)), "", None).unwrap();
    assert_eq!(json!(image.manifest_digest), descriptor["digest"]);
    assert_eq!((image.manifest_media_type.as_str(), image.name.as_str()), (MANIFEST_OCI, "archive"));
    assert_eq!(image.platform.as_ref().unwrap().to_string(), "linux/amd64");
    assert_eq!(Digest::of(&image.config), image.config_digest);
    let contents: Vec<_> = image.layers.iter().map(|layer| read_layer(layer).unwrap()).collect();
    assert_eq!(contents, [b"low".to_vec(), b"high".to_vec()]);
    assert_eq!(image.layers[1].diff_id, Digest::of(b"high"));
}

#[test]
fn images_are_chosen_by_name_number_and_platform() {
    let mut file = layout();
    let (one, two) = (image(&mut file, &[b"one"], "amd64"), image(&mut file, &[b"two"], "amd64"));
    let (arm, intel) = (image(&mut file, &[b"arm"], "arm64"), image(&mut file, &[b"intel"], "amd64"));
    let index = json!({"schemaVersion": 2, "mediaType": INDEX_OCI, "manifests": [arm, intel]});
    let index = file.document(INDEX_OCI, &index);
    let mut whole = named(two, "2");
    whole["annotations"][WHOLE_NAME] = json!("docker.io/library/app:2");
    let artifacts = named(one.clone(), &format!("sha256-{}", "0".repeat(64)));
    let archive = finish(file, &[named(one, "one"), artifacts, whole, named(index, "many")]);
    let content = |choice: &str, platform| {
        let image = open(&archive, choice, platform)?;
        read_layer(&image.layers[0])
    };
    for (choice, platform, expected) in [
        ("one", None, &b"one"[..]),
        ("@0", Some("linux/amd64"), b"one"),
        ("2", None, b"two"),
        ("app:2", None, b"two"),
        ("many", Some("linux/arm64"), b"arm"),
        ("@2", Some("linux/amd64"), b"intel"),
    ] {
        assert_eq!(content(choice, platform).unwrap(), expected, "{choice}");
    }
    for (choice, platform, kind, says) in [
        ("", None, ErrorKind::Invalid, "has 3 images: docker.io/library/app:2, many, one; name one"),
        ("@3", None, ErrorKind::NotFound, "has no image @3: there are 3"),
        ("three", None, ErrorKind::NotFound, "has no image `three`: there are docker.io/library/app:2"),
        ("one", Some("linux/arm64"), ErrorKind::NotFound, "is for linux/amd64, not for linux/arm64"),
        ("many", Some("linux/s390x"), ErrorKind::NotFound, "only for linux/amd64, linux/arm64"),
    ] {
        let error = content(choice, platform).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn entries_for_several_platforms_are_one_image() {
    let mut file = layout();
    let entries = [image(&mut file, &[b"arm"], "arm64"), image(&mut file, &[b"intel"], "amd64")];
    let archive = finish(file, &entries.map(|entry| named(entry, "app")));
    for (platform, expected) in [("linux/arm64", &b"arm"[..]), ("linux/amd64", b"intel")] {
        for choice in ["", "app"] {
            let image = open(&archive, choice, Some(platform)).unwrap();
            assert_eq!(read_layer(&image.layers[0]).unwrap(), expected);
        }
    }
}

/// An archive of one image, after a change of its bytes: all occurrences of `old` are replaced.
fn changed(old: &[u8], new: &[u8]) -> Result<ContainerImage> {
    assert_eq!(old.len(), new.len());
    let mut file = layout();
    let descriptor = image(&mut file, &[b"the content of a layer"], "amd64");
    let mut archive = finish(file, &[descriptor]);
    let places: Vec<_> =
        (0..archive.len() - old.len()).filter(|at| archive[*at..*at + old.len()] == *old).collect();
    assert!(!places.is_empty());
    for at in places {
        archive[at..at + old.len()].copy_from_slice(new);
    }
    open(&archive, "", None)
}

#[test]
fn wrong_bytes_are_found_by_the_digests() {
    let error = changed(b"diff_ids", b"diff_idz").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("config sha256:"), "{error}");
    let error = changed(b"\"layers\":[{", b"\"layerz\":[{").unwrap_err();
    assert!(error.to_string().contains("does not match its digest"), "{error}");
    let image = changed(b"the content of", b"THE content of").unwrap();
    let error = read_layer(&image.layers[0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().starts_with("layer 1 of 1 (sha256:"), "{error}");
    let error = changed(b"1.0.0", b"2.0.0").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn an_archive_without_parts_says_which_are_missing() {
    let error = open(&TarFile::default().finish(), "", None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("docker-archive:PATH"), "{error}");
    assert!(open(&layout().finish(), "", None).unwrap_err().to_string().contains("index.json"));
    let absent = json!({"mediaType": MANIFEST_OCI, "size": 1, "digest": Digest::of(b"absent")});
    let error = open(&finish(layout(), &[absent]), "", None).unwrap_err();
    assert!(error.to_string().contains("has no blob sha256:"), "{error}");
    let error = open(&finish(layout(), &[]), "", None).unwrap_err();
    assert!(error.to_string().contains("has no image"), "{error}");
}

#[test]
fn indexes_without_end_are_refused() {
    let mut file = layout();
    let mut entry = image(&mut file, &[b"x"], "amd64");
    for _ in 0..6 {
        let index = json!({"schemaVersion": 2, "mediaType": INDEX_OCI, "manifests": [entry]});
        entry = file.document(INDEX_OCI, &index);
    }
    let error = open(&finish(file, &[entry]), "", None).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().contains("without end")),
        (ErrorKind::Corrupt, true),
        "{error}"
    );
}

#[test]
fn a_size_that_is_not_the_blobs_is_an_error() {
    let mut file = layout();
    let config = file.document(CONFIG_OCI, &config(&[b"layer"]));
    let digest = file.blob(b"layer");
    let layer = json!({"mediaType": LAYER, "size": 6, "digest": digest});
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": [layer]});
    let entry = file.document(MANIFEST_OCI, &manifest);
    let image = open(&finish(file, &[entry]), "", None).unwrap();
    let error = image.layers[0].open().err().unwrap();
    assert!(error.to_string().contains("has 5 bytes, not 6"), "{error}");
}
