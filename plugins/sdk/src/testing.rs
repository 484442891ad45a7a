//! A stand-in for the host, for a plugin's unit tests: plain `cargo test`, no WebAssembly.
//!
//! It calls the plugin as the host does: settings as JSON, only the columns that were asked for, one value for the whole
//! test. What it does not have are the limits: `afterbay plugin run` has those.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::abi::{self, Instance};
use crate::{
    Calls, Columns, ConfigureError, FinishKind, Level, Opened, Plugin, Queue, RequestId, Snapshot,
    StateError, TokenId, Verdict,
};

thread_local! {
    static HOST: RefCell<Host> = RefCell::new(Host::default());
}

/// What the host would know, of the harness that was made last on this thread.
#[derive(Default)]
#[cfg_attr(target_arch = "wasm32", expect(dead_code, reason = "there the host knows it"))]
struct Host {
    lines: Vec<Line>,
    signals: Option<Snapshot>,
    attributes: BTreeMap<RequestId, String>,
    /// The bytes of each token; none of a special one.
    tokens: Vec<Option<Vec<u8>>>,
    metrics: BTreeMap<String, Metric>,
}

/// What a plugin has counted under a name.
#[derive(Clone, Debug, PartialEq)]
pub enum Metric {
    /// The sum of what was added.
    Counter(u64),
    /// What was set last.
    Gauge(f64),
    /// What was observed, in order.
    Histogram(Vec<f64>),
}

/// A line that was logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// How important it is.
    pub level: Level,
    /// The request it is about.
    pub request: Option<RequestId>,
    /// The text.
    pub message: String,
}

#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn keep(level: Level, request: Option<RequestId>, message: &str) {
    HOST.with_borrow_mut(|host| host.lines.push(Line { level, request, message: message.to_owned() }));
}

#[cfg(not(target_arch = "wasm32"))]
pub(crate) mod signals {
    pub(crate) fn read() -> crate::Snapshot {
        super::HOST.with_borrow(|host| host.signals.clone()).unwrap_or_else(super::nothing_waits)
    }
}

#[cfg(not(target_arch = "wasm32"))]
pub(crate) mod request {
    pub(crate) fn attributes(request: crate::RequestId) -> Option<String> {
        super::HOST.with_borrow(|host| host.attributes.get(&request).cloned())
    }
}

#[cfg(not(target_arch = "wasm32"))]
pub(crate) mod metrics {
    use super::{HOST, Metric};

    fn enter(name: &str, new: Metric, more: impl FnOnce(&mut Metric)) {
        HOST.with_borrow_mut(|host| more(host.metrics.entry(name.to_owned()).or_insert(new)));
    }

    /// A name of another kind is not counted, as by the host.
    pub(crate) fn counter_add(name: &str, delta: u64) {
        enter(name, Metric::Counter(0), |metric| {
            if let Metric::Counter(sum) = metric {
                *sum += delta;
            }
        });
    }

    pub(crate) fn gauge_set(name: &str, value: f64) {
        enter(name, Metric::Gauge(value), |metric| {
            if let Metric::Gauge(last) = metric {
                *last = value;
            }
        });
    }

    pub(crate) fn histogram_observe(name: &str, value: f64) {
        enter(name, Metric::Histogram(Vec::new()), |metric| {
            if let Metric::Histogram(values) = metric {
                values.push(value);
            }
        });
    }
}

#[cfg(not(target_arch = "wasm32"))]
pub(crate) mod tokenizer {
    use super::HOST;
    use crate::TokenId;
    use crate::tokenizer::EncodeError;

    fn bytes(tokens: &[Option<Vec<u8>>], id: TokenId) -> &[u8] {
        let token = usize::try_from(id).ok().and_then(|id| tokens.get(id));
        token.and_then(Option::as_deref).unwrap_or_default()
    }

    pub(crate) fn size() -> u32 {
        HOST.with_borrow(|host| host.tokens.len() as u32)
    }

    pub(crate) fn decode(ids: &[TokenId]) -> Vec<u8> {
        HOST.with_borrow(|host| ids.iter().flat_map(|id| bytes(&host.tokens, *id)).copied().collect())
    }

    pub(crate) fn token_bytes(first: TokenId, count: u32) -> Vec<Vec<u8>> {
        let end = (first + TokenId::from(count)).min(size().into());
        HOST.with_borrow(|host| (first..end).map(|id| bytes(&host.tokens, id).to_vec()).collect())
    }

