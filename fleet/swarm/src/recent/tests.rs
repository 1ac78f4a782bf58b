//! The knowledge of a root after boots, with strays among them.

use super::*;
use headstart_block::random::Random;
use proptest::prelude::*;
use std::collections::BTreeSet;

const APP: BlobKey = BlobKey(1);
const OTHER: BlobKey = BlobKey(2);

fn piece(blob: BlobKey, chunk: u32) -> ChunkKey {
    ChunkKey { blob, chunk }
}

/// A host that reads, requests the chunks that it lacks, and takes those that it is sent.
struct Host {
    key: PeerKey,
    has: BTreeSet<ChunkKey>,
    sent: BTreeSet<ChunkKey>,
    read: BTreeSet<ChunkKey>,
    asked: usize,
}

impl Host {
    fn new(key: u64) -> Self {
        let none = BTreeSet::new;
        Self { key: PeerKey(key), has: none(), sent: none(), read: none(), asked: 0 }
    }

    fn read(&mut self, recent: &mut Recent, piece: ChunkKey) {
        self.read.insert(piece);
        if !self.has.contains(&piece) {
            self.asked += 1;
            recent.on_request(self.key, piece.blob, Chunks::one(piece.chunk), |piece| {
                !self.has.contains(&piece)
            });
            self.has.insert(piece);
            let mut next = Vec::new();
            recent.next(self.key, (32, 32), |piece| !self.has.contains(&piece), &mut next);
            recent.list.check();
            assert!(next.iter().all(|piece| self.has.insert(*piece)), "sent twice, or what was there");
            self.sent.extend(next);
        }
    }

    fn boot(mut self, recent: &mut Recent, order: &[ChunkKey]) -> Self {
        order.iter().for_each(|piece| self.read(recent, *piece));
        self
    }

    fn unread(&self) -> usize {
        self.sent.difference(&self.read).count()
    }
}

/// The chunks of a boot in their order, scattered over two blobs.
fn a_boot(len: u32) -> Vec<ChunkKey> {
    let mut random = Random::new(7);
    let mut order: Vec<ChunkKey> =
        (0..len).map(|n| piece(if n % 3 == 0 { OTHER } else { APP }, n * 5)).collect();
    for n in (1..order.len()).rev() {
        order.swap(n, random.below(n + 1));
    }
    order
}

#[test]
fn one_boot_is_enough_to_know_the_next() {
    let (boot, mut recent) = (a_boot(1000), Recent::new(1 << 16));
    let first = Host::new(1).boot(&mut recent, &boot);
    assert_eq!((first.asked, first.sent.len()), (1000, 0));
    for key in 2..20 {
        let host = Host::new(key).boot(&mut recent, &boot);
        assert!(host.asked < 150 && host.unread() == 0, "{} asked, {} unread", host.asked, host.unread());
    }
    let late = Host::new(99).boot(&mut recent, &boot);
    assert!(late.asked < 110, "{}", late.asked);
}

#[test]
fn boots_that_jitter_teach_one_way() {
    let (boot, mut recent) = (a_boot(1000), Recent::new(1 << 16));
    let mut random = Random::new(3);
    let mut asked = 0;
    for key in 0..30 {
        let mut order = boot.clone();
        for at in (1..order.len()).rev() {
            order.swap(at, at - random.below(8.min(at)));
        }
        let host = Host::new(key).boot(&mut recent, &order);
        assert!(host.unread() <= 2, "{}", host.unread());
        asked = host.asked;
    }
    assert!(asked < 200, "{asked}");
}

#[test]
fn interleaved_reads_of_several_disks_are_told_apart() {
    let (boot, mut recent) = (a_boot(600), Recent::new(1 << 16));
    let mut hosts: Vec<_> = (1..=8).map(Host::new).collect();
    for at in 0..boot.len() + 8 * 20 {
        for (lag, host) in hosts.iter_mut().enumerate() {
            at.checked_sub(lag * 20)
                .and_then(|at| boot.get(at))
                .into_iter()
                .for_each(|p| host.read(&mut recent, *p));
        }
    }
    assert!(hosts.iter().skip(1).all(|host| host.asked < 120 && host.unread() == 0));
}

