//! One client's way through the tokens of a request: first from the journal, then as they leave, and from the journal again if the client
//! is slow. The client's own place is all that is kept for it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use afterbay_journal::reader::{JournalReader, RequestFilter, RequestInfo, RequestState, StreamReader};
use afterbay_journal::storage::Storage;
use afterbay_journal::{FrameNo, ReadError, stored_rid};
use afterbay_journal_view::legs::{self, Known, Leg, Request};
use afterbay_journal_view::output::open_bytes;
use afterbay_journal_view::sent_rows::{ReaderEnd, SentRow};
use afterbay_text::TokenBytes;
use afterbay_types::Engine;
use afterbay_wire::{Layouts, RequestRecord};
use tokio::sync::oneshot::error::RecvError;
use tokio::sync::{AcquireError, Semaphore, oneshot};
use tokio::task::JoinError;

use super::pages::Waiting;
use super::stream::ReadStream;
use super::watch::{News, Watch, Watches};

/// Readings of the journal at once. Further ones wait.
const READS_MAX: usize = 4;
/// Time that samples of one request, or its legs, may begin apart.
const APART_MAX: Duration = Duration::from_secs(60);
/// Ids without a whole text that wait for the next ones. A character has at most 4 bytes.
const OPEN_IDS_MAX: usize = 16;

/// The journal that clients read.
pub(super) struct Source {
    storage: Arc<dyn Storage>,
    journal: PathBuf,
    keep: Duration,
    /// The bound of each stream's indexes.
    index_bytes_max: usize,
    streams: Mutex<BTreeMap<String, Arc<ReadStream>>>,
    /// The tokenizer of each stream's model, where the configuration names it. Otherwise the engine's introduction may name it.
    tokenizers: HashMap<String, PathBuf>,
    /// The tokenizers that were read last, by stream.
    tokens: Mutex<HashMap<String, Tokenizer>>,
    pub(super) watches: Arc<Watches>,
    reads: Arc<Semaphore>,
}

/// A tokenizer that was read.
struct Tokenizer {
    file: PathBuf,
    /// `None`: it cannot be read.
    tokens: Option<Arc<TokenBytes>>,
}

/// A request that a client may read.
pub(super) struct Found {
    stream: Arc<ReadStream>,
    request: RequestInfo,
    has_lease: bool,
    tokens: Option<Arc<TokenBytes>>,
}

/// The reason why a request cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
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
    Journal(Arc<ReadError>),
    #[error("the process ends")]
    Ends,
}

impl From<ReadError> for ReadingError {
    fn from(error: ReadError) -> ReadingError {
        ReadingError::Journal(Arc::new(error))
    }
}

