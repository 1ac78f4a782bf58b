//! Credentials from Docker's configuration, and from the helper programs that it names.
//!
//! They are looked up when a registry first asks for them, and again when it refuses them: helpers of clouds
//! give passwords that last for hours, and people log in again. A helper that fails is no error by itself, because
//! the registry may be open to all; if it is not, the refusal says what was wrong with the helper.

use super::token::Secret;
use crate::pull_credentials::PullCredentials;
use crate::settings::StoreSettings;
use docker_credential::{CredentialRetrievalError, DockerCredential, get_credential_from_reader};
use headstart_block::{Error, Result};
use std::env;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;

/// The time that a helper may take: some ask a cloud. Less than a read waits for its first byte, so that the read's
/// error says what was wrong.
const HELPER_TIMEOUT: Duration = Duration::from_secs(10);

/// The name of Docker's own registry in its configuration.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// The name of Docker's own registry in the names of images.
const DOCKER_HUB_NAME: &str = "docker.io";

/// The credential that can be shown to a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Credential {
    /// None, with the reason if one was expected.
    Nothing(Option<String>),
    /// A user and a password.
    Password(String, Secret),
    /// A token that buys other tokens.
    Identity(Secret),
}

/// The credentials for one registry.
pub(super) struct Credentials {
    key: String,
    file: Option<PathBuf>,
    /// The file of credentials for single repositories, and the name of this one in it.
    own: Option<(PathBuf, String)>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    found: Option<Credential>,
    /// Those that were refused since all of them were.
    refused: Vec<Credential>,
    /// The look-up that is under way. A look-up without waiters goes on, and so does a helper that hangs:
    /// the next one waits for that, and runs no other.
    under_way: Option<oneshot::Receiver<Result<Vec<Credential>>>>,
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
        Self { key: key.to_owned(), file, own: None, state: Mutex::default() }
    }

    /// The credentials for a repository at `host`: its own ones, or those of the host.
    pub(super) fn of_repository(host: &str, repository: &str, settings: &StoreSettings) -> Self {
        let host_name = if host == super::DOCKER_HUB_API { DOCKER_HUB_NAME } else { host };
        let own = settings.pull_credentials.clone().map(|file| (file, format!("{host_name}/{repository}")));
        Self { own, ..Self::new(host, settings.docker_config.as_deref()) }
    }

    /// The place of the look-up, for messages.
    pub(super) fn place(&self) -> String {
        self.file.as_ref().map_or_else(|| "no file".to_owned(), |file| file.display().to_string())
    }

    /// The credentials, looked up once.
    pub(super) async fn get(&self) -> Result<Credential> {
        let mut state = self.state.lock().await;
        if let Some(credential) = &state.found {
            return Ok(credential.clone());
        }
        let credential = self.look_up(&mut state).await?;
        state.found = Some(credential.clone());
        Ok(credential)
    }

    /// Credentials other than the `refused` ones, if there are any by now: each is shown once, in their order.
    pub(super) async fn others_than(&self, refused: &Credential) -> Result<Option<Credential>> {
        let mut state = self.state.lock().await;
        if state.found.as_ref() == Some(refused) {
            state.refused.push(refused.clone());
            let found = self.look_up(&mut state).await?;
            let are_all_refused = state.refused.contains(&found);
            state.found = Some(found);
            if are_all_refused {
                // One that was refused long ago may be right by then.
                state.refused.clear();
                return Ok(None);
            }
        }
        Ok(state.found.clone().filter(|credential| credential != refused))
    }

    /// Looks the credentials up, and takes the first one that was not refused, or the last one.
    async fn look_up(&self, state: &mut State) -> Result<Credential> {
        if self.file.is_none() && self.own.is_none() {
            return Ok(Credential::Nothing(None));
        }
        let receive = state.under_way.get_or_insert_with(|| {
            let (own, file, key) = (self.own.clone(), self.file.clone(), self.key.clone());
            let (send, receive) = oneshot::channel();
            // A thread of its own, left alone if it takes too long: the runtime would wait for its blocking
            // threads.
            thread::spawn(move || {
                let _ = send.send(read_all(own.as_ref(), file.as_deref(), &key));
            });
            receive
        });
        let nothing = |why: String| Ok(Credential::Nothing(Some(why)));
        let Ok(found) = timeout(HELPER_TIMEOUT, receive).await else {
            let time = HELPER_TIMEOUT.as_secs();
            return nothing(format!("its credential helper does not answer within {time} s"));
        };
        state.under_way = None;
        match found {
            Ok(found) => Ok(next_of(found?, &state.refused)),
            Err(_) => nothing("looking up its credentials failed".to_owned()),
        }
    }
}

/// The credential to show after the refused ones; the last one stays.
fn next_of(mut found: Vec<Credential>, refused: &[Credential]) -> Credential {
    let last = found.len().saturating_sub(1);
    let at = found.iter().position(|found| !refused.contains(found)).unwrap_or(last);
    if found.is_empty() { Credential::Nothing(None) } else { found.swap_remove(at) }
}

