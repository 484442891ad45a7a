//! Components from a registry, and pushed to a registry in this process.

use crate::oci_registry::{Registry, sha256};
use afterbay_tests::commands::{CommandOutput, afterbay_command, run_afterbay, run_command};
use afterbay_tests::components::guest;
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, SynthRequest, batch};
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::path::Path;

/// Pushes a component with this Docker configuration.
fn push(sandbox: &Sandbox, component: &Path, target: &str, options: &[&str]) -> CommandOutput {
    let args = [&["plugin", "push", component.to_str().unwrap(), target], options].concat();
    run_command(afterbay_command(&args).env("DOCKER_CONFIG", sandbox.path("docker")))
}

/// Writes a Docker configuration with this password of the user `acme`.
fn log_in(sandbox: &Sandbox, registry: &Registry, password: &str) {
    fs::create_dir_all(sandbox.path("docker")).unwrap();
    let login = serde_json::json!({"username": "acme", "password": password});
    let config = serde_json::json!({"auths": {&registry.host: login}}).to_string();
    fs::write(sandbox.path("docker/config.json"), config).unwrap();
}

#[test]
fn a_plugin_from_a_registry_runs_and_starts_again_without_the_registry() {
    let sandbox = Sandbox::new();
    let registry = Registry::start();
    push(&sandbox, &guest("nothing"), &format!("{}/acme/guard:1", registry.host), &[]).success();
    // A manifest of this test alone, because the tests share the cache.
    let mut manifest: Value = serde_json::from_slice(&registry.file("manifests/1").unwrap()).unwrap();
    manifest["annotations"]["of"] = sandbox.text("").into();
    let manifest = manifest.to_string().into_bytes();
    let component = registry.has("manifests", &sha256(&manifest), &manifest);
    let config = || sandbox.config().plugin_with("guard", &component, "", "deadline = \"10s\"");
    let mut reader = Reader::bind(&sandbox.reader_side());
    for rid in ["a", "b"] {
        let asked = registry.asked().len();
        let afterbay = Afterbay::run(&sandbox, &config());
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let frame = batch(Msgpack, vec![SynthRequest::new(rid).last(&[1])]);
        sender.send(&frame);
        assert_eq!(reader.frame(), frame);
        assert_eq!(afterbay.plugins()["plugins"][0]["source"], component);
        assert_eq!(afterbay.metrics().plugin("guard", "batch_seconds_count"), 1);
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(registry.asked().len() > asked, rid == "a", "{:?}", registry.asked());
    }
}

#[test]
fn a_stop_works_while_a_reload_waits_for_a_silent_registry() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let component = format!("oci://{}/acme/guard@sha256:{}", silent.local_addr().unwrap(), "0".repeat(64));
    sandbox.write(&sandbox.config().plugin_with("guard", &component, "", "deadline = \"10s\""));
    let asked = silent.accept().unwrap();
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let frame = batch(Msgpack, vec![SynthRequest::new("a").last(&[1])]);
    sender.send(&frame);
    assert_eq!(reader.frame(), frame);
    assert_eq!(afterbay.stop(), 0);
    drop(asked);
}

#[test]
fn a_component_with_another_digest_or_without_a_pin_is_refused() {
    let sandbox = Sandbox::new();
    let registry = Registry::start();
    let manifest = br#"{"schemaVersion": 2}"#;
    let digest = sha256(manifest);
    let other = format!("sha256:{}", "0".repeat(64));
    registry.has("manifests", &other, manifest);
    let check = |component: &str| {
        let config = sandbox.config().plugin_with("guard", component, "", "deadline = \"10s\"");
        let checked = run_afterbay(&["check", "--config", &sandbox.write(&config)]);
        assert_eq!(checked.code, 64, "{checked:?}");
        checked.stderr
    };
    let host = &registry.host;
    let refused = check(&format!("oci://{host}/acme/guard@{other}"));
    assert!(refused.contains(&format!("has the digest {digest}, the pinned one is {other}")), "{refused}");
    let refused = check(&format!("oci://{host}/acme/guard:latest"));
    assert!(refused.contains("is not pinned"), "{refused}");
    let refused = check(&format!("oci://{host}/acme/nothing@{digest}x"));
    assert!(refused.contains("afterbay.toml:"), "{refused}");
}

#[test]
fn a_component_is_pushed_with_dockers_credentials_and_the_printed_lines_pin_it() {
    let sandbox = Sandbox::new();
    let registry = Registry::with_a_login();
    let target = format!("{}/acme/guard:1", registry.host);
    log_in(&sandbox, &registry, "hunter2");
    let pushed = push(&sandbox, &guest("nothing"), &target, &[]);
    let lines: toml::Table = pushed.stdout.parse().unwrap();
    let bytes = fs::read(guest("nothing")).unwrap();
    assert_eq!(lines["allow"].as_array().unwrap()[0].as_str().unwrap(), sha256(&bytes));
    let component = lines["component"].as_str().unwrap();
    assert!(component.starts_with(&format!("oci://{target}@sha256:")), "{component}");
    let manifest: Value = serde_json::from_slice(&registry.file("manifests/1").unwrap()).unwrap();
    assert_eq!(manifest["layers"][0]["digest"], sha256(&bytes));
    let [again] = push(&sandbox, &guest("nothing"), &target, &["--json"]).json_lines_of(0);
    assert_eq!((&again["sent"], &again["tag_named"]), (&Value::Bool(false), &again["manifest_digest"]));
    let moved = push(&sandbox, &guest("holds"), &target, &[]);
    let earlier = again["manifest_digest"].as_str().unwrap();
    assert!(moved.stderr.contains(&format!("the tag 1 moved: it named {earlier}")), "{moved:?}");
}

#[test]
fn a_refused_login_is_reported_in_the_registrys_words_without_the_password() {
    let sandbox = Sandbox::new();
    let registry = Registry::with_a_login();
    log_in(&sandbox, &registry, "hunter3");
    let refused = push(&sandbox, &guest("nothing"), &format!("{}/acme/guard:1", registry.host), &[]);
    assert_eq!((refused.code, &*refused.stdout), (1, ""));
    assert!(refused.stderr.contains("401 Unauthorized: wrong login"), "{refused:?}");
    let header = "YWNtZTpodW50ZXIz";
    assert!(!refused.stderr.contains("hunter3") && !refused.stderr.contains(header), "{refused:?}");
}

#[test]
fn only_a_plugin_of_this_host_is_pushed() {
    let sandbox = Sandbox::new();
    let registry = Registry::start();
    let target = format!("{}/acme/guard:1", registry.host);
    fs::write(sandbox.path("core.wasm"), b"\0asm\x01\0\0\0").unwrap();
    let refused = push(&sandbox, &sandbox.path("core.wasm"), &target, &[]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("it is a core module"), "{refused:?}");
    for wrong in ["acme/guard:1", "localhost:5000/guard", "ghcr.io/acme/guard:1@sha256:12"] {
        let refused = push(&sandbox, &guest("nothing"), wrong, &[]);
        assert_eq!(refused.code, 64, "{refused:?}");
    }
    assert!(registry.asked().is_empty(), "{:?}", registry.asked());
}
