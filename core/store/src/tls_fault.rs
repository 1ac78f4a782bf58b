//! The failures of TLS that no second try clears, by the errors of the TLS library: the server speaks no TLS, or shows
//! a certificate that this host does not accept.

use headstart_block::{Error, ErrorKind};
use rustls::{AlertDescription, CertificateError, InvalidMessage};
use std::error::Error as StdError;
use std::io;

/// The cause if the server speaks no TLS.
const NO_TLS: &str = "the server does not speak TLS";

/// The remedy if the certificate is a server's own, and an authority's at once, as `openssl req -x509` makes it.
const NO_AUTHORITY: &str = "have the server show a certificate that is no authority's (openssl: `-addext \
                            basicConstraints=critical,CA:FALSE`), and name that one with --ca-file";

/// A failure of TLS, in words of people.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TlsFault {
    pub(crate) cause: String,
    /// `None` if the server speaks no TLS: the remedy depends on the kind of store.
    pub(crate) remedy: Option<&'static str>,
}

/// `true` if an error says that the server speaks no TLS.
pub(crate) fn is_plain(error: &Error) -> bool {
    error.is_lasting() && error.to_string().contains(NO_TLS)
}

impl TlsFault {
    fn new(cause: impl Into<String>, remedy: impl Into<Option<&'static str>>) -> Self {
        Self { cause: cause.into(), remedy: remedy.into() }
    }

    /// The failure that is the cause of an error; `None` if there is none of this kind.
    pub(crate) fn find(error: &(dyn StdError + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(tls) = error.downcast_ref::<rustls::Error>() {
                return Self::of(tls);
            }
            next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
                // An I/O error has the source of the one that it was made of, and leaves that one out.
                Some(inner) => Some(inner),
                None => error.source(),
            };
        }
        None
    }

    /// The error of a store that cannot be reached because of it.
    pub(crate) fn into_error(self) -> Error {
        let error = Error::new(ErrorKind::Unavailable, self.cause).lasting();
        match self.remedy {
            Some(remedy) => error.remedy(remedy),
            None => error,
        }
    }

    fn of(error: &rustls::Error) -> Option<Self> {
        Some(match error {
            rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => Self::new(NO_TLS, None),
            rustls::Error::InvalidCertificate(why) => Self::of_refused(why),
            rustls::Error::AlertReceived(why) if is_of_configuration(*why) => Self::new(
                format!("the server ends the connection, as TLS says ({why:?})"),
                "check which versions of TLS it offers, and whether it asks for a certificate",
            ),
            _ => return None,
        })
    }

    fn of_refused(why: &CertificateError) -> Self {
        use CertificateError as Why;
        const CLOCKS: &str = "check the clock of this host, and renew the certificate";
        const NAMES: &str = "use a name that it has, or have the server show one for this name";
        match why {
            Why::UnknownIssuer => Self::new(
                "its certificate is of an authority that this host does not trust",
                "give the certificate of that authority with --ca-file, if you trust it",
            ),
            Why::Expired | Why::ExpiredContext { .. } => Self::new("its certificate has ended", CLOCKS),
            Why::NotValidYet | Why::NotValidYetContext { .. } => {
                Self::new("its certificate is not valid yet", CLOCKS)
            }
            Why::NotValidForName | Why::NotValidForNameContext { .. } => {
                Self::new("its certificate is for other names than this one", NAMES)
            }
            why if format!("{why:?}").contains("CaUsedAsEndEntity") => {
                Self::new("its certificate is an authority's own", NO_AUTHORITY)
            }
            why => Self::new(
                format!("its certificate is not accepted: {why}"),
                "have the server show a certificate without that fault",
            ),
        }
    }
}

/// `true` if a server that says so says it again: others, such as an internal error, may pass.
fn is_of_configuration(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::ProtocolVersion
            | Alert::HandshakeFailure
            | Alert::InsufficientSecurity
            | Alert::NoApplicationProtocol
            | Alert::UnrecognisedName
            | Alert::CertificateRequired
            | Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_tls_is_found_in_the_chain_and_has_a_remedy() {
        let certificate = rustls::Error::InvalidCertificate;
        for (error, part) in [
            (certificate(CertificateError::UnknownIssuer), "--ca-file"),
            (certificate(CertificateError::Expired), "clock"),
            (certificate(CertificateError::NotValidYet), "clock"),
            (certificate(CertificateError::NotValidForName), "a name that it has"),
            (rustls::Error::AlertReceived(AlertDescription::ProtocolVersion), "versions of TLS"),
            (rustls::Error::AlertReceived(AlertDescription::CertificateRequired), "asks for a certificate"),
            (rustls::Error::AlertReceived(AlertDescription::UnrecognisedName), "versions of TLS"),
        ] {
            // As connections have it: an I/O error of an I/O error.
            let outer = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, error.clone()));
            let found = TlsFault::find(&outer).unwrap();
            assert!(found.remedy.unwrap().contains(part), "{found:?}");
            assert_eq!(TlsFault::find(&error), Some(found));
        }
        let plain = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
        assert!(is_plain(&TlsFault::find(&plain).unwrap().into_error()));
        let busy =
            [AlertDescription::InternalError, AlertDescription::UserCanceled, AlertDescription::DecodeError];
        let busy = busy.map(|alert| io::Error::other(rustls::Error::AlertReceived(alert)));
        let others = [io::Error::other("reset"), io::Error::other(rustls::Error::DecryptError)];
        for other in others.into_iter().chain(busy) {
            assert_eq!(TlsFault::find(&other), None, "may pass");
        }
    }
}
