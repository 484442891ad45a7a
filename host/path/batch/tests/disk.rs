//! The persist stage on a simulated disk: frames that wait, a disk that refuses, and what the next start finds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use afterbay_batch::frame_log::FrameLog;
use afterbay_batch::records::{JournalPolicy, Records};
use afterbay_batch::{Location, Persisted, Received, Timestamp};
use afterbay_config::OnError;
use afterbay_events::event::{JournalHealed, JournalNotice, JournalWriteFailed};
use afterbay_events::{Events, Health, Metrics, Recorder, StreamTelemetry};
use afterbay_journal::{
    Background, Credit, FrameNo, JournalDirectory, JournalOptions, Outcome, Passage, RecoveredStream,
    RequestNo, SinkContent, SyncPolicy,
};
use afterbay_sim_disk::SimDisk;
use bytes::Bytes;
use std::path::Path;
use std::time::{Duration, Instant};

const RETRY: Duration = Duration::from_millis(100);
const PROBE: Duration = Duration::from_millis(500);
const FRAME: usize = 3000;

struct Stage {
    log: FrameLog,
    recovered: RecoveredStream,
    telemetry: StreamTelemetry,
    recorder: Recorder,
    health: Health,
    began: Timestamp,
    after: Duration,
    disk: SimDisk,
    directory: JournalDirectory,
}

impl Stage {
    fn new(on_error: OnError) -> Stage {
        let disk = SimDisk::new(1);
        disk.set_reserves(true);
        Stage::start(disk, on_error, false)
    }

    fn start(disk: SimDisk, on_error: OnError, durable_first: bool) -> Stage {
        let sync = if durable_first { SyncPolicy::Always } else { SyncPolicy::None };
        let options = JournalOptions { segment_bytes: 64 << 10, sync, ..JournalOptions::default() };
        let directory =
            JournalDirectory::open_on(disk.process(), Path::new("/journal"), options, Background::Caller)
                .unwrap();
        let (writer, recovered) = directory.stream("s").unwrap();
        let (events, recorder) = Events::recorded();
        let health = Health::default();
        let counters = Metrics::new(events.clone(), health.clone()).stream("s");
        let telemetry = StreamTelemetry { stream: "s".into(), events, counters };
        let began = Timestamp { instant: Instant::now(), unix_ns: 1 << 60 };
        let policy = JournalPolicy { on_error, durable_first, ..JournalPolicy::default() };
        let records = Records::new(writer, policy, &recovered, telemetry.clone(), health.clone(), began);
        let log = FrameLog::new(records, &recovered);
        let after = Duration::ZERO;
        Stage { log, recovered, telemetry, recorder, health, began, after, disk, directory }
    }

    /// Kills the process and starts it again.
    fn restart(self) -> Stage {
        let Stage { disk, log, directory, .. } = self;
        disk.kill();
        drop((log, directory));
        disk.set_capacity(usize::MAX);
        Stage::start(disk, OnError::Stop, false)
    }

    fn now(&self) -> Timestamp {
        let unix_ns = self.began.unix_ns + self.after.as_nanos() as u64;
        Timestamp { instant: self.instant(), unix_ns }
    }

    fn instant(&self) -> Instant {
        self.began.instant + self.after
    }

    fn receive(&mut self) {
        let received = Received { bytes: Bytes::from(vec![7; FRAME]), at: self.now() };
        self.log.persist(received, self.now());
    }

    fn next(&mut self) -> Option<Persisted> {
        let now = self.now();
        self.log.next(now)
    }

