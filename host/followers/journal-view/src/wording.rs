//! The words for small things: counts, ids, verdicts and passages.

use afterbay_journal::{Passage, Verdict};

/// Most ids of a row in a table; JSON has all.
const IDS_SHOWN: usize = 8;

/// A number with its noun, which gets an `s` unless the number is 1.
pub fn counted(count: u64, noun: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{s}")
}

/// The first 8 ids, and the number of the others.
pub fn short(ids: &[i64]) -> String {
    let shown: Vec<String> = ids.iter().take(IDS_SHOWN).map(i64::to_string).collect();
    let more = ids.len().saturating_sub(IDS_SHOWN);
    let more = if more == 0 { String::new() } else { format!(" … {more} more") };
    format!("{}{more}", shown.join(" "))
}

/// The word for a verdict.
pub fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Replace => "replace",
        Verdict::Drop => "drop",
        Verdict::Finish => "finish",
        Verdict::Length => "length",
        Verdict::Hold => "hold",
        Verdict::Release => "release",
        Verdict::Route => "route",
        Verdict::SkipText => "skip-text",
        Verdict::Abort => "abort",
        Verdict::Error => "error",
        Verdict::Annotate => "annotate",
        Verdict::Fault => "fault",
        Verdict::Other(_) => "other",
    }
}

/// The words for a passage.
pub fn passage(passage: &Passage) -> &'static str {
    match passage {
        Passage::Unchanged => "unchanged",
        Passage::Changed => "changed",
        Passage::Dropped => "dropped",
        Passage::Barrier(_) => "barrier",
        Passage::NotUnderstood(_) => "not understood",
    }
}
