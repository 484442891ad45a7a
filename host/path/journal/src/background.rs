//! Background work on a stream's segments: syncing, summaries, and rewriting after a failed sync. One thread
//! per stream. The writer hands over each segment when it begins and when it ends.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::bounds::NOTICES_MAX;
use crate::clock::ClockReading;
use crate::manifest::{Manifest, ManifestFile};
use crate::mutex::lock;
use crate::notice::BackgroundNotice;
use crate::options::SyncPolicy;
use crate::position::{FrameNo, SegmentId};
use crate::segment::Segment;
use crate::segment_end::{SegmentEnd, first_unreadable, write_end};
use crate::storage::{self, PART, Storage};

/// Pause between two attempts to rewrite a damaged segment.
const RETRY: Duration = Duration::from_secs(1);

/// Segments whose end is remembered. The end of older segments is read from the disk.
const LEFT_MAX: usize = 256;

/// State that the writer, the background thread, retention and backlog readers of a stream share.
pub(crate) struct StreamShared {
    pub storage: Arc<dyn Storage>,
    pub stream: String,
    pub dir: PathBuf,
    pub policy: SyncPolicy,
    /// Last frame that was written or skipped.
    pub appended: AtomicU64,
    /// Segment written last (upper 32 bits: its sequence), and the end of its records.
    written: AtomicU64,
    /// Number of writes. A change tells the thread that there is something to sync.
    pub writes: AtomicU64,
    pub durable: AtomicU64,
    /// Set if the current segment is damaged: the writer must begin another.
    pub renew: AtomicBool,
    /// Set if the writer is to end the current segment: an erasure rewrites only segments that are ended.
    pub must_end: AtomicBool,
    /// Retention may remove segments that hold only frames before this one.
    pub floor: AtomicU64,
    /// The segment that has records since it was begun, and when retention first saw that, unix nanoseconds.
    filling: Mutex<Option<(SegmentId, u64)>>,
    /// Segments that need work, oldest first. The last one may still be written.
    queue: Mutex<VecDeque<TrackedSegment>>,
    /// Segments that the writer left recently, and the ends of their records. Bytes past an end do not count,
    /// and the disk may not show the end yet.
    recent_ends: Mutex<VecDeque<(SegmentId, u64)>>,
    /// Segments that the next start expects.
    manifest: Mutex<ManifestFile>,
    /// Last segment that got no summary, and the error.
    pub no_summary: Mutex<Option<(SegmentId, String)>>,
    notices: Mutex<VecDeque<BackgroundNotice>>,
    has_notices: AtomicBool,
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
    on_sync: OnceLock<Box<dyn Fn(Duration) + Send + Sync>>,
    thread: OnceLock<Thread>,
    asleep: AtomicBool,
    stop: AtomicBool,
}

/// A segment that the background thread works on.
#[derive(Clone)]
struct TrackedSegment {
    segment: Segment,
    /// End of the records with which the segment was begun.
    begins: u64,
    /// Set once the writer has left the segment.
    ended: Option<Arc<SegmentEnd>>,
    /// Whether the summary is written.
    has_end: bool,
    /// Whether the file's name survives a power cut.
    named: bool,
    /// Whether the segment must be rewritten: a sync failed, or its file is missing.
    damaged: bool,
    /// Whether the failure of a rewrite was published.
    failure_reported: bool,
}

impl StreamShared {
    pub fn new(
        storage: Arc<dyn Storage>,
        stream: &str,
        dir: PathBuf,
        policy: SyncPolicy,
        last: FrameNo,
    ) -> StreamShared {
        StreamShared {
            storage,
            stream: stream.into(),
            dir,
            policy,
            appended: AtomicU64::new(last.0),
            written: AtomicU64::new(u64::MAX),
            writes: AtomicU64::new(0),
            durable: AtomicU64::new(if policy == SyncPolicy::None { 0 } else { last.0 }),
            renew: AtomicBool::new(false),
            must_end: AtomicBool::new(false),
            floor: AtomicU64::new(0),
            filling: Mutex::default(),
            queue: Mutex::default(),
            recent_ends: Mutex::default(),
            manifest: Mutex::default(),
            no_summary: Mutex::default(),
            notices: Mutex::default(),
            has_notices: AtomicBool::new(false),
            wake: OnceLock::new(),
            on_sync: OnceLock::new(),
            thread: OnceLock::new(),
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        }
    }

