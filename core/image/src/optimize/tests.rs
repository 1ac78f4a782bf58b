use super::*;
use crate::diff::diff;
use crate::manifest::Config;
use crate::open_image::OpenImage;
use crate::progress::Silent;
use crate::store::ImageStore;
use crate::verify::{Depth, verify};
use headstart_block::{BLOCK_SIZE, ByteRange, ErrorKind, SLICE_SIZE};
use headstart_lsmt::LayerWriter;
use headstart_store::StoreSettings;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

/// Three blocks and a part of a fourth that ends in the middle of a sector.
const SIZE: u64 = 3 * BLOCK_SIZE + 5 * SLICE_SIZE + 700;
const SECTORS: u64 = SIZE.div_ceil(SECTOR_SIZE);

/// A run of a layer: sectors to leave out before it, its length, and `true` if it is zeroed.
type Run = (u64, u64, bool);

/// A place with a store, and the means of reaching it.
struct Place {
    dir: TempDir,
    settings: StoreSettings,
    runtime: tokio::runtime::Runtime,
}

impl Place {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Self { dir: tempfile::tempdir().unwrap(), settings: StoreSettings::default(), runtime }
    }

    fn stores(&self) -> StoreAccess<'_> {
        StoreAccess { settings: &self.settings, runtime: self.runtime.handle() }
    }

    fn image(&self, name: &str) -> Reference {
        format!("file://{}/{name}", self.dir.path().display()).parse().unwrap()
    }

    /// Makes an image of layers, lowest first.
    fn make(&self, name: &str, layers: &[Vec<Run>]) -> Reference {
        let reference = self.image(name);
        let staging = ImageStore::create_or_open(reference.directory().unwrap()).unwrap().stage().unwrap();
        let packing = Packing::default();
        let staged = layers.iter().enumerate().map(|(n, runs)| {
            stage_layer(&staging, &packing, |output| write_runs(output, runs, n as u64)).unwrap().0
        });
        let image = NewImage {
            layers: staged.collect(),
            virtual_size: SIZE,
            options: describe(&packing),
            config: Config::default(),
            optimized_from: None,
            converted_from: None,
            belongs_to: None,
        };
        staging.publish(&image, reference.tag().unwrap()).unwrap();
        reference
    }

    fn optimize(
        &self,
        from: &Reference,
        to: &str,
        plans: &[Vec<PlanItem>],
        form: Form,
    ) -> Result<OptimizeReport> {
        let plans: Vec<&[PlanItem]> = plans.iter().map(Vec::as_slice).collect();
        let (target, packing) = (self.image(to), Packing::default());
        let request = OptimizeRequest { target: &target, plans: &plans, packing: &packing, form };
        optimize(&Source::open(from, self.stores())?, &request, self.stores(), &Silent)
    }
}

fn write_runs(
    output: crate::new_layer::LayerOutput,
    runs: &[Run],
    seed: u64,
) -> Result<(crate::new_layer::LayerOutput, headstart_lsmt::LayerSummary)> {
    let meta = LayerMeta { virtual_size: SECTORS * SECTOR_SIZE, ..LayerMeta::default() };
    let (mut layer, mut at) = (LayerWriter::new(output, meta)?, 0);
    for &(gap, len, zeroed) in runs {
        let (start, end) = ((at + gap).min(SECTORS), (at + gap + len).min(SECTORS));
        at = end;
        let range = ByteRange::between(start * SECTOR_SIZE, end * SECTOR_SIZE);
        if zeroed {
            layer.zeroes(range)?;
        } else {
            let byte = |at: u64| (at.wrapping_add(seed * 77).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57) as u8;
            let bytes: Vec<u8> = (range.offset()..range.end()).map(|at| byte(at / 3)).collect();
            layer.data(range.offset(), &bytes)?;
        }
    }
    layer.finish()
}

