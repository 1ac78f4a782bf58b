//! The names of series, each with a sample of its look.

use super::as_f64;
use super::marks::{self, Look};
use crate::chart::{Chart, Data, Series};
use crate::color::{Color, INK, Marker, PAPER};
use crate::font;
use crate::scene::{Item, Point, Rect, Stroke, Text};

const SIZE: f64 = 11.5;
/// The distance from a row to the next.
const ROW: f64 = 17.0;
/// Width of a sample.
const SAMPLE: f64 = 24.0;
const GAP: f64 = 16.0;
/// The space around names that stand within a plot.
const PAD: f64 = 6.0;

/// A name and the look of its series.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    name: String,
    sample: Sample,
}

#[derive(Clone, Debug, PartialEq)]
enum Sample {
    Line(Look),
    Marker(Marker, Look),
    Patch(Color, f64),
}

/// The entries of a chart: its series that have names.
pub(super) fn entries(chart: &Chart) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for (index, series) in chart.series.iter().enumerate().filter(|(_, series)| !series.name.is_empty()) {
        let entry = Entry { name: series.name.clone(), sample: sample(series, index) };
        if !entries.contains(&entry) {
            entries.push(entry);
        }
    }
    entries
}

fn sample(series: &Series, index: usize) -> Sample {
    let look = marks::look(series, index);
    match series.data {
        Data::Line(_) | Data::Steps(_) => Sample::Line(look),
        Data::Points(_) | Data::Stripes(_) => Sample::Marker(look.marker.unwrap_or(Marker::Circle), look),
        Data::Bars(_) => Sample::Patch(look.stroke.color, 1.0),
        Data::Histogram { .. } | Data::Boxes(_) => Sample::Patch(look.stroke.color, marks::PALE),
    }
}

impl Entry {
    fn width(&self) -> f64 {
        SAMPLE + 6.0 + font::width(&self.name, SIZE, false)
    }

    /// Draws the entry with its left end and the middle of its height at `at`.
    fn draw(&self, at: Point) -> Vec<Item> {
        let (left, middle) = at;
        let center = (left + SAMPLE / 2.0, middle);
        let mut items = match &self.sample {
            Sample::Line(look) => {
                let points = vec![(left, middle), (left + SAMPLE, middle)];
                let mut items = vec![Item::Polyline { points, stroke: look.stroke }];
                items.extend(look.marker.iter().flat_map(|marker| marks::marker(*marker, center, look)));
                items
            }
            Sample::Marker(marker, look) => marks::marker(*marker, center, look),
            Sample::Patch(color, opacity) => {
                let (left, right) = (left + 4.0, left + SAMPLE - 4.0);
                let patch = Rect { left, top: middle - 5.0, right, bottom: middle + 5.0 };
                let mut outline = patch.corners();
                outline.extend(outline.first().copied());
                vec![
                    Item::Area { points: patch.corners(), fill: *color, opacity: *opacity },
                    Item::Polyline { points: outline, stroke: Stroke::solid(*color, 1.2) },
                ]
            }
        };
        let text = (left + SAMPLE + 6.0, middle + SIZE * 0.36);
        items.push(Item::Text(Text::new(self.name.clone(), text, SIZE, INK)));
        items
    }
}

/// The entries in rows that are no wider than that, and about as wide as each other.
pub(super) fn rows(entries: &[Entry], width: f64) -> Vec<Vec<&Entry>> {
    let full = rows_of(entries, width);
    let narrower = (1..20).map(|part| rows_of(entries, width * (1.0 - f64::from(part) / 40.0)));
    narrower.take_while(|rows| rows.len() == full.len()).last().unwrap_or(full)
}

fn rows_of(entries: &[Entry], width: f64) -> Vec<Vec<&Entry>> {
    let mut rows: Vec<Vec<&Entry>> = Vec::new();
    let mut used = 0.0;
    for entry in entries {
        match rows.last_mut() {
            Some(row) if used + GAP + entry.width() <= width => {
                used += GAP + entry.width();
                row.push(entry);
            }
            _ => {
                used = entry.width();
                rows.push(vec![entry]);
            }
        }
    }
    rows
}

pub(super) fn rows_height(rows: &[Vec<&Entry>]) -> f64 {
    as_f64(rows.len()) * ROW + 4.0
}

pub(super) fn draw_rows(rows: &[Vec<&Entry>], (left, top): Point) -> Vec<Item> {
    let mut items = Vec::new();
    let mut middle = top + ROW / 2.0;
    for row in rows {
        let mut at = left;
        for entry in row {
            items.extend(entry.draw((at, middle)));
            at += entry.width() + GAP;
        }
        middle += ROW;
    }
    items
}

/// The width of the entries below each other, with the room before them.
pub(super) fn column_width(entries: &[Entry]) -> f64 {
    entries.iter().map(Entry::width).fold(0.0, f64::max) + 14.0
}

pub(super) fn draw_column(entries: &[Entry], (left, top): Point) -> Vec<Item> {
    let mut middle = top + ROW / 2.0;
    let mut items = Vec::new();
    for entry in entries {
        items.extend(entry.draw((left, middle)));
        middle += ROW;
    }
    items
}

/// The entries in a corner of the plot where nothing is drawn; `None` if there is none.
pub(super) fn draw_within(entries: &[Entry], plot: &Rect, drawn: &[Item]) -> Option<Vec<Item>> {
    let width = entries.iter().map(Entry::width).fold(0.0, f64::max) + 2.0 * PAD;
    let height = as_f64(entries.len()) * ROW + PAD;
    if width > plot.width() * 0.6 || height > plot.height() * 0.6 {
        return None;
    }
    let (left, right) = (plot.left + 6.0, plot.right - 6.0 - width);
    let (top, bottom) = (plot.top + 6.0, plot.bottom - 6.0 - height);
    let (middle, center) = ((top + bottom) / 2.0, (left + right) / 2.0);
    let places = [
        (right, bottom),
        (right, top),
        (left, top),
        (left, bottom),
        (right, middle),
        (center, top),
        (center, bottom),
        (left, middle),
    ];
    let touched: Vec<Point> = drawn.iter().flat_map(marks::trail).collect();
    let free = places.into_iter().find(|(left, top)| {
        let room = 3.0;
        let (right, bottom) = (left + width + room, top + height + room);
        let place = Rect { left: left - room, top: top - room, right, bottom };
        !touched.iter().any(|point| place.contains(*point))
    });
    let (left, top) = free?;
    let ground = Rect { left, top, right: left + width, bottom: top + height };
    let mut items = vec![Item::Area { points: ground.corners(), fill: PAPER, opacity: 0.85 }];
    items.extend(draw_column(entries, (left + PAD, top + PAD / 2.0)));
    Some(items)
}
