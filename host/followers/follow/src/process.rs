//! The process: the lock, a thread for each consumer, the status file, and the end.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use afterbay_config::{Config, Env, FollowerConfig, LogFormat, Names, Problems};
use afterbay_events::event::FollowerFailed;
use afterbay_events::log::{self, LogError};
use afterbay_events::{Events, Health, Metrics};
use afterbay_journal::storage::{Disk, LockError, Storage};
use afterbay_journal::{Follower, followers_dir};
use afterbay_journal_view::follower::{CopyStatus, FollowerStatus};
use nix::sys::signal::{SigSet, Signal};

use crate::archive::{self, Archive};
use crate::clients::{self, Clients, Leased};
use crate::consumer::Consumer;
use crate::following::{Following, STOP_MAX, Telemetry};
use crate::replicate::{self, MirrorError, Replicate};
use crate::stop::Stop;
use crate::tap::Tap;
use crate::traces::{self, Traces};
use crate::usage::{self, Usage};

/// The tables of the configuration that a follower of a journal reads.
pub(crate) const TABLES: [&str; 8] =
    ["journal", "log", "traces", "replicate", "archive", "usage", "clients", "tap"];
/// Time between two status files.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for the lock, and the time between two tries.
const LOCK_MAX: Duration = Duration::from_secs(10);
const LOCK_EVERY: Duration = Duration::from_millis(20);

/// The reason why the process does not follow.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The configuration is wrong.
    #[error("{0}")]
    Config(Problems),
    /// The configuration lacks a table.
    #[error("the configuration has no [{0}]")]
    NoTable(&'static str),
    /// The log cannot be set up.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Another process follows the journal.
    #[error("{journal:?} is followed by process {pid}")]
    Locked {
        /// The journal's directory.
        journal: PathBuf,
        /// The process, as its lock file says.
        pid: String,
    },
    /// The copy of a fleet's journals cannot go on.
    #[error(transparent)]
    Copy(MirrorError),
    /// The system refuses a file or a thread.
    #[error("{what}: {error}")]
    System {
        /// The file, or the thread.
        what: String,
        /// The reason.
        error: std::io::Error,
    },
}

impl FollowError {
    pub(crate) fn system(what: impl ToString) -> impl FnOnce(std::io::Error) -> FollowError {
        let what = what.to_string();
        move |error| FollowError::System { what, error }
    }
}

/// The log of the process, in place of what the configuration says.
#[derive(Clone, Debug, Default)]
pub struct LogOptions {
    /// Levels by target.
    pub filter: Option<String>,
    /// Whether lines are JSON.
    pub is_json: Option<bool>,
}

/// Follows the journal of a configuration file until the process is to end: at SIGTERM or SIGINT, or, as a child of `afterbay run`,
/// when its standard input ends. A signal to the whole group does not end a child: its parent still writes to the journal.
///
/// # Errors
/// The configuration is wrong, another process follows the journal, or the system refuses something.
pub fn run(config: &Path, log: &LogOptions, is_child: bool) -> Result<(), FollowError> {
    let Begun { config, telemetry, stop } = begin(config, &TABLES, log, is_child)?;
    let (storage, journal) = (Arc::new(Disk), &config.journal.dir);
    let dir = followers_dir(journal);
    storage.make_dir(&dir).map_err(FollowError::system(dir.display()))?;
    // The child of a process that was killed does what is left, and ends. The next child goes on after it.
    let mut patience = if is_child { LOCK_MAX } else { Duration::ZERO };
    let _lock = loop {
        match storage.lock(&dir) {
            Ok(lock) => break lock,
            Err(LockError::Held(_)) if !patience.is_zero() => {
                std::thread::sleep(LOCK_EVERY);
                patience = patience.saturating_sub(LOCK_EVERY);
            }
            Err(LockError::Held(pid)) => return Err(FollowError::Locked { journal: journal.clone(), pid }),
            Err(LockError::Io(error)) => return Err(FollowError::system(dir.display())(error)),
        }
    };
    let process = Process { config: &config, is_child, storage, telemetry, stop };
    let (threads, copies, leased) = process.start()?;
    let report = || process.report(&copies, leased.as_ref());
    report();
    while !process.stop.within(STATUS_EVERY) {
        report();
    }
    let until = Instant::now() + STOP_MAX;
    while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    report();
    Ok(())
}

/// The beginning of a process that lasts.
pub(crate) struct Begun {
    pub(crate) config: FollowerConfig,
    pub(crate) telemetry: Telemetry,
    /// Requested by a signal, or by the end of a child's standard input.
    pub(crate) stop: Stop,
}

/// Reads these tables of the configuration, begins the log, and starts the thread that waits for the end.
pub(crate) fn begin(
    config: &Path,
    tables: &[&str],
    log: &LogOptions,
    is_child: bool,
) -> Result<Begun, FollowError> {
    let variable = |name: &str| std::env::var(name).ok();
    // Sinks may be known to the connector only. They are not looked at here.
    let env = Env { var: &variable, names: Names::FromRendezvous, ..Env::EMPTY };
    let config = Config::load_follower(config, &env, tables).map_err(FollowError::Config)?;
    let format = match log.is_json.unwrap_or(config.log.format == LogFormat::Json) {
        true => log::Format::Json,
        false => log::Format::Auto,
    };
    log::init(log.filter.as_deref().unwrap_or(&config.log.filter), format)?;
    // Blocked before the first thread starts, so that every thread leaves them to the one that waits.
    let mut signals = SigSet::empty();
    let ends = [Signal::SIGTERM, Signal::SIGINT].into_iter().chain(is_child.then_some(Signal::SIGHUP));
    ends.for_each(|signal| signals.add(signal));
    signals.thread_block().map_err(|error| FollowError::system("signals")(error.into()))?;
    let stop = Stop::default();
    let requested = stop.clone();
    spawn("stop", move || {
        if is_child {
            // Ends with the parent. An error has the same meaning.
            let _end = std::io::stdin().read_to_end(&mut Vec::new());
        } else {
            let _signal = signals.wait();
        }
        requested.request();
    })?;
    let (events, health) = (Events::new(), Health::default());
    let metrics = Metrics::of_follower(events.clone(), health.clone());
    Ok(Begun { config, telemetry: Telemetry { events, health, metrics }, stop })
}

