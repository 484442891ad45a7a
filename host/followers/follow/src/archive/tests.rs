//! Requests of small journals, archived in a store that fails. The rows are read as a query reads them: from every object of the
//! table, without a look at the manifests.

mod faulty;

use std::collections::BTreeMap;
use std::path::Path as LocalPath;
use std::sync::Arc;
use std::time::Duration;

use crate::process::TABLES;
use afterbay_config::{Config, Env, Names};
use afterbay_events::event::{FollowerFailed, FollowerMissed, FollowerRecovered};
use afterbay_events::{ArchiveCounters, Events, FollowerCounters, Health, Metrics, Recorder};
use afterbay_journal::{
    Background, JournalDirectory, JournalOptions, JournalRequest, JournalWriter, Outcome, Passage, RowFinish,
    SegmentId, SyncPolicy,
};
use arrow_array::cast::AsArray as _;
use object_store::path::Path;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::{Archive, follower};
use crate::archive::manifest::{Gap, Manifest};
use crate::archive::objects::{Objects, PART_BYTES};
use crate::consumer::Look;
use crate::following::{Following, Telemetry};
use faulty::{Fate, Faulty};

const HOUR: u64 = 3_600_000_000_000;
/// Begin of an hour, unix nanoseconds.
const START: u64 = 1_700_000_000_000_000_000 / HOUR * HOUR;
const SECOND: u64 = 1_000_000_000;
const URL: &str = "s3://tokens/prefix";

/// A journal, and the archive of its requests.
struct Scene {
    dir: tempfile::TempDir,
    directory: Arc<JournalDirectory>,
    writer: Option<JournalWriter>,
    store: Faulty,
    retain_bytes: Option<u64>,
    counters: Arc<ArchiveCounters>,
    of_follower: Arc<FollowerCounters>,
    recorder: Recorder,
    telemetry: Telemetry,
    now: u64,
    /// Requests that have ended.
    ended: Vec<String>,
}

impl Scene {
    fn new() -> Scene {
        Scene::with(JournalOptions::default())
    }

