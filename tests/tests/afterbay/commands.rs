//! The commands check, sim, sglang and demo, and the help of every command.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use afterbay_tests::commands::{CommandOutput, afterbay_command, run_afterbay, run_command, verify};
use afterbay_tests::{Afterbay, Sandbox};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

#[test]
fn check_reports_every_error_at_once_with_file_line_and_key_and_exits_64() {
    let sandbox = Sandbox::new();
    let file = sandbox.text("bad.toml");
    let text = "\
[[stream]]
name = \"decode 0\"
listen = \"ipc:///dev/null/at/all/decode-0\"
max_messages = 5

[[stream.sink]]
name = \"reader\"
connect = \"tpc://127.0.0.1:5\"
tokenizer = \"/nowhere/at/all\"

[[stream.plugin]]
name = \"p\"
component = \"builtin:delta-to-cumulativ\"
limits = { deadline = \"2 parsecs\" }

[journal]
dir = \"/dev/null/at/all\"
sync = \"sometimes\"
";
    std::fs::write(&file, text).unwrap();
    let refused = run_afterbay(&["check", "--config", &file]);
    assert_eq!((refused.code, refused.stdout.as_str()), (64, ""), "{refused:?}");
    let name = &file;
    let lines: Vec<&str> = refused.stderr.lines().collect();
    let (last, problems) = lines.split_last().unwrap();
    assert_eq!(*last, format!("{name}: {} problems", problems.len()));
    for (line, key) in [
        (2, "stream[0].name"),
        (3, "stream[0].listen"),
        (4, "stream[0].max_messages"),
        (8, "stream[0].sink[0].connect"),
        (9, "stream[0].sink[0].tokenizer"),
        (13, "stream[0].plugin[0].component"),
        (14, "stream[0].plugin[0].limits.deadline"),
        (17, "journal.dir"),
        (18, "journal.sync"),
    ] {
        let begins = format!("{name}:{line}:");
        let found = problems
            .iter()
            .any(|problem| problem.starts_with(&begins) && problem.contains(&format!(" {key}: ")));
        assert!(found, "{begins} {key} is not in\n{}", refused.stderr);
    }
    assert_eq!(problems.len(), 9, "{}", refused.stderr);
    let run = run_afterbay(&["run", "--config", &file]);
    assert_eq!((run.code, run.stderr.lines().count()), (64, 9), "{run:?}");
}

#[test]
fn check_names_a_credentials_file_that_cannot_be_read() {
    let sandbox = Sandbox::new();
    let missing = sandbox.text("nats.creds");
    let nats = "nats = \"nats://127.0.0.1:1\"";
    let config = sandbox.config().replicate("nats://127.0.0.1:1").to_toml();
    let config = config.replace(nats, &format!("{nats}\ncredentials = {missing:?}"));
    let file = sandbox.text("afterbay.toml");
    std::fs::write(&file, config).unwrap();
    let refused = run_afterbay(&["check", "--config", &file]);
    assert!(refused.code != 0 && refused.stderr.contains(&format!("replicate: {missing}: ")), "{refused:?}");
}

#[test]
fn check_of_a_valid_configuration_opens_no_socket_and_writes_no_file() {
    let sandbox = Sandbox::new();
    let config = sandbox.config().plugin_with("c", "builtin:delta-to-cumulative", "", "deadline = \"1s\"");
    let file = sandbox.write(&config);
    let checked = run_afterbay(&["check", "--config", &file]).success();
    assert!(checked.contains("delta-to-cumulative 0.1.0, sha256 "), "{checked}");
    assert!(checked.ends_with("ok\n"), "{checked}");
    let files: Vec<_> = std::fs::read_dir(sandbox.path("")).unwrap().map(|it| it.unwrap().path()).collect();
    assert_eq!(files, [sandbox.path("afterbay.toml")]);
}

#[test]
fn check_needs_no_rendezvous_and_says_that_run_does() {
    let sandbox = Sandbox::new();
    let connect = format!("connect = {:?}\n", sandbox.reader_side());
    let without = sandbox.config().to_toml().replace(&connect, "");
    std::fs::write(sandbox.path("afterbay.toml"), without).unwrap();
    let checked = run_afterbay(&["check", "--config", &sandbox.text("afterbay.toml")]).success();
    assert!(
        checked.contains("sink reader: has no connect, so `afterbay run` needs --rendezvous"),
        "{checked}"
    );
}

#[test]
fn a_wrong_setting_of_a_plugin_is_named_with_its_place_beside_every_other_problem() {
    let sandbox = Sandbox::new();
    let budget = sandbox.config().stream("max_peers = 0").plugin_with(
        "limits",
        "builtin:budget",
        "request_tokens = -1",
        "",
    );
    let file = sandbox.write(&budget);
    for command in ["check", "run"] {
        let refused = run_afterbay(&[command, "--config", &file]);
        let of_file: Vec<&str> = refused.stderr.lines().filter(|line| line.starts_with(&file)).collect();
        assert!(refused.code == 64 && of_file[0].contains(" stream[0].max_peers: "), "{refused:?}");
        let settings = " stream[0].plugin[0].settings: plugin \"limits\": ";
        assert!(of_file[1].contains(settings) && of_file[1].contains("request_tokens"), "{refused:?}");
    }
}

#[test]
fn check_warns_of_a_collectors_address_with_the_path_that_is_added() {
    let sandbox = Sandbox::new();
    let mut config = sandbox.config().to_toml();
    config += "\n[traces]\nendpoint = \"http://127.0.0.1:4318/v1/traces/\"\n";
    std::fs::write(sandbox.path("afterbay.toml"), config).unwrap();
    let checked = run_afterbay(&["check", "--config", &sandbox.text("afterbay.toml")]);
    let warned = checked.stderr.contains("spans go to http://127.0.0.1:4318/v1/traces/v1/traces");
    assert!(checked.code == 0 && warned, "{checked:?}");
}

#[test]
fn check_leaves_compiled_plugins_in_the_cache() {
    let sandbox = Sandbox::new();
    let cache = sandbox.path("cache/afterbay/compiled");
    let config = sandbox.config().plugin_with("c", "builtin:floor", "", "deadline = \"1s\"");
    let file = sandbox.write(&config);
    let compiled = || {
        let mut check = afterbay_command(&["check", "--config", &file]);
        run_command(check.env("XDG_CACHE_HOME", sandbox.path("cache"))).success();
        let [entry] = <[_; 1]>::try_from(std::fs::read_dir(&cache).unwrap().collect::<Vec<_>>()).unwrap();
        entry.unwrap().metadata().unwrap().ino()
    };
    assert_eq!(compiled(), compiled(), "the second check compiled the plugin again");
}

#[test]
fn check_and_run_refuse_a_tokenizer_that_cannot_be_read() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("tokenizer.json"), "{}").unwrap();
    for (path, why) in [
        ("absent", "stream[0].sink[0].tokenizer: "),
        ("tokenizer.json", "stream test: sink reader: tokenizer: "),
    ] {
        let config = sandbox.config().sink(&format!("tokenizer = {:?}", sandbox.text(path)));
        let file = sandbox.write(&config);
        for command in ["check", "run"] {
            let refused = run_afterbay(&[command, "--config", &file]);
            assert_eq!(refused.code, 64, "{refused:?}");
            assert!(refused.stderr.contains(why) && refused.stderr.contains(&sandbox.text(path)));
        }
    }
}

