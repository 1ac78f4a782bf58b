//! The network: hosts' links up and down, racks', the store's. It has to carry tens of millions of chunks a run.
//!
//! A *parcel* (a chunk, a message, a piece of the store's answer) goes through *ports*, one after the other: the
//! sender's link up, its rack's up, the fabric, the receiver's rack's down, the receiver's down. Each port sends one
//! parcel at a time at its rate. Rates are never recomputed for all flows whenever one begins or ends, as in models of
//! max-min fair flows; a chunk costs a few operations on a heap, whatever else is under way. These properties make it
//! behave like a real network anyway:
//!
//! * *Parcels are small* (a chunk at most), and a port takes those of several *flows* in turn: over a few chunks each
//!   has its even share, as connections over one link do.
//! * *Classes*: at a sender's own port a more urgent parcel goes first, but not before the one on the wire. Ports on
//!   the way know of no classes.
//! * *Cut through*: an idle port sends a parcel on while it arrives, as switches do with packets of a chunk. A port
//!   that has others to send first needs the whole time for it afterwards. So a chunk over two idle links of one rate
//!   takes the time of one.
//! * Small parcels do not queue: at a sender's port they go between two chunks, as the product's outbox lets them, and
//!   on the way they pass between the packets of other chunks. They still take their time of the port.
//!
//! Ports on the way have room for everything: a sender is not slowed down by a receiver that is slow, and sends to
//! others meanwhile. The rest is left out: slow start, lost packets of a connection, acknowledgements.

use super::keyed::Keyed;
use super::queue::{Agenda, Happening};
use crate::slab::{NONE, Slab};
use headstart_block::exact;
use headstart_replay::link::span;
use headstart_replay::time::Nanos;
use std::collections::VecDeque;

/// The most ports on a way.
const HOPS: usize = 5;

/// Classes at a sender's port.
pub(super) const CLASSES: usize = 5;

/// Parcels up to this length do not queue.
const SMALL: u32 = 1500;

/// The number of bytes that `bytes` of a message take on a link: records of TLS, heads of TCP, IP and Ethernet.
pub(super) fn on_wire(bytes: u64) -> u32 {
    let sealed = bytes + 29 * bytes.div_ceil(16 << 10);
    exact(sealed + 66 * sealed.div_ceil(1448), "messages are far shorter than 4 GiB")
}

/// A parcel on its way from host to host.
#[derive(Debug)]
pub(super) struct Parcel<T> {
    pub(super) what: T,
    /// On the wire.
    pub(super) bytes: u32,
    /// Its class at the first port.
    pub(super) class: usize,
    /// Those of one flow come in order; flows take turns.
    pub(super) flow: u64,
    /// Its ports; unused places behind the last are [`NONE`].
    pub(super) way: [u32; HOPS],
    /// The latency from the first port to the next.
    pub(super) latency: Nanos,
    /// The note that [`Net::left`] tells when the first port begins to send it; [`NONE`]: no note.
    pub(super) note: u32,
}

impl<T> Parcel<T> {
    /// The parcel without the [`NONE`] ports of its way.
    pub(super) fn packed(mut self) -> Self {
        let mut way = [NONE; HOPS];
        let ports = self.way.into_iter().filter(|port| *port != NONE);
        way.iter_mut().zip(ports).for_each(|(place, port)| *place = port);
        self.way = way;
        self
    }
}

#[derive(Debug)]
struct Travelling<T> {
    parcel: Parcel<T>,
    /// The number of ports that it has passed.
    passed: usize,
    /// The time at which its first bit came to its present port.
    came: Nanos,
    /// The next of its flow at a port.
    next: u32,
}

impl<T> Travelling<T> {
    /// The port that it is at, or is on its way to; `None` at its end.
    fn port(&self) -> Option<u32> {
        self.parcel.way.get(self.passed).copied().filter(|port| *port != NONE)
    }
}

#[derive(Debug)]
struct Port {
    rate: u64,
    free_at: Nanos,
    /// `true` if an event is entered for the time when it is free.
    awaited: bool,
    waiting: usize,
    /// By class the flows that have a parcel to send, in turn.
    flows: [VecDeque<u32>; CLASSES],
    carried: u64,
}

/// Parcels of one flow and class that wait at a port.
#[derive(Debug)]
struct Flow {
    key: (u32, u32, u64),
    first: u32,
    last: u32,
}

/// All ports, and the parcels at and between them.
#[derive(Debug)]
pub(super) struct Net<T> {
    ports: Vec<Port>,
    travelling: Slab<Travelling<T>>,
    flows: Slab<Flow>,
    /// By port, class and flow.
    by_key: Keyed<(u32, u32, u64), u32>,
    left: Vec<u32>,
}

