//! The type that a schema describes, in words.

use serde_json::Value;

/// The type of a schema; `named` gives the words for a schema with a name.
pub(crate) fn kind(schema: &Value, named: &dyn Fn(&str) -> String) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return named(name);
    }
    for key in ["oneOf", "anyOf", "allOf"] {
        if let Some(ways) = schema[key].as_array() {
            let ways: Vec<_> = ways.iter().map(|way| kind(way, named)).collect();
            return ways.join(" or ");
        }
    }
    if let Some(values) = schema["enum"].as_array() {
        let values = values.iter().map(|value| format!("`{}`", value.as_str().unwrap_or_default()));
        return values.collect::<Vec<_>>().join(", ");
    }
    if let Some(elements) = schema["prefixItems"].as_array() {
        let elements: Vec<_> = elements.iter().map(|element| kind(element, named)).collect();
        return format!("list of {}", elements.join(", "));
    }
    if schema["items"].is_object() {
        return format!("list of {}", kind(&schema["items"], named));
    }
    if let Some(only) = schema["const"].as_str() {
        return format!("`{only}`");
    }
    match &schema["type"] {
        Value::String(name) => name.clone(),
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
        _ => "any".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn types_are_named() {
        let kind = |schema| kind(&schema, &|name| format!("<{name}>"));
        assert_eq!(kind(json!({"$ref": "#/components/schemas/Vssd"})), "<Vssd>");
        assert_eq!(kind(json!({"type": "array", "items": {"type": "string"}})), "list of string");
        assert_eq!(kind(json!({"oneOf": [{"type": "null"}, {"$ref": "#/x/A"}]})), "null or <A>");
        assert_eq!(kind(json!({"type": ["integer", "null"]})), "integer or null");
        assert_eq!(kind(json!({"type": "string", "enum": ["a", "b"]})), "`a`, `b`");
        assert_eq!(kind(json!({"prefixItems": [{"type": "integer"}, {}]})), "list of integer, any");
    }
}
