//! Decodes a frame of vLLM.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| afterbay_tests::fuzz::vllm_decode(bytes));
