//! The address at which a server listens: a Unix socket or a TCP port.

use crate::socket::{self, Leftover, SocketAccess, SocketFile};
use headstart_block::{Error, Result};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle, set_tcp_nodelay};
use rustix::net::{Shutdown, shutdown};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The time for which a TCP client may be silent before it is asked whether it still lives; the kernel asks nine times.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// The address at which an NBD server listens: `unix:/path` for a Unix socket, or `host:port` for TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The path of a Unix socket.
    Unix(PathBuf),
    /// A host name or IP address, and a TCP port; for port 0 the system chooses one.
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
        if !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit()) && port.parse::<u16>().is_err() {
            return Err(Error::invalid(format!("{port} is not a port"))
                .remedy("give one of 1 to 65535, or 0 for any that is free"));
        }
        Ok(Self::Tcp(bare.unwrap_or(host).to_owned(), port.parse().map_err(|_| bad())?))
    }
}

impl Address {
    /// Returns `true` if only this host can reach the address: a Unix socket, or a host name that resolves to
    /// loopback addresses only. `false` for a name that cannot be resolved.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp(host, port) => (host.as_str(), *port)
                .to_socket_addrs()
                .is_ok_and(|mut addresses| addresses.all(|address| address.ip().is_loopback())),
        }
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

/// A socket that clients connect to. Dropping it removes its file.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix { socket: UnixListener, file: SocketFile },
    Tcp(TcpListener),
}

/// A client that has connected.
pub(crate) struct AcceptedConnection {
    pub(crate) socket: OwnedFd,
    /// The client's name for messages.
    pub(crate) name: String,
    pub(crate) is_tcp: bool,
}

impl Listener {
    /// Listens at `address`; `access` and `leftover` are for a Unix socket.
    pub(crate) fn open(address: &Address, access: &SocketAccess, leftover: Leftover) -> Result<Self> {
        match address {
            Address::Unix(path) => {
                socket::listen(path, access, leftover).map(|(socket, file)| Self::Unix { socket, file })
            }
            Address::Tcp(host, port) => TcpListener::bind((host.as_str(), *port))
                .map(Self::Tcp)
                .map_err(|e| Error::io("cannot listen there", e).about(address)),
        }
    }

    /// Waits for a client.
    pub(crate) fn accept(&self) -> io::Result<AcceptedConnection> {
        match self {
            Self::Unix { socket, .. } => {
                let name = "a local client".to_owned();
                Ok(AcceptedConnection { socket: socket.accept()?.0.into(), name, is_tcp: false })
            }
            Self::Tcp(socket) => {
                let (stream, peer) = socket.accept()?;
                // Replies are sent in batches: holding a small one back gains nothing. A client that is gone without a
                // message is noticed only by asking. Neither is needed to serve.
                let _ = set_tcp_nodelay(&stream, true);
                let _ =
                    set_socket_keepalive(&stream, true).and_then(|()| set_tcp_keepidle(&stream, KEEPALIVE));
                Ok(AcceptedConnection { socket: stream.into(), name: peer.to_string(), is_tcp: true })
            }
        }
    }

    /// Makes a thread that waits for a client return with an error, now and from now on.
    pub(crate) fn close(&self) {
        let _ = shutdown(self.as_fd(), Shutdown::Both);
    }

    /// The URI by which clients name `export`; with an empty name, the server. `tls` if they have to encrypt.
    pub(crate) fn uri(&self, tls: bool, export: &str) -> String {
        let scheme = if tls { "nbds" } else { "nbd" };
        let export = escape(export);
        match self {
            Self::Unix { file, .. } => {
                // Clients may run in another directory.
                let path = std::path::absolute(file.path()).unwrap_or_else(|_| file.path().to_owned());
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

/// Escapes the bytes that a URI's path or query cannot hold.
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
    fn a_uri_escapes_the_path_of_its_socket() {
        let dir = tempfile::tempdir().unwrap();
        let address = Address::Unix(dir.path().join("s p"));
        let listener = Listener::open(&address, &SocketAccess::default(), Leftover::IsUnknown).unwrap();
        assert!(listener.uri(false, "").ends_with("/s%20p"), "{}", listener.uri(false, ""));
        listener.close();
        drop(listener);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