#[test]
fn an_error_is_printed_once() {
    let refused = run_afterbay(&["journal", "ls", "--from", "/nowhere/at/all"]);
    let expected = "afterbay: journal /nowhere/at/all: list: No such file or directory (os error 2)\n";
    assert_eq!((refused.code, refused.stderr.as_str()), (1, expected));
}

#[test]
fn a_command_with_a_closed_output_exits_141_and_prints_no_error() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.journal()).unwrap();
    for file in ["LOCK", "INSTANCE"] {
        std::fs::write(sandbox.journal().join(file), "").unwrap();
    }
    for args in [&["check", "--reference"][..], &["journal", "ls", "--from", &sandbox.text("journal")]] {
        // Closed before the start, because the command may end at once.
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        let ended = afterbay_command(args).stdout(write).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(ended.status.code(), Some(141), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    }
    let project = sandbox.text("project");
    run_afterbay(&["plugin", "new", "a", "--lang", "c", "--dir", &project]).success();
    let (read, write) = std::io::pipe().unwrap();
    drop(read);
    // A build prints its progress to standard error.
    let built = afterbay_command(&["plugin", "build", &project])
        .stdout(Stdio::null())
        .stderr(write)
        .status()
        .unwrap();
    assert_eq!(built.code(), Some(141));
}

