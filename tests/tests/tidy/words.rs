//! Checks that a doc comment opens with its subject.

use super::{files, none, read};

/// Words that stand in for a subject at the opening of a sentence.
const OPENINGS: [&str; 7] = ["What", "That", "Who", "Whom", "Of", "Where", "With"];

#[test]
fn no_doc_comment_opens_with_a_word_in_place_of_its_subject() {
    let mut wrong = Vec::new();
    for (name, path) in ["rs", "wit"].into_iter().flat_map(files) {
        let mut is_open = false;
        for (line, text) in (1..).zip(read(&path).lines()) {
            let text = text.trim_start();
            let doc = text.strip_prefix("//!").or_else(|| text.strip_prefix("///"));
            let first = doc.map(str::trim).filter(|_| !is_open).and_then(|doc| doc.split(' ').next());
            if first.is_some_and(|first| OPENINGS.contains(&first)) {
                wrong.push(format!("{name}:{line}: {text}"));
            }
            is_open = doc.is_some();
        }
    }
    none("doc comments that open without their subject", wrong);
}
