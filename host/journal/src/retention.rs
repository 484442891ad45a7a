//! Removes the oldest segments of all streams, off every path. Never one that a live request may have a row in, nor one
//! that a stream asked to keep, nor a stream's last.
//!
//! It keeps no list of its own: each pass looks at the directory, so it cannot be wrong about what is there.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::directory::Root;
use crate::notice::Notice;
use crate::segment::{self, Listed};
use crate::sync::{Shared, lock};
use crate::writer::nanoseconds;

/// Between two passes.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);

/// A stream's segments, oldest first, and how many of them may go.
struct Candidates {
    stream: String,
    dir: PathBuf,
    segments: VecDeque<Listed>,
    removable: usize,
}

pub(crate) fn pass(root: &Root) {
    let open: Vec<_> = lock(&root.streams).values().cloned().collect();
    for shared in &open {
        shared.look_for_files();
    }
    let options = &root.options;
    if options.retain_bytes.is_none() && options.retain_age.is_none() {
        return;
    }
    let now = root.storage.now_unix_ns();
    // A directory that cannot be read now is read in the next pass; the writers tell of it.
    let Ok(entries) = root.storage.list(&root.dir) else { return };
    let names = entries.into_iter().filter(|entry| entry.is_dir).map(|entry| entry.name);
    let mut streams: Vec<Candidates> = names.filter_map(|name| candidates(root, name, &open, now)).collect();
    let mut bytes: u64 =
        streams.iter().flat_map(|stream| &stream.segments).map(|segment| segment.bytes).sum();
    loop {
        let removable = streams.iter_mut().filter(|stream| stream.removable > 0);
        let Some(stream) = removable.min_by_key(|stream| stream.segments[0].modified_unix_ns) else { break };
        let oldest = &stream.segments[0];
        let age = Duration::from_nanos(now.saturating_sub(oldest.modified_unix_ns));
        let expired = options.retain_age.is_some_and(|retain| age > retain);
        if !expired && options.retain_bytes.is_none_or(|retain| bytes <= retain) {
            break;
        }
        let path = stream.dir.join(oldest.id.to_string());
        match root.storage.remove(&path) {
            Ok(()) => {
                bytes -= oldest.bytes;
                let removed = Notice::Removed {
                    stream: stream.stream.clone(),
                    segment: oldest.id,
                    bytes: oldest.bytes,
                };
                tell(&open, &stream.stream, removed);
                stream.segments.pop_front();
                stream.removable -= 1;
            }
            Err(error) => {
                tell(&open, &stream.stream, Notice::RemoveFailed { path, error: error.to_string() });
                stream.removable = 0;
            }
        }
    }
    if let Some(limit) = options.retain_bytes {
        let over = bytes > limit;
        if !root.over_budget.swap(over, Ordering::Relaxed) && over {
            for shared in &open {
                shared.tell(Notice::OverBudget { bytes, limit });
            }
        }
    }
}

fn candidates(root: &Root, stream: String, open: &[Arc<Shared>], now: u64) -> Option<Candidates> {
    let dir = root.dir.join(&stream);
    let segments = segment::list(&*root.storage, &dir).ok()?;
    let newest = segments.last()?.modified_unix_ns;
    let (floor, in_care) = match open.iter().find(|shared| shared.stream == stream) {
        Some(shared) => (shared.floor.load(Ordering::Relaxed), shared.oldest()),
        // Nobody writes it: what was live in it is given up after the same time as in any other.
        None if now.saturating_sub(newest) > nanoseconds(root.options.abandon_after) => (u64::MAX, None),
        None => (0, None),
    };
    let may_go = |pair: &&[Listed]| {
        // All frames of a segment come before the first of the next.
        pair[1].id.first.0 <= floor && in_care.is_none_or(|oldest| pair[0].id < oldest)
    };
    let removable = segments.windows(2).take_while(may_go).count();
    Some(Candidates { stream, dir, segments: segments.into(), removable })
}

/// Tells the stream concerned, or the first there is.
fn tell(open: &[Arc<Shared>], stream: &str, notice: Notice) {
    if let Some(shared) = open.iter().find(|shared| shared.stream == stream).or(open.first()) {
        shared.tell(notice);
    }
}
