//! Measurements for the README. Run them in release, one by one.

use std::time::Instant;

use afterbay_plugin::testing::TestRow;

use super::tokens::{Tokens, rows_of_ids, run};

/// Text without matches: prose, code, tables and data.
const TEXTS: [&str; 3] =
    [include_str!("../sample.txt"), include_str!("../plugin.rs"), include_str!("../../../sdk/src/text.rs")];

const SETTINGS: [(&str, &str); 4] = [
    (
        "words",
        r#"{"words": ["bomb", "poison", "cocaine", "grenade", "murder", "kidnap", "blackmail", "anthrax"]}"#,
    ),
    ("card, IBAN, phone, IP", r#"{"presets": ["card", "iban", "phone", "ip"]}"#),
    ("e-mail", r#"{"presets": ["email"]}"#),
    ("all presets", r#"{"presets": ["email", "card", "iban", "phone", "api-key", "ip"]}"#),
];

/// Prints the share of rows that wait, and how many steps later than without the plugin a token leaves after the one
/// before it. `MATCH_TEXT_PIECES` names a file of texts, one in each line: a name, and the bytes of each token in
/// hexadecimal.
#[test]
#[ignore = "a measurement"]
fn waits_on_normal_text() {
    let pieces = std::env::var_os("MATCH_TEXT_PIECES").map(|path| std::fs::read_to_string(path).unwrap());
    let texts: Vec<(&str, Vec<Vec<u8>>)> = match &pieces {
        Some(pieces) => pieces
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(name, rest)| (name, hex(rest)))
            .collect(),
        None => {
            let tokens = Tokens::new(TEXTS);
            let pieces =
                |text: &str| tokens.encode(text).iter().map(|id| tokens.bytes(*id).to_vec()).collect();
            TEXTS.iter().map(|text| ("text", pieces(text))).collect()
        }
    };
    for (name, settings) in SETTINGS {
        for (request, (kind, pieces)) in (0..).zip(&texts) {
            let vocabulary: std::collections::BTreeSet<&Vec<u8>> = pieces.iter().collect();
            let vocabulary: Vec<&Vec<u8>> = vocabulary.into_iter().collect();
            let ids = pieces.iter().map(|piece| vocabulary.binary_search(&piece).unwrap() as i64);
            let ids: Vec<i64> = ids.collect();
            let all = vocabulary.iter().map(|piece| Some((*piece).clone())).collect();
            let plugin =
                afterbay_plugin::testing::Harness::<crate::MatchText>::with_tokens(settings, all).unwrap();
            let mut plugin = afterbay_plugin::testing::Readers::new(plugin);
            let rows = rows_of_ids(request, &ids, &(1..ids.len()).collect::<Vec<_>>());
            let received = run(&mut plugin, request, &rows);
            let rows = received.times.len();
            let held = received.times.iter().filter(|(arrived, left)| left > arrived).count();
            // Tokens that leave together have no time between them. Without the plugin, there is one step between any two.
            let gaps = received.times.windows(2).map(|pair| (pair[1].1 - pair[0].1).saturating_sub(1));
            let mut gaps: Vec<u32> = gaps.collect();
            gaps.sort_unstable();
            let at = |share: f64| gaps[(gaps.len() as f64 * share) as usize];
            println!(
                "{name}, {kind}: {rows} rows, {:.1} % wait; added steps p50 {}, p90 {}, p95 {}, p99 {}, p99.9 {}",
                100.0 * f64::from(held as u32) / f64::from(rows as u32),
                at(0.5),
                at(0.9),
                at(0.95),
                at(0.99),
                at(0.999),
            );
        }
    }
}

fn hex(line: &str) -> Vec<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    line.split(' ').map(|piece| piece.as_bytes().chunks(2).map(byte).collect()).collect()
}

/// Prints the time for a row of a batch of 64.
#[test]
#[ignore = "a measurement"]
fn time_of_a_row() {
    for (name, settings) in SETTINGS {
        let tokens = Tokens::new(TEXTS);
        let ids: Vec<i64> = TEXTS.iter().flat_map(|text| tokens.encode(text)).collect();
        let mut plugin =
            afterbay_plugin::testing::Harness::<crate::MatchText>::with_tokens(settings, tokens.all.clone())
                .unwrap();
        (0..64).for_each(|request| plugin.open(request));
        let batches: Vec<Vec<TestRow>> = (0..2_000)
            .map(|step| {
                (0..64)
                    .map(|request| {
                        TestRow::new(request).ids([ids[(step + 37 * request as usize) % ids.len()]])
                    })
                    .collect()
            })
            .collect();
        let start = Instant::now();
        for batch in &batches {
            plugin.process(batch);
        }
        println!("{name}: {:.0} ns a row", start.elapsed().as_nanos() as f64 / 128_000.0);
    }
}

/// Prints the time and the memory of 8,192 states, with noise that makes as many as possible.
#[test]
#[ignore = "a measurement"]
fn cost_of_states() {
    use crate::automaton::{Automaton, Step};
    let settings: crate::Settings = serde_json::from_str(SETTINGS[3].1).unwrap();
    let (_, nfa) = crate::patterns::Patterns::new(&settings).unwrap();
    let mut automaton = Automaton::new(nfa);
    let mut random = super::random::Random::new(3);
    let (mut state, mut bytes) = (automaton.start(true), 0_u64);
    let start = Instant::now();
    while automaton.states() < 8192 {
        let byte = random.text("a1234567890 ...-@:+()DE2skeyJ", 1).bytes().next().unwrap();
        state = match automaton.step(state, byte) {
            Step::Simple(next) => next,
            Step::Full(transition) => transition.next,
        };
        bytes += 1;
    }
    println!("8,192 states: {:?}, {bytes} bytes of text, {} KiB", start.elapsed(), automaton.bytes() >> 10);
}
