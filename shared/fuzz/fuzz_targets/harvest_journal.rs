//! A host's journal of what is lent.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::harvest_journal(input);
});
