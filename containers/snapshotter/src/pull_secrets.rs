//! The credentials that Kubernetes gives with its pulls, kept for the disks of the images.
//!
//! Kubernetes hands a pod's `imagePullSecrets` to containerd with each pull, and not to snapshotters. They come by here
//! ([`ImageProxy`](crate::image_proxy::ImageProxy)), and go into a file from which all requests of this host to the
//! registry take them ([`PullCredentials`]).
//!
//! Credentials that are offered count for the pull alone. Those with which containerd has pulled the image are
//! accepted: the registry has taken them for that repository, and they are kept for a time. Each pull begins that
//! time anew. What containerd could not pull with leaves the credentials as they were.
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
/// Bytes of a user, a password or a token at most.
const WORD_MOST: usize = 64 << 10;

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
            .all(|word| word.len() <= WORD_MOST)
    }
}

/// The kept credentials of a host.
#[derive(Debug)]
pub struct PullSecrets {
    path: PathBuf,
    kept_for: Duration,
    /// Locked while the file is changed: the pulls that go on, by repository.
    pulls: Mutex<BTreeMap<String, RunningPulls>>,
}

/// The pulls from a repository that go on.
#[derive(Debug)]
struct RunningPulls {
    count: usize,
    /// The credentials that were accepted last, which a pull that fails brings back.
    accepted: Option<PullCredential>,
}

impl PullSecrets {
    /// Keeps credentials in the file at `path`, each for `kept_for` after the last pull with it.
    pub fn new(path: impl Into<PathBuf>, kept_for: Duration) -> Self {
        Self { path: path.into(), kept_for, pulls: Mutex::default() }
    }

    /// The file of credentials.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Uses credentials for the time of a pull. `None` if they cannot be used, which is logged.
    pub(crate) fn offer(self: &Arc<Self>, offered: OfferedSecret) -> Option<PullWith> {
        if !offered.is_of_usual_size() {
            let repository = offered.repository.get(..100).unwrap_or_default().escape_debug();
            tracing::warn!(%repository, "credentials of an unusual size are not used for disks");
            return None;
        }
        let during = offered.until(now().saturating_add(PULL_TIME.as_secs()));
        self.change(|kept, pulls| {
            let repository = offered.repository.clone();
            let before = kept.repositories.insert(repository.clone(), during.clone());
            // While others go on, what is there is theirs.
            pulls.entry(repository).or_insert(RunningPulls { count: 0, accepted: before }).count += 1;
        })?;
        Some(PullWith { secrets: Arc::clone(self), offered, during, is_accepted: false })
    }

