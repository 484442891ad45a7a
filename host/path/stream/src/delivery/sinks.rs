//! The delivery end of one stream: its router and its sinks.

use crate::delivery::router::Router;
use crate::delivery::sink::Sink;
use afterbay_batch::outbox::FrameToSend;
use afterbay_batch::records::Records;
use afterbay_batch::{FrameDecoder, Settled, Timestamp, failpoint};
use afterbay_journal::FrameNo;
use std::time::Instant;

/// The router and the sinks of one stream.
pub struct Delivery {
    router: Router,
    /// The sinks, in the order of the configuration.
    pub sinks: Vec<Sink>,
    /// Bytes of frames that may wait in the journal for one sink. The stream then stops receiving.
    spill_bytes_max: u64,
    /// The frame from which on retention leaves the journal alone.
    retained_from: Option<FrameNo>,
}

impl Delivery {
    /// `sinks` in the order of the router's table.
    pub fn new(router: Router, sinks: Vec<Sink>, spill_bytes_max: u64) -> Delivery {
        Delivery { router, sinks, spill_bytes_max, retained_from: None }
    }

    /// Routes a settled frame, and queues each sink's content.
    pub fn push(&mut self, settled: Settled, records: &mut Records) {
        failpoint::at("route");
        let (persisted, content) = settled.into_parts();
        let contents = self.router.route(persisted.frame(), content, records);
        for (sink, content) in self.sinks.iter_mut().zip(contents) {
            sink.push(&persisted, content, records);
        }
    }

    /// Sends what the readers take now. `on_written` gets the frames that the kernel now has whole.
    /// Returns whether more can be sent without an event of the poll.
    pub fn send(
        &mut self,
        records: &mut Records,
        decoder: &mut FrameDecoder,
        now: Timestamp,
        on_written: &mut dyn FnMut(&mut dyn Iterator<Item = FrameToSend>),
    ) -> bool {
        let mut has_more = false;
        for (index, sink) in self.sinks.iter_mut().enumerate() {
            sink.refill(index, records, decoder, &mut self.router, now);
            has_more |= sink.send(records, now, on_written);
            has_more |= sink.can_refill(records);
        }
        let retained_from = self.sinks.iter().filter_map(Sink::retained_from).min();
        if self.retained_from != retained_from {
            self.retained_from = retained_from;
            records.retain_from(retained_from);
        }
        has_more
    }

    /// Sends frames whose record could not be written before.
    pub fn send_staged(&mut self, records: &mut Records, now: Timestamp) {
        for sink in self.sinks.iter_mut().filter(|sink| sink.sender.staged().frames > 0) {
            sink.send(records, now, &mut |_| ());
        }
    }

    /// The reason why nothing more may be received because of a sink.
    pub fn full(&self) -> Option<&'static str> {
        self.sinks.iter().find_map(|sink| sink.full(self.spill_bytes_max))
    }

    /// Whether no sink needs anything of this frame.
    pub fn has_taken(&self, frame: FrameNo) -> bool {
        self.sinks.iter().all(|sink| sink.has_taken(frame))
    }

    /// The last frame that was pushed.
    pub fn last_pushed(&self) -> FrameNo {
        self.sinks.iter().map(|sink| sink.last_pushed).max().unwrap_or_default()
    }

    /// Handles an event of the poll, if the event is a sink's.
    pub fn ready(&mut self, event: &mio::event::Event, now: Instant) {
        if let Some(sink) = self.sinks.iter_mut().find(|sink| sink.sender.push.owns(event.token())) {
            sink.sender.push.ready(event, now);
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant) {
        self.sinks.iter_mut().for_each(|sink| sink.tick(now));
    }

    /// The time at which [`Delivery::tick`] or [`Delivery::send`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.sinks.iter().filter_map(Sink::deadline).min()
    }

    /// Records at the end of the stream how far each reader is, and which frames the kernel never had.
    pub fn record_end(&mut self, records: &mut Records, now: Timestamp) {
        for sink in &mut self.sinks {
            sink.record_taken(records, now);
        }
        self.sinks.iter().for_each(|sink| sink.record_never_written(records));
    }

    /// Records at a hand-over how far each reader is, and which frames the next process does not have. This process forgets these
    /// frames, too: whichever process goes on composes them again.
    pub fn record_hand_over(&mut self, records: &mut Records, now: Timestamp) {
        for sink in &mut self.sinks {
            sink.record_taken(records, now);
            sink.drop_unsaved(records);
        }
    }

    /// Number and bytes of the pushed frames that a reader has not taken, over all sinks.
    pub fn backlog_size(&self) -> (usize, u64) {
        let sizes = self.sinks.iter().map(Sink::backlog_size);
        sizes.fold((0, 0), |(frames, bytes), more| (frames + more.0, bytes + more.1))
    }

    /// Whether the readers have taken every pushed frame.
    pub fn is_drained(&self) -> bool {
        self.sinks.iter().all(Sink::is_drained)
    }
}
