//! An unsealed writable layer: data file and index file.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::lsmt_pair(input);
});
