//! Communities of a weighted graph: Louvain's method (Blondel and others, 2008). The ThinkAhead paper (section 5.2)
//! clusters boots by this method.
//!
//! Each node moves, in the order of the nodes' numbers, to the neighbouring community that raises modularity most,
//! until no move raises it. Then each community becomes a node, and the method begins again. The graph is a dense
//! table, so the method is for a few hundred nodes at most.

use crate::similarity::Similarities;

/// Returns the groups of similar traces, each as the ascending indices of its traces; groups are in the order of their
/// first index. Two traces whose similarity is below `alike` (-1 to 1), or not above 0, have no edge in the graph. A
/// trace without edges is a group of its own.
#[must_use]
pub fn communities(similarities: &Similarities, alike: f64) -> Vec<Vec<usize>> {
    let size = similarities.len();
    let mut members: Vec<Vec<usize>> = (0..size).map(|node| vec![node]).collect();
    let weight = |a: usize, b: usize| {
        let value = similarities.get(a, b);
        if a == b || value < alike { 0.0 } else { value.max(0.0) }
    };
    let mut graph: Vec<Vec<f64>> = (0..size).map(|a| (0..size).map(|b| weight(a, b)).collect()).collect();
    loop {
        let places = moved(&graph);
        let count = places.iter().max().map_or(0, |last| last + 1);
        if count == graph.len() {
            break;
        }
        let mut joined = vec![Vec::new(); count];
        let mut smaller = vec![vec![0.0; count]; count];
        for (a, row) in graph.iter().enumerate() {
            joined[places[a]].append(&mut members[a]);
            for (b, weight) in row.iter().enumerate() {
                smaller[places[a]][places[b]] += weight;
            }
        }
        (members, graph) = (joined, smaller);
    }
    for community in &mut members {
        community.sort_unstable();
    }
    members.sort();
    members
}

/// The community of each node after moving nodes until no move gains; numbered without holes.
fn moved(graph: &[Vec<f64>]) -> Vec<usize> {
    /// Smaller gains are rounding.
    const GAIN: f64 = 1e-9;
    let size = graph.len();
    let degrees: Vec<f64> = graph.iter().map(|row| row.iter().sum()).collect();
    let all: f64 = degrees.iter().sum();
    let mut places: Vec<usize> = (0..size).collect();
    let mut sums = degrees.clone();
    let mut moves = all > 0.0;
    // Each move raises modularity, so that it ends; the bound is for rounding.
    for _ in 0..size {
        if !moves {
            break;
        }
        moves = false;
        for node in 0..size {
            let home = places[node];
            sums[home] -= degrees[node];
            let mut links = vec![0.0; size];
            for other in (0..size).filter(|other| *other != node) {
                links[places[other]] += graph[node][other];
            }
            let gain = |place: usize| links[place] - sums[place] * degrees[node] / all;
            let mut best = (home, gain(home));
            for (place, link) in links.iter().enumerate() {
                if *link > 0.0 && gain(place) > best.1 + GAIN {
                    best = (place, gain(place));
                }
            }
            sums[best.0] += degrees[node];
            moves |= best.0 != home;
            places[node] = best.0;
        }
    }
    let mut numbers = vec![None; size];
    let mut next = 0;
    let mut number = |place: usize| {
        *numbers[place].get_or_insert_with(|| {
            next += 1;
            next - 1
        })
    };
    places.into_iter().map(&mut number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_table::BlockTable;
    use crate::similarity::{Feature, Vector};
    use crate::testing::trace;

    #[test]
    fn finds_the_kinds_and_leaves_strangers_alone() {
        let mut block_table = BlockTable::new(1 << 30);
        let forward: Vec<u64> = (0..50).collect();
        let backward: Vec<u64> = (0..50).rev().collect();
        let mut other = vec![7, 300, 12, 44];
        other.extend(200..220);
        let boots = [&forward, &backward, &forward, &backward, &other, &forward];
        let vectors = boots.map(|blocks| {
            let reads: Vec<_> = (0..).zip(blocks).map(|(t, block)| (t, *block, 0, 1)).collect();
            Vector::of(&trace(&reads, &mut block_table), Feature::Order)
        });
        let found = communities(&Similarities::of(&vectors), 0.7);
        assert_eq!(found, [vec![0, 2, 5], vec![1, 3], vec![4]]);
        assert_eq!(communities(&Similarities::of(&[]), 0.7), Vec::<Vec<usize>>::new());
    }
}
