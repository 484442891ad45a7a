//! The stages between the sockets: persist ▶ decode ▶ account (ledger) ▶ chain (plugins) ▶ settle (ledger).
//!
//! A running stream and a [`Trial`](crate::Trial) carry their frames through these stages. They know neither sockets nor sinks.

use crate::frame_load::FrameLoadReader;
use crate::markers::ReleaseMarkers;
use afterbay_batch::frame_log::FrameLog;
use afterbay_batch::hold::HeldRows;
use afterbay_batch::ledger::Ledger;
use afterbay_batch::{ChainOutput, Decoded, FrameDecoder, Persisted, Settled, Timestamp, failpoint};
use afterbay_chain::Chain;
use afterbay_events::Name;
use afterbay_wire::BarrierKind;
use std::time::Duration;

/// The stages from persist to settle.
pub(crate) struct Stages {
    pub(crate) frame_log: FrameLog,
    pub(crate) decoder: FrameDecoder,
    pub(crate) ledger: Ledger,
    pub(crate) chain: Chain,
    pub(crate) held_rows: HeldRows,
    pub(crate) markers: ReleaseMarkers,
    pub(crate) frame_load: FrameLoadReader,
}

impl Stages {
    /// Settles a frame that every sink has. Nothing is sent again.
    pub(crate) fn recover(&mut self, persisted: Persisted, now: Timestamp) -> Settled {
        let decoded = self.decoder.decode(persisted);
        self.frame_load.hand_on(&decoded);
        let settled = self.ledger.recover(decoded, &mut self.held_rows, &mut self.frame_log.records);
        self.announce(now);
        settled
    }

    /// Tells the plugins of the requests that began in a frame that they were not called with.
    fn announce(&mut self, now: Timestamp) {
        for request in self.ledger.take_unannounced() {
            self.chain.open(request, &self.ledger, now);
        }
    }

    /// Decodes a frame, runs the plugins on its rows, and settles what is to be sent of it. `is_alone`: the stream has one scheduler
    /// connected.
    pub(crate) fn run(&mut self, persisted: Persisted, is_alone: bool, now: Timestamp) -> Settled {
        let decoded = self.decoder.decode(persisted);
        if let Decoded::Barrier(barrier) = &decoded {
            let records = &mut self.frame_log.records;
            let closed = match &barrier.barrier().kind {
                // An engine introduces itself once, before its first frame.
                BarrierKind::Introduction { introduction: Ok(_) } if is_alone => {
                    self.ledger.lose_all(barrier.persisted(), &mut self.held_rows, records)
                }
                BarrierKind::Request { .. } => self.ledger.lose_for(barrier, &mut self.held_rows, records),
                _ => Vec::new(),
            };
            self.chain.close_requests(&closed, &self.ledger, now);
        }
        self.frame_load.observe(&decoded);
        failpoint::at("account");
        failpoint::at_frame(decoded.persisted().frame().0);
        let decoded = match (self.refusing_plugin(&decoded), decoded) {
            (Some(plugin), Decoded::Barrier(decoded)) => {
                return self.ledger.refuse_barrier(decoded, &plugin, &mut self.frame_log.records);
            }
            (_, decoded) => decoded,
        };
        self.make_room(&decoded, now);
        let settled = match self.ledger.account(decoded, &mut self.frame_log.records) {
            Ok(accounted) => {
                let output = self.chain.run(accounted, &mut self.held_rows, &self.ledger, now);
                self.settle(output, now)
            }
            // A frame without rows for the plugins.
            Err(settled) => {
                self.announce(now);
                settled
            }
        };
        let closed = self.ledger.close_departed(&mut self.held_rows, &mut self.frame_log.records);
        if !closed.is_empty() {
            self.chain.close_requests(&closed, &self.ledger, now);
        }
        settled
    }

    /// Settles what the plugins have decided.
    fn settle(&mut self, output: ChainOutput, now: Timestamp) -> Settled {
        failpoint::at("settle");
        let settled = self.ledger.settle(output, &mut self.held_rows, &mut self.frame_log.records);
        self.chain.restart_after_close(&self.ledger, now);
        settled
    }

