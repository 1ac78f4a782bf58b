//! Every disk that is created gets the right plans, with the reason; the same for every caller, on any number of
//! threads.

use super::*;
use crate::layers::LayerMap;
use crate::testing::{boot_reads, data_set, whole_trace, write_traces};
use crate::zero_shot::{ChoiceReason, Metadata};
use headstart_block::{ByteRange, Digest, ErrorKind};
use headstart_trace::{Creation, Trace};

const SIZE: u64 = 4 << 30;

fn boots(image: &str, family: &str, user: &str, first_block: u64, count: u64) -> Vec<Trace> {
    let boot = |volume: u64| {
        let own = first_block..first_block + 30;
        whole_trace(image, family, user, volume, &boot_reads((0..40).chain(own).chain([900 + volume])))
    };
    (0..count).map(boot).collect()
}

fn knowledge() -> Knowledge {
    let dir = tempfile::tempdir().unwrap();
    let traces = [
        boots("rich", "debian", "ann", 100, 12),
        boots("also", "debian", "ann", 110, 8),
        boots("poor", "debian", "ann", 200, 2),
        boots("bob's", "debian", "bob", 300, 6),
        boots("alone", "suse", "eve", 400, 2),
        // All of them outliers.
        vec![whole_trace("empty", "debian", "ann", 1, &boot_reads(0..3))],
    ];
    write_traces(dir.path(), 0, &traces.concat());
    let mut knowledge = Knowledge::default();
    knowledge.learn(&data_set(dir.path()), 2, &mut |_| Ok(())).unwrap();
    knowledge
}

fn config(policy: &str) -> TrainConfig {
    let rates = [30, 5, 5].map(Bandwidth::mb).to_vec();
    TrainConfig { policy: policy.to_owned(), rates, ..TrainConfig::default() }
}

fn creation(image: &str, family: &str, user: &str) -> Creation {
    Creation {
        image: image.into(),
        family: family.into(),
        user: user.into(),
        size: SIZE,
        ..Creation::default()
    }
}

fn train(knowledge: &Knowledge, config: &TrainConfig) -> Plans {
    all(knowledge, config, &mut |_| Ok(())).unwrap()
}

#[test]
fn each_disk_gets_its_plans_and_the_reason() {
    let (knowledge, config) = (knowledge(), config("search"));
    let plans = train(&knowledge, &config);
    let cases = [
        ("rich", "debian", "ann", "trained", 12),
        ("rich", "", "", "trained", 12),
        // Few of its own are better than many of others.
        ("poor", "debian", "ann", "trained", 2),
        ("alone", "suse", "eve", "trained", 2),
        ("empty", "debian", "ann", "zero-shot: family+user", 22),
        ("new", "debian", "ann", "zero-shot: family+user", 22),
        ("new", "debian", "bob", "zero-shot: family+user", 6),
        ("new", "debian", "joe", "zero-shot: family", 28),
        ("new", "suse", "joe", "zero-shot: family", 2),
        ("new", "plan9", "ann", "none", 0),
    ];
    for (image, family, user, reason, traces) in cases {
        let creation = creation(image, family, user);
        let chosen = plans.choose(&RecordedImage::of(&creation), &Metadata::of(&creation));
        let count: u64 = chosen.groups.iter().map(|group| group.traces).sum();
        assert_eq!((chosen.reason.to_string().as_str(), count), (reason, traces), "{image} of {user}");
        let rates = |group: &GroupPlans| group.plans.iter().map(|plan| plan.rate).collect::<Vec<_>>();
        assert!(chosen.groups.iter().all(|group| rates(group) == [5_000_000, 30_000_000]));
        assert!(chosen.groups.iter().flat_map(|group| &group.plans).all(|plan| !plan.items.is_empty()));
    }
    // The same image on a larger disk.
    let larger = RecordedImage { image: "rich".to_owned(), size: 2 * SIZE };
    assert_eq!(plans.choose(&larger, &Metadata::default()).reason, ChoiceReason::Image);
    assert_eq!((plans.provenance().traces, plans.provenance().dropped.few_reads), (30, 1));
}

