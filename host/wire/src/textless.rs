//! Rows past the detokenizer: a BatchTokenIDOutput's rows as the BatchStrOutput that the detokenizer would have made of
//! them, but without text, for clients that want ids only. What each column becomes is what
//! `DetokenizerManager.handle_batch_token_id_out` does with it; what is not known of it is an error, and such rows
//! go by way of the detokenizer.

use std::sync::Arc;

use afterbay_pickle::{Node, Source};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::batch::Batch;
use crate::bounds::MAX_EXPANSION;
use crate::error::RowsError;
use crate::joining::Rule;
use crate::kind::Kind;
use crate::layouts::{Field, Known, Layout, Layouts};
use crate::pickled::MODULE;
use crate::rows::Plan;
use crate::sink::Sink;
use crate::tensor;
use crate::value::ColumnView;

/// What only the detokenizer is told, in every known version.
const FOR_DETOKENIZER: [&str; 6] = [
    "decoded_texts",
    "decode_ids",
    "read_offsets",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "no_stop_trim",
];

/// The BatchStrOutput that goes with a BatchTokenIDOutput.
#[derive(Debug)]
pub(crate) struct Textless {
    pub(crate) layout: Arc<Layout>,
    /// By its fields: where each comes from.
    pub(crate) from: Vec<From>,
}

/// Where a column of the BatchStrOutput comes from: the position of the column, where it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// That column, as it is.
    Column(usize),
    /// That column of tensors, as base64.
    Base64(usize),
    /// That column, of which it is not known what the detokenizer makes: only where it says nothing.
    Unknown(usize),
    /// The ids, in any case: the reader has no others.
    Ids(usize),
    /// Nothing: the detokenizer never passes it on.
    Nil,
    /// An empty text a row.
    NoText,
}

impl Textless {
    /// `None`: the BatchStrOutput has a field that the other has not.
    pub(crate) fn new(tokens: &Layout, layout: Arc<Layout>) -> Option<Textless> {
        let from = layout.fields.iter().map(|field| From::new(tokens, field)).collect::<Option<_>>()?;
        Some(Textless { layout, from })
    }

    /// Finds what goes with the layout of a pickled batch, which says its own fields only. Those of a msgspec struct
    /// (0.5.15 and later) must be of a version that is known, since its class takes no other fields than its own.
    /// A dataclass takes any; all versions that were one differ in the same fields.
    pub(crate) fn find(batch: &Batch, layouts: &Layouts) {
        let layout = &batch.layout;
        let Some((tree, root)) = batch.tree().filter(|_| layout.textless.get().is_none()) else { return };
        if layout.kind != Kind::TokenId || tree.object(root).is_none_or(|object| object.module != MODULE) {
            return;
        }
        let builtin = Layouts::builtin();
        let names: Vec<&str> = if is_dataclass(batch) {
            let has = |name: &&str| layout.fields.iter().any(|field| *field.name == **name);
            if !FOR_DETOKENIZER.iter().all(has) {
                return;
            }
            let rest = layout.fields.iter().map(|field| &*field.name);
            rest.filter(|name| !FOR_DETOKENIZER.contains(name)).chain([Known::OutputStrs.name()]).collect()
        } else {
            let found = layouts.text_of(&layout.fields).or_else(|| builtin.text_of(&layout.fields));
            let Some(found) = found else { return };
            found.fields.iter().map(|field| &*field.name).collect()
        };
        let text = Arc::new(Layout::new(Kind::Str, "", names.into_iter()));
        if let Some(textless) = Textless::new(layout, text) {
            _ = layout.textless.set(textless);
        }
    }
}

/// Whether a pickled batch is a dataclass, as before 0.5.15.
pub(crate) fn is_dataclass(batch: &Batch) -> bool {
    batch.tree().is_some_and(|(tree, root)| matches!(tree.node(root), Node::Build { .. }))
}

