//! The running process's side of a hand-over: it stops its streams between two frames, gives its descriptors and its state to the
//! new process, and then ends, or goes on as if nothing had happened.
//!
//! `host/operation/supervision/src/hand_over` has the conversation, `take_over.rs` the new process's side, `upgrade.rs` the start of a
//! new process. This file decides the order. Everything before the release can be undone.

use crate::shared::Shared;
use crate::start::Running;
use crate::take_over::{HandedState, formats};
use crate::upgrade::{Asked, Upgraded};
use afterbay_events::event::{HandOverBegun, HandOverFailed, HandOverFinished};
use afterbay_stream::{StreamHandle, StreamState};
use afterbay_supervision::fdstore::{FdName, State};
use afterbay_supervision::hand_over::{Successor, WHOLE_MAX};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Time for the changes over the admin addresses that were accepted.
const CHANGES_MAX: Duration = Duration::from_secs(5);
/// Time for the aborts that plugins asked for.
const ABORTS_MAX: Duration = Duration::from_millis(500);
/// Time for the requests on the admin addresses, once the new process runs.
const ANSWERS_MAX: Duration = Duration::from_secs(1);
/// Time for the answer to `afterbay upgrade` to leave.
const ANSWER_LEAVES: Duration = Duration::from_millis(50);

/// Hands over to a process that asks. Returns whether the new process runs: this one must then end, and leaves every descriptor as
/// it is.
pub(crate) async fn hand_over(asked: Asked, shared: &mut Shared, running: &Running) -> bool {
    let Asked { successor, version: to, formats, outcome } = asked;
    let (from, from_pid) = (env!("CARGO_PKG_VERSION").to_owned(), std::process::id());
    let to_pid = successor.pid();
    shared.events.publish(HandOverBegun { to_pid, from: from.clone(), to: to.clone() });
    let handed_over = match formats == self::formats() {
        true => behind_gate(successor, shared, running).await,
        false => Err(format!(
            "its formats are {formats:?}, those of the running process {:?}: restart instead",
            self::formats()
        )),
    };
    match handed_over {
        Ok(stood_still) => {
            let ms = u64::try_from(stood_still.as_millis()).unwrap_or(u64::MAX);
            shared.events.publish(HandOverFinished { to_pid, to: to.clone(), ms });
            // The send fails if nobody waits any more.
            let _sent = outcome.send(Ok(Upgraded { from, to, from_pid, to_pid, stood_still_ms: ms }));
            shared.status.end(ANSWER_LEAVES).await;
            tokio::time::sleep(ANSWER_LEAVES).await;
            shared.gate.settle(ANSWERS_MAX).await;
            true
        }
        Err(why) => {
            shared.events.publish(HandOverFailed { why: why.clone() });
            let _sent = outcome.send(Err(why));
            false
        }
    }
}

/// Returns the time for which the streams stood still. The error says why this process goes on.
async fn behind_gate(
    successor: Successor,
    shared: &mut Shared,
    running: &Running,
) -> Result<Duration, String> {
    shared.admin.pause();
    let result = match shared.gate.close(CHANGES_MAX).await {
        true => give(successor, shared, running).await,
        false => Err(format!("a change over an admin address is not done after {} s", CHANGES_MAX.as_secs())),
    };
    if result.is_err() {
        shared.admin.resume();
        shared.gate.open();
    }
    result
}

/// The names and handles of the streams that have not ended.
fn live(running: &Running) -> impl Iterator<Item = (&str, StreamHandle)> {
    let live = running.streams.iter().filter(|stream| !stream.is_finished());
    live.map(|stream| (stream.name(), stream.handle()))
}

/// Stops the streams and gives everything. If anything fails, the streams go on.
async fn give(successor: Successor, shared: &Shared, running: &Running) -> Result<Duration, String> {
    let (begun, pid) = (Instant::now(), successor.pid());
    shared.fdstore.release();
    match stop_and_give(successor, shared, running, begun + WHOLE_MAX).await {
        Ok(()) => {
            let stood_still = begun.elapsed();
            live(running).for_each(|(_, stream)| stream.leave());
            if let Some(supervisor) = shared.fdstore.supervisor() {
                // The supervisor believes its present main process. If it does not listen, the new process's own message counts.
                let _sent = supervisor.send(&[State::MainPid(pid)]);
            }
            Ok(stood_still)
        }
        Err(why) => {
            shared.directory.claim();
            shared.stores.resume();
            shared.fdstore.reclaim();
            live(running).for_each(|(_, stream)| stream.resume());
            Err(why)
        }
    }
}

async fn stop_and_give(
    successor: Successor,
    shared: &Shared,
    running: &Running,
    deadline: Instant,
) -> Result<(), String> {
    // Before the streams stop, because it may have megabytes.
    let history = shared.status.history_text();
    let streams = stop(running, deadline).await?;
    shared.aborts.settle(ABORTS_MAX).await;
    shared.stores.pause();
    shared.directory.pause();
    let from = env!("CARGO_PKG_VERSION").to_owned();
    let state = HandedState { from, streams, attributes: shared.attributes.hand_over(), history };
    let state = serde_json::to_vec(&state).map_err(|error| error.to_string())?;
    let entries =
        descriptors(shared).map_err(|error| format!("a descriptor cannot be duplicated: {error}"))?;
    let done = tokio::task::spawn_blocking(move || successor.hand_over(&entries, &state, deadline)).await;
    done.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

/// Stops every stream between two frames. If one cannot stop, the error says why.
async fn stop(running: &Running, deadline: Instant) -> Result<Vec<StreamState>, String> {
    let asked: Vec<_> = live(running)
        .map(|(name, stream)| {
            let (reply, state) = oneshot::channel();
            // The send fails if nobody waits any more.
            stream.hand_over(move |state| drop(reply.send(state)));
            (name.to_owned(), state)
        })
        .collect();
    let mut states = Vec::new();
    for (name, state) in asked {
        let why = match tokio::time::timeout_at(deadline.into(), state).await {
            Ok(Ok(Ok(state))) => {
                states.push(state);
                continue;
            }
            Ok(Ok(Err(why))) => why,
            Ok(Err(_)) => "it has ended".to_owned(),
            Err(_) => "its present batch is not done".to_owned(),
        };
        return Err(format!("stream {name:?}: {why}"));
    }
    Ok(states)
}

/// The kept descriptors and the journal's lock.
fn descriptors(shared: &Shared) -> std::io::Result<Vec<(FdName, Vec<OwnedFd>)>> {
    let mut entries = shared.fdstore.entries()?;
    entries.extend(shared.directory.lock_descriptor()?.map(|lock| (FdName::journal_lock(), vec![lock])));
    Ok(entries)
}
