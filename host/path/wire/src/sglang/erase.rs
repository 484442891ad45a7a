//! Erases rows in a frame of SGLang. A msgpack frame is overwritten in place, so that all other bytes stay. A pickle is written
//! anew, because a value of one row may be a reference to the value of another; its unused bytes are opcodes without an effect.

use bytes::Bytes;

use super::batch::{ColumnForm, Columns};
use super::columns::Join;
use super::layouts::LayoutField;
use super::mask::Mask;
use super::pickled;
use super::value_writer::ValueWriter;
use crate::blank::blank;
use crate::error::EraseError;
use crate::pack::{self, PackValue};
use crate::pickle::{Node, NodeId, PickleWriteError, PickleWriter, SourceId, Tree};
use crate::value::{ColumnCells, ColumnView, RawValue};

/// The columns of a row that stay: its identity, flags, counts and times. Every other column is content, also one that
/// this version does not know.
const STAY: &[&str] = &[
    "rids",
    "http_worker_ipcs",
    "read_offsets",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "no_stop_trim",
    "prompt_tokens",
    "reasoning_tokens",
    "completion_tokens",
    "cached_tokens",
    "cached_tokens_details",
    "image_tokens",
    "audio_tokens",
    "video_tokens",
    "retraction_counts",
    "spec_verify_ct",
    "spec_accepted_tokens",
    "spec_accepted_drafts",
    "spec_num_correct_drafts",
    "spec_num_block_accept_tokens",
    "spec_num_cap_tokens",
    "spec_acceptance_histogram",
    "spec_correct_drafts_histogram",
    "spec_cap_lens_histogram",
    "dp_ranks",
    "weight_versions",
    "time_stats",
    "queue_time",
    "forward_entry_time",
    "prefill_launch_delay",
    "prefill_launch_latency",
    "prefill_finished_ts",
];

/// The column whose cells say why a request ended, and the parts of a reason that are no content.
const REASONS: &str = "finished_reasons";
const REASON_STAYS: [&str; 3] = ["type", "length", "status_code"];

/// Returns the frame with these rows overwritten. Adds columns without an entry per row to `left`.
pub(super) fn erase(batch: &Columns, rows: &[u32], left: &mut Vec<String>) -> Result<Bytes, EraseError> {
    match &batch.form {
        ColumnForm::Packed(_) => Ok(packed(batch, rows, left)?.into()),
        ColumnForm::Pickled(body) => {
            let field = |at: usize| Ok(pickled::view(body.tree(), body.value(at), batch.rows));
            pickle(batch, body.tree(), rows, field, left)
        }
    }
}

/// Whether the column has content of its rows.
fn is_content(field: &LayoutField) -> bool {
    !STAY.contains(&&*field.name) && field.column.is_none_or(|column| column.join != Join::Frame)
}

/// Overwrites the rows in a msgpack frame.
fn packed(batch: &Columns, rows: &[u32], left: &mut Vec<String>) -> Result<Vec<u8>, EraseError> {
    let mut bytes = batch.frame.to_vec();
    let is_whole = rows.len() == batch.rows as usize;
    let at = |part: &[u8]| part.as_ptr().addr() - batch.frame.as_ptr().addr();
    for (field, name) in batch.layout.fields.iter().enumerate().filter(|(_, field)| is_content(field)) {
        let name = &*name.name;
        if let Some(wrapped) = batch.wrapped_pickle(field) {
            match erased_column(batch, field, rows, wrapped.len()) {
                Ok(column) => bytes[at(wrapped)..][..wrapped.len()].copy_from_slice(&column),
                // Nobody else's value is in it.
                Err(_) if is_whole => bytes[at(wrapped)..][..wrapped.len()].fill(0),
                Err(_) => left.push(name.to_owned()),
            }
            continue;
        }
        let RawValue::Packed(column) = batch.raw(field) else { continue };
        match batch.plain_rows(field) {
            Some(cells) => {
                for row in rows {
                    let RawValue::Packed(cell) = cells.get(*row) else { continue };
                    let span = &mut bytes[at(cell)..][..cell.len()];
                    if name == REASONS {
                        blank_reason(span)
                    } else {
                        blank(span, Mask::read(RawValue::Packed(cell)).is_some())
                    }
                }
            }
            None if is_whole => blank(&mut bytes[at(column)..][..column.len()], false),
            None if batch.is_nil_or_empty(field) => {}
            None => left.push(name.to_owned()),
        }
    }
    Ok(bytes)
}

/// Overwrites a finish reason, except its type and numbers that are no content.
fn blank_reason(reason: &mut [u8]) {
    let Some(PackValue::Map(entries, body)) = pack::item(reason) else { return blank(reason, false) };
    let mut at = reason.len() - body.len();
    for _ in 0..entries {
        let Ok(value_at) = pack::skip(reason, at) else { return };
        let Ok(end) = pack::skip(reason, value_at) else { return };
        let stays =
            REASON_STAYS.iter().any(|name| pack::str_bytes(&reason[at..value_at]) == Some(name.as_bytes()));
        if !stays {
            blank(&mut reason[value_at..end], false);
        }
        at = end;
    }
}

