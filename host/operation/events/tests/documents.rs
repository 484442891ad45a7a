//! The book's tables of metrics and events are written from the declarations. `AFTERBAY_BLESS=1` writes them again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::SystemTime;

use afterbay_events::event::DrainBegun;
use afterbay_events::{Event, Events, Health, Metrics, SchedulerLoad, SignalSource};
use afterbay_types::SourceState;

fn page(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../../docs/src/operate", name].iter().collect()
}

/// Every metric that Afterbay can publish, as text.
fn exposition() -> String {
    let (events, health) = (Events::new(), Health::default());
    let metrics = Metrics::new(events.clone(), health.clone());
    events.publish(DrainBegun { stream: "s".into(), frames: 1 });
    health.degraded("sink:s/k", "away", SystemTime::now());
    metrics.config_reloaded(true);
    metrics.stream("s");
    metrics.aborts("s");
    metrics.leases("s");
    metrics.sink("s", "k");
    metrics.tap();
    metrics.plugin("s", "p");
    metrics.call("e");
    metrics.store("p");
    metrics.follower("archive");
    metrics.traces();
    metrics.replicate();
    metrics.archive();
    metrics.usage();
    metrics.signals("s", || {
        let load = SchedulerLoad {
            load_fresh: 1,
            load_age_seconds: Some(0.0),
            running_requests: Some(0),
            waiting_requests: Some(0),
            kv_cache_usage: Some(0.0),
        };
        let source = SignalSource { state: Some(SourceState::Fresh), ..SignalSource::default() };
        Some((load, vec![("load_snapshot", source)]))
    });
    metrics.encode()
}

/// A metric: its type, its help and the names of its labels.
#[derive(Default)]
struct Metric {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

fn metrics() -> BTreeMap<String, Metric> {
    let mut found: BTreeMap<String, Metric> = BTreeMap::new();
    let text = exposition();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            found.entry(name.to_owned()).or_default().help = help.trim_end_matches('.').to_owned();
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            found.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else if let Some((series, _)) = line.rsplit_once(' ') {
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            let name = base.filter(|base| found.contains_key(*base)).unwrap_or(name);
            let labels = labels.split("\",").filter_map(|label| Some(label.split_once("=\"")?.0));
            let metric = found.get_mut(name).unwrap_or_else(|| panic!("{line:?} has no HELP before it"));
            metric.labels.extend(labels.filter(|label| *label != "le").map(str::to_owned));
        }
    }
    found
}

fn table() -> String {
    let mut out = String::from("| metric | type | labels | meaning |\n|---|---|---|---|\n");
    for (name, metric) in metrics() {
        let labels = metric.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        let help = metric.help.replace('_', "\\_").replace('|', "\\|").replace("\\\\", "\\");
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| `{name}` | {} | {labels} | {help} |", metric.kind);
    }
    out
}

#[test]
fn the_metrics_page_lists_every_metric() {
    let path = page("metrics.md");
    let committed = std::fs::read_to_string(&path).unwrap();
    let (text, _) = committed.split_once("\n| metric |").unwrap_or((&committed, ""));
    let wanted = format!("{}\n\n{}", text.trim_end(), table());
    if std::env::var("AFTERBAY_BLESS").is_ok_and(|bless| bless == "1") {
        std::fs::write(&path, &wanted).unwrap();
    } else {
        assert_eq!(wanted, committed, "AFTERBAY_BLESS=1 writes the table again");
    }
}

/// The pages, with the README.
fn documents() -> Vec<(PathBuf, String)> {
    fn collect(dir: PathBuf, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(path, found);
            } else if path.extension().is_some_and(|it| it == "md") {
                found.push(path);
            }
        }
    }
    let mut found = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../README.md")];
    collect(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../docs"), &mut found);
    found.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn every_metric_that_a_document_names_exists() {
    let (known, mut wrong) = (metrics(), Vec::new());
    for (path, text) in documents() {
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        for word in words.filter(|word| word.starts_with("afterbay_")) {
            // The Debian package, the connectors' packages, the SDK's crate, and the metrics of plugins are no metrics of Afterbay.
            let is_other = word == "afterbay_"
                || ["sglang", "vllm", "connector"].iter().any(|package| word[9..].starts_with(package))
                || word == "afterbay_plugin"
                || word.starts_with("afterbay_plugin_own");
            let of_histogram =
                ["_bucket", "_sum", "_count"].iter().find_map(|suffix| word.strip_suffix(suffix));
            let is_histogram = |name: &str| known.get(name).is_some_and(|metric| metric.kind == "histogram");
            if !is_other && !known.contains_key(word) && !of_histogram.is_some_and(is_histogram) {
                wrong.push(format!("{}: {word}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "no such metric:\n{}", wrong.join("\n"));
}

/// An event's meaning and what an operator does about it, as cells of a table.
fn explanation(name: &str) -> Option<String> {
    let index = Event::NAMES.iter().position(|known| *known == name)?;
    let text = Event::DOCS[index].iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    let (meaning, action) = text.split_once("Action: ").unwrap_or((&text, "Nothing."));
    let sentence = |text: &str| {
        let (first, rest) = text.split_at(text.chars().next().map_or(0, char::len_utf8));
        format!("{}{rest}", first.to_uppercase())
    };
    let cell = |text: &str| sentence(text.trim()).replace('|', "\\|").replace("[`", "`").replace("`]", "`");
    Some(format!("{} | {}", cell(meaning), cell(action)))
}

#[test]
fn the_events_page_explains_every_event() {
    let path = page("events.md");
    let committed = std::fs::read_to_string(&path).unwrap();
    let sentences: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/sentences.txt"].iter().collect();
    let sentences = std::fs::read_to_string(sentences).unwrap();
    let mut unexplained: BTreeSet<&str> = Event::NAMES.iter().copied().collect();
    let mut wanted = String::new();
    for line in committed.lines() {
        let row = line.strip_prefix("| `").and_then(|row| row.split_once("` | "));
        let Some((name, rest)) = row else {
            wanted += &format!("{line}\n");
            continue;
        };
        assert!(unexplained.remove(name), "{name} is no event, or is there twice");
        let explanation = explanation(name).unwrap();
        let level = sentences.lines().find(|line| line.split_whitespace().nth(1) == Some(name)).unwrap();
        let level = match level.split_whitespace().next() {
            Some("WARN") => "warning",
            Some("ERROR") => "error",
            Some("INFO") => "info",
            _ => "debug",
        };
        // The level of some events depends on their fields.
        let levels = rest.split(" | ").next().unwrap_or_default();
        let level = if name == "PluginLog" || levels.contains(level) { levels } else { level };
        wanted += &format!("| `{name}` | {level} | {explanation} |\n");
    }
    assert!(unexplained.is_empty(), "not on the page: {unexplained:?}");
    if std::env::var("AFTERBAY_BLESS").is_ok_and(|bless| bless == "1") {
        std::fs::write(&path, &wanted).unwrap();
    } else {
        assert_eq!(wanted, committed, "AFTERBAY_BLESS=1 writes the tables again");
    }
}
