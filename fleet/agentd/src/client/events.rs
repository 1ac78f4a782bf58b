//! The events that an agent sends about its disks (server-sent events over HTTP).

use headstart_daemon::client::AnswerStream;
use serde_json::Value;

/// The largest accepted event, in bytes.
const EVENT_MAX: usize = 16 << 20;

/// An event that an agent sends: a change of one of its disks, or the notice of a gap.
#[derive(Debug, PartialEq)]
pub enum DiskEvent {
    /// The new status of a disk, as JSON.
    Disk(Value),
    /// The receiver was too slow, and earlier events are lost to it.
    Missed,
}

/// The stream of the events that an agent sends from the moment of the request on.
#[derive(Debug)]
pub struct DiskEvents {
    stream: AnswerStream,
    buffer: Vec<u8>,
}

impl DiskEvents {
    pub(super) fn of(stream: AnswerStream) -> Self {
        Self { stream, buffer: Vec::new() }
    }

    /// Waits for the next event, and returns it. `None` if the stream has ended or broken off, or if an event is larger
    /// than 16 MiB.
    pub async fn next(&mut self) -> Option<DiskEvent> {
        loop {
            if let Some(event) = next_event(&mut self.buffer) {
                return Some(event);
            }
            let bytes = self.stream.next().await?;
            if self.buffer.len() + bytes.len() > EVENT_MAX {
                return None;
            }
            self.buffer.extend_from_slice(&bytes);
        }
    }
}

/// Takes the first whole event out of server-sent ones. Other events are ignored.
fn next_event(buffer: &mut Vec<u8>) -> Option<DiskEvent> {
    loop {
        let end = buffer.windows(2).position(|pair| pair == b"\n\n")?;
        let text: Vec<u8> = buffer.drain(..end + 2).collect();
        let text = String::from_utf8_lossy(&text);
        let field = |name: &str| {
            text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
        };
        match field("event").as_deref() {
            Some("disk") => {
                if let Some(disk) = field("data").and_then(|data| serde_json::from_str(&data).ok()) {
                    return Some(DiskEvent::Disk(disk));
                }
            }
            Some("missed") => return Some(DiskEvent::Missed),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_are_found_however_they_come() {
        let sent =
            b":\n\nevent: disk\ndata: {\"name\":\"a\"}\n\nevent: other\ndata: {}\n\nevent: disk\ndata: {\n\n\
                     event: missed\ndata\n\nevent: disk\ndata: {\"name\":\"b\"}\n";
        let mut buffer = Vec::new();
        let mut found = Vec::new();
        for byte in sent {
            buffer.push(*byte);
            found.extend(next_event(&mut buffer));
        }
        let disk = |name: &str| DiskEvent::Disk(json!({ "name": name }));
        assert_eq!(found, [disk("a"), DiskEvent::Missed]);
        buffer.push(b'\n');
        assert_eq!(next_event(&mut buffer), Some(disk("b")));
        assert!(next_event(&mut buffer).is_none() && buffer.is_empty());
    }
}