    /// Changes the file. `None` if that fails, which is logged.
    fn change(
        &self,
        change: impl FnOnce(&mut PullCredentials, &mut BTreeMap<String, RunningPulls>),
    ) -> Option<()> {
        let mut pulls = self.pulls.lock();
        let changed = PullCredentials::read(&self.path).and_then(|mut kept| {
            change(&mut kept, &mut pulls);
            drop_old(&mut kept, now());
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

/// A pull with offered credentials. Dropped, it brings those before back, unless they were accepted.
pub(crate) struct PullWith {
    secrets: Arc<PullSecrets>,
    offered: OfferedSecret,
    during: PullCredential,
    is_accepted: bool,
}

impl PullWith {
    /// Keeps them: the image was pulled with them.
    pub(crate) fn accept(mut self) {
        let accepted = self.offered.until(now().saturating_add(self.secrets.kept_for.as_secs()));
        let repository = self.offered.repository.clone();
        self.is_accepted = true;
        self.secrets.change(|kept, pulls| {
            if let Some(running) = pulls.get_mut(&repository) {
                running.accepted = Some(accepted.clone());
            }
            kept.repositories.insert(repository, accepted);
        });
    }
}

/// One of the pulls from a repository is over; returns the credentials that were accepted last.
fn end_pull(pulls: &mut BTreeMap<String, RunningPulls>, repository: &str) -> Option<PullCredential> {
    let running = pulls.get_mut(repository)?;
    running.count = running.count.saturating_sub(1);
    let accepted = running.accepted.clone();
    if running.count == 0 {
        pulls.remove(repository);
    }
    accepted
}

impl Drop for PullWith {
    fn drop(&mut self) {
        let repository = self.offered.repository.clone();
        if self.is_accepted {
            end_pull(&mut self.secrets.pulls.lock(), &repository);
            return;
        }
        self.secrets.change(|kept, pulls| {
            let accepted = end_pull(pulls, &repository);
            // Another pull may have put its own there.
            if kept.repositories.get(&repository) == Some(&self.during) {
                match accepted {
                    Some(accepted) => _ = kept.repositories.insert(repository, accepted),
                    None => _ = kept.repositories.remove(&repository),
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn offered(password: &str) -> OfferedSecret {
        let (repository, username) = ("reg.lan/a".to_owned(), "u".to_owned());
        OfferedSecret { repository, username, password: password.to_owned(), identity_token: String::new() }
    }

    /// The password for the repository after so many hours.
    fn after(secrets: &PullSecrets, hours: u64) -> Option<String> {
        let kept = PullCredentials::read(secrets.path()).unwrap();
        kept.of("reg.lan/a", now() + hours * 3600).map(|found| found.password.clone())
    }

    fn secrets(dir: &tempfile::TempDir) -> Arc<PullSecrets> {
        Arc::new(PullSecrets::new(dir.path().join("secrets"), DAY))
    }

    #[test]
    fn only_credentials_that_have_pulled_are_kept_and_for_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let secrets = secrets(&dir);
        let pull = secrets.offer(offered("p")).unwrap();
        assert_eq!((after(&secrets, 0), after(&secrets, 2)), (Some("p".to_owned()), None), "during the pull");
        drop(pull);
        assert_eq!(after(&secrets, 0), None, "a pull that failed");
        secrets.offer(offered("p")).unwrap().accept();
        assert_eq!((after(&secrets, 23), after(&secrets, 25)), (Some("p".to_owned()), None));
        let mode = std::fs::metadata(secrets.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(secrets.offer(offered("wrong")).unwrap());
        assert_eq!(after(&secrets, 23), Some("p".to_owned()), "the ones before are back");
        assert!(
            secrets.offer(OfferedSecret { password: "x".repeat(WORD_MOST + 1), ..offered("") }).is_none()
        );
    }

    #[test]
    fn a_pull_that_fails_takes_nothing_from_one_that_succeeds_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let secrets = secrets(&dir);
        let good = secrets.offer(offered("good")).unwrap();
        let bad = secrets.offer(offered("bad")).unwrap();
        good.accept();
        drop(bad);
        assert_eq!(after(&secrets, 23), Some("good".to_owned()));
    }

    #[test]
    fn pulls_that_fail_at_once_bring_the_accepted_credentials_back() {
        for first_ends_first in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let secrets = secrets(&dir);
            secrets.offer(offered("good")).unwrap().accept();
            let mut pulls = ["one", "two"].map(|wrong| secrets.offer(offered(wrong)).unwrap()).into_iter();
            let (one, two) = (pulls.next(), pulls.next());
            let (first, second) = if first_ends_first { (one, two) } else { (two, one) };
            drop(first);
            drop(second);
            assert_eq!(after(&secrets, 23), Some("good".to_owned()), "{first_ends_first}");
        }
    }

    #[test]
    fn the_credentials_that_end_first_go_first() {
        let mut kept = PullCredentials::default();
        for number in 0..REPOSITORIES_MOST as u64 + 2 {
            kept.repositories.insert(format!("r{number}"), offered("p").until(number + 10));
        }
        drop_old(&mut kept, 10);
        assert_eq!(kept.repositories.len(), REPOSITORIES_MOST);
        assert!(!kept.repositories.contains_key("r1") && kept.repositories.contains_key("r2"));
    }
}
