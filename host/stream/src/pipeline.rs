//! The path of a batch, on one screen.
//!
//! scheduler ─PUSH▶ receive ▶ keep (journal) ▶ decode ▶ ledger ▶ judge (plugins) ▶ ledger ▶ route ▶ sink (outbox ▶ send) ─PUSH▶ reader
//!
//! Each stage takes what only the stage before can make, so none can be skipped. What a stage owns stands in its own file.

use crate::pressure::Pressure;
use crate::receive::Receive;
use afterbay_batch::failpoint;
use afterbay_batch::{ChainOutput, Decoded, FrameDecoder, Persisted, Received, Settled, Timestamp};
use afterbay_chain::{CatchUpResult, Chain, JournalSource};
use afterbay_config::TapOf;
use afterbay_delivery::{Router, Sink, Tap};
use afterbay_hold::HeldRows;
use afterbay_journal::{FrameNo, RELEASE_MARKER, is_release_marker};
use afterbay_ledger::Ledger;
use afterbay_outbox::Content;
use afterbay_persist::Persister;
use afterbay_wire::Layouts;
use bytes::Bytes;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Frames that are carried before the kernel is asked to take them: more in one call, and no frame waits for long.
const FRAMES_PER_FLUSH: usize = 16;

/// The stages of one stream.
pub(crate) struct Pipeline {
    pub(crate) receive: Receive,
    pub(crate) persister: Persister,
    pub(crate) decode: FrameDecoder,
    pub(crate) ledger: Ledger,
    pub(crate) chain: Chain,
    pub(crate) held_rows: HeldRows,
    /// A frame of Afterbay's own is on its way, with which rows that waited are to go on.
    pub(crate) is_marker_pending: bool,
    /// Frames up to this one are an earlier run's, or from before a panic.
    pub(crate) began_after: FrameNo,
    pub(crate) pressure: Pressure,
    pub(crate) route: Router,
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
    pub(crate) poison: Option<PoisonFrame>,
}

/// A frame that was in hand at a panic.
#[derive(Clone)]
pub(crate) struct PoisonFrame {
    pub(crate) frame: FrameNo,
    /// How often.
    pub(crate) times: u32,
    pub(crate) why: String,
}

/// A frame that was in hand at so many panics alike goes on as it came, with nobody looking at it.
const POISON_PANICS_MAX: u32 = 3;

impl Pipeline {
    /// Carries what is there, up to a bound. True where more may be there.
    pub(crate) fn turn(&mut self, now: Timestamp, mut took: impl FnMut(Duration)) -> bool {
        self.mark(now);
        for _ in 0..FRAMES_PER_FLUSH {
            if self.full().is_some() {
                break;
            }
            let returned = self.returned.pop_front();
            let Some(received) = returned.or_else(|| self.receive.next()) else { break };
            self.arrived = Some((received.clone(), self.persister.last_frame()));
            self.persister.persist(received);
            self.copy();
            self.arrived = None;
            self.carry(1, now);
        }
        // Frames that waited for the disk have no socket event of their own.
        self.carry(FRAMES_PER_FLUSH, now);
        let mut sends_more = false;
        let Pipeline { persister, decode, route, sinks, taps, .. } = self;
        for sink in sinks {
            sink.refill(persister, decode, route, now.instant);
            sends_more |= sink.turn(persister, taps, now.instant, &mut took) || sink.can_refill(persister);
        }
        taps.iter_mut().for_each(Tap::wake);
        let keeps = self.sinks.iter().filter_map(Sink::keeps).min();
        if self.keeps != keeps {
            self.keeps = keeps;
            self.persister.retain_from(keeps);
        }
        let receives_more = self.receive.has_more() || !self.returned.is_empty();
        sends_more || self.persister.has_next() || (receives_more && self.full().is_none())
    }

    /// What has just come goes to the taps, too.
    fn copy(&mut self) {
        let Some((received, _)) = self.arrived.as_ref().filter(|(it, _)| !is_release_marker(&it.bytes))
        else {
            return;
        };
        for tap in self.taps.iter_mut().filter(|tap| tap.of == TapOf::Received) {
            tap.copy(self.persister.last_frame().0, &received.bytes);
        }
    }

