//! Random stacks of layers: the applier and the naive one make the same trees, and refuse the same entries.

use super::naive::{DEPTH, NaiveTree};
use super::support::{Item, apply_within, dir, file, link, symlink};
use crate::apply::ApplyLimits;
use crate::model_tree::ModelTree;
use headstart_tar::TarKind;
use proptest::prelude::*;

/// A component of a path. Few names, so that entries meet.
fn component() -> impl Strategy<Value = String> {
    prop_oneof![
        12 => "[abc]",
        1 => Just(".".to_owned()),
        1 => Just("..".to_owned()),
        1 => Just(String::new()),
    ]
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(component(), 1..5).prop_map(|components| components.join("/"))
}

fn target() -> impl Strategy<Value = String> {
    (prop::bool::weighted(0.3), path()).prop_map(
        |(is_absolute, path)| {
            if is_absolute { format!("/{path}") } else { path }
        },
    )
}

fn kind() -> impl Strategy<Value = Item> {
    prop_oneof![
        4 => path().prop_map(dir),
        4 => (path(), 0..3_u8).prop_map(|(path, n)| file(path, vec![n; usize::from(n)])),
        3 => (target(), path()).prop_map(|(target, path)| symlink(target, path)),
        3 => (target(), path()).prop_map(|(target, path)| link(target, path)),
        1 => path().prop_map(|path| Item::new(TarKind::Fifo, path)),
        2 => (path(), "[abc]").prop_map(|(path, name)| file(format!("{path}/.wh.{name}"), "")),
        1 => "[abc]".prop_map(|name| file(format!(".wh.{name}"), "")),
        2 => path().prop_map(|path| file(format!("{path}/.wh..wh..opq"), "")),
        1 => (path(), 0..3_usize).prop_map(|(path, dots)| file(format!("{path}/.wh.{}", ".".repeat(dots)), "")),
    ]
}

/// An entry of a layer.
pub(crate) fn item() -> impl Strategy<Value = Item> {
    let xattr = prop::option::weighted(0.3, ("[xy]", "[12]"));
    (kind(), 0..8_u32, 1..9_i64, xattr).prop_map(|(item, mode, time, xattr)| {
        let item = item.mode(0o700 | mode).owner(mode, mode + 1).time(time);
        match xattr {
            Some((name, value)) => item.xattr(&format!("user.{name}"), &value),
            None => item,
        }
    })
}

/// The items that the naive applier takes, and the first that it refuses with the number of those before it.
pub(crate) fn accepted(naive: &mut NaiveTree, items: &[Item]) -> (Vec<Item>, Option<(usize, Item)>) {
    let (mut taken, mut refused) = (Vec::new(), None);
    for item in items {
        let mut next = naive.clone();
        if next.apply(item).is_ok() {
            *naive = next;
            taken.push(item.clone());
        } else if refused.is_none() {
            refused = Some((taken.len(), item.clone()));
        }
    }
    (taken, refused)
}

proptest! {
    #[test]
    fn stacks_of_layers_give_the_trees_of_the_naive_applier(
        layers in prop::collection::vec(prop::collection::vec(item(), 0..14), 1..4),
    ) {
        let (mut tree, mut naive) = (ModelTree::new(), NaiveTree::new());
        for layer in &layers {
            naive.next_layer();
            let limits = ApplyLimits { depth: DEPTH, ..ApplyLimits::default() };
            let (taken, refused) = accepted(&mut naive, layer);
            if let Some((count, item)) = refused {
                let with: Vec<_> = taken[..count].iter().cloned().chain([item]).collect();
                prop_assert!(apply_within(&mut tree.clone(), &with, limits).is_err(), "{:?}", with.last());
            }
            let result = apply_within(&mut tree, &taken, limits);
            prop_assert!(result.is_ok(), "{result:?}");
            prop_assert_eq!(tree.rows(), naive.rows());
        }
    }
}
