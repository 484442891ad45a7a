//! The book's pages about metrics and events agree with the declarations. `AFTERBAY_BLESS=1` writes the table of metrics again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::SystemTime;

use afterbay_events::event::DrainBegun;
use afterbay_events::{Event, Events, Exposition, Health, Metrics, SchedulerLoad, SignalSource, Total};
use afterbay_types::SourceState;

fn page(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../docs/src/operate", name].iter().collect()
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
    metrics.sink("s", "k");
    metrics.tap("s", "t");
    metrics.plugin("s", "p");
    metrics.signals("s", || {
        let load = SchedulerLoad {
            load_fresh: 1,
            load_age_seconds: Some(0.0),
            num_running_reqs: Some(0),
            num_waiting_reqs: Some(0),
            num_waiting_uncached_tokens: Some(0),
            num_used_tokens: Some(0),
            num_total_tokens: Some(0),
            num_active_tokens: Some(0),
            max_total_num_tokens: Some(0),
            max_running_requests: Some(0),
            token_usage: Some(0.0),
            gen_throughput: Some(0.0),
            cache_hit_rate: Some(0.0),
            utilization: Some(0.0),
            num_retracted_reqs: Some(0),
            num_retracted_requests: Some(Total(0)),
        };
        let source = SignalSource {
            state: Some(SourceState::Fresh),
            age_seconds: Some(0.0),
            ..SignalSource::default()
        };
        Some((load, vec![("load_stat", source)]))
    });
    metrics.encode(Exposition::Text)
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
    let mut found = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../README.md")];
    collect(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs"), &mut found);
    found.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn every_metric_that_a_document_names_exists() {
    let (known, mut wrong) = (metrics(), Vec::new());
    for (path, text) in documents() {
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        for word in words.filter(|word| word.starts_with("afterbay_")) {
            // The connector's package, the metrics of plugins, and beginnings of names are no metrics.
            let is_other = word.starts_with("afterbay_sglang") || word.starts_with("afterbay_plugin_own");
            if !is_other && !known.contains_key(word) {
                wrong.push(format!("{}: {word}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "no such metric:\n{}", wrong.join("\n"));
}

#[test]
fn the_events_page_explains_every_event() {
    let page = std::fs::read_to_string(page("events.md")).unwrap();
    let sentences: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/sentences.txt"].iter().collect();
    let sentences = std::fs::read_to_string(sentences).unwrap();
    let mut wrong = Vec::new();
    let mut rows = BTreeMap::new();
    for line in page.lines().filter_map(|line| line.strip_prefix("| `")) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let [name, level, meaning, action] = cells[..] else {
            wrong.push(format!("{line:?} has not four cells"));
            continue;
        };
        let name = name.trim_end_matches('`');
        if meaning.is_empty() || action.trim_end_matches(" |").is_empty() {
            wrong.push(format!("{name} has no meaning or no action"));
        }
        if rows.insert(name.to_owned(), level.to_owned()).is_some() {
            wrong.push(format!("{name} is there twice"));
        }
    }
    wrong.extend(
        Event::NAMES
            .iter()
            .filter(|name| !rows.contains_key(**name))
            .map(|name| format!("{name} is not on the page")),
    );
    wrong.extend(
        rows.keys()
            .filter(|name| !Event::NAMES.contains(&name.as_str()))
            .map(|name| format!("no event {name}")),
    );
    for line in sentences.lines() {
        let mut words = line.split_whitespace();
        let (Some(level), Some(name)) = (words.next(), words.next()) else { continue };
        let level = match level {
            "WARN" => "warning",
            "ERROR" => "error",
            "INFO" => "info",
            _ => "debug",
        };
        // A plugin's own line has the level that the plugin gives it.
        if name != "PluginLog" && rows.get(name).is_some_and(|levels| !levels.contains(level)) {
            wrong.push(format!("{name} is a line of level {level}"));
        }
    }
    assert!(wrong.is_empty(), "docs/src/operate/events.md:\n{}", wrong.join("\n"));
}
