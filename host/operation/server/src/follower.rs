//! The process that follows the journal, `afterbay-follow`: a child of this one, started again when it ends.
//!
//! An operator may run it as a service of its own: then its status file is fresh, and no child is started.

use crate::leases::Leases;
use crate::mutex::lock;
use crate::rendezvous::is_alive;
use crate::upgrade::OF_ONE_PROCESS;
use afterbay_config as config;
use afterbay_events::event::{FollowerEnded, FollowerStarted, TracesPathTwice};
use afterbay_events::{Events, Health, Metrics};
use afterbay_http::redacted;
use afterbay_journal::storage::{Disk, Storage};
use afterbay_journal::{Follower, JournalDirectory};
use afterbay_journal_view::follower::{CopyStatus, FollowerStatus, follow_binary};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// Time between two looks at the child and its status file.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Age at which a status says nothing about the present.
const FRESH_MAX: Duration = Duration::from_secs(5);
/// Time for the child at a stop: 5 s for what is left, and for its end.
const STOP_MAX: Duration = Duration::from_secs(7);
/// Shortest and longest time until the child is started again. Each is twice the one before.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// The child's exit code if another process follows the journal.
const EXIT_LOCKED: i32 = 75;
/// The key of the condition while nobody follows.
const HEALTH: &str = "follower";

/// The process that follows the journal, and what it said last. Clones share them.
#[derive(Clone)]
pub(crate) struct FollowerProcess(Arc<Inner>);

struct Inner {
    journal: PathBuf,
    directory: Arc<JournalDirectory>,
    /// The binary, as long as this process's own binary is in place.
    binary: Result<PathBuf, String>,
    arguments: Vec<OsString>,
    events: Events,
    health: Health,
    metrics: Metrics,
    leases: Leases,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    tables: Option<Tables>,
    /// Whether the child is to be started anew.
    has_changed: bool,
    is_stopping: bool,
    copies: Vec<CopyStatus>,
    thread: Option<JoinHandle<()>>,
}

/// The tables of the configuration that the child follows.
#[derive(Clone, PartialEq)]
struct Tables {
    streams: Vec<config::Name>,
    traces: Option<config::Traces>,
    replicate: Option<config::Replicate>,
    archive: Option<config::Archive>,
    usage: config::Usage,
    clients: Option<config::Clients>,
    tap: Option<config::Tap>,
}

/// The followers that the configuration names: nothing is removed before they have read it.
pub(crate) fn followers(config: &config::Config) -> Vec<Follower> {
    let archive = config.archive.iter().map(|archive| Follower {
        name: "archive",
        copy: archive.url.clone(),
        needs_ended_segments: true,
    });
    let other = |name, copy| Follower { name, copy, needs_ended_segments: false };
    let replicate = config.replicate.iter().map(|it| other("replicate", it.nats.join(",")));
    let usage = config.usage.kept_days.is_none();
    let usage = usage.then(|| other("usage", config.usage.dir.display().to_string()));
    archive.chain(replicate).chain(usage).collect()
}

/// The warning about an endpoint with the path that the exporter adds.
pub(crate) fn path_twice(traces: &config::Traces) -> Option<TracesPathTwice> {
    let endpoint = traces.endpoint.trim_end_matches('/');
    endpoint.ends_with("/v1/traces").then(|| TracesPathTwice { endpoint: redacted(endpoint) })
}

