//! The end of streams, at a stop and where a reload leaves some out: what they received is sent, or stays in the journal.
//!
//! Owns the order of legs and what is told of each; how a stream drains is the stream's.

use crate::EXIT_FAILED;
use crate::start::Shared;
use afterbay_config as config;
use afterbay_events::event::{DrainBegun, DrainDeadline, DrainFinished, StreamFailed, StreamStopped};
use afterbay_stream::Stream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What streams left behind.
pub(crate) enum Left {
    /// Frames that are in the journal and not with their reader.
    Frames(usize),
    /// A stream panicked.
    Failed,
}

impl From<Left> for ExitCode {
    fn from(left: Left) -> ExitCode {
        match left {
            Left::Frames(0) => ExitCode::SUCCESS,
            Left::Frames(_) => ExitCode::FAILURE,
            Left::Failed => ExitCode::from(EXIT_FAILED),
        }
    }
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
    Ok(match (first, next) {
        (Left::Frames(first), Left::Frames(next)) => Left::Frames(first + next),
        _ => Left::Failed,
    })
}

async fn drain_leg(streams: Vec<Stream>, shared: &Shared, timeout: Duration) -> anyhow::Result<Left> {
    let begun = Instant::now();
    let deadline = begun + timeout;
    for stream in &streams {
        let frames = shared.metrics.stream(stream.name()).outbox_frames.get();
        shared.events.publish(DrainBegun { stream: stream.name().into(), frames });
        stream.control().stop(deadline);
    }
    let mut left = 0;
    let mut failed = false;
    for stream in streams {
        let name: afterbay_events::Name = stream.name().into();
        let joined = tokio::task::spawn_blocking(move || stream.join()).await?;
        let frames = shared.metrics.stream(&name).frames_received.get();
        match joined {
            Ok(ended) if ended.frames_left == 0 => {
                let drained_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                shared.events.publish(DrainFinished { stream: name.clone(), drained_ms });
            }
            Ok(ended) => {
                left += ended.frames_left;
                let (remaining_frames, remaining_bytes) = (ended.frames_left as u64, ended.bytes_left);
                let stream = name.clone();
                shared.events.publish(DrainDeadline { stream, remaining_frames, remaining_bytes });
            }
            Err(panic) => {
                failed = true;
                shared.events.publish(StreamFailed { stream: name.clone(), why: format!("panic: {panic}") });
            }
        }
        shared.events.publish(StreamStopped { stream: name, frames });
    }
    Ok(if failed { Left::Failed } else { Left::Frames(left) })
}
