//! The start of a client, from its first byte to transmission: the handshake's I/O, against a deadline.

use super::budget::Account;
use super::connection::Connection;
use super::connection_registry::{ConnectionRegistry, Placed, Slot};
use super::disk::ExportState;
use super::handshake::{Chosen, Encryption, ExportView, Handshake, HandshakeStep, OPTION_LEN_MAX};
use super::proto::OPTION_HEADER;
use super::receiver;
use super::standing::now;
use super::tls;
use super::transmission::NbdSession;
use super::wire::{Received, Wire, receive, send_all};
use crate::complaints::{Complaints, complain};
use rustix::fd::OwnedFd;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a handshake that were received and not parsed yet.
struct Input {
    bytes: Vec<u8>,
    filled: usize,
    deadline: Instant,
}

impl Input {
    /// Receives more bytes; an error at the end and at the deadline.
    fn more(&mut self, socket: &OwnedFd) -> io::Result<()> {
        set_socket_timeout(socket, Timeout::Recv, Some(left_until(self.deadline)?))?;
        match receive(socket, self.bytes.get_mut(self.filled..).unwrap_or_default())? {
            Received::Bytes(len) => self.filled += len,
            Received::End => return Err(io::ErrorKind::UnexpectedEof.into()),
            Received::Nothing => return Err(io::ErrorKind::TimedOut.into()),
        }
        Ok(())
    }
}

fn left_until(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Receives a client and serves it until it goes.
pub(crate) fn receive_client(
    registry: &Arc<ConnectionRegistry>,
    slot: Arc<Slot>,
    socket: Arc<OwnedFd>,
    is_tcp: bool,
    peer: String,
) {
    let exports = registry.exports();
    let resizable = registry.limits.allow_resize;
    let views: Vec<_> = exports.iter().map(|state| view(&state.export, resizable)).collect();
    let encryption = if registry.tls.is_some() { Encryption::Demanded } else { Encryption::Unavailable };
    let mut handshake = Handshake::new(&views, encryption);
    // The length of the longest message, so that there is always room for more of one.
    let bytes = vec![0; OPTION_HEADER + OPTION_LEN_MAX as usize];
    let mut input = Input { bytes, filled: 0, deadline: now() + registry.limits.handshake_timeout };
    let mut out = Vec::new();
    Handshake::greet(&mut out);
    let (mut served, mut beneath) = (socket, None);
    let chosen = loop {
        match negotiate(&mut handshake, &served, &mut input, &mut out) {
            Ok(HandshakeStep::StartTls) => {
                match start_tls(registry, &slot, &served, is_tcp, &peer, input.deadline) {
                    Ok((plain, names)) => {
                        beneath = Some(std::mem::replace(&mut served, Arc::new(plain)));
                        slot.watch(&served);
                        handshake.encrypted(names);
                    }
                    Err(error) => {
                        tracing::debug!(peer, %error, "TLS does not begin");
                        return;
                    }
                }
            }
            Ok(HandshakeStep::Transmit(chosen)) => break chosen,
            Ok(HandshakeStep::Close(why)) => {
                tracing::debug!(peer, why, "an NBD handshake ended");
                return;
            }
            Ok(HandshakeStep::More) => {}
            Err(error) => {
                tracing::debug!(peer, %error, "an NBD handshake failed");
                return;
            }
        }
    };
    let (activity, pool) = (Arc::clone(&slot.activity), Arc::clone(&registry.pool));
    let complaints = Arc::clone(&registry.complaints);
    let wire =
        Wire::new(served, beneath, activity, registry.limits.send_timeout, Arc::clone(&pool), complaints);
    if let (Ok(wire), Some(state)) = (wire, exports.get(chosen.export)) {
        if !has_place(&slot, state, &peer, &registry.complaints) {
            return;
        }
        tracing::debug!(
            peer,
            export = state.export.name,
            structured = chosen.structured,
            "an NBD client begins"
        );
        let session = session(chosen, &views);
        let account = Account::new(pool);
        let connection = Connection::new(wire, account, Arc::clone(state), session, peer, Box::new(slot));
        receiver::serve(&connection, &input.bytes[..input.filled]);
    }
}

/// `true` if a client that has chosen `state` is served; otherwise the log gives the reason.
fn has_place(slot: &Slot, state: &Arc<ExportState>, peer: &str, complaints: &Complaints) -> bool {
    let export = &state.export.name;
    match slot.choose(state) {
        Placed::HasPlace => return true,
        Placed::IsGone => tracing::debug!(peer, export, "an NBD client chose what has gone meanwhile"),
        Placed::IsFull => {
            complain!(complaints, TurnedAway, peer, export, "too many NBD clients: this one is turned away");
        }
    }
    false
}

fn session(chosen: Chosen, views: &[ExportView]) -> NbdSession {
    let view = views.get(chosen.export);
    let read_only = view.is_none_or(|view| view.read_only);
    let resizable = view.is_some_and(|view| view.resizable);
    NbdSession {
        structured: chosen.structured,
        base_allocation: chosen.base_allocation,
        read_only,
        resizable,
    }
}

fn view(export: &crate::Export, resizable: bool) -> ExportView {
    ExportView {
        name: export.name.clone(),
        description: export.description.clone(),
        size: export.device.size(),
        read_only: export.device.is_read_only(),
        resizable,
        certificates: export.certificates.clone(),
    }
}

/// Exchanges messages until a step other than [`HandshakeStep::More`] is due; the bytes left in `input` belong to the
/// time after that step.
fn negotiate(
    handshake: &mut Handshake<'_>,
    socket: &OwnedFd,
    input: &mut Input,
    out: &mut Vec<u8>,
) -> io::Result<HandshakeStep> {
    loop {
        let (used, step) = handshake.advance(&input.bytes[..input.filled], out);
        input.bytes.copy_within(used..input.filled, 0);
        input.filled -= used;
        if !out.is_empty() {
            set_socket_timeout(socket, Timeout::Send, Some(left_until(input.deadline)?))?;
            send_all(socket, out)?;
            out.clear();
        }
        match step {
            HandshakeStep::More if used == 0 => input.more(socket)?,
            HandshakeStep::More => {}
            step => return Ok(step),
        }
    }
}

/// Starts a decrypting thread; its plain stream is served from here on, to a client whose certificate has the returned
/// names.
fn start_tls(
    registry: &ConnectionRegistry,
    slot: &Arc<Slot>,
    socket: &OwnedFd,
    is_tcp: bool,
    peer: &str,
    deadline: Instant,
) -> io::Result<(OwnedFd, Vec<String>)> {
    let acceptor = registry.tls.as_ref().ok_or(io::ErrorKind::Unsupported)?;
    set_socket_timeout(socket, Timeout::Recv, None)?;
    set_socket_timeout(socket, Timeout::Send, None)?;
    let slot = Box::new(Arc::clone(slot));
    let (timeout, complaints) = (left_until(deadline)?, Arc::clone(&registry.complaints));
    let (plain, accepted) =
        tls::decrypt(acceptor, socket.try_clone()?, is_tcp, timeout, peer.to_owned(), slot, complaints)?;
    // If this fails, the thread logs the reason.
    let names = accepted.recv_timeout(timeout).map_err(|_| io::ErrorKind::ConnectionAborted)?;
    Ok((plain, names))
}
