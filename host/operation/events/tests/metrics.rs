//! The content of `/metrics`, which is read while streams write.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use afterbay_events::event::{DrainBegun, SenderConnected};
use afterbay_events::{
    Events, Health, Metrics, OWN_SERIES_MAX, OwnError, Recorder, SchedulerLoad, SignalSource, Total,
};
use afterbay_types::{BarrierCause, FaultKind, ReaderState, SourceState, VerdictKind};

fn metrics() -> (Events, Health, Metrics) {
    let (events, health) = (Events::new(), Health::default());
    (events.clone(), health.clone(), Metrics::new(events, health))
}

#[track_caller]
fn has(text: &str, line: &str) {
    assert!(text.lines().any(|found| found == line), "no line {line:?} in\n{text}");
}

#[test]
fn every_block_is_published_by_its_labels() {
    let (_, _, metrics) = metrics();
    let stream = metrics.stream("decode-0");
    stream.rows_received.add(40);
    stream.rows_received.add(2);
    stream.barriers.add(BarrierCause::Idle, 3);
    stream.change_seconds.observe(Duration::from_millis(1500));
    stream.requests_live.set(17);
    metrics.stream("decode-1").rows_received.add(5);
    metrics.sink("decode-0", "detokenizer").queue_bytes.set(99);
    metrics.plugin("decode-0", "upper").verdicts.add(VerdictKind::Finish, 1);
    metrics.plugin("decode-0", "upper").faults.add(FaultKind::Deadline, 2);
    let text = metrics.encode();
    has(&text, "# TYPE afterbay_rows_received_total counter");
    has(&text, "afterbay_rows_received_total{stream=\"decode-0\"} 42");
    has(&text, "afterbay_rows_received_total{stream=\"decode-1\"} 5");
    has(&text, "afterbay_barriers_total{stream=\"decode-0\",kind=\"idle\"} 3");
    has(&text, "afterbay_barriers_total{stream=\"decode-0\",kind=\"control\"} 0");
    has(&text, "afterbay_change_seconds_sum{stream=\"decode-0\"} 1.5");
    has(&text, "afterbay_requests_live{stream=\"decode-0\"} 17");
    has(&text, "afterbay_sink_queue_bytes{stream=\"decode-0\",sink=\"detokenizer\"} 99");
    has(&text, "afterbay_plugin_verdicts_total{stream=\"decode-0\",plugin=\"upper\",action=\"finish\"} 1");
    has(&text, "afterbay_plugin_faults_total{stream=\"decode-0\",plugin=\"upper\",kind=\"deadline\"} 2");
}

#[test]
fn a_scheduler_s_load_is_read_for_each_scrape_and_unknown_values_are_left_out() {
    let (_, _, metrics) = metrics();
    let reads = Arc::new(AtomicU64::new(0));
    let counted = reads.clone();
    metrics.signals("a", || None);
    metrics.signals("b", move || {
        let read = counted.fetch_add(1, Relaxed);
        let load = SchedulerLoad {
            load_fresh: 1,
            running_requests: Some(read),
            kv_cache_usage: Some(0.25),
            ..SchedulerLoad::default()
        };
        let (state, readings) = (Some(SourceState::Stale), Total(7));
        Some((load, vec![("load_snapshot", SignalSource { state, readings })]))
    });
    metrics.signals("c", || Some((SchedulerLoad::default(), Vec::new())));
    metrics.encode();
    let text = metrics.encode();
    has(&text, "# TYPE afterbay_scheduler_running_requests gauge");
    has(&text, "afterbay_scheduler_running_requests{stream=\"b\"} 1");
    has(&text, "afterbay_scheduler_kv_cache_usage{stream=\"b\"} 0.25");
    has(&text, "afterbay_scheduler_load_fresh{stream=\"b\"} 1");
    has(&text, "afterbay_scheduler_load_fresh{stream=\"c\"} 0");
    has(&text, "afterbay_signal_state{stream=\"b\",source=\"load_snapshot\",state=\"stale\"} 1");
    has(&text, "afterbay_signal_state{stream=\"b\",source=\"load_snapshot\",state=\"fresh\"} 0");
    has(&text, "afterbay_signal_readings_total{stream=\"b\",source=\"load_snapshot\"} 7");
    assert!(!text.contains("stream=\"a\"") && !text.contains("waiting_requests"), "{text}");
    assert!(!text.contains("running_requests{stream=\"c\"}"), "{text}");
    assert_eq!(reads.load(Relaxed), 2);
}

