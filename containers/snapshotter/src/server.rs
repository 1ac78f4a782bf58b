//! The snapshot interface on a Unix socket.

use crate::service::SnapshotService;
use futures::Stream;
use headstart_block::{Error, ErrorKind, Result};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tonic::transport::Server;

/// The pause after a connection that could not be accepted, such as for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Permission bits of the socket: mounts are for containerd, which is root's, and for the socket's owner.
const SOCKET_MODE: u32 = 0o600;

/// Listens on a Unix socket at `path`, to which only this user and root may connect. A socket that an earlier process
/// has left there is replaced; at no moment is there none.
///
/// # Errors
/// [`ErrorKind::Conflict`] if a process listens there, or something else is in the way; errors of the operating system.
pub fn listen(path: &Path) -> Result<UnixListener> {
    let about = |error: Error| error.about(path.display());
    let failed = |error| about(Error::io("cannot listen", error));
    let taken =
        |cause: &'static str| about(Error::new(ErrorKind::Conflict, cause)).remedy("give another path");
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => return Err(taken("is there, and is no socket")),
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            return Err(taken("is the socket of a process that listens"));
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let new = beside(path);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&new).map_err(failed)?;
    fs::set_permissions(&new, Permissions::from_mode(SOCKET_MODE)).map_err(failed)?;
    fs::rename(&new, path).map_err(failed)?;
    Ok(listener)
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

/// Serves until `end` is ready; calls that are being answered then are answered. Directories of snapshots that an
/// earlier process did not get to remove are removed meanwhile.
///
/// # Errors
/// [`ErrorKind::Io`] if the server fails.
pub async fn serve(
    listener: UnixListener,
    service: SnapshotService,
    end: impl Future<Output = ()>,
) -> Result<()> {
    service.clean_up();
    let served = Server::builder().serve_with_incoming_shutdown(service, connections(listener), end).await;
    served.map_err(|error| Error::new(ErrorKind::Io, "the server of snapshots failed").caused_by(error))
}

/// The connections to a socket, without end.
fn connections(listener: UnixListener) -> impl Stream<Item = io::Result<UnixStream>> {
    futures::stream::unfold(listener, |listener| async {
        loop {
            match listener.accept().await {
                Ok((connection, _)) => return Some((Ok(connection), listener)),
                Err(error) => {
                    tracing::warn!(%error, "a connection of containerd could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}
