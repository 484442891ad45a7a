//! `afterbay run` with a copy in NATS, and the commands that read the copy.

use std::fs::File;
use std::process::Child;

use afterbay_tests::admin::Address;
use afterbay_tests::clients;
use afterbay_tests::commands::{afterbay_command, journal, run_afterbay};
use afterbay_tests::nats::NatsServer;
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, SynthRequest, batch, repository, until, wait_for};
use afterbay_wire::synth::SynthWire::Msgpack;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::scene::Scene;

#[test]
fn after_kill_9_the_commands_read_the_copy_as_they_read_the_journal() {
    let server = NatsServer::start();
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().replicate(&server.url());
    for rids in [["r-1", "r-2"], ["r-3", "r-4"]] {
        let afterbay = Afterbay::run(&sandbox, &config);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        for rid in rids {
            sender.send(&batch(Msgpack, vec![SynthRequest::new(rid).last(&[1, 2])]));
            reader.frame();
        }
        afterbay.until_metrics("NATS acknowledges", |metrics| metrics.process("replicate_bytes_total") > 400);
        match rids[0] {
            "r-1" => afterbay.kill(),
            _ => assert_eq!(afterbay.stop(), 0),
        }
    }
    let instance = std::fs::read_to_string(sandbox.path("journal/INSTANCE")).unwrap();
    let prefix = format!("{}.", instance.trim());
    for args in
        [&["ls", "--json"][..], &["show", "r-3", "--json"], &["tail", "--json"], &["verify", "--json"]]
    {
        let ours = journal(&sandbox, args).success();
        let (command, rest) = args.split_first().unwrap();
        let theirs = run_afterbay(&[&["journal", command, "--from", &server.url()], rest].concat()).success();
        assert!(!ours.is_empty());
        assert_eq!(theirs.replace(&prefix, ""), ours, "{args:?}");
    }
    server.delete_message("afterbay", 2);
    let verified = run_afterbay(&["journal", "verify", "--from", &server.url()]);
    assert!(verified.code == 1 && verified.stdout.contains("in no message"), "{verified:?}");
    let refused = run_afterbay(&["journal", "ls", "--from", "nats://user:secret@127.0.0.1"]);
    assert!(refused.code != 0 && !refused.stderr.contains("secret"), "{refused:?}");
}

#[test]
fn a_followed_copy_continues_after_outages_of_nats_without_a_repeated_or_lost_row() {
    let mut server = NatsServer::start();
    let mut scene = Scene::new(&[server.url()]);
    let mut stream = scene.stream("decode-0", &[]);
    stream.requests(0..2);
    scene.until_acknowledged(20 * 400);
    let (out, errors) = (scene.dir.path().join("out"), scene.dir.path().join("errors"));
    let mut tail =
        afterbay_command(&["journal", "tail", "-f", "-n", "1000", "--json", "--from", &server.url()])
            .stdout(File::create(&out).unwrap())
            .stderr(File::create(&errors).unwrap())
            .spawn()
            .unwrap();
    let text = |path| std::fs::read_to_string(path).unwrap();
    let printed = || text(&out).lines().count();
    until("the first rows are printed", || printed() >= 20);
    for outage in 1..=2 {
        server.kill();
        let said = |what: &str| text(&errors).matches(what).count();
        until("the outage is reported", || said("; trying again") >= outage);
        stream.requests(2 * outage as u64..2 * outage as u64 + 2);
        server.start_again();
        until("the end of the outage is reported", || said("connected again") >= outage);
        until("the rows of the outage are printed", || printed() >= 20 * (outage + 1));
    }
    tail.kill().unwrap();
    tail.wait().unwrap();
    let rows = text(&out);
    let rows = rows.lines().map(|line| {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        (row["frame"].as_u64().unwrap(), row["rid"].as_str().unwrap().to_owned())
    });
    let expected = (1..=60).map(|frame: u64| (frame, format!("r-{}", (frame - 1) / 10)));
    assert!(rows.eq(expected), "{}", text(&out));
    stream.finish();
    scene.stop();
}

