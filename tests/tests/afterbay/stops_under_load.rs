//! Stops under load with libzmq's PUSH: Afterbay receives the frames in the kernel, and the rest after the next start.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use afterbay_tests::admin::Metrics;
use afterbay_tests::commands::{journal, verify};
use afterbay_tests::frames::{SynthRequest, batch};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender};
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::Value;

use crate::python::PythonPeer;

const FRAMES: u64 = 600;
const FRAME_BYTES: usize = 3000;
/// libzmq takes up to 8 KiB of messages out of its queue for one write and loses those that it could not write.
const LOST_MAX: u64 = 8192 / FRAME_BYTES as u64 + 1;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Pace {
    Fast,
    Slow,
    Stalled,
}

/// Stops Afterbay twice while libzmq sends, and once at the end. Returns the numbers of the received frames in order.
fn stops_under_load(listen: &str, sandbox: &Sandbox, pace: Pace) -> Vec<u64> {
    let config = sandbox.config().listen(listen);
    let mut reader = Reader::bind(&sandbox.reader_side());
    let reads = Arc::new(AtomicBool::new(pace != Pace::Stalled));
    let ends = Arc::new(AtomicBool::new(false));
    let reading = std::thread::spawn({
        let (reads, ends) = (reads.clone(), ends.clone());
        move || {
            let mut numbers = Vec::new();
            loop {
                std::thread::sleep(Duration::from_millis(if pace == Pace::Fast { 0 } else { 5 }));
                if !reads.load(Ordering::SeqCst) {
                    continue;
                }
                match reader.next_within(Duration::from_millis(100)) {
                    Some(frame) => numbers.push(u64::from_le_bytes(frame[8..16].try_into().unwrap())),
                    // Every frame has been received.
                    None if ends.load(Ordering::SeqCst) => break,
                    None => {}
                }
            }
            numbers
        }
    });
    let mut peer = PythonPeer::start();
    let run = || Afterbay::run_with(sandbox, &config, &["--drain-timeout", "500ms"]);
    let mut afterbay = run();
    peer.ask(&format!("push a connect {listen}"));
    for (half, first) in [0, FRAMES / 2].into_iter().enumerate() {
        for at in (0..FRAMES / 2).step_by(20) {
            peer.send_command(&format!("send a 1 {} 20 {FRAME_BYTES}", first + at));
            peer.send_command("sleep 5");
        }
        afterbay.until_metrics("some are received", |metrics| metrics.stream("frames_received_total") > 20);
        afterbay.terminate();
        let code = afterbay.wait();
        assert!(code == 0 || pace != Pace::Fast, "stop {half} of a {pace:?} reader exits {code}");
        // Wait for all answers, so that libzmq has every frame before the next half.
        (0..FRAMES / 20).for_each(|_| drop(peer.answer()));
        afterbay = run();
    }
    reads.store(true, Ordering::SeqCst);
    let is_sent = |metrics: &Metrics| metrics.sink("taken_frame") + 2 * LOST_MAX >= FRAMES;
    afterbay.until_metrics("every frame is sent except those that may be lost", is_sent);
    assert_eq!(afterbay.stop(), 0);
    ends.store(true, Ordering::SeqCst);
    reading.join().unwrap()
}

#[test]
fn a_stop_under_load_loses_only_frames_that_libzmq_had_taken_out_of_its_queue() {
    for (pace, is_tcp) in [(Pace::Fast, false), (Pace::Slow, true), (Pace::Stalled, false)] {
        let sandbox = Sandbox::new();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let listen = if is_tcp { format!("tcp://127.0.0.1:{port}") } else { sandbox.scheduler_side() };
        let numbers = stops_under_load(&listen, &sandbox, pace);
        let what = format!("{pace:?} reader, {listen}");
        assert!(numbers.is_sorted_by(|one, next| one < next), "{what}: repeated or out of order");
        let missing = FRAMES - numbers.len() as u64;
        assert!(missing <= 2 * LOST_MAX, "{what}: {missing} of {FRAMES} frames are missing");
        let absent: Vec<u64> = (0..FRAMES).filter(|number| !numbers.contains(number)).collect();
        assert_eq!(verify(&sandbox).1["frames"], numbers.len(), "{what}: the reader has not got {absent:?}");
    }
}

#[test]
fn frames_lost_at_a_stop_are_reported_in_one_event() {
    const REQUESTS: u64 = 40;
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let mut requests: Vec<SynthRequest> =
        (0..REQUESTS).map(|at| SynthRequest::new(&format!("r-{at}"))).collect();
    let mut step = |sender: &mut Sender, last: bool| {
        let rows =
            requests.iter_mut().map(|request| if last { request.last(&[1]) } else { request.row(&[1]) });
        let frame = batch(Msgpack, rows.collect());
        sender.send(&frame);
        assert_eq!(reader.frame(), frame);
        for request in &mut requests {
            // Two frames of one token per row are lost before the next start.
            request.lose(2);
        }
    };
    let mut afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    step(&mut sender, false);
    assert_eq!(afterbay.stop(), 0);

    afterbay = Afterbay::run(&sandbox, &sandbox.config());
    sender = Sender::connect(&sandbox.scheduler_side());
    step(&mut sender, false);
    let missing = afterbay.event("FramesMissing");
    let figures = ["frames", "requests", "tokens", "row_tokens", "silent"].map(|name| missing[name].as_u64());
    assert_eq!(figures, [2, REQUESTS, 2 * REQUESTS, 1, 0].map(Some), "{missing}");
    assert!(afterbay.events("RequestGap").is_empty());
    assert_eq!(afterbay.metrics().stream("request_gaps_total"), REQUESTS);
    assert_eq!(afterbay.stop(), 0);

    afterbay = Afterbay::run(&sandbox, &sandbox.config());
    sender = Sender::connect(&sandbox.scheduler_side());
    step(&mut sender, true);
    afterbay.until_metrics("every request has ended", |metrics| metrics.requests_ended() == REQUESTS);
    // The event of this start counts only the frames that were lost at the last stop.
    let missing = afterbay.event("FramesMissing");
    assert_eq!((&missing["frames"], &missing["tokens"]), (&2.into(), &(2 * REQUESTS).into()), "{missing}");
    assert!(afterbay.events("RequestImbalance").is_empty());
    assert_eq!(afterbay.metrics().stream("request_imbalances_total"), REQUESTS);
    assert_eq!(afterbay.stop(), 0);
    let listed = journal(&sandbox, &["ls", "--json"]).json_lines();
    let figures =
        |request: &Value| ["gaps", "tokens_received", "completion_tokens"].map(|it| request[it].as_u64());
    assert!(listed.iter().all(|request| figures(request) == [2, 3, 7].map(Some)), "{listed:?}");
}
