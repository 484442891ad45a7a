//! Plugins in a stream: verdicts reach the reader, the ledger and the journal, and faults lose no token.

use std::time::Instant;

use afterbay_sim::check::{Checker, Expect, Reading};
use afterbay_sim::load::{Endings, Load};
use afterbay_tests::commands::{journal, notes, run_afterbay, show, verify};
use afterbay_tests::components::{example, guest};
use afterbay_tests::frames::{ReaderRow, SynthRequest, WIRES, batch, frames_of, row, rows};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, fixtures, load, repository, until};
use afterbay_wire::synth::SynthWire::{Msgpack, Pickle};
use afterbay_wire::synth::{SynthBatch, SynthRow};
use afterbay_wire::{BatchKind, DecodedFrame, Layouts};

#[test]
fn stop_on_loop_finishes_a_looping_request_and_its_later_rows_are_swallowed() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let config = sandbox.config().plugin("loops", &example("stop-on-loop"), "window = 8, repeats = 4");
        let afterbay = Afterbay::run(&sandbox, &config);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let (mut text, mut looped) = (SynthRequest::new("text"), SynthRequest::new("looped"));
        for step in 0..12 {
            let last = step == 11;
            // The ids 7 8 7 8 … are a loop at the eighth id, in the fourth row.
            let rows = match last {
                false => vec![text.row(&[step]), looped.row(&[7, 8])],
                true => vec![text.last(&[step]), looped.last(&[7, 8])],
            };
            sender.send(&batch(wire, rows));
        }
        for step in 0..12 {
            let out = rows(&reader.frame());
            let finish = (step == 11).then_some("length");
            assert_eq!(out[0], row("text", &[step], step as u64 + 1, finish), "{wire:?}");
            match step {
                0..3 => assert_eq!(out[1], row("looped", &[7, 8], 2 * step as u64 + 2, None), "{wire:?}"),
                3 => assert_eq!(out[1], row("looped", &[7, 8], 8, Some("stop:stop-on-loop")), "{wire:?}"),
                _ => assert_eq!(out.len(), 1, "step {step}: a row after the end: {out:?}"),
            }
        }
        let finished = afterbay.event("RequestFinishedEarly");
        assert_eq!((&finished["rid"], &finished["plugin"]), (&"looped".into(), &"loops".into()));
        let log = afterbay.event("PluginLog");
        assert_eq!(log["rid"], "looped", "{log}");
        let metrics =
            afterbay.until_metrics("every frame is taken", |metrics| metrics.sink("taken_frame") == 12);
        assert_eq!(metrics.stream("tokens_received_total"), 12 + 24);
        assert_eq!(metrics.stream("tokens_forwarded_total"), 12 + 8);
        assert_eq!(
            (metrics.stream("rows_swallowed_total"), metrics.stream("tokens_swallowed_total")),
            (8, 16)
        );
        assert_eq!(metrics.stream("frames_rewritten_total"), 9);
        assert_eq!(metrics.stream("request_imbalances_total"), 0);
        assert_eq!(metrics.plugin_by("loops", "verdicts_total", "action", "finish"), 1);
        assert_eq!(
            (metrics.plugin("loops", "batch_seconds_count"), metrics.plugin("loops", "rows_total")),
            (12, 16)
        );
        assert_eq!(afterbay.stop(), 0);

        assert_eq!(verify(&sandbox).0, 0);
        let shown = show(&sandbox, "looped");
        let rows = shown["rows_seen"].as_array().unwrap();
        assert_eq!(rows.len(), 12);
        assert_eq!(rows[3]["actions"][0]["plugin"], "loops");
        assert_eq!(rows[3]["actions"][0]["verdict"], "finish");
        assert_eq!((&rows[4]["tokens"], &rows[4]["tokens_forwarded"]), (&2.into(), &0.into()));
        assert_eq!((&shown["tokens_received"], &shown["completion_tokens"]), (&24.into(), &24.into()));
        let table = journal(&sandbox, &["show", "looped"]).success();
        assert!(table.contains("loops: finished") && table.contains("Plugin \"loops\" ended"), "{table}");
        let swallowed = &shown["ended"]["swallowed"];
        assert_eq!((&swallowed["rows"], &swallowed["tokens"]), (&8.into(), &16.into()), "{shown}");
    }
}

