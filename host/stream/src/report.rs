//! What the sockets and the journal's threads have to tell becomes events, and what stands still becomes gauges.
//!
//! Owns no part of the path: it looks, once a turn.

use crate::pipeline::Pipeline;
use afterbay_delivery::{Doing, Sink};
use afterbay_events::StreamTelemetry;
use afterbay_events::event::{
    CreditSeen, CreditUnusable, JournalNotice, JournalSyncFailed, NoticesMissed, PollFailed, ReceivePaused,
    ReceiveResumed, SegmentRemoved, SenderClosed, SenderConnected, SenderRefused, SinkConnected, SinkLost,
    SinkSettled, SinkState, SinkWaiting, StreamPanicked,
};
use afterbay_events::{Health, Name, Severity, SinkCounters};
use afterbay_journal::{BackgroundNotice, FrameNo};
use afterbay_sockets::credit::CreditState;
use afterbay_sockets::{LossReason, PeerId, PullNotice, PushNotice};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// How often what is dear to read (a plugin's memory) is read.
const GAUGES_EVERY: Duration = Duration::from_secs(1);

/// Of a reader that is gone and has finished all there was, it is told only when the senders have had so long to go, too:
/// then it is how SGLang ends, in whichever order its processes do.
const SENDERS_GO: Duration = Duration::from_millis(500);

/// A pause shorter than this is how a bound works, and is not told.
const PAUSE_TOLD: Duration = Duration::from_millis(100);

struct Paused {
    since: Instant,
    told: bool,
}

/// Tells of one sink.
struct SinkReport {
    name: Name,
    counters: Arc<SinkCounters>,
    /// How the reader did when it was last looked at, and whether that was the end.
    doing: Option<(Doing, bool)>,
    /// Its reader is gone, which is not told yet.
    lost: Option<Lost>,
    /// It went when there was nothing left to do, and has not come again.
    at_end: bool,
    /// When, and how many rows had left for it.
    looked: (Instant, u64),
}

/// A reader that is gone.
struct Lost {
    why: LossReason,
    since: Instant,
    /// It closed the connection between two frames, having read all that the kernel had.
    is_clean: bool,
}

/// Tells of one stream.
pub(crate) struct Report {
    telemetry: StreamTelemetry,
    /// In the path's order.
    sinks: Vec<SinkReport>,
    health: Health,
    senders: HashSet<PeerId>,
    /// A sync has failed and not all of it is mended.
    sync_failing: bool,
    /// There is no room for further live requests.
    is_full: bool,
    /// Nothing is received since then: a queue is full, or the journal fails.
    paused: Option<Paused>,
    gauges_at: Instant,
}

impl Report {
    /// `sinks` by name, in the path's order.
    pub(crate) fn new<'a>(
        telemetry: StreamTelemetry,
        health: Health,
        sinks: impl Iterator<Item = (&'a str, Arc<SinkCounters>)>,
        now: Instant,
    ) -> Report {
        let sink = |(name, counters): (&str, _)| {
            let name = name.into();
            SinkReport { name, counters, doing: None, lost: None, at_end: false, looked: (now, 0) }
        };
        Report {
            telemetry,
            sinks: sinks.map(sink).collect(),
            health,
            senders: HashSet::new(),
            sync_failing: false,
            is_full: false,
            paused: None,
            gauges_at: now,
        }
    }

