//! The bytes that another host sends over a connection: a hello, then frames.
//!
//! A frame's statements are looked at as a host does that shares one blob: the chunks of which it speaks must be there.

use headstart_block::{Error, Result};
use headstart_peer_net::credentials::SigningRequest;
use headstart_peer_net::frame::{
    FrameKind, HEADER, Header, Hello, decode_answer, decode_message, decode_report, is_within, push_encoded,
};
use headstart_swarm::Message;

/// The blob that both share, in bytes.
const BLOB: u64 = 10 << 20;

/// All of a connection's bytes.
///
/// # Errors
/// Fails if a host would hang up.
pub fn swarm(input: &[u8]) -> Result<()> {
    let mut rest = input;
    let mut is_first = true;
    while !rest.is_empty() {
        let (header, behind) =
            rest.split_first_chunk::<HEADER>().ok_or_else(|| Error::corrupt("ends within a header"))?;
        let header = Header::decode(header)?;
        let (body, behind) =
            behind.split_at_checked(header.len).ok_or_else(|| Error::corrupt("ends within a body"))?;
        rest = behind;
        if is_first != (header.kind == FrameKind::Hello) {
            return Err(Error::corrupt("a hello at the wrong place"));
        }
        is_first = false;
        // What was understood can be said again, in no more bytes than a host takes.
        match header.kind {
            FrameKind::Hello => drop(Hello::decode(body)?),
            FrameKind::Message => message(body)?,
            FrameKind::Report => push_encoded(&mut Vec::new(), header.kind, &decode_report(body)?)?,
            FrameKind::Hints => push_encoded(&mut Vec::new(), header.kind, &decode_answer(body)?)?,
            _ => {}
        }
    }
    Ok(())
}

/// A request for a certificate, in DER.
///
/// # Errors
/// Fails if no authority would sign it.
pub fn signing_request(input: &[u8]) -> Result<()> {
    SigningRequest::parse(input).map(drop)
}

fn message(body: &[u8]) -> Result<()> {
    let message = decode_message(body)?;
    push_encoded(&mut Vec::new(), FrameKind::Message, &message)?;
    let within = match &message {
        Message::Have { runs, .. } | Message::Lost { runs, .. } | Message::Read { runs, .. } => {
            runs.iter().all(|run| is_within(*run, BLOB))
        }
        Message::Ask { chunks, .. } => is_within(*chunks, BLOB),
        _ => true,
    };
    if within { Ok(()) } else { Err(Error::corrupt("chunks that there are not")) }
}
