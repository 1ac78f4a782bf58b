//! Listing the forms of a container's image, of which some cannot be read.

use async_trait::async_trait;
use bytes::Bytes;
use headstart_block::{ByteRange, Digest, Error, ErrorKind, ReadAt, Result};
use headstart_image::forms::forms;
use headstart_image::manifest::{BLOB_DIGEST, OVERLAYBD_IMAGE};
use headstart_image::reference::{Selector, Tag};
use headstart_store::{Copied, Referrer, Store, StoreCounters, Urgency};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// The manifest of an image of one layer.
fn manifest(layer: &Value, annotations: &Value) -> Bytes {
    let digest = Digest::of(b"layer").to_string();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": { "mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest, "size": 5 },
        "layers": [{
            "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest, "size": 5, "annotations": layer,
        }],
        "annotations": annotations,
    });
    manifest.to_string().into()
}

/// A store with a container's image and two forms, the older one of which is read with an error.
struct Forms {
    original: Bytes,
    newer: Bytes,
    error: ErrorKind,
}

impl Forms {
    fn new(error: ErrorKind) -> Self {
        let original = manifest(&json!({}), &json!({}));
        let annotations = json!({
            "dev.headstart.converted-from": Digest::of(&original).to_string(),
            "dev.headstart.converted-from-type": MANIFEST,
            "dev.headstart.converter": "1,fs=ext4",
        });
        let newer = manifest(&json!({ BLOB_DIGEST: Digest::of(b"layer").to_string() }), &annotations);
        Self { original, newer, error }
    }
}

#[async_trait]
impl Store for Forms {
    fn location(&self) -> String {
        "oci://registry/repo".to_owned()
    }

    async fn check(&self) -> Result<()> {
        Ok(())
    }

    async fn manifest(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        match selector {
            Selector::Tag(_) => Ok((Digest::of(&self.original), self.original.clone())),
            Selector::Digest(digest) if *digest == Digest::of(&self.newer) => {
                Ok((*digest, self.newer.clone()))
            }
            Selector::Digest(_) => Err(Error::new(self.error, "no")),
        }
    }

    async fn read(&self, _: &Digest, _: ByteRange, _: Urgency) -> Result<Bytes> {
        Err(Error::new(ErrorKind::NotFound, "no such blob"))
    }

    async fn blob_len(&self, _: &Digest) -> Result<Option<u64>> {
        Ok(None)
    }

    async fn put_blob(&self, _: &Digest, _: Arc<dyn ReadAt>, _: Copied<'_>) -> Result<()> {
        Err(Error::new(ErrorKind::ReadOnly, "no"))
    }

    async fn put_manifest(&self, _: &str, _: Bytes, _: Option<&Tag>) -> Result<Digest> {
        Err(Error::new(ErrorKind::ReadOnly, "no"))
    }

    async fn tags(&self) -> Result<Vec<Tag>> {
        Ok(Vec::new())
    }

    async fn referrers(&self, _: &Digest, artifact_type: &str) -> Result<Vec<Referrer>> {
        let entry = |digest| Referrer {
            digest,
            media_type: MANIFEST.to_owned(),
            artifact_type: artifact_type.to_owned(),
            size: 5,
            annotations: BTreeMap::new(),
        };
        let is_listed = artifact_type == OVERLAYBD_IMAGE;
        let listed = [Digest::of(b"older"), Digest::of(&self.newer)].map(entry);
        Ok(if is_listed { listed.into() } else { Vec::new() })
    }

    fn counters(&self) -> StoreCounters {
        StoreCounters::default()
    }
}

#[tokio::test]
async fn a_store_that_fails_is_no_form_that_cannot_be_used() {
    let tag = Selector::Tag("app".parse().unwrap());
    for error in [ErrorKind::NotFound, ErrorKind::Corrupt] {
        let store = Forms::new(error);
        let found = forms(&store, &tag).await.unwrap().unwrap();
        let kinds: Vec<_> =
            found.forms.iter().map(|form| form.manifest.as_ref().err().map(Error::kind)).collect();
        assert_eq!(kinds, [None, Some(error)]);
        assert_eq!(found.taken(), [Some(Digest::of(&store.newer)); 2]);
    }
    for error in [ErrorKind::Unavailable, ErrorKind::Denied] {
        let failed = forms(&Forms::new(error), &tag).await.map_err(|error| error.kind());
        assert_eq!(failed.map(|_| ()), Err(error));
    }
}
