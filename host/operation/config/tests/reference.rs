//! The reference config is valid, as it is and with every line enabled, and shows the true defaults.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use std::time::Duration;

use afterbay_config::{
    AttributeRule, Builtin, Component, Config, Env, EraseRule, Migration, Name, Names, Plugin, Problems,
    Rids, Signals, Stream,
};

fn reference() -> String {
    afterbay_config::reference(Path::new("/tmp/afterbay-run"), Path::new("/tmp/afterbay-state"))
}

fn parse(text: &str, names: Names) -> Result<Config, Problems> {
    let env = Env { names, builtins: &[Builtin { name: "delta-to-cumulative", defaults: "" }], ..Env::EMPTY };
    Config::parse(text, Path::new("/tmp/reference.toml"), &env)
}

fn defaults() -> Config {
    let stream = Stream::new(
        "decode-0".parse().unwrap(),
        "ipc:///tmp/afterbay-run/decode-0".parse().unwrap(),
        "ipc:///tmp/afterbay-run/detokenizer".parse().unwrap(),
    );
    let mut config = Config::new(stream, "/tmp/afterbay-state/journal");
    config.streams[0].sinks[0].name = "detokenizer".parse().unwrap();
    config
}

/// Enables each optional line. Such a line begins with `#` and no space.
fn enabled(text: &str) -> String {
    let lines = text.lines().map(|line| match line.strip_prefix('#') {
        Some(setting) if !setting.is_empty() && !setting.starts_with(' ') => setting,
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_reference_is_the_defaults() {
    assert_eq!(parse(&reference(), Names::FromConfig).unwrap(), defaults());
}

#[test]
fn the_reference_with_every_line_enabled_shows_the_true_defaults() {
    let config = parse(&enabled(&reference()), Names::FromConfig).unwrap();
    let mut expected = defaults();
    expected.streams[0].route = Some(afterbay_config::Route::Crc32);
    expected.streams[0].sinks[0].credit = Some("/dev/shm/afterbay/detokenizer".into());
    expected.streams[0].sinks[0].tokenizer = Some("/models/qwen3/tokenizer.json".into());
    expected.streams[0].signals = Signals { dp_rank: Some(0), ..Signals::default() };
    let push = "ipc:///tmp/afterbay-run/decode-0.abort".parse().unwrap();
    expected.streams[0].abort = Some(push);
    expected.streams[0].migration = Some(Migration {
        front_end: "127.0.0.1:30000".to_owned(),
        api_key_file: Some("/run/secrets/engine-api-key".into()),
        resample: false,
    });
    let Ok(serde_json::Value::Object(set)) = serde_json::from_str(r#"{"tenant": "batch"}"#) else { panic!() };
    expected.streams[0].attributes = vec![AttributeRule { rids: Rids::Prefix("batch-".to_owned()), set }];
    let name: Name = "cumulative".parse().unwrap();
    let mut plugin = Plugin::new(name, Component::Builtin("delta-to-cumulative".to_owned()));
    plugin.sha256 = Some([
        0x9f, 0x86, 0xd0, 0x81, 0x88, 0x4c, 0x7d, 0x65, 0x9a, 0x2f, 0xea, 0xa0, 0xc5, 0x5a, 0xd0, 0x15, 0xa3,
        0xbf, 0x4f, 0x1b, 0x2b, 0x0b, 0x82, 0x2c, 0xd1, 0x5d, 0x6c, 0x15, 0xb0, 0xf0, 0x0a, 0x08,
    ]);
    expected.streams[0].plugins = vec![plugin];
    let url = "http://127.0.0.1:8080/moderate";
    expected.calls = vec![afterbay_config::Call::new("moderation".parse().unwrap(), url)];
    let attribute = Some(("tenant".to_owned(), "acme".to_owned()));
    expected.journal.erase = vec![EraseRule { attribute, after: Duration::from_secs(12 * 3600) }];
    expected.admin.token_file = Some("/run/secrets/afterbay".into());
    expected.usage = afterbay_config::Usage { dir: "/tmp/afterbay-state/usage".into(), kept_days: None };
    expected.traces = Some(afterbay_config::Traces { endpoint: "http://127.0.0.1:4318".into(), sample: 1.0 });
    expected.replicate = Some(afterbay_config::Replicate {
        nats: vec!["nats://127.0.0.1:4222".to_owned()],
        credentials: Some("/etc/afterbay/nats.creds".into()),
    });
    expected.clients = Some(afterbay_config::Clients {
        listen: "127.0.0.1:9470".parse().unwrap(),
        key_file: "/run/secrets/afterbay-clients".into(),
        keep: afterbay_config::Clients::KEEP,
        connections: afterbay_config::Clients::CONNECTIONS,
    });
    let listen = "ipc:///tmp/afterbay-run/tap".parse().unwrap();
    expected.tap = Some(afterbay_config::Tap { listen, listen_mode: afterbay_config::Tap::LISTEN_MODE });
    expected.archive = Some(afterbay_config::Archive { url: "s3://bucket/prefix".into() });
    assert_eq!(config, expected);
}

#[test]
fn directories_with_special_characters_are_escaped_in_the_reference() {
    let state = Path::new("/tmp/a \"b\" \\ ${HOME}");
    let text = afterbay_config::reference(Path::new("/tmp/afterbay-run"), state);
    assert_eq!(parse(&text, Names::FromConfig).unwrap().journal.dir, state.join("journal"));
}

#[test]
fn inline_defaults_are_those_of_their_single_keys() {
    let text = enabled(&reference());
    for (whole, empty) in [
        ("queue = { frames = 16384, bytes = \"128MiB\" }", "queue = {}"),
        ("limits = { memory = \"64MiB\", deadline = \"2ms\", hold = \"1s\" }", "limits = {}"),
        ("quarantine = { faults = 5, within = \"1m\" }", "quarantine = {}"),
        ("breaker = { failures = 5, within = \"10s\", open = \"5s\" }", "breaker = {}"),
        ("retain = { bytes = \"20GiB\", age = \"24h\" }", "retain = {}"),
    ] {
        assert!(text.contains(whole), "{whole}");
        let emptied = parse(&text.replace(whole, empty), Names::FromConfig).unwrap();
        assert_eq!(emptied, parse(&text, Names::FromConfig).unwrap(), "{empty}");
    }
}

#[test]
fn the_space_distinguishes_prose_from_settings() {
    for line in reference().lines().filter(|line| line.starts_with('#') && !line.starts_with("# ")) {
        assert!(line.contains(" = ") || line.starts_with("#["), "{line}");
    }
}

#[test]
fn connect_may_be_absent_only_with_a_rendezvous() {
    let text = reference().lines().filter(|line| !line.starts_with("connect")).collect::<Vec<_>>().join("\n");
    let with_rendezvous = parse(&text, Names::FromRendezvous).unwrap();
    assert_eq!(with_rendezvous.streams[0].sinks[0].connect, None);
    let problems = parse(&text, Names::FromConfig).unwrap_err();
    let keys: Vec<&str> = problems.iter().map(|problem| problem.key.as_str()).collect();
    assert_eq!(keys, ["stream[0].sink[0].connect"]);
}

#[test]
fn no_typing_error_panics_or_is_reported_without_its_location() {
    let text = enabled(&reference());
    let bytes: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    for (count, &at) in bytes.iter().enumerate().filter(|(_, at)| !in_prose(&text, **at)) {
        let slip = ["", "\"", "[", "}", "=", "\n", "$", "9"][count % 8];
        let slipped = format!("{}{slip}{}", &text[..at], &text[at + 1..]);
        if let Err(problems) = parse(&slipped, Names::FromConfig) {
            assert!(
                problems.iter().all(|problem| problem.line > 0 && problem.column > 0),
                "{problems}\n{slipped}"
            );
            assert!(problems.iter().count() > 0);
        }
    }
}

fn in_prose(text: &str, at: usize) -> bool {
    let line_start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    text[line_start..].starts_with('#')
}
