//! A file of knowledge: trailer, head, sections, packed traces.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::knowledge(input);
});