    pub(crate) fn special() -> Vec<TokenId> {
        let is_special = |(id, token): (usize, &Option<Vec<u8>>)| token.is_none().then_some(id as TokenId);
        HOST.with_borrow(|host| host.tokens.iter().enumerate().filter_map(is_special).collect())
    }

    /// None is known to end a text.
    pub(crate) fn end_of_text() -> Vec<TokenId> {
        Vec::new()
    }

    /// The longest token that fits, again and again.
    pub(crate) fn encode(text: &str) -> Result<Vec<TokenId>, EncodeError> {
        HOST.with_borrow(|host| {
            let (mut rest, mut ids) = (text.as_bytes(), Vec::new());
            while !rest.is_empty() {
                let fits = |token: &&Vec<u8>| !token.is_empty() && rest.starts_with(token);
                let tokens = host.tokens.iter().enumerate();
                let fitting = tokens.filter_map(|(id, token)| Some((id, token.as_ref().filter(fits)?.len())));
                let Some((id, length)) = fitting.max_by_key(|(_, length)| *length) else {
                    let rest = String::from_utf8_lossy(rest).into_owned();
                    return Err(EncodeError::Failed(format!("no token begins {rest:?}")));
                };
                ids.push(id as TokenId);
                rest = &rest[length..];
            }
            Ok(ids)
        })
    }
}

/// A stream in which nothing waits, without sinks and without a scheduler's load: what [`Harness`] has before
/// [`Harness::set_signals`].
#[must_use]
pub fn nothing_waits() -> Snapshot {
    let ingress = Queue { frames: 0, rows: 0, bytes: 0, oldest_age_ms: 0 };
    Snapshot { ingress, sinks: Vec::new(), live_requests: 0, scheduler: None }
}

/// An instance of a plugin under test.
///
/// ```
/// use afterbay_plugin::testing::{Harness, TestRow};
/// use afterbay_plugin::{Action, Batch, Columns, ConfigureError, FinishKind, NoSettings, Plugin, Verdicts};
///
/// struct DropEmptyEnds;
///
/// impl Plugin for DropEmptyEnds {
///     type Settings = NoSettings;
///     const COLUMNS: Columns = Columns::OUTPUT_IDS.union(Columns::FINISHED);
///
///     fn new(_: NoSettings) -> Result<Self, ConfigureError> {
///         Ok(Self)
///     }
///
///     fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
///         for row in batch.rows().filter(|row| row.ids().is_empty()) {
///             verdicts.drop(row, "no ids");
///         }
///     }
/// }
///
/// let mut plugin = Harness::<DropEmptyEnds>::new("{}")?;
/// plugin.open(1);
/// plugin.open(2);
/// let verdicts = plugin.process(&[TestRow::new(1).ids([7]), TestRow::new(2).finish(FinishKind::Abort)]);
/// assert_eq!(verdicts.len(), 1);
/// assert_eq!((verdicts[0].row, &verdicts[0].action), (1, &Action::Drop("no ids".into())));
/// # Ok::<(), ConfigureError>(())
/// ```
pub struct Harness<P> {
    instance: Instance<P>,
    /// Requests that were opened and not closed.
    open: BTreeSet<RequestId>,
}

impl<P: Plugin> Harness<P> {
    /// A plugin configured with these settings, JSON text.
    ///
    /// # Errors
    /// What the operator would be shown.
    pub fn new(settings: &str) -> Result<Self, ConfigureError> {
        Self::with_tokens(settings, Vec::new())
    }

    /// The same with a tokenizer of these tokens, by id: their bytes, or none for a special one.
    ///
    /// # Errors
    /// As [`Harness::new`].
    pub fn with_tokens(settings: &str, tokens: Vec<Option<Vec<u8>>>) -> Result<Self, ConfigureError> {
        HOST.with_borrow_mut(|host| *host = Host { tokens, ..Host::default() });
        let instance = Instance::new();
        instance.configure(settings)?;
        Ok(Self { instance, open: BTreeSet::new() })
    }

    /// From now on things stand so. Tells the plugin if it wants to be told.
    pub fn set_signals(&mut self, now: Snapshot) {
        HOST.with_borrow_mut(|host| host.signals = Some(now));
        if P::WANTS.contains(Calls::PRESSURE) {
            self.instance.pressure();
        }
    }

