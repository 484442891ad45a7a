//! The address for clients on a machine without a journal: it serves a copy of what NATS has of all instances.
//!
//! The copy lies in a temporary directory and has what was published in the last `clients.keep`. A start makes it anew, so that there is
//! nothing to repair. This thread copies; the address is served by its own.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterbay_config::{Clients as ClientsTable, Replicate};
use afterbay_events::Events;
use afterbay_events::event::{CopyFailed, CopyRecovered};
use afterbay_journal::followers_dir;
use afterbay_journal::storage::{Disk, Storage};
use tempfile::TempDir;

use crate::clients::{self, Clients};
use crate::following::Following;
use crate::process::{Begun, FollowError, LogOptions, begin, spawn};
use crate::replicate::{Filter, Mirror, MirrorError, mirror};
use crate::stop::Stop;

/// The tables of the configuration that count. The journal's directory need not be there.
const TABLES: [&str; 3] = ["log", "replicate", "clients"];
/// Time in which messages are taken before this thread looks up.
const TAKE_EVERY: Duration = Duration::from_millis(250);
/// Time until the end of the first copy is noticed.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Time between two looks for segments that nobody may read any more.
const FORGET_EVERY: Duration = Duration::from_secs(10);
/// Shortest and longest pause before NATS is asked again. Each pause is twice the one before.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

/// Serves the clients of a fleet until the process is to end, at SIGTERM or SIGINT. The configuration is that of an instance: its
/// `[replicate]` names the copy, its `[clients]` the address.
///
/// # Errors
/// The configuration is wrong or has no such table, or the system refuses something.
pub fn serve(config: &Path, log: &LogOptions) -> Result<(), FollowError> {
    let Begun { mut config, telemetry, stop } = begin(config, &TABLES, log, false)?;
    let replicate = config.replicate.take().ok_or(FollowError::NoTable("replicate"))?;
    let clients = config.clients.take().ok_or(FollowError::NoTable("clients"))?;
    let mut copy = Copy::new(&replicate, &clients, &stop, telemetry.events.clone());
    let Some((dir, mut mirror)) = copy.begin()? else { return Ok(()) };
    config.journal.dir = dir.path().to_owned();
    let storage: Arc<dyn Storage> = Arc::new(Disk);
    let places = followers_dir(dir.path());
    storage.make_dir(&places).map_err(FollowError::system(places.display()))?;
    let consumer = Clients::new(&clients, &config, storage.clone(), &telemetry);
    let following = Following::new(consumer, storage, dir.path(), &telemetry);
    let stopped = stop.clone();
    let served = spawn(clients::NAME, move || following.run(&stopped))?;
    let followed = copy.follow(&mut mirror);
    stop.request();
    // A panic has nobody to be reported to but the log.
    let _ended = served.join();
    followed
}

/// The making of the copy, and its last failure.
struct Copy<'a> {
    from: &'a Replicate,
    keep: Duration,
    stop: &'a Stop,
    events: Events,
    /// The begin of the failure that lasts, and the pause after the next attempt.
    failing: Option<(Instant, Duration)>,
}

impl<'a> Copy<'a> {
    fn new(from: &'a Replicate, clients: &ClientsTable, stop: &'a Stop, events: Events) -> Copy<'a> {
        Copy { from, keep: clients.keep, stop, events, failing: None }
    }

    /// Copies what NATS has now, until that succeeds. `None`: the process is to end.
    fn begin(&mut self) -> Result<Option<(TempDir, Mirror)>, FollowError> {
        while !self.stop.is_requested() {
            let dir = tempfile::tempdir().map_err(FollowError::system("temporary directory"))?;
            let (from, path) = (self.from.clone(), dir.path().to_owned());
            let filter = Filter { since_unix_ns: Some(self.needed_unix_ns()), ..Filter::default() };
            let (answer, answered) = std::sync::mpsc::channel();
            // It may take minutes, and this thread is to notice a stop.
            spawn("copy", move || _ = answer.send(mirror(&from, filter, &path)))?;
            let made = loop {
                match answered.recv_timeout(LOOK_EVERY) {
                    Ok(made) => break made,
                    Err(_) if self.stop.is_requested() => return Ok(None),
                    Err(_) => {}
                }
            };
            match made {
                Ok(mirror) => {
                    self.succeeded();
                    return Ok(Some((dir, mirror)));
                }
                Err(error) => self.failed(error)?,
            }
        }
        Ok(None)
    }

    /// Adds what is published, and removes what nobody may read any more, until the process is to end.
    fn follow(&mut self, mirror: &mut Mirror) -> Result<(), FollowError> {
        let mut forgotten = Instant::now();
        while !self.stop.is_requested() {
            match mirror.follow(TAKE_EVERY) {
                Ok(()) => self.succeeded(),
                Err(error) => self.failed(error)?,
            }
            if forgotten.elapsed() >= FORGET_EVERY {
                forgotten = Instant::now();
                mirror.forget_before(self.needed_unix_ns()).map_err(FollowError::Copy)?;
            }
            self.events.tick(Instant::now());
        }
        Ok(())
    }

    /// The time since which clients may read what was published.
    fn needed_unix_ns(&self) -> u64 {
        Disk.now_unix_ns().saturating_sub(self.keep.as_nanos() as u64)
    }

    fn succeeded(&mut self) {
        if let Some((since, _)) = self.failing.take() {
            let (from, failing_s) = (self.from.nats.join(","), since.elapsed().as_secs());
            self.events.publish(CopyRecovered { from, failing_s });
        }
    }

    /// Reports a failure once, and waits. The copy may lack something if the disk has refused it: then the process ends, and the next one
    /// copies anew.
    fn failed(&mut self, error: MirrorError) -> Result<(), FollowError> {
        let why = match error {
            MirrorError::Nats { why, .. } => why,
            MirrorError::Nothing { subject, .. } => format!("it has no message of {subject:?}"),
            error => return Err(FollowError::Copy(error)),
        };
        let (_, pause) = self.failing.get_or_insert_with(|| {
            let from = self.from.nats.join(",");
            self.events.publish(CopyFailed { from, why });
            (Instant::now(), PAUSES.0)
        });
        let now = *pause;
        *pause = (now * 2).min(PAUSES.1);
        self.stop.within(now);
        Ok(())
    }
}