impl<T> Net<T> {
    pub(super) fn new() -> Self {
        let (ports, left) = (Vec::new(), Vec::new());
        Self { ports, travelling: Slab::default(), flows: Slab::default(), by_key: Keyed::default(), left }
    }

    /// Adds a port of `rate` bytes a second.
    pub(super) fn port(&mut self, rate: u64) -> u32 {
        let number = exact(self.ports.len(), "a fleet's ports have numbers of 32 bits");
        self.ports.push(Port {
            rate,
            free_at: Nanos(0),
            awaited: false,
            waiting: 0,
            flows: std::array::from_fn(|_| VecDeque::new()),
            carried: 0,
        });
        number
    }

    /// Bytes that began to go through a port so far.
    pub(super) fn carried(&self, port: u32) -> u64 {
        self.ports.get(port as usize).map_or(0, |port| port.carried)
    }

    /// Tells a note as if its parcel had begun to be sent.
    pub(super) fn note(&mut self, note: u32) {
        self.left.push(note);
    }

    /// The next note of a parcel that its first port began to send.
    pub(super) fn left(&mut self) -> Option<u32> {
        self.left.pop()
    }

    /// Sends a parcel; returns its number, which is valid until its first port begins to send it.
    pub(super) fn send(&mut self, now: Nanos, parcel: Parcel<T>, agenda: &mut Agenda) -> u32 {
        let number = self.travelling.insert(Travelling { parcel, passed: 0, came: now, next: NONE });
        self.at_port(now, number, agenda);
        number
    }

    /// Takes a parcel that has come to its next port; at its end it is given back.
    pub(super) fn arrive(&mut self, now: Nanos, number: u32, agenda: &mut Agenda) -> Option<T> {
        let through = self.at_port(now, number, agenda);
        if through { self.travelling.take(number).map(|travelling| travelling.parcel.what) } else { None }
    }

    /// Notes that a port is free again.
    pub(super) fn free(&mut self, now: Nanos, port: u32, agenda: &mut Agenda) {
        self.ports[port as usize].awaited = false;
        if self.ports[port as usize].free_at <= now
            && let Some(number) = self.next_of(port)
            && self.transmit(now, now, number, agenda)
        {
            agenda.enter(now, Happening::Arrive(number));
        }
        self.await_free(port, agenda);
    }

    /// Takes a parcel at its next port; `true` if it passes it at once, and is thereby at its end.
    fn at_port(&mut self, now: Nanos, number: u32, agenda: &mut Agenda) -> bool {
        let Some(travelling) = self.travelling.get_mut(number) else { return false };
        let Some(port) = travelling.port() else { return true };
        let (came, bytes) = (travelling.came, travelling.parcel.bytes);
        let known = &mut self.ports[port as usize];
        if bytes <= SMALL {
            let takes = span(u64::from(bytes), known.rate);
            known.free_at = known.free_at.max(now).plus(takes);
            known.carried += u64::from(bytes);
            travelling.passed += 1;
            if travelling.passed > 1 {
                return self.at_port(now, number, agenda);
            }
            if travelling.parcel.note != NONE {
                self.left.push(travelling.parcel.note);
            }
            travelling.came = now.plus(travelling.parcel.latency);
            agenda.enter(travelling.came.plus(takes), Happening::Arrive(number));
            return false;
        }
        if known.free_at <= now && known.waiting == 0 {
            let start = came.max(known.free_at);
            return self.transmit(now, start, number, agenda);
        }
        self.queue(port, number);
        self.await_free(port, agenda);
        false
    }

    /// Sends a parcel through its present port, from `start` on, which may have been before now; `true` if it passes it
    /// at once, and is thereby at its end.
    fn transmit(&mut self, now: Nanos, start: Nanos, number: u32, agenda: &mut Agenda) -> bool {
        let Some(travelling) = self.travelling.get_mut(number) else { return false };
        let Some(port) = travelling.port() else { return true };
        let known = &mut self.ports[port as usize];
        let bytes = u64::from(travelling.parcel.bytes);
        let takes = span(bytes, known.rate);
        let end = start.plus(takes).max(now);
        known.free_at = end;
        known.carried += bytes;
        let first = travelling.passed == 0;
        if first && travelling.parcel.note != NONE {
            self.left.push(travelling.parcel.note);
        }
        let latency = if first { travelling.parcel.latency } else { Nanos(0) };
        travelling.passed += 1;
        travelling.came = end.since(takes).plus(latency);
        let comes = end.plus(latency);
        if comes <= now {
            return self.at_port(now, number, agenda);
        }
        agenda.enter(comes, Happening::Arrive(number));
        false
    }

