//! A trace as a Parquet file: footer, page headers, pages.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::trace(input);
});
