//! Every token's bytes and a text's ids, compared with SGLang's library.

use std::path::Path;

use afterbay_text::{DecoderKind, Encoder, MAX_TEXT_BYTES, TokenBytes, TokenizerFiles};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokenizers::Tokenizer;

use crate::{FIXTURES, fixture};

const TEXTS: [&str; 8] = [
    "日本語のテキストを読む。これは試験です。",
    "中文分词器把汉字拆成字节，龘靐齉",
    "emoji 🙂👍🏽 🏳️‍🌈🇯🇵 🫠🫡",
    "def f(x):\n\treturn {\"a\": [1, 2.5e3]}  # two  spaces\n\n",
    "héllo wörld, Привет мир, שלום 𓀀",
    " a space before and behind ",
    "",
    "\u{0}\u{7f}\r\n",
];

/// `<s>`, `</s>`, `<|im_end|>`.
const SPECIAL: [i64; 3] = [0, 1, 2];

fn library(name: &str) -> Tokenizer {
    Tokenizer::from_file(fixture(name).join("tokenizer.json")).unwrap()
}

fn decode(library: &Tokenizer, ids: &[i64]) -> String {
    let ids: Vec<u32> = ids.iter().map(|id| u32::try_from(*id).unwrap()).collect();
    library.decode(&ids, true).unwrap()
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn every_token_has_the_bytes_that_the_library_makes_of_it_in_the_middle_of_a_text() {
    for (name, kind) in FIXTURES {
        let (tokens, library) = (TokenBytes::load(&fixture(name)).unwrap(), library(name));
        let size = library.get_vocab_size(true);
        assert_eq!((tokens.size() as usize, tokens.kind()), (size, kind), "{name}");
        assert_eq!(tokens.special(), SPECIAL, "{name}");
        // A word of several letters is no byte token, which would form one run with the next byte token.
        let is_word = |id: &i64| {
            let text = decode(&library, &[*id]);
            text.len() > 1 && text.bytes().all(|byte| byte.is_ascii_alphabetic())
        };
        let before = (3..size as i64).find(is_word).unwrap();
        let start = decode(&library, &[before]);
        for id in 0..size as i64 {
            let text = decode(&library, &[before, id]);
            assert_eq!(text.strip_prefix(&start), Some(lossy(tokens.bytes(id)).as_str()), "{name} {id}");
            // A special token has no bytes; every other token has some.
            assert_eq!(tokens.bytes(id).is_empty(), SPECIAL.contains(&id), "{name} {id}");
        }
    }
}

#[test]
fn all_tokens_one_after_another_are_what_the_library_decodes() {
    for (name, kind) in FIXTURES {
        let (tokens, library) = (TokenBytes::load(&fixture(name)).unwrap(), library(name));
        // Left out: with byte fallback, a run of byte tokens that is not UTF-8 becomes U+FFFD for each byte.
        let is_part =
            |id: &i64| kind == DecoderKind::ByteFallback && std::str::from_utf8(tokens.bytes(*id)).is_err();
        let ids: Vec<i64> = (0..i64::from(tokens.size())).filter(|id| !is_part(id)).collect();
        let (ours, theirs) = (lossy(&tokens.decode(&ids)), decode(&library, &ids));
        assert!(ours == theirs || ours.strip_prefix(' ') == Some(&theirs), "{name}");
    }
}

#[test]
fn a_text_that_is_encoded_and_decoded_is_the_same_bytes() {
    for (name, kind) in FIXTURES {
        let files = TokenizerFiles::read(&fixture(name)).unwrap();
        let (tokens, encoder) = (files.tokens().unwrap(), files.encoder().unwrap());
        let mut exact = 0;
        for text in TEXTS {
            let ids = encoder.encode(text).unwrap();
            let decoded = lossy(&tokens.decode(&ids));
            let theirs = decode(&library(name), &ids);
            // A text's first token may have a space that a decoder cuts.
            assert!(decoded == theirs || decoded.strip_prefix(' ') == Some(&theirs), "{name} {text:?}");
            if matches!(kind, DecoderKind::ByteLevel | DecoderKind::ByteFallback)
                && !name.starts_with("unigram")
            {
                assert_eq!(
                    decoded
                        .strip_prefix(' ')
                        .filter(|_| kind == DecoderKind::ByteFallback)
                        .unwrap_or(&decoded),
                    text
                );
                exact += 1;
            }
        }
        println!("{name}: {exact} of {} texts are the same", TEXTS.len());
    }
}

#[test]
fn special_tokens_in_a_text_become_them_and_none_are_put_around_it() {
    let encoder = Encoder::load(&fixture("byte-level")).unwrap();
    let ids = encoder.encode("a</s>").unwrap();
    assert_eq!((ids.len(), ids.last()), (2, Some(&1)));
}

#[test]
fn an_id_without_a_token_has_no_bytes() {
    let tokens = TokenBytes::load(&fixture("byte-level")).unwrap();
    for id in [-1, i64::MIN, i64::MAX, i64::from(tokens.size())] {
        assert_eq!(tokens.bytes(id), b"", "{id}");
    }
    assert_ne!(tokens.bytes(i64::from(tokens.size()) - 1), b"");
    assert_eq!(tokens.decode(&[-1, 3, 0]), tokens.bytes(3));
}

fn save(dir: &TempDir, name: &str, value: &Value) {
    std::fs::write(dir.path().join(name), value.to_string()).unwrap();
}

fn bpe(vocab: Value, decoder: Value) -> Value {
    json!({"decoder": decoder, "model": {"type": "BPE", "vocab": vocab, "merges": []}})
}

fn refused<T>(result: Result<T, impl std::fmt::Display>, path: &Path, with: &str) {
    let Err(error) = result else { panic!("not refused: {with}") };
    let error = error.to_string();
    assert!(error.starts_with(&path.display().to_string()) && error.contains(with), "{error}");
}

#[test]
fn the_files_beside_it_also_name_special_tokens_and_ends_of_text() {
    let dir = TempDir::new().unwrap();
    let mut tokenizer = bpe(json!({"a": 0, "<pad>": 1, "b": 2}), json!({"type": "ByteLevel"}));
    tokenizer["added_tokens"] = json!([{"id": 3, "content": "<think>", "special": false},
        {"id": 4, "content": "<eot>", "special": true}, {"id": 5, "content": "</s>", "special": false},
        {"id": 6, "content": "<tool>"}]);
    save(&dir, "tokenizer.json", &tokenizer);
    let load = || TokenBytes::load(dir.path()).unwrap();
    assert_eq!((load().size(), load().special(), load().eos()), (7, &[4][..], &[][..]));
    assert_eq!(load().decode(&[0, 1, 2, 3, 4, 5, 6]), b"a<pad>b<think></s><tool>");

    save(
        &dir,
        "tokenizer_config.json",
        &json!({"eos_token": {"content": "</s>"}, "pad_token": "<pad>", "bos_token": "<not there>",
            "added_tokens_decoder": {"6": {"content": "<tool>", "special": true}}}),
    );
    assert_eq!((load().special(), load().eos()), (&[1, 4, 5, 6][..], &[5][..]));
    assert_eq!(load().decode(&[0, 1, 2, 3, 4, 5, 6]), b"ab<think>");

    // A model may have ids past its tokenizer's. They have no token.
    save(&dir, "config.json", &json!({"eos_token_id": 2, "vocab_size": 100}));
    save(&dir, "generation_config.json", &json!({"eos_token_id": [4, 5, 99, -1]}));
    assert_eq!(load().eos(), [2, 4, 5]);
    save(&dir, "config.json", &json!({"eos_token_id": null}));
    assert_eq!(load().eos(), [4, 5]);
    save(&dir, "generation_config.json", &json!({"eos_token_id": "</s>"}));
    refused(TokenBytes::load(dir.path()), &dir.path().join("generation_config.json"), "not a tokenizer");
}

#[test]
fn an_id_with_an_uncertain_token_has_no_bytes() {
    let dir = TempDir::new().unwrap();
    let mut tokenizer = bpe(json!({"a": 0, "b": 0, "c": 1}), json!({"type": "ByteLevel"}));
    tokenizer["added_tokens"] = json!([{"id": 3, "content": "<x>"}, {"id": 9, "content": "<y>"}]);
    save(&dir, "tokenizer.json", &tokenizer);
    let tokens = TokenBytes::load(dir.path()).unwrap();
    assert_eq!((tokens.size(), tokens.special()), (10, &[][..]));
    assert_eq!([0, 1, 3, 4, 9].map(|id| tokens.bytes(id)), [&b""[..], b"c", b"<x>", b"", b""]);
}

#[test]
fn a_decoder_that_makes_short_tokens_very_long_is_refused_in_time() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tokenizer.json");
    let step = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to.repeat(2000)});
    let decoders = json!({"type": "Sequence", "decoders": [step("é", "è"), step("è", "ê"), step("ê", "ë")]});
    save(&dir, "tokenizer.json", &bpe(json!({"é": 0}), decoders));
    refused(TokenBytes::load(&path), &path, "the text of its tokens is over the limit of 268435456 bytes");
}

