//! One client's way through the tokens of a request: first from the journal, then as they leave, and from the journal again if the client
//! is slow. The client's own place is all that is kept for it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use afterbay_journal::reader::{JournalReader, RequestFilter, RequestHistory, RequestState, StreamReader};
use afterbay_journal::storage::Storage;
use afterbay_journal::{FrameNo, ReadError, StoredReplacement, stored_rid};
use afterbay_journal_view::legs::{self, Known, Leg, Request};
use afterbay_journal_view::request_end::ReaderEnd;
use afterbay_journal_view::sent_rows::{SentReader, SentRow};
use afterbay_text::TokenBytes;
use afterbay_types::Engine;
use afterbay_wire::{Layouts, RequestRecord};
use tokio::sync::{AcquireError, Semaphore};
use tokio::task::JoinError;

use super::watch::{News, Watch, Watches};

/// Readings of the journal at once. Further ones wait.
const READS_MAX: usize = 4;
/// Tokens of a part, and of what is read of the journal at once.
const TOKENS_MAX: usize = 4096;
/// Ids without a whole text that wait for the next ones. A character has at most 4 bytes.
const OPEN_IDS_MAX: usize = 16;

/// The journal that clients read.
pub(super) struct Source {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) journal: PathBuf,
    pub(super) keep: Duration,
    /// The tokenizer of each stream's model, where the configuration names it. Otherwise the engine's introduction may name it.
    tokenizers: HashMap<String, PathBuf>,
    /// The tokenizers that were read last, by stream.
    tokens: Mutex<HashMap<String, Tokenizer>>,
    pub(super) watches: Watches,
    reads: Semaphore,
}

/// A tokenizer that was read.
struct Tokenizer {
    file: PathBuf,
    /// `None`: it cannot be read.
    tokens: Option<Arc<TokenBytes>>,
}

/// A request that a client may read.
pub(super) struct Found {
    stream: String,
    number: u64,
    /// The stored form of its rid.
    rid: String,
    has_lease: bool,
    tokens: Option<Arc<TokenBytes>>,
}

/// The reason why a request cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadingError {
    #[error("the journal has no such request")]
    Unknown,
    #[error("{samples} requests were made of this id: name one with sample=0 to sample={}", samples - 1)]
    Ambiguous { samples: usize },
    #[error("sample={sample}: {samples} requests were made of this id, the last is sample={}", samples - 1)]
    NoSample { sample: usize, samples: usize },
    #[error("the request ended {ago:?} ago, it can be read for {keep:?}")]
    Over { ago: Duration, keep: Duration },
    #[error("the request was erased")]
    Erased,
    #[error("the journal cannot be read: {0}")]
    Journal(#[from] ReadError),
    #[error("the process ends")]
    Ends,
}

impl From<AcquireError> for ReadingError {
    fn from(_: AcquireError) -> ReadingError {
        ReadingError::Ends
    }
}

impl From<JoinError> for ReadingError {
    fn from(_: JoinError) -> ReadingError {
        ReadingError::Ends
    }
}

/// A client's way through a request.
pub(super) struct Reading {
    source: Arc<Source>,
    found: Found,
    watch: Arc<Watch>,
    changes: tokio::sync::watch::Receiver<()>,
    /// The last frame whose row was read.
    at: FrameNo,
    /// Tokens that left up to there.
    tokens: u64,
    /// The first token that the client wants.
    from: u64,
    /// Whether the journal is to be read next.
    is_behind: bool,
    has_ended: bool,
    text: Text,
}

/// Tokens that a client gets at once.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// The number of the first one in the request, from 0.
    pub(super) from: u64,
    pub(super) ids: Vec<i64>,
    /// `None`: the tokenizer is not known.
    pub(super) text: Option<String>,
    /// Tokens before the first one that left and that the journal does not have.
    pub(super) missing: u64,
}

impl Part {
    /// The number of the token behind the last one.
    pub(super) fn next(&self) -> u64 {
        self.from + self.ids.len() as u64
    }
}

impl Source {
    pub(super) fn new(
        storage: Arc<dyn Storage>,
        journal: PathBuf,
        keep: Duration,
        tokenizers: HashMap<String, PathBuf>,
    ) -> Source {
        let (tokens, watches, reads) = (Mutex::default(), Watches::default(), Semaphore::new(READS_MAX));
        Source { storage, journal, keep, tokenizers, tokens, watches, reads }
    }

