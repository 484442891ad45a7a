//! The commands of a plugin's author (`plugin check`, `run`, `test` and `bench`) on real components.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use afterbay_tests::commands::{afterbay_command, json_lines, run_afterbay, run_command, show};
use afterbay_tests::components::{example, guest};
use afterbay_tests::frames::{SynthRequest, WIRES, batch};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, fixtures, repository};
use afterbay_wire::{DecodedFrame, Layouts, RequestRecord};
use serde_json::{Value, json};

/// A component's path as text.
fn path(component: std::path::PathBuf) -> String {
    component.to_str().unwrap().to_owned()
}

#[test]
fn plugin_check_shows_a_components_description_and_imports() {
    let component = path(example("stop-on-loop"));
    let shown = run_afterbay(&["plugin", "check", &component]).success();
    for part in
        ["stop-on-loop 0.1.0\n", "columns    output-ids\n", "writes     delta ids\n", "grants     log\n"]
    {
        assert!(shown.contains(part), "{part:?} is not in\n{shown}");
    }
    let [output] = run_afterbay(&["plugin", "check", &component, "--json"]).json_lines().try_into().unwrap();
    assert_eq!(
        (&output["ok"], &output["problems"], &output["grants"]),
        (&true.into(), &json!([]), &json!(["log"]))
    );
    assert_eq!(output["bytes"], std::fs::metadata(&component).unwrap().len());
    assert_eq!(output["settings_schema"]["properties"]["repeats"]["default"], 4, "{output}");
    let [output] = run_afterbay(&[
        "plugin",
        "check",
        &path(guest("tokens")),
        "--settings",
        r#"{"text": "a"}"#,
        "--json",
    ])
    .json_lines_of(1);
    assert!(output["grants"].as_array().unwrap().contains(&"tokenizer".into()), "{output}");
    let why = output["problems"][0].as_str().unwrap();
    assert!(why.ends_with(
        ": the tokenizer is empty; the plugin uses the model's tokenizer, and none was given: --tokenizer"
    ));
}

