//! Letters as strokes, so that text is drawn without a font, the same on every machine.
//!
//! A glyph is its advance and a path of a pen, in twentieths of the font's size, from the base line upwards: capitals
//! are 14 high, small letters 10, descenders 4 deep. The advances are about those of Helvetica, so that an SVG file,
//! which leaves the letters to its viewer, has room for the text that was measured here.
//!
//! | command | movement of the pen |
//! |---|---|
//! | `M x y` | goes there |
//! | `L x y` | draws a line |
//! | `h x y` | draws a quarter of an ellipse that leaves level and arrives upright |
//! | `v x y` | the same, leaving upright and arriving level |
//! | `C x y x y x y` | draws a curve of Bézier's |
//! | `D x y` | puts a dot |

use crate::scene::Point;

/// Units of a glyph in a font's size.
const EM: f64 = 20.0;
/// The control points of a curve that is nearest to a quarter of a circle.
const ROUND: f64 = 0.5523;
/// The glyph of a character that has none: a box.
const UNKNOWN: (f64, &str) = (11.0, "M2 0 L2 14 L9 14 L9 0 L2 0");

/// The next movement of the pen, in pixels from a text's start; y goes down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pen {
    Move(Point),
    Line(Point),
    Curve(Point, Point, Point),
}

/// The space between two letters, in units.
const SPACE: f64 = 0.35;

/// Width of a text in pixels.
pub(crate) fn width(text: &str, size: f64, bold: bool) -> f64 {
    let units: f64 = text.chars().map(|char| glyph(char).0 + SPACE).sum();
    units / EM * size * if bold { BOLD } else { 1.0 }
}

/// The factor by which bold text is wider.
const BOLD: f64 = 1.06;

/// Width of the pen's line.
pub(crate) fn line_width(size: f64, bold: bool) -> f64 {
    size * if bold { 0.125 } else { 0.084 }
}

/// The movements of the pen for a text of that size, from (0, 0).
pub(crate) fn strokes(text: &str, size: f64, bold: bool) -> Vec<Pen> {
    let unit = size / EM;
    let across = unit * if bold { BOLD } else { 1.0 };
    let mut pens = Vec::new();
    let mut left = 0.0;
    for char in text.chars() {
        let (advance, path) = glyph(char);
        let place = |(x, y): Point| ((left + x) * across, -y * unit);
        draw(path, place, &mut pens);
        left += advance + SPACE;
    }
    pens
}

/// Follows a path.
fn draw(path: &str, place: impl Fn(Point) -> Point, pens: &mut Vec<Pen>) {
    let mut rest = path;
    let mut at = (0.0, 0.0);
    while let Some(command) = rest.chars().next() {
        let after = rest.get(1..).unwrap_or_default();
        let end = after.find(|char: char| char.is_ascii_alphabetic()).unwrap_or(after.len());
        let (numbers, next) = after.split_at(end);
        rest = next;
        let numbers: Vec<f64> = numbers.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let &[.., x, y] = numbers.as_slice() else { continue };
        let to = (x, y);
        match (command, numbers.as_slice()) {
            ('M', _) => pens.push(Pen::Move(place(to))),
            ('L', _) => pens.push(Pen::Line(place(to))),
            ('D', _) => pens.extend([Pen::Move(place(to)), Pen::Line(place((x + 0.02, y)))]),
            ('h', _) => {
                let (out, back) = ((at.0 + ROUND * (x - at.0), at.1), (x, y - ROUND * (y - at.1)));
                pens.push(Pen::Curve(place(out), place(back), place(to)));
            }
            ('v', _) => {
                let (out, back) = ((at.0, at.1 + ROUND * (y - at.1)), (x - ROUND * (x - at.0), y));
                pens.push(Pen::Curve(place(out), place(back), place(to)));
            }
            ('C', &[ax, ay, bx, by, _, _]) => {
                pens.push(Pen::Curve(place((ax, ay)), place((bx, by)), place(to)));
            }
            _ => {}
        }
        at = to;
    }
}

/// Advance and path of a character.
fn glyph(char: char) -> (f64, &'static str) {
    let ascii = usize::try_from(u32::from(char)).ok().and_then(|code| code.checked_sub(32));
    if let Some(glyph) = ascii.and_then(|index| ASCII.get(index)) {
        return *glyph;
    }
    OTHERS.iter().find(|(other, ..)| *other == char).map_or(UNKNOWN, |(_, advance, path)| (*advance, path))
}

