//! The invariants that hold after every event.

use crate::event::Chunks;
use crate::node::Node;
use crate::node::blob::{Aim, How, State};
use std::collections::BTreeMap;

impl Node {
    /// Panics if one of the invariants in the module's documentation does not hold.
    pub(in crate::node) fn check(&self) {
        let (mut prefetching, mut promised) = (0, 0);
        let mut waiting = BTreeMap::new();
        let mut left = BTreeMap::new();
        let mut of_requests = BTreeMap::new();
        let mut of_readers = BTreeMap::new();
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
            let of_reader = of_readers.entry(blob.reader).or_insert((0, 0));
            *of_reader = (of_reader.0 + asked, of_reader.1 + blob.unread());
        }
        for (reader, throttle) in self.accounts.throttles() {
            let (asked, unread) = of_readers.remove(&Some(reader)).expect("an account of blobs");
            assert_eq!(throttle.on_its_way(), asked);
            assert!(throttle.unmatched() <= unread, "unmatched is unread, or forgiven");
        }
        assert_eq!(
            of_readers.remove(&None).map_or(0, |(asked, _)| asked),
            0,
            "for nobody nothing is prefetched"
        );
        assert!(of_readers.is_empty(), "readers have accounts");
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
