//! Removes the oldest segments of all streams in the background. Keeps every segment that a live request may
//! have a row in, that a stream asked to retain, that a follower needs, or that is the last of its stream.
//!
//! Each pass lists the directories again, so that it cannot be wrong about what exists.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::background::StreamShared;
use crate::clock::ClockReading;
use crate::confirmed::{Confirmed, Follower, SEGMENT_AGE_MAX};
use crate::error::HeldBack;
use crate::manifest::{self, ManifestFile};
use crate::mutex::lock;
use crate::notice::BackgroundNotice;
use crate::position::SegmentId;
use crate::root::Root;
use crate::seal_file;
use crate::segment_files::{self, SegmentFile};
use crate::storage::is_full;

/// Pause between two passes.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);

/// A follower and what it has confirmed.
struct Hold {
    follower: &'static str,
    confirmed: Confirmed,
}

/// Segments of a stream, oldest first, and how many of them may be removed.
struct Candidates {
    stream: String,
    dir: PathBuf,
    segments: VecDeque<SegmentFile>,
    /// Segments that the stream does not need.
    removable: usize,
    /// Segments that no follower needs.
    confirmed: usize,
}

impl Candidates {
    fn may_go(&self, is_forced: bool) -> bool {
        self.removable > 0 && (is_forced || self.confirmed > 0)
    }
}

pub(crate) fn pass(root: &Root) {
    let open: Vec<_> = lock(&root.streams).values().cloned().collect();
    for shared in &open {
        shared.check_files();
    }
    let clock = root.read_clock();
    let followers = lock(&root.followers).clone();
    if followers.iter().any(|follower| follower.needs_ended_segments) {
        open.iter().for_each(|shared| shared.end_aged(clock, SEGMENT_AGE_MAX));
    }
    let options = &root.options;
    if options.retain_bytes.is_none() && options.retain_age.is_none() {
        return;
    }
    // A file that cannot be read confirms nothing.
    let read = |follower: Follower| Hold {
        confirmed: Confirmed::read(&*root.storage, &root.dir, &follower).unwrap_or_default(),
        follower: follower.name,
    };
    let holds: Vec<Hold> = followers.into_iter().map(read).collect();
    // The next pass lists the directory again. Writers report the error.
    let Ok(entries) = root.storage.list(&root.dir) else { return };
    let names = entries.into_iter().filter(|entry| entry.is_dir).map(|entry| entry.name);
    let streams = names.filter_map(|name| candidates(root, name, &open, &holds, clock.unix_ns));
    let mut streams: Vec<Candidates> = streams.collect();
    let mut bytes: u64 =
        streams.iter().flat_map(|stream| &stream.segments).map(|segment| segment.bytes).sum();
    loop {
        let is_over = options.retain_bytes.is_some_and(|retain| bytes > retain);
        // Segments that a follower needs go last, and only because of the size.
        let is_forced =
            is_over && options.removes_unconfirmed && !streams.iter().any(|stream| stream.may_go(false));
        let removable = streams.iter_mut().filter(|stream| stream.may_go(is_forced));
        let Some(stream) = removable.min_by_key(|stream| stream.segments[0].modified_unix_ns) else { break };
        let oldest = &stream.segments[0];
        // Uses the smaller age, so that setting the clock forward makes nothing old.
        let age = Duration::from_nanos(clock.age_ns(oldest.modified_unix_ns));
        let expired = options.retain_age.is_some_and(|retain| age > retain);
        if !expired && !is_over {
            break;
        }
        let path = stream.dir.join(oldest.id.to_string());
        let next = stream.segments.get(1).map(|next| next.id);
        let recorded =
            next.map_or(Ok(()), |next| record_removal(root, stream, &open, (oldest.id, next), clock));
        // A full disk that refuses the manifest needs the removal all the more.
        let removed = match recorded {
            Err(error) if !is_full(&error) => Err(error),
            _ => root
                .storage
                .remove(&path)
                .and_then(|()| seal_file::remove(&*root.storage, &stream.dir, oldest.id)),
        };
        match removed {
            Ok(()) => {
                bytes -= oldest.bytes;
                root.push_notice(&stream.stream, removal(&holds, &stream.stream, oldest));
                stream.segments.pop_front();
                stream.removable -= 1;
                stream.confirmed = stream.confirmed.saturating_sub(1);
            }
            Err(error) => {
                let error = error.to_string();
                root.push_notice(&stream.stream, BackgroundNotice::RemoveFailed { path, error });
                stream.removable = 0;
            }
        }
    }
    let Some(limit) = options.retain_bytes else { return };
    let over = bytes > limit;
    // Segments that would go if no follower needed them.
    let held = streams.iter().filter(|stream| stream.may_go(true) && !stream.may_go(false));
    let held: Vec<_> = held.map(|stream| (stream.stream.as_str(), stream.segments[0].id)).collect();
    let held_back = (over && !options.removes_unconfirmed && !held.is_empty()).then(|| {
        let followers =
            named(holds.iter().filter(|hold| held.iter().any(|(of, id)| hold.confirmed.needs(of, *id))));
        HeldBack { bytes, limit, followers }
    });
    if held_back.is_some() {
        // The segments that are being written may have the end of the requests that the followers wait for.
        open.iter().for_each(|shared| shared.end_written());
    }
    root.set_held_back(held_back);
    if !root.over_budget.swap(over, Ordering::Relaxed) && over {
        for shared in &open {
            shared.push_notice(BackgroundNotice::OverBudget { bytes, limit });
        }
    }
}

