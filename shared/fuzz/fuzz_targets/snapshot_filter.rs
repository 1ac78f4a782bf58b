//! A filter of snapshots.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::snapshot_filter(input);
});