    /// The request's attributes, a JSON object, from now on. Before it is opened they are there when it is; after that the
    /// plugin is told if it wants to be.
    pub fn set_attributes(&mut self, request: RequestId, attributes: &str) {
        HOST.with_borrow_mut(|host| host.attributes.insert(request, attributes.to_owned()));
        if self.open.contains(&request) && P::WANTS.contains(Calls::CHANGED) {
            self.instance.changed(&[request]);
        }
    }

    /// What the plugin knows of its open requests.
    pub fn export_state(&mut self) -> Vec<u8> {
        self.instance.export_state()
    }

    /// Gives it what an instance of this version has exported.
    ///
    /// # Errors
    /// If the plugin does not understand it.
    pub fn import_state(&mut self, version: &str, state: &[u8]) -> Result<(), StateError> {
        self.instance.import_state(version, state)
    }

    /// What the plugin has counted under a name.
    pub fn metric(&self, name: &str) -> Option<Metric> {
        HOST.with_borrow(|host| host.metrics.get(name).cloned())
    }

    /// A request begins, with no prompt and a made-up rid.
    pub fn open(&mut self, request: RequestId) {
        self.open_as(Opened {
            request,
            rid: format!("request-{request}"),
            http_worker_ipc: String::new(),
            sink: String::new(),
            prompt_tokens: 0,
            received_tokens: 0,
            resumed: false,
        });
    }

    /// A request begins, or goes on after a fault or a reload, as told.
    pub fn open_as(&mut self, request: Opened) {
        self.open.insert(request.request);
        self.instance.open(&[request]);
    }

    /// A batch of these rows; the plugin's verdicts, sorted by row.
    pub fn process(&mut self, rows: &[TestRow]) -> Vec<Verdict> {
        self.instance.process(&columns(rows, P::COLUMNS))
    }

    /// A request has ended.
    pub fn close(&mut self, request: RequestId) {
        self.instance.close(&[request]);
        self.open.remove(&request);
        HOST.with_borrow_mut(|host| host.attributes.remove(&request));
    }

    /// What was logged since the last call of this.
    pub fn logged(&mut self) -> Vec<Line> {
        HOST.with_borrow_mut(|host| std::mem::take(&mut host.lines))
    }
}

/// A row to be given to a plugin.
#[derive(Clone, Debug)]
pub struct TestRow {
    request: RequestId,
    ids: Vec<TokenId>,
    completion_tokens: u64,
    finish: FinishKind,
    text: String,
    waiting: u32,
}

impl TestRow {
    /// A row of this request, without tokens, not its last.
    #[must_use]
    pub fn new(request: RequestId) -> Self {
        let (ids, text) = (Vec::new(), String::new());
        Self { request, ids, completion_tokens: 0, finish: FinishKind::Running, text, waiting: 0 }
    }

    /// With these new ids.
    #[must_use]
    pub fn ids(mut self, ids: impl Into<Vec<TokenId>>) -> Self {
        self.ids = ids.into();
        self
    }

    /// With this count of the request's tokens, the row's included.
    #[must_use]
    pub fn completion_tokens(mut self, tokens: u64) -> Self {
        self.completion_tokens = tokens;
        self
    }

    /// As the request's last, for this reason.
    #[must_use]
    pub fn finish(mut self, kind: FinishKind) -> Self {
        self.finish = kind;
        self
    }

    /// With this new text.
    #[must_use]
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.text = text.into();
        self
    }

    /// With so many rows of the request that the plugin holds.
    #[must_use]
    pub fn waiting(mut self, rows: u32) -> Self {
        self.waiting = rows;
        self
    }
}

