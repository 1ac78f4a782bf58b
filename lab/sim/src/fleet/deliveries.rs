//! The awaited ranges of a host, their sources, and the store.

use super::content::What;
use super::net::{Parcel, on_wire};
use super::queue::Happening;
use super::{Fleet, Way};
use crate::slab::NONE;
use headstart_block::{Error, ErrorKind, exact};
use headstart_pull::{BlobRange, DiskBlobId, FetchOutcome as Fetched};
use headstart_replay::time::Nanos;
use headstart_swarm as swarm;
use std::sync::Arc;
use std::time::Duration;

/// The wait of a host that asks a store that is away.
const TIME_OUT: Duration = Duration::from_secs(15);

/// The length of the parts in which the store sends its answers, which take turns.
const SEND_SIZE: u64 = 64 << 10;

/// The length of the part of a background fetch that is requested at once when a read waits for it: steps as disks have
/// them.
const STEP: u64 = 512 << 10;

/// Bytes of a request to the store, and of an answer before its body.
const HEAD: u64 = 300;

/// The owner of a delivery, which waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A fetch of a disk.
    Disk(u32, headstart_pull::FetchId),
    /// The agent, for its node.
    Agent(swarm::StoreFetchId),
    /// No owner: it has gone.
    Nobody,
}

/// A range that is awaited.
#[derive(Debug)]
pub(super) struct Delivery {
    host: u32,
    owner: Owner,
    range: BlobRange,
    /// Units that are not local yet.
    remaining: u32,
    /// `true` if the node has answered, if it was asked.
    answered: bool,
    want: Option<swarm::WantId>,
    /// Wants with more urgency, for parts of it.
    promoted: Vec<swarm::WantId>,
    /// `true` if it asked the store, or the node, for any of it.
    is_requested: bool,
    /// `true` if its end is known, and its owner told or about to be.
    is_over: bool,
}

/// A unit that is to come.
#[derive(Debug, Default)]
pub(super) struct PendingUnit {
    claimed: bool,
    /// Deliveries.
    waiting: Vec<u32>,
}

/// A request to the store.
#[derive(Debug)]
pub(super) struct StoreRequest {
    host: u32,
    range: BlobRange,
    remaining: u64,
    /// `true` if a disk asked, and not the node.
    by_disk: bool,
}

