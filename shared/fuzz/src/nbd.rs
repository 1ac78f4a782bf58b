//! An NBD client as a stream of bytes: handshake, then requests. No socket, no disk: the parsers and what they decide.

use headstart_block::{Error, Result};
use headstart_export::nbd::handshake::{
    Chosen, Encryption, ExportView, Handshake, HandshakeStep, OPTION_LEN_MAX,
};
use headstart_export::nbd::proto::{NbdRequest, OPTION_HEADER, PAYLOAD_MAX, REQUEST_HEADER, command};
use headstart_export::nbd::transmission::{NbdCommand, NbdSession, judge};

/// Size of the disk that is offered, in bytes.
const DISK_SIZE: u64 = 1 << 20;

/// All that an NBD client says, from its flags to its goodbye.
///
/// # Errors
/// Fails if it ends otherwise than by a goodbye, or a request is refused.
pub fn nbd(input: &[u8]) -> Result<()> {
    let view = |name: &str, read_only: bool| ExportView {
        name: name.to_owned(),
        description: "a disk".to_owned(),
        size: DISK_SIZE,
        read_only,
        resizable: !read_only,
        certificates: (name == "c").then(|| vec!["another".to_owned()]),
    };
    let exports = [view("a", false), view("b", true), view("c", false)];
    // The same bytes must make sense, or none, whether TLS is wanted or not.
    let _ = shake_hands(&exports, Encryption::Demanded, input);
    let (chosen, rest) = shake_hands(&exports, Encryption::Unavailable, input)?;
    let read_only = exports.get(chosen.export).is_none_or(|export| export.read_only);
    let (structured, base_allocation) = (chosen.structured, chosen.base_allocation);
    transmit(NbdSession { structured, base_allocation, read_only, resizable: !read_only }, rest)
}

fn shake_hands<'a>(
    exports: &[ExportView],
    encryption: Encryption,
    mut input: &'a [u8],
) -> Result<(Chosen, &'a [u8])> {
    let mut handshake = Handshake::new(exports, encryption);
    let mut out = Vec::new();
    let mut open = encryption == Encryption::Unavailable;
    loop {
        out.clear();
        let (used, step) = handshake.advance(input, &mut out);
        // A reply tells at most all exports, and the input's own name back in an error.
        assert!(out.len() <= 4 * OPTION_LEN_MAX as usize, "{} bytes of replies to one option", out.len());
        assert!(used <= OPTION_HEADER + OPTION_LEN_MAX as usize, "one option of {used} bytes");
        input = input.get(used..).unwrap_or_default();
        match step {
            HandshakeStep::More if used == 0 => return Err(Error::corrupt("the handshake is not whole")),
            HandshakeStep::More => {}
            HandshakeStep::StartTls => {
                handshake.encrypted(vec!["this".to_owned()]);
                open = true;
            }
            HandshakeStep::Transmit(chosen) => {
                assert!(open, "an export is given away without TLS");
                assert_ne!(chosen.export, 2, "an export is given to the certificate of another");
                return Ok((chosen, input));
            }
            HandshakeStep::Close(why) => return Err(Error::corrupt(why)),
        }
    }
}

fn transmit(session: NbdSession, mut input: &[u8]) -> Result<()> {
    while let Some((head, rest)) = input.split_first_chunk::<REQUEST_HEADER>() {
        let request = NbdRequest::parse(head).ok_or_else(|| Error::corrupt("a request has a wrong magic"))?;
        assert_eq!(request.encode(), *head, "a request changes on its way");
        let payload = if request.command == command::WRITE { request.len } else { 0 };
        if payload > PAYLOAD_MAX {
            return Err(Error::corrupt("a write is too large"));
        }
        let command =
            judge(&request, session, DISK_SIZE).map_err(|refusal| Error::corrupt(refusal.message))?;
        check(command, session);
        if command == NbdCommand::Disconnect {
            return Ok(());
        }
        input = rest.get(payload as usize..).ok_or_else(|| Error::corrupt("a write is not whole"))?;
    }
    Err(Error::corrupt("it ends without a goodbye"))
}

/// Checks the conditions that the executor of a command relies on.
fn check(command: NbdCommand, session: NbdSession) {
    match command {
        NbdCommand::Read { range, .. } => {
            assert!(range.end() <= DISK_SIZE && range.len() <= u64::from(PAYLOAD_MAX));
        }
        NbdCommand::Cache { range } => assert!(range.end() <= DISK_SIZE),
        NbdCommand::Status { range, .. } => {
            assert!(session.base_allocation && range.end() <= DISK_SIZE && !range.is_empty());
        }
        NbdCommand::Write { range, .. } | NbdCommand::Zero { range, .. } | NbdCommand::Trim { range, .. } => {
            assert!(range.end() <= DISK_SIZE && !session.read_only);
        }
        NbdCommand::Resize { .. } => assert!(!session.read_only),
        NbdCommand::Flush | NbdCommand::Disconnect => {}
    }
}
