use std::collections::BTreeSet;

/// A field: its message, its name, its type and its number.
type Field = (String, String, String, String);

/// The `.proto` files of an interface.
type Protos<'a> = &'a [&'a str];

const MOUNT: &str = include_str!("../../proto/mount.proto");
const SNAPSHOTS: &str = include_str!("../../proto/snapshots.proto");
const DIFF: &str = include_str!("../../proto/diff.proto");
const DESCRIPTOR: &str = include_str!("../../proto/descriptor.proto");
const CONTENT: &str = include_str!("../../proto/content.proto");
const LEASES: &str = include_str!("../../proto/leases.proto");

/// The fields of `.proto` files as simple as containerd's.
fn fields_of_proto(protos: Protos<'_>) -> BTreeSet<Field> {
    let mut fields = BTreeSet::new();
    let mut message = String::new();
    for line in protos.iter().flat_map(|text| text.lines()) {
        let line = line.split("//").next().unwrap_or_default().trim();
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
        "InfoMessage" | "ContentInfoMessage" => "Info",
        "DescriptorMessage" => "containerd.types.Descriptor",
        "LeaseMessage" => "Lease",
        "u8" => return "bytes".to_owned(),
        "String" => "string",
        "i64" => "int64",
        "i32" if attribute.contains("WriteAction") => "WriteAction",
        "i32" if attribute.contains("enumeration") => "Kind",
        "HashMap<String, String" => "map<string, string>",
        "HashMap<String, AnyMessage" => "map<string, google.protobuf.Any>",
        other => other,
    };
    if rust.starts_with("Vec<") { format!("repeated {of}") } else { of.to_owned() }
}

/// The fields that the source of a module has.
fn fields_of_rust(source: &str) -> BTreeSet<Field> {
    let mut fields = BTreeSet::new();
    let (mut message, mut attribute) = (String::new(), "");
    let public = source.replace("pub(crate) ", "pub ");
    for line in public.lines().map(str::trim) {
        let name = line.strip_prefix("pub struct ").or(line.strip_prefix("pub enum "));
        if let Some(name) = name {
            let name = name.trim_end_matches([' ', '{']).trim_end_matches("Message");
            message = name.trim_start_matches("Content").to_owned();
        }
        if line.starts_with("#[prost(") {
            attribute = line;
        } else if let Some((name, number)) = line.trim_end_matches(',').split_once(" = ")
            && ["Kind", "WriteAction"].contains(&message.as_str())
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
    fields.retain(|(message, ..)| !matches!(message.as_str(), "Timestamp" | "FieldMask" | "Any"));
    fields
}

#[test]
fn messages_have_the_fields_types_and_numbers_of_containerds_files() {
    let snapshots = (include_str!("../messages.rs"), &[SNAPSHOTS, MOUNT][..], 45);
    let diff = (include_str!("../diff_messages.rs"), &[DIFF, DESCRIPTOR][..], 15);
    for (source, protos, least) in [snapshots, diff] {
        let (proto, rust) = (fields_of_proto(protos), fields_of_rust(source));
        assert!(proto.len() > least, "{proto:#?}");
        assert_eq!(proto.difference(&rust).collect::<Vec<_>>(), Vec::<&Field>::new(), "only in .proto files");
        assert_eq!(rust.difference(&proto).collect::<Vec<_>>(), Vec::<&Field>::new(), "only here");
    }
    // Some messages of large interfaces, whole.
    let rust = fields_of_rust(include_str!("../content_messages.rs"));
    let messages: BTreeSet<_> = rust.iter().map(|field| field.0.clone()).collect();
    let mut proto = fields_of_proto(&[CONTENT, LEASES]);
    proto.retain(|(message, ..)| messages.contains(message));
    assert_eq!(proto, rust);
    assert!(rust.len() > 30, "{rust:#?}");
}

#[test]
fn the_service_has_the_methods_of_containerds_file() {
    let snapshots = (SNAPSHOTS, include_str!("../service.rs"), super::SERVICE, 10);
    let diff = (DIFF, include_str!("../diff_service.rs"), crate::diff_messages::DIFF_SERVICE, 2);
    for (proto, service, name, count) in [snapshots, diff] {
        let methods = proto.lines().filter_map(|line| line.trim().strip_prefix("rpc ")?.split('(').next());
        let is_absent = |method: &&str| !service.contains(&format!("\"{method}\" =>"));
        let absent: Vec<_> = methods.clone().filter(is_absent).collect();
        assert_eq!((absent, methods.count()), (Vec::<&str>::new(), count), "{name}");
        let package = name.rsplit_once('.').unwrap().0;
        assert!(proto.contains(&format!("package {package};")), "{name}");
    }
}