#[test]
fn an_image_is_planned_from_what_its_boots_read() {
    let knowledge = knowledge();
    let plans = train(&knowledge, &config("vmt-min"));
    let key = RecordedImage { image: "rich".to_owned(), size: SIZE };
    let group = &plans.choose(&key, &Metadata::default()).groups[0];
    let expected: Vec<u64> = (0..40).chain(100..130).chain(900..912).collect();
    let blocks: Vec<u64> = group.plans[0].items.iter().map(|item| item.block).collect();
    assert_eq!(blocks, expected);
    let item = group.plans[0].items[4];
    assert_eq!((item.block, item.mask), (4, 0b11 << 4), "the slices that were read");
    assert_eq!(group.centroid.order[..70], expected[..70]);
    assert!(group.plans.iter().all(|plan| plan.score <= 0.0 && plan.policy == "vmt-min"));
    let merged =
        plans.choose(&RecordedImage::default(), &Metadata { family: "debian".into(), ..Metadata::default() });
    let blocks = |plan: usize| -> BTreeSet<u64> {
        merged.groups[0].plans[plan].items.iter().map(|item| item.block).collect()
    };
    assert_eq!(blocks(0), (0..40).chain(110..130).collect(), "on a slow link, what half of the family reads");
    let of_all = (0..40).chain(100..140).chain(200..230).chain(300..330).chain(900..912);
    assert_eq!(blocks(1), of_all.collect(), "on a fast one, what any of it reads");
}

#[test]
fn weights_are_found_and_reused() {
    let plans = train(&knowledge(), &config("thinkahead"));
    let weights = |image: &str, user: &str| {
        let creation = creation(image, "debian", user);
        let chosen = plans.choose(&RecordedImage::of(&creation), &Metadata::of(&creation));
        chosen.groups[0].plans.iter().map(|plan| plan.weights.unwrap()).collect::<Vec<_>>()
    };
    let known: Vec<_> = ["rich", "also", "bob's"].map(|image| weights(image, "")).into();
    assert!(known.contains(&weights("new", "joe")));
}

#[test]
fn threads_change_nothing_and_each_piece_is_counted() {
    let knowledge = knowledge();
    let mut heard = Vec::new();
    let mut hears = |progress: TaskProgress| {
        heard.push(progress);
        Ok(())
    };
    let plans = all(&knowledge, &TrainConfig { threads: 3, ..config("random") }, &mut hears).unwrap();
    assert_eq!(plans, train(&knowledge, &TrainConfig { threads: 1, ..config("random") }));
    let last = heard.last().unwrap();
    assert_eq!((last.done, heard.len() as u64), (last.all, last.all));
    let mut ends = |_: TaskProgress| Err(Error::new(ErrorKind::Cancelled, "enough"));
    assert_eq!(all(&knowledge, &config("random"), &mut ends).unwrap_err().kind(), ErrorKind::Cancelled);
}

