//! The commands that the author of a plugin works with, on real components in the real runtime.

use afterbay_tests::afterbay::done;
use afterbay_tests::components::{example, guest};
use serde_json::{Value, json};

/// A component as a command line has it.
fn path(component: std::path::PathBuf) -> String {
    component.to_str().unwrap().to_owned()
}

#[test]
fn plugin_check_shows_what_a_component_is_and_asks_for() {
    let component = path(example("stop-on-loop"));
    let shown = done(&["plugin", "check", &component]).good();
    for part in
        ["stop-on-loop 0.1.0\n", "columns    output-ids\n", "writes     delta ids\n", "grants     log\n"]
    {
        assert!(shown.contains(part), "{part:?} is not in\n{shown}");
    }
    let [told] = done(&["plugin", "check", &component, "--json"]).json_lines().try_into().unwrap();
    assert_eq!(
        (&told["ok"], &told["problems"], &told["grants"]),
        (&true.into(), &json!([]), &json!(["log"]))
    );
    assert_eq!(told["bytes"], std::fs::metadata(&component).unwrap().len());
    assert_eq!(told["settings_schema"]["properties"]["repeats"]["default"], 4, "{told}");
    let traps: Vec<&str> = told["traps"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    assert!(traps.iter().any(|name| name.starts_with("wasi:io/streams@")), "{traps:?}");
    assert!(!traps.iter().any(|name| name.starts_with("wasi:cli/environment@")), "it is answered: {traps:?}");

    let [told] =
        done(&["plugin", "check", &path(guest("tokens")), "--settings", r#"{"text": "a"}"#, "--json"])
            .json_lines_of(1);
    assert!(told["grants"].as_array().unwrap().contains(&"tokenizer".into()), "{told}");
    assert_eq!(told["problems"][0].as_str().unwrap().split(": ").last(), Some("the tokenizer is empty"));
}

#[test]
fn plugin_check_exits_1_where_settings_are_refused_and_64_where_they_are_no_json() {
    let component = path(example("stop-on-loop"));
    let refused = done(&["plugin", "check", &component, "--settings", r#"{"repeats": 1}"#]);
    assert_eq!(refused.code, 1);
    assert!(
        refused.stdout.contains("refuses its settings: /repeats: is 1, must be 2 or more"),
        "{refused:?}"
    );
    for (args, why) in [
        (&[component.as_str(), "--settings", "{"][..], "afterbay: --settings: not JSON: "),
        (&[&component, "--settings", "@/nowhere.json"], "afterbay: --settings: /nowhere.json: "),
        (&["/nowhere.wasm"], "afterbay: /nowhere.wasm: No such file"),
        (&["/"], "afterbay: /: no plugin's project: it has none of Cargo.toml"),
        (
            &["builtin:delta"],
            "afterbay: \"builtin:delta\" is not in this binary, which has delta-to-cumulative",
        ),
        (&["builtin:delta-to-cumulative", "--deadline", "1h"], "1h is not from 100µs to 10s"),
        (&["builtin:delta-to-cumulative", "--memory", "1"], "1 is not from 1MiB to 4GiB"),
    ] {
        let wrong = done(&[&["plugin", "check"], args].concat());
        assert_eq!((wrong.code, wrong.stdout.as_str()), (64, ""), "{wrong:?}");
        assert!(wrong.stderr.contains(why), "{why:?} is not in {}", wrong.stderr);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), r#"{"repeats": 3}"#).unwrap();
    let settings = format!("@{}", file.path().display());
    assert!(done(&["plugin", "check", &component, "--settings", &settings]).good().contains("start      ok"));
}

#[test]
fn plugin_check_says_in_words_what_keeps_a_component_of_another_version_out() {
    let other = path(guest("other-world"));
    let refused = done(&["plugin", "check", &other]);
    assert_eq!((refused.code, refused.stdout.as_str()), (1, ""));
    assert_eq!(
        refused.stderr,
        format!(
            "plugin {other:?}: built for another world: exports afterbay:plugin/plugin@0.2.0, this host has 0.1.0\n\
             plugin {other:?}: built for another world: imports afterbay:plugin/signals@0.2.0, which this host does \
             not have\n"
        )
    );
    let [told] = done(&["plugin", "check", &path(guest("connects")), "--json"]).json_lines_of(1);
    assert_eq!(told["ok"], Value::Bool(false));
    assert!(told["problems"].to_string().contains("wasi:sockets/tcp"), "{told}");
}
