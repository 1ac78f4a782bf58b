//! The blob of a TurboOCI layer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::turbo_package(input);
});
