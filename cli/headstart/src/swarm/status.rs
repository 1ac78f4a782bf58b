//! `headstart swarm status`: an agent's report of its part in the swarm.

use headstart_block::ByteSize;
use headstart_block::words::count;
use headstart_command_line::date::date_of_second;
use headstart_command_line::report::Outcome;
use serde::Serialize;
use serde_json::Value;
use std::fmt;

/// An agent's answer, unchanged.
#[derive(Serialize)]
pub(super) struct Part(pub(super) Value);

impl Outcome for Part {}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = &self.0;
        let (peers, others, blobs) = (list(of, "peers"), list(of, "unconnected"), list(of, "blobs"));
        write!(
            f,
            "{}: {} at {}, connected to {}, takes part in {}",
            text(of, "name"),
            role(of),
            text(of, "address"),
            count(peers.len() as u64, "host"),
            count(blobs.len() as u64, "blob")
        )?;
        if let Some(until) = of["certificate_until"].as_u64() {
            write!(f, "\nits certificate is valid until {}", date_of_second(until))?;
            if let Some(why) = of["certificate_failure"].as_str() {
                write!(f, "; it is due and was not renewed: {why}")?;
            }
        }
        for peer in peers {
            write!(
                f,
                "\n{}: {} at {}, {} shared, {} sent there, {} from there",
                text(peer, "name"),
                role(peer),
                text(peer, "address"),
                count(number(peer, "shared_blobs"), "blob"),
                bytes(peer, "sent_bytes"),
                bytes(peer, "received_bytes")
            )?;
        }
        for host in others {
            write!(f, "\n{}: not connected, said to be at {}", text(host, "name"), text(host, "address"))?;
            if let Some(error) = host["error"].as_str() {
                write!(f, ": {error}")?;
            }
        }
        for blob in blobs {
            write!(
                f,
                "\n{}: {} of {} here, {}, {}",
                text(blob, "digest"),
                bytes(blob, "local_bytes"),
                bytes(blob, "len"),
                count(number(blob, "users"), "user"),
                count(number(blob, "peers"), "other host")
            )?;
        }
        list(of, "pins").iter().try_for_each(|pin| write_pin(f, pin))?;
        let did = &of["counters"];
        if number(did, "brought_bytes") + number(did, "elsewhere_bytes") > 0 {
            write!(
                f,
                "\nof what its disks and pinned images lacked, {} came from other hosts and {} were left to the store",
                bytes(did, "brought_bytes"),
                bytes(did, "elsewhere_bytes")
            )?;
        }
        write!(
            f,
            "\nfor other hosts {} were sent and {} fetched; {} dropped for wrong bytes, {} for other reasons",
            bytes(did, "sent_bytes"),
            bytes(did, "fetched_bytes"),
            count(number(did, "dropped_corrupt"), "host"),
            number(did, "dropped_other")
        )
    }
}

/// Writes an image that hosts keep together.
fn write_pin(f: &mut fmt::Formatter<'_>, pin: &Value) -> fmt::Result {
    let copies = number(pin, "copies");
    write!(
        f,
        "\n{}, {}: pinned, {copies} {} on {}, {} of it here",
        text(pin, "image"),
        text(pin, "digest"),
        if copies == 1 { "copy" } else { "copies" },
        count(list(pin, "hosts").len() as u64, "host"),
        bytes(pin, "bytes")
    )?;
    if number(pin, "lacking_bytes") > 0 {
        write!(f, ", {} lacking", bytes(pin, "lacking_bytes"))?;
    }
    let away: Vec<_> = list(pin, "away").iter().filter_map(Value::as_str).collect();
    if away.is_empty() { Ok(()) } else { write!(f, ", away: {}", away.join(", ")) }
}

fn list<'a>(of: &'a Value, name: &str) -> &'a [Value] {
    of[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text<'a>(of: &'a Value, name: &str) -> &'a str {
    of[name].as_str().unwrap_or_default()
}

/// The role of a host, in words.
fn role(of: &Value) -> String {
    let tracker = if of["tracker"] == true { " and tracker" } else { "" };
    format!("{}{tracker}", text(of, "role"))
}

fn number(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_default()
}

fn bytes(of: &Value, name: &str) -> String {
    ByteSize(number(of, name)).to_string()
}
