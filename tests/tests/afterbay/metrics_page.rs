//! The table of `docs/src/operate/metrics.md`, compared with what a running Afterbay exposes.

use std::collections::{BTreeMap, BTreeSet};

use crate::signals::write_load;
use afterbay_tests::frames::{SynthRequest, batch};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, repository, wait_for};
use afterbay_wire::synth::SynthWire::Msgpack;

/// A metric's type and the names of its labels.
type Family = (String, BTreeSet<String>);

/// The rows of the page's table.
fn documented() -> BTreeMap<String, Family> {
    let page = std::fs::read_to_string(repository().join("docs/src/operate/metrics.md")).unwrap();
    let (_, table) = page.split_once("\n| metric | type |").unwrap();
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(" | ").collect();
        let name = cells.first()?.strip_prefix("| `")?.strip_suffix('`')?;
        let labels = cells[2].split(", ").map(|label| label.trim_matches(['`', ' ']).to_owned());
        Some((name.to_owned(), (cells[1].to_owned(), labels.filter(|label| !label.is_empty()).collect())))
    };
    table.lines().filter_map(row).collect()
}

/// The families of Prometheus text.
fn exposed(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let before = families.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new()));
            assert!(before.is_none(), "{name} is there twice");
        } else if !line.starts_with('#') {
            let (series, _) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|it| name.strip_suffix(it));
            let name = of_histogram.filter(|name| families.contains_key(*name)).unwrap_or(name);
            let (_, known) = families.get_mut(name).unwrap_or_else(|| panic!("{line} has no TYPE"));
            let labels = labels.split("\",").filter_map(|label| Some(label.split_once("=\"")?.0));
            known.extend(labels.filter(|label| *label != "le").map(str::to_owned));
        }
    }
    families.retain(|name, _| !name.starts_with("afterbay_plugin_own_"));
    families
}

#[test]
fn a_running_afterbay_exposes_the_metrics_of_the_page_with_their_types_and_labels() {
    let sandbox = Sandbox::new();
    let load = sandbox.path("loads.shm");
    write_load(&load);
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().sink("reader = \"tokenizer\"\ntool_calls = \"joined\"");
    let config = config.stream(&format!("signals = {{ load_snapshot = {load:?}, stale_after = \"1h\" }}"));
    let config = config.tap(&sandbox.ipc("tap"), "");
    let settings = "tokens = 1000, window = \"1h\"";
    let config = config.plugin_with("budget", "builtin:budget", settings, "deadline = \"10s\"");
    let config = config.call("service", "http://127.0.0.1:1/", "").traces("http://127.0.0.1:1", "1");
    let archive = format!("file://{}", sandbox.path("archive").display());
    let config = config.replicate("nats://127.0.0.1:1").archive(&archive).usage();
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut request = SynthRequest::new("r");
    sender.send(&batch(Msgpack, vec![request.row(&[1, 2])]));
    reader.frame();
    let metrics = afterbay.until_metrics("everything has been published", |metrics| {
        metrics.stream("first_token_seconds_count") == 1 && metrics.stream("scheduler_load_fresh") == 1
    });
    assert_eq!(metrics.sink("row_wait_seconds_count"), 1);
    assert_eq!(metrics.plugin("budget", "batch_seconds_count"), 1);
    afterbay
        .until_metrics("the journal is synced", |metrics| metrics.stream("journal_sync_seconds_count") > 0);

    let page = wait_for("the process that follows the journal has said how it is", || {
        Some(afterbay.get("/metrics").body).filter(|page| page.contains("\nafterbay_tap_waiting_bytes"))
    });
    let (mut documented, exposed) = (documented(), exposed(&page));
    assert!(documented.len() > 100, "{documented:?}");
    // A process without a degraded condition exposes none.
    documented.remove("afterbay_degraded");
    for (name, family) in &documented {
        assert_eq!(exposed.get(name), Some(family), "{name} of the page");
    }
    for name in exposed.keys().filter(|name| *name != "afterbay_degraded") {
        assert!(documented.contains_key(name), "{name} is exposed and not on the page");
    }
    assert_eq!(afterbay.stop(), 0);
}
