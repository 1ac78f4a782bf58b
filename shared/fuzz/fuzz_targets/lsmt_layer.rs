//! A sealed layer: header, index, trailer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::lsmt_layer(input);
});