#[test]
fn a_request_that_a_plugin_finished_stays_finished_after_a_restart() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().plugin("loops", &example("stop-on-loop"), "window = 8");
    let (mut looped, mut other) = (SynthRequest::new("looped"), SynthRequest::new("other"));
    for run in 0..3 {
        let afterbay = Afterbay::run(&sandbox, &config);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let last = run == 2;
        let row = if last { looped.last(&[7; 8]) } else { looped.row(&[7; 8]) };
        sender.send(&batch(Msgpack, vec![row, if last { other.last(&[run]) } else { other.row(&[run]) }]));
        let out = rows(&reader.frame());
        if run == 0 {
            assert_eq!(out[0], row_of_loop());
        }
        assert_eq!(out.last().unwrap().rid, "other");
        assert_eq!(out.len(), if run == 0 { 2 } else { 1 }, "after restart {run}: {out:?}");
        let swallowed = if run == 0 { 0 } else { 8 };
        afterbay.until_metrics("the row is swallowed", |metrics| {
            metrics.stream("tokens_swallowed_total") == swallowed
        });
        // The journal then has the outcome of the frame.
        until("the journal has its outcome", || verify(&sandbox).1["notes"] == serde_json::json!([]));
        if run == 0 { afterbay.kill() } else { assert_eq!(afterbay.stop(), 0) }
    }
    let (code, report) = verify(&sandbox);
    assert_eq!((code, &report["requests"], &report["tokens"]), (0, &2.into(), &27.into()), "{report}");
    let shown = show(&sandbox, "looped");
    assert_eq!((&shown["tokens_received"], &shown["tokens_forwarded"]), (&24.into(), &8.into()), "{shown}");
}

fn row_of_loop() -> ReaderRow {
    row("looped", &[7; 8], 8, Some("stop:stop-on-loop"))
}

#[test]
fn a_plugin_that_traps_loops_or_exhausts_memory_changes_no_byte_and_is_reported() {
    for (name, kind, call, limits) in [
        ("panics", "trap", "open", "deadline = \"10s\""),
        ("panics", "trap", "process", "deadline = \"10s\""),
        ("loops", "deadline", "process", "deadline = \"2ms\""),
        ("hog", "memory", "process", "memory = \"8MiB\", deadline = \"10s\""),
    ] {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let component = guest(name);
        let settings = format!("in = {call:?}");
        let config = sandbox.config().plugin_with("bad", component.to_str().unwrap(), &settings, limits);
        let config = config.plugin_line("quarantine = { faults = 0 }");
        let afterbay = Afterbay::run(&sandbox, &config);
        let frames = load(4, 6, Msgpack);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        frames.iter().for_each(|frame| sender.send(&frame.bytes));
        for (index, frame) in frames.iter().enumerate() {
            assert_eq!(reader.frame(), frame.bytes, "{name} in {call}: frame {index}");
        }
        let metrics = afterbay.until_metrics("every frame is taken", |metrics| {
            metrics.sink("taken_frame") == frames.len() as u64
        });
        if call == "process" {
            let faults = metrics.plugin_by("bad", "faults_total", "kind", kind);
            assert_eq!(faults, frames.len() as u64, "{name}: {}", afterbay.log());
            assert_eq!(metrics.plugin("bad", "bypassed_batches_total"), faults);
        }
        let fault = afterbay.event("PluginFault");
        assert_eq!((&fault["plugin"], &fault["kind"]), (&"bad".into(), &kind.into()), "{name}: {fault}");
        assert_eq!(metrics.stream("frames_rewritten_total"), 0, "{name} in {call}");
        assert_eq!(afterbay.stop(), 0, "{name} in {call}");
        assert_eq!(verify(&sandbox).0, 0, "{name} in {call}");
    }
}