    /// The tokens of a stream's model, if the journal is on a machine that has its tokenizer.
    fn tokens(&self, stream: &StreamReader) -> Option<Arc<TokenBytes>> {
        let named = self.tokenizers.get(stream.name()).cloned();
        let file = named.or_else(|| Layouts::tokenizer_in(&stream.layout().ok()?).map(PathBuf::from))?;
        let mut known = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(read) = known.get(stream.name()).filter(|read| read.file == file) {
            return read.tokens.clone();
        }
        // `afterbay check` says why a tokenizer cannot be read. Clients then get ids.
        let tokens = TokenBytes::load(&file).ok().map(Arc::new);
        known.insert(stream.name().to_owned(), Tokenizer { file, tokens: tokens.clone() });
        tokens
    }

    fn streams(&self) -> Result<Vec<StreamReader>, ReadError> {
        let journal = JournalReader::open_on(self.storage.clone(), &self.journal)?;
        journal.streams()?.iter().map(|name| journal.stream(name)).collect()
    }

    /// The newest request with this rid, or else the only one that its client knows by this id, or the one with this place among them.
    async fn find(self: &Arc<Self>, id: &str, sample: Option<usize>) -> Result<Found, ReadingError> {
        let (source, id) = (self.clone(), id.to_owned());
        let _permit = self.reads.acquire().await?;
        tokio::task::spawn_blocking(move || source.find_now(&id, sample)).await?
    }

    fn find_now(&self, id: &str, sample: Option<usize>) -> Result<Found, ReadingError> {
        let streams = self.streams()?;
        let newest = match newest(&streams, &stored_rid(id.as_bytes()))? {
            Some(found) => found,
            None => {
                let rids = self.with_id(&streams, id)?;
                let samples = rids.len();
                let rid = match (sample, samples) {
                    (_, 0) => return Err(ReadingError::Unknown),
                    (None, 1) => rids.into_iter().next(),
                    (None, _) => return Err(ReadingError::Ambiguous { samples }),
                    (Some(sample), _) => {
                        let rid = rids.into_iter().nth(sample);
                        Some(rid.ok_or(ReadingError::NoSample { sample, samples })?)
                    }
                };
                newest(&streams, &rid.unwrap_or_default())?.ok_or(ReadingError::Unknown)?
            }
        };
        if newest.erased().is_some() {
            return Err(ReadingError::Erased);
        }
        let ago = Duration::from_nanos(self.storage.now_unix_ns().saturating_sub(newest.last_unix_ns()));
        if newest.state() != RequestState::Live && ago > self.keep {
            let whole_seconds = |time: Duration| Duration::from_secs(time.as_secs());
            return Err(ReadingError::Over { ago: whole_seconds(ago), keep: self.keep });
        }
        // The reader has what left on the last leg.
        let Leg { stream, of, .. } = newest.next().unwrap_or(newest.first());
        let (number, rid) = (of.request.number.0, of.request.rid.clone());
        let tokens = streams.iter().find(|it| it.name() == stream).and_then(|stream| self.tokens(stream));
        // The engine says its attributes on the first leg.
        let mut attributes = newest.first().of.request.attributes.iter();
        let has_lease = attributes.any(|(name, _)| name == RequestRecord::LEASE);
        Ok(Found { stream: stream.clone(), number, rid, has_lease, tokens })
    }

    /// The rids that were made of this id, of requests that may be read, in order.
    fn with_id(&self, streams: &[StreamReader], id: &str) -> Result<Vec<String>, ReadError> {
        let since = self.storage.now_unix_ns().saturating_sub(self.keep.as_nanos() as u64);
        let filter = RequestFilter { ended_since_unix_ns: Some(since), ..RequestFilter::default() };
        let mut rids = BTreeSet::new();
        for stream in streams {
            for request in stream.requests(filter.clone())? {
                let rid = request?.rid;
                // The journal does not say which engine a stream has.
                if Engine::WORDS.iter().any(|(_, engine)| engine.has_id(&rid, id)) {
                    rids.insert(rid);
                }
            }
        }
        Ok(rids.into_iter().collect())
    }

    /// Begins to read a request at a token.
    pub(super) async fn read(
        self: &Arc<Self>,
        id: &str,
        sample: Option<usize>,
        from: u64,
    ) -> Result<Reading, ReadingError> {
        let found = self.find(id, sample).await?;
        // From here on, nothing is missed: the journal is read later.
        let watch = self.watches.watch(&found.stream, found.number, &found.rid, found.has_lease);
        let changes = watch.changes();
        let text = Text::new(found.tokens.clone());
        let source = self.clone();
        let (at, tokens, is_behind, has_ended) = (FrameNo(0), 0, true, false);
        Ok(Reading { source, found, watch, changes, at, tokens, from, is_behind, has_ended, text })
    }
}

