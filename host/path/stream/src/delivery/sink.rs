//! One sink: the frames that wait for its reader, in memory and in the journal, and its socket.
//!
//! The sinks of a stream know nothing of each other. While the reader of one is slow or away, its frames wait, and the other
//! sinks continue.

use crate::delivery::budget::Portion;
use crate::delivery::resume::Resume;
use crate::delivery::router::Router;
use crate::delivery::sender::SinkSender;
use crate::delivery::spill::{Spill, Spilled};
use crate::delivery::stored_content::stored_content;
use afterbay_batch::outbox::{Frame, FrameToSend, Options, Outbox};
use afterbay_batch::records::Records;
use afterbay_batch::{Content, FrameDecoder, Persisted, Timestamp, failpoint};
use afterbay_events::SinkCounters;
use afterbay_journal::{BacklogFrame, Credit, FrameNo, SendRoom};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Frames that one call of [`Sink::refill`] reads from the journal.
const FRAMES_PER_REFILL: usize = 16;
/// Time after a failed read of the journal before the next attempt.
const RETRY_EVERY: Duration = Duration::from_millis(100);

/// One sink of a stream.
pub struct Sink {
    /// The sink's name in the journal.
    pub name: String,
    /// The frames that wait in memory.
    pub outbox: Outbox,
    memory: Portion,
    /// The frames that wait in the journal, behind those in memory.
    spill: Option<Spill>,
    /// The socket.
    pub sender: SinkSender,
    counters: Arc<SinkCounters>,
    /// The frames of an earlier run that the reader has, until all frames of that run have been pushed.
    resume: Option<Resume>,
    /// The last frame that was pushed.
    pub last_pushed: FrameNo,
    recorded: RecordedProgress,
    /// The generation of the reader that the journal has on disk as the one that gets the frames.
    written_generation: Option<u64>,
}

/// The progress of the sink that the journal has on record.
struct RecordedProgress {
    /// The sent frame up to which the reader has taken all.
    sequence: u64,
    /// The received frame up to which the reader has taken all.
    through: FrameNo,
    credit: Option<Credit>,
}

impl Sink {
    /// `name` is the sink's name in the journal: for a reader that the SGLang connector found, the configured name and the
    /// reader's id.
    pub fn new(
        name: String,
        options: Options,
        memory: Portion,
        sender: SinkSender,
        resume: Resume,
        records: &Records,
        counters: Arc<SinkCounters>,
    ) -> Sink {
        let outbox = Outbox::new(options, resume.progress.last_sent(), resume.progress.through().0);
        let last_pushed = resume.progress.through();
        let spill = (last_pushed < resume.through)
            .then(|| Spill::of_earlier_run(records.backlog_from(FrameNo(last_pushed.0 + 1)), resume.through));
        let recorded =
            RecordedProgress { sequence: resume.progress.last_sent(), through: last_pushed, credit: None };
        Sink {
            name,
            outbox,
            memory,
            spill,
            sender,
            counters,
            resume: Some(resume),
            last_pushed,
            recorded,
            written_generation: None,
        }
    }

    /// Whether the sink needs nothing of this frame, because of an earlier run.
    pub fn has_taken(&self, frame: FrameNo) -> bool {
        self.resume.as_ref().is_some_and(|resume| resume.progress.has_taken(frame))
    }

    /// Ends the sink after a panic. The socket stays connected.
    pub fn into_sender(mut self) -> SinkSender {
        self.sender.drop_staged();
        self.sender
    }

    /// Queues the sink's content of a frame: in memory, or if that is full, by the frame's place in the journal.
    pub fn push(&mut self, persisted: &Persisted, content: Content, records: &Records) {
        self.last_pushed = persisted.frame().max(self.last_pushed);
        if self.spill.is_none() {
            if self.has_taken(persisted.frame()) {
                return;
            }
            drop(self.resume.take_if(|resume| persisted.frame() > resume.through));
        }
        let frame = |content| frame(persisted.frame(), persisted.at(), content);
        if self.spill.is_none() && self.has_room() {
            self.outbox.push(frame(content));
            return self.memory.set(self.outbox.memory());
        }
        let spill = self.spill.get_or_insert_with(|| Spill::new(records.backlog(persisted)));
        spill.push(persisted, || frame(content));
    }

