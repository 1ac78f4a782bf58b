//! Small reads of a disk that takes several at once: if each read takes a round trip to another process, as many as the
//! ring holds share one.
//!
//! A read is gathered when it is taken, and served with the others when there are enough, or when the ring has no more.
//! Requests in flight have no order, so a request that is taken meanwhile may overtake it.

use super::super::blk::{Request, Step};
use super::super::chain::Broken;
use super::super::memory::GuestMemory;
use super::Ring;
use super::shared_work::Spare;

/// The most bytes that are read together.
const BYTES_MAX: u64 = 512 << 10;

/// A read that was taken from the ring and not served yet.
pub(super) struct Gathered {
    head: u16,
    request: Request,
    spare: Spare,
}

impl Ring {
    /// `true` if a request is to be sent together with others.
    pub(super) fn is_gathered(&self, request: &Request) -> bool {
        self.parts.target.reads_together > 1 && self.parts.target.is_small_read(request)
    }

    /// Keeps the request in hand until others are served with it.
    pub(super) fn gather(&mut self, memory: &GuestMemory, head: u16, request: Request) -> Result<(), Broken> {
        let mut spare = self.spare.pop().unwrap_or_default();
        std::mem::swap(&mut spare.chain, &mut self.chain);
        self.gathered.push(Gathered { head, request, spare });
        let bytes: u64 = self.gathered.iter().map(|gathered| gathered.request.len()).sum();
        if self.gathered.len() >= self.parts.target.reads_together || bytes >= BYTES_MAX {
            return self.serve_gathered(memory);
        }
        Ok(())
    }

    /// Serves the gathered reads.
    pub(super) fn serve_gathered(&mut self, memory: &GuestMemory) -> Result<(), Broken> {
        let mut gathered = std::mem::take(&mut self.gathered);
        let reads = gathered.iter_mut().map(|Gathered { request, spare, .. }| (&*request, &mut spare.bounce));
        let results = self.parts.target.read_together(reads.collect());
        let served: Vec<_> = gathered.drain(..).zip(results).collect();
        // The vector is kept for the next ones.
        self.gathered = gathered;
        for (Gathered { head, mut request, mut spare }, result) in served {
            let step: Step =
                self.parts.target.after_read(memory, &spare.chain, &mut request, &spare.bounce, result);
            self.follow(memory, (head, request), &mut spare.chain, step)?;
            self.spare.push(spare);
        }
        Ok(())
    }
}