    /// Records a write: `frame` is the last complete frame, and the segment's records end at `end`.
    pub fn wrote(&self, frame: FrameNo, segment: SegmentId, end: u64) {
        // Store the end first: a thread that sees the frame must find it before the end.
        self.written.store(u64::from(segment.sequence) << 32 | end, SeqCst);
        self.appended.store(frame.0, SeqCst);
        if self.policy == SyncPolicy::None {
            return;
        }
        self.writes.fetch_add(1, SeqCst);
        self.wake_thread();
    }

    /// End of the records of `segment` if it was written last.
    pub fn end_of_current_segment(&self, segment: SegmentId) -> Option<u64> {
        let written = self.written.load(SeqCst);
        (written >> 32 == u64::from(segment.sequence) && written != u64::MAX)
            .then_some(written & u64::from(u32::MAX))
    }

    /// End of the records of a segment that the writer left recently.
    pub fn end_of_left_segment(&self, id: SegmentId) -> Option<u64> {
        lock(&self.recent_ends).iter().find(|(recent_ends, _)| *recent_ends == id).map(|(_, end)| *end)
    }

    /// Adds a segment that the writer has begun. `begins` is the end of the records with which it was begun.
    pub fn begun(&self, segment: Segment, begins: u64) {
        let entrusted = TrackedSegment {
            segment,
            begins,
            ended: None,
            has_end: false,
            named: false,
            damaged: false,
            failure_reported: false,
        };
        lock(&self.queue).push_back(entrusted);
    }

    /// Ends the segment that was begun last.
    pub fn ended(&self, ended: SegmentEnd) {
        if let Some(last) = lock(&self.queue).back_mut() {
            let mut recent_ends = lock(&self.recent_ends);
            if recent_ends.len() == LEFT_MAX {
                recent_ends.pop_front();
            }
            recent_ends.push_back((last.segment.id, ended.bytes));
            last.ended = Some(Arc::new(ended));
        }
        self.writes.fetch_add(1, SeqCst);
        self.wake_thread();
    }

    /// Changes the manifest and writes it. A failed write is repeated with the next change.
    pub fn change_manifest(&self, change: impl FnOnce(&mut Manifest)) -> io::Result<()> {
        let mut manifest = lock(&self.manifest);
        change(&mut manifest.content);
        manifest.write(&*self.storage, &self.dir)
    }

    /// Sets the manifest that recovery found, without writing it.
    pub fn begin_manifest(&self, content: Manifest) {
        *lock(&self.manifest) = ManifestFile::new(content);
    }

    /// Records in the manifest that the oldest segment is about to be removed, so that no start misses it.
    pub fn record_removal(&self, oldest: SegmentId, next: SegmentId, clock: ClockReading) -> io::Result<()> {
        let mut manifest = lock(&self.manifest);
        manifest.content.remove(oldest, next);
        manifest.content.clock = clock;
        manifest.write(&*self.storage, &self.dir)?;
        let file = manifest.file.clone();
        // The writer begins segments during the sync.
        drop(manifest);
        file.map_or(Ok(()), |file| file.sync())
    }

    fn wake_thread(&self) {
        let asleep = self.asleep.load(SeqCst) && self.asleep.swap(false, SeqCst);
        if let Some(thread) = self.thread.get().filter(|_| asleep) {
            thread.unpark();
        }
    }

    pub fn on_change(&self, wake: Box<dyn Fn() + Send + Sync>) {
        // The first waker stays.
        let _ = self.wake.set(wake);
    }

    pub fn on_sync(&self, synced: Box<dyn Fn(Duration) + Send + Sync>) {
        // The first one stays.
        let _ = self.on_sync.set(synced);
    }

    pub fn push_notice(&self, notice: BackgroundNotice) {
        let mut notices = lock(&self.notices);
        if notices.len() == NOTICES_MAX {
            notices.pop_front();
        }
        notices.push_back(notice);
        self.has_notices.store(true, SeqCst);
        drop(notices);
        self.changed();
    }

