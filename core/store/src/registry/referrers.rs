//! Artifacts of a manifest in a registry.
//!
//! A registry that knows referrers lists them itself, in pages. One that does not answers 404 (some give other
//! answers); the list is then an index under a tag of the subject's digest. When an artifact is written, its answer
//! says if the registry saw the subject (`OCI-Subject`); if not, the tag is changed. Registries have no conditional
//! writes. A writer that changed the tag therefore reads it again. If its artifact is not in there, because another
//! writer wrote at the same moment, it adds it again.
//!
//! Until a registry has shown that it lists artifacts, it is asked for its list and for the tag at once: one after the
//! other, two empty answers would take two round trips.
//!
//! The registry itself is asked, never a mirror: few of those know artifacts, and an old list would be believed.

use super::auth::Access;
use super::endpoint::accepted;
use super::{Registry, checked_manifest, next_page};
use crate::MAX_MANIFEST_SIZE;
use crate::counters::Meter;
use crate::http;
use crate::layout::referrers_tag;
use crate::media_type::{INDEX_OCI, MANIFEST_OCI};
use crate::reference::Selector;
use crate::referrers::{Change, MOST_REFERRERS, Referrer, is_alike, listed};
use crate::retry::jitter;
use bytes::Bytes;
use futures::future::{join, join_all};
use headstart_block::{Digest, Error, ErrorKind, Result};
use reqwest::header::{ACCEPT, HeaderMap};
use reqwest::{Method, RequestBuilder};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::sleep;
use url::Url;

/// Most pages of a list: a registry that gives one artifact a page is not worth more.
const MOST_PAGES: usize = 100;

/// The number of times that a list under a tag is changed again because another writer's change undid ours.
const MOST_RACES: u32 = 5;

/// The pause before that, times the number of the try, with jitter.
const PAUSE: Duration = Duration::from_millis(50);

fn accept_index(request: RequestBuilder) -> RequestBuilder {
    request.header(ACCEPT, INDEX_OCI)
}

