//! A component file that changes while it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use afterbay_sim::load::Load;
use afterbay_tests::afterbay::{done, verify};
use afterbay_tests::components::{example, guest, install};
use afterbay_tests::frames::{Request, batch, frames_of, rows};
use afterbay_tests::{Afterbay, Reader, Sender, Stage, until};
use afterbay_wire::synth::SynthWire::Msgpack;

#[test]
fn a_component_is_swapped_between_two_batches_with_no_token_lost_or_repeated() {
    for state in ["migrate", "replay", "drain"] {
        swapped(state);
    }
}

fn swapped(state: &str) {
    const SWAPS: u8 = 3;
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let component = stage.path("plugin.wasm");
    install(&example("stop-on-loop"), 0, &component);
    let afterbay = Afterbay::run(
        &stage,
        &stage.config().plugin("p", &component, "").plugin_line(&format!("state = {state:?}")),
    );
    let frames = Arc::new(frames_of(&Load { max_running: 8, ..Load::new(4000, 100) }, Msgpack));
    let mut sender = Sender::connect(&stage.scheduler_side());
    let (enough, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let sends = std::thread::spawn({
        let (frames, enough, sent) = (frames.clone(), enough.clone(), sent.clone());
        move || {
            for frame in frames.iter().take_while(|_| !enough.load(Ordering::SeqCst)) {
                sender.send(&frame.bytes);
                sent.fetch_add(1, Ordering::SeqCst);
                // Some thousand frames a second: swaps come in the middle of them.
                std::thread::sleep(Duration::from_micros(200));
            }
            sender
        }
    });
    let reads = std::thread::spawn({
        let (frames, enough, sent) = (frames.clone(), enough.clone(), sent.clone());
        move || {
            let mut read = 0;
            while !enough.load(Ordering::SeqCst) || read < sent.load(Ordering::SeqCst) {
                if let Some(frame) = reader.next_within(Duration::from_millis(20)) {
                    assert_eq!(frame, frames[read].bytes, "frame {read}");
                    read += 1;
                }
            }
            read
        }
    });
    let mut at = Vec::new();
    for version in 1..=SWAPS {
        install(&example("stop-on-loop"), version, &component);
        afterbay.until_metrics("it is swapped", |metrics| {
            metrics.plugin_by("p", "reloads_total", "result", "ok") == u64::from(version)
        });
        at.push(sent.load(Ordering::SeqCst));
        assert!(!reads.is_finished(), "{}", afterbay.log());
    }
    assert!(at.is_sorted_by(|one, next| one < next), "no frame between two swaps: {at:?}");
    assert!(*at.last().unwrap() < frames.len(), "the load was over before the last swap");
    enough.store(true, Ordering::SeqCst);
    let read = reads.join().unwrap();
    sends.join().unwrap();
    assert_eq!(read, sent.load(Ordering::SeqCst));
    let digests: Vec<String> =
        afterbay.events("PluginReloaded").iter().map(|event| event["digest"].to_string()).collect();
    assert_eq!(digests.len(), usize::from(SWAPS), "{digests:?}");
    let metrics = afterbay.metrics();
    assert_eq!(metrics.plugin("p", "calls_total"), read as u64);
    assert_eq!((metrics.plugin("p", "bypassed_batches_total"), metrics.stream("request_gaps_total")), (0, 0));
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&stage).0, 0);
}

#[test]
fn a_component_that_has_not_the_pinned_digest_is_refused_at_the_start_and_at_a_reload() {
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let component = stage.path("plugin.wasm");
    install(&guest("nothing"), 0, &component);
    let loads = Afterbay::run(&stage, &stage.config().plugin("p", &component, ""));
    let is = loads.event("PluginLoaded")["digest"].as_str().unwrap().to_owned();
    assert_eq!(loads.stop(), 0);
    let pinned = |sha256: &str| {
        stage.config().plugin("p", &component, "").plugin_line(&format!("sha256 = {sha256:?}"))
    };
    let other = "0".repeat(64);
    let config = stage.write(&pinned(&other));
    let refused = done(&["check", "--config", &config]);
    let why = format!("its sha256 is {is}, and must be {other}");
    assert!(refused.stderr.contains(&why), "{}", refused.stderr);
    assert_eq!(refused.code, 64);

    let afterbay = Afterbay::run(&stage, &pinned(&is));
    install(&guest("nothing"), 1, &component);
    let failed = afterbay.event("PluginReloadFailed");
    assert!(failed["why"].as_str().unwrap().contains(&format!("must be {is}")), "{failed}");
    let mut sender = Sender::connect(&stage.scheduler_side());
    let frame = batch(Msgpack, vec![Request::new("a").last(&[1])]);
    sender.send(&frame);
    assert_eq!(reader.frame(), frame);
    assert_eq!(afterbay.metrics().plugin("p", "calls_total"), 1);
    assert_eq!(afterbay.stop(), 0);
}

