//! One reader of the stream: what waits for it in memory and in the journal, and its socket.
//!
//! Owns what it was given and has not taken. A stream's sinks know nothing of each other: while one is slow or away, its
//! share waits, and the others go on.

use crate::budget::Portion;
use crate::resume::Resume;
use crate::router::Router;
use crate::sender::SinkSender;
use crate::spill::{Back, Spill, again};
use crate::tap::Tap;
use afterbay_batch::failpoint;
use afterbay_batch::{FrameDecoder, Persisted, Timestamp};
use afterbay_config::TapOf;
use afterbay_journal::{BacklogFrame, Credit, FrameNo, HandedOver};
use afterbay_outbox::{Content, Frame, Outbox};
use afterbay_persist::Persister;
use std::time::{Duration, Instant};

/// Frames that are read back in one turn.
const FRAMES_PER_TURN: usize = 16;
/// When the journal could not be read, before the next try.
const RETRY: Duration = Duration::from_millis(100);

/// One reader of the stream.
pub struct Sink {
    /// In the journal.
    name: String,
    /// Its place among the stream's sinks.
    place: usize,
    pub outbox: Outbox,
    /// Of the memory that all streams have together.
    memory: Portion,
    /// What came after that.
    spill: Option<Spill>,
    pub send: SinkSender,
    /// While frames of an earlier run come back.
    resume: Option<Resume>,
    /// The last frame that has been through the plugins.
    settled: FrameNo,
    /// What the journal was told it has taken: of what left, and of the frames.
    taken: (u64, FrameNo, Option<Credit>),
    /// What it was told the kernel has.
    handed: Option<HandedOver>,
    /// When to read the journal again after it could not be read.
    read_at: Option<Instant>,
}

/// What a sink is made of.
pub struct Parts {
    pub name: String,
    pub place: usize,
    pub outbox: Outbox,
    pub memory: Portion,
    pub send: SinkSender,
    pub resume: Resume,
}

impl Sink {
    pub fn new(parts: Parts, persister: &Persister) -> Sink {
        let Parts { name, place, outbox, memory, send, resume } = parts;
        let settled = resume.done();
        let spill = (settled < resume.through())
            .then(|| Spill::of_earlier_run(persister.backlog_from(FrameNo(settled.0 + 1)), resume.through()));
        let taken = (resume.last_sent(), settled, None);
        let resume = Some(resume);
        let (handed, read_at) = (None, None);
        Sink { name, place, outbox, memory, spill, send, resume, settled, taken, handed, read_at }
    }

    /// The last frame that has been through the plugins.
    pub fn settled(&self) -> FrameNo {
        self.settled
    }

    /// As the journal names it: a reader that the connector found has its own name behind the configured one.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// It has all of this frame: of an earlier run, or another's.
    pub fn has_taken(&self, frame: FrameNo) -> bool {
        self.resume.as_ref().is_some_and(|resume| resume.has_taken(frame))
    }

    /// All that outlives a panic.
    pub fn into_send(mut self) -> SinkSender {
        self.send.drop_staged();
        self.send
    }

    /// Its share of a frame comes to wait: in memory, or where too much does, in the journal, where its place is.
    pub fn put(&mut self, persisted: &Persisted, share: Content, persister: &Persister) {
        self.settled = persisted.frame().max(self.settled);
        if self.spill.is_none() {
            if self.has_taken(persisted.frame()) {
                return;
            }
            drop(self.resume.take_if(|resume| persisted.frame() > resume.through()));
        }
        if self.spill.is_none() && self.has_room() {
            self.outbox.push(frame(persisted.frame(), persisted.at(), share));
            return self.memory.set(self.outbox.bytes());
        }
        let spill = self.spill.get_or_insert_with(|| Spill::new(persister.backlog(persisted)));
        spill.push(persisted, || frame(persisted.frame(), persisted.at(), share));
    }

