//! The records of usage, as `[usage]` says: they start and stop with the process, and at a reload that changes them.

use crate::journal_follower::JournalFollower;
use crate::layouts::layouts;
use crate::mutex::lock;
use crate::requests::Requests;
use afterbay_config as config;
use afterbay_events::{Events, Health, Metrics};
use afterbay_journal::storage::Disk;
use afterbay_journal::{FollowerThread, JournalDirectory, OpenError};
use afterbay_usage::{Follower, UsageSetup, UsageSource};
use afterbay_wire::Layouts;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The hold of the records of usage on the journal. A live segment is read, too.
pub(crate) const FOLLOWER: afterbay_journal::Follower =
    afterbay_journal::Follower { name: "usage", needs_ended_segments: false };

/// The records of usage of a process.
pub(crate) struct UsageRecords {
    directory: Arc<JournalDirectory>,
    source: Arc<Source>,
    metrics: Metrics,
    events: Events,
    health: Health,
    follower: JournalFollower<config::Usage>,
}

struct Source {
    directory: Arc<JournalDirectory>,
    requests: Requests,
    /// The layouts that the configuration gives, by stream.
    configured: Mutex<HashMap<String, Layouts>>,
}

impl UsageRecords {
    pub(crate) fn new(
        directory: &Arc<JournalDirectory>,
        requests: &Requests,
        metrics: &Metrics,
        events: &Events,
        health: &Health,
    ) -> UsageRecords {
        UsageRecords {
            directory: directory.clone(),
            source: Arc::new(Source {
                directory: directory.clone(),
                requests: requests.clone(),
                configured: Mutex::default(),
            }),
            metrics: metrics.clone(),
            events: events.clone(),
            health: health.clone(),
            follower: JournalFollower::new(afterbay_usage::STOP_MAX),
        }
    }

    /// Follows the configuration.
    ///
    /// # Errors
    /// The thread cannot be started. The records before continue.
    pub(crate) fn follow(&self, config: &config::Config) -> anyhow::Result<()> {
        let layouts = config.streams.iter().filter_map(|stream| {
            // A layout that cannot be loaded is reported when its stream starts.
            Some((stream.name.to_string(), layouts(stream, None).ok()?))
        });
        *lock(&self.source.configured) = layouts.collect();
        self.follower.follow(Some(&config.usage), |usage| self.start(usage))
    }

    fn start(&self, usage: &config::Usage) -> anyhow::Result<FollowerThread> {
        let follower = Follower::new(
            Arc::new(Disk),
            self.directory.path(),
            &usage.dir,
            self.source.clone(),
            usage.kept_days,
            // Records that nobody asked for hold up no removal.
            usage.kept_days.is_none().then(|| self.directory.hold_back(FOLLOWER)),
        );
        let setup = UsageSetup {
            dir: usage.dir.display().to_string(),
            events: self.events.clone(),
            health: self.health.clone(),
            counters: self.metrics.usage(),
        };
        Ok(afterbay_usage::start(follower, setup)?)
    }

    /// Records the requests that have ended, for at most [`afterbay_usage::STOP_MAX`], and stops.
    pub(crate) fn stop(&self) {
        self.follower.stop();
    }
}

impl UsageSource for Source {
    fn instance(&self) -> Result<String, OpenError> {
        self.directory.instance()
    }

    fn layouts(&self, stream: &str) -> Layouts {
        let configured = || lock(&self.configured).get(stream).cloned().unwrap_or_else(Layouts::any);
        self.requests.known_layouts(stream).unwrap_or_else(configured)
    }
}
