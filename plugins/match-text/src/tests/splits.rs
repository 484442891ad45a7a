//! No forbidden byte leaks, wherever a text is cut into rows.

use std::time::{Duration, Instant};

use super::corpus::{Sample, samples};
use super::random::Random;
use super::serialized::serialized;
use super::tokens::{Tokens, rows_of_ids, rows_of_text, run};
use crate::Preset;

fn all_presets() -> String {
    let names: Vec<&str> = Preset::ALL.iter().map(|preset| preset.name()).collect();
    format!(r##"{{"presets": {names:?}, "mask": "#"}}"##)
}

#[test]
fn every_match_of_the_corpus_is_masked_at_every_cut_and_the_rest_arrives_unchanged() {
    for preset in Preset::ALL {
        // Each other text is serialized.
        let text = |(at, sample): (usize, &Sample)| match at % 80 {
            0 => serialized(&sample.text(), 1 + at % 3, true),
            _ => sample.text(),
        };
        let texts: Vec<String> = samples(preset).iter().enumerate().map(text).collect();
        let tokens = Tokens::new(texts.iter().map(String::as_str));
        let settings = format!(r##"{{"presets": ["{}"], "mask": "#"}}"##, preset.name());
        let mut plugin = tokens.plugin(&settings);
        let mut request = 0;
        // All of them take 3 minutes.
        let step = if std::env::var_os("MATCH_TEXT_ALL").is_some() { 1 } else { 40 };
        for text in texts.iter().step_by(step) {
            let ids = tokens.encode(text);
            let bytes: Vec<i64> = text.bytes().map(i64::from).collect();
            let mut of = |ids: &[i64], cuts: &[usize]| {
                request += 1;
                tokens.text(&run(&mut plugin, request, &rows_of_ids(request, ids, cuts)).ids)
            };
            let wanted = of(&ids, &[]);
            for cut in 1..ids.len() {
                assert_eq!(of(&ids, &[cut]), wanted, "{preset:?}: {text:?} cut after token {cut}");
            }
            for cut in 1..bytes.len() {
                assert_eq!(of(&bytes, &[cut]), wanted, "{preset:?}: {text:?} cut after byte {cut}");
            }
            // One token or byte in each row.
            for ids in [&ids, &bytes] {
                assert_eq!(of(ids, &(1..ids.len()).collect::<Vec<_>>()), wanted, "{preset:?}: {text:?}");
            }
            let cuts: Vec<usize> = (1..text.len()).filter(|at| text.is_char_boundary(*at)).collect();
            for cuts in cuts.iter().map(std::slice::from_ref).chain([&cuts[..]]) {
                request += 1;
                let received = run(&mut plugin, request, &rows_of_text(request, text, cuts));
                assert_eq!(received.text, wanted, "{preset:?}: {text:?} cut at {cuts:?}");
            }
        }
    }
}

/// Settings for the fuzzer.
const SETTINGS: [&str; 6] = [
    r##"{"presets": ["email", "card", "iban", "phone", "api-key", "ip"], "mask": "#"}"##,
    r##"{"presets": ["card", "phone", "iban"], "mask": "[masked]"}"##,
    r##"{"words": ["blue", "north river", "c++", "\u00e4rger", "team"], "presets": ["email"], "mask": ""}"##,
    r##"{"patterns": ["[0-9]{2,}", "(?i)an+a", "\\bv[a-z]*e\\b"], "words": ["value", "model"], "mask": "#"}"##,
    r##"{"presets": ["email", "phone", "ip"], "action": "finish"}"##,
    r##"{"presets": ["card", "api-key", "email"], "action": "drop"}"##,
];

/// Cuts random texts at random tokens into random batches. Each reader must have the text that the whole text in one
/// row gives. Returns the number of texts.
fn fuzz(seed: u64, until: impl Fn(u64) -> bool) -> u64 {
    let mut all: Vec<String> =
        Preset::ALL.iter().flat_map(|preset| samples(*preset)).map(|sample| sample.text()).collect();
    let serialized: Vec<String> = all.iter().step_by(3).map(|text| serialized(text, 1, true)).collect();
    all.extend(serialized);
    let tokens = Tokens::new(all.iter().map(String::as_str));
    let mut plugins: Vec<_> = SETTINGS.iter().map(|settings| tokens.plugin(settings)).collect();
    // The stand-in's tokens are those of the last plugin; all have the same.
    let mut random = Random::new(seed);
    let (mut executions, mut request) = (0, 0);
    while until(executions) {
        let case = random.next();
        let mut random = Random::new(case);
        let plugin_index = random.below(plugins.len());
        let plugin = &mut plugins[plugin_index];
        // Up to four requests share batches.
        let mut requests = Vec::new();
        for _ in 0..=random.below(4) {
            let mut text = String::new();
            for _ in 0..=random.below(4) {
                match random.below(8) {
                    0 => {
                        let length = random.below(12);
                        text.push_str(&random.text("a1.@ -é/+0\n:\\nu", length));
                    }
                    1 => {
                        let length = 40 + random.below(400);
                        let alphabet = random.pick(&["ab1", "a", "0", "a@b.", "1 ", "x.-_"]);
                        text.push_str(&random.text(alphabet, length));
                    }
                    _ => text.push_str(&all[random.below(all.len())]),
                }
                if random.below(3) > 0 {
                    text.push(' ');
                }
            }
            let ids = tokens.encode_at_random(&text, &mut random);
            request += 1;
            let whole = run(plugin, request, &rows_of_ids(request, &ids, &[]));
            request += 1;
            let density = 1 + random.below(4);
            let cuts: Vec<usize> = (1..ids.len()).filter(|_| random.below(density) == 0).collect();
            let rows = rows_of_ids(request, &ids, &cuts);
            plugin.open(request);
            requests.push((request, rows, tokens.text(&whole.ids), text));
            executions += 1;
        }
        let mut begun = vec![0; requests.len()];
        while begun.iter().zip(&requests).any(|(begun, (_, rows, ..))| *begun < rows.len()) {
            let mut batch = Vec::new();
            for (begun, (_, rows, ..)) in begun.iter_mut().zip(&requests) {
                if *begun < rows.len() && random.below(3) > 0 {
                    batch.push(rows[*begun].clone());
                    *begun += 1;
                }
            }
            plugin.process(&batch);
        }
        for (request, rows, wanted, text) in requests {
            let received = plugin.close(request);
            let settings = SETTINGS[plugin_index];
            assert_eq!(
                tokens.text(&received.ids),
                wanted,
                "case {case}: {settings}: {text:?} in {} rows",
                rows.len()
            );
        }
    }
    executions
}

#[test]
fn random_texts_in_random_batches_give_the_text_of_one_row() {
    fuzz(1, |executions| executions < 500);
}

/// Runs for `MATCH_TEXT_FUZZ_SECONDS` from the seed `MATCH_TEXT_FUZZ_SEED`: `cargo test --release -- --ignored fuzz`.
#[test]
#[ignore = "runs as long as MATCH_TEXT_FUZZ_SECONDS says"]
fn fuzz_token_borders() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |value| value.parse().unwrap());
    let (seconds, seed) = (number("MATCH_TEXT_FUZZ_SECONDS", 60), number("MATCH_TEXT_FUZZ_SEED", 7));
    let start = Instant::now();
    let executions = fuzz(seed, |_| start.elapsed() < Duration::from_secs(seconds));
    println!("{executions} texts in {seconds} s from seed {seed}, no leak");
}

#[test]
fn all_presets_together_find_what_each_finds() {
    let settings = all_presets();
    let texts: Vec<_> =
        Preset::ALL.iter().flat_map(|preset| samples(*preset).into_iter().step_by(10)).collect();
    let tokens = Tokens::new([]);
    for preset in Preset::ALL {
        let one = format!(r##"{{"presets": ["{}"], "mask": "#"}}"##, preset.name());
        let (mut one, mut all) = (tokens.plugin(&one), tokens.plugin(&settings));
        for (request, sample) in (0..).zip(&texts) {
            let rows = rows_of_ids(request, &tokens.encode(&sample.text()), &[]);
            let [one, all] = [&mut one, &mut all].map(|plugin| tokens.text(&run(plugin, request, &rows).ids));
            let is_found = one != sample.text();
            assert!(!is_found || all != sample.text(), "{preset:?} finds {:?}", sample.text());
        }
    }
}
