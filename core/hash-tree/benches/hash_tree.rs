//! Digests and hash trees beside plain BLAKE3 and SHA-256 over the same bytes in memory, in the same run.
//!
//! ```text
//! cargo bench -p headstart-hash-tree --bench hash_tree
//! ```

#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    reason = "a benchmark: it prints and looks at the clock, and a failed step ends it"
)]

use headstart_block::{ByteRange, Digest};
use headstart_hash_tree::sums::HashingWriter;
use headstart_hash_tree::{HashTree, TreeBuilder, TreeRoot};
use std::hint::black_box;
use std::io::{Write, sink};
use std::time::Instant;

const LEN: usize = 256 << 20;
const ROUNDS: usize = 9;
/// About the number of bytes in which a compressed batch of frames is written.
const PIECE: usize = 100_000;

fn main() {
    let spool = std::env::temp_dir();
    let bytes: Vec<u8> =
        (0..LEN as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    let build = || {
        let mut builder = TreeBuilder::new(&spool);
        bytes.chunks(PIECE).for_each(|piece| builder.update(piece).expect("hashed"));
        let mut outboard = Vec::new();
        (builder.finish(&mut outboard).expect("a tree"), outboard)
    };
    let both = || {
        let mut writer = HashingWriter::new(sink(), &spool);
        bytes.chunks(PIECE).for_each(|piece| writer.write_all(piece).expect("hashed"));
        black_box(writer.finish(sink()).expect("sums"));
    };
    let (root, outboard) = build();
    let tree = HashTree::open(root, outboard, LEN as u64).expect("a right tree");

    let blake3 = || {
        black_box(TreeRoot::of(&bytes));
    };
    let plain = || {
        black_box((Digest::of(&bytes), TreeRoot::of(&bytes)));
    };
    println!("{:42} {:>10} {:>10} {:>6}  target", "GB/s", "plain", "ours", "ratio");
    compare("build a hash tree, beside BLAKE3", 0.75, blake3, || {
        black_box(build());
    });
    compare("verify a blob by its tree, beside BLAKE3", 0.75, blake3, || {
        tree.verify(&bytes, ByteRange::between(0, LEN as u64)).expect("right");
    });
    compare("digest and tree in a pass, beside both", 0.9, plain, both);
}

/// Times both in turn, and prints medians.
fn compare(what: &str, target: f64, peer: impl Fn(), ours: impl Fn()) {
    let time = |work: &dyn Fn()| {
        let start = Instant::now();
        work();
        LEN as f64 / 1e9 / start.elapsed().as_secs_f64()
    };
    let mut rounds: Vec<_> = (0..ROUNDS).map(|_| (time(&peer), time(&ours))).collect();
    rounds.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
    let (plain, own) = rounds[ROUNDS / 2];
    let (ratio, verdict) = (own / plain, if own / plain >= target { "ok" } else { "MISSED" });
    println!("{what:42} {plain:>10.2} {own:>10.2} {ratio:>6.2}  >= {target} {verdict}");
}