    fn with(options: JournalOptions) -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let retain_bytes = options.retain_bytes;
        let directory = open(dir.path(), options);
        let (writer, _) = directory.stream("s").unwrap();
        Scene { retain_bytes, ..Scene::of(dir, directory, Some(writer), Faulty::new()) }
    }

    fn of(
        dir: tempfile::TempDir,
        directory: Arc<JournalDirectory>,
        writer: Option<JournalWriter>,
        store: Faulty,
    ) -> Scene {
        let (events, recorder) = Events::recorded();
        let health = Health::default();
        let metrics = Metrics::new(events.clone(), health.clone());
        let (counters, of_follower) = (metrics.archive(), metrics.follower("archive"));
        let telemetry = Telemetry { events, health, metrics };
        let (now, ended, retain_bytes) = (START, Vec::new(), None);
        Scene {
            dir,
            directory,
            writer,
            store,
            retain_bytes,
            counters,
            of_follower,
            recorder,
            telemetry,
            now,
            ended,
        }
    }

    fn writer(&mut self) -> &mut JournalWriter {
        self.writer.as_mut().unwrap()
    }

    /// The archive as a new process starts it.
    fn archiver(&self) -> Archiver {
        self.archiver_to(URL)
    }

    fn archiver_to(&self, url: &str) -> Archiver {
        let objects = Objects::new(Arc::new(self.store.clone()), Path::from("prefix"));
        let file = self.dir.path().with_extension("toml");
        let dir = self.dir.path().display();
        let text =
            format!("[journal]\ndir = \"{dir}\"\n[[stream]]\nname = \"s\"\nlisten = \"ipc:///tmp/l\"\n");
        std::fs::write(&file, text).unwrap();
        let mut config =
            Config::load_follower(&file, &Env { names: Names::FromRendezvous, ..Env::EMPTY }, &TABLES)
                .unwrap();
        std::fs::remove_file(file).unwrap();
        config.journal.retain.bytes = self.retain_bytes;
        let archive = Archive::with(url, objects, &config, &self.telemetry).unwrap();
        let storage = Arc::new(afterbay_journal::storage::Disk);
        Archiver(Following::new(archive, storage, self.dir.path(), &self.telemetry))
    }

    fn begin(&mut self, rid: &str) -> JournalRequest {
        self.writer().open(rid)
    }

    /// A row of one token for a request, a second after the one before.
    fn row(&mut self, request: JournalRequest, rid: &str, is_last: bool) {
        self.now += SECOND;
        let now = self.now;
        let frame = self.writer().append(&[7; 400], now).unwrap().frame;
        let finish = RowFinish { row: 0, reason: "stop".into(), completion_tokens: Some(1) };
        self.writer().outcome(&Outcome {
            requests: (&[request]).into(),
            tokens: (&[1]).into(),
            finished: if is_last { vec![finish] } else { Vec::new() }.into(),
            ..Outcome::new(frame, now, Passage::Unchanged)
        });
        if is_last {
            self.writer().close(request);
            self.ended.push(rid.to_owned());
        }
    }

    /// Requests of two rows each, of which a few are live at any time.
    fn requests(&mut self, count: usize) {
        let mut live = Vec::new();
        let first = self.ended.len();
        for number in first..first + count {
            let rid = format!("r{number}");
            let request = self.begin(&rid);
            self.row(request, &rid, false);
            live.push((request, rid));
            if live.len() > 3 {
                let (request, rid) = live.remove(0);
                self.row(request, &rid, true);
            }
        }
        for (request, rid) in live {
            self.row(request, &rid, true);
        }
        self.writer().flush().unwrap();
        self.writer().tend();
    }

    /// Ends the journal, as a stop does.
    fn finish(&mut self) {
        self.writer.take().unwrap().finish().unwrap();
    }

    fn segments(&self) -> Vec<SegmentId> {
        self.directory.reader("s").unwrap().segments().unwrap()
    }

    /// The rids of all rows that a query finds, sorted.
    fn rows(&self) -> Vec<String> {
        let mut rids = Vec::new();
        for object in block_on(self.store.objects("prefix/requests")).into_values() {
            rids.extend(column(object, "rid"));
        }
        rids.sort();
        rids
    }

    fn manifests(&self) -> BTreeMap<String, Manifest> {
        let objects = block_on(self.store.objects("prefix/manifests"));
        let manifests = objects.into_iter().filter(|(path, _)| !path.ends_with(".gap.json"));
        manifests.map(|(path, bytes)| (path, serde_json::from_slice(&bytes).unwrap())).collect()
    }

    /// Checks that every request that has ended is in one row, and that the manifests agree with the objects.
    fn check(&self) {
        let mut expected = self.ended.clone();
        expected.sort();
        assert_eq!(self.rows(), expected);
        let manifests = self.manifests();
        let counted: u64 = manifests.values().map(|manifest| manifest.segment.requests).sum();
        assert_eq!(counted, expected.len() as u64);
        let mut named = BTreeMap::new();
        for manifest in manifests.values() {
            let of_file = &manifest.file.segments;
            assert!(of_file.contains(&manifest.segment));
            let batches: u64 = of_file.iter().map(|segment| segment.batches).sum();
            for object in &manifest.file.objects {
                let rows = if object.table == "batches" {
                    batches
                } else {
                    of_file.iter().map(|it| it.requests).sum()
                };
                assert_eq!(object.rows, rows);
                named.insert(format!("prefix/{}", object.path), object.bytes);
            }
        }
        let mut there = block_on(self.store.objects("prefix/requests"));
        there.extend(block_on(self.store.objects("prefix/batches")));
        let there: BTreeMap<String, u64> =
            there.into_iter().map(|(path, it)| (path, it.len() as u64)).collect();
        assert_eq!(there, named, "each object is in a manifest");
    }
}

/// A process that archives.
struct Archiver(Following<Archive>);

impl Archiver {
    /// Archives what has ended. `is_last`: waits for nothing.
    fn pass(&mut self, now_unix_ns: u64, is_last: bool) {
        while self.0.look_at(Look { is_last, now_unix_ns }) == Ok(true) {}
    }
}

