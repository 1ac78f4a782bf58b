//! The log of a proxy: the requests that it received, their times, and their outcomes.

use std::fmt;
use std::ops::{Deref, Range};
use std::time::Duration;

/// The parts of an HTTP request that tests look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxiedRequest {
    /// The method, such as GET, HEAD or PUT.
    pub method: String,
    /// The path and the query, as the client sent them.
    pub path: String,
    /// The requested bytes: `bytes=2-4` is `2..5`, and `bytes=2-` ends at `u64::MAX`. `None` if there is no
    /// Range header, or if it names several ranges or one that counts from the end.
    pub range: Option<Range<u64>>,
    /// The value of the Range header; `None` if there is none.
    pub range_header: Option<String>,
    /// The value of the Host header; `None` if there is none.
    pub host: Option<String>,
    /// The value of the Authorization header; `None` if there is none.
    pub authorization: Option<String>,
    /// The value of the User-Agent header; `None` if there is none.
    pub user_agent: Option<String>,
}

/// A request and its outcome. Times are durations since the start of the proxy.
#[derive(Clone, Debug)]
pub struct LoggedRequest {
    /// The request's method, path and headers.
    pub asked: ProxiedRequest,
    /// The number of the connection on which the request came, from 0 in the order in which they were made.
    pub connection: u64,
    /// The time at which the proxy had received the head of the request.
    pub started: Duration,
    /// The time just before the proxy sent the end of the answer. Anything that the client does in reaction
    /// to the answer starts later. `None` while the request is running.
    pub finished: Option<Duration>,
    /// The HTTP status of the answer; 502 if the server could not be asked; 0 if there was no answer.
    pub status: u16,
    /// Bytes of the answer's body that the proxy sent to the client.
    pub sent: u64,
    /// The fault that the request got, as text; `None` if it got none.
    pub fault: Option<String>,
    /// `true` if the connection broke before the request was finished, because of a fault, the client or the
    /// server.
    pub broken: bool,
}

impl ProxiedRequest {
    /// `true` if the program with this name sent it.
    #[must_use]
    pub fn is_of(&self, program: &str) -> bool {
        self.user_agent.as_ref().is_some_and(|agent| agent.split('/').next() == Some(program))
    }
}

impl LoggedRequest {
    /// The bytes of the file that were sent, if the request was for a file.
    fn span(&self) -> Range<u64> {
        let start =
            if self.status == 206 { self.asked.range.as_ref().map_or(0, |range| range.start) } else { 0 };
        start..start.saturating_add(self.sent)
    }
}

/// A list of requests, in the order in which they started.
#[derive(Clone, Debug, Default)]
pub struct Log(pub(super) Vec<LoggedRequest>);

impl Log {
    /// The requests for which `wanted` returns `true`.
    #[must_use]
    pub fn only(&self, wanted: impl Fn(&LoggedRequest) -> bool) -> Self {
        Self(self.0.iter().filter(|request| wanted(request)).cloned().collect())
    }

    /// The requests to paths that contain `part`.
    #[must_use]
    pub fn to(&self, part: &str) -> Self {
        self.only(|request| request.asked.path.contains(part))
    }

    /// The sum of the bytes of all answers' bodies.
    pub fn sent(&self) -> u64 {
        self.0.iter().map(|request| request.sent).sum()
    }

    /// The length of the longest chain of requests in which each one started after the one before had
    /// finished. That is the minimum number of round trips that the requests took.
    pub fn in_sequence(&self) -> usize {
        // Of all that could follow, the one that finishes first leaves the most room.
        let mut finished: Vec<_> = self.0.iter().filter_map(|r| Some((r.finished?, r.started))).collect();
        finished.sort_unstable();
        let unfinished = self.0.iter().filter(|r| r.finished.is_none()).map(|r| r.started).max();
        let (mut count, mut until) = (0, Duration::ZERO);
        for (end, start) in finished {
            if count == 0 || start >= until {
                (count, until) = (count + 1, end);
            }
        }
        count + usize::from(unfinished.is_some_and(|start| count == 0 || start >= until))
    }

