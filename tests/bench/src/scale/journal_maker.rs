//! Makes a journal with the records that a stream would write, faster than a stream.

use super::hollow_disk::hollow_disk;
use afterbay_journal::storage::{Disk, Storage};
use afterbay_journal::{
    Background, JournalDirectory, JournalOptions, JournalRequest, JournalWriter, Outcome, Passage, RowFinish,
    SinkContent, SyncPolicy,
};
use afterbay_wire::BatchKind;
use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use std::path::Path;
use std::sync::Arc;

/// Name of the stream.
pub(super) const STREAM: &str = "scheduler";
/// Tokens of a request, one in a row.
const TOKENS: u64 = 512;
/// Nanoseconds between two frames.
const STEP_NS: u64 = 20_000_000;
/// Frames that the reader has and has not finished.
const UNFINISHED: u64 = 2;

pub(super) struct JournalMaker {
    /// Requests that run at the same time, one row of each in a frame.
    rows: u64,
    writer: JournalWriter,
    _directory: JournalDirectory,
    now_unix_ns: u64,
    requests: u64,
    frames: u64,
    zeros: Vec<u8>,
}

impl JournalMaker {
    /// Begins a journal whose segments have this size, and whose frames have this many rows. Its last frame is received about now, if
    /// its frames have `bytes` bytes in all. With `has_holes`, [`JournalMaker::hollow`] takes no room.
    pub(super) fn new(
        dir: &Path,
        rows: u64,
        segment_bytes: u64,
        bytes: u64,
        has_holes: bool,
    ) -> anyhow::Result<JournalMaker> {
        let storage: Arc<dyn Storage> = if has_holes { hollow_disk() } else { Arc::new(Disk) };
        let options = JournalOptions { sync: SyncPolicy::None, segment_bytes, ..JournalOptions::default() };
        let directory = JournalDirectory::open_on(storage, dir, options, Background::Caller)?;
        let (writer, _) = directory.stream(STREAM)?;
        let now_unix_ns = Disk.now_unix_ns() - bytes / frame_bytes(rows) * STEP_NS;
        Ok(JournalMaker {
            rows,
            writer,
            _directory: directory,
            now_unix_ns,
            requests: 0,
            frames: 0,
            zeros: Vec::new(),
        })
    }

    /// Adds requests from their first to their last row, until their frames have this many bytes. Returns the rid of the first.
    pub(super) fn requests(&mut self, bytes: u64) -> anyhow::Result<String> {
        let first = rid(self.requests);
        let mut made = 0;
        while made < bytes {
            let rids: Vec<String> = (0..self.rows).map(|row| rid(self.requests + row)).collect();
            let requests = self.open(&rids)?;
            for step in 1..=TOKENS {
                let frame = frame(&rids, step);
                made += frame.len() as u64;
                self.step(&frame, &requests, step == TOKENS)?;
            }
        }
        Ok(first)
    }

    /// Adds one frame of zeros with this many bytes, and as many requests as such frames would have. All end.
    pub(super) fn hollow(&mut self, bytes: u64) -> anyhow::Result<()> {
        let frames = bytes / frame_bytes(self.rows);
        let requests = frames / TOKENS * self.rows;
        self.now_unix_ns += frames * STEP_NS;
        let rids: Vec<String> = (0..requests).map(|at| rid(self.requests + at)).collect();
        let requests = self.open(&rids)?;
        let mut zeros = std::mem::take(&mut self.zeros);
        zeros.resize(bytes as usize, 0);
        self.step(&zeros, &requests, true)?;
        self.zeros = zeros;
        Ok(())
    }

    /// Writes what waits. The last segment stays without a summary, as after `kill -9`, if this is dropped.
    pub(super) fn flush(&mut self) -> anyhow::Result<()> {
        self.writer.flush()?;
        self.writer.tend();
        Ok(())
    }

    fn open(&mut self, rids: &[String]) -> anyhow::Result<Vec<JournalRequest>> {
        self.requests += rids.len() as u64;
        Ok(rids.iter().map(|rid| self.writer.open(rid)).collect())
    }

    /// Stores a frame with a row of each request, its outcome, and what the sink was sent and has taken.
    fn step(&mut self, frame: &[u8], requests: &[JournalRequest], is_last: bool) -> anyhow::Result<()> {
        self.now_unix_ns += STEP_NS;
        self.frames += 1;
        let now = self.now_unix_ns;
        let number = self.writer.append(frame, now)?.frame;
        let finish = |row| RowFinish { row, reason: "length".into(), completion_tokens: None };
        let finished: Vec<_> = (0..requests.len() as u32).filter(|_| is_last).map(finish).collect();
        let tokens = vec![1; requests.len()];
        self.writer.outcome(&Outcome {
            requests: requests.into(),
            tokens: (&tokens).into(),
            finished: (&finished).into(),
            ..Outcome::new(number, now, Passage::Unchanged)
        });
        if is_last {
            requests.iter().for_each(|request| self.writer.close(*request));
        }
        self.writer.sent("reader", self.frames, SinkContent::Whole(number), now);
        if let Some(taken) = self.frames.checked_sub(UNFINISHED) {
            let through = afterbay_journal::FrameNo(number.0 - UNFINISHED);
            self.writer.taken("reader", taken, through, None, now);
        }
        if self.frames.is_multiple_of(64) || frame.len() > 1 << 20 {
            self.flush()?;
        }
        Ok(())
    }
}

/// Bytes of a frame with this many rows.
pub(super) fn frame_bytes(rows: u64) -> u64 {
    let rids: Vec<String> = (0..rows).map(rid).collect();
    frame(&rids, 2).len() as u64
}

fn rid(number: u64) -> String {
    format!("{number:016x}{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn frame(rids: &[String], step: u64) -> Vec<u8> {
    let row = |rid: &String| SynthRow {
        rid: rid.clone(),
        ids: vec![(step * 17 % 128_000) as i64],
        finish: (step == TOKENS).then_some(SynthFinish::Length(TOKENS)),
        completion_tokens: step,
        prompt_tokens: 32,
        ..SynthRow::default()
    };
    let batch = SynthBatch { rows: rids.iter().map(row).collect() };
    batch.encode(BatchKind::TokenId, SynthWire::Msgpack).map(Vec::from).unwrap_or_default()
}