impl From {
    fn new(tokens: &Layout, field: &Field) -> Option<From> {
        let at = tokens.fields.iter().position(|it| it.name == field.name);
        match &*field.name {
            "output_strs" => Some(From::NoText),
            "placeholder_tokens_idx" | "placeholder_tokens_val" => Some(From::Nil),
            "output_ids" => at.map(From::Ids),
            "routed_experts" | "indexer_topk" => at.map(From::Base64),
            _ if field.column.is_none() => at.map(From::Unknown),
            _ => at.map(From::Column),
        }
    }
}

impl Batch {
    /// Some rows of a BatchTokenIDOutput, ascending, as a BatchStrOutput without text: what the detokenizer would have
    /// made of them, but that each row's `output_strs` is empty. Ids, finish reason, logprobs and counts are the same
    /// as by way of the detokenizer, which decodes and trims texts only and leaves ids alone. It goes to
    /// the tokenizer, ahead of or behind what the detokenizer sends there: a request's rows take either way,
    /// not both.
    ///
    /// The error says why it cannot be: no such batch, a version whose BatchStrOutput is not known, or a column of which
    /// the detokenizer makes something unknown. Such rows go to the detokenizer.
    pub fn without_detokenizing(&self, rows: &[u32]) -> Result<Batch, RowsError> {
        if self.kind() != Kind::TokenId {
            return Err(RowsError::NotTokenIds { kind: self.kind() });
        }
        let textless = self.layout.textless.get();
        let textless = textless.ok_or(RowsError::NoTextLayout { fields: self.layout.fields.len() })?;
        Plan::of_rows(self, rows)?.write_without_text(textless)
    }
}

impl<'a> Plan<'a> {
    /// Writes a column of a BatchStrOutput out of rows of one BatchTokenIDOutput.
    pub(crate) fn without_text<S: Sink<'a>>(
        &self,
        sink: &mut S,
        sources: &[Option<Source>],
        from: From,
    ) -> Result<(), RowsError> {
        let batch = self.first()?;
        let name = |at: usize| batch.layout.fields[at].name.to_string();
        match from {
            From::Column(at) => self.column(sink, sources, at, Rule::new(&batch.layout.fields[at])),
            From::Unknown(at) if batch.is_nil_or_empty(at) => sink.copy(batch.raw(at), sources[0]),
            From::Unknown(at) => Err(RowsError::NotByDetokenizer { name: name(at) }),
            From::Nil => {
                sink.nil();
                Ok(())
            }
            From::NoText => self.each(sink, |sink, _| {
                sink.str("");
                Ok(())
            }),
            From::Ids(at) if batch.plain_rows(at).is_some() => {
                self.column(sink, sources, at, Rule::new(&batch.layout.fields[at]))
            }
            From::Ids(_) => self.each(sink, |sink, row| {
                let mut ids = Vec::new();
                batch.row_ids(row, &mut ids);
                sink.ids(&ids, batch.cell(Known::DecodeIds, row))
            }),
            From::Base64(at) => match batch.column(at)? {
                ColumnView::Rows(cells) => {
                    let mut left = MAX_EXPANSION * batch.bytes.len();
                    self.each(sink, |sink, row| {
                        let cell = cells.get(row);
                        if cell.is_nil() || cell.str().is_some() {
                            return sink.copy(cell, sources[0]);
                        }
                        let items = tensor::items(cell);
                        let items = items.ok_or_else(|| RowsError::NotByDetokenizer { name: name(at) })?;
                        left = left
                            .checked_sub(items.len())
                            .ok_or_else(|| RowsError::Expands { name: name(at) })?;
                        sink.str(&STANDARD.encode(items));
                        Ok(())
                    })
                }
                ColumnView::Nil | ColumnView::Empty => sink.copy(batch.raw(at), sources[0]),
                _ => Err(RowsError::NotByDetokenizer { name: name(at) }),
            },
        }
    }
}
