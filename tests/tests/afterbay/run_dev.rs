//! `run --dev` with plugin projects, and configurations that name a project.

use std::path::{Path, PathBuf};

use afterbay_tests::commands::{CommandOutput, afterbay_command, run_command};
use afterbay_tests::components::{guest, install};
use afterbay_tests::frames::{SynthRequest, WIRES, batch, rows};
use afterbay_tests::{Afterbay, Config, Reader, Sandbox, Sender};
use serde_json::{Value, json};

/// A project whose source is the path of the component to build, and a script in place of cargo that copies it. A source without a path
/// fails to build. A build waits while the file `wait` exists. During a build the file `saved-meanwhile` becomes the source.
fn project(sandbox: &Sandbox) -> (PathBuf, PathBuf) {
    let (dir, cargo) = (sandbox.path("own"), sandbox.path("cargo"));
    let made = dir.join("target/wasm32-wasip2/release");
    std::fs::create_dir_all(&made).unwrap();
    std::fs::create_dir(dir.join("src")).unwrap();
    std::fs::write(dir.join("Cargo.toml"), "").unwrap();
    let dir = dir.canonicalize().unwrap();
    let manifest = dir.join("Cargo.toml");
    let metadata = json!({
        "packages": [{
            "manifest_path": manifest,
            "targets": [{"name": "own", "kind": ["cdylib"]}],
            "dependencies": [],
        }],
        "target_directory": dir.join("target"),
    });
    let made = dir.join("target/wasm32-wasip2/release/own.wasm");
    let artifact = json!({"reason": "compiler-artifact", "manifest_path": manifest, "filenames": [made]});
    let script = format!(
        "#!/bin/sh\ncd {dir:?} || exit 1\nif [ \"$1\" = metadata ]; then echo '{metadata}'; exit; fi\n\
         while [ -e wait ]; do sleep 0.02; done\n\
         cp \"$(cat src/lib.rs)\" target/new || {{ echo 'error: expected one of `!` or `::`' >&2; exit 101; }}\n\
         mv target/new {made:?}\n[ ! -e saved-meanwhile ] || mv saved-meanwhile src/lib.rs\necho '{artifact}'\n"
    );
    std::fs::write(&cargo, script).unwrap();
    std::fs::set_permissions(&cargo, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    (dir, cargo)
}

/// Starts Afterbay, and lets the first build go on once the stream runs: a faster build would be no reload.
fn run_before_the_first_build(sandbox: &Sandbox, config: &Config, dir: &Path, cargo: &Path) -> Afterbay {
    std::fs::write(dir.join("wait"), "").unwrap();
    let afterbay = Afterbay::run_dev(sandbox, config, cargo);
    afterbay.event("StreamStarted");
    std::fs::remove_file(dir.join("wait")).unwrap();
    afterbay
}

#[test]
fn run_dev_builds_a_saved_project_and_keeps_the_running_version_if_the_build_fails() {
    let sandbox = Sandbox::new();
    let (dir, cargo) = project(&sandbox);
    let components: Vec<String> = (0..3).map(|version| sandbox.text(&format!("v{version}.wasm"))).collect();
    (0..3).zip(&components).for_each(|(version, to)| install(&guest("judges"), version, Path::new(to)));
    let save = |text: &str| std::fs::write(dir.join("src/lib.rs"), text).unwrap();
    save(&components[0]);
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().plugin("own", &dir, "action = \"drop\"");
    let afterbay = run_before_the_first_build(&sandbox, &config, &dir, &cargo);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut request = SynthRequest::new("r");
    let mut pass = || {
        sender.send(&batch(WIRES[0], vec![request.row(&[1])]));
        let [row] = rows(&reader.frame()).try_into().unwrap();
        row.ids
    };
    // The component file is not there before the first build.
    let built = afterbay.event("PluginReloaded");
    assert_eq!(afterbay.event("PluginBuilt")["project"], dir.to_str().unwrap());
    // The first row of a request is always sent.
    assert_eq!(pass(), [0_i64; 0], "the first build has taken over");

    save(&components[1]);
    let first = afterbay.event_where("PluginReloaded", |reloaded| reloaded["digest"] != built["digest"]);

    save("a mistake");
    let failed = afterbay.event("PluginBuildFailed");
    assert!(failed["why"].as_str().unwrap().contains("error: expected one of"), "{failed}");
    sender.send(&batch(WIRES[0], vec![request.last(&[1])]));
    assert_eq!(rows(&reader.frame())[0].ids, [0_i64; 0], "the old version continues");

    save(&components[2]);
    let has_others = |reloaded: &Value| [&built, &first].iter().all(|it| it["digest"] != reloaded["digest"]);
    afterbay.event_where("PluginReloaded", has_others);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn run_dev_carries_traffic_during_the_first_build_with_the_last_component_or_by_on_fault() {
    for (has_last, on_fault) in [(true, "bypass"), (false, "bypass"), (false, "terminate")] {
        let sandbox = Sandbox::new();
        let (dir, cargo) = project(&sandbox);
        let components: Vec<String> =
            (0..2).map(|version| sandbox.text(&format!("v{version}.wasm"))).collect();
        (0..2).zip(&components).for_each(|(version, to)| install(&guest("judges"), version, Path::new(to)));
        if has_last {
            install(&guest("judges"), 0, &dir.join("target/wasm32-wasip2/release/own.wasm"));
        }
        std::fs::write(dir.join("src/lib.rs"), &components[1]).unwrap();
        std::fs::write(dir.join("wait"), "").unwrap();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let config = sandbox.config().plugin("own", &dir, "action = \"drop\"");
        let config = config.plugin_line(&format!("on_fault = {on_fault:?}"));
        let afterbay = Afterbay::run_dev(&sandbox, &config, &cargo);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let mut pass = |rid: &str| {
            sender.send(&batch(WIRES[0], vec![SynthRequest::new(rid).row(&[1])]));
            let [row] = rows(&reader.frame()).try_into().unwrap();
            row
        };
        let before = pass("before");
        match (has_last, on_fault) {
            (true, _) => assert_eq!(before.ids, [0_i64; 0], "the last component judges"),
            (false, "bypass") => assert_eq!(before.ids, [1], "the batch passes unchanged"),
            (false, _) => assert_eq!(before.finish, Some("abort".to_owned()), "the request is aborted"),
        }
        if !has_last {
            assert_eq!(afterbay.event("PluginDown")["why"], "its first build is not done");
        }
        std::fs::remove_file(dir.join("wait")).unwrap();
        afterbay.event("PluginReloaded");
        assert_eq!(pass("after").ids, [0_i64; 0], "the first build judges");
        assert_eq!(afterbay.stop(), 0);
    }
}

#[test]
fn run_dev_builds_an_edit_that_is_saved_during_the_first_build() {
    let sandbox = Sandbox::new();
    let (dir, cargo) = project(&sandbox);
    let components: Vec<String> = (0..2).map(|version| sandbox.text(&format!("v{version}.wasm"))).collect();
    (0..2).zip(&components).for_each(|(version, to)| install(&guest("judges"), version, Path::new(to)));
    std::fs::write(dir.join("src/lib.rs"), &components[0]).unwrap();
    std::fs::write(dir.join("saved-meanwhile"), &components[1]).unwrap();
    let _reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().plugin("own", &dir, "action = \"drop\"");
    let afterbay = run_before_the_first_build(&sandbox, &config, &dir, &cargo);
    let first = afterbay.event("PluginReloaded");
    afterbay.event_where("PluginReloaded", |then| then["digest"] != first["digest"]);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_component_may_be_a_project_and_an_unbuilt_project_is_an_error() {
    let sandbox = Sandbox::new();
    let (dir, cargo) = project(&sandbox);
    let file = sandbox.write(&sandbox.config().plugin("own", &dir, "action = \"drop\""));
    let check = || {
        let CommandOutput { code, stdout, stderr } =
            run_command(afterbay_command(&["check", "--config", &file]).env("CARGO", &cargo));
        (code, stdout + &stderr)
    };
    let (code, output) = check();
    assert_eq!(code, 64, "{output}");
    assert!(output.contains("release/own.wasm: No such file"), "{output}");
    install(&guest("judges"), 0, &dir.join("target/wasm32-wasip2/release/own.wasm"));
    let (code, output) = check();
    assert!(code == 0 && output.contains("plugin own: guests 0.1.0, sha256 "), "{output}");
    std::fs::remove_file(dir.join("Cargo.toml")).unwrap();
    assert!(check().1.contains("no plugin's project: it has none of Cargo.toml"));
}
