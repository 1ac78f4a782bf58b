//! The NBD server on a real socket: real clients, single bytes, and hostile ones.
//!
//! Goal: the promises of the protocol hold for the clients that people use, and no client can harm another or keep the
//! server from its work. Method: each test starts a server on a socket of its own over a disk in memory that
//! can lose bytes, fail or panic on request.

#![allow(clippy::disallowed_methods, reason = "tests of time-outs read the clock")]

mod hostile;
mod raw;
mod raw_client;
mod real_clients;
mod test_disk;
mod tls;

use headstart_export::nbd::{Address, NbdServer, NbdSettings};
use headstart_export::{Export, Server as _};
use headstart_testkit::wait::wait_for_value;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use tempfile::TempDir;
use test_disk::TestDisk;

/// A server over one disk.
struct Served {
    disk: Arc<TestDisk>,
    server: Box<NbdServer>,
    socket: PathBuf,
    dir: TempDir,
}

fn serve(disk: TestDisk) -> Served {
    serve_with(disk, |_| {})
}

fn serve_with(disk: TestDisk, change: impl FnOnce(&mut NbdSettings)) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nbd.sock");
    let mut settings = NbdSettings::new(Address::Unix(socket.clone()));
    change(&mut settings);
    let disk = Arc::new(disk);
    let mut export = Export::new("disk", Arc::clone(&disk) as _);
    export.description = "a disk for tests".to_owned();
    let server = Box::new(NbdServer::start(&settings, vec![export]).unwrap());
    Served { disk, server, socket, dir }
}

impl Served {
    fn uri(&self) -> String {
        self.server.uri()
    }

    /// Waits until all clients are gone and all their threads have ended.
    fn wait_until_empty(&self) {
        let left = || self.server.connections();
        wait_for_value("all clients are gone", std::time::Duration::from_secs(60), left, |left| *left == 0);
    }
}

/// A program; nbdsh starts the first `python3` of the path, which has to be the system's.
fn tool(program: &str) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("/usr/bin:{path}"));
    command
}

/// Runs a program that has to succeed; returns its output.
#[track_caller]
fn run(program: &str, args: &[&str]) -> String {
    let output = output(program, args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{program} {args:?}:\n{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn output(program: &str, args: &[&str]) -> Output {
    // A client that hangs is a failure, not a hanging test.
    tool("timeout").arg("60").arg(program).args(args).stdin(Stdio::null()).output().unwrap()
}
