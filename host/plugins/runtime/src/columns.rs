//! The columns of a batch.
//!
//! `wit/transform.wit` declares the columns; [`Columns`] and [`ColumnSet`] are its types. The table [`columns!`] names each
//! column once for the rest of the host. `docs/src/plugins/add-a-column.md` lists what a new column needs.

use crate::bindings::afterbay::plugin::types;
use crate::token_columns::{RowFacts, TokenColumns};

pub use types::{Batch as Columns, Columns as ColumnSet, FinishKind, Opened, RequestId, TokenId};

/// A plain column as the contract has it: a list, or a list that is `none` without rows.
trait PlainColumn<'a, T> {
    fn of(values: &'a [T]) -> Self;
    fn values(self) -> &'a [T];
}

impl<'a, T> PlainColumn<'a, T> for &'a [T] {
    fn of(values: &'a [T]) -> Self {
        values
    }

    fn values(self) -> &'a [T] {
        self
    }
}

impl<'a, T> PlainColumn<'a, T> for Option<&'a [T]> {
    fn of(values: &'a [T]) -> Self {
        Some(values).filter(|values| !values.is_empty())
    }

    fn values(self) -> &'a [T] {
        self.unwrap_or_default()
    }
}

/// Makes everything of this file that has one part for each column.
///
/// A line has the column's flag, its name in the contract and, for a plain column, its field and the type of its values. A
/// plain column has one value that can be copied for each row. The others are not plain, so the code names them.
macro_rules! columns {
    ($($flag:ident = $name:literal $(, $column:ident: $value:ty)?;)*) => {
        /// The columns that a plugin may ask for, with their names in the contract.
        pub const COLUMN_NAMES: &[(ColumnSet, &str)] = &[$((ColumnSet::$flag, $name)),*];

        impl Default for Columns<'_> {
            /// A batch without rows.
            fn default() -> Self {
                Columns {
                    time_ms: 0,
                    requests: &[],
                    output_ids: &[],
                    output_ends: &[],
                    texts: None,
                    logprobs: None,
                    top_logprobs: None,
                    weight_versions: None,
                    $($($column: PlainColumn::of(&[]),)?)*
                }
            }
        }

        impl Columns<'_> {
            /// The columns that a plugin asked for. The others are empty.
            pub fn select(&self, wanted: ColumnSet) -> Self {
                debug_assert!(self.is_even(), "columns of unequal length: {self:?}");
                let ids = wanted.contains(ColumnSet::OUTPUT_IDS);
                Columns {
                    time_ms: self.time_ms,
                    requests: self.requests,
                    output_ids: if ids { self.output_ids } else { &[] },
                    output_ends: if ids { self.output_ends } else { &[] },
                    texts: self.texts.filter(|_| wanted.contains(ColumnSet::TEXTS)),
                    logprobs: self.logprobs.filter(|_| wanted.contains(ColumnSet::LOGPROBS)),
                    top_logprobs: self.top_logprobs.clone().filter(|_| wanted.contains(ColumnSet::TOP_LOGPROBS)),
                    weight_versions: self.weight_versions.filter(|_| wanted.contains(ColumnSet::WEIGHT_VERSIONS)),
                    $($($column: match wanted.contains(ColumnSet::$flag) {
                        true => self.$column,
                        false => PlainColumn::of(&[]),
                    },)?)*
                }
            }

            /// Whether each column has a value for each row or is empty.
            fn is_even(&self) -> bool {
                let fits = |length: usize| length == 0 || length == self.rows();
                let tokens = self.output_ids.len();
                fits(self.output_ends.len())
                    && fits(self.texts.values().len())
                    && fits(self.weight_versions.values().len())
                    && self.logprobs.is_none_or(|logprobs| logprobs.len() == tokens)
                    && self.top_logprobs.as_ref().is_none_or(|top| top.ends.len() == tokens)
                    $($(&& fits(self.$column.values().len()))?)*
                    && self.output_ends.last().map_or(0, |&end| end as usize) == self.output_ids.len()
                    && self.output_ends.is_sorted()
            }
        }

        /// The plain columns of some rows. A column is empty if no plugin asked for it.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct PlainColumns {
            $($(#[doc = concat!("`", $name, "`.")] pub $column: Vec<$value>,)?)*
        }

        /// The values of one row in the plain columns.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct PlainValues {
            $($(#[doc = concat!("The value in `", $name, "`.")] pub $column: $value,)?)*
        }

        impl PlainColumns {
            /// Copies the plain columns among `wanted`.
            fn copy(columns: &Columns<'_>, wanted: ColumnSet) -> Self {
                let columns = columns.select(wanted);
                PlainColumns { $($($column: columns.$column.values().to_vec(),)?)* }
            }

            fn push(&mut self, values: PlainValues) {
                $($(self.$column.push(values.$column);)?)*
            }

            /// Appends the values of a row of `other`. A column that is empty there stays empty.
            pub fn push_row_of(&mut self, other: &PlainColumns, row: usize) {
                $($(self.$column.extend(other.$column.get(row));)?)*
            }

            /// Removes all rows. The memory stays for the next rows.
            pub fn clear(&mut self) {
                $($(self.$column.clear();)?)*
            }

            /// A batch with these columns only.
            pub fn columns(&self) -> Columns<'_> {
                Columns { $($($column: PlainColumn::of(&self.$column),)?)* ..Columns::default() }
            }
        }
    };
}

