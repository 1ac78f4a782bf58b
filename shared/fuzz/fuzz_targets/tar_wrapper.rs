//! A tar wrapper around a blob.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::tar_wrapper(input);
});
