//! The columns of the contract in the SDK: the readers of a [`Row`] and the setters of a [`TestRow`].
//!
//! A new column of `wit/transform.wit` needs one entry in the table `plain_columns!`.

use crate::{Columns, FinishKind, RequestId, Row, TokenId, abi};

/// Makes everything of the SDK that has one part for each plain column: a column with one value that can be
/// copied for each row. The ids and the texts are not plain, so the code names them.
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
                    self.columns.$column.get(self.index).copied()
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
                texts: Vec::new(),
                $($column: Vec::new(),)*
            };
            let has_texts = wanted.contains(Columns::TEXTS) && rows.iter().any(|row| row.text.is_some());
            for row in rows {
                if wanted.contains(Columns::OUTPUT_IDS) {
                    batch.output_ids.extend_from_slice(&row.ids);
                    batch.output_ends.push(batch.output_ids.len() as u32);
                }
                if has_texts {
                    batch.texts.push(row.text_of());
                }
                $(
                    if wanted.contains(Columns::$flag) {
                        batch.$column.push(row.plain.$reader);
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
}

/// A row for [`Harness::process`](crate::testing::Harness::process).
#[derive(Clone, Debug)]
pub struct TestRow {
    request: RequestId,
    ids: Vec<TokenId>,
    text: Option<String>,
    plain: PlainValues,
}

impl TestRow {
    /// A row of this request, without tokens and not its last.
    #[must_use]
    pub fn new(request: RequestId) -> Self {
        Self { request, ids: Vec::new(), text: None, plain: PlainValues::default() }
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
        if text.is_some() {
            self.text = text;
        }
    }
}
