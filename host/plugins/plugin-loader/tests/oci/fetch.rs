//! Components fetched from a registry on this machine.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use afterbay_plugin_loader::oci::{MANIFEST_BYTES_MAX, Reference, TransferError, fetch, fetch_within};
use tempfile::TempDir;

use crate::registry::{Answer, Registry, sha256};

const MAX: u64 = 1 << 20;
const COMPONENT: &[u8] = b"\0asm and more";

fn manifest(media_type: &str, component: &[u8], size: usize) -> Vec<u8> {
    format!(
        r#"{{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {{"mediaType": "application/vnd.wasm.config.v0+json", "digest": "{}", "size": 2}},
            "layers": [{{"mediaType": "{media_type}", "digest": "{}", "size": {size}}}]}}"#,
        sha256(b"{}"),
        sha256(component),
    )
    .into_bytes()
}

impl Registry {
    fn has_component(&self, manifest: &[u8], component: &[u8]) -> Reference {
        self.has("blobs", &sha256(component), component);
        Reference::parse(&self.has("manifests", &sha256(manifest), manifest)).unwrap()
    }
}

fn error(reference: &Reference) -> String {
    fetch(reference, None, MAX).unwrap_err().to_string()
}

#[test]
fn a_component_is_fetched_once_and_comes_from_the_disk_after_that() {
    let (registry, kept) = (Registry::start(), TempDir::new().unwrap());
    for media_type in afterbay_plugin_loader::oci::LAYERS {
        let manifest = manifest(media_type, COMPONENT, COMPONENT.len());
        let reference = registry.has_component(&manifest, COMPONENT);
        assert_eq!(fetch(&reference, Some(kept.path()), MAX).unwrap(), COMPONENT);
        let asked = registry.asked().len();
        assert_eq!(fetch(&reference, Some(kept.path()), MAX).unwrap(), COMPONENT);
        assert_eq!(registry.asked().len(), asked);
    }
    assert_eq!(fs::read_dir(kept.path()).unwrap().count(), 3, "two manifests, one component");
}

#[test]
fn a_damaged_cache_file_is_fetched_again() {
    let (registry, kept) = (Registry::start(), TempDir::new().unwrap());
    let manifest = manifest("application/wasm", COMPONENT, COMPONENT.len());
    let reference = registry.has_component(&manifest, COMPONENT);
    fetch(&reference, Some(kept.path()), MAX).unwrap();
    for file in fs::read_dir(kept.path()).unwrap() {
        fs::write(file.unwrap().path(), "something else").unwrap();
    }
    assert_eq!(fetch(&reference, Some(kept.path()), MAX).unwrap(), COMPONENT);
    assert_eq!(registry.asked().len(), 4);
}

#[test]
fn bytes_of_another_digest_are_refused_and_not_cached() {
    let (registry, kept) = (Registry::start(), TempDir::new().unwrap());
    let good = manifest("application/wasm", COMPONENT, COMPONENT.len());
    let pinned = sha256(&good);
    let other = manifest("application/wasm", b"another", 7);
    let reference = Reference::parse(&registry.has("manifests", &pinned, &other)).unwrap();
    match fetch(&reference, Some(kept.path()), MAX) {
        Err(TransferError::Digest { what: "the manifest", received, pinned: must }) => {
            assert_eq!((received, must), (sha256(&other), pinned));
        }
        fetched => panic!("{fetched:?}"),
    }
    let reference = registry.has_component(&good, COMPONENT);
    registry.has("blobs", &sha256(COMPONENT), b"\0asm and much");
    match fetch(&reference, Some(kept.path()), MAX) {
        Err(TransferError::Digest { what: "the component", received, pinned }) => {
            assert_eq!((received, pinned), (sha256(b"\0asm and much"), sha256(COMPONENT)));
        }
        fetched => panic!("{fetched:?}"),
    }
    assert_eq!(fs::read_dir(kept.path()).unwrap().count(), 1, "the good manifest");
}

#[test]
fn a_large_component_is_refused_before_it_is_fetched_and_a_body_past_its_size_while_it_is() {
    let registry = Registry::start();
    let large =
        registry.has_component(&manifest("application/wasm", COMPONENT, (MAX + 1) as usize), COMPONENT);
    assert_eq!(error(&large), "the component has 1048577 bytes, the limit is 1048576");
    assert_eq!(registry.asked().len(), 1);
    let small = registry.has_component(&manifest("application/wasm", COMPONENT, 4), COMPONENT);
    assert_eq!(error(&small), "the component has more than 4 bytes");
}

