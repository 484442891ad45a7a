//! Components from a registry in this process.

use crate::oci_registry::{Registry, sha256};
use afterbay_tests::commands::{afterbay_command, run_afterbay, run_command};
use afterbay_tests::components::guest;
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, SynthRequest, batch};
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::json;
use std::fs;
use std::net::TcpListener;

#[test]
fn a_plugin_from_a_registry_runs_and_starts_again_without_the_registry() {
    let sandbox = Sandbox::new();
    let registry = Registry::start();
    let bytes = fs::read(guest("nothing")).unwrap();
    let layer = json!({"mediaType": "application/wasm", "digest": sha256(&bytes), "size": bytes.len()});
    let manifest = json!({
        "schemaVersion": 2,
        "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": sha256(b"{}"), "size": 2},
        "layers": [layer],
        // A manifest of this test alone, because the tests share the cache.
        "annotations": {"of": sandbox.text("")},
    });
    let manifest = manifest.to_string().into_bytes();
    registry.has("blobs", &sha256(&bytes), &bytes);
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
fn a_refused_login_is_reported_in_the_registrys_words_without_the_password() {
    let sandbox = Sandbox::new();
    let registry = Registry::with_a_login();
    fs::create_dir_all(sandbox.path("docker")).unwrap();
    let login = json!({"username": "acme", "password": "hunter3"});
    let config = json!({"auths": {&registry.host: login}}).to_string();
    fs::write(sandbox.path("docker/config.json"), config).unwrap();
    let component = registry.has("manifests", &sha256(b"{}"), b"{}");
    let check = ["plugin", "check", &component];
    let refused = run_command(afterbay_command(&check).env("DOCKER_CONFIG", sandbox.path("docker")));
    assert_eq!((refused.code, &*refused.stdout), (64, ""));
    assert!(refused.stderr.contains("401 Unauthorized: wrong login"), "{refused:?}");
    let header = "YWNtZTpodW50ZXIz";
    assert!(!refused.stderr.contains("hunter3") && !refused.stderr.contains(header), "{refused:?}");
}
