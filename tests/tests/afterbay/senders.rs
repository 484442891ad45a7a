//! Schedulers: several at once, those that die, those that speak nonsense.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use afterbay_sim::check::{Checker, Expect, Reading};
use afterbay_sim::load::Load;
use afterbay_tests::commands::verify;
use afterbay_tests::frames::{SynthRequest, batch, frames_of};
use afterbay_tests::peers::{framed, hello};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, until};
use afterbay_wire::synth::SynthWire::Msgpack;

/// A frame that says who sent it and which it is.
fn marked(sender: u8, number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = vec![sender; bytes];
    frame[1..5].copy_from_slice(&number.to_le_bytes());
    frame
}

#[test]
fn two_senders_at_once_are_served_in_turn_and_each_keeps_its_order() {
    const EACH: u32 = 1000;
    let sandbox = Sandbox::new();
    // No reader yet, and a journal that may hold no more: both senders stand at full buffers of the kernel when it begins.
    let config = sandbox.config().sink("queue = { frames = 1 }");
    let config = config.journal("segment = \"1MiB\"").journal("retain = { bytes = \"2MiB\" }");
    let afterbay = Afterbay::run(&sandbox, &config);
    let sent = [0, 1].map(|_| Arc::new(AtomicU32::new(0)));
    let senders = [0, 1].map(|sender| {
        let (mut socket, sent) = (Sender::connect(&sandbox.scheduler_side()), sent[sender].clone());
        std::thread::spawn(move || {
            for number in 0..EACH {
                socket.send(&marked(sender as u8, number, 15_000));
                sent.fetch_add(1, Ordering::SeqCst);
            }
            socket
        })
    });
    let counts = || [0, 1].map(|sender| sent[sender].load(Ordering::SeqCst));
    let mut before = counts();
    until("both senders are held", || {
        std::thread::sleep(Duration::from_millis(100));
        let now = counts();
        std::mem::replace(&mut before, now) == now && now.iter().all(|sent| *sent > 0)
    });
    let held = before;
    assert!(held.iter().all(|sent| *sent < EACH), "nothing holds the senders: {held:?}");
    let received = afterbay.metrics().stream("frames_received_total") as usize;

    let frames = Reader::bind(&sandbox.reader_side()).take(2 * EACH as usize);
    for sender in [0, 1] {
        let numbers = frames.iter().filter(|frame| frame[0] == sender);
        let numbers: Vec<_> =
            numbers.map(|frame| u32::from_le_bytes(frame[1..5].try_into().unwrap())).collect();
        assert_eq!(numbers, (0..EACH).collect::<Vec<_>>(), "sender {sender}");
    }
    // So many of each were waiting then: while these last, the senders' own pace is of no account. (A blocked sender is
    // woken when a quarter of its buffer is left.)
    let came =
        |sender: usize| frames[..received].iter().filter(|frame| usize::from(frame[0]) == sender).count();
    let waited = [0, 1].map(|sender| held[sender] as usize - came(sender));
    let both = *waited.iter().min().unwrap();
    assert!(both >= 5, "only {both} frames of each waited: {waited:?}");
    let mut ahead = 0_i32;
    let ahead = frames[received..received + 2 * both].iter().map(|frame| {
        ahead += if frame[0] == 0 { 1 } else { -1 };
        ahead.abs()
    });
    let most = ahead.max().unwrap();
    assert!(most <= 8, "one sender was {most} frames ahead of the other, of {both} that each had");
    let open: Vec<Sender> = senders.into_iter().map(|sender| sender.join().unwrap()).collect();
    assert_eq!(afterbay.metrics().stream("senders"), 2);
    drop(open);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_sender_that_dies_after_its_last_batch_loses_no_token() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    for round in 0..20 {
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let frames: Vec<_> = (0..3).map(|number| marked(round, number, 30_000)).collect();
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| framed(frame)).collect();
        sender.raw(&bytes);
        // At once: nothing of it may have been read yet.
        drop(sender);
        for frame in frames {
            assert!(reader.frame() == frame, "round {round}");
        }
    }
    let closed = afterbay.event("SenderClosed");
    assert_eq!((&closed["reason"], &closed["frames"]), (&"clean".into(), &3.into()), "{closed}");
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).1["frames"], 60);
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

    let mut multipart = Sender::connect(&sandbox.scheduler_side());
    multipart.raw(&[1, 1, b'a', 0, 1, b'b']);
    multipart.wait_closed();
    next(&mut reader, &mut good);

    // After a batch that came whole, a frame that is cut: the batch is kept, of the cut one nothing goes on.
    let mut cut = Sender::connect(&sandbox.scheduler_side());
    let whole = marked(8, 1, 300);
    cut.send(&whole);
    let half = framed(&marked(8, 2, 5000));
    cut.raw(&half[..2500]);
    drop(cut);
    assert_eq!(reader.frame(), whole);
    next(&mut reader, &mut good);

    let metrics = afterbay.until_metrics("all are told", |metrics| {
        metrics.events("SenderClosed") >= 5 && metrics.stream("frames_received_total") >= 7
    });
    assert_eq!(metrics.events("SenderClosed"), 5);
    until("all are logged", || afterbay.events("SenderClosed").len() == 5);
    assert_eq!((metrics.stream("senders"), metrics.stream("frames_received_total")), (1, 7));
    let reasons: Vec<_> = afterbay
        .events("SenderClosed")
        .iter()
        .map(|event| event["reason"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(reasons.len(), 5, "{reasons:?}");
    assert!(!reasons.iter().any(|reason| reason == "clean"), "{reasons:?}");
    assert_eq!(reasons.last().unwrap(), "cut");
    for said in ["1048576", "multipart"] {
        let whys: Vec<_> =
            afterbay.events("SenderClosed").iter().map(|event| event["why"].to_string()).collect();
        assert!(whys.iter().any(|why| why.contains(said)), "{said} is not in {whys:?}");
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
        checker.frame(frame.into(), &mut |_| Instant::now());
    }
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    assert_eq!(checker.open(), 0);
    let (record, faults) = checker.finish();
    assert!(faults.is_none(), "{faults:?}");
    assert_eq!((record.requests, record.tokens), (80, 80 * 40));
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}
