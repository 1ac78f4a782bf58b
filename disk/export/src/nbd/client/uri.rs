//! The URI of an export, for clients: `nbd://host:port/export`, `nbd+unix:///export?socket=/path`.

use super::super::address::Address;
use super::super::proto::STRING_MAX;
use headstart_block::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// The port that is assigned to the protocol.
const PORT: u16 = 10809;

/// An export of an NBD server, as an NBD URI such as `nbd://host:port/name` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdUri {
    /// The address at which the server listens.
    pub address: Address,
    /// The name of the export; empty for the server's default export.
    pub export: String,
    text: String,
}

impl FromStr for NbdUri {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |cause: &str| {
            Error::invalid(format!("`{}` {cause}", text.escape_debug()))
                .remedy("write it as nbd://host:port/export or nbd+unix:///export?socket=/path")
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| bad("is no NBD URI"))?;
        if matches!(scheme, "nbds" | "nbds+unix" | "nbd+vsock" | "nbds+vsock") {
            return Err(Error::unsupported(format!("`{scheme}` is not spoken here"))
                .about(text.escape_debug())
                .remedy("have the server listen without TLS on this host, at a Unix socket say"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let decoded = |text: &str| unescape(text).ok_or_else(|| bad("has a wrong %-escape"));
        let export = decoded(path)?;
        if export.len() > STRING_MAX {
            return Err(bad("has too long an export name"));
        }
        let address = match scheme {
            "nbd" if authority.is_empty() => return Err(bad("names no host")),
            "nbd" => {
                let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
                let full = if has_port { authority.to_owned() } else { format!("{authority}:{PORT}") };
                full.parse().ok().filter(|address| matches!(address, Address::Tcp(..)))
            }
            "nbd+unix" => {
                let socket = query.split('&').find_map(|field| field.strip_prefix("socket="));
                let socket = decoded(socket.ok_or_else(|| bad("names no socket"))?)?;
                (authority.is_empty() && !socket.is_empty()).then(|| Address::Unix(socket.into()))
            }
            _ => None,
        };
        let address = address.ok_or_else(|| bad("is no NBD URI"))?;
        Ok(Self { address, export, text: text.to_owned() })
    }
}

impl fmt::Display for NbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Undoes %-escapes; `None` if one is cut short, or the result is not UTF-8.
fn unescape(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let mut digit = || char::from(bytes.next()?).to_digit(16);
            let (high, low) = (digit()?, digit()?);
            out.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, String) {
        let uri: NbdUri = text.parse().unwrap();
        assert_eq!(uri.to_string(), text);
        (uri.address.to_string(), uri.export)
    }

    fn pair(address: &str, export: &str) -> (String, String) {
        (address.to_owned(), export.to_owned())
    }

    #[test]
    fn uris_that_servers_print_are_parsed() {
        assert_eq!(parsed("nbd://localhost:1/disk"), pair("localhost:1", "disk"));
        assert_eq!(parsed("nbd://host"), pair("host:10809", ""));
        assert_eq!(parsed("nbd://[::1]/a/b%20c"), pair("[::1]:10809", "a/b c"));
        assert_eq!(parsed("nbd://[::1]:7/"), pair("[::1]:7", ""));
        assert_eq!(parsed("nbd+unix:///?socket=/run/d%20e.sock"), pair("unix:/run/d e.sock", ""));
        assert_eq!(parsed("nbd+unix:///x?a=b&socket=s"), pair("unix:s", "x"));
    }

    #[test]
    fn malformed_uris_are_refused() {
        for text in [
            "",
            "nbd",
            "nbd://",
            "nbd:///x",
            "http://host/x",
            "nbd+unix:///x",
            "nbd+unix://h/x?socket=s",
            "nbd+unix:///?socket=",
            "nbd://host:port/",
            "nbd://host/%4",
            "nbd://host/%ff",
            "nbds://host/",
        ] {
            let error = text.parse::<NbdUri>().unwrap_err();
            assert!(error.to_string().contains("nbd") || text.starts_with("nbds"), "{text}: {error}");
        }
    }
}
