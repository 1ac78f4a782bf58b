//! Draws a picture that a script describes in JSON on its standard input, as SVG on its standard output.
//!
//! ```json
//! {"title": "", "note": "", "columns": 3, "width": 400, "height": 280, "charts": [
//!   {"title": "", "x": {"label": "bandwidth [MB/s]", "log": true}, "y": {"label": "share", "names": ["a", "b"]},
//!    "series": [{"name": "", "kind": "line|points|bars", "style": 0, "points": [[2, 0.4]], "heights": [1, 2]}],
//!    "rules": [{"y": 0.1, "label": "goal"}]}]}
//! ```

#![allow(clippy::print_stdout, reason = "a program")]

use headstart_plot::{Axis, Chart, Picture, Rule, Series};
use serde_json::Value;
use std::error::Error;
use std::io;

fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

fn axis(value: &Value) -> Axis {
    let label = text(value, "label");
    let mut axis = match &value["names"] {
        Value::Array(names) => Axis::categories(label, names.iter().filter_map(Value::as_str)),
        _ if value["log"] == true => Axis::log(label),
        _ => Axis::linear(label),
    };
    axis.min = value["from"].as_f64();
    axis.max = value["to"].as_f64();
    axis
}

fn series(value: &Value) -> Series {
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let points =
        || list(value, "points").iter().map(|point| (number(&point[0]), number(&point[1]))).collect();
    let name = text(value, "name");
    let series = match value["kind"].as_str() {
        Some("bars") => Series::bars(name, list(value, "heights").iter().map(number).collect()),
        Some("points") => Series::points(name, points()),
        _ => Series::line(name, points()),
    };
    match value["style"].as_u64().and_then(|style| usize::try_from(style).ok()) {
        Some(style) => series.style(style),
        None => series,
    }
}

fn chart(value: &Value) -> Chart {
    let mut chart = Chart::new(axis(&value["x"]), axis(&value["y"])).titled(text(value, "title"));
    for one in list(value, "series") {
        chart = chart.with(series(one));
    }
    for rule in list(value, "rules") {
        let label = text(rule, "label");
        chart = match (rule["x"].as_f64(), rule["y"].as_f64()) {
            (Some(at), _) => chart.rule(Rule::x(at, label)),
            (None, at) => chart.rule(Rule::y(at.unwrap_or(f64::NAN), label)),
        };
    }
    chart
}

fn main() -> Result<(), Box<dyn Error>> {
    let value: Value = serde_json::from_reader(io::stdin().lock())?;
    let mut picture = Picture::new(text(&value, "title")).note(text(&value, "note"));
    if let (Some(width), Some(height)) = (value["width"].as_f64(), value["height"].as_f64()) {
        picture = picture.panel(width, height);
    }
    let columns = value["columns"].as_u64().and_then(|columns| usize::try_from(columns).ok());
    picture = picture.columns(columns.unwrap_or(2));
    for one in list(&value, "charts") {
        picture = picture.with(chart(one));
    }
    println!("{}", picture.svg());
    Ok(())
}
