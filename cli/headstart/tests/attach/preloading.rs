//! Preloading as learned: plans that are found, not found, or wrong, over links and stores that change.

use crate::attached::{Attached, Metrics};
use crate::disk::noise;
use crate::images::{Web, noisy, tool};
use crate::scene::Scene;
use crate::tools::installed;
use headstart_testkit::faults::Outage;
use headstart_testkit::shaper::{ShapedLink, Shaper};
use serde_json::Value;
use std::fs;
use std::time::Duration;

const METRICS: &str = "--metrics 127.0.0.1:0 --no-record";
const BLOCK: u64 = 2 << 20;
const ROUND_TRIP: Duration = Duration::from_millis(20);

/// The reads of each boot: half of each of these blocks, in this order.
const BOOT: [u64; 6] = [6, 1, 4, 9, 2, 12];
const READ: u64 = BLOCK / 2;

/// The commands of a boot over NBD: all of it, at once.
fn boot(blocks: &[u64]) -> String {
    format!("for block in {blocks:?}: h.pread({READ}, block * {BLOCK})")
}

/// Reads these blocks' first halves, and checks them.
#[track_caller]
fn read(scene: &Scene, attached: &Attached, blocks: &[u64]) {
    let script = format!(
        "disk = open('disk.raw', 'rb').read()\n\
         for block in {blocks:?}:\n    \
             at = block * {BLOCK}\n    \
             assert h.pread({READ}, at) == disk[at:at + {READ}], block"
    );
    tool(scene, "nbdsh", &["-u", &attached.uri(), "-c", &script]);
}

/// An image of 32 MiB that was booted five times, and the plans of these boots in `plans`.
fn booted() -> Option<(Scene, Web)> {
    let scene = noisy(32);
    let web = Web::before(&scene)?;
    if !installed(&["nbdsh"]) {
        return None;
    }
    learn(&scene, &BOOT);
    Some((scene, web))
}

/// Boots five times with reads of these blocks, and learns from that.
fn learn(scene: &Scene, blocks: &[u64]) {
    for _ in 0..5 {
        let attached = Attached::start(scene, "file://~/store:v1 --record ~/traces");
        tool(scene, "nbdsh", &["-u", &attached.uri(), "-c", &boot(blocks)]);
        attached.detach();
    }
    scene.ok("train --traces traces -o plans");
}

fn preloaded(metrics: &Metrics) -> f64 {
    metrics.sum("headstart_preloaded_bytes", &[])
}

const PLANNED: f64 = (BOOT.len() as u64 * READ) as f64;

/// The image behind a link.
fn over(link: &ShapedLink, web: &Web) -> (Shaper, String) {
    let shaper = Shaper::start(link, web.proxy.addr()).unwrap();
    let image = format!("http://{}/:v1", shaper.addr());
    (shaper, image)
}

#[test]
fn a_plan_brings_a_boot_before_it_reads() {
    let Some((scene, web)) = booted() else { return };
    let (_shaper, image) = over(&ShapedLink::new(Some(10_000_000), ROUND_TRIP), &web);
    // Plans in the cache's directory need not be named.
    fs::create_dir_all(scene.path("cache/plans")).unwrap();
    fs::copy(scene.path("plans"), scene.path("cache/plans/of-mine")).unwrap();
    let attached = Attached::start(&scene, &format!("{image} --cache ~/cache {METRICS}"));
    let metrics = attached.wait_for("preload", |metrics| {
        preloaded(metrics) >= PLANNED && metrics.sum("headstart_image_local_bytes", &[]) >= PLANNED
    });
    let info = [("plan", "file"), ("from", "5 boots of this image")];
    assert_eq!(metrics.sum("headstart_plan_info", &info), 1.0);
    assert_eq!(metrics.requests("hit") + metrics.requests("miss"), 0.0, "nothing was read yet");
    read(&scene, &attached, &BOOT);
    let metrics =
        attached.wait_for("use", |metrics| metrics.sum("headstart_preloaded_used_bytes", &[]) >= PLANNED);
    assert_eq!(metrics.requests("miss"), 0.0);
    assert_eq!(metrics.sum("headstart_preload_accuracy", &[]), 1.0);
    // A busy machine may be slow with local bytes.
    for cause in ["unforeseen", "late", "store"] {
        assert_eq!(metrics.sum("headstart_slow_reads_total", &[("cause", cause)]), 0.0, "{cause}");
    }
    // Only the blocks that boots read were fetched.
    assert!(metrics.sum("headstart_image_local_bytes", &[]) < PLANNED * 1.2);
    let report = attached.detach();
    let preload = &report["preloads"][0];
    assert_eq!((&preload["plan"], &preload["stopped"]), (&Value::from("file"), &Value::Null));
    assert_eq!(preload["used_bytes"].as_f64(), Some(PLANNED));
    assert_eq!(report["waits"]["reads"], 0);
}

