//! Rows and requests as plugins see them, copied for an instance that sees them later.

use crate::attributes::RequestAttributes;
use afterbay_runtime::{ColumnSet, Columns, Fault, FinishKind, Opened, Plugin, TokenId};
use std::sync::Arc;

/// All that either wants to see.
pub fn union(one: ColumnSet, other: ColumnSet) -> ColumnSet {
    ColumnSet {
        output_ids: one.output_ids || other.output_ids,
        completion_tokens: one.completion_tokens || other.completion_tokens,
        finished: one.finished || other.finished,
        texts: one.texts || other.texts,
        waiting: one.waiting || other.waiting,
    }
}

/// The columns of some rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    requests: Vec<u64>,
    output_ids: Vec<TokenId>,
    output_ends: Vec<u32>,
    completion_tokens: Vec<u64>,
    finished: Vec<FinishKind>,
    texts: Vec<Box<str>>,
    waiting: Vec<u32>,
}

impl Rows {
    /// Copies the columns that a plugin wants.
    pub fn copy(columns: &Columns<'_>, wants: ColumnSet) -> Rows {
        fn wanted<T: Clone>(column: &[T], is_wanted: bool) -> Vec<T> {
            if is_wanted { column.to_vec() } else { Vec::new() }
        }
        Rows {
            requests: columns.requests.to_vec(),
            output_ids: wanted(columns.output_ids, wants.output_ids),
            output_ends: wanted(columns.output_ends, wants.output_ids),
            completion_tokens: wanted(columns.completion_tokens, wants.completion_tokens),
            finished: wanted(columns.finished, wants.finished),
            texts: wanted(columns.texts, wants.texts).into_iter().map(Box::from).collect(),
            waiting: wanted(columns.waiting, wants.waiting),
        }
    }

    /// One more row, of which everything is known.
    pub fn push(
        &mut self,
        request: u64,
        ids: &[TokenId],
        completion_tokens: u64,
        finished: FinishKind,
        text: Option<&str>,
    ) {
        self.requests.push(request);
        self.output_ids.extend_from_slice(ids);
        self.output_ends.push(self.output_ids.len() as u32);
        self.completion_tokens.push(completion_tokens);
        self.finished.push(finished);
        self.texts.extend(text.map(Box::from));
        // What it held goes on with the instance that held it.
        self.waiting.push(0);
    }

    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Roughly what it takes in memory.
    pub fn bytes(&self) -> usize {
        let texts: usize = self.texts.iter().map(|text| text.len()).sum();
        self.requests.len() * 32 + self.output_ids.len() * 8 + texts
    }

    /// Shows them.
    pub fn show<T>(&self, to: impl FnOnce(&Columns<'_>) -> T) -> T {
        let texts: Vec<&str> = self.texts.iter().map(|text| &**text).collect();
        to(&Columns {
            requests: &self.requests,
            output_ids: &self.output_ids,
            output_ends: &self.output_ends,
            completion_tokens: &self.completion_tokens,
            finished: &self.finished,
            // A frame without texts among those with them has none to show.
            texts: if texts.len() == self.requests.len() { &texts } else { &[] },
            waiting: &self.waiting,
        })
    }
}

/// A request, as a plugin is told of it, kept.
#[derive(Clone, Debug)]
pub struct Begun {
    pub request: u64,
    pub rid: Box<str>,
    pub worker: Box<str>,
    pub sink: Box<str>,
    pub prompt_tokens: u64,
    pub received_tokens: u64,
    pub resumed: bool,
    pub attributes: Option<Arc<str>>,
}

impl Begun {
    pub fn new(opened: &Opened<'_>, attributes: &RequestAttributes) -> Begun {
        Begun {
            request: opened.request,
            rid: opened.rid.into(),
            worker: opened.http_worker_ipc.into(),
            sink: opened.sink.into(),
            prompt_tokens: opened.prompt_tokens,
            received_tokens: opened.received_tokens,
            resumed: opened.resumed,
            attributes: attributes.attributes(opened.request),
        }
    }

    /// Tells an instance of some.
    pub fn open(begun: &[Begun], plugin: &mut Plugin) -> Result<(), Fault> {
        begun.iter().for_each(|of| plugin.set_attributes(of.request, of.attributes.clone()));
        let opened: Vec<Opened<'_>> = begun.iter().map(Begun::opened).collect();
        plugin.open(&opened)
    }

    fn opened(&self) -> Opened<'_> {
        Opened {
            request: self.request,
            rid: &self.rid,
            http_worker_ipc: &self.worker,
            sink: &self.sink,
            prompt_tokens: self.prompt_tokens,
            received_tokens: self.received_tokens,
            resumed: self.resumed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_columns_that_are_wanted() {
        let columns = Columns {
            requests: &[7, 8],
            output_ids: &[1, 2, 3],
            output_ends: &[2, 3],
            completion_tokens: &[10, 20],
            finished: &[FinishKind::Running, FinishKind::Stop],
            texts: &["a", "b"],
            waiting: &[0, 2],
        };
        let all = ColumnSet {
            output_ids: true,
            completion_tokens: true,
            finished: true,
            texts: true,
            waiting: true,
        };
        Rows::copy(&columns, all).show(|shown| {
            assert_eq!((shown.requests, shown.texts), (columns.requests, columns.texts));
            assert_eq!((shown.output_ids, shown.output_ends), (columns.output_ids, columns.output_ends));
            assert_eq!(
                (shown.completion_tokens, shown.waiting),
                (columns.completion_tokens, columns.waiting)
            );
            assert_eq!(shown.finished, columns.finished);
        });
        let ids = ColumnSet { output_ids: true, ..ColumnSet::default() };
        Rows::copy(&columns, ids).show(|shown| {
            assert_eq!((shown.requests, shown.output_ids), (columns.requests, columns.output_ids));
            assert!(shown.completion_tokens.is_empty() && shown.finished.is_empty());
            assert!(shown.texts.is_empty() && shown.waiting.is_empty());
        });
    }
}
