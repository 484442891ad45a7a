//! A new version of a plugin takes over: it imports the old version's state, or it replays the rows of live requests.

use super::attributes::{GRANT, plugin_log, set_attributes};
use afterbay_tests::commands::notes;
use afterbay_tests::components::{guest, install};
use afterbay_tests::frames::{SynthRequest, batch, rows};
use afterbay_tests::holds::{HOLD, LONG, RELEASE, RELEASE_AND_HOLD, holding};
use afterbay_tests::{Afterbay, Config, Reader, Sandbox, Sender};
use afterbay_wire::synth::SynthWire::Msgpack;

/// Writes a configuration with a new version of a plugin and waits until the old version has exported its state.
fn start_migration(afterbay: &Afterbay, sandbox: &Sandbox, config: &Config) {
    let changes = afterbay.metrics().stream("change_seconds_count");
    sandbox.write(config);
    afterbay
        .until_metrics("the state is exported", |metrics| metrics.stream("change_seconds_count") > changes);
}

#[test]
fn a_new_version_replays_the_rows_of_live_requests_before_it_takes_over() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let component = sandbox.path("plugin.wasm");
    // This guest exports no state.
    install(&guest("nothing"), 0, &component);
    let config = sandbox.config().plugin("p", &component, "").granted(GRANT);
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let (mut ended, mut live) = (SynthRequest::new("ended"), SynthRequest::new("live"));
    sender.send(&batch(Msgpack, vec![ended.last(&[1]), live.row(&[1])]));
    sender.send(&batch(Msgpack, vec![live.row(&[2])]));
    sender.send(&batch(Msgpack, vec![live.row(&[3])]));
    reader.take(3);
    install(&guest("remembers"), 0, &component);
    assert_eq!(afterbay.event("PluginReplayed")["rows"], 3, "{}", afterbay.log());
    assert_eq!(afterbay.event("PluginReloaded")["resumed_requests"], 1);
    sender.send(&batch(Msgpack, vec![live.last(&[4])]));
    reader.frame();
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(notes(&sandbox, "live"), ["row 4"]);
}

#[test]
fn a_replay_shows_rows_that_an_earlier_plugin_held_as_they_continued() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let component = sandbox.path("plugin.wasm");
    install(&guest("nothing"), 0, &component);
    let config = holding(&sandbox, LONG).plugin("p", &component, "").granted(GRANT);
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut a = SynthRequest::new("a");
    // Held and released; held and released alone; then held rows that wait during the replay.
    for (ids, frames) in
        [([1], 1), ([HOLD], 0), ([RELEASE], 1), ([HOLD], 0), ([RELEASE_AND_HOLD], 1), ([2], 0)]
    {
        sender.send(&batch(Msgpack, vec![a.row(&ids)]));
        reader.take(frames);
    }
    afterbay.until_metrics("the rows wait", |metrics| metrics.plugin("holds", "held_rows") == 2);
    install(&guest("remembers"), 0, &component);
    assert_eq!(afterbay.event("PluginReplayed")["rows"], 3, "{}", afterbay.log());
    afterbay.event("PluginReloaded");
    sender.send(&batch(Msgpack, vec![a.last(&[RELEASE])]));
    assert_eq!(rows(&reader.frame())[0].ids, [RELEASE_AND_HOLD, 2, RELEASE]);
    assert_eq!(afterbay.stop(), 0);
    let mut row_notes = notes(&sandbox, "a");
    row_notes.retain(|row_notes| row_notes.starts_with("row"));
    assert_eq!(row_notes, ["row 4"]);
}

#[test]
fn rows_received_during_a_replay_reach_the_new_version_once() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let component = sandbox.path("plugin.wasm");
    install(&guest("nothing"), 0, &component);
    let config = sandbox.config().plugin("p", &component, "").granted(GRANT);
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let (mut live, mut rows) = (SynthRequest::new("live"), 0);
    let mut send = |last: bool| {
        rows += 1;
        let row = if last { live.last(&[rows]) } else { live.row(&[rows]) };
        sender.send(&batch(Msgpack, vec![row]));
        reader.frame();
        rows
    };
    (0..1000).for_each(|_| _ = send(false));
    install(&guest("remembers"), 0, &component);
    while afterbay.events("PluginReplayed").is_empty() {
        send(false);
    }
    let rows = send(true);
    assert_eq!(afterbay.stop(), 0);
    let noted = notes(&sandbox, "live");
    let expected: Vec<String> = (1..=rows).map(|row| format!("row {row}")).collect();
    assert!(!noted.is_empty() && expected.ends_with(&noted), "{noted:?}");
}

