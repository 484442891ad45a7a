//! A journal that a test writes, its copy in NATS, and the copies of the copy.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use afterbay_config as config;
use afterbay_events::{Events, FollowerCounters, Health, Metrics, Recorder, ReplicateCounters};
use afterbay_follow::replicate::{Filter, Mirror, Replicate, mirror};
use afterbay_follow::{Following, Stop, Telemetry};
use afterbay_journal::reader::JournalReader;
use afterbay_journal::{
    JournalDirectory, JournalOptions, JournalWriter, OpenError, Outcome, Passage, RowFinish, SyncPolicy,
};
use afterbay_tests::{until, wait_for};

/// The time of the first frame, Unix nanoseconds.
const START: u64 = 1_790_000_000_000_000_000;

/// A journal and the thread that publishes it.
pub struct Scene {
    pub dir: tempfile::TempDir,
    pub directory: Arc<JournalDirectory>,
    pub counters: Arc<ReplicateCounters>,
    pub events: Recorder,
    pub of_follower: Arc<FollowerCounters>,
    telemetry: Telemetry,
    replicate: Option<(Stop, std::thread::JoinHandle<()>)>,
    servers: Vec<String>,
}

impl Scene {
    pub fn new(servers: &[String]) -> Scene {
        let mut scene = Scene::without_copy(tempfile::tempdir().unwrap(), servers);
        scene.start();
        scene
    }

    pub fn without_copy(dir: tempfile::TempDir, servers: &[String]) -> Scene {
        let options = JournalOptions {
            sync: SyncPolicy::None,
            segment_bytes: 64 << 10,
            // The tests' times are in the past.
            abandon_after: Duration::from_secs(1 << 31),
            ..JournalOptions::default()
        };
        // The publisher of the process before may still have the directory.
        let open = || match JournalDirectory::open(dir.path(), options.clone()) {
            Err(OpenError::Locked { .. }) => None,
            opened => Some(Arc::new(opened.unwrap())),
        };
        let directory = wait_for("the journal is unlocked", open);
        let (telemetry, events) = telemetry();
        let counters = telemetry.metrics.replicate();
        let of_follower = telemetry.metrics.follower("replicate");
        let servers = servers.to_owned();
        Scene { dir, directory, counters, of_follower, events, telemetry, replicate: None, servers }
    }

    pub fn start(&mut self) {
        (self.telemetry, self.events) = telemetry();
        self.counters = self.telemetry.metrics.replicate();
        self.of_follower = self.telemetry.metrics.follower("replicate");
        self.publish();
    }

    fn publish(&mut self) {
        let config = config::Replicate { nats: self.servers.clone(), credentials: None };
        let replicate = Replicate::new(&config, &self.telemetry).unwrap();
        let storage = Arc::new(afterbay_journal::storage::Disk);
        let following = Following::new(replicate, storage, self.dir.path(), &self.telemetry);
        let stop = Stop::default();
        let stopped = stop.clone();
        self.replicate = Some((stop, std::thread::spawn(move || following.run(&stopped))));
    }

    pub fn stream(&self, name: &str, after: &[&str]) -> Stream {
        let (writer, _) = self.directory.stream(name).unwrap();
        let after: Vec<String> = after.iter().map(|name| (*name).to_owned()).collect();
        self.directory.set_after(name, &after).unwrap();
        Stream { writer, now: START, rows: 0 }
    }

    /// Waits until NATS has acknowledged this many bytes.
    #[track_caller]
    pub fn until_acknowledged(&self, bytes: u64) {
        until("NATS acknowledges", || self.counters.bytes.get() >= bytes);
    }

    /// Publishes everything, and stops.
    #[track_caller]
    pub fn stop(&mut self) {
        wait_for("everything is published", || {
            until("NATS is connected", || self.counters.connected.get() == 1);
            let failures = self.of_follower.failures.get();
            let (stop, thread) = self.replicate.take().unwrap();
            stop.request();
            thread.join().unwrap();
            // A publisher that is stopped gives up at the first failure, for example when NATS answers late.
            let has_failed = self.of_follower.failures.get() > failures;
            has_failed.then(|| self.publish()).is_none().then_some(())
        });
    }

