//! The elements of a picture: a list of lines, areas and pieces of text, the first at the bottom.

use crate::color::Color;

/// A place in pixels, from the upper left corner.
pub(crate) type Point = (f64, f64);

/// A picture, ready to be written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scene {
    pub(crate) width: f64,
    pub(crate) height: f64,
    /// A description, for people who do not see the picture.
    pub(crate) title: String,
    pub(crate) items: Vec<Item>,
}

/// The look of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stroke {
    pub(crate) color: Color,
    pub(crate) width: f64,
    /// Drawn, left out, ... in pixels; empty for a solid line.
    pub(crate) dash: &'static [f64],
}

impl Stroke {
    pub(crate) fn solid(color: Color, width: f64) -> Self {
        Self { color, width, dash: &[] }
    }
}

/// One piece of a picture.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Item {
    /// Joined points.
    Polyline { points: Vec<Point>, stroke: Stroke },
    /// The area within joined points.
    Area { points: Vec<Point>, fill: Color, opacity: f64 },
    /// A circle: filled, or with a line around.
    Disc { center: Point, radius: f64, fill: Color, line: Option<Stroke> },
    /// Many discs of one kind.
    Dots { centers: Vec<Point>, radius: f64, color: Color, opacity: f64 },
    /// A line of text.
    Text(Text),
}

/// A line of text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Text {
    pub(crate) text: String,
    /// The place where its base line begins, has its middle, or ends.
    pub(crate) at: Point,
    pub(crate) anchor: Anchor,
    /// Height of the font in pixels.
    pub(crate) size: f64,
    pub(crate) bold: bool,
    pub(crate) color: Color,
    /// The angle by which it is turned, counter-clockwise, in degrees.
    pub(crate) angle: f64,
}

/// The part of a text that is at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Text {
    pub(crate) fn new(text: impl Into<String>, at: Point, size: f64, color: Color) -> Self {
        Self { text: text.into(), at, anchor: Anchor::Start, size, bold: false, color, angle: 0.0 }
    }

    pub(crate) fn anchor(self, anchor: Anchor) -> Self {
        Self { anchor, ..self }
    }

    pub(crate) fn bold(self) -> Self {
        Self { bold: true, ..self }
    }

    pub(crate) fn turned(self, angle: f64) -> Self {
        Self { angle, ..self }
    }
}

/// An upright rectangle in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rect {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) right: f64,
    pub(crate) bottom: f64,
}

impl Rect {
    pub(crate) fn width(&self) -> f64 {
        self.right - self.left
    }

    pub(crate) fn height(&self) -> f64 {
        self.bottom - self.top
    }

    pub(crate) fn corners(&self) -> Vec<Point> {
        vec![
            (self.left, self.top),
            (self.right, self.top),
            (self.right, self.bottom),
            (self.left, self.bottom),
        ]
    }

    pub(crate) fn contains(&self, (x, y): Point) -> bool {
        x >= self.left && x <= self.right && y >= self.top && y <= self.bottom
    }

    /// The part of a line from `a` to `b` that is within, after Liang and Barsky.
    pub(crate) fn clip(&self, a: Point, b: Point) -> Option<(Point, Point)> {
        let (dx, dy) = (b.0 - a.0, b.1 - a.1);
        let (mut from, mut to) = (0.0_f64, 1.0_f64);
        let sides =
            [(-dx, a.0 - self.left), (dx, self.right - a.0), (-dy, a.1 - self.top), (dy, self.bottom - a.1)];
        for (toward, room) in sides {
            if toward == 0.0 {
                if room < 0.0 {
                    return None;
                }
                continue;
            }
            let at = room / toward;
            if toward < 0.0 {
                from = from.max(at);
            } else {
                to = to.min(at);
            }
        }
        let at = |t: f64| (a.0 + t * dx, a.1 + t * dy);
        (from <= to).then(|| (at(from), at(to)))
    }

    /// The parts of joined points that are within.
    pub(crate) fn clip_polyline(&self, points: &[Point]) -> Vec<Vec<Point>> {
        let mut parts: Vec<Vec<Point>> = Vec::new();
        for pair in points.windows(2) {
            let &[a, b] = pair else { continue };
            let Some((a, b)) = self.clip(a, b) else { continue };
            match parts.last_mut() {
                Some(part) if part.last() == Some(&a) => part.push(b),
                _ => parts.push(vec![a, b]),
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_the_frame() {
        let frame = Rect { left: 0.0, top: 0.0, right: 10.0, bottom: 10.0 };
        assert_eq!(frame.clip((-5.0, 5.0), (15.0, 5.0)), Some(((0.0, 5.0), (10.0, 5.0))));
        assert_eq!(frame.clip((-5.0, -5.0), (-1.0, 20.0)), None);
        let path = [(1.0, 1.0), (20.0, 1.0), (20.0, 5.0), (5.0, 5.0), (5.0, 6.0)];
        let parts = frame.clip_polyline(&path);
        assert_eq!(parts, [vec![(1.0, 1.0), (10.0, 1.0)], vec![(10.0, 5.0), (5.0, 5.0), (5.0, 6.0)]]);
    }
}
