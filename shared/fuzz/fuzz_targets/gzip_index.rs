//! The index of a gzip file, and the file.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::gzip_index(input);
});