#[test]
fn a_time_at_a_bucket_s_bound_counts_in_it_and_one_past_it_in_the_next() {
    let (_, _, metrics) = metrics();
    let stream = metrics.stream("s");
    for nanos in [0, 10_000, 10_001, 100_000, 60_000_000_000, 60_000_000_001] {
        stream.frame_seconds.observe(Duration::from_nanos(nanos));
    }
    let text = metrics.encode();
    has(&text, "afterbay_frame_seconds_bucket{stream=\"s\",le=\"0.00001\"} 2");
    has(&text, "afterbay_frame_seconds_bucket{stream=\"s\",le=\"0.00002\"} 3");
    has(&text, "afterbay_frame_seconds_bucket{stream=\"s\",le=\"0.0001\"} 4");
    has(&text, "afterbay_frame_seconds_bucket{stream=\"s\",le=\"60\"} 5");
    has(&text, "afterbay_frame_seconds_bucket{stream=\"s\",le=\"+Inf\"} 6");
    has(&text, "afterbay_frame_seconds_count{stream=\"s\"} 6");
}

#[test]
fn a_time_that_is_observed_for_many_rows_counts_for_each() {
    let (_, _, metrics) = metrics();
    let stream = metrics.stream("s");
    stream.first_token_seconds.observe_many(Duration::from_millis(500), 3);
    stream.first_token_seconds.observe_many(Duration::from_secs(9), 0);
    assert_eq!(
        (stream.first_token_seconds.count(), stream.first_token_seconds.sum()),
        (3, Duration::from_millis(1500))
    );
    let text = metrics.encode();
    has(&text, "afterbay_first_token_seconds_bucket{stream=\"s\",le=\"0.25\"} 0");
    has(&text, "afterbay_first_token_seconds_bucket{stream=\"s\",le=\"0.5\"} 3");
    has(&text, "afterbay_first_token_seconds_sum{stream=\"s\"} 1.5");
}

#[test]
fn a_state_is_one_gauge_for_each_value_and_exactly_one_of_them_is_1() {
    let (_, _, metrics) = metrics();
    let sink = metrics.sink("s", "k");
    for (state, word) in
        [(None, "keeping_up"), (Some(ReaderState::Stalled), "stalled"), (Some(ReaderState::Away), "away")]
    {
        state.into_iter().for_each(|state| sink.state.set(state));
        assert_eq!(sink.state.word(), word);
        let text = metrics.encode();
        for other in ["keeping_up", "behind", "stalled", "away"] {
            let value = u64::from(other == word);
            has(&text, &format!("afterbay_sink_state{{stream=\"s\",sink=\"k\",state=\"{other}\"}} {value}"));
        }
    }
}

#[test]
fn events_are_counted_by_kind_and_readiness_is_published() {
    let (events, health, metrics) = metrics();
    for _ in 0..100 {
        events.publish(DrainBegun { stream: "s".into(), frames: 1 });
    }
    has(&metrics.encode(), "afterbay_events_total{event=\"DrainBegun\"} 100");
    has(&metrics.encode(), "afterbay_ready 1");
    health.not_ready("journal:s", "no space left on device", SystemTime::now());
    has(&metrics.encode(), "afterbay_ready 0");
}

#[test]
fn degraded_conditions_are_counted_by_kind_and_leave_the_process_ready() {
    let (_, health, metrics) = metrics();
    for key in ["sink:s/a", "sink:s/b", "config"] {
        health.degraded(key, "away", SystemTime::now());
    }
    let text = metrics.encode();
    has(&text, "afterbay_ready 1");
    has(&text, "afterbay_degraded{condition=\"sink\"} 2");
    has(&text, "afterbay_degraded{condition=\"config\"} 1");
    health.clear("sink:s/a");
    health.not_ready("sink:s/b", "gone for good", SystemTime::now());
    has(&metrics.encode(), "afterbay_degraded{condition=\"sink\"} 0");
    has(&metrics.encode(), "afterbay_ready 0");
}

#[test]
fn a_refused_reload_of_the_configuration_is_a_gauge_until_one_succeeds() {
    let (_, _, metrics) = metrics();
    has(&metrics.encode(), "afterbay_config_last_reload_successful 1");
    metrics.config_reloaded(false);
    has(&metrics.encode(), "afterbay_config_last_reload_successful 0");
    metrics.config_reloaded(true);
    has(&metrics.encode(), "afterbay_config_last_reload_successful 1");
}