fn open(dir: &LocalPath, options: JournalOptions) -> Arc<JournalDirectory> {
    // The tests' times are in the past.
    let abandon_after = Duration::from_secs(1 << 31);
    let options = JournalOptions {
        sync: SyncPolicy::None,
        segment_bytes: 4096,
        abandon_after,
        followers: vec![follower(URL)],
        ..options
    };
    let storage = Arc::new(afterbay_journal::storage::Disk);
    Arc::new(JournalDirectory::open_on(storage, dir, options, Background::Caller).unwrap())
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// The texts of a column.
fn column(object: Vec<u8>, name: &str) -> Vec<String> {
    let reader =
        ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(object)).unwrap().build().unwrap();
    let mut texts = Vec::new();
    for batch in reader {
        let batch = batch.unwrap();
        let column = batch.column_by_name(name).unwrap().as_string::<i32>();
        texts.extend(column.iter().map(|text| text.unwrap().to_owned()));
    }
    texts
}

#[test]
fn each_request_is_in_one_row_and_each_segment_has_a_manifest() {
    let mut scene = Scene::new();
    scene.requests(60);
    let mut archiver = scene.archiver();
    // The hour is not over, so the file waits for more.
    let now = scene.now;
    archiver.pass(now, false);
    assert!(scene.manifests().is_empty() && scene.segments().len() > 5);
    assert!(scene.of_follower.lag_seconds.get() > Duration::from_secs(10));
    archiver.pass(now + HOUR, false);
    assert_eq!(scene.manifests().len(), scene.segments().len() - 1, "the last segment has not ended");
    scene.finish();
    archiver.pass(now + HOUR, true);
    assert_eq!(scene.manifests().len(), scene.segments().len());
    assert_eq!(scene.of_follower.failures.get(), 0);
    assert_eq!(scene.counters.requests_confirmed.get(), 60);
    scene.check();
}

#[test]
fn a_file_ends_with_its_hour() {
    let mut scene = Scene::new();
    scene.requests(30);
    scene.now += HOUR;
    scene.requests(30);
    scene.finish();
    scene.archiver().pass(scene.now, true);
    let hours: Vec<String> = block_on(scene.store.objects("prefix/requests")).into_keys().collect();
    assert_eq!(hours.len(), 2);
    assert!(hours[0].starts_with("prefix/requests/date=2023-11-14/hour=22/"), "{hours:?}");
    assert!(hours[1].starts_with("prefix/requests/date=2023-11-14/hour=23/"), "{hours:?}");
    scene.check();
}

/// Archives what has ended, until nothing fails any more.
fn archive_all(scene: &Scene) {
    scene.store.set_schedule(|_| Fate::Done);
    let mut archiver = scene.archiver();
    archiver.pass(scene.now + HOUR, true);
    assert_eq!(scene.of_follower.failing.get(), 0, "{:?}", scene.recorder.of::<FollowerFailed>());
}

#[test]
fn a_kill_at_any_call_of_an_upload_leaves_each_request_in_one_row() {
    let total = {
        let mut scene = Scene::new();
        scene.requests(24);
        archive_all(&scene);
        scene.store.calls()
    };
    assert!(total > 5, "{total} calls");
    for fate in [Fate::Refused, Fate::Unanswered] {
        for killed_at in 0..total {
            let mut scene = Scene::new();
            scene.requests(24);
            // From the call on nothing has an effect: the process is dead.
            scene.store.set_schedule(move |number| match number.cmp(&killed_at) {
                std::cmp::Ordering::Less => Fate::Done,
                std::cmp::Ordering::Equal => fate,
                std::cmp::Ordering::Greater => Fate::Refused,
            });
            scene.archiver().pass(scene.now + HOUR, true);
            // More has come until the restart.
            scene.requests(8);
            scene.finish();
            archive_all(&scene);
            scene.check();
        }
    }
}

