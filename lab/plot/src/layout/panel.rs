//! One chart: its title, axes, grid and rules around and below the marks.

use super::axis::{Extent, Fit, Frame, TICK_SIZE};
use super::legend::{self, Entry};
use super::marks::{self, Ground};
use super::{LINE, wrapped};
use crate::chart::{Axis, Chart, Data, Legend, Rule, RuleAxis, Scale};
use crate::color::{GRID, INK, PAPER, RULE, SOFT_INK};
use crate::font;
use crate::scene::{Anchor, Item, Point, Rect, Stroke, Text};

const TITLE_SIZE: f64 = 13.0;
const LABEL_SIZE: f64 = 12.0;
const RULE_SIZE: f64 = 10.5;
/// Length of the marks at an axis.
const TICK: f64 = 4.0;
/// The angle by which names that do not fit beside each other are turned, in degrees.
const TURN: f64 = 40.0;

/// A chart and the place of its legend.
pub(super) struct Panel<'a> {
    pub(super) chart: &'a Chart,
    pub(super) entries: &'a [Entry],
    pub(super) legend: Legend,
}

/// Room around a plot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Margins {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Default for Margins {
    fn default() -> Self {
        Self { left: 40.0, right: 12.0, top: 8.0, bottom: 34.0 }
    }
}

impl Margins {
    fn plot(&self, cell: &Rect) -> Rect {
        Rect {
            left: cell.left + self.left,
            top: cell.top + self.top,
            right: cell.right - self.right,
            bottom: cell.bottom - self.bottom,
        }
    }
}