#[test]
fn the_reference_configuration_is_complete() {
    let reference = run_afterbay(&["check", "--reference"]).success();
    for key in ["listen", "connect", "credit", "component", "on_error", "retain", "sync"] {
        assert!(reference.contains(key), "{key}");
    }
}

#[test]
fn a_wrong_command_line_exits_64_and_names_the_help() {
    for args in [
        &["rnu"][..],
        &["run"],
        &["journal", "show"],
        &["run", "--config"],
        &["demo", "--wire", "json"],
        &["abort", "", "--admin", "127.0.0.1:1"],
        &["abort", "a", "--admin", "127.0.0.1"],
        &["plugins", "--admin", "nowhere"],
        &["reload", "--admin", ":9464"],
        &["reload", "--admin", "127.0.0.1:0"],
        &["sim", "scheduler", "--connect", "nowhere"],
        &["sim", "reader", "--bind", "tcp://127.0.0.1"],
    ] {
        let refused = run_afterbay(args);
        assert_eq!(refused.code, 64, "{args:?}: {refused:?}");
        assert!(refused.stderr.contains("--help"), "{args:?}: {}", refused.stderr);
    }
}

/// The output of `--help` for every command, by the words of the command.
fn help() -> BTreeMap<Vec<String>, String> {
    fn visit(command: Vec<String>, found: &mut BTreeMap<Vec<String>, String>) {
        let help =
            run_afterbay(&command.iter().map(String::as_str).chain(["--help"]).collect::<Vec<_>>()).success();
        let commands = help.split_once("\nCommands:\n").map_or("", |(_, rest)| rest);
        for line in commands.lines().take_while(|line| line.starts_with("  ")) {
            // More indented lines continue a description.
            let Some(name) = line.strip_prefix("  ").filter(|line| !line.starts_with(' ')) else { continue };
            let name = name.split(' ').next().unwrap();
            if name != "help" {
                visit([&command[..], &[name.to_owned()]].concat(), found);
            }
        }
        found.insert(command, help);
    }
    let mut found = BTreeMap::new();
    visit(Vec::new(), &mut found);
    found
}

#[test]
fn every_command_has_help_with_an_example() {
    let help = help();
    assert!(help.len() >= 15, "{:?}", help.keys());
    for (command, help) in help {
        let examples = help.lines().filter(|line| line.trim_start().starts_with("afterbay "));
        let words = command.join(" ");
        let own = examples.filter(|example| example.contains(&format!("afterbay {words}")));
        assert!(
            command.is_empty() || own.count() > 0,
            "afterbay {words} --help shows no example of it:\n{help}"
        );
    }
}

