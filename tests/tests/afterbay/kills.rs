//! Repeated kill -9 under load loses only frames that were unread in the kernel's buffer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use afterbay_journal::reader::{JournalReader, JournalRecord, ReadFrom};
use afterbay_sim::load::Load;
use afterbay_tests::commands::{journal, json_lines, verify};
use afterbay_tests::frames::{Ids, frames_of, ids};
use afterbay_tests::{Afterbay, Sandbox, Sender, trials, until};
use afterbay_wire::synth::SynthWire::Msgpack;

/// `AFTERBAY_TEST_TRIALS` sets the number of lives. A release build has no injected aborts.
#[test]
fn kill_9_under_load_repeats_nothing_and_loses_no_journaled_token() {
    let lives = trials(6);
    let sandbox = Sandbox::new();
    let config = sandbox.config().credit(&sandbox).sink("reader = \"tokenizer\"\ntool_calls = \"joined\"");
    let drained = Arc::new(AtomicBool::new(false));
    let reads = sandbox.read_rows(&drained, |received: &mut Ids, rows| {
        // Slow enough that rows are joined.
        std::thread::sleep(Duration::from_micros(10) * rows.len() as u32);
        for row in rows {
            received.entry(row.rid).or_default().extend(row.ids);
        }
    });

    // Requests begin and end during all lives.
    let load = Load { max_running: 100, ..Load::new(80 * lives, 60) };
    let frames = frames_of(&load, Msgpack);
    let sent = ids(frames.iter().map(|frame| &frame.bytes));
    let (endpoint, over) = (sandbox.scheduler_side(), Arc::new(AtomicBool::new(false)));
    let is_over = over.clone();
    let sends = std::thread::spawn(move || {
        let mut sender: Option<Sender> = None;
        for frame in &frames {
            // A frame that a connection did not take whole is lost, like with libzmq.
            let took = sender.get_or_insert_with(|| Sender::connect_to_mortal(&endpoint));
            if !took.try_send(&frame.bytes, Duration::from_secs(10)) {
                sender = None;
            }
            // Without pauses after the last kill.
            if !is_over.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    });
    for life in 0..lives {
        if life.is_multiple_of(2) {
            // Dies at a random place of the pipeline,
            Afterbay::run_to_die(&sandbox, &config, life, 60, Duration::from_secs(4));
        } else {
            // or at a random time.
            let afterbay = Afterbay::run(&sandbox, &config);
            std::thread::sleep(Duration::from_millis(20 + life * 37 % 150));
            afterbay.kill();
        }
    }
    over.store(true, Ordering::SeqCst);
    let afterbay = Afterbay::run(&sandbox, &config);
    sends.join().unwrap();
    until("the reader has every frame", || {
        let metrics = afterbay.metrics();
        let waits = metrics.stream("outbox_frames") + metrics.stream("spilled_frames");
        waits + metrics.sink("lag_frames") + metrics.sink("queue_frames") == 0
    });
    assert_eq!(afterbay.stop(), 0);
    drained.store(true, Ordering::SeqCst);
    let received = reads.join().unwrap();

    let journaled = journaled(&sandbox);
    assert_eq!(received.len(), journaled.len());
    for (rid, ids) in &journaled {
        assert_eq!(
            received.get(rid),
            Some(ids),
            "{rid}: the reader does not have the journaled ids once and in order"
        );
    }
    let lost: BTreeSet<&String> =
        sent.iter().filter(|(rid, ids)| journaled.get(*rid) != Some(ids)).map(|it| it.0).collect();
    let listed = json_lines(&journal(&sandbox, &["ls", "--json"]).stdout);
    let rid = |request: &serde_json::Value| request["rid"].as_str().unwrap().to_owned();
    let named: BTreeSet<String> = listed.iter().filter(|it| it["gaps"] != 0).map(rid).collect();
    let open: BTreeSet<String> = listed.iter().filter(|it| it["state"] == "live").map(rid).collect();
    eprintln!("{lives} kills: {} of {} requests lost unread bytes", lost.len(), sent.len());
    for rid in &lost {
        // A later row shows the loss. Without a later row the request is still live.
        let is_known = named.contains(*rid) || open.contains(*rid) || !journaled.contains_key(*rid);
        assert!(is_known, "{rid} lost tokens without a report");
    }
    assert!(named.iter().all(|rid| lost.contains(rid)), "a gap without a loss");
    assert_eq!(verify(&sandbox).0, i32::from(!named.is_empty()));
}

/// The ids in the journal.
fn journaled(sandbox: &Sandbox) -> Ids {
    let stream = JournalReader::open(&sandbox.journal()).unwrap().stream("test").unwrap();
    let mut tail = stream.tail(ReadFrom::Start).unwrap();
    let mut frames = Vec::new();
    while let Some(record) = tail.next().unwrap() {
        if let JournalRecord::Frame(frame) = record {
            frames.push(frame.bytes);
        }
    }
    ids(&frames)
}
