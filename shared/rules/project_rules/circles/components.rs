//! The circles of a graph: its strongly connected components of two nodes and more.

use std::collections::{BTreeMap, BTreeSet};

/// Sets of nodes of which each leads to each other by `arrows`.
pub(super) fn circles<Node: Copy + Ord>(arrows: &BTreeSet<(Node, Node)>) -> Vec<BTreeSet<Node>> {
    let nodes: BTreeSet<_> = arrows.iter().flat_map(|&(from, to)| [from, to]).collect();
    let reached: BTreeMap<_, _> = nodes.iter().map(|&node| (node, reached_from(node, arrows))).collect();
    let mut found = BTreeSet::new();
    for &node in &nodes {
        let there_and_back = reached[&node].iter().copied().filter(|other| reached[other].contains(&node));
        let circle: BTreeSet<_> = there_and_back.collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

/// The nodes that one arrow or more leads to from `start`.
fn reached_from<Node: Copy + Ord>(start: Node, arrows: &BTreeSet<(Node, Node)>) -> BTreeSet<Node> {
    let mut reached = BTreeSet::new();
    let mut open = vec![start];
    while let Some(node) = open.pop() {
        let next = arrows.iter().filter(|(from, _)| *from == node).map(|(_, to)| *to);
        open.extend(next.filter(|to| reached.insert(*to)));
    }
    reached
}
