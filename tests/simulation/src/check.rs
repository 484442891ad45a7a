//! The promises, checked at the end of a schedule.

use crate::machine::{JOURNAL, STREAM};
use crate::peers::{FrameState, Rows};
use crate::world::World;
use afterbay_events::event::{CreditSeen, FrameNotUnderstood, SinkSettled};
use afterbay_journal::reader::{JournalReader, ReadFrom, RequestFilter};
use afterbay_journal::{JournalProblem, ProblemKind, is_release_marker};
use afterbay_stream::Ended;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// Checks everything after the last stop. Returns the number of frames in the journal.
pub fn check(world: &World, ended: &Ended) -> Result<u64, String> {
    let is_clean =
        ended.journal.is_none() && (ended.frames_left, ended.unread_bytes, ended.unpersisted) == (0, 0, 0);
    if !is_clean {
        return Err(format!("the stream did not end clean: {ended:?}"));
    }
    let frames = journaled(world)?;
    check_senders(world, &frames)?;
    check_readers(world, &frames)?;
    check_journal(world)?;
    Ok(frames.len() as u64)
}

/// The frames of schedulers in the journal.
fn journaled(world: &World) -> Result<Vec<Vec<u8>>, String> {
    let reader = JournalReader::open_on(Arc::new(world.machine.disk.clone()), Path::new(JOURNAL));
    let stream = reader.and_then(|reader| reader.stream(STREAM)).map_err(|error| error.to_string())?;
    let mut frames = Vec::new();
    for frame in stream.frames(ReadFrom::Start).map_err(|error| error.to_string())? {
        let (frame, _) = frame.map_err(|error| format!("the journal cannot be read: {error}"))?;
        if !is_release_marker(&frame.bytes) {
            frames.push(frame.bytes.to_vec());
        }
    }
    Ok(frames)
}

