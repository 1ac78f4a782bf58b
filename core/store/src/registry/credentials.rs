//! Credentials from Docker's configuration, and from the helper programs that it names.
//!
//! They are looked up when a registry first asks for them, and again when it refuses them: helpers of clouds
//! give passwords that last for hours, and people log in again. A helper that fails is no error by itself, because
//! the registry may be open to all; if it is not, the refusal says what was wrong with the helper.

use super::attempt::Attempt;
use super::credential::{Credential, Secret};
use crate::pull_credentials::PullCredentials;
use crate::settings::StoreSettings;
use docker_credential::{CredentialRetrievalError, DockerCredential, get_credential_from_reader};
use headstart_block::{Error, ErrorKind, Result};
use std::env;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;

/// The time that a helper may take: some ask a cloud. Less than a read waits for its first byte, so that the read's
/// error says what was wrong.
const HELPER_TIMEOUT: Duration = Duration::from_secs(10);

/// The credentials whose file is known for messages, at most: some that are refused have gone from it meanwhile.
const NAMED_MOST: usize = 32;

/// The name of Docker's own registry in its configuration.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// The name of Docker's own registry in the names of images.
const DOCKER_HUB_NAME: &str = "docker.io";

/// The credentials for one registry.
pub(super) struct Credentials {
    key: String,
    file: Option<PathBuf>,
    /// The file of credentials for single repositories, and the name of this one in it.
    own: Option<(PathBuf, String)>,
    /// `true` if only those of them are shown that pulls offer now.
    is_offered_alone: bool,
    /// `true` once pulls have offered credentials for the repository.
    has_seen_offers: AtomicBool,
    /// The credentials that were found there, the newest last, for messages.
    found_in_own: parking_lot::Mutex<Vec<Credential>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The one that a registry has taken last, or that was chosen for a request to which none was refused.
    found: Option<Credential>,
    /// The look-up at docker's place that is under way. A look-up without waiters goes on, and so does a helper that
    /// hangs: the next one waits for that, and runs no other.
    under_way: Option<oneshot::Receiver<Result<Credential>>>,
}

impl Credentials {
    /// The credentials for `host`, from `directory` or from Docker's own place.
    pub(super) fn new(host: &str, directory: Option<&Path>) -> Self {
        let key = if host == super::DOCKER_HUB_API { DOCKER_HUB_KEY } else { host };
        let from_home = || env::home_dir().map(|home| home.join(".docker"));
        let directory = directory.map(Path::to_owned);
        let directory =
            directory.or_else(|| env::var_os("DOCKER_CONFIG").map(PathBuf::from)).or_else(from_home);
        let file = directory.map(|path| if path.is_file() { path } else { path.join("config.json") });
        let (own, has_seen_offers, found_in_own) =
            (None, AtomicBool::new(false), parking_lot::Mutex::default());
        let state = Mutex::default();
        Self { key: key.to_owned(), file, own, is_offered_alone: false, has_seen_offers, found_in_own, state }
    }

    /// The credentials for a repository at `host`: its own ones, then those of the host.
    pub(super) fn of_repository(host: &str, repository: &str, settings: &StoreSettings) -> Self {
        let host_name = if host == super::DOCKER_HUB_API { DOCKER_HUB_NAME } else { host };
        let own = settings.pull_credentials.clone().map(|file| (file, format!("{host_name}/{repository}")));
        let is_offered_alone = settings.offered_alone;
        Self { own, is_offered_alone, ..Self::new(host, settings.docker_config.as_deref()) }
    }

    /// The place of the look-up, for messages.
    pub(super) fn place(&self) -> String {
        self.file.as_ref().map_or_else(|| "no file".to_owned(), |file| file.display().to_string())
    }

    /// The place where a credential was found, for messages.
    pub(super) fn place_of(&self, credential: &Credential) -> String {
        let is_own = self.found_in_own.lock().contains(credential);
        let own = self.own.as_ref().filter(|_| is_own);
        own.map_or_else(|| self.place(), |(file, _)| file.display().to_string())
    }

    /// Notes that the registry has taken a credential: the next requests begin with it.
    pub(super) async fn take(&self, credential: &Credential) {
        self.state.lock().await.found = Some(credential.clone());
    }

    /// `true` if there were credentials that a pull offers when they were looked up, or if there are some now.
    pub(super) async fn has_offers(&self) -> bool {
        // A file that cannot be read says nothing.
        self.has_seen_offers() || self.own().await.is_err() || self.has_seen_offers()
    }

    fn has_seen_offers(&self) -> bool {
        self.has_seen_offers.load(Ordering::Relaxed)
    }

