//! Checks that a comment opens with its subject.

use super::{files, none, read};

/// Words that stand in for a subject at the opening of a sentence.
const OPENINGS: [&str; 8] = ["What", "That", "Who", "Whom", "Of", "Where", "When", "With"];

#[test]
fn no_comment_opens_with_a_word_in_place_of_its_subject() {
    let mut wrong = Vec::new();
    for (name, path) in ["rs", "wit"].into_iter().flat_map(files) {
        let mut is_open = false;
        for (line, text) in (1..).zip(read(&path).lines()) {
            let text = text.trim_start();
            let comment = text.strip_prefix("//").map(|comment| comment.trim_start_matches(['/', '!']));
            let first = comment.filter(|_| !is_open).and_then(|comment| comment.split_whitespace().next());
            if first.is_some_and(|first| OPENINGS.contains(&first)) {
                wrong.push(format!("{name}:{line}: {text}"));
            }
            is_open = comment.is_some();
        }
    }
    none("comments that open without their subject", wrong);
}
