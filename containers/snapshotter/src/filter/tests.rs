use super::SnapshotFilter;
use crate::fault::FaultKind;
use crate::record::{SnapshotId, SnapshotRecord, SnapshotState, SnapshotTime};
use proptest::prelude::*;

/// A name, another field, labels.
type Case = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// containerd's own table of tests.
const CORPUS: [Case; 9] = [
    ("foo", "", &[("foo", "true")]),
    ("bar", "", &[]),
    ("foo", "", &[("foo", "present"), ("more complex label", "present")]),
    ("bar", "", &[("bar", "true")]),
    ("fooer", "", &[("more complex label with \\ and \"", "present")]),
    ("fooer", "", &[("more complex label with \\ and \".post", "present")]),
    ("baz", "too complex, yo", &[]),
    ("bazo", "abc", &[]),
    ("compound", "", &[("foo", "omg_asdf.asdf-qwer")]),
];

/// The numbers of the entries that a filter selects.
fn selected(filter: &str) -> Vec<usize> {
    let filter = SnapshotFilter::parse(&[filter]).unwrap();
    let is_selected = |&number: &usize| {
        let (name, other, labels) = CORPUS[number];
        filter.holds(&|path| match path[0].as_str() {
            "name" => Some(name).filter(|name| !name.is_empty()),
            "other" => Some(other).filter(|other| !other.is_empty()),
            "labels" => {
                labels.iter().find(|(label, _)| *label == path[1..].join(".")).map(|(_, value)| *value)
            }
            _ => None,
        })
    };
    (0..CORPUS.len()).filter(is_selected).collect()
}

#[test]
fn filters_select_as_in_containerds_own_tests() {
    let all: Vec<usize> = (0..CORPUS.len()).collect();
    let cases: [(&str, &[usize]); 20] = [
        ("", &all),
        ("name", &all),
        ("labels.foo", &[0, 2, 8]),
        ("labels.foo,name", &[0, 2, 8]),
        ("labels.foo==true", &[0]),
        ("labels.foo==omg_asdf.asdf-qwer", &[8]),
        ("name==bar", &[1, 3]),
        ("name!=bar", &[0, 2, 4, 5, 6, 7, 8]),
        ("name==bar,labels.bar", &[3]),
        ("other==\"too complex, yo\"", &[6]),
        ("other~=[abc]+,name!=foo", &[6, 7]),
        ("other~=/[abc]+/,name!=foo", &[6, 7]),
        ("other~=/[abc]{1,2}/,name!=foo", &[6, 7]),
        ("other~=/[abc]{0,1}\"\\//,name!=foo", &[]),
        ("name==bar,labels.bar==true", &[3]),
        ("name==bar,labels.bar==wrong", &[]),
        ("name==foo,labels.\"more complex label\"", &[2]),
        (r#"labels."more complex label with \\ and \""==present"#, &[4]),
        (r#"labels."more complex label with \\ and \"".post==present"#, &[5]),
        ("name ~= \t^ba, other", &[6, 7]),
    ];
    for (filter, expected) in cases {
        assert_eq!(selected(filter), expected, "{filter}");
    }
}

#[test]
fn broken_filters_are_refused_with_containerds_message() {
    let cases = [
        (
            "labels.|foo|==omg_asdf.asdf-qwer",
            "[labels. >|||< foo|==omg_asdf.asdf-qwer]: invalid quote encountered",
        ),
        (r#"labels.?"a".post==b"#, r#"[labels. >|?|< "a".post==b]: expected field or quoted"#),
        ("name==foo,", "[name==foo,]: expected field or quoted"),
        ("labels.", "[labels.]: expected field or quoted"),
        ("image~=,id?=?fbaq", "[image~= >|,|< id?=?fbaq]: expected value or quoted"),
        ("labels.ns/key==value", "[labels.ns >|/|< key==value]: quoted literal not terminated"),
        ("labels.key==/value", "[labels.key== >|/|< value]: quoted literal not terminated"),
        ("name=bar", "[name >|=|< bar]: unsupported operator \"=\""),
        ("name bar", "[name  >|b|< ar]: expected an operator (\"==\"|\"!=\"|\"~=\")"),
        (r#"name=="\q""#, r#"[name== >|"|< \q"]: illegal escape sequence"#),
    ];
    for (filter, expected) in cases {
        let fault = SnapshotFilter::parse(&[filter]).unwrap_err();
        let text = format!("filters: parse error: {expected}");
        assert_eq!((fault.kind, fault.text), (FaultKind::InvalidArgument, text), "{filter}");
    }
}

fn record() -> SnapshotRecord {
    SnapshotRecord {
        id: SnapshotId(1),
        key: "default/1/key".to_owned(),
        parent: None,
        state: SnapshotState::Active,
        labels: [("containerd.io/gc.root".to_owned(), "now".to_owned())].into(),
        created: SnapshotTime::default(),
        updated: SnapshotTime::default(),
    }
}

#[test]
fn snapshots_have_a_name_a_parent_a_kind_and_labels() {
    let selects = |filters: &[&str]| SnapshotFilter::parse(filters).unwrap().selects(&record());
    for filter in [
        "kind==active",
        "name==default/1/key",
        "parent==\"\"",
        "parent",
        "labels.\"containerd.io/gc.root\"==now",
        "labels.none!=now",
        "parent~=^$",
    ] {
        assert!(selects(&[filter]), "{filter}");
    }
    for filter in
        ["kind==view", "name==key", "other", "labels.none", "labels.none==\"\"", "name~=(", "labels"]
    {
        assert!(!selects(&[filter]), "{filter}");
    }
    assert!(selects(&[]) && selects(&["kind==view", "kind==active"]));
    assert!(!selects(&["kind==view", "kind==committed"]));
}

proptest! {
    #[test]
    fn any_text_is_a_filter_or_refused(text in "\\PC*|[a-z.,=!~\"/|\\\\x0-9 ]{0,24}") {
        let _ = SnapshotFilter::parse(&[text]).map(|filter| filter.selects(&record()));
    }

    #[test]
    fn a_quoted_value_is_that_value(value in "\\PC{0,8}") {
        let quoted = format!("name=={:?}", value.replace('\u{fffd}', ""));
        // Go writes other characters as they are; Rust's escapes of them are not Go's.
        prop_assume!(!quoted.contains("\\u{") && !quoted.contains("\\'") && !quoted.contains("\\0"));
        let filter = SnapshotFilter::parse(&[&quoted]).unwrap();
        let named = SnapshotRecord { key: value.replace('\u{fffd}', ""), ..record() };
        prop_assert!(filter.selects(&named), "{}", quoted);
    }
}
