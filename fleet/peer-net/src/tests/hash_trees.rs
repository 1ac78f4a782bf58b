//! Hash trees between hosts: only pages that are connected to their root.

use super::*;
use headstart_hash_tree::TreeRoot;
use headstart_image::manifest::Tree;

/// Even for a real outboard, with pages from another host, and in any order.
#[test]
fn every_byte_of_a_hash_tree_that_is_served_is_connected_to_its_root() {
    let cluster = Cluster::new(&["a", "b"]);
    let sample = sample(40 << 20, 32);
    let a = cluster.host("a", Role::Agent, &[]);
    let at_a = a.attach(&sample);
    let outboard = at_a.tree().unwrap();
    let tree = Arc::clone(&outboard.shared.as_ref().unwrap().blob);
    let chunk = |at: u32| {
        let range = tree.bytes_of(at);
        let (start, end) = (usize::try_from(range.offset()).unwrap(), usize::try_from(range.end()).unwrap());
        sample.outboard[start..end].to_vec()
    };
    // A chunk from a store: first no node above it is there, then nothing proves its edges, then all nodes are there.
    outboard.blob().insert(1 << 16, &chunk(1)).unwrap();
    assert!(!tree.may_send(1, &chunk(1)));
    outboard.blob().insert(0, &chunk(0)).unwrap();
    assert!(!tree.may_send(1, &chunk(1)), "parts of a node that lies in two chunks");
    outboard.blob().insert(2 << 16, &chunk(2)).unwrap();
    for at in 0..3 {
        assert!(tree.may_send(at, &chunk(at)));
        // No byte may differ, not even at the edges.
        let len = chunk(at).len();
        for wrong in [0, 7, 8, 100, len / 2, len - 57, len - 56, len - 1] {
            let mut bytes = chunk(at);
            bytes[wrong] ^= 1;
            assert!(!tree.may_send(at, &bytes), "byte {wrong} of chunk {at}");
        }
    }
    // The ranges that are fetched for serving include all pages that prove them.
    let needed = tree.with_proof(tree.bytes_of(1));
    outboard.blob().discard(ByteRange::between(0, tree.len())).unwrap();
    for part in &needed {
        let (start, end) = (usize::try_from(part.offset()).unwrap(), usize::try_from(part.end()).unwrap());
        outboard.blob().insert(part.offset(), &sample.outboard[start..end]).unwrap();
    }
    assert!(tree.may_send(1, &chunk(1)) && needed.iter().map(|part| part.len()).sum::<u64>() < 100 << 10);
}

/// Under another root it is the outboard of another blob: neither served nor damaged.
#[test]
fn pages_of_a_hash_tree_belong_to_one_root() {
    let cluster = Cluster::new(&["a"]);
    let (a, sample) = (cluster.host("a", Role::Agent, &[]), sample(1 << 20, 33));
    a.fill(&sample);
    let mut forged = sample.spec.clone();
    forged.tree = forged.tree.map(|tree| Tree { root: TreeRoot::from_bytes([9; 32]), ..tree });
    let other = a.cache.blob(&forged).unwrap();
    let outboard = other.tree().unwrap();
    assert_eq!(outboard.local_bytes(), 0);
    outboard.insert(0, &vec![0x55; sample.outboard.len()]).unwrap();
    let own = a.cache.blob(&sample.spec).unwrap();
    let mut read = vec![0; sample.outboard.len()];
    own.tree().unwrap().read_at(&mut read, 0).unwrap();
    assert!(read == sample.outboard);
}
