//! A snapshotter in a process of its own, which tests kill and start again.

use headstart_snapshotter::remote::NoRemoteLayers;
use headstart_snapshotter::server::{ServedInterfaces, serve};
use headstart_snapshotter::service::SnapshotService;
use headstart_snapshotter::{SnapshotTime, Snapshotter, SnapshotterSettings};
use headstart_testkit::process::{Process, one_test};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const TIME_LIMIT: Duration = Duration::from_secs(20);
/// The name of the test that serves.
pub(crate) const SERVER: &str = "served::serves_until_it_is_killed";
const ROOT: &str = "SNAPSHOTTER_ROOT";
const SOCKET: &str = "SNAPSHOTTER_SOCKET";

/// A served directory of snapshots.
pub(crate) struct Served {
    pub(crate) root: PathBuf,
    pub(crate) socket: PathBuf,
    process: Process,
}

impl Served {
    /// Serves the snapshots of `root` in `dir` on the socket `socket` in `dir`.
    pub(crate) fn start(dir: &Path) -> Self {
        let (root, socket) = (dir.join("snapshotter"), dir.join("snapshotter.sock"));
        let process = Self::process(&root, &socket);
        Self { root, socket, process }
    }

    fn process(root: &Path, socket: &Path) -> Process {
        let mut process = Process::start(one_test(SERVER).env(ROOT, root).env(SOCKET, socket));
        process.line("that it serves", TIME_LIMIT, |line| line.starts_with("serving"));
        process
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again, on the same directory.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.process = Self::process(&self.root, &self.socket);
    }

    /// The number of directories of snapshots.
    pub(crate) fn directories(&self) -> usize {
        std::fs::read_dir(self.root.join("snapshots")).unwrap().count()
    }
}

#[expect(clippy::disallowed_methods, reason = "the clock of the test's snapshotter")]
fn now() -> SnapshotTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    SnapshotTime { seconds: i64::try_from(since.as_secs()).unwrap(), nanos: since.subsec_nanos() }
}

/// A server for the other tests, which have it run in a process of its own.
#[test]
#[ignore = "serves until it is killed: other tests start it"]
#[expect(clippy::print_stdout, reason = "tells the other tests")]
fn serves_until_it_is_killed() {
    let (Some(root), Some(socket)) = (std::env::var_os(ROOT), std::env::var_os(SOCKET)) else { return };
    let settings = SnapshotterSettings::new(root);
    let (snapshotter, report) = Snapshotter::open(settings, Box::new(NoRemoteLayers), now).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        // One that was killed has left its socket.
        let _ = std::fs::remove_file(&socket);
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        println!("\nserving: {report:?}");
        let snapshots = SnapshotService::new(Arc::new(snapshotter));
        let interfaces = ServedInterfaces { snapshots, diff: None, images: None };
        serve(listener, interfaces, std::future::pending()).await.unwrap();
    });
}
