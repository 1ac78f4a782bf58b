//! Grants: the moments at which stores have let this host read images.
//!
//! An image that is whole in the cache needs its store for one thing: to learn whether this host may still read it. A
//! store that is away says nothing, and one that is far away says it late. So a host keeps, for each image, when its
//! store has last given out the manifest, or that it has refused it:
//!
//! ```text
//! headstart grant 1 sha256:<digest of the manifest> <seconds since 1970, or `refused`>
//! ```
//!
//! With a limit ([`offline_limit`](crate::attach::DiskOptions::offline_limit)), an image with a younger grant is
//! attached by its digest if the store does not answer at once. The question stays, and an answer that comes later is
//! kept. An older grant is none. A grant is for one manifest in one repository: that of another image, or of another
//! repository with the same image, does not count.

use crate::known_files::KnownFiles;
use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_image::disk_form::{FormWish, FoundForm, wanted_form, wanted_form_again};
use headstart_store::{Selector, Store, unless_away, warn_if_silent};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

/// The beginning of a grant; the number is the version of the form.
const MAGIC: &str = "headstart grant 1 ";

/// The word in the place of a time.
const REFUSED: &str = "refused";

/// The length of the longest file that is read.
const LENGTH_MAX: u64 = 256;

/// The time that a store on the same network takes for an answer. One that takes longer is not waited for.
const PATIENCE: Duration = Duration::from_millis(15);

/// The age from which on a grant is written anew.
const RENEWED: Duration = Duration::from_secs(600);

/// The knowledge of a host about its right to an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// The store gave out the manifest, so long ago.
    Given(Duration),
    /// The store refused it when it was asked last, or what was kept is damaged.
    Refused,
    /// Nothing is known: the image is new, or an earlier version has attached it.
    Unknown,
}

/// The grants of a host.
#[derive(Clone)]
pub(crate) struct Grants(KnownFiles);

impl Grants {
    /// The grants beside the cache in `cache`.
    pub(crate) fn of(cache: &Path) -> Self {
        Self(KnownFiles { dir: cache.join("grants"), about: "the right to an image", length_max: LENGTH_MAX })
    }

    /// The grant for the image of this name (as [`known_images::name`](crate::known_images::name) has it).
    pub(crate) fn get(&self, name: &str, digest: &Digest) -> Grant {
        self.0.read(name).map_or(Grant::Unknown, |bytes| parse(&bytes, digest, now()))
    }

    /// Keeps that the store has given out the manifest just now.
    pub(crate) fn renew(&self, name: &str, digest: &Digest) {
        if !matches!(self.get(name, digest), Grant::Given(age) if age < RENEWED) {
            self.write(name, digest, &now().to_string());
        }
    }

    /// Keeps that the store refuses it.
    pub(crate) fn withdraw(&self, name: &str, digest: &Digest) {
        self.write(name, digest, REFUSED);
    }