    /// Drops the publisher where it is.
    pub fn kill(&mut self) {
        self.replicate.take().unwrap().0.request();
    }

    /// The instance of the journal.
    pub fn instance(&self) -> String {
        self.directory.instance().unwrap()
    }
}

fn telemetry() -> (Telemetry, Recorder) {
    let (events, recorder) = Events::recorded();
    let health = Health::default();
    let metrics = Metrics::new(events.clone(), health.clone());
    (Telemetry { events, health, metrics }, recorder)
}

/// A stream of the journal.
pub struct Stream {
    writer: JournalWriter,
    now: u64,
    rows: u64,
}

impl Stream {
    /// Writes a request of these many rows, each with a token and 400 bytes.
    pub fn request(&mut self, rid: &str, rows: u64) {
        let request = self.writer.open(rid);
        for row in 0..rows {
            self.now += 1_000_000;
            self.rows += 1;
            let bytes = format!("{:0400}", self.rows);
            let frame = self.writer.append(bytes.as_bytes(), self.now).unwrap().frame;
            let is_last = row + 1 == rows;
            let finish = RowFinish { row: 0, reason: "stop".into(), completion_tokens: Some(rows) };
            self.writer.outcome(&Outcome {
                requests: (&[request]).into(),
                tokens: (&[1]).into(),
                finished: if is_last { vec![finish] } else { Vec::new() }.into(),
                ..Outcome::new(frame, self.now, Passage::Unchanged)
            });
        }
        self.writer.close(request);
        self.writer.flush().unwrap();
    }

    /// Writes requests of 10 rows.
    pub fn requests(&mut self, rids: std::ops::Range<u64>) {
        rids.for_each(|rid| self.request(&format!("r-{rid}"), 10));
    }

    /// Continues from this time on.
    pub fn at(mut self, now: u64) -> Stream {
        self.now = START + now;
        self
    }

    /// Ends the stream as a clean stop does.
    pub fn finish(self) {
        self.writer.finish().unwrap();
    }
}

/// A copy of what the servers have.
#[track_caller]
pub fn copy(servers: &[String], filter: Filter) -> (tempfile::TempDir, Mirror) {
    let dir = tempfile::tempdir().unwrap();
    // A cluster that has just lost a node may need some seconds for another leader.
    let from = config::Replicate { nats: servers.to_owned(), credentials: None };
    let made = wait_for("the servers answer", || mirror(&from, filter.clone(), dir.path()).ok());
    (dir, made)
}

/// The segments below a journal's directory: their names, behind the prefix of their stream's directory, and their bytes.
pub fn segments(dir: &Path, prefix: &str) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for stream in std::fs::read_dir(dir).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_dir()) {
        let name = stream.file_name().into_string().unwrap();
        for file in std::fs::read_dir(stream.path()).unwrap().map(|entry| entry.unwrap().path()) {
            if file.extension().is_some_and(|extension| extension == "seg") {
                let segment = file.file_name().unwrap().to_string_lossy().into_owned();
                found.insert(format!("{prefix}{name}/{segment}"), std::fs::read(&file).unwrap());
            }
        }
    }
    found
}

/// Asserts that the copy has the journal's segments, byte for byte, and no others of its instance.
#[track_caller]
pub fn assert_copied(scene: &Scene, copy: &Path) {
    let prefix = format!("{}.", scene.instance());
    let (ours, theirs) = (segments(scene.dir.path(), &prefix), segments(copy, ""));
    let theirs: BTreeMap<_, _> = theirs.into_iter().filter(|(name, _)| name.starts_with(&prefix)).collect();
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    for (name, bytes) in &ours {
        assert!(theirs[name] == *bytes, "{name}: {} bytes, {} in the copy", bytes.len(), theirs[name].len());
    }
}

/// The problems that `verify` finds in all streams of a journal.
pub fn problems(dir: &Path) -> Vec<String> {
    let journal = JournalReader::open(dir).unwrap();
    let streams = journal.streams().unwrap();
    assert!(!streams.is_empty());
    let reports = streams.iter().map(|name| journal.stream(name).unwrap().verify().unwrap());
    reports.flat_map(|report| report.problems).map(|problem| problem.to_string()).collect()
}