/// Longer by `AFTERBAY_TEST_TRIALS` (a trial is ten swaps, two seconds).
#[test]
fn components_and_settings_are_swapped_every_200_ms_under_load_with_no_token_lost_or_repeated() {
    let trials: u32 = std::env::var("AFTERBAY_TEST_TRIALS").map_or(1, |trials| trials.parse().unwrap());
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let component = stage.path("plugin.wasm");
    install(&example("stop-on-loop"), 0, &component);
    let config = |window: u32| {
        let config = stage.config().plugin("stays", &guest("nothing"), "");
        config.plugin("p", &component, &format!("window = {window}"))
    };
    let afterbay = Afterbay::run(&stage, &config(16));
    let frames = Arc::new(frames_of(&Load { max_running: 8, ..Load::new(400, 100) }, Msgpack));
    let ends = Arc::new(AtomicBool::new(false));
    let mut sender = Sender::connect(&stage.scheduler_side());
    // Each of a load's requests ends in it, so it can be played again and again.
    let sends = std::thread::spawn({
        let (frames, ends) = (frames.clone(), ends.clone());
        move || {
            let mut sent = 0;
            while !ends.load(Ordering::SeqCst) {
                for frame in frames.iter() {
                    sender.send(&frame.bytes);
                    sent += 1;
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            (sender, sent)
        }
    });
    let (read, reads) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(true)));
    let reading = std::thread::spawn({
        let (frames, read, reads) = (frames.clone(), read.clone(), reads.clone());
        move || {
            while reads.load(Ordering::SeqCst) {
                if let Some(frame) = reader.next_within(Duration::from_millis(20)) {
                    let at = read.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(frame, frames[at % frames.len()].bytes, "frame {at}");
                }
            }
        }
    });
    for swap in 1..=10 * trials {
        std::thread::sleep(Duration::from_millis(200));
        match swap % 2 {
            0 => install(&example("stop-on-loop"), (swap % 251) as u8 + 1, &component),
            _ => drop(stage.write(&config(16 + swap % 100))),
        }
        afterbay.until_metrics("it is swapped", |metrics| {
            metrics.plugin_by("p", "reloads_total", "result", "ok") >= u64::from(swap)
        });
        assert!(!reading.is_finished(), "{}", afterbay.log());
    }
    ends.store(true, Ordering::SeqCst);
    let (_sender, sent) = sends.join().unwrap();
    until("all are read", || read.load(Ordering::SeqCst) == sent || reading.is_finished());
    reads.store(false, Ordering::SeqCst);
    reading.join().unwrap();
    let metrics = afterbay.metrics();
    assert_eq!(metrics.plugin_by("p", "reloads_total", "result", "ok"), u64::from(10 * trials));
    assert_eq!(
        (metrics.plugin("p", "calls_total"), metrics.plugin("stays", "calls_total")),
        (sent as u64, sent as u64)
    );
    assert_eq!(metrics.plugin_by("stays", "reloads_total", "result", "ok"), 0);
    assert_eq!((metrics.plugin("p", "bypassed_batches_total"), metrics.stream("request_gaps_total")), (0, 0));
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&stage).0, 0);
}

#[test]
fn a_bad_component_keeps_the_one_before_and_says_why_and_a_good_one_after_it_takes_over() {
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let component = stage.path("plugin.wasm");
    install(&guest("nothing"), 0, &component);
    let afterbay = Afterbay::run(&stage, &stage.config().plugin("p", &component, ""));
    let mut sender = Sender::connect(&stage.scheduler_side());
    let mut looped = Request::new("looped");
    let mut step = || {
        let frame = batch(Msgpack, vec![looped.row(&[9; 16])]);
        sender.send(&frame);
        (rows(&frame), rows(&reader.frame()))
    };
    for _ in 0..5 {
        let (sent, came) = step();
        assert_eq!(sent, came);
    }
    std::fs::write(&component, "half a comp").unwrap();
    let failed = afterbay.event("PluginReloadFailed");
    assert!(failed["why"].as_str().unwrap().contains("plugin \"p\""), "{failed}");
    let metrics = afterbay.metrics();
    assert_eq!(metrics.plugin_by("p", "reloads_total", "result", "failed"), 1);
    let (sent, came) = step();
    assert_eq!(sent, came);
    assert_eq!(afterbay.metrics().plugin("p", "calls_total"), 6, "the one before no longer runs");
    assert_eq!(afterbay.get("/readyz").status, 200);

    // Another plugin altogether: it is told of the request that is under way, and finishes it.
    install(&example("stop-on-loop"), 0, &component);
    let reloaded = afterbay.event("PluginReloaded");
    assert_eq!(
        (&reloaded["resumed_requests"], &reloaded["version"]),
        (&1.into(), &"0.1.0".into()),
        "{reloaded}"
    );
    let ends = (0..8).find_map(|_| step().1[0].finish.clone());
    assert_eq!(ends.as_deref(), Some("stop:stop-on-loop"));
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&stage).0, 0);
}

#[test]
fn a_component_that_refuses_the_settings_keeps_the_one_before() {
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let component = stage.path("plugin.wasm");
    install(&example("stop-on-loop"), 0, &component);
    let config = stage.config().plugin("p", &component, "window = 8");
    let afterbay = Afterbay::run(&stage, &config);
    install(&guest("judges"), 0, &component);
    let failed = afterbay.event("PluginReloadFailed");
    assert!(failed["why"].as_str().unwrap().contains("action"), "{failed}");
    let mut sender = Sender::connect(&stage.scheduler_side());
    sender.send(&batch(Msgpack, vec![Request::new("r").row(&[1; 8])]));
    assert_eq!(rows(&reader.frame())[0].finish.as_deref(), Some("stop:stop-on-loop"));
    assert_eq!(afterbay.stop(), 0);
}
