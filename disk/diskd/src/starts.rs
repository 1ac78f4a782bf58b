//! The socket at which a program tells the process of a disk which container starts on it.
//!
//! All containers of an image share its disk, which is attached when the image is pulled. That a container starts, and
//! with which program, shows in no read. The recorder and the plan need to know it: other programs of an image read
//! other blocks.
//!
//! A client sends one line of JSON, and gets one back, which says if the start is recorded. The socket is beside the
//! disk's file, in a directory of the client's, so that a program can tell it that did not start this process.

use crate::decode_ahead::decode_for_start;
use crate::session::DiskSession;
use headstart_block::{Error, ErrorKind, Result};
use headstart_export::socket::{SocketFile, listen};
use headstart_export::{Leftover, SocketAccess};
use rustix::net::{Shutdown, shutdown};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The time that either side has for its line.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The pause after a client that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The longest line.
const LINE_MAX: u64 = 4096;

/// A container that starts.
#[derive(Serialize, Deserialize)]
struct StartLine {
    /// The name of its program, the same on all hosts.
    entrypoint: String,
}

/// The answer.
#[derive(Serialize, Deserialize)]
struct StartAnswer {
    /// `true` if its reads are recorded as those of a start of this program.
    is_recorded: bool,
}

/// An open socket. Dropping it removes the socket and ends its thread.
pub struct StartSocket {
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
    _file: SocketFile,
}

impl StartSocket {
    /// Opens the socket `path` for the disks of a session, of which there is one.
    ///
    /// # Errors
    /// Errors of the operating system; [`ErrorKind::Conflict`] if something else is at the path.
    pub fn open(path: &Path, leftover: Leftover, session: &Arc<DiskSession>) -> Result<Self> {
        let (listener, file) = listen(path, &SocketAccess::default(), leftover)?;
        let (listener, session) = (Arc::new(listener), Arc::clone(session));
        let accepting = Arc::clone(&listener);
        let serve = move || accept_clients(&accepting, &session);
        let thread = thread::Builder::new().name("starts".to_owned()).spawn(serve);
        let thread = thread.map_err(|error| Error::io("cannot start a thread", error))?;
        Ok(Self { listener, thread: Some(thread), _file: file })
    }
}

impl Drop for StartSocket {
    fn drop(&mut self) {
        // The thread waits for the next client, and gets an error in its place.
        if shutdown(&*self.listener, Shutdown::Both).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// Answers clients, which are few, one after the other, until the listener is shut down.
fn accept_clients(listener: &UnixListener, session: &DiskSession) {
    loop {
        match listener.accept() {
            Ok((client, _)) => {
                if let Err(error) = answer(&client, session) {
                    tracing::debug!(%error, "a client that told of a container got no answer");
                }
            }
            // A listener that is shut down says that it is none.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(error) => {
                tracing::debug!(%error, "a client that wanted to tell of a container was lost");
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

fn answer(client: &UnixStream, session: &DiskSession) -> io::Result<()> {
    client.set_read_timeout(Some(TIMEOUT))?;
    client.set_write_timeout(Some(TIMEOUT))?;
    let line: StartLine = serde_json::from_str(&line_of(client)?)?;
    let mut is_recorded = false;
    for disk in &session.disks {
        if let Some(recorder) = &disk.recorder {
            let is_first = recorder.container_start().is_none();
            let is_start_recorded = recorder.container_started(&line.entrypoint, Instant::now());
            is_recorded |= is_start_recorded;
            // The reads of further ones are answered from the kernel's memory.
            let own = session.traces.as_ref().zip(session.cache.as_ref());
            if let Some((traces, cache)) = own.filter(|_| is_first && is_start_recorded) {
                decode_for_start(disk, &line.entrypoint, traces.directory().into(), cache);
            }
        }
        if let Some((preloader, puller)) = disk.disk.preloader().zip(disk.disk.puller()) {
            preloader.container_started(&line.entrypoint, puller);
        }
    }
    tracing::info!(entrypoint = line.entrypoint, is_recorded, "a container starts");
    send_line(client, &StartAnswer { is_recorded })
}

fn line_of(stream: &UnixStream) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(stream.take(LINE_MAX)).read_line(&mut line)?;
    Ok(line)
}

fn send_line(mut stream: &UnixStream, line: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    stream.write_all(&text)
}

/// Tells the process of the disk with the socket `path` that a container with this entrypoint starts. Returns `true` if
/// the start is recorded.
///
/// # Errors
/// [`ErrorKind::NotFound`] if no process has such a socket, as with those of earlier versions; errors of the operating
/// system.
pub fn tell_start(path: &Path, entrypoint: &str) -> Result<bool> {
    let stream = UnixStream::connect(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            Error::new(ErrorKind::NotFound, "no process of a disk listens there").about(path.display())
        }
        _ => Error::io("cannot be connected to", error).about(path.display()),
    })?;
    let ask = || -> io::Result<bool> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        send_line(&stream, &StartLine { entrypoint: entrypoint.to_owned() })?;
        let answer: StartAnswer = serde_json::from_str(&line_of(&stream)?)?;
        Ok(answer.is_recorded)
    };
    ask().map_err(|error| Error::io("the process of the disk does not answer", error).about(path.display()))
}
