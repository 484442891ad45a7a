//! Runs the bodies of the fuzz targets on seeded mutations of valid inputs (`tests/src/mutate.rs`). The targets in `tests/fuzz` run
//! without end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use afterbay_tests::mutate::run;
use afterbay_tests::{fixtures, fuzz, vllm_fixtures};

/// Frames of up to 8 KB. Larger frames only repeat the same fields.
fn frames(extensions: &[&str]) -> Vec<Vec<u8>> {
    let frames = fixtures().into_iter();
    let frames = frames.filter(|(name, bytes)| {
        bytes.len() <= 8192 && extensions.iter().any(|extension| name.ends_with(extension))
    });
    frames.map(|(_, bytes)| bytes).collect()
}

#[test]
fn any_frame_is_decoded_or_a_barrier() {
    run(&fuzz::wire_decode, &frames(&[".msgpack", ".pickle", ".bin"]), 1);
}

#[test]
fn any_frame_of_vllm_is_decoded_or_a_barrier() {
    let frames = vllm_fixtures().into_iter().map(|(_, bytes)| bytes);
    run(&fuzz::vllm_decode, &frames.filter(|bytes| bytes.len() <= 8192).collect::<Vec<_>>(), 1);
}

#[test]
fn any_configuration_is_accepted_or_its_problems_have_a_place() {
    let golden =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/operation/config/tests/golden");
    let cases = std::fs::read_dir(golden).unwrap().map(|case| case.unwrap().path().join("afterbay.toml"));
    let valid: Vec<Vec<u8>> = cases.filter_map(|case| std::fs::read(case).ok()).collect();
    assert!(valid.len() > 30, "{} configurations", valid.len());
    run(&fuzz::config, &valid, 1);
}

#[test]
fn any_pickle_is_a_tree_or_an_error() {
    run(&fuzz::pickle, &frames(&[".pickle"]), 1);
}

#[test]
fn any_segment_is_readable_or_an_error_and_recovers() {
    run(&fuzz::journal_reader, &[fuzz::a_segment()], 10);
}
