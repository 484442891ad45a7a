//! Plugins that fault: the treatment of their batches, and quarantine.

use afterbay_tests::admin::JSON;
use afterbay_tests::commands::{journal, run_afterbay, verify};
use afterbay_tests::components::{guest, install};
use afterbay_tests::frames::{SynthRequest, WIRES, batch, row, rows};
use afterbay_tests::{Afterbay, Config, Input, Reader, Sandbox, Sender, load, wait_for};
use afterbay_wire::synth::SynthWire::{Msgpack, Pickle};

/// Sends a load through the plugins of a configuration. Returns the received frames and the running processes.
fn run_load(sandbox: &Sandbox, config: &Config) -> (Vec<Vec<u8>>, Afterbay, Reader) {
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(sandbox, config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let frames = load(40, 12, Msgpack);
    let mut sent = Vec::new();
    for frame in &frames {
        sender.send(&frame.bytes);
        sent.push(reader.frame());
    }
    (sent, afterbay, reader)
}

#[test]
fn a_storm_of_faults_changes_no_frame() {
    // This plugin changes rows: a plugin without effect would hide damage.
    let healthy =
        |sandbox: &Sandbox| sandbox.config().plugin("healthy", &guest("judges"), "action = \"rewrite\"");
    let sandbox = Sandbox::new();
    let (expected, afterbay, _) = run_load(&sandbox, &healthy(&sandbox));
    assert_eq!(afterbay.stop(), 0);
    assert!(expected.iter().flat_map(|frame| rows(frame)).any(|row| row.ids == [7]));
    let batches = expected.len() as u64;
    let sandbox = Sandbox::new();
    let mut config = sandbox.config();
    let storm = [
        ("loops", "in = \"process\"", "deadline = \"2ms\"", "deadline"),
        ("hog", "in = \"process\"", "memory = \"4MiB\", deadline = \"10s\"", "memory"),
        ("panics", "in = \"process\"", "deadline = \"10s\"", "trap"),
        ("forbidden", "do = \"exit\"", "deadline = \"10s\"", "trap"),
    ];
    for (name, settings, limits, _) in storm {
        config = config.plugin_with(name, guest(name).to_str().unwrap(), settings, limits);
        config = config.plugin_line("quarantine = { faults = 0 }");
    }
    let config = config.plugin("healthy", &guest("judges"), "action = \"rewrite\"");
    let (sent, afterbay, _reader) = run_load(&sandbox, &config);
    assert!(sent == expected, "a frame is another");
    let metrics = afterbay.metrics();
    for (name, _, _, kind) in storm {
        assert_eq!(metrics.plugin_by(name, "faults_total", "kind", kind), batches, "{name}");
        assert_eq!(metrics.plugin(name, "bypassed_batches_total"), batches, "{name}");
    }
    assert_eq!(metrics.plugin("healthy", "bypassed_batches_total"), 0);
    assert_eq!(afterbay.get("/readyz").status, 200, "faults are not a quarantine");
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn with_on_fault_terminate_a_fault_ends_its_requests_also_in_the_scheduler() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let config = sandbox.config().abort_by_push(&sandbox);
        let config = config.plugin("guard", &guest("tires"), "").plugin_line("on_fault = \"terminate\"");
        let afterbay = Afterbay::run(&sandbox, &config);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let mut input = Input::connect(&sandbox.abort_side());
        let (mut a, mut b, mut c) = (SynthRequest::new("a"), SynthRequest::new("b"), SynthRequest::new("c"));
        let mut step = |frame: Vec<_>| {
            sender.send(&batch(wire, frame));
            rows(&reader.frame())
        };
        let mut warm = SynthRequest::new("warm");
        assert_eq!(step(vec![a.row(&[1]), c.row(&[1]), warm.row(&[1])]).len(), 3);
        afterbay.abort_connected("warm", &[]);
        assert_eq!(input.abort(), "warm");
        // The second batch of an instance faults: none of its tokens passes, and its requests end.
        let out = step(vec![a.row(&[2, 3]), b.row(&[1]), c.last(&[2])]);
        let ended = [
            row("a", &[], 1, Some("abort")),
            row("b", &[], 0, Some("abort")),
            row("c", &[], 1, Some("abort")),
        ];
        assert_eq!(out, ended, "{wire:?}");
        let mut aborted = [(); 2].map(|()| input.abort());
        aborted.sort();
        assert_eq!(aborted, ["a", "b"], "no abort for a request that the scheduler ended itself");
        // Their later rows are swallowed. A request that was not in that batch continues through the plugin.
        let mut d = SynthRequest::new("d");
        assert_eq!(step(vec![a.row(&[4]), d.row(&[9])]), [row("d", &[9], 1, None)], "{wire:?}");
        let fault = afterbay.event("PluginFault");
        assert_eq!(fault["then"], "the batch's requests are aborted", "{fault}");
        let ended = afterbay.event_where("RequestFinishedEarly", |event| event["rid"] == "a");
        assert_eq!(
            (&ended["plugin"], &ended["reason"]),
            (&"guard".into(), &"500 afterbay: plugin \"guard\" did not judge this row".into()),
            "{ended}"
        );
        let metrics =
            afterbay.until_metrics("every frame is taken", |metrics| metrics.sink("taken_frame") == 3);
        assert_eq!(metrics.plugin("guard", "terminated_rows_total"), 3);
        assert_eq!(metrics.plugin("guard", "bypassed_batches_total"), 0);
        assert_eq!(
            (metrics.stream("tokens_dropped_total"), metrics.stream("tokens_swallowed_total")),
            (4, 1)
        );
        assert_eq!(metrics.stream("request_imbalances_total"), 0);
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
        let table = journal(&sandbox, &["show", "a"]).success();
        assert!(table.contains("because plugin \"guard\" failed"), "{table}");
    }
}