impl FollowerProcess {
    /// Does not start it yet. `arguments`: those of `afterbay-follow follow`.
    pub(crate) fn new(
        directory: &Arc<JournalDirectory>,
        arguments: Vec<OsString>,
        (events, health, metrics): (&Events, &Health, &Metrics),
        leases: &Leases,
    ) -> FollowerProcess {
        FollowerProcess(Arc::new(Inner {
            journal: directory.path().to_owned(),
            directory: directory.clone(),
            binary: follow_binary(),
            arguments,
            events: events.clone(),
            health: health.clone(),
            metrics: metrics.clone(),
            leases: leases.clone(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    /// Follows the configuration: starts the process, or starts it anew if its tables have changed.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn follow(&self, config: &config::Config) -> std::io::Result<()> {
        let tables = Tables {
            streams: config.streams.iter().map(|stream| stream.name.clone()).collect(),
            traces: config.traces.clone(),
            replicate: config.replicate.clone(),
            archive: config.archive.clone(),
            usage: config.usage.clone(),
            clients: config.clients.clone(),
            tap: config.tap.clone(),
        };
        let mut state = lock(&self.0.state);
        let before = state.tables.replace(tables.clone());
        if before.as_ref() == Some(&tables) {
            return Ok(());
        }
        if before.is_none_or(|before| before.traces != tables.traces) {
            let warning = config.traces.as_ref().and_then(path_twice);
            warning.into_iter().for_each(|event| self.0.events.publish(event));
        }
        self.0.directory.set_followers(followers(config));
        state.has_changed = true;
        if state.thread.is_none() {
            let inner = self.0.clone();
            let builder = std::thread::Builder::new().name("follower".to_owned());
            state.thread = Some(builder.spawn(move || Watch::new(&inner).run())?);
        }
        self.0.changed.notify_all();
        Ok(())
    }

    /// The copies of the journal, as the process said last.
    pub(crate) fn copies(&self) -> Vec<CopyStatus> {
        lock(&self.0.state).copies.clone()
    }

    /// Lets the process do what is left, for a few seconds, and ends it.
    pub(crate) fn stop(&self) {
        let thread = {
            let mut state = lock(&self.0.state);
            state.is_stopping = true;
            state.thread.take()
        };
        self.0.changed.notify_all();
        // A panic has nobody to be reported to but the log.
        _ = thread.map(JoinHandle::join);
    }
}

/// The thread that watches over the child.
struct Watch<'a> {
    inner: &'a Inner,
    child: Option<Running>,
    /// The time of the next start.
    due: Instant,
    pause: Duration,
    /// The events of a process that were counted, by name.
    counted: (u32, BTreeMap<String, u64>),
    /// The conditions that the process said last.
    conditions: Vec<String>,
    /// The time of the last status.
    status_unix_ns: u64,
    /// The process that follows, once it has said so.
    follows: Option<u32>,
}

struct Running {
    child: Child,
    /// The child ends when this end is closed. `None`: it is asked to end.
    stdin: Option<ChildStdin>,
    started: Instant,
}

impl Watch<'_> {
    fn new(inner: &Inner) -> Watch<'_> {
        Watch {
            inner,
            child: None,
            due: Instant::now(),
            pause: PAUSES.0,
            counted: (0, BTreeMap::new()),
            conditions: Vec::new(),
            status_unix_ns: 0,
            follows: None,
        }
    }

    fn run(mut self) {
        loop {
            let (has_changed, is_stopping) = self.wait();
            if is_stopping {
                return self.stop();
            }
            if has_changed {
                // The next one goes on where this one ends.
                self.child.iter_mut().for_each(|running| running.stdin = None);
                self.due = Instant::now();
            }
            self.tend();
            let other = self.read();
            if self.child.is_none() && !other && Instant::now() >= self.due {
                self.start();
            }
        }
    }

    /// Waits for a change, at most until the next look. Returns whether the tables have changed, and whether the process stops.
    fn wait(&self) -> (bool, bool) {
        let state = lock(&self.inner.state);
        let is_idle = |state: &mut State| !state.has_changed && !state.is_stopping;
        let waited = self.inner.changed.wait_timeout_while(state, LOOK_EVERY, is_idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (std::mem::take(&mut state.has_changed), state.is_stopping)
    }

    fn start(&mut self) {
        let spawned = self.inner.binary.clone().and_then(|binary| {
            let mut command = Command::new(&binary);
            command.arg("follow").args(&self.inner.arguments).arg("--child");
            command.stdin(Stdio::piped()).stdout(Stdio::null());
            OF_ONE_PROCESS.iter().for_each(|name| _ = command.env_remove(name));
            // It says nothing to the supervisor of this process.
            command.env_remove("NOTIFY_SOCKET");
            command.spawn().map_err(|error| format!("{}: {error}", binary.display()))
        });
        match spawned {
            Ok(mut child) => {
                let stdin = child.stdin.take();
                self.child = Some(Running { child, stdin, started: Instant::now() });
            }
            Err(why) => self.ended(format!("cannot be started: {why}")),
        }
    }

    /// Notices the end of the child.
    fn tend(&mut self) {
        let Some(running) = &mut self.child else { return };
        let Ok(Some(status)) = running.child.try_wait() else { return };
        let is_asked = running.stdin.is_none();
        if running.started.elapsed() > 2 * PAUSES.1 {
            self.pause = PAUSES.0;
        }
        self.child = None;
        if is_asked {
            self.due = Instant::now();
        } else if status.code() == Some(EXIT_LOCKED) {
            self.due = Instant::now() + PAUSES.0;
        } else {
            self.ended(format!("has ended ({status})"));
        }
    }

    fn ended(&mut self, why: String) {
        let restart_s = self.pause.as_secs();
        let text = format!("the process that follows the journal {why}");
        self.inner.health.degraded(HEALTH, text.clone(), SystemTime::now());
        self.clear_conditions();
        for copy in &mut lock(&self.inner.state).copies {
            copy.state = "failing".to_owned();
            copy.error = Some(text.clone());
        }
        self.inner.events.publish(FollowerEnded { why, restart_s });
        self.due = Instant::now() + self.pause;
        self.pause = (2 * self.pause).min(PAUSES.1);
        self.follows = None;
    }

    /// Takes over what the process that follows says. Returns whether it is another process than the child.
    fn read(&mut self) -> bool {
        let Some(status) = FollowerStatus::read(&Disk, &self.inner.journal) else { return false };
        let child = self.child.as_ref().map(|running| running.child.id());
        let age = Duration::from_nanos(Disk.now_unix_ns().abs_diff(status.unix_ns));
        let is_child = child == Some(status.pid);
        // The child of an earlier process ends soon, and this one's goes on after it.
        if age > FRESH_MAX || !is_child && (status.is_child || !is_alive(status.pid)) {
            return false;
        }
        let Inner { events, health, metrics, .. } = self.inner;
        if self.follows.replace(status.pid) != Some(status.pid) {
            health.clear(HEALTH);
            events.publish(FollowerStarted { pid: status.pid });
        }
        self.clear_conditions();
        for (key, text) in &status.conditions {
            health.degraded(key, text.clone(), SystemTime::now());
            self.conditions.push(key.clone());
        }
        if self.counted.0 != status.pid {
            self.counted = (status.pid, BTreeMap::new());
        }
        for (name, count) in status.events {
            let before = self.counted.1.insert(name.clone(), count).unwrap_or(0);
            events.count(&name, count.saturating_sub(before));
        }
        metrics.set_of_follower(status.metrics);
        lock(&self.inner.state).copies = status.copies;
        // Whoever reads a request renews its lease, with each new status.
        if std::mem::replace(&mut self.status_unix_ns, status.unix_ns) != status.unix_ns {
            // A request whose client has not left has no running lease.
            status.leased.iter().for_each(|rid| _ = self.inner.leases.renew(rid));
        }
        !is_child
    }

    fn clear_conditions(&mut self) {
        for key in std::mem::take(&mut self.conditions) {
            self.inner.health.clear(&key);
        }
    }

    fn stop(&mut self) {
        let Some(Running { child, stdin, .. }) = &mut self.child else { return };
        *stdin = None;
        let until = Instant::now() + STOP_MAX;
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        // It had its time. Its place in the journal is durable.
        let _ = child.kill();
        let _ = child.wait();
        self.read();
    }
}