/// The lists of several kinds, the best kind first. An error of one hides none that is better and not empty.
fn best_lists(lists: Vec<Result<Option<Vec<Referrer>>>>) -> Result<Vec<Vec<Referrer>>> {
    let mut found: Vec<Vec<Referrer>> = Vec::with_capacity(lists.len());
    for list in lists {
        match list {
            Ok(list) => found.push(list.unwrap_or_default()),
            Err(_) if found.iter().any(|list| !list.is_empty()) => found.push(Vec::new()),
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

impl Registry {
    /// The artifacts of each of some kinds: as the registry lists them, or as the tag does.
    pub(super) async fn list_referrers(
        &self,
        subject: &Digest,
        kinds: &[&str],
    ) -> Result<Vec<Vec<Referrer>>> {
        let own = join_all(kinds.iter().map(|kind| self.own_list(subject, kind)));
        let (own, tagged) = if self.lists_artifacts.load(Ordering::Relaxed) {
            (own.await, None)
        } else {
            let (own, tagged) = join(own, self.tagged_list(subject)).await;
            (own, Some(tagged))
        };
        let own = best_lists(own)?;
        let is_found = own.iter().any(|list| !list.is_empty());
        if !own.iter().any(Vec::is_empty) {
            return Ok(own);
        }
        // If it learned about referrers late, or a proxy before it hid that it knows them, they are under the tag.
        let tagged = match tagged {
            Some(tagged) => tagged,
            None => self.tagged_list(subject).await,
        };
        let (url, list) = match tagged {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(own),
            // The registry's own list has what is asked for.
            Err(_) if is_found => return Ok(own),
            Err(error) => return Err(error),
        };
        let of_kind = |(own, kind): (Vec<Referrer>, &&str)| {
            if own.is_empty() {
                listed(&list, kind).map_err(|e| e.about(http::redact(&url)))
            } else {
                Ok(own)
            }
        };
        own.into_iter().zip(kinds).map(of_kind).collect()
    }

    /// The registry's own list; `None` if it has none.
    async fn own_list(&self, subject: &Digest, kind: &str) -> Result<Option<Vec<Referrer>>> {
        let mut url = self.origin.url(&format!("referrers/{subject}"))?;
        url.query_pairs_mut().append_pair("artifactType", kind);
        let mut found: Vec<Referrer> = Vec::new();
        for _ in 0..MOST_PAGES {
            // Each page is tried again by itself.
            let failed = |_| Meter::add(&self.link.meter().retries, 1);
            let page = self.origin.settings.retry.run(|| self.page(url.clone()), failed).await?;
            let Some((headers, list)) = page else {
                self.has_no_list.store(true, Ordering::Relaxed);
                return Ok(None);
            };
            self.lists_artifacts.store(true, Ordering::Relaxed);
            found.extend(listed(&list, kind).map_err(|e| e.about(http::redact(&url)))?);
            match next_page(&headers, &url).filter(|next| self.origin.owns(next) && *next != url) {
                Some(next) if found.len() < MOST_REFERRERS => url = next,
                _ => break,
            }
        }
        found.truncate(MOST_REFERRERS);
        let mut seen = std::collections::BTreeSet::new();
        found.retain(|entry| seen.insert(entry.digest));
        Ok(Some(found))
    }

    /// A page of the registry's own list; `None` if it has no such list.
    async fn page(&self, url: Url) -> Result<Option<(HeaderMap, Bytes)>> {
        let response = self.origin.follow(Access::Pull, &Method::GET, url, accept_index).await?;
        // The answers of registries to a question that they do not know.
        if matches!(response.status().as_u16(), 400 | 404 | 405 | 406 | 501) {
            return Ok(None);
        }
        let response = accepted(response).await?;
        let headers = response.headers().clone();
        let stall = self.origin.settings.stall_timeout;
        Ok(Some((headers, http::small_body(response, MAX_MANIFEST_SIZE, stall).await?)))
    }

    /// The list under the tag, if there is one.
    async fn tagged_list(&self, subject: &Digest) -> Result<Option<(Url, Bytes)>> {
        let url = self.origin.url(&format!("manifests/{}", referrers_tag(subject)))?;
        match self.origin.document(url.clone(), MAX_MANIFEST_SIZE, accept_index).await {
            Ok((_, list)) => Ok(Some((url, list))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes an artifact's manifest and gets it listed.
    pub(super) async fn add_referrer(&self, subject: &Digest, change: &Change<'_>) -> Result<()> {
        let bytes = Bytes::copy_from_slice(change.artifact);
        let name = change.digest.to_string();
        let put = self.origin.put_manifest(&name, change.media_type, &bytes);
        // A registry that has no list of its own is not expected to learn it from this manifest, so the list under the
        // tag is read meanwhile.
        let has_no_list = self.has_no_list.load(Ordering::Relaxed);
        let list = async { if has_no_list { Some(self.tagged_list(subject).await) } else { None } };
        let (headers, list) = join(put, list).await;
        if headers?.contains_key("oci-subject") {
            self.lists_artifacts.store(true, Ordering::Relaxed);
        } else {
            self.change_tagged_list(subject, change, list).await?;
        }
        for old in change.replaced.iter().filter(|old| **old != change.digest) {
            // An old artifact that stays costs a line of a list.
            if let Err(error) = self.remove_artifact(old, subject, change.artifact).await {
                tracing::debug!(%error, artifact = %old, "an artifact that was replaced stays in the registry");
            }
        }
        Ok(())
    }

    /// Gets an artifact listed under the tag of its subject; `read` is the list there, if it was read already.
    async fn change_tagged_list(
        &self,
        subject: &Digest,
        change: &Change<'_>,
        mut read: Option<Result<Option<(Url, Bytes)>>>,
    ) -> Result<()> {
        let tag = referrers_tag(subject);
        // Writers that all want to be the newest would never be done.
        let others: Vec<_> = change.replaced.iter().copied().filter(|old| *old != change.digest).collect();
        let again = Change { replaced: &others, ..*change };
        for race in 1..=MOST_RACES {
            let change = if race == 1 { change } else { &again };
            let list = match read.take() {
                Some(list) => list,
                None => self.tagged_list(subject).await,
            };
            let list = list?.map(|(_, list)| list);
            let Some(list) = change.of(list.as_deref())? else { return Ok(()) };
            self.origin.put_manifest(&tag, INDEX_OCI, &Bytes::from(list)).await?;
            if race > 1 {
                tracing::debug!(tag, race, "another writer changed the list of artifacts at the same time");
            }
            sleep(PAUSE.mul_f64(f64::from(race - 1) * jitter())).await;
        }
        let list = self.tagged_list(subject).await?.map(|(_, list)| list);
        match again.of(list.as_deref())? {
            None => Ok(()),
            Some(_) => {
                Err(Error::new(ErrorKind::Conflict, "others change the list of artifacts all the time")
                    .about(format!("{}:{tag}", self.location))
                    .remedy("run it again"))
            }
        }
    }

    /// Removes an artifact, if it really is one of the same kind.
    async fn remove_artifact(&self, old: &Digest, subject: &Digest, artifact: &[u8]) -> Result<()> {
        let url = self.origin.url(&format!("manifests/{old}"))?;
        let accept = |request: RequestBuilder| request.header(ACCEPT, MANIFEST_OCI);
        let (headers, bytes) = self.origin.document(url.clone(), MAX_MANIFEST_SIZE, accept).await?;
        let (_, bytes) = checked_manifest(&Selector::Digest(*old), &headers, bytes)?;
        if !is_alike(&bytes, subject, artifact) {
            return Err(Error::corrupt("differs from its entry in the list").about(old));
        }
        Meter::add(&self.origin.meter.requests, 1);
        let limit = self.origin.settings.first_byte_timeout;
        let same = |request| request;
        let response = self.origin.send(Access::Push, &Method::DELETE, &url, limit, same).await?;
        accepted(response).await.map(drop)
    }
}