#[test]
fn a_plan_that_is_published_with_the_image_comes_first() {
    let Some((scene, web)) = booted() else { return };
    scene.ok("train --traces traces -o plans --publish file://~/store:v1");
    let words = format!("{} --cache ~/cache --plans ~/plans {METRICS}", web.image());
    let attached = Attached::start(&scene, &words);
    let metrics = attached.wait_for("plan beside the image", |metrics| {
        let plan = metrics.samples.iter().find(|sample| sample.name == "headstart_plan_info");
        plan.is_some_and(|plan| plan.label("plan") == Some("artifact")) && preloaded(metrics) >= PLANNED
    });
    assert_eq!(metrics.sum("headstart_plan_failures_total", &[]), 0.0);
    read(&scene, &attached, &BOOT);
    attached.detach();

    // Preloading may be switched off.
    for policy in ["lazy", "none"] {
        let words = format!("{} --cache ~/{policy} --policy {policy} {METRICS}", web.image());
        let attached = Attached::start(&scene, &words);
        read(&scene, &attached, &BOOT[..2]);
        let report = attached.detach();
        assert_eq!(report["preloads"][0]["plan"], Value::Null);
        assert_eq!(report["waits"]["reads"], report["reads"], "{report}");
    }
}

#[test]
fn an_image_without_a_plan_is_lazy() {
    let scene = noisy(8);
    let Some(web) = Web::before(&scene) else { return };
    if !installed(&["nbdsh"]) {
        return;
    }
    let attached = Attached::start(&scene, &format!("{} --cache ~/cache {METRICS}", web.image()));
    std::thread::sleep(Duration::from_millis(500));
    let metrics = attached.metrics();
    assert_eq!(preloaded(&metrics), 0.0);
    assert_eq!(metrics.sum("headstart_pull_fetches_total", &[("priority", "preload")]), 0.0);
    assert_eq!(metrics.sum("headstart_plan_failures_total", &[]), 0.0);
    assert!(!metrics.samples.iter().any(|sample| sample.name == "headstart_plan_info"));
    read(&scene, &attached, &[1]);
    assert!(!attached.output().contains("warning"), "{}", attached.output());
    let report = attached.detach();
    assert_eq!(report["preloads"][0]["plan"], Value::Null);
}

#[test]
fn a_file_that_is_no_good_plan_is_said_and_left() {
    let Some((scene, web)) = booted() else { return };
    let good = scene.bytes("plans");
    fs::create_dir(scene.path("bad")).unwrap();
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    let kinds: [(&str, &[u8]); 5] = [
        ("empty", b""),
        ("torn", &good[..good.len() - 1]),
        ("flipped", &flipped),
        ("of something else", b"#!/bin/sh\nexit 1\n"),
        ("hostile", &[&good[..8], &[0xff; 4096]].concat()),
    ];
    for (kind, bytes) in kinds {
        fs::write(scene.path("bad/plans"), bytes).unwrap();
        let words = format!("{} --cache ~/cache-{} --plans ~/bad {METRICS}", web.image(), bytes.len());
        let mut attached = Attached::start(&scene, &words);
        let warning = attached.warning();
        assert!(
            warning.contains("a file of plans cannot be used") && warning.contains("bad/plans"),
            "{kind}: {warning}"
        );
        assert_eq!(attached.metrics().sum("headstart_plan_failures_total", &[]), 1.0, "{kind}");
        read(&scene, &attached, &[6, 3]);
        let report = attached.detach();
        assert_eq!(report["preloads"][0]["plan"], Value::Null, "{kind}");
    }
    // A good plan beside it is used.
    fs::write(scene.path("bad/plans2"), &good).unwrap();
    let attached =
        Attached::start(&scene, &format!("{} --cache ~/cache --plans ~/bad {METRICS}", web.image()));
    attached.wait_for("preload", |metrics| preloaded(metrics) >= PLANNED);
    attached.detach();
    // A given place that must be there and is not.
    let words = format!("{} --cache ~/cache-no --plans ~/nowhere {METRICS}", web.image());
    let mut attached = Attached::start(&scene, &words);
    assert!(attached.warning().contains("nowhere"));
    attached.detach();
    // A given file is refused, because its plan cannot be followed.
    fs::write(scene.path("bad/plans"), &flipped[..good.len() / 2]).unwrap();
    let wrong = scene.run(&format!("attach {} --cache ~/cache --policy ~/bad/plans", web.image()));
    assert!(wrong.status == Some(2) && wrong.stderr.contains("bad/plans"), "{wrong}");
}

