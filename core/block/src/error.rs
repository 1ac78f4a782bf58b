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

/// A value, or headstart's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an [`Error`], chosen by the action that a caller can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The bytes are wrong (damaged, truncated or hostile): fetch them again, or do without them.
    Corrupt,
    /// The bytes may be right, but this version cannot read or write their format.
    Unsupported,
    /// The request makes no sense: change it.
    Invalid,
    /// The file, blob, image or other object does not exist.
    NotFound,
    /// Another user or process holds the object or has changed it: wait, or start over.
    Conflict,
    /// No space is left, or a limit on it is reached: free some.
    NoSpace,
    /// The object cannot be written.
    ReadOnly,
    /// The bytes are not on this host yet: fetch them and read again. Only reads that do not wait for a fetch return
    /// this kind.
    Absent,
    /// A store, another host or the network fails at present: try again, or use another store.
    Unavailable,
    /// Access is refused, by a store or because another user owns a file or may change it: give other credentials or
    /// another file.
    Denied,
    /// The user asked to stop.
    Cancelled,
    /// The kernel of this host does not make a disk the block device that was asked for: serve the disk in another way.
    NoDevice,
    /// A call of the operating system failed.
    Io,
}

/// All kinds.
const KINDS: [ErrorKind; 13] = [
    ErrorKind::Corrupt,
    ErrorKind::Unsupported,
    ErrorKind::Invalid,
    ErrorKind::NotFound,
    ErrorKind::Conflict,
    ErrorKind::NoSpace,
    ErrorKind::ReadOnly,
    ErrorKind::Absent,
    ErrorKind::Unavailable,
    ErrorKind::Denied,
    ErrorKind::Cancelled,
    ErrorKind::NoDevice,
    ErrorKind::Io,
];

impl ErrorKind {
    /// The word that stands for this kind between processes, such as in the answers of an agent. A word never changes
    /// its meaning; readers take an unknown one for none.
    #[must_use]
    pub fn word(self) -> &'static str {
        // A kind that is new here belongs to the list above, too.
        match self {
            Self::Corrupt => "corrupt",
            Self::Unsupported => "unsupported",
            Self::Invalid => "invalid",
            Self::NotFound => "not-found",
            Self::Conflict => "conflict",
            Self::NoSpace => "no-space",
            Self::ReadOnly => "read-only",
            Self::Absent => "absent",
            Self::Unavailable => "unavailable",
            Self::Denied => "denied",
            Self::Cancelled => "cancelled",
            Self::NoDevice => "no-device",
            Self::Io => "io",
        }
    }

    /// The kind for which a word stands; `None` for a word of a later version.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        KINDS.into_iter().find(|kind| kind.word() == word)
    }
}