impl From<RecvError> for ReadingError {
    fn from(_: RecvError) -> ReadingError {
        ReadingError::Ends
    }
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
    /// The end that the last row says.
    end: Option<ReaderEnd>,
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
        index_bytes_max: usize,
    ) -> Source {
        let (streams, tokens, watches) = (Mutex::default(), Mutex::default(), Arc::default());
        let reads = Arc::new(Semaphore::new(READS_MAX));
        Source { storage, journal, keep, index_bytes_max, streams, tokenizers, tokens, watches, reads }
    }

    /// The tokens of a stream's model, if the journal is on a machine that has its tokenizer.
    fn tokens(&self, stream: &StreamReader) -> Option<Arc<TokenBytes>> {
        let name = match stream.instance().ok()? {
            // The configuration names a stream without its instance.
            Some(instance) => stream.name().strip_prefix(&*instance)?.strip_prefix('.')?,
            None => stream.name(),
        };
        let named = self.tokenizers.get(name).cloned();
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

    /// The stream of this reader, from its newest segment on.
    pub(super) fn open(&self, reader: StreamReader) -> Arc<ReadStream> {
        let name = reader.name().to_owned();
        let opened = || Arc::new(ReadStream::new(reader, self.watches.clone(), self.index_bytes_max));
        self.open_streams().entry(name).or_insert_with(opened).clone()
    }

    fn open_streams(&self) -> MutexGuard<'_, BTreeMap<String, Arc<ReadStream>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn streams(&self) -> Vec<Arc<ReadStream>> {
        self.open_streams().values().cloned().collect()
    }

    /// The newest request with this rid, or else the only one that its client knows by this id, or the one with this place among them.
    async fn find(self: &Arc<Self>, id: &str, sample: Option<usize>) -> Result<Found, ReadingError> {
        let (source, id) = (self.clone(), id.to_owned());
        let permit = self.reads.clone().acquire_owned().await?;
        let find = move || {
            // Held to the end, also if the client leaves meanwhile.
            let _permit = permit;
            source.find_now(&id, sample)
        };
        tokio::task::spawn_blocking(find).await?
    }

    fn find_now(&self, id: &str, sample: Option<usize>) -> Result<Found, ReadingError> {
        let streams = self.streams();
        let known = streams.len();
        match self.find_in(streams, id, sample) {
            // Its stream may be younger than the follower's last look.
            Err(ReadingError::Unknown) if self.has_more_than(known)? => {
                self.find_in(self.streams(), id, sample)
            }
            found => found,
        }
    }

    /// Opens every stream of the journal. Returns whether there are more than so many.
    fn has_more_than(&self, known: usize) -> Result<bool, ReadError> {
        let journal = JournalReader::open_on(self.storage.clone(), &self.journal)?;
        for name in journal.streams()? {
            self.open(journal.stream(&name)?);
        }
        Ok(self.open_streams().len() > known)
    }

    fn find_in(
        &self,
        streams: Vec<Arc<ReadStream>>,
        id: &str,
        sample: Option<usize>,
    ) -> Result<Found, ReadingError> {
        streams.iter().try_for_each(|stream| stream.advance_to_end())?;
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
        // The engine says its attributes on the first leg.
        let mut attributes = newest.0.iter().flat_map(|leg| &leg.of.attributes);
        let has_lease = attributes.any(|(name, _)| name == RequestRecord::LEASE);
        // The reader has what left on the last leg, on the instance where the request began last.
        let Leg { stream: name, of: request, .. } =
            newest.0.into_iter().last().ok_or(ReadingError::Unknown)?;
        let stream = streams.into_iter().find(|it| it.reader().name() == name);
        let stream = stream.ok_or(ReadingError::Unknown)?;
        let tokens = self.tokens(stream.reader());
        Ok(Found { stream, request, has_lease, tokens })
    }

    /// The rids that were made of this id, of requests that may be read, in order.
    fn with_id(&self, streams: &[Arc<ReadStream>], id: &str) -> Result<Vec<String>, ReadError> {
        // The journal does not say which engine a stream has.
        let engines = || Engine::WORDS.iter().map(|(_, engine)| engine);
        let has_id = |rid: &str| engines().any(|engine| engine.has_id(rid, id));
        let found: Result<Vec<_>, _> = streams.iter().map(|stream| stream.newest(&has_id)).collect();
        let mut found = found?.concat();
        let mut all = found.iter();
        let is_numbered = all.any(|info| engines().any(|engine| engine.is_numbered(&info.rid)));
        if found.is_empty() || is_numbered {
            // Others that were made of the id may have ended before.
            let since = self.storage.now_unix_ns().saturating_sub(self.keep.as_nanos() as u64);
            let since = since.max(begun(&found).unwrap_or_default());
            let filter = RequestFilter { ended_since_unix_ns: Some(since), ..RequestFilter::default() };
            for stream in streams {
                let ended = stream.ended_before(filter.clone())?;
                found.extend(ended.into_iter().filter(|info| has_id(&info.rid)));
            }
        }
        let rids: BTreeSet<String> = found.into_iter().map(|info| info.rid).collect();
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
        let Found { stream, request, has_lease, .. } = &found;
        let watch = self.watches.watch(stream.reader().name(), request.number.0, &request.rid, *has_lease);
        let changes = watch.changes();
        let text = Text::new(found.tokens.clone());
        let source = self.clone();
        let (at, tokens, is_behind, end, has_ended) = (FrameNo(0), 0, true, None, false);
        Ok(Reading { source, found, watch, changes, at, tokens, from, is_behind, end, has_ended, text })
    }
}