    /// Reads frames back from the journal while memory has room. `index` is the sink's index in the stream.
    pub fn refill(
        &mut self,
        index: usize,
        records: &mut Records,
        decoder: &mut FrameDecoder,
        router: &mut Router,
        now: Timestamp,
    ) {
        for _ in 0..FRAMES_PER_REFILL {
            if !self.can_refill(records) {
                return;
            }
            let Some(spill) = &mut self.spill else { return };
            // The outcome of the next frame may be among the records that are not written yet.
            let next = if records.flush() { spill.next() } else { Ok(None) };
            let retry_at = Some(now.instant + RETRY_EVERY);
            match next {
                Ok(Some(Spilled::InMemory(frame))) => self.outbox.push(frame),
                Ok(Some(Spilled::Read(read))) => {
                    self.push_read(index, &read, records, decoder, router, now);
                }
                Ok(None) => spill.retry_at = retry_at,
                Err(error) => {
                    records.report_read_error(&error);
                    if !error.is_missing() {
                        spill.retry_at = retry_at;
                    }
                }
            }
            self.memory.set(self.outbox.memory());
            drop(self.spill.take_if(|spill| spill.is_empty()));
        }
    }

    fn push_read(
        &mut self,
        index: usize,
        read: &BacklogFrame,
        records: &mut Records,
        decoder: &mut FrameDecoder,
        router: &mut Router,
        now: Timestamp,
    ) {
        let mut content = Content::Nothing;
        if !self.has_taken(read.frame) {
            content = router.content_for(read.frame, stored_content(read, decoder), index);
            if self.resume.is_some() {
                // The earlier run may have had other sinks.
                router.record(read.frame, records);
            }
        }
        drop(self.resume.take_if(|resume| read.frame > resume.through));
        let mut in_flight_through = 0;
        if let Some(resume) = &self.resume {
            content = resume.remaining(read.frame, content);
            in_flight_through = resume.in_flight_through;
        }
        let received_at = Timestamp::from_unix_ns(read.received_unix_ns, now);
        self.outbox.push_rest(frame(read.frame, received_at, content), in_flight_through);
    }

    /// Whether [`Sink::refill`] may read a frame now. While frames of an earlier run are accounted, none is read, because
    /// those come first.
    pub fn can_refill(&self, records: &Records) -> bool {
        let can_read = self.spill.as_ref().is_some_and(|spill| spill.retry_at.is_none());
        can_read && self.has_room() && !records.lacks_outcomes
    }

    fn has_room(&self) -> bool {
        self.outbox.has_room() && (self.outbox.is_empty() || self.memory.has_room())
    }