#[test]
fn strays_do_not_come_between() {
    let (boot, mut recent) = (a_boot(800), Recent::new(1 << 16));
    let mut random = Random::new(5);
    let stray = |random: &mut Random| piece(APP, 100_000 + u32::try_from(random.below(50_000)).unwrap());
    // Strays during the first boot, by that host and by another that does nothing else.
    let (mut first, mut other) = (Host::new(1), Host::new(1000));
    for (n, read) in boot.iter().enumerate() {
        first.read(&mut recent, *read);
        if random.below(10) == 0 {
            first.read(&mut recent, stray(&mut random));
        }
        other.read(&mut recent, stray(&mut random));
        // And chunks that the boot has read.
        let known = boot[random.below(n + 1)];
        other.read(&mut recent, known);
    }
    let mut unread = Vec::new();
    for key in 2..40 {
        let mut host = Host::new(key);
        for (n, read) in boot.iter().enumerate() {
            host.read(&mut recent, *read);
            if n % 10 == 0 {
                host.read(&mut recent, stray(&mut random));
            }
        }
        // 80 of them are strays of its own.
        assert!(key < 6 || host.asked < 180, "{} asked by {key}", host.asked);
        unread.push(host.unread());
    }
    assert!(unread[0] <= 100, "the strays of the one boot that is known, no more: {unread:?}");
    assert!(unread[30..].iter().all(|unread| *unread < 25), "{unread:?}");
}

#[test]
fn a_scan_washes_nothing_out() {
    let (boot, mut recent) = (a_boot(500), Recent::new(2000));
    for key in 1..4 {
        let keep = |_: ChunkKey| true;
        boot.iter().for_each(|p| recent.on_request(PeerKey(key), p.blob, Chunks::one(p.chunk), keep));
    }
    let mut scanner = Host::new(50);
    (0..8_000).for_each(|n| scanner.read(&mut recent, piece(BlobKey(9), n)));
    assert!(recent.len() <= 2000);
    let host = Host::new(60).boot(&mut recent, &boot);
    assert!(host.asked < 80 && host.unread() == 0, "{} {}", host.asked, host.unread());
}

#[test]
fn applications_on_one_base_are_predicted_apart() {
    let mut recent = Recent::new(1 << 16);
    let app = |own: u64| -> Vec<ChunkKey> {
        let of_own = |n: u32| n.is_multiple_of(4) || n > 400;
        (0..600).map(|n| if of_own(n) { piece(BlobKey(own), n) } else { piece(BlobKey(100), n) }).collect()
    };
    for round in 0..6 {
        for own in 3..6 {
            let mut host = Host::new(round * 10 + own);
            let order = app(own);
            for read in &order {
                // Other applications' blobs are not on this host: the node does not send chunks that are not shared.
                host.has.extend(
                    (3..6).filter(|o| *o != own).flat_map(|o| (0..600).map(move |n| piece(BlobKey(o), n))),
                );
                host.read(&mut recent, *read);
            }
            let all = order.len();
            assert!(round == 0 || (host.asked < all / 5 && host.unread() == 0), "{round}: {}", host.asked);
        }
    }
}

#[test]
fn a_saved_log_predicts_as_before() {
    let (boot, mut recent) = (a_boot(300), Recent::new(1 << 10));
    (1..5).for_each(|key| drop(Host::new(key).boot(&mut recent, &boot)));
    let mut loaded = Recent::load(&recent.save(), 1 << 10);
    loaded.list.check();
    assert_eq!(loaded.save(), recent.save());
    let (a, b) = (Host::new(9).boot(&mut recent, &boot), Host::new(9).boot(&mut loaded, &boot));
    assert_eq!((a.asked, a.sent), (b.asked, b.sent));
    let small = Recent::load(&recent.save(), 20);
    small.list.check();
    assert_eq!(small.len(), 20);
}

#[test]
fn a_forgotten_blob_leaves_no_trace() {
    let (boot, mut recent) = (a_boot(300), Recent::new(1 << 10));
    (1..3).for_each(|key| drop(Host::new(key).boot(&mut recent, &boot)));
    recent.forget_blob(OTHER);
    recent.list.check();
    assert_eq!(recent.len(), 200);
    let rest: Vec<_> = boot.iter().copied().filter(|piece| piece.blob == APP).collect();
    let host = Host::new(9).boot(&mut recent, &rest);
    assert!(host.asked < 40 && host.unread() == 0);
}

