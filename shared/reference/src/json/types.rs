//! The types of the workspace that are serialized, and which of them a name in a file means.

use crate::Result;
use crate::source::{files, parsed};
use std::collections::BTreeMap;
use std::path::Path;
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, ItemImpl, ItemStruct, Meta, Type, UseTree};

/// A type as it is serialized.
pub(super) enum Shape {
    /// A struct or an enum that derives it.
    Derived(Item),
    /// A type with an `impl` of its own: the kind of what it writes.
    Written(&'static str),
    /// A type with another name.
    Alias(Type),
}

/// All types by their files and names, and the imports of each file.
pub(super) struct Types {
    shapes: BTreeMap<(String, String), Shape>,
    /// The imports of a file: the name there, and the path behind it.
    imports: BTreeMap<String, Vec<(String, Vec<String>)>>,
}

impl Types {
    /// The types below the folders `wings` of the repository at `root`.
    pub(super) fn of(root: &Path, wings: &[&str]) -> Result<Self> {
        let mut types = Self { shapes: BTreeMap::new(), imports: BTreeMap::new() };
        for wing in wings {
            for path in files(&root.join(wing))? {
                let file = path.strip_prefix(root)?.to_string_lossy().into_owned();
                types.add(&file, parsed(&path)?.items);
            }
        }
        Ok(types)
    }

    fn add(&mut self, file: &str, items: Vec<Item>) {
        for item in items {
            match item {
                Item::Struct(ItemStruct { ref ident, ref attrs, .. }) if serializes(attrs) => {
                    let key = (file.to_owned(), ident.to_string());
                    self.shapes.insert(key, Shape::Derived(item));
                }
                Item::Enum(ref one) if serializes(&one.attrs) => {
                    let key = (file.to_owned(), one.ident.to_string());
                    self.shapes.insert(key, Shape::Derived(item));
                }
                Item::Type(alias) => {
                    let key = (file.to_owned(), alias.ident.to_string());
                    self.shapes.entry(key).or_insert(Shape::Alias(*alias.ty));
                }
                Item::Impl(one) => self.add_written(file, &one),
                Item::Use(one) => {
                    let mut found = Vec::new();
                    flatten(&one.tree, &mut Vec::new(), &mut found);
                    self.imports.entry(file.to_owned()).or_default().extend(found);
                }
                _ => {}
            }
        }
    }

    /// Adds a type that has `impl Serialize`: an inner struct with its fields, or the kind of what it writes.
    fn add_written(&mut self, file: &str, one: &ItemImpl) {
        let Some((_, of, _)) = &one.trait_ else { return };
        let (Some(of), Some(name)) = (of.segments.last(), name_of(&one.self_ty)) else { return };
        if of.ident != "Serialize" {
            return;
        }
        let mut body = Body::default();
        body.visit_item_impl(one);
        let shape = match body.fields {
            Some(fields) => Shape::Derived(Item::Struct(fields)),
            None => Shape::Written(body.kind),
        };
        self.shapes.insert((file.to_owned(), name), shape);
    }

    /// `true` if the type `name` is in `file`.
    pub(super) fn has(&self, file: &str, name: &str) -> bool {
        self.shapes.contains_key(&(file.to_owned(), name.to_owned()))
    }

    pub(super) fn shape(&self, file: &str, name: &str) -> Option<&Shape> {
        self.shapes.get(&(file.to_owned(), name.to_owned()))
    }

    /// The file with the type that the path `path` in `file` means; none of a type that no file has.
    ///
    /// # Errors
    ///
    /// Several files have such a type, and no import tells which it is.
    pub(super) fn place(&self, file: &str, path: &[String]) -> Result<Option<(String, String)>> {
        let Some(name) = path.last() else { return Ok(None) };
        if path.len() == 1 && self.has(file, name) {
            return Ok(Some((file.to_owned(), name.clone())));
        }
        let import = self.imports.get(file).into_iter().flatten().find(|(known, _)| *known == path[0]);
        let whole: Vec<String> = match import {
            Some((_, imported)) => imported.iter().chain(&path[1..]).cloned().collect(),
            None => path.to_vec(),
        };
        let Some(name) = whole.last() else { return Ok(None) };
        let candidates: Vec<_> =
            self.shapes.keys().filter(|(_, known)| known == name).map(|(at, _)| at).collect();
        let scored = candidates.iter().map(|at| (likeness(file, at, &whole), *at));
        let best = scored.clone().map(|(score, _)| score).max();
        let chosen: Vec<_> = scored.filter(|(score, _)| Some(*score) == best).map(|(_, at)| at).collect();
        match chosen[..] {
            [] => Ok(None),
            [at] => Ok(Some((at.clone(), name.clone()))),
            _ => Err(format!("{file}: {} may be in {chosen:?}", whole.join("::")).into()),
        }
    }
}

/// The likeness of the file `at` to the place that a path in `file` names: its crate first, then its modules.
fn likeness(file: &str, at: &str, path: &[String]) -> usize {
    let folder = |file: &str| file.split("/src/").next().unwrap_or_default().to_owned();
    let first = path.first().map(String::as_str).unwrap_or_default();
    let name = first.strip_prefix("headstart_").map(|name| name.replace('_', "-"));
    let is_its_crate = match name {
        Some(name) => folder(at).ends_with(&format!("/{name}")),
        None => folder(at) == folder(file),
    };
    let modules: Vec<_> = at.trim_end_matches(".rs").split('/').collect();
    let named = path.iter().filter(|segment| modules.contains(&segment.as_str())).count();
    let beside =
        modules.iter().zip(file.trim_end_matches(".rs").split('/')).take_while(|(a, b)| **a == *b).count();
    usize::from(is_its_crate) * 10_000 + named * 100 + beside
}

/// A type that a command prints.
pub(super) struct Outcome {
    pub(super) name: String,
    /// `true` if the exit status depends on the report: it has a method `is_right` of its own.
    pub(super) is_judged: bool,
}

/// The types that implement `Outcome` in a file.
pub(super) fn outcomes(file: &syn::File) -> Vec<Outcome> {
    let of = file.items.iter().filter_map(|item| {
        let Item::Impl(one) = item else { return None };
        let (_, of, _) = one.trait_.as_ref()?;
        if of.segments.last()?.ident != "Outcome" {
            return None;
        }
        let mut items = one.items.iter();
        let is_judged =
            items.any(|item| matches!(item, ImplItem::Fn(method) if method.sig.ident == "is_right"));
        Some(Outcome { name: name_of(&one.self_ty)?, is_judged })
    });
    of.collect()
}

fn name_of(of: &Type) -> Option<String> {
    let Type::Path(path) = of else { return None };
    Some(path.path.segments.last()?.ident.to_string())
}

/// `true` if the type derives `Serialize`.
fn serializes(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("derive") => {
            let words = list.tokens.to_string();
            words.split(|character: char| !character.is_alphanumeric()).any(|word| word == "Serialize")
        }
        _ => false,
    })
}