    /// The credential that a request shows, but for those that were refused to it; `None` if there is no other. One
    /// that the registry has taken, or that was chosen before, is taken without a look. `by_password` prefers
    /// passwords; what else comes is all that there is. Otherwise nothing at all comes last: what is open to all stays
    /// so whatever a user has offered.
    pub(super) async fn choose(&self, attempt: &Attempt, by_password: bool) -> Result<Option<Credential>> {
        let mut state = self.state.lock().await;
        let is_good =
            |found: &Credential| !attempt.has_refused(found) && (!by_password || found.is_password());
        if let Some(found) = state.found.as_ref().filter(|found| is_good(found)) {
            return Ok(Some(found.clone()));
        }
        let own = self.own().await?;
        let mut chosen = attempt.next(&own, by_password).cloned();
        if !chosen.as_ref().is_some_and(is_good) {
            // A helper is run only where nothing else is left.
            let of_host = self.of_host(&mut state).await?;
            let is_nothing = matches!(of_host, Credential::Nothing(_));
            let is_of_use = !by_password || own.is_empty() || !is_nothing;
            let nothing = (!by_password && !is_nothing).then_some(Credential::Nothing(None));
            let all: Vec<_> = chosen.into_iter().chain(is_of_use.then_some(of_host)).chain(nothing).collect();
            chosen = attempt.next(&all, by_password).cloned();
        }
        if !attempt.has_refusals() {
            state.found.clone_from(&chosen);
        }
        Ok(chosen)
    }

    /// The credentials for the repository alone, in the order in which they are to be tried, each once.
    async fn own(&self) -> Result<Vec<Credential>> {
        let Some((file, repository)) = self.own.clone() else { return Ok(Vec::new()) };
        let is_offered_alone = self.is_offered_alone;
        let read = move || read_own(&file, &repository, is_offered_alone);
        let read = tokio::task::spawn_blocking(read).await;
        let failed = |e| Error::new(ErrorKind::Io, "looking up credentials failed").caused_by(e);
        let (own, has_offers) = read.map_err(failed)??;
        self.has_seen_offers.fetch_or(has_offers, Ordering::Relaxed);
        let mut found = self.found_in_own.lock();
        found.retain(|it| !own.contains(it));
        found.extend(own.iter().cloned());
        let too_many = found.len().saturating_sub(NAMED_MOST);
        found.drain(..too_many);
        Ok(own)
    }

    /// The credential of the host, at docker's place.
    async fn of_host(&self, state: &mut State) -> Result<Credential> {
        let Some(file) = &self.file else { return Ok(Credential::Nothing(None)) };
        let receive = state.under_way.get_or_insert_with(|| {
            let (file, key) = (file.clone(), self.key.clone());
            let (send, receive) = oneshot::channel();
            // A thread of its own, left alone if it takes too long: the runtime would wait for its blocking
            // threads.
            thread::spawn(move || {
                let _ = send.send(read(&file, &key));
            });
            receive
        });
        let nothing = |why: String| Ok(Credential::Nothing(Some(why)));
        let Ok(found) = timeout(HELPER_TIMEOUT, receive).await else {
            let time = HELPER_TIMEOUT.as_secs();
            return nothing(format!("its credential helper does not answer within {time} s"));
        };
        state.under_way = None;
        found.unwrap_or_else(|_| nothing("looking up its credentials failed".to_owned()))
    }
}

/// The credentials for a single repository, each once, and whether pulls offer some of them.
#[expect(clippy::disallowed_methods, reason = "credentials have an end")]
fn read_own(file: &Path, repository: &str, is_offered_alone: bool) -> Result<(Vec<Credential>, bool)> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (kept, mut all) = (PullCredentials::read(file)?, Vec::new());
    let offered = kept.offered_for(repository, now).count();
    let shown = if is_offered_alone { offered } else { usize::MAX };
    for found in kept.of(repository, now).take(shown) {
        let credential = match found.identity_token.as_str() {
            "" => Credential::Password(found.username.clone(), Secret::new(&found.password)),
            token => Credential::Identity(Secret::new(token)),
        };
        if !all.contains(&credential) {
            all.push(credential);
        }
    }
    Ok((all, offered > 0))
}

