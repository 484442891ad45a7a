//! A harness for a plugin's unit tests: plain `cargo test`, without WebAssembly.
//!
//! The harness calls the plugin like the host: settings as JSON, only the columns that the plugin reads, one
//! plugin value for the whole test. It does not enforce limits; `afterbay plugin run` does.

use std::collections::{BTreeMap, BTreeSet};

use crate::call::{Answer, CallError, Response};
use crate::columns::batch_of;
use crate::instance::Instance;
use crate::stand_in::{HOST, StandIn, Stored};
use crate::{
    Calls, ConfigureError, Opened, Plugin, RequestId, RequestVerdict, Snapshot, StateError, TokenId, Verdict,
};

mod readers;

pub use crate::columns::TestRow;
pub use crate::stand_in::{Line, Metric, SentCall, nothing_waits};
pub use readers::{Readers, Received};

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
    open: BTreeSet<RequestId>,
}

impl<P: Plugin> Harness<P> {
    /// Creates the plugin with these settings, as JSON text.
    ///
    /// # Errors
    /// The message that the operator would see.
    pub fn new(settings: &str) -> Result<Self, ConfigureError> {
        Self::with_tokens(settings, Vec::new())
    }

    /// Creates the plugin with these settings and with a tokenizer of these tokens, by id: the bytes of each
    /// token, or `None` for a special token.
    ///
    /// # Errors
    /// As [`Harness::new`].
    pub fn with_tokens(settings: &str, tokens: Vec<Option<Vec<u8>>>) -> Result<Self, ConfigureError> {
        HOST.with_borrow_mut(|host| *host = StandIn { tokens, ..StandIn::default() });
        let instance = Instance::new();
        instance.configure(settings)?;
        Ok(Self { instance, open: BTreeSet::new() })
    }

    /// Replaces the instance by a new one with these settings, as after a restart of the process. The store
    /// and the time stay. No request is open.
    ///
    /// # Errors
    /// As [`Harness::new`].
    pub fn restart(&mut self, settings: &str) -> Result<(), ConfigureError> {
        HOST.with_borrow_mut(|host| {
            (host.calls, host.not_ready, host.timers) = (Vec::new(), None, BTreeMap::new())
        });
        let instance = Instance::new();
        instance.configure(settings)?;
        (self.instance, self.open) = (instance, BTreeSet::new());
        Ok(())
    }

    /// Sets the time of the next batches, in milliseconds since 1970-01-01 UTC. It is 0 at first.
    pub fn set_time_ms(&mut self, time_ms: u64) {
        HOST.with_borrow_mut(|host| host.time_ms = time_ms);
    }

    /// Returns and removes the calls that the plugin made so far.
    pub fn calls(&mut self) -> Vec<SentCall> {
        HOST.with_borrow_mut(|host| std::mem::take(&mut host.calls))
    }

    /// Passes the outcome of a call to the plugin. Returns its verdicts on requests.
    pub fn answer(&mut self, call: &SentCall, outcome: Result<Response, CallError>) -> Vec<RequestVerdict> {
        self.answer_all(vec![Answer { call: call.call, request: call.request, outcome }])
    }

    /// Passes the outcomes of calls to the plugin, in one call. Returns its verdicts on requests.
    pub fn answer_all(&mut self, answers: Vec<Answer>) -> Vec<RequestVerdict> {
        self.instance.answered(&answers)
    }

    /// Tells the plugin of the timers that are due at the present time ([`set_time_ms`](Harness::set_time_ms)), in one
    /// call. Returns its verdicts on requests; none if no timer is due.
    pub fn due(&mut self) -> Vec<RequestVerdict> {
        let (now, mut due) = HOST.with_borrow_mut(|host| {
            let now = host.time_ms;
            let due = host.timers.iter().filter(|(_, at)| **at <= now).map(|(request, at)| (*at, *request));
            let due: Vec<(u64, RequestId)> = due.collect();
            due.iter().for_each(|(_, request)| _ = host.timers.remove(request));
            (now, due)
        });
        due.sort_unstable();
        let due: Vec<RequestId> = due.into_iter().map(|(_, request)| request).collect();
        if due.is_empty() { Vec::new() } else { self.instance.due(now, &due) }
    }

    /// The reason why the plugin marks the stream as not ready.
    pub fn not_ready(&self) -> Option<String> {
        HOST.with_borrow(|host| host.not_ready.clone())
    }

    /// The value of a key of the store. The value of a number is its 8 bytes, little-endian.
    pub fn stored(&self, key: &str) -> Option<Vec<u8>> {
        crate::store::get(key)
    }

    /// Sets the value of a key of the store, as an earlier process left it.
    pub fn set_stored(&mut self, key: &str, value: &[u8]) {
        HOST.with_borrow_mut(|host| host.store.insert(key.to_owned(), Stored::Bytes(value.to_vec())));
    }

