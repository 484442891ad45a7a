//! The requests of the journal, for `/v1/requests`, `/v1/requests/{rid}` and `/v1/steps`: read from the directory, off the path.
//!
//! The first question for a page starts a thread that follows the journal into an index. The thread ends when nobody has asked
//! for a while.

use crate::mutex::lock;
use crate::refusal::Refusal;
use afterbay_journal::reader::{Erasure, JournalReader, StreamReader};
use afterbay_journal::{ReadError, RequestNo};
use afterbay_journal_view::index::{Follower, Page, RequestIndex, Search};
use afterbay_journal_view::life::{self, Streams};
use afterbay_journal_view::steps::{SlowestSteps, StepSearch};
use afterbay_plugin_loader::Tokenizers;
use afterbay_text::TokenBytes;
use afterbay_wire::Layouts;
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Time between two looks for new records.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time without a question after which the index is dropped.
const IDLE_MAX: Duration = Duration::from_secs(300);
/// Time that a question waits for an index that is not complete. After that, the answer has what there is.
const COMPLETE_WITHIN: Duration = Duration::from_secs(2);
/// Questions that read the journal at once. Further ones wait.
const AT_ONCE: usize = 2;

/// The requests of the journal. Clones share the index.
#[derive(Clone)]
pub(crate) struct Requests(Arc<Inner>);

struct Inner {
    dir: PathBuf,
    tokenizers: Arc<Tokenizers>,
    streams: Mutex<HashMap<String, StreamContent>>,
    following: Mutex<Option<Arc<Following>>>,
    at_once: Arc<Semaphore>,
}

/// The way to read the rows of a stream.
#[derive(Clone)]
pub(crate) struct StreamContent {
    pub(crate) layouts: Layouts,
    /// The tokenizer of the stream's model.
    pub(crate) tokenizer: Option<PathBuf>,
}

/// An index and the thread that follows the journal.
struct Following {
    index: Mutex<RequestIndex>,
    state: Mutex<FollowState>,
    changed: Condvar,
}

struct FollowState {
    asked: Instant,
    /// The thread has read everything once.
    is_complete: bool,
    /// The reason why the last look failed.
    problem: Option<String>,
}

pub(crate) fn unknown_rid(rid: &str) -> Refusal {
    Refusal::not_found("unknown", format!("no request in the journal has the rid {rid:?}"))
}

fn unreadable(why: impl std::fmt::Display) -> Refusal {
    Refusal::unavailable("journal", format!("the journal cannot be read: {why}"))
}

pub(crate) fn ends<T>(_: T) -> Refusal {
    Refusal::unavailable("no_answer", "the process ends")
}

impl Requests {
    /// The requests of the journal in this directory.
    pub(crate) fn new(dir: &Path, tokenizers: &Arc<Tokenizers>) -> Requests {
        Requests(Arc::new(Inner {
            dir: dir.to_owned(),
            tokenizers: tokenizers.clone(),
            streams: Mutex::default(),
            following: Mutex::default(),
            at_once: Arc::new(Semaphore::new(AT_ONCE)),
        }))
    }

    /// Says how the rows of a stream are read.
    pub(crate) fn add(&self, stream: &str, content: StreamContent) {
        lock(&self.0.streams).insert(stream.to_owned(), content);
    }

    /// Says which layouts a stream's frames have from now on.
    pub(crate) fn set_layouts(&self, stream: &str, layouts: Layouts) {
        if let Some(content) = lock(&self.0.streams).get_mut(stream) {
            content.layouts = layouts;
        }
    }

    /// The layouts of a stream's msgpack frames.
    pub(crate) fn layouts(&self, stream: &str) -> Layouts {
        Streams::layouts(&*self.0, stream)
    }

    /// Marks requests in the index as erased, if there is an index.
    pub(crate) fn erased(&self, stream: &str, requests: &[RequestNo], erasure: Erasure) {
        if let Some(following) = &*lock(&self.0.following) {
            lock(&following.index).erase(stream, requests, erasure);
        }
    }

    /// A page of the newest requests.
    pub(crate) async fn page(&self, search: Search) -> Result<Page, Refusal> {
        self.read(move |inner| inner.page(&search)).await
    }

    /// The slowest steps of one stream, or of all.
    pub(crate) async fn steps(
        &self,
        stream: Option<String>,
        search: StepSearch,
    ) -> Result<SlowestSteps, Refusal> {
        self.read(move |inner| inner.steps(stream.as_deref(), &search)).await
    }

    /// The life of the newest request with this stored rid.
    pub(crate) async fn life(&self, rid: String) -> Result<Value, Refusal> {
        self.read(move |inner| inner.life(&rid)).await
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Arc<Inner>) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let turn = self.0.at_once.clone().acquire_owned().await.map_err(ends)?;
        let inner = self.0.clone();
        // The turn ends with the reading, also if the caller has gone.
        let read = move || {
            let _turn = turn;
            read(&inner)
        };
        tokio::task::spawn_blocking(read).await.map_err(ends)?
    }
}

impl Inner {
    fn page(self: &Arc<Self>, search: &Search) -> Result<Page, Refusal> {
        let following = self.follow()?;
        following.wait_until_complete()?;
        Ok(lock(&following.index).page(search))
    }

