//! A scene as SVG text. Letters are left to the viewer's sans-serif.

use crate::color::{Color, PAPER};
use crate::scene::{Anchor, Item, Point, Scene, Stroke, Text};
use std::fmt::Write;

const FONT: &str = "Helvetica, Arial, 'Liberation Sans', sans-serif";

/// The file.
pub(crate) fn write(scene: &Scene) -> String {
    let mut out = String::new();
    let (width, height) = (Short(scene.width), Short(scene.height));
    // Writing into a string does not fail.
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} \
         {height}\" font-family=\"{FONT}\" role=\"img\">\n<title>{}</title>\n<rect width=\"{width}\" \
         height=\"{height}\" fill=\"{}\"/>",
        escaped(&scene.title),
        hex(PAPER)
    );
    for item in &scene.items {
        let _ = write_item(&mut out, item);
    }
    out.push_str("</svg>\n");
    out
}

fn write_item(out: &mut String, item: &Item) -> std::fmt::Result {
    match item {
        Item::Polyline { points, stroke } => {
            let stroke = attributes(stroke);
            writeln!(out, "<path d=\"{}\" fill=\"none\" {stroke}/>", path(points))
        }
        Item::Area { points, fill, opacity } => {
            let opacity = opacity_of("fill", *opacity);
            writeln!(out, "<path d=\"{}Z\" fill=\"{}\"{opacity}/>", path(points), hex(*fill))
        }
        Item::Disc { center, radius, fill, line } => {
            let (x, y, radius) = (Short(center.0), Short(center.1), Short(*radius));
            let line = line.as_ref().map(|line| format!(" {}", attributes(line))).unwrap_or_default();
            writeln!(out, "<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" fill=\"{}\"{line}/>", hex(*fill))
        }
        Item::Dots { centers, radius, color, opacity } => {
            // A line without length has round ends: one element for all dots.
            let mut path = String::new();
            centers.iter().try_for_each(|(x, y)| write!(path, "M{} {}h0", Short(*x), Short(*y)))?;
            let (color, width) = (hex(*color), Short(radius * 2.0));
            let opacity = opacity_of("stroke", *opacity);
            writeln!(
                out,
                "<path d=\"{path}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\" \
                 stroke-linecap=\"round\"{opacity}/>"
            )
        }
        Item::Text(text) => write_text(out, text),
    }
}

fn write_text(out: &mut String, text: &Text) -> std::fmt::Result {
    let (x, y) = (Short(text.at.0), Short(text.at.1));
    let anchor = match text.anchor {
        Anchor::Start => "",
        Anchor::Middle => " text-anchor=\"middle\"",
        Anchor::End => " text-anchor=\"end\"",
    };
    let weight = if text.bold { " font-weight=\"bold\"" } else { "" };
    let turn = if text.angle == 0.0 {
        String::new()
    } else {
        format!(" transform=\"rotate({} {x} {y})\"", Short(-text.angle))
    };
    let (size, color) = (Short(text.size), hex(text.color));
    let text = escaped(&text.text);
    writeln!(
        out,
        "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" fill=\"{color}\"{anchor}{weight}{turn}>{text}</text>"
    )
}

fn attributes(stroke: &Stroke) -> String {
    let mut text = format!(
        "stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\"",
        hex(stroke.color),
        Short(stroke.width)
    );
    if !stroke.dash.is_empty() {
        let dash: Vec<_> = stroke.dash.iter().map(|length| Short(*length).to_string()).collect();
        let _ = write!(text, " stroke-dasharray=\"{}\"", dash.join(" "));
    }
    text
}

fn opacity_of(what: &str, opacity: f64) -> String {
    if opacity < 1.0 { format!(" {what}-opacity=\"{}\"", Short(opacity)) } else { String::new() }
}

fn path(points: &[Point]) -> String {
    let mut path = String::new();
    for (index, (x, y)) in points.iter().enumerate() {
        let command = if index == 0 { 'M' } else { 'L' };
        let _ = write!(path, "{command}{} {}", Short(*x), Short(*y));
    }
    path
}

fn hex(Color(red, green, blue): Color) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Text as XML has it. Characters that XML does not have are left out.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => {}
            char if char.is_control() => {}
            char => out.push(char),
        }
    }
    out
}

/// A number with at most two digits after the point, and none that says nothing.
struct Short(f64);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:.2}", self.0);
        let text = text.trim_end_matches('0').trim_end_matches('.');
        f.write_str(if text == "-0" { "0" } else { text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_letters_escaped() {
        let short = [1.0, 0.5, 0.254, -0.001, 100.0, 12.345].map(|number| Short(number).to_string());
        assert_eq!(short, ["1", "0.5", "0.25", "0", "100", "12.35"].map(str::to_owned));
        assert_eq!(escaped("a<b>&\"\u{1}\n\u{ffff}c"), "a&lt;b&gt;&amp;&quot;c");
    }
}