#[test]
fn a_plan_that_is_given_is_followed() {
    let Some((scene, web)) = booted() else { return };
    scene.ok("train --traces traces -o plans --publish file://~/store:v1");
    scene.ok("plan export file://~/store:v1 -o trace");
    for (file, from) in [("plans", "5 boots of this image"), ("trace", "the trace")] {
        let words = format!("{} --cache ~/cache-{file} --policy ~/{file} {METRICS}", web.image());
        let attached = Attached::start(&scene, &words);
        attached.wait_for("preload", |metrics| preloaded(metrics) >= PLANNED);
        read(&scene, &attached, &BOOT);
        let report = attached.detach();
        let preload = &report["preloads"][0];
        assert_eq!(preload["plan"], "given");
        assert!(preload["from"].as_str().unwrap().starts_with(from), "{preload}");
    }
    // It has nothing for another image.
    fs::write(scene.path("other.raw"), noise(77, 8 << 20)).unwrap();
    scene.ok("image import other.raw file://~/store:other");
    let image = web.image().replace(":v1", ":other");
    let mut attached =
        Attached::start(&scene, &format!("{image} --cache ~/cache --policy ~/plans {METRICS}"));
    assert!(attached.warning().contains("has no plan for this image"));
    attached.detach();
}

#[test]
fn a_store_that_is_away_while_it_is_preloaded_delays_and_breaks_nothing() {
    let Some((scene, web)) = booted() else { return };
    let (_shaper, image) = over(&ShapedLink::new(Some(2_000_000), ROUND_TRIP), &web);
    let attached = Attached::start(&scene, &format!("{image} --cache ~/cache --plans ~/plans {METRICS}"));
    attached.wait_for("beginning", |metrics| preloaded(metrics) > 0.0);
    web.proxy.set_outage(Outage::Refuse);
    let reading = std::thread::scope(|scope| {
        let reading = scope.spawn(|| read(&scene, &attached, &[2, 14]));
        attached.wait_for("a read that waits", |metrics| metrics.sum("headstart_waiting_reads", &[]) >= 1.0);
        // A read is slow after a second.
        std::thread::sleep(Duration::from_millis(1100));
        let waiting = attached.metrics().sum("headstart_waiting_reads", &[]);
        web.proxy.set_outage(Outage::None);
        reading.join().map(|()| waiting)
    });
    assert!(reading.unwrap() >= 1.0);
    attached.wait_for("preload", |metrics| preloaded(metrics) >= PLANNED);
    read(&scene, &attached, &BOOT);
    let metrics = attached.metrics();
    assert!(metrics.sum("headstart_slow_reads_total", &[("cause", "store")]) >= 1.0, "{}", metrics.text);
    assert_eq!(metrics.sum("headstart_preload_stopped", &[]), 0.0);
    assert_eq!(metrics.sum("headstart_request_errors_total", &[]), 0.0);
    attached.detach();
}

#[test]
fn a_plan_of_other_reads_is_stopped_and_said() {
    let Some((scene, web)) = booted() else { return };
    let (_shaper, image) = over(&ShapedLink::new(Some(2_000_000), ROUND_TRIP), &web);
    let attached = Attached::start(&scene, &format!("{image} --cache ~/cache --plans ~/plans {METRICS}"));
    read(&scene, &attached, &[3, 14, 8, 5]);
    let stopped = attached.wait_for("stop", |metrics| metrics.sum("headstart_preload_stopped", &[]) == 1.0);
    assert!(preloaded(&stopped) < PLANNED, "{}", stopped.text);
    // It is reported once, and no more of the plan comes.
    std::thread::sleep(Duration::from_millis(500));
    let said = attached.output();
    let lines: Vec<_> = said.lines().filter(|line| line.contains("preloading was stopped")).collect();
    assert!(lines.len() == 1 && lines[0].starts_with("headstart: warning: "), "{said}");
    read(&scene, &attached, &[3, 14, 8, 5, 6]);
    let report = attached.detach();
    let why = report["preloads"][0]["stopped"].as_str().unwrap();
    assert!(lines[0].contains(why), "{why}");
}

