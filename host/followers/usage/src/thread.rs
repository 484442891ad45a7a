//! The thread that follows the journal.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use afterbay_events::event::{UsageCut, UsageDamaged, UsageMissed, UsageNotWritten, UsageWritten};
use afterbay_events::{Events, Health, UsageCounters};
use afterbay_journal::FollowerThread;

use crate::error::UsageError;
use crate::files::Found;
use crate::follow::Follower;

/// Time between two looks at the journal.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Time at a stop to record the requests that have ended. The next start records the others.
pub const STOP_MAX: Duration = Duration::from_secs(2);
/// Time for which another process may use the directory before that is a failure: at a hand-over, two processes run.
const IN_USE_MAX: Duration = Duration::from_secs(60);
/// The key of the condition.
const HEALTH: &str = "usage";
/// Most characters of an error in an event.
const WHY_CHARS_MAX: usize = 300;

/// The receivers of what the thread reports.
pub struct UsageSetup {
    /// The directory, for events.
    pub dir: String,
    /// The receiver of events.
    pub events: Events,
    /// The receiver of the condition while records cannot be written.
    pub health: Health,
    /// The counters.
    pub counters: Arc<UsageCounters>,
}

/// Starts to follow. At a stop the thread writes what has ended, for [`STOP_MAX`]; the next start writes what is missing.
///
/// # Errors
/// The thread cannot be started.
pub fn start(mut follower: Follower, setup: UsageSetup) -> std::io::Result<FollowerThread> {
    let mut reporter = Reporter::new(setup);
    FollowerThread::spawn("usage", move |stopped| {
        stopped.look_every(LOOK_EVERY, |is_last| {
            let begun = Instant::now();
            let goes_on = || if is_last { begun.elapsed() < STOP_MAX } else { !stopped.now() };
            while reporter.look(&mut follower) && goes_on() {}
        });
        reporter.setup.health.clear(HEALTH);
    })
}

/// Reports what the follower does.
struct Reporter {
    setup: UsageSetup,
    begun: Instant,
    /// The last time at which everything was written.
    whole_at: Instant,
    /// Records before the failure; `None` without one.
    failing_since_records: Option<u64>,
}

impl Reporter {
    fn new(setup: UsageSetup) -> Reporter {
        let now = Instant::now();
        Reporter { setup, begun: now, whole_at: now, failing_since_records: None }
    }

    /// True if the journal has more.
    fn look(&mut self, follower: &mut Follower) -> bool {
        let looked = follower.advance();
        let UsageSetup { events, counters, .. } = &self.setup;
        for found in follower.take_found() {
            match found {
                Found::Cut { file, bytes } => {
                    events.publish(UsageCut { file: file.to_string(), cut_bytes: bytes });
                }
                Found::Damaged { file, lines } => {
                    events.publish(UsageDamaged { file: file.to_string(), lines });
                }
            }
        }
        for (stream, removed) in follower.take_removed() {
            counters.segments_missed.add(removed.segments);
            events.publish(UsageMissed {
                stream: stream.as_str().into(),
                first: removed.first.to_string(),
                last: removed.last.to_string(),
                segments: removed.segments,
            });
        }
        let written = follower.take_written();
        counters.records.add(written.records);
        counters.bytes.add(written.bytes);
        match &looked {
            Ok(has_more) => {
                if !has_more {
                    self.whole_at = Instant::now();
                }
                self.works();
            }
            Err(UsageError::InUse { .. }) if self.begun.elapsed() < IN_USE_MAX => {}
            Err(error) => self.failed(error),
        }
        self.setup.counters.lag_seconds.set(self.whole_at.elapsed());
        looked.unwrap_or(false)
    }

    fn works(&mut self) {
        let UsageSetup { dir, events, health, counters } = &self.setup;
        if let Some(before) = self.failing_since_records.take() {
            counters.failing.set(0);
            health.clear(HEALTH);
            events.publish(UsageWritten { dir: dir.clone(), records: counters.records.get() - before });
        }
    }

    fn failed(&mut self, error: &UsageError) {
        let UsageSetup { dir, events, health, counters } = &self.setup;
        counters.failures.add(1);
        let why: String = error.to_string().chars().take(WHY_CHARS_MAX).collect();
        health.degraded(HEALTH, why.clone(), SystemTime::now());
        if self.failing_since_records.is_none() {
            self.failing_since_records = Some(counters.records.get());
            counters.failing.set(1);
            events.publish(UsageNotWritten { dir: dir.clone(), why });
        }
    }
}
