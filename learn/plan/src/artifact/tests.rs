//! A file has the content of the plans in memory, and a damaged one is refused as damaged.

use super::*;
use crate::bandwidth::Bandwidth;
use crate::knowledge::Knowledge;
use crate::testing::{boot_reads, data_set, whole_trace, write_traces};
use crate::train::{self, TrainConfig};
use crate::zero_shot::ChoiceReason;
use headstart_block::{ByteRange, ErrorKind};
use proptest::prelude::*;

fn trained(policy: &str) -> Plans {
    let dir = tempfile::tempdir().unwrap();
    let boots = |image: &str, user: &str, count: u64| {
        let boot = |volume| {
            let blocks = (0..20).chain([30 + volume]);
            let order: Vec<u64> = if volume % 3 == 0 { blocks.rev().collect() } else { blocks.collect() };
            whole_trace(image, "debian", user, volume, &boot_reads(order))
        };
        (0..count).map(boot).collect::<Vec<_>>()
    };
    let traces =
        [boots("a", "ann", 9), boots("b", "ann", 3), boots("c", "bob", 6), boots("d\u{e9}", "eve", 1)];
    write_traces(dir.path(), 0, &traces.concat());
    let mut knowledge = Knowledge::default();
    knowledge.learn(&data_set(dir.path()), 2, &mut |_| Ok(())).unwrap();
    let key = knowledge.images().next().unwrap().0.clone();
    let part = (ByteRange::between(0, 4 << 30), 0);
    knowledge.set_layers(&key, LayerMap::new(vec![Digest::of(b"base")], [part]).unwrap()).unwrap();
    let rates = [2, 30, 90].map(Bandwidth::mb).to_vec();
    let config = TrainConfig { policy: policy.to_owned(), rates, ..TrainConfig::default() };
    train::all(&knowledge, &config, &mut |_| Ok(())).unwrap()
}

