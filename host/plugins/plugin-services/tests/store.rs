//! Stores on a simulated disk: kills, power cuts, a failing disk.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use afterbay_events::event::{PluginStoreDamaged, PluginStoreFailed, PluginStoreHealed};
use afterbay_events::{Events, Health, Metrics, Recorder};
use afterbay_journal::storage::Storage;
use afterbay_plugin_services::store::{Background, StoreDirectory, StoreError, StoreTelemetry, StoreWriter};
use afterbay_sim_disk::{Faults, Random, SimDisk};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const JOURNAL: &str = "/journal";
const FILE: &str = "/journal/.plugins/budget.store";

/// A process on the disk, with its outputs.
struct Process {
    directory: StoreDirectory,
    recorder: Recorder,
    telemetry: StoreTelemetry,
}

fn begin(disk: &SimDisk) -> Process {
    let (events, recorder) = Events::recorded();
    let health = Health::default();
    let metrics = Metrics::new(events.clone(), health.clone());
    let telemetry = StoreTelemetry { events, metrics, health };
    let storage: Arc<dyn Storage> = disk.process();
    let _ = storage.make_dir(Path::new(JOURNAL));
    let directory =
        StoreDirectory::open_on(storage, Path::new(JOURNAL), telemetry.clone(), Background::Caller).unwrap();
    Process { directory, recorder, telemetry }
}

impl Process {
    fn writer(&self, stream: &str) -> StoreWriter {
        self.directory.store("budget").unwrap().writer(stream)
    }

    fn metrics(&self) -> String {
        self.telemetry.metrics.encode()
    }
}

/// Finishes the batch of this number.
fn commit(writer: &StoreWriter, batch: u64) {
    writer.begin(batch, false);
    writer.commit();
}

/// Lets the process die with all its open files.
fn kill(disk: &SimDisk, process: Process) {
    disk.kill();
    drop(process);
}

#[test]
fn finished_batches_survive_a_kill_and_an_unfinished_one_does_not_count() {
    let disk = SimDisk::new(1);
    let process = begin(&disk);
    let (a, b) = (process.writer("a"), process.writer("b"));
    assert_eq!(a.increment("used", 5), Ok(5));
    assert_eq!(b.increment("used", 10), Ok(15), "all streams share the number at once");
    a.set("text", b"x").unwrap();
    commit(&a, 1);
    assert_eq!(b.increment("used", 100), Ok(115));
    commit(&b, 7);
    assert_eq!(a.increment("used", 1000), Ok(1115));
    a.delete("text");
    kill(&disk, process);

    let process = begin(&disk);
    let (a, b) = (process.writer("a"), process.writer("b"));
    assert_eq!((a.number("used"), a.get("text")), (Ok(115), Some(b"x".to_vec())));
    assert_eq!(
        (a.committed(), b.committed()),
        (1, 7),
        "so that the batches before run again without an effect"
    );
    assert_eq!(a.increment("used", 1000), Ok(1115));
    commit(&a, 2);
    kill(&disk, process);
    let process = begin(&disk);
    assert_eq!(
        process.writer("b").number("used"),
        Ok(1115),
        "the earlier run's half batch stays without effect"
    );
}

#[test]
fn a_batch_that_runs_again_counts_once() {
    let disk = SimDisk::new(1);
    let process = begin(&disk);
    let writer = process.writer("a");
    for batch in 1..=3 {
        writer.begin(batch, false);
        writer.increment("used", 10).unwrap();
        writer.set("text", &[batch as u8]).unwrap();
        writer.commit();
    }
    writer.begin(4, false);
    writer.increment("used", 10).unwrap();
    kill(&disk, process);

    let process = begin(&disk);
    let writer = process.writer("a");
    writer.increment("opened", 1).unwrap();
    writer.commit();
    // The outcomes of the last three batches are not in the journal.
    for batch in 2..=4 {
        writer.begin(batch, true);
        writer.delete("text");
        writer.set("text", &[batch as u8]).unwrap();
        assert_eq!(writer.increment("used", 10), Ok(if batch < 4 { 30 } else { 40 }));
        writer.commit();
    }
    writer.begin(5, false);
    assert_eq!(writer.increment("used", 10), Ok(50));
    assert_eq!((writer.get("text"), writer.number("opened")), (Some(vec![4]), Ok(1)));
}