    fn write(&self, name: &str, digest: &Digest, word: &str) {
        if let Err(error) = self.0.write(name, format!("{MAGIC}{digest} {word}\n").as_bytes()) {
            tracing::warn!(%error, "the right to an image is not remembered");
        }
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The grant in a file. One that was given in the future, by a clock that was wrong, counts as refused.
fn parse(bytes: &[u8], digest: &Digest, now: u64) -> Grant {
    let found = || {
        let line = std::str::from_utf8(bytes).ok()?.strip_prefix(MAGIC)?.strip_suffix('\n')?;
        let (of, word) = line.split_once(' ')?;
        (of.parse::<Digest>().ok()? == *digest).then_some(())?;
        if word == REFUSED {
            return Some(Grant::Refused);
        }
        let age = now.checked_sub(word.parse().ok()?)?;
        Some(Grant::Given(Duration::from_secs(age)))
    };
    // A damaged file, and one from the future, may have been a refusal.
    found().unwrap_or(Grant::Refused)
}

/// The answer to the question whether a name still stands for an image: another one, if it does not.
type Answer = Result<Option<FoundForm>>;

/// A question to a store, which goes on if its answer is not waited for.
pub(crate) struct Question {
    answer: JoinHandle<Answer>,
    asked: Instant,
}

impl Question {
    /// Asks whether this host may still read the image `digest`.
    pub(crate) fn ask(
        runtime: &Handle,
        store: Arc<dyn Store>,
        selector: Selector,
        digest: Digest,
        (grants, name): (Grants, String),
    ) -> Self {
        let began = Instant::now();
        let asked = async move {
            let answer = wanted_form_again(&*store, &selector, FormWish::Newest, &digest).await;
            keep(&*store, &answer, &grants, &name, &digest).await;
            if let Err(error) = answer.as_ref()
                && is_refusal(error)
                && began.elapsed() > PATIENCE
            {
                tracing::warn!(%error, name, "a store refuses an image that was attached from the cache");
            }
            answer
        };
        Self { answer: runtime.spawn(asked), asked: began }
    }

    /// The answer, if it comes soon after the question.
    pub(crate) async fn soon(self) -> Option<Answer> {
        timeout_at(self.asked + PATIENCE, self.answer).await.ok()?.ok()
    }
}

/// Keeps what a store has answered about an image. Access is denied only where all credentials of this host were
/// refused, also while pulls offer others. But where the image is hidden from one user, no others are asked for: if
/// that one may be a pull's alone, the answer says nothing about the right of this host.
pub(crate) async fn keep(store: &dyn Store, answer: &Answer, grants: &Grants, name: &str, digest: &Digest) {
    match answer {
        Ok(None) => grants.renew(name, digest),
        Ok(Some(other)) => grants.renew(name, &other.digest),
        Err(error) if error.kind() == ErrorKind::Denied => grants.withdraw(name, digest),
        Err(error) if is_refusal(error) && !store.may_have_refused_others().await => {
            grants.withdraw(name, digest);
        }
        Err(_) => {}
    }
}

/// `true` if a store says that this host has no right to an image, or hides the image from it.
fn is_refusal(error: &Error) -> bool {
    [ErrorKind::Denied, ErrorKind::NotFound].contains(&error.kind())
}

/// Requests a manifest with all the time that a slow store needs. A store that cannot be reached, a mistyped host for
/// example, is reported within seconds: a separate check finds that out.
pub(crate) async fn ask_for_image(
    store: &dyn Store,
    selector: &Selector,
    wish: FormWish,
    warn_of_silence: Option<Duration>,
) -> Result<FoundForm> {
    warn_if_silent(store, warn_of_silence, unless_away(store, wanted_form(store, selector, wish))).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_for_one_manifest_of_one_name_and_ends_with_a_refusal() {
        let dir = tempfile::tempdir().unwrap();
        let grants = Grants::of(dir.path());
        let (digest, other) = (Digest::of(b"a"), Digest::of(b"b"));
        assert_eq!(grants.get("oci://host/a", &digest), Grant::Unknown);
        grants.renew("oci://host/a", &digest);
        assert!(matches!(grants.get("oci://host/a", &digest), Grant::Given(age) if age < RENEWED));
        assert_eq!(grants.get("oci://host/a", &other), Grant::Refused);
        assert_eq!(grants.get("oci://host/b", &digest), Grant::Unknown);
        grants.withdraw("oci://host/a", &digest);
        assert_eq!(grants.get("oci://host/a", &digest), Grant::Refused);
        grants.renew("oci://host/a", &digest);
        assert!(matches!(grants.get("oci://host/a", &digest), Grant::Given(_)));
    }

    #[test]
    fn what_is_no_grant_gives_none() {
        let digest = Digest::of(b"a");
        let whole = format!("{MAGIC}{digest} 100\n");
        assert_eq!(parse(whole.as_bytes(), &digest, 160), Grant::Given(Duration::from_secs(60)));
        assert_eq!(parse(whole.as_bytes(), &digest, 99), Grant::Refused, "of the future");
        for len in 0..whole.len() {
            assert_eq!(parse(&whole.as_bytes()[..len], &digest, 160), Grant::Refused, "{len}");
        }
    }
}
