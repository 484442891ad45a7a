//! The admin addresses against a hostile client on the same machine, and how the commands find them.

use afterbay_tests::admin::{self, Address, JSON};
use afterbay_tests::commands::{CommandOutput, afterbay_command, run_afterbay, run_command};
use afterbay_tests::components::guest;
use afterbay_tests::frames::{SynthRequest, batch};
use afterbay_tests::{Afterbay, PATIENCE, Reader, Sandbox, Sender, until};
use afterbay_wire::synth::SynthWire::Msgpack;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

fn tcp(address: &Address) -> TcpStream {
    let Address::Tcp(address) = address else { panic!("{address} is no TCP address") };
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn socket(address: &Address) -> UnixStream {
    let Address::Unix(path) = address else { panic!("{address} is no Unix socket") };
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn a_tcp_address_without_a_token_is_read_only_and_names_the_remedy() {
    let sandbox = Sandbox::new();
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let address = afterbay.tcp();
    assert_eq!(admin::get(&address, "/healthz").status, 200);
    assert_eq!(admin::get(&address, "/v1/plugins").status, 200);
    for line in [
        "POST /v1/reload",
        "POST /v1/requests/a/abort",
        "POST /v1/requests/a/erase",
        "PUT /v1/requests/a/attributes",
        "DELETE /v1/requests/a/attributes",
        "POST /v1/plugins/a/promote",
    ] {
        let refused = admin::ask(&address, line, &[JSON], "{}");
        assert_eq!(refused.status, 403, "{line}: {}", refused.body);
        for words in ["read_only", &afterbay.admin().to_string(), "token_file ="] {
            assert!(refused.body.contains(words), "{line}: {}", refused.body);
        }
    }
    let set = afterbay.ask("PUT /v1/requests/a/attributes", &[JSON], "{}");
    assert_eq!(set.status, 200, "{}", set.body);
    // The command names the same remedy, and works over the socket.
    let refused = run_afterbay(&["reload", "--admin", &address.to_string()]);
    assert!(refused.code == 1 && refused.stderr.contains("token_file"), "{refused:?}");
    assert_eq!(
        run_afterbay(&["reload", "--admin", &afterbay.admin().to_string()]).success(),
        "nothing has changed\n"
    );
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_request_with_another_host_name_is_refused() {
    let sandbox = Sandbox::new();
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    for (host, status) in [("evil.test", 403), ("127.0.0.1", 200), ("localhost:9464", 200)] {
        let answer = admin::ask(&afterbay.tcp(), "GET /v1/plugins", &[&format!("Host: {host}")], "");
        assert_eq!(answer.status, status, "{host}: {}", answer.body);
    }
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn with_a_token_every_change_needs_the_token_and_the_commands_find_it() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("token"), "s3cret\n").unwrap();
    let config = sandbox.config().admin("token_file = \"token\"");
    let running = Afterbay::run(&sandbox, &config);
    for address in [running.tcp(), running.admin().clone()] {
        let ask =
            |headers: &[&str]| admin::ask(&address, "POST /v1/reload", &[&[JSON], headers].concat(), "{}");
        assert_eq!(admin::get(&address, "/metrics").status, 200);
        assert_eq!(ask(&[]).status, 401);
        let wrong = ask(&["Authorization: Bearer s3cret2"]);
        assert!(wrong.status == 401 && !wrong.body.contains("s3cret"), "{}", wrong.body);
        assert_eq!(ask(&["Authorization: Bearer s3cret"]).status, 200);
        let address = address.to_string();
        assert_eq!(run_afterbay(&["reload", "--admin", &address]).code, 1);
        let file = sandbox.text("token");
        assert_eq!(run_afterbay(&["reload", "--admin", &address, "--token-file", &file]).code, 0);
    }
    assert_eq!(run_afterbay(&["reload", "--config", &sandbox.text("afterbay.toml")]).code, 0);

    // A reload that needs the old token names another token file.
    std::fs::write(sandbox.path("other"), "0ther").unwrap();
    sandbox.write(&sandbox.config().admin("token_file = \"other\""));
    running.event_where("ConfigReloaded", |event| event["changed"] == "admin changed");
    let file = sandbox.text("token");
    assert_eq!(
        run_afterbay(&["reload", "--admin", &running.admin().to_string(), "--token-file", &file]).code,
        1
    );
    assert_eq!(run_afterbay(&["reload", "--config", &sandbox.text("afterbay.toml")]).code, 0);
    assert!(!running.log().contains("s3cret") && !running.log().contains("0ther"));
    assert_eq!(running.stop(), 0);
}

#[test]
fn the_admin_socket_is_private_and_replaces_only_a_stale_socket() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("journal").join("ADMIN.sock");
    let first = Afterbay::run_confined(&sandbox, &sandbox.config(), 1024);
    assert!(path.metadata().unwrap().file_type().is_socket());
    assert_eq!((mode(&path), first.admin().to_string()), (0o600, format!("unix:{}", path.display())));

    // A second Afterbay uses the same socket path.
    let other = Sandbox::new();
    let listen = format!("listen = \"{}\"", first.admin());
    let file = other.write(&other.config().admin(&listen));
    let refused = run_afterbay(&["run", "--config", &file]);
    assert!(refused.code == 1 && refused.stderr.contains("another process listens there"), "{refused:?}");
    first.kill();
    assert!(path.exists());
    let second = Afterbay::run(&other, &other.config().admin(&listen));
    assert_eq!(second.get("/healthz").status, 200);
    assert_eq!(second.stop(), 0);
    assert!(!path.exists(), "the socket file is removed");

    // A regular file stays.
    std::fs::write(&path, "a file of somebody's").unwrap();
    let refused = run_afterbay(&["run", "--config", &file]);
    assert!(refused.code == 1 && refused.stderr.contains("is a file"), "{refused:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file of somebody's");
}

#[test]
fn silent_connections_leave_enough_descriptors_for_the_streams() {
    const DESCRIPTORS: u64 = 100;
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run_confined(&sandbox, &sandbox.config(), DESCRIPTORS);
    let address = afterbay.tcp();
    let silent: Vec<TcpStream> = (0..DESCRIPTORS + 20).map(|_| tcp(&address)).collect();
    // The limit bounds the accepted connections, and the Unix socket has its own limit.
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", afterbay.pid())).unwrap().count() as u64;
    assert_eq!(afterbay.get("/healthz").status, 200);
    assert!(descriptors() < DESCRIPTORS / 2, "{}", descriptors());
    let mut senders: Vec<Sender> = (0..8).map(|_| Sender::connect(&sandbox.scheduler_side())).collect();
    for (number, sender) in senders.iter_mut().enumerate() {
        let frame = batch(Msgpack, vec![SynthRequest::new(&format!("r{number}")).last(&[1])]);
        sender.send(&frame);
        assert_eq!(reader.frame(), frame);
    }
    drop(silent);
    until("the TCP address answers again", || {
        std::panic::catch_unwind(|| admin::get(&address, "/healthz").status == 200).unwrap_or(false)
    });
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_request_whose_head_or_body_does_not_arrive_times_out() {
    let sandbox = Sandbox::new();
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let mut head = tcp(&afterbay.tcp());
    head.write_all(b"GET /metrics HTTP/1.1\r\nHost: local").unwrap();
    let mut body = socket(afterbay.admin());
    let half =
        "POST /v1/reload HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{";
    body.write_all(half.as_bytes()).unwrap();
    // Both connections end. Otherwise a read times out and the test fails.
    let mut answer = String::new();
    head.read_to_string(&mut answer).unwrap();
    assert!(!answer.contains("200"), "{answer}");
    answer.clear();
    body.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn the_start_raises_the_limit_of_descriptors() {
    let sandbox = Sandbox::new();
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", afterbay.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let figures: Vec<&str> = line.split_whitespace().filter(|word| word.parse::<u64>().is_ok()).collect();
    assert_eq!(figures[0], figures[1], "{line}");
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn every_admin_command_finds_the_socket_by_the_configuration_or_the_default_journal() {
    let sandbox = Sandbox::new();
    let config = sandbox.config().plugin("notes", &guest("judges"), "action = \"annotate\"");
    let running = Afterbay::run(&sandbox, &config);
    let file = sandbox.text("afterbay.toml");
    let ask = |args: &[&str], file: Option<&str>| -> CommandOutput {
        let mut command = afterbay_command(args);
        if let Some(file) = file {
            command.env("AFTERBAY_CONFIG", file);
        }
        run_command(&mut command)
    };
    for command in [&["plugins"][..], &["reload"], &["plugins", "reinstate", "notes"], &["abort", "a"]] {
        for done in [ask(&[command, &["--config", &file]].concat(), None), ask(command, Some(&file))] {
            assert!(!done.stderr.contains("admin"), "{command:?}: {done:?}");
        }
        // --admin wins.
        let nobody = ask(&[command, &["--admin", "127.0.0.1:1"]].concat(), Some(&file));
        assert!(
            nobody.code == 1 && nobody.stderr.contains("admin 127.0.0.1:1: cannot be connected"),
            "{nobody:?}"
        );
    }
    // A configuration with an error still names the address of its Afterbay.
    sandbox.write(&config.clone().stream("lissten = 4"));
    running.event("ConfigReloadFailed");
    let refused = ask(&["reload", "--config", &file], None);
    assert!(refused.code == 1 && refused.stderr.contains("lissten: unknown key"), "{refused:?}");
    assert_eq!(running.stop(), 0);

    // The default journal of `afterbay sglang`.
    let dir = sandbox.path("state/afterbay");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::rename(sandbox.journal(), dir.join("journal")).unwrap();
    let moved = config.to_toml().replace(&sandbox.text("journal"), &sandbox.text("state/afterbay/journal"));
    let running = Afterbay::run_toml(&sandbox, &moved, &[]);
    let shown = run_command(afterbay_command(&["plugins"]).env("XDG_STATE_HOME", sandbox.path("state")));
    assert!(shown.success().contains("notes"));
    assert_eq!(running.stop(), 0);
}

#[test]
fn metrics_are_prometheus_text() {
    let sandbox = Sandbox::new();
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let text = afterbay.get("/metrics").body;
    assert!(
        text.contains("# TYPE afterbay_frames_received_total counter\n") && !text.contains("# EOF"),
        "{text}"
    );
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_password_in_a_configured_url_is_never_shown() {
    let sandbox = Sandbox::new();
    let url = "http://user:hunter2@127.0.0.1:30000";
    let configs = [
        sandbox.config().abort(&format!("push = {url:?}")),
        sandbox.config().connect(url),
        sandbox.config().plugin_with("guard", "oci://user:hunter2@ghcr.io/acme/guard", "", ""),
        sandbox.config().admin(&format!("listen = {url:?}")),
    ];
    for config in configs {
        let file = sandbox.write(&config);
        for command in ["check", "run"] {
            let refused = run_afterbay(&[command, "--config", &file]);
            assert_eq!(refused.code, 64, "{refused:?}");
            assert!(!refused.stderr.contains("hunter2"), "{}", refused.stderr);
        }
    }
}
