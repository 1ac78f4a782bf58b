//! The look of a chart's series between its axes.

use super::as_f64;
use super::axis::Frame;
use crate::chart::{Chart, Data, Quantiles, Series};
use crate::color::{Color, Marker, PAPER, palette};
use crate::scene::{Item, Point, Rect, Stroke};

/// Width of a line.
const LINE_WIDTH: f64 = 1.7;
/// Points of a line from which on they are not marked.
const MARKED_MAX: usize = 40;
/// The part of a slot that its bars fill.
const FILLED: f64 = 0.8;
/// The opacity of a histogram's classes and of boxes.
pub(super) const PALE: f64 = 0.4;
/// Steps between the places that a line touches, when a free corner is looked for.
const TRAIL: f64 = 5.0;
/// Most places that are checked for one line.
const TRAIL_MAX: f64 = 400.0;

/// The look of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Look {
    pub(super) stroke: Stroke,
    pub(super) marker: Option<Marker>,
    small: bool,
}

/// The look of the series of that index in its chart.
pub(super) fn look(series: &Series, index: usize) -> Look {
    let number = series.style.unwrap_or(index);
    let style = palette(number);
    let color = series.color.unwrap_or(style.color);
    let (marker, dash) = match &series.data {
        // Markers tell lines apart; where colours begin again, dashes do.
        Data::Line(points) if points.len() <= MARKED_MAX => {
            (Some(style.marker), if number < 8 { &[][..] } else { style.dash })
        }
        Data::Points(_) => (Some(style.marker), &[][..]),
        Data::Line(_) | Data::Steps(_) => (None, style.dash),
        Data::Stripes(_) | Data::Bars(_) | Data::Histogram { .. } | Data::Boxes(_) => (None, &[][..]),
    };
    Look { stroke: Stroke { color, width: LINE_WIDTH, dash }, marker, small: series.small }
}

/// The axes that a series has its places on, and their places.
pub(super) struct Ground<'a> {
    pub(super) x: &'a Frame,
    pub(super) y: &'a Frame,
    pub(super) plot: Rect,
}

impl Ground<'_> {
    fn across(&self, part: f64) -> f64 {
        self.plot.left + part * self.plot.width()
    }

    fn up(&self, part: f64) -> f64 {
        self.plot.bottom - part * self.plot.height()
    }

    fn place(&self, (x, y): (f64, f64)) -> Option<Point> {
        Some((self.across(self.x.part(x)?), self.up(self.y.part(y)?)))
    }

    /// The part of a rectangle that is in the plot.
    fn patch(&self, x: (f64, f64), y: (f64, f64)) -> Option<Rect> {
        let within = |part: f64| part.clamp(0.0, 1.0);
        let rect = Rect {
            left: self.across(within(x.0.min(x.1))),
            right: self.across(within(x.0.max(x.1))),
            top: self.up(within(y.0.max(y.1))),
            bottom: self.up(within(y.0.min(y.1))),
        };
        (rect.width() > 0.0).then_some(rect)
    }
}

/// Draws the series of that index.
pub(super) fn draw(chart: &Chart, index: usize, ground: &Ground<'_>) -> Vec<Item> {
    let Some(series) = chart.series.get(index) else { return Vec::new() };
    let look = look(series, index);
    match &series.data {
        Data::Line(points) => line(points, &look, ground),
        Data::Steps(points) => steps(points, &look, ground),
        Data::Points(points) => {
            let within = points.iter().filter_map(|point| ground.place(*point));
            let within = within.filter(|point| ground.plot.contains(*point));
            within.flat_map(|at| look.marker.map(|shape| marker(shape, at, &look))).flatten().collect()
        }
        Data::Stripes(points) => stripes(points, look.stroke.color, ground),
        Data::Bars(heights) => bars(heights, slot(chart, index), look.stroke.color, ground),
        Data::Histogram { start, width, heights } => {
            histogram((*start, *width), heights, look.stroke.color, ground)
        }
        Data::Boxes(boxes) => {
            let slot = slot(chart, index);
            let places = boxes.iter().enumerate();
            places
                .flat_map(|(at, quantiles)| quantile_box(at, quantiles, slot, look.stroke.color, ground))
                .collect()
        }
    }
}

fn line(points: &[(f64, f64)], look: &Look, ground: &Ground<'_>) -> Vec<Item> {
    // A number that has no place breaks the line.
    let runs = points.split(|point| ground.place(*point).is_none());
    let mut items = Vec::new();
    for run in runs {
        let run: Vec<_> = run.iter().filter_map(|point| ground.place(*point)).collect();
        items.extend(polylines(&run, look, ground));
        if let Some(shape) = look.marker {
            let within = run.iter().filter(|point| ground.plot.contains(**point));
            items.extend(within.flat_map(|at| marker(shape, *at, look)));
        }
    }
    if points.len() == 1 && look.marker.is_none() {
        let alone = points.iter().filter_map(|point| ground.place(*point));
        items.extend(alone.flat_map(|at| marker(Marker::Circle, at, look)));
    }
    items
}

