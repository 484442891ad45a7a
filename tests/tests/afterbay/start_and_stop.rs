//! Starts, stops and kills of several processes on one journal.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{PipeWriter, Write};
use std::process::Stdio;
use std::time::Duration;

use afterbay_sim::load::Load;
use afterbay_tests::commands::{afterbay_command, journal, run_afterbay, verify};
use afterbay_tests::frames::{SynthRequest, batch, frames_of, rows};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, load};
use afterbay_wire::synth::SynthWire::{Msgpack, Pickle};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn sigterm_sends_every_received_frame_and_exits_0_with_a_clean_journal() {
    let sandbox = Sandbox::new();
    let mut afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let frames = load(50, 40, Msgpack);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    frames.iter().for_each(|frame| sender.send(&frame.bytes));
    // A stop at once: most frames are still in the kernel, and no reader is connected.
    afterbay.terminate();
    let mut reader = Reader::bind(&sandbox.reader_side());
    for frame in &frames {
        assert_eq!(reader.frame(), frame.bytes);
    }
    assert_eq!(afterbay.wait(), 0);
    assert_eq!(reader.next_within(Duration::from_millis(20)), None);
    afterbay.event("DrainFinished");
    assert_eq!(afterbay.event("StreamStopped")["frames"], frames.len());
    let (code, report) = verify(&sandbox);
    assert_eq!((code, &report["frames"]), (0, &frames.len().into()), "{report}");
    assert_eq!(report["notes"], serde_json::json!([]));
}

#[test]
fn sigterm_without_a_reader_exits_1_in_time_and_reports_the_unsent_frames() {
    let sandbox = Sandbox::new();
    let mut afterbay = Afterbay::run_with(&sandbox, &sandbox.config(), &["--drain-timeout", "300ms"]);
    let frames = load(5, 5, Msgpack);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    frames.iter().for_each(|frame| sender.send(&frame.bytes));
    let count = frames.len() as u64;
    afterbay
        .until_metrics("every frame is received", |metrics| metrics.stream("frames_received_total") == count);
    afterbay.terminate();
    assert_eq!(afterbay.wait(), 1);
    assert_eq!(afterbay.event("DrainDeadline")["remaining_frames"], count);
    let (code, report) = verify(&sandbox);
    assert_eq!((code, &report["frames"]), (0, &count.into()), "{report}");
}

#[test]
fn live_requests_continue_after_a_restart_without_a_false_gap() {
    for end in [Afterbay::stop as fn(Afterbay) -> i32, |afterbay| {
        afterbay.kill();
        0
    }] {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let mut requests = ["a", "b", "c"].map(SynthRequest::new);
        let mut step = |ids: i64, last: bool| {
            let rows = requests.iter_mut().zip(0..);
            let rows = rows.map(|(request, at)| match last {
                true => request.last(&[100 * at + ids]),
                false => request.row(&[100 * at + ids, 100 * at + ids]),
            });
            batch(Msgpack, rows.collect())
        };
        for run in 0..3 {
            let afterbay = Afterbay::run(&sandbox, &sandbox.config());
            let mut sender = Sender::connect(&sandbox.scheduler_side());
            for ids in 0..4 {
                let frame = step(10 * run + ids, run == 2 && ids == 3);
                sender.send(&frame);
                assert_eq!(reader.frame(), frame);
            }
            let metrics = afterbay.until_metrics("every frame is taken", |metrics| {
                metrics.sink("taken_frame") == 4 * (run as u64 + 1)
            });
            assert_eq!(metrics.stream("request_gaps_total"), 0);
            assert_eq!(metrics.stream("requests_opened_total"), if run == 0 { 3 } else { 0 });
            if run > 0 {
                let recovered = afterbay.event("JournalRecovered");
                assert_eq!(recovered["live_requests"], 3, "{recovered}");
                assert_eq!(recovered["last_frame"], 4 * run, "{recovered}");
            }
            // A stop writes the last outcomes; after a kill the next start accounts the rest.
            assert_eq!(if run == 2 { afterbay.stop() } else { end(afterbay) }, 0);
        }
        let (code, report) = verify(&sandbox);
        assert_eq!((code, &report["requests"], &report["tokens"]), (0, &3.into(), &69.into()), "{report}");
        let listed = journal(&sandbox, &["ls", "--json"]).json_lines();
        let figures = |request: &serde_json::Value| {
            ["rows", "tokens_received", "tokens_forwarded", "gaps"]
                .map(|name| request[name].as_u64().unwrap())
        };
        assert!(listed.iter().all(|request| figures(request) == [12, 23, 23, 0]), "{listed:?}");
    }
}

