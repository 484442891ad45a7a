//! Drains streams at a stop, or when a reload removes them: received frames are sent, or stay in the journal.
//!
//! This file decides the order of the legs and publishes the events. The stream itself does the draining.

use crate::shared::Shared;
use afterbay_config as config;
use afterbay_events::event::{
    DrainBegun, DrainDeadline, DrainFinished, JournalNotice, StreamFailed, StreamStopped,
};
use afterbay_stream::{Ended, Stream};
use std::time::{Duration, Instant};

/// The outcome of draining. The worst outcome of several streams counts.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainOutcome {
    /// A new process runs the streams. This one ends at once, and closes no connection.
    HandedOver,
    /// The readers have everything that was received.
    Complete,
    /// Frames were not sent, bytes of senders were not received, or the journal has no summary.
    Incomplete,
    /// A stream panicked.
    Failed,
}

/// Drains and ends streams: first those that `configured` says are `after` no other, then the second legs behind them.
/// Each leg has the time of `timeout`.
pub(crate) async fn drain(
    streams: Vec<Stream>,
    configured: &[config::Stream],
    shared: &Shared,
    timeout: Duration,
) -> anyhow::Result<DrainOutcome> {
    let is_first = |stream: &Stream| {
        let is_it = |config: &config::Stream| config.name.as_str() == stream.name();
        configured.iter().any(|config| is_it(config) && config.after.is_empty())
    };
    let (first, next) = streams.into_iter().partition(is_first);
    let first = drain_leg(first, shared, timeout).await?;
    let next = drain_leg(next, shared, timeout).await?;
    Ok(first.max(next))
}

async fn drain_leg(streams: Vec<Stream>, shared: &Shared, timeout: Duration) -> anyhow::Result<DrainOutcome> {
    let begun = Instant::now();
    let deadline = begun + timeout;
    for stream in &streams {
        let frames = shared.metrics.stream(stream.name()).outbox_frames.get();
        shared.events.publish(DrainBegun { stream: stream.name().into(), frames });
        stream.handle().stop(deadline);
    }
    let mut left = DrainOutcome::Complete;
    for stream in streams {
        let name: afterbay_events::Name = stream.name().into();
        let joined = tokio::task::spawn_blocking(move || stream.join()).await?;
        let frames = shared.metrics.stream(&name).frames_received.get();
        if joined.as_ref().is_ok_and(|ended| report_no_summary(shared, &name, ended)) {
            left = left.max(DrainOutcome::Incomplete);
        }
        match joined {
            Ok(ended) if ended.frames_left == 0 && ended.unread_bytes == 0 => {
                let drained_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                shared.events.publish(DrainFinished { stream: name.clone(), drained_ms });
            }
            Ok(ended) => {
                left = left.max(DrainOutcome::Incomplete);
                let (remaining_frames, remaining_bytes) = (ended.frames_left as u64, ended.bytes_left);
                let (stream, unread_bytes) = (name.clone(), ended.unread_bytes);
                shared.events.publish(DrainDeadline {
                    stream,
                    remaining_frames,
                    remaining_bytes,
                    unread_bytes,
                });
            }
            Err(panic) => {
                left = DrainOutcome::Failed;
                shared.events.publish(StreamFailed { stream: name.clone(), why: format!("panic: {panic}") });
            }
        }
        shared.events.publish(StreamStopped { stream: name, frames });
    }
    Ok(left)
}

/// Publishes what the journal of a stream lacks. Returns whether it lacks something.
fn report_no_summary(shared: &Shared, stream: &afterbay_events::Name, ended: &Ended) -> bool {
    let publish = |what: String| {
        shared.events.publish(JournalNotice { stream: stream.clone(), is_wrong: true, what });
    };
    if ended.unpersisted > 0 {
        publish(format!(
            "{} frames were received that could not be written, and are lost",
            ended.unpersisted
        ));
    }
    if let Some(why) = &ended.journal {
        publish(format!("it has no summary, and the next start scans its end: {why}"));
    }
    ended.unpersisted > 0 || ended.journal.is_some()
}
