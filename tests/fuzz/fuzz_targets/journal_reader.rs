//! A file of the journal: read, and recovered from.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| afterbay_tests::fuzz::journal_reader(bytes));