#[test]
fn a_plugin_with_too_many_faults_is_quarantined_until_it_is_reinstated_or_reloaded() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let component = sandbox.path("plugin.wasm");
    install(&guest("panics"), 0, &component);
    let config = sandbox.config().plugin("bad", &component, "in = \"process\"");
    let afterbay =
        Afterbay::run(&sandbox, &config.plugin_line("quarantine = { faults = 3, within = \"1h\" }"));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut request = SynthRequest::new("r");
    let mut step = || {
        let frame = batch(Pickle, vec![request.row(&[1])]);
        sender.send(&frame);
        assert_eq!(reader.frame(), frame);
    };
    let faults = || afterbay.metrics().plugin_by("bad", "faults_total", "kind", "trap");
    (0..2).for_each(|_| step());
    assert_eq!((faults(), afterbay.get("/readyz").status), (2, 200));
    (0..5).for_each(|_| step());
    assert_eq!(faults(), 3, "it was called after its third fault");
    let quarantined = afterbay.event("PluginQuarantined");
    assert_eq!((&quarantined["plugin"], &quarantined["faults"]), (&"bad".into(), &3.into()), "{quarantined}");
    let degraded = afterbay.until_degraded("plugin:test:bad");
    assert!(degraded.contains("plugin:test:bad: quarantined after 3 faults in 3600s"), "{degraded}");
    let metrics = afterbay.metrics();
    assert_eq!((metrics.plugin("bad", "quarantined"), metrics.events("PluginQuarantined")), (1, 1));
    assert_eq!(metrics.plugin("bad", "bypassed_batches_total"), 7);
    assert_eq!(metrics.plugin("bad", "rows_total"), 3, "it was shown no row while it was quarantined");

    let reinstate = |plugin: &str, body: &str| {
        let answer = afterbay.post(&format!("/v1/plugins/{plugin}/reinstate"), &[JSON], body);
        (answer.status, answer.body)
    };
    assert_eq!(reinstate("other", "").0, 404);
    assert_eq!(reinstate("bad", r#"{"stream": "other"}"#).0, 404);
    assert_eq!(
        afterbay.post("/v1/plugins/bad/reinstate", &[JSON, "Origin: http://evil.test"], "").status,
        403
    );
    assert_eq!(reinstate("bad", ""), (200, r#"{"plugin":"bad","streams":["test"]}"#.to_owned()));
    assert_eq!(
        reinstate("bad", ""),
        (409, r#"{"code":"not_quarantined","error":"plugin \"bad\" is not quarantined"}"#.into())
    );
    afterbay.until_healthy();
    assert_eq!(afterbay.event("PluginReinstated")["by"], "operator");
    (0..5).for_each(|_| step());
    assert_eq!(faults(), 6, "faults are counted anew after the plugin is reinstated");
    afterbay.until_degraded("plugin:test:bad");

    install(&guest("panics"), 1, &component);
    afterbay.until_healthy();
    afterbay.event_where("PluginReinstated", |event| event["by"] == "reload");
    step();
    assert_eq!(faults(), 7);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn a_first_call_past_the_deadline_counts_towards_quarantine_from_the_second_instance_on() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let component = guest("loops");
    let config = sandbox.config().plugin_with(
        "slow",
        component.to_str().unwrap(),
        "in = \"process\"",
        "deadline = \"2ms\"",
    );
    let config = config.plugin_line("quarantine = { faults = 2, within = \"1h\" }");
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut request = SynthRequest::new("r");
    let mut step = || {
        let frame = batch(Msgpack, vec![request.row(&[1])]);
        sender.send(&frame);
        assert_eq!(reader.frame(), frame);
    };
    (0..2).for_each(|_| step());
    assert!(afterbay.events("PluginQuarantined").is_empty(), "the first of the two faults does not count");
    (0..3).for_each(|_| step());
    let faults = afterbay.metrics().plugin_by("slow", "faults_total", "kind", "deadline");
    assert_eq!(faults, 3, "the first fault does not count, the next two quarantine the plugin");
    afterbay.event("PluginQuarantined");
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_plugins_printed_text_is_in_its_log_and_in_the_next_fault() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().plugin("bad", &guest("forbidden"), "do = \"print and abort\"");
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let frame = batch(Msgpack, vec![SynthRequest::new("r").row(&[1])]);
    sender.send(&frame);
    assert_eq!(reader.frame(), frame);
    let printed = "the shore is wet\nTraceback:\n  the lake is dry";
    assert_eq!(afterbay.event("PluginLog")["line"], printed);
    let fault = afterbay.event("PluginFault");
    assert!(fault["why"].as_str().unwrap().contains(&format!("; it said: {printed}")), "{fault}");
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn with_on_fault_terminate_a_quarantined_plugin_lets_no_row_pass() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().plugin("guard", &guest("panics"), "in = \"process\"");
    let config = config.plugin_line("on_fault = \"terminate\"\nquarantine = { faults = 1 }");
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    for number in 0..3 {
        let rid = format!("r-{number}");
        sender.send(&batch(Msgpack, vec![SynthRequest::new(&rid).row(&[1, 2])]));
        assert_eq!(rows(&reader.frame()), [row(&rid, &[], 0, Some("abort"))]);
    }
    assert!(afterbay.until_ready(503).contains("requests are aborted"));
    let reason = "500 afterbay: plugin \"guard\" is quarantined";
    afterbay.event_where("RequestFinishedEarly", |event| event["rid"] == "r-2" && event["reason"] == reason);
    assert_eq!(afterbay.metrics().plugin_by("guard", "faults_total", "kind", "trap"), 1);
    // Health checks bypass plugins, so they pass.
    let health = batch(Msgpack, vec![SynthRequest::new("HEALTH_CHECK_1763649000.1").last(&[5])]);
    sender.send(&health);
    assert_eq!(reader.frame(), health);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn with_on_fault_terminate_a_plugin_that_fails_to_restart_is_retried_and_lets_no_row_pass() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().plugin("guard", &guest("panics"), "in = \"open\"");
    let config = config.plugin_line("on_fault = \"terminate\"\nquarantine = { faults = 0 }");
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut number = 0;
    let mut is_aborted = || {
        number += 1;
        let rid = format!("r-{number}");
        sender.send(&batch(Msgpack, vec![SynthRequest::new(&rid).row(&[1])]));
        assert_eq!(rows(&reader.frame()), [row(&rid, &[], 0, Some("abort"))]);
    };
    // A new instance faults over the live requests too; once these have ended it starts.
    let unready = wait_for("the plugin is down", || {
        is_aborted();
        Some(afterbay.get("/readyz")).filter(|answer| answer.status == 503)
    });
    assert!(unready.body.contains("plugin:test:guard: down, requests are aborted"), "{}", unready.body);
    is_aborted();
    afterbay.until_healthy();
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_quarantined_shadow_degrades_nothing_and_a_promoted_shadow_replaces_a_quarantined_plugin() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().plugin("bad", &guest("panics"), "in = \"process\"");
    let config = config.plugin_line("quarantine = { faults = 2 }").plugin(
        "next",
        &guest("judges"),
        "action = \"rewrite\"",
    );
    let config = config.plugin_line("mode = \"shadow\"\nshadow_of = \"bad\"");
    let config = config.plugin("worse", &guest("panics"), "in = \"process\"");
    // A fault of a shadow ends no request either.
    let config =
        config.plugin_line("mode = \"shadow\"\non_fault = \"terminate\"\nquarantine = { faults = 1 }");
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut request = SynthRequest::new("r");
    let mut step = || {
        let frame = batch(Msgpack, vec![request.row(&[1])]);
        sender.send(&frame);
        let sent = reader.frame();
        (sent == frame, rows(&sent)[0].ids.clone())
    };
    assert!(step().0);
    let quarantined = afterbay.event_where("PluginQuarantined", |event| event["plugin"] == "worse");
    assert_eq!(quarantined["then"], "batches pass unchanged", "{quarantined}");
    assert!(afterbay.is_healthy(), "a quarantined shadow degrades nothing");
    assert!(step().0);
    assert!(afterbay.until_degraded("plugin:test:bad").contains("quarantined"));
    let promoted = run_afterbay(&["plugins", "promote", "next", "--admin", &afterbay.admin().to_string()]);
    let output = promoted.success();
    assert!(output.starts_with("next: promoted, stream test\n"), "{output}");
    assert!(output.contains("the next start makes it a shadow again"), "{output}");
    afterbay.until_healthy();
    let (is_same, ids) = step();
    assert!(!is_same && ids == [7], "{ids:?}");
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}
