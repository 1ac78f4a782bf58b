//! The knowledge does not depend on the way of learning: at once, day by day, through a file, on any number of threads.

use super::*;
use crate::statistics::Statistics;
use crate::testing::{Read, boot_reads, data_set, whole_trace, write_traces};
use crate::{BlockTable, CompactTrace};
use headstart_block::ErrorKind;
use headstart_trace::Trace;
use headstart_trace::data_set::SkipReason;
use proptest::prelude::*;
use std::fs;

fn silent() -> impl FnMut(TaskProgress) -> Result<()> {
    |_| Ok(())
}

/// Boots of two orders of an image; now and then an outlier.
fn boots(image: &str, volumes: Range<u64>) -> Vec<Trace> {
    let boot = |volume: u64| {
        let blocks: Vec<u64> = match volume % 13 {
            5 => (0..3).collect(),
            9 => (0..900).collect(),
            kind if kind % 2 == 0 => (0..60).chain([200 + volume % 7]).collect(),
            _ => (30..60).chain(0..30).chain([300 + volume % 7]).collect(),
        };
        whole_trace(image, "debian", "ann", volume, &boot_reads(blocks))
    };
    volumes.map(boot).collect()
}

fn settings(founding: usize) -> KnowledgeSettings {
    // With so few traces, a tenth at each end is trimmed.
    let model = preprocess::ModelSettings {
        kept_max: 4,
        compared_max: 16,
        trim: 0.1,
        ..KnowledgeSettings::default().model
    };
    KnowledgeSettings { model, founding, faster: 1 }
}

fn bytes(knowledge: &Knowledge) -> Vec<u8> {
    let mut bytes = Vec::new();
    knowledge.write(&mut bytes).unwrap();
    bytes
}

fn through_a_file(knowledge: &Knowledge) -> Knowledge {
    let read = Knowledge::read(&bytes(knowledge)).unwrap();
    assert!(&read == knowledge);
    read
}

#[test]
fn later_traces_cost_only_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    let days =
        [[boots("a", 0..40), boots("b", 0..10)].concat(), [boots("a", 40..70), boots("b", 10..30)].concat()];
    for (path, days) in [(&first, &days[..1]), (&second, &days[..])] {
        fs::create_dir(path).unwrap();
        write_traces(path, 0, &days.concat());
    }
    let mut at_once = Knowledge::new(settings(20));
    let learned = at_once.learn(&data_set(&second), 2, &mut silent()).unwrap();
    assert_eq!((learned.read, learned.known, learned.skipped.total()), (100, 0, 0));

    let mut daily = Knowledge::new(settings(20));
    daily.learn(&data_set(&first), 1, &mut silent()).unwrap();
    let mut daily = through_a_file(&daily);
    // The list still names the traces of the first day, but they cannot be read any more.
    let listed = data_set(&second);
    let old = listed.creations().iter().enumerate().filter(|(_, c)| {
        days[0].iter().any(|trace| trace.creation.volume == c.volume && trace.creation.image == c.image)
    });
    old.for_each(|(at, _)| fs::remove_file(listed.path(at).unwrap()).unwrap());
    let learned = daily.learn(&listed, 3, &mut silent()).unwrap();
    assert_eq!((learned.read, learned.known, learned.skipped.total()), (50, 50, 0));
    assert!(daily == at_once);
    assert!(bytes(&daily) == bytes(&at_once));
    for (_, image) in at_once.images() {
        let model = image.model();
        let dropped = image.dropped();
        assert!(dropped.few_reads > 0 && dropped.few_blocks + dropped.many_blocks > 0, "{dropped:?}");
        assert_eq!((dropped, image.traces()), (model.dropped(), model.traces()));
        assert_eq!(model.groups().len(), 2);
        assert!(model.groups().iter().all(|group| group.kept.len() <= 4 && !group.kept.is_empty()));
    }
    let again = daily.learn(&listed, 1, &mut silent()).unwrap();
    assert_eq!((again.read, again.known), (0, 100));
    assert!(daily == at_once);
}

