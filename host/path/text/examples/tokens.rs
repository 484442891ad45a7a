//! Serves `tests/real_tokens.py`: `tokens TOKENIZER` writes the tokenizer's data as a JSON object. Then it reads one
//! JSON string per line and writes its ids.

#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{BufRead, Write};
use std::path::Path;

use afterbay_text::TokenizerFiles;

fn main() {
    let files = TokenizerFiles::read(Path::new(&std::env::args().nth(1).unwrap())).unwrap();
    let (tokens, encoder) = (files.tokens().unwrap(), files.encoder().unwrap());
    drop(files);
    let bytes: Vec<&[u8]> = (0..i64::from(tokens.size())).map(|id| tokens.bytes(id)).collect();
    let read = serde_json::json!({
        "kind": tokens.kind().to_string(), "special": tokens.special(), "eos": tokens.eos(), "bytes": bytes});
    let mut out = std::io::stdout().lock();
    writeln!(out, "{read}").unwrap();
    for line in std::io::stdin().lock().lines() {
        let text: String = serde_json::from_str(&line.unwrap()).unwrap();
        writeln!(out, "{}", serde_json::to_string(&encoder.encode(&text).unwrap()).unwrap()).unwrap();
        out.flush().unwrap();
    }
}
