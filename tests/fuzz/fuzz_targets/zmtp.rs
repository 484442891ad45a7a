//! A ZMTP conversation, for every role.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| afterbay_zmtp::fuzz::fuzz(bytes));