#[test]
fn a_request_number_is_never_used_twice() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    for run in 0..3 {
        let afterbay = Afterbay::run(&sandbox, &sandbox.config());
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        for _ in 0..5 {
            sender.send(&batch(Pickle, vec![SynthRequest::new("again").last(&[1, 2, 3])]));
            reader.frame();
        }
        afterbay.until_metrics("every request is closed", |metrics| {
            // One more if the earlier run was killed before it accounted its last frame.
            metrics.requests_ended() >= 5 && metrics.sink("taken_frame") == 5 * (run + 1)
        });
        if run == 1 { afterbay.kill() } else { assert_eq!(afterbay.stop(), 0) }
    }
    let listed = journal(&sandbox, &["ls", "--json"]).json_lines();
    let mut numbers: Vec<u64> = listed.iter().map(|request| request["request"].as_u64().unwrap()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!((listed.len(), numbers.len()), (15, 15));
    assert_eq!(verify(&sandbox).0, 0);
}

/// Kills Afterbay several times under load. Received frames are in the journal; frames in the kernel's buffer are lost, as with ZeroMQ.
/// Verify names exactly the requests with missing tokens.
#[test]
fn after_kill_9_the_journal_opens_and_verify_names_the_missing_tokens() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let frames = frames_of(&Load::new(100, 120), Msgpack);
    let mut next = 0;
    for round in 0..4 {
        let afterbay = Afterbay::run(&sandbox, &sandbox.config());
        if round > 0 {
            afterbay.event("JournalRecovered");
        }
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let stop_at = if round == 3 { frames.len() } else { next + 10 + 7 * round };
        while next < stop_at {
            sender.send(&frames[next].bytes);
            next += 1;
            // Some frames are forwarded before the kill.
            if next % 5 == 0 {
                assert!(reader.next_within(afterbay_tests::PATIENCE).is_some());
            }
        }
        if round < 3 {
            afterbay.kill();
            let (_, report) = verify(&sandbox);
            assert_only_counts(&report);
        } else {
            while reader.next_within(Duration::from_millis(200)).is_some() {}
            assert_eq!(afterbay.stop(), 0);
        }
    }
    let sent = frames.iter().map(|frame| frame.tokens).sum::<u64>();
    let (code, report) = verify(&sandbox);
    let kept = report["tokens"].as_u64().unwrap();
    assert!(kept <= sent, "{report}");
    assert_eq!(code, i32::from(kept < sent), "{kept} tokens of {sent} are kept: {report}");
    assert_only_counts(&report);

    // Each request with missing tokens is named.
    let mut lacks: BTreeMap<String, u64> = BTreeMap::new();
    for request in journal(&sandbox, &["ls", "--json"]).json_lines() {
        let [counted, received] =
            ["completion_tokens", "tokens_received"].map(|name| request[name].as_u64().unwrap());
        if counted != received {
            lacks.insert(request["rid"].as_str().unwrap().to_owned(), counted - received);
        }
    }
    assert_eq!(lacks.values().sum::<u64>(), sent - kept);
    let problems: Vec<_> =
        report["problems"].as_array().unwrap().iter().map(|it| it["what"].to_string()).collect();
    for rid in lacks.keys() {
        assert!(problems.iter().any(|problem| problem.contains(rid)), "{rid} is not among {problems:?}");
    }
}

/// Checks that verify reports only missing tokens.
#[track_caller]
fn assert_only_counts(report: &serde_json::Value) {
    let problems = report["problems"].as_array().unwrap().iter();
    let mut whats: Vec<&str> = problems.map(|problem| problem["what"].as_str().unwrap()).collect();
    whats.retain(|what| !(what.contains("the scheduler counted") || what.contains(" tokens, expected ")));
    assert!(whats.is_empty(), "{whats:?}");
}

#[test]
fn a_torn_tail_is_cut_and_reported_and_earlier_frames_remain() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    for number in 0..5_u8 {
        sender.send(&[number; 1000]);
        reader.frame();
    }
    afterbay.until_metrics("every frame is taken", |metrics| metrics.sink("taken_frame") == 5);
    afterbay.kill();
    let segment = youngest_segment(&sandbox);
    let whole = std::fs::metadata(&segment).unwrap().len();
    // Like after a power cut: the end of the last frame and everything after it is missing.
    let frame = std::fs::read(&segment).unwrap().windows(1000).position(|bytes| bytes == [4; 1000]).unwrap();
    OpenOptions::new().write(true).open(&segment).unwrap().set_len(frame as u64 + 500).unwrap();
    let (code, report) = verify(&sandbox);
    assert_eq!(code, 0, "{report}");
    assert!(report["notes"][0].as_str().unwrap().contains("torn"), "{report}");
    assert!(whole > frame as u64 + 1000);

    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let cut = afterbay.event("JournalCut");
    assert!((500..600).contains(&cut["cut_bytes"].as_u64().unwrap()), "{cut}");
    assert_eq!(afterbay.event("JournalRecovered")["last_frame"], 4);
    sender = Sender::connect(&sandbox.scheduler_side());
    sender.send(b"after");
    assert_eq!(reader.frame(), b"after");
    assert_eq!(afterbay.stop(), 0);
    let (code, report) = verify(&sandbox);
    assert_eq!((code, &report["frames"]), (0, &5.into()), "{report}");
}

