//! Any history of reads, writes, maintenance, crashes and failures, against the model.

use super::model::{Model, Op, arm, cases, cloning, crash, io, sealing, upkeep};
use super::sim::Fault;
use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #![proptest_config(cases(800))]

    #[test]
    fn any_history_reads_as_an_array(
        base: bool, seed: u64, ops in vec(prop_oneof![3 => io(), 1 => upkeep()], 1..40),
    ) {
        Model::new(base, seed).run(&ops);
    }
}

proptest! {
    #![proptest_config(cases(800))]

    #[test]
    fn survives_crashes_between_operations(
        base: bool, seed: u64, ops in vec(prop_oneof![9 => io(), 2 => upkeep(), 2 => crash()], 1..40),
    ) {
        Model::new(base, seed).run(&ops);
    }
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn survives_crashes_at_any_step(
        base: bool, seed: u64,
        ops in vec(
            prop_oneof![
                6 => io(), 4 => upkeep(), 2 => arm(Fault::Crash), 1 => arm(Fault::Kill), 1 => crash(),
            ],
            1..40,
        ),
    ) {
        Model::new(base, seed).run(&ops);
    }
}

proptest! {
    #![proptest_config(cases(800))]

    #[test]
    fn keeps_what_it_has_when_steps_fail(
        base: bool, seed: u64,
        ops in vec(
            prop_oneof![
                6 => io(), 4 => upkeep(), 2 => arm(Fault::Eio), 1 => arm(Fault::Full), 1 => Just(Op::Repair),
                1 => crash(),
            ],
            1..40,
        ),
    ) {
        Model::new(base, seed).run(&ops);
    }
}

proptest! {
    #![proptest_config(cases(1_500))]

    #[test]
    fn clones_and_their_source_keep_what_they_have(
        base: bool, seed: u64,
        ops in vec(
            prop_oneof![
                6 => io(), 4 => cloning(), 2 => upkeep(), 2 => arm(Fault::Crash), 1 => arm(Fault::Kill),
                1 => arm(Fault::Eio), 1 => arm(Fault::Full), 1 => Just(Op::Repair), 1 => crash(),
            ],
            1..40,
        ),
    ) {
        Model::new(base, seed).run(&ops);
    }
}

proptest! {
    #![proptest_config(cases(1_500))]

    #[test]
    fn layers_sealed_ahead_are_the_disk_at_the_commit(
        base: bool, seed: u64,
        ops in vec(
            prop_oneof![
                6 => io(), 4 => sealing(), 3 => upkeep(), 1 => cloning(), 1 => arm(Fault::Crash),
                1 => arm(Fault::Kill), 1 => arm(Fault::Eio), 1 => arm(Fault::Full), 1 => Just(Op::Repair),
                1 => crash(),
            ],
            1..50,
        ),
    ) {
        Model::new(base, seed).run(&ops);
    }
}
