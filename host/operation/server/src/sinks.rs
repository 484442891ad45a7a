//! Sets up the sinks of a stream: the reader's endpoint, the kind of reader, and where rows may be joined for the reader.
//!
//! The kind of reader stands in the configuration, in the rendezvous file, or on the reader's credit page. The page may appear
//! after the stream has started, so Afterbay looks at pages as long as it runs. While the kind is unknown, rows are not joined,
//! and the log, `/readyz`, `/v1/status` and `afterbay check` say so.

use crate::follower::path_twice;
use crate::rendezvous::RendezvousFile;
use afterbay_batch::{JoinEnds, Joins, SingleRows};
use afterbay_config as config;
use afterbay_events::event::{SinkJoined, SinkUncounted, SinkUnjoined, SinkVocabulary};
use afterbay_events::{Event, Events, Health};
use afterbay_plugin_loader::Tokenizers;
use afterbay_sockets::credit::{Page, PageReader, PageStatus, ReaderKind};
use afterbay_stream::{SinkSetup, Stream};
use anyhow::{Context, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// Most bytes of the file that the connector writes beside a credit page.
const READER_INFO_BYTES_MAX: u64 = 64 << 10;

/// The known state of the sinks of a process, by stream and sink. Clones share it.
#[derive(Clone)]
pub(crate) struct Sinks {
    known: Arc<Mutex<BTreeMap<(String, String), KnownSink>>>,
    tokenizers: Arc<Tokenizers>,
    events: Events,
    health: Health,
}

struct KnownSink {
    /// Sentence that says where rows are joined.
    joins: String,
    /// The page that names the kind of reader, if nothing else does.
    page: Option<WatchedPage>,
}

/// A sink whose credit page names the kind of reader.
struct WatchedPage {
    stream: config::Stream,
    sink: config::Sink,
    rendezvous: Option<RendezvousFile>,
    page: PageReader,
    /// The page's file and generation at the last decision.
    seen: Option<((u64, u64), u64)>,
}

/// The joins that are allowed for a sink, and the texts that publish them.
struct Decision {
    joins: Joins,
    /// For `/v1/status`.
    text: String,
    /// The reason why rows are not joined.
    unjoined: Option<String>,
    event: Option<Event>,
    /// Whether the credit page cannot say more later.
    is_final: bool,
}

impl Sinks {
    pub(crate) fn new(tokenizers: &Arc<Tokenizers>, events: &Events, health: &Health) -> Sinks {
        let (tokenizers, events, health) = (tokenizers.clone(), events.clone(), health.clone());
        Sinks { known: Arc::default(), tokenizers, events, health }
    }

    /// Sentence that says where rows are joined for a sink; `None` for an unknown sink.
    pub(crate) fn joins(&self, stream: &str, sink: &str) -> Option<String> {
        Some(self.lock().get(&(stream.to_owned(), sink.to_owned()))?.joins.clone())
    }

    /// Forgets every sink, after all streams have ended.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// Forgets the sinks of a stream that is no longer in the configuration.
    pub(crate) fn forget_stream(&self, stream: &str) {
        self.lock().retain(|(of, _), _| of != stream);
    }

    /// Looks at the credit pages, and passes new decisions to the running streams.
    pub(crate) fn check_pages(&self, streams: &[Stream]) {
        let mut known = self.lock();
        for ((stream, sink), known) in known.iter_mut() {
            let Some(running) = streams.iter().find(|running| running.name() == stream) else { continue };
            let Some(decision) = known.page.as_mut().and_then(|watched| watched.look(&self.tokenizers))
            else {
                continue;
            };
            if decision.text != known.joins {
                self.publish(&decision, stream, sink);
                running.handle().joins(sink, decision.joins);
                known.joins = decision.text;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, String), KnownSink>> {
        // Each entry is replaced whole.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, decision: &Decision, stream: &str, sink: &str) {
        let key = format!("joins:{stream}/{sink}");
        match &decision.unjoined {
            Some(why) => self.health.degraded(&key, format!("not joined: {why}"), SystemTime::now()),
            None => drop(self.health.clear(&key)),
        }
        if let Some(event) = &decision.event {
            self.events.publish(event.clone());
        }
    }

    /// Sets up one sink of a stream. A sink without `connect` takes its endpoint from the rendezvous file.
    pub(crate) fn setup(
        &self,
        config: &config::Config,
        stream: &config::Stream,
        sink: &config::Sink,
        rendezvous: Option<&RendezvousFile>,
    ) -> anyhow::Result<SinkSetup> {
        let of = || format!("stream {:?}: sink {:?}", stream.name.as_str(), sink.name.as_str());
        let mut sink = sink.clone();
        let connect = match (&sink.connect, rendezvous) {
            (None, Some(rendezvous)) => {
                sink.credit = sink.credit.take().or_else(|| rendezvous.credit.clone());
                rendezvous.down.parse()?
            }
            (Some(connect), _) => connect.clone(),
            (None, None) => bail!("{}: it has no connect and there is no rendezvous", of()),
        };
        let mut page = sink.credit.as_ref().map(PageReader::new);
        let seen = page.as_mut().and_then(page_of);
        let decision = decide(&self.tokenizers, stream, &sink, rendezvous, seen.as_ref()).with_context(of)?;
        self.publish(&decision, stream.name.as_str(), sink.name.as_str());
        if let Some(event) = uncounted(config, stream, &sink, &decision.joins) {
            self.events.publish(event);
        }
        let seen = seen.filter(|_| decision.is_final).map(|page| (page.file, page.generation));
        let watched = page.filter(|_| asks_the_page(stream, &sink, rendezvous)).map(|page| WatchedPage {
            stream: stream.clone(),
            sink: sink.clone(),
            rendezvous: rendezvous.cloned(),
            page,
            seen,
        });
        let known = KnownSink { joins: decision.text, page: watched };
        self.lock().insert((stream.name.to_string(), sink.name.to_string()), known);
        let reader_id = rendezvous.map(RendezvousFile::reader_id);
        Ok(SinkSetup { config: sink, connect, reader_id, joins: decision.joins })
    }
}

impl WatchedPage {
    /// A new decision, if the page has another reader than before.
    fn look(&mut self, tokenizers: &Tokenizers) -> Option<Decision> {
        self.page.check_file();
        let PageStatus::Page(page) = self.page.look() else { return None };
        let seen = Some((page.file, page.generation));
        if self.seen == seen {
            return None;
        }
        if self.seen.is_some() {
            // Another reader may use other tokenizer files under the same names.
            tokenizers.forget();
        }
        // A tokenizer that the configuration names was read at the start.
        let decision =
            decide(tokenizers, &self.stream, &self.sink, self.rendezvous.as_ref(), Some(&page)).ok()?;
        if decision.is_final {
            self.seen = seen;
        }
        Some(decision)
    }
}

/// The warnings that a start without a rendezvous file would publish, for `afterbay check`.
pub fn warnings(config: &config::Config, tokenizers: &Tokenizers) -> Vec<String> {
    let mut warnings = Vec::new();
    warnings.extend(config.traces.as_ref().and_then(path_twice).map(|event| event.to_string()));
    for stream in &config.streams {
        // The endpoints of the other sinks are unknown without the rendezvous file.
        for sink in stream.sinks.iter().filter(|sink| sink.connect.is_some()) {
            let seen = sink.credit.as_ref().map(PageReader::new).as_mut().and_then(page_of);
            // A tokenizer that cannot be read is a problem, and info as one.
            let Ok(decision) = decide(tokenizers, stream, sink, None, seen.as_ref()) else { continue };
            let unjoined = decision.event.filter(|_| decision.unjoined.is_some());
            let uncounted = uncounted(config, stream, sink, &decision.joins);
            warnings.extend(unjoined.into_iter().chain(uncounted).map(|event| event.to_string()));
        }
    }
    warnings
}

fn page_of(page: &mut PageReader) -> Option<Page> {
    match page.look() {
        PageStatus::Page(page) => Some(page),
        PageStatus::Absent | PageStatus::Unsettled(_) | PageStatus::Invalid(_) => None,
    }
}

/// The warning about a sink without a credit page, whose progress shows only in the kernel's buffer.
fn uncounted(
    config: &config::Config,
    stream: &config::Stream,
    sink: &config::Sink,
    joins: &Joins,
) -> Option<Event> {
    let waits_for_pressure = stream.join.when == config::JoinWhen::Backpressure;
    // A second leg of this process reads at once.
    let is_own = sink.takes == config::Takes::Skipped
        && config.streams.iter().any(|next| Some(&next.listen) == sink.connect.as_ref());
    let is_uncounted = sink.credit.is_none() && waits_for_pressure && joins.is_any() && !is_own;
    let (stream, sink) = (stream.name.as_str().into(), sink.name.as_str().into());
    is_uncounted.then(|| SinkUncounted { stream, sink }.into())
}

/// The kind of reader, by the configuration, else by the rendezvous file; `None` if neither says.
fn configured(
    stream: &config::Stream,
    sink: &config::Sink,
    rendezvous: Option<&RendezvousFile>,
) -> Option<ReaderKind> {
    match (sink.reader, rendezvous.map(|rendezvous| rendezvous.down_kind.as_str())) {
        (config::Reads::Tokenizer, _) | (config::Reads::Auto, Some("tokenizer" | "api_server")) => {
            Some(ReaderKind::Tokenizer)
        }
        (config::Reads::Detokenizer, _) | (config::Reads::Auto, Some(_)) => Some(ReaderKind::Detokenizer),
        // A second leg carries text, so a tokenizer reads it.
        (config::Reads::Auto, None) => {
            let reads_anywhere = !stream.after.is_empty() || stream.engine.traits().joins_anywhere;
            reads_anywhere.then_some(ReaderKind::Tokenizer)
        }
    }
}

/// Whether the credit page can add the kind of reader, the path of a detokenizer's tokenizer, or that the reader has the connector.
fn asks_the_page(stream: &config::Stream, sink: &config::Sink, rendezvous: Option<&RendezvousFile>) -> bool {
    let needs_kind =
        configured(stream, sink, rendezvous) != Some(ReaderKind::Tokenizer) && sink.tokenizer.is_none();
    let needs_connector = sink.tool_calls == config::ToolCalls::Auto && rendezvous.is_none();
    (needs_kind || needs_connector) && !is_never(stream)
}

/// Whether a request's rows stay single from its first tool call on.
fn keeps_calls_single(sink: &config::Sink, rendezvous: Option<&RendezvousFile>, page: Option<&Page>) -> bool {
    match (sink.tool_calls, rendezvous) {
        (config::ToolCalls::Joined, _) => false,
        (config::ToolCalls::Single, _) => true,
        (config::ToolCalls::Auto, Some(rendezvous)) => rendezvous.single_calls.is_some(),
        (config::ToolCalls::Auto, None) => page.is_none(),
    }
}

/// Whether rows are never joined: joining is off, and no plugin holds rows.
fn is_never(stream: &config::Stream) -> bool {
    stream.join.when == config::JoinWhen::Never && stream.plugins.is_empty()
}

/// Decides where rows may be joined for a reader.
///
/// # Errors
/// A tokenizer that the configuration names cannot be read. If the connector named it, the decision is not to join rows.
fn decide(
    tokenizers: &Tokenizers,
    stream: &config::Stream,
    sink: &config::Sink,
    rendezvous: Option<&RendezvousFile>,
    page: Option<&Page>,
) -> anyhow::Result<Decision> {
    if let Some(why) = rendezvous.and_then(|rendezvous| rendezvous.joins_none.as_ref()) {
        return Ok(unjoined(stream, sink, JoinEnds::Nowhere.into(), why, true));
    }
    let on_page = page.map(|page| page.reader);
    let by_setup = configured(stream, sink, rendezvous);
    let reader = by_setup.or(on_page);
    // A stream that never joins rows needs the vocabulary only for held rows.
    let never = stream.join.when == config::JoinWhen::Never;
    let single = keeps_calls_single(sink, rendezvous, page);
    let (of_stream, of_sink) = (stream.name.as_str(), sink.name.as_str());
    let reads_anywhere = reader == Some(ReaderKind::Tokenizer) || is_never(stream);
    let describe = |ends: &str| match (never, single) {
        (true, _) => "never".to_owned(),
        (false, true) => format!("{ends}, tool calls single"),
        (false, false) => ends.to_owned(),
    };
    if reads_anywhere && !single {
        let learned = by_setup.is_none() && reader == Some(ReaderKind::Tokenizer) && !never;
        let event = learned.then(|| SinkJoined { stream: of_stream.into(), sink: of_sink.into() }.into());
        let joins = JoinEnds::Anywhere.into();
        return Ok(Decision { joins, text: describe("anywhere"), unjoined: None, event, is_final: true });
    }
    let info = match (&sink.credit, page) {
        (Some(path), Some(page)) => tokenizer_beside(path, page.pid),
        _ => None,
    };
    let found = rendezvous
        .and_then(|rendezvous| rendezvous.tokenizer_path.clone().or_else(|| rendezvous.model_path.clone()));
    let vocabulary = match (&sink.tokenizer, info.as_ref().map(PathBuf::from).or_else(|| found.map(PathBuf::from))) {
        (Some(path), _) => Ok(tokenizers.vocabulary(path).context("stream.sink.tokenizer")?),
        (None, _) if reader.is_none() => Err(unknown(sink)),
        (None, Some(path)) => tokenizers.vocabulary(&path).map_err(|error| {
            format!("{error}: add tokenizer = \"DIR\" to the sink, the directory of the model's tokenizer.json")
        }),
        (None, None) if reads_anywhere => Err("a tool call that is read from joined rows may lose its arguments, and the reader has not \
                             said that it has the connector: start it with the connector, or add to the sink tool_calls = \
                             \"joined\" if no request has tools, else tokenizer = \"DIR\", the directory of the model's tokenizer.json"
            .to_owned()),
        (None, None) => Err("a detokenizer repeats text where a row ends inside a character, and nothing says which \
                             tokenizer it has: add tokenizer = \"DIR\" to the sink, the directory of the model's tokenizer.json"
            .to_owned()),
    };
    // The connector writes the file beside the page a moment after the page. A reader without a page may write one later.
    let is_final = if reads_anywhere {
        page.is_some()
    } else {
        on_page != Some(ReaderKind::Detokenizer) || sink.tokenizer.is_some() || info.is_some()
    };
    Ok(match vocabulary {
        Ok(vocabulary) => {
            let (tokens, kind) = (vocabulary.tokens() as u64, vocabulary.kind().to_string());
            let single = match single {
                true => SingleRows::FromToolCall(vocabulary.clone()),
                false => SingleRows::None,
            };
            let (ends, text) = match reads_anywhere {
                true => (JoinEnds::Anywhere, describe("anywhere")),
                false => {
                    let text = describe(&format!("where the text is whole, by {tokens} tokens"));
                    (JoinEnds::WhereTextIsWhole(vocabulary), text)
                }
            };
            let (stream, sink) = (of_stream.into(), of_sink.into());
            let event = (!never).then(|| SinkVocabulary { stream, sink, tokens, kind }.into());
            Decision { joins: Joins { ends, single }, text, unjoined: None, event, is_final }
        }
        Err(_) if never => Decision {
            joins: JoinEnds::Nowhere.into(),
            text: "never".to_owned(),
            unjoined: None,
            event: None,
            is_final,
        },
        Err(why) if reads_anywhere => {
            let joins = Joins { ends: JoinEnds::Anywhere, single: SingleRows::All };
            unjoined(stream, sink, joins, &why, is_final)
        }
        Err(why) => unjoined(stream, sink, JoinEnds::Nowhere.into(), &why, is_final),
    })
}

/// The decision to join no rows for this reason.
fn unjoined(
    stream: &config::Stream,
    sink: &config::Sink,
    joins: Joins,
    why: &str,
    is_final: bool,
) -> Decision {
    let (stream, sink) = (stream.name.as_str().into(), sink.name.as_str().into());
    let event = Some(SinkUnjoined { stream, sink, why: why.to_owned() }.into());
    let (text, unjoined) = (format!("not joined: {why}"), Some(why.to_owned()));
    Decision { joins, text, unjoined, event, is_final }
}

/// Explains why rows are not joined for a reader of unknown kind, and what to do.
fn unknown(sink: &config::Sink) -> String {
    let add = "add reader = \"tokenizer\" to the sink where the scheduler sends to its tokenizer, else tokenizer = \
               \"DIR\", the directory of the model's tokenizer.json";
    match &sink.credit {
        Some(path) => format!(
            "reader unknown until it writes its credit page {}: start it with the connector, or {add}",
            path.display()
        ),
        None => format!("reader unknown: {add}"),
    }
}

/// The file that the connector writes beside a detokenizer's page.
#[derive(Deserialize)]
struct ReaderInfo {
    pid: u32,
    tokenizer_path: Option<String>,
}

/// The tokenizer of the reader with this pid, by the file beside its credit page.
fn tokenizer_beside(page: &Path, pid: u32) -> Option<String> {
    let mut file = page.as_os_str().to_owned();
    file.push(".json");
    let file = Path::new(&file);
    if std::fs::metadata(file).ok()?.len() > READER_INFO_BYTES_MAX {
        return None;
    }
    let info: ReaderInfo = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    info.tokenizer_path.filter(|_| info.pid == pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENIZER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../path/text/tests/fixtures/byte-level");

    fn vllm() -> config::Stream {
        let endpoint = |name: &str| format!("ipc:///run/{name}").parse().unwrap();
        let mut stream = config::Stream::new("vllm".parse().unwrap(), endpoint("in"), endpoint("out"));
        stream.engine = config::Engine::Vllm;
        stream
    }

    /// A rendezvous file of vLLM with these fields in addition.
    fn rendezvous(more: serde_json::Value) -> RendezvousFile {
        let mut file = serde_json::json!({
            "format": 1, "engine": "vllm", "leg": "tokens", "pid": 1, "written_unix_ns": 1, "mode": "normal",
            "ipc_format": "msgpack", "ingress": "ipc:///run/in", "down": "ipc:///run/out", "down_kind": "api_server",
        });
        file.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(file).unwrap()
    }

    fn joins(stream: &config::Stream, file: Option<&RendezvousFile>, page: Option<ReaderKind>) -> String {
        let page = page.map(|reader| Page {
            file: (1, 1),
            pid: 1,
            generation: 1,
            count: 0,
            last_generation: 0,
            last_count: 0,
            changed_unix_ns: 0,
            reader,
        });
        decide(&Tokenizers::default(), stream, &stream.sinks[0], file, page.as_ref()).unwrap().text
    }

    #[test]
    fn rows_for_vllms_api_server_are_joined_anywhere_unless_the_connector_says_why_not() {
        let with = |more| joins(&vllm(), Some(&rendezvous(more)), None);
        assert_eq!(with(serde_json::json!({})), "anywhere");
        let why = serde_json::json!({"joins_none": "vLLM 0.31.0 does not"});
        assert_eq!(with(why), "not joined: vLLM 0.31.0 does not");
    }

    #[test]
    fn rows_of_tool_calls_stay_single_where_the_connector_says_so_or_no_connector_is_known() {
        let why = serde_json::json!({"single_calls": "X parses them", "tokenizer_path": TOKENIZER});
        assert_eq!(joins(&vllm(), Some(&rendezvous(why)), None), "anywhere, tool calls single");
        let unknown = joins(&vllm(), None, None);
        assert!(unknown.starts_with("not joined: a tool call"), "{unknown}");
        assert_eq!(
            joins(&vllm(), None, Some(ReaderKind::Tokenizer)),
            "anywhere",
            "the page is of the connector"
        );
        let mut stream = vllm();
        stream.sinks[0].tokenizer = Some(TOKENIZER.into());
        assert_eq!(joins(&stream, None, None), "anywhere, tool calls single");
        stream.sinks[0].tool_calls = config::ToolCalls::Joined;
        assert_eq!(joins(&stream, None, None), "anywhere");
    }
}