    /// Takes back what waits in the journal, while there is room for it.
    pub fn refill(
        &mut self,
        persister: &mut Persister,
        decode: &mut FrameDecoder,
        route: &mut Router,
        now: Instant,
    ) {
        for _ in 0..FRAMES_PER_TURN {
            if !self.can_refill(persister) {
                return;
            }
            // What was done with the next frame may not be written yet.
            let next = if persister.flush() { self.spill.as_mut().map(Spill::next) } else { None };
            match next {
                Some(Ok(Some(Back::Unkept(frame)))) => self.outbox.push(frame),
                Some(Ok(Some(Back::Read(read)))) => self.put_again(&read, persister, decode, route),
                Some(Err(error)) if error.is_missing() => persister.report_read_error(&error),
                Some(Err(error)) => {
                    persister.report_read_error(&error);
                    self.read_at = Some(now + RETRY);
                }
                Some(Ok(None)) | None => self.read_at = Some(now + RETRY),
            }
            self.memory.set(self.outbox.bytes());
            if self.spill.as_ref().is_some_and(Spill::is_empty) {
                self.spill = None;
            }
        }
    }

    fn put_again(
        &mut self,
        read: &BacklogFrame,
        persister: &mut Persister,
        decode: &mut FrameDecoder,
        route: &mut Router,
    ) {
        let mut share = Content::Nothing;
        if !self.has_taken(read.frame) {
            share = route.share(read.frame, again(read, decode), self.place);
            if self.resume.is_some() {
                // The sinks may be others than in that run.
                route.tell(read.frame, persister);
            }
        }
        drop(self.resume.take_if(|resume| read.frame > resume.through()));
        let mut on_its_way = 0;
        if let Some(resume) = &self.resume {
            share = resume.left(read.frame, share);
            on_its_way = resume.on_its_way();
        }
        let rest = frame(read.frame, Timestamp::from_unix_ns(read.received_unix_ns, Timestamp::now()), share);
        self.outbox.push_rest(rest, on_its_way);
    }

    /// Something may come back from the journal now. Not while an earlier run's frames are being accounted: those go in
    /// between.
    pub fn can_refill(&self, persister: &Persister) -> bool {
        let waits = self.spill.is_some() && self.read_at.is_none();
        waits && self.has_room() && !persister.has_unaccounted()
    }

    /// A further frame may wait in memory.
    fn has_room(&self) -> bool {
        self.outbox.has_room() && (self.outbox.is_empty() || self.memory.has_room())
    }

