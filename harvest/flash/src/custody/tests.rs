use super::*;
use crate::Time;
use crate::VssdKind;
use crate::step::Why;

const LENDER: VssdId = VssdId(1);
const BORROWER: VssdId = VssdId(2);
const GSSD: GssdId = GssdId(7);

fn geometry() -> Geometry {
    Geometry { channels: 4, dies: 1, planes: 1, blocks: 8, pages: 1, page_size: 4096 }
}

fn run(first: u32, count: u32) -> BlockRun {
    BlockRun { first: FlashBlock(first), count }
}

fn created(vssd: VssdId, channels: &[u16]) -> BrokerStep {
    let (kind, channels) = (VssdKind::Regular, channels.to_vec());
    BrokerStep::Created { vssd, kind, bandwidth: 1, capacity: 8, channels }
}

fn carved(gssd: GssdId, blocks: &[BlockRun]) -> BrokerStep {
    let capacity = blocks.iter().map(|run| run.count).sum();
    BrokerStep::Carved {
        gssd,
        lender: LENDER,
        bandwidth: 1,
        capacity,
        expire: Time(0),
        blocks: blocks.to_vec(),
    }
}

fn erased(bad: &[u32]) -> BrokerStep {
    BrokerStep::Erased { gssd: GSSD, bad: bad.iter().copied().map(FlashBlock).collect() }
}

fn leased() -> BrokerStep {
    BrokerStep::Leased { gssd: GSSD, vm: "vm".to_owned(), borrower: BORROWER, slot: 1, until: Time(0) }
}

/// Channels 0 and 1 are the lender's, 2 is the borrower's.
fn custody(steps: &[BrokerStep]) -> Custody {
    let mut all = vec![created(LENDER, &[0, 1]), created(BORROWER, &[2])];
    all.extend_from_slice(steps);
    Custody::recover(geometry(), &all).unwrap()
}

#[test]
fn blocks_change_hands_only_after_an_erasure() {
    let custody = custody(&[]);
    let holder = |block| custody.holder(FlashBlock(block));
    assert_eq!(
        [0, 15, 16, 24, 99].map(holder),
        [1, 1, 2, 0, 0].map(|id| match id {
            0 => Holder::Nobody,
            id => Holder::Vssd(VssdId(id)),
        })
    );
    let detached = BrokerStep::Detached { gssd: GSSD };
    let returned = BrokerStep::Returned { gssd: GSSD };
    let why = Why::Released;
    let life = [
        (carved(GSSD, &[run(2, 3), run(8, 2)]), Holder::Nobody),
        (erased(&[]), Holder::Nobody),
        (leased(), Holder::Vssd(BORROWER)),
        (BrokerStep::Leaving { gssds: vec![GSSD], why, lost: false }, Holder::Vssd(BORROWER)),
        (detached.clone(), Holder::Nobody),
        (erased(&[]), Holder::Nobody),
        (returned.clone(), Holder::Vssd(LENDER)),
    ];
    let moves = [erased(&[]), leased(), detached, returned];
    for (number, (step, after)) in life.iter().enumerate() {
        // Only the next step moves a block.
        for other in moves.iter().filter(|other| *other != step) {
            // Clean blocks may go either way.
            let either =
                matches!((number, other), (2 | 6, BrokerStep::Leased { .. } | BrokerStep::Returned { .. }));
            let same = number == 3 && matches!(other, BrokerStep::Detached { .. });
            if !either && !same {
                assert!(custody.apply(other).is_err(), "{other:?} before {step:?}");
            }
        }
        custody.apply(step).unwrap();
        assert_eq!([2, 4, 8, 9].map(holder), [*after; 4], "{step:?}");
        assert_eq!([0, 1, 5, 10].map(holder), [Holder::Vssd(LENDER); 4], "{step:?}");
        assert_eq!(custody.may_touch(LENDER, FlashBlock(2)), *after == Holder::Vssd(LENDER));
        assert_eq!(custody.may_touch(BORROWER, FlashBlock(2)), *after == Holder::Vssd(BORROWER));
    }
    assert_eq!(custody.take_returned(GSSD), [run(2, 3), run(8, 2)]);
    assert_eq!((custody.take_returned(GSSD), custody.lent(LENDER)), (vec![], vec![]));
}