/// The threads of consumers, the copies that they make, and the requests with a lease that clients read.
type Started = (Vec<JoinHandle<()>>, Vec<Follower>, Option<Leased>);

struct Process<'a> {
    config: &'a FollowerConfig,
    is_child: bool,
    storage: Arc<dyn Storage>,
    telemetry: Telemetry,
    stop: Stop,
}

impl Process<'_> {
    /// Starts a thread for each consumer that the configuration names. Returns what the status tells of them: the copies that they
    /// make, and what clients read.
    fn start(&self) -> Result<Started, FollowError> {
        let FollowerConfig { traces, replicate, archive, usage, clients, tap, .. } = self.config;
        let (storage, telemetry) = (&self.storage, &self.telemetry);
        let mut threads = Vec::new();
        let (mut copies, mut leased) = (Vec::new(), None);
        if let Some(traces) = traces {
            let made = Traces::new(traces, &**storage, telemetry).map_err(|error| error.to_string());
            threads.extend(self.follow(traces::NAME, &traces.endpoint, made)?);
        }
        if let Some(table) = archive {
            copies.push(archive::follower(&table.url));
            let made = Archive::new(&table.url, self.config, telemetry);
            threads.extend(self.follow(archive::NAME, &table.url, made)?);
        }
        if let Some(table) = replicate {
            let follower = replicate::follower(table);
            let made = Replicate::new(table, telemetry);
            threads.extend(self.follow(replicate::NAME, &follower.copy, made)?);
            copies.push(follower);
        }
        if let Some(table) = clients {
            let made = Clients::new(table, self.config, storage.clone(), telemetry);
            let follower = made.follower();
            leased = Some(made.leased());
            threads.extend(self.follow(clients::NAME, &follower.copy, Ok(made))?);
            copies.push(follower);
        }
        if let Some(table) = tap {
            let tap = Tap::new(table.clone(), telemetry);
            let follower = tap.follower();
            threads.extend(self.follow(follower.name, &follower.copy, Ok(tap))?);
            copies.push(follower);
        }
        let follower = usage::follower(&usage.dir);
        let made = Ok(Usage::new(storage.clone(), &usage.dir, usage.kept_days, telemetry));
        threads.extend(self.follow(usage::NAME, &follower.copy, made)?);
        copies.extend(usage.kept_days.is_none().then_some(follower));
        Ok((threads, copies, leased))
    }

    /// Starts the thread of a consumer. One that cannot be made is reported, and the others follow.
    fn follow<C: Consumer + 'static>(
        &self,
        name: &str,
        copy: &str,
        made: Result<C, String>,
    ) -> Result<Option<JoinHandle<()>>, FollowError> {
        match made {
            Ok(consumer) => {
                let journal = &self.config.journal.dir;
                let following = Following::new(consumer, self.storage.clone(), journal, &self.telemetry);
                let stop = self.stop.clone();
                spawn(name, move || following.run(&stop)).map(Some)
            }
            Err(why) => {
                let Telemetry { events, health, metrics } = &self.telemetry;
                metrics.follower(name).failing.set(1);
                health.degraded(name, format!("{copy}: {why}"), SystemTime::now());
                events.publish(FollowerFailed { follower: name.to_owned(), copy: copy.to_owned(), why });
                Ok(None)
            }
        }
    }

    /// Writes the status file. A disk that refuses it gets the next one.
    fn report(&self, copies: &[Follower], leased: Option<&Leased>) {
        let Telemetry { events, health, metrics } = &self.telemetry;
        events.tick(Instant::now());
        let conditions = health.conditions();
        let copy = |follower: &Follower| {
            let error = conditions.iter().find(|(key, _)| key == follower.name);
            let error = error.map(|(_, condition)| condition.text.clone());
            CopyStatus {
                copy: follower.name.to_owned(),
                to: follower.copy.clone(),
                state: if error.is_some() { "failing" } else { "working" }.to_owned(),
                lag_seconds: metrics.follower(follower.name).lag_seconds.get().as_secs_f64(),
                error,
            }
        };
        let status = FollowerStatus {
            pid: std::process::id(),
            is_child: self.is_child,
            unix_ns: self.storage.now_unix_ns(),
            copies: copies.iter().map(copy).collect(),
            leased: leased.map(Leased::rids).unwrap_or_default(),
            conditions: conditions
                .iter()
                .map(|(key, condition)| (key.clone(), condition.text.clone()))
                .collect(),
            metrics: metrics.encode(),
            events: events.counts().map(|(name, count)| (name.to_owned(), count)).collect(),
        };
        let _ = status.write(&*self.storage, &self.config.journal.dir);
    }
}

pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, FollowError> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map_err(FollowError::system(format!("thread {name}")))
}
