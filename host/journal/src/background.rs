//! What happens to a stream's segments off its path: they are synced, sealed with their summary, and written again
//! where a sync failed. One thread per stream; the writer hands it each segment when it begins and when it ends.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use crate::bounds::NOTICES_MAX;
use crate::clock::ClockReading;
use crate::manifest::{Manifest, ManifestFile};
use crate::mutex::lock;
use crate::notice::Notice;
use crate::options::SyncPolicy;
use crate::position::{FrameNo, SegmentId};
use crate::seal::{SegmentEnd, first_unreadable, write_end};
use crate::segment::Segment;
use crate::storage::{PART, Storage, read_full, write_all};

/// Between two attempts to write a damaged segment again.
const RETRY: Duration = Duration::from_secs(1);

/// SegmentFiles whose end is remembered. Those before are read up to what the disk says.
const LEFT_MAX: usize = 256;

/// What the writer, the sync thread and retention share of a stream.
pub(crate) struct StreamShared {
    pub storage: Arc<dyn Storage>,
    pub stream: String,
    pub dir: PathBuf,
    pub policy: SyncPolicy,
    /// The last frame that was written whole, or was given up and is told of.
    pub appended: AtomicU64,
    /// The segment written last (the upper half: its sequence), and where its whole records end.
    written: AtomicU64,
    /// Writes so far: what tells the thread that there is something to sync.
    pub writes: AtomicU64,
    pub durable: AtomicU64,
    /// The segment being written is not to be trusted: the writer must begin another.
    pub renew: AtomicBool,
    /// SegmentFiles that hold only frames before this one may be removed.
    pub floor: AtomicU64,
    /// SegmentFiles that are not done with, oldest first; the last may still be written.
    queue: Mutex<VecDeque<TrackedSegment>>,
    /// The segments left last, and where their records end: what stands past that does not count, and the disk may not
    /// say so (yet).
    left: Mutex<VecDeque<(SegmentId, u64)>>,
    /// Which segments there are, as the next start will be told.
    manifest: Mutex<ManifestFile>,
    /// The last segment that could not be given its summary, and why.
    pub unsealed: Mutex<Option<(SegmentId, String)>>,
    notices: Mutex<VecDeque<Notice>>,
    has_notices: AtomicBool,
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
    thread: OnceLock<Thread>,
    asleep: AtomicBool,
    stop: AtomicBool,
}