#[test]
fn each_metric_is_declared_once_with_its_help_before_its_series() {
    let (_, _, metrics) = metrics();
    for stream in ["a", "b"] {
        metrics.stream(stream);
        metrics.sink(stream, "s");
        metrics.plugin(stream, "p");
    }
    let text = metrics.encode();
    let (mut declared, mut current) = (HashSet::new(), String::new());
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').unwrap();
            assert!(declared.insert(name.to_owned()), "{name} is declared twice");
            assert!(words.starts_with(|c: char| c.is_ascii_uppercase() || c.is_ascii_digit()), "{line}");
            current = name.to_owned();
        } else if !line.starts_with("# ") {
            assert!(line.starts_with(&current), "{line} stands under {current}");
        }
    }
    assert!(declared.len() > 50, "{}", declared.len());
}

#[test]
fn two_calls_return_the_same_block() {
    let (_, _, metrics) = metrics();
    metrics.clone().stream("s").frames_received.add(1);
    metrics.stream("s").frames_received.add(1);
    assert_eq!(metrics.stream("s").frames_received.get(), 2);
}

#[test]
fn a_reader_sees_counts_grow_and_none_lost_while_the_stream_writes() {
    const FRAMES: u64 = 200_000;
    let (_, _, metrics) = metrics();
    let stream = metrics.stream("s");
    let writer = std::thread::spawn(move || {
        for _ in 0..FRAMES {
            stream.frames_received.add(1);
            stream.frame_seconds.observe(Duration::from_micros(60));
        }
    });
    let (mut before, mut done) = (0, false);
    while !done {
        done = writer.is_finished();
        let now = metrics.stream("s").frames_received.get();
        assert!(now >= before && now <= FRAMES, "{before} then {now}");
        before = now;
        metrics.encode();
    }
    writer.join().unwrap();
    assert_eq!(before, FRAMES);
    has(&metrics.encode(), &format!("afterbay_frame_seconds_count{{stream=\"s\"}} {FRAMES}"));
}

#[test]
fn a_condition_keeps_its_beginning_until_it_is_cleared() {
    let health = Health::default();
    let (then, now) = (SystemTime::UNIX_EPOCH, SystemTime::now());
    health.not_ready("journal:s", "full", then);
    health.clone().not_ready("journal:s", "still full", now);
    let conditions = health.conditions();
    assert_eq!(conditions.len(), 1);
    assert_eq!((conditions[0].1.text.as_str(), conditions[0].1.since), ("still full", then));
    assert!(!health.is_ready() && health.clear("journal:s"));
    assert!(health.is_ready() && !health.clear("journal:s"));
}

#[test]
fn the_conditions_of_a_stream_are_removed_with_it() {
    let health = Health::default();
    let of = |stream: &str| {
        ["rendezvous:S", "stream:S", "journal:S", "sync:S", "plugin:S:upper", "sink:S/reader"]
            .map(|key| key.replace('S', stream))
    };
    for key in of("a").into_iter().chain(of("a.b")).chain(["rendezvous".to_owned()]) {
        health.not_ready(&key, "it is wrong", SystemTime::now());
    }
    health.clear_stream("a");
    let left: Vec<String> = health.conditions().into_iter().map(|(key, _)| key).collect();
    let mut expected = [&of("a.b")[..], &["rendezvous".to_owned()]].concat();
    expected.sort();
    assert_eq!(left, expected);
}

#[test]
fn a_removed_stream_or_plugin_has_no_metrics() {
    let (_, _, metrics) = metrics();
    for stream in ["a", "b"] {
        metrics.stream(stream);
        metrics.sink(stream, "s");
        metrics.aborts(stream);
        metrics.leases(stream);
        metrics.signals(stream, || Some((SchedulerLoad::default(), Vec::new())));
        for plugin in ["p", "q"] {
            metrics.plugin(stream, plugin);
            metrics.own(stream, plugin).add("seen", &[], 1).unwrap();
        }
    }
    let of_q = metrics.own("b", "q");
    metrics.forget_stream("a");
    metrics.forget_plugin("b", "q");
    // An instance of the removed plugin still counts.
    of_q.add("seen", &[], 1).unwrap();
    let text = metrics.encode();
    assert!(!text.contains("stream=\"a\"") && !text.contains("plugin=\"q\""), "{text}");
    has(&text, "afterbay_plugin_own_seen_total{stream=\"b\",plugin=\"p\"} 1");
    metrics.own("b", "q").add("seen", &[], 5).unwrap();
    has(&metrics.encode(), "afterbay_plugin_own_seen_total{stream=\"b\",plugin=\"q\"} 5");
}