fn polylines(points: &[Point], look: &Look, ground: &Ground<'_>) -> Vec<Item> {
    // A line along the frame is drawn whole: half a pixel more.
    let Rect { left, top, right, bottom } = ground.plot;
    let plot = Rect { left: left - 0.5, top: top - 0.5, right: right + 0.5, bottom: bottom + 0.5 };
    let parts = plot.clip_polyline(points);
    parts.into_iter().map(|points| Item::Polyline { points, stroke: look.stroke }).collect()
}

fn steps(points: &[(f64, f64)], look: &Look, ground: &Ground<'_>) -> Vec<Item> {
    let place = |(x, y): &(f64, f64)| Some((ground.x.part_or_low(*x)?, ground.y.part(*y)?));
    let places: Vec<_> = points.iter().filter_map(place).collect();
    let Some(&(first, _)) = places.first() else { return Vec::new() };
    let mut at = (first.min(0.0), ground.y.part(0.0).unwrap_or(0.0));
    let mut path = vec![at];
    for (x, y) in places {
        if x != at.0 {
            path.push((x, at.1));
        }
        at = (x, y);
        path.push(at);
    }
    if at.0 < 1.0 {
        path.push((1.0, at.1));
    }
    let path: Vec<_> = path.into_iter().map(|(x, y)| (ground.across(x), ground.up(y))).collect();
    polylines(&path, look, ground)
}

fn stripes(points: &[(f64, f64)], color: Color, ground: &Ground<'_>) -> Vec<Item> {
    let within = points.iter().filter_map(|point| ground.place(*point));
    let mut centers: Vec<Point> = within.filter(|point| ground.plot.contains(*point)).collect();
    // To halves of a pixel: however many points there are, the picture stays small.
    centers.iter_mut().for_each(|(x, y)| (*x, *y) = ((*x * 2.0).round() / 2.0, (*y * 2.0).round() / 2.0));
    centers.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    centers.dedup();
    if centers.is_empty() {
        return Vec::new();
    }
    let (radius, opacity) = if centers.len() < 300 { (1.8, 0.8) } else { (1.3, 0.6) };
    vec![Item::Dots { centers, radius, color, opacity }]
}

/// The index of a series among those that stand beside each other in a slot, and their number.
fn slot(chart: &Chart, index: usize) -> (f64, f64) {
    let stands = |series: &&Series| matches!(series.data, Data::Bars(_) | Data::Boxes(_));
    let before = chart.series.iter().take(index).filter(stands).count();
    let all = chart.series.iter().filter(stands).count();
    (as_f64(before), as_f64(all.max(1)))
}

/// The two ends of a bar's base, in numbers of its axis.
fn stand(at: usize, (before, all): (f64, f64)) -> (f64, f64) {
    let width = FILLED / all;
    let left = as_f64(at) - FILLED / 2.0 + before * width;
    let room = if all > 1.0 { width * 0.06 } else { 0.0 };
    (left + room, left + width - room)
}

fn bars(heights: &[f64], slot: (f64, f64), fill: Color, ground: &Ground<'_>) -> Vec<Item> {
    let bar = |(at, height): (usize, &f64)| {
        let (left, right) = stand(at, slot);
        bar((left, right), *height, fill, ground)
    };
    heights.iter().enumerate().filter_map(bar).collect()
}

fn bar((left, right): (f64, f64), height: f64, fill: Color, ground: &Ground<'_>) -> Option<Item> {
    let across = (ground.x.part(left)?, ground.x.part(right)?);
    let patch = ground.patch(across, (ground.y.ground(), ground.y.part(height)?))?;
    Some(Item::Area { points: patch.corners(), fill, opacity: 1.0 })
}

fn histogram((start, width): (f64, f64), heights: &[f64], fill: Color, ground: &Ground<'_>) -> Vec<Item> {
    let level = ground.up(ground.y.ground());
    let mut outline = Vec::new();
    for (at, height) in heights.iter().enumerate() {
        let left = start + as_f64(at) * width;
        let top = ground.y.part(*height).unwrap_or(ground.y.ground()).clamp(0.0, 1.0);
        let ends = [ground.x.part(left), ground.x.part(left + width)];
        let ends = ends.into_iter().flatten().map(|x| x.clamp(0.0, 1.0));
        outline.extend(ends.map(|x| (ground.across(x), ground.up(top))));
    }
    let (Some(first), Some(last)) = (outline.first().copied(), outline.last().copied()) else {
        return Vec::new();
    };
    outline.insert(0, (first.0, level));
    outline.push((last.0, level));
    // See-through, with a line around: classes of several series lie over each other.
    let mut items = vec![Item::Area { points: outline.clone(), fill, opacity: PALE }];
    let stroke = Stroke::solid(fill, 1.2);
    items.extend(polylines(&outline, &Look { stroke, marker: None, small: false }, ground));
    items
}