    /// Releases held rows in the place of a release marker.
    pub(crate) fn release(&mut self, persisted: Persisted, now: Timestamp) -> Settled {
        failpoint::at("release");
        if !self.markers.end(&persisted) {
            return self.ledger.drop_marker(persisted, &mut self.frame_log.records);
        }
        match self.ledger.release(persisted, &mut self.held_rows, &mut self.frame_log.records, now.instant) {
            Ok((mut output, plugin)) => {
                self.chain.run_released(&mut output, &plugin, &mut self.held_rows, &self.ledger, now);
                self.settle(output, now)
            }
            Err(settled) => settled,
        }
    }

    /// Passes a poison frame without decoding it, or refuses it where a plugin must see every row.
    pub(crate) fn pass_unread(&mut self, persisted: Persisted, why: String) -> Settled {
        match self.chain.refuse_unreadable(1) {
            Some(plugin) => self.ledger.refuse_poison(persisted, why, &plugin, &mut self.frame_log.records),
            None => self.ledger.forward_poison(persisted, why, &mut self.frame_log.records),
        }
    }

    /// The plugin that refuses the frame, because it must see every row and the frame's rows cannot be decoded.
    fn refusing_plugin(&mut self, decoded: &Decoded) -> Option<Name> {
        let Decoded::Barrier(decoded) = decoded else { return None };
        let barrier = decoded.barrier();
        let rows = barrier.named_rows().map_or(1, |named| named.rows().into());
        if barrier.hides_rows() { self.chain.refuse_unreadable(rows) } else { None }
    }

    /// Closes the oldest requests if the ledger has no room for the requests that the batch begins.
    fn make_room(&mut self, decoded: &Decoded, now: Timestamp) {
        let Decoded::Batch(decoded) = decoded else { return };
        if self.ledger.lacks_room(decoded.batch()) {
            let (batch, at) = (decoded.batch(), decoded.persisted().at().instant);
            let closed = self.ledger.make_room(batch, at, &mut self.held_rows, &mut self.frame_log.records);
            self.chain.close_requests(&closed, &self.ledger, now);
        }
    }

    /// Ends the request with this number if it waits for an engine. Returns whether it waited.
    pub(crate) fn not_migrated(&mut self, number: u64, why: &str, now: Timestamp) -> bool {
        let closed = self.ledger.not_migrated(number, why, &mut self.held_rows, &mut self.frame_log.records);
        self.chain.close_requests(&closed, &self.ledger, now);
        self.chain.restart_after_close(&self.ledger, now);
        !closed.is_empty()
    }

    /// Closes the requests that have had no row for this time.
    pub(crate) fn close_abandoned(&mut self, abandon_after: Duration, now: Timestamp) {
        let closed =
            self.ledger.abandon(abandon_after, now.instant, &mut self.held_rows, &mut self.frame_log.records);
        self.chain.close_requests(&closed, &self.ledger, now);
        self.chain.restart_after_close(&self.ledger, now);
    }

    /// Persists a release marker if held rows are due to be released. Returns whether it did.
    pub(crate) fn persist_release_marker(&mut self, now: Timestamp) -> bool {
        let marker = self.markers.next(&self.held_rows, now);
        marker.map(|marker| self.frame_log.persist(marker, now)).is_some()
    }

    /// Delivers the answers of services to plugins. Returns whether more answers wait.
    pub(crate) fn deliver_answers(&mut self, now: Timestamp) -> bool {
        self.chain.deliver_answers(&mut self.held_rows, &self.ledger, now)
    }

    /// Does what is due for the plugins.
    pub(crate) fn tick_chain(&mut self, now: Timestamp) {
        self.chain.tick(&mut self.held_rows, self.frame_log.last_frame(), &self.ledger, now);
        self.chain.end_lost_holds(&mut self.held_rows);
    }
}
