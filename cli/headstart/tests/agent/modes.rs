//! The users that can read the files of an agent and its disks: only their owner, whatever the umask is.

use crate::agent::Agent;
use crate::attached::{Attached, TIMEOUT};
use crate::images::noisy;
use crate::scene::Scene;
use headstart_testkit::process::Process;
use headstart_testkit::wait::{wait_for, wait_for_value};
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files and directories below `dir` that others than their owner can use.
pub(crate) fn open_to_others(dir: &Path) -> Vec<String> {
    below(dir)
        .into_iter()
        // A temporary file may be gone by now.
        .filter_map(|path| Some((path.symlink_metadata().ok()?.mode(), path)))
        .filter(|(mode, _)| mode & 0o077 != 0)
        .map(|(mode, path)| format!("{} {mode:o}", path.display()))
        .collect()
}

fn below(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![dir.to_owned()];
    let mut next = 0;
    while let Some(path) = found.get(next).cloned() {
        if path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
            found.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
        next += 1;
    }
    found
}

/// The command of `words` with a umask that forbids nothing.
fn without_umask(scene: &Scene, words: &str) -> Command {
    let program = scene.command(words);
    let mut command = Command::new("sh");
    command.args(["-c", "umask 000; exec \"$@\"", "sh"]).arg(program.get_program()).args(program.get_args());
    command.current_dir(scene.path(""));
    command
}

fn made_by_an_agent(scene: &Scene) -> Process {
    let words =
        "agent --json --dir ~/new/a --state ~/new/state --cache ~/new/cache --plain a --listen 127.0.0.1:0";
    let mut agent = Process::start(&mut without_umask(scene, words));
    agent.line("that it is ready", TIMEOUT, |line| line.starts_with("{\"name\""));
    agent
}

#[test]
fn files_of_agents_and_disks_are_their_owners_under_any_umask() {
    let scene = noisy(1);
    let mut agent = made_by_an_agent(&scene);
    let disk = "attach --json vm=file://~/store:v1 --nbd unix:~/new/n.sock --writable ~/new/deep/w";
    scene.ok(&format!("{disk} --agent ~/new/a/agent.sock"));
    assert_eq!(open_to_others(&scene.path("new")), Vec::<String>::new());
    scene.ok("disk detach vm --json --agent ~/new/a/agent.sock");
    assert_eq!(open_to_others(&scene.path("new")), Vec::<String>::new());
    agent.stop(TIMEOUT);
}

/// The files are as version 0.1.0 made them.
#[test]
fn files_that_were_open_to_others_are_closed_with_one_warning() {
    let scene = noisy(1);
    let words = "file://~/store:v1 --no-record --nbd unix:~/n.sock --writable ~/w";
    Attached::start(&scene, words).detach();
    let mut agent = Agent::start(&scene, "a", "");
    for dir in ["w", "a", "a-cache"] {
        for path in below(&scene.path(dir)) {
            let mode = if path.is_dir() { 0o755 } else { 0o644 };
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
    }
    for is_first in [true, false] {
        agent.stop();
        agent.again();
        let attached = Attached::start(&scene, words);
        assert_eq!(open_to_others(&scene.path("w")), Vec::<String>::new());
        for dir in ["a", "a-cache"] {
            assert_eq!(fs::metadata(scene.path(dir)).unwrap().mode() & 0o777, 0o700, "{dir}");
        }
        let about = |said: &str| said.lines().filter(|line| line.contains("now they cannot")).count();
        let expected = if is_first { (1, 2) } else { (0, 0) };
        // Standard error may come later than the line that all is ready.
        wait_for_value(
            &format!("{expected:?} lines about modes, of the disk and of the agent"),
            TIMEOUT,
            || (attached.output(), agent.output()),
            |said| (about(&said.0), about(&said.1)) == expected,
        );
        attached.detach();
    }
}

#[test]
fn a_directory_that_everybody_uses_stays_open() {
    let scene = noisy(1);
    fs::create_dir(scene.path("a-cache")).unwrap();
    fs::set_permissions(scene.path("a-cache"), Permissions::from_mode(0o1777)).unwrap();
    let mut agent = Agent::start(&scene, "a", "");
    agent.stop();
    agent.again();
    assert_eq!(fs::metadata(scene.path("a-cache")).unwrap().mode() & 0o7777, 0o1777);
}

#[test]
fn a_disks_log_gives_way_to_a_new_one() {
    let scene = noisy(1);
    let mut command = scene.command("agent --json --dir ~/a --cache ~/a-cache");
    let mut agent = Process::start(command.env("HEADSTART_LOG", "headstart_export=debug"));
    agent.line("that it is ready", TIMEOUT, |line| line.starts_with("{\"name\""));
    scene.ok("attach --json vm=file://~/store:v1 --nbd unix:~/n.sock --agent ~/a/agent.sock");
    // The log is nearly full, and the process warns of each client that sends malformed bytes.
    let log = scene.path("a/disks/vm.log");
    fs::write(&log, vec![b'\n'; 1 << 20]).unwrap();
    wait_for("the log is copied and then begun again", TIMEOUT, || {
        let len = fs::metadata(&log).unwrap().len();
        if scene.path("a/disks/vm.log.1").exists() && len < 1 << 16 {
            return Ok(());
        }
        let mut client = UnixStream::connect(scene.path("n.sock")).unwrap();
        let _ = client.write_all(&[0xff; 64]);
        Err(format!("the log is {len} bytes long"))
    });
    assert_eq!(open_to_others(&scene.path("a/disks")), Vec::<String>::new());
    scene.ok("disk detach vm --json --agent ~/a/agent.sock");
    assert_eq!(scene.names("a/disks"), Vec::<String>::new());
    agent.stop(TIMEOUT);
}