    /// When [`Report::tell`] is due without a turn.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let lost = self.sinks.iter().filter_map(|sink| Some(sink.lost.as_ref()?.since + SENDERS_GO));
        lost.chain([self.gauges_at]).min()
    }

    /// A frame is whole in the kernel.
    pub(crate) fn took(&self, time: Duration) {
        self.telemetry.counters.frame_seconds.observe(time);
    }

    /// Tells what has happened since the last turn.
    pub(crate) fn tell(&mut self, path: &mut Pipeline, now: Instant) {
        while let Some(notice) = path.receive.next_notice() {
            self.pull(notice);
        }
        let mut sinks = std::mem::take(&mut self.sinks);
        for (sink, report) in path.sinks.iter_mut().zip(&mut sinks) {
            let endpoint = sink.send.socket().endpoint().to_string();
            while let Some(notice) = sink.send.next_notice() {
                self.push(notice, report, &endpoint, now);
            }
            self.lost(sink, report, now.checked_sub(SENDERS_GO));
        }
        self.sinks = sinks;
        while let Some(notice) = path.persister.next_notice() {
            self.journal(notice, path.persister.is_durable_first());
        }
        if self.sync_failing && path.persister.is_healthy() {
            self.sync_failing = false;
            self.health.clear(&self.sync_key());
        }
        self.live_requests(path.ledger.full());
        self.gauges(path);
        self.pauses(path, now);
        if now >= self.gauges_at {
            self.gauges_at = now + GAUGES_EVERY;
            path.chain.publish_gauges(&path.held_rows);
            self.doing(path, now);
        }
    }

    /// Reports that there is no room for further live requests, or that there is again.
    fn live_requests(&mut self, full: Option<String>) {
        if full.is_some() == self.is_full {
            return;
        }
        self.is_full = full.is_some();
        let key = format!("requests:{}", self.telemetry.stream);
        match full {
            Some(text) => self.health.degraded(&key, text, SystemTime::now()),
            None => drop(self.health.clear(&key)),
        }
    }

    /// Tells what is still held back: the stream ends.
    pub(crate) fn end(&mut self, path: &mut Pipeline, now: Instant) {
        self.tell(path, now);
        let mut sinks = std::mem::take(&mut self.sinks);
        path.sinks.iter().zip(&mut sinks).for_each(|(sink, report)| self.lost(sink, report, Some(now)));
        self.sinks = sinks;
    }

    /// Tells of a reader that is gone: at once where something is left undone or the senders are gone, too; else if that was
    /// before `told_since`.
    fn lost(&self, sink: &Sink, report: &mut SinkReport, told_since: Option<Instant>) {
        let Some(Lost { since, is_clean, .. }) = &report.lost else { return };
        let is_done = *is_clean && sink.is_drained();
        let at_end = is_done && self.senders.is_empty();
        if at_end || !is_done || told_since.is_some_and(|told_since| *since <= told_since) {
            self.tell_lost(report, at_end);
        }
    }

    fn tell_lost(&self, report: &mut SinkReport, at_end: bool) {
        let Some(Lost { why, .. }) = report.lost.take() else { return };
        report.at_end = at_end;
        let (stream, sink) = (self.telemetry.stream.clone(), report.name.clone());
        self.telemetry.publish(SinkLost { stream, sink, why: why.to_string(), at_end });
    }

    fn gauges(&self, path: &Pipeline) {
        let stream = &self.telemetry.counters;
        stream.frames_received.set(path.receive.frames);
        stream.bytes_received.set(path.receive.bytes);
        stream.requests_live.set(path.ledger.live() as u64);
        stream.senders.set(self.senders.len() as u64);
        stream.journal_durable_frame.set(path.persister.durable_frame().0);
        let (mut forwarded, mut waiting, mut spilled) = (0, (0, 0), (0, 0));
        for (sink, SinkReport { counters, .. }) in path.sinks.iter().zip(&self.sinks) {
            let socket = sink.send.socket();
            let (pending, unfinished) = (socket.pending(), socket.unfinished());
            counters.connected.set(u64::from(socket.is_connected()));
            let totals = socket.totals();
            counters.frames_written.set(totals.frames_written);
            counters.bytes_written.set(totals.bytes_written);
            counters.frames_finished.set(totals.frames_finished);
            counters.taken_frame.set(sink.outbox.done());
            let joined = sink.outbox.totals();
            counters.frames_composed.set(joined.frames_composed);
            counters.rows_left.set(joined.rows_left);
            counters.rows_joined.set(joined.rows_joined);
            counters.frames_torn.set(joined.frames_torn);
            counters.window_frames.set(sink.send.window() as u64);
            counters.queue_frames.set(pending.frames as u64);
            counters.queue_bytes.set(pending.bytes as u64);
            counters.credit_usable.set(u64::from(socket.finished().is_some()));
            counters.lag_frames.set(unfinished.frames as u64);
            counters.lag_bytes.set(unfinished.bytes as u64);
            forwarded += sink.send.frames;
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

    /// How the readers do, and what waits for each.
    fn doing(&mut self, path: &Pipeline, now: Instant) {
        for (sink, report) in path.sinks.iter().zip(&mut self.sinks) {
            let oldest = sink.outbox.oldest();
            let rows = sink.outbox.rows() as u64;
            let oldest_waits = oldest.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
            let doing = sink.send.doing(oldest, now);
            report.counters.waiting_rows.set(rows);
            report.counters.waiting_tokens.set(sink.outbox.tokens());
            let left = sink.outbox.totals().rows_left;
            let (before, left_before) = std::mem::replace(&mut report.looked, (now, left));
            let millis = now.saturating_duration_since(before).as_millis().max(1);
            let rate = u128::from(left.saturating_sub(left_before)) * 1000 / millis;
            report.counters.rows_per_second.set(u64::try_from(rate).unwrap_or(u64::MAX));
            report.counters.waiting_oldest_seconds.set(oldest_waits);
            report.counters.state.set(doing as u64);
            if report.lost.is_some() {
                continue;
            }
            // What comes for a reader that went at the end makes it one that is away.
            let at_end = doing == Doing::Away && report.at_end && sink.is_drained();
            let now = (doing, at_end);
            if report.doing.replace(now).is_some_and(|before| before != now) {
                let (stream, sink) = (self.telemetry.stream.clone(), report.name.clone());
                let state = doing.name();
                let oldest_ms = u64::try_from(oldest_waits.as_millis()).unwrap_or(u64::MAX);
                self.telemetry.publish(SinkState { stream, sink, state, rows, oldest_ms, at_end });
            }
        }
    }

    /// While nothing is received, says so.
    fn pauses(&mut self, path: &Pipeline, now: Instant) {
        let why = path.full();
        self.telemetry.counters.receiving.set(u64::from(why.is_none()));
        let stream = self.telemetry.stream.clone();
        let Some(why) = why else {
            if let Some(Paused { since, told }) = self.paused.take() {
                let paused = now.saturating_duration_since(since);
                self.telemetry.counters.receive_paused_seconds.add(paused);
                if told {
                    let paused_ms = u64::try_from(paused.as_millis()).unwrap_or(u64::MAX);
                    self.telemetry.publish(ReceiveResumed { stream, paused_ms });
                }
            }
            return;
        };
        let paused = self.paused.get_or_insert(Paused { since: now, told: false });
        if !paused.told && now.saturating_duration_since(paused.since) >= PAUSE_TOLD {
            paused.told = true;
            self.telemetry.publish(ReceivePaused { stream, why: why.to_owned() });
        }
    }

    fn pull(&mut self, notice: PullNotice) {
        let stream = self.telemetry.stream.clone();
        match notice {
            PullNotice::Connected { peer, from } => {
                self.senders.insert(peer);
                self.telemetry.publish(SenderConnected { stream, peer: peer.0, from: from.to_string() });
            }
            PullNotice::Closed { peer, from: _, why, messages } => {
                self.senders.remove(&peer);
                let reason = why.label();
                self.telemetry.publish(SenderClosed {
                    stream,
                    peer: peer.0,
                    reason,
                    why: why.to_string(),
                    frames: messages,
                });
            }
            PullNotice::Refused { from, why, times } => {
                let (from, why) = (from.to_string(), format!("{why} ({times} times)"));
                self.telemetry.publish(SenderRefused { stream, from, why });
            }
            PullNotice::Missed { count } => {
                self.telemetry.publish(NoticesMissed { stream, of: "senders", missed: count });
            }
        }
    }

    fn push(&self, notice: PushNotice, report: &mut SinkReport, endpoint: &str, now: Instant) {
        let (stream, sink) = (self.telemetry.stream.clone(), report.name.clone());
        let key = format!("sink:{stream}/{sink}");
        match notice {
            PushNotice::Connected { .. } => {
                self.tell_lost(report, false);
                report.counters.connects.add(1);
                self.health.clear(&key);
                self.telemetry.publish(SinkConnected { stream, sink, endpoint: endpoint.to_owned() });
            }
            PushNotice::Waiting { why } => {
                self.health.degraded(&key, format!("no reader on {endpoint}: {why}"), SystemTime::now());
                self.telemetry.publish(SinkWaiting {
                    stream,
                    sink,
                    endpoint: endpoint.to_owned(),
                    why: why.to_string(),
                });
            }
            PushNotice::Lost { why, cut } => {
                self.health.degraded(&key, format!("no reader on {endpoint}: {why}"), SystemTime::now());
                self.tell_lost(report, false);
                let is_clean = why == LossReason::Closed && cut.is_none();
                report.lost = Some(Lost { why, since: now, is_clean });
            }
            PushNotice::Settled { resent, unconfirmed } => {
                self.tell_lost(report, false);
                let unconfirmed_frames = unconfirmed.as_ref().map_or(0, |frames| frames.frames as u64);
                report.counters.frames_resent.add(resent as u64);
                report.counters.frames_unconfirmed.add(unconfirmed_frames);
                let resent_frames = resent as u64;
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

    /// `is_durable_first`: nothing is forwarded before a sync has succeeded.
    fn journal(&mut self, notice: BackgroundNotice, is_durable_first: bool) {
        let stream = self.telemetry.stream.clone();
        let what = notice.to_string();
        match notice {
            BackgroundNotice::SyncFailed { error, durable, .. } => {
                self.sync_failing = true;
                let severity = if is_durable_first { Severity::NotReady } else { Severity::Degraded };
                self.health.set(&self.sync_key(), severity, what, SystemTime::now());
                self.telemetry.publish(JournalSyncFailed { stream, durable_frame: durable.0, why: error });
            }
            BackgroundNotice::Removed { segment, bytes, .. } => {
                self.telemetry.publish(SegmentRemoved { stream, segment: segment.to_string(), bytes });
            }
            BackgroundNotice::Rewritten { .. } => {
                self.telemetry.publish(JournalNotice { stream, is_wrong: false, what });
            }
            _ => self.telemetry.publish(JournalNotice { stream, is_wrong: true, what }),
        }
    }

    /// Its thread panicked, and goes on. `frame`: the one in hand.
    pub(crate) fn panicked(&self, frame: Option<FrameNo>, why: &str) {
        self.telemetry.counters.panics.add(1);
        let (stream, frame) = (self.telemetry.stream.clone(), frame.map_or(0, |frame| frame.0));
        self.telemetry.publish(StreamPanicked { stream, frame, why: why.to_owned() });
    }

    /// The journal could not be opened again after a panic.
    pub(crate) fn not_reopened(&self, why: &str) {
        let stream = self.telemetry.stream.clone();
        let what = format!("it could not be opened again after a panic, and is tried again: {why}");
        self.telemetry.publish(JournalNotice { stream, is_wrong: true, what });
    }

    /// The poll itself failed, which it does only where the system is out of something.
    pub(crate) fn poll_failed(&self, error: &std::io::Error) {
        let stream = self.telemetry.stream.clone();
        self.telemetry.publish(PollFailed { stream, why: error.to_string() });
    }
}
