//! The path of a batch, on one screen.
//!
//! scheduler ─PUSH▶ receive ▶ keep (journal) ▶ decode ▶ ledger ▶ judge (plugins) ▶ ledger ▶ outbox ▶ send ─PUSH▶ reader
//!
//! Each stage takes what only the stage before can make, so none can be skipped. What a stage owns stands in its own file.

use crate::decode::{Decode, Decoded};
use crate::judge::Chain;
use crate::keep::{Keep, Kept};
use crate::ledger::{Ledger, Settled};
use crate::receive::Receive;
use crate::resume::Resume;
use crate::send::Send;
use afterbay_journal::{Credit, FrameNo};
use afterbay_outbox::{Content, Frame, Outbox};
use afterbay_runtime::{Plugin, ReloadError};
use std::time::{Duration, Instant};

/// Frames that are carried before the kernel is asked to take them: more in one call, and no frame waits for long.
const FRAMES_PER_FLUSH: usize = 16;

/// The stages of one stream.
pub(crate) struct Path {
    pub(crate) receive: Receive,
    pub(crate) keep: Keep,
    pub(crate) decode: Decode,
    pub(crate) ledger: Ledger,
    pub(crate) chain: Chain,
    pub(crate) outbox: Outbox,
    pub(crate) send: Send,
    /// The last frame that has been through the plugins.
    pub(crate) settled: FrameNo,
    /// What the journal was told the reader has taken: of what left, and of the frames.
    pub(crate) taken: (u64, FrameNo, Option<Credit>),
    /// While frames of an earlier run come back.
    pub(crate) resume: Option<Resume>,
}

impl Path {
    /// Carries what is there, up to a bound. True where more may be there.
    pub(crate) fn turn(&mut self, now: Instant, took: impl FnMut(Duration)) -> bool {
        for _ in 0..FRAMES_PER_FLUSH {
            if !self.keep.has_room() {
                break;
            }
            let Some(received) = self.receive.next() else { break };
            self.keep.keep(received);
            self.carry(1);
        }
        // Frames that waited for the disk or in the journal have no socket event of their own.
        self.carry(FRAMES_PER_FLUSH);
        self.send.look(now);
        self.outbox.taken(self.send.socket().taken());
        // Before anything is sent: after a kill, the reader's count is read from where it stood.
        self.tell_taken();
        let mut sent = false;
        while self.send.has_room() {
            let Some(leaving) = self.outbox.next(self.send.keeps_up(), now) else { break };
            self.keep.sent(self.send.name(), &leaving);
            self.send.send(leaving);
            sent = true;
        }
        self.send.flush(now, took);
        self.outbox.taken(self.send.socket().taken());
        self.tell_taken();
        let sends_more = sent && !self.outbox.is_empty() && self.send.keeps_up();
        sends_more
            || (self.receive.has_more() && self.keep.has_room())
            || (self.keep.has_next() && self.outbox.has_room())
    }

    /// Takes frames that the journal lets go on through the plugins and to the outbox, while that has room.
    fn carry(&mut self, most: usize) {
        for _ in 0..most {
            if !self.outbox.has_room() {
                break;
            }
            let Some(kept) = self.keep.next() else { break };
            let Settled { kept, content } = self.settle(kept);
            self.settled = kept.frame;
            self.outbox.put(Frame { number: kept.frame.0, at: kept.at.instant, content });
        }
    }

    /// Makes of a frame what is to leave of it; of one of an earlier run, what has not left.
    fn settle(&mut self, mut kept: Kept) -> Settled {
        let Some(resume) = self.resume.as_mut().filter(|resume| kept.frame <= resume.through()) else {
            self.resume = None;
            return self.judge(kept);
        };
        if let Some(outcome) = kept.outcome.take() {
            return resume.settle(kept, &outcome, &mut self.decode);
        }
        let decoded = self.decode.decode(kept);
        if !resume.was_received(&decoded) {
            return self.judge_decoded(decoded);
        }
        let kept = self.ledger.recover(decoded, &mut self.keep);
        Settled { kept, content: Content::Nothing }
    }

    fn judge(&mut self, kept: Kept) -> Settled {
        let decoded = self.decode.decode(kept);
        self.judge_decoded(decoded)
    }

    fn judge_decoded(&mut self, decoded: Decoded) -> Settled {
        match self.ledger.account(decoded, &mut self.keep) {
            Ok(accounted) => {
                let judged = self.chain.judge(accounted, &self.ledger);
                let settled = self.ledger.settle(judged, &mut self.keep);
                self.chain.revive(&self.ledger);
                settled
            }
            Err(barrier) => barrier,
        }
    }

    /// Passes on what the poll says.
    pub(crate) fn ready(&mut self, event: &mio::event::Event, now: Instant) {
        if self.receive.pull().owns(event.token()) {
            self.receive.pull().ready(event, now);
        } else if self.send.push().owns(event.token()) {
            self.send.push().ready(event, now);
        }
    }

    /// Does what is due: handshakes and connections that take too long, writes and starts that are tried again.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.receive.pull().tick(now);
        self.send.push().tick(now);
        self.keep.tick(now);
        let Path { chain, ledger, .. } = self;
        chain.seats_mut().iter_mut().for_each(|seat| seat.tick(now, ledger));
    }

    /// When [`Path::tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let sockets = [self.receive.socket().deadline(), self.send.socket().deadline(), self.keep.deadline()];
        // Asked in vain while the sink has no room.
        let outbox = self.outbox.deadline().filter(|_| self.send.keeps_up());
        let seats = self.chain.seats().iter().filter_map(|seat| seat.deadline());
        sockets.into_iter().flatten().chain(outbox).chain(seats).min()
    }

    /// A changed component takes over, or could not.
    pub(crate) fn reload(&mut self, plugin: &str, result: Result<Plugin, ReloadError>) {
        if let Some(seat) = self.chain.seats_mut().iter_mut().find(|seat| seat.name() == plugin) {
            seat.reload(result, &self.ledger);
        }
    }

    /// Tells the journal how far the reader has taken the stream.
    pub(crate) fn tell_taken(&mut self) {
        let through = if self.is_drained() { self.settled } else { FrameNo(self.outbox.done()) };
        let sequence = self.send.socket().taken();
        let credit = self.send.socket().position();
        let credit = credit.map(|at| Credit { generation: at.generation, sent: at.count });
        // Also where the reader stood before it had taken anything: after a kill that is where its count begins.
        if self.taken != (sequence, through, credit) {
            self.taken = (sequence, through, credit);
            self.keep.taken(self.send.name(), sequence, through, credit);
        }
    }

    /// Frames that were received and that the reader (or the kernel, for it) has not taken, and their bytes.
    pub(crate) fn left(&self) -> (usize, u64) {
        let (pending, unfinished) = (self.send.socket().pending(), self.send.socket().unfinished());
        let (kept, kept_bytes) = self.keep.backlog();
        let frames = kept + self.outbox.frames() + pending.frames + unfinished.frames;
        (frames, kept_bytes + self.outbox.bytes() + (pending.bytes + unfinished.bytes) as u64)
    }

    /// Everything that was received is with the reader, or as far as the kernel tells.
    pub(crate) fn is_drained(&self) -> bool {
        self.keep.backlog().0 == 0 && self.outbox.is_empty() && self.send.socket().is_drained()
    }
}