/// Each sender's frames are in the journal once and in order. Only a dead process loses frames, and only those of its time.
fn check_senders(world: &World, frames: &[Vec<u8>]) -> Result<(), String> {
    for (index, sender) in world.senders.iter().enumerate() {
        let mut at: BTreeMap<&[u8], Vec<usize>> = BTreeMap::new();
        for (number, frame) in frames.iter().enumerate() {
            at.entry(frame).or_default().push(number);
        }
        let mut last = None;
        for (number, (frame, state)) in sender.frames.iter().zip(&sender.states).enumerate() {
            // Frames without rows are equal to others.
            let is_unique = frame.rows > 0;
            let places = at.get(&frame.bytes[..]).map_or(&[][..], |places| places);
            match (places, state) {
                _ if !is_unique => {}
                ([place], _) => {
                    if last.is_some_and(|last| last > *place) {
                        return Err(format!(
                            "frame {number} of sender {index} is out of order in the journal"
                        ));
                    }
                    last = Some(*place);
                }
                ([], FrameState::Sent { life }) if world.lossy.last().is_some_and(|lossy| lossy >= life) => {}
                ([], FrameState::Waits) => {}
                ([], FrameState::Sent { life }) => {
                    return Err(format!("frame {number} of sender {index}, sent in life {life}, is lost"));
                }
                (places, _) => {
                    return Err(format!(
                        "frame {number} of sender {index} is in the journal {} times",
                        places.len()
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Each request of the journal reached its reader once and in order; what a reader did not get is accounted for by name.
fn check_readers(world: &World, frames: &[Vec<u8>]) -> Result<(), String> {
    let layouts = world.machine.settings.layouts();
    let mut all = Rows::default();
    for frame in frames {
        all.add(frame, &layouts).map_err(|why| format!("the journal: {why}"))?;
    }
    let readers = world.readers.borrow();
    let count = readers.len();
    let credits = world.recorder.of::<CreditSeen>();
    let settled = world.recorder.of::<SinkSettled>();
    for (index, reader) in readers.iter().enumerate() {
        let name = format!("r{index}");
        let unconfirmed: u64 =
            settled.iter().filter(|it| *it.sink == *name).map(|it| it.unconfirmed_frames).sum();
        // A process that dies at about the same time reports nothing.
        if !reader.counts() && world.crashed.is_empty() && unconfirmed < reader.lost_unread {
            return Err(format!(
                "reader {index} died with {} unread frames, and only {unconfirmed} are reported as unconfirmed",
                reader.lost_unread
            ));
        }
        let generations: BTreeSet<u64> =
            credits.iter().filter(|it| *it.sink == *name).map(|it| it.generation).collect();
        let saw_every_life = (1..=reader.lives).all(|generation| generations.contains(&generation));
        // Readers do not count frames without rows, so a reader that dies may lose these.
        let all_count = world.senders.iter().flat_map(|sender| &sender.frames).all(|frame| frame.rows > 0);
        let disk = world.machine.disk.counts();
        let all_recorded = !world.stopped_on_faults && disk.failed_writes == 0 && disk.full == 0;
        let is_known = saw_every_life && !world.waited_out.contains(&index) && all_recorded;
        if reader.counts() && all_count && world.crashed.is_empty() && is_known && unconfirmed > 0 {
            return Err(format!(
                "reader {index} counts, and {unconfirmed} frames are reported as unconfirmed"
            ));
        }
        let mut lost = BTreeMap::<String, Vec<(u64, u64)>>::new();
        for frame in &reader.lost {
            let mut rows = Rows::default();
            rows.add(frame, &layouts)?;
            for (rid, request) in rows.requests {
                lost.entry(rid).or_default().extend(request.ranges);
            }
        }
        for (rid, expected) in &all.requests {
            let target = crc32fast::hash(rid.as_bytes()) as usize % count;
            let got = reader.rows.requests.get(rid);
            if target != index {
                if got.is_some() {
                    return Err(format!("reader {index} has rows of {rid}, which is reader {target}'s"));
                }
                continue;
            }
            let got = got.cloned().unwrap_or_default();
            if got == *expected {
                continue;
            }
            let missing = missing(&expected.ranges, &got.ranges)
                .map_err(|extra| format!("reader {index}: {rid}: tokens {extra:?} are in no journal"))?;
            let is_known = |range: &(u64, u64)| {
                let parts = lost.get(rid).map_or(&[][..], |parts| parts);
                (range.0..range.1).all(|at| parts.iter().any(|part| part.0 <= at && at < part.1))
            };
            // Frames that a dead reader had, with or without having read them, or that a dead process had sent.
            let is_lost = missing.iter().all(is_known) && (unconfirmed > 0 || !reader.counts());
            // A process that died, or that stopped on a failing disk, may have named frames as unconfirmed.
            let has_ended = !world.crashed.is_empty() || !world.lossy.is_empty() || world.stopped_on_faults;
            // A supervisor continues a dead process's connection, so nothing is in doubt.
            let is_continued = world.machine.settings.supervisor
                && world.lossy.is_empty()
                && !world.stopped_on_faults
                && reader.lives == 1;
            if is_lost || (unconfirmed > 0 && has_ended && !is_continued) {
                continue;
            }
            return Err(format!(
                "reader {index} (counts: {}, unconfirmed {unconfirmed}): {rid}: expected {expected:?}, got {got:?}",
                reader.counts()
            ));
        }
        if let Some(rid) = reader.rows.requests.keys().find(|rid| !all.requests.contains_key(*rid)) {
            return Err(format!("reader {index} has rows of {rid}, which is in no journal"));
        }
    }
    Ok(())
}

/// The ranges of `expected` that `got` lacks. `Err`: a range that is not expected.
fn missing(expected: &[(u64, u64)], got: &[(u64, u64)]) -> Result<Vec<(u64, u64)>, (u64, u64)> {
    let positions =
        |ranges: &[(u64, u64)]| ranges.iter().flat_map(|range| range.0..range.1).collect::<Vec<_>>();
    let (expected, got) = (positions(expected), positions(got));
    if let Some(extra) = got.iter().find(|at| !expected.contains(at)) {
        return Err((*extra, *extra + 1));
    }
    Ok(expected.into_iter().filter(|at| !got.contains(at)).map(|at| (at, at + 1)).collect())
}

/// The journal is whole, and its accounts balance.
fn check_journal(world: &World) -> Result<(), String> {
    let reader = JournalReader::open_on(Arc::new(world.machine.disk.clone()), Path::new(JOURNAL));
    let stream = reader.and_then(|reader| reader.stream(STREAM)).map_err(|error| error.to_string())?;
    let report = stream.verify().map_err(|error| error.to_string())?;
    // A gap is a frame that passed unread, or the death of a process that had received frames and not written them, which
    // `check_senders` has judged.
    let is_unread = !world.recorder.of::<FrameNotUnderstood>().is_empty();
    let is_gap = |problem: &&JournalProblem| {
        matches!(problem.what, ProblemKind::Gap { .. } | ProblemKind::Tokens { .. })
            && (is_unread || !world.lossy.is_empty())
    };
    // After an error of the disk, a summary may be half written. Readers skip it.
    let disk = world.machine.disk.counts();
    let has_failed = disk.failed_writes > 0 || disk.full > 0;
    let half = ProblemKind::Summary { detail: "it is damaged".to_owned() };
    let is_half = |problem: &&JournalProblem| has_failed && problem.what == half;
    let problem = report.problems.iter().find(|problem| !is_gap(problem) && !is_half(problem));
    if let Some(problem) = problem {
        return Err(format!("the journal has a problem: {problem:?}"));
    }
    for info in stream.requests(RequestFilter::default()).map_err(|error| error.to_string())? {
        let info = info.map_err(|error| error.to_string())?;
        if info.received != info.forwarded + info.dropped {
            return Err(format!("the accounts of {} do not balance: {info:?}", info.rid));
        }
    }
    Ok(())
}
