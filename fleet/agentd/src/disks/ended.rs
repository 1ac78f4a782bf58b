//! [`Ended`]: the end of a disk's process, and its cause in words.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The beginning of a log line that is not the cause of an end.
const WARNING: &str = "warning: ";

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
    },
    /// A process that could not be started.
    NotStarted(String),
}

/// The cause of an end that the agent did not ask for.
impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (status, words) = match self {
            Self::InOrder => return f.write_str("it was asked to end, and not by its agent"),
            Self::NotStarted(cause) => return f.write_str(cause),
            Self::Died { status, words } => (status, words.as_deref()),
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
    fn an_end_has_a_cause() {
        let died = |status: Option<i32>, words: Option<&str>| {
            let (status, words) = (status.map(ExitStatus::from_raw), words.map(str::to_owned));
            Ended::Died { status, words }.to_string()
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
