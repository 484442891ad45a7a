//! Erases rows in a stored frame: everything that a request's rows say is overwritten, the frame keeps its length, and
//! the other rows keep their values.

use bytes::Bytes;

use crate::decode::Decoder;
use crate::error::EraseError;
use crate::frame::{Barrier, BarrierKind, DecodedFrame};
use crate::request::RequestRecord;

/// A frame in which rows were erased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErasedFrame {
    /// The frame, as long as before.
    pub bytes: Bytes,
    /// The number of erased rows.
    pub rows: u32,
    /// Columns without an entry per row. They stay, and may have content of the erased rows.
    pub left: Vec<String>,
}

impl Decoder {
    /// Erases the rows with these rids in a frame. A frame without such rows stays as it is, with 0 rows.
    pub fn erase(
        &mut self,
        frame: &Bytes,
        is_erased: impl Fn(&[u8]) -> bool,
    ) -> Result<ErasedFrame, EraseError> {
        let decoded = self.decode(frame.clone());
        let erased = Decoder::erase_decoded(frame, &decoded, is_erased)?;
        self.check_erased(&decoded, &erased)?;
        Ok(erased)
    }

    /// As [`Decoder::erase`], of a decoded frame. The result must be checked, unless more of the frame was erased and checked before.
    pub fn erase_decoded(
        frame: &Bytes,
        decoded: &DecodedFrame,
        is_erased: impl Fn(&[u8]) -> bool,
    ) -> Result<ErasedFrame, EraseError> {
        let unchanged = || ErasedFrame { bytes: frame.clone(), rows: 0, left: Vec::new() };
        let batch = match decoded {
            DecodedFrame::Batch(batch) => batch,
            DecodedFrame::Barrier(Barrier { kind: BarrierKind::Request { record: Ok(record) }, .. }) => {
                return Ok(match is_erased(record.rid.as_bytes()) {
                    true => ErasedFrame { bytes: RequestRecord::erase(frame), rows: 1, left: Vec::new() },
                    false => unchanged(),
                });
            }
            DecodedFrame::Barrier(barrier) if !barrier.hides_rows() => return Ok(unchanged()),
            DecodedFrame::Barrier(barrier) => match (barrier.named_rows(), &barrier.kind) {
                (Some(batch), _) => batch,
                (None, BarrierKind::NotUnderstood { error }) => {
                    return Err(EraseError::NotDecoded(error.to_string()));
                }
                (None, kind) => return Err(EraseError::NotDecoded(kind.to_string())),
            },
        };
        let rows: Vec<u32> =
            (0..batch.rows).filter(|row| batch.rid_of(*row).is_some_and(&is_erased)).collect();
        if rows.is_empty() {
            return Ok(unchanged());
        }
        let mut left = Vec::new();
        let bytes = batch.of_engine().erase(batch, &rows, &mut left)?;
        match bytes.len() == frame.len() {
            true => Ok(ErasedFrame { bytes, rows: rows.len() as u32, left }),
            false => Err(EraseError::Written),
        }
    }

    /// Checks that a frame in which rows were erased has the rows that it had before.
    pub fn check_erased(&mut self, before: &DecodedFrame, erased: &ErasedFrame) -> Result<(), EraseError> {
        let understood = |decoded: &DecodedFrame| match decoded {
            DecodedFrame::Batch(batch) => Some((batch.rows, true)),
            DecodedFrame::Barrier(barrier) => barrier.named_rows().map(|batch| (batch.rows, false)),
        };
        match erased.rows == 0 || understood(&self.decode(erased.bytes.clone())) == understood(before) {
            true => Ok(()),
            false => Err(EraseError::Written),
        }
    }
}
