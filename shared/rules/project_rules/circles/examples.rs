//! Small crates in which circles must be found, and such in which there is none.

use super::components::circles;
use super::modules::Modules;
use super::parse::Contents;
use super::{Circle, circles_of};
use std::collections::BTreeSet;
use std::path::Path;

/// The circles of a crate of these files.
fn circles_in(files: &[(&str, &str)]) -> Vec<Circle> {
    let text_of = |path: &Path| {
        let mut same = files.iter().filter(|(name, _)| Path::new(name) == path);
        same.next().map(|(_, text)| (*text).to_owned())
    };
    circles_of(&Modules::of(Path::new("lib.rs"), &text_of))
}

/// The same, each as its parent, its modules, and its arrows with their lines.
fn found(files: &[(&str, &str)]) -> Vec<String> {
    let describe = |circle: &Circle| {
        let names: Vec<_> = circle.modules.iter().map(String::as_str).collect();
        let arrows = circle.arrows.iter().map(|(from, to, import)| format!("{from}->{to}@{}", import.line));
        format!("{}[{}] {}", circle.below, names.join(" "), arrows.collect::<Vec<_>>().join(" "))
    };
    circles_in(files).iter().map(describe).collect()
}

#[test]
fn siblings_that_import_each_other_are_a_circle() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\nmod c;\nuse a::A;"),
        ("a.rs", "//! use crate::c::C\nuse crate::b::B;\npub struct A(B);"),
        ("b.rs", "pub struct B;\n\nfn f() -> super::a::A { todo() }"),
        ("c.rs", "use crate::a::A;\npub struct C(A);"),
    ];
    assert_eq!(found(&files), ["[a b] a->b@2 b->a@3"]);
}

#[test]
fn a_failure_names_one_import_for_each_arrow() {
    let files = [
        ("lib.rs", "mod p;"),
        ("p.rs", "mod a; mod b;"),
        ("p/a.rs", "\n\nuse super::b::B;\nuse super::b::C;"),
        ("p/b.rs", "fn f() -> crate::p::a::A { f() }"),
    ];
    let failures: Vec<_> = circles_in(&files).iter().map(|circle| circle.describe("some-crate")).collect();
    let lines: Vec<_> = failures.iter().flat_map(|failure| failure.lines().map(str::trim)).collect();
    let expected =
        ["some-crate, p: a, b", "a -> b: p/a.rs:3: super::b::B", "b -> a: p/b.rs:1: crate::p::a::A"];
    assert_eq!(lines, expected);
}

#[test]
fn a_circle_of_three_is_found_without_its_neighbours() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c; mod d; mod e;"),
        ("a.rs", "use crate::{b::{self, F}, e};"),
        ("b.rs", "use super::{c as other};"),
        ("c.rs", "fn f() { crate::a::g() }"),
        ("d.rs", "use crate::a;"),
        ("e.rs", "pub struct E;"),
    ];
    assert_eq!(found(&files), ["[a b c] a->b@1 b->c@1 c->a@1"]);
}

#[test]
fn modules_that_build_on_each_other_are_no_circle() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c; pub use a::A; pub use c::{C, make};"),
        ("a.rs", "pub struct A;"),
        ("b.rs", "use crate::a::A; use std::a::b; fn f(a: &A) { a.c::<u8>() }"),
        ("c.rs", "use crate::{A, b}; use ::b::B; pub struct C; pub fn make() {}"),
    ];
    assert_eq!(found(&files), [""; 0]);
}

#[test]
fn a_child_and_its_parent_are_no_circle() {
    let files = [
        ("lib.rs", "mod a; use a::A; pub struct Error;"),
        ("a.rs", "mod inner; use inner::Inner; use crate::Error; pub struct A(Inner);"),
        ("a/inner.rs", "use super::A; use crate::Error; pub struct Inner;"),
    ];
    assert_eq!(found(&files), [""; 0]);
}

#[test]
fn children_are_compared_at_every_depth() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "mod x; mod y;"),
        ("a/x.rs", "mod deep;"),
        ("a/x/deep.rs", "use crate::b::B;\nfn f() { super::super::y::g() }"),
        ("a/y.rs", "use super::x;"),
        ("b.rs", "use crate::a::x;"),
    ];
    assert_eq!(found(&files), ["[a b] a->b@1 b->a@1", "a[x y] x->y@2 y->x@1"]);
}

#[test]
fn a_re_export_leads_to_the_module_that_defines_the_item() {
    let files = [
        ("lib.rs", "mod peers;"),
        ("peers.rs", "mod core; mod link; pub use self::core::Core as Centre; use link::*;"),
        ("peers/core.rs", "use crate::peers::Line;\npub struct Core;"),
        ("peers/link.rs", "pub struct Line;\nuse super::Centre;"),
    ];
    assert_eq!(found(&files), ["peers[core link] core->link@1 link->core@2"]);
    // Of the parent are only items that it defines itself, and what it has from other crates.
    let files = [
        ("lib.rs", "mod peers;"),
        ("peers.rs", "mod core; mod link; pub struct Core; pub use bytes::Bytes; use link::Line;"),
        ("peers/core.rs", "use crate::peers::Line;"),
        ("peers/link.rs", "use super::{Bytes, Core}; pub struct Line;"),
    ];
    assert_eq!(found(&files), [""; 0]);
}

