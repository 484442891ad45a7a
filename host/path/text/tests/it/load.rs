//! Loading vocabularies, and the errors.

use std::fs::File;
use std::path::Path;

use afterbay_text::{MAX_FILE_BYTES, MAX_TOKENS, TextEnd, TextProgress, Vocabulary, VocabularyError};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{FIXTURES, fixture};

fn model(vocab: Value, decoder: &str) -> Value {
    json!({"decoder": {"type": decoder}, "model": {"type": "BPE", "vocab": vocab, "merges": []}})
}

fn save(dir: &TempDir, name: &str, value: &Value) {
    std::fs::write(dir.path().join(name), value.to_string()).unwrap();
}

fn load(tokenizer: &Value) -> Result<Vocabulary, VocabularyError> {
    let dir = TempDir::new().unwrap();
    save(&dir, "tokenizer.json", tokenizer);
    Vocabulary::load(dir.path())
}

#[track_caller]
fn refused(path: &Path, with: &str) {
    let error = Vocabulary::load(path).unwrap_err().to_string();
    assert!(error.starts_with(&path.display().to_string()) && error.contains(with), "{error}");
}

#[test]
fn a_directory_is_the_same_as_the_tokenizer_json_in_it() {
    for (name, kind) in FIXTURES {
        let directory = Vocabulary::load(&fixture(name)).unwrap();
        let file = Vocabulary::load(&fixture(name).join("tokenizer.json")).unwrap();
        assert_eq!((directory.tokens(), directory.kind()), (file.tokens(), kind));
        assert!(file.tokens() > 100, "{name} has {}", file.tokens());
    }
}

#[test]
fn a_missing_file_or_one_that_is_not_a_tokenizer_is_refused_by_name() {
    let dir = TempDir::new().unwrap();
    refused(dir.path(), "holds no tokenizer.json");
    refused(&dir.path().join("other.json"), "no such file or directory");
    let path = dir.path().join("tokenizer.json");
    for text in ["", "{}", "[]", r#"{"model":{"vocab":3}}"#, r#"{"model":{"vocab":{"a":-1}}}"#] {
        std::fs::write(&path, text).unwrap();
        refused(&path, "not a tokenizer");
    }
    save(&dir, "tokenizer.json", &model(json!({"a": 0}), "CTC"));
    refused(&path, "decoder CTC (step 1 of 1) is not supported");
}

#[test]
fn a_file_over_256_mib_is_refused_before_it_is_read() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tokenizer.json");
    File::create(&path).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
    refused(&path, "over the limit of 268435456 bytes (has 268435457)");
}

#[test]
fn a_vocabulary_past_4_million_tokens_is_refused() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tokenizer.json");
    let tokens = vec![r#"["",0]"#; MAX_TOKENS + 1].join(",");
    std::fs::write(&path, format!(r#"{{"model":{{"type":"Unigram","vocab":[{tokens}]}}}}"#)).unwrap();
    refused(&path, "vocabulary of 4000001 tokens is over the limit of 4000000");
    save(&dir, "tokenizer.json", &model(json!({"a": MAX_TOKENS}), "ByteLevel"));
    refused(&path, "token id 4000000 is not below the limit of 4000000");
}

#[test]
fn clean_up_is_refused_where_the_reader_does_it() {
    let dir = TempDir::new().unwrap();
    let config = dir.path().join("tokenizer_config.json");
    let mut cleans = json!({"clean_up_tokenization_spaces": true});
    save(&dir, "tokenizer_config.json", &cleans);
    save(&dir, "tokenizer.json", &model(json!({"a": 0}), "ByteLevel"));
    assert!(Vocabulary::load(dir.path()).is_ok(), "transformers 5 does not, for BPE");
    cleans["clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"] = json!(true);
    save(&dir, "tokenizer_config.json", &cleans);
    let error = Vocabulary::load(dir.path()).unwrap_err().to_string();
    assert!(error.starts_with(&config.display().to_string()), "{error}");
    save(&dir, "tokenizer_config.json", &json!({"clean_up_tokenization_spaces": true}));
    save(&dir, "tokenizer.json", &json!({"model": {"type": "Unigram", "vocab": [["a", 0.5]]}}));
    assert!(Vocabulary::load(dir.path()).is_err());
}

#[test]
fn a_token_that_only_the_config_calls_special_may_be_skipped_inside_a_character() {
    let dir = TempDir::new().unwrap();
    save(&dir, "tokenizer.json", &model(json!({"æ": 0, "<end>": 1, "a": 2}), "ByteLevel"));
    let after = |ids: &[i64]| TextProgress::default().advance(&Vocabulary::load(dir.path()).unwrap(), ids);
    assert_eq!(after(&[0, 1]), TextEnd::Whole, "a token of text ends what was open");
    save(&dir, "tokenizer_config.json", &json!({"eos_token": {"content": "<end>"}}));
    assert_eq!(after(&[0, 1]), TextEnd::Broken);
    assert_eq!(after(&[2, 1]), TextEnd::Whole);
}

#[test]
fn an_added_token_that_the_library_numbers_otherwise_is_not_trusted() {
    let mut tokenizer = model(json!({"a": 0, "b": 1}), "ByteLevel");
    tokenizer["added_tokens"] = json!([{"id": 2, "content": "<x>"}, {"id": 9, "content": "<y>"}]);
    let vocabulary = load(&tokenizer).unwrap();
    let after = |id| TextProgress::default().advance(&vocabulary, &[id]);
    assert_eq!([0, 1, 2].map(after), [TextEnd::Whole; 3]);
    assert_eq!([3, 9].map(after), [TextEnd::Broken; 2], "the library calls <y> 3");
}

#[test]
fn an_id_of_two_tokens_is_not_trusted() {
    let vocabulary = load(&model(json!({"a": 0, "b": 0, "c": 1}), "ByteLevel")).unwrap();
    assert_eq!(TextProgress::default().advance(&vocabulary, &[0]), TextEnd::Broken);
    assert_eq!(TextProgress::default().advance(&vocabulary, &[1]), TextEnd::Whole);
}
