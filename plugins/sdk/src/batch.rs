//! A batch as rows.

use std::fmt;

use crate::abi;
use crate::{FinishKind, RequestId, TokenId};

/// The rows of one scheduler step. A request has at most one.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    columns: &'a abi::Batch,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(columns: &'a abi::Batch) -> Self {
        Self { columns }
    }

    /// How many rows there are; never 0.
    #[must_use]
    pub fn len(&self) -> usize {
        self.columns.requests.len()
    }

    /// False: a batch without rows is not shown to a plugin.
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

/// The rows of a batch, one after another.
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

/// What came for one request in this step.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    columns: &'a abi::Batch,
    index: usize,
    request: RequestId,
    ids: &'a [TokenId],
}

impl<'a> Row<'a> {
    /// Its place in the batch.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its request.
    #[must_use]
    pub fn request(&self) -> RequestId {
        self.request
    }

    /// Its new token ids. Empty unless [`Columns::OUTPUT_IDS`](crate::Columns::OUTPUT_IDS) was asked for.
    #[must_use]
    pub fn ids(&self) -> &'a [TokenId] {
        self.ids
    }

    /// The scheduler's count of the request's tokens, these included. None unless
    /// [`Columns::COMPLETION_TOKENS`](crate::Columns::COMPLETION_TOKENS) was asked for and the scheduler counts.
    #[must_use]
    pub fn completion_tokens(&self) -> Option<u64> {
        self.columns.completion_tokens.get(self.index).copied()
    }

    /// Whether and why it is the request's last. None unless [`Columns::FINISHED`](crate::Columns::FINISHED) was asked
    /// for.
    #[must_use]
    pub fn finish(&self) -> Option<FinishKind> {
        self.columns.finished.get(self.index).copied()
    }

    /// Its new text. None unless [`Columns::TEXTS`](crate::Columns::TEXTS) was asked for and the stream is past the
    /// detokenizer.
    #[must_use]
    pub fn text(&self) -> Option<&'a str> {
        self.columns.texts.get(self.index).map(String::as_str)
    }

    /// How many earlier rows of its request wait because this plugin holds them. With fewer than it remembers, the others
    /// have gone on as they came: their time was over, or there was no room for them. None unless
    /// [`Columns::WAITING`](crate::Columns::WAITING) was asked for.
    #[must_use]
    pub fn waiting(&self) -> Option<u32> {
        self.columns.waiting.get(self.index).copied()
    }
}

impl fmt::Debug for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row")
            .field("index", &self.index())
            .field("request", &self.request())
            .field("ids", &self.ids())
            .field("completion_tokens", &self.completion_tokens())
            .field("finish", &self.finish())
            .field("text", &self.text())
            .field("waiting", &self.waiting())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> abi::Batch {
        abi::Batch {
            requests: vec![4, 9, 2],
            output_ids: vec![10, 11, 12],
            output_ends: vec![2, 2, 3],
            completion_tokens: vec![5, 6, 7],
            finished: vec![FinishKind::Running, FinishKind::Stop, FinishKind::Length],
            texts: vec!["ab".into(), String::new(), "c".into()],
            waiting: vec![0, 2, 0],
        }
    }

    #[test]
    fn each_row_has_its_part_of_every_column() {
        let columns = columns();
        let rows: Vec<Row<'_>> = Batch::new(&columns).rows().collect();
        assert_eq!(rows.iter().map(Row::request).collect::<Vec<_>>(), [4, 9, 2]);
        assert_eq!(rows.iter().map(Row::ids).collect::<Vec<_>>(), [&[10, 11][..], &[], &[12]]);
        assert_eq!(rows[2].completion_tokens(), Some(7));
        assert_eq!(rows[1].finish(), Some(FinishKind::Stop));
        assert_eq!(rows[0].text(), Some("ab"));
        assert_eq!(rows[1].waiting(), Some(2));
    }

    #[test]
    fn a_column_that_was_not_asked_for_is_none() {
        let columns = abi::Batch {
            requests: vec![4],
            output_ids: vec![],
            output_ends: vec![],
            completion_tokens: vec![],
            finished: vec![],
            texts: vec![],
            waiting: vec![],
        };
        let row = Batch::new(&columns).rows().next().unwrap();
        assert_eq!(
            (row.ids(), row.completion_tokens(), row.finish(), row.text(), row.waiting()),
            (&[][..], None, None, None, None)
        );
    }
}