impl Fleet<'_> {
    /// Brings `range` to a host. The owner is told later, even if all of it is local.
    pub(super) fn bring(
        &mut self,
        host: u32,
        owner: Owner,
        range: BlobRange,
        urgency: swarm::Urgency,
    ) -> u32 {
        let (want, answered, is_requested, is_over) = (None, false, false, false);
        let delivery = Delivery {
            host,
            owner,
            range,
            remaining: 0,
            answered,
            want,
            promoted: Vec::new(),
            is_requested,
            is_over,
        };
        let number = self.deliveries.insert(delivery);
        let local = &self.hosts[host as usize].local;
        let mut remaining = 0;
        for unit in local.touched(range).filter(|unit| !local.has_unit(range.blob, *unit)) {
            let key = (host, range.blob.0, exact::<u32>(unit, "chunks have numbers of 32 bits"));
            self.pending_units.entry(key).or_default().waiting.push(number);
            remaining += 1;
        }
        if let Some(delivery) = self.deliveries.get_mut(number) {
            delivery.remaining = remaining;
        }
        let of_disk = matches!(owner, Owner::Disk(..));
        if remaining > 0 && of_disk && self.hosts[host as usize].node.is_some() {
            self.want(number, host, range, urgency);
        } else {
            self.fetch_from_store(number);
        }
        number
    }

    /// Notes that the agent of a host has ended: disks fetch their awaited ranges themselves. The agent's fetches for
    /// others still arrive, but nothing waits for them.
    pub(super) fn agent_has_gone(&mut self, host: u32) {
        let of_host = |delivery: &Delivery| delivery.host == host && !delivery.is_over;
        for number in self.deliveries.numbers(of_host) {
            let Some(delivery) = self.deliveries.get_mut(number) else { continue };
            let want = delivery.want.filter(|_| !delivery.answered);
            let promoted = std::mem::take(&mut delivery.promoted);
            for want in promoted {
                self.promoted.remove(&want.0);
            }
            match delivery.owner {
                Owner::Agent(fetch) => {
                    self.agents.remove(&(host, fetch.0));
                    self.cancel(number);
                }
                Owner::Disk(..) | Owner::Nobody => {
                    if let Some(want) = want {
                        self.wants.remove(&want.0);
                        self.fetch_from_store(number);
                    }
                }
            }
        }
    }

    fn want(&mut self, number: u32, host: u32, range: BlobRange, urgency: swarm::Urgency) {
        let want = self.next_want();
        self.wants.insert(want.0, number);
        if let Some(delivery) = self.deliveries.get_mut(number) {
            delivery.want = Some(want);
            delivery.is_requested = true;
        }
        let chunks = swarm::Chunks::touched(range.range);
        let blob = swarm::BlobId(range.blob.0);
        self.notify_node(host, swarm::Event::Want { want, blob, chunks, urgency });
    }

    /// Raises the urgency of the part of a delivery before `upto`: a read waits for it now.
    pub(super) fn promote(&mut self, number: u32, upto: u64) {
        let Some(delivery) = self.deliveries.get(number) else { return };
        let (host, BlobRange { blob, range }) = (delivery.host, delivery.range);
        if delivery.want.is_none() || delivery.answered || delivery.is_over {
            return;
        }
        let end = range.offset() + (upto - range.offset().min(upto)).next_multiple_of(STEP);
        let part = BlobRange::between(blob, range.offset(), end.min(range.end()));
        let want = self.next_want();
        self.promoted.insert(want.0, (number, part));
        if let Some(delivery) = self.deliveries.get_mut(number) {
            delivery.promoted.push(want);
        }
        let (chunks, urgency) = (swarm::Chunks::touched(part.range), swarm::Urgency::Demand);
        self.notify_node(host, swarm::Event::Want { want, blob: swarm::BlobId(blob.0), chunks, urgency });
    }

    fn next_want(&mut self) -> swarm::WantId {
        self.next_want += 1;
        swarm::WantId(self.next_want)
    }

    /// Takes the node's answer to a want.
    pub(super) fn answered(&mut self, want: swarm::WantId, from_store: &[swarm::Chunks]) {
        if let Some((number, part)) = self.promoted.remove(&want.0) {
            let known = self.deliveries.get(number).filter(|delivery| !delivery.is_over);
            if let Some((host, owner)) = known.map(|delivery| (delivery.host, delivery.owner)) {
                self.ask_store_for(host, part, !matches!(owner, Owner::Agent(_)));
            }
            return;
        }
        let Some(number) = self.wants.remove(&want.0) else { return };
        let Some(delivery) = self.deliveries.get(number) else { return };
        let (host, range) = (delivery.host, delivery.range);
        // A chunk that the node wrongly takes for local would never come.
        let local = &self.hosts[host as usize].local;
        let forgotten = local.touched(range).any(|unit| {
            let chunk = exact::<u32>(unit, "chunks have numbers of 32 bits");
            !local.has_unit(range.blob, unit)
                && !from_store.iter().any(|run| run.numbers().contains(&chunk))
                && !self.pending_units.get(&(host, range.blob.0, chunk)).is_some_and(|unit| unit.claimed)
        });
        self.wrong_answers += u64::from(forgotten);
        self.fetch_from_store(number);
    }

    /// Asks the store for all of a delivery that no other request fetches.
    fn fetch_from_store(&mut self, number: u32) {
        let Some(delivery) = self.deliveries.get_mut(number) else { return };
        delivery.answered = true;
        let (host, range) = (delivery.host, delivery.range);
        let by_disk = !matches!(delivery.owner, Owner::Agent(_));
        if delivery.remaining == 0 {
            delivery.is_over = true;
            return self.over.push_back((number, true));
        }
        let asked = self.ask_store_for(host, range, by_disk);
        if let Some(delivery) = self.deliveries.get_mut(number) {
            delivery.is_requested |= asked;
        }
    }

    /// Asks the store for all of a range that no other request brings to a host; `true` if that is any.
    fn ask_store_for(&mut self, host: u32, range: BlobRange, by_disk: bool) -> bool {
        let local = &self.hosts[host as usize].local;
        let mut runs: Vec<BlobRange> = Vec::new();
        for unit in local.touched(range) {
            let key = (host, range.blob.0, exact::<u32>(unit, "chunks have numbers of 32 bits"));
            let Some(pending_unit) = self.pending_units.get_mut(&key).filter(|unit| !unit.claimed) else {
                continue;
            };
            pending_unit.claimed = true;
            let part = local.unit_range(range.blob, unit);
            match runs.last_mut() {
                Some(last) if last.range.end() == part.range.offset() => {
                    *last = BlobRange::between(range.blob, last.range.offset(), part.range.end());
                }
                _ => runs.push(part),
            }
        }
        let any = !runs.is_empty();
        runs.into_iter().for_each(|run| self.ask_store(host, run, by_disk));
        any
    }

    fn ask_store(&mut self, host: u32, range: BlobRange, by_disk: bool) {
        let request =
            self.requests.insert(StoreRequest { host, range, remaining: range.len() + HEAD, by_disk });
        let parcel = Parcel {
            what: What::StoreRequest(request),
            bytes: on_wire(HEAD),
            class: swarm::SendClass::DemandRequest as usize,
            flow: u64::MAX,
            way: [self.hosts[host as usize].up, self.rack_up(host), NONE, NONE, NONE],
            latency: Nanos(Nanos::from_duration(self.model.links.store_round_trip).0 / 2),
            note: NONE,
        };
        self.net.send(self.now, parcel.packed(), &mut self.agenda);
    }

    /// Notes that a request has reached the store.
    pub(super) fn on_store_request(&mut self, request: u32) {
        let away =
            self.model.faults.store_away.iter().find(|(from, until)| (*from..*until).contains(&self.now));
        let pinned = matches!(&self.model.way, Way::Swarm(swarm) if swarm.pinned > 0);
        let give_up = Nanos::from_duration(TIME_OUT);
        let mut wait = Nanos(0);
        if let Some((_, back)) = away {
            wait = back.since(self.now);
        }
        if wait > give_up || pinned {
            return self.agenda.enter(self.now.plus(give_up), Happening::TimeOut(request));
        }
        let most = Nanos::from_duration(self.model.links.store_latency).0;
        let latency = if most == 0 { 0 } else { self.random.bits() % most };
        self.agenda.enter(self.now.plus(wait).plus(Nanos(latency)), Happening::Answer(request));
    }

    /// Sends the store's answer, piece by piece.
    pub(super) fn store_answers(&mut self, number: u32) {
        let Some(request) = self.requests.get(number) else { return };
        let (host, mut remaining) = (request.host, request.remaining);
        while remaining > 0 {
            let bytes = remaining.min(SEND_SIZE);
            remaining -= bytes;
            let parcel = Parcel {
                what: What::Stored { request: number, bytes },
                bytes: on_wire(bytes),
                class: 0,
                flow: u64::from(number),
                way: [self.store, self.rack_down(host), self.hosts[host as usize].down, NONE, NONE],
                latency: Nanos(Nanos::from_duration(self.model.links.store_round_trip).0 / 2),
                note: NONE,
            };
            self.net.send(self.now, parcel.packed(), &mut self.agenda);
        }
    }

    /// Takes a part of an answer of the store.
    pub(super) fn stored(&mut self, number: u32, bytes: u64) {
        let Some(request) = self.requests.get_mut(number) else { return };
        request.remaining = request.remaining.saturating_sub(bytes);
        if request.remaining > 0 {
            return;
        }
        let Some(StoreRequest { host, range, by_disk, .. }) = self.requests.take(number) else { return };
        self.store_bytes += range.len();
        self.note_stored(range);
        if !self.hosts[host as usize].alive {
            return;
        }
        self.hosts[host as usize].from_store += range.len();
        for unit in self.hosts[host as usize].local.touched(range) {
            self.became_local(host, range.blob, unit);
        }
        if by_disk {
            let (blob, chunks) = (swarm::BlobId(range.blob.0), swarm::Chunks::touched(range.range));
            self.notify_node(host, swarm::Event::BecameLocal { blob, chunks });
        }
    }

    /// Counts bytes that the store had sent before.
    fn note_stored(&mut self, range: BlobRange) {
        let first = self.first_chunk.get(range.blob.0 as usize).copied().unwrap_or(NONE);
        for chunk in swarm::Chunks::touched(range.range).numbers() {
            let bit = first.saturating_add(chunk);
            let Some(word) = self.stored.get_mut(bit as usize / 64) else { continue };
            if *word >> (bit % 64) & 1 == 1 {
                self.store_again += range.len().min(swarm::CHUNK_SIZE);
            }
            *word |= 1 << (bit % 64);
        }
    }

    /// Notes that a unit is local now.
    pub(super) fn became_local(&mut self, host: u32, blob: DiskBlobId, unit: u64) {
        let local = &mut self.hosts[host as usize].local;
        let range = local.unit_range(blob, unit);
        local.insert(range);
        let key = (host, blob.0, exact::<u32>(unit, "chunks have numbers of 32 bits"));
        let Some(pending_unit) = self.pending_units.remove(&key) else { return };
        pending_unit.waiting.into_iter().for_each(|number| self.unit_is_over(number, true));
    }

    /// Notes that a unit of a delivery is local, or does not come.
    fn unit_is_over(&mut self, number: u32, well: bool) {
        let Some(delivery) = self.deliveries.get_mut(number) else { return };
        delivery.remaining = delivery.remaining.saturating_sub(1);
        let ends = !well || (delivery.remaining == 0 && delivery.answered);
        if ends && !delivery.is_over {
            delivery.is_over = true;
            self.over.push_back((number, well));
        } else if delivery.remaining == 0 && delivery.owner == Owner::Nobody {
            // No other entry refers to it any more.
            self.deliveries.take(number);
        }
    }

    /// Ends a request that the store has not answered.
    pub(super) fn store_fails(&mut self, number: u32) {
        let Some(StoreRequest { host, range, .. }) = self.requests.take(number) else { return };
        for unit in self.hosts[host as usize].local.touched(range) {
            let key = (host, range.blob.0, exact::<u32>(unit, "chunks have numbers of 32 bits"));
            let Some(pending_unit) = self.pending_units.remove(&key) else { continue };
            pending_unit.waiting.into_iter().for_each(|number| self.unit_is_over(number, false));
        }
    }

    /// Ends a delivery: tells its owner.
    pub(super) fn complete_delivery(&mut self, number: u32, well: bool) {
        let Some(delivery) = self.deliveries.get_mut(number) else { return };
        let owner = std::mem::replace(&mut delivery.owner, Owner::Nobody);
        let (host, is_requested, done) = (delivery.host, delivery.is_requested, delivery.remaining == 0);
        let want = delivery.want.filter(|_| !delivery.answered);
        let promoted = std::mem::take(&mut delivery.promoted);
        delivery.answered = true;
        if done {
            self.deliveries.take(number);
        }
        if let Some(want) = want {
            self.wants.remove(&want.0);
            self.notify_node(host, swarm::Event::Forget { want });
        }
        for want in promoted {
            if self.promoted.remove(&want.0).is_some() {
                self.notify_node(host, swarm::Event::Forget { want });
            }
        }
        match owner {
            Owner::Disk(disk, fetch) => {
                let outcome = match (well, is_requested) {
                    (true, true) => Fetched::Done,
                    (true, false) => Fetched::Found,
                    (false, _) => {
                        let error = Error::new(ErrorKind::Unavailable, "the store does not answer");
                        Fetched::Failed { retry: true, corrupt: false, error: Arc::new(error) }
                    }
                };
                self.fetched(disk, fetch, outcome);
            }
            Owner::Agent(fetch) => {
                self.agents.remove(&(host, fetch.0));
                self.notify_node(host, swarm::Event::Fetched { fetch, ok: well });
            }
            Owner::Nobody => {}
        }
    }

    /// Cancels a fetch that a disk no longer wants. Bytes that were requested from the store still arrive.
    pub(super) fn cancel(&mut self, number: u32) {
        let Some(delivery) = self.deliveries.get_mut(number) else { return };
        if delivery.is_over {
            delivery.owner = Owner::Nobody;
            return;
        }
        delivery.is_over = true;
        self.over.push_back((number, false));
        delivery.owner = Owner::Nobody;
    }
}
