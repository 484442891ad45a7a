//! A stand-in for the host, for a plugin's unit tests: plain `cargo test`, no WebAssembly.
//!
//! It calls the plugin as the host does: settings as JSON, only the columns that were asked for, one value for the whole
//! test. What it does not have are the limits: `afterbay plugin run` has those.

use std::cell::RefCell;

use crate::abi::{self, Instance};
use crate::{Columns, FinishKind, Level, Opened, Plugin, RequestId, TokenId, Verdict};

thread_local! {
    static LINES: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
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
    LINES.with_borrow_mut(|lines| lines.push(Line { level, request, message: message.to_owned() }));
}

/// An instance of a plugin under test.
///
/// ```
/// use afterbay_plugin::testing::{Harness, TestRow};
/// use afterbay_plugin::{Action, Batch, Columns, FinishKind, NoSettings, Plugin, Verdicts};
///
/// struct DropEmptyEnds;
///
/// impl Plugin for DropEmptyEnds {
///     type Settings = NoSettings;
///     const COLUMNS: Columns = Columns::OUTPUT_IDS.union(Columns::FINISHED);
///
///     fn new(_: NoSettings) -> Result<Self, String> {
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
/// # Ok::<(), String>(())
/// ```
pub struct Harness<P> {
    instance: Instance<P>,
}

impl<P: Plugin> Harness<P> {
    /// A plugin configured with these settings, JSON text.
    ///
    /// # Errors
    /// What the operator would be shown.
    pub fn new(settings: &str) -> Result<Self, String> {
        LINES.with_borrow_mut(Vec::clear);
        let instance = Instance::new();
        instance.configure(settings)?;
        Ok(Self { instance })
    }

    /// A request begins, with no prompt and a made-up rid.
    pub fn open(&mut self, request: RequestId) {
        self.open_as(Opened {
            request,
            rid: format!("request-{request}"),
            prompt_tokens: 0,
            received_tokens: 0,
            resumed: false,
        });
    }

    /// A request begins, or goes on after a fault or a reload, as told.
    pub fn open_as(&mut self, request: Opened) {
        self.instance.open(&[request]);
    }

    /// A batch of these rows; the plugin's verdicts, sorted by row.
    pub fn process(&mut self, rows: &[TestRow]) -> Vec<Verdict> {
        self.instance.process(&columns(rows, P::COLUMNS))
    }

    /// A request has ended.
    pub fn close(&mut self, request: RequestId) {
        self.instance.close(&[request]);
    }

    /// What was logged since the last call of this.
    pub fn logged(&mut self) -> Vec<Line> {
        LINES.with_borrow_mut(std::mem::take)
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
}

impl TestRow {
    /// A row of this request, without tokens, not its last.
    #[must_use]
    pub fn new(request: RequestId) -> Self {
        let (ids, text) = (Vec::new(), String::new());
        Self { request, ids, completion_tokens: 0, finish: FinishKind::Running, text }
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
}

fn columns(rows: &[TestRow], wanted: Columns) -> abi::Batch {
    let mut batch = abi::Batch {
        requests: rows.iter().map(|row| row.request).collect(),
        output_ids: Vec::new(),
        output_ends: Vec::new(),
        completion_tokens: Vec::new(),
        finished: Vec::new(),
        texts: Vec::new(),
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

        fn new(_: NoSettings) -> Result<Self, String> {
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

    #[test]
    fn a_setting_that_is_not_known_is_told_by_name() {
        let error = Harness::<Three>::new(r#"{"widow": 3}"#).err().unwrap();
        assert!(error.contains("unknown field `widow`"), "{error}");
    }

    #[test]
    fn a_description_is_within_the_contract() {
        let description = abi::describe::<Three>("some_crate", "1.2.3");
        assert_eq!((description.name.as_str(), description.version.as_str()), ("some-crate", "1.2.3"));
        let schema: serde_json::Value = serde_json::from_str(&description.settings_schema).unwrap();
        assert_eq!(schema["additionalProperties"], false);
    }
}