    /// Sets the number of a key of the store, as an earlier process left it.
    pub fn set_stored_number(&mut self, key: &str, number: i64) {
        HOST.with_borrow_mut(|host| host.store.insert(key.to_owned(), Stored::Number(number)));
    }

    /// Sets the signals. Calls `pressure` if the plugin wants it.
    pub fn set_signals(&mut self, signals: Snapshot) {
        HOST.with_borrow_mut(|host| host.signals = Some(signals));
        if P::WANTS.contains(Calls::PRESSURE) {
            self.instance.pressure();
        }
    }

    /// Sets the request's attributes, a JSON object. Calls `changed` if the request is open and the plugin
    /// wants the call.
    pub fn set_attributes(&mut self, request: RequestId, attributes: &str) {
        HOST.with_borrow_mut(|host| host.attributes.insert(request, attributes.to_owned()));
        if self.open.contains(&request) && P::WANTS.contains(Calls::CHANGED) {
            self.instance.changed(&[request]);
        }
    }

    /// Sets what the scheduler was asked for, a JSON object, and the ids of the prompt. Call it before
    /// [`open`](Harness::open).
    pub fn set_asked(&mut self, request: RequestId, asked: &str, prompt_ids: &[TokenId]) {
        let asked = (asked.to_owned(), prompt_ids.to_vec());
        HOST.with_borrow_mut(|host| host.asked.insert(request, asked));
    }

    /// Exports the plugin's state.
    pub fn export_state(&mut self) -> Vec<u8> {
        self.instance.export_state()
    }

    /// Imports the state that an instance of this version exported.
    ///
    /// # Errors
    /// If the plugin rejects the state.
    pub fn import_state(&mut self, version: &str, state: &[u8]) -> Result<(), StateError> {
        self.instance.import_state(version, state)
    }

    /// The value of the plugin's metric of this name without labels.
    pub fn metric(&self, name: &str) -> Option<Metric> {
        self.metric_with(name, &[])
    }

    /// The value of the plugin's metric of this name with these labels.
    pub fn metric_with(&self, name: &str, labels: &[(&str, &str)]) -> Option<Metric> {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let key = (name.to_owned(), labels.collect());
        HOST.with_borrow(|host| host.metrics.get(&key).cloned())
    }

    /// Opens a request with a generated rid and no prompt.
    pub fn open(&mut self, request: RequestId) {
        self.open_as(Opened {
            request,
            rid: format!("request-{request}"),
            front_end: String::new(),
            sink: String::new(),
            arrived_ms: HOST.with_borrow(|host| host.time_ms),
            prompt_tokens: 0,
            received_tokens: 0,
            resumed: false,
        });
    }

    /// Opens a request, or resumes it, with all its facts.
    pub fn open_as(&mut self, request: Opened) {
        self.open.insert(request.request);
        self.instance.open(&[request]);
    }

    /// Processes a batch of these rows. Returns the verdicts, sorted by row.
    pub fn process(&mut self, rows: &[TestRow]) -> Vec<Verdict> {
        let time_ms = HOST.with_borrow(|host| host.time_ms);
        self.instance.process(&batch_of(time_ms, rows, P::COLUMNS))
    }

    /// Closes a request.
    pub fn close(&mut self, request: RequestId) {
        self.instance.close(&[request]);
        self.open.remove(&request);
        HOST.with_borrow_mut(|host| {
            host.attributes.remove(&request);
            host.timers.remove(&request);
        });
    }

    /// Returns and removes the lines that were logged so far.
    pub fn logged(&mut self) -> Vec<Line> {
        HOST.with_borrow_mut(|host| std::mem::take(&mut host.lines))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, Columns, Level, NoSettings, Requests, Verdicts};

    /// Drops a request's rows after its third token and logs it.
    struct DropAfterThree {
        counts: Requests<usize>,
    }

    impl Plugin for DropAfterThree {
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
                assert_eq!(row.completion_tokens(), None, "the plugin does not read this column");
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

    crate::export!(DropAfterThree);

    #[test]
    fn a_plugin_follows_a_request_from_open_to_close() {
        let mut plugin = Harness::<DropAfterThree>::new("{}").unwrap();
        plugin.open(5);
        assert_eq!(plugin.process(&[TestRow::new(5).ids([1, 2, 3]).completion_tokens(3)]), []);
        let verdicts = plugin.process(&[TestRow::new(6).ids([1]), TestRow::new(5).ids([4])]);
        assert_eq!(verdicts, [Verdict { row: 1, action: crate::Action::Drop("enough".into()) }]);
        let line = Line { level: Level::Info, request: Some(5), message: "dropped after 3".into() };
        assert_eq!(plugin.logged(), [line]);
        plugin.close(5);
        assert_eq!(plugin.process(&[TestRow::new(5).ids([4])]), []);
    }