#[test]
fn configurations_that_make_no_plans_are_refused() {
    let knowledge = knowledge();
    for bad in [config("leap"), config("nonsense"), TrainConfig { rates: Vec::new(), ..config("dadi") }] {
        let error = all(&knowledge, &bad, &mut |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    let nothing = train(&Knowledge::default(), &config("dadi"));
    assert_eq!(nothing.choose(&RecordedImage::default(), &Metadata::default()).reason, ChoiceReason::None);
    // Nothing to preload is a plan, too.
    let lazy = train(&knowledge, &config("lazy"));
    assert!(lazy.images().flat_map(|(_, image)| &image.groups).all(|group| group.plans[0].items.is_empty()));
}

#[test]
fn an_image_on_known_layers_starts_with_what_is_known_of_them() {
    let mut knowledge = knowledge();
    let key = |image: &str| RecordedImage { image: image.to_owned(), size: SIZE };
    let blocks = |start: u64, end: u64| ByteRange::between(start << 21, end << 21);
    let (base, top, new) = (Digest::of(b"base"), Digest::of(b"top"), Digest::of(b"new"));
    let map = |top: Digest, from: u64| {
        LayerMap::new(vec![base, top], [(blocks(0, from), 0), (blocks(from, 2048), 1)])
    };
    knowledge.set_layers(&key("rich"), map(top, 110).unwrap()).unwrap();
    let plans = train(&knowledge, &config("vmt-min"));
    let debian = Metadata { family: "debian".to_owned(), ..Metadata::default() };
    let choose = |image: &str, map: &LayerMap| {
        let chosen = plans.choose_layered(&key(image), &debian, Some(map));
        let items = chosen.groups.iter().flat_map(|group| group.plans[0].items.iter());
        (chosen.reason.to_string(), items.map(|item| item.block).collect::<Vec<_>>())
    };
    // Parts of the base that the new image's own layer hides are not preloaded; nor is the content of another's top
    // layer.
    let (reason, order) = choose("new", &map(new, 20).unwrap());
    assert_eq!(reason, "zero-shot: family", "too little of the disk is of the layer that is known");
    assert_eq!(order.len(), 60);
    let most =
        LayerMap::new(vec![base, new], [(blocks(0, 20), 0), (blocks(20, 30), 1), (blocks(30, 2048), 0)]);
    let (reason, order) = choose("new", &most.unwrap());
    assert_eq!((reason.as_str(), order), ("layers: 1 of 2", (0..20).chain(30..40).chain(100..110).collect()));
    assert_eq!(choose("also", &map(new, 2000).unwrap()).0, "trained");
    let unknown = plans.choose_layered(&key("new"), &Metadata::default(), Some(&map(new, 20).unwrap()));
    assert_eq!(unknown.reason.to_string(), "layers: 1 of 2", "a little is better than nothing");
}

/// Starts of two programs of an image, on which plans are trained.
fn starts() -> (Knowledge, Plans) {
    let boot = |volume: u64, entrypoint: &str, first: u64| {
        let mut boot = whole_trace("app", "", "", volume, &boot_reads((0..40).chain(first..first + 20)));
        if !entrypoint.is_empty() {
            boot.creation.labels.insert(headstart_trace::ENTRYPOINT.to_owned(), entrypoint.to_owned());
        }
        boot
    };
    let (mut traces, dir) = (Vec::new(), tempfile::tempdir().unwrap());
    traces.extend((0..4).map(|volume| boot(volume, "nginx", 100)));
    traces.extend((10..12).map(|volume| boot(volume, "sh", 200)));
    traces.extend((20..21).map(|volume| boot(volume, "", 300)));
    write_traces(dir.path(), 0, &traces);
    let mut knowledge = Knowledge::default();
    knowledge.learn(&data_set(dir.path()), 2, &mut |_| Ok(())).unwrap();
    let plans = train(&knowledge, &config("vmt-min"));
    (knowledge, plans)
}

#[test]
fn starts_of_each_program_have_groups_of_their_own() {
    let (knowledge, plans) = starts();
    let key = RecordedImage { image: "app".to_owned(), size: SIZE };
    let mut bytes = Vec::new();
    plans.write(&mut bytes).unwrap();
    let file = crate::PlanFile::open(&bytes[..]).unwrap();
    let of_file = file.choose(&key, &Metadata::default()).unwrap();
    let chosen = plans.choose(&key, &Metadata::default());
    assert_eq!(*chosen, of_file);
    let shape = |plans: &ImagePlans| -> Vec<(String, u64, bool)> {
        let has = |group: &GroupPlans, block| group.plans[0].items.iter().any(|item| item.block == block);
        let of = |group: &GroupPlans| (group.entrypoint.clone(), group.traces, has(group, 100));
        plans.groups.iter().map(of).collect()
    };
    let [nginx, sh, none] = [("nginx", 4, true), ("sh", 2, false), ("", 1, false)]
        .map(|(name, n, has)| (name.to_owned(), n, has));
    assert_eq!(shape(&chosen), [nginx.clone(), sh.clone(), none.clone()]);
    // The expected program comes first; one that is not known changes nothing.
    assert_eq!(shape(&of_file.clone().beginning_with("sh")), [sh.clone(), nginx.clone(), none.clone()]);
    assert_eq!(shape(&of_file.beginning_with("ls")), [nginx.clone(), sh.clone(), none.clone()]);
    // The recorded start of a program gets the plans of that program alone.
    let of_sh = RecordedImage::of_start("app", "sh", SIZE);
    assert_eq!(plans.choose(&of_sh, &Metadata::default()).groups.len(), 1);
    assert_eq!(plans.named("app", None).unwrap(), chosen);

    let name = RecordedImage { image: "sha256:1".to_owned(), size: SIZE };
    let only = plans.only(&key, &knowledge, &name).unwrap();
    assert_eq!((only.images().len(), only.provenance().traces), (3, 7));
    let (sole, whole) = only.sole().unwrap();
    assert_eq!((&sole, shape(&whole)), (&name, vec![nginx, sh, none]));
    // The same set is made from the plans that were chosen.
    let again = Plans::of_chosen(ImagePlans::clone(&whole), only.provenance(), &name);
    assert_eq!(again.sole(), only.sole());
    let other = RecordedImage { image: "rich".to_owned(), size: SIZE };
    assert!(plans.only(&other, &knowledge, &name).is_none());
}
