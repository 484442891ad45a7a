//! A component file that changes while its plugin runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use afterbay_sim::frames::Frame;
use afterbay_sim::load::Load;
use afterbay_tests::commands::{run_afterbay, verify};
use afterbay_tests::components::{example, guest, install};
use afterbay_tests::frames::{SynthRequest, batch, frames_of, rows};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, trials};
use afterbay_wire::synth::SynthWire::Msgpack;

#[test]
fn a_component_is_swapped_between_two_batches_without_loss_or_repetition() {
    const SWAPS: u8 = 3;
    let sandbox = Sandbox::new();
    let reader = Reader::bind(&sandbox.reader_side());
    let component = sandbox.path("plugin.wasm");
    install(&guest("nothing"), 0, &component);
    let afterbay = Afterbay::run(&sandbox, &sandbox.config().plugin("p", &component, ""));
    let mut at = Vec::new();
    let read = while_played(&sandbox, reader, |sent| {
        for version in 1..=SWAPS {
            install(&guest("nothing"), version, &component);
            until_swapped(&afterbay, version.into());
            at.push(sent.load(Ordering::SeqCst));
        }
    });
    assert!(at.is_sorted_by(|one, next| one < next), "no frame between two swaps: {at:?}");
    afterbay.all_events("PluginReloaded", SWAPS.into());
    let metrics = afterbay.metrics();
    assert_eq!(metrics.plugin("p", "batch_seconds_count"), read);
    assert_eq!((metrics.plugin("p", "bypassed_batches_total"), metrics.stream("request_gaps_total")), (0, 0));
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

/// Sends the frames of a load in a cycle, a few thousand per second, while `act` runs on another thread. `act` sees the number of sent
/// frames. Checks that each frame is received unchanged and returns the number of received frames.
fn while_played(sandbox: &Sandbox, mut reader: Reader, act: impl FnOnce(&AtomicU64) + Send) -> u64 {
    let frames = frames_of(&Load { max_running: 8, ..Load::new(400, 100) }, Msgpack);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let sent = AtomicU64::new(0);
    let (send_expected, expected) = channel::<&Frame>();
    std::thread::scope(|scope| {
        let acts = scope.spawn(|| act(&sent));
        let reads = scope.spawn(move || {
            let is_same = |(at, frame): (u64, &Frame)| assert!(reader.frame() == frame.bytes, "frame {at}");
            (0..).zip(expected).map(is_same).count() as u64
        });
        for frame in frames.iter().cycle() {
            sender.send(&frame.bytes);
            sent.fetch_add(1, Ordering::SeqCst);
            if send_expected.send(frame).is_err() || acts.is_finished() {
                break;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        drop(send_expected);
        let read = reads.join().unwrap();
        acts.join().unwrap();
        read
    })
}

/// Waits until plugin `p` was reloaded `times` times.
#[track_caller]
fn until_swapped(afterbay: &Afterbay, times: u64) {
    afterbay.until_metrics("the plugin is swapped", |metrics| {
        metrics.plugin_by("p", "reloads_total", "result", "ok") >= times
    });
}

#[test]
fn a_component_without_the_pinned_digest_is_refused_at_the_start_and_at_a_reload() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let component = sandbox.path("plugin.wasm");
    install(&guest("nothing"), 0, &component);
    let loads = Afterbay::run(&sandbox, &sandbox.config().plugin("p", &component, ""));
    let is = loads.event("PluginLoaded")["digest"].as_str().unwrap().to_owned();
    assert_eq!(loads.stop(), 0);
    let pinned = |sha256: &str| {
        sandbox.config().plugin("p", &component, "").plugin_line(&format!("sha256 = {sha256:?}"))
    };
    let other = "0".repeat(64);
    let config = sandbox.write(&pinned(&other));
    let refused = run_afterbay(&["check", "--config", &config]);
    let why = format!("its sha256 is {is}, and must be {other}");
    assert!(refused.stderr.contains(&why), "{}", refused.stderr);
    assert_eq!(refused.code, 64);

    let afterbay = Afterbay::run(&sandbox, &pinned(&is));
    install(&guest("nothing"), 1, &component);
    let failed = afterbay.event("PluginReloadFailed");
    assert!(failed["why"].as_str().unwrap().contains(&format!("must be {is}")), "{failed}");
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let frame = batch(Msgpack, vec![SynthRequest::new("a").last(&[1])]);
    sender.send(&frame);
    assert_eq!(reader.frame(), frame);
    assert_eq!(afterbay.metrics().plugin("p", "batch_seconds_count"), 1);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_component_whose_digest_is_not_allowed_is_refused_by_check_at_the_start_and_at_a_reload() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let component = sandbox.path("plugin.wasm");
    install(&guest("nothing"), 0, &component);
    let allow = |digests: &[&str]| sandbox.config().plugin("p", &component, "").allow(digests);
    // A bundled plugin needs no entry, the file does.
    let config = allow(&[]).plugin_with("bundled", "builtin:delta-to-cumulative", "", "");
    let refused = run_afterbay(&["check", "--config", &sandbox.write(&config)]);
    assert_eq!(refused.code, 64, "{refused:?}");
    let why = refused.stderr.split("its digest sha256:").nth(1).unwrap();
    let (is, words) = why.split_at(64);
    assert!(words.starts_with(" is not in plugins.allow, which has no digest"), "{}", refused.stderr);
    assert_eq!(refused.stderr.matches("is not in plugins.allow").count(), 1, "{}", refused.stderr);

    let other = "0".repeat(64);
    let refused = run_afterbay(&["run", "--config", &sandbox.write(&allow(&[&other]))]);
    let why =
        format!("plugin \"p\": its digest sha256:{is} is not in plugins.allow, which has sha256:{other}");
    assert!(refused.code != 0 && refused.stderr.contains(&why), "{refused:?}");

    let afterbay = Afterbay::run(&sandbox, &allow(&[&other, is]));
    install(&guest("nothing"), 1, &component);
    let event = afterbay.event("PluginRefused");
    assert_ne!(event["digest"], is, "{event}");
    let failed = afterbay.event("PluginReloadFailed");
    assert!(failed["why"].as_str().unwrap().contains("is not in plugins.allow"), "{failed}");
    let plugin = afterbay.plugins()["plugins"][0].take();
    assert_eq!((&plugin["digest"], &plugin["reloads"][0]["to_digest"]), (&is.into(), &event["digest"]));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let frame = batch(Msgpack, vec![SynthRequest::new("a").last(&[1])]);
    sender.send(&frame);
    assert_eq!(reader.frame(), frame);
    assert_eq!(afterbay.stop(), 0);
}

/// `AFTERBAY_TEST_TRIALS` sets the number of trials. A trial is ten swaps in two seconds.
#[test]
fn components_and_settings_are_swapped_every_200_ms_under_load_without_loss_or_repetition() {
    let swaps = 10 * trials(1);
    let sandbox = Sandbox::new();
    let reader = Reader::bind(&sandbox.reader_side());
    let component = sandbox.path("plugin.wasm");
    install(&example("stop-on-loop"), 0, &component);
    let config = |window: u64| {
        let config = sandbox.config().plugin("stays", &guest("nothing"), "");
        config.plugin("p", &component, &format!("window = {window}"))
    };
    let afterbay = Afterbay::run(&sandbox, &config(16));
    let sent = while_played(&sandbox, reader, |_| {
        for swap in 1..=swaps {
            std::thread::sleep(Duration::from_millis(200));
            match swap % 2 {
                // Two components alternate, so that both are soon in the cache.
                0 => install(&example("stop-on-loop"), (swap / 2 % 2) as u8 + 1, &component),
                _ => drop(sandbox.write(&config(16 + swap % 100))),
            }
            until_swapped(&afterbay, swap);
        }
    });
    let metrics = afterbay.metrics();
    assert_eq!(metrics.plugin_by("p", "reloads_total", "result", "ok"), swaps);
    assert_eq!(
        (metrics.plugin("p", "batch_seconds_count"), metrics.plugin("stays", "batch_seconds_count")),
        (sent, sent)
    );
    assert_eq!(metrics.plugin_by("stays", "reloads_total", "result", "ok"), 0);
    assert_eq!((metrics.plugin("p", "bypassed_batches_total"), metrics.stream("request_gaps_total")), (0, 0));
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn a_bad_component_keeps_the_old_version_with_a_reason_and_a_good_one_takes_over() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let component = sandbox.path("plugin.wasm");
    install(&guest("nothing"), 0, &component);
    let afterbay = Afterbay::run(&sandbox, &sandbox.config().plugin("p", &component, ""));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut looped = SynthRequest::new("looped");
    let mut step = || {
        let frame = batch(Msgpack, vec![looped.row(&[9; 16])]);
        sender.send(&frame);
        (rows(&frame), rows(&reader.frame()))
    };
    for _ in 0..5 {
        let (sent, received) = step();
        assert_eq!(sent, received);
    }
    sandbox.replace("plugin.wasm", "half a comp");
    let failed = afterbay.event("PluginReloadFailed");
    assert!(failed["why"].as_str().unwrap().contains("plugin \"p\""), "{failed}");
    let metrics = afterbay.metrics();
    assert_eq!(metrics.plugin_by("p", "reloads_total", "result", "failed"), 1);
    let (sent, received) = step();
    assert_eq!(sent, received);
    assert_eq!(afterbay.metrics().plugin("p", "batch_seconds_count"), 6, "the old version no longer runs");
    afterbay.until_degraded("plugin-reload:test:p");

    // Another plugin: it learns of the live request and finishes it.
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
    assert_eq!(verify(&sandbox).0, 0);
    // The journal knows which component gave the verdict.
    let shown = run_afterbay(&["journal", "show", "looped", "--from", &sandbox.text("journal"), "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown.success()).unwrap();
    let rows = shown["rows_seen"].as_array().unwrap();
    let action = rows.iter().find_map(|row| row["actions"].get(0)).unwrap();
    assert_eq!(
        (&action["verdict"], &action["version"], &action["sha256"]),
        (&"finish".into(), &"0.1.0".into(), &reloaded["digest"])
    );
}

#[test]
fn a_component_that_refuses_the_settings_keeps_the_old_version() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let component = sandbox.path("plugin.wasm");
    install(&example("stop-on-loop"), 0, &component);
    let config = sandbox.config().plugin("p", &component, "window = 8");
    let afterbay = Afterbay::run(&sandbox, &config);
    install(&guest("judges"), 0, &component);
    let failed = afterbay.event("PluginReloadFailed");
    assert!(failed["why"].as_str().unwrap().contains("action"), "{failed}");
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    sender.send(&batch(Msgpack, vec![SynthRequest::new("r").row(&[1; 8])]));
    assert_eq!(rows(&reader.frame())[0].finish.as_deref(), Some("stop:stop-on-loop"));
    assert_eq!(afterbay.stop(), 0);
}

/// A deployment replaces both files in any order. Each new file works only with the other new file.
#[test]
fn a_component_and_a_configuration_that_change_together_are_one_reload() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let component = sandbox.path("plugin.wasm");
    let old = || {
        install(&example("stop-on-loop"), 0, &component);
        sandbox.config().plugin("p", &component, "window = 8")
    };
    let new = || {
        install(&guest("judges"), 0, &component);
        sandbox.config().plugin("p", &component, "action = \"finish\"")
    };
    let afterbay = Afterbay::run(&sandbox, &old());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    for (turn, is_new) in (1..=4).zip([true, false].into_iter().cycle()) {
        sandbox.write(&if is_new { new() } else { old() });
        until_swapped(&afterbay, turn);
        sender.send(&batch(Msgpack, vec![SynthRequest::new("r").last(&[1; 8])]));
        let finish = if is_new { "stop:finished by judges" } else { "stop:stop-on-loop" };
        assert_eq!(rows(&reader.frame())[0].finish.as_deref(), Some(finish), "turn {turn}");
    }
    let metrics = afterbay.metrics();
    let reloads = |result| metrics.plugin_by("p", "reloads_total", "result", result);
    assert_eq!((reloads("ok"), reloads("failed")), (4, 0));
    assert_eq!((metrics.events("ConfigReloaded"), metrics.events("ConfigReloadFailed")), (4, 0));
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_version_that_waits_to_take_over_is_loaded_once() {
    let migrates = ["window = 8", "window = 9", "window = 10"];
    let is_replayed = ["annotate", "echo", "annotate"].map(|action| format!("action = {action:?}"));
    for (source, settings) in
        [(example("stop-on-loop"), migrates.map(str::to_owned)), (guest("judges"), is_replayed)]
    {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let component = sandbox.path("plugin.wasm");
        let version = |number: u8| {
            install(&source, number, &component);
            sandbox.config().plugin("p", &component, &settings[usize::from(number)])
        };
        let afterbay = Afterbay::run(&sandbox, &version(0));
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let mut request = SynthRequest::new("r");
        let mut step = |id| {
            sender.send(&batch(Msgpack, vec![request.row(&[id])]));
            reader.frame();
        };
        // A replay of this many rows takes several steps.
        (0..500).for_each(&mut step);
        for number in 1..=2_u8 {
            sandbox.write(&version(number));
            until_swapped(&afterbay, number.into());
            // A second load would appear in this time.
            std::thread::sleep(Duration::from_millis(300));
            step(i64::from(number));
            let metrics = afterbay.metrics();
            assert_eq!(
                metrics.plugin_by("p", "reloads_total", "result", "ok"),
                u64::from(number),
                "{source:?}"
            );
        }
        assert_eq!(afterbay.stop(), 0);
    }
}
