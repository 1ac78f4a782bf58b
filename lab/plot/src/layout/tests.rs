//! The places of things: within the picture, apart from each other, at the places of their numbers; for any data.

use super::*;
use crate::chart::{Axis, Quantiles, Rule, Series};
use crate::scene::{Anchor, Point};
use proptest::prelude::*;

fn texts(scene: &Scene) -> Vec<&Text> {
    let mut texts = Vec::new();
    for item in &scene.items {
        if let Item::Text(text) = item {
            texts.push(text);
        }
    }
    texts
}

/// The corners of a text, as far as it is drawn.
fn corners(text: &Text) -> Rect {
    let width = font::width(&text.text, text.size, text.bold);
    let left = match text.anchor {
        Anchor::Start => 0.0,
        Anchor::Middle => -width / 2.0,
        Anchor::End => -width,
    };
    let (sin, cos) = (-text.angle).to_radians().sin_cos();
    let turned = |(x, y): Point| (text.at.0 + x * cos - y * sin, text.at.1 + x * sin + y * cos);
    let height = text.size * 0.7;
    let all = [(left, 0.0), (left + width, 0.0), (left, -height), (left + width, -height)].map(turned);
    let of = |each: fn(&Point) -> f64, pick: fn(f64, f64) -> f64| all.iter().map(each).reduce(pick).unwrap();
    Rect {
        left: of(|p| p.0, f64::min),
        right: of(|p| p.0, f64::max),
        top: of(|p| p.1, f64::min),
        bottom: of(|p| p.1, f64::max),
    }
}

/// Texts that cover each other, if both are upright or both are level.
fn overlaps(scene: &Scene) -> Vec<(String, String)> {
    let texts = texts(scene);
    let mut found = Vec::new();
    for (index, a) in texts.iter().enumerate() {
        for b in texts.iter().skip(index + 1).filter(|b| a.angle == b.angle && a.angle % 90.0 == 0.0) {
            let (one, other) = (corners(a), corners(b));
            let apart = one.right <= other.left
                || other.right <= one.left
                || one.bottom <= other.top
                || other.bottom <= one.top;
            if !apart {
                found.push((a.text.clone(), b.text.clone()));
            }
        }
    }
    found
}

fn outside(scene: &Scene) -> Vec<String> {
    let all = Rect { left: 0.0, top: 0.0, right: scene.width, bottom: scene.height };
    let within = |rect: Rect| all.contains((rect.left, rect.top)) && all.contains((rect.right, rect.bottom));
    texts(scene).into_iter().filter(|text| !within(corners(text))).map(|text| text.text.clone()).collect()
}

#[test]
fn a_point_is_where_its_numbers_say() {
    let chart = Chart::new(Axis::linear("x").from(0.0).to(10.0), Axis::linear("y").from(0.0).to(100.0))
        .with(Series::points("", vec![(0.0, 0.0), (10.0, 100.0), (5.0, 50.0), (11.0, 50.0)]));
    let scene = lay_out(&Picture::new("").with(chart));
    let disc = |item: &Item| if let Item::Disc { center, .. } = item { Some(*center) } else { None };
    let discs: Vec<_> = scene.items.iter().filter_map(disc).collect();
    // What is outside of the axes is not drawn.
    assert_eq!(discs.len(), 3);
    let [low, high, middle] = [0, 1, 2].map(|index| discs[index]);
    assert!(low.0 < high.0 && low.1 > high.1);
    let off = (middle.0 - (low.0 + high.0) / 2.0).hypot(middle.1 - (low.1 + high.1) / 2.0);
    assert!(off < 1e-6, "{discs:?}");
    let label = |text: &str| texts(&scene).into_iter().find(|other| other.text == text).unwrap().at;
    assert!((label("10").0 - high.0).abs() < 0.01 && label("100").1 > high.1);
}