#[test]
fn a_restart_without_the_local_files_goes_on_from_the_manifests() {
    for killed_at in 0..8 {
        let mut scene = Scene::new();
        scene.requests(16);
        scene.store.set_schedule(move |number| if number < killed_at { Fate::Done } else { Fate::Refused });
        scene.archiver().pass(scene.now + HOUR, true);
        std::fs::remove_dir_all(scene.dir.path().join(".archive")).unwrap();
        scene.requests(20);
        scene.finish();
        archive_all(&scene);
        scene.check();
    }
}

#[test]
fn over_an_outage_everything_is_archived_once_and_the_outage_is_reported_once() {
    for seed in 0..8_u64 {
        let mut scene = Scene::new();
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        scene.store.set_schedule(move |_| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            match random % 8 {
                0 | 1 => Fate::Refused,
                2 => Fate::Unanswered,
                _ => Fate::Done,
            }
        });
        let mut archiver = scene.archiver();
        for _ in 0..12 {
            scene.requests(8);
            scene.now += HOUR / 3;
            archiver.pass(scene.now, false);
        }
        scene.finish();
        scene.store.set_schedule(|_| Fate::Done);
        archiver.pass(scene.now, true);
        scene.check();
        assert_eq!(scene.telemetry.health.conditions(), []);
        let (failed, ended) =
            (scene.recorder.of::<FollowerFailed>().len(), scene.recorder.of::<FollowerRecovered>().len());
        assert_eq!(failed, ended, "seed {seed}: each outage is reported once, and its end");
        assert!(scene.of_follower.failures.get() >= failed as u64);
    }
}

#[test]
fn a_long_outage_is_one_event_and_nothing_is_confirmed_meanwhile() {
    let options = JournalOptions {
        retain_bytes: Some(20_000),
        removes_unconfirmed: false,
        ..JournalOptions::default()
    };
    let mut scene = Scene::with(options);
    scene.store.set_schedule(|_| Fate::Refused);
    let mut archiver = scene.archiver();
    scene.requests(60);
    let before = scene.segments();
    for _ in 0..5 {
        archiver.pass(scene.now + HOUR, false);
        scene.directory.tend();
    }
    assert_eq!(scene.recorder.of::<FollowerFailed>().len(), 1);
    assert!(scene.recorder.of::<FollowerFailed>()[0].why.contains("503 SlowDown"));
    assert_eq!((scene.of_follower.failures.get(), scene.of_follower.failing.get()), (5, 1));
    assert_eq!(scene.segments(), before, "segments wait past the limit");
    let now = scene.now;
    assert!(scene.writer().append(b"refused", now).is_err());

    scene.store.set_schedule(|_| Fate::Done);
    archiver.pass(now, false);
    scene.directory.tend();
    assert!(scene.segments()[0] > before[0], "the archive is asked for what it has before the hour is over");
    scene.requests(1);
    scene.finish();
    archiver.pass(now, true);
    scene.check();
}

#[test]
fn segments_that_were_removed_before_are_a_named_gap() {
    let options =
        JournalOptions { retain_bytes: Some(20_000), removes_unconfirmed: true, ..JournalOptions::default() };
    let mut scene = Scene::with(options);
    let mut archiver = scene.archiver();
    scene.requests(20);
    archiver.pass(scene.now + HOUR, false);
    let archived = *scene.segments().iter().rev().nth(1).unwrap();
    for _ in 0..10 {
        scene.requests(20);
        scene.directory.tend();
    }
    let next = scene.segments()[0];
    assert!(next.sequence > archived.sequence + 1);
    scene.finish();
    archiver.pass(scene.now + HOUR, true);
    let gaps = scene.recorder.of::<FollowerMissed>();
    assert_eq!(gaps.len(), 1);
    let missed = u64::from(next.sequence - archived.sequence - 1);
    assert_eq!((gaps[0].segments, gaps[0].before.clone()), (missed, next.to_string()));
    let objects = block_on(scene.store.objects("prefix/manifests"));
    let gap = objects.iter().find(|(path, _)| path.ends_with(".gap.json")).unwrap();
    let gap: Gap = serde_json::from_slice(gap.1).unwrap();
    assert_eq!(format!("{}.seg", gap.before), next.to_string());
    let rows = scene.rows();
    let unique: std::collections::BTreeSet<_> = rows.iter().collect();
    assert_eq!(unique.len(), rows.len());
}

