//! Checks that a comment opens with its subject, and that a verb of the path has one meaning.

use super::{files, none, read};

/// The verbs of ARCHITECTURE.md, each with the files of the crates batch, chain and stream whose functions may have its name.
const VERBS: &[(&str, &[&str])] = &[
    ("persist", &["batch/src/frame_log.rs"]),
    ("account", &["batch/src/ledger/accounts/account.rs"]),
    ("settle", &["batch/src/ledger/accounts/settle.rs", "stream/src/stages.rs"]),
    ("taken", &["batch/src/outbox/queue.rs", "batch/src/outbox/sent.rs"]),
    (
        "recover",
        &["batch/src/hold/recover.rs", "batch/src/ledger/accounts/settle.rs", "stream/src/stages.rs"],
    ),
    ("take", &[]),
    ("settled", &[]),
    ("done", &[]),
];

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

#[test]
fn a_function_of_the_path_has_the_name_of_a_verb_only_for_its_meaning() {
    let is_of_path = |name: &str| {
        let crates = ["batch", "chain", "stream"].map(|it| format!("host/path/{it}/src/"));
        crates.iter().any(|it| name.contains(it)) && !name.contains("tests")
    };
    let mut wrong = Vec::new();
    for (name, path) in files("rs").into_iter().filter(|(name, _)| is_of_path(name)) {
        let text = read(&path);
        let used = VERBS.iter().filter(|(verb, _)| text.contains(&format!("fn {verb}(")));
        let unlisted = used.filter(|(_, files)| !files.iter().any(|file| name.ends_with(file)));
        wrong.extend(unlisted.map(|(verb, _)| format!("{name}: fn {verb}")));
    }
    none("functions with the name of another's verb", wrong);
}