#[test]
fn an_unknown_decoder_is_refused_by_name() {
    let dir = TempDir::new().unwrap();
    save(&dir, "tokenizer.json", &bpe(json!({"a": 0}), json!({"type": "CTC"})));
    let path = dir.path().join("tokenizer.json");
    refused(TokenBytes::load(&path), &path, "decoder CTC (step 1 of 1) is not supported");
}

#[test]
fn clean_up_of_a_whole_text_does_not_affect_a_tokens_bytes() {
    let dir = TempDir::new().unwrap();
    save(&dir, "tokenizer.json", &json!({"model": {"type": "Unigram", "vocab": [["a", 0.5]]}}));
    save(&dir, "tokenizer_config.json", &json!({"clean_up_tokenization_spaces": true}));
    let files = TokenizerFiles::read(dir.path()).unwrap();
    assert!(files.vocabulary().is_err());
    assert_eq!(files.tokens().unwrap().bytes(0), b" a", "no decoder: words with a space between them");
}

#[test]
fn a_file_that_the_library_refuses_has_tokens_but_no_encoder() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tokenizer.json");
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let good = bpe(json!({"a": 0}), byte_level);
    save(&dir, "tokenizer.json", &good);
    assert_eq!(Encoder::load(&path).unwrap().encode("aa").unwrap(), [0, 0]);
    // A merge of strings that are no tokens, and a pattern without an end.
    let (mut merge, mut pattern) = (good.clone(), good);
    merge["model"]["merges"] = json!(["a b"]);
    pattern["pre_tokenizer"] =
        json!({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": false});
    for tokenizer in [merge, pattern] {
        save(&dir, "tokenizer.json", &tokenizer);
        assert_eq!(TokenBytes::load(&path).unwrap().bytes(0), b"a");
        refused(Encoder::load(&path), &path, "cannot be used to encode: ");
    }
}

#[test]
fn truncation_and_padding_of_a_file_are_ignored() {
    let dir = TempDir::new().unwrap();
    let file = std::fs::read_to_string(fixture("byte-level").join("tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&file).unwrap();
    tokenizer["truncation"] =
        json!({"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"});
    tokenizer["padding"] = json!({"strategy": {"Fixed": 500}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<s>"});
    save(&dir, "tokenizer.json", &tokenizer);
    let (ours, whole) = (Encoder::load(dir.path()).unwrap(), Encoder::load(&fixture("byte-level")).unwrap());
    assert_eq!(ours.encode(TEXTS[0]).unwrap(), whole.encode(TEXTS[0]).unwrap());
    assert!(whole.encode(TEXTS[0]).unwrap().len() > 2);
}

#[test]
fn a_text_over_64_kib_is_not_encoded() {
    let encoder = Encoder::load(&fixture("word-piece")).unwrap();
    let text = " ".repeat(MAX_TEXT_BYTES);
    assert!(encoder.encode(&text).is_ok());
    let error = encoder.encode(&(text + " ")).unwrap_err().to_string();
    assert_eq!(error, "text of 65537 bytes is over the limit of 65536");
}
