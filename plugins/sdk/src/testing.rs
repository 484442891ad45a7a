//! A harness for a plugin's unit tests: plain `cargo test`, without WebAssembly.
//!
//! The harness calls the plugin like the host: settings as JSON, only the columns that the plugin reads, one
//! plugin value for the whole test. It does not enforce limits; `afterbay plugin run` does.

use std::collections::BTreeSet;

use crate::columns::batch_of;
use crate::instance::Instance;
use crate::stand_in::{HOST, StandIn};
use crate::{Calls, ConfigureError, Opened, Plugin, RequestId, Snapshot, StateError, Verdict};

mod readers;

pub use crate::columns::TestRow;
pub use crate::stand_in::{Line, Metric, nothing_waits};
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

    /// The value of the plugin's metric of this name.
    pub fn metric(&self, name: &str) -> Option<Metric> {
        HOST.with_borrow(|host| host.metrics.get(name).cloned())
    }

    /// Opens a request with a generated rid and no prompt.
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

    /// Opens a request, or resumes it, with all its facts.
    pub fn open_as(&mut self, request: Opened) {
        self.open.insert(request.request);
        self.instance.open(&[request]);
    }

    /// Processes a batch of these rows. Returns the verdicts, sorted by row.
    pub fn process(&mut self, rows: &[TestRow]) -> Vec<Verdict> {
        self.instance.process(&batch_of(rows, P::COLUMNS))
    }

    /// Closes a request.
    pub fn close(&mut self, request: RequestId) {
        self.instance.close(&[request]);
        self.open.remove(&request);
        HOST.with_borrow_mut(|host| host.attributes.remove(&request));
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
                crate::metrics::counter_add("bytes", text.len() as u64);
                crate::metrics::histogram_observe("row_bytes", text.len() as f64);
                crate::metrics::gauge_set("special", crate::tokenizer::special().len() as f64);
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
