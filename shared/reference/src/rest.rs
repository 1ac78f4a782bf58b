//! The pages of the HTTP interfaces, generated from their OpenAPI documents.

use crate::kind::kind;
use crate::markdown::{escaped, table};
use crate::source::read;
use crate::{Result, SitePage};
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

/// The recorded documents: the file's name, the page, the title, and the place where the interface is.
const DOCUMENTS: [(&str, &str, &str, &str); 2] = [
    (
        "agent-openapi.json",
        "reference/rest-agent.md",
        "HTTP interface of the agent",
        "At the Unix socket `agent.sock` in the agent's directory (`/run/headstart` by default) for the agent's user; \
         what changes nothing is served over TCP too, at `agent --http ADDRESS`. `GET /openapi.json` has the document \
         that this page is made of.",
    ),
    (
        "harvest-openapi.json",
        "reference/rest-harvest.md",
        "HTTP interface of spare flash",
        "At the Unix socket `harvest.sock` in the directory of `harvest serve` for the daemon's user; what changes \
         nothing is served over TCP too, at `harvest serve --http ADDRESS`. `GET /openapi.json` has the document that \
         this page is made of.",
    ),
];

/// The methods of OpenAPI, in the order of the page.
const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// Generates a page for each HTTP interface from the recorded OpenAPI documents below `recorded`.
///
/// # Errors
///
/// A document cannot be read or is not JSON.
pub fn pages(recorded: &Path) -> Result<Vec<SitePage>> {
    let page = |&(file, path, title, place): &(&str, &str, &str, &str)| {
        let text = read(&recorded.join(file))?;
        let document: Value = serde_json::from_str(&text).map_err(|e| format!("{file}: {e}"))?;
        Ok(SitePage::new(path, title, &format!("{place}\n\n{}", described(&document))))
    };
    DOCUMENTS.iter().map(page).collect()
}

/// The requests of an interface, then the values that they take and give.
fn described(document: &Value) -> String {
    let mut page = "## Requests\n\n".to_owned();
    for (path, item) in document["paths"].as_object().into_iter().flatten() {
        for method in METHODS {
            if item[method].is_object() {
                request(&mut page, method, path, &item[method]);
            }
        }
    }
    page.push_str("## Values\n\n");
    for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
        let _ = writeln!(page, "### {name}\n\n{}", value(schema));
    }
    page
}

fn request(page: &mut String, method: &str, path: &str, operation: &Value) {
    let _ = writeln!(page, "### `{} {path}`\n", method.to_uppercase());
    for text in [text(operation, "summary"), text(operation, "description")] {
        if !text.is_empty() {
            let _ = writeln!(page, "{}\n", escaped(&text));
        }
    }
    let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
    let rows: Vec<_> = parameters.iter().map(parameter).collect();
    if !rows.is_empty() {
        let _ = writeln!(page, "{}", table(["parameter", "in", "type", "meaning"], &rows));
    }
    if let Some(body) = content(&operation["requestBody"]) {
        let _ = writeln!(page, "Takes {body}.\n");
    }
    let answers = operation["responses"].as_object().into_iter().flatten().map(|(status, answer)| {
        let body = content(answer).unwrap_or_default();
        [status.clone(), body, escaped(&text(answer, "description"))]
    });
    let _ = writeln!(page, "{}", table(["status", "answer", "case"], &answers.collect::<Vec<_>>()));
}

fn parameter(parameter: &Value) -> [String; 4] {
    let needed = if parameter["required"] == true { "" } else { ", may be left out" };
    let name = format!("`{}`", text(parameter, "name"));
    let kind = format!("{}{needed}", linked(&parameter["schema"]));
    [name, text(parameter, "in"), kind, escaped(&text(parameter, "description"))]
}

/// The type of the body of a request or an answer.
fn content(holder: &Value) -> Option<String> {
    let (media, content) = holder["content"].as_object()?.iter().next()?;
    let note = if media == "application/json" { String::new() } else { format!(" (`{media}`)") };
    Some(format!("{}{note}", linked(&content["schema"])))
}

/// A value: its fields, its alternatives, or its type.
fn value(schema: &Value) -> String {
    let mut text = text(schema, "description");
    text = if text.is_empty() { String::new() } else { format!("{}\n\n", escaped(&text)) };
    if let Some(fields) = schema["properties"].as_object() {
        let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
        let rows = fields.iter().map(|(name, field)| {
            let needed = if required.iter().any(|one| one == name) { "" } else { ", may be absent" };
            [
                format!("`{name}`"),
                format!("{}{needed}", linked(field)),
                escaped(&self::text(field, "description")),
            ]
        });
        text.push_str(&table(["field", "type", "meaning"], &rows.collect::<Vec<_>>()));
    } else {
        let _ = writeln!(text, "{}", linked(schema));
        for one in ["oneOf", "allOf", "anyOf"].into_iter().flat_map(|key| schema[key].as_array()).flatten() {
            let meaning = self::text(one, "description");
            let _ = writeln!(
                text,
                "* {}{}",
                linked(one),
                if meaning.is_empty() { "" } else { ": " }.to_owned() + &escaped(&meaning)
            );
            if one["properties"].is_object() {
                let names =
                    one["properties"].as_object().into_iter().flatten().map(|(name, _)| format!("`{name}`"));
                let _ = writeln!(text, "  with {}", names.collect::<Vec<_>>().join(", "));
            }
        }
    }
    text
}

/// The type of a schema in words, with a link where it has a name.
fn linked(schema: &Value) -> String {
    kind(schema, &|name| format!("[{name}](#{})", name.to_lowercase()))
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_request_names_its_body_and_its_answers() {
        let operation = json!({"summary": "Makes one.", "requestBody": {"content": {"application/json": {"schema":
            {"$ref": "#/x/New"}}}}, "responses": {"409": {"description": "It is there"}}});
        let mut page = String::new();
        request(&mut page, "post", "/v1/things", &operation);
        for part in ["### `POST /v1/things`", "Makes one.", "Takes [New](#new).", "| 409 |  | It is there |"]
        {
            assert!(page.contains(part), "{part} is not in {page}");
        }
    }
}