#[test]
fn a_number_is_no_text_and_a_text_no_number() {
    let process = begin(&SimDisk::new(1));
    let writer = process.writer("a");
    writer.set("text", &[1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(writer.increment("text", 1), Err(StoreError::NotANumber));
    assert_eq!(writer.increment("new", 0), Ok(0));
    assert_eq!(writer.get("new"), None, "0 is no change");
    writer.increment("number", -2).unwrap();
    assert_eq!(writer.get("number"), Some((-2_i64).to_le_bytes().to_vec()));
    assert_eq!(writer.set("", b""), Err(StoreError::BadKey));
    assert_eq!(writer.set("k", &vec![0; 65537]), Err(StoreError::Full));
}

/// One run with kills at random moments: the numbers are those of the finished batches, exactly.
#[test]
fn increments_of_many_streams_are_exact_over_kills() {
    for seed in 0..40 {
        let (disk, mut random) = (SimDisk::new(seed), Random(seed));
        let mut finished: BTreeMap<String, i64> = BTreeMap::new();
        for _ in 0..8 {
            let process = begin(&disk);
            let writers: Vec<StoreWriter> = (0..4).map(|it| process.writer(&format!("s{it}"))).collect();
            for (key, sum) in &finished {
                assert_eq!(writers[0].number(key), Ok(*sum), "seed {seed}: {key}");
            }
            let mut batches: Vec<Vec<(String, i64)>> = vec![Vec::new(); writers.len()];
            for _ in 0..random.below(400) {
                let stream = random.below(4) as usize;
                if random.once_in(4) {
                    commit(&writers[stream], writers[stream].committed() + 1);
                    for (key, delta) in batches[stream].drain(..) {
                        *finished.entry(key).or_default() += delta;
                    }
                } else if random.once_in(50) && batches.iter().all(Vec::is_empty) {
                    process.directory.tend();
                } else {
                    let (key, delta) = (format!("t{}", random.below(5)), random.below(9) as i64 + 1);
                    writers[stream].increment(&key, delta).unwrap();
                    batches[stream].push((key, delta));
                }
            }
            kill(&disk, process);
        }
        assert!(!finished.is_empty());
    }
}

#[test]
fn a_power_cut_loses_no_batch_before_the_last_sync_and_invents_none() {
    let mut lost = 0;
    for seed in 0..60 {
        let (disk, mut random) = (SimDisk::new(seed), Random(seed));
        let (mut synced, mut finished) = (0, 0);
        for _ in 0..6 {
            let process = begin(&disk);
            let writer = process.writer("a");
            let number = writer.number("used").unwrap();
            assert!((synced..=finished).contains(&number), "seed {seed}: {synced} <= {number} <= {finished}");
            lost += i64::from(number < finished);
            (synced, finished) = (number, number);
            for batch in 1..=random.below(60) {
                writer.increment("used", 1).unwrap();
                writer
                    .set(&format!("text{}", random.below(9)), &vec![7; random.below(900) as usize])
                    .unwrap();
                commit(&writer, writer.committed().max(batch) + 1);
                finished += 1;
                if random.once_in(10) {
                    process.directory.tend();
                    synced = finished;
                }
            }
            disk.cut_power();
            drop(process);
        }
    }
    assert!(lost > 0, "some cut came before a sync");
}

#[test]
fn a_failing_disk_is_reported_once_and_the_store_continues_in_memory_until_the_disk_recovers() {
    let disk = SimDisk::new(3);
    let process = begin(&disk);
    let writer = process.writer("a");
    writer.increment("used", 1).unwrap();
    commit(&writer, 1);
    disk.set_faults(Faults { write: 1, create: 1, ..Faults::default() });
    for batch in 2..10 {
        writer.increment("used", 1).unwrap();
        commit(&writer, batch);
        process.directory.tend();
    }
    assert_eq!(process.recorder.of::<PluginStoreFailed>().len(), 1);
    assert!(process.metrics().contains("afterbay_plugin_store_failing{plugin=\"budget\"} 1"));
    assert_eq!(process.telemetry.health.conditions()[0].0, "plugin-store:budget");
    assert_eq!(writer.number("used"), Ok(9));
    disk.set_faults(Faults::default());
    process.directory.tend();
    assert_eq!(process.recorder.of::<PluginStoreHealed>().len(), 1);
    assert!(process.telemetry.health.conditions().is_empty());
    writer.increment("used", 1).unwrap();
    commit(&writer, 10);
    kill(&disk, process);
    assert_eq!(begin(&disk).writer("a").number("used"), Ok(10));
}

#[test]
fn a_store_that_begins_on_a_full_disk_is_written_when_there_is_room() {
    let disk = SimDisk::new(4);
    let storage: Arc<dyn Storage> = disk.process();
    storage.make_dir(Path::new(JOURNAL)).unwrap();
    disk.set_full_of_names(true);
    let process = begin(&disk);
    let writer = process.writer("a");
    writer.increment("used", 3).unwrap();
    commit(&writer, 1);
    assert_eq!(process.recorder.of::<PluginStoreFailed>().len(), 1);
    disk.set_full_of_names(false);
    process.directory.tend();
    kill(&disk, process);
    assert_eq!(begin(&disk).writer("a").number("used"), Ok(3));
}

#[test]
fn a_failed_sync_is_answered_by_a_new_file() {
    let disk = SimDisk::new(5);
    let process = begin(&disk);
    let writer = process.writer("a");
    writer.increment("used", 3).unwrap();
    commit(&writer, 1);
    disk.set_faults(Faults { sync: 1, ..Faults::default() });
    process.directory.tend();
    assert_eq!(process.recorder.of::<PluginStoreFailed>().len(), 1);
    disk.set_faults(Faults::default());
    process.directory.tend();
    disk.cut_power();
    drop(process);
    assert_eq!(begin(&disk).writer("a").number("used"), Ok(3));
}

#[test]
fn a_removed_file_is_written_again() {
    let disk = SimDisk::new(6);
    let process = begin(&disk);
    let writer = process.writer("a");
    writer.increment("used", 3).unwrap();
    commit(&writer, 1);
    disk.remove_file(Path::new(FILE));
    process.directory.tend();
    kill(&disk, process);
    assert_eq!(begin(&disk).writer("a").number("used"), Ok(3));
}

#[test]
fn a_long_file_is_replaced_by_its_values() {
    let disk = SimDisk::new(7);
    let process = begin(&disk);
    let writer = process.writer("a");
    for batch in 1..=200 {
        writer.set("text", &vec![batch as u8; 16 << 10]).unwrap();
        commit(&writer, batch);
    }
    assert!(disk.used() > 3 << 20);
    process.directory.tend();
    assert!(disk.used() < 64 << 10, "{}", disk.used());
    writer.increment("used", 1).unwrap();
    commit(&writer, 201);
    kill(&disk, process);
    let process = begin(&disk);
    let writer = process.writer("a");
    assert_eq!((writer.get("text"), writer.number("used")), (Some(vec![200; 16 << 10]), Ok(1)));
    assert_eq!(writer.committed(), 201);
}

#[test]
fn a_damaged_end_is_cut_and_kept_aside() {
    let disk = SimDisk::new(8);
    let process = begin(&disk);
    let writer = process.writer("a");
    for batch in 1..=3 {
        writer.increment("used", 1).unwrap();
        commit(&writer, batch);
    }
    kill(&disk, process);
    disk.edit(Path::new(FILE), |bytes| {
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
    });
    let process = begin(&disk);
    assert_eq!(process.writer("a").number("used"), Ok(2));
    let damaged = &process.recorder.of::<PluginStoreDamaged>()[0];
    assert_eq!(damaged.kept, "/journal/.plugins/budget.store.damaged");
    assert!(damaged.cut_bytes > 0);
}

#[test]
fn a_store_without_plugins_is_closed_and_its_file_stays() {
    let disk = SimDisk::new(9);
    let process = begin(&disk);
    let writer = process.writer("a");
    writer.increment("used", 3).unwrap();
    commit(&writer, 1);
    let shown = process.metrics();
    assert!(shown.contains("afterbay_plugin_store_keys{plugin=\"budget\"} 1"), "{shown}");
    assert!(shown.contains("afterbay_plugin_store_bytes{plugin=\"budget\"} 12"), "{shown}");
    drop(writer);
    process.directory.tend();
    assert!(!process.metrics().contains("plugin_store_keys{"));
    assert_eq!(process.writer("a").number("used"), Ok(3), "read from its file again");
    assert_eq!(process.directory.store("other").unwrap().writer("a").number("used"), Ok(0));
}

#[test]
fn streams_on_their_own_threads_lose_no_increment_while_the_file_is_replaced() {
    const BATCHES: u64 = 2_000;
    let journal = tempfile::tempdir().unwrap();
    let telemetry = || {
        let (events, health) = (Events::new(), Health::default());
        StoreTelemetry { metrics: Metrics::new(events.clone(), health.clone()), events, health }
    };
    let open = || {
        let disk = Arc::new(afterbay_journal::storage::Disk);
        StoreDirectory::open_on(disk, journal.path(), telemetry(), Background::Caller).unwrap()
    };
    let directory = open();
    std::thread::scope(|scope| {
        for stream in 0..4 {
            let writer = directory.store("budget").unwrap().writer(&format!("s{stream}"));
            scope.spawn(move || {
                for batch in 1..=BATCHES {
                    writer.increment("used", 1).unwrap();
                    writer.set(&format!("text{stream}"), &[batch as u8; 900]).unwrap();
                    commit(&writer, batch);
                }
            });
        }
        let store = directory.store("budget").unwrap();
        while store.writer("s0").number("used").unwrap() < 4 * BATCHES as i64 {
            directory.tend();
        }
    });
    drop(directory);
    let writer = open().store("budget").unwrap().writer("s3");
    assert_eq!((writer.number("used"), writer.committed()), (Ok(4 * BATCHES as i64), BATCHES));
}

#[test]
fn files_are_private_to_their_owner() {
    use std::os::unix::fs::PermissionsExt;
    let journal = tempfile::tempdir().unwrap();
    let events = Events::new();
    let health = Health::default();
    let metrics = Metrics::new(events.clone(), health.clone());
    let telemetry = StoreTelemetry { events, metrics, health };
    let directory = StoreDirectory::open(journal.path(), telemetry.clone()).unwrap();
    let writer = directory.store("budget").unwrap().writer("a");
    writer.increment("used", 1).unwrap();
    commit(&writer, 1);
    drop(directory);
    let mode = |path: &str| journal.path().join(path).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(".plugins"), mode(".plugins/budget.store")), (0o700, 0o600));
    let directory = StoreDirectory::open(journal.path(), telemetry).unwrap();
    assert_eq!(directory.store("budget").unwrap().writer("b").number("used"), Ok(1));
}

#[test]
fn a_paused_process_leaves_its_files_to_another_and_takes_them_back_with_its_own_values() {
    let disk = SimDisk::new(1);
    let earlier = begin(&disk);
    let writer = earlier.writer("a");
    writer.increment("used", 5).unwrap();
    commit(&writer, 1);
    earlier.directory.pause();
    let next = begin(&disk);
    let of_next = next.writer("a");
    assert_eq!((of_next.number("used"), of_next.committed()), (Ok(5), 1));
    of_next.increment("used", 100).unwrap();
    commit(&of_next, 2);
    // The earlier process touches no file that is another's, also at its end.
    earlier.directory.tend();
    drop((of_next, next));
    // The next process fails.
    earlier.directory.resume();
    writer.increment("used", 1).unwrap();
    commit(&writer, 2);
    kill(&disk, earlier);
    let after = begin(&disk);
    assert_eq!(after.writer("a").number("used"), Ok(6));
    after.directory.pause();
    let next = begin(&disk);
    let of_next = next.writer("a");
    of_next.increment("used", 100).unwrap();
    commit(&of_next, 3);
    drop(after);
    kill(&disk, next);
    assert_eq!(begin(&disk).writer("a").number("used"), Ok(106));
}