#[test]
fn statistics_are_those_of_all_traces() {
    let dir = tempfile::tempdir().unwrap();
    let traces = boots("a", 0..80);
    write_traces(dir.path(), 0, &traces);
    let mut knowledge = Knowledge::new(settings(16));
    for day in 0..4 {
        let some = data_set(dir.path()).filter(|at, _| at / 20 == day);
        knowledge.learn(&some, 2, &mut silent()).unwrap();
    }
    let (_, image) = knowledge.images().next().unwrap();
    let mut merged = Statistics::default();
    image.model().groups().iter().for_each(|group| merged.merge(&group.statistics));
    let mut block_table = BlockTable::new(4 << 30);
    let all = traces.iter().filter(|trace| trace.records.len() > 10 && trace.records.len() < 900);
    let all: Vec<_> = all.map(|trace| CompactTrace::of(trace, &mut block_table)).collect();
    let expected = Statistics::of(&all);
    assert_eq!(u64::from(merged.traces), image.traces());
    let merged = merged.renumbered(image.block_table(), &mut block_table).blocks;
    assert!(merged == expected.blocks, "bounds of boots of one length drop none of them");
    assert!(image.block_table().len() < 900, "a scan of the disk is no reason to remember all its blocks");
}

#[test]
fn progress_is_heard_and_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    write_traces(dir.path(), 0, &[boots("a", 0..9), boots("b", 0..3), boots("c", 0..3)].concat());
    let (mut heard, data) = (Vec::new(), data_set(dir.path()));
    let mut knowledge = Knowledge::default();
    let mut hears = |progress: TaskProgress| {
        heard.push((progress.done, progress.all));
        Ok(())
    };
    knowledge.learn(&data, 2, &mut hears).unwrap();
    assert_eq!(heard, (1..=15).map(|done| (done, 15)).collect::<Vec<_>>());
    for last in [1, 4, 12] {
        let mut knowledge = Knowledge::default();
        let mut ends = |progress: TaskProgress| match progress.done {
            done if done == last => Err(Error::new(ErrorKind::Cancelled, "enough")),
            _ => Ok(()),
        };
        assert_eq!(knowledge.learn(&data, 2, &mut ends).unwrap_err().kind(), ErrorKind::Cancelled);
        assert!(knowledge == Knowledge::default(), "nothing was learned");
    }
}

#[test]
fn bad_traces_are_counted_and_empty_images_are_known_to_be_empty() {
    let dir = tempfile::tempdir().unwrap();
    let only_writes = Trace {
        records: boots("w", 0..1)[0]
            .records
            .iter()
            .map(|record| headstart_trace::Record { op: headstart_trace::Op::Write, ..*record })
            .collect(),
        ..boots("w", 0..1).remove(0)
    };
    let one = vec![whole_trace("one", "debian", "ann", 1, &boot_reads(0..50))];
    let all_outliers: Vec<_> = (0..9).map(|at| whole_trace("out", "", "", at, &boot_reads(0..at))).collect();
    write_traces(dir.path(), 0, &[vec![only_writes], one, all_outliers, boots("a", 0..8)].concat());
    fs::write(dir.path().join("99999.parquet"), "no Parquet").unwrap();
    let data = data_set(dir.path());
    fs::write(dir.path().join("00018.parquet"), "no Parquet any more").unwrap();
    assert_eq!(data.skipped().total(), 1);
    let mut knowledge = Knowledge::default();
    let learned = knowledge.learn(&data, 2, &mut silent()).unwrap();
    assert_eq!(
        (learned.skipped.count(SkipReason::Damaged), learned.skipped.count(SkipReason::Empty)),
        (1, 1)
    );
    let of = |image: &str| {
        let (_, image) = knowledge.images().find(|(key, _)| key.image == image).unwrap();
        (image.traces(), image.dropped().few_reads, image.model().groups().len())
    };
    assert_eq!((of("w"), of("one"), of("out")), ((0, 1, 0), (1, 0, 1), (0, 8, 0)));
    through_a_file(&knowledge);
}

