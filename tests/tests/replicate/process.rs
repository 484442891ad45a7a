//! `afterbay run` with a copy in NATS, and the commands that read the copy.

use std::fs::File;

use afterbay_tests::commands::{afterbay_command, journal, run_afterbay};
use afterbay_tests::nats::NatsServer;
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, SynthRequest, batch, until};
use afterbay_wire::synth::SynthWire::Msgpack;

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