fn youngest_segment(sandbox: &Sandbox) -> std::path::PathBuf {
    let files = std::fs::read_dir(sandbox.journal().join(afterbay_tests::sandbox::STREAM)).unwrap();
    let is_segment = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "seg");
    let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).filter(is_segment).collect();
    files.sort();
    files.pop().unwrap()
}

#[test]
fn a_second_process_on_the_same_journal_is_refused_with_the_id_of_the_first() {
    let sandbox = Sandbox::new();
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let other = sandbox.text("other.toml");
    let config = sandbox.config().listen(&sandbox.ipc("in2")).to_toml();
    std::fs::write(&other, config).unwrap();
    let refused = run_afterbay(&["run", "--config", &other]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains(&format!("locked by process {}", afterbay.pid())), "{}", refused.stderr);
    assert!(!sandbox.path("in2").exists(), "the process bound its socket before it had the lock");
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_socket_file_is_replaced_only_if_nobody_listens() {
    let sandbox = Sandbox::new();
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let other = Sandbox::new();
    let config = other.write(&other.config().listen(&sandbox.scheduler_side()));
    let refused = run_afterbay(&["run", "--config", &config]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains(&sandbox.scheduler_side()), "{}", refused.stderr);
    afterbay.kill();
    assert!(sandbox.path("in").exists());
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(sandbox.path("in")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    Sender::connect(&sandbox.scheduler_side()).send(b"hello");
    assert_eq!(reader.frame(), b"hello");
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_gap_of_the_scheduler_is_reported_counted_and_found_by_verify() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let (mut whole, mut lacks) = (SynthRequest::new("whole"), SynthRequest::new("lacks"));
    let mut send = |rows| {
        let frame = batch(Msgpack, rows);
        sender.send(&frame);
        assert_eq!(reader.frame(), frame);
        self::rows(&frame)
    };
    send(vec![whole.row(&[1]), lacks.row(&[1])]);
    lacks.lose(3);
    send(vec![whole.row(&[2]), lacks.row(&[2])]);
    let last = send(vec![whole.last(&[3]), lacks.last(&[3])]);
    assert_eq!((last[0].completion_tokens, last[1].completion_tokens), (3, 6));
    let gap = afterbay.event("RequestGap");
    assert_eq!((&gap["rid"], &gap["frame"]), (&"lacks".into(), &2.into()), "{gap}");
    assert_eq!(afterbay.event("RequestImbalance")["rid"], "lacks");
    let metrics = afterbay.metrics();
    assert_eq!((metrics.stream("request_gaps_total"), metrics.stream("request_imbalances_total")), (1, 1));
    assert_eq!(afterbay.stop(), 0);
    let (code, report) = verify(&sandbox);
    assert_eq!(code, 1);
    assert_only_counts(&report);
    let problems = report["problems"].to_string();
    assert!(problems.contains("lacks") && !problems.contains("whole"), "{problems}");
    let shown = journal(&sandbox, &["show", "lacks"]).success();
    assert!(shown.contains("gap"), "{shown}");
}

#[test]
fn a_stream_continues_after_its_log_is_closed() {
    let (log, write) = std::io::pipe().unwrap();
    run_with_log(write, || drop(log));
}

#[test]
fn a_log_that_nobody_reads_stops_no_token_and_keeps_no_process() {
    let (_log, write) = std::io::pipe().unwrap();
    // Full before the first line.
    rustix::io::ioctl_fionbio(&write, true).unwrap();
    while (&write).write(&[b'\n'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&write, false).unwrap();
    run_with_log(write, || ());
}

/// Runs Afterbay with this log. Calls `spoil` before the first frame.
fn run_with_log(write: PipeWriter, spoil: impl FnOnce()) {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let mut run = afterbay_command(&["run", "--config", &sandbox.write(&sandbox.config())]);
    let mut running = run.stdin(Stdio::null()).stderr(write).spawn().unwrap();
    drop(run);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    spoil();
    // Each frame causes a line of the log.
    for number in 0..3 {
        let mut lacks = SynthRequest::new(&format!("lacks-{number}"));
        lacks.lose(3);
        let frame = batch(Msgpack, vec![lacks.last(&[1])]);
        sender.send(&frame);
        assert_eq!(reader.frame(), frame);
    }
    kill_process(Pid::from_child(&running), Signal::TERM).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(0));
    assert_eq!(verify(&sandbox).0, 1, "the gaps");
}