/// The credentials of a repository, in the order in which they are to be shown, or the one of its host.
fn read_all(own: Option<&(PathBuf, String)>, file: Option<&Path>, key: &str) -> Result<Vec<Credential>> {
    let own = own.map(|(file, repository)| read_own(file, repository)).transpose()?.unwrap_or_default();
    if !own.is_empty() {
        return Ok(own);
    }
    file.map_or(Ok(Credential::Nothing(None)), |file| read(file, key)).map(|found| vec![found])
}

/// The credentials for a single repository, each once.
#[expect(clippy::disallowed_methods, reason = "credentials have an end")]
fn read_own(file: &Path, repository: &str) -> Result<Vec<Credential>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut all = Vec::new();
    for found in PullCredentials::read(file)?.of(repository, now) {
        let credential = match found.identity_token.as_str() {
            "" => Credential::Password(found.username.clone(), Secret::new(&found.password)),
            token => Credential::Identity(Secret::new(token)),
        };
        if !all.contains(&credential) {
            all.push(credential);
        }
    }
    Ok(all)
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
        Credentials::new(host, Some(directory.path())).get().await
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
        assert_eq!(nowhere.get().await.unwrap(), Credential::Nothing(None));
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
            Credentials::of_repository(host, repository, &settings).get().await
        };
        assert_eq!(of("x", "a").await.unwrap(), password("own", "q"));
        for other in ["b", "a/b", "old"] {
            assert_eq!(of("x", other).await.unwrap(), password("u", "p"), "{other}");
        }
        assert_eq!(of(super::super::DOCKER_HUB_API, "library/a").await.unwrap(), password("hub", "h"));
        fs::write(&own, "damaged").unwrap();
        assert!(of("x", "a").await.unwrap_err().to_string().contains("own.json"));
    }

    #[tokio::test]
    async fn credentials_that_were_offered_and_refused_make_room_for_the_accepted_ones() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("own.json");
        let one = |password: &str| {
            format!(r#"{{"username": "u", "password": "{password}", "until": 99999999999}}"#)
        };
        let write = |offered: &[&str]| {
            let offered: Vec<_> = offered.iter().map(|password| one(password)).collect();
            let (good, offered) = (one("good"), offered.join(", "));
            let text = format!(
                r#"{{"version": 1, "repositories": {{"x/a": {good}}}, "offered": {{"x/a": [{offered}]}}}}"#
            );
            fs::write(&file, text).unwrap();
        };
        let settings = StoreSettings { pull_credentials: Some(file.clone()), ..StoreSettings::default() };
        let credentials = Credentials::of_repository("x", "a", &settings);
        write(&["wrong", "good", "bad"]);
        let mut shown = credentials.get().await.unwrap();
        for password_shown in ["wrong", "good", "bad"] {
            assert_eq!(shown, password("u", password_shown));
            let next = credentials.others_than(&shown).await.unwrap();
            assert_eq!(next.is_none(), password_shown == "bad", "each is shown once");
            shown = next.unwrap_or(shown);
        }
        write(&[]);
        assert_eq!(credentials.others_than(&shown).await.unwrap(), Some(password("u", "good")));
        assert_eq!(credentials.others_than(&password("u", "good")).await.unwrap(), None);
        // The accepted ones are refused one day, while a pull offers new ones.
        write(&["new"]);
        let accepted = password("u", "good");
        assert_eq!(credentials.get().await.unwrap(), accepted);
        assert_eq!(credentials.others_than(&accepted).await.unwrap(), Some(password("u", "new")));
        assert_eq!(credentials.others_than(&password("u", "new")).await.unwrap(), None);
    }

    #[tokio::test]
    async fn looks_again_when_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.json");
        fs::write(&file, r#"{"auths": {"x": {"auth": "dTpw"}}}"#).unwrap();
        let credentials = Credentials::new("x", Some(directory.path()));
        let old = credentials.get().await.unwrap();
        assert_eq!(credentials.others_than(&old).await.unwrap(), None);
        fs::write(&file, r#"{"auths": {"x": {"auth": "dTpx"}}}"#).unwrap();
        assert_eq!(credentials.get().await.unwrap(), old, "not before they are refused");
        assert_eq!(credentials.others_than(&old).await.unwrap(), Some(password("u", "q")));
        assert_eq!(
            credentials.others_than(&old).await.unwrap(),
            Some(password("u", "q")),
            "somebody looked already"
        );
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
            assert!(timeout(short, credentials.get()).await.is_err());
        }
        // Only one look-up can read this: several would take it away from one another.
        let write =
            tokio::task::spawn_blocking(move || fs::write(file, r#"{"auths": {"x": {"auth": "dTpw"}}}"#));
        assert_eq!(timeout(short * 2000, credentials.get()).await.unwrap().unwrap(), password("u", "p"));
        write.await.unwrap().unwrap();
    }
}
