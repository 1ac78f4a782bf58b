//! Demand over time, as a trace gives it.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = headstart_fuzz::demand_series(input);
});
