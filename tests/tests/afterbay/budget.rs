//! budget: a tenant gets its tokens once, whatever happens to the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use afterbay_sim::load::Load;
use afterbay_tests::frames::{SynthRequest, batch, frames_of};
use afterbay_tests::{Afterbay, Sandbox, Sender, until};
use afterbay_wire::synth::SynthWire::Msgpack;

const BUDGET: u64 = 1000;

#[test]
fn a_tenant_gets_no_token_past_its_budget_over_kill_9_and_a_reload() {
    let sandbox = Sandbox::new();
    let config = |tokens: u64| {
        let settings = format!("tokens = {tokens}, window = \"366d\"");
        let config =
            sandbox.config().credit(&sandbox).sink("reader = \"tokenizer\"\ntool_calls = \"joined\"");
        config.plugin_with("budget", "builtin:budget", &settings, "deadline = \"10s\"")
    };
    let is_over = Arc::new(AtomicBool::new(false));
    let counted = sandbox.count_tokens(&is_over);
    let load = Load { max_running: 30, ..Load::new(120, 40) };
    let frames = frames_of(&load, Msgpack);
    let endpoint = sandbox.scheduler_side();
    // Also compiles the component, so that the lives below are short.
    let mut afterbay = Afterbay::run(&sandbox, &config(BUDGET));
    let sends = std::thread::spawn(move || {
        let mut sender: Option<Sender> = None;
        for frame in &frames {
            // A frame that a connection did not take whole is lost, like with libzmq.
            let took = sender.get_or_insert_with(|| Sender::connect_to_mortal(&endpoint));
            if !took.try_send(&frame.bytes, Duration::from_secs(10)) {
                sender = None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    for life in 0..4 {
        std::thread::sleep(Duration::from_millis(30 + life * 20));
        afterbay.kill();
        afterbay = Afterbay::run(&sandbox, &config(BUDGET));
    }
    sends.join().unwrap();
    until("the reader has every frame", || {
        let metrics = afterbay.metrics();
        let waits = metrics.stream("outbox_frames") + metrics.stream("spilled_frames");
        waits + metrics.sink("lag_frames") + metrics.sink("queue_frames") == 0
    });
    // The settings change, and the instance with them. The numbers stay.
    sandbox.write(&config(BUDGET + 5));
    afterbay.event("PluginReloaded");
    let received = afterbay.metrics().stream("frames_received_total");
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    for rid in ["new-1", "new-2"] {
        let mut request = SynthRequest::new(rid);
        sender.send(&batch(Msgpack, vec![request.row(&[1, 2, 3, 4])]));
        sender.send(&batch(Msgpack, vec![request.last(&[5])]));
    }
    until("the reader has the new frames", || {
        let metrics = afterbay.metrics();
        let waits =
            metrics.stream("outbox_frames") + metrics.sink("lag_frames") + metrics.sink("queue_frames");
        metrics.stream("frames_received_total") == received + 4 && waits == 0
    });
    let metrics = afterbay.get("/metrics").body;
    let left = "afterbay_plugin_own_budget_tokens_left{stream=\"test\",plugin=\"budget\"} 0";
    assert!(metrics.contains(left), "{metrics}");
    assert!(metrics.contains("afterbay_plugin_store_keys{plugin=\"budget\"} 2"), "{metrics}");
    assert_eq!(afterbay.stop(), 0);
    is_over.store(true, Ordering::SeqCst);
    let tokens = counted.join().unwrap();
    println!("{tokens} tokens of a budget of {}", BUDGET + 5);
    assert!(tokens <= BUDGET + 5, "{tokens}");
    // Batches that ran again after a kill may cut their rows earlier than at first.
    assert!(tokens >= BUDGET - 100, "{tokens}");
}
