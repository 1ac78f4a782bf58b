//! The credentials that Kubernetes gives with its pulls, kept for the disks of the images.
//!
//! Kubernetes hands a pod's `imagePullSecrets` to containerd with each pull, and not to snapshotters. They come by here
//! ([`ImageProxy`](crate::image_proxy::ImageProxy)), and go into a file from which all requests of this host to the
//! registry take them ([`PullCredentials`]).
//!
//! Credentials that are offered count for the pull alone, beside the ones that were accepted. Those with which
//! containerd has pulled the image are accepted: the registry has taken them for that repository, and they are kept for
//! a time. Each pull begins that time again. A pull that fails, or whose process is killed, leaves what was accepted as
//! it was.
//!
//! A repository has one user's credentials at a time. If two users pull from one repository, such as two namespaces of
//! Kubernetes, those count that have pulled last: the registry gives both the same bytes.
//!
//! The file is not encrypted: its key would be beside it, as everything is that a host needs in order to start
//! by itself.

use headstart_block::Result;
use headstart_daemon::file::{Readers, replace};
use headstart_store::{PULL_CREDENTIALS_MOST, PullCredential, PullCredentials};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest time that a pull may take whose credentials are neither accepted nor refused: the snapshotter died.
const PULL_TIME: Duration = Duration::from_secs(3600);
/// Repositories whose credentials are kept at most. Those that end first go first.
const REPOSITORIES_MOST: usize = 1000;
/// Bytes of a user, a password or a token at most, as JSON: tokens of clouds have some 3 KiB.
const WORD_MOST: usize = 8 << 10;

/// Credentials that came with a pull.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct OfferedSecret {
    /// The repository, as `HOST/REPOSITORY`.
    pub(crate) repository: String,
    /// The user; empty beside a token.
    pub(crate) username: String,
    /// The password.
    pub(crate) password: String,
    /// A token that buys others; empty beside a password.
    pub(crate) identity_token: String,
}

impl OfferedSecret {
    fn until(&self, until: u64) -> PullCredential {
        PullCredential {
            username: self.username.clone(),
            password: self.password.clone(),
            identity_token: self.identity_token.clone(),
            until,
        }
    }

    fn is_of_usual_size(&self) -> bool {
        [&self.repository, &self.username, &self.password, &self.identity_token]
            .iter()
            .all(|word| word.len() <= WORD_MOST && !word.contains(char::is_control))
    }
}

/// The kept credentials of a host.
#[derive(Debug)]
pub struct PullSecrets {
    path: PathBuf,
    kept_for: Duration,
    /// Locked while the file is changed.
    pulls: Mutex<RunningPulls>,
}

/// The pulls that go on.
#[derive(Debug, Default)]
struct RunningPulls {
    /// The number of pulls that have begun.
    begun: u64,
    /// The repository and the credentials of each, by its number.
    running: BTreeMap<u64, (String, PullCredential)>,
}

impl RunningPulls {
    fn begin(&mut self, repository: &str, credential: PullCredential) -> u64 {
        self.begun += 1;
        self.running.insert(self.begun, (repository.to_owned(), credential));
        self.begun
    }

    /// The credentials of all of them, the newest first.
    fn offered(&self) -> BTreeMap<String, Vec<PullCredential>> {
        let mut offered = BTreeMap::<_, Vec<_>>::new();
        for (repository, credential) in self.running.values().rev() {
            let of_repository = offered.entry(repository.clone()).or_default();
            let words = |credential: &PullCredential| {
                [&credential.username, &credential.password, &credential.identity_token].map(String::clone)
            };
            if !of_repository.iter().any(|newer| words(newer) == words(credential)) {
                of_repository.push(credential.clone());
            }
        }
        offered
    }
}