fn quantile_box(
    at: usize,
    quantiles: &Quantiles,
    slot: (f64, f64),
    color: Color,
    ground: &Ground<'_>,
) -> Vec<Item> {
    let (left, right) = stand(at, slot);
    let Quantiles { low, lower, median, upper, high } = *quantiles;
    let mut items = Vec::new();
    let stroke = Stroke::solid(color, 1.4);
    let (middle, quarter) = ((left + right) / 2.0, (right - left) / 4.0);
    let line = |points: [(f64, f64); 2], stroke: Stroke, items: &mut Vec<Item>| {
        let points: Vec<_> = points.into_iter().filter_map(|point| ground.place(point)).collect();
        let look = Look { stroke, marker: None, small: false };
        items.extend(polylines(&points, &look, ground));
    };
    line([(middle, low), (middle, high)], stroke, &mut items);
    line([(middle - quarter, low), (middle + quarter, low)], stroke, &mut items);
    line([(middle - quarter, high), (middle + quarter, high)], stroke, &mut items);
    let parts = (ground.x.part(left), ground.x.part(right), ground.y.part(lower), ground.y.part(upper));
    if let (Some(left), Some(right), Some(lower), Some(upper)) = parts
        && let Some(patch) = ground.patch((left, right), (lower, upper))
    {
        let mut outline = patch.corners();
        outline.extend(outline.first().copied());
        items.push(Item::Area { points: patch.corners(), fill: PAPER, opacity: 1.0 });
        items.push(Item::Area { points: patch.corners(), fill: color, opacity: PALE });
        items.push(Item::Polyline { points: outline, stroke });
    }
    line([(left, median), (right, median)], Stroke::solid(color, 2.4), &mut items);
    items
}

/// A marker at a place.
pub(super) fn marker(shape: Marker, (x, y): Point, look: &Look) -> Vec<Item> {
    let fill = look.stroke.color;
    let size = match look {
        Look { small: true, .. } => 2.2,
        Look { stroke, .. } if stroke.width > 2.0 => 4.2,
        _ => 3.4,
    };
    let area = |corners: &[(f64, f64)]| {
        let points = corners.iter().map(|(dx, dy)| (x + dx * size, y + dy * size)).collect();
        vec![Item::Area { points, fill, opacity: 1.0 }]
    };
    match shape {
        Marker::Circle => vec![Item::Disc { center: (x, y), radius: size, fill, line: None }],
        Marker::Ring => {
            let line = Some(Stroke::solid(fill, 1.5));
            vec![Item::Disc { center: (x, y), radius: size, fill: PAPER, line }]
        }
        Marker::Square => area(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),
        Marker::Diamond => area(&[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)]),
        Marker::Triangle => area(&[(0.0, -1.25), (1.15, 0.85), (-1.15, 0.85)]),
        Marker::Downward => area(&[(0.0, 1.25), (1.15, -0.85), (-1.15, -0.85)]),
        Marker::Cross => {
            let line = |from: Point, to: Point| {
                let points = vec![(x + from.0 * size, y + from.1 * size), (x + to.0 * size, y + to.1 * size)];
                Item::Polyline { points, stroke: Stroke::solid(fill, 1.8) }
            };
            vec![line((-0.9, -0.9), (0.9, 0.9)), line((-0.9, 0.9), (0.9, -0.9))]
        }
    }
}

/// Places that an item touches, close to each other.
pub(super) fn trail(item: &Item) -> Vec<Point> {
    match item {
        Item::Polyline { points, .. } => {
            points.windows(2).flat_map(|pair| between(pair[0], pair[1])).collect()
        }
        Item::Area { points, .. } => {
            // From its edges down to its lowest point: bars and classes stand on the ground.
            let bottom = points.iter().map(|(_, y)| *y).fold(f64::MIN, f64::max);
            let edge = points.windows(2).flat_map(|pair| between(pair[0], pair[1]));
            edge.flat_map(|(x, y)| between((x, y), (x, bottom))).collect()
        }
        Item::Disc { center, .. } => vec![*center],
        Item::Dots { centers, .. } => centers.clone(),
        Item::Text(text) => vec![text.at],
    }
}

fn between(a: Point, b: Point) -> Vec<Point> {
    let length = (b.0 - a.0).hypot(b.1 - a.1);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 1 to 400")]
    let parts = (length / TRAIL).ceil().clamp(1.0, TRAIL_MAX) as usize;
    let at = |part: usize| as_f64(part) / as_f64(parts);
    (0..=parts).map(|part| (a.0 + at(part) * (b.0 - a.0), a.1 + at(part) * (b.1 - a.1))).collect()
}
