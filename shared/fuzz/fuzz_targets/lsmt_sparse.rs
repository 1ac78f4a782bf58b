//! A sparse layer: header and holes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::lsmt_sparse(input);
});
