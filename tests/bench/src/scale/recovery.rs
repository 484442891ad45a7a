//! The time until a journal is open again, beside the time of reading the same bytes.

use super::journal_maker::{JournalMaker, STREAM, frame_bytes};
use super::{forget_cached, on_disk, segments};
use afterbay_journal::{JournalDirectory, JournalOptions};
use anyhow::ensure;
use rustix::time::{ClockId, clock_gettime};
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

/// Most bytes of the journal's frames. All are in one segment: a start reads only what the last process did not sum up.
const FRAMES_BYTES: u64 = 800 << 20;
/// Most frames. A segment has at most 131,072.
const FRAMES: u64 = 120_000;
/// Size of the segment.
const SEGMENT_BYTES: u64 = 2 << 30;

/// Seconds for a GB.
pub(super) struct Seconds {
    pub(super) wall: f64,
    pub(super) cpu: f64,
}

pub(super) struct Recovery {
    /// Opening the journal of a killed process.
    pub(super) killed: Seconds,
    /// Reading its bytes.
    pub(super) read: Seconds,
    /// Opening the journal of a process that stopped, in milliseconds.
    pub(super) stopped_ms: f64,
}

pub(super) fn measure(rows: u64, is_cached: bool) -> anyhow::Result<Recovery> {
    let dir = on_disk()?;
    let frames_bytes = FRAMES_BYTES.min(FRAMES * frame_bytes(rows));
    let mut maker = JournalMaker::new(dir.path(), rows, SEGMENT_BYTES, frames_bytes, false)?;
    maker.requests(frames_bytes)?;
    maker.flush()?;
    drop(maker);
    ensure!(segments(dir.path())?.len() == 1, "the journal has a segment that has ended");
    let bytes: u64 = segments(dir.path())?.iter().map(|file| file.metadata().map_or(0, |it| it.len())).sum();
    let gb = bytes as f64 / 1e9;
    let per_gb = |(wall, cpu): (Duration, Duration)| Seconds {
        wall: wall.as_secs_f64() / gb,
        cpu: cpu.as_secs_f64() / gb,
    };
    // Also writes everything to the disk.
    forget_cached(dir.path())?;
    let prepare = || if is_cached { read(dir.path()) } else { forget_cached(dir.path()) };
    prepare()?;
    let plain = timed(|| read(dir.path()))?;
    prepare()?;
    let killed = timed(|| open(dir.path()))?;
    prepare()?;
    let stopped = timed(|| open(dir.path()))?;
    Ok(Recovery { killed: per_gb(killed), read: per_gb(plain), stopped_ms: stopped.0.as_secs_f64() * 1e3 })
}

/// Wall time, and CPU time of this thread.
fn timed(mut run: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<(Duration, Duration)> {
    let cpu = || -> Duration { clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default() };
    let (begun, cpu_begun) = (Instant::now(), cpu());
    run()?;
    Ok((begun.elapsed(), cpu().saturating_sub(cpu_begun)))
}

fn open(dir: &Path) -> anyhow::Result<()> {
    let directory = JournalDirectory::open(dir, JournalOptions::default())?;
    let (writer, found) = directory.stream(STREAM)?;
    ensure!(found.last_frame.0 > 0 && found.corrupt.is_empty(), "the journal is not recovered: {found:?}");
    writer.finish()?;
    Ok(())
}

/// Reads every segment.
fn read(dir: &Path) -> anyhow::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    for segment in segments(dir)? {
        let mut file = std::fs::File::open(segment)?;
        while file.read(&mut buffer)? > 0 {}
    }
    Ok(())
}
