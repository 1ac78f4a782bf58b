use super::*;
use headstart_block::ErrorKind;
use proptest::prelude::*;
use serde_json::json;

fn descriptor(media_type: &str, content: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": Digest::of(content).to_string(), "size": content.len()})
}

fn manifest() -> Value {
    json!({
        "schemaVersion": 2, "mediaType": MANIFEST_DOCKER, "config": descriptor(CONFIG_DOCKER, b"{}"),
        "layers": [descriptor("application/vnd.docker.image.rootfs.diff.tar.gzip", b"low")],
    })
}

fn parse(value: &Value) -> Result<ImageDocument> {
    ImageDocument::parse(value.to_string().as_bytes())
}

#[test]
fn manifests_of_docker_and_of_oci_are_read() {
    let ImageDocument::Manifest(docker) = parse(&manifest()).unwrap() else { unreachable!() };
    assert_eq!(docker.media_type, MANIFEST_DOCKER);
    assert_eq!((docker.layers[0].digest, docker.layers[0].size), (Digest::of(b"low"), 3));
    // OCI's may leave the media type out.
    let oci = json!({
        "schemaVersion": 2, "config": descriptor(CONFIG_OCI, b"{}"), "annotations": {"a": "b"},
        "layers": [],
    });
    let ImageDocument::Manifest(oci) = parse(&oci).unwrap() else { unreachable!() };
    assert_eq!((oci.media_type.as_str(), oci.layers.len()), (MANIFEST_OCI, 0));
    assert_eq!(oci.annotations["a"], "b");
    for media_type in [Some(INDEX_OCI), Some(INDEX_DOCKER), None] {
        let mut index = json!({"schemaVersion": 2, "manifests": []});
        if let Some(media_type) = media_type {
            index["mediaType"] = json!(media_type);
        }
        assert!(matches!(parse(&index).unwrap(), ImageDocument::Index(_)));
    }
}

#[test]
fn other_documents_are_refused_by_name() {
    let with = |key: &str, value: Value| {
        let mut document = manifest();
        document[key] = value;
        document
    };
    let layer = |value: Value| with("layers", json!([value]));
    let annotated = {
        let mut layer = descriptor("application/vnd.oci.image.layer.v1.tar", b"x");
        layer["annotations"] = json!({OVERLAYBD: "sha256:00"});
        layer
    };
    let too_many = vec![descriptor("application/vnd.oci.image.layer.v1.tar", b"x"); MAX_LAYERS + 1];
    for (document, kind, says) in [
        (json!([]), ErrorKind::Unsupported, "schema version 2"),
        (json!({"schemaVersion": 1, "fsLayers": []}), ErrorKind::Unsupported, "schema version 1"),
        (with("schemaVersion", json!(3)), ErrorKind::Unsupported, "schema version 2"),
        (with("manifests", json!([])), ErrorKind::Corrupt, "at the same time"),
        (with("mediaType", json!(INDEX_OCI)), ErrorKind::Corrupt, "without a list of manifests"),
        (with("mediaType", json!("a/b")), ErrorKind::Unsupported, "`a/b`"),
        (json!({"schemaVersion": 2}), ErrorKind::Corrupt, "without config"),
        (with("config", descriptor("a/b", b"")), ErrorKind::Unsupported, "artifact"),
        (with("config", json!({})), ErrorKind::Corrupt, "not an image manifest"),
        (with("layers", json!(too_many)), ErrorKind::Unsupported, "501 layers"),
        (layer(descriptor("a/b", b"")), ErrorKind::Unsupported, "its layer 1 of 1"),
        (layer(annotated), ErrorKind::Unsupported, "OverlayBD"),
        (
            layer(json!({"mediaType": "application/vnd.oci.image.layer.v1.tar", "size": -1, "digest": "x"})),
            ErrorKind::Corrupt,
            "not an image manifest",
        ),
        (
            layer(json!({
                "mediaType": "application/vnd.oci.image.layer.v1.tar", "size": 1,
                "digest": format!("sha512:{}", "0".repeat(128)),
            })),
            ErrorKind::Unsupported,
            "sha512",
        ),
    ] {
        let error = parse(&document).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
    assert_eq!(ImageDocument::parse(b"{").unwrap_err().kind(), ErrorKind::Corrupt);
    let long = vec![b' '; 5 << 20];
    assert_eq!(ImageDocument::parse(&long).unwrap_err().kind(), ErrorKind::Unsupported);
}

proptest! {
    /// Goal: a changed document is refused or read, and never breaks the parser.
    #[test]
    fn hostile_manifests_never_panic(changes in prop::collection::vec((0usize..400, any::<u8>()), 1..4)) {
        let mut bytes = manifest().to_string().into_bytes();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        let _ = ImageDocument::parse(&bytes);
    }
}
