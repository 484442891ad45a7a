//! The columns of a batch.
//!
//! `wit/transform.wit` declares the columns; [`Columns`] and [`ColumnSet`] are its types. The table [`columns!`] names each
//! column once for the rest of the host. `docs/src/plugins/add-a-column.md` lists what a new column needs.

use crate::bindings::afterbay::plugin::types;

pub use types::{Batch as Columns, Columns as ColumnSet, FinishKind, Opened, RequestId, TokenId};

/// Makes everything of this file that has one part for each column.
///
/// A line has the column's flag, its name in the contract and, for a plain column, its field and the type of its values. A
/// plain column has one value that can be copied for each row. The ids and the texts are not plain, so the code names them.
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
                    texts: &[],
                    $($($column: &[],)?)*
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
                    texts: if wanted.contains(ColumnSet::TEXTS) { self.texts } else { &[] },
                    $($($column: if wanted.contains(ColumnSet::$flag) { self.$column } else { &[] },)?)*
                }
            }

            /// Whether each column has a value for each row or is empty.
            fn is_even(&self) -> bool {
                let fits = |length: usize| length == 0 || length == self.rows();
                fits(self.output_ends.len())
                    && fits(self.texts.len())
                    $($(&& fits(self.$column.len()))?)*
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
                PlainColumns { $($($column: columns.$column.to_vec(),)?)* }
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
                Columns { $($($column: &self.$column,)?)* ..Columns::default() }
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

/// The columns of some rows, copied for an instance that sees the rows later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedColumns {
    time_ms: u64,
    requests: Vec<RequestId>,
    output_ids: Vec<TokenId>,
    output_ends: Vec<u32>,
    texts: Vec<Box<str>>,
    plain: PlainColumns,
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
            texts: selected.texts.iter().copied().map(Box::from).collect(),
            plain: PlainColumns::copy(columns, wanted),
        }
    }

    /// No rows, received at this time in milliseconds since 1970.
    pub fn at(time_ms: u64) -> OwnedColumns {
        OwnedColumns { time_ms, ..OwnedColumns::default() }
    }

    /// Appends a row. A plugin sees texts only if all rows have one.
    pub fn push(&mut self, request: RequestId, ids: &[TokenId], text: Option<&str>, values: PlainValues) {
        self.requests.push(request);
        self.output_ids.extend_from_slice(ids);
        self.output_ends.push(self.output_ids.len() as u32);
        self.texts.extend(text.map(Box::from));
        self.plain.push(values);
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

    /// The texts, for [`OwnedColumns::columns`].
    pub fn texts(&self) -> Vec<&str> {
        self.texts.iter().map(|text| &**text).collect()
    }

    /// The columns with these texts.
    pub fn columns<'a>(&'a self, texts: &'a [&'a str]) -> Columns<'a> {
        Columns {
            time_ms: self.time_ms,
            requests: &self.requests,
            output_ids: &self.output_ids,
            output_ends: &self.output_ends,
            texts: if texts.len() == self.rows() { texts } else { &[] },
            ..self.plain.columns()
        }
    }

    /// Calls `see` with the columns.
    pub fn show<T>(&self, see: impl FnOnce(&Columns<'_>) -> T) -> T {
        see(&self.columns(&self.texts()))
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
            texts: &["a", "b"],
            waiting: &[0, 2],
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
        for wanted in [ColumnSet::all(), ColumnSet::OUTPUT_IDS, ColumnSet::TEXTS | ColumnSet::WAITING] {
            OwnedColumns::copy(&columns(), wanted).show(|shown| assert_eq!(*shown, columns().select(wanted)));
        }
    }

    #[test]
    fn texts_are_shown_only_if_all_rows_have_one() {
        let values = PlainValues::default();
        let mut rows = OwnedColumns::default();
        rows.push(1, &[5], Some("a"), values);
        rows.show(|shown| assert_eq!((shown.texts, shown.output_ends), (&["a"][..], &[1][..])));
        rows.push(2, &[], None, values);
        rows.show(|shown| assert_eq!((shown.texts.len(), shown.output_ends), (0, &[1, 1][..])));
    }
}
