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
//! If several users pull from one repository, such as two namespaces of Kubernetes, the credentials of the last three
//! count, the newest first: a pull that a mirror has answered succeeds with any.
//!
//! There is room for some hundred repositories, and pulls at a time. Each registry has its share of it (`shares`): one
//! whose users bring more than that loses its own oldest credentials, and no other's.
//!
//! The file is not encrypted: its key would be beside it, as everything is that a host needs in order to start
//! by itself.

use headstart_block::Result;
use headstart_daemon::file::{Readers, replace};
use headstart_store::{EARLIER_MOST, OFFERED_MOST, PULL_CREDENTIALS_MOST, PullCredential, PullCredentials};
use parking_lot::Mutex;
use shares::{Entry, beyond};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest time that a pull may take whose credentials are neither accepted nor refused: the snapshotter died.
const PULL_TIME: Duration = Duration::from_secs(3600);
/// Bytes of the credentials that are offered at a time, at most: a quarter of the file.
const OFFERED_BYTES: u64 = PULL_CREDENTIALS_MOST / 4;
/// Bytes of the file without its entries, at most.
const FRAME_BYTES: u64 = 1 << 10;
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

/// `true` if both are the same user's, with the same secret.
fn has_same_words(one: &PullCredential, other: &PullCredential) -> bool {
    let words = |it: &PullCredential| [&it.username, &it.password, &it.identity_token].map(String::clone);
    words(one) == words(other)
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
    /// Notes a pull. Of too many the oldest do not count any more; containerd goes on with them.
    fn begin(&mut self, repository: &str, credential: PullCredential) -> u64 {
        self.begun += 1;
        self.running.insert(self.begun, (repository.to_owned(), credential));
        let of = |(number, (repository, credential)): (&u64, &(String, PullCredential))| {
            Entry::of(repository, credential, *number)
        };
        let (entries, numbers): (Vec<_>, Vec<_>) =
            self.running.iter().map(|pull| (of(pull), *pull.0)).unzip();
        for at in beyond(&entries, OFFERED_BYTES) {
            self.running.remove(&numbers[at]);
        }
        self.begun
    }

    /// The credentials of all of them, the newest first, and of one repository as many as are tried: the newest and the
    /// oldest ones, so that one user who begins many pulls hides those of no earlier one.
    fn offered(&self) -> BTreeMap<String, Vec<PullCredential>> {
        let mut offered = BTreeMap::<_, Vec<_>>::new();
        for (repository, credential) in self.running.values().rev() {
            let of_repository = offered.entry(repository.clone()).or_default();
            let is_new = !of_repository.iter().any(|newer| has_same_words(newer, credential));
            if is_new {
                of_repository.push(credential.clone());
            }
        }
        for of_repository in offered.values_mut() {
            let too_many = of_repository.len().saturating_sub(OFFERED_MOST);
            if too_many > 0 {
                of_repository.drain(OFFERED_MOST / 2..OFFERED_MOST / 2 + too_many);
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
            secrets.change(&mut secrets.pulls.lock(), None);
        }
        secrets
    }

    /// The file of credentials.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of the last pull from a repository, as `HOST/REPOSITORY`, that goes on with credentials. `None` if
    /// there is none.
    #[must_use]
    pub fn last_pull(&self, repository: &str) -> Option<u64> {
        let pulls = self.pulls.lock();
        pulls.running.iter().rev().find(|(_, (running, _))| running == repository).map(|(number, _)| *number)
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
        if self.change(&mut pulls, None).is_none() {
            pulls.running.remove(&number);
            return None;
        }
        drop(pulls);
        Some(PullWith { secrets: Arc::clone(self), offered, number })
    }

    /// Adds what was accepted now, and writes all with what is offered now. `None` if that fails, which is logged.
    fn change(&self, pulls: &mut RunningPulls, accepted: Option<&OfferedSecret>) -> Option<()> {
        let changed = PullCredentials::read(&self.path).and_then(|mut kept| {
            let until = now().saturating_add(self.kept_for.as_secs());
            kept.offered = pulls.offered();
            keep(&mut kept, accepted, (now(), until));
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

/// Adds what was accepted `now` and is kept `until` then, as nothing else is kept longer. Removes credentials that have
/// ended, and those for which there is no room.
fn keep(kept: &mut PullCredentials, accepted: Option<&OfferedSecret>, (now, until): (u64, u64)) {
    kept.repositories.retain(|_, credential| credential.until > now);
    for all in kept.earlier.values_mut() {
        all.retain(|credential| credential.until > now);
    }
    for credential in kept.repositories.values_mut().chain(kept.earlier.values_mut().flatten()) {
        // Those of an earlier run may have been kept for longer.
        credential.until = credential.until.min(until);
    }
    if let Some(accepted) = accepted {
        let new = accepted.until(until);
        let earlier = kept.earlier.entry(accepted.repository.clone()).or_default();
        if let Some(last) = kept.repositories.remove(&accepted.repository) {
            earlier.insert(0, last);
        }
        earlier.retain(|it| !has_same_words(it, &new));
        earlier.truncate(EARLIER_MOST);
    }
    let weight =
        |(name, credential): (&String, &PullCredential)| Entry::of(name, credential, credential.until);
    let offered =
        kept.offered.iter().flat_map(|(name, all)| all.iter().map(move |it| weight((name, it)).weight));
    let room = PULL_CREDENTIALS_MOST.saturating_sub(FRAME_BYTES + offered.sum::<u64>());
    let accepted = accepted.map(|accepted| (accepted.repository.clone(), accepted.until(until)));
    // Each is by itself: of one repository the earlier ones go first, which are older.
    let mut entries = Vec::new();
    let mut places = Vec::new();
    for (name, credential) in kept.earlier.iter().flat_map(|(name, all)| all.iter().map(move |it| (name, it)))
    {
        entries.push(weight((name, credential)));
        places.push((name.clone(), Some(credential.clone())));
    }
    for (name, credential) in kept.repositories.iter().chain(accepted.as_ref().map(|(name, it)| (name, it))) {
        entries.push(weight((name, credential)));
        places.push((name.clone(), None));
    }
    kept.repositories.extend(accepted);
    for at in beyond(&entries, room) {
        match &places[at] {
            (name, None) => drop(kept.repositories.remove(name)),
            (name, Some(gone)) => {
                kept.earlier.entry(name.clone()).or_default().retain(|it| it != gone);
            }
        }
    }
    kept.earlier.retain(|_, all| !all.is_empty());
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
        let mut pulls = self.secrets.pulls.lock();
        pulls.running.remove(&self.number);
        self.secrets.change(&mut pulls, Some(&self.offered));
    }
}

impl Drop for PullWith {
    fn drop(&mut self) {
        let mut pulls = self.secrets.pulls.lock();
        if pulls.running.remove(&self.number).is_some() {
            self.secrets.change(&mut pulls, None);
        }
    }
}

mod shares;
#[cfg(test)]
mod tests;
