//! A tap that connects to an observer. While the socket has no room, copies wait in the tap's queue.

use super::thread::{CopySocket, FrameCopy};
use afterbay_events::event::{SinkConnected, SinkLost, SinkWaiting};
use afterbay_events::{Name, StreamTelemetry, TapCounters};
use afterbay_sockets::{OutgoingFrame, Push, PushNotice};
use mio::event::Event;
use std::time::Instant;

impl CopySocket for Push {
    fn deadline(&self) -> Option<Instant> {
        self.deadline()
    }

    fn ready(&mut self, event: &Event, now: Instant) {
        if self.owns(event.token()) {
            self.ready(event, now);
        }
    }

    fn tick(&mut self, now: Instant) {
        self.tick(now);
    }

    fn has_room(&self) -> bool {
        self.room()
    }

    fn send(&mut self, copy: FrameCopy) {
        let totals = self.totals();
        let sequence = totals.frames_written + self.pending().frames as u64 + 1;
        let queued = self.send(OutgoingFrame { sequence, bytes: copy.bytes, counted: false });
        debug_assert!(queued.is_ok(), "a copy is sent only if the socket has room");
    }

    fn flush(&mut self, now: Instant) {
        self.flush(now);
    }

    fn is_drained(&self) -> bool {
        self.pending().frames == 0
    }

    fn report(&mut self, tap: &Name, telemetry: &StreamTelemetry, counters: &TapCounters) {
        let totals = self.totals();
        counters.connected.set(u64::from(self.is_connected()));
        counters.frames_written.set(totals.frames_written);
        counters.bytes_written.set(totals.bytes_written);
        while let Some(notice) = self.next_notice() {
            let (stream, sink) = (telemetry.stream.clone(), tap.clone());
            let endpoint = self.endpoint().to_string();
            match notice {
                PushNotice::Connected { .. } => telemetry.publish(SinkConnected { stream, sink, endpoint }),
                PushNotice::Waiting { why } => {
                    telemetry.publish(SinkWaiting { stream, sink, endpoint, why: why.to_string() });
                }
                PushNotice::Lost { why, .. } => {
                    telemetry.publish(SinkLost { stream, sink, why: why.to_string(), at_end: false });
                }
                // A frame that a tap did not read is lost to nobody, and a tap's connection is not adopted.
                PushNotice::Settled { .. }
                | PushNotice::Adopted { .. }
                | PushNotice::Credit { .. }
                | PushNotice::Missed { .. } => {}
            }
        }
    }
}