    fn queue(&mut self, port: u32, number: u32) {
        let Some(travelling) = self.travelling.get(number) else { return };
        let class = if travelling.passed == 0 { travelling.parcel.class.min(CLASSES - 1) } else { 0 };
        let key = (port, exact::<u32>(class, "there are few classes"), travelling.parcel.flow);
        let known = &mut self.ports[port as usize];
        known.waiting += 1;
        if let Some(slot) = self.by_key.get(&key)
            && let Some(flow) = self.flows.get_mut(*slot)
        {
            let last = std::mem::replace(&mut flow.last, number);
            if let Some(last) = self.travelling.get_mut(last) {
                last.next = number;
            }
            return;
        }
        let slot = self.flows.insert(Flow { key, first: number, last: number });
        self.by_key.insert(key, slot);
        known.flows[class].push_back(slot);
    }

    /// Moves a parcel that waits at its first port to a more urgent class, behind others of its flow there.
    pub(super) fn promote(&mut self, number: u32, class: usize) {
        if self.travelling.get(number).is_none_or(|travelling| travelling.parcel.class <= class) {
            return;
        }
        let Some(port) = self.unlink(number) else { return };
        if let Some(travelling) = self.travelling.get_mut(number) {
            travelling.parcel.class = class;
        }
        self.queue(port, number);
    }

    /// Drops a parcel that waits at its first port. Its note is told.
    pub(super) fn cancel(&mut self, number: u32) {
        if self.unlink(number).is_none() {
            return;
        }
        let Some(travelling) = self.travelling.take(number) else { return };
        if travelling.parcel.note != NONE {
            self.left.push(travelling.parcel.note);
        }
    }

    /// Takes a parcel from those that wait at its first port; returns that port.
    fn unlink(&mut self, number: u32) -> Option<u32> {
        let travelling = self.travelling.get(number).filter(|travelling| travelling.passed == 0)?;
        let (port, next) = (travelling.port()?, travelling.next);
        let class = travelling.parcel.class.min(CLASSES - 1);
        let key = (port, exact::<u32>(class, "there are few classes"), travelling.parcel.flow);
        let slot = *self.by_key.get(&key)?;
        let flow = self.flows.get_mut(slot)?;
        if flow.first == number {
            flow.first = next;
        } else {
            let mut before = flow.first;
            while let Some(known) = self.travelling.get_mut(before) {
                if known.next == number {
                    known.next = next;
                    break;
                }
                before = known.next;
            }
            if before == NONE {
                return None;
            }
            if flow.last == number {
                flow.last = before;
            }
        }
        if flow.first == NONE {
            self.by_key.remove(&key);
            self.flows.take(slot);
            self.ports[port as usize].flows[class].retain(|known| *known != slot);
        }
        self.ports[port as usize].waiting -= 1;
        self.travelling.get_mut(number)?.next = NONE;
        Some(port)
    }

    /// Takes the parcel that a port is to send next.
    fn next_of(&mut self, port: u32) -> Option<u32> {
        let known = &mut self.ports[port as usize];
        let flows = known.flows.iter_mut().find(|flows| !flows.is_empty())?;
        let slot = flows.pop_front()?;
        let flow = self.flows.get_mut(slot)?;
        let number = flow.first;
        flow.first =
            self.travelling.get_mut(number).map_or(NONE, |first| std::mem::replace(&mut first.next, NONE));
        if flow.first == NONE {
            self.by_key.remove(&flow.key);
            self.flows.take(slot);
        } else {
            flows.push_back(slot);
        }
        known.waiting -= 1;
        Some(number)
    }

