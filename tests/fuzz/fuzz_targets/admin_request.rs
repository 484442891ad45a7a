//! Sends a request to an admin address.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| afterbay_server::fuzz::admin_request(bytes));