#[test]
fn a_fault_in_a_close_call_is_reported_and_counted() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay =
        Afterbay::run(&sandbox, &sandbox.config().plugin("bad", &guest("panics"), "in = \"close\""));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let frame = batch(Msgpack, vec![SynthRequest::new("r").last(&[1])]);
    sender.send(&frame);
    assert_eq!(reader.frame(), frame);
    let fault = afterbay.event("PluginFault");
    assert_eq!(fault["kind"], "trap", "{fault}");
    assert!(fault["why"].as_str().unwrap().contains("close"), "{fault}");
    assert_eq!(afterbay.metrics().plugin_by("bad", "faults_total", "kind", "trap"), 1);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn an_answer_against_the_contract_is_a_fault_and_changes_nothing() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(
        &sandbox,
        &sandbox.config().plugin("bad", &guest("malformed"), "answer = \"two for a row\""),
    );
    let frames = load(40, 3, Pickle);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    for frame in &frames {
        sender.send(&frame.bytes);
        assert_eq!(reader.frame(), frame.bytes);
    }
    let fault = afterbay.event("PluginFault");
    assert_eq!(fault["kind"], "malformed", "{fault}");
    assert_eq!(afterbay.metrics().stream("frames_rewritten_total"), 0);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn a_plugin_that_drops_everything_never_changes_a_health_check() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let config = sandbox.config().plugin("drops", &guest("judges"), "action = \"drop\"");
        let afterbay = Afterbay::run(&sandbox, &config);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let mut health = SynthRequest::new("HEALTH_CHECK_1763649000.5");
        let alone = batch(wire, vec![health.last(&[5])]);
        sender.send(&alone);
        assert_eq!(reader.frame(), alone, "{wire:?}");

        let (mut a, mut health) = (SynthRequest::new("a"), SynthRequest::new("HEALTH_CHECK_1763649000.2"));
        sender.send(&batch(wire, vec![a.row(&[1, 2])]));
        // The first row of a request is sent without its tokens, so that the reader knows the request.
        assert_eq!(rows(&reader.frame()), [row("a", &[], 0, None)], "{wire:?}");
        sender.send(&batch(wire, vec![a.row(&[3]), health.last(&[6])]));
        assert_eq!(
            rows(&reader.frame()),
            [row("HEALTH_CHECK_1763649000.2", &[6], 1, Some("length"))],
            "{wire:?}"
        );
        // Every row of this frame is dropped.
        sender.send(&batch(wire, vec![a.row(&[4])]));
        sender.send(&batch(wire, vec![a.last(&[5])]));
        let last = rows(&reader.frame());
        assert_eq!((last[0].rid.as_str(), &last[0].ids[..]), ("a", &[][..]), "{wire:?}");
        assert_eq!(last[0].finish.as_deref(), Some("length"));
        assert_eq!(last[0].completion_tokens, 0, "the reader got no token of the request");

        let metrics =
            afterbay.until_metrics("every frame is taken", |metrics| metrics.sink("taken_frame") == 5);
        assert_eq!((metrics.stream("rows_dropped_total"), metrics.stream("tokens_dropped_total")), (4, 5));
        assert_eq!(
            (metrics.stream("tokens_received_total"), metrics.stream("tokens_forwarded_total")),
            (7, 2)
        );
        assert_eq!(metrics.plugin("drops", "rows_total"), 4, "the plugin saw a health check");
        assert_eq!(metrics.stream("request_imbalances_total"), 0);
        let dropped = afterbay.event("RowsDropped");
        assert_eq!(dropped["reason"], "dropped by judges", "{dropped}");
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
        let shown = show(&sandbox, "a");
        let counts =
            ["tokens_received", "tokens_forwarded", "tokens_dropped"].map(|name| shown[name].as_u64());
        assert_eq!(counts, [Some(5), Some(0), Some(5)], "{shown}");
    }
}

#[test]
fn delta_to_cumulative_gives_every_id_to_a_reader_of_last_rows() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let component = "builtin:delta-to-cumulative";
        let config = sandbox.config().plugin_with("cumulative", component, "", "deadline = \"10s\"");
        let afterbay = Afterbay::run(&sandbox, &config);
        let mut wanted = Load::new(60, 50);
        wanted.endings = Endings { length: 1, stop_token: 1, stop_text: 0, abort: 0 };
        (wanted.control_every, wanted.health_every, wanted.tokens_per_step) = (Some(9), Some(11), 3);
        let frames = frames_of(&wanted, wire);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        frames.iter().for_each(|frame| sender.send(&frame.bytes));
        let mut checker = Checker::new(Reading::Overwriting, Expect::Simulated);
        for frame in reader.take(frames.len()) {
            checker.frame(frame.into(), &mut Instant::now);
        }
        checker.use_found_rows(Instant::now());
        assert_eq!((checker.open(), checker.started()), (0, 60), "{wire:?}");
        let (record, faults) = checker.finish();
        assert!(faults.is_none(), "{wire:?}: {faults:?}");
        let sent = frames.iter().map(|frame| frame.tokens).sum::<u64>();
        assert_eq!(record.requests, 60);
        let metrics = afterbay.until_metrics("every frame is taken", |metrics| {
            metrics.sink("taken_frame") == frames.len() as u64
        });
        assert!(metrics.stream("rows_replaced_total") > 500);
        assert_eq!(metrics.stream("request_imbalances_total"), 0);
        assert_eq!(afterbay.stop(), 0);
        let (code, report) = verify(&sandbox);
        assert_eq!(code, 0, "{report}");
        assert!(report["tokens"].as_u64().unwrap() >= sent);
    }
}