    fn await_free(&mut self, port: u32, agenda: &mut Agenda) {
        let known = &mut self.ports[port as usize];
        if known.waiting > 0 && !known.awaited {
            known.awaited = true;
            agenda.enter(known.free_at, Happening::Free(port));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    struct Rig {
        net: Net<u32>,
        agenda: Agenda,
        now: Nanos,
    }

    impl Rig {
        /// A network of ports with a rate of one byte a nanosecond, each divided by its number in `slower`.
        fn new(slower: &[u64]) -> Self {
            let mut net = Net::new();
            for slower in slower {
                net.port(1_000_000_000 / slower);
            }
            Self { net, agenda: Agenda::default(), now: Nanos(0) }
        }

        fn send(&mut self, what: u32, bytes: u32, class: usize, flow: u64, way: &[u32]) {
            let mut ports = [NONE; HOPS];
            ports[..way.len()].copy_from_slice(way);
            let parcel = Parcel { what, bytes, class, flow, way: ports, latency: Nanos(MS), note: NONE };
            self.net.send(self.now, parcel, &mut self.agenda);
        }

        /// All arrivals and their times, up to the end.
        fn all(&mut self) -> Vec<(u32, u64)> {
            let mut came = Vec::new();
            while let Some((at, happening)) = self.agenda.next() {
                assert!(at >= self.now);
                self.now = at;
                match happening {
                    Happening::Arrive(number) => {
                        came.extend(self.net.arrive(at, number, &mut self.agenda).map(|what| (what, at.0)));
                    }
                    Happening::Free(port) => self.net.free(at, port, &mut self.agenda),
                    _ => {}
                }
            }
            came
        }
    }

    #[test]
    fn a_chunk_over_idle_links_takes_the_time_of_the_slowest() {
        for slower in [[1, 1, 1], [1, 2, 1], [2, 1, 1], [1, 1, 2]] {
            let mut rig = Rig::new(&slower);
            rig.send(1, 60_000, 0, 0, &[0, 1, 2]);
            let slowest = 60_000 * slower.iter().max().unwrap();
            assert_eq!(rig.all(), [(1, MS + slowest)]);
        }
    }

    #[test]
    fn urgent_parcels_overtake_and_flows_take_turns() {
        let mut rig = Rig::new(&[1, 1]);
        for what in 0..3 {
            rig.send(what, 10_000, 4, 7, &[0, 1]);
        }
        rig.send(3, 10_000, 4, 8, &[0, 1]);
        rig.send(4, 10_000, 0, 7, &[0, 1]);
        let order: Vec<_> = rig.all().into_iter().map(|(what, _)| what).collect();
        assert_eq!(order, [0, 4, 1, 3, 2]);
    }

    #[test]
    fn waiting_parcels_are_promoted_or_cancelled_and_sent_ones_are_not() {
        let mut rig = Rig::new(&[1, 1]);
        for what in 0..6 {
            let (way, class) = ([0, 1, NONE, NONE, NONE], if what == 5 { 0 } else { 4 });
            let parcel = Parcel { what, bytes: 10_000, class, flow: 7, way, latency: Nanos(MS), note: what };
            let number = rig.net.send(rig.now, parcel, &mut rig.agenda);
            assert_eq!(number, what);
        }
        [3, 0].into_iter().for_each(|number| rig.net.promote(number, 0));
        [1, 4, 0].into_iter().for_each(|number| rig.net.cancel(number));
        let mut left: Vec<_> = std::iter::from_fn(|| rig.net.left()).collect();
        left.sort_unstable();
        assert_eq!(left, [0, 1, 4], "one is sent, two are not");
        let order: Vec<_> = rig.all().into_iter().map(|(what, _)| what).collect();
        assert_eq!(order, [0, 5, 3, 2]);
        assert_eq!(rig.net.carried(0), 40_000);
    }

    #[test]
    fn senders_share_a_receiver() {
        let mut rig = Rig::new(&[1, 1, 1]);
        for what in 0..4 {
            rig.send(what, 10_000, 0, u64::from(what % 2), &[what % 2, 2]);
        }
        let came = rig.all();
        assert_eq!(came.iter().map(|(_, at)| at - MS).collect::<Vec<_>>(), [10_000, 20_000, 30_000, 40_000]);
        assert_eq!(rig.net.carried(2), 40_000);
    }

    proptest! {
        /// All parcels arrive; no port carries more than it can; none rests while it has a parcel to send: parcels that
        /// are sent at once over one slow port have arrived when it has carried all of them.
        #[test]
        fn work_is_conserved(
            sends in prop::collection::vec((1_u32..70_000, 0_usize..5, 0_u64..3, 0_u32..3), 1..60),
            slower in 3_u64..10,
        ) {
            let mut rig = Rig::new(&[1, 1, 1, slower]);
            let mut bytes = 0;
            for (what, (len, class, flow, from)) in (0..).zip(&sends) {
                rig.send(what, *len, *class, *flow, &[*from, 3]);
                bytes += u64::from(*len);
            }
            let came = rig.all();
            prop_assert_eq!(came.len(), sends.len());
            prop_assert_eq!(rig.net.carried(3), bytes);
            let first = sends.iter().map(|(len, ..)| u64::from(*len)).max().unwrap();
            let last = came.iter().map(|(_, at)| at - MS).max().unwrap();
            prop_assert!(last <= bytes * slower + first);
            if sends.iter().all(|(len, ..)| *len > SMALL) {
                prop_assert!(last >= bytes * slower);
            }
        }
    }
}
