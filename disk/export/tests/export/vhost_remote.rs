//! Goal: a guest whose disk is another process's gets its bytes, many requests at a time, and each error for the
//! request that failed. Method: a disk in memory behind a [`PrivateServer`], a [`RemoteDisk`] served at a socket that
//! another program made, and a front end with a guest's driver.

use crate::memory_disk::{Deed, MemoryDisk};
use crate::vhost_frontend::{FLUSH, Guest, IN, IOERR, OK, OUT, Shape};
use headstart_block::{BlockDevice, ByteRange};
use headstart_export::nbd::{PrivateServer, RemoteDisk};
use headstart_export::vhost_user::{VhostUserServer, VhostUserSettings};
use headstart_export::{Export, Server};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use vm_memory::{Bytes, GuestAddress};

const SIZE: usize = 4 << 20;
const TIMEOUT: Duration = Duration::from_secs(20);

/// Bytes that depend on their place.
fn pattern() -> Vec<u8> {
    (0..SIZE).map(|at| (at / 512 * 7 + at % 251).to_le_bytes()[0]).collect()
}

/// Serves a disk through another, as an export process does.
fn serve(
    disk: &Arc<MemoryDisk>,
    path: &Path,
    listener: UnixListener,
) -> (PrivateServer, Box<VhostUserServer>) {
    let owner = PrivateServer::new(Export::new("a", Arc::clone(disk) as Arc<dyn BlockDevice>), 4, 8 << 20);
    let connections = (0..4).map(|_| owner.connect().unwrap()).collect();
    let remote = RemoteDisk::new(connections, 1, "a", |error| panic!("{error}")).unwrap();
    let settings = VhostUserSettings { queues: 2, ..VhostUserSettings::default() };
    let export = Export::new("a", Arc::new(remote));
    (owner, Box::new(VhostUserServer::start_at(listener, path, &export, &settings).unwrap()))
}

#[test]
fn many_requests_at_a_time_are_answered_each_for_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.sock");
    let disk = Arc::new(MemoryDisk::new(pattern(), false));
    disk.spoil(ByteRange::between(1 << 20, (1 << 20) + 4096));
    let (_owner, server) = serve(&disk, &path, UnixListener::bind(&path).unwrap());
    let mut guest = Guest::connect(&path, &Shape { data: 8 << 20, ..Shape::default() });
    let mut model = pattern();
    let (data, memory) = (guest.data, guest.memory.clone());
    let queue = &mut guest.queues[0];
    let slots = queue.slots();
    for round in 0..40_usize {
        // Reads of all lengths, some of a bad spot, some beyond the end, with writes of other places between them.
        let mut expected = Vec::new();
        for slot in 0..slots {
            let number = round * usize::from(slots) + usize::from(slot);
            let len = [512, 4096, 65_536, 131_072][number % 4];
            let at = match number % 13 {
                7 => 1 << 20,
                9 => SIZE - len / 2 / 512 * 512,
                _ => number * 37 % 2000 * 512,
            };
            let place = data + u64::from(slot) * 131_072;
            let is_bad = at + len > SIZE || (at < (1 << 20) + 4096 && at + len > 1 << 20);
            let is_write = number % 5 == 0 && len == 512;
            let kind = if is_write { OUT } else { IN };
            memory.write_slice(&vec![number.to_le_bytes()[0]; len], GuestAddress(place)).unwrap();
            // Bytes read meanwhile may be the old or the new ones, so writes go to places that are not read in this
            // round.
            let at = if is_write { (3 << 20) + usize::from(slot) * 512 } else { at };
            let is_bad = is_bad && !is_write;
            let len32 = u32::try_from(len).unwrap();
            queue.submit(slot, kind, at as u64 / 512, &[(place, len32)]);
            expected.push((kind, at, len, place, is_bad, number));
        }
        queue.kick();
        for _ in 0..slots {
            queue.wait(TIMEOUT).expect("an answer in time");
        }
        for (slot, (kind, at, len, place, is_bad, number)) in (0..slots).zip(expected) {
            assert_eq!(queue.status(slot), if is_bad { IOERR } else { OK }, "{kind} {at} {len}");
            match kind {
                OUT => model[at..at + len].fill(number.to_le_bytes()[0]),
                _ if is_bad => {}
                _ => {
                    let mut bytes = vec![0; len];
                    memory.read_slice(&mut bytes, GuestAddress(place)).unwrap();
                    assert!(bytes == model[at..at + len], "{at} {len}");
                }
            }
        }
    }
    assert_eq!(guest.request(FLUSH, 0, 0), OK);
    assert!(disk.deeds().last() == Some(&Deed::Flushed));
    assert!(disk.content() == model);
    drop(guest);
    Server::stop(server).unwrap();
    assert!(path.exists(), "the socket is another's");
}

/// A server that stops leaves clients that connect meanwhile to the next one.
#[test]
fn the_next_server_at_a_socket_takes_those_who_wait() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.sock");
    let disk = Arc::new(MemoryDisk::new(pattern(), false));
    let listener = UnixListener::bind(&path).unwrap();
    let (_owner, server) = serve(&disk, &path, listener.try_clone().unwrap());
    assert_eq!(Guest::connect(&path, &Shape::default()).write(0, &[1; 512]), OK);
    Server::stop(server).unwrap();
    let waiting = std::thread::spawn({
        let path = path.clone();
        move || Guest::connect(&path, &Shape::default()).read(0, 512)
    });
    let (_owner, server) = serve(&disk, &path, listener);
    assert_eq!(waiting.join().unwrap().unwrap(), [1; 512]);
    Server::stop(server).unwrap();
}