#[test]
fn bars_stand_beside_each_other() {
    let chart = Chart::new(Axis::categories("", ["a", "b"]), Axis::linear(""))
        .with(Series::bars("one", vec![1.0, -1.0]))
        .with(Series::bars("two", vec![0.5, f64::NAN]));
    let scene = lay_out(&Picture::new("").with(chart));
    let area = |item: &Item| if let Item::Area { points, .. } = item { Some(points.clone()) } else { None };
    let bars: Vec<_> = scene.items.iter().filter_map(area).take(3).collect();
    let sides = |bar: &[Point]| (bar[0].0, bar[1].0, bar[0].1, bar[2].1);
    let [one, down, two] = [0, 1, 2].map(|index| sides(&bars[index]));
    assert!(one.1 < two.0 && two.1 < down.0, "{bars:?}");
    assert!(
        (one.3 - two.3).abs() < 1e-9 && (one.3 - down.2).abs() < 1e-9,
        "they stand on one ground: {bars:?}"
    );
}

#[test]
fn long_names_are_turned_and_stay_within() {
    let names = (0..8).map(|n| format!("a name that is long, and longer {n}"));
    let chart = Chart::new(Axis::categories("what", names), Axis::linear("how much"));
    let chart = chart.with(Series::bars("", (1..9).map(f64::from).collect()));
    let scene = lay_out(&Picture::new("").with(chart));
    let turned = texts(&scene).into_iter().filter(|text| text.angle == 40.0);
    let turned: Vec<_> = turned.map(corners).collect();
    assert_eq!((turned.len(), outside(&scene)), (8, vec![]));
    let what = texts(&scene).into_iter().find(|text| text.text == "what").map(corners).unwrap();
    assert!(turned.iter().all(|name| name.bottom < what.top));
}

#[test]
fn legends_go_where_nothing_is() {
    let line = |name: &str, y: f64| Series::line(name, vec![(0.0, y), (1.0, y)]);
    let axes = || Chart::new(Axis::linear("x"), Axis::linear("y").from(0.0).to(1.0));
    let names = |chart: Chart| {
        let scene = lay_out(&Picture::new("").with(chart));
        assert_eq!((overlaps(&scene), outside(&scene)), (vec![], vec![]));
        let places = texts(&scene).into_iter().filter(|text| text.text.starts_with("name"));
        (places.map(|text| text.at).collect::<Vec<_>>(), scene.width)
    };
    let (alone, narrow) = names(axes().with(line("name", 0.5)));
    assert!(alone.is_empty());
    let (free, _) = names(axes().with(line("name 1", 0.9)).with(line("name 2", 0.95)));
    assert!(free.len() == 2 && free.iter().all(|(_, y)| *y > 150.0), "below: {free:?}");
    let full =
        (0..9).map(|n| Series::steps(if n < 2 { "name" } else { "" }, vec![(0.0, f64::from(n) / 8.0)]));
    let (above, _) = names(full.fold(axes(), Chart::with));
    assert!(above.len() == 2 && above.iter().all(|(_, y)| *y < 40.0), "above: {above:?}");
    let many = (0..12).map(|n| line(&format!("name {n}"), 0.5));
    let (beside, wide) = names(many.fold(axes(), Chart::with));
    assert!(
        beside.len() == 12 && wide > narrow && beside.iter().all(|(x, _)| *x > narrow - 20.0),
        "{beside:?}"
    );
    // One for all panels.
    let panel = || axes().with(line("name 1", 0.9)).with(line("name 2", 0.95));
    let scene = lay_out(&Picture::new("t").with(panel()).with(panel()));
    assert_eq!(texts(&scene).iter().filter(|text| text.text.starts_with("name")).count(), 2);
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => -1e3..1e3_f64,
        2 => 0.0..1.0_f64,
        1 => any::<f64>(),
        1 => prop::sample::select(vec![0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN,
            f64::MIN_POSITIVE, 5e-324, 1e-300, 1e15, 9_007_199_254_740_993.0]),
    ]
}

