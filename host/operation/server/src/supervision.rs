//! Messages to the supervisor: ready, reloading, stopping, the status line, and the watchdog.
//!
//! The supervisor is systemd or `afterbay run --keep`. Without one, nothing here does anything.

use afterbay_events::event::SupervisorFailed;
use afterbay_events::{Events, Metrics};
use afterbay_stream::StreamHandle;
use afterbay_supervision::fdstore::{State, Supervisor};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two status lines.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// Pings in the supervisor's watchdog time. One that is late or lost does no harm.
const PINGS: u32 = 4;

/// Tells the supervisor how the process is. Clones share the state.
#[derive(Clone)]
pub(crate) struct Supervision(Arc<Inner>);

struct Inner {
    supervisor: Option<Supervisor>,
    events: Events,
    metrics: Metrics,
    state: Mutex<Watched>,
}

#[derive(Default)]
struct Watched {
    streams: Vec<WatchedStream>,
    /// The status line instead of the streams' figures.
    note: Option<String>,
    /// The last status line that was sent.
    status: String,
    /// The time and the received frames of the last status line.
    counted: Option<(Instant, u64)>,
}

struct WatchedStream {
    name: String,
    sinks: Vec<String>,
    handle: StreamHandle,
    /// The number of turns at the last ping.
    turns: u64,
}

impl Supervision {
    pub(crate) fn new(supervisor: Option<&Supervisor>, events: &Events, metrics: &Metrics) -> Supervision {
        let (events, metrics) = (events.clone(), metrics.clone());
        let supervisor = supervisor.cloned();
        Supervision(Arc::new(Inner { supervisor, events, metrics, state: Mutex::default() }))
    }

    /// Watches the turns of a stream, until it ends.
    pub(crate) fn add(&self, name: &str, sinks: Vec<String>, handle: StreamHandle) {
        let turns = handle.turns().unwrap_or_default();
        self.lock().streams.push(WatchedStream { name: name.to_owned(), sinks, handle, turns });
    }

    /// Says that the process does its work: every stream whose sockets are known is bound. `note` stands in the status line
    /// instead of the streams' figures.
    pub(crate) fn ready(&self, note: Option<String>) {
        let status = {
            let mut state = self.lock();
            state.note = note;
            let _changed = state.next_status(&self.0.metrics, Instant::now());
            state.status.clone()
        };
        self.send(&[State::Ready, State::Status(&status)]);
    }

    /// Says that this process is the main one: it has taken over from the one before.
    pub(crate) fn took_over(&self) {
        self.send(&[State::MainPid(std::process::id())]);
    }

    /// Says that a reload begins. [`Supervision::ready`] ends it.
    pub(crate) fn reloading(&self) {
        if let Ok(now) = State::monotonic_usec_now() {
            self.send(&[State::Reloading, now]);
        }
    }

    /// Says that the process stops.
    pub(crate) fn stopping(&self) {
        self.lock().note = Some("stopping".to_owned());
        self.send(&[State::Stopping, State::Status("stopping")]);
    }

    /// Sends the status line and the pings for the watchdog, as long as the runtime runs. A ping is sent only if each stream
    /// has made a turn since the last one.
    pub(crate) async fn run(self) {
        let Some(supervisor) = &self.0.supervisor else { return };
        let ping_every = supervisor.watchdog().map(|watchdog| watchdog / PINGS);
        let mut look = tokio::time::interval(STATUS_EVERY.min(ping_every.unwrap_or(STATUS_EVERY)));
        let (mut pinged, mut status_at) = (Instant::now(), Instant::now());
        loop {
            look.tick().await;
            let now = Instant::now();
            if ping_every.is_some_and(|every| now.duration_since(pinged) >= every)
                && self.lock().have_turned()
            {
                self.send(&[State::Watchdog]);
                pinged = now;
            }
            if now.duration_since(status_at) >= STATUS_EVERY {
                status_at = now;
                let status = self.lock().next_status(&self.0.metrics, now);
                if let Some(status) = status {
                    self.send(&[State::Status(&status)]);
                }
            }
        }
    }

    fn send(&self, words: &[State<'_>]) {
        let Some(supervisor) = &self.0.supervisor else { return };
        if let Err(error) = supervisor.send(words) {
            self.0.events.publish(SupervisorFailed { why: format!("a message was not delivered: {error}") });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
    /// Whether every running stream has made a turn since this was last true.
    fn have_turned(&mut self) -> bool {
        self.streams.retain(|stream| stream.handle.turns().is_some());
        let now: Vec<u64> = self.streams.iter().filter_map(|stream| stream.handle.turns()).collect();
        let has_turned = self.streams.iter().zip(&now).all(|(stream, now)| stream.turns != *now);
        if has_turned {
            self.streams.iter_mut().zip(now).for_each(|(stream, now)| stream.turns = now);
        }
        has_turned
    }

    /// The status line, if it has changed.
    fn next_status(&mut self, metrics: &Metrics, now: Instant) -> Option<String> {
        self.streams.retain(|stream| stream.handle.turns().is_some());
        let status = self.note.clone().unwrap_or_else(|| self.figures(metrics, now));
        if status == self.status {
            return None;
        }
        self.status.clone_from(&status);
        Some(status)
    }

    fn figures(&mut self, metrics: &Metrics, now: Instant) -> String {
        let (mut received, mut waiting, mut readers, mut connected) = (0, 0, 0, 0);
        for stream in &self.streams {
            let counters = metrics.stream(&stream.name);
            received += counters.frames_received.get();
            waiting += counters.outbox_frames.get() + counters.spilled_frames.get();
            readers += stream.sinks.len();
            let is_connected = |sink: &&String| metrics.sink(&stream.name, sink).connected.get() > 0;
            connected += stream.sinks.iter().filter(is_connected).count();
        }
        let (before_at, before) = self.counted.replace((now, received)).unwrap_or((now, received));
        let millis = now.saturating_duration_since(before_at).as_millis().max(1);
        let rate = u128::from(received.saturating_sub(before)) * 1000 / millis;
        let streams = self.streams.len();
        format!(
            "streams: {streams}, frames/s: {rate}, readers connected: {connected} of {readers}, frames waiting: {waiting}"
        )
    }
}
