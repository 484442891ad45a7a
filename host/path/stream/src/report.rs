//! Publishes the notices of the sockets and of the journal's threads as events, and the state of the stages as metrics.
//!
//! Reads the pipeline once a round and changes nothing on the path.

use crate::delivery::Sink;
use crate::pipeline::Pipeline;
use afterbay_batch::Timestamp;
use afterbay_batch::outbox::FrameToSend;
use afterbay_events::event::{
    CreditSeen, CreditUnusable, JournalNotice, JournalSyncFailed, NotContinued, NoticesMissed, PollFailed,
    ReceivePaused, ReceiveResumed, RequestsErased, SegmentLost, SegmentRemoved, SenderClosed,
    SenderConnected, SenderContinued, SenderRefused, SinkConnected, SinkContinued, SinkLost, SinkSettled,
    SinkState, SinkWaiting, StreamPanicked,
};
use afterbay_events::{Health, Name, ReaderState, Severity, SinkCounters, StreamTelemetry};
use afterbay_journal::{BackgroundNotice, FrameNo};
use afterbay_sockets::credit::CreditState;
use afterbay_sockets::{LossReason, PeerId, PullNotice, PushNotice};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two readings of metrics that are expensive to read, such as a plugin's memory.
const GAUGES_EVERY: Duration = Duration::from_secs(1);
/// Time after a reader's clean end in which the senders may end, too. SGLang's processes end in any order, and the end of all
/// is no loss.
const SENDERS_END_WITHIN: Duration = Duration::from_millis(500);
/// A shorter pause in receiving is normal, and has no event.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// Reports about one stream.
pub(crate) struct Report {
    telemetry: StreamTelemetry,
    health: Health,
    /// In the order of the pipeline's sinks.
    sinks: Vec<SinkReport>,
    senders: HashSet<PeerId>,
    /// Whether a sync has failed that was not made up for.
    sync_failing: bool,
    /// Whether the ledger had no room for further requests.
    is_full: bool,
    pause: Option<Pause>,
    gauges_at: Instant,
}

/// A time in which nothing is received.
struct Pause {
    since: Instant,
    is_published: bool,
}

/// Reports about one sink.
struct SinkReport {
    name: Name,
    counters: Arc<SinkCounters>,
    /// The state that was published last, and whether it was the end of the reader's work.
    state: Option<(ReaderState, bool)>,
    /// The reader's end, until an event is published.
    lost: Option<Lost>,
    /// Whether the reader ended with nothing left to do, and has not connected again.
    at_end: bool,
    /// Sent rows, and when they were read: for the rate.
    rows: (u64, Instant),
}

/// The end of a reader's connection.
struct Lost {
    why: LossReason,
    since: Instant,
    /// Whether the reader closed the connection between two frames and had read all that the kernel had.
    is_clean: bool,
}

impl Report {
    /// `sinks` by name, in the order of the pipeline's sinks.
    pub(crate) fn new<'a>(
        telemetry: StreamTelemetry,
        health: Health,
        sinks: impl Iterator<Item = (&'a str, Arc<SinkCounters>)>,
        now: Instant,
    ) -> Report {
        let sink = |(name, counters): (&str, _)| {
            let name = name.into();
            SinkReport { name, counters, state: None, lost: None, at_end: false, rows: (0, now) }
        };
        Report {
            telemetry,
            health,
            sinks: sinks.map(sink).collect(),
            senders: HashSet::new(),
            sync_failing: false,
            is_full: false,
            pause: None,
            gauges_at: now,
        }
    }