fn columns(rows: &[TestRow], wanted: Columns) -> abi::Batch {
    let mut batch = abi::Batch {
        requests: rows.iter().map(|row| row.request).collect(),
        output_ids: Vec::new(),
        output_ends: Vec::new(),
        completion_tokens: Vec::new(),
        finished: Vec::new(),
        texts: Vec::new(),
        waiting: Vec::new(),
    };
    for row in rows {
        if wanted.contains(Columns::OUTPUT_IDS) {
            batch.output_ids.extend_from_slice(&row.ids);
            batch.output_ends.push(batch.output_ids.len() as u32);
        }
        if wanted.contains(Columns::COMPLETION_TOKENS) {
            batch.completion_tokens.push(row.completion_tokens);
        }
        if wanted.contains(Columns::FINISHED) {
            batch.finished.push(row.finish);
        }
        if wanted.contains(Columns::TEXTS) {
            batch.texts.push(row.text.clone());
        }
        if wanted.contains(Columns::WAITING) {
            batch.waiting.push(row.waiting);
        }
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, NoSettings, Requests, Verdicts};

    /// Drops a request's rows after its third token, and says so once.
    struct Three {
        counts: Requests<usize>,
    }

    impl Plugin for Three {
        type Settings = NoSettings;
        const COLUMNS: Columns = Columns::OUTPUT_IDS;

        fn new(_: NoSettings) -> Result<Self, ConfigureError> {
            Ok(Self { counts: Requests::new() })
        }

        fn opened(&mut self, request: &Opened) {
            self.counts.insert(request.request, 0);
        }

        fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
            for row in batch {
                assert_eq!(row.completion_tokens(), None, "not asked for");
                let Some(count) = self.counts.get_mut(row.request()) else { continue };
                if *count >= 3 {
                    verdicts.drop(row, "enough");
                    crate::info!(request: row.request(), "dropped after {count}");
                }
                *count += row.ids().len();
            }
        }

        fn closed(&mut self, request: RequestId) {
            self.counts.remove(request);
        }
    }

    crate::export!(Three);

    #[test]
    fn a_plugin_lives_through_a_request() {
        let mut plugin = Harness::<Three>::new("{}").unwrap();
        plugin.open(5);
        assert_eq!(plugin.process(&[TestRow::new(5).ids([1, 2, 3]).completion_tokens(3)]), []);
        let verdicts = plugin.process(&[TestRow::new(6).ids([1]), TestRow::new(5).ids([4])]);
        assert_eq!(verdicts, [Verdict { row: 1, action: crate::Action::Drop("enough".into()) }]);
        let line = Line { level: Level::Info, request: Some(5), message: "dropped after 3".into() };
        assert_eq!(plugin.logged(), [line]);
        plugin.close(5);
        assert_eq!(plugin.process(&[TestRow::new(5).ids([4])]), []);
    }

    /// Counts what it can read of its tokens.
    struct Reads;

    impl Plugin for Reads {
        type Settings = NoSettings;
        const COLUMNS: Columns = Columns::OUTPUT_IDS;

        fn new(_: NoSettings) -> Result<Self, ConfigureError> {
            match crate::tokenizer::size() {
                0 => Err(crate::missing("no tokenizer")),
                _ => Ok(Self),
            }
        }

        fn process(&mut self, batch: &Batch<'_>, _: &mut Verdicts) {
            for row in batch {
                let text = crate::tokenizer::decode(row.ids());
                crate::metrics::counter_add("bytes", text.len() as u64);
                crate::metrics::histogram_observe("row_bytes", text.len() as f64);
                crate::metrics::gauge_set("special", crate::tokenizer::special().len() as f64);
            }
        }
    }

    #[test]
    fn the_host_s_tokenizer_and_metrics_are_stood_for() {
        let none = Harness::<Reads>::new("{}").err().unwrap();
        assert_eq!(none.message(), "no tokenizer");
        let tokens = vec![Some(b"ab".to_vec()), Some(b"c".to_vec()), None];
        let mut plugin = Harness::<Reads>::with_tokens("{}", tokens).unwrap();
        plugin.process(&[TestRow::new(1).ids([0, 2, 9]), TestRow::new(2).ids([1])]);
        assert_eq!(plugin.metric("bytes"), Some(Metric::Counter(3)));
        assert_eq!(plugin.metric("row_bytes"), Some(Metric::Histogram(vec![2.0, 1.0])));
        assert_eq!(plugin.metric("special"), Some(Metric::Gauge(1.0)));
        assert_eq!(crate::tokenizer::encode("cab"), Ok(vec![1, 0]));
        assert!(crate::tokenizer::encode("x").is_err());
        assert_eq!(crate::tokenizer::token_bytes(1, 9), [b"c".to_vec(), vec![]]);
    }

    #[test]
    fn a_setting_that_is_not_known_is_told_by_name() {
        let error = Harness::<Three>::new(r#"{"widow": 3}"#).err().unwrap();
        assert!(error.message().contains("unknown field `widow`"), "{error}");
    }

    #[test]
    fn a_description_is_within_the_contract() {
        let description = abi::describe::<Three>("some_crate", "1.2.3");
        assert_eq!((description.name.as_str(), description.version.as_str()), ("some-crate", "1.2.3"));
        let schema: serde_json::Value = serde_json::from_str(&description.settings_schema).unwrap();
        assert_eq!(schema["additionalProperties"], false);
    }
}