#[test]
fn an_artifact_that_is_not_a_component_says_what_it_is() {
    let registry = Registry::start();
    let image = manifest("application/vnd.oci.image.layer.v1.tar+gzip", COMPONENT, COMPONENT.len());
    let said = error(&registry.has_component(&image, COMPONENT));
    assert!(
        said.contains("its layers are [\"application/vnd.oci.image.layer.v1.tar+gzip\"], it must have one of application/wasm"),
        "{said}"
    );
    let said = error(&registry.has_component(b"[]", COMPONENT));
    assert!(said.contains("its manifest is invalid"), "{said}");
}

#[test]
fn a_registry_without_the_component_or_without_a_server_is_named() {
    let registry = Registry::start();
    let reference =
        Reference::parse(&format!("oci://{}/acme/guard@{}", registry.host, sha256(b"x"))).unwrap();
    let said = error(&reference);
    assert!(said.starts_with(&format!("registry {}: ", registry.host)), "{said}");
    assert!(
        said.contains("no such manifest") && said.contains("asked without Docker's credentials: "),
        "{said}"
    );
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let said = error(&Reference::parse(&format!("oci://{gone}/acme/guard@{}", sha256(b"x"))).unwrap());
    assert!(said.starts_with(&format!("registry {gone}: ")) && said.contains("refused"), "{said}");
}

#[test]
fn a_reference_names_its_host_and_is_pinned() {
    let pinned = sha256(b"x");
    for good in ["ghcr.io/acme/guard", "ghcr.io/acme/guard:1.2", "localhost:5000/guard", "localhost/guard"] {
        let text = format!("oci://{good}@{pinned}");
        assert_eq!(Reference::parse(&text).unwrap().to_string(), text);
    }
    let wrong = |text: &str| Reference::parse(text).unwrap_err().to_string();
    for text in
        ["oci://ghcr.io/acme/guard", "oci://ghcr.io/acme/guard:1.2", "oci://ghcr.io/acme/guard@sha256:12"]
    {
        assert!(
            wrong(text).contains("is not pinned: it must end with @sha256: and the 64"),
            "{}",
            wrong(text)
        );
    }
    let said = wrong(&format!("oci://acme/guard@{pinned}"));
    assert!(said.contains("it must name its registry's host"), "{said}");
    let said = wrong(&format!("oci://ghcr.io/Acme/guard@{pinned}"));
    assert!(said.contains("the repository in lower case"), "{said}");
}

/// A registry that calls `answer` for each request, with the path and the connection.
fn registry_that(answer: impl Fn(&str, &mut TcpStream) + Send + 'static) -> Reference {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        // Keeps the connection open: a closed connection does not stall.
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let Some(first) = lines.next() else { continue };
            for _ in lines.take_while(|line| !line.is_empty()) {}
            answer(first.split(' ').nth(1).unwrap(), &mut stream);
            open.push(stream);
        }
    });
    Reference::parse(&format!("oci://{host}/acme/guard@{}", sha256(b"x"))).unwrap()
}

/// Writes until the other end closes.
fn endless(stream: &mut TcpStream, status: &str) {
    let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\n\r\n");
    let mut written = stream.write_all(head.as_bytes());
    while written.is_ok() {
        written = stream.write_all(&[b' '; 64 << 10]);
    }
}

#[test]
fn an_endless_body_is_given_up_at_its_limit() {
    let manifest = registry_that(|_, stream| endless(stream, "200 OK"));
    assert_eq!(error(&manifest), format!("the manifest has more than {MANIFEST_BYTES_MAX} bytes"));
    let refused = registry_that(|_, stream| endless(stream, "500 Internal Server Error"));
    assert!(error(&refused).contains("500 Internal Server Error"), "{}", error(&refused));
    let token = registry_that(|path, stream| match path.starts_with("/token") {
        true => endless(stream, "200 OK"),
        false => asks_for_a_token(stream),
    });
    assert_eq!(error(&token), "the token has more than 65536 bytes");
}