/// The glyphs from the space to the tilde.
#[rustfmt::skip]
const ASCII: [(f64, &str); 95] = [
    (5.6, ""),
    (5.6, "M2.8 14 L2.8 4.4 D2.8 0.5"),
    (7.0, "M2 14 L2 10.4 M5 14 L5 10.4"),
    (11.1, "M4.4 14 L2.6 0 M8.6 14 L6.8 0 M1.4 9.4 L10 9.4 M1 4.6 L9.6 4.6"),
    (11.1, "M9.4 10.6 v5.5 13 h1.6 10 v5.5 7.1 h9.7 4 v5.5 1 h1.3 3.6 M5.5 15 L5.5 -1.2"),
    (17.8, "M4.6 14 h7.7 10.6 v4.6 7.2 h1.5 10.6 v4.6 14 M13.2 6.8 h16.3 3.4 v13.2 0 h10.1 3.4 v13.2 6.8 \
            M13.4 14 L4.4 0"),
    (13.6, "M12.6 0 L4 9.2 C2.2 11.6 3.6 14 5.8 14 C8.4 14 9.4 11.4 7.6 9.6 C6 8 1.4 7 1.4 3.6 v5.2 0 \
            C8.6 0 11 2.8 11.2 6.2"),
    (4.0, "M2 14 L2 10.4"),
    (6.7, "M5.2 15 C1.2 11 1.2 0.4 5.2 -3.6"),
    (6.7, "M1.5 15 C5.5 11 5.5 0.4 1.5 -3.6"),
    (8.0, "M4 14 L4 8.6 M1.6 12.7 L6.4 9.9 M6.4 12.7 L1.6 9.9"),
    (11.7, "M1.6 6 L10.1 6 M5.85 1.8 L5.85 10.2"),
    (5.6, "M3 0.8 L2.1 -2.4"),
    (6.7, "M1.2 5 L5.5 5"),
    (5.6, "D2.8 0.5"),
    (6.4, "M0.7 -0.8 L5.7 14.4"),
    (11.1, "M5.55 14 h9.8 7 v5.55 0 h1.3 7 v5.55 14"),
    (11.1, "M2.2 11.2 L5.9 14 L5.9 0"),
    (11.1, "M1.6 10.3 v5.5 14 h9.5 10.2 C9.5 7.2 3.6 4.6 1.5 0 L9.8 0"),
    (11.1, "M1.7 11 v5.4 14 h9.2 10.7 v5.4 7.5 L4.2 7.5 M5.4 7.5 h9.8 3.75 v5.4 0 h1.3 3.2"),
    (11.1, "M7.8 0 L7.8 14 L1 4.3 L10.2 4.3"),
    (11.1, "M9.3 14 L2.9 14 L2.1 7.2 C3 8.3 4.2 8.9 5.6 8.9 h9.8 4.5 v5.4 0 h1.3 3.1"),
    (11.1, "M9.2 11.2 v5.9 14 h1.3 6 L1.3 4.6 v5.6 0 h9.8 4.4 v5.6 8.8 h1.3 4.6"),
    (11.1, "M1.4 14 L9.8 14 C7 10 4.8 5.5 4.3 0"),
    (11.1, "M5.55 14 h9.2 10.75 v5.55 7.5 h1.9 10.75 v5.55 14 M5.55 7.5 h9.8 3.75 v5.55 0 h1.3 3.75 v5.55 7.5"),
    (11.1, "M1.9 2.8 v5.2 0 h9.8 8 L9.8 9.4 v5.5 14 h1.3 9.6 v5.5 5.2 h9.8 9.4"),
    (5.6, "D2.8 0.5 D2.8 8.6"),
    (5.6, "D2.8 8.6 M3 0.8 L2.1 -2.4"),
    (11.7, "M10 10 L1.8 6 L10 2"),
    (11.7, "M1.6 8 L10.1 8 M1.6 4 L10.1 4"),
    (11.7, "M1.8 10 L10 6 L1.8 2"),
    (11.1, "M1.6 10.8 v5.4 14 h9.3 10.6 C9.3 7.6 5.4 7.6 5.4 4.2 D5.4 0.5"),
    (20.3, "M14 9.6 v10 11 h5.6 6 v9.6 2.6 h14 6.4 L14 4.8 v16 2.6 h18.8 7.4 v10.4 14.4 h1.4 6 v10.4 -3 L15 -2.2"),
    (13.3, "M1 0 L6.65 14 L12.3 0 M3 4.8 L10.3 4.8"),
    (13.3, "M2 0 L2 14 L7.5 14 h11.3 10.75 v7.5 7.5 L2 7.5 M7.5 7.5 h12.1 3.75 v7.5 0 L2 0"),
    (14.4, "M12.8 10.4 v7.4 14 h1.4 7 v7.4 0 h12.9 3.8"),
    (14.4, "M2 0 L2 14 L6 14 h12.9 7 v6 0 L2 0"),
    (13.3, "M11.8 0 L2.2 0 L2.2 14 L11.5 14 M2.2 7.3 L10.8 7.3"),
    (12.2, "M2.2 0 L2.2 14 L11.2 14 M2.2 7.1 L10 7.1"),
    (15.6, "M13.5 10.6 v7.6 14 h1.4 7 v7.6 0 h13.6 5.4 L13.6 6.6 L8.2 6.6"),
    (14.4, "M2 0 L2 14 M12.4 0 L12.4 14 M2 7.3 L12.4 7.3"),
    (5.6, "M2.8 0 L2.8 14"),
    (10.0, "M8 14 L8 4 v4.5 0 h1 4"),
    (13.3, "M2.2 0 L2.2 14 M12 14 L2.2 5 M5.6 8.1 L12.6 0"),
    (11.1, "M2.2 14 L2.2 0 L10.4 0"),
    (16.7, "M2 0 L2 14 L8.35 1.5 L14.7 14 L14.7 0"),
    (14.4, "M2 0 L2 14 L12.4 0 L12.4 14"),
    (15.6, "M7.8 14 h14.2 7 v7.8 0 h1.4 7 v7.8 14"),
    (13.3, "M2.2 0 L2.2 14 L7.7 14 h12 10.3 v7.7 6.6 L2.2 6.6"),
    (15.6, "M7.8 14 h14.2 7 v7.8 0 h1.4 7 v7.8 14 M9.2 3.6 L14.2 -0.8"),
    (14.4, "M2.2 0 L2.2 14 L7.8 14 h12.2 10.4 v7.8 6.8 L2.2 6.8 M8 6.8 L12.8 0"),
    (13.3, "M11.5 10.8 v6.7 14 h1.9 10.7 v6.6 7.3 h11.9 3.7 v6.7 0 h1.3 3.7"),
    (12.2, "M6.1 0 L6.1 14 M0.8 14 L11.4 14"),
    (14.4, "M2 14 L2 5 v7.2 0 h12.4 5 L12.4 14"),
    (13.3, "M1 14 L6.65 0 L12.3 14"),
    (18.9, "M1 14 L5 0 L9.45 14 L13.9 0 L17.9 14"),
    (13.3, "M1.3 14 L12 0 M12 14 L1.3 0"),
    (13.3, "M1 14 L6.65 6.5 L12.3 14 M6.65 6.5 L6.65 0"),
    (12.2, "M1.4 14 L11 14 L1.2 0 L11.2 0"),
    (5.6, "M4.8 15 L2 15 L2 -3.6 L4.8 -3.6"),
    (6.4, "M0.7 14.4 L5.7 -0.8"),
    (5.6, "M0.8 15 L3.6 15 L3.6 -3.6 L0.8 -3.6"),
    (9.4, "M1.4 8 L4.7 14 L8 8"),
    (11.1, "M0.4 -3 L10.7 -3"),
    (6.7, "M2 14.4 L4.4 11.8"),
    (11.1, "M1.9 7.6 v5.4 10 h9.2 6.8 L9.2 0 M9.2 5.9 C6 5.7 1.3 5.7 1.3 2.7 v4.5 0 C6.8 0 9.2 1.5 9.2 3.8"),
    (11.1, "M1.8 14 L1.8 0 M1.8 5 v5.7 10 h9.8 5 v5.7 0 h1.8 5"),
    (10.0, "M8.8 7.1 v5.3 10 h1.3 5 v5.3 0 h8.9 2.9"),
    (11.1, "M9.3 14 L9.3 0 M9.3 5 v5.4 10 h1.3 5 v5.4 0 h9.3 5"),
    (11.1, "M1.4 5.3 L9.7 5.3 v5.6 10 h1.3 5 v5.6 0 h9.4 2.8"),
    (6.0, "M2.6 0 L2.6 11 v5.6 14 M0.6 10 L5.3 10"),
    (11.1, "M9.3 10 L9.3 -0.3 v5.4 -4.1 h1.9 -2 M9.3 5.2 v5.4 10 h1.3 5.2 v5.4 0.4 h9.3 5.2"),
    (11.1, "M1.8 14 L1.8 0 M1.8 5.6 v5.7 10 h9.3 6.2 L9.3 0"),
    (4.6, "M2.3 10 L2.3 0 D2.3 13.6"),
    (4.6, "M2.6 10 L2.6 -1.5 v0.2 -4 D2.6 13.6"),
    (10.0, "M1.8 14 L1.8 0 M8.8 10 L1.8 3.6 M4.5 6.1 L9.3 0"),
    (4.6, "M2.3 14 L2.3 0"),
    (16.7, "M1.8 10 L1.8 0 M1.8 6 v5.2 10 h8.35 6.6 L8.35 0 M8.35 6 v11.7 10 h14.9 6.6 L14.9 0"),
    (11.1, "M1.8 10 L1.8 0 M1.8 5.6 v5.7 10 h9.3 6.2 L9.3 0"),
    (11.1, "M5.55 10 h9.8 5 v5.55 0 h1.3 5 v5.55 10"),
    (11.1, "M1.8 10 L1.8 -4 M1.8 5 v5.7 10 h9.8 5 v5.7 0 h1.8 5"),
    (11.1, "M9.3 10 L9.3 -4 M9.3 5 v5.4 10 h1.3 5 v5.4 0 h9.3 5"),
    (6.9, "M1.9 10 L1.9 0 M1.9 5.4 v6.5 9.8"),
    (10.0, "M8.5 7.6 v5 10 h1.6 7.5 v5 5.2 h8.8 2.6 v5 0 h1.2 2.5"),
    (6.0, "M2.7 13 L2.7 2.8 v5.5 0.1 M0.6 10 L5.3 10"),
    (11.1, "M1.8 10 L1.8 3.8 v5.2 0 h9.3 4.2 M9.3 10 L9.3 0"),
    (10.0, "M0.9 10 L5 0 L9.1 10"),
    (14.4, "M0.8 10 L3.9 0 L7.2 10 L10.5 0 L13.6 10"),
    (10.0, "M1.1 10 L8.9 0 M8.9 10 L1.1 0"),
    (10.0, "M0.9 10 L5.1 0 M9.2 10 L4.6 -2 C4 -3.6 2.8 -4 1.3 -3.9"),
    (10.0, "M1.3 10 L8.6 10 L1.2 0 L8.8 0"),
    (6.7, "M5.4 15 C1.6 15 5 6.4 1.4 5.7 C5 5 1.6 -3.6 5.4 -3.6"),
    (5.2, "M2.6 15 L2.6 -3.6"),
    (6.7, "M1.3 15 C5.1 15 1.7 6.4 5.3 5.7 C1.7 5 5.1 -3.6 1.3 -3.6"),
    (11.7, "M1.4 5 C2.4 8.6 5 7 5.9 6 C7 4.9 9.4 3.4 10.3 7"),
];