fn read(file: &Path, key: &str) -> Result<Credential> {
    let config = match File::open(file) {
        Ok(config) => config,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Credential::Nothing(None)),
        Err(error) => return Err(Error::io("cannot read", error).about(file.display())),
    };
    let why = match get_credential_from_reader(BufReader::new(config), key) {
        Ok(DockerCredential::UsernamePassword(user, password)) if user.is_empty() && password.is_empty() => {
            None
        }
        Ok(DockerCredential::UsernamePassword(user, password)) => {
            return Ok(Credential::Password(user, Secret::new(&password)));
        }
        Ok(DockerCredential::IdentityToken(token)) => return Ok(Credential::Identity(Secret::new(&token))),
        Err(CredentialRetrievalError::NoCredentialConfigured) => None,
        Err(CredentialRetrievalError::ConfigReadError) => {
            return Err(Error::invalid("is not a Docker configuration").about(file.display()));
        }
        // The answer of all helpers for an unknown registry.
        Err(CredentialRetrievalError::HelperFailure { stdout, stderr, .. })
            if stdout.contains("credentials not found") || stderr.contains("credentials not found") =>
        {
            None
        }
        Err(CredentialRetrievalError::HelperFailure { helper, stderr, .. }) => {
            let message: String = stderr.lines().next().unwrap_or("").chars().take(200).collect();
            Some(format!("`{helper}` failed: {}", message.escape_debug()))
        }
        Err(CredentialRetrievalError::HelperCommunicationError) => {
            Some(format!("the credential helper that {} names cannot be run", file.display()))
        }
        Err(error) => Some(format!("{}: {error}", file.display())),
    };
    Ok(Credential::Nothing(why))
}

#[cfg(test)]
#[expect(clippy::panic, reason = "tests")]
mod tests {
    use super::*;
    use std::fs;

