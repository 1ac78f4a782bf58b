//! A trace as a NumPy file.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::npy(input);
});
