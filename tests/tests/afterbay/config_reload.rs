//! A configuration that changes at run time takes effect as a whole between two batches, or not at all.

use afterbay_tests::commands::{run_afterbay, verify};
use afterbay_tests::components::guest;
use afterbay_tests::frames::{SynthRequest, WIRES, batch, rows};
use afterbay_tests::{Afterbay, Config, Reader, Sandbox, Sender, until, wait_for};
use afterbay_wire::synth::SynthRow;
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::json;

fn judges(config: Config, name: &str, action: &str) -> Config {
    config.plugin(name, &guest("judges"), &format!("action = {action:?}"))
}

fn reload(afterbay: &Afterbay) -> (i32, String) {
    let done = run_afterbay(&["reload", "--admin", &afterbay.admin().to_string()]);
    (done.code, if done.code == 0 { done.stdout } else { done.stderr })
}

#[test]
fn a_reload_adds_changes_and_removes_plugins_and_unchanged_plugins_continue() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let afterbay = Afterbay::run(&sandbox, &judges(sandbox.config(), "notes", "annotate"));
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let (mut a, mut b) = (SynthRequest::new("a"), SynthRequest::new("b"));
        let mut step = |rows_of: Vec<SynthRow>| {
            let frame = batch(wire, rows_of);
            sender.send(&frame);
            let left = reader.frame();
            (left == frame, rows(&left))
        };
        assert!(step(vec![a.row(&[1])]).0);

        // Another plugin before the first. Like an editor, the test renames a new file over the old one.
        sandbox.write(&judges(judges(sandbox.config(), "finishes", "finish"), "notes", "annotate"));
        let event = afterbay.event("ConfigReloaded");
        assert_eq!(event["changed"], "plugin \"finishes\" of \"test\" added", "{event}");
        assert_eq!(step(vec![b.row(&[1, 2])]).1[0].finish.as_deref(), Some("stop:finished by judges"));
        let metrics = afterbay.metrics();
        assert_eq!(
            (
                metrics.plugin("notes", "batch_seconds_count"),
                metrics.plugin("finishes", "batch_seconds_count")
            ),
            (2, 1)
        );
        assert_eq!(metrics.plugin_by("notes", "reloads_total", "result", "ok"), 0, "the instance continues");

        // The new plugin is removed and the old one gets another setting: a new instance takes over with the live request. The file is
        // written in place, so Afterbay may see and refuse half of it.
        std::fs::write(sandbox.path("afterbay.toml"), judges(sandbox.config(), "notes", "drop").to_toml())
            .unwrap();
        let event = afterbay
            .event_where("ConfigReloaded", |event| event["changed"].as_str().unwrap().contains("removed"));
        let changed = "plugin \"notes\" of \"test\" changed; plugin \"finishes\" of \"test\" removed";
        assert_eq!(event["changed"], changed, "{event}");
        assert_eq!(afterbay.event("PluginRemoved")["plugin"], "finishes");
        // The new version takes over when it has seen the rows of the live request.
        assert_eq!(afterbay.event("PluginReloaded")["plugin"], "notes");
        assert!(step(vec![a.last(&[2])]).1[0].ids.is_empty());
        let metrics = afterbay.get("/metrics").body;
        assert!(!metrics.contains("plugin=\"finishes\""), "what is removed has no figures");
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
    }
}