/// A segment in the thread's care.
#[derive(Clone)]
struct TrackedSegment {
    segment: Segment,
    /// Set when the writer is done with it.
    ended: Option<Arc<SegmentEnd>>,
    /// Its summary stands.
    sealed: bool,
    /// Its name survives a power cut.
    named: bool,
    /// A sync failed, or its file is gone: it must be written again.
    damaged: bool,
    /// It was told that this failed.
    told: bool,
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
            floor: AtomicU64::new(0),
            queue: Mutex::default(),
            left: Mutex::default(),
            manifest: Mutex::default(),
            unsealed: Mutex::default(),
            notices: Mutex::default(),
            has_notices: AtomicBool::new(false),
            wake: OnceLock::new(),
            thread: OnceLock::new(),
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        }
    }

    /// The writer wrote; `frame` is the last whole one, and the segment's records end at `end`.
    pub fn wrote(&self, frame: FrameNo, segment: SegmentId, end: u64) {
        // The end first: who sees the frame must see that it is within it.
        self.written.store(u64::from(segment.sequence) << 32 | end, SeqCst);
        self.appended.store(frame.0, SeqCst);
        if self.policy == SyncPolicy::None {
            return;
        }
        self.writes.fetch_add(1, SeqCst);
        self.rouse();
    }

    /// Where the records of a segment end, if it is the one that was written last.
    pub fn end_of(&self, segment: SegmentId) -> Option<u64> {
        let written = self.written.load(SeqCst);
        (written >> 32 == u64::from(segment.sequence) && written != u64::MAX)
            .then_some(written & u64::from(u32::MAX))
    }

    /// Where the records of a segment end that the writer has left, if that was not long ago.
    pub fn left_at(&self, id: SegmentId) -> Option<u64> {
        lock(&self.left).iter().find(|(left, _)| *left == id).map(|(_, end)| *end)
    }

    /// The writer has begun a segment.
    pub fn begun(&self, segment: Segment) {
        let entrusted =
            TrackedSegment { segment, ended: None, sealed: false, named: false, damaged: false, told: false };
        lock(&self.queue).push_back(entrusted);
    }

    /// The writer is done with the segment it began last.
    pub fn ended(&self, ended: SegmentEnd) {
        if let Some(last) = lock(&self.queue).back_mut() {
            let mut left = lock(&self.left);
            if left.len() == LEFT_MAX {
                left.pop_front();
            }
            left.push_back((last.segment.id, ended.bytes));
            last.ended = Some(Arc::new(ended));
        }
        self.writes.fetch_add(1, SeqCst);
        self.rouse();
    }

    /// Changes what the manifest says. What cannot be written now is written with the next change.
    pub fn change_manifest(&self, change: impl FnOnce(&mut Manifest)) -> io::Result<()> {
        let mut manifest = lock(&self.manifest);
        change(&mut manifest.says);
        manifest.write(&*self.storage, &self.dir)
    }

    /// Begins with what an earlier run's manifest said, brought up to date. Not written yet.
    pub fn begin_manifest(&self, says: Manifest) {
        *lock(&self.manifest) = ManifestFile::new(says);
    }

    /// The oldest segment is about to be removed. Said first, so that no start misses it.
    pub fn removing(&self, oldest: SegmentId, next: SegmentId, clock: ClockReading) -> io::Result<()> {
        let mut manifest = lock(&self.manifest);
        manifest.says.remove(oldest, next);
        manifest.says.clock = clock;
        manifest.write(&*self.storage, &self.dir)?;
        manifest.sync()
    }

    fn rouse(&self) {
        let asleep = self.asleep.load(SeqCst) && self.asleep.swap(false, SeqCst);
        if let Some(thread) = self.thread.get().filter(|_| asleep) {
            thread.unpark();
        }
    }

    pub fn on_change(&self, wake: Box<dyn Fn() + Send + Sync>) {
        // A second waker is not taken: the first stays.
        let _ = self.wake.set(wake);
    }

    pub fn tell(&self, notice: Notice) {
        let mut notices = lock(&self.notices);
        if notices.len() == NOTICES_MAX {
            notices.pop_front();
        }
        notices.push_back(notice);
        self.has_notices.store(true, SeqCst);
        drop(notices);
        self.changed();
    }

    pub fn next_notice(&self) -> Option<Notice> {
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

    /// The oldest segment that is not done with.
    pub fn oldest(&self) -> Option<SegmentId> {
        lock(&self.queue).front().map(|each| each.segment.id)
    }

    /// Whether a segment waits to be written again.
    pub fn is_damaged(&self) -> bool {
        lock(&self.queue).iter().any(|each| each.damaged)
    }

    /// Looks whether the files are still where they should be: a journal written to a removed file would be lost
    /// without an error.
    pub fn look_for_files(&self) {
        let segments: Vec<Segment> = lock(&self.queue).iter().map(|each| each.segment.clone()).collect();
        for segment in segments {
            if !segment.file.is_at(&segment.path) && self.damage(segment.id) {
                self.tell(Notice::Vanished { path: segment.path });
            }
        }
    }

    /// Marks a segment; false if it was marked before or is done with.
    fn damage(&self, id: SegmentId) -> bool {
        let mut queue = lock(&self.queue);
        let Some(entrusted) = queue.iter_mut().find(|each| each.segment.id == id) else { return false };
        if std::mem::replace(&mut entrusted.damaged, true) {
            return false;
        }
        entrusted.sealed = false;
        if entrusted.ended.is_none() {
            self.renew.store(true, SeqCst);
        }
        true
    }

    /// Does what there is to do; true if something that failed must be tried again.
    pub fn pass(&self) -> bool {
        loop {
            // Before the sync begins: what was appended by now is what it covers.
            let appended = FrameNo(self.appended.load(SeqCst));
            let Some(mut entrusted) = lock(&self.queue).front().cloned() else { return false };
            let id = entrusted.segment.id;
            let ended = entrusted.ended.clone();
            if entrusted.damaged {
                // One that is still being written is written again when the writer has left it.
                let Some(ended) = ended else { return false };
                if let Err(error) = self.rewrite(&entrusted.segment, &ended) {
                    if !std::mem::replace(&mut entrusted.told, true) {
                        self.update(&entrusted);
                        self.tell(Notice::RewriteFailed { segment: id, error: error.to_string() });
                    }
                    return true;
                }
                entrusted.damaged = false;
                self.update(&entrusted);
                self.done(id, ended.through);
                self.tell(Notice::Rewritten { segment: id });
                continue;
            }
            if let Some(ended) = &ended
                && !entrusted.sealed
            {
                if let Err(error) = write_end(&*entrusted.segment.file, &entrusted.segment.header, ended) {
                    *lock(&self.unsealed) = Some((id, error.to_string()));
                    self.tell(Notice::SealFailed { segment: id, error: error.to_string() });
                }
                entrusted.sealed = true;
            }
            if self.policy != SyncPolicy::None
                && let Err(error) = self.sync(&mut entrusted)
            {
                let durable = FrameNo(self.durable.load(SeqCst));
                self.damage(id);
                self.tell(Notice::SyncFailed { segment: id, error: error.to_string(), durable });
                // One that has ended is written again in the next round.
                continue;
            }
            match ended {
                Some(ended) => self.done(id, ended.through),
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
        entrusted.segment.file.sync()
    }

    /// The oldest segment is done with, unless its file was found missing meanwhile.
    fn done(&self, id: SegmentId, through: FrameNo) {
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

    /// Writes a segment again, byte for byte, to a new file in place of the old: after a failed sync the kernel may
    /// call pages clean that never reached the disk, so syncing the old file again would prove nothing.
    fn rewrite(&self, segment: &Segment, ended: &SegmentEnd) -> io::Result<()> {
        let beside = segment.path.with_extension(PART);
        let file = self.storage.create(&beside)?;
        let mut buffer = vec![0; 1 << 20];
        let mut offset = 0;
        while offset < ended.bytes {
            let want = buffer.len().min((ended.bytes - offset) as usize);
            let read = read_full(&*segment.file, &mut buffer[..want], offset)?;
            if read == 0 {
                break;
            }
            write_all(&*file, &mut [IoSlice::new(&buffer[..read])], offset)?;
            offset += read as u64;
        }
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
            self.tell(Notice::FramesLost { segment: segment.id, from, through: ended.through });
        }
        Ok(())
    }

    /// The thread: works until it is told to stop, and once more then.
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