#[test]
fn only_the_last_of_waiting_cumulative_rows_is_sent_also_from_the_journal() {
    const ROWS: i64 = 200;
    for spills in [false, true] {
        let sandbox = Sandbox::new();
        let (mut reader, mut credit, config) = sandbox.counting_tokenizer();
        let component = "builtin:delta-to-cumulative";
        let mut config = config.plugin_with("cumulative", component, "", "deadline = \"10s\"");
        if spills {
            config = config.sink("queue = { frames = 4 }");
        }
        let afterbay = Afterbay::run(&sandbox, &config);
        afterbay.event("CreditSeen");
        reader.wait_connected();
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let mut request = SynthRequest::new("a");
        for id in 0..ROWS {
            let row = if id == ROWS - 1 { request.last(&[id]) } else { request.row(&[id]) };
            sender.send(&batch(Msgpack, vec![row]));
        }
        afterbay.until_metrics("every frame is received", |metrics| {
            metrics.stream("frames_received_total") == ROWS as u64
        });
        let (mut frames, mut last) = (0, None::<ReaderRow>);
        while last.as_ref().is_none_or(|last| last.finish.is_none()) {
            let [row]: [ReaderRow; 1] = rows(&reader.frame()).try_into().unwrap();
            assert_eq!(row.ids, (0..row.completion_tokens as i64).collect::<Vec<_>>(), "spills: {spills}");
            credit.finished().unwrap();
            (frames, last) = (frames + 1, Some(row));
        }
        assert_eq!(last.unwrap().completion_tokens, ROWS as u64);
        assert!(frames < ROWS / 2, "{frames} frames, spills: {spills}");
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
    }
}

#[test]
fn each_plugin_sees_the_result_of_the_plugin_before_it_and_the_journal_has_both_verdicts() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().plugin("first", &guest("judges"), "action = \"finish\"").plugin(
        "second",
        &guest("reports"),
        "",
    );
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut request = SynthRequest::new("r");
    sender.send(&batch(Msgpack, vec![request.row(&[1, 2])]));
    // The first plugin finishes, the second drops: the reader gets the end without tokens.
    assert_eq!(rows(&reader.frame()), [row("r", &[], 0, Some("stop:finished by judges"))]);
    let dropped = afterbay.event("RowsDropped");
    let reason = dropped["reason"].as_str().unwrap();
    assert!(reason.contains("[1, 2]") && reason.contains("Stop"), "{reason}");
    let opened = afterbay.event_where("PluginLog", |log| log["plugin"] == "second");
    assert!(opened["line"].as_str().unwrap().starts_with("opened r \"\" \"reader\" 7 0 false"), "{opened}");
    sender.send(&batch(Msgpack, vec![request.last(&[3])]));
    afterbay
        .until_metrics("later rows are swallowed", |metrics| metrics.stream("tokens_swallowed_total") == 1);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
    let shown = show(&sandbox, "r");
    let actions = shown["rows_seen"][0]["actions"].as_array().unwrap();
    let verdicts: Vec<_> = actions.iter().map(|action| (&action["plugin"], &action["verdict"])).collect();
    assert_eq!(verdicts, [(&"first".into(), &"finish".into()), (&"second".into(), &"drop".into())]);
}

