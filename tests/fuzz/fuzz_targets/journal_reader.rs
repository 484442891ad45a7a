//! Reads a segment file and recovers from it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| afterbay_tests::fuzz::journal_reader(bytes));
