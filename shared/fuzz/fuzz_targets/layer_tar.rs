//! A layer of a container image: a tar archive.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::layer_tar(input);
});