#[test]
fn a_plugins_abort_or_length_ends_the_request_for_its_reader_and_later_rows_are_swallowed() {
    for (wire, verdict, reason, words) in [
        (WIRES[0], "abort", "aborted by judges", "aborts: abort \"aborted by judges\""),
        (WIRES[1], "abort", "aborted by judges", "aborts: abort \"aborted by judges\""),
        (WIRES[0], "length", "length", "aborts: finished, as at the token limit"),
        (WIRES[1], "length", "length", "aborts: finished, as at the token limit"),
    ] {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let settings = format!("action = {verdict:?}");
        let config = sandbox.config().plugin("aborts", &guest("judges"), &settings);
        let afterbay = Afterbay::run(&sandbox, &config);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let mut request = SynthRequest::new("r");
        sender.send(&batch(wire, vec![request.row(&[1, 2])]));
        assert_eq!(rows(&reader.frame()), [row("r", &[1, 2], 2, Some(verdict))], "{wire:?}");
        sender.send(&batch(wire, vec![request.last(&[3])]));
        afterbay.until_metrics("later rows are swallowed", |metrics| {
            metrics.stream("tokens_swallowed_total") == 1
                && metrics.plugin_by("aborts", "verdicts_total", "action", verdict) == 1
        });
        assert_eq!(afterbay.event("RequestFinishedEarly")["reason"], reason);
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
        let shown = journal(&sandbox, &["show", "r"]).stdout;
        assert!(shown.contains(words), "{shown}");
    }
}

#[test]
fn a_note_is_in_the_journal_and_changes_no_byte() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().plugin("notes", &guest("judges"), "action = \"annotate\"");
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    for frame in load(3, 4, Msgpack) {
        sender.send(&frame.bytes);
        assert_eq!(reader.frame(), frame.bytes);
    }
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
    let shown = show(&sandbox, "sim-1-0000000000");
    let [action] = &shown["rows_seen"][1]["actions"].as_array().unwrap()[..] else { panic!("{shown}") };
    assert_eq!((&action["verdict"], &action["text"]), (&"annotate".into(), &"seen by judges".into()));
}

#[test]
fn a_replaced_text_after_the_detokenizer_reaches_the_next_plugin_and_the_reader() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let config = sandbox.config().plugin("rewrites", &guest("judges"), "action = \"rewrite\"").plugin(
            "reports",
            &guest("reports"),
            "",
        );
        let afterbay = Afterbay::run(&sandbox, &config);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let mut request = SynthRequest::new("r");
        let row = SynthRow { text: "eins zwei".into(), ..request.row(&[1, 2]) };
        sender.send(&SynthBatch { rows: vec![row] }.encode(BatchKind::Str, wire).unwrap());
        // The first row continues without tokens and without the text of the earlier plugin.
        let frame = reader.frame();
        let DecodedFrame::Batch(left) = afterbay_wire::decode(frame.into(), &Layouts::builtin()) else {
            panic!()
        };
        assert_eq!((left.text(0), left.tokens(0)), (Some(""), 0), "{wire:?}");
        // The plugin drops each row and reports its content.
        let dropped = afterbay.event("RowsDropped");
        let reason = dropped["reason"].as_str().unwrap();
        assert!(reason.contains("seven") && !reason.contains("zwei"), "{wire:?}: {reason}");
        assert_eq!(afterbay.stop(), 0);
    }
}

