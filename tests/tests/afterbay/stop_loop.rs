//! stop-loop in a stream: it ends requests in loops, and its stream is not ready while most requests end so.

use afterbay_tests::frames::{ReaderRow, SynthRequest, batch, rows};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender};
use afterbay_wire::synth::SynthWire::Msgpack;
use bytes::Bytes;
use serde_json::Value;

/// The frame of a request that ends in one row: a loop of ten ids, or a text.
fn request(rid: &str, is_loop: bool) -> Bytes {
    let last = if is_loop { 10 } else { 1_000 };
    let ids: Vec<i64> = (0..80).map(|id| id % last).collect();
    batch(Msgpack, vec![SynthRequest::new(rid).last(&ids)])
}

#[test]
fn a_model_that_loops_for_everybody_is_not_ready_until_its_plugin_goes_or_says_otherwise() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let settings = "not_ready = { share = 0.6, requests = 2, window = \"1h\" }";
    let with = |line: &str| {
        let config = sandbox.config();
        config.plugin_with("loops", "builtin:stop-loop", settings, "deadline = \"10s\"").plugin_line(line)
    };
    let afterbay = Afterbay::run(&sandbox, &with(""));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut send = |rid: &str, is_loop: bool| {
        sender.send(&request(rid, is_loop));
        rows(&reader.frame()).remove(0)
    };
    let said: ReaderRow = send("a", true);
    assert_eq!(said.finish.as_deref(), Some("stop:stop-loop"));
    send("b", true);
    assert_eq!(afterbay.get("/readyz").status, 200, "the share is judged at the next batch");
    send("c", false);
    let why = "2 of the last 2 requests ended in a loop, within 1h";
    assert!(afterbay.until_ready(503).contains(why), "{}", afterbay.get("/readyz").body);
    assert_eq!(afterbay.event("PluginNotReady")["why"], why);
    assert_eq!(afterbay.plugins()["plugins"][0]["not_ready"], why);

    // Two more requests without a loop: 2 of 4 are below the limit.
    send("d", false);
    send("e", false);
    afterbay.until_ready(200);
    afterbay.event("PluginReady");
    assert_eq!(afterbay.plugins()["plugins"][0]["not_ready"], Value::Null);

    // A shadow's mark has no effect, and the mark of a live plugin ends when the plugin becomes a shadow.
    for rid in ["f", "g", "h", "i"] {
        send(rid, true);
    }
    afterbay.until_ready(503);
    sandbox.write(&with("mode = \"shadow\""));
    afterbay.event("ConfigReloaded");
    afterbay.until_ready(200);
    assert_eq!(afterbay.stop(), 0);
}
