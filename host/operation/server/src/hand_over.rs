//! The running process's side of a hand-over: it stops its streams between two frames, gives its state and its descriptors to a
//! new process, and then ends, or goes on as if nothing had happened.
//!
//! `host/operation/supervision/src/hand_over` has the conversation, `take_over.rs` the new process's side, `upgrade.rs` the start of a new process. This
//! file decides the order. Everything before `released` can be undone.

use crate::handed::{ATTRIBUTES_PART, AttributesPart, LOCK, SOCKET, STREAM_PART, versions};
use crate::shared::Shared;
use crate::start::Running;
use crate::upgrade::{Upgraded, Upgrades, WHY_PID_1};
use afterbay_events::Events;
use afterbay_events::event::{HandOverBegun, HandOverFailed, HandOverFinished};
use afterbay_stream::{StreamHandle, StreamState};
use afterbay_supervision::fdstore::{State, Supervisor};
use afterbay_supervision::hand_over::{Asked, GiveError, HandOverSocket, NamedFds, Part, Released, bounds};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// Time for the changes over the admin addresses that were accepted.
const CHANGES_MAX: Duration = Duration::from_secs(5);
/// Time for the aborts that plugins asked for.
const ABORTS_MAX: Duration = Duration::from_millis(500);
/// Time for the requests on the admin addresses, once the new process runs.
const ANSWERS_MAX: Duration = Duration::from_secs(1);
/// Time for the answer to `afterbay upgrade` to leave.
const ANSWER_LEAVES: Duration = Duration::from_millis(50);
/// Pause after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Attributes in one part.
const ATTRIBUTES_IN_PART: usize = 500;

/// The hand-over's socket, and the processes that ask to take over.
pub(crate) struct HandOvers {
    /// `None` if it could not be made: an upgrade then needs a restart.
    socket: Option<HandOverSocket>,
    asked: (mpsc::Sender<Asked>, mpsc::Receiver<Asked>),
    accepting: Option<JoinHandle<()>>,
}

/// The outcome of a hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandedOver {
    /// The new process runs. This one must end, and leaves every descriptor as it is.
    Yes,
    /// This process goes on.
    No,
}

impl HandOvers {
    /// Binds the socket in the journal's directory, or continues that of the process before.
    pub(crate) fn open(shared: &Shared, inherited: Option<OwnedFd>) -> HandOvers {
        let dir = &shared.config.journal.dir;
        let opened = match inherited {
            Some(listener) => HandOverSocket::inherit(dir, listener),
            None => HandOverSocket::bind(dir),
        };
        let socket = opened.inspect_err(warn_unavailable).ok();
        HandOvers { socket, asked: mpsc::channel(1), accepting: None }
    }

    /// Accepts processes that ask, until [`HandOvers::pause`].
    pub(crate) fn accept(&mut self, shared: &Shared) {
        let Some(socket) = &self.socket else { return };
        let listener = socket.listener().and_then(|listener| {
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        });
        match listener {
            Ok(listener) => {
                let (events, upgrades) = (shared.events.clone(), shared.upgrades.clone());
                self.accepting = Some(tokio::spawn(accept(listener, events, upgrades, self.asked.0.clone())));
            }
            Err(error) => warn_unavailable(&error),
        }
    }

    /// Leaves the socket to the next process.
    fn leave(&mut self) {
        self.socket.iter_mut().for_each(HandOverSocket::disown);
    }

    /// Accepts nobody: processes that ask wait in the kernel, for this process or for the next one.
    fn pause(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
        }
    }

    /// The next process that asks.
    pub(crate) async fn next(&mut self) -> Asked {
        match self.asked.1.recv().await {
            Some(asked) => asked,
            // This end has a sender, too.
            None => std::future::pending().await,
        }
    }

    /// Makes an inherited socket this process's own, after the process before has released it.
    pub(crate) fn own(&mut self) {
        self.socket.iter_mut().for_each(HandOverSocket::own);
    }
}

impl Drop for HandOvers {
    fn drop(&mut self) {
        self.pause();
    }
}