#[test]
fn a_block_that_cannot_be_erased_is_bad_for_ever() {
    let custody = custody(&[carved(GSSD, &[run(2, 3)]), erased(&[3]), leased()]);
    assert_eq!(custody.blocks(GSSD), [run(2, 1), run(4, 1)]);
    let bad = FlashBlock(3);
    assert_eq!((custody.holder(bad), custody.bad()), (Holder::Bad, vec![run(3, 1)]));
    custody.apply(&BrokerStep::Detached { gssd: GSSD }).unwrap();
    assert!(custody.apply(&erased(&[5])).is_err(), "not its own");
    custody.apply(&erased(&[2])).unwrap();
    custody.apply(&BrokerStep::Returned { gssd: GSSD }).unwrap();
    custody.apply(&BrokerStep::Deleted { vssd: LENDER, bad: vec![FlashBlock(0)] }).unwrap();
    custody.apply(&created(VssdId(9), &[0])).unwrap();
    assert_eq!(custody.bad(), [run(0, 1), run(2, 2)]);
    for block in [0, 2, 3].map(FlashBlock) {
        for vssd in [LENDER, BORROWER, VssdId(9), VssdId(u32::MAX), VssdId(u32::MAX - 1)] {
            assert!(!custody.may_touch(vssd, block), "{vssd:?} {block:?}");
        }
    }
    assert!(custody.may_touch(VssdId(9), FlashBlock(1)));
}

#[test]
fn blocks_that_the_lender_does_not_own_are_not_lent() {
    let custody = custody(&[carved(GSSD, &[run(2, 3)])]);
    let other = GssdId(8);
    let cases: [&[BlockRun]; 7] = [
        &[run(4, 1)],
        &[run(14, 4)],
        &[run(16, 1)],
        &[run(24, 1)],
        &[run(31, 2)],
        &[run(u32::MAX, u32::MAX)],
        &[run(6, 2), run(7, 1)],
    ];
    for blocks in cases {
        let mut step = carved(other, &[]);
        if let BrokerStep::Carved { blocks: named, capacity, .. } = &mut step {
            *named = blocks.to_vec();
            *capacity = blocks.iter().fold(0, |sum: u32, run| sum.wrapping_add(run.count));
        }
        assert!(custody.apply(&step).is_err(), "{blocks:?}");
    }
    assert!(custody.apply(&carved(GSSD, &[run(6, 1)])).is_err(), "the same number");
    assert!(custody.apply(&BrokerStep::Deleted { vssd: LENDER, bad: vec![] }).is_err(), "it still lends");
    assert!(custody.apply(&created(VssdId(9), &[0])).is_err(), "a channel is owned");
    assert!(custody.apply(&created(VssdId(9), &[4])).is_err(), "no such channel");
    assert!(custody.apply(&created(VssdId(u32::MAX), &[3])).is_err());
    // No part of that was done.
    assert_eq!((custody.holder(FlashBlock(6)), custody.blocks(other)), (Holder::Vssd(LENDER), vec![]));
    assert_eq!(custody.lent(LENDER), [(GSSD, vec![run(2, 3)])]);
}

#[test]
fn channels_swap_owners_whole_and_at_home() {
    let (one, other) = ((LENDER, 1), (BORROWER, 2));
    let swapped =
        |bad: &[u32]| BrokerStep::Swapped { one, other, bad: bad.iter().copied().map(FlashBlock).collect() };
    let custody = custody(&[carved(GSSD, &[run(2, 3)])]);
    custody.apply(&swapped(&[9])).unwrap();
    let holder = |block| custody.holder(FlashBlock(block));
    let (lender, borrower) = (Holder::Vssd(LENDER), Holder::Vssd(BORROWER));
    assert_eq!(
        [0, 7, 8, 9, 15, 16, 23].map(holder),
        [lender, lender, borrower, Holder::Bad, borrower, lender, lender]
    );
    assert!(custody.apply(&swapped(&[])).is_err(), "the owners are others now");
    let back = BrokerStep::Swapped { one: (LENDER, 2), other: (BORROWER, 1), bad: vec![] };
    let wrong = BrokerStep::Swapped { one: (LENDER, 2), other: (BORROWER, 1), bad: vec![FlashBlock(0)] };
    assert!(custody.apply(&wrong).is_err(), "a block of another channel");
    let lent = BrokerStep::Swapped { one: (LENDER, 0), other: (BORROWER, 1), bad: vec![] };
    assert!(custody.apply(&lent).is_err(), "some of channel 0 is lent");
    assert_eq!([0, 8, 16].map(holder), [lender, borrower, lender], "nothing of that was done");
    custody.apply(&back).unwrap();
    assert_eq!([8, 9, 15, 16].map(holder), [lender, Holder::Bad, lender, borrower]);
    custody.apply(&BrokerStep::Deleted { vssd: BORROWER, bad: vec![] }).unwrap();
    assert_eq!([8, 16].map(holder), [lender, Holder::Nobody]);
}

#[test]
fn a_record_that_names_a_channel_twice_is_refused() {
    for channels in [&[0, 0][..], &[1, 2, 1]] {
        let error = Custody::recover(geometry(), &[created(LENDER, channels)]).err().unwrap();
        assert!(error.to_string().contains("named twice"), "{error}");
    }
}
