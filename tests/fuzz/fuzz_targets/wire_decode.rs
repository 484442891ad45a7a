//! Decodes a frame of the scheduler.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| afterbay_tests::fuzz::wire_decode(bytes));
