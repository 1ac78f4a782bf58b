//! A request for a certificate, as a host sends it over a connection or an operator gets it in a file.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::signing_request(input);
});
