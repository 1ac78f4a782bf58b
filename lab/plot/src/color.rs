//! Colours that people with any colour vision can tell apart, and the other distinctions of series: dashes and markers.

/// Red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Color(pub u8, pub u8, pub u8);

/// Lines of text and axes.
pub const INK: Color = Color(0x26, 0x26, 0x26);
/// Less important text.
pub const SOFT_INK: Color = Color(0x5c, 0x5c, 0x5c);
/// The grid.
pub const GRID: Color = Color(0xe4, 0xe4, 0xe4);
/// Rules.
pub const RULE: Color = Color(0xb0, 0x30, 0x30);
/// The background.
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

/// The shape that marks a point.
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

/// The look of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Style {
    /// Its colour.
    pub color: Color,
    /// Its dashes, in pixels.
    pub dash: &'static [f64],
    /// The marker of its points.
    pub marker: Marker,
}

/// The style of a number. Eight colours, seven markers and four dashes: 56 differ in colour and marker.
#[must_use]
pub fn palette(number: usize) -> Style {
    Style {
        color: HUES[number % HUES.len()],
        // Another dash for each time that the colours begin again, and one step with each colour.
        dash: DASHES[(number + number / HUES.len()) % DASHES.len()],
        marker: MARKERS[number % MARKERS.len()],
    }
}
