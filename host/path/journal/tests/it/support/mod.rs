//! Helpers of the journal's tests: a small random generator, and rows to write.
#![allow(dead_code, reason = "each test file uses a part")]

/// The simulated disk.
#[allow(unused_imports, reason = "each test file uses a part")]
pub mod disk {
    pub use afterbay_sim_disk::{Faults, SimDisk};
}

#[allow(unused_imports, reason = "each test file uses a part")]
pub use afterbay_sim_disk::Random;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use afterbay_journal::reader::{JournalReader, StreamReader};
use afterbay_journal::storage::Storage;
use afterbay_journal::{
    Background, FrameNo, JournalDirectory, JournalOptions, JournalRequest, JournalWriter, OpenError, Outcome,
    Passage, RecoveredStream, RowFinish, SyncPolicy,
};
use disk::SimDisk;

/// Seeds of a test: `AFTERBAY_SEED`, or `AFTERBAY_SEEDS` times as many as usual.
pub fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("AFTERBAY_SEED") {
        Ok(seed) => vec![seed.parse().expect("AFTERBAY_SEED is a number")],
        Err(_) => {
            let times = std::env::var("AFTERBAY_SEEDS").map_or(1, |times| times.parse().expect("a number"));
            (0..count * times).collect()
        }
    }
}

pub fn options() -> JournalOptions {
    // The tests' times begin at 0.
    let abandon_after = Duration::from_secs(1 << 31);
    JournalOptions { sync: SyncPolicy::None, abandon_after, ..JournalOptions::default() }
}

pub fn open(dir: &Path, options: JournalOptions) -> (JournalDirectory, JournalWriter, RecoveredStream) {
    let directory = unlocked(|| JournalDirectory::open(dir, options.clone())).unwrap();
    let (writer, recovered) = directory.stream("s").unwrap();
    (directory, writer, recovered)
}

/// Opens a directory that this process may have closed a moment ago. A child that another test starts has the descriptor of the
/// lock too, from its fork to its exec, so the lock may outlive the directory for that time.
pub fn unlocked(
    open: impl Fn() -> Result<JournalDirectory, OpenError>,
) -> Result<JournalDirectory, OpenError> {
    let own = std::process::id().to_string();
    for _ in 0..1000 {
        match open() {
            Err(OpenError::Locked { pid, .. }) if pid == own => std::thread::sleep(Duration::from_millis(1)),
            opened => return opened,
        }
    }
    open()
}

/// Opens without threads: the test calls `tend`.
pub fn open_alone(dir: &Path, options: JournalOptions) -> (JournalDirectory, JournalWriter, RecoveredStream) {
    begin_on(Arc::new(afterbay_journal::storage::Disk), dir, options)
}

/// Path of the journal on a simulated disk.
pub const DIR: &str = "/journal";

/// Starts a process on a simulated disk.
pub fn begin(disk: &SimDisk, options: JournalOptions) -> (JournalDirectory, JournalWriter, RecoveredStream) {
    begin_on(disk.process(), Path::new(DIR), options)
}

fn begin_on(
    storage: Arc<dyn Storage>,
    dir: &Path,
    options: JournalOptions,
) -> (JournalDirectory, JournalWriter, RecoveredStream) {
    let open = || JournalDirectory::open_on(storage.clone(), dir, options.clone(), Background::Caller);
    let directory = unlocked(open).unwrap();
    let (writer, recovered) = directory.stream("s").unwrap();
    (directory, writer, recovered)
}

/// Opens a reader on a simulated disk.
pub fn stream(disk: &SimDisk) -> StreamReader {
    JournalReader::open_on(Arc::new(disk.clone()), Path::new(DIR)).unwrap().stream("s").unwrap()
}

pub fn reader(dir: &Path) -> StreamReader {
    JournalReader::open(dir).unwrap().stream("s").unwrap()
}

/// A plain outcome without finishes, gaps and actions.
pub fn plain_outcome<'a>(
    frame: FrameNo,
    requests: &'a [JournalRequest],
    tokens: &'a [u32],
) -> Outcome<'a, JournalRequest> {
    let (requests, tokens) = (requests.into(), tokens.into());
    Outcome { requests, tokens, ..Outcome::new(frame, 0, Passage::Unchanged) }
}

/// Appends a frame with one row of one token per request. Returns its number.
pub fn step(writer: &mut JournalWriter, requests: &[JournalRequest], bytes: &[u8], ns: u64) -> FrameNo {
    let frame = writer.append(bytes, ns).unwrap().frame;
    let tokens = vec![1; requests.len()];
    writer.outcome(&Outcome { received_unix_ns: ns, ..plain_outcome(frame, requests, &tokens) });
    frame
}

/// As `step`, and every request ends with it, after `completion_tokens`.
pub fn last_step(
    writer: &mut JournalWriter,
    requests: &[JournalRequest],
    completion_tokens: u64,
    ns: u64,
) -> FrameNo {
    let frame = writer.append(b"last", ns).unwrap().frame;
    let finished: Vec<_> = (0..requests.len() as u32)
        .map(|row| RowFinish { row, reason: "stop".into(), completion_tokens: Some(completion_tokens) })
        .collect();
    let tokens = vec![1; requests.len()];
    writer.outcome(&Outcome {
        received_unix_ns: ns,
        finished: (&finished).into(),
        ..plain_outcome(frame, requests, &tokens)
    });
    for request in requests {
        writer.close(*request);
    }
    frame
}