/// Adds the names that a `use` brings, each with its path.
fn flatten(tree: &UseTree, before: &mut Vec<String>, found: &mut Vec<(String, Vec<String>)>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, found);
            before.pop();
        }
        UseTree::Name(name) => {
            let name = name.ident.to_string();
            found.push((name.clone(), before.iter().cloned().chain([name]).collect()));
        }
        UseTree::Rename(name) => {
            let path = before.iter().cloned().chain([name.ident.to_string()]).collect();
            found.push((name.rename.to_string(), path));
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, before, found)),
        UseTree::Glob(_) => {}
    }
}

/// The body of an `impl Serialize`.
struct Body {
    fields: Option<ItemStruct>,
    kind: &'static str,
}

impl Default for Body {
    fn default() -> Self {
        Self { fields: None, kind: "any" }
    }
}

impl Visit<'_> for Body {
    fn visit_item_struct(&mut self, one: &ItemStruct) {
        if serializes(&one.attrs) {
            self.fields = Some(one.clone());
        }
    }

    fn visit_expr_method_call(&mut self, call: &syn::ExprMethodCall) {
        match call.method.to_string().as_str() {
            "collect_str" | "serialize_str" => self.kind = "string",
            "serialize_u64" | "serialize_f64" => self.kind = "number",
            _ => {}
        }
        visit::visit_expr_method_call(self, call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types(files: &[(&str, &str)]) -> Types {
        let mut types = Types { shapes: BTreeMap::new(), imports: BTreeMap::new() };
        for (file, text) in files {
            types.add(file, syn::parse_file(text).unwrap().items);
        }
        types
    }

    #[test]
    fn an_import_tells_which_type_is_meant() {
        let types = types(&[
            ("cli/x/src/a.rs", "use headstart_block::Status; use crate::b::Part as Other;"),
            ("cli/x/src/b.rs", "#[derive(Serialize)] struct Part; #[derive(Debug)] struct Status;"),
            ("core/block/src/s.rs", "#[derive(Clone, Serialize)] pub struct Status;"),
            (
                "core/image/src/s.rs",
                "#[derive(Serialize)] pub struct Status; #[derive(Serialize)] struct Part;",
            ),
        ]);
        let place = |name: &str| types.place("cli/x/src/a.rs", &[name.to_owned()]).unwrap();
        assert_eq!(place("Status"), Some(("core/block/src/s.rs".to_owned(), "Status".to_owned())));
        assert_eq!(place("Other"), Some(("cli/x/src/b.rs".to_owned(), "Part".to_owned())));
        assert_eq!(place("String"), None);
    }

    #[test]
    fn a_report_is_judged_if_it_says_so() {
        let file = "impl Outcome for A {}
            impl Outcome for B { fn is_right(&self) -> bool { true } } impl Other for C {}";
        let found = outcomes(&syn::parse_file(file).unwrap());
        let found: Vec<_> = found.iter().map(|one| (one.name.as_str(), one.is_judged)).collect();
        assert_eq!(found, [("A", false), ("B", true)]);
    }

    #[test]
    fn an_impl_tells_what_it_writes() {
        let types = types(&[(
            "a.rs",
            "impl Serialize for Name { fn serialize(&self, s: S) { s.collect_str(self) } }
             impl Serialize for Fields { fn serialize(&self, s: S) {
                #[derive(Serialize)] struct Inner { a: u8 } Inner { a: 1 }.serialize(s) } }",
        )]);
        assert!(matches!(types.shape("a.rs", "Name"), Some(Shape::Written("string"))));
        assert!(matches!(types.shape("a.rs", "Fields"), Some(Shape::Derived(Item::Struct(_)))));
    }
}