/// The newest request with this rid.
fn newest(streams: &[StreamReader], rid: &str) -> Result<Option<Request<RequestHistory>>, ReadError> {
    let mut known: Known<RequestHistory> = Vec::new();
    for stream in streams {
        let lives = stream.lives(rid)?;
        if !lives.is_empty() {
            known.push((stream.name().to_owned(), legs::after(stream, streams)?, lives));
        }
    }
    let requests = legs::join_instances(legs::join(known), streams)?;
    Ok(requests.into_iter().max_by_key(|request| request.first().of.request.first_unix_ns))
}

/// The part of a request that the journal has behind a place.
struct Page {
    rows: Vec<SentRow>,
    /// Tokens of rows before the first one.
    skipped: u64,
    /// The last frame that was looked at.
    at: FrameNo,
    has_ended: bool,
}

impl Reading {
    /// The next tokens. `None`: the request has ended.
    pub(super) async fn next(&mut self) -> Result<Option<Part>, ReadingError> {
        loop {
            if let Some(part) = self.next_now().await? {
                return Ok(Some(part));
            }
            if self.has_ended {
                return Ok(None);
            }
            // An error is impossible: the watch is held.
            let _changed = self.changes.changed().await;
        }
    }

    /// Whether the request had ended behind what was read.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The tokens that have left and were not read. `None`: there are none for now, or none at all.
    pub(super) async fn next_now(&mut self) -> Result<Option<Part>, ReadingError> {
        while !self.has_ended {
            self.changes.mark_unchanged();
            let (rows, has_ended) = match self.is_behind {
                true => self.page().await?,
                false => match self.watch.after(self.at) {
                    News::Behind(_) => {
                        self.is_behind = true;
                        continue;
                    }
                    News::Rows(rows, has_ended) => (rows, has_ended),
                },
            };
            let is_idle = rows.is_empty() && !self.is_behind;
            rows.into_iter().for_each(|row| self.add(row));
            self.has_ended = has_ended && !self.is_behind;
            let part = self.text.take(self.has_ended);
            if part.is_some() {
                return Ok(part);
            }
            if is_idle {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Reads on in the journal.
    async fn page(&mut self) -> Result<(Vec<SentRow>, bool), ReadingError> {
        // Everything up to this frame is in the journal now.
        let removed = match self.watch.after(self.at) {
            News::Behind(removed) => removed,
            News::Rows(..) => self.at,
        };
        let (source, stream, rid) = (self.source.clone(), self.found.stream.clone(), self.found.rid.clone());
        let (number, at, skip) = (self.found.number, self.at, self.from.saturating_sub(self.tokens));
        let _permit = self.source.reads.acquire().await?;
        let read = move || page(&source, (&stream, number, &rid), at, skip);
        let page = tokio::task::spawn_blocking(read).await??;
        self.tokens += page.skipped;
        let is_whole = page.rows.iter().map(|row| row.ids.len()).sum::<usize>() < TOKENS_MAX;
        self.at = page.at;
        if is_whole {
            self.at = self.at.max(removed);
            self.is_behind = false;
        }
        Ok((page.rows, page.has_ended))
    }

    fn add(&mut self, row: SentRow) {
        self.at = self.at.max(row.frame);
        let SentRow { mut ids, mut text, .. } = row;
        if row.is_cumulative {
            ids.drain(..ids.len().min(self.tokens as usize));
            text = None;
        }
        let first = self.tokens;
        self.tokens += ids.len() as u64 + row.missing;
        let before = self.from.saturating_sub(first);
        let missing = row.missing.saturating_sub(before);
        let cut = (before as usize).min(ids.len());
        if cut > 0 {
            ids.drain(..cut);
            // The text of a row cannot be divided.
            text = text.map(|_| self.text.decode(&ids).unwrap_or_default().0);
        }
        self.text.add(first + cut as u64 + row.missing, ids, text, missing);
    }

    /// How the request ended for its reader.
    pub(super) async fn end(&self) -> Result<ReaderEnd, ReadingError> {
        let (source, stream, rid) = (self.source.clone(), self.found.stream.clone(), self.found.rid.clone());
        let number = self.found.number;
        let _permit = self.source.reads.acquire().await?;
        let read = move || Ok(ReaderEnd::of(&life(&source, (&stream, number, &rid))?.1));
        tokio::task::spawn_blocking(read).await?
    }

    /// Tokens that left up to here.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }
}

fn life(
    source: &Source,
    (stream, number, rid): (&str, u64, &str),
) -> Result<(StreamReader, RequestHistory), ReadingError> {
    let journal = JournalReader::open_on(source.storage.clone(), &source.journal)?;
    let stream = journal.stream(stream)?;
    let lives = stream.lives(rid)?;
    let life = lives.into_iter().find(|life| life.request.number.0 == number);
    // Retention has removed it.
    let life = life.ok_or(ReadingError::Unknown)?;
    if life.request.erased.is_some() {
        return Err(ReadingError::Erased);
    }
    Ok((stream, life))
}

/// Reads rows behind a frame, without the first tokens that nobody wants.
fn page(source: &Source, request: (&str, u64, &str), at: FrameNo, skip: u64) -> Result<Page, ReadingError> {
    let (stream, life) = life(source, request)?;
    let mut reader = SentReader::new(&stream, Layouts::of_text(&stream.layout()?));
    let has_ended = life.request.state != RequestState::Live || life.request.ended_early;
    let mut page = Page { rows: Vec::new(), skipped: 0, at, has_ended };
    let mut tokens = 0;
    let behind = life.rows.iter().filter(|row| row.frame > at);
    // Retention has removed the first rows.
    if at.0 == 0 {
        let of_rows: u64 = life.rows.iter().map(|row| u64::from(row.forwarded)).sum();
        page.skipped = life.request.forwarded.saturating_sub(of_rows);
    }
    for row in behind {
        page.at = row.frame;
        let forwarded = u64::from(row.forwarded);
        let is_cumulative =
            row.actions.iter().any(|action| action.replaced() == Some(StoredReplacement::Cumulative));
        if page.rows.is_empty() && page.skipped + forwarded <= skip && !is_cumulative {
            page.skipped += forwarded;
            continue;
        }
        let sent = reader.row(request.2, row)?;
        tokens += sent.ids.len();
        page.rows.push(sent);
        if tokens >= TOKENS_MAX {
            break;
        }
    }
    Ok(page)
}

/// Makes parts of rows: a part ends where the text is whole.
struct Text {
    tokens: Option<Arc<TokenBytes>>,
    parts: VecDeque<Part>,
    /// Whether the text of the last part is that of its rows, which have whole texts.
    is_of_rows: bool,
}

impl Text {
    fn new(tokens: Option<Arc<TokenBytes>>) -> Text {
        Text { tokens, parts: VecDeque::new(), is_of_rows: false }
    }

    /// Adds the ids from this token on. `missing` tokens are before them.
    fn add(&mut self, from: u64, ids: Vec<i64>, text: Option<String>, missing: u64) {
        let is_next = missing == 0 && self.is_of_rows == text.is_some();
        let part = match self.parts.back_mut().filter(|_| is_next) {
            Some(part) => part,
            None => {
                self.is_of_rows = text.is_some();
                self.parts.push_back(Part { from, missing, ..Part::default() });
                let last = self.parts.len() - 1;
                &mut self.parts[last]
            }
        };
        part.ids.extend(ids);
        if let Some(text) = text {
            part.text.get_or_insert_default().push_str(&text);
        }
    }

    /// The text of ids, and whether it is whole.
    fn decode(&self, ids: &[i64]) -> Option<(String, bool)> {
        let bytes = self.tokens.as_ref()?.decode(ids);
        let is_whole = !std::str::from_utf8(&bytes).is_err_and(|error| error.error_len().is_none());
        Some((String::from_utf8_lossy(&bytes).into_owned(), is_whole))
    }

    /// The next part, if its text is whole or must not wait.
    fn take(&mut self, is_last: bool) -> Option<Part> {
        loop {
            let (is_only, part) = (self.parts.len() == 1, self.parts.front()?);
            if part.text.is_none()
                && let Some((text, is_whole)) = self.decode(&part.ids)
            {
                if !is_whole && is_only && !is_last && part.ids.len() < OPEN_IDS_MAX {
                    return None;
                }
                self.parts.front_mut()?.text = Some(text);
            }
            let part = self.parts.pop_front()?;
            let has_text = part.text.as_ref().is_some_and(|text| !text.is_empty());
            if !part.ids.is_empty() || part.missing > 0 || has_text {
                return Some(part);
            }
        }
    }
}

#[cfg(test)]
mod tests;
