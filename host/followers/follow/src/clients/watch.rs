//! The requests that clients read now: what leaves of them is kept for a moment, for all readers of a request together.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use afterbay_journal::FrameNo;
use afterbay_journal_view::sent_rows::SentRow;
use tokio::sync::watch;

/// Bytes of ids and texts of one request that are kept. A reader that is further behind reads the journal.
const KEPT_BYTES_MAX: usize = 32 << 10;
/// Bytes of a row beside its ids and its text.
const ROW_BYTES: usize = size_of::<SentRow>();

/// The watched requests of all streams.
#[derive(Debug, Default)]
pub(super) struct Watches(Mutex<HashMap<String, HashMap<u64, Weak<Watch>>>>);

/// A request that somebody reads.
#[derive(Debug)]
pub(super) struct Watch {
    /// The stored form of its rid.
    pub(super) rid: String,
    /// Whether the request has a lease, which its readers renew.
    has_lease: bool,
    recent: Mutex<Recent>,
    changed: watch::Sender<()>,
}

/// The rows that left last.
#[derive(Debug, Default)]
struct Recent {
    rows: VecDeque<SentRow>,
    bytes: usize,
    /// Rows up to this frame were removed, or were never here.
    removed: FrameNo,
    has_ended: bool,
}

/// The news for a reader.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Rows behind the reader's place, maybe none, and whether the request has ended behind them.
    Rows(Vec<SentRow>, bool),
    /// Rows up to this frame are in the journal only.
    Behind(FrameNo),
}

impl Watches {
    /// Begins to keep what leaves of a request. It ends when nobody has the answer any more.
    pub(super) fn watch(&self, stream: &str, number: u64, rid: &str, has_lease: bool) -> Arc<Watch> {
        let mut streams = self.lock();
        let requests = streams.entry(stream.to_owned()).or_default();
        if let Some(known) = requests.get(&number).and_then(Weak::upgrade) {
            return known;
        }
        let (rid, recent, changed) = (rid.to_owned(), Mutex::default(), watch::Sender::new(()));
        let watch = Arc::new(Watch { rid, has_lease, recent, changed });
        requests.insert(number, Arc::downgrade(&watch));
        watch
    }

    /// The watched requests of a stream by their numbers.
    pub(super) fn of_stream(&self, stream: &str) -> HashMap<u64, Arc<Watch>> {
        let mut streams = self.lock();
        let Some(requests) = streams.get_mut(stream) else { return HashMap::new() };
        let mut watched = HashMap::with_capacity(requests.len());
        requests.retain(|number, watch| {
            let watch = watch.upgrade();
            watch.map(|watch| watched.insert(*number, watch)).is_some()
        });
        watched
    }

    /// The rids of live requests with a lease that somebody reads.
    pub(super) fn leased(&self) -> Vec<String> {
        let streams = self.lock();
        let watched = streams.values().flat_map(HashMap::values).filter_map(Weak::upgrade);
        let live = watched.filter(|watch| watch.has_lease && !watch.lock().has_ended);
        live.map(|watch| watch.rid.clone()).collect()
    }

    /// Rows of a stream up to this frame may have been missed: they are in the journal only.
    pub(super) fn miss(&self, stream: &str, last: FrameNo) {
        for watch in self.of_stream(stream).values() {
            let mut recent = watch.lock();
            while let Some(oldest) = recent.rows.pop_front_if(|oldest| oldest.frame <= last) {
                recent.bytes -= bytes(&oldest);
            }
            recent.removed = recent.removed.max(last);
            watch.changed.send_replace(());
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, HashMap<u64, Weak<Watch>>>> {
        // No code panics with a half-written value.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// Adds a row that left, unless it is known: a stream may be read again.
    pub(super) fn push(&self, row: SentRow) {
        let mut recent = self.lock();
        if row.frame <= recent.rows.back().map_or(recent.removed, |last| last.frame) {
            return;
        }
        recent.has_ended |= row.end.is_some();
        recent.bytes += bytes(&row);
        recent.rows.push_back(row);
        while recent.bytes > KEPT_BYTES_MAX
            && recent.rows.len() > 1
            && let Some(oldest) = recent.rows.pop_front()
        {
            recent.bytes -= bytes(&oldest);
            recent.removed = oldest.frame;
        }
        drop(recent);
        self.changed.send_replace(());
    }

    /// Nothing leaves of the request any more.
    pub(super) fn end(&self) {
        self.lock().has_ended = true;
        self.changed.send_replace(());
    }

    /// A receiver of changes, for [`Watch::after`].
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The rows that left behind this frame.
    pub(super) fn after(&self, frame: FrameNo) -> News {
        let recent = self.lock();
        if recent.removed > frame {
            return News::Behind(recent.removed);
        }
        let from = recent.rows.partition_point(|row| row.frame <= frame);
        News::Rows(recent.rows.range(from..).cloned().collect(), recent.has_ended)
    }

    fn lock(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes(row: &SentRow) -> usize {
    ROW_BYTES + size_of_val(row.ids.as_slice()) + row.text.as_ref().map_or(0, String::len)
}

#[cfg(test)]
mod tests {
    use afterbay_journal_view::sent_rows::ReaderEnd;

    use super::*;

    fn row(frame: u64, ids: usize) -> SentRow {
        SentRow { frame: FrameNo(frame), ids: vec![7; ids], ..SentRow::default() }
    }

    fn frames(news: News) -> (Vec<u64>, bool) {
        let News::Rows(rows, has_ended) = news else { panic!("{news:?}") };
        (rows.iter().map(|row| row.frame.0).collect(), has_ended)
    }

    #[test]
    fn all_readers_of_a_request_share_what_left_last() {
        let watches = Watches::default();
        let (one, other) = (watches.watch("a", 7, "r", true), watches.watch("a", 7, "r", true));
        let _without = watches.watch("a", 8, "s", false);
        assert_eq!(watches.leased(), ["r"]);
        watches.of_stream("a")[&7].push(row(3, 2));
        watches.of_stream("a")[&7].push(SentRow { end: Some(ReaderEnd::default()), ..row(5, 1) });
        assert_eq!(frames(one.after(FrameNo(0))), (vec![3, 5], true));
        assert_eq!(frames(other.after(FrameNo(3))), (vec![5], true));
        assert!(watches.of_stream("b").is_empty());
        assert!(watches.leased().is_empty(), "it has ended");
        drop((one, other));
        assert!(!watches.of_stream("a").contains_key(&7), "nobody reads");
    }

    #[test]
    fn a_reader_behind_what_is_kept_reads_the_journal_and_memory_stays_bounded() {
        let watches = Watches::default();
        let watch = watches.watch("a", 7, "r", false);
        (1..=1000).for_each(|frame| watch.push(row(frame, 100)));
        assert!(watch.lock().bytes <= KEPT_BYTES_MAX);
        assert!(matches!(watch.after(FrameNo(500)), News::Behind(removed) if removed > FrameNo(900)));
        assert_eq!(frames(watch.after(FrameNo(999))), (vec![1000], false));
        watch.push(row(1000, 1));
        assert_eq!(frames(watch.after(FrameNo(999))), (vec![1000], false), "read again");
        watches.miss("a", FrameNo(1200));
        assert_eq!(watch.after(FrameNo(1000)), News::Behind(FrameNo(1200)));
        assert_eq!(frames(watch.after(FrameNo(1200))), (vec![], false));
    }
}
