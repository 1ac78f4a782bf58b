//! A ZFile: header, index, trailer, frames.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::zfile(input);
});