/// The bandwidth that a host with this cache remembers of its only link.
fn remembered(scene: &Scene, cache: &str) -> Option<u64> {
    let link = fs::read_dir(scene.path(cache).join("links")).ok()?.next()?.ok()?;
    let text = fs::read_to_string(link.path()).ok()?;
    text.trim_end().rsplit_once(' ')?.1.parse().ok()
}

/// A link of `rate` bytes a second has `left` of it while a boot of 48 MB is preloaded: enough for a plan of another
/// bandwidth to be followed.
fn a_link_becomes_slower(rate: u64, left: u64) {
    let scene = noisy(96);
    let Some(web) = Web::before(&scene) else { return };
    if !installed(&["nbdsh"]) {
        return;
    }
    let link = ShapedLink::new(Some(rate), ROUND_TRIP);
    let (_shaper, image) = over(&link, &web);
    let all: Vec<u64> = (0..48).collect();
    learn(&scene, &all);
    let attach = |cache: &str| {
        Attached::start(&scene, &format!("{image} --cache ~/{cache} --plans ~/plans {METRICS}"))
    };
    let switches = |metrics: &Metrics| metrics.sum("headstart_plan_switches_total", &[("to", "bandwidth")]);
    let most = (all.len() as u64 * READ) as f64 * 0.9;
    // If the machine stood still, most has come before the link becomes slower: the test tries again.
    let begun = (0..=7).find_map(|number| {
        link.set(Some(rate), ROUND_TRIP);
        let cache = format!("cache-{number}");
        let attached = attach(&cache);
        attached.wait_for("beginning", |metrics| {
            let bandwidth = metrics.samples.iter().find(|sample| sample.name == "headstart_bandwidth_bytes");
            bandwidth.is_some_and(|bandwidth| bandwidth.value > rate as f64 * 0.75)
                || preloaded(metrics) >= most
        });
        let before = switches(&attached.metrics());
        link.set(Some(left), ROUND_TRIP);
        let is_in_time = number == 7 || preloaded(&attached.metrics()) < most;
        is_in_time.then_some((cache, attached, before))
    });
    let (cache, attached, before) = begun.unwrap();
    attached.wait_for("switch", |metrics| switches(metrics) > before);
    read(&scene, &attached, &[47, 3, 8]);
    // The next disk knows from the start the last bandwidth of the link.
    attached.wait_for("memory of the link", |_| {
        remembered(&scene, &cache).is_some_and(|bandwidth| (left / 4..left * 3).contains(&bandwidth))
    });
    attached.detach();
    let attached = attach(&cache);
    read(&scene, &attached, &all);
    attached.detach();
}

#[test]
fn a_link_that_collapses_gets_another_plan() {
    a_link_becomes_slower(40_000_000, 4_000_000);
}

#[test]
fn a_link_that_halves_gets_another_plan() {
    a_link_becomes_slower(16_000_000, 8_000_000);
}

#[test]
fn a_boot_in_another_order_gets_the_plan_of_its_kind() {
    let scene = noisy(96);
    let Some(web) = Web::before(&scene) else { return };
    if !installed(&["nbdsh"]) {
        return;
    }
    let forth: Vec<u64> = (0..48).collect();
    let back: Vec<u64> = (0..48).rev().collect();
    let boot = |blocks: &[u64]| {
        format!(
            "disk = open('disk.raw', 'rb').read()\n\
             for block in {blocks:?}:\n    \
                 at = block * {BLOCK}\n    \
                 assert h.pread(131072, at) == disk[at:at + 131072], block"
        )
    };
    for order in [&forth, &back].into_iter().cycle().take(10) {
        let attached = Attached::start(&scene, "file://~/store:v1 --record ~/traces");
        tool(&scene, "nbdsh", &["-u", &attached.uri(), "-c", &boot(order)]);
        attached.detach();
    }
    scene.ok("train --traces traces -o plans");
    let (_shaper, image) = over(&ShapedLink::new(Some(1_000_000), ROUND_TRIP), &web);
    // Both kinds are as frequent: a boot begins with one of them.
    let switched = [&forth, &back].map(|order| {
        let words = format!("{image} --cache ~/cache-{} --plans ~/plans {METRICS}", order[0]);
        let attached = Attached::start(&scene, &words);
        tool(&scene, "nbdsh", &["-u", &attached.uri(), "-c", &boot(order)]);
        let switched = attached.metrics().sum("headstart_plan_switches_total", &[("to", "group")]);
        assert_eq!(attached.detach()["preloads"][0]["stopped"], Value::Null);
        switched
    });
    assert_eq!(switched.iter().sum::<f64>(), 1.0, "{switched:?}");
}

