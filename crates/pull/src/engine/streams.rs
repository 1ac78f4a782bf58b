//! Long requests of the background, whose bytes are taken as they come.

use super::Engine;
use crate::request::State;
use crate::{Action, BlobRange, FetchId, World};

impl Engine {
    /// The first bytes of a request, up to before `upto`, are local.
    pub(super) fn progressed(
        &mut self,
        fetch: FetchId,
        upto: u64,
        world: &dyn World,
        actions: &mut Vec<Action>,
    ) {
        let Some(request) = self.requests.get_mut(fetch) else { return };
        let BlobRange { blob, range } = request.range;
        if upto <= range.offset() || upto >= range.end() {
            return;
        }
        let front = BlobRange::between(blob, range.offset(), upto);
        request.range = BlobRange::between(blob, upto, range.end());
        if let State::Sent(sent) = request.state {
            self.wire.shrink(sent.priority, front.len());
        }
        let served: Vec<_> =
            request.waiters.extract_if(.., |waiter| waiter.range.range.end() <= upto).collect();
        self.active.release(front, fetch);
        for waiter in served {
            self.satisfy(waiter.read, actions);
        }
        self.became_local(front, world, actions);
    }
}
