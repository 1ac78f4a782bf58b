//! The invariants that hold after every event.

use crate::event::{Chunks, PeerId, WantId};
use crate::message::RequestId;
use crate::node::Node;
use crate::node::chunks::Aim;
use crate::node::pending::Source;
use std::collections::BTreeMap;

impl Node {
    /// Panics if one of the invariants in the module's documentation does not hold.
    pub(in crate::node) fn check(&self) {
        let (mut prefetching, mut promised) = (0, 0);
        let mut waiting: BTreeMap<PeerId, u32> = BTreeMap::new();
        let mut left = BTreeMap::new();
        let mut of_requests = BTreeMap::new();
        let mut of_readers = BTreeMap::new();
        for (id, blob) in &self.blobs {
            let mut asked = 0;
            let on_their_way = (0..blob.chunks).filter(|chunk| blob.table.aim(*chunk).is_some());
            assert!(on_their_way.eq(blob.table.all_pending().map(|(chunk, _)| chunk)));
            for (chunk, pending) in blob.table.all_pending() {
                let bytes = Chunks::one(chunk).bytes(blob.len).len();
                assert!(!blob.table.is_local(chunk), "a local chunk is not on its way");
                let aim = blob.table.aim(chunk).unwrap();
                match pending.source {
                    Source::Undecided => panic!("chunk {chunk} waits for nothing"),
                    Source::Peer(request) => {
                        let record = self.requests.get(request).unwrap();
                        assert_eq!(record.blob, *id);
                        assert!(record.chunks.numbers().contains(&chunk));
                        *of_requests.entry(request).or_insert(0) += 1;
                    }
                    Source::Fetch(fetch) => {
                        assert!(self.fetches.get(fetch).unwrap().chunks.numbers().contains(&chunk));
                    }
                    Source::Disk { .. } => assert!(pending.wants.is_empty(), "disks wait for themselves"),
                }
                if aim != Aim::Needed {
                    prefetching += bytes;
                    assert!(pending.wants.is_empty() || aim == Aim::Warm);
                }
                if aim == Aim::Prefetch {
                    asked += bytes;
                }
                for want in &pending.wants {
                    *left.entry(*want).or_insert(0) += 1;
                }
                for waiter in &pending.waiters {
                    promised += bytes;
                    *waiting.entry(waiter.peer).or_insert(0) += 1;
                }
            }
            let of_reader = of_readers.entry(blob.reader).or_insert((0, 0));
            *of_reader = (of_reader.0 + asked, of_reader.1 + blob.unread());
        }
        for (reader, throttle) in self.prefetch.throttles() {
            let (asked, unread) = of_readers.remove(&Some(reader)).expect("an account of blobs");
            assert_eq!(throttle.on_its_way(), asked);
            assert!(throttle.unmatched() <= unread, "unmatched is unread, or forgiven");
        }
        assert_eq!(
            of_readers.remove(&None).map_or(0, |(asked, _)| asked),
            0,
            "nothing is prefetched without a reader"
        );
        assert!(of_readers.is_empty(), "readers have accounts");
        assert_eq!(self.prefetch.on_their_way(), prefetching);
        self.check_counts(left, of_requests);
        self.check_promises(promised, waiting);
    }

    /// The chunks that each want and each request waits for, and the sums for each peer.
    fn check_counts(&self, mut left: BTreeMap<WantId, u32>, mut of_requests: BTreeMap<RequestId, u32>) {
        for (want, record) in self.wants.iter() {
            assert_eq!(record.remaining(), left.remove(want).unwrap_or(0), "{want:?}");
            assert!(record.remaining() > 0, "a want that waits for nothing is answered");
        }
        assert!(left.is_empty(), "chunks wait for wants that are there");
        for (request, record) in self.requests.iter() {
            assert_eq!(record.remaining(), of_requests.remove(request).unwrap_or(0), "{request:?}");
            assert!(record.remaining() > 0);
        }
        for (peer, record) in self.membership.peers() {
            let outstanding = self.requests.iter().filter(|(_, request)| request.peer == *peer);
            let outstanding: u32 = outstanding.map(|(_, request)| request.remaining()).sum();
            assert_eq!(record.outstanding(), outstanding);
        }
    }

    /// The bytes that are promised, and the chunks that each peer waits for.
    fn check_promises(&self, promised: u64, mut waiting: BTreeMap<PeerId, u32>) {
        let (bytes, of_peers) = self.serving.promised();
        assert_eq!(bytes, promised);
        for (peer, promised) in of_peers {
            assert_eq!(promised, waiting.remove(&peer).unwrap_or(0));
            assert!(self.membership.get(peer).is_some(), "bytes are for hosts that can be reached");
        }
        assert!(waiting.is_empty(), "no host that is gone waits");
    }
}