#[test]
fn a_plugins_own_metrics_are_on_the_metrics_page() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let settings = "counter = \"rows\", gauge = \"last_rows\", histogram = \"cost_seconds\"";
    let config = sandbox.config().plugin("meters", &guest("meters"), settings);
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    for frame in load(3, 4, Msgpack) {
        sender.send(&frame.bytes);
        reader.frame();
    }
    let metrics = afterbay
        .until_metrics("every row is counted", |metrics| metrics.plugin("meters", "own_rows_total") == 12);
    assert_eq!(metrics.plugin("meters", "own_last_rows"), 3);
    assert_eq!(metrics.plugin("meters", "own_cost_seconds_count"), 4);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_plugin_that_needs_an_ungranted_interface_is_refused_at_the_start() {
    let sandbox = Sandbox::new();
    let settings = "counter = \"a\", gauge = \"b\", histogram = \"c\"";
    let config = sandbox.config().plugin("meters", &guest("meters"), settings).granted("[\"log\"]");
    let refused = run_afterbay(&["check", "--config", &sandbox.write(&config)]);
    assert_eq!(refused.code, 64);
    assert!(refused.stderr.contains("wants metrics, which it is not granted"), "{}", refused.stderr);
    let config =
        sandbox.config().plugin("meters", &guest("meters"), settings).granted("[\"metrics\", \"files\"]");
    let refused = run_afterbay(&["check", "--config", &sandbox.write(&config)]);
    assert_eq!(refused.code, 64);
    assert!(
        refused
            .stderr
            .contains("grant[1]: \"files\" is not known, must be \"log\" or \"metrics\" or \"health\""),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_plugin_with_the_tokenizer_grant_reads_the_model_of_the_sink() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let model = repository().join("host/path/text/tests/fixtures/byte-level/tokenizer.json");
    let ids = afterbay_text::Encoder::load(&model).unwrap().encode("hello").unwrap();
    let config = sandbox.config().sink(&format!("tokenizer = {model:?}"));
    let settings = "text = \"grüße, 世界\"";
    let config = config.plugin("tokens", &guest("tokens"), settings).granted("[\"log\", \"tokenizer\"]");
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    sender.send(&batch(Msgpack, vec![SynthRequest::new("r").row(&ids)]));
    reader.frame();
    assert_eq!(afterbay.stop(), 0);
    let [note] = notes(&sandbox, "r").try_into().unwrap();
    assert!(note.starts_with("\"hello\" Ok(true) 3 "), "{note}");

    let config =
        sandbox.config().plugin("tokens", &guest("tokens"), settings).granted("[\"log\", \"tokenizer\"]");
    let refused = run_afterbay(&["check", "--config", &sandbox.write(&config)]);
    assert_eq!(refused.code, 64);
    let why = "is granted the tokenizer, and no sink of its stream names one: sink.tokenizer";
    assert!(refused.stderr.contains(why), "{}", refused.stderr);
}

#[test]
fn a_plugin_that_does_nothing_changes_no_byte() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let nothing = guest("nothing");
    let config = sandbox.config().plugin("nothing", &nothing, "").plugin("logs", &guest("logs"), "lines = 3");
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    for (name, frame) in fixtures() {
        sender.send(&frame);
        assert_eq!(reader.frame(), frame, "{name}");
    }
    let line = afterbay.event_where("PluginLog", |log| log["plugin"] == "logs");
    assert_eq!(line["line"].as_str().unwrap().len(), 4096, "a line is cut at 4 KiB");
    let metrics = afterbay.metrics();
    assert_eq!(metrics.stream("frames_rewritten_total"), 0);
    assert!(metrics.plugin("nothing", "rows_total") > 500);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_replacement_by_the_same_ids_gives_the_reader_the_same_rows() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let config = sandbox.config().plugin("echo", &guest("judges"), "action = \"echo\"");
        let afterbay = Afterbay::run(&sandbox, &config);
        let frames = load(10, 20, wire);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        for frame in &frames {
            sender.send(&frame.bytes);
            assert_eq!(rows(&reader.frame()), rows(&frame.bytes), "{wire:?}");
        }
        let metrics = afterbay.metrics();
        assert_eq!(metrics.plugin_by("echo", "verdicts_total", "action", "replace"), 200);
        assert_eq!(metrics.stream("rows_replaced_total"), 200);
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
    }
}

#[test]
fn check_names_every_component_that_cannot_run_and_run_does_not_start() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("text.wasm"), "no component").unwrap();
    let config = sandbox
        .config()
        .plugin("p-bad-name", &guest("bad-name"), "")
        .plugin("p-other-world", &guest("other-world"), "")
        .plugin("p-panics", &guest("panics-in-describe"), "")
        .plugin("p-text", &sandbox.path("text.wasm"), "")
        .plugin("p-refuses", &guest("reports"), "refuse = \"it is Sunday\"")
        .plugin("p-settings", &example("stop-on-loop"), "windw = 8")
        .plugin("p-good", &guest("nothing"), "");
    let file = sandbox.write(&config);
    for command in ["check", "run"] {
        let refused = run_afterbay(&[command, "--config", &file]);
        assert_eq!(refused.code, 64, "{command}: {refused:?}");
        for name in ["bad-name", "other-world", "panics", "text", "refuses", "settings"] {
            let named = format!("plugin \"p-{name}\"");
            assert!(refused.stderr.contains(&named), "{command}: {named} is not in\n{}", refused.stderr);
        }
        assert!(!refused.stderr.contains("p-good"), "{}", refused.stderr);
        for words in ["it is Sunday", "windw", "describe trapped", "this host runs 0.2.0"] {
            assert!(refused.stderr.contains(words), "{command}: {words} is not in\n{}", refused.stderr);
        }
    }
    assert!(!sandbox.path("in").exists() && !sandbox.journal().exists());
}