/// An agent requests these chunks one after the other; the others that it meets are unread.
fn request(recent: &mut Recent, agent: u64, chunks: &[u32]) {
    for chunk in chunks {
        recent.on_request(PeerKey(agent), APP, Chunks::one(*chunk), |_| true);
        recent.list.check();
    }
}

/// The chain that begins with chunk 1.
fn chain(recent: &Recent) -> Vec<u32> {
    let chains = recent.save().chains;
    let order = |chain: &SavedChain| chain.items.iter().map(|item| item.piece.chunk).collect::<Vec<_>>();
    chains.iter().map(order).find(|chunks| chunks.first() == Some(&1)).expect("it is remembered")
}

#[test]
fn a_chunk_is_moved_to_the_place_that_two_agents_come_from_and_return_to() {
    for (second, moves) in [(2, false), (3, true)] {
        let mut recent = Recent::new(100);
        request(&mut recent, 1, &[1, 2, 3, 4, 5]);
        request(&mut recent, 2, &[1, 2, 3, 100, 4]);
        assert_eq!(chain(&recent), [1, 2, 3, 4, 5], "one agent moves nothing");
        recent.forget(PeerKey(2));
        request(&mut recent, second, &[1, 2, 3, 100, 4]);
        let expected: &[u32] = if moves { &[1, 2, 3, 100, 4, 5] } else { &[1, 2, 3, 4, 5] };
        assert_eq!(chain(&recent), expected, "then {second}");
    }
}

/// The counts are halved: what agents do now outweighs what many did before.
#[test]
fn a_chunk_that_agents_pass_now_is_forgotten_however_many_requested_it_before() {
    let mut recent = Recent::new(100);
    (0..1000).for_each(|agent| request(&mut recent, agent, &[1, 2, 3]));
    assert_eq!(chain(&recent), [1, 2, 3]);
    (1000..1080).for_each(|agent| request(&mut recent, agent, &[1, 3]));
    assert_eq!(chain(&recent), [1, 3]);
}

fn any_piece() -> impl Strategy<Value = ChunkKey> {
    (0_u64..3, 0_u32..40).prop_map(|(blob, chunk)| piece(BlobKey(blob), chunk))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Random requests of random agents: the list stays consistent and bounded, and no local chunk is sent.
    #[test]
    fn any_requests_keep_the_list_consistent_and_bounded(
        capacity in 1_usize..60,
        asks in prop::collection::vec((0_u64..5, any_piece(), 0_u32..4, 0_usize..9, any::<bool>()), 0..300),
    ) {
        let mut recent = Recent::new(capacity);
        for (agent, first, count, limit, lacks) in asks {
            let chunks = Chunks { first: first.chunk, count };
            let has = |piece: ChunkKey| piece.chunk.is_multiple_of(2);
            recent.on_request(PeerKey(agent), first.blob, chunks, |piece| lacks && !has(piece));
            recent.list.check();
            let mut next = Vec::new();
            recent.next(PeerKey(agent), (limit, limit), |piece| lacks && !has(piece), &mut next);
            prop_assert!(next.len() <= limit && next.iter().all(|piece| lacks && !has(*piece)));
            let all: BTreeSet<_> = next.iter().collect();
            prop_assert_eq!(all.len(), next.len());
            recent.list.check();
        }
        let again = Recent::load(&recent.save(), capacity);
        again.list.check();
        prop_assert_eq!(again.len(), recent.len());
    }

    /// A file with arbitrary content.
    #[test]
    fn loading_any_content_is_safe(
        capacity in 1_usize..30,
        chains in prop::collection::vec(
            prop::collection::vec(
                (
                    any_piece(),
                    any::<[u16; 2]>(),
                    any::<bool>(),
                    0_u32..9,
                    prop::option::of((any_piece(), any::<u8>())),
                ),
                0..20,
            ),
            0..6,
        ),
    ) {
        let item = |(piece, [asked, passed], proven, used, claim): (_, [u16; 2], _, _, _)| {
            SavedItem { piece, asked, passed, proven, used, claim }
        };
        let chain = |items: Vec<_>| SavedChain { items: items.into_iter().map(item).collect() };
        let saved = Saved { chains: chains.into_iter().map(chain).collect() };
        let mut recent = Recent::load(&saved, capacity);
        recent.list.check();
        let boot = a_boot(50);
        Host::new(1).boot(&mut recent, &boot);
        recent.list.check();
    }
}
