//! The judgement beside what the engines' own parsers hand to a client: the lines that `tests/engines/differential.py`
//! writes.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Value, json};

use super::super::read::Arguments;
use super::super::tools::Tools;
use super::{Tokens, receive};
use crate::GrammarCheck;

/// An outcome of a parser, as a client sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    Text,
    Valid(usize),
    Invalid,
    /// A name that no model writes: prose about the format that a parser takes for a call.
    Prose,
}

fn outcome(tools: &Tools, calls: &Value) -> Outcome {
    let calls = calls.as_array().unwrap();
    let mut all = if calls.is_empty() { Outcome::Text } else { Outcome::Valid(calls.len()) };
    for call in calls {
        let (name, arguments) = (call[0].as_str().unwrap(), call[1].as_str().unwrap());
        let is_name =
            !name.is_empty() && name.chars().all(|char| char.is_alphanumeric() || "_-.".contains(char));
        let read = serde_json::from_str(arguments).ok().map(Arguments::Value);
        let is_valid = read.is_some_and(|read| tools.check_call(name, read, None).is_ok());
        match is_name || tools.has(name) {
            false => return Outcome::Prose,
            true if !is_valid => all = Outcome::Invalid,
            true => {}
        }
    }
    all
}

/// The judgement of each engine's setting agrees with every parser and every way of the engine to read the output, or
/// with one of them where they differ. A line names the settings that are known to differ.
#[test]
fn the_judgement_is_that_of_the_engines() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/engines");
    let read = |name| std::fs::read_to_string(directory.join(name)).unwrap();
    let list: Value = serde_json::from_str(&read("tools.json")).unwrap();
    let path = std::env::var("AFTERBAY_ENGINE_CASES").map_or(directory.join("cases.jsonl"), Into::into);
    let cases = std::fs::read_to_string(&path).unwrap();
    let (mut checks, mut differs, mut blessed) = (0, Vec::new(), String::new());
    let mut checks_of = HashMap::new();
    for line in cases.lines() {
        let mut case: Value = serde_json::from_str(line).unwrap();
        let list = case.get("tools").unwrap_or(&list).clone();
        let tools = Tools::read(&list, false).unwrap();
        let (mut found, mut why) = (Vec::new(), String::new());
        let (text, format) =
            (case["text"].as_str().unwrap().to_owned(), case["format"].as_str().unwrap().to_owned());
        for engine in [None, Some("sglang"), Some("vllm")] {
            let engines: Vec<&str> = engine.map_or(vec!["sglang", "vllm", "expected"], |engine| vec![engine]);
            let outcomes = engines.iter().filter_map(|engine| case[*engine].as_array()).flatten();
            let outcomes: Vec<Outcome> = outcomes.map(|calls| outcome(&tools, calls)).collect();
            let is_invalid = outcomes.contains(&Outcome::Invalid);
            let is_valid = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Valid(_)));
            let must_stop = is_invalid && !is_valid;
            // vLLM's parser of harmony needs a vocabulary that is not at hand.
            let is_known = engine.is_some() || format != "harmony";
            let must_pass = !is_invalid && !outcomes.contains(&Outcome::Prose) && is_known;
            if outcomes.is_empty() || !must_stop && !must_pass {
                continue;
            }
            let settings = json!({
                "tool_calls": format, "tools": list, "engine": engine,
                "reasoning": case["reasoning"].as_str().unwrap_or("none"),
            });
            let key = settings.to_string();
            let settings = serde_json::from_value(settings).unwrap();
            let valid = outcomes.iter().all(|outcome| *outcome == outcomes[0]).then(|| match outcomes[0] {
                Outcome::Valid(count) => count as u32,
                _ => 0,
            });
            for (special, length) in [(true, 1), (false, usize::MAX)] {
                let tokens = Tokens { special, words: true };
                let check = checks_of.entry((key.clone(), special));
                let check = check.or_insert_with(|| GrammarCheck::new(&settings, &tokens).unwrap());
                let ids = tokens.ids(&text);
                let rows: Vec<_> = ids.chunks(length).collect();
                let received = receive(check, checks, &rows, afterbay_plugin::FinishKind::Stop);
                // A cut call is none, although an engine may close it.
                let is_cut = received.fault == Some(super::CallFault::Cut) && is_valid;
                let passed = received.fault.is_none() && received.ids == ids || is_cut && must_pass;
                check.close(checks);
                let counts = received.fault.is_some() || valid.is_none_or(|valid| valid == received.valid);
                checks += 1;
                if passed != must_pass || !counts {
                    found.push(engine.unwrap_or("any"));
                    let judged = (&received.fault, received.valid);
                    why += &format!("{engine:?} {outcomes:?} {judged:?}\n");
                    break;
                }
            }
        }
        let known: Vec<&str> =
            case["differs"].as_array().iter().copied().flatten().filter_map(Value::as_str).collect();
        if found != known {
            differs.push(format!("{why}    known: {known:?} {line}"));
        }
        if !found.is_empty() {
            case["differs"] = json!(found);
        } else if let Some(case) = case.as_object_mut() {
            case.remove("differs");
        }
        blessed += &format!("{case}\n");
    }
    println!("{checks} checks");
    if std::env::var_os("AFTERBAY_BLESS").is_some() {
        return std::fs::write(path, blessed).unwrap();
    }
    assert!(checks > 0 && differs.is_empty(), "{} differ:\n{}", differs.len(), differs.join("\n"));
}