/// `afterbay clients serve` of the sandbox's configuration, with its log in this file. It ends with SIGTERM, without a rest.
struct Serving {
    child: Child,
    log: String,
}

impl Serving {
    fn start(sandbox: &Sandbox, log: &str) -> Serving {
        let mut command = afterbay_command(&["clients", "serve", "--config", &sandbox.text("afterbay.toml")]);
        command.stderr(File::create(sandbox.path(log)).unwrap()).env("TMPDIR", sandbox.path("tmp"));
        std::fs::create_dir_all(sandbox.path("tmp")).unwrap();
        Serving { child: command.spawn().unwrap(), log: sandbox.text(log) }
    }

    fn said(&self, what: &str) -> usize {
        std::fs::read_to_string(&self.log).unwrap().matches(what).count()
    }

    fn address(&self) -> Address {
        wait_for("the address listens", || {
            let log = std::fs::read_to_string(&self.log).unwrap();
            let (_, behind) = log.split_once("read their requests on http://")?;
            Some(Address::Tcp(behind.split_once(char::is_whitespace)?.0.parse().unwrap()))
        })
    }

    fn stop(mut self, sandbox: &Sandbox) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        assert_eq!(std::fs::read_dir(sandbox.path("tmp")).unwrap().count(), 0);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

#[test]
fn another_machine_serves_clients_of_a_fleet_from_the_copy_also_after_the_first_machine_is_lost() {
    let mut server = NatsServer::start();
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let model = repository().join("host/path/text/tests/fixtures/byte-level/tokenizer.json");
    let config = sandbox.config().sink(&format!("tokenizer = {model:?}")).replicate(&server.url());
    let config = clients::served(&sandbox, config);
    sandbox.write(&config);
    let serving = Serving::start(&sandbox, "serving.log");
    until("nothing was published yet", || serving.said("gets nothing from") == 1);
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut request = SynthRequest::new("r");
    let mut send = |row| {
        sender.send(&batch(Msgpack, vec![row]));
        reader.frame();
    };
    send(request.row(&[10, 11]));
    let address = serving.address();
    let read = |address: &Address, query: &str| clients::read(&sandbox, address, "r", query);
    let until_read = |address: &Address, whole: Value| {
        until("the copy has all tokens", || read(address, "")["ids"] == whole);
    };
    until_read(&address, json!([10, 11]));
    server.kill();
    until("the outage is reported", || serving.said("gets nothing from") == 2);
    send(request.row(&[12]));
    assert_eq!(read(&address, "from=1")["ids"], json!([11]), "what it has is served");
    server.start_again();
    until_read(&address, json!([10, 11, 12]));
    until("the end of the outage is reported", || serving.said("goes on after") == 2);
    send(request.last(&[13]));
    until_read(&address, json!([10, 11, 12, 13]));
    let whole = read(&clients::address(&afterbay, 0), "from=1");
    assert_eq!((&whole["ids"], whole["text"].is_string()), (&json!([11, 12, 13]), true), "{whole}");
    afterbay.kill();
    // Its follower may still write.
    std::fs::rename(sandbox.journal(), sandbox.path("lost")).unwrap();
    assert_eq!(read(&address, "from=1"), whole);
    serving.stop(&sandbox);
    // No directory for a journal can be made on the next machine.
    let elsewhere = config.to_toml().replace(&sandbox.text("journal"), &sandbox.text("clients.key/journal"));
    sandbox.replace("afterbay.toml", elsewhere);
    let serving = Serving::start(&sandbox, "again.log");
    assert_eq!(read(&serving.address(), "from=1"), whole, "a start copies what NATS has");
    serving.stop(&sandbox);
    let without = sandbox.replace("without.toml", sandbox.config().to_toml());
    let refused = run_afterbay(&["clients", "serve", "--config", &without]);
    assert_eq!((refused.code, refused.stderr.contains("has no [replicate]")), (64, true), "{refused:?}");
}
