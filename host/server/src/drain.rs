//! The end of streams, at a stop and where a reload leaves some out: what they received is sent, or stays in the journal.
//!
//! Owns the order of legs and what is told of each; how a stream drains is the stream's.

use crate::shared::Shared;
use afterbay_config as config;
use afterbay_events::event::{
    DrainBegun, DrainDeadline, DrainFinished, JournalNotice, StreamFailed, StreamStopped,
};
use afterbay_stream::{Ended, Stream};
use std::time::{Duration, Instant};

/// The remains of streams that ended. Of several streams the worst counts.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub enum Left {
    /// Everything that was received is with its reader.
    Nothing,
    /// Frames that are not with their reader, bytes of senders that could not be received, or a journal that is not sealed.
    Something,
    /// A stream panicked.
    Failed,
}

/// Sends what was received, then ends every stream: those that are after others, when nothing more can come from them.
/// `configured` says which these are.
pub(crate) async fn drain(
    streams: Vec<Stream>,
    configured: &[config::Stream],
    shared: &Shared,
    timeout: Duration,
) -> anyhow::Result<Left> {
    let is_first = |stream: &Stream| {
        let is_it = |config: &config::Stream| config.name.as_str() == stream.name();
        configured.iter().any(|config| is_it(config) && config.after.is_empty())
    };
    let (first, next) = streams.into_iter().partition(is_first);
    let first = drain_leg(first, shared, timeout).await?;
    let next = drain_leg(next, shared, timeout).await?;
    Ok(first.max(next))
}

async fn drain_leg(streams: Vec<Stream>, shared: &Shared, timeout: Duration) -> anyhow::Result<Left> {
    let begun = Instant::now();
    let deadline = begun + timeout;
    for stream in &streams {
        let frames = shared.metrics.stream(stream.name()).outbox_frames.get();
        shared.events.publish(DrainBegun { stream: stream.name().into(), frames });
        stream.control().stop(deadline);
    }
    let mut left = Left::Nothing;
    for stream in streams {
        let name: afterbay_events::Name = stream.name().into();
        let joined = tokio::task::spawn_blocking(move || stream.join()).await?;
        let frames = shared.metrics.stream(&name).frames_received.get();
        if joined.as_ref().is_ok_and(|ended| tell_unsealed(shared, &name, ended)) {
            left = left.max(Left::Something);
        }
        match joined {
            Ok(ended) if ended.frames_left == 0 && ended.unread_bytes == 0 => {
                let drained_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                shared.events.publish(DrainFinished { stream: name.clone(), drained_ms });
            }
            Ok(ended) => {
                left = left.max(Left::Something);
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
                left = Left::Failed;
                shared.events.publish(StreamFailed { stream: name.clone(), why: format!("panic: {panic}") });
            }
        }
        shared.events.publish(StreamStopped { stream: name, frames });
    }
    Ok(left)
}

/// Says what is not in a stream's journal; whether there was something to say.
fn tell_unsealed(shared: &Shared, stream: &afterbay_events::Name, ended: &Ended) -> bool {
    let tell = |what: String| {
        shared.events.publish(JournalNotice { stream: stream.clone(), is_wrong: true, what });
    };
    if ended.unkept > 0 {
        tell(format!("{} frames were received that could not be written, and are lost", ended.unkept));
    }
    if let Some(why) = &ended.journal {
        tell(format!("it is not sealed, and the next start scans its end: {why}"));
    }
    ended.unkept > 0 || ended.journal.is_some()
}
