//! A gzip stream, of which an index is made.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::gzip_stream(input);
});
