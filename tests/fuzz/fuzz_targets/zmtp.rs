//! Feeds a ZMTP conversation in every role.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| afterbay_sockets::zmtp::fuzz::fuzz(bytes));