/// An error that names the thing it is about (a file, a blob, an image), the cause and, if there is one, the
/// remedy.
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
    /// Makes an error of `kind`. The cause is a phrase that follows the name of the thing, such as "is
    /// truncated".
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

    /// Makes an error of kind [`ErrorKind::Absent`]: a read needs bytes that are not on this host. `range` is a part of
    /// the stored blob that has to be fetched before the read can succeed; the read may then need further parts.
    #[must_use]
    pub fn absent(range: ByteRange) -> Self {
        let mut error = Self::new(ErrorKind::Absent, "has bytes that are not on this host");
        error.0.absent = Some(range);
        error
    }

    /// Makes an error of kind [`ErrorKind::Corrupt`]: the bytes are damaged, truncated or hostile.
    pub fn corrupt(cause: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Corrupt, cause)
    }

    /// Makes an error of kind [`ErrorKind::Unsupported`]: this version does not handle the format of the
    /// bytes.
    pub fn unsupported(cause: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Unsupported, cause)
    }

    /// Makes an error of kind [`ErrorKind::Invalid`]: the caller's request makes no sense.
    pub fn invalid(cause: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Invalid, cause)
    }

    /// Makes an error from a failed system call. Its kind follows from `source`: [`ErrorKind::NotFound`],
    /// [`ErrorKind::NoSpace`] (`ENOSPC` and `EDQUOT`), [`ErrorKind::ReadOnly`], otherwise [`ErrorKind::Io`].
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

    /// Names the thing that the error is about (a file, a blob, an image), unless it is named already.
    #[must_use]
    pub fn about(mut self, thing: impl fmt::Display) -> Self {
        self.0.thing.get_or_insert_with(|| thing.to_string());
        self
    }

    /// Adds the remedy, unless the error has one already.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<Cow<'static, str>>) -> Self {
        self.0.remedy.get_or_insert_with(|| remedy.into());
        self
    }

    /// Replaces the remedy: a caller that knows what the user asked for knows a better one.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<Cow<'static, str>>) -> Self {
        self.0.remedy = Some(remedy.into());
        self
    }

    /// Replaces the kind: a caller further out knows what can be done.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Attaches `source`, the error that caused this one, and replaces one that was attached before. Messages show it
    /// after the cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The bytes of a blob that have to be fetched before the read can succeed. `None` unless the error was
    /// made by [`Error::absent`].
    #[must_use]
    pub fn absent_range(&self) -> Option<ByteRange> {
        self.0.absent
    }

    /// Sets the pause that the failing server or host asked for before the next request.
    #[must_use]
    pub fn retry_after(mut self, pause: Duration) -> Self {
        self.0.retry_after = Some(pause);
        self
    }

    /// The pause that the failing server or host asked for before the next request; an earlier retry makes the overload
    /// there worse. `None` if no pause was asked for.
    #[must_use]
    pub fn asked_pause(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Marks the error as one that retries are unlikely to clear, because it comes from the configuration of
    /// the other host or server.
    #[must_use]
    pub fn lasting(mut self) -> Self {
        self.0.lasting = true;
        self
    }

    /// `true` if retries are unlikely to clear the error; see [`Error::lasting`]. A caller that has not
    /// started its work yet should report the error instead of retrying.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        self.0.lasting
    }

    /// Marks the error as one that the other host or server sent itself, which shows that it is running.
    #[must_use]
    pub fn answered(mut self) -> Self {
        self.0.answered = true;
        self
    }

    /// `true` if the other host or server sent this error itself; see [`Error::answered`]. A retry may still
    /// help.
    #[must_use]
    pub fn has_answered(&self) -> bool {
        self.0.answered
    }

    /// `true` if the kind is [`ErrorKind::Unavailable`] and the other host or server sent no answer: it may
    /// be down or out of reach.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.0.kind == ErrorKind::Unavailable && !self.0.answered
    }

    /// The kind of the error: the action that a caller can take.
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
            ErrorKind::Cancelled | ErrorKind::Conflict | ErrorKind::NoDevice | ErrorKind::Io => {
                io::ErrorKind::Other
            }
            ErrorKind::Absent => io::ErrorKind::WouldBlock,
            ErrorKind::Unavailable => io::ErrorKind::TimedOut,
            ErrorKind::Denied => io::ErrorKind::PermissionDenied,
        };
        Self::new(kind, error)
    }
}

/// An I/O error that wraps an [`Error`] gives that error back unchanged: errors cross `std::io` traits whole.
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
    fn every_kind_has_a_word_of_its_own() {
        for kind in KINDS {
            assert_eq!(ErrorKind::of_word(kind.word()), Some(kind));
        }
        assert_eq!(ErrorKind::of_word("of a later version"), None);
    }

    #[test]
    fn what_a_caller_knows_better_takes_the_place_of_what_was_said() {
        let error = Error::unsupported("has no driver").remedy("load it").with_remedy("use another");
        let error = error.with_kind(ErrorKind::NoDevice);
        assert_eq!(
            (error.kind(), error.to_string()),
            (ErrorKind::NoDevice, "has no driver; use another".into())
        );
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
