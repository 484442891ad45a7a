//! The state that all streams of a process share.

use crate::aborts::Aborts;
use crate::admin::{Admin, AdminState, Gate};
use crate::attributes::Attributes;
use crate::descriptors;
use crate::erasures::Erasures;
use crate::follower::{FollowerProcess, followers};
use crate::inheritance::{self, Inheritance};
use crate::leases::Leases;
use crate::loading::Loader;
use crate::migrations::Migrations;
use crate::plugins::Plugins;
use crate::records::Records;
use crate::reload_queue::ReloadQueue;
use crate::requests::Requests;
use crate::signals::Signals;
use crate::sinks::Sinks;
use crate::status::{Status, StatusSource};
use crate::supervision::Supervision;
use crate::take_over::TakeOver;
use crate::upgrade::Upgrades;
use afterbay_config as config;
use afterbay_events::{Events, Health, Metrics};
use afterbay_journal::{EraseRule, JournalDirectory, JournalOptions, SyncPolicy};
use afterbay_journal_view::erase::FrameEraser;
use afterbay_plugin_loader::Tokenizers;
use afterbay_plugin_services::calls::Calls;
use afterbay_plugin_services::store::{StoreDirectory, StoreTelemetry};
use afterbay_runtime::Host;
use afterbay_stream::Budget;
use afterbay_supervision::fdstore::{FdName, FdStore, Inherited};
use std::ffi::OsString;
use std::sync::Arc;

/// The state that all streams of a process share: journal directory, plugin host, counters, admin addresses.
pub(crate) struct Shared {
    pub(crate) config: config::Config,
    pub(crate) directory: Arc<JournalDirectory>,
    pub(crate) host: Host,
    pub(crate) tokenizers: Arc<Tokenizers>,
    pub(crate) events: Events,
    pub(crate) metrics: Metrics,
    pub(crate) health: Health,
    pub(crate) signals: Signals,
    pub(crate) sinks: Sinks,
    pub(crate) budget: Budget,
    /// The services that plugins may ask.
    pub(crate) calls: Calls,
    pub(crate) stores: Arc<StoreDirectory>,
    pub(crate) aborts: Aborts,
    pub(crate) attributes: Attributes,
    /// The requests that engines go on with after their clients have left.
    pub(crate) leases: Leases,
    /// The requests whose engine has died, and which go on in another one.
    pub(crate) migrations: Migrations,
    /// The records of requests for streams behind other streams.
    pub(crate) records: Records,
    pub(crate) plugins: Plugins,
    pub(crate) reloads: ReloadQueue,
    /// Whether a plugin whose component file is missing awaits its first build.
    pub(crate) awaits_builds: bool,
    /// The descriptors that outlive this process.
    pub(crate) fdstore: FdStore,
    /// The descriptors that an earlier process left.
    pub(crate) inheritance: Inheritance,
    /// The messages to the supervisor.
    pub(crate) supervision: Supervision,
    /// New binaries that take this process's place.
    pub(crate) upgrades: Upgrades,
    /// The gate for changes over the admin addresses.
    pub(crate) gate: Gate,
    /// The status for people who watch the process.
    pub(crate) status: Status,
    /// The requests of the journal for people.
    pub(crate) requests: Requests,
    /// The process that follows the journal.
    pub(crate) follower: FollowerProcess,
    /// The tasks that answer on the admin addresses.
    pub(crate) admin: Admin,
}

impl Shared {
    pub(crate) fn loader(&self) -> Loader {
        let (host, tokenizers) = (self.host.clone(), self.tokenizers.clone());
        let (metrics, stores) = (self.metrics.clone(), self.stores.clone());
        let events = self.events.clone();
        Loader { host, tokenizers, metrics, stores, events, awaits_builds: false }
    }

    /// The state that the routes of the admin addresses read.
    pub(crate) fn admin_state(&self) -> AdminState {
        AdminState {
            metrics: self.metrics.clone(),
            health: self.health.clone(),
            aborts: self.aborts.clone(),
            attributes: self.attributes.clone(),
            leases: self.leases.clone(),
            plugins: self.plugins.clone(),
            reloads: self.reloads.clone(),
            upgrades: self.upgrades.clone(),
            status: self.status.clone(),
            requests: self.requests.clone(),
            erasures: Erasures::new(&self.directory, &self.requests, &self.events),
            gate: self.gate.clone(),
        }
    }

    /// Forgets every stream, after all have ended.
    pub(crate) fn clear(&self) {
        self.stores.tend();
        self.aborts.clear();
        self.attributes.clear();
        self.leases.clear();
        self.migrations.clear();
        self.plugins.clear();
        self.tokenizers.forget();
        self.sinks.clear();
    }

    /// Forgets a stream that has ended and is no longer in the configuration.
    pub(crate) fn forget_stream(&self, stream: &str) {
        self.aborts.remove(stream);
        self.attributes.remove(stream);
        self.leases.remove(stream);
        self.migrations.remove(stream);
        self.plugins.remove(stream);
        self.sinks.forget_stream(stream);
        self.metrics.forget_stream(stream);
        self.health.clear_stream(stream);
        drop(self.inheritance.take(stream));
    }