    pub fn next_notice(&self) -> Option<BackgroundNotice> {
        if !self.has_notices.load(SeqCst) {
            return None;
        }
        let mut notices = lock(&self.notices);
        let notice = notices.pop_front();
        self.has_notices.store(!notices.is_empty(), SeqCst);
        notice
    }

    fn changed(&self) {
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }

    /// Asks the writer to end its segment if records came that are as old as this.
    pub fn end_aged(&self, clock: ClockReading, age_max: Duration) {
        let mut filling = lock(&self.filling);
        let Some(written) = self.written_segment() else { return *filling = None };
        let (_, since) = filling.take_if(|(id, _)| *id == written).unwrap_or((written, clock.unix_ns));
        *filling = Some((written, since));
        drop(filling);
        if Duration::from_nanos(clock.age_ns(since)) >= age_max {
            self.end_segment();
        }
    }

    /// Asks the writer to end its segment if records were written to it since it was begun.
    pub fn end_written(&self) {
        if self.written_segment().is_some() {
            self.end_segment();
        }
    }

    /// The segment that is being written, if it has more than the records with which it was begun.
    fn written_segment(&self) -> Option<SegmentId> {
        let queue = lock(&self.queue);
        let current = queue.back().filter(|each| each.ended.is_none())?;
        let id = current.segment.id;
        self.end_of_current_segment(id).filter(|end| *end > current.begins).map(|_| id)
    }

    /// Asks the writer to end the current segment, also if the stream is idle.
    pub fn end_segment(&self) {
        self.must_end.store(true, SeqCst);
        self.changed();
    }

    /// Asks the writer to end this segment, unless the writer has left it.
    pub fn end_this_segment(&self, id: SegmentId) {
        if lock(&self.queue).back().is_some_and(|last| last.segment.id == id && last.ended.is_none()) {
            self.end_segment();
        }
    }

    /// Whether the segment is written, or waits for its summary or its sync.
    pub fn is_tracked(&self, id: SegmentId) -> bool {
        lock(&self.queue).iter().any(|each| each.segment.id == id)
    }

    /// Oldest segment that needs work.
    pub fn oldest(&self) -> Option<SegmentId> {
        lock(&self.queue).front().map(|each| each.segment.id)
    }

    /// Whether a segment must be rewritten.
    pub fn is_damaged(&self) -> bool {
        lock(&self.queue).iter().any(|each| each.damaged)
    }

    /// Checks that the files are still at their paths. Writes to a removed file would be lost without an
    /// error.
    pub fn check_files(&self) {
        let segments: Vec<Segment> = lock(&self.queue).iter().map(|each| each.segment.clone()).collect();
        for segment in segments {
            if !segment.file.is_at(&segment.path) && self.mark_damaged(segment.id) {
                self.push_notice(BackgroundNotice::Vanished { path: segment.path });
            }
        }
    }

    /// Marks a segment as damaged. Returns false if it was marked before or needs no more work.
    fn mark_damaged(&self, id: SegmentId) -> bool {
        let mut queue = lock(&self.queue);
        let Some(entrusted) = queue.iter_mut().find(|each| each.segment.id == id) else { return false };
        if std::mem::replace(&mut entrusted.damaged, true) {
            return false;
        }
        entrusted.has_end = false;
        if entrusted.ended.is_none() {
            self.renew.store(true, SeqCst);
        }
        true
    }

