//! Shared helpers of the tests: a reader under test, waiting, and a hand-made LoadSnapshot file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use afterbay_scheduler::signals::{
    LoadConfig, LoadHandle, LoadReader, LoadSnapshot, LoadSource, SourceChange, SourceNotice,
};
use serde_json::{Value, json};

pub const SLOT: u64 = 16 * 1024;

pub fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn of_file(path: &Path) -> LoadConfig {
    LoadConfig {
        load_snapshot_every: Duration::from_millis(2),
        ..LoadConfig::new(LoadSource::File(path.to_owned()))
    }
}

pub fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Waits until a read satisfies `is`. The time limit only ends a failing test.
#[track_caller]
pub fn until(load: &LoadHandle, what: &str, is: impl Fn(&LoadSnapshot) -> bool) -> LoadSnapshot {
    let start = Instant::now();
    loop {
        let snapshot = load.read();
        if is(&snapshot) {
            return snapshot;
        }
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{what}: not within 60 s, the last was {snapshot:?}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[track_caller]
pub fn until_running(load: &LoadHandle, running: u64) -> LoadSnapshot {
    until(load, &format!("{running} running"), |load| load.values.running == Some(running))
}

/// Waits for a notice. Returns all notices up to it.
#[track_caller]
pub fn until_notice(
    reader: &LoadReader,
    what: &str,
    is: impl Fn(&SourceChange) -> bool,
) -> Vec<SourceNotice> {
    let (start, mut all) = (Instant::now(), Vec::new());
    loop {
        all.extend(reader.notices());
        if all.iter().any(|notice: &SourceNotice| is(&notice.change)) {
            return all;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: no notice within 60 s, but {all:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[track_caller]
pub fn until_invalid(reader: &LoadReader, words: &str) {
    until_notice(
        reader,
        words,
        |change| matches!(change, SourceChange::Invalid { why } if why.contains(words)),
    );
}

/// A file like that of SGLang's `ShmLoadSnapshotWriter`, written by hand.
pub struct ShmFile(pub File);

impl ShmFile {
    pub fn create(path: &Path, dp_size: u16) -> ShmFile {
        let file = File::create(path).unwrap();
        file.set_len(12 + u64::from(dp_size) * SLOT).unwrap();
        let made = ShmFile(file);
        made.header(b"SLNS", 2, dp_size, SLOT as u32);
        made
    }

    pub fn header(&self, magic: &[u8; 4], version: u16, dp_size: u16, slot_size: u32) {
        let mut header = magic.to_vec();
        header.extend(version.to_le_bytes());
        header.extend(dp_size.to_le_bytes());
        header.extend(slot_size.to_le_bytes());
        self.0.write_all_at(&header, 0).unwrap();
    }

    /// Writes in SGLang's order: length 0, payload, length.
    pub fn payload(&self, rank: u64, payload: &[u8]) {
        let at = 12 + rank * SLOT;
        self.0.write_all_at(&[0; 4], at).unwrap();
        self.0.write_all_at(payload, at + 4).unwrap();
        self.0.write_all_at(&(payload.len() as u32).to_le_bytes(), at).unwrap();
    }

    pub fn write(&self, rank: u64, map: &Value) {
        self.payload(rank, &rmp_serde::to_vec(map).unwrap());
    }

    pub fn running(&self, running: u64) {
        self.write(0, &json!({"timestamp": unix_now(), "num_running_reqs": running}));
    }
}
