//! The bytes that another host sends over a connection.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::swarm(input);
});
