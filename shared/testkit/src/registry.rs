//! A registry for tests: Debian's `docker-registry`, open to all clients, or with passwords, or with a token server.

use crate::process::{self, Process};
use crate::token_server::{ISSUER, SERVICE, TokenServer};
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// The program, from Debian's package of the same name.
const PROGRAM: &str = "docker-registry";

/// The text in its output before its address.
const LISTENING: &str = "msg=\"listening on ";

/// The time that it may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The user name that a registry with [`RegistryAccess::Password`] accepts.
pub const USER: &str = "tester";
/// The password of [`USER`].
pub const PASSWORD: &str = "test-password";
/// User and password as the registry's password file has them.
const PASSWORD_FILE: &str = "tester:$2b$05$abcdefghijklmnopqrstuu34chBxBG/k9ApCErH1wl/WrV4FVTS/q\n";

/// The clients that a registry accepts, and the way in which they authenticate.
#[derive(Clone, Copy, Debug)]
pub enum RegistryAccess<'a> {
    /// All clients.
    Open,
    /// Clients that give [`USER`] with [`PASSWORD`] in every request.
    Password,
    /// Clients that have a token of this server.
    Token(&'a TokenServer),
}

/// A running registry (`docker-registry`) with a directory of its own. Dropping it stops the registry and
/// removes the directory.
#[derive(Debug)]
pub struct Registry {
    _process: Process,
    address: SocketAddr,
    directory: TempDir,
}

impl Registry {
    /// Starts an empty registry. If the program is not installed, prints that a test is skipped and returns
    /// `None`.
    #[must_use]
    pub fn start(access: RegistryAccess<'_>) -> Option<Self> {
        if !process::installed(&[PROGRAM]) {
            return None;
        }
        let directory = TempDir::new().expect("a directory");
        let config = directory.path().join("config.yml");
        fs::write(&config, configuration(&directory, access)).expect("a file");
        let mut process = Process::start(Command::new(PROGRAM).arg("serve").arg(&config));
        let line = process.line("where it listens", START_TIMEOUT, |line| line.contains(LISTENING));
        let address = line.split_once(LISTENING).and_then(|(_, rest)| rest.split('"').next()?.parse().ok());
        Some(Self { _process: process, address: address.expect("an address"), directory })
    }

    /// The address and port of the registry, as image references contain it.
    #[must_use]
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// The address at which the registry listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The directory of the registry's blobs. The blob with the SHA-256 `abc...` is the file `ab/abc.../data`
    /// in it.
    #[must_use]
    pub fn blobs(&self) -> PathBuf {
        self.directory.path().join("data/docker/registry/v2/blobs/sha256")
    }
}

fn configuration(directory: &TempDir, access: RegistryAccess<'_>) -> String {
    let top = directory.path();
    let mut text = format!(
        "version: 0.1\nlog: {{level: info, accesslog: {{disabled: true}}}}\n\
         storage: {{filesystem: {{rootdirectory: '{}'}}, delete: {{enabled: true}}}}\n\
         http: {{addr: '127.0.0.1:0', secret: headstart-testkit}}\n",
        top.join("data").display()
    );
    match access {
        RegistryAccess::Open => {}
        RegistryAccess::Password => {
            let file = top.join("passwords");
            fs::write(&file, PASSWORD_FILE).expect("a file");
            writeln!(text, "auth: {{htpasswd: {{realm: test, path: '{}'}}}}", file.display())
                .expect("memory");
        }
        RegistryAccess::Token(server) => {
            let file = top.join("certificate.pem");
            fs::write(&file, server.certificate()).expect("a file");
            let (realm, file) = (server.realm(), file.display());
            writeln!(
                text,
                "auth: {{token: {{realm: '{realm}', service: {SERVICE}, issuer: {ISSUER}, rootcertbundle: '{file}'}}}}"
            )
            .expect("memory");
        }
    }
    text
}
