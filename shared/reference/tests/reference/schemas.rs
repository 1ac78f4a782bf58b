//! The output of commands with `--json` is as the generated schemas say, with no field that these lack.

use crate::recorded::{ROOT, record};
use headstart_reference::json::{Described, reports};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Recordings that are no report of a command of their name: the file, the command, and the case.
const OTHERS: [(&str, &str, &str); 5] = [
    ("attach-ready", "attach", "when the disks can be used"),
    ("attach-end", "attach", "when the disks were detached"),
    ("attach-agent", "attach", "with `--agent`: the disk, as the agent describes it"),
    ("agent-ready", "agent", "when it listens"),
    ("harvest-ready", "harvest serve", "when the vSSDs can be used"),
];

/// A schema, with the definitions that its references name.
#[derive(Clone, Copy)]
struct Schema<'a> {
    all: &'a Value,
    at: &'a Value,
}

impl<'a> Schema<'a> {
    fn whole(all: &'a Value) -> Self {
        Self { all, at: all }
    }

    fn part(self, at: &'a Value) -> Self {
        let name = at["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/"));
        match name {
            Some(name) => Self { all: self.all, at: &self.all["$defs"][name] }.part_of_definition(),
            None => Self { all: self.all, at },
        }
    }

    fn part_of_definition(self) -> Self {
        assert!(self.at.is_object(), "a reference leads nowhere");
        self.part(self.at)
    }

    fn parts(self, key: &'a str) -> impl Iterator<Item = Self> {
        self.at[key].as_array().into_iter().flatten().map(move |one| self.part(one))
    }

    /// The names of the fields that an object may have; none where it may have any.
    fn names(self) -> Option<BTreeSet<&'a str>> {
        let is_open = self.at.get("additionalProperties").is_some();
        let kinds = ["properties", "allOf", "anyOf"];
        if is_open || kinds.iter().all(|kind| self.at.get(*kind).is_none()) {
            return None;
        }
        let own = self.at["properties"].as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        let mut names: BTreeSet<_> = own.collect();
        for part in self.parts("allOf").chain(self.parts("anyOf")) {
            names.extend(part.names()?);
        }
        Some(names)
    }

    /// Adds to `faults` what in `value` is not as the schema says.
    fn check(self, value: &Value, place: &str, faults: &mut Vec<String>) {
        let mut fault = |text: &str| faults.push(format!("{place}: {value} {text}"));
        if !is_of_type(&self.at["type"], value) {
            return fault(&format!("is no {}", self.at["type"]));
        }
        if self.at["enum"].as_array().is_some_and(|values| !values.contains(value)) {
            fault("is none of the values");
        }
        if self.at.get("const").is_some_and(|only| only != value) {
            fault("is not the value");
        }
        if let Some(fields) = value.as_object() {
            self.check_fields(fields, place, faults);
        }
        for (index, element) in value.as_array().into_iter().flatten().enumerate() {
            let prefix = self.at["prefixItems"].get(index);
            if let Some(of) = prefix.or(self.at.get("items")) {
                self.part(of).check(element, &format!("{place}[{index}]"), faults);
            }
        }
        for part in self.parts("allOf") {
            part.check(value, place, faults);
        }
        let tries: Vec<_> = self.parts("anyOf").map(|part| part.faults(value, place)).collect();
        if !tries.is_empty() && tries.iter().all(|tried| !tried.is_empty()) {
            faults.push(format!("{place}: {value} is none of the ways: {tries:?}"));
        }
    }

    fn faults(self, value: &Value, place: &str) -> Vec<String> {
        let mut faults = Vec::new();
        self.check(value, place, &mut faults);
        faults
    }

    fn check_fields(self, fields: &serde_json::Map<String, Value>, place: &str, faults: &mut Vec<String>) {
        for name in self.at["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !fields.contains_key(name) {
                faults.push(format!("{place}: {name} is required"));
            }
        }
        for (name, value) in fields {
            let of = self.at["properties"].get(name).or(self.at.get("additionalProperties"));
            if let Some(of) = of {
                self.part(of).check(value, &format!("{place}.{name}"), faults);
            }
        }
    }

    /// The fields of objects at the top that the schema does not have.
    fn strangers(self, value: &Value) -> Vec<String> {
        let (Some(names), Some(fields)) = (self.names(), value.as_object()) else { return Vec::new() };
        fields.keys().filter(|name| !names.contains(name.as_str())).cloned().collect()
    }
}