fn contents(reference: &Reference) -> Vec<u8> {
    let disk = OpenImage::open(reference).unwrap().into_disk();
    let mut bytes = vec![0; usize::try_from(disk.size()).unwrap()];
    disk.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// The slices that a plan names, each once, as far as the disk has data there.
fn slices(plan: &[PlanItem], disk: &Stack) -> Vec<u64> {
    let mut seen = BTreeSet::new();
    let of_item = |item: &PlanItem| {
        let item = *item;
        (0..32u64).filter(move |n| item.mask & 1 << n != 0).map(move |n| item.block * 32 + n)
    };
    let named =
        plan.iter().filter(|item| item.block < 100).flat_map(of_item).filter(|slice| seen.insert(*slice));
    let has_data = |slice: &u64| {
        let part = ByteRange::between(slice * SLICE_SIZE, (slice + 1) * SLICE_SIZE);
        layout::data_of(disk, part.intersect(ByteRange::between(0, SIZE))).next().is_some()
    };
    named.filter(has_data).collect()
}

fn runs() -> impl Strategy<Value = Vec<Run>> {
    prop::collection::vec((0u64..300, 1u64..700, prop::bool::weighted(0.25)), 1..40)
}

fn plan() -> impl Strategy<Value = Vec<PlanItem>> {
    let item = (prop_oneof![9 => 0u64..4, 1 => any::<u64>()], any::<u32>(), any::<u32>())
        .prop_map(|(block, mask, also)| PlanItem { block, mask: mask & also });
    prop::collection::vec(item, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn the_disk_stays_the_same_and_is_read_in_order(
        layers in prop::collection::vec(runs(), 1..4), plans in prop::collection::vec(plan(), 1..4),
    ) {
        let place = Place::new();
        let source = place.make("store:a", &layers);
        let disk = OpenImage::open(&source).unwrap();
        let expected = slices(&plans[0], disk.disk());
        let made = place.optimize(&source, "store:b", &plans, Form::BootLayer);
        if expected.is_empty() {
            prop_assert_eq!(made.unwrap_err().kind(), ErrorKind::Invalid);
            return Ok(());
        }
        let made = made.unwrap();
        prop_assert_eq!((made.optimized_from, made.layers), (disk.digest, layers.len() + 1));
        prop_assert!(made.stored[1] - made.stored[0] >= made.layer_size && made.boot_bytes <= made.layer_size);
        prop_assert!(contents(&source) == contents(&made.reference));
        prop_assert!(verify(&made.reference, Depth::Deep, &Silent).unwrap().problems().next().is_none());

        // The order of the data is the plan's: other data may be in the last frame of the first plan's data.
        let open = OpenImage::open(&made.reference).unwrap();
        let order = boot_order(open.disk(), &open.manifest);
        let found = slices(&order, disk.disk());
        prop_assert_eq!(&found[..expected.len().min(found.len())], &expected[..]);
        prop_assert!(plans.len() > 1 || found.len() == expected.len());
        prop_assert_eq!(made.cost[1].requests, 1);
        prop_assert_eq!(made.hot_data, open.layers.last().unwrap().data_bytes - made.beyond_data);

        // Again, from the new image: the same image.
        let again = place.optimize(&made.reference, "store:c", &plans, Form::BootLayer).unwrap();
        prop_assert_eq!((again.digest, again.layer), (made.digest, made.layer));
        let other = Place::new();
        let elsewhere = other.optimize(&source, "other:b", &plans, Form::BootLayer).unwrap();
        prop_assert_eq!(elsewhere.digest, made.digest);

        let whole = place.optimize(&made.reference, "store:d", &plans, Form::OneLayer).unwrap();
        prop_assert!(contents(&source) == contents(&whole.reference));
        prop_assert_eq!((whole.layers, whole.optimized_from), (1, disk.digest));
        // An image of one layer can be laid out again as well.
        let last = place.optimize(&whole.reference, "store:e", &plans[..1], Form::BootLayer).unwrap();
        prop_assert!(diff(&source, &last.reference, &Silent).unwrap().is_empty());
    }
}

const LAYERS: [&[Run]; 2] =
    [&[(0, 3000, false), (500, 4000, false), (100, 4000, false)], &[(900, 200, true), (50, 900, false)]];

fn layers() -> Vec<Vec<Run>> {
    LAYERS.iter().map(|runs| runs.to_vec()).collect()
}

fn hot() -> Vec<Vec<PlanItem>> {
    vec![vec![PlanItem { block: 2, mask: 0xf0f0 }, PlanItem { block: 0, mask: 0x0ff0 }, PlanItem::whole(1)]]
}

fn names(dir: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            names.insert(entry.display().to_string());
            dirs.extend(entry.is_dir().then_some(entry));
        }
    }
    names
}

/// Stops the work after some steps.
struct StopsAfter(AtomicU64);

impl Progress for StopsAfter {
    fn begin(&self, _: &'static str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn is_cancelled(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err()
    }
}