/// A time, Unix nanoseconds, before which nothing ended that belongs to these requests. `None` without any.
fn begun(requests: &[RequestInfo]) -> Option<u64> {
    // 0: its first row was not read yet.
    let first = requests.iter().map(RequestInfo::begins_unix_ns).filter(|begun| *begun > 0).min()?;
    Some(first.saturating_sub(APART_MAX.as_nanos() as u64))
}

/// The newest request with this rid. Earlier segments are read only where a part of the request may have ended.
fn newest(streams: &[Arc<ReadStream>], rid: &str) -> Result<Option<Request<RequestInfo>>, ReadError> {
    let found: Result<Vec<_>, _> = streams.iter().map(|stream| stream.newest(&|it| it == rid)).collect();
    let found = found?;
    let rids = Some(HashSet::from([rid.to_owned()]));
    let filter =
        RequestFilter { rids, ended_since_unix_ns: begun(&found.concat()), ..RequestFilter::default() };
    let readers: Vec<StreamReader> = streams.iter().map(|stream| stream.reader().another()).collect();
    let mut known: Known<RequestInfo> = Vec::new();
    for ((stream, reader), mut found) in streams.iter().zip(&readers).zip(found) {
        if found.is_empty() {
            found = stream.ended_before(filter.clone())?;
        }
        if !found.is_empty() {
            known.push((reader.name().to_owned(), legs::after(reader, &readers)?, found));
        }
    }
    let requests = legs::join_instances(legs::join(known), &readers)?;
    Ok(requests.into_iter().max_by_key(|request| request.first().of.first_unix_ns))
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
        let (answer, answered) = oneshot::channel();
        let (request, skip) = (self.found.request.clone(), self.from.saturating_sub(self.tokens));
        self.found.stream.wait(Waiting { request, behind: self.at, skip, answer });
        let (source, stream) = (self.source.clone(), self.found.stream.clone());
        // A task of its own: it may answer others, also if this client leaves.
        tokio::spawn(async move {
            let _permit = source.reads.acquire().await;
            // A panic is the answer of those who waited for it.
            let _done = tokio::task::spawn_blocking(move || stream.answer_some()).await;
        });
        let page = answered.await??;
        self.tokens += page.skipped;
        self.at = page.at;
        self.is_behind = !page.is_whole;
        Ok((page.rows, page.has_ended))
    }

    fn add(&mut self, row: SentRow) {
        self.at = self.at.max(row.frame);
        let SentRow { mut ids, mut text, end, .. } = row;
        self.end = self.end.take().or(end);
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
        if let Some(end) = &self.end {
            return Ok(end.clone());
        }
        // No row says it: the engine died, or lost the request.
        let (stream, known) = (self.found.stream.clone(), self.found.request.clone());
        let permit = self.source.reads.clone().acquire_owned().await?;
        let read = move || {
            let _permit = permit;
            let is_same = |info: &RequestInfo| info.number == known.number;
            let mut found = stream.newest(&|rid| rid == known.rid)?;
            if !found.iter().any(is_same) {
                let rids = Some(HashSet::from([known.rid.clone()]));
                found = stream.ended_before(RequestFilter { rids, ..RequestFilter::default() })?;
            }
            let ended = found.iter().find(|info| is_same(info));
            Ok(ended.and_then(ReaderEnd::of_dead_engine).unwrap_or_default())
        };
        tokio::task::spawn_blocking(read).await?
    }

    /// Tokens that left up to here.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }
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
        Some((String::from_utf8_lossy(&bytes).into_owned(), open_bytes(&bytes) == 0))
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