#[test]
fn an_image_of_known_layers_starts_with_what_is_known_of_them() {
    let Some((scene, web)) = booted() else { return };
    scene.ok("train --traces traces -o plans --image file://~/store:v1");
    let mut disk = scene.bytes("disk.raw");
    let at = usize::try_from(BOOT[0] * BLOCK).unwrap();
    disk[at..at + (1 << 16)].copy_from_slice(&noise(5, 1 << 16));
    fs::write(scene.path("disk.raw"), disk).unwrap();
    scene.ok("image import disk.raw file://~/store:new --base file://~/store:v1");
    let image = web.image().replace(":v1", ":new");
    let attached = Attached::start(&scene, &format!("{image} --cache ~/cache --plans ~/plans {METRICS}"));
    // Everything except the new block is preloaded.
    attached.wait_for("preload", |metrics| preloaded(metrics) >= PLANNED - f64::from(1 << 16));
    read(&scene, &attached, &BOOT);
    let report = attached.detach();
    let preload = &report["preloads"][0];
    assert_eq!(preload["plan"], "zero-shot");
    assert!(preload["from"].as_str().unwrap().contains("1 of its 2 layers"), "{preload}");
}

#[test]
fn an_image_that_was_laid_out_anew_goes_on_learning() {
    let Some((scene, web)) = booted() else { return };
    scene.ok("image optimize file://~/store:v1 file://~/store:fast --plans plans");
    let image = web.image().replace(":v1", ":fast");
    let attached = Attached::start(&scene, &format!("{image} --cache ~/cache {METRICS}"));
    attached.wait_for("preload", |metrics| preloaded(metrics) >= PLANNED);
    read(&scene, &attached, &BOOT);
    let metrics = attached.metrics();
    assert_eq!(metrics.requests("miss"), 0.0);
    // The blocks of boots are stored in one place.
    let requests = metrics.sum("headstart_pull_fetches_total", &[("priority", "preload")]);
    assert!(requests <= 20.0, "{requests}");
    // The plan has come with it.
    assert_eq!(attached.detach()["preloads"][0]["plan"], "artifact");
    let digest = scene.json("image inspect file://~/store:v1")["digest"].as_str().unwrap().to_owned();
    let attached = Attached::start(&scene, "file://~/store:fast --record ~/more");
    read(&scene, &attached, &BOOT);
    attached.detach();
    let learned = scene.json("train --traces more -o plans").to_string();
    assert!(learned.contains(&digest), "{digest} is not in {learned}");
}

#[test]
fn whole_blocks_are_preloaded_on_request() {
    let Some((scene, web)) = booted() else { return };
    let words = format!("{} --cache ~/cache --whole-blocks --policy lazy {METRICS}", web.image());
    let attached = Attached::start(&scene, &words);
    let script = format!("h.pread(4096, {BLOCK} + 8192)");
    tool(&scene, "nbdsh", &["-u", &attached.uri(), "-c", &script]);
    let metrics = attached.metrics();
    assert!(metrics.sum("headstart_image_local_bytes", &[]) >= BLOCK as f64, "it waited for the block");
    assert_eq!(metrics.sum("headstart_pull_fetches_total", &[("priority", "preload")]), 0.0);
    attached.detach();
    let words = format!("{} --cache ~/cache2 --whole-blocks --plans ~/plans {METRICS}", web.image());
    let attached = Attached::start(&scene, &words);
    attached.wait_for("preload", |metrics| preloaded(metrics) >= 2.0 * PLANNED);
    attached.detach();
}
