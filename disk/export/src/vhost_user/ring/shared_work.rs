//! Large reads are served by several processors: one is done by a helper while the ring's thread serves the next.
//!
//! A helper serves a request as the ring's thread would, from local bytes right into the guest's memory, and gives it
//! back with the step to follow. A helper never waits for a store, so waiting for helpers takes no longer than waiting
//! for the ring's thread itself.

use super::super::blk::{Request, Status, Step, Target};
use super::super::chain::{Broken, Chain};
use super::super::memory::GuestMemory;
use super::{Finished, Outcome, Ring, RingHandle, WorkerPools};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use virtio_queue::QueueT;

/// A request that a helper served, and its progress.
pub(super) struct Helped {
    head: u16,
    request: Request,
    spare: Spare,
    step: Step,
}

/// The buffers that a request is served with.
#[derive(Default)]
pub(super) struct Spare {
    pub(super) chain: Chain,
    pub(super) bounce: Vec<u8>,
}

impl Ring {
    /// `true` if a helper should serve a request: it is worth it, there is one after it, and a helper has nothing to
    /// do.
    pub(super) fn needs_help(&self, memory: &GuestMemory, request: &Request) -> bool {
        let WorkerPools { helping, helpers_max, .. } = &*self.parts.pools;
        let queue = &self.parts.queue;
        let is_last =
            || queue.avail_idx(&**memory, Ordering::Relaxed).is_ok_and(|end| end.0 == queue.next_avail());
        helping.load(Ordering::Relaxed) < *helpers_max && self.parts.target.is_work(request) && !is_last()
    }

    /// Has a helper serve the request in hand.
    pub(super) fn hand_over(&mut self, head: u16, request: Request) -> Result<(), Broken> {
        let slot = self.take_slot()?;
        let mut spare = self.spare.pop().unwrap_or_default();
        std::mem::swap(&mut spare.chain, &mut self.chain);
        let parts = &self.parts;
        let helped = Helped { head, request, spare, step: Step::Done(Status::IoError, 0) };
        let help = Help {
            slot,
            helped: Some(helped),
            memory: Some(Arc::clone(&parts.memory)),
            handle: Arc::clone(&self.handle),
            pools: Arc::clone(&parts.pools),
        };
        self.helped += 1;
        parts.pools.helping.fetch_add(1, Ordering::Relaxed);
        let (target, driver_flushes) = (Arc::clone(&parts.target), parts.driver_flushes);
        parts.pools.helpers.run(move || help.serve(&target, driver_flushes));
        Ok(())
    }

    /// Goes on with a request that a helper gives back.
    pub(super) fn take_back(&mut self, memory: &GuestMemory, helped: Helped) -> Result<(), Broken> {
        let Helped { head, request, mut spare, step } = helped;
        self.helped -= 1;
        self.follow(memory, (head, request), &mut spare.chain, step)?;
        self.spare.push(spare);
        Ok(())
    }
}

/// A request on its way through a helper. It comes back even if the helper panics.
struct Help {
    slot: usize,
    helped: Option<Helped>,
    memory: Option<Arc<GuestMemory>>,
    handle: Arc<RingHandle>,
    pools: Arc<WorkerPools>,
}

impl Help {
    fn serve(mut self, target: &Target, driver_flushes: bool) {
        if let (Some(helped), Some(memory)) = (&mut self.helped, &self.memory) {
            let Spare { chain, bounce } = &mut helped.spare;
            helped.step = target.serve(memory, chain, &mut helped.request, bounce, driver_flushes);
        }
    }
}

impl Drop for Help {
    fn drop(&mut self) {
        // The memory is released before the result becomes known.
        self.memory = None;
        self.pools.helping.fetch_sub(1, Ordering::Relaxed);
        if let Some(helped) = self.helped.take() {
            self.handle.mailbox.put(Finished { slot: self.slot, outcome: Outcome::Helped(helped) });
        }
    }
}