/// Writes a column that is a pickle inside msgpack.
fn erased_column(batch: &Columns, field: usize, rows: &[u32], length: usize) -> Result<Bytes, EraseError> {
    let name = &*batch.layout.fields[field].name;
    let (Ok(Some(tree)), Ok(view)) = (batch.wrapped_tree(field), batch.view(field)) else {
        return Err(EraseError::Written);
    };
    let mut writer = PickleWriter::new(tree.protocol());
    let source = writer.source(tree);
    if !write_column(&mut writer, source, tree, tree.root(), &view, name, rows, batch.rows)? {
        return Err(EraseError::Written);
    }
    writer.finish_with_length(length)?.ok_or(EraseError::Longer)
}

/// Writes a pickled batch anew.
fn pickle<'t>(
    batch: &'t Columns,
    tree: &'t Tree,
    rows: &[u32],
    field: impl Fn(usize) -> Result<ColumnView<'t>, EraseError>,
    left: &mut Vec<String>,
) -> Result<Bytes, EraseError> {
    let mut writer = PickleWriter::new(tree.protocol());
    writer.reserve(batch.frame.len());
    let source = writer.source(tree);
    let mut failed = None;
    writer.object(source, tree.root(), |writer| {
        for (at, it) in batch.layout.fields.iter().enumerate() {
            writer.str(&it.name);
            let RawValue::Tree(_, value) = batch.raw(at) else { continue };
            if !is_content(it) {
                writer.copy(source, value)?;
                continue;
            }
            let written = field(at).and_then(|view| {
                write_column(writer, source, tree, value, &view, &it.name, rows, batch.rows)
            });
            match written {
                Ok(true) => {}
                Ok(false) => {
                    left.push(it.name.to_string());
                    writer.copy(source, value)?;
                }
                Err(error) => {
                    failed = Some(error);
                    writer.none();
                }
            }
        }
        Ok(())
    })?;
    failed.map_or(Ok(()), Err)?;
    writer.finish_with_length(batch.frame.len())?.ok_or(EraseError::Longer)
}

/// Writes a column without the content of these rows. Returns false, with nothing written, if the column has no entry
/// per row and other rows may need it.
#[expect(clippy::too_many_arguments, reason = "a column in its two forms")]
fn write_column<'t>(
    writer: &mut PickleWriter<'t>,
    source: SourceId,
    tree: &'t Tree,
    whole: NodeId,
    view: &ColumnView<'t>,
    name: &str,
    rows: &[u32],
    all: u32,
) -> Result<bool, EraseError> {
    match view {
        ColumnView::Nil | ColumnView::Empty => writer.copy(source, whole)?,
        ColumnView::Cells(cells) => write_cells(writer, source, tree, *cells, name, rows, all)?,
        ColumnView::Named(columns) => writer.dict(|writer| {
            for (key, cells) in columns {
                writer.str(key);
                write_cells(writer, source, tree, *cells, name, rows, all)?;
            }
            Ok(())
        })?,
        ColumnView::Whole if rows.len() == all as usize => writer.none(),
        ColumnView::Whole => return Ok(false),
    }
    Ok(true)
}

fn write_cells<'t>(
    writer: &mut PickleWriter<'t>,
    source: SourceId,
    tree: &'t Tree,
    cells: ColumnCells<'t>,
    name: &str,
    rows: &[u32],
    all: u32,
) -> Result<(), PickleWriteError> {
    let Some(nodes) = cells.nodes(0..all) else { return Ok(()) };
    writer.list(|writer| {
        for (row, &id) in (0..).zip(nodes) {
            match rows.binary_search(&row) {
                Err(_) => writer.copy(source, id)?,
                Ok(_) => write_blank(writer, source, tree, id, name)?,
            }
        }
        Ok(())
    })
}

/// Writes the least value of the same type. Ids keep their number.
fn write_blank<'t>(
    writer: &mut PickleWriter<'t>,
    source: SourceId,
    tree: &'t Tree,
    id: NodeId,
    name: &str,
) -> Result<(), PickleWriteError> {
    let ids = matches!(name, "output_ids" | "decode_ids").then(|| tree.ids_len(id)).flatten();
    if let Some(ids) = ids {
        let like = RawValue::Tree(tree, id);
        return ValueWriter::ids(writer, &vec![0; ids], Some(like)).map_err(|_| PickleWriteError::NoFields);
    }
    match tree.node(id) {
        Node::Str(_) | Node::Surrogates(_) => writer.str(""),
        Node::Int(_) | Node::BigInt(_) => writer.int(0),
        Node::Float(_) => writer.float(0.0),
        Node::Bool(_) => writer.bool(false),
        Node::List(_) => writer.list(|_| Ok(()))?,
        Node::Dict(pairs) if name == REASONS => writer.dict(|writer| {
            for (key, value) in pairs {
                let key_text = tree.str(key).unwrap_or_default();
                writer.copy(source, key)?;
                match REASON_STAYS.contains(&key_text) {
                    true => writer.copy(source, value)?,
                    false => write_blank(writer, source, tree, value, "")?,
                }
            }
            Ok(())
        })?,
        _ => writer.none(),
    }
    Ok(())
}
