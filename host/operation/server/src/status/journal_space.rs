//! The journal's bytes, how fast they grow, and the room that is left for them.

use afterbay_journal::{JournalDirectory, SegmentId};
use std::collections::BTreeMap;
use std::time::Instant;

/// The journal's directory at one look.
#[derive(Clone, Debug)]
pub(super) struct JournalSpace {
    at: Instant,
    streams: BTreeMap<String, StreamSpace>,
    /// Bytes that the disk has free for this user.
    disk_free: Option<u64>,
}

/// The segments of one stream.
#[derive(Clone, Debug, Default)]
struct StreamSpace {
    segments: BTreeMap<SegmentId, u64>,
    /// Bytes that the segments ever grew by, those removed since included.
    grown: u64,
}

impl StreamSpace {
    fn after(before: Option<&StreamSpace>, segments: Vec<(SegmentId, u64)>) -> StreamSpace {
        let segments = BTreeMap::from_iter(segments);
        let Some(before) = before else { return StreamSpace { segments, grown: 0 } };
        let known = |id| before.segments.get(id).copied().unwrap_or(0);
        let growth = segments.iter().map(|(id, bytes)| bytes.saturating_sub(known(id)));
        let grown = before.grown + growth.sum::<u64>();
        StreamSpace { segments, grown }
    }
}

/// The first limit that a growing journal meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Limit {
    /// `journal.retain.bytes`: from there on, the oldest segments are removed.
    Retain,
    /// The free space of the disk.
    Disk,
}

impl JournalSpace {
    /// A directory that nobody has looked at.
    pub(super) fn new(now: Instant) -> JournalSpace {
        JournalSpace { at: now, streams: BTreeMap::new(), disk_free: None }
    }

    /// The next look. A stream that cannot be listed stays as it was.
    pub(super) fn look(&self, directory: &JournalDirectory, now: Instant) -> JournalSpace {
        let disk = rustix::fs::statvfs(directory.path()).ok();
        let disk_free = disk.map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize)).or(self.disk_free);
        let streams = directory.open_streams().into_iter().filter_map(|stream| {
            let before = self.streams.get(&stream);
            let looked = match directory.segments(&stream) {
                Ok(segments) => StreamSpace::after(before, segments),
                Err(_) => before?.clone(),
            };
            Some((stream, looked))
        });
        JournalSpace { at: now, streams: streams.collect(), disk_free }
    }

    /// Bytes of a stream's segments.
    pub(super) fn bytes(&self, stream: &str) -> u64 {
        self.streams.get(stream).map_or(0, |stream| stream.segments.values().sum())
    }

    /// Bytes of all streams' segments.
    pub(super) fn bytes_of_all(&self) -> u64 {
        self.streams.keys().map(|stream| self.bytes(stream)).sum()
    }

    /// Bytes per second by which a stream's segments grew since an earlier look; 0 without one.
    pub(super) fn rate(&self, before: &JournalSpace, stream: &str) -> f64 {
        let grown = match (self.streams.get(stream), before.streams.get(stream)) {
            (Some(after), Some(before)) => after.grown.saturating_sub(before.grown),
            _ => 0,
        };
        let seconds = self.at.saturating_duration_since(before.at).as_secs_f64();
        if seconds > 0.0 { grown as f64 / seconds } else { 0.0 }
    }

    /// Bytes per second by which all streams' segments grew since an earlier look.
    pub(super) fn rate_of_all(&self, before: &JournalSpace) -> f64 {
        self.streams.keys().map(|stream| self.rate(before, stream)).sum()
    }

    /// The bytes that are left until the journal meets a limit, and that limit. `None` if neither limit is known.
    pub(super) fn room(&self, retain_bytes: Option<u64>) -> Option<(u64, Limit)> {
        let retain = retain_bytes.map(|max| (max.saturating_sub(self.bytes_of_all()), Limit::Retain));
        let disk = self.disk_free.map(|free| (free, Limit::Disk));
        retain.into_iter().chain(disk).min_by_key(|(left, _)| *left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterbay_journal::FrameNo;
    use std::time::Duration;

    /// The space after `before`, with these segments of one stream: first frame and bytes.
    fn space(before: &JournalSpace, segments: &[(u64, u64)], seconds: u64) -> JournalSpace {
        let id = |first| SegmentId { first: FrameNo(first), sequence: 1 };
        let segments = segments.iter().map(|(first, bytes)| (id(*first), *bytes)).collect();
        let stream = StreamSpace::after(before.streams.get("a"), segments);
        let (at, streams) =
            (before.at + Duration::from_secs(seconds), BTreeMap::from([("a".to_owned(), stream)]));
        JournalSpace { at, streams, disk_free: None }
    }

    #[test]
    fn the_growth_counts_new_bytes_also_while_retention_removes_old_ones() {
        let new = JournalSpace::new(Instant::now());
        let first = space(&new, &[(1, 100), (9, 50)], 1);
        assert_eq!((first.bytes("a"), first.rate(&new, "a")), (150, 0.0));
        let next = space(&first, &[(9, 70), (20, 5)], 5);
        assert_eq!((next.bytes("a"), next.rate(&first, "a"), next.rate_of_all(&first)), (75, 5.0, 5.0));
        assert_eq!((next.bytes("other"), next.rate(&first, "other")), (0, 0.0));
    }

    #[test]
    fn the_room_ends_at_the_nearer_of_the_two_limits() {
        let space = space(&JournalSpace::new(Instant::now()), &[(1, 100)], 1);
        let room = |disk_free, retain| JournalSpace { disk_free, ..space.clone() }.room(retain);
        assert_eq!(room(Some(1000), Some(300)), Some((200, Limit::Retain)));
        assert_eq!(room(Some(100), Some(300)), Some((100, Limit::Disk)));
        assert_eq!(room(Some(1000), Some(50)), Some((0, Limit::Retain)));
        assert_eq!(room(Some(1000), None), Some((1000, Limit::Disk)));
        assert_eq!(room(None, None), None);
    }
}
