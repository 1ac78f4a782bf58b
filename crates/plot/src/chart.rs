//! What a chart shows, as plain values. How it looks is decided in `layout`.

use crate::color::Color;

/// One or several charts that make a picture: panels beside and below each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// Above all panels; empty for none.
    pub title: String,
    /// A line under the title: what the data are; empty for none.
    pub note: String,
    /// The panels, row by row.
    pub charts: Vec<Chart>,
    /// Panels in a row, at least one.
    pub columns: usize,
    /// Width of a panel in pixels (at scale 1), with its axes and without a legend beside it.
    pub width: f64,
    /// Height of a panel.
    pub height: f64,
}

impl Picture {
    /// With this title, and no panel yet.
    #[must_use]
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            note: String::new(),
            charts: Vec::new(),
            columns: 2,
            width: 440.0,
            height: 300.0,
        }
    }

    /// With a line under the title.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    /// With so many panels in a row.
    #[must_use]
    pub fn columns(self, columns: usize) -> Self {
        Self { columns, ..self }
    }

    /// With panels of this size in pixels.
    #[must_use]
    pub fn panel(self, width: f64, height: f64) -> Self {
        Self { width, height, ..self }
    }

    /// With one panel more.
    #[must_use]
    pub fn with(mut self, chart: Chart) -> Self {
        self.charts.push(chart);
        self
    }
}

/// One pair of axes and what is drawn between them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    /// Above the axes; empty for none.
    pub title: String,
    /// The axis below.
    pub x: Axis,
    /// The axis at the left.
    pub y: Axis,
    /// The axis at the right, for the series that are [`Series::on_second`].
    pub second: Option<Axis>,
    /// What is drawn, the first at the bottom.
    pub series: Vec<Series>,
    /// Lines across the chart that mark a value.
    pub rules: Vec<Rule>,
    /// Where the names of the series are.
    pub legend: Legend,
}

impl Chart {
    /// With these axes, and nothing in them yet.
    #[must_use]
    pub fn new(x: Axis, y: Axis) -> Self {
        Self { x, y, ..Self::default() }
    }

    /// With this title.
    #[must_use]
    pub fn titled(self, title: impl Into<String>) -> Self {
        Self { title: title.into(), ..self }
    }

    /// With a second axis at the right.
    #[must_use]
    pub fn second(self, axis: Axis) -> Self {
        Self { second: Some(axis), ..self }
    }

    /// With one series more.
    #[must_use]
    pub fn with(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }

    /// With a line that marks a value.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// With the legend there.
    #[must_use]
    pub fn legend(self, legend: Legend) -> Self {
        Self { legend, ..self }
    }
}

/// An axis: its name with the unit, its scale, its ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// The name, with the unit in brackets: `waiting time [s]`.
    pub label: String,
    /// How numbers become places.
    pub scale: Scale,
    /// The least number shown; where `None`, the data tell.
    pub min: Option<f64>,
    /// The greatest number shown; where `None`, the data tell.
    pub max: Option<f64>,
    /// Whether only whole numbers are marked: things that are counted.
    pub whole: bool,
}

impl Axis {
    /// Of evenly spaced numbers.
    #[must_use]
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), ..Self::default() }
    }

    /// Of powers of ten. Numbers that are not above zero have no place on it: they are left out, but for
    /// the distribution functions ([`Data::Steps`]), in which they count from the axis's start on.
    #[must_use]
    pub fn log(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Log, ..Self::default() }
    }

    /// Of names: the places are 0, 1, ...
    #[must_use]
    pub fn categories<T: Into<String>>(label: impl Into<String>, names: impl IntoIterator<Item = T>) -> Self {
        let names = names.into_iter().map(Into::into).collect();
        Self { label: label.into(), scale: Scale::Categories(names), ..Self::default() }
    }

    /// From here on.
    #[must_use]
    pub fn from(self, min: f64) -> Self {
        Self { min: Some(min), ..self }
    }

    /// Up to here.
    #[must_use]
    pub fn to(self, max: f64) -> Self {
        Self { max: Some(max), ..self }
    }

    /// With marks at whole numbers only.
    #[must_use]
    pub fn whole(self) -> Self {
        Self { whole: true, ..self }
    }

    /// A share of a whole: `from` 0 `to` 1.
    #[must_use]
    pub fn share(label: impl Into<String>) -> Self {
        Self::linear(label).from(0.0).to(1.0)
    }
}

/// How numbers become places on an axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Scale {
    /// Evenly.
    #[default]
    Linear,
    /// By their logarithm.
    Log,
    /// Each whole number has a name, and a slot of its own.
    Categories(Vec<String>),
}