/// The notice of a removal, with the followers that had not confirmed the segment.
fn removal(holds: &[Hold], stream: &str, segment: &SegmentFile) -> BackgroundNotice {
    let lacking = holds.iter().filter(|hold| hold.confirmed.needs(stream, segment.id));
    let (stream, followers) = (stream.to_owned(), named(lacking));
    let SegmentFile { id: segment, bytes, .. } = *segment;
    match followers.is_empty() {
        true => BackgroundNotice::Removed { stream, segment, bytes },
        false => BackgroundNotice::RemovedUnconfirmed { stream, segment, bytes, followers },
    }
}

fn named<'a>(holds: impl Iterator<Item = &'a Hold>) -> String {
    let names: BTreeSet<&str> = holds.map(|hold| hold.follower).collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// Records in the stream's manifest that its oldest segment is removed and `next` follows.
fn record_removal(
    root: &Root,
    stream: &Candidates,
    open: &[Arc<StreamShared>],
    (oldest, next): (SegmentId, SegmentId),
    clock: ClockReading,
) -> io::Result<()> {
    if let Some(shared) = open.iter().find(|shared| shared.stream == stream.stream) {
        return shared.record_removal(oldest, next, clock);
    }
    // The stream has no writer.
    let Some(mut content) = manifest::read(&*root.storage, &stream.dir) else { return Ok(()) };
    content.remove(oldest, next);
    content.clock = clock;
    let mut file = ManifestFile::new(content);
    file.write(&*root.storage, &stream.dir)?;
    file.file.map_or(Ok(()), |file| file.sync())
}

fn candidates(
    root: &Root,
    stream: String,
    open: &[Arc<StreamShared>],
    holds: &[Hold],
    now: u64,
) -> Option<Candidates> {
    let dir = root.dir.join(&stream);
    let segments = segment_files::list(&*root.storage, &dir).ok()?;
    let newest = segments.last()?.modified_unix_ns;
    let (floor, in_care) = match open.iter().find(|shared| shared.stream == stream) {
        Some(shared) => (shared.floor.load(Ordering::Relaxed), shared.oldest()),
        // The stream has no writer. Its live requests are abandoned after the same time as in other streams.
        None if now.saturating_sub(newest) > root.options.abandon_after_ns() => (u64::MAX, None),
        None => (0, None),
    };
    let may_go = |pair: &&[SegmentFile]| {
        // All frames of a segment come before the first frame of the next.
        pair[1].id.first.0 <= floor && in_care.is_none_or(|oldest| pair[0].id < oldest)
    };
    let removable = segments.windows(2).take_while(may_go).count();
    let is_confirmed =
        |segment: &&SegmentFile| !holds.iter().any(|hold| hold.confirmed.needs(&stream, segment.id));
    let confirmed = segments.iter().take_while(is_confirmed).count();
    Some(Candidates { stream, dir, segments: segments.into(), removable, confirmed })
}