    /// The maximum number of requests that were running at the same moment.
    pub fn at_once(&self) -> usize {
        let mut changes: Vec<(Duration, bool)> = Vec::new();
        for request in &self.0 {
            changes.push((request.started, true));
            changes.extend(request.finished.map(|end| (end, false)));
        }
        // At the same moment, ends first.
        changes.sort_unstable();
        let (mut now, mut most) = (0_usize, 0);
        for (_, starts) in changes {
            now = if starts { now + 1 } else { now.saturating_sub(1) };
            most = most.max(now);
        }
        most
    }

    /// Bytes of files that were sent more than once: for each path, the sum of the overlaps of the successful
    /// GET answers.
    pub fn sent_again(&self) -> u64 {
        let gets = self.0.iter().filter(|r| r.asked.method == "GET" && [200, 206].contains(&r.status));
        let mut spans: Vec<_> = gets.map(|r| (r.asked.path.as_str(), r.span())).collect();
        spans.sort_unstable_by_key(|(path, span)| (*path, span.start, span.end));
        let (mut again, mut reached) = (0, ("", 0));
        for (path, span) in spans {
            let end = if reached.0 == path { reached.1 } else { 0 };
            again += end.min(span.end).saturating_sub(span.start);
            reached = (path, end.max(span.end));
        }
        again
    }
}

impl Deref for Log {
    type Target = [LoggedRequest];

    fn deref(&self) -> &[LoggedRequest] {
        &self.0
    }
}

/// Writes a line for each request, for the message of a test that fails.
impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for request in &self.0 {
            let LoggedRequest { asked, connection, started, finished, status, sent, fault, broken } = request;
            let range = asked.range_header.as_deref().unwrap_or("-");
            let ms = |time: &Duration| time.as_secs_f64() * 1e3;
            write!(f, "{:9.2} ms", ms(started))?;
            match finished {
                Some(end) => write!(f, " {:+9.2} ms", ms(end) - ms(started))?,
                None => write!(f, "      running")?,
            }
            write!(f, " #{connection} {} {} {range}: {status}, {sent} bytes", asked.method, asked.path)?;
            if let Some(fault) = fault {
                write!(f, ", {fault}")?;
            }
            writeln!(f, "{}", if *broken { ", broken" } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(path: &str, range: Range<u64>, started: u64, finished: Option<u64>) -> LoggedRequest {
        LoggedRequest {
            asked: ProxiedRequest {
                method: "GET".to_owned(),
                path: path.to_owned(),
                range: Some(range.clone()),
                range_header: None,
                host: None,
                authorization: None,
                user_agent: None,
            },
            connection: 0,
            started: Duration::from_millis(started),
            finished: finished.map(Duration::from_millis),
            status: 206,
            sent: range.end - range.start,
            fault: None,
            broken: false,
        }
    }

    #[test]
    fn the_longest_sequence_and_the_largest_crowd_are_counted() {
        let log = Log(vec![
            request("/m", 0..9, 0, Some(10)),
            request("/a", 0..9, 11, Some(30)),
            request("/b", 0..9, 12, Some(20)),
            request("/c", 0..9, 21, Some(25)),
            request("/d", 0..9, 31, None),
        ]);
        assert_eq!((log.in_sequence(), log.at_once()), (4, 2));
        assert_eq!(log.only(|r| r.asked.path != "/c").in_sequence(), 3);
        assert_eq!(log.to("/b").in_sequence(), 1);
        assert_eq!(log.to("/d").in_sequence(), 1);
        assert_eq!((Log::default().in_sequence(), Log::default().at_once()), (0, 0));
        assert_eq!(log.sent(), 45);
    }

    #[test]
    fn bytes_sent_again_are_counted() {
        let log = |spans: &[(&str, Range<u64>)]| {
            Log(spans.iter().map(|(path, range)| request(path, range.clone(), 0, None)).collect())
        };
        assert_eq!(log(&[("/a", 0..10), ("/a", 10..20), ("/b", 5..10)]).sent_again(), 0);
        assert_eq!(log(&[("/a", 0..10), ("/a", 5..20), ("/a", 0..2)]).sent_again(), 7);
        assert_eq!(log(&[("/a", 0..100), ("/a", 5..20), ("/a", 30..40), ("/b", 3..4)]).sent_again(), 25);
    }
}
