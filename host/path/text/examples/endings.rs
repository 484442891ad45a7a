//! Serves `tests/real_sglang.py`: `endings TOKENIZER` reads one request per line, a JSON list of rows of ids, and
//! writes the end of each row: `w`hole, `o`pen, `b`roken.

#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{BufRead, Write};
use std::path::Path;

use afterbay_text::{TextEnd, TextProgress, Vocabulary};

fn main() {
    let vocabulary = Vocabulary::load(Path::new(&std::env::args().nth(1).unwrap())).unwrap();
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let rows: Vec<Vec<i64>> = serde_json::from_str(&line.unwrap()).unwrap();
        let mut progress = TextProgress::default();
        let letter = |ids: &Vec<i64>| match progress.advance(&vocabulary, ids) {
            TextEnd::Whole => 'w',
            TextEnd::Open => 'o',
            TextEnd::Broken => 'b',
        };
        writeln!(out, "{}", rows.iter().map(letter).collect::<String>()).unwrap();
        out.flush().unwrap();
    }
}