/// A 401 that names a token server on the same address.
fn asks_for_a_token(stream: &mut TcpStream) {
    let host = stream.local_addr().unwrap();
    let head = format!(
        "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Bearer realm=\"http://{host}/token\",service=\"r\"\r\n\
         content-length: 0\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
}

#[test]
fn a_registry_that_stalls_is_given_up() {
    let part = |stream: &mut TcpStream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{").unwrap();
    };
    let stalled = [
        registry_that(|_, _| {}),
        registry_that(move |_, stream| part(stream)),
        registry_that(move |path, stream| match path.starts_with("/token") {
            true => part(stream),
            false => asks_for_a_token(stream),
        }),
    ];
    for reference in stalled {
        let within = Duration::from_millis(300);
        match fetch_within(&reference, None, MAX, within) {
            Err(TransferError::Slow { .. }) => {}
            fetched => panic!("{fetched:?}"),
        }
    }
}

#[test]
fn a_token_comes_from_the_token_server_that_the_registry_names() {
    let wanted = manifest("application/wasm", COMPONENT, COMPONENT.len());
    let manifest_digest = sha256(&wanted);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let Some(path) = head.first().and_then(|first| first.split(' ').nth(1)) else { continue };
            let has_token = head.iter().any(|line| line.eq_ignore_ascii_case("authorization: bearer good"));
            let body = match path {
                "/token?service=r&scope=repository%3Aacme%2Fguard%3Apull" => br#"{"token": "good"}"#.to_vec(),
                _ if !has_token => {
                    asks_for_a_token(&mut stream);
                    continue;
                }
                path if path.ends_with(&sha256(COMPONENT)) => COMPONENT.to_vec(),
                _ => wanted.clone(),
            };
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            stream.write_all(&[head.as_bytes(), &body].concat()).unwrap();
        }
    });
    let reference = Reference::parse(&format!("oci://{host}/acme/guard@{manifest_digest}")).unwrap();
    assert_eq!(fetch(&reference, None, MAX).unwrap(), COMPONENT);
}

#[test]
fn another_host_that_sends_the_component_gets_no_credentials_and_its_url_is_not_shown() {
    let storage = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = format!("http://{}/stored?signature=secret", storage.local_addr().unwrap());
    let registry = Registry::that(move |asked| {
        let realm = asked.header("host").unwrap();
        let challenge = format!("Bearer realm=\"http://{realm}/token\"");
        match asked.header("authorization") {
            None if asked.path.starts_with("/token?scope=repository%3Aacme%2Fguard%3Apull") => {
                Some(Answer("200 OK", Vec::new(), br#"{"token": "good"}"#.to_vec()))
            }
            None => Some(Answer("401 Unauthorized", vec![("www-authenticate", challenge)], Vec::new())),
            Some("Bearer good") if asked.path.contains("/blobs/") => {
                Some(Answer("307 Temporary Redirect", vec![("location", place.clone())], Vec::new()))
            }
            _ => None,
        }
    });
    let taking = std::thread::spawn(move || {
        let (stream, _) = storage.accept().unwrap();
        // Closes the connection without an answer.
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join("\n").to_lowercase()
    });
    let manifest = manifest("application/wasm", COMPONENT, COMPONENT.len());
    let said = error(&registry.has_component(&manifest, COMPONENT));
    let head = taking.join().unwrap();
    assert!(head.starts_with("get /stored?signature=secret"), "{head}");
    assert!(!head.contains("authorization"), "{head}");
    assert!(!said.contains("secret"), "{said}");
}

#[test]
fn cached_files_are_readable_by_their_owner_alone_whatever_the_umask() {
    use std::os::unix::fs::PermissionsExt;
    let (registry, dir) = (Registry::start(), TempDir::new().unwrap());
    let kept = dir.path().join("cache").join("components");
    let manifest = manifest("application/wasm", COMPONENT, COMPONENT.len());
    let reference = registry.has_component(&manifest, COMPONENT);
    fetch(&reference, Some(&kept), MAX).unwrap();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&kept), mode(kept.parent().unwrap())), (0o700, 0o700));
    for file in fs::read_dir(&kept).unwrap() {
        assert_eq!(mode(&file.unwrap().path()), 0o600);
    }
}

#[test]
fn a_password_in_a_reference_is_refused_and_not_shown() {
    let pinned = sha256(b"x");
    for text in [
        format!("oci://user:secret@ghcr.io/acme/guard@{pinned}"),
        "oci://user:secret@ghcr.io/acme/guard".to_owned(),
        "oci://user:sec/ret@ghcr.io/acme/guard:1".to_owned(),
    ] {
        let said = Reference::parse(&text).unwrap_err().to_string();
        assert!(!said.contains("sec"), "{said}");
    }
}