    fn numbers(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.next()).map(|persisted| persisted.frame().0).collect()
    }

    fn tick(&mut self, after: Duration) {
        self.after += after;
        let now = self.now();
        self.log.tick(now);
    }

    fn may_send(&mut self) -> bool {
        let now = self.now();
        self.log.records.may_send(now)
    }

    fn account(&mut self, frame: u64) {
        let outcome = Outcome::new(FrameNo(frame), 1, Passage::Unchanged);
        self.log.records.record_outcome(&outcome);
    }

    fn send(&mut self, sequence: u64, frame: Option<u64>) {
        let rows = || SinkContent::Rows(vec![(RequestNo(4), FrameNo(5))].into());
        let content = frame.map_or_else(rows, |frame| SinkContent::Whole(FrameNo(frame)));
        let now = self.now();
        self.log.records.record_sent("sink", sequence, content, now);
    }

    /// Receives until the disk refuses a frame.
    fn fill(&mut self) -> u64 {
        self.receive();
        self.disk.set_capacity(self.disk.used());
        while self.log.full().is_none() && self.telemetry.counters.journal_failing.get() == 0 {
            self.receive();
        }
        self.log.last_frame().0
    }
}

#[test]
fn frames_come_out_in_order_with_their_place_in_the_journal_and_count_until_then() {
    let mut stage = Stage::new(OnError::Stop);
    assert_eq!((stage.log.backlog_size(), stage.log.has_next()), ((0, 0), false));
    for seconds in 1..=3 {
        stage.after = Duration::from_secs(seconds);
        stage.receive();
    }
    assert_eq!(stage.log.backlog_size(), (3, 3 * FRAME as u64));
    assert_eq!(stage.log.oldest_received_at(), Some(stage.began.instant + Duration::from_secs(1)));
    assert_eq!((stage.log.last_frame(), stage.telemetry.counters.journal_frame.get()), (FrameNo(3), 3));
    let first = stage.next().unwrap();
    assert!(matches!(first.location(), Location::At(_)) && first.is_in_journal());
    assert_eq!((first.frame(), first.bytes().len()), (FrameNo(1), FRAME));
    assert_eq!(stage.log.backlog_size(), (2, 2 * FRAME as u64));
    assert_eq!(stage.numbers(), [2, 3]);
    assert_eq!((stage.log.backlog_size(), stage.log.oldest_received_at()), ((0, 0), None));
    assert_eq!((stage.log.full(), stage.log.unpersisted()), (None, 0));
}

#[test]
fn with_sync_always_a_frame_waits_until_it_is_durable_and_the_waiting_frames_are_bounded() {
    let disk = SimDisk::new(1);
    let mut stage = Stage::start(disk, OnError::Stop, true);
    assert!(stage.log.records.policy.durable_first);
    stage.receive();
    assert_eq!((stage.log.has_next(), stage.log.records.durable_frame()), (false, FrameNo(0)));
    assert!(stage.next().is_none());
    for _ in 1..4096 {
        assert_eq!(stage.log.full(), None);
        stage.receive();
    }
    assert!(stage.log.full().is_some_and(|why| why.contains("4096 frames")));
}

#[test]
fn with_on_error_stop_a_refused_frame_waits_and_is_written_once_there_is_room() {
    let mut stage = Stage::new(OnError::Stop);
    let last = stage.fill();
    assert!(stage.log.full().is_some_and(|why| why.contains("refuses")));
    assert!(!stage.log.records.is_healthy());
    assert_eq!((stage.log.unpersisted(), stage.log.backlog_size().0 as u64), (1, last + 1));
    assert_eq!(stage.log.backlog_size().1, (last + 1) * FRAME as u64);
    assert_eq!(stage.numbers().last(), Some(&last));
    let [failed] = &stage.recorder.of::<JournalWriteFailed>()[..] else { panic!("one event") };
    assert_eq!(failed.on_error, "stop");
    assert!(!stage.health.is_ready());
    assert_eq!(stage.log.deadline(), Some(stage.instant() + RETRY));
    // Not before its time, and not without room.
    stage.disk.set_capacity(usize::MAX);
    stage.tick(RETRY - Duration::from_nanos(1));
    assert_eq!(stage.log.unpersisted(), 1);
    stage.tick(Duration::from_nanos(1));
    assert_eq!((stage.log.unpersisted(), stage.log.full()), (0, None));
    assert_eq!(stage.numbers(), [last + 1]);
    let [healed] = &stage.recorder.of::<JournalHealed>()[..] else { panic!("one event") };
    assert_eq!((healed.failing_ms, healed.skipped_frames), (100, 0));
    assert!(stage.health.is_ready() && stage.telemetry.counters.journal_failing.get() == 0);
    assert!(stage.log.records.is_healthy() && stage.log.deadline().is_none());
}

