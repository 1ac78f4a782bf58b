//! JSON schemas of types, by the rules of serde's derive.

use super::types::{Shape, Types};
use crate::Result;
use crate::source::comment;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use syn::{Attribute, Fields, FieldsNamed, GenericArgument, Item, ItemEnum, ItemStruct, PathArguments, Type};

/// The schemas of a report, with those of the types in it under names of their own.
pub(super) struct Schemas<'a> {
    types: &'a Types,
    /// The names of types that were met, by their places, and the schemas of those.
    names: BTreeMap<(String, String), String>,
    found: BTreeMap<String, Value>,
}

impl<'a> Schemas<'a> {
    pub(super) fn of(types: &'a Types) -> Self {
        Self { types, names: BTreeMap::new(), found: BTreeMap::new() }
    }

    /// The schemas of the types that were met, by their names.
    pub(super) fn definitions(self) -> BTreeMap<String, Value> {
        self.found
    }

    /// The schema of the type `name` in `file`.
    pub(super) fn of_item(&mut self, file: &str, name: &str) -> Result<Value> {
        let types = self.types;
        match types.shape(file, name) {
            Some(Shape::Derived(Item::Struct(one))) => self.of_struct(file, one),
            Some(Shape::Derived(Item::Enum(one))) => self.of_enum(file, one),
            Some(Shape::Alias(of)) => self.of_type(file, of),
            Some(Shape::Written("any") | Shape::Derived(_)) | None => Ok(json!({})),
            Some(Shape::Written(kind)) => Ok(json!({ "type": kind })),
        }
    }

    fn of_struct(&mut self, file: &str, one: &ItemStruct) -> Result<Value> {
        let mut schema = match &one.fields {
            Fields::Named(fields) if !has(&one.attrs, "transparent") => {
                let case = value(&one.attrs, "rename_all");
                self.of_fields(file, fields, case.as_deref())?
            }
            Fields::Named(fields) => match fields.named.first() {
                Some(field) => self.of_type(file, &field.ty)?,
                None => json!({}),
            },
            Fields::Unnamed(fields) if fields.unnamed.len() == 1 => {
                self.of_type(file, &fields.unnamed[0].ty)?
            }
            Fields::Unnamed(_) => json!({ "type": "array" }),
            Fields::Unit => json!({ "type": "null" }),
        };
        describe(&mut schema, &one.attrs);
        Ok(schema)
    }

    fn of_fields(&mut self, file: &str, fields: &FieldsNamed, case: Option<&str>) -> Result<Value> {
        let (mut properties, mut required, mut parts) = (Map::new(), Vec::new(), Vec::new());
        for field in &fields.named {
            if has(&field.attrs, "skip") || has(&field.attrs, "skip_serializing") {
                continue;
            }
            if has(&field.attrs, "flatten") {
                parts.push(self.of_type(file, &field.ty)?);
                continue;
            }
            let ident = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
            let name =
                value(&field.attrs, "rename").unwrap_or_else(|| cased(ident.trim_start_matches("r#"), case));
            let is_written_apart = has(&field.attrs, "serialize_with") || has(&field.attrs, "with");
            let mut schema = if is_written_apart { json!({}) } else { self.of_type(file, &field.ty)? };
            describe(&mut schema, &field.attrs);
            if !has(&field.attrs, "skip_serializing_if") {
                required.push(name.clone());
            }
            properties.insert(name, schema);
        }
        let mut schema = json!({ "type": "object", "properties": properties, "required": required });
        if !parts.is_empty() {
            schema["allOf"] = Value::Array(parts);
        }
        Ok(schema)
    }

    fn of_enum(&mut self, file: &str, one: &ItemEnum) -> Result<Value> {
        let case = value(&one.attrs, "rename_all");
        let tag = value(&one.attrs, "tag");
        let is_plain = one.variants.iter().all(|variant| matches!(variant.fields, Fields::Unit));
        let name = |variant: &syn::Variant| {
            let ident = variant.ident.to_string();
            value(&variant.attrs, "rename").unwrap_or_else(|| variant_cased(&ident, case.as_deref()))
        };
        let mut schema = if is_plain && tag.is_none() {
            json!({ "enum": one.variants.iter().map(name).collect::<Vec<_>>() })
        } else {
            let mut ways = Vec::new();
            for variant in &one.variants {
                let body = match &variant.fields {
                    Fields::Named(fields) => self.of_fields(file, fields, None)?,
                    Fields::Unnamed(fields) if fields.unnamed.len() == 1 => {
                        self.of_type(file, &fields.unnamed[0].ty)?
                    }
                    Fields::Unnamed(_) => json!({ "type": "array" }),
                    Fields::Unit => Value::Null,
                };
                let mut way = tagged(&name(variant), body, tag.as_deref(), has(&one.attrs, "untagged"));
                describe(&mut way, &variant.attrs);
                ways.push(way);
            }
            json!({ "anyOf": ways })
        };
        describe(&mut schema, &one.attrs);
        Ok(schema)
    }

    fn of_type(&mut self, file: &str, of: &Type) -> Result<Value> {
        match of {
            Type::Reference(to) => self.of_type(file, &to.elem),
            Type::Paren(inner) => self.of_type(file, &inner.elem),
            Type::Slice(slice) => Ok(json!({ "type": "array", "items": self.of_type(file, &slice.elem)? })),
            Type::Array(array) => Ok(json!({ "type": "array", "items": self.of_type(file, &array.elem)? })),
            Type::Tuple(tuple) => {
                let items: Result<Vec<_>> = tuple.elems.iter().map(|one| self.of_type(file, one)).collect();
                Ok(json!({ "type": "array", "prefixItems": items? }))
            }
            Type::Path(path) => self.of_path(file, &path.path),
            _ => Ok(json!({})),
        }
    }