#[test]
fn stopped_anywhere_it_leaves_the_stores_as_they_were() {
    let place = Place::new();
    let source = place.make("store:a", &layers());
    // Both stores are there before: one with the layers, one without.
    place.make("other:x", &[vec![(7, 7, false)]]);
    let (plans, packing) = (hot(), Packing::default());
    let plans: Vec<&[PlanItem]> = plans.iter().map(Vec::as_slice).collect();
    for (target, form) in
        ["store:b", "other:b"].into_iter().flat_map(|to| [(to, Form::BootLayer), (to, Form::OneLayer)])
    {
        let target = place.image(target);
        let request = OptimizeRequest { target: &target, plans: &plans, packing: &packing, form };
        let before = names(place.dir.path());
        let mut stopped = 0;
        for steps in 0.. {
            let source = Source::open(&source, place.stores()).unwrap();
            match optimize(&source, &request, place.stores(), &StopsAfter(AtomicU64::new(steps))) {
                Ok(_) => break,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}"),
            }
            stopped += 1;
            assert_eq!(names(place.dir.path()), before, "after {steps} steps");
        }
        assert!(stopped > 5, "{stopped}");
        assert!(contents(&source) == contents(&target));
    }
}

#[test]
fn a_difference_between_source_and_result_is_found() {
    let place = Place::new();
    let source = OpenImage::open(&place.make("store:a", &layers())).unwrap();
    let other =
        OpenImage::open(&place.make("store:b", &[layers()[0].clone(), vec![(900, 200, true)]])).unwrap();
    let own = |image: &OpenImage| image.manifest.layers.clone();
    let (a, b) = (own(&source), own(&other));
    let views = [View { disk: source.disk(), layers: &a }, View { disk: other.disk(), layers: &b }];
    let error = check_same(&views[0], &views[1], &Silent).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    // Data from the same place is not read.
    assert_eq!(check_same(&views[0], &views[0], &Silent).unwrap(), 0);
    let smaller = OpenImage::open(&place.make("store:c", &layers())).unwrap().into_disk().with_size(SIZE - 1);
    assert!(check_same(&views[0], &View { disk: &smaller, layers: &a }, &Silent).is_err());
}

#[test]
fn a_layer_on_top_of_a_boot_layer_shadows_it() {
    let place = Place::new();
    let source = place.make("store:a", &layers());
    let made = place.optimize(&source, "store:b", &hot(), Form::BootLayer).unwrap();
    // The next layer of the image changes a part of the data that boots read.
    let open = OpenImage::open(&made.reference).unwrap();
    let staging = ImageStore::open(place.dir.path().join("store")).unwrap().stage().unwrap();
    let change = [(BLOCK_SIZE / SECTOR_SIZE, 300, false)];
    let top = stage_layer(&staging, &Packing::default(), |output| write_runs(output, &change, 99)).unwrap().0;
    let mut stacked = open.manifest.layers.clone();
    stacked.push(top);
    let image = NewImage {
        layers: stacked,
        virtual_size: SIZE,
        options: String::new(),
        config: Config::default(),
        optimized_from: None,
        converted_from: None,
        belongs_to: None,
    };
    let next = place.image("store:next");
    staging.publish(&image, next.tag().unwrap()).unwrap();
    let changed = OpenImage::open(&next).unwrap();
    let order = boot_order(changed.disk(), &changed.manifest);
    assert!(!order.is_empty() && order.len() <= boot_order(open.disk(), &open.manifest).len());
    // The old boot layer is removed; the layer on top of it stays.
    let again = place.optimize(&next, "store:again", &hot(), Form::BootLayer).unwrap();
    assert_eq!((again.layers, again.optimized_from), (4, changed.digest));
    assert!(contents(&next) == contents(&again.reference));
    let manifest = OpenImage::open(&again.reference).unwrap().manifest;
    assert!(manifest.layers.iter().rev().skip(1).all(|layer| layer.boot_bytes().is_none()));
}

#[test]
fn a_plan_of_another_image_is_refused() {
    let place = Place::new();
    let source = place.make("store:a", &[vec![(0, 100, false), (2000, 300, true)]]);
    for plan in [
        vec![],
        vec![PlanItem::whole(3)],
        vec![PlanItem { block: 0, mask: 1 << 17 }],
        vec![PlanItem::whole(u64::MAX)],
    ] {
        let error = place.optimize(&source, "store:b", &[plan], Form::BootLayer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    let none = OpenImage::open(&source).unwrap();
    assert!(boot_order(none.disk(), &none.manifest).is_empty());
}
