//! Colours that people with any colour vision can tell apart, and the other distinctions of series: dashes and markers.

/// A colour: its red, green and blue components, 0 to 255 each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Color(pub u8, pub u8, pub u8);

/// Colour of text, and of the lines of axes.
pub const INK: Color = Color(0x26, 0x26, 0x26);
/// Colour of less important text.
pub const SOFT_INK: Color = Color(0x5c, 0x5c, 0x5c);
/// Colour of the grid lines.
pub const GRID: Color = Color(0xe4, 0xe4, 0xe4);
/// Colour of the lines that mark a value ([`Rule`](crate::Rule)).
pub const RULE: Color = Color(0xb0, 0x30, 0x30);
/// Colour of the background.
pub const PAPER: Color = Color(0xff, 0xff, 0xff);

/// The palette of Okabe and Ito, the strongest first; its yellow is darkened, because it is on white.
const HUES: [Color; 8] = [
    Color(0x00, 0x72, 0xb2),
    Color(0xd5, 0x5e, 0x00),
    Color(0x00, 0x9e, 0x73),
    Color(0xcc, 0x79, 0xa7),
    Color(0x56, 0xb4, 0xe9),
    Color(0xe6, 0x9f, 0x00),
    Color(0x59, 0x59, 0x59),
    Color(0xb3, 0xa1, 0x00),
];

/// Dashes: drawn, left out, drawn, ... in pixels; none is a solid line.
const DASHES: [&[f64]; 4] = [&[], &[6.0, 3.0], &[1.6, 2.4], &[7.0, 2.5, 1.6, 2.5]];

/// The shape that marks a point of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// A disc.
    Circle,
    /// A square.
    Square,
    /// A triangle that points up.
    Triangle,
    /// A square that stands on its corner.
    Diamond,
    /// A triangle that points down.
    Downward,
    /// A cross of two diagonals.
    Cross,
    /// A ring.
    Ring,
}

const MARKERS: [Marker; 7] = [
    Marker::Circle,
    Marker::Square,
    Marker::Triangle,
    Marker::Diamond,
    Marker::Downward,
    Marker::Cross,
    Marker::Ring,
];

/// The style of a series: colour, dashes and marker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Style {
    /// Colour of lines, markers and areas.
    pub color: Color,
    /// Lengths in pixels that are drawn and left out in turn; empty for a solid line.
    pub dash: &'static [f64],
    /// The shape of the series' points.
    pub marker: Marker,
}

/// Returns the style with this index; any number is valid. The first 56 styles differ from each other in
/// colour or marker.
#[must_use]
pub fn palette(number: usize) -> Style {
    Style {
        color: HUES[number % HUES.len()],
        // Another dash for each time that the colours begin again, and one step with each colour.
        dash: DASHES[(number + number / HUES.len()) % DASHES.len()],
        marker: MARKERS[number % MARKERS.len()],
    }
}
