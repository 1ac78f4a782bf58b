//! Where a server listens: a Unix socket or a TCP port.

use headstart_block::{Error, ErrorKind, Result};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle, set_tcp_nodelay};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, listen, shutdown, socket_with,
};
use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 128;
/// A TCP client that is silent for so long is asked whether it still lives; the kernel asks nine times.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Where an NBD server listens: `unix:/path` or `host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A socket in the file system.
    Unix(PathBuf),
    /// A host name or address, and a port; 0 lets the system choose one.
    Tcp(String, u16),
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            Error::invalid(format!("`{}` is not an address", text.escape_debug()))
                .remedy("write it as unix:/path/of/socket, host:port or [::1]:port")
        };
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(bad()) } else { Ok(Self::Unix(path.into())) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if host.is_empty() || (bare.is_none() && host.contains(['/', ':'])) {
            return Err(bad());
        }
        Ok(Self::Tcp(bare.unwrap_or(host).to_owned(), port.parse().map_err(|_| bad())?))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
        }
    }
}

/// A socket that clients connect to. Dropped, it takes its file along.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix { socket: UnixListener, path: PathBuf, inode: (u64, u64) },
    Tcp(TcpListener),
}

/// A client that has connected.
pub(crate) struct Guest {
    pub(crate) socket: OwnedFd,
    /// For messages.
    pub(crate) name: String,
    pub(crate) is_tcp: bool,
}

impl Listener {
    /// Listens at `address`; a Unix socket's file gets the permissions `mode`.
    pub(crate) fn open(address: &Address, mode: u32) -> Result<Self> {
        match address {
            Address::Unix(path) => listen_unix(path, mode).map_err(|error| error.about(path.display())),
            Address::Tcp(host, port) => TcpListener::bind((host.as_str(), *port))
                .map(Self::Tcp)
                .map_err(|e| Error::io("cannot listen there", e).about(address)),
        }
    }

    /// Waits for a client.
    pub(crate) fn accept(&self) -> io::Result<Guest> {
        match self {
            Self::Unix { socket, .. } => {
                let name = "a local client".to_owned();
                Ok(Guest { socket: socket.accept()?.0.into(), name, is_tcp: false })
            }
            Self::Tcp(socket) => {
                let (stream, peer) = socket.accept()?;
                // Replies are sent in batches: holding a small one back gains nothing. That a client is
                // gone without a word is noticed only by asking. Neither is needed to serve.
                let _ = set_tcp_nodelay(&stream, true);
                let _ =
                    set_socket_keepalive(&stream, true).and_then(|()| set_tcp_keepidle(&stream, KEEPALIVE));
                Ok(Guest { socket: stream.into(), name: peer.to_string(), is_tcp: true })
            }
        }
    }

    /// Makes a thread that waits for a client return with an error, now and ever after.
    pub(crate) fn close(&self) {
        let _ = shutdown(self.as_fd(), Shutdown::Both);
    }

    /// The URI by which clients name it, without an export. `tls`: whether they have to encrypt.
    pub(crate) fn uri(&self, tls: bool, export: &str) -> String {
        let scheme = if tls { "nbds" } else { "nbd" };
        let export = escape(export);
        match self {
            Self::Unix { path, .. } => {
                format!("{scheme}+unix:///{export}?socket={}", escape(&path.to_string_lossy()))
            }
            Self::Tcp(socket) => {
                let address = socket.local_addr().unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)));
                let slash = if export.is_empty() { "" } else { "/" };
                format!("{scheme}://{address}{slash}{export}")
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix { socket, .. } => socket.as_fd(),
            Self::Tcp(socket) => socket.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix { path, inode, .. } = self
            // Somebody may have put another in its place.
            && fs::symlink_metadata(&*path).is_ok_and(|meta| (meta.dev(), meta.ino()) == *inode)
        {
            let _ = fs::remove_file(path);
        }
    }
}

fn listen_unix(path: &Path, mode: u32) -> Result<Listener> {
    remove_stale(path)?;
    let address = SocketAddrUnix::new(path).map_err(|e| {
        Error::io("cannot be a socket's path", e.into()).remedy("paths of sockets have at most 107 bytes")
    })?;
    let cannot = |e: rustix::io::Errno| Error::io("cannot listen there", e.into());
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(cannot)?;
    bind(&socket, &address).map_err(cannot)?;
    // Nobody can connect before `listen`, so that nobody does with permissions of the process's mask.
    let restricted = fs::set_permissions(path, Permissions::from_mode(mode))
        .and_then(|()| fs::symlink_metadata(path))
        .and_then(|meta| listen(&socket, BACKLOG).map(|()| meta).map_err(Into::into));
    match restricted {
        Ok(meta) => {
            let inode = (meta.dev(), meta.ino());
            Ok(Listener::Unix { socket: socket.into(), path: path.to_owned(), inode })
        }
        Err(error) => {
            let _ = fs::remove_file(path);
            Err(Error::io("cannot listen there", error))
        }
    }
}

/// Removes the socket that a server left behind which did not end in order.
fn remove_stale(path: &Path) -> Result<()> {
    let Ok(meta) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !meta.file_type().is_socket() {
        return Err(Error::new(ErrorKind::Conflict, "is there already, and is not a socket")
            .remedy("remove it or choose another path"));
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|e| Error::io("cannot replace the socket of a server that is gone", e)),
        _ => {
            Err(Error::new(ErrorKind::Conflict, "another server listens there").remedy("choose another path"))
        }
    }
}

/// Escapes what a URI's path or query cannot hold.
fn escape(text: &str) -> String {
    use fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_it_prints() {
        for text in ["unix:/run/disk.sock", "localhost:10809", "127.0.0.1:0", "[::1]:10809"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "unix:", "host", ":1", "host:", "host:70000", "::1:5", "/run/x:1", "nbd://h:1"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn replaces_the_socket_of_the_dead_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s p");
        let address = Address::Unix(path.clone());
        let first = Listener::open(&address, 0o600).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(first.uri(false, "").ends_with("/s%20p"), "{}", first.uri(false, ""));
        assert_eq!(Listener::open(&address, 0o600).unwrap_err().kind(), ErrorKind::Conflict);
        // Killed, a server leaves its file.
        first.close();
        let second = Listener::open(&address, 0o600).unwrap();
        drop(first);
        assert!(path.exists(), "the first took the second's file");
        drop(second);
        assert!(!path.exists());
        fs::write(&path, "precious").unwrap();
        assert_eq!(Listener::open(&address, 0o600).unwrap_err().kind(), ErrorKind::Conflict);
        assert!(path.exists());
    }
}
