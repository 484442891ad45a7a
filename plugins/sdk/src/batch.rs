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
        let ids_start = ids_end - ids.len();
        Some(Row { columns: self.columns, index, request, ids, ids_start })
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
    /// The place of the first id in the columns of tokens.
    ids_start: usize,
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
        self.columns.texts.as_ref()?.get(self.index).map(String::as_str)
    }

    /// The natural logarithm of the probability of each id. Empty unless the plugin reads
    /// [`Columns::LOGPROBS`](crate::Columns::LOGPROBS) and the engine sent them for this row: the client asked for
    /// them, and no plugin before replaced the row's tokens.
    #[must_use]
    pub fn logprobs(&self) -> &'a [f32] {
        let logprobs = self.columns.logprobs.as_deref().unwrap_or_default();
        let of_row = logprobs.get(self.ids_start..self.ids_start + self.ids.len()).unwrap_or_default();
        if of_row.first().is_some_and(|first| !first.is_nan()) { of_row } else { &[] }
    }

    /// The most probable tokens in the place of the id at this index, as the engine orders them, each with the
    /// natural logarithm of its probability. None unless the plugin reads
    /// [`Columns::TOP_LOGPROBS`](crate::Columns::TOP_LOGPROBS) and the engine sent them for this row.
    pub fn top_logprobs(&self, index: usize) -> impl Iterator<Item = (TokenId, f32)> + use<'a> {
        let place = self.ids_start + index;
        let candidates = self.columns.top_logprobs.as_ref().filter(|_| index < self.ids.len());
        let candidates = candidates.and_then(|top| {
            let start =
                place.checked_sub(1).map_or(Some(0), |before| top.ends.get(before).copied())? as usize;
            let end = *top.ends.get(place)? as usize;
            Some(top.ids.get(start..end)?.iter().copied().zip(top.logprobs.get(start..end)?.iter().copied()))
        });
        candidates.into_iter().flatten()
    }

    /// The version of the weights that made the row's last token. `None` unless the plugin reads
    /// [`Columns::WEIGHT_VERSIONS`](crate::Columns::WEIGHT_VERSIONS) and the row says it.
    #[must_use]
    pub fn weight_version(&self) -> Option<&'a str> {
        let version = self.columns.weight_versions.as_ref()?.get(self.index)?;
        Some(version.as_str()).filter(|version| !version.is_empty())
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
            .field("text", &self.text())
            .field("logprobs", &self.logprobs())
            .field(
                "top_logprobs",
                &(0..self.ids.len()).map(|at| self.top_logprobs(at).collect()).collect::<Vec<Vec<_>>>(),
            )
            .field("weight_version", &self.weight_version());
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
            TestRow::new(4).ids([10, 11]).text("ab").logprobs([-0.5, -1.5]).weight_version("w2"),
            TestRow::new(9).finish(FinishKind::Stop).waiting(2),
            TestRow::new(2).ids([12]).completion_tokens(7).top_logprobs([vec![(12, -0.25), (13, -2.0)]]),
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
        assert_eq!(rows.iter().map(Row::logprobs).collect::<Vec<_>>(), [&[-0.5, -1.5][..], &[], &[]]);
        let candidates = |row: usize, at| rows[row].top_logprobs(at).collect::<Vec<_>>();
        assert_eq!((candidates(0, 1), candidates(2, 1)), (vec![], vec![]));
        assert_eq!(candidates(2, 0), [(12, -0.25), (13, -2.0)]);
        assert_eq!(rows.iter().map(Row::weight_version).collect::<Vec<_>>(), [Some("w2"), None, None]);
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