#[test]
fn both_commands_of_the_simulator_work_and_find_lost_tokens() {
    let sandbox = Sandbox::new();
    let running = Afterbay::run(&sandbox, &sandbox.config().credit(&sandbox));
    let (scheduler_side, reader_side) = (sandbox.scheduler_side(), sandbox.reader_side());
    let reader = afterbay_command(&["sim", "reader", "--json", "--requests", "30", "--bind", &reader_side])
        .args(["--cost-per-chunk", "20us", "--credit", &sandbox.text("credit")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let load = ["--requests", "30", "--tokens", "10-40", "--steps-per-second", "0", "--health-every", "5"];
    let how = ["--wire", "msgpack", "--endings", "length=2,stop-token=1,abort=1"];
    let sent = run_afterbay(
        &[&["sim", "scheduler", "--json", "--connect", &scheduler_side], &load[..], &how].concat(),
    );
    let sent: Value = serde_json::from_str(&sent.success()).unwrap();
    let read = reader.wait_with_output().unwrap();
    let read = CommandOutput {
        code: read.status.code().unwrap(),
        stdout: String::from_utf8(read.stdout).unwrap(),
        stderr: String::from_utf8(read.stderr).unwrap(),
    };
    let read: Value = serde_json::from_str(&read.success()).unwrap();
    for (name, expected) in [("good", Value::from(true)), ("requests", 30.into())] {
        assert_eq!((&sent[name], &read[name]), (&expected, &expected), "{name}: {sent} {read}");
    }
    for name in ["frames", "tokens", "rows", "frames_digest", "requests_digest", "health_checks"] {
        assert_eq!(sent[name], read[name], "{name}");
    }
    assert_eq!(running.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);

    // A reader that receives only half of the frames reports the loss.
    let half = Sandbox::new();
    let mut reader =
        afterbay_command(&["sim", "reader", "--json", "--idle", "300ms", "--bind", &half.reader_side()])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
    let frames = afterbay_tests::load(3, 10, afterbay_wire::synth::SynthWire::Pickle);
    let mut sender = afterbay_tests::Sender::connect(&half.reader_side());
    frames.iter().skip(1).step_by(2).for_each(|frame| sender.send(&frame.bytes));
    let code = reader.wait().unwrap().code();
    assert_eq!(code, Some(1));
    let read: Value = serde_json::from_reader(reader.stdout.take().unwrap()).unwrap();
    assert_eq!((&read["good"], &read["faults"]["lost_tokens"]), (&false.into(), &15.into()), "{read}");
}

/// Runs a command with a launcher, and checks that the launcher's process becomes the command.
#[track_caller]
fn launch(launcher: &[&str], script: &str) {
    let sandbox = Sandbox::new();
    let state = sandbox.path("no/such/state");
    let socket = "$XDG_STATE_HOME/afterbay/journal/ADMIN.sock";
    let script =
        format!("{script} && test -n \"$AFTERBAY_CREDIT\" && test -S \"{socket}\" && echo $$ && exit 7");
    let arguments = [launcher, &["--admin", "none", "--", "sh", "-c", &script]].concat();
    let mut launcher = afterbay_command(&arguments);
    launcher.env("XDG_STATE_HOME", &state).env("VLLM_PLUGINS", "").env_remove("VLLM_USE_RUST_FRONTEND");
    let child = launcher.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(7), "{ended:?}");
    assert_eq!(String::from_utf8_lossy(&ended.stdout).trim(), pid.to_string(), "{ended:?}");
    assert!(state.join("afterbay/journal").is_dir());
}

#[test]
fn the_launcher_becomes_the_command_and_creates_the_journals_directory() {
    launch(&["sglang"], "test -n \"$AFTERBAY_INGRESS\" && test \"$AFTERBAY_ENGINE\" = sglang");
}

#[test]
fn the_launcher_of_smg_has_one_leg_and_tells_the_connector_its_engine() {
    launch(
        &["smg"],
        "test -n \"$AFTERBAY_INGRESS\" && test -z \"$AFTERBAY_TEXT_INGRESS\" && test \"$AFTERBAY_ENGINE\" = smg",
    );
}

#[test]
fn the_launcher_makes_a_token_once_and_says_where_the_dashboard_is() {
    let sandbox = Sandbox::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let journal = sandbox.text("journal");
    // A change over the Unix socket needs the token, which the command finds beside the socket.
    let socket = format!("unix:{journal}/ADMIN.sock");
    let abort = afterbay_command(&[]).get_program().to_owned();
    let abort = ["--", abort.to_str().unwrap(), "abort", "nobody", "--admin", &socket];
    let token = sandbox.path("journal/ADMIN.token");
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let launcher = ["vllm", "--admin", &port.to_string(), "--journal", &journal];
        let launched = run_afterbay(&[&launcher[..], &abort].concat());
        let said = format!("dashboard: http://{port}/, its token is in {}\n", token.display());
        let is_asked = launched.stderr.contains("\"nobody\" is not live");
        assert!(launched.code == 1 && is_asked && launched.stderr.contains(&said), "{launched:?}");
        tokens.push(std::fs::read_to_string(&token).unwrap());
    }
    assert!(tokens[0].trim().len() == 32 && tokens[0] == tokens[1], "{tokens:?}");
    assert_eq!(std::fs::metadata(&token).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn the_errors_of_a_launcher_name_its_options() {
    let sandbox = Sandbox::new();
    let (journal, no_component) = (sandbox.text("journal"), sandbox.text("notes.txt"));
    std::fs::write(&no_component, "no component").unwrap();
    for (options, error) in [
        (
            &["--admin", "192.0.2.1:9464"][..],
            "--admin 192.0.2.1:9464: \"192.0.2.1:9464\" can be reached from other hosts",
        ),
        (&["--plugin", "builtin:floor", "--plugin", "builtin:stop-lop"], "--plugin builtin:stop-lop: "),
        (
            &["--plugin", &no_component],
            &format!("--plugin {no_component}: plugin \"plugin-1\": not a webassembly"),
        ),
    ] {
        let run = [&["vllm", "--journal", &journal], options, &["--", "true"]].concat();
        let refused = run_afterbay(&run);
        assert!(refused.code == 64 && refused.stderr.starts_with(error), "{refused:?}");
    }
}

#[test]
fn the_launcher_of_vllm_names_a_stream_for_each_api_server_and_adds_the_connector_to_the_filter() {
    let has = |name: &str, dots: &str| format!("expr \"${name}\" : '{dots}' >/dev/null");
    let each = |name: &str| has(name, "ipc://[^,]*-0,ipc://[^,]*-1$");
    let script = [
        each("AFTERBAY_INGRESS"),
        each("AFTERBAY_ABORT"),
        has("AFTERBAY_RENDEZVOUS", ".*/rendezvous-{client}.json$"),
        has("VLLM_PLUGINS", "afterbay$"),
    ];
    launch(&["vllm", "--api-servers", "2"], &script.join(" && "));
}

#[test]
fn the_launcher_gives_sglangs_rust_server_one_leg_and_refuses_plugins_that_need_a_detokenizer() {
    let sandbox = Sandbox::new();
    let launch = |options: &[&str], script: &str| {
        let journal = sandbox.text("journal");
        let arguments =
            [&["sglang", "--admin", "none", "--journal", &journal], options, &["--", "sh", "-c", script]];
        let mut launcher = afterbay_command(&arguments.concat());
        run_command(launcher.env("SGLANG_RUST_SERVER", "1"))
    };
    for plugin in ["builtin:skip-text", "builtin:delta-to-cumulative"] {
        let refused = launch(&["--plugin", plugin], "echo started");
        assert_eq!((refused.code, refused.stdout.as_str()), (1, ""), "{refused:?}");
        assert!(
            refused.stderr.contains(plugin) && refused.stderr.contains("SGLANG_RUST_SERVER"),
            "{refused:?}"
        );
    }
    let script = "test -n \"$AFTERBAY_RENDEZVOUS\" && test -z \"$AFTERBAY_TEXT_INGRESS\" && exit 7";
    let launched = launch(&[], script);
    assert_eq!(launched.code, 7, "{launched:?}");
}

#[test]
fn the_demo_loses_tokens_only_for_a_direct_reader_of_last_chunks_and_leaves_no_file() {
    let sandbox = Sandbox::new();
    let tmp = sandbox.path("t");
    std::fs::create_dir(&tmp).unwrap();
    let mut demo =
        afterbay_command(&["demo", "--seconds", "1", "--requests", "80", "--wire", "pickle", "--json"]);
    let result = run_command(demo.env("TMPDIR", &tmp)).success();
    let result: Value = serde_json::from_str(&result).unwrap();
    let left: Vec<_> = std::fs::read_dir(&tmp).unwrap().collect();
    assert!(left.is_empty(), "the demo left {left:?}");
    assert_eq!((&result["good"], &result["drained"]), (&true.into(), &true.into()), "{result}");
    for side in ["direct", "afterbay"] {
        let side = &result["every_chunk"][side];
        assert_eq!(side["out"]["faults"]["lost_tokens"], 0, "{result}");
        assert_eq!((&side["in"]["requests"], &side["out"]["requests"]), (&80.into(), &80.into()));
    }
    assert_eq!(result["every_chunk"]["kept"]["problems"], serde_json::json!([]));
    let lost = |side: &str| result["last_chunk"][side]["out"]["faults"]["lost_tokens"].as_u64().unwrap();
    assert!(lost("direct") > 0, "{result}");
    assert_eq!(lost("afterbay"), 0, "{result}");
    let whole = &result["last_chunk"]["afterbay"]["comparison"];
    assert_eq!(whole["whole"], whole["requests"], "{result}");
}

#[test]
fn ctrl_c_ends_the_demo_without_a_result_and_without_a_file() {
    let sandbox = Sandbox::new();
    let tmp = sandbox.path("t");
    std::fs::create_dir(&tmp).unwrap();
    let mut demo = afterbay_command(&["demo", "--seconds", "3600"]);
    // The demo ignores the user's configuration.
    demo.env("TMPDIR", &tmp).env("AFTERBAY_CONFIG", "/nowhere.toml");
    let mut demo = demo.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufReader::new(demo.stdout.take().unwrap()).lines();
    // The load runs.
    assert!(lines.any(|line| line.unwrap().contains("through Afterbay:")));
    kill_process(Pid::from_raw(demo.id() as i32).unwrap(), Signal::INT).unwrap();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(!rest.iter().any(|line| line.contains("first token")), "{rest:?}");
    let ended = demo.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "afterbay: stopped by a signal\n");
    let left: Vec<_> = std::fs::read_dir(&tmp).unwrap().collect();
    assert!(left.is_empty(), "the demo left {left:?}");
}

#[test]
fn the_demo_shows_its_journal_and_keeps_the_files_in_the_named_directory() {
    let sandbox = Sandbox::new();
    let kept = sandbox.text("kept");
    let mut demo = afterbay_command(&["demo", "--seconds", "1", "--requests", "20", "--keep", &kept]);
    let demo = run_command(demo.env("AFTERBAY_CONFIG", "/nowhere.toml")).success();
    for words in [
        "\tdirect\tthrough Afterbay\tratio",
        "\tin\tkept\tout",
        "journal verify",
        "clean",
        "afterbay journal show",
        "OUTCOME",
    ] {
        assert!(demo.contains(words), "{words} is not in\n{demo}");
    }
    let verified = run_afterbay(&["journal", "verify", "--from", &sandbox.text("kept/journal")]);
    assert!(verified.success().contains("clean"));
    assert!(sandbox.path("kept/afterbay.toml").exists() && sandbox.path("kept/afterbay.log").exists());
}