#[test]
fn names_that_a_glob_brings_count_where_they_are_used() {
    let parent = ("peers.rs", "mod core; mod link; use self::core::Core; use link::Line;");
    let link = ("peers/link.rs", "pub struct Line(super::Core);");
    let with_use =
        [("lib.rs", "mod peers;"), parent, ("peers/core.rs", "use super::*;\nstruct Core(Line);"), link];
    assert_eq!(found(&with_use), ["peers[core link] core->link@2 link->core@1"]);
    let without_use =
        [("lib.rs", "mod peers;"), parent, ("peers/core.rs", "use super::*; struct Core;"), link];
    assert_eq!(found(&without_use), [""; 0]);
}

#[test]
fn paths_in_macros_and_behind_modules_count() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\nmod c;"),
        ("a.rs", "macro_rules! m { () => { $crate::b::f() } }\npub(crate) use m;"),
        ("b.rs", "use crate::c;\nfn f() { assert!(c::A, \"{}\", 1) }"),
        ("c.rs", "pub use super::a as A;"),
    ];
    assert_eq!(found(&files), ["[a b c] a->b@1 b->a@2 b->c@1 c->a@1"]);
}

#[test]
fn comments_strings_and_tests_do_not_count() {
    let a = r##"
        //! See [`crate::b`].
        /// As `use crate::b::B;` has it: [B](crate::b::B).
        pub struct A; // use crate::b::B;
        /* use crate::b::B; /* nested */ use crate::b::B; */
        const TEXT: &str = "use crate::b::B;";
        const RAW: &str = r#"use crate::b::B; ""#;
        #[cfg(test)] use crate::b::{B, C};
        #[cfg(test)]
        #[derive(Debug)]
        pub(crate) struct T<K> { b: crate::b::B, k: K }
        #[cfg(all(test, unix))] const fn f() -> crate::b::B { crate::b::f() }
        #[cfg(test)] const B: [u8; 1] = { crate::b::B };
        struct Fields { #[cfg(test)] b: Map<u8, crate::b::B>, c: u8 }
        fn g() { #[cfg(test)] { crate::b::f() } }
        #[cfg(test)] mod tests;
    "##;
    let files = [("lib.rs", "mod a; mod b;"), ("a.rs", a), ("b.rs", "use crate::a::A;")];
    assert_eq!(found(&files), [""; 0]);
    // What follows such an item counts again.
    for last in ["use crate::b::B;", "fn h() -> crate::b::B { f() }", "m!(crate::b::B);"] {
        let text = format!("{a}\n{last}");
        let files = [("lib.rs", "mod a; mod b;"), ("a.rs", &text), ("b.rs", "use crate::a::A;")];
        assert_eq!(found(&files).len(), 1, "{last}");
    }
}

#[test]
fn code_of_other_conditions_counts() {
    for condition in ["cfg(not(test))", "cfg(any(test, unix))", "cfg(feature = \"test\")", "test"] {
        let a = format!("#[{condition}] use crate::b::B;");
        let files = [("lib.rs", "mod a; mod b;"), ("a.rs", &a), ("b.rs", "use crate::a::A;")];
        assert_eq!(found(&files).len(), 1, "{condition}");
    }
}

#[test]
fn modules_in_braces_have_parents_and_files_too() {
    let files = [
        ("lib.rs", "mod a { pub mod x { use super::y::Y; } pub mod y; }"),
        ("a/y.rs", "use crate::a::x::X;"),
    ];
    assert_eq!(found(&files), ["a[x y] x->y@1 y->x@1"]);
}

#[test]
fn nested_declarations_are_read_to_their_names() {
    let text =
        "pub use a::{self, b::{C as D, e::*}, f::g as _,};\nuse ::other::X;\nfn h() -> impl I + use<'_> {}";
    let contents = Contents::parse(text).unwrap();
    let imports = contents.imports.iter().map(|import| {
        (import.path.segments.join("::"), import.name.as_deref().unwrap_or("*"), import.path.line)
    });
    let expected = [("a", "a"), ("a::b::C", "D"), ("a::b::e", "*"), ("a::f::g", "_")];
    assert!(imports.eq(expected.map(|(path, name)| (path.to_owned(), name, 1))));
    assert!(Contents::parse("fn f( {").is_err());
}

#[test]
fn components_are_those_of_two_nodes_and_more() {
    let found = |arrows: &[(u8, u8)]| circles(&arrows.iter().copied().collect());
    assert!(found(&[(1, 2), (2, 3), (1, 3), (4, 4)]).is_empty());
    assert_eq!(
        found(&[(1, 2), (2, 1), (2, 3), (3, 4), (4, 5), (5, 3)]),
        [BTreeSet::from([1, 2]), BTreeSet::from([3, 4, 5])]
    );
    // Two circles with one node in common are one.
    assert_eq!(found(&[(1, 2), (2, 1), (2, 3), (3, 2)]), [BTreeSet::from([1, 2, 3])]);
}
