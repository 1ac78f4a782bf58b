use std::collections::BTreeSet;

/// A field: its message, its name, its type and its number.
type Field = (String, String, String, String);

const PROTO: [&str; 2] =
    [include_str!("../../proto/snapshots.proto"), include_str!("../../proto/mount.proto")];

/// The fields of `.proto` files as simple as containerd's.
fn fields_of_proto() -> BTreeSet<Field> {
    let mut fields = BTreeSet::new();
    let mut message = String::new();
    for line in PROTO.iter().flat_map(|text| text.lines()) {
        let line = line.trim();
        let name = line.strip_prefix("message ").or(line.strip_prefix("enum "));
        if let Some(name) = name {
            message = name.trim_end_matches(['{', ' ']).to_owned();
        }
        let Some((field, number)) = line.strip_suffix(';').and_then(|line| line.rsplit_once('=')) else {
            continue;
        };
        let words: Vec<_> = field.split_whitespace().collect();
        if let [kind @ .., name] = words.as_slice()
            && number.trim().parse::<u32>().is_ok()
        {
            fields.insert((message.clone(), (*name).to_owned(), kind.join(" "), number.trim().to_owned()));
        }
    }
    fields
}

/// The type of a `.proto` file that an attribute and a type of Rust stand for.
fn proto_type(attribute: &str, rust: &str) -> String {
    let of = rust.trim_start_matches("Vec<").trim_start_matches("Option<").trim_end_matches('>');
    let of = match of {
        "TimestampMessage" => "google.protobuf.Timestamp",
        "FieldMaskMessage" => "google.protobuf.FieldMask",
        "MountMessage" => "containerd.types.Mount",
        "InfoMessage" => "Info",
        "String" => "string",
        "i64" => "int64",
        "i32" if attribute.contains("enumeration") => "Kind",
        "HashMap<String, String" => "map<string, string>",
        other => other,
    };
    if rust.starts_with("Vec<") { format!("repeated {of}") } else { of.to_owned() }
}

/// The fields that the source of the module has.
fn fields_of_rust() -> BTreeSet<Field> {
    let mut fields = BTreeSet::new();
    let (mut message, mut attribute) = (String::new(), "");
    for line in include_str!("../messages.rs").lines().map(str::trim) {
        let name = line.strip_prefix("pub struct ").or(line.strip_prefix("pub enum "));
        if let Some(name) = name {
            message = name.trim_end_matches([' ', '{']).trim_end_matches("Message").to_owned();
        }
        if line.starts_with("#[prost(") {
            attribute = line;
        } else if let Some((name, number)) = line.trim_end_matches(',').split_once(" = ")
            && message == "Kind"
        {
            fields.insert((message.clone(), name.to_uppercase(), String::new(), number.to_owned()));
        } else if let Some((name, rust)) = line.strip_prefix("pub ").and_then(|line| line.split_once(": "))
            && let Some((_, tag)) = attribute.split_once("tag = \"")
        {
            let rust = rust.trim_end_matches(',');
            let number = tag.split('"').next().unwrap_or_default().to_owned();
            let name = name.trim_start_matches("r#").to_owned();
            fields.insert((message.clone(), name, proto_type(attribute, rust), number));
        }
    }
    fields.retain(|(message, ..)| !matches!(message.as_str(), "Timestamp" | "FieldMask"));
    fields
}

#[test]
fn messages_have_the_fields_types_and_numbers_of_containerds_files() {
    let (proto, rust) = (fields_of_proto(), fields_of_rust());
    assert!(proto.len() > 45, "{proto:#?}");
    assert_eq!(proto.difference(&rust).collect::<Vec<_>>(), Vec::<&Field>::new(), "only in the .proto files");
    assert_eq!(rust.difference(&proto).collect::<Vec<_>>(), Vec::<&Field>::new(), "only here");
}

#[test]
fn the_service_has_the_methods_of_containerds_file() {
    let methods = PROTO[0].lines().filter_map(|line| line.trim().strip_prefix("rpc ")?.split('(').next());
    let service = include_str!("../service.rs");
    let absent: Vec<_> =
        methods.clone().filter(|method| !service.contains(&format!("\"{method}\" =>"))).collect();
    assert_eq!((absent, methods.count()), (Vec::<&str>::new(), 10));
    assert!(PROTO[0].contains("package containerd.services.snapshots.v1;"), "{}", super::SERVICE);
}