#[test]
fn with_on_error_forward_refused_frames_pass_unpersisted_and_a_probe_ends_the_failure() {
    let mut stage = Stage::new(OnError::Forward);
    let last = stage.fill();
    stage.receive();
    assert_eq!((stage.log.full(), stage.log.unpersisted()), (None, 0));
    let frames: Vec<Persisted> = std::iter::from_fn(|| stage.next()).collect();
    let skipped: Vec<u64> =
        frames.iter().filter(|it| !it.is_in_journal()).map(|persisted| persisted.frame().0).collect();
    assert_eq!(skipped, [last, last + 1], "numbers have no gaps");
    assert_eq!(stage.telemetry.counters.journal_frames_skipped.get(), 2);
    assert_eq!(stage.recorder.of::<JournalWriteFailed>().len(), 1);
    assert!(stage.health.is_ready(), "the stream goes on");
    assert_eq!(stage.log.deadline(), Some(stage.instant() + PROBE));
    stage.tick(PROBE);
    assert_eq!(stage.recorder.of::<JournalHealed>(), [], "there is no room yet");
    assert_eq!(stage.log.deadline(), Some(stage.instant() + PROBE));
    stage.disk.set_capacity(usize::MAX);
    stage.tick(PROBE);
    let [healed] = &stage.recorder.of::<JournalHealed>()[..] else { panic!("one event") };
    assert_eq!((healed.failing_ms, healed.skipped_frames), (1000, 2));
    stage.receive();
    assert!(stage.next().unwrap().is_in_journal());
}

#[test]
fn what_was_recorded_about_frames_and_sinks_is_there_after_a_kill() {
    let mut stage = Stage::new(OnError::Stop);
    for _ in 0..4 {
        stage.receive();
    }
    stage.numbers();
    for frame in 1..=3 {
        stage.account(frame);
    }
    stage.log.records.record_first_held(Some(FrameNo(3)));
    stage.log.records.record_first_held(Some(FrameNo(2)));
    assert_eq!(stage.log.records.held_after(), Some(FrameNo(2)));
    stage.send(1, Some(1));
    stage.send(2, None);
    stage.send(3, Some(3));
    let (now, credit) = (stage.now(), Some(Credit { generation: 8, sent: 1, handed_over: 2 }));
    stage.log.records.record_taken("sink", 1, FrameNo(1), credit, now);
    assert!(stage.log.records.flush() && stage.may_send());
    let stage = stage.restart();
    let reader = stage.recovered.sinks.iter().find(|sink| sink.is_reader()).unwrap();
    assert_eq!((reader.through(), reader.last_sent()), (FrameNo(1), 3));
    assert_eq!(reader.credit(), credit);
    let contents: Vec<_> = reader.sent().map(|sent| sent.content.clone()).collect();
    assert!(matches!(contents[..], [SinkContent::Rows(_), SinkContent::Whole(FrameNo(3))]), "{contents:?}");
    assert_eq!(stage.log.records.held_after(), Some(FrameNo(2)));
    // The frame that nobody accounted comes first.
    let mut stage = stage;
    assert!(stage.log.records.lacks_outcomes && stage.log.has_next());
    assert_eq!(stage.log.backlog_size(), (1, 0));
    stage.receive();
    assert_eq!(stage.numbers(), [4, 5]);
    assert!(!stage.log.records.lacks_outcomes);
    // No row is held any more.
    stage.log.records.record_held_from(None);
    assert!(stage.log.records.flush());
    assert_eq!(stage.restart().log.records.held_after(), None);
}