#[test]
fn faster_guests_are_learned_as_such() {
    let dir = tempfile::tempdir().unwrap();
    write_traces(dir.path(), 0, &boots("a", 0..5));
    let mut knowledge = Knowledge::new(KnowledgeSettings { faster: 5, ..KnowledgeSettings::default() });
    knowledge.learn(&data_set(dir.path()), 1, &mut silent()).unwrap();
    let (_, image) = knowledge.images().next().unwrap();
    let latest = image.model().groups().iter().map(|group| group.statistics.max_us).max();
    assert_eq!(latest, Some(60 * 1000 / 5));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The plain model: all traces at once, on one thread.
    #[test]
    fn any_days_and_threads_are_the_same(
        kinds in prop::collection::vec((0_u64..4, any::<bool>(), 0_u64..70), 1..30),
        cuts in prop::collection::vec(0_usize..30, 0..3), founding in 1_usize..12, threads in 1_usize..4,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let trace = |(volume, (image, is_turned, len)): (u64, &(u64, bool, u64))| {
            let blocks: Vec<_> = if *is_turned { (0..*len).rev().collect() } else { (0..*len).collect() };
            whole_trace(&format!("i{image}"), "f", "u", volume, &boot_reads(blocks))
        };
        let mut traces: Vec<_> = (0..).zip(&kinds).map(trace).collect();
        // A trace without a request is none.
        traces.retain(|trace| !trace.records.is_empty());
        prop_assume!(!traces.is_empty());
        write_traces(dir.path(), 0, &traces);
        let data = data_set(dir.path());
        let mut at_once = Knowledge::new(settings(founding));
        at_once.learn(&data, 1, &mut silent()).unwrap();
        let mut daily = Knowledge::new(settings(founding));
        let day = |creation: &Creation| {
            let volume: usize = creation.volume.parse().unwrap();
            cuts.iter().filter(|cut| **cut <= volume).count()
        };
        for today in 0..=cuts.len() {
            daily.learn(&data.filter(|_, creation| day(creation) == today), threads, &mut silent()).unwrap();
            daily = through_a_file(&daily);
        }
        prop_assert!(bytes(&daily) == bytes(&at_once));
        let counted = |image: &ImageKnowledge| image.model().traces() + image.dropped().total();
        let traces = daily.images().map(|(_, image)| counted(image)).sum::<u64>();
        prop_assert_eq!(traces, data.len() as u64);
    }
}

fn known() -> Knowledge {
    let dir = tempfile::tempdir().unwrap();
    write_traces(dir.path(), 0, &[boots("a", 0..30), boots("b", 0..4)].concat());
    let mut knowledge = Knowledge::new(settings(8));
    knowledge.learn(&data_set(dir.path()), 1, &mut silent()).unwrap();
    let layers = vec![headstart_block::Digest::of(b"x")];
    let part = (headstart_block::ByteRange::between(0, 1 << 20), 0);
    let (key, layers) =
        (knowledge.images().next().unwrap().0.clone(), LayerMap::new(layers, [part]).unwrap());
    knowledge.set_layers(&key, layers).unwrap();
    assert!(knowledge.set_layers(&RecordedImage::default(), LayerMap::default()).is_err());
    knowledge
}

#[test]
fn settings_are_bounded() {
    let mut model = KnowledgeSettings::default().model;
    (model.compared_max, model.kept_max) = (usize::MAX, usize::MAX);
    let wild = KnowledgeSettings { model, founding: usize::MAX, faster: u32::MAX };
    let knowledge = through_a_file(&Knowledge::new(wild));
    assert_eq!(
        (knowledge.settings.founding, knowledge.settings.model.compared_max),
        (FOUNDING_MAX, COMPARED_MAX)
    );
    let mut writer = crate::encoding::Writer::default();
    wild.write(&mut writer);
    assert!(KnowledgeSettings::read(&mut crate::encoding::Reader::new(&writer.bytes)).is_err());
}

#[test]
fn damaged_files_are_refused() {
    let whole = bytes(&through_a_file(&known()));
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1 << (at % 8);
        let error = Knowledge::read(&changed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{at}: {error}");
    }
    for len in (0..whole.len()).step_by(7) {
        assert!(Knowledge::read(&whole[..len].to_vec()).is_err(), "{len}");
    }
}

proptest! {
    /// Forged sections, whose checksums are right and that make no sense.
    #[test]
    fn made_up_sections_are_refused_or_make_sense(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        thread_local!(static KNOWN: Knowledge = known());
        KNOWN.with(|knowledge| {
            let (key, image) = knowledge.images().next().unwrap();
            let mut section = image.section();
            for (at, byte) in changes {
                let at = at.index(section.len());
                section[at] = byte;
            }
            if let Some(cut) = cut {
                section.truncate(cut.index(section.len()));
            }
            if let Ok(image) = ImageKnowledge::of_section(&section, key, *knowledge.settings()) {
                let _ = (image.model(), image.dropped(), image.traces());
                let mut image = image;
                let more: Vec<Read> = boot_reads(0..40);
                let trace = whole_trace("a", "f", "u", 7777, &more);
                image.add(&trace.creation, &trace);
            }
        });
    }
}