fn connected(peer: u64) -> SenderConnected {
    SenderConnected { stream: "s".into(), peer, from: "x".into() }
}

#[test]
fn a_recorder_has_every_event_of_a_storm_in_order() {
    let (events, recorder): (Events, Recorder) = Events::recorded();
    for peer in 0..1000 {
        events.publish(connected(peer));
    }
    let peers: Vec<u64> = recorder.of::<SenderConnected>().iter().map(|event| event.peer).collect();
    assert_eq!(peers, (0..1000).collect::<Vec<_>>());
    assert_eq!(recorder.all().len(), 1000);
    recorder.clear();
    assert!(recorder.all().is_empty());
}

#[test]
fn a_test_can_wait_for_an_event_of_another_thread_until_a_timeout() {
    let (events, recorder) = Events::recorded();
    let publisher = std::thread::spawn(move || {
        for peer in 0..10 {
            std::thread::sleep(Duration::from_millis(2));
            events.publish(connected(peer));
        }
    });
    let found = recorder.wait_for::<SenderConnected>(Duration::from_secs(30), |event| event.peer == 7);
    assert_eq!(found, Some(connected(7)));
    publisher.join().unwrap();
    assert!(
        recorder.wait_for::<SenderConnected>(Duration::from_millis(5), |event| event.peer == 70).is_none()
    );
}

#[test]
fn a_value_that_is_not_a_number_is_refused_and_counted() {
    let (_, _, metrics) = metrics();
    let own = metrics.own("s", "p");
    own.observe("cost", &[], 0.5).unwrap();
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let refused = own.observe("cost", &[], value).unwrap_err();
        assert!(matches!(refused, OwnError::NotFinite { .. }), "{refused:?}");
    }
    let text = metrics.encode();
    has(&text, "afterbay_plugin_own_cost_sum{stream=\"s\",plugin=\"p\"} 0.5");
    has(&text, "afterbay_plugin_own_cost_count{stream=\"s\",plugin=\"p\"} 1");
    has(&text, "afterbay_plugin_metrics_refused_total{stream=\"s\",plugin=\"p\"} 3");
    for value in [f64::MAX, f64::MAX, f64::MIN, f64::MIN] {
        own.observe("cost", &[], value).unwrap();
    }
    let text = metrics.encode();
    has(&text, "afterbay_plugin_own_cost_count{stream=\"s\",plugin=\"p\"} 5");
    assert!(!text.contains("NaN") && !text.contains("cost_sum{stream=\"s\",plugin=\"p\"} inf"), "{text}");
}