fn warn_unavailable(error: &std::io::Error) {
    tracing::warn!(target: "afterbay", "hand-over: no process can take over from this one, an upgrade needs a restart: {error}");
}

async fn accept(listener: UnixListener, events: Events, upgrades: Upgrades, asked: mpsc::Sender<Asked>) {
    loop {
        let read = match listener.accept().await.and_then(|(socket, _)| socket.into_std()) {
            Ok(socket) => tokio::task::spawn_blocking(move || {
                socket.set_nonblocking(false).map_err(|error| error.to_string())?;
                Asked::read(socket, &versions())
            }),
            Err(_) => {
                // Usually there is no free descriptor. The next try may have one.
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        match read.await {
            Ok(Ok(process)) => {
                if let Err(error) = asked.try_send(process) {
                    error.into_inner().refuse("another process asks to take over, too");
                }
            }
            Ok(Err(why)) => {
                upgrades.end(None, &Err(why.clone()));
                events.publish(HandOverFailed { why });
            }
            // The runtime ends.
            Err(_) => return,
        }
    }
}

/// Hands over to a process that asks, or refuses it.
pub(crate) async fn hand_over(
    asked: Asked,
    shared: &mut Shared,
    running: &Running,
    hand_overs: &mut HandOvers,
) -> HandedOver {
    let (pid, to) = (asked.pid(), asked.hello().afterbay.clone());
    shared.upgrades.asked(pid);
    let outcome = match try_hand_over(asked, shared, running, hand_overs).await {
        Ok(stood_still) => {
            let from = env!("CARGO_PKG_VERSION").to_owned();
            let ms = u64::try_from(stood_still.as_millis()).unwrap_or(u64::MAX);
            shared.events.publish(HandOverFinished { to_pid: pid, to: to.clone(), ms });
            Ok(Upgraded { from, to, from_pid: std::process::id(), to_pid: pid, stood_still_ms: ms })
        }
        Err(why) => {
            shared.events.publish(HandOverFailed { why: why.clone() });
            Err(why)
        }
    };
    shared.upgrades.end(Some(pid), &outcome);
    if outcome.is_err() {
        return HandedOver::No;
    }
    hand_overs.leave();
    shared.status.end(ANSWER_LEAVES).await;
    tokio::time::sleep(ANSWER_LEAVES).await;
    shared.gate.settle(ANSWERS_MAX).await;
    HandedOver::Yes
}

/// Returns the time for which the streams stood still. The error says why this process goes on.
async fn try_hand_over(
    asked: Asked,
    shared: &mut Shared,
    running: &Running,
    hand_overs: &mut HandOvers,
) -> Result<Duration, String> {
    if let Some(why) = refuses(&asked, shared, running) {
        asked.refuse(&why);
        return Err(why);
    }
    let (pid, from) = (asked.pid(), env!("CARGO_PKG_VERSION").to_owned());
    shared.events.publish(HandOverBegun { to_pid: pid, from, to: asked.hello().afterbay.clone() });
    hand_overs.pause();
    shared.admin.pause();
    let result = match shared.gate.close(CHANGES_MAX).await {
        true => give(asked, shared, running, hand_overs).await,
        false => {
            let why = format!("a change over an admin address is not done after {} s", CHANGES_MAX.as_secs());
            asked.refuse(&why);
            Err(why)
        }
    };
    if result.is_err() {
        shared.admin.resume();
        hand_overs.accept(shared);
        shared.gate.open();
    }
    result
}

/// The reason why this process cannot take over. Nothing has stopped yet.
fn refuses(asked: &Asked, shared: &Shared, running: &Running) -> Option<String> {
    if std::process::id() == 1 {
        return Some(WHY_PID_1.to_owned());
    }
    let is_supervised = shared.fdstore.supervisor().is_some_and(Supervisor::is_alive);
    if is_supervised && !shared.upgrades.is_child(asked.pid()) {
        let why = "this Afterbay has a supervisor (systemd, or a keeper), which would not know the new process: use `afterbay upgrade`";
        return Some(why.to_owned());
    }
    let configured = &asked.hello().streams;
    let gone = live(running).find(|(name, _)| configured.iter().all(|stream| stream.name != *name));
    if let Some((name, _)) = gone {
        return Some(format!(
            "its configuration has no stream {name:?}, whose connections would be closed: remove the stream by a reload first"
        ));
    }
    // The streams' own descriptors, the lock and the socket of hand-overs.
    asked.refuses_descriptors(shared.fdstore.len() + 2)
}

/// The names and handles of the streams that have not ended.
fn live(running: &Running) -> impl Iterator<Item = (&str, StreamHandle)> {
    let live = running.streams.iter().filter(|stream| !stream.is_finished());
    live.map(|stream| (stream.name(), stream.handle()))
}

/// Stops the streams and gives everything. If anything fails, the streams go on.
async fn give(
    asked: Asked,
    shared: &Shared,
    running: &Running,
    hand_overs: &HandOvers,
) -> Result<Duration, String> {
    let begun = Instant::now();
    let deadline = begun + bounds::WHOLE_MAX;
    shared.fdstore.release();
    let pid = asked.pid();
    let given = match stop(running, deadline).await {
        Err(why) => {
            asked.refuse(&why);
            Err(why)
        }
        Ok(states) => {
            shared.aborts.settle(ABORTS_MAX).await;
            shared.stores.pause();
            shared.directory.pause();
            match everything(states, shared, hand_overs) {
                Err(why) => {
                    asked.refuse(&why);
                    Err(why)
                }
                Ok((parts, fds)) => converse(asked, parts, fds, deadline).await,
            }
        }
    };
    match given {
        Ok(Released) => {
            let stood_still = begun.elapsed();
            live(running).for_each(|(_, stream)| stream.release());
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

/// Stops every stream between two frames. If one cannot stop, the error says why.
async fn stop(running: &Running, deadline: Instant) -> Result<Vec<(String, StreamState)>, String> {
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
                states.push((name, state));
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

/// All parts and all descriptors.
fn everything(
    states: Vec<(String, StreamState)>,
    shared: &Shared,
    hand_overs: &HandOvers,
) -> Result<(Vec<Part>, Vec<NamedFds>), String> {
    let mut parts = Vec::new();
    for (stream, state) in states {
        let state = serde_json::to_value(&state).map_err(|error| format!("stream {stream:?}: {error}"))?;
        parts.push(Part { name: format!("{STREAM_PART}{stream}"), state });
    }
    let mut attributes = shared.attributes.hand_over();
    while !attributes.is_empty() {
        let entries = attributes.split_off(attributes.len().saturating_sub(ATTRIBUTES_IN_PART));
        let state = serde_json::to_value(AttributesPart { entries }).map_err(|error| error.to_string())?;
        parts.push(Part { name: ATTRIBUTES_PART.to_owned(), state });
    }
    let fds = descriptors(shared, hand_overs)
        .map_err(|error| format!("a descriptor cannot be duplicated: {error}"))?;
    Ok((parts, fds))
}

fn descriptors(shared: &Shared, hand_overs: &HandOvers) -> std::io::Result<Vec<NamedFds>> {
    let entries = shared.fdstore.entries()?.into_iter();
    let mut all: Vec<NamedFds> =
        entries.map(|(name, fds)| NamedFds { name: name.as_str().to_owned(), fds }).collect();
    if let Some(lock) = shared.directory.lock_descriptor()? {
        all.push(NamedFds { name: LOCK.to_owned(), fds: vec![lock] });
    }
    if let Some(socket) = &hand_overs.socket {
        let socket = socket.as_fd().try_clone_to_owned()?;
        all.push(NamedFds { name: SOCKET.to_owned(), fds: vec![socket] });
    }
    Ok(all)
}

/// Gives everything, waits until the new process is ready, and releases the streams to it.
async fn converse(
    asked: Asked,
    parts: Vec<Part>,
    fds: Vec<NamedFds>,
    deadline: Instant,
) -> Result<Released, String> {
    let conversation = move || -> Result<Released, GiveError> {
        asked.give(parts, &fds, deadline)?.wait_until_ready(deadline)?.release()
    };
    let done = tokio::task::spawn_blocking(conversation).await;
    done.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}