/// Some data that are drawn alike and have a name in the legend.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The name in the legend; empty for none.
    pub name: String,
    /// What is drawn.
    pub data: Data,
    /// Which style of [`palette`](crate::palette) it has; where `None`, the next one.
    pub style: Option<usize>,
    /// A colour of its own, instead of its style's.
    pub color: Option<Color>,
    /// Whether its markers are small, for many points.
    pub small: bool,
    /// Whether its numbers belong to the axis at the right.
    pub on_second: bool,
}

impl Series {
    fn new(name: impl Into<String>, data: Data) -> Self {
        Self { name: name.into(), data, style: None, color: None, small: false, on_second: false }
    }

    /// Points joined by a line, each marked where they are few.
    #[must_use]
    pub fn line(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self::new(name, Data::Line(points))
    }

    /// A cumulative distribution: numbers and the share up to each, both rising.
    #[must_use]
    pub fn steps(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self::new(name, Data::Steps(points))
    }

    /// Points.
    #[must_use]
    pub fn points(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self::new(name, Data::Points(points))
    }

    /// Very many points, drawn small and see-through, so that stripes and dense places show.
    #[must_use]
    pub fn stripes(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self::new(name, Data::Stripes(points))
    }

    /// A bar at each category. Several such series stand beside each other in a category's slot.
    #[must_use]
    pub fn bars(name: impl Into<String>, heights: Vec<f64>) -> Self {
        Self::new(name, Data::Bars(heights))
    }

    /// Bars without gaps on an axis of numbers: from `start` on, each `width` wide.
    #[must_use]
    pub fn histogram(name: impl Into<String>, start: f64, width: f64, heights: Vec<f64>) -> Self {
        Self::new(name, Data::Histogram { start, width, heights })
    }

    /// Quantiles at each category. Several such series stand beside each other in a category's slot.
    #[must_use]
    pub fn boxes(name: impl Into<String>, boxes: Vec<Quantiles>) -> Self {
        Self::new(name, Data::Boxes(boxes))
    }

    /// On the axis at the right.
    #[must_use]
    pub fn on_second(self) -> Self {
        Self { on_second: true, ..self }
    }

    /// With small markers.
    #[must_use]
    pub fn small(self) -> Self {
        Self { small: true, ..self }
    }

    /// With the style of this number: colour, dashes and marker together. The same number in several charts looks
    /// the same.
    #[must_use]
    pub fn style(self, style: usize) -> Self {
        Self { style: Some(style), ..self }
    }

    /// With a colour of its own.
    #[must_use]
    pub fn color(self, color: Color) -> Self {
        Self { color: Some(color), ..self }
    }
}

/// The numbers of a series. Those that are not finite are left out.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Joined by straight lines, in this order.
    Line(Vec<(f64, f64)>),
    /// Joined by level steps: a value holds from its place to the next.
    Steps(Vec<(f64, f64)>),
    /// Each with a marker.
    Points(Vec<(f64, f64)>),
    /// Each with a small dot.
    Stripes(Vec<(f64, f64)>),
    /// A height for each category.
    Bars(Vec<f64>),
    /// A height for each class of numbers.
    Histogram {
        /// Where the first class begins.
        start: f64,
        /// How wide each is.
        width: f64,
        /// Of each class.
        heights: Vec<f64>,
    },
    /// Quantiles for each category.
    Boxes(Vec<Quantiles>),
}

/// Some numbers by rank: a box with whiskers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quantiles {
    /// The whisker's lower end.
    pub low: f64,
    /// The box's.
    pub lower: f64,
    /// The line in it.
    pub median: f64,
    /// The box's upper end.
    pub upper: f64,
    /// The whisker's.
    pub high: f64,
}

/// A line across the chart at a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Of which axis the value is.
    pub axis: RuleAxis,
    /// The value.
    pub at: f64,
    /// What it means; empty for none.
    pub label: String,
}

/// Of which axis a [`Rule`]'s value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAxis {
    /// Of the lower axis: the line is upright.
    X,
    /// Of the left axis: the line is level.
    Y,
}

impl Rule {
    /// An upright line at `at` of the lower axis.
    #[must_use]
    pub fn x(at: f64, label: impl Into<String>) -> Self {
        Self { axis: RuleAxis::X, at, label: label.into() }
    }

    /// A level line at `at` of the left axis.
    #[must_use]
    pub fn y(at: f64, label: impl Into<String>) -> Self {
        Self { axis: RuleAxis::Y, at, label: label.into() }
    }
}

/// Where the names of the series are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Legend {
    /// Nowhere for one series; in a corner where nothing is drawn, if there is one; else above; many at the right.
    /// Panels with the same series share one.
    #[default]
    Auto,
    /// Above the axes, in rows.
    Above,
    /// At the right of the axes.
    Right,
    /// Nowhere.
    Hidden,
}
