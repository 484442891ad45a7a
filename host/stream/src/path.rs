//! The path of a batch, on one screen.
//!
//! scheduler ─PUSH▶ receive ▶ keep (journal) ▶ decode ▶ ledger ▶ judge (plugins) ▶ ledger ▶ route ▶ sink (outbox ▶ send) ─PUSH▶ reader
//!
//! Each stage takes what only the stage before can make, so none can be skipped. What a stage owns stands in its own file.

use crate::decode::{Decode, Decoded};
use crate::fault;
use crate::hold::Holds;
use crate::judge::{Chain, Judged};
use crate::keep::{Keep, Kept};
use crate::ledger::{Ledger, Settled};
use crate::outlook::Outlook;
use crate::receive::{Arrival, Receive, Received};
use crate::replay::{Job, Replayed, Shown};
use crate::route::{Leaves, Route};
use crate::seat::{Behind, Wanted};
use crate::sink::Sink;
use crate::tap::Tap;
use afterbay_config::TapOf;
use afterbay_journal::{FrameNo, RELEASE_MARKER, is_release_marker};
use afterbay_outbox::Content;
use afterbay_wire::Layouts;
use bytes::Bytes;
use std::collections::VecDeque;
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
    pub(crate) holds: Holds,
    /// A frame of Afterbay's own is on its way, with which rows that waited are to go on.
    pub(crate) is_marked: bool,
    /// Frames up to this one are an earlier run's, or from before a panic.
    pub(crate) began_after: FrameNo,
    pub(crate) outlook: Outlook,
    pub(crate) route: Route,
    pub(crate) sinks: Vec<Sink>,
    pub(crate) taps: Vec<Tap>,
    /// Bytes of frames that may wait in the journal for a sink; then nothing more is received.
    pub(crate) spill_max: u64,
    /// Each sink's share of the frame in hand.
    pub(crate) shares: Vec<Content>,
    /// What retention leaves for the sinks.
    pub(crate) keeps: Option<FrameNo>,
    /// Off the socket, and perhaps not in the journal yet; the last frame that was there before.
    pub(crate) arrived: Option<(Received, FrameNo)>,
    /// Came before a panic, and not into the journal.
    pub(crate) returned: VecDeque<Received>,
    /// The frame that is on its way through the plugins.
    pub(crate) settling: Option<FrameNo>,
    pub(crate) suspect: Option<Suspect>,
}

/// A frame that was in hand at a panic.
#[derive(Clone)]
pub(crate) struct Suspect {
    pub(crate) frame: FrameNo,
    /// How often.
    pub(crate) times: u32,
    pub(crate) why: String,
}

/// A frame that was in hand at so many panics alike goes on as it came, with nobody looking at it.
const SUSPECT_TIMES_MAX: u32 = 3;

impl Path {
    /// Carries what is there, up to a bound. True where more may be there.
    pub(crate) fn turn(&mut self, now: Instant, mut took: impl FnMut(Duration)) -> bool {
        self.mark(now);
        for _ in 0..FRAMES_PER_FLUSH {
            if self.full().is_some() {
                break;
            }
            let returned = self.returned.pop_front();
            let Some(received) = returned.or_else(|| self.receive.next()) else { break };
            self.arrived = Some((received.clone(), self.keep.last()));
            self.keep.keep(received);
            self.copy();
            self.arrived = None;
            self.carry(1);
        }
        // Frames that waited for the disk have no socket event of their own.
        self.carry(FRAMES_PER_FLUSH);
        let mut sends_more = false;
        let Path { keep, decode, route, sinks, taps, .. } = self;
        for sink in sinks {
            sink.refill(keep, decode, route, now);
            sends_more |= sink.turn(keep, taps, now, &mut took) || sink.can_refill(keep);
        }
        taps.iter_mut().for_each(Tap::wake);
        let keeps = self.sinks.iter().filter_map(Sink::keeps).min();
        if self.keeps != keeps {
            self.keeps = keeps;
            self.keep.keep_from(keeps);
        }
        let receives_more = self.receive.has_more() || !self.returned.is_empty();
        sends_more || self.keep.has_next() || (receives_more && self.full().is_none())
    }

    /// What has just come goes to the taps, too.
    fn copy(&mut self) {
        let Some((received, _)) = self.arrived.as_ref().filter(|(it, _)| !is_release_marker(&it.bytes))
        else {
            return;
        };
        for tap in self.taps.iter_mut().filter(|tap| tap.of == TapOf::Received) {
            tap.copy(self.keep.last().0, &received.bytes);
        }
    }