    /// Does all pending work. Returns true if a failed step must be retried.
    pub fn pass(&self) -> bool {
        loop {
            // Read before the sync begins: the sync covers frames appended by now.
            let appended = FrameNo(self.appended.load(SeqCst));
            let Some(mut entrusted) = lock(&self.queue).front().cloned() else { return false };
            let id = entrusted.segment.id;
            let ended = entrusted.ended.clone();
            if entrusted.damaged {
                // The writer must leave the segment first.
                let Some(ended) = ended else { return false };
                if let Err(error) = self.rewrite(&entrusted.segment, &ended) {
                    if !std::mem::replace(&mut entrusted.failure_reported, true) {
                        self.update(&entrusted);
                        self.push_notice(BackgroundNotice::RewriteFailed {
                            segment: id,
                            error: error.to_string(),
                        });
                    }
                    return true;
                }
                entrusted.damaged = false;
                self.update(&entrusted);
                self.finish_segment(id, ended.through);
                self.push_notice(BackgroundNotice::Rewritten { segment: id });
                continue;
            }
            if let Some(ended) = &ended
                && !entrusted.has_end
            {
                if let Err(error) = write_end(&*entrusted.segment.file, &entrusted.segment.header, ended) {
                    *lock(&self.no_summary) = Some((id, error.to_string()));
                    self.push_notice(BackgroundNotice::SummaryFailed {
                        segment: id,
                        error: error.to_string(),
                    });
                }
                entrusted.has_end = true;
            }
            if self.policy != SyncPolicy::None
                && let Err(error) = self.sync(&mut entrusted)
            {
                let durable = FrameNo(self.durable.load(SeqCst));
                self.mark_damaged(id);
                self.push_notice(BackgroundNotice::SyncFailed {
                    segment: id,
                    error: error.to_string(),
                    durable,
                });
                // The next round rewrites a segment that has ended.
                continue;
            }
            match ended {
                Some(ended) => self.finish_segment(id, ended.through),
                None => {
                    self.update(&entrusted);
                    self.advance(appended);
                    return false;
                }
            }
        }
    }

    fn sync(&self, entrusted: &mut TrackedSegment) -> io::Result<()> {
        if !entrusted.named {
            self.storage.sync_dir(&self.dir)?;
            entrusted.named = true;
        }
        let started = Instant::now();
        let synced = entrusted.segment.file.sync();
        if let Some(on_sync) = self.on_sync.get() {
            on_sync(started.elapsed());
        }
        synced
    }

    /// Removes the oldest segment from the queue, unless its file was found missing meanwhile.
    fn finish_segment(&self, id: SegmentId, through: FrameNo) {
        let done = lock(&self.queue).pop_front_if(|first| first.segment.id == id && !first.damaged);
        if done.is_some() {
            self.advance(through);
        }
    }

    fn advance(&self, through: FrameNo) {
        if self.policy != SyncPolicy::None && self.durable.fetch_max(through.0, SeqCst) < through.0 {
            self.changed();
        }
    }

    fn update(&self, entrusted: &TrackedSegment) {
        let mut queue = lock(&self.queue);
        if let Some(known) = queue.front_mut().filter(|known| known.segment.id == entrusted.segment.id) {
            let ended = known.ended.take();
            *known = TrackedSegment { ended, ..entrusted.clone() };
        }
    }

    /// Rewrites a segment to a new file in place of the old. After a failed sync the kernel may mark pages
    /// clean that never reached the disk, so another sync of the old file would prove nothing.
    fn rewrite(&self, segment: &Segment, ended: &SegmentEnd) -> io::Result<()> {
        let beside = segment.path.with_extension(PART);
        let file = self.storage.create(&beside)?;
        storage::copy(&*segment.file, &*file, ended.bytes, || true)?;
        let copy = Segment { file, ..segment.clone() };
        let whole = first_unreadable(&copy, ended)?;
        write_end(&*copy.file, &copy.header, ended)?;
        if self.policy != SyncPolicy::None {
            copy.file.sync()?;
        }
        self.storage.rename(&beside, &segment.path)?;
        if self.policy != SyncPolicy::None {
            self.storage.sync_dir(&self.dir)?;
        }
        if let Some(from) = whole {
            self.push_notice(BackgroundNotice::FramesLost {
                segment: segment.id,
                from,
                through: ended.through,
            });
        }
        Ok(())
    }

    /// Body of the thread: works until `stop`, and once more after it.
    pub fn run(&self) {
        let _ = self.thread.set(std::thread::current());
        let mut done = 0;
        loop {
            let stopping = self.stop.load(SeqCst);
            let writes = self.writes.load(SeqCst);
            let again = (writes != done || self.is_damaged()) && self.pass();
            done = writes;
            if stopping {
                return;
            }
            if again {
                std::thread::park_timeout(RETRY);
                continue;
            }
            self.asleep.store(true, SeqCst);
            if self.writes.load(SeqCst) == done && !self.stop.load(SeqCst) {
                std::thread::park();
            }
            self.asleep.store(false, SeqCst);
            if let SyncPolicy::Interval(interval) = self.policy
                && !self.stop.load(SeqCst)
            {
                std::thread::park_timeout(interval);
            }
        }
    }

    pub fn stop(&self) {
        self.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}
