//! No frame is sent without its record in the journal.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use afterbay_batch::frame_log::FrameLog;
use afterbay_batch::outbox::{Options, When};
use afterbay_batch::records::{JournalPolicy, Records};
use afterbay_batch::{Content, Joins, Received};
use afterbay_events::{Events, Health, Metrics, StreamTelemetry};
use afterbay_journal::{FrameNo, JournalDirectory, JournalOptions, SendRoom, SinkContent, bounds};
use afterbay_sockets::{Endpoint, Pull, PullOptions, Push, TokenRange};
use afterbay_stream::delivery::{Budget, Resume, Sink, SinkSender, push_options};
use afterbay_stream::{Clock, SystemClock};
use bytes::Bytes;
use mio::Poll;
use std::time::Duration;

#[test]
fn a_frame_waits_for_the_reader_while_its_record_would_exceed_a_bound_of_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let directory = JournalDirectory::open(&dir.path().join("journal"), JournalOptions::default()).unwrap();
    let (writer, recovered) = directory.stream("s").unwrap();
    let (now, health, (events, _recorder)) = (SystemClock.now(), Health::default(), Events::recorded());
    let metrics = Metrics::new(events.clone(), health.clone());
    let telemetry = StreamTelemetry { stream: "s".into(), events, counters: metrics.stream("s") };
    let policy = JournalPolicy::default();
    let records = Records::new(writer, policy, &recovered, telemetry, health, now);
    let mut log = FrameLog::new(records, &recovered);

    let (mut poll, endpoint) = (Poll::new().unwrap(), Endpoint::ipc(dir.path().join("reader")).unwrap());
    let (reader, own) = (TokenRange { first: 100, count: 10 }, TokenRange { first: 1, count: 1 });
    let mut reader = Pull::bind(poll.registry(), reader, &endpoint, PullOptions::default(), None).unwrap();
    let push = Push::connect(poll.registry(), own, &endpoint, push_options(), now.instant).unwrap();
    let options = Options {
        when: When::Backpressure,
        joins: Joins::default(),
        max_rows: 512,
        max_frames: 64,
        max_bytes: 1 << 20,
    };
    let mut sink = Sink::new(
        "reader".to_owned(),
        options,
        Budget::new(u64::MAX).portion(),
        SinkSender::new(push, false, now.instant),
        Resume::for_new_reader("reader", FrameNo(0)),
        &log.records,
        metrics.sink("s", "reader"),
    );
    while !sink.sender.push.is_connected() {
        let mut events = mio::Events::with_capacity(16);
        poll.poll(&mut events, Some(Duration::from_millis(1))).unwrap();
        let now = SystemClock.now().instant;
        for event in &events {
            sink.sender.push.ready(event, now);
            reader.ready(event, now);
        }
        sink.tick(now);
        sink.sender.flush(now, &mut |_| ());
        reader.tick(now);
        assert!(reader.receive().is_none());
    }

    // The reader takes none of the frames of the bound.
    let sent = || SinkContent::Whole(FrameNo(1));
    let most = bounds::SENT_FRAMES_MAX as u64;
    (1..=most).for_each(|sequence| log.records.record_sent("reader", sequence, sent(), now));
    assert_eq!(log.records.send_room("reader"), SendRoom::Full);
    let bytes = Bytes::from_static(b"frame");
    log.persist(Received { bytes: bytes.clone(), at: now }, now);
    let persisted = log.next(now).unwrap();
    sink.push(&persisted, Content::Whole { bytes, counted: true, rows: 1, first_rows: 0 }, &log.records);
    assert!(!sink.send(&mut log.records, now, &mut |_| ()), "the stream does not spin");
    assert_eq!((sink.sender.frames, sink.outbox.frames()), (0, 1));
    log.records.record_taken("reader", 1, FrameNo(0), None, now);
    sink.send(&mut log.records, now, &mut |_| ());
    assert_eq!((sink.sender.frames, sink.outbox.frames()), (1, 0));
}
