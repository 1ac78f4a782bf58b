use super::*;
use crate::open::open_docker_archive;
use crate::support::{TarFile, config, read_layer};
use crate::{ContainerImage, ImagePlatform};
use flate2::Compression;
use flate2::write::GzEncoder;
use headstart_store::media_type::{CONFIG_OCI, INDEX_OCI, MANIFEST_OCI};
use serde_json::{Value, json};
use std::io::Write;

fn open(archive: Vec<u8>, choice: &str) -> Result<ContainerImage> {
    open_for(archive, choice, None)
}

fn open_for(archive: Vec<u8>, choice: &str, platform: Option<&ImagePlatform>) -> Result<ContainerImage> {
    let choice = if choice.is_empty() { ArchiveChoice::Only } else { choice.parse()? };
    open_docker_archive(Arc::new(archive), "archive", &choice, platform)
}

/// Adds a config, and returns the name of its file.
fn add_config(file: &mut TarFile, contents: &[&[u8]]) -> String {
    let config = config(contents).to_string();
    let name = format!("{}.json", Digest::of(config.as_bytes()).hex());
    file.add(&name, config.as_bytes());
    name
}

fn finish(mut file: TarFile, list: &Value) -> Vec<u8> {
    file.add(LIST, list.to_string().as_bytes());
    file.finish()
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn the_old_form_is_read_with_its_links() {
    let mut file = TarFile::default();
    file.add("1/VERSION", b"1.0");
    file.add("1/layer.tar", b"low");
    file.link("2/layer.tar", "../1/layer.tar");
    file.add("3/layer.tar", b"high");
    let config = add_config(&mut file, &[b"low", b"low", b"high"]);
    let layers = ["1/layer.tar", "2/layer.tar", "3/layer.tar"];
    let image =
        open(finish(file, &json!([{"Config": config, "RepoTags": null, "Layers": layers}])), "").unwrap();
    let contents: Vec<_> = image.layers.iter().map(|layer| read_layer(layer).unwrap()).collect();
    assert_eq!(contents, [&b"low"[..], b"low", b"high"]);
    let layer = &image.layers[2];
    assert_eq!((layer.digest, layer.diff_id, layer.size), (Digest::of(b"high"), Digest::of(b"high"), 4));
    assert_eq!(layer.compression, LayerCompression::None);
    assert_eq!(image.manifest_media_type, MANIFEST_DOCKER);
    // Made anew each time, and always the same.
    assert_eq!(image.manifest_digest, Digest::of(&image.manifest));
    let expected = format!(
        "{{\"schemaVersion\":2,\"mediaType\":\"{MANIFEST_DOCKER}\",\"config\":{{\"mediaType\":\"{CONFIG_DOCKER}\",\
         \"digest\":\"{}\",\"size\":{}}},\"layers\":[{{",
        image.config_digest,
        image.config.len()
    );
    assert!(image.manifest.starts_with(expected.as_bytes()), "{}", String::from_utf8_lossy(&image.manifest));
}

#[test]
fn layers_that_others_compressed_are_named_by_their_own_digests() {
    let stored = gzip(b"content");
    let mut file = TarFile::default();
    file.add("x.tar.gz", &stored);
    let config = add_config(&mut file, &[b"content", b"content"]);
    let list = json!([{"Config": config, "Layers": ["x.tar.gz", "x.tar.gz"]}]);
    let image = open(finish(file, &list), "").unwrap();
    for layer in &image.layers {
        assert_eq!((layer.compression, layer.digest), (LayerCompression::Gzip, Digest::of(&stored)));
        assert_eq!((layer.diff_id, layer.size), (Digest::of(b"content"), stored.len() as u64));
        assert_eq!(read_layer(layer).unwrap(), stored);
    }
}

#[test]
fn the_manifest_of_the_new_form_is_taken_as_it_is() {
    let stored = gzip(b"content");
    let mut file = TarFile::default();
    file.add("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#);
    let config = file.document(CONFIG_OCI, &config(&[b"content"]));
    let layer = json!({
        "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "size": stored.len(), "digest": file.blob(&stored),
    });
    let manifest =
        json!({"schemaVersion": 2, "mediaType": MANIFEST_OCI, "config": config, "layers": [layer]});
    let manifest = file.document(MANIFEST_OCI, &manifest);
    let absent = json!({"mediaType": MANIFEST_OCI, "size": 1, "digest": Digest::of(b"another platform")});
    let index = json!({"schemaVersion": 2, "mediaType": INDEX_OCI, "manifests": [absent, manifest]});
    let index = file.document(INDEX_OCI, &index);
    let top = json!({"schemaVersion": 2, "mediaType": INDEX_OCI, "manifests": [index]});
    file.add("index.json", top.to_string().as_bytes());
    let blob = |digest: &Value| {
        let digest: Digest = digest.as_str().unwrap().parse().unwrap();
        format!("{BLOBS}{}", digest.hex())
    };
    let list = json!([{"Config": blob(&config["digest"]), "Layers": [blob(&layer["digest"])]}]);
    let image = open(finish(file, &list), "").unwrap();
    assert_eq!(json!(image.manifest_digest), manifest["digest"]);
    assert_eq!(
        (image.manifest_media_type.as_str(), &image.config_media_type[..]),
        (MANIFEST_OCI, CONFIG_OCI)
    );
    assert_eq!(read_layer(&image.layers[0]).unwrap(), stored);
}

#[test]
fn images_are_chosen_by_names_as_docker_completes_them() {
    let mut file = TarFile::default();
    file.add("one.tar", b"one");
    file.add("two.tar", b"two");
    let (one, two) = (add_config(&mut file, &[b"one"]), add_config(&mut file, &[b"two"]));
    let list = json!([
        {"Config": one, "RepoTags": ["app:latest", "app:1"], "Layers": ["one.tar"]},
        {"Config": two, "RepoTags": ["h:5000/app:2"], "Layers": ["two.tar"]},
    ]);
    let archive = finish(file, &list);
    for (choice, expected) in
        [("app", &b"one"[..]), ("docker.io/library/app:1", b"one"), ("@1", b"two"), ("h:5000/app:2", b"two")]
    {
        let image = open(archive.clone(), choice).unwrap();
        assert_eq!(read_layer(&image.layers[0]).unwrap(), expected, "{choice}");
    }
    for (choice, kind, says) in [
        ("", ErrorKind::Invalid, "has 2 images: app:1, app:latest, h:5000/app:2; name one"),
        ("app:2", ErrorKind::NotFound, "has no image `app:2`: there are app:1"),
        ("@2", ErrorKind::NotFound, "has no image @2"),
    ] {
        let error = open(archive.clone(), choice).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
    let arm: ImagePlatform = "linux/arm64".parse().unwrap();
    let error = open_for(archive, "app", Some(&arm)).unwrap_err();
    assert!(error.to_string().contains("is for linux/amd64, not for linux/arm64"), "{error}");
}

#[test]
fn damaged_and_hostile_lists_are_refused() {
    let open_list = |list: &Value| {
        let mut file = TarFile::default();
        file.add("layer.tar", b"layer");
        file.add("bad.json", b"{}");
        file.link("out.tar", "../../etc/passwd");
        file.add(&format!("{}.json", "0".repeat(64)), b"{}");
        add_config(&mut file, &[b"layer"]);
        open(finish(file, list), "")
    };
    let good = format!("{}.json", Digest::of(config(&[b"layer"]).to_string().as_bytes()).hex());
    assert!(open_list(&json!([{"Config": good, "Layers": ["layer.tar"]}])).is_ok());
    for (list, kind, says) in [
        (json!({}), ErrorKind::Corrupt, "not a list of images"),
        (json!([{"Layers": []}]), ErrorKind::Corrupt, "not a list of images"),
        (json!([]), ErrorKind::NotFound, "has no image"),
        (json!([{"Config": "absent"}]), ErrorKind::NotFound, "has no member \"absent\""),
        (json!([{"Config": "../x"}]), ErrorKind::Corrupt, "outside of the archive"),
        (json!([{"Config": "bad.json", "Layers": ["layer.tar"]}]), ErrorKind::Corrupt, "0 diff ids"),
        (
            json!([{"Config": format!("{}.json", "0".repeat(64)), "Layers": []}]),
            ErrorKind::Corrupt,
            "does not match the digest in its name",
        ),
        (json!([{"Config": good, "Layers": ["out.tar"]}]), ErrorKind::Corrupt, "leads out of the archive"),
        (json!([{"Config": good, "Layers": []}]), ErrorKind::Corrupt, "1 diff ids, but its manifest has 0"),
        (
            json!([{"Config": good, "Layers": vec!["layer.tar"; MAX_LAYERS + 1]}]),
            ErrorKind::Unsupported,
            "501 layers",
        ),
    ] {
        let error = open_list(&list).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says) && error.to_string().starts_with("archive: "), "{error}");
    }
    let error = open(TarFile::default().finish(), "").unwrap_err();
    assert!(error.to_string().contains("Docker 1.10"), "{error}");
}

#[test]
fn a_layer_that_is_not_the_one_of_the_config_is_an_error() {
    let mut file = TarFile::default();
    file.add("layer.tar", b"another");
    let config = add_config(&mut file, &[b"layer"]);
    let image = open(finish(file, &json!([{"Config": config, "Layers": ["layer.tar"]}])), "").unwrap();
    let error = read_layer(&image.layers[0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("layer 1 of 1"), "{error}");
}