    /// Why nothing more may be received on its account.
    pub fn full(&self, spill_max: u64) -> Option<&'static str> {
        let spill = self.spill.as_ref()?;
        if spill.has_unkept() {
            return Some(
                "the sink's queue is full and the journal does not take frames, so the scheduler's queue holds",
            );
        }
        let (_, bytes) = spill.size();
        (bytes >= spill_max).then_some(
            "as many bytes wait in the journal for the sink as it may retain, so the scheduler's queue holds",
        )
    }

    /// Gives the reader what it can do with now. True where it could do with more.
    pub fn turn(
        &mut self,
        persister: &mut Persister,
        taps: &mut [Tap],
        now: Instant,
        took: &mut impl FnMut(Duration),
    ) -> bool {
        self.send.look(now);
        self.outbox.taken(self.send.socket().taken());
        // Before anything is sent: after a kill, the reader's count is read from where it stood.
        self.tell_taken(persister);
        let is_held_up = self.send.staged().frames > 0;
        let mut sent = false;
        while !is_held_up && self.send.has_room() {
            let Some(leaving) = self.outbox.next(self.send.keeps_up(), now) else { break };
            failpoint::at("compose");
            persister.record_sent(&self.name, &leaving);
            failpoint::at("told");
            self.send.stage(leaving);
            sent = true;
        }
        // Before the kernel gets it: what has left is never unknown. With it goes what was done with the frames, which
        // would have been written soon.
        if (sent || is_held_up) && persister.may_send() {
            self.send.commit(|leaving| {
                for tap in taps.iter_mut().filter(|tap| tap.of == TapOf::Sent) {
                    tap.copy(leaving.sequence, &leaving.bytes);
                }
            });
        }
        failpoint::at("flush");
        self.send.flush(now, took);
        failpoint::at("flushed");
        self.tell_handed(persister);
        self.outbox.taken(self.send.socket().taken());
        self.tell_taken(persister);
        self.memory.set(self.outbox.bytes());
        sent && !self.outbox.is_empty() && self.send.keeps_up()
    }

    /// Tells the journal at once what the kernel has: after a kill a reader that stands still has it all the same.
    fn tell_handed(&mut self, persister: &mut Persister) {
        let socket = self.send.socket();
        let Some(Credit { generation, .. }) = self.send.position() else { return };
        let handed = HandedOver { sequence: socket.written(), generation };
        if handed.sequence > socket.taken() && self.handed != Some(handed) {
            self.handed = Some(handed);
            persister.record_handed_over(&self.name, handed);
            persister.flush();
        }
    }

    /// Tells the journal how far the reader has taken the stream.
    pub fn tell_taken(&mut self, persister: &mut Persister) {
        let done = FrameNo(self.outbox.done());
        // What came back from the journal is past what has settled since.
        let through = if self.is_drained() { self.settled.max(done) } else { done };
        debug_assert!(through >= self.taken.1, "what is taken stays taken");
        let sequence = self.send.socket().taken();
        let credit = self.send.position();
        // Also where the reader stood before it had taken anything: after a kill that is where its count begins.
        if self.taken != (sequence, through, credit) {
            self.taken = (sequence, through, credit);
            persister.record_taken(&self.name, sequence, through, credit);
        }
    }

    /// The stream ends: tells the journal what the socket was given and the kernel has not taken.
    pub fn tell_never_written(&self, persister: &mut Persister) {
        let socket = self.send.socket();
        persister.record_never_written(&self.name, socket.taken(), socket.written(), self.send.position());
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant) {
        self.send.push().tick(now);
        self.read_at.take_if(|at| *at <= now);
    }

    /// When [`Sink::tick`] is due, or [`Sink::turn`].
    pub fn deadline(&self) -> Option<Instant> {
        // Asked in vain while the reader has no room.
        let outbox = self.outbox.deadline().filter(|_| self.send.keeps_up());
        [self.send.socket().deadline(), self.read_at, outbox].into_iter().flatten().min()
    }

    /// Frames that wait in the journal alone, and their bytes.
    pub fn spilled(&self) -> (usize, u64) {
        self.spill.as_ref().map_or((0, 0), Spill::size)
    }

    /// The first frame that the journal must not let go of on its account.
    pub fn keeps(&self) -> Option<FrameNo> {
        self.spill.as_ref().map(Spill::first)
    }

    /// Frames that came and that the reader (or the kernel, for it) has not taken, and their bytes.
    pub fn left(&self) -> (usize, u64) {
        let (pending, unfinished) = (self.send.socket().pending(), self.send.socket().unfinished());
        let staged = self.send.staged();
        let (spilled, spilled_bytes) = self.spilled();
        let frames = spilled + self.outbox.frames() + staged.frames + pending.frames + unfinished.frames;
        let bytes = staged.bytes + pending.bytes + unfinished.bytes;
        (frames, spilled_bytes + self.outbox.bytes() + bytes as u64)
    }

    /// Everything that came is with the reader, or as far as the kernel tells.
    pub fn is_drained(&self) -> bool {
        let nothing_waits = self.spill.is_none() && self.outbox.is_empty();
        nothing_waits && self.send.staged().frames == 0 && self.send.socket().is_drained()
    }
}

fn frame(number: FrameNo, at: Timestamp, content: Content) -> Frame {
    Frame { number: number.0, at: at.instant, content }
}