/// The other glyphs, for units and names.
const OTHERS: [(char, f64, &str); 9] = [
    ('\u{b5}', 11.1, "M1.8 10 L1.8 -4 M1.8 3.8 v5.2 0 h9.3 4.2 M9.3 10 L9.3 0"),
    ('\u{d7}', 11.7, "M2.6 9.2 L9.1 2.8 M9.1 9.2 L2.6 2.8"),
    ('\u{b7}', 5.6, "D2.8 5.4"),
    ('\u{2212}', 11.7, "M1.6 6 L10.1 6"),
    ('\u{2013}', 11.1, "M0.8 5 L10.3 5"),
    ('\u{2026}', 20.0, "D3.3 0.5 D10 0.5 D16.7 0.5"),
    ('\u{2264}', 11.7, "M10 11 L1.8 7.2 L10 3.4 M1.8 0.6 L10 0.6"),
    ('\u{2265}', 11.7, "M1.8 11 L10 7.2 L1.8 3.4 M1.8 0.6 L10 0.6"),
    ('\u{b0}', 8.0, "M4 14 h6.4 11.6 v4 9.2 h1.6 11.6 v4 14"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_has_a_path_within_its_place() {
        let all = (' '..='~').chain(OTHERS.iter().map(|(char, ..)| *char)).chain(['\u{1f600}']);
        for char in all {
            let (advance, _) = glyph(char);
            let pens = strokes(&char.to_string(), EM, false);
            assert_eq!(pens.is_empty(), char == ' ', "{char:?}");
            assert!(!matches!(pens.first(), Some(Pen::Line(_) | Pen::Curve(..))), "{char:?} starts nowhere");
            for pen in pens {
                let points = match pen {
                    Pen::Move(at) | Pen::Line(at) => vec![at],
                    Pen::Curve(a, b, c) => vec![a, b, c],
                };
                let inside = |(x, y): &Point| (0.0..=advance).contains(x) && (-15.5..=4.5).contains(y);
                assert!(points.iter().all(inside), "{char:?}: {points:?} of {advance}");
            }
        }
    }

    #[test]
    fn widths_add_up() {
        assert_eq!(width("", 12.0, false), 0.0);
        let (a, ab) = (width("a", 20.0, false), width("ab", 20.0, false));
        assert!((ab - a - 11.1 - SPACE).abs() < 1e-9 && width("ab", 20.0, true) > ab);
    }
}
