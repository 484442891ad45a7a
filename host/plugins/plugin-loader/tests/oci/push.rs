//! Components pushed to a registry on this machine.

use std::io::Read;
use std::net::TcpListener;
use std::sync::Mutex;
use std::time::Duration;

use afterbay_plugin_loader::oci::{Artifact, Pushed, TagReference, TransferError, fetch, push, push_within};

use crate::registry::{Answer, Registry, sha256};

const MAX: u64 = 1 << 20;

fn artifact(component: &[u8]) -> Artifact {
    Artifact {
        component: component.to_vec().into(),
        name: "guard".to_owned(),
        version: "1.2.3".to_owned(),
        imports: vec!["afterbay:plugin/log@0.2.0".to_owned()],
        exports: vec!["afterbay:plugin/plugin@0.2.0".to_owned()],
    }
}

fn target(host: &str) -> TagReference {
    TagReference::parse(&format!("{host}/acme/guard:1")).unwrap()
}

fn pushed(registry: &Registry, component: &[u8]) -> Pushed {
    push(&target(&registry.host), &artifact(component)).unwrap()
}

fn error(registry: &Registry, component: &[u8]) -> String {
    push(&target(&registry.host), &artifact(component)).unwrap_err().to_string()
}

#[test]
fn a_pushed_component_is_fetched_by_the_digest_that_the_push_returned() {
    let registry = Registry::start();
    let component = vec![7; 200_000];
    let pushed = pushed(&registry, &component);
    assert_eq!((pushed.is_sent, &pushed.tag_named), (true, &None));
    assert_eq!(pushed.component_digest, sha256(&component));
    assert_eq!(
        pushed.reference.to_string(),
        format!("oci://{}/acme/guard:1@{}", registry.host, pushed.reference.digest())
    );
    assert_eq!(fetch(&pushed.reference, None, MAX).unwrap(), component);
}

#[test]
fn the_artifact_has_the_layout_of_the_wasm_working_group() {
    let registry = Registry::start();
    let pushed = pushed(&registry, b"\0asm and more");
    let file =
        |path: &str| -> serde_json::Value { serde_json::from_slice(&registry.file(path).unwrap()).unwrap() };
    let manifest = file(&format!("manifests/{}", pushed.reference.digest()));
    assert_eq!(manifest, file("manifests/1"), "the tag names it");
    assert_eq!(manifest["mediaType"], "application/vnd.oci.image.manifest.v1+json");
    assert_eq!(manifest["config"]["mediaType"], "application/vnd.wasm.config.v0+json");
    assert_eq!(manifest["layers"][0]["mediaType"], "application/wasm");
    assert_eq!(manifest["layers"][0]["size"], 13);
    let config = file(&format!("blobs/{}", manifest["config"]["digest"].as_str().unwrap()));
    assert_eq!(
        config,
        serde_json::json!({
            "created": "1970-01-01T00:00:00Z",
            "architecture": "wasm",
            "os": "wasip2",
            "layerDigests": [pushed.component_digest],
            "component": {
                "imports": ["afterbay:plugin/log@0.2.0"],
                "exports": ["afterbay:plugin/plugin@0.2.0"],
            },
        })
    );
}

#[test]
fn a_second_push_sends_nothing_and_another_component_moves_the_tag() {
    let registry = Registry::start();
    let first = pushed(&registry, b"\0asm one");
    let asked = registry.asked().len();
    let again = pushed(&registry, b"\0asm one");
    assert_eq!((again.reference.digest(), again.is_sent), (first.reference.digest(), false));
    assert_eq!(again.tag_named.as_deref(), Some(first.reference.digest()));
    let asked = registry.asked().split_off(asked);
    assert!(asked.iter().all(|asked| asked.starts_with("GET ") || asked.starts_with("HEAD ")), "{asked:?}");
    let other = pushed(&registry, b"\0asm two");
    assert_eq!(other.tag_named.as_deref(), Some(first.reference.digest()));
    assert_eq!(fetch(&first.reference, None, MAX).unwrap(), b"\0asm one", "the earlier digest stays");
    assert_eq!(fetch(&other.reference, None, MAX).unwrap(), b"\0asm two");
}

#[test]
fn an_upload_that_fails_names_the_registrys_words_and_a_further_push_succeeds() {
    let failed = Mutex::new(false);
    let registry = Registry::that(move |asked| {
        let fails = asked.method == "PUT" && !std::mem::replace(&mut *failed.lock().unwrap(), true);
        fails.then(|| Answer::refusal("507 Insufficient Storage", "the disk is full"))
    });
    let said = error(&registry, b"\0asm");
    assert_eq!(said, format!("registry {}: 507 Insufficient Storage: the disk is full", registry.host));
    assert!(registry.file("manifests/1").is_none(), "no tag names a part of an artifact");
    assert!(pushed(&registry, b"\0asm").is_sent);
}

