//! The one error type of the workspace: the thing, the cause and the remedy.
//!
//! Code that finds a fault names the cause. Code further out that knows which file, blob or image the error is
//! about adds that thing with [`Error::about`]. The kind is prescriptive: it says what a caller can do, not where
//! the error came from.

use crate::ByteRange;
use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::time::Duration;

/// The result of everything fallible in headstart.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The action that a caller can take on an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The bytes are wrong (damaged, truncated, hostile): fetch them again or give them up.
    Corrupt,
    /// The bytes may be right, but this version does not read or write their form.
    Unsupported,
    /// The caller asked for something that makes no sense: ask differently.
    Invalid,
    /// The thing does not exist.
    NotFound,
    /// Another user or process holds or changed the thing: wait, or start over.
    Conflict,
    /// No space is left: free some, nothing was changed.
    NoSpace,
    /// The thing cannot be written.
    ReadOnly,
    /// The bytes are not on this host yet: fetch them and read again. Callers that may wait never see it.
    Absent,
    /// A store or the network fails for now: try again, or elsewhere.
    Unavailable,
    /// The store refuses the credentials: give others.
    Denied,
    /// The user asked to stop.
    Cancelled,
    /// The operating system failed.
    Io,
}

/// An error that names the thing, the cause and, where there is one, the remedy.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    thing: Option<String>,
    cause: Cow<'static, str>,
    remedy: Option<Cow<'static, str>>,
    source: Option<Box<dyn StdError + Send + Sync>>,
    absent: Option<ByteRange>,
    retry_after: Option<Duration>,
    lasting: bool,
    answered: bool,
}

impl Error {
    /// An error of `kind` with its cause.
    pub fn new(kind: ErrorKind, cause: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            thing: None,
            cause: cause.into(),
            remedy: None,
            source: None,
            absent: None,
            retry_after: None,
            lasting: false,
            answered: false,
        }))
    }

    /// Bytes that are not on this host: at least those of `range` of the blob that they are stored in.
    #[must_use]
    pub fn absent(range: ByteRange) -> Self {
        let mut error = Self::new(ErrorKind::Absent, "has bytes that are not on this host");
        error.0.absent = Some(range);
        error
    }

    /// Damaged, truncated or hostile bytes.
    pub fn corrupt(cause: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Corrupt, cause)
    }

    /// A form that this version does not handle.
    pub fn unsupported(cause: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Unsupported, cause)
    }

    /// A request that makes no sense.
    pub fn invalid(cause: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Invalid, cause)
    }

    /// A failed system call; `ENOSPC` and `EDQUOT` become [`ErrorKind::NoSpace`].
    pub fn io(cause: impl Into<Cow<'static, str>>, source: io::Error) -> Self {
        let kind = match source.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
            io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
            _ => ErrorKind::Io,
        };
        let mut error = Self::new(kind, cause);
        if kind == ErrorKind::NoSpace {
            error.0.remedy = Some("free space there".into());
        }
        error.0.source = Some(Box::new(source));
        error
    }

    /// Names the thing (a file, a blob, an image) unless an inner caller already did.
    #[must_use]
    pub fn about(mut self, thing: impl fmt::Display) -> Self {
        self.0.thing.get_or_insert_with(|| thing.to_string());
        self
    }

    /// Adds the remedy, unless an inner caller already did.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<Cow<'static, str>>) -> Self {
        self.0.remedy.get_or_insert_with(|| remedy.into());
        self
    }

    /// Attaches the error that caused this one.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The bytes that have to be fetched, if this is an [`Error::absent`].
    #[must_use]
    pub fn absent_range(&self) -> Option<ByteRange> {
        self.0.absent
    }

    /// Adds the time for which the failing end asks to be left alone.
    #[must_use]
    pub fn retry_after(mut self, pause: Duration) -> Self {
        self.0.retry_after = Some(pause);
        self
    }

    /// The time for which the failing end asked to be left alone, if it did: trying again sooner makes it worse.
    #[must_use]
    pub fn asked_pause(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Adds that the error hardly goes away by itself, because it comes from the other end's configuration.
    #[must_use]
    pub fn lasting(mut self) -> Self {
        self.0.lasting = true;
        self
    }

    /// `true` if the error hardly goes away by itself. A caller that has not begun yet should report it rather than
    /// wait.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        self.0.lasting
    }

    /// Adds that the other end is there: it gave another answer than the one asked for.
    #[must_use]
    pub fn answered(mut self) -> Self {
        self.0.answered = true;
        self
    }

    /// `true` if the other end answered, even if another try may help.
    #[must_use]
    pub fn has_answered(&self) -> bool {
        self.0.answered
    }

    /// `true` if the other end gave no answer: it may be down, or out of reach.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.0.kind == ErrorKind::Unavailable && !self.0.answered
    }

    /// The action that a caller can take.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(thing) = &self.0.thing {
            write!(f, "{thing}: ")?;
        }
        f.write_str(&self.0.cause)?;
        if let Some(source) = &self.0.source {
            write!(f, ": {source}")?;
        }
        if let Some(remedy) = &self.0.remedy {
            write!(f, "; {remedy}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self})", self.0.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::Corrupt => io::ErrorKind::InvalidData,
            ErrorKind::Unsupported => io::ErrorKind::Unsupported,
            ErrorKind::Invalid => io::ErrorKind::InvalidInput,
            ErrorKind::NotFound => io::ErrorKind::NotFound,
            ErrorKind::NoSpace => io::ErrorKind::StorageFull,
            ErrorKind::ReadOnly => io::ErrorKind::ReadOnlyFilesystem,
            // Not Interrupted: `write_all` and its kin would try again for ever.
            ErrorKind::Cancelled | ErrorKind::Conflict | ErrorKind::Io => io::ErrorKind::Other,
            ErrorKind::Absent => io::ErrorKind::WouldBlock,
            ErrorKind::Unavailable => io::ErrorKind::TimedOut,
            ErrorKind::Denied => io::ErrorKind::PermissionDenied,
        };
        Self::new(kind, error)
    }
}