#[test]
fn rows_received_during_a_migration_reach_the_new_version() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = |slow: u32| {
        let config = sandbox.config().plugin("p", &guest("remembers"), &format!("slow = {slow}"));
        config.granted(GRANT)
    };
    let afterbay = Afterbay::run(&sandbox, &config(1));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut live = SynthRequest::new("live");
    let mut send = |id| {
        sender.send(&batch(Msgpack, vec![if id < 4 { live.row(&[id]) } else { live.last(&[id]) }]));
        reader.frame();
    };
    send(1);
    assert_eq!(set_attributes(&afterbay, "live", r#"{"n":1}"#).0, 200);
    plugin_log(&afterbay, r#"changed to {"n":1}"#);
    send(2);
    // The import takes about a second, in which the old version continues.
    start_migration(&afterbay, &sandbox, &config(2000));
    assert_eq!(set_attributes(&afterbay, "live", r#"{"n":2}"#).0, 200);
    plugin_log(&afterbay, r#"changed to {"n":2}"#);
    send(3);
    assert!(afterbay.events("PluginReloaded").is_empty(), "the new version has taken over already");
    afterbay.event("PluginReloaded");
    send(4);
    assert_eq!(afterbay.stop(), 0);
    let expected = ["row 1, ", r#"row 2, {"n":1}"#, r#"row 3, {"n":2}"#, r#"row 4, {"n":2}"#];
    assert_eq!(notes(&sandbox, "live"), expected);
}

#[test]
fn rows_received_during_a_quarantine_reach_a_waiting_new_version() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = |settings: &str| {
        let config = sandbox.config().plugin("p", &guest("remembers"), settings);
        config.granted(GRANT).plugin_line("quarantine = { faults = 1 }")
    };
    let afterbay = Afterbay::run(&sandbox, &config("traps_at = 3"));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut live = SynthRequest::new("live");
    let mut send = |id| {
        sender.send(&batch(Msgpack, vec![if id < 5 { live.row(&[id]) } else { live.last(&[id]) }]));
        reader.frame();
    };
    send(1);
    send(2);
    // The import takes about a second, in which the old version continues.
    start_migration(&afterbay, &sandbox, &config("slow = 2000"));
    send(3);
    afterbay.event("PluginQuarantined");
    send(4);
    assert!(afterbay.events("PluginReloaded").is_empty(), "the new version has taken over already");
    afterbay.event("PluginReloaded");
    send(5);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(notes(&sandbox, "live"), ["row 1", "row 2", "row 5, "]);
}

#[test]
fn a_failed_migration_replays_the_live_requests() {
    for (old, new, why) in [
        ("", "refuses = true", Some("it cannot read the state of version 0.1.0")),
        ("traps_in_export = true", "", None),
    ] {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let config = |settings| sandbox.config().plugin("p", &guest("remembers"), settings).granted(GRANT);
        let afterbay = Afterbay::run(&sandbox, &config(old));
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let mut live = SynthRequest::new("live");
        let mut send = |id| {
            sender.send(&batch(Msgpack, vec![if id < 4 { live.row(&[id]) } else { live.last(&[id]) }]));
            reader.frame();
        };
        (1..=3).for_each(&mut send);
        sandbox.write(&config(new));
        let replayed = afterbay.event("PluginReplayed");
        assert_eq!((&replayed["rows"], replayed["why"].as_str()), (&3.into(), why), "{replayed}");
        send(4);
        let metrics = afterbay.metrics();
        assert_eq!(metrics.plugin_by("p", "faults_total", "kind", "trap"), u64::from(why.is_none()), "{old}");
        assert_eq!(metrics.plugin_by("p", "reloads_total", "result", "ok"), 1, "{old}");
        assert_eq!(metrics.events("PluginStateLost"), 0, "{old}");
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(notes(&sandbox, "live"), ["row 1", "row 2", "row 3", "row 4"], "{old}");
    }
}

#[test]
fn a_reload_migrates_state_unless_the_new_version_imports_none() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let component = sandbox.path("plugin.wasm");
    install(&guest("remembers"), 0, &component);
    let config = sandbox.config().plugin("p", &component, "").granted(GRANT);
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut request = SynthRequest::new("a");
    for _ in 0..3 {
        sender.send(&batch(Msgpack, vec![request.row(&[1])]));
        reader.frame();
    }
    install(&guest("remembers"), 1, &component);
    let reloaded = afterbay.event("PluginReloaded");
    assert_eq!((&reloaded["resumed_requests"], &reloaded["state_bytes"]), (&1.into(), &16.into()));
    plugin_log(&afterbay, r#"opened with 3 rows, worker "", attributes none"#);

    // A component that imports no state: the live request is replayed to it.
    install(&guest("nothing"), 0, &component);
    let reloaded = afterbay.event_where("PluginReloaded", |event| event["state_bytes"] == 0);
    assert_eq!(reloaded["resumed_requests"], 1);
    assert_eq!(afterbay.event("PluginReplayed")["rows"], 3);
    sender.send(&batch(Msgpack, vec![request.last(&[1])]));
    reader.frame();
    assert_eq!(afterbay.stop(), 0);
}
