//! `headstart-lab trace plot`: the figures that a data set has the data for, as files that can be opened.

use headstart_testkit::process::is_root;
use headstart_testkit::scene::Scene;
use headstart_testkit::soak;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{lchown, symlink};
use std::path::Path;
use tiny_skia::Pixmap;

/// Every figure that can be drawn.
const ALL: [u64; 17] = [2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15, 16, 18, 20, 22, 23];

/// The numbers of the figures in `key`.
fn numbers(report: &Value, key: &str) -> Vec<u64> {
    report[key].as_array().unwrap().iter().map(|figure| figure["figure"].as_u64().unwrap()).collect()
}

/// `true` if a picture has content: dark letters and coloured marks on white.
fn shows_something(png: &Path) -> bool {
    let pixels = Pixmap::load_png(png).unwrap();
    let marked = |red: u8, green: u8, blue: u8| red.abs_diff(green).max(green.abs_diff(blue)) > 60;
    let (mut dark, mut coloured) = (0, 0);
    for pixel in pixels.pixels() {
        dark += u32::from(pixel.red() < 0x60 && pixel.green() < 0x60 && pixel.blue() < 0x60);
        coloured += u32::from(marked(pixel.red(), pixel.green(), pixel.blue()));
    }
    dark > 1000 && coloured > 15 && pixels.width() > 800 && pixels.height() > 500
}

