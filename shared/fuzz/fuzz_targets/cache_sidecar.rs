//! The sidecar of a cached blob.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::cache_sidecar(input);
});