#[test]
fn a_reload_refuses_a_wrong_configuration_as_a_whole_and_keeps_the_old_one() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = || judges(sandbox.config(), "notes", "annotate");
    let afterbay = Afterbay::run(&sandbox, &config());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut request = SynthRequest::new("r");
    // A start reads the file once more after it watches the file, which counts as a reload.
    assert_eq!(reload(&afterbay), (0, "nothing has changed\n".to_owned()));
    let mut failures = 0;
    let mut refuse = |config: Config, why: &str| {
        // Each of these configurations also changes the plugin.
        sandbox.write(&judges(config, "drops", "drop"));
        let event =
            afterbay.event_where("ConfigReloadFailed", |event| event["why"].as_str().unwrap().contains(why));
        failures += 1;
        // The command prints every reason, and the refusal is counted again.
        let (code, output) = reload(&afterbay);
        assert!(code == 1 && output.contains(why), "{output}");
        failures += 1;
        assert_eq!(afterbay.metrics().events("ConfigReloadFailed"), failures, "{event}");
        let last = afterbay.plugins()["last_reload"].take();
        assert!(last["refused"].to_string().contains(&why.replace('"', "\\\"")), "{last}");
        let degraded = afterbay.until_degraded("config");
        assert!(degraded.contains(why), "{degraded}");
        assert_eq!(afterbay.metrics().process("config_last_reload_successful"), 0);
        let frame = batch(Msgpack, vec![request.row(&[1])]);
        sender.send(&frame);
        assert_eq!(reader.frame(), frame, "after {why}");
    };
    refuse(config().stream("lissten = 4"), "stream[0].lissten: unknown key, did you mean \"listen\"?");
    refuse(judges(config(), "wrong", "dance"), "unknown variant `dance`");
    refuse(config().plugin("gone", &sandbox.path("nowhere.wasm"), ""), "nowhere.wasm\" cannot be read");
    refuse(config().journal("sync = \"always\""), "journal.sync: a change needs a restart");
    refuse(config().memory("1GiB"), "memory.waiting: a change needs a restart");
    refuse(config().stream("max_peers = 7"), "stream \"test\": max_peers: a change needs a restart");
    let elsewhere = config().connect(&sandbox.ipc("elsewhere"));
    refuse(elsewhere, "stream \"test\": sink \"reader\": connect: a change needs a restart");
    let audit = config().another_sink("audit", &sandbox.ipc("audit"), "kind = \"routed\"");
    refuse(audit, "stream \"test\": sink \"audit\": adding it needs a restart");
    refuse(config().stream("route = \"crc32\""), "stream \"test\": route: a change needs a restart");

    // SIGHUP has the effect of the command.
    afterbay.hang_up();
    until("the reload is tried again", || afterbay.metrics().events("ConfigReloadFailed") == failures + 1);
    sandbox.write(&config());
    until("the configuration is accepted", || reload(&afterbay) == (0, "nothing has changed\n".to_owned()));
    afterbay.until_healthy();
    assert_eq!(afterbay.metrics().process("config_last_reload_successful"), 1);
    assert_eq!(afterbay.metrics().events("ConfigReloaded"), 0);
    assert_eq!(afterbay.event("ConfigCorrected")["file"], sandbox.text("afterbay.toml"));
    assert_eq!(afterbay.plugins()["last_reload"]["refused"], json!([]));
    assert_eq!(afterbay.post("/v1/reload", &["Origin: http://evil.test"], "").status, 403);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn a_reload_adds_and_removes_streams_and_a_failed_bind_changes_nothing() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut request = SynthRequest::new("r");
    let mut step = || {
        let frame = batch(Msgpack, vec![request.row(&[1])]);
        sender.send(&frame);
        assert_eq!(reader.frame(), frame);
        frame
    };
    step();
    let with = |name: &str, listen: &str| {
        let (listen, connect) = (sandbox.ipc(listen), sandbox.ipc("out-2"));
        let stream = format!("[[stream]]\nname = {name:?}\nlisten = {listen:?}\n");
        let sink = format!("[[stream.sink]]\nname = \"reader\"\nconnect = {connect:?}\n");
        let first = sandbox.config().sink("queue = { frames = 1000 }").to_toml();
        sandbox.replace("afterbay.toml", format!("{first}{stream}{sink}"));
    };
    with("second", "in-2");
    let event = afterbay.event("ConfigReloaded");
    assert_eq!(event["changed"], "stream \"second\" added; queue of \"test\" changed", "{event}");
    let mut second = Reader::bind(&sandbox.ipc("out-2"));
    let mut sender_2 = Sender::connect(&sandbox.ipc("in-2"));
    let frame = batch(Msgpack, vec![SynthRequest::new("q").last(&[1, 2])]);
    sender_2.send(&frame);
    assert_eq!(second.frame(), frame);
    step();
    assert_eq!(afterbay.metrics().stream_named("second", "tokens_received_total"), 2);

    // The endpoint is in use, so no part of the file takes effect.
    let taken = std::os::unix::net::UnixListener::bind(sandbox.path("in-3")).unwrap();
    with("third", "in-3");
    let event = afterbay.event("ConfigReloadFailed");
    assert!(event["why"].as_str().unwrap().contains("in-3"), "{event}");
    drop(taken);
    let frame = batch(Msgpack, vec![SynthRequest::new("p").last(&[1])]);
    sender_2.send(&frame);
    assert_eq!(second.frame(), frame, "the stream that the refused file lacks continues");

    sandbox.write(&sandbox.config());
    afterbay.event_where("ConfigReloaded", |event| {
        event["changed"] == "queue of \"test\" changed; stream \"second\" removed"
    });
    afterbay.event_where("StreamStopped", |stopped| stopped["stream"] == "second");
    wait_for("the socket is removed", || (!sandbox.path("in-2").exists()).then_some(()));
    assert!(!afterbay.get("/metrics").body.contains("stream=\"second\""));
    step();
    afterbay.until_healthy();
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn removed_legs_drain_in_order_and_their_metrics_disappear() {
    let sandbox = Sandbox::new();
    let _reader = Reader::bind(&sandbox.reader_side());
    let leg = |name: &str, after: &str| {
        let (listen, connect) = (sandbox.ipc(&format!("in-{name}")), sandbox.ipc(&format!("out-{name}")));
        let stream = format!("[[stream]]\nname = {name:?}\nlisten = {listen:?}\n{after}");
        format!("{stream}[[stream.sink]]\nname = \"reader\"\nconnect = {connect:?}\n")
    };
    let legs = leg("next", "after = \"first\"\n") + &leg("first", "");
    let afterbay = Afterbay::run_toml(&sandbox, &(sandbox.config().to_toml() + &legs), &[]);
    until("the absent readers are reported", || {
        let missed = afterbay.get("/readyz").body;
        ["sink:first/reader", "sink:next/reader"].iter().all(|key| missed.contains(key))
    });
    sandbox.write(&sandbox.config());
    afterbay.event_where("StreamStopped", |stopped| stopped["stream"] == "next");
    let log = afterbay.log();
    let place = |event: &str, stream: &str| {
        let is =
            |line: &str| line.contains(&format!("\"{event}\"")) && line.contains(&format!("\"{stream}\""));
        log.lines().position(is).unwrap_or_else(|| panic!("{event} {stream}\n{log}"))
    };
    assert!(place("StreamStopped", "first") < place("DrainBegun", "next"), "{log}");
    afterbay.until_healthy();
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_setting_that_names_a_file_has_the_files_text_and_follows_its_changes() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    sandbox.replace("action.txt", "annotate");
    let config = sandbox.config().plugin("p", &guest("judges"), "action = { file = \"action.txt\" }");
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut request = SynthRequest::new("r");
    let mut step = || {
        sender.send(&batch(Msgpack, vec![request.row(&[1])]));
        rows(&reader.frame())[0].ids.clone()
    };
    assert_eq!(step(), [1]);
    sandbox.replace("action.txt", "drop");
    let event = afterbay.event("ConfigReloaded");
    assert_eq!(event["changed"], "plugin \"p\" of \"test\" changed", "{event}");
    sandbox.replace("action.txt", " ".repeat(1025 << 10));
    let event = afterbay.event("ConfigReloadFailed");
    let why = "action.txt\" has 1025KiB, must have at most 1MiB";
    assert!(event["why"].as_str().unwrap().contains(why), "{event}");
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_reload_changes_joining_and_on_fault_without_a_new_instance() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = || {
        sandbox
            .config()
            .plugin("bad", &guest("panics"), "in = \"process\"")
            .plugin_line("quarantine = { faults = 0 }")
    };
    let afterbay = Afterbay::run(&sandbox, &config());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let frame = batch(Msgpack, vec![SynthRequest::new("a").last(&[1])]);
    sender.send(&frame);
    assert_eq!(reader.frame(), frame);
    let strict = config().stream("join = { when = \"never\" }").plugin_line("on_fault = \"terminate\"");
    sandbox.write(&strict);
    let event = afterbay.event("ConfigReloaded");
    assert_eq!(
        event["changed"], "plugin \"bad\" of \"test\" options changed; join of \"test\" changed",
        "{event}"
    );
    let mut request = SynthRequest::new("b");
    sender.send(&batch(Msgpack, vec![request.row(&[1])]));
    let out = rows(&reader.frame());
    assert_eq!((out[0].ids.len(), out[0].finish.as_deref()), (0, Some("abort")), "{out:?}");
    assert_eq!(afterbay.metrics().plugin_by("bad", "reloads_total", "result", "ok"), 0);
    assert_eq!(afterbay.stop(), 0);
}