fn check_files(report: &Value) {
    let files: Vec<_> =
        report["files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap()).collect();
    assert_eq!(files.len(), 2 * report["figures"].as_array().unwrap().len());
    for figure in report["figures"].as_array().unwrap() {
        let [svg, png] = [0, 1].map(|at| Path::new(figure["files"][at].as_str().unwrap()));
        assert!(files.contains(&svg.to_str().unwrap()), "{svg:?}");
        let text = fs::read_to_string(svg).unwrap();
        let title = figure["title"].as_str().unwrap().replace('&', "&amp;");
        assert!(text.starts_with("<svg ") && text.contains(&title) && text.ends_with("</svg>\n"), "{svg:?}");
        assert!(!text.contains("no data"), "{svg:?}");
        assert!(shows_something(png), "{png:?}");
    }
}

#[test]
fn every_figure_of_a_made_up_data_set_is_drawn() {
    let scene = Scene::new();
    scene.ok("trace synthesize --images 24 --traces 200 --seed 3 -o set");
    let report = scene.json("trace plot set -o ~/plots");
    assert_eq!((numbers(&report, "figures"), numbers(&report, "left_out")), (ALL.to_vec(), vec![]));
    check_files(&report);
    // The drawn figures are also in numbers, and so are those that cannot be drawn: disorder, categories, families.
    let stats = scene.json("trace stats set");
    let categories = stats["categories"].as_object().unwrap();
    assert!(categories.values().map(|images| images.as_u64().unwrap()).sum::<u64>() >= 3, "{categories:?}");
    let figures = &stats["figures"];
    let order = figures["order"]["user"]["p50"].as_f64().unwrap();
    assert!((0.5..=1.0).contains(&order), "{order}");
    assert!(figures["lost_percent"]["public"]["count"].as_u64().unwrap() > 20);
    assert!(stats["creations"]["families"].as_u64().unwrap() > 1);
    let table = scene.ok("trace stats set").stdout;
    for line in
        ["agreement of their orders", "usual blocks not read", "far fewer or more blocks", "categories, by"]
    {
        assert!(table.contains(line), "no {line}: {table}");
    }
    // The same data give the same bytes, whatever files were there before.
    fs::write(scene.path("plots/figure-03.svg"), "old").unwrap();
    let figures = if soak::is_on() { "" } else { "--figures 3,9,22" };
    scene.ok(&format!("trace plot set -o again {figures}"));
    scene.ok(&format!("trace plot set -o plots {figures}"));
    for name in scene.names("again") {
        assert!(scene.bytes(&format!("plots/{name}")) == scene.bytes(&format!("again/{name}")), "{name}");
    }
}

#[test]
fn figures_of_real_boots_are_drawn() {
    let scene = Scene::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let sample = root.join("tests/data/traces").canonicalize().unwrap();
    let report = scene.json(&format!("trace plot {} -o ~/plots", sample.display()));
    let left_out = &report["left_out"];
    assert_eq!(numbers(&report, "left_out"), [4]);
    assert!(left_out[0]["reason"].as_str().unwrap().contains("how large its image is"), "{left_out}");
    assert_eq!((&report["traces"], &report["images"]), (&json!(21), &json!(3)));
    check_files(&report);
    let words = format!("trace plot {} --figures 9,16 --format svg -o two", sample.display());
    let said = scene.ok(&words).stdout;
    assert!(said.contains("2 figures of 21 traces of 3 images into two"), "{said}");
    assert_eq!(scene.names("two"), ["figure-09.svg", "figure-16.svg"]);
    // A single boot has the data of some figures.
    let boot = sample.join("trace/it1/p-deb12min/4GB/10000000.npy");
    let report = scene.json(&format!("trace plot {} -o ~/one", boot.display()));
    assert_eq!(numbers(&report, "figures"), [2, 8, 9, 14, 18]);
    check_files(&report);
}

#[test]
fn figures_that_cannot_be_drawn_are_named() {
    let scene = Scene::new();
    headstart_testkit::data_sets::data_set(&scene);
    let report = scene.json("trace plot set -o ~/plots");
    let left_out = numbers(&report, "left_out");
    assert_eq!(left_out, [4, 7, 23], "{report}");
    check_files(&report);
    let unfit = scene
        .fails("trace plot set --figures 4,23 -o more", &["set", "nothing to draw", "figure 23: no two"]);
    assert!(unfit.stdout.is_empty());
    scene.fails("trace plot nothing -o more", &["nothing", "cannot be read"]);
    fs::create_dir(scene.path("empty")).unwrap();
    scene.fails("trace plot empty -o more", &["empty", "has no traces"]);
    scene.fails("trace plot set -o set/VD_creation_meta.csv", &["VD_creation_meta.csv", "cannot be made"]);
    fs::create_dir_all(scene.path("blocked/figure-02.svg")).unwrap();
    scene.fails("trace plot set -o blocked", &["figure-02.svg", "is a directory"]);
    for words in ["trace plot set --figures 10 -o more", "trace plot set --figures two -o more"] {
        let run = scene.run(words);
        assert_eq!(run.status, Some(2), "{run}");
        assert!(run.stderr.contains("there are the figures 2, 3, 4"), "{run}");
    }
    // A damaged boot is counted; without any other there is nothing to draw.
    for boot in ["7", "8"] {
        fs::write(scene.path(&format!("set/trace/it1/p-a/4GB/{boot}.npy")), "no boot").unwrap();
    }
    let run = scene.run("trace plot set -o damaged");
    assert_eq!(run.status, Some(1), "{run}");
    assert!(run.stdout.contains("no trace can be read") && run.stdout.contains("skipped 2"), "{run}");
    scene.fails("trace plot set --figures 2 -o damaged", &["no trace can be read", "2 traces skipped"]);
}

/// A link of another user's does not lead root anywhere, neither in the place of a figure nor on the way there.
#[test]
fn no_link_of_another_user_is_drawn_over() {
    let scene = Scene::new();
    if !is_root() {
        return;
    }
    scene.ok("trace synthesize --images 4 --traces 20 --seed 3 -o set");
    fs::write(scene.path("precious"), "precious").unwrap();
    for dir in ["plots", "theirs"] {
        fs::create_dir(scene.path(dir)).unwrap();
    }
    for (link, to) in [("plots/figure-03.svg", "../precious"), ("way", "theirs")] {
        symlink(to, scene.path(link)).unwrap();
        lchown(scene.path(link), Some(54_321), None).unwrap();
    }
    for (named, at) in [("plots", "plots/figure-03.svg"), ("way", "way"), ("way/new", "way")] {
        let parts = [at, "symbolic link of another user (id 54321)", "chown -h 0 "];
        scene.fails(&format!("trace plot set -o {named} --figures 3 --format svg"), &parts);
    }
    scene.ok("trace synthesize --images 2 --traces 2 --format parquet -o traces");
    let makers = [
        "trace export traces",
        "trace import set",
        "trace synthesize --images 2 --traces 2",
        "trace synthesize --images 2 --traces 2 --format parquet",
    ];
    for words in makers {
        for named in ["way", "way/new/set"] {
            let parts = ["way", "symbolic link of another user (id 54321)", "chown -h 0 "];
            scene.fails(&format!("{words} -o {named}"), &parts);
        }
    }
    assert!(scene.bytes("precious") == b"precious" && scene.names("theirs").is_empty());
    // A link of the user's own is followed.
    lchown(scene.path("plots/figure-03.svg"), Some(0), None).unwrap();
    scene.ok("trace plot set -o plots --figures 3 --format svg");
    assert!(scene.bytes("precious").starts_with(b"<svg "));
}
