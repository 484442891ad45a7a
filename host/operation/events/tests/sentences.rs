//! The log line of one event of each kind: `tests/sentences.txt`. `AFTERBAY_BLESS=1` writes the file.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use afterbay_events::Event;
use afterbay_events::event::*;
use afterbay_types::{FaultKind, HoldEnd, Name};
use tracing::Level;

fn name(text: &str) -> Name {
    text.into()
}

fn one_of_each() -> Vec<Event> {
    vec![
        StreamStarted { stream: name("decode-0"), listen: "ipc:///run/afterbay/decode-0".into() }.into(),
        StreamStopped { stream: name("decode-0"), frames: 2 }.into(),
        StreamPanicked { stream: name("decode-0"), frame: 7, why: "why it is".into() }.into(),
        StreamFailed { stream: name("decode-0"), why: "why it is".into() }.into(),
        EngineIntroduced {
            stream: name("decode-0"),
            engine: "SGLang 0.6.0".into(),
            unknown: "all of its columns are known".into(),
        }
        .into(),
        IntroductionRefused { stream: name("decode-0"), why: "why it is".into() }.into(),
        StreamAbsent { stream: name("text"), why: "AFTERBAY_TEXT_INGRESS is not set".into() }.into(),
        ReceivePaused { stream: name("decode-0"), why: "why it is".into() }.into(),
        ReceiveResumed { stream: name("decode-0"), paused_ms: 2 }.into(),
        DrainBegun { stream: name("decode-0"), frames: 2 }.into(),
        DrainFinished { stream: name("decode-0"), drained_ms: 2 }.into(),
        DrainDeadline { stream: name("decode-0"), remaining_frames: 2, remaining_bytes: 3, unread_bytes: 4 }
            .into(),
        PollFailed { stream: name("decode-0"), why: "why it is".into() }.into(),
        SenderConnected { stream: name("decode-0"), peer: 2, from: "tcp 10.0.0.7:41234".into() }.into(),
        SenderClosed { stream: name("decode-0"), peer: 2, reason: "cut", why: "why it is".into(), frames: 3 }
            .into(),
        SenderRefused {
            stream: name("decode-0"),
            from: "tcp 10.0.0.7:41234".into(),
            why: "why it is".into(),
        }
        .into(),
        SenderContinued { stream: name("decode-0"), peer: 2, from: "pid 7 (uid 0)".into(), bytes: 3 }.into(),
        NotContinued {
            stream: name("decode-0"),
            name: "stream/decode-0/sender/7".into(),
            why: "why it is".into(),
            lost_bytes: 4,
        }
        .into(),
        SinkConnected {
            stream: name("decode-0"),
            sink: name("detokenizer"),
            endpoint: "ipc:///run/sglang/detokenizer".into(),
        }
        .into(),
        SinkContinued {
            stream: name("decode-0"),
            sink: name("detokenizer"),
            endpoint: "ipc:///run/sglang/detokenizer".into(),
            unfinished_frames: 2,
            pending_frames: 1,
        }
        .into(),
        SinkWaiting {
            stream: name("decode-0"),
            sink: name("detokenizer"),
            endpoint: "ipc:///run/sglang/detokenizer".into(),
            why: "why it is".into(),
        }
        .into(),
        SinkLost {
            stream: name("decode-0"),
            sink: name("detokenizer"),
            why: "why it is".into(),
            at_end: true,
        }
        .into(),
        SinkSettled {
            stream: name("decode-0"),
            sink: name("detokenizer"),
            resent_frames: 2,
            unconfirmed_frames: 3,
        }
        .into(),
        SinkResuming { stream: name("decode-0"), sink: name("detokenizer"), frames: 2 }.into(),
        SinkRemoved { stream: name("decode-0"), sink: name("detokenizer-2"), frames: 3 }.into(),
        SinkState {
            stream: name("decode-0"),
            sink: name("detokenizer"),
            state: "behind",
            rows: 2,
            oldest_ms: 3,
            at_end: false,
        }
        .into(),
        BatchUnsplit { stream: name("decode-0"), frame: 7, rows: 3, why: "why it is".into() }.into(),
        SinkUnjoined { stream: name("decode-0"), sink: name("detokenizer"), why: "why it is".into() }.into(),
        SinkUncounted { stream: name("decode-0"), sink: name("detokenizer") }.into(),
        SinkJoined { stream: name("decode-0"), sink: name("tokenizer") }.into(),
        SinkVocabulary {
            stream: name("decode-0"),
            sink: name("detokenizer"),
            tokens: 2,
            kind: "byte-level".into(),
        }
        .into(),
        CreditSeen { stream: name("decode-0"), sink: name("detokenizer"), generation: 2, count: 3 }.into(),
        CreditUnusable { stream: name("decode-0"), sink: name("detokenizer"), why: "why it is".into() }
            .into(),
        NoticesMissed { stream: name("decode-0"), of: "senders", missed: 2 }.into(),
        SignalFound { stream: name("decode-0"), source: "load_snapshot", place: "/dev/shm/loads".into() }
            .into(),
        SignalLost {
            stream: name("decode-0"),
            source: "load_snapshot",
            place: "/dev/shm/loads".into(),
            why: "why it is".into(),
        }
        .into(),
        SignalInvalid {
            stream: name("decode-0"),
            source: "load_snapshot",
            place: "/dev/shm/loads".into(),
            why: "why it is".into(),
        }
        .into(),
        SignalStale {
            stream: name("decode-0"),
            source: "load_snapshot",
            place: "/dev/shm/loads".into(),
            age_ms: 2,
        }
        .into(),
        SignalFresh { stream: name("decode-0"), source: "load_snapshot", place: "/dev/shm/loads".into() }
            .into(),
        PluginStoreFailed {
            plugin: name("budget"),
            why: "cannot write /j/.plugins/budget.store: no space".into(),
        }
        .into(),
        PluginStoreHealed { plugin: name("budget"), failing_ms: 2000 }.into(),
        PluginStoreDamaged {
            plugin: name("budget"),
            cut_bytes: 17,
            kept: "/j/.plugins/budget.store.damaged".into(),
        }
        .into(),
        JournalRecovered {
            stream: name("decode-0"),
            segments: 2,
            bytes: 3,
            last_frame: 4,
            live_requests: 5,
            unaccounted_frames: 6,
        }
        .into(),
        JournalCut { stream: name("decode-0"), segment: "000001".into(), cut_bytes: 2 }.into(),
        JournalCorrupt { stream: name("decode-0"), segment: "000001".into(), what: "what it is".into() }
            .into(),
        JournalWriteFailed { stream: name("decode-0"), on_error: "stop", why: "why it is".into() }.into(),
        JournalHealed { stream: name("decode-0"), failing_ms: 2, skipped_frames: 3 }.into(),
        JournalSyncFailed { stream: name("decode-0"), durable_frame: 2, why: "why it is".into() }.into(),
        JournalNotice { stream: name("decode-0"), is_wrong: true, what: "what it is".into() }.into(),
        SegmentRemoved { stream: name("decode-0"), segment: "000001".into(), bytes: 2 }.into(),
        SegmentLost {
            stream: name("decode-0"),
            segment: "000001".into(),
            bytes: 2,
            followers: "archive".into(),
        }
        .into(),
        RequestErased {
            stream: name("decode-0"),
            rid: "5b0c".into(),
            by: "user 1000".into(),
            rows: 3,
            tokens: 9,
            segments: 1,
            left_frames: 0,
        }
        .into(),
        RequestsErased {
            stream: name("decode-0"),
            requests: 2,
            rows: 3,
            tokens: 9,
            segments: 1,
            left_frames: 0,
        }
        .into(),
        RequestAbandoned { stream: name("decode-0"), rid: "r-1".into() }.into(),
        FrameNotUnderstood {
            stream: name("decode-0"),
            frame: 2,
            bytes: 3,
            kind: "msgpack".into(),
            why: "why it is".into(),
            then: "forwarded unchanged".into(),
        }
        .into(),
        RowsUnread { stream: name("decode-0"), frame: 2, rows: 3, why: "why it is".into() }.into(),
        LiveRequestsFull { stream: name("decode-0"), limit: 2, given_up: 1 }.into(),
        EngineRestarted { stream: name("decode-0"), requests: 3, waiting: 2 }.into(),
        MigrationWaiting { stream: name("decode-0"), why: "why it is".into() }.into(),
        RequestMigrated { stream: name("decode-0"), rid: "r-1".into(), tokens: 7 }.into(),
        RequestNotMigrated { stream: name("decode-0"), rid: "r-1".into(), why: "it has a grammar".into() }
            .into(),
        RequestGap { stream: name("decode-0"), rid: "r-1".into(), frame: 2, expected: 4, got: 3 }.into(),
        FramesMissing {
            stream: name("decode-0"),
            frames: 2,
            requests: 95,
            tokens: 190,
            row_tokens: 1,
            silent: 3,
        }
        .into(),
        RequestImbalance {
            stream: name("decode-0"),
            rid: "r-1".into(),
            counted: 2,
            received: 3,
            forwarded: 4,
            replaced: 5,
            dropped: 6,
            swallowed: 7,
        }
        .into(),
        LogLinesDropped { lines: 2 }.into(),
        HandOverBegun { to_pid: 4242, from: "0.1.0".into(), to: "0.2.0".into() }.into(),
        HandOverFinished { to_pid: 4242, to: "0.2.0".into(), ms: 41 }.into(),
        HandOverFailed { why: "why it is".into() }.into(),
        TookOver { from_pid: 4141, from: "0.1.0".into(), streams: 2 }.into(),
        ConfigReloaded { changed: "plugin \"upper\" of \"decode-0\" added".into() }.into(),
        ConfigReloadFailed { why: "why it is".into() }.into(),
        ConfigCorrected { file: "/etc/afterbay/afterbay.toml".into() }.into(),
        ConfigUnwatched { directory: "/etc/afterbay".into(), why: "why it is".into() }.into(),
        FollowerFailed {
            follower: "archive".into(),
            copy: "s3://bucket/prefix".into(),
            why: "why it is".into(),
        }
        .into(),
        FollowerRecovered { follower: "archive".into(), copy: "s3://bucket/prefix".into(), failing_s: 300 }
            .into(),
        CopyFailed { from: "nats://nats-0:4222".into(), why: "why it is".into() }.into(),
        CopyRecovered { from: "nats://nats-0:4222".into(), failing_s: 300 }.into(),
        FollowerMissed {
            follower: "usage".into(),
            stream: name("decode-0"),
            segments: 3,
            before: "000004".into(),
        }
        .into(),
        FollowerEnded { why: "has ended (signal: 9)".into(), restart_s: 1 }.into(),
        FollowerStarted { pid: 4711 }.into(),
        TracesNotExported { endpoint: "http://127.0.0.1:4318/v1/traces".into(), why: "why it is".into() }
            .into(),
        TracesPathTwice { endpoint: "http://127.0.0.1:4318/v1/traces".into() }.into(),
        TracesExported { endpoint: "http://127.0.0.1:4318/v1/traces".into() }.into(),
        ReplicaFound {
            server: "nats://127.0.0.1:4222".into(),
            version: "2.12.1".into(),
            stream: "afterbay".into(),
            replicas: 3,
        }
        .into(),
        ReplicaWeak { stream: "afterbay".into(), why: "keeps 1 replica".into() }.into(),
        ReplicaLost {
            stream: name("decode-0"),
            segment: "00000000000000000001-0000000000.seg".into(),
            offset: 65_536,
        }
        .into(),
        ArchiveDamage { stream: name("decode-0"), segment: "000001".into(), corrupt_bytes: 2 }.into(),
        ClientsListening { address: "127.0.0.1:9470".into() }.into(),
        TapListening { endpoint: "tcp://127.0.0.1:5558".into() }.into(),
        TapDropped { endpoint: "tcp://127.0.0.1:5558".into(), frames: 16384, bytes: 7 << 20 }.into(),
        UsageCut { file: "usage-2026-11-20-000001.jsonl".into(), cut_bytes: 120 }.into(),
        UsageDamaged { file: "usage-2026-11-20-000001.jsonl".into(), lines: 2 }.into(),
        DescriptorsNotKept { name: "stream/decode-0/sender/7".into(), why: "why it is".into() }.into(),
        DescriptorsLeftOver { name: "stream/decode-0/sender/7".into(), why: "why it is" }.into(),
        SupervisorFailed { why: "why it is".into() }.into(),
        PluginLoaded {
            stream: name("decode-0"),
            plugin: name("upper"),
            version: "1.2.0".into(),
            digest: "9f86d081".into(),
        }
        .into(),
        PluginReloaded {
            stream: name("decode-0"),
            plugin: name("upper"),
            version: "1.2.0".into(),
            digest: "9f86d081".into(),
            resumed_requests: 2,
            state_bytes: 64,
        }
        .into(),
        PluginStateLost { stream: name("decode-0"), plugin: name("upper"), why: "why it is".into() }.into(),
        PluginReplayed {
            stream: name("decode-0"),
            plugin: name("upper"),
            rows: 700,
            why: Some("why it is".into()),
        }
        .into(),
        PluginReloadFailed { stream: name("decode-0"), plugin: name("upper"), why: "why it is".into() }
            .into(),
        PluginRefused { stream: name("decode-0"), plugin: name("upper"), digest: "5f1c".into() }.into(),
        PluginBuilt { project: "/home/me/upper".into(), took_ms: 412 }.into(),
        PluginBuildFailed { project: "/home/me/upper".into(), why: "why it is".into() }.into(),
        PluginReloadUnwatched { directory: "/etc/afterbay".into(), why: "why it is".into() }.into(),
        PluginFault {
            stream: name("decode-0"),
            plugin: name("upper"),
            kind: FaultKind::Trap,
            why: "why it is".into(),
            then: "the batch goes on unchanged",
        }
        .into(),
        PluginDown {
            stream: name("decode-0"),
            plugin: name("upper"),
            why: "why it is".into(),
            then: "the batch goes on unchanged",
        }
        .into(),
        PluginQuarantined {
            stream: name("decode-0"),
            plugin: name("upper"),
            faults: 5,
            within_ms: 60_000,
            then: "batches go on unchanged",
            why: "why it is".into(),
        }
        .into(),
        PluginNotReady { stream: name("decode-0"), plugin: name("upper"), why: "why it is".into() }.into(),
        PluginReady { stream: name("decode-0"), plugin: name("upper"), not_ready_ms: 61_000 }.into(),
        PluginRemoved { stream: name("decode-0"), plugin: name("upper") }.into(),
        PluginReinstated { stream: name("decode-0"), plugin: name("upper"), by: "operator" }.into(),
        RequestFinishedEarly {
            stream: name("decode-0"),
            plugin: name("upper"),
            rid: "r-1".into(),
            reason: "not allowed".into(),
        }
        .into(),
        AttributesUnclaimed { rid: "r-1".into(), seconds: 600 }.into(),
        AbortSent {
            stream: name("decode-0"),
            rid: "r-1".into(),
            by: "the operator".into(),
            to: "ipc:///run/afterbay/abort".into(),
        }
        .into(),
        AbortFailed {
            stream: name("decode-0"),
            rid: "r-1".into(),
            by: "plugin upper".into(),
            why: "why it is".into(),
        }
        .into(),
        LeaseRefused {
            stream: name("decode-0"),
            rid: "r-1".into(),
            why: "1024 leases run, at most 1024 may (leases.max_count)".into(),
        }
        .into(),
        AbortUnavailable { stream: name("decode-0"), why: "why it is".into() }.into(),
        RowsDropped {
            stream: name("decode-0"),
            plugin: name("upper"),
            reason: "not allowed".into(),
            frame: 2,
            rows: 3,
            tokens: 4,
        }
        .into(),
        VerdictFailed { stream: name("decode-0"), plugin: name("upper"), frame: 2, why: "why it is".into() }
            .into(),
        ShadowDiffers {
            stream: name("decode-0"),
            plugin: name("upper-2"),
            rid: "r-1".into(),
            live: "nothing".into(),
            shadow: "drop \"no\"".into(),
        }
        .into(),
        PluginPromoted {
            stream: name("decode-0"),
            plugin: name("upper-2"),
            of: "plugin \"upper\" is out of the chain".into(),
        }
        .into(),
        RowsNotSkipped { stream: name("decode-0"), frame: 7, rows: 2, why: "why it is".into() }.into(),
        HoldEnded {
            stream: name("decode-0"),
            plugin: name("upper"),
            rid: "r-1".into(),
            rows: 3,
            tokens: 4,
            end: HoldEnd::Time,
            why: "time limit reached",
        }
        .into(),
        HoldRefused { stream: name("decode-0"), plugin: name("upper"), frame: 2, why: "why it is".into() }
            .into(),
        HoldCut { stream: name("decode-0"), plugin: name("upper"), wanted_ms: 5000, limit_ms: 1000 }.into(),
        HoldLost { stream: name("decode-0"), why: "why it is".into() }.into(),
        CallsStopped { endpoint: name("moderation"), failures: 5, open_ms: 5000, why: "why it is".into() }
            .into(),
        CallsResumed { endpoint: name("moderation"), stopped_ms: 5100 }.into(),
        PluginLog {
            stream: name("decode-0"),
            plugin: name("upper"),
            severity: Level::WARN,
            rid: Some("r-1".into()),
            line: "what the plugin says".into(),
        }
        .into(),
    ]
}

#[test]
fn every_event_has_its_sentence() {
    let events = one_of_each();
    let found: String =
        events.iter().map(|event| format!("{:5} {:21} {event}\n", event.level(), event.name())).collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sentences.txt");
    if std::env::var("AFTERBAY_BLESS").is_ok_and(|bless| bless == "1") {
        std::fs::write(path, &found).unwrap();
    }
    assert_eq!(found, std::fs::read_to_string(path).unwrap(), "AFTERBAY_BLESS=1 takes what was found");
}

#[test]
fn no_event_is_without_a_sample() {
    let samples: Vec<&str> = one_of_each().iter().map(Event::name).collect();
    assert_eq!(samples, Event::NAMES);
}

#[test]
fn an_event_knows_its_index_among_the_kinds() {
    for event in one_of_each() {
        assert_eq!(Event::NAMES[event.index()], event.name());
    }
}
