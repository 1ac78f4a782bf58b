//! The look of a picture: from charts to lines, areas and text.
//!
//! A picture is a title, perhaps a legend that all panels share, and a grid of cells of one size. A cell has a chart's
//! title, perhaps its own legend, and the plot between its axes. The parts beside a plot take as much room as the panel
//! of its column that needs most, those above and below as that of its row: plots stand in line.
//!
//! | module | content |
//! |---|---|
//! | [`axis`] | from numbers to places |
//! | [`panel`] | a chart: its axes, grid, rules |
//! | [`marks`] | its series |
//! | [`legend`] | their names |

mod axis;
mod legend;
mod marks;
mod panel;

use crate::chart::{Chart, Legend, Picture};
use crate::color::{INK, SOFT_INK};
use crate::font;
use crate::scene::{Item, Rect, Scene, Text};
use legend::Entry;
use panel::{Margins, Panel};

/// The space around everything.
const PAD: f64 = 14.0;
/// The space between panels.
const GAP: f64 = 20.0;
const TITLE_SIZE: f64 = 16.0;
const NOTE_SIZE: f64 = 11.5;
/// The distance from a line of text to the next, as parts of the font's size.
const LINE: f64 = 1.35;
/// Names that a legend has at most within or above a plot.
const FEW: usize = 6;
/// Least width and height of a panel.
const LEAST: (f64, f64) = (160.0, 120.0);
/// Greatest width and height of a panel.
const GREATEST: f64 = 4000.0;

/// The picture's scene.
pub(crate) fn lay_out(picture: &Picture) -> Scene {
    let columns = picture.columns.clamp(1, picture.charts.len().max(1));
    let size = |wanted: f64, least: f64| {
        if wanted.is_finite() { wanted.clamp(least, GREATEST) } else { least }
    };
    let (width, height) = (size(picture.width, LEAST.0), size(picture.height, LEAST.1));
    let entries: Vec<Vec<Entry>> = picture.charts.iter().map(legend::entries).collect();
    let shared = shared(&picture.charts, &entries);
    let places: Vec<Legend> =
        picture.charts.iter().zip(&entries).map(|(chart, names)| place(chart, names, shared)).collect();
    // Beside a column of panels there is as much room as its widest legend needs.
    let mut lefts = Vec::with_capacity(columns);
    let mut right = PAD;
    for column in 0..columns {
        lefts.push(right);
        let cells = places.iter().zip(&entries).skip(column).step_by(columns);
        let beside = cells.filter(|(place, _)| **place == Legend::Right);
        let beside = beside.map(|(_, entries)| legend::column_width(entries)).fold(0.0, f64::max);
        right += width + beside + GAP;
    }
    let full = right - GAP + PAD;
    let mut items = Vec::new();
    let mut top = heading(picture, full, &mut items);
    if shared && let Some(entries) = entries.first() {
        let rows = legend::rows(entries, full - 2.0 * PAD);
        top += 4.0;
        items.extend(legend::draw_rows(&rows, (PAD, top)));
        top += legend::rows_height(&rows) + 6.0;
    }
    let panels: Vec<Panel<'_>> = picture
        .charts
        .iter()
        .zip(&entries)
        .zip(&places)
        .map(|((chart, entries), place)| Panel { chart, entries, legend: *place })
        .collect();
    let guess = panel::aligned(&panels, columns, (width, height), &vec![Margins::default(); panels.len()]);
    let margins = panel::aligned(&panels, columns, (width, height), &guess);
    for (index, (panel, margins)) in panels.iter().zip(&margins).enumerate() {
        let left = lefts.get(index % columns).copied().unwrap_or(PAD);
        let top = top + as_f64(index / columns) * (height + GAP);
        let cell = Rect { left, top, right: left + width, bottom: top + height };
        panel.draw(&cell, margins, &mut items);
    }
    let rows = as_f64(picture.charts.len().div_ceil(columns));
    let bottom = top + rows * height + (rows - 1.0).max(0.0) * GAP;
    let title = if picture.title.is_empty() {
        picture.charts.first().map(|chart| chart.title.clone()).unwrap_or_default()
    } else {
        picture.title.clone()
    };
    Scene { width: full.ceil(), height: (bottom + PAD).ceil(), title, items }
}

/// Draws title and note; returns the top of the rest.
fn heading(picture: &Picture, full: f64, items: &mut Vec<Item>) -> f64 {
    let mut top = PAD;
    for line in wrapped(&picture.title, TITLE_SIZE, true, full - 2.0 * PAD) {
        items.push(Item::Text(Text::new(line, (PAD, top + TITLE_SIZE), TITLE_SIZE, INK).bold()));
        top += TITLE_SIZE * LINE;
    }
    for line in wrapped(&picture.note, NOTE_SIZE, false, full - 2.0 * PAD) {
        items.push(Item::Text(Text::new(line, (PAD, top + NOTE_SIZE), NOTE_SIZE, SOFT_INK)));
        top += NOTE_SIZE * LINE;
    }
    if top > PAD { top + 6.0 } else { top }
}

/// `true` if one legend is enough for all panels.
fn shared(charts: &[Chart], entries: &[Vec<Entry>]) -> bool {
    let Some(first) = entries.first().filter(|first| first.len() > 1 && charts.len() > 1) else {
        return false;
    };
    charts.iter().all(|chart| chart.legend == Legend::Auto) && entries.iter().all(|other| other == first)
}

/// The place of a chart's legend.
fn place(chart: &Chart, entries: &[Entry], shared: bool) -> Legend {
    match chart.legend {
        _ if entries.is_empty() => Legend::Hidden,
        Legend::Auto if shared || entries.len() < 2 => Legend::Hidden,
        Legend::Auto if entries.len() > FEW => Legend::Right,
        place => place,
    }
}

/// A text in lines that are no wider than that.
fn wrapped(text: &str, size: f64, bold: bool, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if font::width(&format!("{line} {word}"), size, bold) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[expect(clippy::cast_precision_loss, reason = "a number of panels or of bars")]
fn as_f64(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests;