    /// The reason why nothing more may be received because of this sink.
    pub fn full(&self, spill_bytes_max: u64) -> Option<&'static str> {
        let spill = self.spill.as_ref()?;
        if spill.has_unpersisted() {
            return Some(
                "a sink's queue is full, and the disk refuses the frames that would wait in the journal",
            );
        }
        let (_, bytes) = spill.size();
        (bytes >= spill_bytes_max)
            .then_some("the frames that wait in the journal for a sink have reached journal.retain.bytes")
    }

    /// Sends what the reader takes now. `on_written` gets the frames that the kernel now has whole.
    /// Returns whether the reader would take more.
    pub fn send(
        &mut self,
        records: &mut Records,
        now: Timestamp,
        on_written: &mut dyn FnMut(&mut dyn Iterator<Item = FrameToSend>),
    ) -> bool {
        self.sender.observe(now.instant);
        while let Some(first_rows) = self.sender.next_taken() {
            for (received_at, rows) in first_rows {
                let time = now.instant.saturating_duration_since(received_at);
                self.counters.first_token_taken_seconds.observe_many(time, u64::from(rows));
            }
        }
        self.outbox.taken(self.sender.push.taken());
        // Before a frame is sent: after a kill, the reader's count is compared with this record.
        self.record_taken(records, now);
        if self.sender.push.is_held() && records.may_send(now) {
            self.sender.push.hold(false);
        }
        let was_refused = self.sender.staged().frames > 0;
        let mut has_sent = false;
        while !was_refused && self.sender.has_room() {
            let room = records.send_room(&self.name);
            // The next frame waits until the reader has taken one: its record would exceed a bound of the journal.
            if room == SendRoom::Full {
                break;
            }
            self.outbox.send_in_order(room == SendRoom::InOrder);
            let Some(mut outgoing) = self.outbox.next(self.sender.keeps_up(), now.instant) else { break };
            for (received_at, rows) in self.outbox.sent_rows() {
                let waited = now.instant.saturating_duration_since(*received_at);
                self.counters.row_wait_seconds.observe_many(waited, u64::from(*rows));
            }
            failpoint::at("compose");
            let content = std::mem::take(&mut outgoing.content);
            records.record_sent(&self.name, outgoing.sequence, content, now);
            failpoint::at("recorded");
            self.sender.stage(outgoing);
            has_sent = true;
        }
        // The record is written before the kernel gets the frame, so that no frame is sent of which the journal knows
        // nothing. The same write takes the outcomes of the frames.
        if (has_sent || was_refused) && records.may_send(now) {
            self.sender.commit();
        }
        failpoint::at("flush");
        // A new reader gets the frames again that the reader before it has not finished. Its count must be on record first:
        // after a kill, the old reader's count would say that these frames never arrived.
        let generation = self.sender.credit().map(|credit| credit.generation);
        if self.written_generation == generation || records.may_send(now) {
            self.written_generation = generation;
            self.sender.flush(now.instant, on_written);
        }
        failpoint::at("flushed");
        self.outbox.taken(self.sender.push.taken());
        // A notice may name frames as unconfirmed. It is published before they count as taken: after a death in between, nobody
        // would name them.
        if !self.sender.push.has_notices() {
            self.record_taken(records, now);
        }
        self.memory.set(self.outbox.memory());
        has_sent && !self.outbox.is_empty() && self.sender.keeps_up()
    }

    /// Records how far the reader has taken the stream and, with credit, which frames the kernel has. The next write takes the
    /// record along. After a kill before that write, the frames of the last round are sent again if the reader finishes nothing
    /// for 5 seconds.
    pub fn record_taken(&mut self, records: &mut Records, now: Timestamp) {
        let taken = FrameNo(self.outbox.taken_through());
        // Frames without content for this sink are taken, too, if nothing is queued.
        let through = if self.is_drained() { self.last_pushed.max(taken) } else { taken };
        debug_assert!(through >= self.recorded.through, "a taken frame stays taken");
        let (sequence, credit) = (self.sender.push.taken(), self.sender.credit());
        let recorded = &mut self.recorded;
        // The credit is recorded even before the reader has taken a frame: it is where the reader's count begins.
        if (recorded.sequence, recorded.through, recorded.credit) != (sequence, through, credit) {
            (recorded.sequence, recorded.through, recorded.credit) = (sequence, through, credit);
            records.record_taken(&self.name, sequence, through, credit, now);
        }
    }

    /// Forgets the frames that the next process does not have, and records which frames it has.
    pub fn drop_unsaved(&mut self, records: &mut Records) {
        self.sender.drop_unsaved();
        let socket = &self.sender.push;
        records.record_never_written(&self.name, socket.taken(), self.sender.last, self.sender.credit());
    }

    /// Records at the end of the stream which of the socket's frames the kernel never had.
    pub fn record_never_written(&self, records: &mut Records) {
        let socket = &self.sender.push;
        records.record_never_written(&self.name, socket.taken(), socket.written(), self.sender.credit());
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant) {
        self.sender.push.tick(now);
        if let Some(spill) = &mut self.spill {
            spill.retry_at.take_if(|at| *at <= now);
        }
    }

    /// The time at which [`Sink::tick`] or [`Sink::send`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        let spill = self.spill.as_ref().and_then(|spill| spill.retry_at);
        [self.sender.push.deadline(), spill].into_iter().flatten().min()
    }

    /// Number and bytes of the frames that wait only in the journal.
    pub fn spilled(&self) -> (usize, u64) {
        self.spill.as_ref().map_or((0, 0), Spill::size)
    }

    /// The first frame that retention must leave in the journal for this sink.
    pub fn retained_from(&self) -> Option<FrameNo> {
        self.spill.as_ref().map(Spill::first)
    }

    /// Number and bytes of the frames that the reader has not taken. Without credit, the kernel's word counts for the reader.
    pub fn backlog_size(&self) -> (usize, u64) {
        let (pending, unfinished) = (self.sender.push.pending(), self.sender.push.unfinished());
        let staged = self.sender.staged();
        let (spilled, spilled_bytes) = self.spilled();
        let frames = spilled + self.outbox.frames() + staged.frames + pending.frames + unfinished.frames;
        let bytes = staged.bytes + pending.bytes + unfinished.bytes;
        (frames, spilled_bytes + self.outbox.bytes() + bytes as u64)
    }

    /// Whether the reader has taken every pushed frame. Without credit, the kernel's word counts for the reader.
    pub fn is_drained(&self) -> bool {
        let is_empty = self.spill.is_none() && self.outbox.is_empty() && self.sender.staged().frames == 0;
        is_empty && self.sender.push.is_drained()
    }
}

fn frame(number: FrameNo, received_at: Timestamp, content: Content) -> Frame {
    Frame { number: number.0, at: received_at.instant, content }
}