/// `true` if a value is of one of the types that a schema names, or it names none.
fn is_of_type(types: &Value, value: &Value) -> bool {
    let is = |name: &Value| match name.as_str().unwrap_or_default() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        other => panic!("{other} is not a type"),
    };
    match types {
        Value::Null => true,
        Value::Array(types) => types.iter().any(is),
        name => is(name),
    }
}

/// Checks all objects in `value` for fields that their schema lacks.
fn check_strangers(schema: Schema<'_>, value: &Value, place: &str, faults: &mut Vec<String>) {
    let strangers = schema.strangers(value);
    faults.extend(strangers.into_iter().map(|name| format!("{place}: {name} is not in the schema")));
    for (name, inner) in value.as_object().into_iter().flatten() {
        let ways = schema.parts("allOf").chain(schema.parts("anyOf")).chain([schema]);
        let of = ways.filter_map(|way| Some((way, way.at["properties"].get(name)?))).next();
        if let Some((way, of)) = of {
            check_strangers(way.part(of), inner, &format!("{place}.{name}"), faults);
        }
    }
    if let Some(of) = schema.at.get("items") {
        for (index, inner) in value.as_array().into_iter().flatten().enumerate() {
            check_strangers(schema.part(of), inner, &format!("{place}[{index}]"), faults);
        }
    }
}

fn of<'a>(reports: &'a [Described], command: &str, case: &str) -> Option<&'a Described> {
    let has = |report: &&Described| report.commands.iter().any(|one| one == command);
    reports.iter().filter(has).find(|report| case.is_empty() || report.case == case)
}

#[test]
fn reports_are_as_their_schemas_say() {
    let directory = tempfile::tempdir().unwrap();
    if !record(directory.path()) {
        return;
    }
    let reports = reports(Path::new(ROOT)).unwrap();
    let (mut faults, mut checked) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(directory.path().join("json")).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let special = OTHERS.iter().find(|(file, ..)| *file == stem);
        let (command, case) =
            special.map_or((stem.replace('-', " "), ""), |(_, command, case)| ((*command).to_owned(), *case));
        let Some(report) = of(&reports, &command, case) else { continue };
        let value: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let schema = Schema::whole(&report.schema);
        schema.check(&value, &stem, &mut faults);
        check_strangers(schema, &value, &stem, &mut faults);
        checked.push(stem);
    }
    assert!(faults.is_empty(), "not as the schemas say:\n  {}", faults.join("\n  "));
    for name in [
        "attach-ready",
        "attach-end",
        "agent-ready",
        "image-inspect",
        "swarm-status",
        "harvest-status",
        "train",
    ] {
        assert!(checked.iter().any(|stem| stem == name), "{name} is not among what was checked: {checked:?}");
    }
    assert!(checked.len() >= 20, "{checked:?}");
}

/// A report that lacks a field, has one of another type, or one more, is not as the schema says.
#[test]
fn fields_that_a_schema_lacks_are_faults() {
    let reports = reports(Path::new(ROOT)).unwrap();
    let schema = Schema::whole(&of(&reports, "cache usage", "").unwrap().schema);
    let faults = |text: &str| {
        let value = serde_json::from_str(text).unwrap();
        let mut faults = schema.faults(&value, "usage");
        check_strangers(schema, &value, "usage", &mut faults);
        faults
    };
    assert!(!faults("{}").is_empty());
    assert!(!faults("[]").is_empty());
    let strange = faults("{\"surely_no_field\": 1}");
    assert!(strange.iter().any(|fault| fault.contains("surely_no_field")), "{strange:?}");
}