#[test]
fn plugin_check_exits_1_for_refused_settings_and_64_for_invalid_json() {
    let component = path(example("stop-on-loop"));
    let refused = run_afterbay(&["plugin", "check", &component, "--settings", r#"{"repeats": 1}"#]);
    assert_eq!(refused.code, 1);
    assert!(
        refused.stdout.contains("refuses its settings: /repeats: is 1, must be 2 or more"),
        "{refused:?}"
    );
    let wanting = path(guest("forbidden"));
    let wants: [&[&str]; 2] = [&["check", &wanting, "--json"], &["bench", &wanting]];
    for args in wants {
        let refused = run_afterbay(&[&["plugin"], args].concat());
        assert_eq!(refused.code, 1);
        let output = format!("{}{}", refused.stdout, refused.stderr);
        assert!(output.contains("missing field `do`"), "{output}");
        assert!(output.contains("; none were given: --settings"), "{output}");
    }
    for (args, why) in [
        (&[component.as_str(), "--settings", "{"][..], "afterbay: --settings: not JSON: "),
        (&[&component, "--settings", "@/nowhere.json"], "afterbay: --settings: /nowhere.json: "),
        (&["/nowhere.wasm"], "afterbay: /nowhere.wasm: No such file"),
        (&["/"], "afterbay: /: no plugin's project: it has none of Cargo.toml"),
        (
            &["builtin:delta"],
            "afterbay: \"builtin:delta\" is not in this binary, which has budget, delta-to-cumulative",
        ),
        (&["builtin:delta-to-cumulative", "--deadline", "1h"], "1h is not from 100µs to 10s"),
        (&["builtin:delta-to-cumulative", "--memory", "1"], "1 is not from 1MiB to 4GiB"),
    ] {
        let wrong = run_afterbay(&[&["plugin", "check"], args].concat());
        assert_eq!((wrong.code, wrong.stdout.as_str()), (64, ""), "{wrong:?}");
        assert!(wrong.stderr.contains(why), "{why:?} is not in {}", wrong.stderr);
    }
    for (settings, start) in [("{ repeats = 3 }", "start      ok"), ("{ repeats = 1 }", "must be 2 or more")]
    {
        let checked = run_afterbay(&["plugin", "check", &component, "--settings", settings]);
        assert!(checked.stdout.contains(start), "{checked:?}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "it is Sunday").unwrap();
    let reports = path(guest("reports"));
    for (settings, why) in [
        (format!("{{ refuse = {{ file = {:?} }} }}", file.path()), "it is Sunday"),
        (format!(r#"{{"refuse": {{"file": {:?}}}}}"#, file.path()), "it is Sunday"),
        ("{ refuse = { file = \"/nowhere.txt\" } }".to_owned(), "file \"/nowhere.txt\" cannot be read"),
    ] {
        let checked = run_afterbay(&["plugin", "check", &reports, "--settings", &settings]);
        let output = checked.stdout.clone() + &checked.stderr;
        assert!(checked.code != 0 && output.contains(why), "{checked:?}");
    }
    std::fs::write(file.path(), r#"{"repeats": 3}"#).unwrap();
    let settings = format!("@{}", file.path().display());
    assert!(
        run_afterbay(&["plugin", "check", &component, "--settings", &settings])
            .success()
            .contains("start      ok")
    );
}

#[test]
fn plugin_check_explains_why_a_component_of_another_version_is_refused() {
    let other = path(guest("other-world"));
    let refused = run_afterbay(&["plugin", "check", &other]);
    assert_eq!((refused.code, refused.stdout.as_str()), (1, ""));
    assert_eq!(
        refused.stderr,
        format!(
            "plugin {other:?}: built for another world: exports afterbay:plugin/plugin@0.3.0, a plugin exports afterbay:plugin/plugin@0.2.0\n\
             plugin {other:?}: built for another world: imports afterbay:plugin/signals@0.3.0, this host runs 0.2.0\n"
        )
    );
    let [output] = run_afterbay(&["plugin", "check", &other, "--json"]).json_lines_of(1);
    assert_eq!(output["ok"], Value::Bool(false));
    assert!(output["problems"].to_string().contains("this host runs 0.2.0"), "{output}");
}

#[test]
fn plugin_run_on_a_journal_repeats_the_streams_verdicts_and_writes_nothing() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let config = sandbox.config().plugin("loops", &example("stop-on-loop"), "window = 8, repeats = 4");
        let afterbay = Afterbay::run(&sandbox, &config);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let (mut text, mut looped) = (SynthRequest::new("text"), SynthRequest::new("looped"));
        for step in 0..6 {
            sender.send(&batch(wire, vec![text.row(&[step]), looped.row(&[7, 8])]));
            reader.frame();
        }
        assert_eq!(afterbay.stop(), 0);
        let shown = show(&sandbox, "looped");
        assert_eq!(shown["rows_seen"][3]["actions"][0]["verdict"], "finish");

        let before = contents(&sandbox.journal());
        let component = path(example("stop-on-loop"));
        let from = sandbox.text("journal");
        let run =
            ["plugin", "run", &component, "--from", &from, "--settings", r#"{"window": 8, "repeats": 4}"#];
        let lines = run_afterbay(&[&run[..], &["--json", "--all"]].concat()).json_lines();
        let of_rows: Vec<&Value> =
            lines.iter().filter(|line| line["rid"] == "looped" && line["row"] == 1).collect();
        let outcomes: Vec<&Value> = of_rows.iter().map(|line| &line["outcome"]).collect();
        assert_eq!(outcomes, ["passed", "passed", "passed", "judged", "swallowed", "swallowed"], "{wire:?}");
        assert_eq!(of_rows[3]["said"], json!({"finish": "stop-on-loop"}));
        let left = json!({"ids": [7, 8], "text": null, "decoded": null, "finish": "stop"});
        assert_eq!(of_rows[3]["left"], left);
        assert_eq!(of_rows[3]["from"], format!("frame {}", shown["rows_seen"][3]["frame"]));
        let summary = &lines.last().unwrap()["summary"];
        assert_eq!((&summary["rows"], &summary["requests"]), (&12.into(), &2.into()), "{summary}");
        assert_eq!(summary["verdicts"], json!({"finish": 1}));

        let plain = run_afterbay(&[&run[..], &["--rid", "loop"]].concat()).success();
        let [first, log, rows, _] = plain.lines().collect::<Vec<_>>().try_into().unwrap();
        assert!(first.ends_with(r#" looped: finish "stop-on-loop": 7 8, last (stop)"#), "{plain}");
        assert!(log.ends_with(" looped: log: info: stopped: its last 8 ids repeat 2"), "{plain}");
        assert_eq!(rows, "6 rows of 1 requests in 6 batches: 3 as they came, 1 finish, 2 swallowed");
        assert_eq!(contents(&sandbox.journal()), before, "the journal was changed");
    }
}

#[test]
fn plugin_run_on_a_packed_request_gives_the_verdicts_of_the_whole_journal() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().plugin("loops", &example("stop-on-loop"), "window = 8, repeats = 4");
    let file = sandbox.write(&config);
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let (mut text, mut looped) = (SynthRequest::new("text"), SynthRequest::new("looped"));
    for step in 0..6 {
        sender.send(&batch(WIRES[step % WIRES.len()], vec![text.row(&[40_000]), looped.row(&[7, 8])]));
        reader.frame();
        sender.send(&batch(WIRES[step % WIRES.len()], vec![text.row(&[50_000 + step as i64])]));
        reader.frame();
    }
    assert_eq!(afterbay.stop(), 0);
    let (pack, component) = (sandbox.text("looped.tar.zst"), path(example("stop-on-loop")));
    let packed = std::fs::File::create(&pack).unwrap();
    let mut command = afterbay_command(&["journal", "pack", "loop", "--config", &file]);
    assert!(command.stdout(packed).status().unwrap().success());
    let whole = sandbox.text("journal");
    let run = |from: &str, args: &[&str]| {
        let settings = ["--settings", r#"{"window": 8, "repeats": 4}"#, "--json", "--all"];
        let output =
            run_afterbay(&[&["plugin", "run", &component, "--from", from], &settings[..], args].concat());
        let rows = output.json_lines().into_iter().filter(|line| line["rid"] == "looped");
        rows.collect::<Vec<Value>>()
    };
    let expected = run(&whole, &["--rid", "looped"]);
    assert_eq!(expected.iter().filter(|row| !row["said"]["finish"].is_null()).count(), 1, "{expected:?}");
    // The rows of the other request are erased, so a plugin does not see them.
    assert_eq!(run(&pack, &[]), expected);
    let show =
        |from: &str| run_afterbay(&["journal", "show", "looped", "--json", "--from", from]).json_lines();
    assert_eq!(show(&pack), show(&whole));
    // The other request loops on erased ids. It is not judged.
    let trial = run_afterbay(&["plugin", "run", "--config", &file, "--from", &pack, "--json"]).json_lines();
    let [summary] = &trial[..] else { panic!("{trial:?}") };
    assert_eq!(
        (&summary["summary"]["requests"], &summary["summary"]["rows"]),
        (&1.into(), &6.into()),
        "{summary}"
    );
}

/// Every file below a directory.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(contents(&path)),
            false => _ = files.insert(path.clone(), std::fs::read(&path).unwrap()),
        }
    }
    files
}

#[test]
fn plugin_run_takes_sglangs_frames_hides_health_checks_and_counts_frames_without_rows() {
    let component = path(guest("judges"));
    let frames = repository().join("tests/fixtures/frames");
    let settings = r#"{"action": "drop"}"#;
    // 1,024 requests begin at once, on a busy machine.
    let run = ["plugin", "run", &component, "--settings", settings, "--deadline", "10s", "--json", "--from"];
    let lines = run_afterbay(&[&run[..], &[frames.to_str().unwrap()]].concat()).json_lines();
    let (mut wanted, mut without_rows) = (Vec::new(), 0);
    for (name, bytes) in
        fixtures().iter().filter_map(|(name, bytes)| Some((name.strip_prefix("frames/")?, bytes)))
    {
        match afterbay_wire::decode(bytes.clone().into(), &Layouts::builtin()) {
            DecodedFrame::Barrier(_) => without_rows += 1,
            DecodedFrame::Batch(batch) => {
                let rows = (0..batch.rows()).filter(|row| !batch.is_health_check(*row));
                wanted.extend(rows.map(|row| (name.to_owned(), batch.rid(row).to_owned())));
            }
        }
    }
    let text = |line: &Value, key: &str| line[key].as_str().unwrap().to_owned();
    let (summary, rows) = lines.split_last().unwrap();
    let shown: Vec<_> = rows.iter().map(|line| (text(line, "from"), text(line, "rid"))).collect();
    assert_eq!(shown, wanted);
    assert!(rows.iter().all(|line| line["said"] == json!({"drop": "dropped by judges"})));
    assert!(rows.iter().all(|line| line["left"]["ids"] == json!([])));
    let counted = summary["summary"]["frames_without_rows"].as_object().unwrap().values();
    assert_eq!(counted.map(|count| count.as_u64().unwrap()).sum::<u64>(), without_rows);

    let rewritten = run_afterbay(&[
        "plugin",
        "run",
        &component,
        "--settings",
        r#"{"action": "rewrite"}"#,
        "--from",
        frames.join("str_n1.msgpack").to_str().unwrap(),
    ]);
    assert!(rewritten.success().contains(" -> \"seven\""));
}

#[test]
fn plugin_run_shows_held_and_released_rows_and_skips_afterbays_own_frames() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().sink("reader = \"tokenizer\"\ntool_calls = \"joined\"").plugin(
        "holds",
        &guest("holds"),
        "millis = 10",
    );
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut request = SynthRequest::new("a");
    // The row with 101 is held. When its time is over, it continues in a frame of Afterbay's own.
    for row in [request.row(&[101, 1]), request.row(&[2]), request.last(&[3])] {
        sender.send(&batch(WIRES[0], vec![row]));
        reader.frame();
    }
    assert_eq!(afterbay.stop(), 0);
    let (component, from) = (path(guest("holds")), sandbox.text("journal"));
    let run = ["plugin", "run", &component, "--from", &from, "--settings", r#"{"millis": 10}"#];
    // No time passes in the command, so held rows continue with the last row.
    let shown = run_afterbay(&run).success();
    let lines: Vec<&str> = shown.lines().collect();
    for (line, end) in lines.iter().zip([
        " a: hold 10 ms, waits: 101 1",
        " a: waits: 2",
        " a: with what waited: 3 -> 101 1 2 3, last (length)",
        "3 rows of 1 requests in 3 batches: 0 as they came, 1 hold, 2 joined with what waits",
    ]) {
        assert!(line.ends_with(end), "{line:?} does not end with {end:?} in\n{shown}");
    }
    assert_eq!(lines.len(), 5, "{shown}");
}

#[test]
fn plugin_run_gives_the_sink_of_its_option_to_the_plugin() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("frame.bin");
    std::fs::write(&file, batch(WIRES[0], vec![SynthRequest::new("a").last(&[1])])).unwrap();
    let component = path(guest("reports"));
    let run = ["plugin", "run", &component, "--json", "--from", file.to_str().unwrap()];
    for (args, opened) in
        [(&[][..], r#"opened a "" "" 7 0 false"#), (&["--sink", "tok"], r#"opened a "" "tok" 7 0 false"#)]
    {
        let lines = run_afterbay(&[&run[..], args].concat()).json_lines();
        let mut logged = lines.iter().flat_map(|line| line["log"].as_array().into_iter().flatten());
        assert!(logged.any(|line| line["message"] == opened), "{lines:?} has no {opened:?}");
    }
}

#[test]
fn a_plugin_is_told_what_a_request_was_asked_for_by_frames_and_by_scenarios() {
    let dir = tempfile::tempdir().unwrap();
    let component = path(guest("remembers"));
    let logged = |source: &Path, args: &[&str]| {
        let run = ["plugin", "run", &component, "--json", "--from", source.to_str().unwrap()];
        let lines = run_afterbay(&[&run[..], args].concat()).json_lines();
        let logged = lines.iter().flat_map(|line| line["log"].as_array().into_iter().flatten());
        let messages = logged.map(|line| line["message"].as_str().unwrap().to_owned());
        messages.filter_map(|message| Some(message.strip_prefix("asked ")?.to_owned())).collect::<Vec<_>>()
    };
    let frames = dir.path().join("frames");
    std::fs::create_dir(&frames).unwrap();
    let record = RequestRecord { rid: "a".into(), lora: Some("sql".into()), ..RequestRecord::default() };
    std::fs::write(frames.join("1.bin"), record.with_prompt(&[5, 6]).to_frame()).unwrap();
    let rows = vec![SynthRequest::new("a").last(&[1]), SynthRequest::new("b").last(&[1])];
    std::fs::write(frames.join("2.bin"), batch(WIRES[0], rows)).unwrap();
    let of_a = r#"{"rid":"a","prompt_tokens":2,"lora":"sql"}, prompt Some([5, 6])"#;
    assert_eq!(logged(&frames, &["--settings", r#"{"asks": true}"#]), [of_a, "nothing, prompt None"]);
    let scenario = dir.path().join("s.toml");
    let text = format!(
        "plugin = {component:?}\nsettings = {{ asks = true }}\n[[batch]]\n\
         asked = {{ a = {{ prompt_ids = [5, 6], lora = \"sql\" }} }}\nrows = [{{ rid = \"a\" }}]\n"
    );
    std::fs::write(&scenario, text).unwrap();
    let run = run_afterbay(&["plugin", "run", "--json", "--from", scenario.to_str().unwrap()]);
    let of_a = r#"{\"lora\":\"sql\",\"prompt_tokens\":2,\"rid\":\"a\"}, prompt Some([5, 6])"#;
    assert!(run.stdout.contains(of_a), "{run:?}");
}

#[test]
fn plugin_run_of_a_file_that_is_no_frame_exits_64_and_shows_its_first_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("notes.md");
    std::fs::write(&file, "# Notes").unwrap();
    let run = ["plugin", "run", "builtin:delta-to-cumulative", "--json", "--from", file.to_str().unwrap()];
    let wrong = run_afterbay(&run);
    let why =
        "afterbay: notes.md: frame begins with [23, 20, 4e, 6f], neither a pickle nor a msgpack struct\n";
    assert_eq!((wrong.code, wrong.stdout.as_str(), wrong.stderr.as_str()), (64, "", why));
    // In a directory of frames the file is a frame without rows.
    std::fs::rename(&file, dir.path().join("notes.bin")).unwrap();
    let passed = run_afterbay(&[&run[..5], &[dir.path().to_str().unwrap()]].concat());
    assert_eq!(passed.json_lines().last().unwrap()["summary"]["rows"], 0);
}

#[test]
fn plugin_run_tells_requests_apart_by_their_token_counts() {
    let sandbox = Sandbox::new();
    let (scenario, component) = (sandbox.path("s.toml"), path(guest("judges")));
    for (rows, requests) in [
        (&["ids = [1], completion_tokens = 1", "ids = [2], completion_tokens = 2"][..], 1),
        (&["ids = [1], completion_tokens = 1", "ids = [1, 2], completion_tokens = 2"], 1),
        (&["ids = [1, 2], completion_tokens = 2", "ids = [1], completion_tokens = 1"], 2),
    ] {
        let batches = rows.iter().map(|row| format!("[[batch]]\nrows = [{{ rid = \"a\", {row} }}]\n"));
        std::fs::write(&scenario, format!("plugin = \"x\"\n{}", batches.collect::<String>())).unwrap();
        let run =
            ["plugin", "run", &component, "--settings", r#"{"action": "annotate"}"#, "--json", "--from"];
        let lines = run_afterbay(&[&run[..], &[scenario.to_str().unwrap()]].concat()).json_lines();
        assert_eq!(lines.last().unwrap()["summary"]["requests"], requests, "{rows:?}");
    }
}

#[test]
fn plugin_run_continues_after_a_fault_with_a_new_instance_and_exits_1() {
    let sandbox = Sandbox::new();
    let scenario = sandbox.path("s.toml");
    std::fs::write(&scenario, "plugin = \"x\"\n[[batch]]\ntimes = 2\nrows = [{ rid = \"a\", ids = [1] }]\n")
        .unwrap();
    let scenario = scenario.to_str().unwrap();
    for (name, kind, limits) in [
        ("panics", "trap", &["--deadline", "10s"][..]),
        ("loops", "deadline", &["--deadline", "2ms"]),
        ("hog", "memory", &["--memory", "8MiB", "--deadline", "10s"]),
    ] {
        let component = path(guest(name));
        let run = ["plugin", "run", &component, "--settings", r#"{"in": "process"}"#, "--from", scenario];
        let ended = run_afterbay(&[&run[..], limits, &["--json"]].concat());
        assert_eq!(ended.code, 1, "{name}: {ended:?}");
        let lines = json_lines(&ended.stdout);
        for (line, from) in lines.iter().zip(["batch 1", "batch 2"]) {
            let found = (&line["from"], &line["faults"][0]["kind"]);
            assert_eq!(found, (&from.into(), &kind.into()), "{name}: {line}");
        }
        assert_eq!(lines[2]["summary"]["as_they_came"], 2, "{name}");
    }
}

#[test]
fn the_scenarios_of_the_examples_pass() {
    for (name, component, scenarios) in [
        ("stop-on-loop", example("stop-on-loop"), &["a-loop-is-finished.toml", "what-it-says.toml"][..]),
        ("confidence", example("confidence"), &["collapse.toml"]),
        ("load-shedder", example("load-shedder"), &["a-reader-is-behind.toml", "pressure.toml"]),
    ] {
        // The directory in which `example` has built the component, so that nothing is built again.
        let target = component.ancestors().nth(3).unwrap();
        let project = repository().join("examples").join(name);
        let mut command = afterbay_command(&["plugin", "test", "--json", project.to_str().unwrap()]);
        let names: Vec<String> = run_command(command.env("CARGO_TARGET_DIR", target))
            .json_lines()
            .into_iter()
            .map(|line| {
                assert_eq!((&line["ok"], &line["problems"]), (&true.into(), &json!([])));
                let scenario = Path::new(line["scenario"].as_str().unwrap()).file_name().unwrap();
                scenario.to_str().unwrap().to_owned()
            })
            .collect();
        assert_eq!(names, scenarios);
    }
}

#[test]
fn plugin_test_shows_the_differences_and_exits_1() {
    let sandbox = Sandbox::new();
    let (component, scenario) = (path(guest("judges")), sandbox.path("s.toml"));
    let write = |settings: &str, rows: &str| {
        let text = format!("plugin = {component:?}\nsettings = {settings}\n[[batch]]\nrows = [{rows}]\n");
        std::fs::write(&scenario, text).unwrap();
    };
    let test = || run_afterbay(&["plugin", "test", scenario.to_str().unwrap()]);
    write("{ action = \"drop\" }", "{ rid = \"a\", ids = [1], expect = { drop = \"dropped by judges\" } }");
    assert!(test().success().ends_with("1 scenario, 0 failed\n"));

    write("{ action = \"annotate\" }", "{ rid = \"a\", expect = \"swallowed\" }, { rid = \"b\" }");
    let failed = test();
    assert_eq!(failed.code, 1);
    let expected = format!(
        "FAIL {}\n  batch 1 a\n  - swallowed\n  + {{\"annotate\":\"seen by judges\"}}\n  batch 1 b\n  - as it came\n  \
         + {{\"annotate\":\"seen by judges\"}}\n1 scenario, 1 failed\n",
        scenario.display()
    );
    assert_eq!(failed.stdout, expected);

    // Without expectations in the scenario, the golden file has them.
    write("{ action = \"echo\" }", "{ rid = \"a\", ids = [1, 2] }");
    assert!(test().stdout.contains("s.expected: --bless writes it"));
    run_afterbay(&["plugin", "test", scenario.to_str().unwrap(), "--bless"]).success();
    assert_eq!(std::fs::read_to_string(sandbox.path("s.expected")).unwrap(), "batch 1 a: replace: 1 2\n");
    test().success();
    write("{ action = \"drop\" }", "{ rid = \"a\", ids = [1, 2] }");
    let failed = test();
    let lines = "\n  - batch 1 a: replace: 1 2\n  + batch 1 a: drop \"dropped by judges\": 1 2 -> no ids\n";
    assert!(failed.code == 1 && failed.stdout.contains(lines), "{failed:?}");

    // An unexpected fault and a missing expected fault are failures.
    let (panics, calm) = (path(guest("panics")), path(guest("nothing")));
    std::fs::write(
        &scenario,
        "plugin = \"x\"\nsettings = { in = \"process\" }\n[[batch]]\nfault = \"trap\"\nrows = [{ rid = \"a\" }]\n",
    )
    .unwrap();
    let with =
        |plugin: &str| run_afterbay(&["plugin", "test", scenario.to_str().unwrap(), "--plugin", plugin]);
    with(&panics).success();
    std::fs::write(&scenario, "plugin = \"x\"\n[[batch]]\nfault = \"trap\"\nrows = [{ rid = \"a\" }]\n")
        .unwrap();
    assert!(with(&calm).stdout.contains("batch 1\n  - trap\n  + no fault\n"));
}

#[test]
fn a_scenario_with_an_error_exits_64_with_file_and_line() {
    let sandbox = Sandbox::new();
    let scenario = sandbox.path("s.toml");
    std::fs::write(&scenario, "plugin = \"p.wasm\"\n[[batch]]\nrow = []\n").unwrap();
    let file = scenario.to_str().unwrap();
    let wrong = run_afterbay(&["plugin", "test", file]);
    assert_eq!(wrong.code, 64);
    assert!(wrong.stderr.starts_with(&format!("afterbay: {file}: TOML parse error at line 3")), "{wrong:?}");
    let none = run_afterbay(&["plugin", "test", &sandbox.text("journal")]);
    assert_eq!((none.code, none.stdout.as_str()), (64, ""));
    std::fs::write(&scenario, "plugin = \"p.wasm\"\n[[batch]]\nrows = []\n").unwrap();
    let absent = run_afterbay(&["plugin", "test", file]);
    assert_eq!(absent.code, 64);
    assert!(absent.stderr.contains("p.wasm: No such file"), "{absent:?}");
}

#[test]
fn a_scenario_gives_attributes_and_pressure_to_a_plugin() {
    let sandbox = Sandbox::new();
    let scenario = sandbox.path("s.toml");
    let text = r#"
plugin = "x"
[[batch]]
attributes = { a = { tenant = "red" } }
signals = { live_requests = 2, sinks = [{ name = "reader", state = "behind", backlog = { rows = 9 } }] }
rows = [{ rid = "a", front_end = "ipc:///w" }]
[[batch]]
attributes = { a = { tenant = "blue" }, later = {} }
signals = { scheduler = { running = 7 } }
rows = [{ rid = "a", finish = "stop" }, { rid = "b" }]
"#;
    std::fs::write(&scenario, text).unwrap();
    let remembers = path(guest("remembers"));
    run_afterbay(&["plugin", "test", scenario.to_str().unwrap(), "--plugin", &remembers, "--bless"])
        .success();
    let golden = std::fs::read_to_string(sandbox.path("s.expected")).unwrap();
    let expected = r#"batch 1 a: annotate "row 1": no ids
batch 1: log: info: live 2, sinks [reader SinkState::Behind 9], running None
batch 1 a: log: info: opened with 0 rows, worker "ipc:///w", attributes {"tenant":"red"}
batch 2 a: annotate "row 2": no ids, last (stop)
batch 2 b: annotate "row 1": no ids
batch 2: log: info: live 0, sinks [], running Some(7)
batch 2 a: log: info: changed to {"tenant":"blue"}
batch 2 b: log: info: opened with 0 rows, worker "", attributes none
"#;
    assert_eq!(golden, expected);
}

#[test]
fn plugin_bench_counts_the_same_fuel_each_time_and_compiles_its_own_code() {
    let sandbox = Sandbox::new();
    let cache = sandbox.path("cache");
    let files = || std::fs::read_dir(cache.join("afterbay/compiled")).map_or(0, Iterator::count);
    for (args, left) in
        [(&["check", "builtin:floor"][..], 1), (&["bench", "builtin:floor", "--rows", "1"], 2)]
    {
        let mut command = afterbay_command(&[&["plugin"], args].concat());
        run_command(command.env("XDG_CACHE_HOME", &cache)).success();
        // `bench` reuses the code of `check` and compiles its own code that counts fuel.
        assert_eq!(files(), left, "{args:?}");
    }

    let component = path(example("stop-on-loop"));
    let bench = ["plugin", "bench", &component, "--rows", "20", "--deadline", "10s", "--json"];
    let fuel = || {
        let [output] = run_afterbay(&bench).json_lines_of(0);
        let sizes = output["sizes"].as_array().unwrap().iter();
        let fuel =
            |size: &Value| ["rows", "fuel_a_row", "floor_fuel_a_row"].map(|key| size[key].as_u64().unwrap());
        sizes.map(fuel).collect::<Vec<_>>()
    };
    let [output] = run_afterbay(&bench).json_lines_of(0);
    assert!(output["longest_call_us"].is_u64() && output["proposed_deadline"].is_string(), "{output}");
    let first = fuel();
    assert_eq!(first.iter().map(|[rows, ..]| *rows).collect::<Vec<_>>(), [1, 16, 20]);
    assert!(first.iter().all(|[_, fuel, floor]| fuel > floor && *floor > 0), "{first:?}");
    assert_eq!(fuel(), first);

    let [_, fuel, _] = first[2];
    run_afterbay(&[&bench[..], &["--max-fuel", &fuel.to_string()]].concat()).success();
    let over = run_afterbay(&[&bench[..7], &["--max-fuel", &(fuel - 1).to_string()]].concat());
    assert_eq!(over.code, 1);
    let expected = format!("a row of 20 costs {fuel} fuel, at most {} are allowed\n", fuel - 1);
    assert!(over.stdout.ends_with(&expected), "{over:?}");
    let [output] = run_afterbay(&[&bench[..], &["--max-ns", "0"]].concat()).json_lines_of(1);
    assert_eq!(output["ok"], Value::Bool(false));

    let faulty =
        run_afterbay(&["plugin", "bench", &path(guest("panics")), "--settings", r#"{"in": "process"}"#]);
    assert_eq!(faulty.code, 1);
    assert!(faulty.stderr.starts_with("afterbay: batches of 1 rows: plugin "), "{faulty:?}");

    let large = run_afterbay(&["plugin", "bench", &component, "--rows", "65536", "--ids", "1024"]);
    let why = "afterbay: --rows and --ids make batches of 67108864 ids, at most 131072 are allowed\n";
    assert_eq!((large.code, large.stderr.as_str()), (64, why));
}
