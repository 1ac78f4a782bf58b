//! From files of real boots to a file of plans and to the plan of a disk, as training and attaching do it.
//!
//! Goal: knowledge that was learned day by day and went through files plans boots that it has not seen; images that
//! were left out get the plans of their like, with the reason, and these are nearly as good. Method: the small data
//! set of the repository, and the shared one if it is stored beside the repository; open-loop hit rates of the
//! paper's model.

#![allow(clippy::unwrap_used, clippy::cast_precision_loss, reason = "tests")]

use headstart_block::FileSource;
use headstart_plan::evaluate::Evaluator;
use headstart_plan::knowledge::KnowledgeSettings;
use headstart_plan::policy::Objective;
use headstart_plan::zero_shot::{ChoiceReason, Metadata};
use headstart_plan::{
    Bandwidth, BlockTable, CompactTrace, ImagePlans, Knowledge, PlanFile, RecordedImage, TrainConfig, train,
};
use headstart_trace::DataSet;
use headstart_trace::data_set::DataSetLimits;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

fn open(path: &str) -> Option<DataSet> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if !path.exists() {
        let _ = writeln!(std::io::stderr(), "SKIPPED: there is no data set at {}", path.display());
        return None;
    }
    Some(DataSet::open(&path, &DataSetLimits::default()).unwrap())
}

fn small() -> DataSet {
    open("../../tests/data/traces").unwrap()
}

fn shared() -> Option<DataSet> {
    open("../../../shared/data/traces")
}

fn learn(data: &DataSet) -> Knowledge {
    let mut knowledge = Knowledge::new(KnowledgeSettings::default());
    let learned = knowledge.learn(data, 2, &mut |_| Ok(())).unwrap();
    assert_eq!((learned.read, learned.skipped.total()), (data.len() as u64, 0));
    knowledge
}

fn config(policy: &str) -> TrainConfig {
    let rates = vec![Bandwidth::mib(8)];
    TrainConfig { policy: policy.to_owned(), objective: Objective::Hits, rates, ..TrainConfig::default() }
}

/// The hit rate at 8 MiB/s of the plans on a boot.
fn hit_rate(plans: &ImagePlans, data: &DataSet, boot: usize) -> f64 {
    let rate = Bandwidth::mib(8);
    let trace = data.read(boot).unwrap().0;
    let mut block_table = BlockTable::new(trace.creation.size);
    let boot = CompactTrace::of(&trace, &mut block_table);
    let items = plans.groups.first().and_then(|group| group.at(rate.bytes())).map(|plan| plan.items.to_vec());
    let items = items.unwrap_or_default();
    let mut blocks: Vec<_> = items.iter().map(|item| item.block).collect();
    blocks.sort_unstable();
    block_table.add(&blocks);
    let order: Vec<_> = items.iter().filter_map(|item| block_table.id(item.block)).collect();
    Evaluator::new(&block_table, rate).evaluate(&order, &boot).hit_rate()
}