#[test]
fn a_tag_that_the_registry_does_not_move_keeps_its_component() {
    let registry = Registry::that(|asked| {
        (asked.method == "PUT" && asked.path.ends_with("/manifests/1"))
            .then(|| Answer::refusal("403 Forbidden", "the tag 1 is immutable"))
    });
    let said = error(&registry, b"\0asm");
    assert!(said.contains("403 Forbidden: the tag 1 is immutable"), "{said}");
}

#[test]
fn a_registry_that_stores_another_digest_is_refused() {
    let registry = Registry::that(|asked| {
        let digest = ("docker-content-digest", sha256(b"something else"));
        (asked.method == "HEAD" && asked.path.ends_with("/manifests/1"))
            .then(|| Answer("200 OK", vec![digest], Vec::new()))
    });
    let said = error(&registry, b"\0asm");
    assert!(said.contains(&format!("has the digest {}", sha256(b"something else"))), "{said}");
}

#[test]
fn a_registry_that_takes_no_more_is_given_up() {
    let storage = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = format!("http://{}/upload?signature=secret", storage.local_addr().unwrap());
    let registry = Registry::that(move |asked| {
        (asked.method == "POST")
            .then(|| Answer("202 Accepted", vec![("location", place.clone())], Vec::new()))
    });
    // More than the buffers of two sockets.
    let component = vec![7; 64 << 20];
    let within = Duration::from_millis(300);
    let said = push_within(&target(&registry.host), &artifact(&component), within).unwrap_err();
    assert!(matches!(said, TransferError::Slow { .. }), "{said}");
}

#[test]
fn another_host_that_takes_the_upload_gets_no_credentials_and_its_url_is_not_shown() {
    let storage = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = format!("http://{}/upload?signature=secret", storage.local_addr().unwrap());
    let registry = Registry::that(move |asked| {
        let mut challenge = Answer::refusal("401 Unauthorized", "log in");
        let realm = asked.header("host").unwrap();
        challenge.1.push(("www-authenticate", format!("Bearer realm=\"http://{realm}/token\"")));
        match (&*asked.method, asked.header("authorization")) {
            ("GET", None) if asked.path.starts_with("/token?scope=repository%3Aacme%2Fguard%3Apull") => {
                Some(Answer("200 OK", Vec::new(), br#"{"token": "good"}"#.to_vec()))
            }
            (_, None) => Some(challenge),
            ("POST", Some("Bearer good")) => {
                Some(Answer("202 Accepted", vec![("location", place.clone())], Vec::new()))
            }
            _ => None,
        }
    });
    let taking = std::thread::spawn(move || {
        let (mut stream, _) = storage.accept().unwrap();
        let mut head = vec![0; 64 << 10];
        let length = stream.read(&mut head).unwrap();
        // Closes the connection without an answer.
        String::from_utf8_lossy(&head[..length]).to_lowercase()
    });
    let said = error(&registry, b"\0asm");
    let head = taking.join().unwrap();
    assert!(head.starts_with("put /upload?signature=secret&digest=sha256%3a"), "{head}");
    assert!(!head.contains("authorization"), "{head}");
    assert!(said.contains("/upload") && !said.contains("secret"), "{said}");
}

#[test]
fn a_target_has_a_host_and_a_tag_and_neither_password_nor_digest() {
    for good in ["ghcr.io/acme/guard:1.2", "oci://localhost:5000/guard:latest"] {
        let shown = TagReference::parse(good).unwrap().to_string();
        assert!(shown.ends_with(good) && shown.starts_with("oci://"), "{shown}");
    }
    let digest = sha256(b"x");
    for (wrong, why) in [
        ("ghcr.io/acme/guard".to_owned(), "it must be HOST[:PORT]/REPOSITORY:TAG"),
        ("localhost:5000/guard".to_owned(), "it must be HOST[:PORT]/REPOSITORY:TAG"),
        (format!("ghcr.io/acme/guard:1@{digest}"), "without a digest, which the push prints"),
        ("acme/guard:1".to_owned(), "it must name its registry's host"),
        ("ghcr.io/Acme/guard:1".to_owned(), "the repository in lower case"),
        ("acme:hunter2@ghcr.io/acme/guard:1".to_owned(), "it must not have a user and password"),
        (format!("oci://acme:hunter2@ghcr.io/acme/guard@{digest}"), "it must not have a user and password"),
    ] {
        let said = TagReference::parse(&wrong).unwrap_err().to_string();
        assert!(said.contains(why) && !said.contains("hunter2"), "{said}");
    }
}
