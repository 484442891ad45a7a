//! The admin addresses against a hostile client on the same machine, and how the commands find them.

use afterbay_tests::admin::{self, Address, JSON};
use afterbay_tests::afterbay::{Done, afterbay, done, ended};
use afterbay_tests::components::guest;
use afterbay_tests::frames::{Request, batch};
use afterbay_tests::{Afterbay, PATIENCE, Reader, Sender, Stage, until};
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
fn a_tcp_address_without_a_token_is_read_only_and_says_what_to_do() {
    let stage = Stage::new();
    let afterbay = Afterbay::run(&stage, &stage.config());
    let address = afterbay.tcp();
    assert_eq!(admin::get(&address, "/healthz").status, 200);
    assert_eq!(admin::get(&address, "/v1/plugins").status, 200);
    for line in [
        "POST /v1/reload",
        "POST /v1/requests/a/abort",
        "PUT /v1/requests/a/attributes",
        "DELETE /v1/requests/a/attributes",
        "POST /v1/plugins/a/promote",
    ] {
        let refused = admin::ask(&address, line, &[JSON], "{}");
        assert_eq!(refused.status, 403, "{line}: {}", refused.body);
        for said in ["read_only", &afterbay.admin().to_string(), "token_file ="] {
            assert!(refused.body.contains(said), "{line}: {}", refused.body);
        }
    }
    let set = afterbay.ask("PUT /v1/requests/a/attributes", &[JSON], "{}");
    assert_eq!(set.status, 200, "{}", set.body);
    // The command says the same, and is done over the socket.
    let refused = done(&["reload", "--admin", &address.to_string()]);
    assert!(refused.code == 1 && refused.stderr.contains("token_file"), "{refused:?}");
    assert_eq!(done(&["reload", "--admin", &afterbay.admin().to_string()]).good(), "nothing has changed\n");
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn another_sites_name_for_this_host_is_not_answered() {
    let stage = Stage::new();
    let afterbay = Afterbay::run(&stage, &stage.config());
    for (host, status) in [("evil.test", 403), ("127.0.0.1", 200), ("localhost:9464", 200)] {
        let answer = admin::ask(&afterbay.tcp(), "GET /v1/plugins", &[&format!("Host: {host}")], "");
        assert_eq!(answer.status, status, "{host}: {}", answer.body);
    }
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn with_a_token_every_change_needs_it_and_the_commands_find_it() {
    let stage = Stage::new();
    std::fs::write(stage.path("token"), "s3cret\n").unwrap();
    let config = stage.config().admin("token_file = \"token\"");
    let running = Afterbay::run(&stage, &config);
    for address in [running.tcp(), running.admin().clone()] {
        let ask =
            |headers: &[&str]| admin::ask(&address, "POST /v1/reload", &[&[JSON], headers].concat(), "{}");
        assert_eq!(admin::get(&address, "/metrics").status, 200);
        assert_eq!(ask(&[]).status, 401);
        let wrong = ask(&["Authorization: Bearer s3cret2"]);
        assert!(wrong.status == 401 && !wrong.body.contains("s3cret"), "{}", wrong.body);
        assert_eq!(ask(&["Authorization: Bearer s3cret"]).status, 200);
        let address = address.to_string();
        assert_eq!(done(&["reload", "--admin", &address]).code, 1);
        let file = stage.text("token");
        assert_eq!(done(&["reload", "--admin", &address, "--token-file", &file]).code, 0);
    }
    assert_eq!(done(&["reload", "--config", &stage.text("afterbay.toml")]).code, 0);

    // Another token file, by a reload that needs the one before.
    std::fs::write(stage.path("other"), "0ther").unwrap();
    stage.write(&stage.config().admin("token_file = \"other\""));
    running.event_where("ConfigReloaded", |told| told["changed"] == "admin changed");
    let file = stage.text("token");
    assert_eq!(done(&["reload", "--admin", &running.admin().to_string(), "--token-file", &file]).code, 1);
    assert_eq!(done(&["reload", "--config", &stage.text("afterbay.toml")]).code, 0);
    assert!(!running.log().contains("s3cret") && !running.log().contains("0ther"));
    assert_eq!(running.stop(), 0);
}

#[test]
fn the_socket_is_its_users_alone_and_a_stale_one_is_replaced_and_a_living_one_is_not() {
    let stage = Stage::new();
    let path = stage.path("journal").join("ADMIN.sock");
    let first = Afterbay::run_confined(&stage, &stage.config(), 1024);
    assert!(path.metadata().unwrap().file_type().is_socket());
    assert_eq!((mode(&path), first.admin().to_string()), (0o600, format!("unix:{}", path.display())));

    // Another Afterbay is to take the same.
    let other = Stage::new();
    let listen = format!("listen = \"{}\"", first.admin());
    let file = other.write(&other.config().admin(&listen));
    let refused = done(&["run", "--config", &file]);
    assert!(refused.code == 1 && refused.stderr.contains("another process listens there"), "{refused:?}");
    first.kill();
    assert!(path.exists());
    let second = Afterbay::run(&other, &other.config().admin(&listen));
    assert_eq!(second.get("/healthz").status, 200);
    assert_eq!(second.stop(), 0);
    assert!(!path.exists(), "its name is given back");

    // What is no socket stays.
    std::fs::write(&path, "a file of somebody's").unwrap();
    let refused = done(&["run", "--config", &file]);
    assert!(refused.code == 1 && refused.stderr.contains("is a file"), "{refused:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file of somebody's");
}

#[test]
fn connections_that_say_nothing_take_no_descriptor_that_a_stream_needs() {
    const DESCRIPTORS: u64 = 100;
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let afterbay = Afterbay::run_confined(&stage, &stage.config(), DESCRIPTORS);
    let address = afterbay.tcp();
    let silent: Vec<TcpStream> = (0..DESCRIPTORS + 20).map(|_| tcp(&address)).collect();
    // The limit bounds what is accepted, and the Unix socket has places of its own.
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", afterbay.pid())).unwrap().count() as u64;
    assert_eq!(afterbay.get("/healthz").status, 200);
    assert!(descriptors() < DESCRIPTORS / 2, "{}", descriptors());
    let mut senders: Vec<Sender> = (0..8).map(|_| Sender::connect(&stage.scheduler_side())).collect();
    for (number, sender) in senders.iter_mut().enumerate() {
        let frame = batch(Msgpack, vec![Request::new(&format!("r{number}")).last(&[1])]);
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
fn a_head_or_a_body_that_does_not_come_is_given_up() {
    let stage = Stage::new();
    let afterbay = Afterbay::run(&stage, &stage.config());
    let mut head = tcp(&afterbay.tcp());
    head.write_all(b"GET /metrics HTTP/1.1\r\nHost: local").unwrap();
    let mut body = socket(afterbay.admin());
    let half =
        "POST /v1/reload HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{";
    body.write_all(half.as_bytes()).unwrap();
    // Both end, or the read times out and the test fails.
    let mut said = String::new();
    head.read_to_string(&mut said).unwrap();
    assert!(!said.contains("200"), "{said}");
    said.clear();
    body.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("HTTP/1.1 408"), "{said}");
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn the_limit_of_descriptors_is_raised_at_the_start() {
    let stage = Stage::new();
    let afterbay = Afterbay::run(&stage, &stage.config());
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", afterbay.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let figures: Vec<&str> = line.split_whitespace().filter(|word| word.parse::<u64>().is_ok()).collect();
    assert_eq!(figures[0], figures[1], "{line}");
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn every_command_that_asks_finds_the_socket_by_the_configuration_or_by_the_default_journal() {
    let stage = Stage::new();
    let config = stage.config().plugin("notes", &guest("judges"), "action = \"annotate\"");
    let running = Afterbay::run(&stage, &config);
    let file = stage.text("afterbay.toml");
    let ask = |args: &[&str], file: Option<&str>| -> Done {
        let mut command = afterbay(args);
        if let Some(file) = file {
            command.env("AFTERBAY_CONFIG", file);
        }
        ended(&mut command)
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
    // A configuration that is about to be refused still says where its Afterbay is.
    stage.write(&config.clone().stream("lissten = 4"));
    running.event("ConfigReloadFailed");
    let refused = ask(&["reload", "--config", &file], None);
    assert!(refused.code == 1 && refused.stderr.contains("lissten: unknown key"), "{refused:?}");
    assert_eq!(running.stop(), 0);

    // As `afterbay sglang` keeps its journal.
    let dir = stage.path("state/afterbay");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::rename(stage.journal(), dir.join("journal")).unwrap();
    let moved = config.to_toml().replace(&stage.text("journal"), &stage.text("state/afterbay/journal"));
    let running = Afterbay::run_toml(&stage, &moved, &[]);
    let shown = ended(afterbay(&["plugins"]).env("XDG_STATE_HOME", stage.path("state")));
    assert!(shown.good().contains("notes"));
    assert_eq!(running.stop(), 0);
}

#[test]
fn metrics_come_in_the_format_that_is_asked_for() {
    let stage = Stage::new();
    let afterbay = Afterbay::run(&stage, &stage.config());
    let text = afterbay.get("/metrics").body;
    assert!(
        text.contains("# TYPE afterbay_frames_received_total counter\n") && !text.contains("# EOF"),
        "{text}"
    );
    let accept = "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4";
    let text = afterbay.ask("GET /metrics", &[accept], "").body;
    assert!(
        text.contains("# TYPE afterbay_frames_received counter\n") && text.ends_with("# EOF\n"),
        "{text}"
    );
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_password_in_a_url_of_the_configuration_is_not_shown() {
    let stage = Stage::new();
    let url = "http://user:hunter2@127.0.0.1:30000";
    let configs = [
        stage.config().abort(&format!("http = {url:?}")),
        stage.config().stream(&format!("signals = {{ metrics = \"{url}/metrics\" }}")),
        stage.config().stream(&format!("signals = {{ load_stat = {url:?} }}")),
        stage.config().connect(url),
        stage.config().plugin_with("guard", "oci://user:hunter2@ghcr.io/acme/guard", "", ""),
        stage.config().admin(&format!("listen = {url:?}")),
    ];
    for config in configs {
        let file = stage.write(&config);
        for command in ["check", "run"] {
            let refused = done(&[command, "--config", &file]);
            assert_eq!(refused.code, 64, "{refused:?}");
            assert!(!refused.stderr.contains("hunter2"), "{}", refused.stderr);
        }
    }
}
