//! An EROFS that is the parent of a layer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::erofs_parent(input);
});