    /// Counts the bytes of its tokens.
    struct CountBytes;

    impl Plugin for CountBytes {
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
                crate::metrics::counter_add("bytes", &[], text.len() as u64);
                crate::metrics::histogram_observe("row_bytes", &[], text.len() as f64);
                crate::metrics::gauge_set("special", &[], crate::tokenizer::special().len() as f64);
            }
        }
    }

    #[test]
    fn the_stand_in_has_a_tokenizer_and_metrics() {
        let none = Harness::<CountBytes>::new("{}").err().unwrap();
        assert_eq!(none.message(), "no tokenizer");
        let tokens = vec![Some(b"ab".to_vec()), Some(b"c".to_vec()), None];
        let mut plugin = Harness::<CountBytes>::with_tokens("{}", tokens).unwrap();
        plugin.process(&[TestRow::new(1).ids([0, 2, 9]), TestRow::new(2).ids([1])]);
        assert_eq!(plugin.metric("bytes"), Some(Metric::Counter(3)));
        assert_eq!(plugin.metric("row_bytes"), Some(Metric::Histogram(vec![2.0, 1.0])));
        assert_eq!(plugin.metric("special"), Some(Metric::Gauge(1.0)));
        assert_eq!(crate::tokenizer::encode("cab"), Ok(vec![1, 0]));
        assert!(crate::tokenizer::encode("x").is_err());
        assert_eq!(crate::tokenizer::token_bytes(1, 9), [b"c".to_vec(), vec![]]);
    }

    /// Counts rows in the store and asks a service about each.
    struct Asks;

    impl Plugin for Asks {
        type Settings = NoSettings;
        const COLUMNS: Columns = Columns::empty();

        fn new(_: NoSettings) -> Result<Self, ConfigureError> {
            Ok(Self)
        }

        fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
            for row in batch {
                let rows = crate::store::increment("rows", 1).unwrap_or_default();
                crate::metrics::gauge_set("rows", &[("kind", "all")], rows as f64);
                let body = format!("{rows} at {}", batch.time_ms());
                crate::call::send("service", row.request(), body.as_bytes());
                verdicts.hold(row, std::time::Duration::from_secs(1));
            }
        }

        fn answered(&mut self, answers: &[Answer], verdicts: &mut crate::RequestVerdicts) {
            for answer in answers {
                match &answer.outcome {
                    Ok(response) if response.status == 200 => verdicts.release(answer.request, 1),
                    Ok(_) => verdicts.finish(answer.request, "refused"),
                    Err(error) => crate::health::set_not_ready(Some(&format!("{error:?}"))),
                }
            }
        }
    }

    #[test]
    fn the_stand_in_has_a_time_a_store_calls_and_a_health_mark() {
        let mut plugin = Harness::<Asks>::new("{}").unwrap();
        plugin.set_time_ms(70);
        plugin.process(&[TestRow::new(1), TestRow::new(2)]);
        let calls = plugin.calls();
        assert_eq!((calls.len(), &calls[1].body[..], calls[1].request), (2, &b"2 at 70"[..], 2));
        assert_eq!(plugin.metric_with("rows", &[("kind", "all")]), Some(Metric::Gauge(2.0)));
        let response = Response { status: 200, body: Vec::new() };
        let released = plugin.answer(&calls[0], Ok(response));
        assert_eq!(released, [RequestVerdict { request: 1, action: crate::RequestAction::Release(1) }]);
        assert_eq!(plugin.answer(&calls[1], Err(CallError::TimedOut)), []);
        assert!(plugin.not_ready().unwrap().contains("TimedOut"));
        plugin.restart("{}").unwrap();
        assert_eq!((plugin.not_ready(), plugin.stored("rows")), (None, Some(2_i64.to_le_bytes().to_vec())));
        assert_eq!(crate::store::set("", &[]), Err(crate::store::StoreError::BadKey));
        assert_eq!(crate::store::list_keys("r", None), ["rows"]);
        assert!(crate::store::list_keys("r", Some("rows")).is_empty());
    }

    #[test]
    fn an_unknown_setting_is_named() {
        let error = Harness::<DropAfterThree>::new(r#"{"widow": 3}"#).err().unwrap();
        assert!(error.message().contains("unknown field `widow`"), "{error}");
    }

    #[test]
    fn a_description_is_within_the_contract() {
        let description = crate::instance::describe::<DropAfterThree>("some_crate", "1.2.3");
        assert_eq!((description.name.as_str(), description.version.as_str()), ("some-crate", "1.2.3"));
        let schema: serde_json::Value = serde_json::from_str(&description.settings_schema).unwrap();
        assert_eq!(schema["additionalProperties"], false);
    }
}
