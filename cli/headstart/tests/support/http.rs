//! HTTP in the form that any program speaks.

use std::io::{Read, Write};

/// Sends `GET /path` or the like, with a body in the lines after it, over a connection of its own; returns the answer's
/// status and body.
#[track_caller]
pub(crate) fn ask(mut stream: impl Read + Write, request: &str) -> (u16, String) {
    let (line, body) = request.split_once('\n').unwrap_or((request, ""));
    // The request is sent in one write, because the server may answer and close the connection before it has read all
    // of it.
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