columns! {
    OUTPUT_IDS = "output-ids";
    COMPLETION_TOKENS = "completion-tokens", completion_tokens: u64;
    FINISHED = "finished", finished: FinishKind;
    TEXTS = "texts";
    WAITING = "waiting", waiting: u32;
    LOGPROBS = "logprobs";
    TOP_LOGPROBS = "top-logprobs";
    CACHED_TOKENS = "cached-tokens", cached_tokens: u64;
    REASONING_TOKENS = "reasoning-tokens", reasoning_tokens: u64;
    DRAFTED_TOKENS = "drafted-tokens", drafted_tokens: u64;
    ACCEPTED_TOKENS = "accepted-tokens", accepted_tokens: u64;
    WEIGHT_VERSIONS = "weight-versions";
}

#[expect(clippy::derivable_impls, reason = "bindgen makes the type")]
impl Default for FinishKind {
    fn default() -> Self {
        FinishKind::Running
    }
}

impl FinishKind {
    /// The word for the reason, as tools print it and scenarios have it.
    pub fn word(self) -> &'static str {
        match self {
            FinishKind::Running => "running",
            FinishKind::Stop => "stop",
            FinishKind::Length => "length",
            FinishKind::Abort => "abort",
            FinishKind::Other => "other",
        }
    }
}

impl Columns<'_> {
    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.requests.len()
    }
}

/// The columns that a plugin gets if it asks for these: those of tokens come with the tokens.
pub(crate) fn with_tokens(asked: ColumnSet) -> ColumnSet {
    let of_tokens = ColumnSet::LOGPROBS | ColumnSet::TOP_LOGPROBS;
    if asked.intersects(of_tokens) { asked | ColumnSet::OUTPUT_IDS } else { asked }
}

/// The columns of some rows, copied for an instance that sees the rows later.
#[derive(Clone, Debug, Default)]
pub struct OwnedColumns {
    time_ms: u64,
    requests: Vec<RequestId>,
    output_ids: Vec<TokenId>,
    output_ends: Vec<u32>,
    texts: Vec<Box<str>>,
    plain: PlainColumns,
    facts: TokenColumns,
}

/// The strings of [`OwnedColumns`], for [`OwnedColumns::columns`].
#[derive(Debug, Default)]
pub struct Strings<'a> {
    texts: Vec<&'a str>,
    weight_versions: Vec<&'a str>,
}

impl OwnedColumns {
    /// Copies the columns that a plugin asks for.
    pub fn copy(columns: &Columns<'_>, wanted: ColumnSet) -> OwnedColumns {
        let selected = columns.select(wanted);
        OwnedColumns {
            time_ms: selected.time_ms,
            requests: selected.requests.to_vec(),
            output_ids: selected.output_ids.to_vec(),
            output_ends: selected.output_ends.to_vec(),
            texts: selected.texts.values().iter().copied().map(Box::from).collect(),
            plain: PlainColumns::copy(columns, wanted),
            facts: TokenColumns::copy(&selected),
        }
    }

    /// No rows, received at this time in milliseconds since 1970.
    pub fn at(time_ms: u64) -> OwnedColumns {
        OwnedColumns { time_ms, ..OwnedColumns::default() }
    }

