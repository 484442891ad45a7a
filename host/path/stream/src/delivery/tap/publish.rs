//! A tap that listens for subscribers. The socket has a queue for each of them, so it always takes a copy.

use super::thread::{CopySocket, FrameCopy};
use afterbay_events::event::{
    NoticesMissed, SubscriberClosed, SubscriberConnected, SubscriberDropped, SubscriberDropping,
    SubscriberRefused,
};
use afterbay_events::{Name, StreamTelemetry, TapCounters};
use afterbay_sockets::{Pub, PubNotice};
use mio::event::Event;
use std::time::Instant;

impl CopySocket for Pub {
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
        true
    }

    fn send(&mut self, copy: FrameCopy) {
        self.send(copy.number, &copy.bytes);
    }

    fn flush(&mut self, now: Instant) {
        self.flush(now);
    }

    fn is_drained(&self) -> bool {
        self.queue_frames() == 0
    }

    fn report(&mut self, tap: &Name, telemetry: &StreamTelemetry, counters: &TapCounters) {
        let (totals, subscribed) = (self.totals(), self.subscribed() as u64);
        counters.connected.set(u64::from(subscribed > 0));
        counters.subscribers.set(subscribed);
        counters.frames_written.set(totals.frames_written);
        counters.bytes_written.set(totals.bytes_written);
        counters.subscriber_queue_bytes.set(self.queue_bytes());
        counters.subscriber_frames_dropped.set(totals.frames_dropped);
        counters.subscriber_bytes_dropped.set(totals.bytes_dropped);
        while let Some(notice) = self.next_notice() {
            let (stream, tap) = (telemetry.stream.clone(), tap.clone());
            match notice {
                PubNotice::Connected { subscriber, from } => {
                    let (subscriber, from) = (subscriber.0, from.to_string());
                    telemetry.publish(SubscriberConnected { stream, tap, subscriber, from });
                }
                PubNotice::Closed { subscriber, why, frames, unsent, .. } => {
                    let (subscriber, reason, why) = (subscriber.0, why.label(), why.to_string());
                    telemetry.publish(SubscriberClosed {
                        stream,
                        tap,
                        subscriber,
                        reason,
                        why,
                        frames,
                        unsent,
                    });
                }
                PubNotice::Refused { from, why, times } => {
                    let (from, why) = (from.to_string(), format!("{why} ({times} times)"));
                    telemetry.publish(SubscriberRefused { stream, tap, from, why });
                }
                PubNotice::Dropping { subscriber, from, first } => {
                    let (subscriber, from) = (subscriber.0, from.to_string());
                    telemetry.publish(SubscriberDropping { stream, tap, subscriber, from, first });
                }
                PubNotice::Dropped { subscriber, frames, first, last } => {
                    let subscriber = subscriber.0;
                    telemetry.publish(SubscriberDropped { stream, tap, subscriber, frames, first, last });
                }
                PubNotice::Missed { count } => {
                    telemetry.publish(NoticesMissed { stream, of: "subscribers", missed: count });
                }
            }
        }
    }
}
