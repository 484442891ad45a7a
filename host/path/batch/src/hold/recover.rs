//! Rebuilds the held rows of an earlier run, or of the time before a panic, from the journal, which records every hold and
//! release.

use super::HeldRows;
use crate::{FrameDecoder, HeldRow, ReceivedTokens, end_of_record};
use afterbay_events::Name;
use afterbay_journal::{
    BacklogFrame, JournalRequest, PluginAction, StoredReplacement, Verdict, is_release_marker,
};
use afterbay_wire::{DecodedFrame, Edit, TokenEdit};
use std::time::Instant;

impl HeldRows {
    /// Repeats the holds and releases of one frame; call this for the frames in order, and then [`HeldRows::restore`].
    /// `live` finds a request by its number.
    /// The error names the row that cannot be rebuilt, as a sentence for the operator.
    pub fn recover(
        &mut self,
        frame: &BacklogFrame,
        decode: &mut FrameDecoder,
        live: impl Fn(u64) -> Option<JournalRequest>,
        now: Instant,
    ) -> Result<(), String> {
        let Some(outcome) = frame.outcome.as_deref() else { return Ok(()) };
        let mut decoded = None;
        let mut result = Ok(());
        for actions in outcome.actions.chunk_by(|one, next| one.row == next.row) {
            let row = actions[0].row;
            if !actions.iter().any(|action| matches!(action.verdict, Verdict::Hold | Verdict::Release)) {
                continue;
            }
            let Some(number) = outcome.requests.get(row as usize).map(|request| request.0) else { continue };
            let Some(request) = live(number) else { continue };
            let batch = decoded.get_or_insert_with(|| match is_release_marker(&frame.bytes) {
                true => None,
                false => match decode.decode_bytes(frame.bytes.clone()) {
                    DecodedFrame::Batch(batch) => Some(batch),
                    DecodedFrame::Barrier(_) => None,
                },
            });
            let tokens = outcome.tokens.get(row as usize).copied().unwrap_or(0);
            let received = ReceivedTokens::of_row(tokens);
            let own = batch.as_ref().map(|batch| HeldRow::new(batch.clone(), row, frame.frame, received));
            if let Err(error) = self.repeat(actions, own, request, now) {
                result = Err(format!("frame {} row {row}: {error}", frame.frame));
            }
        }
        result
    }

    /// Repeats what the chain did with a row.
    fn repeat(
        &mut self,
        actions: &[PluginAction<'_>],
        mut row: Option<HeldRow>,
        request: JournalRequest,
        now: Instant,
    ) -> Result<(), String> {
        for action in actions {
            let plugin: Name = action.plugin[..].into();
            match action.verdict {
                Verdict::Release => {
                    let mut all =
                        self.remove(request.number().0, &plugin, action.released().unwrap_or(usize::MAX));
                    all.extend(row.take());
                    row = if all.is_empty() { None } else { Some(HeldRow::join(&all)?) };
                }
                Verdict::Hold => {
                    if let Some(held) = row.take() {
                        self.hold(request, &plugin, held, now);
                    }
                }
                _ => row = row.map(|row| apply(row, action)).transpose()?,
            }
        }
        Ok(())
    }
}

/// Applies one recorded action to the row.
fn apply(mut row: HeldRow, action: &PluginAction<'_>) -> Result<HeldRow, String> {
    let mut edit = Edit::new(0);
    let mut received = row.received;
    match (action.verdict, action.replaced()) {
        (_, Some(StoredReplacement::Row { ids, text })) => {
            edit.tokens = TokenEdit::Delta(ids.to_vec());
            edit.text = text.map(str::to_owned);
            received = received.to_replaced();
        }
        (Verdict::Drop, _) => {
            edit.tokens = TokenEdit::Empty;
            received = received.to_dropped();
        }
        (verdict, _) => match end_of_record(verdict, &action.text) {
            Some(finish) => edit.finish = Some(finish),
            None => return Ok(row),
        },
    }
    row.edit(edit, received)?;
    Ok(row)
}