    async fn found(config: &str, host: &str) -> Result<Credential> {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("config.json"), config).unwrap();
        shown(&Credentials::new(host, Some(directory.path()))).await
    }

    /// The credential that a request shows first.
    async fn shown(credentials: &Credentials) -> Result<Credential> {
        Ok(credentials.choose(&Attempt::default(), false).await?.unwrap())
    }

    fn password(user: &str, password: &str) -> Credential {
        Credential::Password(user.to_owned(), Secret::new(password))
    }

    #[tokio::test]
    async fn reads_what_docker_login_writes() {
        let config = r#"{"auths": {"reg.example:5000": {"auth": "dTpw"},
            "https://index.docker.io/v1/": {"auth": "aDpx"},
            "token.example": {"identitytoken": "it"}}}"#;
        assert_eq!(found(config, "reg.example:5000").await.unwrap(), password("u", "p"));
        assert_eq!(found(config, super::super::DOCKER_HUB_API).await.unwrap(), password("h", "q"));
        assert_eq!(found(config, "token.example").await.unwrap(), Credential::Identity(Secret::new("it")));
        assert_eq!(found(config, "other.example").await.unwrap(), Credential::Nothing(None));
    }

    #[tokio::test]
    async fn says_why_there_are_none() {
        let Credential::Nothing(Some(why)) = found(r#"{"credsStore": "no-such-helper"}"#, "x").await.unwrap()
        else {
            panic!("credentials from nowhere")
        };
        assert!(why.contains("cannot be run"), "{why}");
        let error = found("no json", "x").await.unwrap_err();
        assert!(error.to_string().contains("config.json"), "{error}");
        let nowhere = Credentials::new("x", Some(Path::new("/nonexistent")));
        assert_eq!(shown(&nowhere).await.unwrap(), Credential::Nothing(None));
    }

    #[tokio::test]
    async fn a_repository_has_credentials_of_its_own_before_those_of_its_host() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("own.json");
        let text = r#"{"version": 1, "repositories": {
            "x/a": {"username": "own", "password": "q", "until": 99999999999},
            "x/old": {"username": "own", "password": "q", "until": 9},
            "docker.io/library/a": {"username": "hub", "password": "h", "until": 99999999999}}}"#;
        fs::write(&own, text).unwrap();
        fs::write(directory.path().join("config.json"), r#"{"auths": {"x": {"auth": "dTpw"}}}"#).unwrap();
        let settings = StoreSettings {
            docker_config: Some(directory.path().to_owned()),
            pull_credentials: Some(own.clone()),
            ..StoreSettings::default()
        };
        let of = async |host: &str, repository: &str| {
            shown(&Credentials::of_repository(host, repository, &settings)).await
        };
        assert_eq!(of("x", "a").await.unwrap(), password("own", "q"));
        for other in ["b", "a/b", "old"] {
            assert_eq!(of("x", other).await.unwrap(), password("u", "p"), "{other}");
        }
        assert_eq!(of(super::super::DOCKER_HUB_API, "library/a").await.unwrap(), password("hub", "h"));
        fs::write(&own, "damaged").unwrap();
        assert!(of("x", "a").await.unwrap_err().to_string().contains("own.json"));
    }

    /// The credentials that a request shows that is refused each time.
    async fn all_of(credentials: &Credentials) -> Vec<Credential> {
        let (mut attempt, mut all) = (Attempt::default(), Vec::new());
        while let Some(next) = credentials.choose(&attempt, true).await.unwrap() {
            attempt.refuse(&next);
            all.push(next);
        }
        all
    }

    #[tokio::test]
    async fn offered_credentials_accepted_ones_and_those_of_the_host_are_all_tried() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("own.json");
        let one = |password: &str| {
            format!(r#"{{"username": "u", "password": "{password}", "until": 99999999999}}"#)
        };
        let write = |accepted: &[&str], offered: &[&str]| {
            let offered: Vec<_> = offered.iter().map(|password| one(password)).collect();
            let accepted: Vec<_> = accepted.iter().map(|it| format!(r#""x/a": {}"#, one(it))).collect();
            let (accepted, offered) = (accepted.join(""), offered.join(", "));
            let text = format!(
                r#"{{"version": 1, "repositories": {{{accepted}}}, "offered": {{"x/a": [{offered}]}}}}"#
            );
            fs::write(&file, text).unwrap();
        };
        let settings = StoreSettings {
            pull_credentials: Some(file.clone()),
            docker_config: Some(directory.path().to_owned()),
            ..StoreSettings::default()
        };
        let new = || Credentials::of_repository("x", "a", &settings);
        let credentials = new();
        let passwords = |all: &[&str]| all.iter().map(|it| password("u", it)).collect::<Vec<_>>();
        write(&["good"], &[]);
        assert_eq!(all_of(&credentials).await, passwords(&["good"]));
        assert!(!credentials.has_offers().await);
        write(&["good"], &["wrong", "good", "bad"]);
        assert_eq!(all_of(&new()).await, passwords(&["wrong", "good", "bad"]), "each once");
        assert_eq!(all_of(&credentials).await, passwords(&["good", "wrong", "bad"]), "the known one first");
        fs::write(directory.path().join("config.json"), r#"{"auths": {"x": {"auth": "dTpw"}}}"#).unwrap();
        assert_eq!(all_of(&new()).await, passwords(&["wrong", "good", "bad", "p"]));
        // The accepted ones are refused one day, while a pull offers new ones.
        write(&["good"], &[]);
        let nothing = Attempt::default();
        assert_eq!(credentials.choose(&nothing, true).await.unwrap(), Some(password("u", "good")));
        write(&["good"], &["new"]);
        let mut attempt = Attempt::default();
        attempt.refuse(&password("u", "good"));
        assert_eq!(credentials.choose(&attempt, true).await.unwrap(), Some(password("u", "new")));
        write(&[], &["wrong"]);
        assert_eq!(
            all_of(&Credentials::of_repository("x", "a", &settings)).await,
            passwords(&["wrong", "p"])
        );
        write(&[], &[]);
        assert!(credentials.has_offers().await, "what was shown may have been refused meanwhile");
        assert!(!Credentials::of_repository("x", "a", &settings).has_offers().await);
    }

    #[tokio::test]
    async fn looks_again_when_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.json");
        fs::write(&file, r#"{"auths": {"x": {"auth": "dTpw"}}}"#).unwrap();
        let credentials = Credentials::new("x", Some(directory.path()));
        let (first, mut refused) = (Attempt::default(), Attempt::default());
        let old = credentials.choose(&first, false).await.unwrap().unwrap();
        refused.refuse(&old);
        assert_eq!(credentials.choose(&refused, true).await.unwrap(), None);
        let nothing = Some(Credential::Nothing(None));
        assert_eq!(credentials.choose(&refused, false).await.unwrap(), nothing, "it may be open to all");
        assert_eq!(credentials.choose(&first, false).await.unwrap(), Some(old.clone()));
        fs::write(&file, r#"{"auths": {"x": {"auth": "dTpx"}}}"#).unwrap();
        assert_eq!(credentials.choose(&first, false).await.unwrap(), Some(old), "not before it is refused");
        let new = Some(password("u", "q"));
        assert_eq!(credentials.choose(&refused, false).await.unwrap(), new);
        credentials.take(&new.clone().unwrap()).await;
        fs::remove_file(file).unwrap();
        assert_eq!(credentials.choose(&refused, false).await.unwrap(), new, "it is known by now");
    }

    /// A pipe without a writer stands for a helper that hangs.
    #[tokio::test]
    async fn a_helper_that_hangs_is_run_once() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.json");
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        let credentials = Credentials::new("x", Some(directory.path()));
        let short = Duration::from_millis(30);
        for _ in 0..5 {
            assert!(timeout(short, shown(&credentials)).await.is_err());
        }
        // Only one look-up can read this: several would take it away from one another.
        let write =
            tokio::task::spawn_blocking(move || fs::write(file, r#"{"auths": {"x": {"auth": "dTpw"}}}"#));
        assert_eq!(timeout(short * 2000, shown(&credentials)).await.unwrap().unwrap(), password("u", "p"));
        write.await.unwrap().unwrap();
    }
}
