//! Parses and writes a pickle.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| afterbay_tests::fuzz::pickle(bytes));
