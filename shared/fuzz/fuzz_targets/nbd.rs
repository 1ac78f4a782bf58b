//! An NBD client: its handshake and its requests.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::nbd(input);
});
