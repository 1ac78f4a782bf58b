//! A scene as PNG, drawn by tiny-skia: filled paths and stroked paths. Letters are strokes.

use crate::color::{Color, PAPER};
use crate::font::{self, Pen};
use crate::scene::{Anchor, Item, Point, Scene, Stroke, Text};
use headstart_block::{Error, ErrorKind, Result};
use tiny_skia::{FillRule, LineCap, LineJoin, Paint, Path, PathBuilder, Pixmap, StrokeDash, Transform};

/// Most pixels of a picture: 400 MB of memory while it is drawn.
const PIXELS_MAX: f64 = 1e8;

/// The file, with `scale` pixels for each of the scene's.
pub(crate) fn write(scene: &Scene, scale: f64) -> Result<Vec<u8>> {
    let (width, height) = ((scene.width * scale).ceil(), (scene.height * scale).ceil());
    // Also of what is not a number.
    if !(scale > 0.0 && width >= 1.0 && height >= 1.0 && width * height <= PIXELS_MAX) {
        return Err(Error::invalid(format!("a picture of {width} x {height} pixels cannot be drawn")));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 1 to 1e8")]
    let pixmap = Pixmap::new(width as u32, height as u32);
    let Some(pixmap) = pixmap else {
        return Err(Error::invalid(format!("a picture of {width} x {height} pixels cannot be drawn")));
    };
    #[expect(clippy::cast_possible_truncation, reason = "a place in a picture")]
    let scale = scale as f32;
    let mut canvas = Canvas { pixmap, scale: Transform::from_scale(scale, scale) };
    canvas.pixmap.fill(color(PAPER, 1.0));
    scene.items.iter().for_each(|item| canvas.draw(item));
    let png = canvas.pixmap.encode_png();
    png.map_err(|e| Error::new(ErrorKind::Io, "cannot encode a picture as PNG").caused_by(e.to_string()))
}

struct Canvas {
    pixmap: Pixmap,
    scale: Transform,
}

impl Canvas {
    fn draw(&mut self, item: &Item) {
        match item {
            Item::Polyline { points, stroke } => {
                if let Some(path) = joined(points, false) {
                    self.stroke(&path, stroke, LineCap::Butt, 1.0, self.scale);
                }
            }
            Item::Area { points, fill, opacity } => {
                if let Some(path) = joined(points, true) {
                    self.fill(&path, *fill, *opacity);
                }
            }
            Item::Disc { center, radius, fill, line } => {
                let (x, y) = place(*center);
                let Some(path) = PathBuilder::from_circle(x, y, number(*radius)) else { return };
                self.fill(&path, *fill, 1.0);
                if let Some(line) = line {
                    self.stroke(&path, line, LineCap::Butt, 1.0, self.scale);
                }
            }
            Item::Dots { centers, radius, color, opacity } => {
                for center in centers {
                    let (x, y) = place(*center);
                    if let Some(path) = PathBuilder::from_circle(x, y, number(*radius)) {
                        self.fill(&path, *color, *opacity);
                    }
                }
            }
            Item::Text(text) => self.text(text),
        }
    }

    fn text(&mut self, text: &Text) {
        let mut builder = PathBuilder::new();
        for pen in font::strokes(&text.text, text.size, text.bold) {
            match pen {
                Pen::Move(to) => {
                    let (x, y) = place(to);
                    builder.move_to(x, y);
                }
                Pen::Line(to) => {
                    let (x, y) = place(to);
                    builder.line_to(x, y);
                }
                Pen::Curve(out, back, to) => {
                    let ((ax, ay), (bx, by), (x, y)) = (place(out), place(back), place(to));
                    builder.cubic_to(ax, ay, bx, by, x, y);
                }
            }
        }
        let Some(path) = builder.finish() else { return };
        let width = font::width(&text.text, text.size, text.bold);
        let left = match text.anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => -width / 2.0,
            Anchor::End => -width,
        };
        let (x, y) = place(text.at);
        let transform = self
            .scale
            .pre_translate(x, y)
            .pre_concat(Transform::from_rotate(number(-text.angle)))
            .pre_translate(number(left), 0.0);
        let stroke = Stroke::solid(text.color, font::line_width(text.size, text.bold));
        self.stroke(&path, &stroke, LineCap::Round, 1.0, transform);
    }

    fn stroke(
        &mut self,
        path: &Path,
        stroke: &Stroke,
        line_cap: LineCap,
        opacity: f64,
        transform: Transform,
    ) {
        let dash: Vec<f32> = stroke.dash.iter().map(|length| number(*length)).collect();
        let line = tiny_skia::Stroke {
            width: number(stroke.width),
            line_cap,
            line_join: LineJoin::Round,
            dash: if dash.is_empty() { None } else { StrokeDash::new(dash, 0.0) },
            ..tiny_skia::Stroke::default()
        };
        self.pixmap.stroke_path(path, &paint(stroke.color, opacity), &line, transform, None);
    }

    fn fill(&mut self, path: &Path, fill: Color, opacity: f64) {
        self.pixmap.fill_path(path, &paint(fill, opacity), FillRule::Winding, self.scale, None);
    }
}

fn joined(points: &[Point], closed: bool) -> Option<Path> {
    let mut builder = PathBuilder::new();
    for (index, point) in points.iter().enumerate() {
        let (x, y) = place(*point);
        if index == 0 {
            builder.move_to(x, y);
        } else {
            builder.line_to(x, y);
        }
    }
    if closed {
        builder.close();
    }
    builder.finish()
}

fn paint(fill: Color, opacity: f64) -> Paint<'static> {
    let mut paint = Paint::default();
    paint.set_color(color(fill, opacity));
    paint
}

fn color(Color(red, green, blue): Color, opacity: f64) -> tiny_skia::Color {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 255")]
    let alpha = (opacity.clamp(0.0, 1.0) * 255.0) as u8;
    tiny_skia::Color::from_rgba8(red, green, blue, alpha)
}

#[expect(clippy::cast_possible_truncation, reason = "a place in a picture")]
fn number(number: f64) -> f32 {
    number.clamp(-1e6, 1e6) as f32
}

fn place((x, y): Point) -> (f32, f32) {
    (number(x), number(y))
}
