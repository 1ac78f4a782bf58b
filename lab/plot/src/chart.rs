//! The content of a chart, as plain values. `layout` decides on its look.

use crate::color::Color;

/// One or several charts that make a picture: panels beside and below each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// The title above all panels; empty for none.
    pub title: String,
    /// A line under the title that describes the data; empty for none.
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
    /// A picture with this title, and no panel yet.
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

    /// Sets the line under the title.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    /// Sets the number of panels in a row.
    #[must_use]
    pub fn columns(self, columns: usize) -> Self {
        Self { columns, ..self }
    }

    /// Sets the size of panels, in pixels.
    #[must_use]
    pub fn panel(self, width: f64, height: f64) -> Self {
        Self { width, height, ..self }
    }

    /// Adds a panel.
    #[must_use]
    pub fn with(mut self, chart: Chart) -> Self {
        self.charts.push(chart);
        self
    }
}

/// One pair of axes and the series between them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    /// The title above the axes; empty for none.
    pub title: String,
    /// The axis below.
    pub x: Axis,
    /// The axis at the left.
    pub y: Axis,
    /// The axis at the right, for the series that are [`Series::on_second`].
    pub second: Option<Axis>,
    /// The series that are drawn, the first at the bottom.
    pub series: Vec<Series>,
    /// Lines across the chart that mark a value.
    pub rules: Vec<Rule>,
    /// The place of the names of the series.
    pub legend: Legend,
}

impl Chart {
    /// A chart with these axes, and no series yet.
    #[must_use]
    pub fn new(x: Axis, y: Axis) -> Self {
        Self { x, y, ..Self::default() }
    }

    /// Sets the title.
    #[must_use]
    pub fn titled(self, title: impl Into<String>) -> Self {
        Self { title: title.into(), ..self }
    }

    /// Sets a second axis at the right.
    #[must_use]
    pub fn second(self, axis: Axis) -> Self {
        Self { second: Some(axis), ..self }
    }

    /// Adds a series.
    #[must_use]
    pub fn with(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }

    /// Adds a line that marks a value.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Sets the place of the legend.
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
    /// The mapping of numbers to places.
    pub scale: Scale,
    /// The least number shown; with `None`, the data decide.
    pub min: Option<f64>,
    /// The greatest number shown; with `None`, the data decide.
    pub max: Option<f64>,
    /// `true` if only whole numbers are marked, for things that are counted.
    pub whole: bool,
}

impl Axis {
    /// An axis of evenly spaced numbers.
    #[must_use]
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), ..Self::default() }
    }

    /// An axis of powers of ten. Numbers that are not above zero have no place on it: they are left out, except in
    /// the distribution functions ([`Data::Steps`]), in which they count from the axis's start on.
    #[must_use]
    pub fn log(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Log, ..Self::default() }
    }

    /// An axis of names: the places are 0, 1, ...
    #[must_use]
    pub fn categories<T: Into<String>>(label: impl Into<String>, names: impl IntoIterator<Item = T>) -> Self {
        let names = names.into_iter().map(Into::into).collect();
        Self { label: label.into(), scale: Scale::Categories(names), ..Self::default() }
    }

    /// Sets the least number.
    #[must_use]
    pub fn from(self, min: f64) -> Self {
        Self { min: Some(min), ..self }
    }

    /// Sets the greatest number.
    #[must_use]
    pub fn to(self, max: f64) -> Self {
        Self { max: Some(max), ..self }
    }

    /// Marks only whole numbers.
    #[must_use]
    pub fn whole(self) -> Self {
        Self { whole: true, ..self }
    }

    /// An axis of shares of a whole: `from` 0 `to` 1.
    #[must_use]
    pub fn share(label: impl Into<String>) -> Self {
        Self::linear(label).from(0.0).to(1.0)
    }
}

/// The mapping of numbers to places on an axis.
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
    /// The numbers that are drawn.
    pub data: Data,
    /// The number of its style in [`palette`](crate::palette); with `None`, the next one.
    pub style: Option<usize>,
    /// A colour of its own, instead of its style's.
    pub color: Option<Color>,
    /// `true` if its markers are small, for many points.
    pub small: bool,
    /// `true` if its numbers belong to the axis at the right.
    pub on_second: bool,
}

impl Series {
    fn new(name: impl Into<String>, data: Data) -> Self {
        Self { name: name.into(), data, style: None, color: None, small: false, on_second: false }
    }

    /// Points joined by a line, each marked if they are few.
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

    /// Puts the series on the axis at the right.
    #[must_use]
    pub fn on_second(self) -> Self {
        Self { on_second: true, ..self }
    }

    /// Makes the markers small.
    #[must_use]
    pub fn small(self) -> Self {
        Self { small: true, ..self }
    }

    /// Sets the style by its number: colour, dashes and marker together. The same number in several charts looks
    /// the same.
    #[must_use]
    pub fn style(self, style: usize) -> Self {
        Self { style: Some(style), ..self }
    }

    /// Sets a colour of its own.
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
        /// The start of the first class.
        start: f64,
        /// The width of each class.
        width: f64,
        /// The height of each class.
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
    /// The box's lower end.
    pub lower: f64,
    /// The line in the box.
    pub median: f64,
    /// The box's upper end.
    pub upper: f64,
    /// The whisker's upper end.
    pub high: f64,
}

/// A line across the chart at a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The axis of the value.
    pub axis: RuleAxis,
    /// The value.
    pub at: f64,
    /// The meaning of the line; empty for none.
    pub label: String,
}

/// The axis of a [`Rule`]'s value.
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

/// The place of the names of the series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Legend {
    /// Nowhere for one series; in a corner where nothing is drawn, if there is one; otherwise above; many at the right.
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