    /// The time at which [`Report::update`] is due without other work.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let lost = self.sinks.iter().filter_map(|sink| Some(sink.lost.as_ref()?.since + SENDERS_END_WITHIN));
        lost.chain([self.gauges_at]).min()
    }

    /// Counts a frame that the kernel now has whole.
    pub(crate) fn frame_written(&self, frame: &FrameToSend, now: Instant) {
        let counters = &self.telemetry.counters;
        counters.frame_seconds.observe(now.saturating_duration_since(frame.at));
        for (received_at, rows) in &frame.first_rows {
            let time = now.saturating_duration_since(*received_at);
            counters.first_token_seconds.observe_many(time, u64::from(*rows));
        }
    }

    /// Publishes everything that is new since the last round.
    pub(crate) fn update(&mut self, pipeline: &mut Pipeline, now: Timestamp) {
        self.publish_notices(pipeline, now);
        let records = &mut pipeline.stages.frame_log.records;
        while let Some(notice) = records.next_notice() {
            self.journal_notice(notice, records.policy.durable_first, now);
        }
        if self.sync_failing && records.is_healthy() {
            self.sync_failing = false;
            self.health.clear(&self.sync_key());
        }
        self.update_live_requests(pipeline.stages.ledger.full(), now);
        self.update_counters(pipeline);
        self.update_pause(pipeline, now.instant);
        if now.instant >= self.gauges_at {
            self.gauges_at = now.instant + GAUGES_EVERY;
            pipeline.stages.chain.publish_gauges(&pipeline.stages.held_rows);
            self.update_states(pipeline, now);
        }
    }

    /// Publishes the notices of the sockets. Call it before frames that a notice names as unconfirmed are recorded as taken.
    pub(crate) fn publish_notices(&mut self, pipeline: &mut Pipeline, now: Timestamp) {
        while let Some(notice) = pipeline.receive.pull.next_notice() {
            self.pull_notice(notice);
        }
        let mut sinks = std::mem::take(&mut self.sinks);
        for (sink, report) in pipeline.delivery.sinks.iter_mut().zip(&mut sinks) {
            while let Some(notice) = sink.sender.push.next_notice() {
                let endpoint = sink.sender.push.endpoint().to_string();
                self.push_notice(notice, report, &endpoint, now);
            }
            self.publish_lost(sink, report, now.instant.checked_sub(SENDERS_END_WITHIN));
        }
        self.sinks = sinks;
    }

    /// Publishes at the end of the stream what [`Report::update`] would publish later.
    pub(crate) fn end(&mut self, pipeline: &mut Pipeline, now: Timestamp) {
        self.update(pipeline, now);
        let mut sinks = std::mem::take(&mut self.sinks);
        for (sink, report) in pipeline.delivery.sinks.iter().zip(&mut sinks) {
            self.publish_lost(sink, report, Some(now.instant));
        }
        self.sinks = sinks;
    }

    fn update_live_requests(&mut self, full: Option<String>, now: Timestamp) {
        if full.is_some() == self.is_full {
            return;
        }
        self.is_full = full.is_some();
        let key = format!("requests:{}", self.telemetry.stream);
        match full {
            Some(text) => self.health.degraded(&key, text, now.system_time()),
            None => drop(self.health.clear(&key)),
        }
    }

    /// Publishes the end of a reader: at once if frames are left for it, or if the senders have ended, too; otherwise if it
    /// ended before `ended_before`.
    fn publish_lost(&self, sink: &Sink, report: &mut SinkReport, ended_before: Option<Instant>) {
        let Some(Lost { since, is_clean, .. }) = &report.lost else { return };
        let is_done = *is_clean && sink.is_drained();
        let at_end = is_done && self.senders.is_empty();
        if at_end || !is_done || ended_before.is_some_and(|ended_before| *since <= ended_before) {
            self.publish_lost_now(report, at_end);
        }
    }

    fn publish_lost_now(&self, report: &mut SinkReport, at_end: bool) {
        let Some(Lost { why, .. }) = report.lost.take() else { return };
        report.at_end = at_end;
        let (stream, sink) = (self.telemetry.stream.clone(), report.name.clone());
        self.telemetry.publish(SinkLost { stream, sink, why: why.to_string(), at_end });
    }

    fn update_counters(&self, pipeline: &Pipeline) {
        let stream = &self.telemetry.counters;
        stream.frames_received.set(pipeline.receive.frames);
        stream.bytes_received.set(pipeline.receive.bytes);
        stream.requests_live.set(pipeline.stages.ledger.live() as u64);
        stream.senders.set(self.senders.len() as u64);
        stream.journal_durable_frame.set(pipeline.stages.frame_log.records.durable_frame().0);
        let (mut forwarded, mut waiting, mut spilled) = (0, (0, 0), (0, 0));
        for (sink, SinkReport { counters, .. }) in pipeline.delivery.sinks.iter().zip(&self.sinks) {
            let socket = &sink.sender.push;
            let (pending, unfinished) = (socket.pending(), socket.unfinished());
            counters.connected.set(u64::from(socket.is_connected()));
            let totals = socket.totals();
            counters.frames_written.set(totals.frames_written);
            counters.bytes_written.set(totals.bytes_written);
            counters.frames_finished.set(totals.frames_finished);
            counters.taken_frame.set(sink.outbox.taken_through());
            let joined = sink.outbox.totals();
            counters.frames_composed.set(joined.frames_composed);
            counters.rows_sent.set(joined.rows_sent);
            counters.rows_joined.set(joined.rows_joined);
            counters.queue_frames.set(pending.frames as u64);
            counters.queue_bytes.set(pending.bytes as u64);
            counters.credit_usable.set(u64::from(socket.finished().is_some()));
            counters.lag_frames.set(unfinished.frames as u64);
            counters.lag_bytes.set(unfinished.bytes as u64);
            forwarded += sink.sender.frames;
            waiting = (waiting.0 + sink.outbox.frames() as u64, waiting.1 + sink.outbox.bytes());
            let (frames, bytes) = sink.spilled();
            counters.spilled_frames.set(frames as u64);
            counters.spilled_bytes.set(bytes);
            spilled = (spilled.0 + frames as u64, spilled.1 + bytes);
        }
        stream.frames_forwarded.set(forwarded);
        stream.outbox_frames.set(waiting.0);
        stream.outbox_bytes.set(waiting.1);
        stream.spilled_frames.set(spilled.0);
        stream.spilled_bytes.set(spilled.1);
    }

    /// Updates the state of each reader, and publishes a change of state. A stalled reader is a condition.
    fn update_states(&mut self, pipeline: &Pipeline, at: Timestamp) {
        let now = at.instant;
        for (sink, report) in pipeline.delivery.sinks.iter().zip(&mut self.sinks) {
            let oldest = sink.outbox.oldest();
            let waiting_rows = sink.outbox.rows() as u64;
            let oldest_waits = oldest.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
            let state = sink.sender.state(oldest, now);
            report.counters.waiting_rows.set(waiting_rows);
            report.counters.waiting_tokens.set(sink.outbox.tokens());
            let sent = sink.outbox.totals().rows_sent;
            let (sent_before, before) = std::mem::replace(&mut report.rows, (sent, now));
            let millis = now.saturating_duration_since(before).as_millis().max(1);
            let rate = u128::from(sent.saturating_sub(sent_before)) * 1000 / millis;
            report.counters.rows_per_second.set(u64::try_from(rate).unwrap_or(u64::MAX));
            report.counters.waiting_oldest_seconds.set(oldest_waits);
            report.counters.state.set(state);
            let key = format!("stalled:{}/{}", self.telemetry.stream, report.name);
            if state == ReaderState::Stalled {
                let (text, time) = sink.sender.stall(now);
                self.health.degraded(&key, text, at.system_time() - time);
            } else {
                self.health.clear(&key);
            }
            if report.lost.is_some() {
                continue;
            }
            // A reader that ended with nothing left to do is away once a frame waits for it.
            let at_end = state == ReaderState::Away && report.at_end && sink.is_drained();
            let now = (state, at_end);
            if report.state.replace(now).is_some_and(|before| before != now) {
                let (stream, sink) = (self.telemetry.stream.clone(), report.name.clone());
                let (state, rows) = (state.word(), waiting_rows);
                let oldest_ms = u64::try_from(oldest_waits.as_millis()).unwrap_or(u64::MAX);
                self.telemetry.publish(SinkState { stream, sink, state, rows, oldest_ms, at_end });
            }
        }
    }

    /// Publishes the beginning and the end of a pause in receiving.
    fn update_pause(&mut self, pipeline: &Pipeline, now: Instant) {
        let why = pipeline.full();
        self.telemetry.counters.receiving.set(u64::from(why.is_none()));
        let stream = self.telemetry.stream.clone();
        let Some(why) = why else {
            let Some(Pause { since, is_published }) = self.pause.take() else { return };
            let paused = now.saturating_duration_since(since);
            if is_published {
                let paused_ms = u64::try_from(paused.as_millis()).unwrap_or(u64::MAX);
                self.telemetry.publish(ReceiveResumed { stream, paused_ms });
            }
            return;
        };
        let pause = self.pause.get_or_insert(Pause { since: now, is_published: false });
        if !pause.is_published && now.saturating_duration_since(pause.since) >= PAUSE_MIN {
            pause.is_published = true;
            self.telemetry.publish(ReceivePaused { stream, why: why.to_owned() });
        }
    }

    fn pull_notice(&mut self, notice: PullNotice) {
        let stream = self.telemetry.stream.clone();
        match notice {
            PullNotice::Connected { peer, from } => {
                self.senders.insert(peer);
                self.telemetry.publish(SenderConnected { stream, peer: peer.0, from: from.to_string() });
            }
            PullNotice::Closed { peer, from: _, why, messages: frames } => {
                self.senders.remove(&peer);
                let (peer, reason, why) = (peer.0, why.label(), why.to_string());
                self.telemetry.publish(SenderClosed { stream, peer, reason, why, frames });
            }
            PullNotice::Refused { from, why, times } => {
                let (from, why) = (from.to_string(), format!("{why} ({times} times)"));
                self.telemetry.publish(SenderRefused { stream, from, why });
            }
            PullNotice::Adopted { peer, from, bytes } => {
                self.senders.insert(peer);
                let (peer, from, bytes) = (peer.0, from.to_string(), bytes as u64);
                self.telemetry.publish(SenderContinued { stream, peer, from, bytes });
            }
            PullNotice::NotAdopted { name, why, lost: lost_bytes } => {
                self.telemetry.publish(NotContinued { stream, name, why, lost_bytes });
            }
            PullNotice::Missed { count } => {
                self.telemetry.publish(NoticesMissed { stream, of: "senders", missed: count });
            }
        }
    }

    fn push_notice(&self, notice: PushNotice, report: &mut SinkReport, endpoint: &str, now: Timestamp) {
        let (stream, sink) = (self.telemetry.stream.clone(), report.name.clone());
        let key = format!("sink:{stream}/{sink}");
        let set_degraded = |why: &str| {
            self.health.degraded(&key, format!("no reader on {endpoint}: {why}"), now.system_time());
        };
        match notice {
            PushNotice::Connected { .. } => {
                self.publish_lost_now(report, false);
                self.health.clear(&key);
                self.telemetry.publish(SinkConnected { stream, sink, endpoint: endpoint.to_owned() });
            }
            PushNotice::Adopted { unfinished, pending, .. } => {
                self.health.clear(&key);
                self.telemetry.publish(SinkContinued {
                    stream,
                    sink,
                    endpoint: endpoint.to_owned(),
                    unfinished_frames: unfinished.frames as u64,
                    pending_frames: pending.frames as u64,
                });
            }
            PushNotice::Waiting { why } => {
                let (why, endpoint) = (why.to_string(), endpoint.to_owned());
                set_degraded(&why);
                self.telemetry.publish(SinkWaiting { stream, sink, endpoint, why });
            }
            PushNotice::Lost { why, cut } => {
                set_degraded(&why.to_string());
                self.publish_lost_now(report, false);
                let is_clean = why == LossReason::Closed && cut.is_none();
                report.lost = Some(Lost { why, since: now.instant, is_clean });
            }
            PushNotice::Settled { resent, unconfirmed } => {
                self.publish_lost_now(report, false);
                let unconfirmed_frames = unconfirmed.as_ref().map_or(0, |frames| frames.frames as u64);
                let resent_frames = resent as u64;
                report.counters.frames_resent.add(resent_frames);
                report.counters.frames_unconfirmed.add(unconfirmed_frames);
                self.telemetry.publish(SinkSettled { stream, sink, resent_frames, unconfirmed_frames });
            }
            PushNotice::Credit { state } => match state {
                CreditState::Usable { generation, count } => {
                    self.telemetry.publish(CreditSeen { stream, sink, generation, count });
                }
                state => self.telemetry.publish(CreditUnusable { stream, sink, why: state.to_string() }),
            },
            PushNotice::Missed { count } => {
                self.telemetry.publish(NoticesMissed { stream, of: "sinks", missed: count });
            }
        }
    }

    fn sync_key(&self) -> String {
        format!("journal-sync:{}", self.telemetry.stream)
    }

    /// `is_durable_first`: whether no frame is sent before a sync has succeeded.
    fn journal_notice(&mut self, notice: BackgroundNotice, is_durable_first: bool, now: Timestamp) {
        let stream = self.telemetry.stream.clone();
        let what = notice.to_string();
        match notice {
            BackgroundNotice::SyncFailed { error, durable, .. } => {
                self.sync_failing = true;
                let severity = if is_durable_first { Severity::NotReady } else { Severity::Degraded };
                self.health.set(&self.sync_key(), severity, what, now.system_time());
                self.telemetry.publish(JournalSyncFailed { stream, durable_frame: durable.0, why: error });
            }
            BackgroundNotice::Removed { segment, bytes, .. } => {
                self.telemetry.publish(SegmentRemoved { stream, segment: segment.to_string(), bytes });
            }
            BackgroundNotice::RemovedUnconfirmed { stream: of, segment, bytes, followers } => {
                self.telemetry.counters.journal_segments_lost.add(1);
                let (stream, segment) = (of.as_str().into(), segment.to_string());
                self.telemetry.publish(SegmentLost { stream, segment, bytes, followers });
            }
            BackgroundNotice::Erased { stream, requests, rows, tokens, segments, left_frames } => {
                self.telemetry.counters.requests_erased.add(requests);
                let stream = stream.as_str().into();
                self.telemetry.publish(RequestsErased {
                    stream,
                    requests,
                    rows,
                    tokens,
                    segments,
                    left_frames,
                });
            }
            BackgroundNotice::Rewritten { .. } => {
                self.telemetry.publish(JournalNotice { stream, is_wrong: false, what });
            }
            _ => self.telemetry.publish(JournalNotice { stream, is_wrong: true, what }),
        }
    }

    /// Publishes a panic of the stream's thread. `frame` is the one that was between decode and route.
    pub(crate) fn panicked(&self, frame: Option<FrameNo>, why: &str) {
        self.telemetry.counters.panics.add(1);
        let (stream, frame) = (self.telemetry.stream.clone(), frame.map_or(0, |frame| frame.0));
        self.telemetry.publish(StreamPanicked { stream, frame, why: why.to_owned() });
    }

    /// Publishes that the journal could not be opened after a panic.
    pub(crate) fn not_reopened(&self, why: &str) {
        let stream = self.telemetry.stream.clone();
        let what = format!("opening failed after a panic, and is tried again: {why}");
        self.telemetry.publish(JournalNotice { stream, is_wrong: true, what });
    }

    /// Publishes a failure of the poll, which happens only if the system lacks a resource.
    pub(crate) fn poll_failed(&self, error: &std::io::Error) {
        let stream = self.telemetry.stream.clone();
        self.telemetry.publish(PollFailed { stream, why: error.to_string() });
    }
}
