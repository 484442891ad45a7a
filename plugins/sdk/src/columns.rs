//! The columns of the contract in the SDK: the readers of a [`Row`] and the setters of a [`TestRow`].
//!
//! A new column of `wit/transform.wit` needs one entry in the table `plain_columns!`.

use crate::{Columns, FinishKind, RequestId, Row, TokenId, abi};

/// A plain column as the contract has it: a list, or a list that is `none` if the plugin does not ask for it.
trait PlainColumn<T> {
    fn get_row(&self, row: usize) -> Option<&T>;
    fn push_row(&mut self, value: T);
}

impl<T> PlainColumn<T> for Vec<T> {
    fn get_row(&self, row: usize) -> Option<&T> {
        self.get(row)
    }

    fn push_row(&mut self, value: T) {
        self.push(value);
    }
}

impl<T> PlainColumn<T> for Option<Vec<T>> {
    fn get_row(&self, row: usize) -> Option<&T> {
        self.as_ref()?.get(row)
    }

    fn push_row(&mut self, value: T) {
        self.get_or_insert_default().push(value);
    }
}

/// Makes everything of the SDK that has one part for each plain column: a column with one value that can be
/// copied for each row. The others are not plain, so the code names them.
///
/// An entry has the documentation of the reader, the reader's name with the type and the default of a test
/// row's value, and the field in the batch with its flag.
macro_rules! plain_columns {
    ($($(#[$doc:meta])* $reader:ident: $value:ty = $default:expr, $column:ident $flag:ident;)*) => {
        impl Row<'_> {
            $(
                $(#[$doc])*
                ///
                #[doc = concat!("`None` unless the plugin reads [`Columns::", stringify!($flag), "`].")]
                #[must_use]
                pub fn $reader(&self) -> Option<$value> {
                    self.columns.$column.get_row(self.index).copied()
                }
            )*

            pub(crate) fn debug_plain(&self, f: &mut std::fmt::DebugStruct<'_, '_>) {
                $(f.field(stringify!($reader), &self.$reader());)*
            }
        }

        /// The values of a test row in the plain columns.
        #[derive(Clone, Debug)]
        struct PlainValues {
            $($reader: $value,)*
        }

        impl Default for PlainValues {
            fn default() -> Self {
                Self { $($reader: $default,)* }
            }
        }

        impl TestRow {
            $(
                #[doc = concat!("Sets the result of [`Row::", stringify!($reader), "`].")]
                #[must_use]
                pub fn $reader(mut self, value: $value) -> Self {
                    self.plain.$reader = value;
                    self
                }
            )*
        }

        /// A batch of these rows with the wanted columns, received at this time.
        pub(crate) fn batch_of(time_ms: u64, rows: &[TestRow], wanted: Columns) -> abi::Batch {
            let mut batch = abi::Batch {
                time_ms,
                requests: rows.iter().map(|row| row.request).collect(),
                output_ids: Vec::new(),
                output_ends: Vec::new(),
                texts: None,
                logprobs: logprobs_of(rows).filter(|_| wanted.contains(Columns::LOGPROBS)),
                top_logprobs: top_logprobs_of(rows).filter(|_| wanted.contains(Columns::TOP_LOGPROBS)),
                weight_versions: weight_versions_of(rows)
                    .filter(|_| wanted.contains(Columns::WEIGHT_VERSIONS)),
                $($column: Default::default(),)*
            };
            let has_texts = wanted.contains(Columns::TEXTS) && rows.iter().any(|row| row.text.is_some());
            let with_ids = Columns::OUTPUT_IDS | Columns::LOGPROBS | Columns::TOP_LOGPROBS;
            for row in rows {
                if wanted.intersects(with_ids) {
                    batch.output_ids.extend_from_slice(&row.ids);
                    batch.output_ends.push(batch.output_ids.len() as u32);
                }
                if has_texts {
                    batch.texts.get_or_insert_default().push(row.text_of());
                }
                $(
                    if wanted.contains(Columns::$flag) {
                        batch.$column.push_row(row.plain.$reader);
                    }
                )*
            }
            batch
        }
    };
}

plain_columns! {
    /// The scheduler's count of the request's tokens so far, including this row; 0 if the scheduler did not
    /// give a count.
    completion_tokens: u64 = 0, completion_tokens COMPLETION_TOKENS;

    /// The reason why the scheduler ended the request with this row, or [`FinishKind::Running`].
    finish: FinishKind = FinishKind::Running, finished FINISHED;

    /// The number of earlier rows of the request that are held because this plugin asked for it. If the
    /// number is lower than the plugin expects, the other rows were released unchanged: their hold timed out,
    /// or the stream had no room for them.
    waiting: u32 = 0, waiting WAITING;

    /// The number of tokens of the request's prompt that the engine took from its cache. 0 if the row does not
    /// say: some engines say it in the first row of a request only.
    cached_tokens: u64 = 0, cached_tokens CACHED_TOKENS;

    /// The number of tokens of the request so far that the engine counts as reasoning. 0 if the engine does
    /// not count them.
    reasoning_tokens: u64 = 0, reasoning_tokens REASONING_TOKENS;

    /// The number of tokens that a draft model proposed for the request so far. 0 if the row does not say:
    /// some engines say it in the last row of a request only, others never.
    drafted_tokens: u64 = 0, drafted_tokens DRAFTED_TOKENS;

    /// The number of proposed tokens that the model accepted so far. 0 as for [`Row::drafted_tokens`].
    accepted_tokens: u64 = 0, accepted_tokens ACCEPTED_TOKENS;
}

/// The logprobs of all tokens; `None` if no row has any.
fn logprobs_of(rows: &[TestRow]) -> Option<Vec<f32>> {
    let of_row = |row: &TestRow| match row.logprobs.len() == row.ids.len() {
        true => row.logprobs.clone(),
        false => vec![f32::NAN; row.ids.len()],
    };
    rows.iter().any(|row| !row.logprobs.is_empty()).then(|| rows.iter().flat_map(of_row).collect())
}

/// The most probable tokens in the places of all tokens; `None` if no row has any.
fn top_logprobs_of(rows: &[TestRow]) -> Option<abi::TopLogprobs> {
    let mut top = abi::TopLogprobs { ids: Vec::new(), logprobs: Vec::new(), ends: Vec::new() };
    for row in rows {
        for place in 0..row.ids.len() {
            let candidates = row.top_logprobs.get(place).into_iter().flatten();
            for (id, logprob) in candidates {
                top.ids.push(*id);
                top.logprobs.push(*logprob);
            }
            top.ends.push(top.ids.len() as u32);
        }
    }
    Some(top).filter(|top| !top.ids.is_empty())
}

/// The version of the weights of each row; `None` if no row says it.
fn weight_versions_of(rows: &[TestRow]) -> Option<Vec<String>> {
    let versions: Vec<String> = rows.iter().map(|row| row.weight_version.clone()).collect();
    Some(versions).filter(|versions| versions.iter().any(|version| !version.is_empty()))
}

/// A row for [`Harness::process`](crate::testing::Harness::process).
#[derive(Clone, Debug)]
pub struct TestRow {
    request: RequestId,
    ids: Vec<TokenId>,
    text: Option<String>,
    logprobs: Vec<f32>,
    top_logprobs: Vec<Vec<(TokenId, f32)>>,
    weight_version: String,
    plain: PlainValues,
}

impl TestRow {
    /// A row of this request, without tokens and not its last.
    #[must_use]
    pub fn new(request: RequestId) -> Self {
        Self {
            request,
            ids: Vec::new(),
            text: None,
            logprobs: Vec::new(),
            top_logprobs: Vec::new(),
            weight_version: String::new(),
            plain: PlainValues::default(),
        }
    }

    /// Sets the row's new ids.
    #[must_use]
    pub fn ids(mut self, ids: impl Into<Vec<TokenId>>) -> Self {
        self.ids = ids.into();
        self
    }

    /// Sets the row's new text: the row is after the detokenizer. In a batch in which no row has a text, the
    /// column is empty, as before the detokenizer.
    #[must_use]
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.text = Some(text.into());
        self
    }

    /// Sets the result of [`Row::logprobs`]: one for each id.
    #[must_use]
    pub fn logprobs(mut self, logprobs: impl Into<Vec<f32>>) -> Self {
        self.logprobs = logprobs.into();
        self
    }

    /// Sets the results of [`Row::top_logprobs`]: the candidates in the place of each id.
    #[must_use]
    pub fn top_logprobs(mut self, places: impl Into<Vec<Vec<(TokenId, f32)>>>) -> Self {
        self.top_logprobs = places.into();
        self
    }

    /// Sets the result of [`Row::weight_version`].
    #[must_use]
    pub fn weight_version(mut self, version: impl Into<String>) -> Self {
        self.weight_version = version.into();
        self
    }

    pub(crate) fn request(&self) -> RequestId {
        self.request
    }

    pub(crate) fn finish_kind(&self) -> FinishKind {
        self.plain.finish
    }

    pub(crate) fn ids_of(&self) -> &[TokenId] {
        &self.ids
    }

    pub(crate) fn text_of(&self) -> String {
        self.text.clone().unwrap_or_default()
    }

    /// Replaces the row's tokens. Without a text, the row keeps its text.
    pub(crate) fn set(&mut self, ids: Vec<TokenId>, text: Option<String>) {
        self.ids = ids;
        self.logprobs.clear();
        self.top_logprobs.clear();
        if text.is_some() {
            self.text = text;
        }
    }
}