    /// Why nothing more is received. At a stop that is the journal's word alone: the senders' frames that are in the kernel
    /// would be lost there, and the journal has room for them.
    pub(crate) fn full(&self) -> Option<&'static str> {
        let of_sinks = || self.sinks.iter().find_map(|sink| sink.full(self.spill_max));
        self.persister.full().or_else(|| if self.receive.is_closing() { None } else { of_sinks() })
    }

    /// What waits and is to go on by itself gets a frame of Afterbay's own, which takes its turn behind those that came.
    fn mark(&mut self, now: Timestamp) {
        if self.is_marker_pending || self.full().is_some() || !self.held_rows.is_due(now.instant) {
            return;
        }
        self.persister.persist(Received { bytes: Bytes::from_static(RELEASE_MARKER), at: now });
        self.is_marker_pending = true;
        self.carry(1, now);
    }

    /// Takes frames that the journal lets go on through the plugins, and to each sink its share.
    fn carry(&mut self, most: usize, now: Timestamp) {
        for _ in 0..most {
            let Some(persisted) = self.persister.next() else { break };
            self.settling = Some(persisted.frame());
            let (persisted, content) = self.settle(persisted, now).into_parts();
            self.settling = None;
            failpoint::at("route");
            self.route.shares(persisted.frame(), content, &mut self.shares);
            self.route.tell(persisted.frame(), &mut self.persister);
            for (sink, share) in self.sinks.iter_mut().zip(self.shares.drain(..)) {
                sink.put(&persisted, share, &self.persister);
            }
        }
    }

    /// Makes of a frame what is to leave of it.
    fn settle(&mut self, persisted: Persisted, now: Timestamp) -> Settled {
        if is_release_marker(persisted.bytes())
            && (self.is_marker_pending || persisted.frame() <= self.began_after)
        {
            return self.release(persisted, now);
        }
        drop(self.poison.take_if(|poison| poison.frame < persisted.frame()));
        if let Some(poison) = self.poison.take_if(|poison| poison.times >= POISON_PANICS_MAX) {
            return match self.chain.refuse_unreadable(1) {
                Some(plugin) => {
                    self.ledger.refuse_poison(persisted, poison.why, &plugin, &mut self.persister)
                }
                None => self.ledger.forward_poison(persisted, poison.why, &mut self.persister),
            };
        }
        let decoded = self.decode.decode(persisted);
        // Of an earlier run, which had no time to account it.
        if self.sinks.iter().all(|sink| sink.has_taken(decoded.persisted().frame())) {
            return self.ledger.recover(decoded, &mut self.held_rows, &mut self.persister);
        }
        self.run(decoded, now)
    }

    fn run(&mut self, decoded: Decoded, now: Timestamp) -> Settled {
        failpoint::at("account");
        failpoint::at_frame(decoded.persisted().frame().0);
        let decoded = match decoded {
            Decoded::Barrier(decoded) if decoded.barrier().hides_rows() => {
                let rows = decoded.barrier().named_rows().map_or(1, |named| named.rows().into());
                if let Some(plugin) = self.chain.refuse_unreadable(rows) {
                    return self.ledger.refuse_barrier(decoded, &plugin, &mut self.persister);
                }
                Decoded::Barrier(decoded)
            }
            Decoded::Batch(decoded) if self.ledger.lacks_room(decoded.batch()) => {
                let (batch, at) = (decoded.batch(), decoded.persisted().at().instant);
                let closed = self.ledger.make_room(batch, at, &mut self.held_rows, &mut self.persister);
                self.chain.close_requests(&closed, &self.ledger, now);
                Decoded::Batch(decoded)
            }
            decoded => decoded,
        };
        match self.ledger.account(decoded, &mut self.persister) {
            Ok(accounted) => {
                let output = self.chain.run(accounted, &mut self.held_rows, &self.ledger, now);
                self.book(output, now)
            }
            Err(settled) => settled,
        }
    }

    /// Makes of a frame of Afterbay's own what is to go on with it.
    fn release(&mut self, persisted: Persisted, now: Timestamp) -> Settled {
        failpoint::at("release");
        // What an earlier run had marked is marked anew.
        if persisted.frame() <= self.began_after {
            return self.ledger.settle_unused_marker(persisted, &mut self.persister);
        }
        self.is_marker_pending = false;
        match self.ledger.release(persisted, &mut self.held_rows, &mut self.persister, now.instant) {
            Ok((mut output, plugin)) => {
                self.chain.run_released(&mut output, &plugin, &mut self.held_rows, &self.ledger, now);
                self.book(output, now)
            }
            Err(settled) => settled,
        }
    }

    fn book(&mut self, output: ChainOutput, now: Timestamp) -> Settled {
        failpoint::at("settle");
        let settled = self.ledger.settle(output, &mut self.held_rows, &mut self.persister);
        self.chain.restart_after_close(&self.ledger, now);
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
    pub(crate) fn tick(&mut self, now: Timestamp) {
        self.receive.pull().tick(now.instant);
        self.sinks.iter_mut().for_each(|sink| sink.tick(now.instant));
        self.persister.tick(now.instant);
        let Pipeline { chain, ledger, held_rows, .. } = self;
        chain.tick(ledger, now);
        chain.end_lost_holds(held_rows);
        if self.chain.wants_signals() && self.pressure.deadline() <= now.instant {
            self.look(now);
        }
    }

    /// Starts a thread for each catch-up round of a successor. `done` receives the results.
    pub(crate) fn catch_up(
        &mut self,
        layouts: &Layouts,
        done: impl Fn(CatchUpResult) + Clone + Send + 'static,
    ) {
        for round in self.chain.take_catch_ups() {
            let backlog = if round.reads_journal() { self.persister.backlog_of_open() } else { None };
            let through = self.sinks.iter().map(Sink::settled).max().unwrap_or_default();
            let layouts = layouts.clone();
            let journal = backlog.map(|backlog| JournalSource { backlog, through, layouts });
            let done = done.clone();
            // Without a thread the successor never takes over, as if its component could not be read.
            let _started =
                std::thread::Builder::new().name("catch-up".into()).spawn(move || done(round.run(journal)));
        }
    }

    /// Tells the plugins that want to know how the stream stands.
    fn look(&mut self, now: Timestamp) {
        let (snapshot, is_news) = self.pressure.look(&self.persister, &self.sinks, &self.ledger, now.instant);
        self.chain.set_signals(&snapshot, is_news, &self.ledger, now);
    }

    /// When [`Pipeline::tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let own = [self.receive.socket().deadline(), self.persister.deadline()];
        let sinks = self.sinks.iter().filter_map(Sink::deadline);
        let pressure = self.chain.wants_signals().then(|| self.pressure.deadline());
        // One that is on its way is waited for.
        let held_rows = self.held_rows.deadline().filter(|_| !self.is_marker_pending);
        own.into_iter()
            .flatten()
            .chain(sinks)
            .chain(self.chain.deadline())
            .chain(pressure)
            .chain(held_rows)
            .min()
    }

    /// Sends what had to wait for its record, if that can be written now.
    pub(crate) fn send_staged(&mut self, now: Instant) {
        let Pipeline { persister, sinks, taps, .. } = self;
        for sink in sinks.iter_mut().filter(|sink| sink.send.staged().frames > 0) {
            sink.turn(persister, taps, now, &mut |_| ());
        }
    }

    /// Tells the journal how far the readers have taken the stream.
    pub(crate) fn tell_taken(&mut self) {
        let Pipeline { persister, sinks, .. } = self;
        sinks.iter_mut().for_each(|sink| sink.tell_taken(persister));
    }

    /// Frames that were received and that a reader (or the kernel, for it) has not taken, and their bytes.
    pub(crate) fn left(&self) -> (usize, u64) {
        let sum = |(frames, bytes): (usize, u64), more: (usize, u64)| (frames + more.0, bytes + more.1);
        self.sinks.iter().map(Sink::left).fold(self.persister.backlog_size(), sum)
    }

    /// Everything that was received is with the readers, or as far as the kernel tells.
    pub(crate) fn is_drained(&self) -> bool {
        let is_idle = self.returned.is_empty() && self.held_rows.is_empty();
        is_idle && self.persister.backlog_size().0 == 0 && self.sinks.iter().all(Sink::is_drained)
    }
}
