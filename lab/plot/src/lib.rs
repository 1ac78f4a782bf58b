//! Charts as plain values, drawn as SVG and as PNG from the same primitives.
//!
//! ```
//! use headstart_plot::{Axis, Chart, Picture, Series};
//!
//! let hits = Series::line("thinkahead", vec![(2.0, 0.40), (4.0, 0.69), (10.0, 0.98)]);
//! let chart = Chart::new(Axis::log("bandwidth [MB/s]"), Axis::share("hit rate")).with(hits);
//! let picture = Picture::new("Hit rate by bandwidth").with(chart);
//! assert!(picture.svg().starts_with("<svg"));
//! ```
//!
//! A [`Picture`] of [`Chart`]s is the content; one layout turns it into lines, areas and text; two writers turn those
//! into bytes. The same picture gives the same bytes on any machine, because drawing reads no font and no clock.
//! Numbers that are not finite are left out, and a chart without data says `no data`. Drawing never panics, whatever
//! the data.
//!
//! Libraries were tried: plotters has whole pixels for coordinates, draws beyond the axes, turns text by quarters
//! only and marks powers of ten alone on a logarithmic axis; kuva 0.6 panics where a range is extreme, and its
//! legends cover data.
//!
//! | module | content |
//! |---|---|
//! | [`chart`] | the content of a chart |
//! | [`color`] | colours, dashes, markers |
//! | `layout` | from charts to a scene: axes, marks, legends |
//! | `ticks` | the marks of an axis |
//! | `scene` | lines, areas, text |
//! | `font` | letters as strokes |
//! | `svg`, `png` | a scene as bytes |

#![forbid(unsafe_code)]

pub mod chart;
pub mod color;
mod font;
mod layout;
mod png;
mod scene;
mod svg;
mod ticks;

pub use chart::{Axis, Chart, Data, Legend, Picture, Quantiles, Rule, RuleAxis, Scale, Series};
pub use color::{Color, Marker, Style, palette};
pub use ticks::{round_step, round_up};

use headstart_block::Result;

impl Picture {
    /// Returns the picture as the text of an SVG file.
    #[must_use]
    pub fn svg(&self) -> String {
        svg::write(&layout::lay_out(self))
    }

    /// Returns the picture as the bytes of a PNG file, with `scale` pixels for each unit of
    /// [`Picture::width`]; a scale of 2 is sharp on most screens and in print.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the picture would have more than 10^8 pixels, or no pixels.
    pub fn png(&self, scale: f64) -> Result<Vec<u8>> {
        png::write(&layout::lay_out(self), scale)
    }
}