#[test]
fn frames_that_the_kernel_never_had_are_sent_again_by_the_next_start() {
    let mut stage = Stage::new(OnError::Stop);
    for frame in 1..=4 {
        stage.receive();
        stage.account(frame);
        stage.send(frame, Some(frame));
    }
    let now = stage.now();
    stage.log.records.record_taken("sink", 1, FrameNo(1), None, now);
    let credit = Some(Credit { generation: 2, sent: 1, handed_over: 1 });
    stage.log.records.record_never_written("sink", 1, 4, credit);
    stage.log.records.record_never_written("other", 1, 2, credit);
    assert!(stage.log.records.flush());
    let reader = |stage: &Stage| stage.recovered.sinks[0].clone();
    let mut stage = stage.restart();
    assert_eq!(reader(&stage).last_sent(), 4, "the kernel has all");
    stage.log.records.record_never_written("sink", 1, 3, credit);
    assert!(stage.log.records.flush());
    let stage = stage.restart();
    let sent: Vec<u64> = reader(&stage).sent().map(|sent| sent.sequence).collect();
    assert_eq!((sent, reader(&stage).credit()), (vec![2, 3], credit));
    assert!(reader(&stage).sent().all(|sent| sent.unix_ns > 0), "each keeps the time of its first record");
}

#[test]
fn records_are_written_before_a_frame_is_sent_and_otherwise_when_the_stream_is_idle() {
    let mut stage = Stage::new(OnError::Stop);
    stage.receive();
    let (idle, now) = (Duration::from_millis(20), stage.instant());
    stage.log.records.flush_when_idle(now, idle);
    assert_eq!(stage.log.deadline(), None, "the frame is written");
    stage.account(1);
    stage.log.records.flush_when_idle(now, idle);
    assert_eq!(stage.log.deadline(), Some(now + idle));
    stage.log.records.flush_when_idle(now + idle / 2, idle);
    assert_eq!(stage.log.deadline(), Some(now + idle));
    stage.log.records.flush_when_idle(now + idle, idle);
    assert_eq!(stage.log.deadline(), None);
    assert!(stage.restart().recovered.unfinished.is_empty());
}

#[test]
fn with_on_error_forward_frames_leave_without_a_record_and_the_next_start_knows() {
    for on_error in [OnError::Stop, OnError::Forward] {
        let mut stage = Stage::new(on_error);
        stage.fill();
        stage.disk.set_full_of_names(true);
        // No room for records, either: the file that is there is full.
        let mut refused = false;
        for frame in 1..2000 {
            stage.account(1);
            stage.send(frame, Some(1));
            let may_send = stage.may_send();
            assert!(may_send || on_error == OnError::Stop);
            if !stage.log.records.flush() {
                refused = true;
                assert_eq!(may_send, on_error == OnError::Forward);
                break;
            }
        }
        assert!(refused, "the disk takes every record");
        // A disk without room for that, either, is reported.
        let is_reported = stage.recorder.of::<JournalNotice>().len() == 1;
        assert_eq!(stage.restart().recovered.unrecorded || is_reported, on_error == OnError::Forward);
    }
}

#[test]
fn a_sealed_journal_is_whole_at_the_next_start() {
    let mut stage = Stage::new(OnError::Stop);
    stage.receive();
    stage.account(1);
    stage.send(1, Some(1));
    let Stage { log, directory, disk, .. } = stage;
    log.records.finish().unwrap();
    drop(directory);
    let stage = Stage::start(disk, OnError::Stop, false);
    assert!(stage.recovered.cut.is_empty() && stage.recovered.unfinished.is_empty());
    assert_eq!(stage.recovered.sinks[0].last_sent(), 1);
}
