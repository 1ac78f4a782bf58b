//! Artifacts that belong to a manifest, such as plans, hash trees and signatures. An artifact is a manifest whose field
//! `subject` names the manifest that it belongs to.
//!
//! Some registries list the artifacts of a manifest themselves. In all other stores (other registries, and the layouts
//! of directories, web servers and object stores), the list is an index of manifests under a tag made of the subject's
//! digest ([`referrers_tag`](crate::layout::referrers_tag)). A writer that adds an artifact to such an index reads the
//! index, changes it and writes it back. Changes of other writers at the same time are not lost: directories have a
//! lock, object stores have conditional writes, and in a registry the writer reads the index again.
//!
//! A list is not trusted: entries that are not valid are left out, and an entry does not prove that the artifact
//! exists. An artifact's manifest is checked against its digest when it is read.

use crate::MAX_MANIFEST_SIZE;
use crate::media_type::INDEX_OCI;
use headstart_block::{Digest, Error, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The maximum number of artifacts of one kind that are read for one manifest. Longer lists are cut short.
pub const MOST_REFERRERS: usize = 10_000;

/// An artifact that belongs to a manifest, as a list of artifacts describes it. None of the fields is checked
/// against the artifact itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referrer {
    /// The digest of the artifact's manifest.
    pub digest: Digest,
    /// The media type of the artifact's manifest.
    pub media_type: String,
    /// The type of the artifact, such as a preload plan or hash trees.
    pub artifact_type: String,
    /// The length of the artifact's manifest in bytes.
    pub size: u64,
    /// The annotations of the artifact's manifest.
    pub annotations: BTreeMap<String, String>,
}

impl Referrer {
    fn parse(entry: &Value) -> Option<Self> {
        let text = |key| entry.get(key).and_then(Value::as_str);
        let annotations = entry.get("annotations").and_then(Value::as_object);
        let annotations = annotations.into_iter().flatten();
        Some(Self {
            digest: text("digest")?.parse().ok()?,
            media_type: text("mediaType")?.to_owned(),
            artifact_type: text("artifactType")?.to_owned(),
            size: entry.get("size")?.as_u64()?,
            annotations: annotations
                .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
                .collect(),
        })
    }
}

/// The artifacts of one kind in a list, in its order, each once.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] where it is no index.
pub(crate) fn listed(list: &[u8], artifact_type: &str) -> Result<Vec<Referrer>> {
    let wrong = || Error::corrupt("is not a list of artifacts");
    let list: Value = serde_json::from_slice(list).map_err(|e| wrong().caused_by(e))?;
    let entries = match list.get("manifests") {
        Some(Value::Array(entries)) => entries,
        // Some registries send this if there are none.
        Some(Value::Null) => return Ok(Vec::new()),
        _ => return Err(wrong()),
    };
    let found = entries.iter().filter_map(Referrer::parse);
    let mut found: Vec<_> =
        found.filter(|entry| entry.artifact_type == artifact_type).take(MOST_REFERRERS).collect();
    let mut seen = std::collections::BTreeSet::new();
    found.retain(|entry| seen.insert(entry.digest));
    Ok(found)
}

/// An artifact on its way into a list, and the artifacts that it replaces.
pub(crate) struct Change<'a> {
    pub(crate) artifact: &'a [u8],
    pub(crate) digest: Digest,
    pub(crate) media_type: &'a str,
    /// With the artifact's own digest among them, it becomes the newest of its kind if it was listed before.
    pub(crate) replaced: &'a [Digest],
}

impl Change<'_> {
    /// The list with this change; `None` if there is nothing to change. A document that is not a list is replaced by a
    /// new one.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] where the artifact is none, `Unsupported` where the list gets too long.
    pub(crate) fn of(&self, list: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
        let list = list.and_then(|list| serde_json::from_slice::<Value>(list).ok());
        let before = list.and_then(|list| list["manifests"].as_array().cloned()).unwrap_or_default();
        let own = self.digest.to_string();
        let is_replaced =
            |text: &str| text != own && text.parse().is_ok_and(|digest| self.replaced.contains(&digest));
        let mut after = before.clone();
        after.retain(|entry| !entry["digest"].as_str().is_some_and(is_replaced));
        match after.iter().position(|entry| entry["digest"] == own) {
            None => after.push(self.entry()?),
            Some(at) if self.replaced.contains(&self.digest) => {
                let is_alike = |entry: &Value| entry["artifactType"] == after[at]["artifactType"];
                if after.iter().skip(at + 1).any(is_alike) {
                    let entry = after.remove(at);
                    after.push(entry);
                }
            }
            Some(_) => {}
        }
        if after == before {
            return Ok(None);
        }
        let list = json!({ "schemaVersion": 2, "mediaType": INDEX_OCI, "manifests": after });
        let list = list.to_string().into_bytes();
        if list.len() as u64 > MAX_MANIFEST_SIZE {
            return Err(Error::unsupported("has more artifacts than a list can hold"));
        }
        Ok(Some(list))
    }

    fn entry(&self) -> Result<Value> {
        let wrong = |e| Error::invalid("is not a manifest").about(self.digest).caused_by(e);
        let artifact: Value = serde_json::from_slice(self.artifact).map_err(wrong)?;
        let kinds = [&artifact["artifactType"], &artifact["config"]["mediaType"]];
        let (digest, size) = (self.digest.to_string(), self.artifact.len());
        let mut entry = json!({ "mediaType": self.media_type, "digest": digest, "size": size });
        if let Some(kind) = kinds.into_iter().find(|kind| kind.is_string()) {
            entry["artifactType"] = kind.clone();
        }
        if artifact["annotations"].is_object() {
            entry["annotations"] = artifact["annotations"].clone();
        }
        Ok(entry)
    }
}

