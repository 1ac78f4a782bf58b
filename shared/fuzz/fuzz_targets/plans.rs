//! A file of plans: trailer, head, sections.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::plans(input);
});
