//! Pages of rows for readers who are behind. Those who wait at the same time share each frame that is read: its rows are decoded together.

use std::collections::{BTreeMap, HashMap};

use afterbay_journal::reader::{RequestInfo, StreamReader};
use afterbay_journal::{FrameNo, ReadError, SegmentId};
use afterbay_journal_view::sent_rows::{SentReader, SentRow};
use afterbay_wire::Layouts;
use tokio::sync::oneshot;

use super::index::{RowPlace, SegmentIndex};
use super::reading::ReadingError;
use super::stream::ReadStream;

/// Tokens of a page.
const TOKENS_MAX: usize = 4096;
/// Rows that are read together, and in memory at once. Further readers wait.
const ROWS_AT_ONCE: usize = 65_536;

/// The part of a request that the journal has behind a place.
pub(super) struct Page {
    pub(super) rows: Vec<SentRow>,
    /// Tokens of rows before the first one.
    pub(super) skipped: u64,
    /// Everything up to this frame was looked at.
    pub(super) at: FrameNo,
    /// Whether the watch has what comes behind.
    pub(super) is_whole: bool,
    pub(super) has_ended: bool,
}

/// A reader who waits for a page.
pub(super) struct Waiting {
    pub(super) request: RequestInfo,
    /// The last frame that the reader has seen.
    pub(super) behind: FrameNo,
    /// Tokens behind it that the reader does not want.
    pub(super) skip: u64,
    pub(super) answer: oneshot::Sender<Result<Page, ReadingError>>,
}

/// The rows of a page before they are read.
pub(super) struct Places {
    rows: Vec<RowPlace>,
    tokens: usize,
    skip: u64,
    skipped: u64,
    at: FrameNo,
    behind: FrameNo,
    request: u64,
}

/// The extent of a page.
pub(super) struct Extent {
    pub(super) places: Places,
    pub(super) is_full: bool,
    /// The last frame that was read of the stream.
    pub(super) through: FrameNo,
    pub(super) has_ended: bool,
}

/// A page that is read.
struct Begun {
    waiting: Waiting,
    places: Vec<RowPlace>,
    page: Page,
}

impl Places {
    pub(super) fn new(waiting: &Waiting) -> Places {
        let Waiting { request, behind, skip, .. } = waiting;
        Places {
            rows: Vec::new(),
            tokens: 0,
            skip: *skip,
            skipped: 0,
            at: *behind,
            behind: *behind,
            request: request.number.0,
        }
    }

    /// Adds rows until the page is full. Returns whether it is.
    pub(super) fn add(&mut self, index: &SegmentIndex) -> bool {
        if self.at.0 == 0 {
            // Retention has removed the rows before.
            self.skipped = index.carried(self.request);
        }
        for row in index.rows(self.request, self.behind) {
            let forwarded = u64::from(row.forwarded);
            self.at = row.frame;
            if self.rows.is_empty() && row.is_plain && self.skipped + forwarded <= self.skip {
                self.skipped += forwarded;
                continue;
            }
            self.rows.push(row);
            // A row without tokens counts, too.
            self.tokens += row.forwarded.max(1) as usize;
            if self.tokens >= TOKENS_MAX {
                return true;
            }
        }
        false
    }
}

impl ReadStream {
    /// Answers readers who wait, those first who have waited longest.
    pub(super) fn answer_some(&self) {
        // No file stays open in it: an erasure puts others in their place.
        let reader = self.reader().another();
        let (mut begun, mut rows) = (Vec::new(), 0);
        while rows < ROWS_AT_ONCE
            && let Some(waiting) = self.next_waiting()
        {
            match self.begin_page(&reader, &waiting) {
                Ok((places, page)) => {
                    rows += 1 + places.len();
                    begun.push(Begun { waiting, places, page });
                }
                // The client may have left.
                Err(error) => _ = waiting.answer.send(Err(error)),
            }
        }
        let read = read_rows(&reader, &mut begun).map_err(ReadingError::from);
        for Begun { waiting, page, .. } in begun {
            let _sent = waiting.answer.send(read.clone().map(|()| page));
        }
    }

    fn begin_page(
        &self,
        reader: &StreamReader,
        waiting: &Waiting,
    ) -> Result<(Vec<RowPlace>, Page), ReadingError> {
        let Extent { places, is_full, through, has_ended } = self.extent(waiting)?;
        let Places { rows: places, skipped, at, .. } = places;
        let segments = places.chunk_by(|one, next| one.segment == next.segment);
        for row in segments.filter(|_| has_ended).filter_map(|rows| rows.first()) {
            if reader.is_erased(row.segment, waiting.request.number)? {
                return Err(ReadingError::Erased);
            }
        }
        let at = if is_full { at } else { at.max(through) };
        let rows = Vec::with_capacity(places.len());
        Ok((places, Page { rows, skipped, at, is_whole: !is_full, has_ended }))
    }
}

/// Reads the rows of pages, each outcome and its frame once.
fn read_rows(reader: &StreamReader, pages: &mut [Begun]) -> Result<(), ReadError> {
    let mut outcomes: BTreeMap<(SegmentId, u32), Vec<(usize, RowPlace)>> = BTreeMap::new();
    for (page, begun) in pages.iter_mut().enumerate() {
        for place in std::mem::take(&mut begun.places) {
            outcomes.entry((place.segment, place.outcome)).or_default().push((page, place));
        }
    }
    let mut sent = SentReader::new(reader, Layouts::of_text(&reader.layout()?));
    for ((segment, offset), wanted) in outcomes {
        let Some(outcome) = reader.outcome(segment, offset)? else {
            for (page, place) in wanted {
                let missing = place.forwarded.into();
                pages[page].page.rows.push(SentRow { frame: place.frame, missing, ..SentRow::default() });
            }
            continue;
        };
        let received = match wanted.first().and_then(|(_, place)| place.received_at()) {
            None => reader.position(outcome.frame)?,
            at => at,
        };
        let request = |page: usize| &pages[page].waiting.request;
        let rids: HashMap<u64, &str> =
            wanted.iter().map(|(page, _)| (request(*page).number.0, &*request(*page).rid)).collect();
        let rows = sent.outcome(&outcome, received.as_ref(), |number| rids.get(&number).copied())?;
        let rows: HashMap<u64, SentRow> =
            rows.into_iter().filter_map(|(row, sent)| Some((outcome.requests.get(row)?.0, sent))).collect();
        for (page, _) in wanted {
            let number = pages[page].waiting.request.number.0;
            pages[page].page.rows.extend(rows.get(&number).cloned());
        }
    }
    Ok(())
}
