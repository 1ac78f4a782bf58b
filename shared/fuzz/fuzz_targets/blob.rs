//! A blob as stored: tar wrapper, ZFile, layer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::blob(input);
});
