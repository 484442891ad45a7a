//! The steps of `plugin run --step`, the lines of a fault, and `plugin test --watch`.

use std::io::{BufRead, BufReader};

use afterbay_tests::commands::{afterbay_command, json_lines, run_afterbay};
use afterbay_tests::components::guest;
use afterbay_tests::repository;
use serde_json::{Value, json};

#[test]
fn plugin_run_shows_each_row_step_by_step() {
    let scenario = repository().join("plugins/match-text/scenarios/finish.toml");
    let run = ["plugin", "run", "--from", scenario.to_str().unwrap(), "--step"];
    let shown = run_afterbay(&run).success();
    for block in [
        "batch 1 row 1 of 2  text\n  arrived  80 81  \"no\"\n  saw      output-ids, finished running, texts, waiting 0\n  \
         said     nothing\n  left     as it came\n\n",
        "batch 2 row 2 of 2  word\n  arrived  67 70  \"ad\"\n  saw      output-ids, finished running, texts, waiting 1\n  \
         said     hold 60000 ms\n  left     nothing yet: it waits behind 1 row of its request\n\n",
        "  said     release-as: 223  \" \"\n  left     223  \" \", together with the rows of batch 1, batch 2\n\n",
        "batch 3  beside the rows\n  metric   matches{pattern=\"words\"} +1 = 1\n\n",
        "  said     finish \"match-text: words\": no ids  \"\"\n  left     no ids  \"\", last (stop)\n\n",
    ] {
        assert!(shown.contains(block), "{block}\nis not in\n{shown}");
    }

    let lines = run_afterbay(&[&run[..], &["--json"]].concat()).json_lines();
    let row = |from: &str, rid: &str| {
        lines.iter().find(|line| line["from"] == from && line["rid"] == rid).unwrap().clone()
    };
    assert_eq!(
        row("batch 3", "word"),
        json!({
            "step": "row", "from": "batch 3", "row": 1, "rid": "word",
            "arrived": {"ids": [223, 80], "text": null, "decoded": " n", "finish": "running"},
            "saw": {
                "request": 2, "attributes": null,
                "columns": {"output-ids": [223, 80], "finished": "running", "texts": null, "waiting": 2},
            },
            "said": {"release-as": [223], "decoded": " "},
            "log": [], "outcome": "released", "joined": ["batch 1", "batch 2"],
            "left": {"ids": [223], "text": null, "decoded": " ", "finish": "running"},
        })
    );
    assert_eq!(row("batch 2", "word")["left"], Value::Null);
    let effects: Vec<&Value> = lines.iter().filter(|line| line["step"] == "effects").collect();
    let metric = json!({"name": "matches", "labels": {"pattern": "words"}, "kind": "counter", "change": 1.0, "value": 1.0});
    assert_eq!((effects.len(), &effects[0]["metrics"]), (1, &json!([metric])));
    assert_eq!(lines.last().unwrap()["summary"]["rows"], 7);

    let without = run_afterbay(&["plugin", "run", "--from", "/nowhere", "--step"]);
    assert_eq!(without.code, 64, "{without:?}");
    assert!(without.stderr.contains("PLUGIN is missing: only a scenario"), "{without:?}");
}

#[test]
fn plugin_run_shows_the_lines_of_a_fault_and_its_stack() {
    let component = guest("crashes");
    let dir = tempfile::tempdir().unwrap();
    let scenario = dir.path().join("crash.toml");
    let text = format!(
        "plugin = {component:?}\nsettings = {{ by = \"index\" }}\n[[batch]]\nrows = [{{ rid = \"a\", ids = [1] }}]\n"
    );
    std::fs::write(&scenario, text).unwrap();
    let run = ["plugin", "run", "--from", scenario.to_str().unwrap(), "--step", "--json"];
    let ended = run_afterbay(&run);
    assert_eq!(ended.code, 1, "{ended:?}");
    let lines = json_lines(&ended.stdout);
    let fault = &lines.iter().find(|line| line["step"] == "effects").unwrap()["faults"][0];
    assert_eq!(fault["stack"][0]["file"], "examples/crashes.rs");
    assert_eq!(fault["stack"][0]["function"], "crashes::crash");
    assert!(
        fault["message"].as_str().unwrap().contains(" in crashes::crash: panicked: index out of bounds"),
        "{fault}"
    );
}

#[test]
fn plugin_test_tests_again_when_a_scenario_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = dir.path().join("drop.toml");
    let write = |expected: &str| {
        let text = format!(
            "plugin = {:?}\nsettings = {{ action = \"drop\" }}\n[[batch]]\nrows = [{{ rid = \"a\", ids = [1], expect = {{ drop = {expected:?} }} }}]\n",
            guest("judges")
        );
        std::fs::write(&scenario, text).unwrap();
    };
    write("another reason");
    let mut command =
        afterbay_command(&["plugin", "test", "--watch", "--json", dir.path().to_str().unwrap()]);
    let mut child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(next()["ok"], false);
    assert_eq!(next(), json!({"run": 1, "scenarios": 1, "failed": 1}));
    write("dropped by judges");
    assert_eq!(next()["ok"], true);
    assert_eq!(next(), json!({"run": 2, "scenarios": 1, "failed": 0}));
    child.kill().unwrap();
    child.wait().unwrap();
}
