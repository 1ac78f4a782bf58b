//! HTTP as any program speaks it.

use std::io::{Read, Write};

/// `GET /path` or the like, with a body in the lines after it, over a connection of its own; the answer's status and
/// body.
#[track_caller]
pub(crate) fn ask(mut stream: impl Read + Write, request: &str) -> (u16, String) {
    let (line, body) = request.split_once('\n').unwrap_or((request, ""));
    // At once: who is answered before all of it is read is cut off.
    let asked = format!(
        "{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(asked.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}