    fn of_path(&mut self, file: &str, path: &syn::Path) -> Result<Value> {
        let Some(last) = path.segments.last() else { return Ok(json!({})) };
        let inner: Vec<&Type> = match &last.arguments {
            PathArguments::AngleBracketed(arguments) => {
                arguments
                    .args
                    .iter()
                    .filter_map(|one| if let GenericArgument::Type(of) = one { Some(of) } else { None })
            }
            .collect(),
            _ => Vec::new(),
        };
        let name = last.ident.to_string();
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        // A type of the workspace may have the name of one of the library's.
        if let Some((at, name)) = self.types.place(file, &names)? {
            return self.reference(&at, &name);
        }
        Ok(match (name.as_str(), &inner[..]) {
            ("String" | "str" | "PathBuf" | "Path" | "char" | "Uuid" | "IpAddr" | "SocketAddr", _) => {
                json!({ "type": "string" })
            }
            ("u8" | "u16" | "u32" | "u64" | "usize" | "NonZeroU32" | "NonZeroU64", _) => {
                json!({ "type": "integer", "minimum": 0 })
            }
            ("i8" | "i16" | "i32" | "i64" | "isize", _) => json!({ "type": "integer" }),
            // What is not a number is written as null.
            ("f32" | "f64", _) => json!({ "type": ["number", "null"] }),
            ("bool", _) => json!({ "type": "boolean" }),
            ("Option", [of]) => json!({ "anyOf": [self.of_type(file, of)?, { "type": "null" }] }),
            ("Vec" | "VecDeque" | "BTreeSet" | "HashSet", [of]) => {
                json!({ "type": "array", "items": self.of_type(file, of)? })
            }
            ("Box" | "Arc" | "Rc" | "Cow" | "Reverse", [of]) => self.of_type(file, of)?,
            ("BTreeMap" | "HashMap", [_, of]) => {
                json!({ "type": "object", "additionalProperties": self.of_type(file, of)? })
            }
            _ => json!({}),
        })
    }

    /// A reference to the schema of a type, which is made when it is met for the first time.
    fn reference(&mut self, file: &str, name: &str) -> Result<Value> {
        let key = (file.to_owned(), name.to_owned());
        if let Some(known) = self.names.get(&key) {
            return Ok(json!({ "$ref": format!("#/$defs/{known}") }));
        }
        let same =
            self.names.values().filter(|known| known.trim_end_matches(char::is_numeric) == name).count();
        let own = if same == 0 { name.to_owned() } else { format!("{name}{}", same + 1) };
        self.names.insert(key, own.clone());
        let schema = self.of_item(file, name)?;
        self.found.insert(own.clone(), schema);
        Ok(json!({ "$ref": format!("#/$defs/{own}") }))
    }
}

/// A variant of an enum: in an object under its name, with its name in a field, or alone.
fn tagged(name: &str, body: Value, tag: Option<&str>, is_untagged: bool) -> Value {
    match (tag, body) {
        (Some(tag), body) => {
            let own =
                json!({ "type": "object", "properties": { tag: { "const": name } }, "required": [tag] });
            if body.is_null() { own } else { json!({ "allOf": [own, body] }) }
        }
        (None, Value::Null) => json!({ "const": name }),
        (None, body) if is_untagged => body,
        (None, body) => json!({ "type": "object", "properties": { name: body }, "required": [name] }),
    }
}

fn describe(schema: &mut Value, attributes: &[Attribute]) {
    let text = comment(attributes);
    if let (false, Value::Object(schema)) = (text.is_empty(), schema) {
        schema.insert("description".to_owned(), Value::String(text));
    }
}

/// The words of the serde attributes, such as `skip` and `rename = "x"`.
fn words(attributes: &[Attribute]) -> Vec<(String, Option<String>)> {
    let mut found = Vec::new();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
        let _ = attribute.parse_nested_meta(|meta| {
            let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
            let value = match meta.value() {
                Ok(value) => Some(value.parse::<syn::LitStr>()?.value()),
                Err(_) => None,
            };
            found.push((name, value));
            Ok(())
        });
    }
    found
}

fn has(attributes: &[Attribute], name: &str) -> bool {
    words(attributes).iter().any(|(known, _)| known == name)
}

fn value(attributes: &[Attribute], name: &str) -> Option<String> {
    words(attributes).into_iter().find(|(known, _)| known == name)?.1
}

/// The name of a field, as `rename_all` of its struct has it.
fn cased(name: &str, case: Option<&str>) -> String {
    match case {
        Some("kebab-case") => name.replace('_', "-"),
        _ => name.to_owned(),
    }
}

/// The name of a variant, as `rename_all` of its enum has it.
fn variant_cased(name: &str, case: Option<&str>) -> String {
    let apart = |mark: &str| {
        let mut text = String::new();
        for (at, character) in name.chars().enumerate() {
            if character.is_uppercase() && at > 0 {
                text.push_str(mark);
            }
            text.extend(character.to_lowercase());
        }
        text
    };
    match case {
        Some("kebab-case") => apart("-"),
        Some("snake_case") => apart("_"),
        Some("lowercase") => name.to_lowercase(),
        _ => name.to_owned(),
    }
}
