//! Parses and writes a config.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| afterbay_tests::fuzz::config(bytes));
