//! A trace file of `OverlayBD`'s: header, records.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::overlaybd_trace(input);
});