    /// Opens the journal, and locks it or takes over its lock.
    pub(crate) fn open(
        config: config::Config,
        host: Host,
        tokenizers: Tokenizers,
        reloads: ReloadQueue,
        upgrades: Upgrades,
        follow: Vec<OsString>,
        mut taken: Option<&mut TakeOver>,
    ) -> anyhow::Result<Shared> {
        let (events, health) = (Events::new(), Health::default());
        let metrics = Metrics::new(events.clone(), health.clone());
        let lock = taken.as_mut().and_then(|it| it.taken.take(&FdName::journal_lock()));
        let history = taken.as_mut().map(|it| std::mem::take(&mut it.state.history)).unwrap_or_default();
        let (dir, options) = (&config.journal.dir, journal_options(&config));
        let directory = Arc::new(match lock {
            Some(lock) => JournalDirectory::take_over(dir, options, lock)?,
            None => JournalDirectory::open(dir, options)?,
        });
        let tokenizers = Arc::new(tokenizers);
        let sinks = Sinks::new(&tokenizers, &events, &health);
        let signals = Signals::new(&config, &metrics);
        let budget = Budget::new(config.memory.waiting);
        let calls = Calls::new(events.clone(), metrics.clone(), health.clone());
        let telemetry =
            StoreTelemetry { events: events.clone(), metrics: metrics.clone(), health: health.clone() };
        let stores = Arc::new(StoreDirectory::open(&config.journal.dir, telemetry)?);
        let aborts = Aborts::new(&events, &metrics);
        let fdstore = inheritance::open_store(&events);
        let inherited = match taken {
            Some(TakeOver { taken, .. }) => {
                // The process before owns the supervisor's store until it releases its streams.
                fdstore.release();
                Inherited::from_passed(&fdstore, std::mem::take(&mut taken.passed))
            }
            None => inheritance::of_environment(&fdstore, &events),
        };
        let inheritance = Inheritance::default();
        inheritance.distribute(&config, inherited);
        let supervision = Supervision::new(fdstore.supervisor(), &events, &metrics);
        let (attributes, plugins) = (Attributes::default(), Plugins::default());
        let leases = Leases::new(&attributes, &events, &metrics);
        let follower = FollowerProcess::new(&directory, follow, (&events, &health, &metrics), &leases);
        let source = StatusSource {
            metrics: metrics.clone(),
            health: health.clone(),
            signals: signals.clone(),
            sinks: sinks.clone(),
            plugins: plugins.clone(),
            directory: directory.clone(),
            follower: follower.clone(),
            retain_bytes: config.journal.retain.bytes,
        };
        let requests = Requests::new(&config.journal.dir, &tokenizers);
        let migrations = Migrations::new(&directory, &requests, &events);
        if !config.journal.erase.is_empty() {
            let layouts = requests.clone();
            let rules = config
                .journal
                .erase
                .iter()
                .map(|rule| EraseRule { attribute: rule.attribute.clone(), after: rule.after });
            let eraser = FrameEraser::new(move |stream: &str| layouts.layouts(stream));
            directory.erase_expired(rules.collect(), Box::new(eraser));
        }
        attributes.follow(&config);
        let records = Records::default();
        records.follow(&config);
        let status = Status::new(source, descriptors::for_admin(descriptors::limit()), &history);
        let shared = Shared {
            budget,
            config,
            directory,
            host,
            tokenizers,
            events,
            metrics,
            health,
            signals,
            sinks,
            calls,
            stores,
            aborts,
            attributes,
            leases,
            migrations,
            records,
            plugins,
            reloads,
            awaits_builds: false,
            fdstore,
            inheritance,
            supervision,
            upgrades,
            gate: Gate::default(),
            status,
            requests,
            follower,
            admin: Admin::default(),
        };
        shared.follow(&shared.config)?;
        Ok(shared)
    }

    /// Lets what stands beside the streams follow a configuration. What is as before goes on.
    ///
    /// # Errors
    /// The first that cannot. Those before it follow: let all follow the configuration before.
    pub(crate) fn follow(&self, config: &config::Config) -> anyhow::Result<()> {
        self.calls.set_endpoints(&config.calls)?;
        self.leases.set_bounds(config.leases);
        self.migrations.follow(config);
        Ok(self.follower.follow(config)?)
    }
}

fn journal_options(config: &config::Config) -> JournalOptions {
    let journal = &config.journal;
    let max_frame_bytes = config.streams.iter().map(|stream| stream.max_message_bytes).max().unwrap_or(0);
    JournalOptions {
        sync: match journal.sync {
            config::Sync::None => SyncPolicy::None,
            config::Sync::Interval => SyncPolicy::Interval(journal.sync_interval),
            config::Sync::Always => SyncPolicy::Always,
        },
        segment_bytes: journal.segment_bytes,
        retain_bytes: journal.retain.bytes,
        retain_age: journal.retain.age,
        abandon_after: journal.abandon_after,
        max_frame_bytes: usize::try_from(max_frame_bytes).unwrap_or(usize::MAX),
        followers: followers(config),
        removes_unconfirmed: journal.on_error == config::OnError::Forward,
    }
}
