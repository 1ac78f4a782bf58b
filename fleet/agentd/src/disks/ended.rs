//! [`Ended`]: the end of a disk's process, and its cause in words and as a kind.

use super::record::line_with;
use headstart_block::{Error, ErrorKind};
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;

/// The beginning of a log line that is not the cause of an end.
const WARNING: &str = "warning: ";

/// The field of the line that names the kind of an error.
const FAILED: &str = "failed";

/// The line of output by which the process of a disk tells its agent the kind of the error with which it ends. The
/// words of the error are in its log.
#[must_use]
pub fn failed_line(error: &Error) -> String {
    serde_json::json!({ FAILED: error.kind().word() }).to_string()
}

/// The kind that is in the output of a process. `None` if it said none, as those of earlier versions.
pub(super) fn failed_kind(output: &Path) -> Option<ErrorKind> {
    line_with(output, FAILED)?.get(FAILED)?.as_str().and_then(ErrorKind::of_word)
}

/// The end of a disk's process.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// In good order: it was asked to end.
    InOrder,
    /// Death: it ended without finishing its work.
    Died {
        /// Its exit status, where it is known.
        status: Option<ExitStatus>,
        /// The last line of its log that is for people.
        words: Option<String>,
        /// The kind of its error, if it has said one.
        kind: Option<ErrorKind>,
    },
    /// A process that could not be started.
    NotStarted(String),
}

impl Ended {
    /// The kind of the error with which a process has ended that was never ready.
    pub(super) fn kind(&self) -> ErrorKind {
        match self {
            Self::Died { kind: Some(kind), .. } => *kind,
            _ => ErrorKind::Invalid,
        }
    }
}

/// The cause of an end that the agent did not ask for.
impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (status, words) = match self {
            Self::InOrder => return f.write_str("it was asked to end, and not by its agent"),
            Self::NotStarted(cause) => return f.write_str(cause),
            Self::Died { status, words, .. } => (status, words.as_deref()),
        };
        match status.map(|status| (status.signal(), status.code())) {
            Some((Some(signal), _)) => write!(f, "it was killed (signal {signal})")?,
            Some((None, code)) => match words.filter(|words| !words.starts_with(WARNING)) {
                // The last line of a failed process is the cause.
                Some(error) => return f.write_str(error),
                None => write!(f, "it ended with exit code {}", code.unwrap_or_default())?,
            },
            None => {
                f.write_str("it died; how is not known, because an agent before this one had started it")?;
            }
        }
        words.map_or(Ok(()), |words| write!(f, "; it said last: {words}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_says_the_kind_of_its_error() {
        let dir = tempfile::tempdir().unwrap();
        let output = dir.path().join("a.out");
        assert_eq!(failed_kind(&output), None);
        for (text, kind) in [
            (failed_line(&Error::new(ErrorKind::NoDevice, "no nbd")) + "\n", Some(ErrorKind::NoDevice)),
            ("{\"reads\":7}\n".to_owned(), None),
            ("{\"failed\":\"of a later version\"}\n".to_owned(), None),
            ("{\"failed\":7}\n".to_owned(), None),
        ] {
            std::fs::write(&output, &text).unwrap();
            let kept = failed_kind(&output);
            assert_eq!(kept, kind, "{text}");
            let kept = Ended::Died { status: None, words: None, kind: kept }.kind();
            assert_eq!(kept, kind.unwrap_or(ErrorKind::Invalid), "{text}");
        }
    }

    #[test]
    fn an_end_has_a_cause() {
        let died = |status: Option<i32>, words: Option<&str>| {
            let (status, words) = (status.map(ExitStatus::from_raw), words.map(str::to_owned));
            Ended::Died { status, words, kind: None }.to_string()
        };
        let (warning, error) = (Some("warning: it is full"), Some("vm: is damaged"));
        assert_eq!(died(Some(9), None), "it was killed (signal 9)");
        assert_eq!(died(Some(6), error), "it was killed (signal 6); it said last: vm: is damaged");
        assert_eq!(died(Some(1 << 8), error), "vm: is damaged");
        let panicked = "it ended with exit code 101; it said last: warning: it is full";
        assert_eq!(died(Some(101 << 8), warning), panicked);
        assert!(died(None, None).contains("not known"));
        assert!(died(None, error).contains("not known") && died(None, error).ends_with("vm: is damaged"));
        assert_eq!(Ended::NotStarted("no such file".to_owned()).to_string(), "no such file");
        assert!(Ended::InOrder.to_string().contains("not by its agent"));
    }
}
