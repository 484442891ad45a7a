//! Sends rows past the detokenizer: writes rows of a BatchTokenIDOutput as the BatchStrOutput that the detokenizer
//! would have made of them, without text, for clients that want ids only. Each column becomes what
//! `DetokenizerManager.handle_batch_token_id_out` makes of it. If that is unknown, the result is an error, and the rows
//! go through the detokenizer.

use std::sync::Arc;

use super::batch::Columns;
use crate::batch::Batch;
use crate::error::RowsError;
use crate::kind::BatchKind;
use crate::sglang::layouts::{KnownField, MessageLayout, Messages, TextLayout};
use crate::sglang::pickled::MODULE;
use crate::sglang::plan::WritePlan;

/// The fields that only the detokenizer reads, in every known version.
const FOR_DETOKENIZER: [&str; 6] = [
    "decoded_texts",
    "decode_ids",
    "read_offsets",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "no_stop_trim",
];

impl Batch {
    /// Returns some rows of a BatchTokenIDOutput, ascending, as a BatchStrOutput without text. Ids, finish reason,
    /// logprobs and counts equal those that the detokenizer forwards, because it changes texts only; `output_strs` is
    /// empty. The frame goes to the tokenizer beside the detokenizer's frames. All rows of a request must take the same
    /// way.
    ///
    /// The error: the batch is of another kind, its version's BatchStrOutput is unknown, or the detokenizer treats a
    /// column in an unknown way. Such rows go to the detokenizer.
    pub fn without_detokenizing(&self, rows: &[u32]) -> Result<Batch, RowsError> {
        if self.kind() != BatchKind::TokenId {
            return Err(RowsError::NotTokenIds { kind: self.kind() });
        }
        let layout = &self.columns()?.layout;
        let textless = layout.text_layout.get();
        let textless = textless.ok_or(RowsError::NoTextLayout { fields: layout.fields.len() })?;
        WritePlan::of_rows(self, rows)?.write_without_text(textless)
    }
}

/// Finds the BatchStrOutput for the layout of a pickled batch, which names only its own fields. A msgspec struct
/// (0.5.15 and later) must be of a known version, because its class takes no other fields than its own. A dataclass
/// takes any field; all versions with dataclasses differ in the same fields.
pub(crate) fn find_text_layout(batch: &Columns, layouts: &Messages) {
    let layout = &batch.layout;
    let Some((tree, root)) = batch.tree().filter(|_| layout.text_layout.get().is_none()) else { return };
    if layout.kind != BatchKind::TokenId || tree.object(root).is_none_or(|object| object.module != MODULE) {
        return;
    }
    let builtin = Messages::builtin();
    let names: Vec<&str> = if batch.is_dataclass() {
        let has = |name: &&str| layout.fields.iter().any(|field| *field.name == **name);
        if !FOR_DETOKENIZER.iter().all(has) {
            return;
        }
        let rest = layout.fields.iter().map(|field| &*field.name);
        rest.filter(|name| !FOR_DETOKENIZER.contains(name)).chain([KnownField::OutputStrs.name()]).collect()
    } else {
        let found = layouts.text_of(&layout.fields).or_else(|| builtin.text_of(&layout.fields));
        let Some(found) = found else { return };
        found.fields.iter().map(|field| &*field.name).collect()
    };
    let text = Arc::new(MessageLayout::new(BatchKind::Str, "", names.into_iter()));
    if let Some(textless) = TextLayout::new(layout, text) {
        _ = layout.text_layout.set(textless);
    }
}