/// The margins of panels in rows of `columns`, so that plots stand in line, if they had about those guessed.
pub(super) fn aligned(
    panels: &[Panel<'_>],
    columns: usize,
    size: (f64, f64),
    guess: &[Margins],
) -> Vec<Margins> {
    let each: Vec<_> = panels.iter().zip(guess).map(|(panel, guess)| panel.margins(size, guess)).collect();
    let most = |of: &dyn Fn(usize) -> bool, side: &dyn Fn(&Margins) -> f64| {
        let some = each.iter().enumerate().filter(|(index, _)| of(*index));
        some.map(|(_, margins)| side(margins)).fold(0.0, f64::max)
    };
    let of_panel = |index: usize| {
        let column = |other: usize| other % columns == index % columns;
        let row = |other: usize| other / columns == index / columns;
        Margins {
            left: most(&column, &|margins| margins.left),
            right: most(&column, &|margins| margins.right),
            top: most(&row, &|margins| margins.top),
            bottom: most(&row, &|margins| margins.bottom),
        }
    };
    (0..panels.len()).map(of_panel).collect()
}

/// The axes of a chart, for a plot of a certain size.
struct Frames {
    x: Frame,
    y: Frame,
    second: Option<Frame>,
}

impl Frames {
    fn new(chart: &Chart, plot: &Rect) -> Self {
        let (mut across, mut left, mut right) = (Extent::default(), Extent::default(), Extent::default());
        let mut bars = [false, false];
        let (mut steps, mut classes) = (false, false);
        for series in &chart.series {
            let on_second = series.on_second && chart.second.is_some();
            let up = if on_second { &mut right } else { &mut left };
            add(&series.data, &mut across, up);
            let stands = matches!(series.data, Data::Bars(_) | Data::Histogram { .. });
            bars[usize::from(on_second)] |= stands;
            steps |= matches!(series.data, Data::Steps(_));
            classes |= matches!(series.data, Data::Histogram { .. });
        }
        for rule in chart.rules.iter().filter(|rule| rule.axis == RuleAxis::Y) {
            left.add(rule.at);
        }
        let fit = |bars: bool| if bars { Fit::FromZero } else { Fit::Round };
        // Distributions begin at round numbers; lines use all the room.
        let x_fit = match (steps, classes) {
            (true, _) => Fit::Before,
            (false, true) => Fit::Round,
            (false, false) => Fit::Tight,
        };
        let (width, height) = (plot.width(), plot.height());
        Self {
            x: Frame::new(&chart.x, &across, x_fit, width, true),
            y: Frame::new(&chart.y, &left, fit(bars[0]), height, false),
            second: chart.second.as_ref().map(|axis| Frame::new(axis, &right, fit(bars[1]), height, false)),
        }
    }

    /// The way in which the names below are written: side by side, or turned and some of them left out.
    fn names(&self, chart: &Chart, width: f64) -> Names {
        let Some(slots) = self.x.slots().filter(|_| matches!(chart.x.scale, Scale::Categories(_))) else {
            return Names { turned: false, every: 1 };
        };
        let slot = width / super::as_f64(slots);
        let widest = widest(&self.x);
        if widest + 6.0 <= slot {
            return Names { turned: false, every: 1 };
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number")]
        let every = ((TICK_SIZE * 1.3 / slot).ceil().clamp(1.0, 1e6)) as usize;
        Names { turned: true, every }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Names {
    turned: bool,
    every: usize,
}

fn widest(frame: &Frame) -> f64 {
    frame.ticks.iter().map(|tick| font::width(&tick.label, TICK_SIZE, false)).fold(0.0, f64::max)
}

/// Adds the numbers of a series to the extents.
fn add(data: &Data, across: &mut Extent, up: &mut Extent) {
    match data {
        Data::Line(points) | Data::Steps(points) | Data::Points(points) | Data::Stripes(points) => {
            for (x, y) in points.iter().filter(|(x, y)| x.is_finite() && y.is_finite()) {
                across.add(*x);
                up.add(*y);
            }
        }
        Data::Bars(heights) => {
            across.add(-0.4);
            across.add(super::as_f64(heights.len()) - 0.6);
            heights.iter().for_each(|height| up.add(*height));
        }
        Data::Histogram { start, width, heights } => {
            across.add(*start);
            across.add(start + width * super::as_f64(heights.len()));
            heights.iter().for_each(|height| up.add(*height));
        }
        Data::Boxes(boxes) => {
            across.add(-0.4);
            across.add(super::as_f64(boxes.len()) - 0.6);
            let all = boxes.iter().flat_map(|q| [q.low, q.lower, q.median, q.upper, q.high]);
            all.for_each(|number| up.add(number));
        }
    }
}

impl Panel<'_> {
    fn title_lines(&self, width: f64) -> Vec<String> {
        wrapped(&self.chart.title, TITLE_SIZE, true, width)
    }

    /// The margins that this chart needs around a plot of about that size.
    pub(super) fn margins(&self, (width, height): (f64, f64), guess: &Margins) -> Margins {
        let cell = Rect { left: 0.0, top: 0.0, right: width, bottom: height };
        let plot = guess.plot(&cell);
        let frames = Frames::new(self.chart, &plot);
        let label = |axis: &Axis| if axis.label.is_empty() { 0.0 } else { LABEL_SIZE * LINE + 2.0 };
        let side = |axis: &Axis, frame: &Frame| TICK + 4.0 + widest(frame) + label(axis);
        let names = frames.names(self.chart, plot.width());
        let below = if names.turned {
            let (sin, cos) = TURN.to_radians().sin_cos();
            widest(&frames.x) * sin + TICK_SIZE * cos + 4.0
        } else {
            TICK_SIZE * LINE
        };
        // The last label under the axis may stand out.
        let last = frames.x.ticks.last().and_then(|tick| {
            let beyond = frames.x.part(tick.at)? * plot.width() - plot.width();
            Some(beyond + font::width(&tick.label, TICK_SIZE, false) / 2.0)
        });
        let last = if names.turned { 0.0 } else { last.unwrap_or(0.0) };
        // Turned names reach to the left of the plot.
        let first = frames.x.ticks.iter().filter(|_| names.turned).filter_map(|tick| {
            let at = frames.x.part(tick.at)? * plot.width();
            Some(font::width(&tick.label, TICK_SIZE, false) * TURN.to_radians().cos() + TICK_SIZE - at)
        });
        let first = first.fold(0.0, f64::max);
        let right = match (&self.chart.second, &frames.second) {
            (Some(axis), Some(frame)) => side(axis, frame),
            _ => 0.0,
        };
        let mut top = super::as_f64(self.title_lines(width).len()) * TITLE_SIZE * LINE + 8.0;
        if self.legend == Legend::Above {
            top += legend::rows_height(&legend::rows(self.entries, width));
        }
        Margins {
            left: side(&self.chart.y, &frames.y).max(first),
            right: right.max(last + 2.0).max(8.0),
            top,
            bottom: TICK + 3.0 + below + label(&self.chart.x),
        }
    }

    /// Draws the chart into its cell.
    pub(super) fn draw(&self, cell: &Rect, margins: &Margins, items: &mut Vec<Item>) {
        let chart = self.chart;
        let mut legend = self.legend;
        let mut plot = margins.plot(cell);
        let frames = Frames::new(chart, &plot);
        let mut drawn = self.marks(&frames, &plot);
        let mut within = None;
        if legend == Legend::Auto {
            within = legend::draw_within(self.entries, &plot, &drawn);
            if within.is_none() {
                // No corner is free: the plot makes room.
                legend = Legend::Above;
                plot.top += legend::rows_height(&legend::rows(self.entries, cell.width()));
                drawn = self.marks(&frames, &plot);
            }
        }
        let mut top = cell.top;
        for line in self.title_lines(cell.width()) {
            items.push(Item::Text(Text::new(line, (cell.left, top + TITLE_SIZE), TITLE_SIZE, INK).bold()));
            top += TITLE_SIZE * LINE;
        }
        match legend {
            Legend::Above => {
                let rows = legend::rows(self.entries, cell.width());
                items.extend(legend::draw_rows(&rows, (cell.left, top + 2.0)));
            }
            Legend::Right => {
                items.extend(legend::draw_column(self.entries, (cell.right + 14.0, plot.top)));
            }
            Legend::Auto | Legend::Hidden => {}
        }
        items.extend(self.grid(&frames, &plot));
        let empty = drawn.is_empty();
        let rules = self.rules(&frames, &plot, &drawn);
        items.extend(frame(&plot, chart.second.is_some()));
        items.extend(self.axes(&frames, &plot));
        items.extend(drawn);
        items.extend(rules);
        items.extend(within.unwrap_or_default());
        if empty {
            let middle = ((plot.left + plot.right) / 2.0, (plot.top + plot.bottom) / 2.0);
            let text = Text::new("no data", middle, LABEL_SIZE, SOFT_INK).anchor(Anchor::Middle);
            items.push(Item::Text(text));
        }
    }

    /// The series, later ones on top.
    fn marks(&self, frames: &Frames, plot: &Rect) -> Vec<Item> {
        let series = self.chart.series.iter().enumerate();
        let drawn = series.flat_map(|(index, series)| {
            let second = frames.second.as_ref().filter(|_| series.on_second);
            let ground = Ground { x: &frames.x, y: second.unwrap_or(&frames.y), plot: *plot };
            marks::draw(self.chart, index, &ground)
        });
        drawn.collect()
    }

    fn grid(&self, frames: &Frames, plot: &Rect) -> Vec<Item> {
        let stroke = Stroke::solid(GRID, 1.0);
        let mut items = Vec::new();
        if frames.x.slots().is_none() {
            for at in frames.x.ticks.iter().filter_map(|tick| frames.x.part(tick.at)) {
                let x = plot.left + at * plot.width();
                items.push(Item::Polyline { points: vec![(x, plot.top), (x, plot.bottom)], stroke });
            }
        }
        for at in frames.y.ticks.iter().filter_map(|tick| frames.y.part(tick.at)) {
            let y = plot.bottom - at * plot.height();
            items.push(Item::Polyline { points: vec![(plot.left, y), (plot.right, y)], stroke });
        }
        items
    }

    fn axes(&self, frames: &Frames, plot: &Rect) -> Vec<Item> {
        let mut items = self.axis_below(frames, plot);
        items.extend(axis_beside(&self.chart.y, &frames.y, plot, Side::Left));
        if let (Some(axis), Some(frame)) = (&self.chart.second, &frames.second) {
            items.extend(axis_beside(axis, frame, plot, Side::Right));
        }
        items
    }

    fn axis_below(&self, frames: &Frames, plot: &Rect) -> Vec<Item> {
        let mut items = Vec::new();
        let names = frames.names(self.chart, plot.width());
        let slots = frames.x.slots().is_some();
        let mut lowest = plot.bottom;
        for tick in frames.x.ticks.iter().step_by(names.every) {
            let Some(part) = frames.x.part(tick.at).filter(|part| (-0.001..=1.001).contains(part)) else {
                continue;
            };
            let x = plot.left + part * plot.width();
            if !slots {
                items.push(tick_mark((x, plot.bottom), (x, plot.bottom + TICK)));
            }
            let base = plot.bottom + TICK + 2.0 + TICK_SIZE;
            let text = Text::new(tick.label.clone(), (x, base), TICK_SIZE, INK);
            let width = font::width(&tick.label, TICK_SIZE, false);
            let (text, depth) = if names.turned {
                let at = (x + TICK_SIZE * 0.3, plot.bottom + TICK + TICK_SIZE * 0.8);
                let text = Text { at, ..text }.anchor(Anchor::End).turned(TURN);
                (text, width * TURN.to_radians().sin() + TICK_SIZE + TICK)
            } else {
                (text.anchor(Anchor::Middle), TICK + 2.0 + TICK_SIZE * 1.2)
            };
            lowest = lowest.max(plot.bottom + depth);
            items.push(Item::Text(text));
        }
        items.extend(frames.x.minor().into_iter().filter_map(|at| {
            let x = plot.left + frames.x.part(at)? * plot.width();
            Some(tick_mark((x, plot.bottom), (x, plot.bottom + TICK / 2.0)))
        }));
        if !self.chart.x.label.is_empty() {
            let middle = ((plot.left + plot.right) / 2.0, lowest + 4.0 + LABEL_SIZE);
            let text = Text::new(self.chart.x.label.clone(), middle, LABEL_SIZE, INK).anchor(Anchor::Middle);
            items.push(Item::Text(text));
        }
        items
    }

    /// Lines at certain values, each with its name where nothing else is, if there is such a place.
    fn rules(&self, frames: &Frames, plot: &Rect, drawn: &[Item]) -> Vec<Item> {
        let stroke = Stroke { color: RULE, width: 1.2, dash: &[4.0, 3.0] };
        let mut touched: Vec<Point> = drawn.iter().flat_map(marks::trail).collect();
        let (mut lines, mut names) = (Vec::new(), Vec::new());
        for rule in &self.chart.rules {
            let frame = if rule.axis == RuleAxis::X { &frames.x } else { &frames.y };
            let Some(part) = frame.part(rule.at).filter(|part| (0.0..=1.0).contains(part)) else { continue };
            let points = match rule.axis {
                RuleAxis::X => {
                    let x = plot.left + part * plot.width();
                    vec![(x, plot.top), (x, plot.bottom)]
                }
                RuleAxis::Y => {
                    let y = plot.bottom - part * plot.height();
                    vec![(plot.left, y), (plot.right, y)]
                }
            };
            let places = name_places(rule, &points, plot);
            lines.push(Item::Polyline { points, stroke });
            let free = |place: &&Rect| {
                let (left, top) = (place.left - 3.0, place.top - 3.0);
                let around = Rect { left, top, right: place.right + 3.0, bottom: place.bottom + 3.0 };
                !touched.iter().any(|point| around.contains(*point))
            };
            let Some(place) = places.iter().find(free).or(places.first()).filter(|_| !rule.label.is_empty())
            else {
                continue;
            };
            touched.extend(place.corners());
            touched.push(((place.left + place.right) / 2.0, (place.top + place.bottom) / 2.0));
            names.push(Item::Area { points: place.corners(), fill: PAPER, opacity: 0.85 });
            let at = (place.left + 2.0, place.bottom - 3.0);
            names.push(Item::Text(Text::new(rule.label.clone(), at, RULE_SIZE, RULE)));
        }
        lines.extend(names);
        lines
    }
}

/// Places for a rule's name, the best first: beside an upright line from the top down, along a level one from the
/// right.
fn name_places(rule: &Rule, line: &[Point], plot: &Rect) -> Vec<Rect> {
    let (width, height) = (font::width(&rule.label, RULE_SIZE, false) + 4.0, RULE_SIZE + 3.0);
    let Some(&(x, y)) = line.first() else { return Vec::new() };
    let steps = (0..12).map(f64::from);
    let places = steps.flat_map(|step| match rule.axis {
        RuleAxis::X => {
            let top = plot.top + 2.0 + step * height;
            [(x + 3.0, top), (x - 3.0 - width, top)]
        }
        RuleAxis::Y => {
            let left = plot.right - width - 2.0 - step * plot.width() / 12.0;
            [(left, y - height - 2.0), (left, y + 2.0)]
        }
    });
    let places = places.map(|(left, top)| Rect { left, top, right: left + width, bottom: top + height });
    let fits =
        |place: &Rect| plot.contains((place.left, place.top)) && plot.contains((place.right, place.bottom));
    places.filter(fits).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

fn axis_beside(axis: &Axis, frame: &Frame, plot: &Rect, side: Side) -> Vec<Item> {
    let (x, out, anchor) = match side {
        Side::Left => (plot.left, -1.0, Anchor::End),
        Side::Right => (plot.right, 1.0, Anchor::Start),
    };
    let mut items = Vec::new();
    for tick in &frame.ticks {
        let Some(part) = frame.part(tick.at).filter(|part| (-0.001..=1.001).contains(part)) else { continue };
        let y = plot.bottom - part * plot.height();
        items.push(tick_mark((x, y), (x + out * TICK, y)));
        let at = (x + out * (TICK + 3.0), y + TICK_SIZE * 0.36);
        items.push(Item::Text(Text::new(tick.label.clone(), at, TICK_SIZE, INK).anchor(anchor)));
    }
    items.extend(frame.minor().into_iter().filter_map(|at| {
        let y = plot.bottom - frame.part(at)? * plot.height();
        Some(tick_mark((x, y), (x + out * TICK / 2.0, y)))
    }));
    if !axis.label.is_empty() {
        // The letters of a turned text stand on its right.
        let labels = TICK + 3.0 + widest(frame) + 5.0;
        let x = if side == Side::Left { x - labels - 2.0 } else { x + labels + LABEL_SIZE };
        let middle = (x, (plot.top + plot.bottom) / 2.0);
        let text = Text::new(axis.label.clone(), middle, LABEL_SIZE, INK).anchor(Anchor::Middle).turned(90.0);
        items.push(Item::Text(text));
    }
    items
}

fn tick_mark(from: (f64, f64), to: (f64, f64)) -> Item {
    Item::Polyline { points: vec![from, to], stroke: Stroke::solid(INK, 1.0) }
}

/// The axes' lines: at the left and below, and at the right if there is an axis.
fn frame(plot: &Rect, second: bool) -> Vec<Item> {
    let mut points = vec![(plot.left, plot.top), (plot.left, plot.bottom), (plot.right, plot.bottom)];
    if second {
        points.push((plot.right, plot.top));
    }
    vec![Item::Polyline { points, stroke: Stroke::solid(INK, 1.0) }]
}