fn bytes(plans: &Plans) -> Vec<u8> {
    let mut bytes = Vec::new();
    plans.write(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_file_says_what_memory_says() {
    for policy in ["thinkahead", "search", "lazy"] {
        let plans = trained(policy);
        let file = PlanFile::open(bytes(&plans)).unwrap();
        assert_eq!(file.provenance(), plans.provenance());
        assert!(file.read_all().unwrap() == plans);
        assert!(bytes(&file.read_all().unwrap()) == bytes(&plans));
        let mut reasons = std::collections::BTreeSet::new();
        let base = LayerMap::new(vec![Digest::of(b"base")], [(ByteRange::between(0, 1 << 25), 0)]).unwrap();
        for (image, size) in
            [("a", 4 << 30), ("a", 8 << 30), ("d\u{e9}", 4 << 30), ("b", 4 << 30), ("new", 4 << 30), ("", 0)]
        {
            for user in ["ann", "bob", "joe", ""] {
                for family in ["debian", "suse"] {
                    for map in [None, Some(&base)] {
                        let key = RecordedImage { image: image.to_owned(), size };
                        let meta = String::new();
                        let metadata = Metadata { family: family.to_owned(), user: user.to_owned(), meta };
                        let chosen = plans.choose_layered(&key, &metadata, map);
                        assert!(file.choose_layered(&key, &metadata, map).unwrap() == *chosen);
                        reasons.insert(chosen.reason.to_string());
                    }
                }
            }
        }
        let layers = ChoiceReason::Layers { known: 1, all: 1 };
        let expected = [
            ChoiceReason::Trained,
            ChoiceReason::Image,
            ChoiceReason::FamilyUser,
            ChoiceReason::Family,
            ChoiceReason::None,
            layers,
        ];
        let expected: std::collections::BTreeSet<_> = expected.map(|reason| reason.to_string()).into();
        // A plan of nothing says nothing of layers.
        assert!(reasons.is_superset(&expected) || policy == "lazy", "{reasons:?}");
    }
}

/// A file of the same traces as [`trained`], by the program that wrote version 1.
#[test]
fn a_file_of_version_1_still_opens() {
    let old = PlanFile::open(include_bytes!("version-1.plans").as_slice()).unwrap().read_all().unwrap();
    assert_eq!(old.provenance().policy, "search");
    let images = ["a", "b", "c", "d\u{e9}"];
    assert!(old.images().map(|(key, _)| key.image.as_str()).eq(images));
    let groups = |plans: &Plans| -> Vec<_> {
        let groups = plans.images().flat_map(|(_, plans)| plans.groups.iter());
        groups.map(|group| (group.traces, group.plans.len(), group.plans[0].items.len())).collect()
    };
    assert_eq!(groups(&old)[..2], [(6, 3, 20), (1, 3, 21)]);
    let (mut new, know_times) = (trained("search"), |plans: &Plans| {
        let mut groups = plans.images().flat_map(|(_, plans)| plans.groups.iter());
        groups.any(|group| !group.first_reads.is_empty())
            || plans.layers.values().any(|layer| !layer.first_reads.is_empty())
    });
    assert!(know_times(&new) && !know_times(&old));
    // Except for the times it equals the present result.
    let forget = |group: &mut GroupPlans| group.first_reads = Arc::default();
    for plans in new.images.values_mut() {
        Arc::make_mut(plans).groups.iter_mut().for_each(forget);
    }
    for groups in &mut new.merged {
        *groups =
            groups.iter().cloned().map(|group| GroupPlans { first_reads: Arc::default(), ..group }).collect();
    }
    new.layers.values_mut().for_each(|layer| layer.first_reads.clear());
    assert!(new == old);
    // Written again, it has the present version.
    assert!(PlanFile::open(bytes(&old)).unwrap().read_all().unwrap() == old);
}

#[test]
fn damage_is_found_by_who_reads_it() {
    let whole = bytes(&trained("search"));
    let read = |bytes: Vec<u8>| PlanFile::open(bytes).and_then(|file| file.read_all());
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1 << (at % 8);
        let error = read(changed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{at}: {error}");
    }
    for len in 0..whole.len() {
        assert!(PlanFile::open(whole[..len].to_vec()).is_err(), "{len}");
    }
    let empty = Knowledge::default();
    let nothing = train::all(&empty, &TrainConfig::default(), &mut |_| Ok(())).unwrap();
    assert!(read(bytes(&nothing)).unwrap() == nothing);
}

proptest! {
    /// Forged sections and heads, whose checksums are right and that make no sense.
    #[test]
    fn made_up_sections_are_refused_or_make_sense(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        thread_local!(static PLANS: (Plans, Vec<u8>) = {
            let plans = trained("thinkahead");
            let (_, head) = Container::open(bytes(&plans), KIND).unwrap();
            (plans, head)
        });
        let spoil = |bytes: &mut Vec<u8>| {
            for (at, byte) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
        };
        PLANS.with(|(plans, head)| {
            let mut writer = Writer::default();
            plans.images().next().unwrap().1.write(&mut writer);
            spoil(&mut writer.bytes);
            let _ = ImagePlans::read(&mut Reader::new(&writer.bytes), KIND.version);
            let mut writer = Writer::default();
            plans.layers.values().next().unwrap().write(&mut writer);
            spoil(&mut writer.bytes);
            let _ = LayerPlans::read(&mut Reader::new(&writer.bytes), KIND.version);
            // A whole file with another head.
            let mut out = Vec::new();
            let mut sections = Sections::new(&mut out, KIND).unwrap();
            let whole = Container::open(bytes(plans), KIND).unwrap().0;
            (0..whole.len()).for_each(|at| sections.write(&whole.section(at).unwrap()).unwrap());
            let mut head = head.clone();
            spoil(&mut head);
            sections.finish(&Writer { bytes: head }).unwrap();
            if let Ok(file) = PlanFile::open(out) {
                let _ = file.read_all();
                let key = RecordedImage { image: "new".to_owned(), size: 4 << 30 };
                let metadata = Metadata { family: "debian".to_owned(), ..Metadata::default() };
                let _ = file.choose(&key, &metadata);
            }
        });
    }
}