    /// The index, which this question starts if there is none.
    fn follow(self: &Arc<Self>) -> Result<Arc<Following>, Refusal> {
        let mut following = lock(&self.following);
        if let Some(following) = &*following {
            lock(&following.state).asked = Instant::now();
            return Ok(following.clone());
        }
        let state = FollowState { asked: Instant::now(), is_complete: false, problem: None };
        let new = Arc::new(Following {
            index: Mutex::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let (inner, follows) = (self.clone(), new.clone());
        let work = move || inner.run(&follows);
        let thread = std::thread::Builder::new().name("request-index".to_owned()).spawn(work);
        thread.map_err(|error| unreadable(format!("no thread for the index: {error}")))?;
        *following = Some(new.clone());
        Ok(new)
    }

    /// The thread: follows the journal until nobody asks.
    fn run(&self, following: &Following) {
        let mut follower = Follower::new(&self.dir);
        loop {
            let read = follower.advance(&following.index);
            let has_more = matches!(read, Ok(true));
            {
                let mut state = lock(&following.state);
                state.is_complete |= matches!(read, Ok(false));
                state.problem = read.err().map(|error| error.to_string());
                following.changed.notify_all();
            }
            if has_more {
                continue;
            }
            std::thread::sleep(LOOK_EVERY);
            // Locked in this order, so that no question finds an index that nobody follows.
            let mut known = lock(&self.following);
            if lock(&following.state).asked.elapsed() >= IDLE_MAX {
                *known = None;
                return;
            }
        }
    }

    fn open(&self) -> Result<(JournalReader, Vec<StreamReader>), ReadError> {
        let journal = JournalReader::open(&self.dir)?;
        let names = journal.streams()?;
        let streams = names.iter().map(|name| journal.stream(name)).collect::<Result<_, _>>()?;
        Ok((journal, streams))
    }

    fn life(&self, rid: &str) -> Result<Value, Refusal> {
        let read = self.open().and_then(|(_, streams)| life::of_rid(&streams, rid, self));
        read.map_err(unreadable)?.ok_or_else(|| unknown_rid(rid))
    }

    fn steps(&self, stream: Option<&str>, search: &StepSearch) -> Result<SlowestSteps, Refusal> {
        let (journal, mut streams) = self.open().map_err(unreadable)?;
        if let Some(name) = stream {
            streams.retain(|stream| stream.name() == name);
            if streams.is_empty() {
                return Err(Refusal::not_found("unknown", format!("the journal has no stream {name:?}")));
            }
        }
        SlowestSteps::read(&journal, &streams, search).map_err(unreadable)
    }
}

impl Streams for Inner {
    fn layouts(&self, stream: &str) -> Layouts {
        // A stream of an earlier run has no configuration.
        lock(&self.streams).get(stream).map_or_else(Layouts::builtin, |content| content.layouts.clone())
    }

    fn tokens(&self, stream: &str) -> Option<TokenBytes> {
        let path = lock(&self.streams).get(stream)?.tokenizer.clone()?;
        // Ids without a text are better than no answer.
        self.tokenizers.token_bytes(&path).ok()
    }
}

impl Following {
    fn wait_until_complete(&self) -> Result<(), Refusal> {
        let state = lock(&self.state);
        let is_open = |state: &mut FollowState| !state.is_complete && state.problem.is_none();
        let waited = self.changed.wait_timeout_while(state, COMPLETE_WITHIN, is_open);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match (&state.problem, state.is_complete) {
            (Some(problem), false) => Err(unreadable(problem)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterbay_journal::{JournalDirectory, JournalOptions, Outcome, Passage};

    #[test]
    fn requests_that_are_written_after_the_first_question_are_on_a_later_page() {
        let dir = tempfile::tempdir().unwrap();
        let directory = JournalDirectory::open(dir.path(), JournalOptions::default()).unwrap();
        let (mut writer, _) = directory.stream("decode").unwrap();
        let mut row = |rid: &str, now: u64| {
            let request = writer.open(rid);
            let frame = writer.append(b"no frame of a scheduler", now).unwrap().frame;
            let outcome = Outcome::new(frame, now, Passage::Unchanged);
            writer.outcome(&Outcome { requests: (&[request]).into(), tokens: (&[1]).into(), ..outcome });
            writer.flush().unwrap();
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let requests = Requests::new(dir.path(), &Arc::default());
        let rids = || {
            let page = runtime.block_on(requests.page(Search { limit: 10, ..Search::default() })).unwrap();
            page.requests
                .iter()
                .map(|request| request["rid"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        row("first", 1);
        assert_eq!(rids(), ["first"]);
        row("second", 2);
        let is_followed = || {
            std::thread::sleep(Duration::from_millis(20));
            rids() == ["second", "first"]
        };
        assert!((0..1000).any(|_| is_followed()), "{:?}", rids());
        let life = runtime.block_on(requests.life("second".to_owned())).unwrap();
        let row = &life["legs"][0]["rows_seen"][0];
        assert_eq!((&row["frame"], &row["missing"]), (&2.into(), &"not decoded".into()), "{life}");
        assert_eq!(life["timeline"][0]["stage"], "received");
        let unknown = runtime.block_on(requests.life("sec".to_owned())).unwrap_err();
        assert_eq!(unknown.to_string(), "no request in the journal has the rid \"sec\"");
    }
}