/// `true` if a manifest is an artifact of `subject`, of the same kind as another artifact: only such a one may be
/// replaced by that.
pub(crate) fn is_alike(manifest: &[u8], subject: &Digest, artifact: &[u8]) -> bool {
    let parse = |bytes| serde_json::from_slice::<Value>(bytes).unwrap_or_default();
    let (old, new) = (parse(manifest), parse(artifact));
    old["subject"]["digest"] == subject.to_string()
        && old["artifactType"].is_string()
        && old["artifactType"] == new["artifactType"]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn artifact(kind: &str, name: &str) -> Vec<u8> {
        let manifest = json!({
            "artifactType": kind, "annotations": { "name": name }, "subject": { "digest": Digest::of(b"image") },
        });
        manifest.to_string().into_bytes()
    }

    fn add(list: Option<&[u8]>, artifact: &[u8], replaced: &[Digest]) -> Option<Vec<u8>> {
        let digest = Digest::of(artifact);
        Change { artifact, digest, media_type: "m", replaced }.of(list).unwrap()
    }

    #[test]
    fn a_list_takes_artifacts_and_gives_up_what_they_replace() {
        let (old, trees, new) = (artifact("plan", "old"), artifact("trees", "t"), artifact("plan", "new"));
        let list = add(None, &old, &[]).unwrap();
        assert_eq!(add(Some(&list), &old, &[Digest::of(&old)]), None, "nothing replaces itself");
        let list = add(Some(&list), &trees, &[]).unwrap();
        let plans = listed(&list, "plan").unwrap();
        assert_eq!(plans.len(), 1);
        assert_eq!((plans[0].digest, plans[0].size), (Digest::of(&old), old.len() as u64));
        assert_eq!(plans[0].annotations["name"], "old");
        let list = add(Some(&list), &new, &[Digest::of(&old)]).unwrap();
        let digests = |kind| listed(&list, kind).unwrap().iter().map(|r| r.digest).collect::<Vec<_>>();
        assert_eq!((digests("plan"), digests("trees")), (vec![Digest::of(&new)], vec![Digest::of(&trees)]));
        assert_eq!(listed(&list, "other").unwrap(), []);
        // An artifact that comes again beside another one of its kind is the newest, if it is to be.
        let list = add(Some(&list), &old, &[]).unwrap();
        assert_eq!(add(Some(&list), &new, &[]), None);
        let list = add(Some(&list), &new, &[Digest::of(&new)]).unwrap();
        let plans: Vec<_> = listed(&list, "plan").unwrap().iter().map(|plan| plan.digest).collect();
        assert_eq!(plans, [Digest::of(&old), Digest::of(&new)]);
        // A document that is not a list is replaced by a new one, and only manifests go in.
        assert!(add(Some(b"<html>"), &new, &[]).is_some());
        let change = Change { artifact: b"x", digest: Digest::of(b"x"), media_type: "m", replaced: &[] };
        assert!(change.of(None).is_err());
    }

    #[test]
    fn only_what_is_alike_is_replaced() {
        let (plan, subject) = (artifact("plan", "a"), Digest::of(b"image"));
        assert!(is_alike(&artifact("plan", "b"), &subject, &plan));
        assert!(!is_alike(&artifact("trees", "b"), &subject, &plan));
        assert!(!is_alike(&artifact("plan", "b"), &Digest::of(b"other"), &plan));
        assert!(!is_alike(b"", &subject, &plan) && !is_alike(b"{}", &subject, b"{}"));
    }

    #[test]
    fn hostile_lists_are_errors_or_passed_over() {
        for text in ["", "[]", "{}", "7", r#"{"manifests":7}"#, r#"{"manifests":{}}"#] {
            assert!(listed(text.as_bytes(), "plan").is_err(), "{text}");
        }
        assert_eq!(listed(br#"{"manifests":null}"#, "plan").unwrap(), []);
        let good = json!({
            "mediaType": "m", "digest": Digest::of(b""), "size": 1, "artifactType": "plan",
            "annotations": {"a": 7, "b": "c"},
        });
        let mut entries = vec![json!(null), json!([]), json!("x"), good.clone(), good.clone()];
        for (key, value) in [("digest", json!("sha256:../..")), ("size", json!(-1)), ("mediaType", json!(7))]
        {
            let mut bad = good.clone();
            bad[key] = value;
            entries.push(bad);
        }
        let list = json!({ "manifests": entries }).to_string();
        let found = listed(list.as_bytes(), "plan").unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].annotations, BTreeMap::from([("b".to_owned(), "c".to_owned())]));
    }

    proptest! {
        #[test]
        fn damaged_lists_never_panic(
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut list = add(None, &artifact("plan", "a"), &[]).unwrap();
            for (at, value) in flips {
                let at = at.index(list.len());
                list[at] = value;
            }
            let _ = listed(&list, "plan");
            let _ = add(Some(&list), &artifact("plan", "b"), &[Digest::of(b"x")]);
        }
    }
}
