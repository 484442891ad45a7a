//! Several schedulers, restarted schedulers, and senders of garbage.

use std::time::Instant;

use afterbay_sim::check::{Checker, Expect, Reading};
use afterbay_sim::load::Load;
use afterbay_tests::commands::verify;
use afterbay_tests::frames::{SynthRequest, batch, frames_of};
use afterbay_tests::peers::{framed, hello};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender};
use afterbay_wire::synth::SynthWire::Msgpack;

/// A frame that begins with its sender and its number.
fn marked(sender: u8, number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = vec![sender; bytes];
    frame[1..5].copy_from_slice(&number.to_le_bytes());
    frame
}

#[test]
fn a_sender_of_garbage_is_closed_and_reported_and_the_others_continue() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config().stream("max_message = \"1MiB\""));
    let mut good = Sender::connect(&sandbox.scheduler_side());
    let mut number = 0;
    let mut next = |reader: &mut Reader, good: &mut Sender| {
        number += 1;
        let frame = marked(9, number, 64);
        good.send(&frame);
        assert_eq!(reader.frame(), frame);
    };
    next(&mut reader, &mut good);

    let mut http = Sender::silent(&sandbox.scheduler_side());
    http.raw(b"GET / HTTP/1.1\r\nHost: example\r\nAccept: */*\r\nUser-Agent: somebody who is lost\r\n\r\n");
    http.wait_closed();
    next(&mut reader, &mut good);

    let mut other_type = Sender::silent(&sandbox.scheduler_side());
    other_type.raw(&hello("REQ"));
    other_type.wait_closed();
    next(&mut reader, &mut good);

    let mut too_large = Sender::connect(&sandbox.scheduler_side());
    too_large.raw(&[&[2][..], &(1_u64 << 62).to_be_bytes()].concat());
    too_large.wait_closed();
    next(&mut reader, &mut good);

    let mut undefined = Sender::connect(&sandbox.scheduler_side());
    undefined.raw(&[8, 1, b'a']);
    undefined.wait_closed();
    next(&mut reader, &mut good);

    // A whole batch and a cut frame: the batch is forwarded, the cut frame is not.
    let mut cut = Sender::connect(&sandbox.scheduler_side());
    let whole = marked(8, 1, 300);
    cut.send(&whole);
    let half = framed(&marked(8, 2, 5000));
    cut.raw(&half[..2500]);
    drop(cut);
    assert_eq!(reader.frame(), whole);
    next(&mut reader, &mut good);

    let metrics = afterbay.until_metrics("every event is published", |metrics| {
        metrics.events("SenderClosed") >= 5 && metrics.stream("frames_received_total") >= 7
    });
    assert_eq!(metrics.events("SenderClosed"), 5);
    let closed = afterbay.all_events("SenderClosed", 5);
    assert_eq!((metrics.stream("senders"), metrics.stream("frames_received_total")), (1, 7));
    let reasons: Vec<_> = closed.iter().map(|event| event["reason"].as_str().unwrap()).collect();
    assert!(!reasons.contains(&"clean"), "{reasons:?}");
    assert_eq!(reasons.last(), Some(&"cut"));
    for words in ["1048576", "flags 0x08"] {
        let whys: Vec<_> = closed.iter().map(|event| event["why"].to_string()).collect();
        assert!(whys.iter().any(|why| why.contains(words)), "{words} is not in {whys:?}");
    }
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(reader.rest().len(), 0);
}

#[test]
fn a_restarted_scheduler_is_served_like_the_first() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    for round in 0..3 {
        let mut request = SynthRequest::new("the same rid each time");
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        for frame in [batch(Msgpack, vec![request.row(&[1])]), batch(Msgpack, vec![request.last(&[2])])] {
            sender.send(&frame);
            assert_eq!(reader.frame(), frame, "round {round}");
        }
    }
    assert_eq!(afterbay.stop(), 0);
    let (code, report) = verify(&sandbox);
    assert_eq!((code, &report["requests"], &report["tokens"]), (0, &3.into(), &6.into()), "{report}");
}

#[test]
fn sixteen_senders_lose_no_token() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let loads = (0..16).map(|seed| frames_of(&Load { seed, ..Load::new(5, 40) }, Msgpack));
    let loads: Vec<_> = loads.collect();
    let sent = loads.iter().map(Vec::len).sum();
    let senders = loads.into_iter().map(|frames| {
        let mut socket = Sender::connect(&sandbox.scheduler_side());
        std::thread::spawn(move || frames.iter().for_each(|frame| socket.send(&frame.bytes)))
    });
    let senders: Vec<_> = senders.collect();
    let mut checker = Checker::new(Reading::Deltas, Expect::Simulated);
    for frame in reader.take(sent) {
        checker.frame(frame.into(), &mut Instant::now);
    }
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    assert_eq!(checker.open(), 0);
    let (record, faults) = checker.finish();
    assert!(faults.is_none(), "{faults:?}");
    assert_eq!((record.requests, record.tokens), (80, 80 * 40));
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}