impl PullSecrets {
    /// Keeps credentials in the file at `path`, each for `kept_for` after the last pull with it. Credentials of pulls
    /// that an earlier process did not end are dropped.
    pub fn new(path: impl Into<PathBuf>, kept_for: Duration) -> Self {
        let secrets = Self { path: path.into(), kept_for, pulls: Mutex::default() };
        if PullCredentials::read(&secrets.path).is_ok_and(|kept| !kept.offered.is_empty()) {
            secrets.change(&mut secrets.pulls.lock(), |_| {});
        }
        secrets
    }

    /// The file of credentials.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `true` while a pull from a repository, as `HOST/REPOSITORY`, goes on whose credentials are known.
    #[must_use]
    pub fn is_pulling(&self, repository: &str) -> bool {
        self.pulls.lock().running.values().any(|(running, _)| running == repository)
    }

    /// Uses credentials for the time of a pull. `None` if they cannot be used, which is logged.
    pub(crate) fn offer(self: &Arc<Self>, offered: OfferedSecret) -> Option<PullWith> {
        if !offered.is_of_usual_size() {
            let repository = offered.repository.get(..100).unwrap_or_default().escape_debug();
            tracing::warn!(%repository, "credentials of an unusual size are not used for disks");
            return None;
        }
        let during = offered.until(now().saturating_add(PULL_TIME.as_secs()));
        let mut pulls = self.pulls.lock();
        let number = pulls.begin(&offered.repository, during);
        if self.change(&mut pulls, |_| {}).is_none() {
            pulls.running.remove(&number);
            return None;
        }
        drop(pulls);
        Some(PullWith { secrets: Arc::clone(self), offered, number })
    }

    /// Changes what was accepted, and writes it with what is offered now. `None` if that fails, which is logged.
    fn change(&self, pulls: &mut RunningPulls, change: impl FnOnce(&mut PullCredentials)) -> Option<()> {
        let changed = PullCredentials::read(&self.path).and_then(|mut kept| {
            change(&mut kept);
            drop_old(&mut kept, now());
            kept.offered = pulls.offered();
            self.write(&kept)
        });
        changed.inspect_err(|error| tracing::warn!(%error, "credentials for pulling are not kept")).ok()
    }

    fn write(&self, kept: &PullCredentials) -> Result<()> {
        let bytes = serde_json::to_vec(kept).unwrap_or_default();
        if bytes.len() as u64 > PULL_CREDENTIALS_MOST {
            let error = headstart_block::Error::invalid("would be too long").about(self.path.display());
            return Err(error.remedy("use fewer or shorter imagePullSecrets"));
        }
        replace(&self.path, &bytes, Readers::Owner)
    }
}

/// Removes credentials that have ended, and those beyond the limit.
fn drop_old(kept: &mut PullCredentials, now: u64) {
    kept.repositories.retain(|_, credential| credential.until > now);
    while kept.repositories.len() > REPOSITORIES_MOST {
        let first = kept.repositories.iter().min_by_key(|(_, credential)| credential.until);
        let Some(name) = first.map(|(name, _)| name.clone()) else { break };
        kept.repositories.remove(&name);
    }
}

/// Seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "credentials have an end")]
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A pull with offered credentials, which count until it is dropped.
pub(crate) struct PullWith {
    secrets: Arc<PullSecrets>,
    offered: OfferedSecret,
    number: u64,
}

impl PullWith {
    /// Keeps them: the image was pulled with them.
    pub(crate) fn accept(self) {
        let accepted = self.offered.until(now().saturating_add(self.secrets.kept_for.as_secs()));
        let mut pulls = self.secrets.pulls.lock();
        pulls.running.remove(&self.number);
        self.secrets.change(&mut pulls, |kept| {
            kept.repositories.insert(self.offered.repository.clone(), accepted);
        });
    }
}

impl Drop for PullWith {
    fn drop(&mut self) {
        let mut pulls = self.secrets.pulls.lock();
        if pulls.running.remove(&self.number).is_some() {
            self.secrets.change(&mut pulls, |_| {});
        }
    }
}

#[cfg(test)]
mod tests;
