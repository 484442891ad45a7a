//! Components from a registry. A static file server stands in for the registry, because a pinned component is only read.

use crate::python;
use afterbay_tests::commands::run_afterbay;
use afterbay_tests::components::guest;
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, SynthRequest, batch};
use afterbay_wire::synth::SynthWire::Msgpack;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

struct Registry {
    child: Child,
    host: String,
}

impl Registry {
    fn start(dir: &Path) -> Registry {
        let mut command = Command::new(python::python());
        command.args(["-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory"]).arg(dir);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.split(' ').skip_while(|word| *word != "port").nth(1).unwrap();
        Registry { host: format!("127.0.0.1:{port}"), child }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

fn sha256(bytes: &[u8]) -> String {
    let digits: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

/// Adds a component to a registry's files with a unique manifest and returns the manifest's digest.
fn push(files: &Path, component: &Path) -> String {
    let component = fs::read(component).unwrap();
    let of = sha256(&component);
    let manifest = format!(
        r#"{{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {{"mediaType": "application/vnd.wasm.config.v0+json", "digest": "{of}", "size": 2}},
            "layers": [{{"mediaType": "application/wasm", "digest": "{of}", "size": {}}}],
            "annotations": {{"of": "{}"}}}}"#,
        component.len(),
        files.display(),
    );
    let repository = files.join("v2/acme/guard");
    for (kind, bytes) in [("blobs", &component), ("manifests", &manifest.clone().into_bytes())] {
        fs::create_dir_all(repository.join(kind)).unwrap();
        fs::write(repository.join(kind).join(sha256(bytes)), bytes).unwrap();
    }
    sha256(manifest.as_bytes())
}

#[test]
fn a_plugin_from_a_registry_runs_and_starts_again_without_the_registry() {
    let sandbox = Sandbox::new();
    let digest = push(&sandbox.path("files"), &guest("nothing"));
    let registry = Registry::start(&sandbox.path("files"));
    let component = format!("oci://{}/acme/guard@{digest}", registry.host);
    let config = || sandbox.config().plugin_with("guard", &component, "", "deadline = \"10s\"");
    let mut reader = Reader::bind(&sandbox.reader_side());
    let mut registry = Some(registry);
    for rid in ["a", "b"] {
        let afterbay = Afterbay::run(&sandbox, &config());
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let frame = batch(Msgpack, vec![SynthRequest::new(rid).last(&[1])]);
        sender.send(&frame);
        assert_eq!(reader.frame(), frame);
        assert_eq!(afterbay.plugins()["plugins"][0]["source"], component);
        assert_eq!(afterbay.metrics().plugin("guard", "batch_seconds_count"), 1);
        assert_eq!(afterbay.stop(), 0);
        drop(registry.take());
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
    let digest = push(&sandbox.path("files"), &guest("nothing"));
    let registry = Registry::start(&sandbox.path("files"));
    let manifests = sandbox.path("files").join("v2/acme/guard/manifests");
    let other = format!("sha256:{}", "0".repeat(64));
    fs::copy(manifests.join(&digest), manifests.join(&other)).unwrap();
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