    /// Why nothing more is received. At a stop that is the journal's word alone: the senders' frames that are in the kernel
    /// would be lost there, and the journal has room for them.
    pub(crate) fn full(&self) -> Option<&'static str> {
        let of_sinks = || self.sinks.iter().find_map(|sink| sink.full(self.spill_max));
        self.keep.full().or_else(|| if self.receive.is_closing() { None } else { of_sinks() })
    }

    /// What waits and is to go on by itself gets a frame of Afterbay's own, which takes its turn behind those that came.
    fn mark(&mut self, now: Instant) {
        if self.is_marked || self.full().is_some() || !self.holds.is_due(now) {
            return;
        }
        self.keep.keep(Received { bytes: Bytes::from_static(RELEASE_MARKER), at: Arrival::now() });
        self.is_marked = true;
        self.carry(1);
    }

    /// Takes frames that the journal lets go on through the plugins, and to each sink its share.
    fn carry(&mut self, most: usize) {
        for _ in 0..most {
            let Some(kept) = self.keep.next() else { break };
            self.settling = Some(kept.frame);
            let Settled { kept, leaves } = self.settle(kept);
            self.settling = None;
            fault::point("route");
            self.route.shares(kept.frame, leaves, &mut self.shares);
            self.route.tell(kept.frame, &mut self.keep);
            for (sink, share) in self.sinks.iter_mut().zip(self.shares.drain(..)) {
                sink.put(&kept, share, &self.keep);
            }
        }
    }

    /// Makes of a frame what is to leave of it.
    fn settle(&mut self, kept: Kept) -> Settled {
        if is_release_marker(&kept.bytes) && (self.is_marked || kept.frame <= self.began_after) {
            return self.release(kept);
        }
        drop(self.suspect.take_if(|suspect| suspect.frame < kept.frame));
        if let Some(suspect) = self.suspect.take_if(|suspect| suspect.times >= SUSPECT_TIMES_MAX) {
            return match self.chain.refuses(1) {
                Some(plugin) => self.ledger.refuse_unread(kept, suspect.why, &plugin, &mut self.keep),
                None => self.ledger.carry_unread(kept, suspect.why, &mut self.keep),
            };
        }
        let decoded = self.decode.decode(kept);
        // Of an earlier run, which had no time to account it.
        if self.sinks.iter().all(|sink| sink.has_taken(decoded.kept().frame)) {
            let kept = self.ledger.recover(decoded, &mut self.holds, &mut self.keep);
            return Settled { kept, leaves: Leaves::Nothing };
        }
        self.judge(decoded)
    }

    fn judge(&mut self, decoded: Decoded) -> Settled {
        fault::point("account");
        fault::frame(decoded.kept().frame.0);
        let decoded = match decoded {
            Decoded::Barrier(kept, barrier) if barrier.hides_rows() => {
                let rows = barrier.named_rows().map_or(1, |named| named.rows().into());
                if let Some(plugin) = self.chain.refuses(rows) {
                    return self.ledger.refuse(kept, &barrier, &plugin, &mut self.keep);
                }
                Decoded::Barrier(kept, barrier)
            }
            Decoded::Batch(kept, batch) if self.ledger.lacks_room(&batch) => {
                let now = kept.at.instant;
                let gone = self.ledger.make_room(&batch, now, &mut self.holds, &mut self.keep);
                self.chain.forget(&gone, &self.ledger);
                Decoded::Batch(kept, batch)
            }
            decoded => decoded,
        };
        match self.ledger.account(decoded, &mut self.keep) {
            Ok(accounted) => {
                let judged = self.chain.judge(accounted, &mut self.holds, &self.ledger, &self.route);
                self.book(judged)
            }
            Err(barrier) => barrier,
        }
    }

    /// Makes of a frame of Afterbay's own what is to go on with it.
    fn release(&mut self, kept: Kept) -> Settled {
        fault::point("release");
        // What an earlier run had marked is marked anew.
        if kept.frame <= self.began_after {
            self.ledger.nothing_released(&kept, &mut self.keep);
            return Settled { kept, leaves: Leaves::Nothing };
        }
        self.is_marked = false;
        match self.ledger.release(kept, &mut self.holds, &mut self.keep) {
            Ok((mut judged, plugin)) => {
                self.chain.judge_released(&mut judged, &plugin, &mut self.holds, &self.ledger, &self.route);
                self.book(judged)
            }
            Err(kept) => Settled { kept, leaves: Leaves::Nothing },
        }
    }

    fn book(&mut self, judged: Judged) -> Settled {
        fault::point("settle");
        let settled = self.ledger.settle(judged, &mut self.holds, &mut self.keep);
        self.chain.revive(&self.ledger);
        settled
    }

    /// Passes on what the poll says.
    pub(crate) fn ready(&mut self, event: &mio::event::Event, now: Instant) {
        if self.receive.pull().owns(event.token()) {
            return self.receive.pull().ready(event, now);
        }
        if let Some(sink) = self.sinks.iter_mut().find(|sink| sink.send.socket().owns(event.token())) {
            sink.send.push().ready(event, now);
        }
    }

    /// Does what is due: handshakes and connections that take too long, writes and starts that are tried again.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.receive.pull().tick(now);
        self.sinks.iter_mut().for_each(|sink| sink.tick(now));
        self.keep.tick(now);
        let Path { chain, ledger, holds, .. } = self;
        chain.tick(now, ledger);
        chain.end_holds(holds);
        if self.chain.wants_signals() && self.outlook.deadline() <= now {
            self.look(now);
        }
    }

    /// Shows the instances that are to take over what has come before, off the path.
    pub(crate) fn replay(&mut self, layouts: &Layouts, done: impl Fn(Shown) + Clone + Send + 'static) {
        for Wanted { plugin, number, mut instance, behind, before } in self.chain.wanted() {
            instance.set_off_path(true);
            let shows: Box<dyn FnOnce() -> Replayed + Send> = match behind {
                Behind::Since(missed, rows) => Box::new(move || missed.run(instance, rows)),
                Behind::Handed(handed, requests) => Box::new(move || handed.run(instance, &requests)),
                Behind::All(requests) => match self.keep.backlog_of_open() {
                    Some(backlog) => {
                        let through = self.sinks.iter().map(Sink::settled).max().unwrap_or_default();
                        let layouts = layouts.clone();
                        let job = Job { instance, requests, backlog, through, layouts, before };
                        Box::new(move || job.run())
                    }
                    None => {
                        let shown = Err("the journal cannot be read".to_owned());
                        Box::new(move || Replayed { instance, shown })
                    }
                },
            };
            let done = done.clone();
            let run = move || done(Shown { plugin: plugin.to_string(), number, replayed: shows() });
            // Where there can be no thread the new one does not take over, as where its component cannot be read.
            let _started = std::thread::Builder::new().name("replay".into()).spawn(run);
        }
    }

    /// Tells the plugins that want to know how the stream stands.
    fn look(&mut self, now: Instant) {
        // Out of the path for so long, which it looks at.
        let never = || Outlook::new(Box::new(|| None), now);
        let mut outlook = std::mem::replace(&mut self.outlook, never());
        let (snapshot, is_news) = outlook.look(self, now);
        self.outlook = outlook;
        self.chain.stands(&snapshot, is_news, &self.ledger);
    }

    /// When [`Path::tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let own = [self.receive.socket().deadline(), self.keep.deadline()];
        let sinks = self.sinks.iter().filter_map(Sink::deadline);
        let outlook = self.chain.wants_signals().then(|| self.outlook.deadline());
        // One that is on its way is waited for.
        let holds = self.holds.deadline().filter(|_| !self.is_marked);
        own.into_iter().flatten().chain(sinks).chain(self.chain.deadline()).chain(outlook).chain(holds).min()
    }

    /// Sends what had to wait for its record, if that can be written now.
    pub(crate) fn send_staged(&mut self, now: Instant) {
        let Path { keep, sinks, taps, .. } = self;
        for sink in sinks.iter_mut().filter(|sink| sink.send.staged().frames > 0) {
            sink.turn(keep, taps, now, &mut |_| ());
        }
    }

    /// Tells the journal how far the readers have taken the stream.
    pub(crate) fn tell_taken(&mut self) {
        let Path { keep, sinks, .. } = self;
        sinks.iter_mut().for_each(|sink| sink.tell_taken(keep));
    }

    /// Frames that were received and that a reader (or the kernel, for it) has not taken, and their bytes.
    pub(crate) fn left(&self) -> (usize, u64) {
        let sum = |(frames, bytes): (usize, u64), more: (usize, u64)| (frames + more.0, bytes + more.1);
        self.sinks.iter().map(Sink::left).fold(self.keep.backlog_size(), sum)
    }

    /// Everything that was received is with the readers, or as far as the kernel tells.
    pub(crate) fn is_drained(&self) -> bool {
        let is_idle = self.returned.is_empty() && self.holds.is_empty();
        is_idle && self.keep.backlog_size().0 == 0 && self.sinks.iter().all(Sink::is_drained)
    }
}
