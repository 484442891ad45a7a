//! The start of a request's first tool call.

use afterbay_text::{CallProgress, TokenizerFiles, Vocabulary};
use serde_json::json;

/// A byte-level model with prose, brackets, a marker, the end of a reasoning block, and blanks.
fn vocabulary() -> Vocabulary {
    let dir = tempfile::tempdir().unwrap();
    let added = |id: u32, content: &str| json!({"id": id, "content": content, "special": true});
    let vocab = json!({"Hello": 0, "Ġ{\"": 1, "[": 2, "Ċ": 3, "a": 4});
    let tokenizer = json!({
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
        "decoder": {"type": "ByteLevel"},
        "added_tokens": [added(5, "<｜tool▁calls▁begin｜>"), added(6, "</think>"), added(7, "<|python_tag|>")],
    });
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    TokenizerFiles::read(dir.path()).unwrap().vocabulary().unwrap()
}

fn rows_before_a_call(rows: &[&[i64]]) -> usize {
    let (vocabulary, mut progress) = (vocabulary(), CallProgress::default());
    rows.iter().take_while(|ids| !progress.advance(&vocabulary, ids)).count()
}

#[test]
fn a_call_begins_with_a_marker_anywhere_and_with_a_bracket_only_where_the_text_begins() {
    assert_eq!(rows_before_a_call(&[&[0], &[4, 5], &[4]]), 1, "a marker in the middle of a row");
    assert_eq!(rows_before_a_call(&[&[0], &[7]]), 1);
    assert_eq!(rows_before_a_call(&[&[1]]), 0, "a brace that is the first text");
    assert_eq!(rows_before_a_call(&[&[3], &[2]]), 1, "behind blanks");
    assert_eq!(rows_before_a_call(&[&[0], &[1], &[2], &[3]]), 4, "a bracket in prose");
    assert_eq!(rows_before_a_call(&[&[4], &[6], &[3, 1]]), 2, "behind the reasoning");
    assert_eq!(rows_before_a_call(&[&[0], &[-1], &[i64::MAX]]), 3, "ids without a token are text");
}