#[test]
fn rows_of_an_upload_whose_segments_are_gone_are_in_no_object_twice() {
    let options =
        JournalOptions { retain_bytes: Some(20_000), removes_unconfirmed: true, ..JournalOptions::default() };
    for killed_at in 0..8 {
        let mut scene = Scene::with(options.clone());
        scene.requests(20);
        scene.store.set_schedule(move |number| if number < killed_at { Fate::Done } else { Fate::Refused });
        scene.archiver().pass(scene.now + HOUR, true);
        scene.store.set_schedule(|_| Fate::Done);
        // The oldest of the file's segments is removed, and a later one is not.
        let first = scene.segments()[0];
        while scene.segments()[0] == first {
            scene.requests(1);
            scene.directory.tend();
        }
        scene.finish();
        archive_all(&scene);
        let rows = scene.rows();
        let unique: std::collections::BTreeSet<_> = rows.iter().collect();
        assert_eq!(unique.len(), rows.len(), "killed at {killed_at}");
    }
}

#[test]
fn a_request_that_lives_across_a_restart_keeps_its_first_rows() {
    let mut scene = Scene::new();
    let long = scene.begin("long");
    scene.row(long, "long", false);
    scene.requests(40);
    archive_all(&scene);
    scene.requests(40);
    scene.row(long, "long", true);
    scene.finish();
    archive_all(&scene);
    scene.check();
    let objects = block_on(scene.store.objects("prefix/requests"));
    let tokens = objects.into_values().find_map(|object| {
        let reader =
            ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(object)).unwrap().build().unwrap();
        reader.map(Result::unwrap).find_map(|batch| {
            let at = batch
                .column_by_name("rid")
                .unwrap()
                .as_string::<i32>()
                .iter()
                .position(|it| it == Some("long"))?;
            let rows = batch.column_by_name("row_tokens").unwrap().as_list::<i32>().value(at);
            Some(arrow_array::Array::len(&rows))
        })
    });
    assert_eq!(tokens, Some(2), "both rows are there");
}

#[test]
fn a_stream_of_an_earlier_run_is_archived_without_being_opened() {
    let mut scene = Scene::new();
    scene.requests(30);
    scene.finish();
    let Scene { dir, directory, store, ended, .. } = scene;
    drop(directory);
    let directory = open(dir.path(), JournalOptions::default());
    let scene = Scene { ended, ..Scene::of(dir, directory, None, store) };
    archive_all(&scene);
    scene.check();
}

#[test]
fn another_archive_gets_everything_that_the_journal_still_has() {
    let mut scene = Scene::new();
    scene.requests(30);
    scene.finish();
    archive_all(&scene);
    scene.store = Faulty::new();
    scene.archiver_to("gs://other/prefix").pass(scene.now, true);
    scene.check();
}

#[test]
fn manifests_that_the_bucket_has_removed_are_not_written_again() {
    let mut scene = Scene::new();
    scene.requests(30);
    scene.finish();
    archive_all(&scene);
    for manifest in scene.manifests().into_keys() {
        block_on(scene.store.remove(&manifest));
    }
    archive_all(&scene);
    assert!(scene.manifests().is_empty());
}

#[test]
fn a_large_file_goes_in_parts_and_appears_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let local = dir.path().join("large");
    let content: Vec<u8> = (0..2 * PART_BYTES + 5).map(|at| at as u8).collect();
    std::fs::write(&local, &content).unwrap();
    for fails_at in 0..5 {
        let store = Faulty::new();
        store.set_schedule(move |number| if number == fails_at { Fate::Refused } else { Fate::Done });
        let objects = Objects::new(Arc::new(store.clone()), Path::from("prefix"));
        assert!(block_on(objects.upload("large", &local)).is_err());
        assert!(block_on(store.objects("prefix")).is_empty());
        block_on(objects.upload("large", &local)).unwrap();
        assert_eq!(block_on(store.objects("prefix"))["prefix/large"], content);
    }
}
