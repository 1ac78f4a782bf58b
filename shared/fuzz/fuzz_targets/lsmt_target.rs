//! A layer that has a part of its bytes in another file.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::lsmt_target(input);
});
