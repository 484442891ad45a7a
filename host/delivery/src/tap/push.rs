//! A tap that connects to one that listens: what its socket has no room for waits in the queue before it.

use super::thread::{Copied, Socket};
use afterbay_events::StreamTelemetry;
use afterbay_events::event::{SinkConnected, SinkLost, SinkWaiting};
use afterbay_events::{Name, TapCounters};
use afterbay_sockets::{OutgoingFrame, Push, PushNotice};
use mio::event::Event;
use std::time::Instant;

impl Socket for Push {
    fn deadline(&self) -> Option<Instant> {
        self.deadline()
    }

    fn woken(&mut self, event: &Event, now: Instant) {
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

    fn give(&mut self, copied: Copied) {
        let totals = self.totals();
        let sequence = totals.frames_written + self.pending().frames as u64 + 1;
        // There is room.
        let _sent = self.send(OutgoingFrame { sequence, bytes: copied.bytes, counted: false });
    }

    fn flush(&mut self, now: Instant) {
        self.flush(now);
    }

    fn is_drained(&self) -> bool {
        self.pending().frames == 0
    }

    fn tell(&mut self, tap: &Name, telemetry: &StreamTelemetry, counters: &TapCounters) {
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
                // What a tap had and did not read is nobody's loss.
                PushNotice::Settled { .. } | PushNotice::Credit { .. } | PushNotice::Missed { .. } => {}
            }
        }
    }
}
