//! What holds after every event.

use crate::event::Chunks;
use crate::node::Node;
use crate::node::blob::{Aim, How, State};
use std::collections::BTreeMap;

impl Node {
    /// Panics where one of the invariants of the head comment does not hold.
    pub(in crate::node) fn check(&self) {
        let (mut prefetching, mut promised) = (0, 0);
        let mut waiting = BTreeMap::new();
        let mut left = BTreeMap::new();
        let mut of_requests = BTreeMap::new();
        for (id, blob) in &self.blobs {
            let mut asked = 0;
            for (chunk, coming) in &blob.coming {
                let bytes = Chunks::one(*chunk).bytes(blob.len).len();
                assert!(!blob.is_here(*chunk), "what is here is not on its way");
                assert_eq!(blob.state(*chunk) == State::Prefetch, coming.aim == Aim::Prefetch);
                match coming.how {
                    How::New => panic!("chunk {chunk} waits for nothing"),
                    How::Asked(request) => {
                        let known = &self.requests[&request];
                        assert_eq!(known.blob, *id);
                        assert!(known.chunks.numbers().contains(chunk));
                        *of_requests.entry(request).or_insert(0) += 1;
                    }
                    How::Fetch(fetch) => assert!(self.fetches[&fetch].chunks.numbers().contains(chunk)),
                    How::Disk(_) => assert!(coming.wants.is_empty(), "disks wait for themselves"),
                }
                if coming.aim != Aim::Needed {
                    prefetching += bytes;
                    assert!(coming.wants.is_empty() || coming.aim == Aim::Warm);
                }
                if coming.aim == Aim::Prefetch {
                    asked += bytes;
                }
                for want in &coming.wants {
                    *left.entry(*want).or_insert(0) += 1;
                }
                for ask in &coming.asks {
                    promised += bytes;
                    *waiting.entry(ask.peer).or_insert(0) += 1;
                }
            }
            assert_eq!(blob.throttle.on_its_way(), asked);
            let unread: u64 = (0..blob.chunks)
                .filter(|chunk| blob.state(*chunk) == State::Local)
                .map(|chunk| Chunks::one(chunk).bytes(blob.len).len())
                .sum();
            assert!(blob.throttle.unmatched() <= unread, "unmatched is unread, or forgiven");
        }
        assert_eq!(self.prefetching, prefetching);
        assert_eq!(self.uplink.promised(), promised);
        for (want, known) in &self.wants {
            assert_eq!(known.left, left.remove(want).unwrap_or(0), "{want:?}");
            assert!(known.left > 0, "what waits for nothing is answered");
        }
        assert!(left.is_empty(), "chunks are not brought for nobody");
        for (request, known) in &self.requests {
            assert_eq!(known.left, of_requests.remove(request).unwrap_or(0), "{request:?}");
            assert!(known.left > 0);
        }
        for (peer, known) in &self.peers {
            assert_eq!(known.waiting, waiting.remove(peer).unwrap_or(0));
            let outstanding = self.requests.values().filter(|request| request.peer == *peer);
            assert_eq!(known.outstanding, outstanding.map(|request| request.left).sum::<u32>());
        }
        assert!(waiting.is_empty(), "nobody who is gone is waited for");
    }
}
