//! The control socket of a disk that is served: `control` in its writable directory. By it, other programs have the
//! disk's process do what only the process that has the directory locked can do.
//!
//! Only the directory's user can use the socket: it is closed to others, and so is the directory. A connection carries
//! one request and one answer, each a line of JSON:
//!
//! ```text
//! {"clone":{"dir":"/var/lib/vm2","uuid":"..."}}     make a clone of the disk in that directory
//! {"cloned":{"uuid":"...", ...}}                    done
//! {"failed":{"conflict":true,"message":"..."}}      not done
//! ```

use crate::session::DiskSession;
use headstart_block::guarded::GuardedDir;
use headstart_block::{Error, ErrorKind, Result, private};
use headstart_lsmt::writable::{ClonedDisk, WritableDisk};
use rustix::net::{Shutdown, shutdown};
use serde::{Deserialize, Serialize};
use std::fs::{Permissions, set_permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use uuid::Uuid;

/// The name of the socket.
const SOCKET: &str = "control";

/// The longest request or answer in bytes: two paths and some words.
const LINE_MAX: u64 = 64 << 10;

/// The time that a client has for its request, and for taking the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest wait for an answer. A clone waits for one step of the collector, and for the disk's writes to become
/// durable.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Request {
    Clone { dir: PathBuf, uuid: Uuid },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Cloned(ClonedDisk),
    Failed {
        /// `true` if something else is in the way.
        conflict: bool,
        message: String,
    },
}

/// The control socket of one disk. It is removed when this is dropped.
pub struct DiskControl {
    dir: GuardedDir,
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
}

/// Opens the control sockets of the writable disks of a session. One that cannot be opened is reported in the log: the
/// disk is served without.
#[must_use]
pub fn open_controls(session: &DiskSession) -> Vec<DiskControl> {
    let writable = session.disks.iter().filter_map(|disk| disk.writable.as_deref().zip(disk.disk.writable()));
    let opened = writable.filter_map(|(dir, disk)| match DiskControl::open(dir, Arc::clone(disk)) {
        Ok(control) => Some(control),
        Err(error) => {
            tracing::warn!(%error, "a disk is served without a control socket: it cannot be cloned meanwhile");
            None
        }
    });
    opened.collect()
}

impl DiskControl {
    /// Opens the socket of `disk`, which this process has open in the directory `dir`.
    fn open(dir: &Path, disk: Arc<WritableDisk>) -> Result<Self> {
        let failed = |e| Error::io("cannot open the control socket", e).about(dir.join(SOCKET).display());
        let dir = GuardedDir::open(dir).map_err(failed)?;
        // The directory is locked: one that is there belongs to a process that has died.
        match dir.remove_file(SOCKET) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
        // By the open directory, whose path may be too long for an address.
        let path = dir.anchored(SOCKET).map_err(failed)?;
        let listener = Arc::new(UnixListener::bind(&path).map_err(failed)?);
        // A directory with the sticky bit may be open to others.
        set_permissions(&path, Permissions::from_mode(private::FILE_MODE)).map_err(failed)?;
        let accepting = Arc::clone(&listener);
        let serve = move || {
            while let Ok((client, _)) = accepting.accept() {
                if let Err(error) = answer(&client, &disk) {
                    tracing::debug!(%error, "a client of the control socket got no answer");
                }
            }
        };
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(serve);
        let thread = Some(thread.map_err(|e| Error::io("cannot start a thread", e))?);
        Ok(Self { dir, listener, thread })
    }
}

impl Drop for DiskControl {
    fn drop(&mut self) {
        let _ = self.dir.remove_file(SOCKET);
        // The thread waits for the next client, and gets an error in its place.
        if shutdown(&*self.listener, Shutdown::Both).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// Serves one client.
fn answer(client: &UnixStream, disk: &WritableDisk) -> std::io::Result<()> {
    client.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    client.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(client.take(LINE_MAX)).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Ok(Request::Clone { dir, uuid }) => match disk.clone_to(&dir, uuid) {
            Ok(cloned) => Answer::Cloned(cloned),
            Err(error) => {
                Answer::Failed { conflict: error.kind() == ErrorKind::Conflict, message: error.to_string() }
            }
        },
        Err(error) => {
            let message = format!("the process of the disk does not understand the request ({error})");
            Answer::Failed { conflict: false, message }
        }
    };
    send(client, &answer)
}

fn send(mut stream: &UnixStream, message: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Makes a clone of the disk in the directory `dir` in the new directory `target`, as [`WritableDisk::clone_to`] does:
/// by the process that has it open, if there is one, otherwise here.
///
/// # Errors
/// Those of [`WritableDisk::open_alone`] and [`WritableDisk::clone_to`]; [`ErrorKind::Conflict`] if a process has the
/// disk open and no control socket.
pub fn clone_disk(dir: &Path, target: &Path, uuid: Uuid) -> Result<ClonedDisk> {
    let in_use = match WritableDisk::open_alone(dir) {
        Ok(disk) => return disk.clone_to(target, uuid),
        Err(error) if error.kind() == ErrorKind::Conflict => error,
        Err(error) => return Err(error),
    };
    let failed = |what| move |e| Error::io(what, e).about(dir.join(SOCKET).display());
    let socket = GuardedDir::open(dir).and_then(|dir| UnixStream::connect(dir.anchored(SOCKET)?));
    // Processes of earlier versions have none.
    let Ok(socket) = socket else { return Err(in_use) };
    let target = std::path::absolute(target)
        .map_err(|e| Error::io("has no absolute path", e).about(target.display()))?;
    let asked = socket.set_read_timeout(Some(ANSWER_TIMEOUT)).and_then(|()| {
        send(&socket, &Request::Clone { dir: target, uuid })?;
        let mut line = String::new();
        BufReader::new((&socket).take(LINE_MAX)).read_line(&mut line).map(|_| line)
    });
    let line = asked.map_err(failed("the process of the disk does not answer"))?;
    match serde_json::from_str(&line) {
        Ok(Answer::Cloned(cloned)) => Ok(cloned),
        Ok(Answer::Failed { conflict, message }) => {
            Err(Error::new(if conflict { ErrorKind::Conflict } else { ErrorKind::Io }, message))
        }
        Err(error) => Err(Error::corrupt("the answer of the disk's process makes no sense").caused_by(error)),
    }
}
