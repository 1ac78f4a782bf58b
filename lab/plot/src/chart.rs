//! The content of a chart, as plain values. Its look is decided when the picture is drawn.

use crate::color::Color;

/// A picture of one or several charts, arranged as panels in rows and columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// The title above all panels; empty for none.
    pub title: String,
    /// A line under the title that describes the data; empty for none.
    pub note: String,
    /// The panels, row by row from the top left.
    pub charts: Vec<Chart>,
    /// The number of panels in a row; 0 counts as 1.
    pub columns: usize,
    /// Width of a panel in pixels at scale 1, including its axes and without a legend at its right; drawn as at least
    /// 160 and at most 4,000.
    pub width: f64,
    /// Height of a panel in pixels at scale 1, including its axes; drawn as at least 120 and at most 4,000.
    pub height: f64,
}

impl Picture {
    /// Creates a picture with this title, without a note and without panels.
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

    /// Sets the line under the title that describes the data.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    /// Sets the number of panels in a row; 0 counts as 1.
    #[must_use]
    pub fn columns(self, columns: usize) -> Self {
        Self { columns, ..self }
    }

    /// Sets the width and the height of each panel, in pixels at scale 1.
    #[must_use]
    pub fn panel(self, width: f64, height: f64) -> Self {
        Self { width, height, ..self }
    }

    /// Adds a panel after the others.
    #[must_use]
    pub fn with(mut self, chart: Chart) -> Self {
        self.charts.push(chart);
        self
    }
}

/// A chart: a pair of axes and the series that are drawn between them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    /// The title above the axes; empty for none.
    pub title: String,
    /// The horizontal axis, below the chart.
    pub x: Axis,
    /// The vertical axis, at the left.
    pub y: Axis,
    /// A second vertical axis at the right, for the series with [`Series::on_second`]. `None`: there is no
    /// such axis.
    pub second: Option<Axis>,
    /// The series in the order of drawing; a later one covers an earlier one.
    pub series: Vec<Series>,
    /// Straight lines across the chart, each of which marks a value.
    pub rules: Vec<Rule>,
    /// The position of the legend.
    pub legend: Legend,
}

impl Chart {
    /// Creates a chart with these axes, without a title and without series.
    #[must_use]
    pub fn new(x: Axis, y: Axis) -> Self {
        Self { x, y, ..Self::default() }
    }

    /// Sets the title.
    #[must_use]
    pub fn titled(self, title: impl Into<String>) -> Self {
        Self { title: title.into(), ..self }
    }

    /// Sets the second vertical axis, at the right.
    #[must_use]
    pub fn second(self, axis: Axis) -> Self {
        Self { second: Some(axis), ..self }
    }

    /// Adds a series, drawn on top of the others.
    #[must_use]
    pub fn with(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }

    /// Adds a straight line across the chart that marks a value.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Sets the position of the legend.
    #[must_use]
    pub fn legend(self, legend: Legend) -> Self {
        Self { legend, ..self }
    }
}

/// An axis: its label, scale and ends. If the given start is not below the given end, both are ignored. An end that is
/// not finite, or not above zero on a logarithmic axis, is ignored too, and so are the ends of an axis of categories.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// The label, with the unit in brackets: `waiting time [s]`.
    pub label: String,
    /// The mapping of numbers to positions along the axis.
    pub scale: Scale,
    /// The number at the start of the axis. `None`: chosen from the data.
    pub min: Option<f64>,
    /// The number at the end of the axis. `None`: chosen from the data.
    pub max: Option<f64>,
    /// `true` if the axis has marks at whole numbers only, as for counts. Used on linear axes only.
    pub whole: bool,
}

impl Axis {
    /// Creates an axis with a linear scale, whose ends are chosen from the data.
    #[must_use]
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), ..Self::default() }
    }

    /// Creates an axis with a logarithmic scale. Numbers that are not above zero are left out. The exceptions are the
    /// horizontal numbers of distribution functions ([`Data::Steps`]), which are drawn at the start of the axis.
    #[must_use]
    pub fn log(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Log, ..Self::default() }
    }

    /// Creates an axis of named categories; data refer to them by index, from 0.
    #[must_use]
    pub fn categories<T: Into<String>>(label: impl Into<String>, names: impl IntoIterator<Item = T>) -> Self {
        let names = names.into_iter().map(Into::into).collect();
        Self { label: label.into(), scale: Scale::Categories(names), ..Self::default() }
    }

    /// Sets the number at the start of the axis.
    #[must_use]
    pub fn from(self, min: f64) -> Self {
        Self { min: Some(min), ..self }
    }

    /// Sets the number at the end of the axis.
    #[must_use]
    pub fn to(self, max: f64) -> Self {
        Self { max: Some(max), ..self }
    }

    /// Restricts the marks of a linear axis to whole numbers, as for counts.
    #[must_use]
    pub fn whole(self) -> Self {
        Self { whole: true, ..self }
    }

    /// Creates a linear axis for shares of a whole, from 0 to 1.
    #[must_use]
    pub fn share(label: impl Into<String>) -> Self {
        Self::linear(label).from(0.0).to(1.0)
    }
}

/// The mapping of numbers to positions along an axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Scale {
    /// A linear scale: equal differences have equal lengths.
    #[default]
    Linear,
    /// A logarithmic scale: equal ratios have equal lengths.
    Log,
    /// Categories with these names: the whole numbers from 0 on stand for the names in order, and each has an equal
    /// part of the axis.
    Categories(Vec<String>),
}

