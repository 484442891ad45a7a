//! A batch, read row by row.

use std::fmt;

use crate::abi;
use crate::{FinishKind, RequestId, TokenId};

/// The rows of one scheduler step. A request has at most one row.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    columns: &'a abi::Batch,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(columns: &'a abi::Batch) -> Self {
        Self { columns }
    }

    /// The time at which Afterbay received the batch, in milliseconds since 1970-01-01 UTC. A replay gives the
    /// same time.
    #[must_use]
    pub fn time_ms(&self) -> u64 {
        self.columns.time_ms
    }

    /// The number of rows; never 0.
    #[must_use]
    pub fn len(&self) -> usize {
        self.columns.requests.len()
    }

    /// Always false: the host shows no empty batch to a plugin.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.columns.requests.is_empty()
    }

    /// The rows, in the batch's order.
    #[must_use]
    pub fn rows(&self) -> Rows<'a> {
        Rows { columns: self.columns, index: 0, ids_start: 0 }
    }
}

impl<'a> IntoIterator for &Batch<'a> {
    type Item = Row<'a>;
    type IntoIter = Rows<'a>;

    fn into_iter(self) -> Rows<'a> {
        self.rows()
    }
}

/// An iterator over the rows of a batch.
#[derive(Clone)]
pub struct Rows<'a> {
    columns: &'a abi::Batch,
    index: usize,
    ids_start: usize,
}

impl<'a> Iterator for Rows<'a> {
    type Item = Row<'a>;

    fn next(&mut self) -> Option<Row<'a>> {
        let index = self.index;
        let request = *self.columns.requests.get(index)?;
        let ids_end = self.columns.output_ends.get(index).map_or(self.ids_start, |&end| end as usize);
        let ids = &self.columns.output_ids[self.ids_start..ids_end];
        self.index += 1;
        self.ids_start = ids_end;
        Some(Row { columns: self.columns, index, request, ids })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.columns.requests.len() - self.index;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Rows<'_> {}

/// One request's part of the batch.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    pub(crate) columns: &'a abi::Batch,
    pub(crate) index: usize,
    request: RequestId,
    ids: &'a [TokenId],
}

impl<'a> Row<'a> {
    /// The row's index in the batch.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The row's request.
    #[must_use]
    pub fn request(&self) -> RequestId {
        self.request
    }

    /// The row's new token ids. Empty unless the plugin reads
    /// [`Columns::OUTPUT_IDS`](crate::Columns::OUTPUT_IDS).
    #[must_use]
    pub fn ids(&self) -> &'a [TokenId] {
        self.ids
    }

    /// The row's new text. `None` unless the plugin reads [`Columns::TEXTS`](crate::Columns::TEXTS) and the
    /// stream is after the detokenizer.
    #[must_use]
    pub fn text(&self) -> Option<&'a str> {
        self.columns.texts.get(self.index).map(String::as_str)
    }

    /// Whether the scheduler ended the request with this row. False unless the plugin reads
    /// [`Columns::FINISHED`](crate::Columns::FINISHED).
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.finish().is_some_and(|finish| finish != FinishKind::Running)
    }
}

impl fmt::Debug for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = f.debug_struct("Row");
        row.field("index", &self.index)
            .field("request", &self.request)
            .field("ids", &self.ids)
            .field("text", &self.text());
        self.debug_plain(&mut row);
        row.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Columns;
    use crate::columns::{TestRow, batch_of};

    #[test]
    fn each_row_has_its_part_of_every_column() {
        let rows = [
            TestRow::new(4).ids([10, 11]).text("ab"),
            TestRow::new(9).finish(FinishKind::Stop).waiting(2),
            TestRow::new(2).ids([12]).completion_tokens(7),
        ];
        let columns = batch_of(17, &rows, Columns::all());
        assert_eq!(Batch::new(&columns).time_ms(), 17);
        let rows: Vec<Row<'_>> = Batch::new(&columns).rows().collect();
        assert_eq!(rows.iter().map(Row::request).collect::<Vec<_>>(), [4, 9, 2]);
        assert_eq!(rows.iter().map(Row::ids).collect::<Vec<_>>(), [&[10, 11][..], &[], &[12]]);
        assert_eq!(rows[2].completion_tokens(), Some(7));
        assert_eq!(rows[1].finish(), Some(FinishKind::Stop));
        assert_eq!(rows[0].text(), Some("ab"));
        assert_eq!(rows[1].waiting(), Some(2));
    }

    #[test]
    fn a_column_that_the_plugin_does_not_read_is_none() {
        let columns = batch_of(0, &[TestRow::new(4).ids([1]).text("a")], Columns::empty());
        let row = Batch::new(&columns).rows().next().unwrap();
        assert_eq!(
            (row.ids(), row.completion_tokens(), row.finish(), row.text(), row.waiting()),
            (&[][..], None, None, None, None)
        );
    }
}
