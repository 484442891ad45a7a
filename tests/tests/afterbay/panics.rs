//! Injected panics in a stream's thread, at every stage of the pipeline.

use std::time::Duration;

use afterbay_sim::Stop;
use afterbay_sim::load::Load;
use afterbay_sim::reader::{self, Until};
use afterbay_tests::commands::verify;
use afterbay_tests::frames::{WIRES, frames_of};
use afterbay_tests::holds::holding;
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, load};
use afterbay_wire::synth::SynthWire;

/// The stream panics at one in 30 of its marked places, and the reader is slow.
#[test]
fn panics_lose_and_repeat_no_held_row() {
    const REQUESTS: u64 = 100;
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let frames = frames_of(&Load::new(REQUESTS, 60), wire);
        let mut options = reader::Options::new(sandbox.reader_side());
        options.credit = Some(sandbox.credit());
        // Slow enough that rows are joined.
        options.cost_per_row = Duration::from_micros(20);
        options.until =
            Until { requests: Some(REQUESTS), linger: Duration::from_millis(100), ..Until::default() };
        let reads = std::thread::spawn(move || reader::run(options, &Stop::new(), &mut |_| {}).unwrap());
        let config = holding(&sandbox, "millis = 15, by_remainder = true").credit(&sandbox);
        let afterbay = Afterbay::run_panicking(&sandbox, &config, "3:30");
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        for (index, frame) in frames.iter().enumerate() {
            sender.send(&frame.bytes);
            if index.is_multiple_of(8) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let received = reads.join().unwrap();
        assert!(received.is_whole(), "{wire:?}: {:?}\n{}", received.faults, afterbay.log());
        assert_eq!(received.record.tokens, REQUESTS * 60);
        let metrics = afterbay.metrics();
        let panics = metrics.stream("panics_total");
        assert!(panics > 5, "{panics} panics");
        let verdicts =
            ["hold", "release"].map(|it| metrics.plugin_by("holds", "verdicts_total", "action", it));
        assert!(
            verdicts.iter().all(|count| *count > 0),
            "{wire:?}: {verdicts:?} rows were held and released"
        );
        assert_eq!(metrics.plugin("holds", "bypassed_batches_total"), 0, "{wire:?}");
        let wrong = ["request_gaps_total", "request_imbalances_total"].map(|name| metrics.stream(name));
        assert_eq!(wrong, [0, 0], "{wire:?}");
        assert_eq!(metrics.events("SinkConnected"), 1, "the connection was closed");
        assert_eq!(metrics.stream("senders"), 1);
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
    }
}

#[test]
fn a_poison_frame_is_forwarded_unchanged_and_reported() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run_panicking(&sandbox, &sandbox.config(), "frame:7");
    let frames = load(20, 30, SynthWire::Msgpack);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    for frame in &frames {
        sender.send(&frame.bytes);
        assert_eq!(reader.frame(), frame.bytes);
    }
    let event = afterbay.event("FrameNotUnderstood");
    assert_eq!((&event["frame"], &event["kind"]), (&7.into(), &"panic".into()), "{event}");
    let panics = afterbay.events("StreamPanicked");
    assert!(panics.iter().all(|panic| panic["frame"] == 7), "{panics:?}");
    assert_eq!(afterbay.metrics().stream("panics_total"), 3);
    afterbay.until_healthy();
    assert_eq!(afterbay.stop(), 0);
}