#[test]
fn traces_become_the_plan_of_a_disk() {
    let data = small();
    let dir = tempfile::tempdir().unwrap();
    let (known, planned) = (dir.path().join("knowledge"), dir.path().join("plans"));
    let write = |path: &Path, content: &dyn Fn(&mut dyn Write)| {
        content(&mut BufWriter::new(File::create(path).unwrap()));
    };
    // The last boot of each image and size is the test; the others come in two days.
    let tests: Vec<usize> = data.groups().map(|group| group.end - 1).collect();
    let training = data.filter(|at, _| !tests.contains(&at));
    let mut times: Vec<u64> = training.creations().iter().map(|creation| creation.created_us).collect();
    times.sort_unstable();
    let noon = times[times.len() / 2];
    let mut knowledge = learn(&training.filter(|_, creation| creation.created_us < noon));
    write(&known, &|out| knowledge.write(out).unwrap());
    knowledge = Knowledge::read(&FileSource::open(&known).unwrap()).unwrap();
    let learned = knowledge.learn(&training, 1, &mut |_| Ok(())).unwrap();
    assert_eq!(learned.read + learned.known, training.len() as u64);
    assert!(knowledge == learn(&training), "in two days or at once");

    let plans = train::all(&knowledge, &config("iocnt-2t"), &mut |_| Ok(())).unwrap();
    write(&planned, &|out| plans.write(out).unwrap());
    let file = PlanFile::open(FileSource::open(&planned).unwrap()).unwrap();
    assert!(file.read_all().unwrap() == plans);
    let lazy = ImagePlans { reason: ChoiceReason::None, groups: Vec::new() };
    for test in tests {
        let creation = &data.creations()[test];
        let chosen = file.choose(&RecordedImage::of(creation), &Metadata::of(creation)).unwrap();
        // One image has two sizes, with few boots of either.
        assert_eq!(chosen.reason, ChoiceReason::Trained, "{}", creation.image);
        let items = chosen.groups.iter().flat_map(|group| &group.plans).flat_map(|plan| plan.items.iter());
        assert!(items.into_iter().all(|item| item.mask != 0 && item.block < creation.size >> 21));
        let (with, without) = (hit_rate(&chosen, &data, test), hit_rate(&lazy, &data, test));
        assert!(
            with > 0.8 && with > without + 0.2,
            "{} {}: {with:.3} {without:.3}",
            creation.image,
            creation.volume
        );
    }
}

#[test]
fn an_image_that_was_left_out_is_planned_from_its_like() {
    let data = small();
    let others = learn(&data.filter(|_, creation| creation.image != "m-nginx"));
    let plans = train::all(&others, &config("iocnt-2t"), &mut |_| Ok(())).unwrap();
    let creation = data.creations().iter().find(|creation| creation.image == "m-nginx").unwrap();
    let reason =
        |metadata: &Metadata| plans.choose(&RecordedImage::of(creation), metadata).reason.to_string();
    let known = Metadata::of(creation);
    assert_eq!(reason(&known), "zero-shot: family+user+meta");
    assert_eq!(reason(&Metadata { meta: String::new(), ..known.clone() }), "zero-shot: family+user");
    assert_eq!(reason(&Metadata { user: "9".to_owned(), meta: String::new(), ..known }), "zero-shot: family");
    assert_eq!(reason(&Metadata::default()), "none");
}

#[test]
fn plans_of_like_images_are_nearly_as_good_as_own() {
    let Some(data) = shared() else { return };
    let labels = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/traces/labels.csv"),
    );
    let labels = labels.unwrap();
    let is_normal = |volume: &str| labels.lines().any(|line| line.starts_with(&format!("{volume},normal")));
    let (mut own, mut like, mut boots) = (0.0, 0.0, 0);
    // Images whose base is among the others.
    for image in ["m-java", "m-mariadb", "m-nginx", "m-node", "m-postgres", "p-deb11srv"] {
        let plans = |data: DataSet| train::all(&learn(&data), &config("iocnt-2t"), &mut |_| Ok(())).unwrap();
        let others = plans(data.filter(|_, creation| creation.image != image));
        let trained = plans(data.filter(|at, creation| creation.image == image && at % 3 != 0));
        for (at, creation) in data.creations().iter().enumerate() {
            if creation.image != image || at % 3 != 0 || !is_normal(&creation.volume) {
                continue;
            }
            let (key, metadata) = (RecordedImage::of(creation), Metadata::of(creation));
            let others = others.choose(&key, &metadata);
            assert!(others.reason.to_string().starts_with("zero-shot: family"));
            own += hit_rate(&trained.choose(&key, &metadata), &data, at);
            like += hit_rate(&others, &data, at);
            boots += 1;
        }
    }
    let (own, like) = (own / f64::from(boots), like / f64::from(boots));
    assert!(boots > 9 && own > 0.9, "{boots} {own}");
    assert!(like > own - 0.05, "from its own traces {own:.3}, from others' {like:.3}");
}