/// An I/O error that carries one of ours gives it back unchanged: errors cross `std::io` traits whole.
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(ours) => ours,
            Err(other) => Self::io("I/O failed", other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_thing_cause_and_remedy() {
        let error = Error::corrupt("frame 7 fails its checksum").about("layer.zf").remedy("fetch it again");
        assert_eq!(error.to_string(), "layer.zf: frame 7 fails its checksum; fetch it again");
        assert_eq!(error.about("outer").to_string(), "layer.zf: frame 7 fails its checksum; fetch it again");
    }

    #[test]
    fn an_answer_is_told_from_silence() {
        let failed = || Error::new(ErrorKind::Unavailable, "failed");
        assert!(failed().is_away() && !failed().answered().is_away());
        assert!(failed().answered().about("x").caused_by("y").remedy("z").has_answered());
        assert!(!Error::new(ErrorKind::Denied, "refused").is_away());
    }

    #[test]
    fn a_full_disk_is_said_with_its_remedy() {
        let error = Error::io("cannot write", io::Error::from(io::ErrorKind::StorageFull)).about("/store");
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.to_string().contains("free space"), "{error}");
    }

    #[test]
    fn a_wish_to_stop_ends_write_all() {
        struct Stopped;
        impl io::Write for Stopped {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(Error::new(ErrorKind::Cancelled, "stopped").into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let error: Error = io::Write::write_all(&mut Stopped, b"x").unwrap_err().into();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    }

    #[test]
    fn survives_a_trip_through_std_io() {
        let error: Error = io::Error::from(Error::corrupt("bad").about("x")).into();
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Corrupt, "x: bad".to_owned()));
    }
}
