//! A writable layer's directory: state, data, log.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::writable(input);
});