fn axis() -> impl Strategy<Value = Axis> {
    let end = || prop::option::weighted(0.3, number());
    let names = prop::collection::vec("[a-z\\PC]{0,40}", 0..30);
    (0..3_u8, names, end(), end()).prop_map(|(scale, names, min, max)| {
        let axis = match scale {
            0 => Axis::linear("number [unit]"),
            1 => Axis::log("number [unit]"),
            _ => Axis::categories("names", names),
        };
        Axis { min, max, ..axis }
    })
}

fn series() -> impl Strategy<Value = Series> {
    let numbers = || prop::collection::vec(number(), 0..60);
    (0..7_u8, numbers(), numbers(), number(), number(), any::<[bool; 2]>()).prop_map(
        |(kind, a, b, c, d, flags)| {
            let points: Vec<_> = a.iter().copied().zip(b.iter().copied()).collect();
            let boxed = |(low, high): &(f64, f64)| Quantiles {
                low: *low,
                lower: c,
                median: d,
                upper: *high,
                high: *high,
            };
            let series = match kind {
                0 => Series::line("line", points),
                1 => Series::steps("steps", points),
                2 => Series::points("points", points),
                3 => Series::stripes("stripes", points),
                4 => Series::bars("bars", a),
                5 => Series::histogram("histogram", c, d, a),
                _ => Series::boxes("boxes", points.iter().map(boxed).collect()),
            };
            let [small, on_second] = flags;
            Series { small, on_second, ..series }
        },
    )
}

fn chart() -> impl Strategy<Value = Chart> {
    let rule =
        (number(), any::<bool>()).prop_map(|(at, x)| if x { Rule::x(at, "x") } else { Rule::y(at, "y") });
    let parts = (
        axis(),
        axis(),
        prop::option::of(axis()),
        prop::collection::vec(series(), 0..5),
        prop::collection::vec(rule, 0..3),
        prop::sample::select(vec![Legend::Auto, Legend::Above, Legend::Right, Legend::Hidden]),
    );
    parts.prop_map(|(x, y, second, series, rules, legend)| Chart {
        title: "chart".to_owned(),
        x,
        y,
        second,
        series,
        rules,
        legend,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Nothing makes it panic, and every place is a number.
    #[test]
    fn anything_can_be_drawn(charts in prop::collection::vec(chart(), 0..4), columns in 0_usize..4, size in number()) {
        let picture = Picture { charts, ..Picture::new("a title") }.columns(columns).panel(size, 200.0);
        let svg = picture.svg();
        prop_assert!(!svg.contains("NaN") && !svg.contains("inf "), "{}", svg);
        let small = picture.panel(200.0, 150.0);
        prop_assert!(small.png(0.5).is_ok());
    }

    /// Usual numbers: no text covers another, none is cut off, and the axes are labelled.
    #[test]
    fn texts_keep_apart(
        points in prop::collection::vec((0.0..1.0_f64, 0.0..1.0_f64), 1..40),
        size in (-9..12_i32, -9..12_i32),
        shift in prop::sample::select(vec![0.0, 0.0, -0.5, 10.0, 1e4]),
        log in any::<[bool; 2]>(),
    ) {
        let scaled = |value: f64, size: i32| (value + shift) * 10_f64.powi(size);
        let points: Vec<_> = points.iter().map(|(x, y)| (scaled(*x, size.0), scaled(*y, size.1))).collect();
        let [x, y] = log.map(|log| if log { Axis::log("number [unit]") } else { Axis::linear("number [unit]") });
        let chart = Chart::new(x, y)
            .with(Series::line("a name", points.clone()))
            .with(Series::steps("another name", points));
        let scene = lay_out(&Picture::new("A picture").with(chart.titled("A chart")));
        prop_assert_eq!(overlaps(&scene), vec![]);
        prop_assert_eq!(outside(&scene), Vec::<String>::new());
        prop_assert!(texts(&scene).len() >= 7, "{:?}", texts(&scene));
    }
}