    /// Appends a row. A plugin sees texts only if all rows have one.
    pub fn push(
        &mut self,
        request: RequestId,
        ids: &[TokenId],
        text: Option<&str>,
        values: PlainValues,
        facts: &RowFacts,
    ) {
        self.requests.push(request);
        self.output_ids.extend_from_slice(ids);
        self.output_ends.push(self.output_ids.len() as u32);
        self.texts.extend(text.map(Box::from));
        self.plain.push(values);
        self.facts.push(ids.len(), facts);
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.requests.len()
    }

    /// The approximate memory of the columns in bytes.
    pub fn bytes(&self) -> usize {
        let texts: usize = self.texts.iter().map(|text| text.len()).sum();
        self.requests.len() * 32 + self.output_ids.len() * 8 + texts
    }

    /// The strings, for [`OwnedColumns::columns`].
    pub fn strings(&self) -> Strings<'_> {
        let texts = self.texts.iter().map(|text| &**text).collect();
        Strings { texts, weight_versions: self.facts.weight_versions() }
    }

    /// The columns with these strings, which are their own.
    pub fn columns<'a>(&'a self, strings: &'a Strings<'a>) -> Columns<'a> {
        Columns {
            time_ms: self.time_ms,
            requests: &self.requests,
            output_ids: &self.output_ids,
            output_ends: &self.output_ends,
            texts: Some(&strings.texts[..]).filter(|texts| texts.len() == self.rows()),
            logprobs: self.facts.logprobs(),
            top_logprobs: self.facts.top_logprobs(),
            weight_versions: PlainColumn::of(&strings.weight_versions),
            ..self.plain.columns()
        }
    }

    /// Calls `see` with the columns.
    pub fn show<T>(&self, see: impl FnOnce(&Columns<'_>) -> T) -> T {
        see(&self.columns(&self.strings()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> Columns<'static> {
        Columns {
            time_ms: 5,
            requests: &[7, 8],
            output_ids: &[1, 2, 3],
            output_ends: &[2, 3],
            completion_tokens: &[10, 20],
            finished: &[FinishKind::Running, FinishKind::Stop],
            texts: Some(&["a", "b"]),
            waiting: Some(&[0, 2]),
            logprobs: Some(&[-0.1, -0.2, -0.3]),
            top_logprobs: Some(types::TopLogprobs {
                ids: &[5, 6],
                logprobs: &[-1.0, -2.0],
                ends: &[1, 1, 2],
            }),
            cached_tokens: Some(&[3, 4]),
            reasoning_tokens: Some(&[5, 6]),
            drafted_tokens: Some(&[7, 8]),
            accepted_tokens: Some(&[9, 10]),
            weight_versions: Some(&["v1", ""]),
        }
    }

    #[test]
    fn every_column_of_the_contract_has_a_name() {
        let named = COLUMN_NAMES.iter().fold(ColumnSet::empty(), |named, (column, _)| named | *column);
        assert_eq!(named, ColumnSet::all());
    }

    #[test]
    fn every_flag_selects_a_column() {
        for (column, name) in COLUMN_NAMES {
            assert_ne!(columns().select(*column), columns().select(ColumnSet::empty()), "{name}");
        }
    }

    #[test]
    fn a_column_that_was_not_asked_for_is_not_passed() {
        let batch = columns().select(ColumnSet::FINISHED);
        let expected =
            Columns { time_ms: 5, requests: &[7, 8], finished: columns().finished, ..Columns::default() };
        assert_eq!(batch, expected);
        assert_eq!(columns().select(ColumnSet::all()), columns());
    }

    #[test]
    fn a_copy_has_the_columns_that_are_wanted() {
        for wanted in [
            ColumnSet::all(),
            ColumnSet::OUTPUT_IDS,
            ColumnSet::TEXTS | ColumnSet::WAITING,
            with_tokens(ColumnSet::TOP_LOGPROBS),
        ] {
            OwnedColumns::copy(&columns(), wanted).show(|shown| assert_eq!(*shown, columns().select(wanted)));
        }
    }

    #[test]
    fn texts_are_shown_only_if_all_rows_have_one() {
        let values = PlainValues::default();
        let mut rows = OwnedColumns::default();
        rows.push(1, &[5], Some("a"), values, &RowFacts::default());
        rows.show(|shown| assert_eq!((shown.texts, shown.output_ends), (Some(&["a"][..]), &[1][..])));
        rows.push(2, &[], None, values, &RowFacts::default());
        rows.show(|shown| assert_eq!((shown.texts, shown.output_ends), (None, &[1, 1][..])));
    }
}
