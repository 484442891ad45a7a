//! `afterbay run` with a copy in NATS, and the commands that read the copy.

use afterbay_tests::commands::{journal, run_afterbay};
use afterbay_tests::nats::NatsServer;
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, SynthRequest, batch};
use afterbay_wire::synth::SynthWire::Msgpack;

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