/// A series: data that are drawn in one style and have one name in the legend.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The name in the legend; empty: the series is not in the legend.
    pub name: String,
    /// The data, with the form in which they are drawn.
    pub data: Data,
    /// Index of the style in [`palette`](crate::palette). `None`: the index of the series in its chart, from 0.
    pub style: Option<usize>,
    /// A colour that replaces the colour of the style. `None`: the style's colour is used.
    pub color: Option<Color>,
    /// `true` if markers are small, which suits many points.
    pub small: bool,
    /// `true` if the series belongs to the vertical axis at the right.
    pub on_second: bool,
}

impl Series {
    fn new(name: impl Into<String>, data: Data) -> Self {
        Self { name: name.into(), data, style: None, color: None, small: false, on_second: false }
    }

    /// Creates a series of points, `(x, y)`, joined by straight lines; the points have markers if there are at most
    /// 40.
    #[must_use]
    pub fn line(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self::new(name, Data::Line(points))
    }

    /// Creates a cumulative distribution, drawn in steps. Each point is a number and the share (0 to 1) of all numbers
    /// that are not greater; both must be ascending.
    #[must_use]
    pub fn steps(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self::new(name, Data::Steps(points))
    }

    /// Creates a series of separate points, `(x, y)`, each with a marker.
    #[must_use]
    pub fn points(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self::new(name, Data::Points(points))
    }

    /// Creates a series of very many points, `(x, y)`, drawn as small transparent dots, so dense regions are
    /// darker.
    #[must_use]
    pub fn stripes(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self::new(name, Data::Stripes(points))
    }

    /// Creates bars, one for each category of the horizontal axis. Several such series stand side by side
    /// within a category.
    #[must_use]
    pub fn bars(name: impl Into<String>, heights: Vec<f64>) -> Self {
        Self::new(name, Data::Bars(heights))
    }

    /// Creates adjoining bars on an axis of numbers: the first begins at `start`, and each is `width` wide.
    #[must_use]
    pub fn histogram(name: impl Into<String>, start: f64, width: f64, heights: Vec<f64>) -> Self {
        Self::new(name, Data::Histogram { start, width, heights })
    }

    /// Creates boxes with whiskers, one for each category of the horizontal axis. Several such series stand
    /// side by side within a category.
    #[must_use]
    pub fn boxes(name: impl Into<String>, boxes: Vec<Quantiles>) -> Self {
        Self::new(name, Data::Boxes(boxes))
    }

    /// Assigns the series to the vertical axis at the right.
    #[must_use]
    pub fn on_second(self) -> Self {
        Self { on_second: true, ..self }
    }

    /// Sets small markers, which suit many points.
    #[must_use]
    pub fn small(self) -> Self {
        Self { small: true, ..self }
    }

    /// Sets the index of the style (colour, dashes and marker together) in [`palette`](crate::palette).
    /// Series with the same index look the same in all charts.
    #[must_use]
    pub fn style(self, style: usize) -> Self {
        Self { style: Some(style), ..self }
    }

    /// Sets a colour that replaces the colour of the style.
    #[must_use]
    pub fn color(self, color: Color) -> Self {
        Self { color: Some(color), ..self }
    }
}

/// The data of a series and the form in which they are drawn. Numbers that are not finite are left out; a line is
/// interrupted there.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Points, `(x, y)`, joined by straight lines in this order.
    Line(Vec<(f64, f64)>),
    /// Points, `(x, y)`, joined by level steps: a value holds until the next point.
    Steps(Vec<(f64, f64)>),
    /// Points, `(x, y)`, each with a marker.
    Points(Vec<(f64, f64)>),
    /// Points, `(x, y)`, each drawn as a small transparent dot.
    Stripes(Vec<(f64, f64)>),
    /// Heights of bars, one for each category.
    Bars(Vec<f64>),
    /// Heights of adjoining bars, one for each class of numbers.
    Histogram {
        /// The start of the first class.
        start: f64,
        /// The width of each class.
        width: f64,
        /// The height of each class.
        heights: Vec<f64>,
    },
    /// Boxes with whiskers, one for each category.
    Boxes(Vec<Quantiles>),
}

/// Five quantiles of a distribution, drawn as a box with whiskers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quantiles {
    /// The number at the lower end of the whiskers.
    pub low: f64,
    /// The number at the lower end of the box.
    pub lower: f64,
    /// The number at the line in the box.
    pub median: f64,
    /// The number at the upper end of the box.
    pub upper: f64,
    /// The number at the upper end of the whiskers.
    pub high: f64,
}

/// A straight line across the chart that marks a value of one axis. Not drawn if the axis does not reach the value.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The axis that the value belongs to.
    pub axis: RuleAxis,
    /// The marked value, in the unit of its axis.
    pub at: f64,
    /// The label of the line; empty: none.
    pub label: String,
}

/// The axis that a [`Rule`]'s value belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAxis {
    /// The horizontal axis; the line is vertical.
    X,
    /// The left axis; the line is horizontal.
    Y,
}

impl Rule {
    /// Creates a vertical line at the value `at` of the horizontal axis.
    #[must_use]
    pub fn x(at: f64, label: impl Into<String>) -> Self {
        Self { axis: RuleAxis::X, at, label: label.into() }
    }

    /// Creates a horizontal line at the value `at` of the left axis.
    #[must_use]
    pub fn y(at: f64, label: impl Into<String>) -> Self {
        Self { axis: RuleAxis::Y, at, label: label.into() }
    }
}

/// The position of the legend, which lists the names of the series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Legend {
    /// Chosen from the data. For fewer than two named series there is no legend, for more than six the legend is at the
    /// right. Otherwise it is at an empty place of the chart or, without such a place, above the axes. If all panels of
    /// a picture have this position and the same named series, at least two, they share one legend above all panels
    /// instead.
    #[default]
    Auto,
    /// Above the axes, in rows.
    Above,
    /// At the right of the axes.
    Right,
    /// No legend.
    Hidden,
}