fn labels(labels: &[(&str, &str)]) -> Vec<(String, String)> {
    labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn a_plugin_counts_by_its_own_labels_and_removes_a_series() {
    let (_, _, metrics) = metrics();
    let own = metrics.own("s", "p");
    own.add("tokens", &labels(&[("tenant", "a")]), 3).unwrap();
    own.add("tokens", &labels(&[("tenant", "b\"\\\nc")]), 4).unwrap();
    own.add("tokens", &labels(&[("zone", "z"), ("tenant", "a")]), 5).unwrap();
    own.add("tokens", &labels(&[("tenant", "a"), ("zone", "z")]), 1).unwrap();
    own.add("tokens", &labels(&[("tenant", "")]), 7).unwrap();
    own.observe("cost", &labels(&[("tenant", "a")]), 0.5).unwrap();
    metrics.own("s", "q").set("tokens_left", &labels(&[("tenant", "a")]), 9.0).unwrap();
    {
        let text = metrics.encode();
        let series =
            |labels: &str| format!("afterbay_plugin_own_tokens_total{{stream=\"s\",plugin=\"p\"{labels}}}");
        has(&text, &format!("{} 3", series(",tenant=\"a\"")));
        has(&text, &format!("{} 4", series(",tenant=\"b\\\"\\\\\\nc\"")));
        has(&text, &format!("{} 6", series(",tenant=\"a\",zone=\"z\"")));
        has(&text, &format!("{} 7", series("")));
        has(&text, "afterbay_plugin_own_cost_count{stream=\"s\",plugin=\"p\",tenant=\"a\"} 1");
        has(&text, "afterbay_plugin_own_tokens_left{stream=\"s\",plugin=\"q\",tenant=\"a\"} 9.0");
    }
    own.remove("tokens", &labels(&[("tenant", "a")]));
    own.remove("tokens", &labels(&[("tenant", "unknown")]));
    metrics.own("s", "q").remove("tokens_left", &labels(&[("tenant", "a")]));
    let text = metrics.encode();
    assert!(!text.contains("tenant=\"a\"} 3") && !text.contains("tokens_left"), "{text}");
}

#[test]
fn series_past_the_bound_are_summed_up_in_one_and_a_removed_series_makes_room() {
    let (_, _, metrics) = metrics();
    let own = metrics.own("s", "p");
    for tenant in 0..OWN_SERIES_MAX + 5 {
        own.add("tokens", &labels(&[("tenant", &tenant.to_string())]), 1).unwrap();
    }
    own.set("left", &[], 2.0).unwrap();
    let shown = |labels: &str| format!("{{stream=\"s\",plugin=\"p\",{labels}}}");
    let overflow = shown("otel_metric_overflow=\"true\"");
    let text = metrics.encode();
    has(&text, &format!("afterbay_plugin_own_tokens_total{overflow} 5"));
    has(&text, &format!("afterbay_plugin_own_left{overflow} 2.0"));
    let series = text.lines().filter(|line| line.starts_with("afterbay_plugin_own_tokens_total")).count();
    assert_eq!(series, OWN_SERIES_MAX + 1);
    own.remove("tokens", &labels(&[("tenant", "7")]));
    own.add("tokens", &labels(&[("tenant", "new")]), 8).unwrap();
    own.add("tokens", &labels(&[("tenant", "7")]), 8).unwrap();
    let text = metrics.encode();
    has(&text, &format!("afterbay_plugin_own_tokens_total{} 8", shown("tenant=\"new\"")));
    has(&text, &format!("afterbay_plugin_own_tokens_total{overflow} 13"));
    metrics.own("s", "q").add("tokens", &labels(&[("tenant", "x")]), 1).unwrap();
    has(&metrics.encode(), "afterbay_plugin_own_tokens_total{stream=\"s\",plugin=\"q\",tenant=\"x\"} 1");
}

/// The rules of `promtool check metrics`, for the older text format.
#[test]
fn the_text_format_keeps_the_rules_of_promtool() {
    let (_, health, metrics) = metrics();
    metrics.stream("s");
    metrics.aborts("s");
    metrics.leases("s");
    metrics.sink("s", "k");
    metrics.tap();
    metrics.plugin("s", "p");
    metrics.store("p");
    metrics.own("s", "p").add("tokens", &labels(&[("tenant", "a \"quoted\" name {")]), 1).unwrap();
    metrics.own("s", "p").observe("cost", &labels(&[("tenant", "a")]), 1.0).unwrap();
    health.degraded("sink:s/k", "away", SystemTime::now());
    metrics.signals("s", || {
        let load = SchedulerLoad {
            load_age_seconds: Some(0.1),
            running_requests: Some(1),
            kv_cache_usage: Some(0.5),
            ..SchedulerLoad::default()
        };
        let state = Some(SourceState::Fresh);
        Some((load, vec![("load_snapshot", SignalSource { state, ..SignalSource::default() })]))
    });
    let text = metrics.encode();
    let (mut help, mut kinds) = (HashSet::new(), BTreeMap::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, words) = rest.split_once(' ').unwrap();
            assert!(help.insert(name) && !words.is_empty(), "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(help.contains(name) && kinds.insert(name, kind).is_none(), "{line}");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
        } else {
            let name = line.split(['{', ' ']).next().unwrap();
            let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            let family = histogram.filter(|family| kinds.get(family) == Some(&"histogram")).unwrap_or(name);
            assert!(kinds.contains_key(family), "{line}");
        }
    }
    assert!(kinds.len() > 90, "{}", kinds.len());
    const ABBREVIATED: [&str; 16] = [
        "s",
        "ms",
        "us",
        "ns",
        "sec",
        "b",
        "kb",
        "mb",
        "gb",
        "tb",
        "pb",
        "m",
        "h",
        "d",
        "milliseconds",
        "minutes",
    ];
    for (name, kind) in kinds {
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
        assert!(!["_bucket", "_sum", "_count"].iter().any(|suffix| name.ends_with(suffix)), "{name}");
        assert!(
            name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'),
            "{name}"
        );
        let words: Vec<&str> = name.split('_').collect();
        assert!(words.iter().all(|word| !ABBREVIATED.contains(word)), "{name}");
        assert!(
            words[1..].iter().all(|word| !["counter", "gauge", "histogram", "info"].contains(word))
                || name == "afterbay_build_info",
            "{name}"
        );
    }
}
