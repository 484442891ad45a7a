//! Erases rows in a stored frame: everything that a request's rows say is overwritten, the frame keeps its length, and
//! the other rows keep their values.

use bytes::Bytes;
use thiserror::Error;

use crate::decode::{BarrierKind, DecodedFrame, Decoder};
use crate::pickle::PickleWriteError;

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

/// The reason why rows could not be erased. The frame stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EraseError {
    /// The frame is a batch whose rows cannot be read.
    #[error("not decoded: {0}")]
    NotDecoded(String),
    /// The pickle would have more bytes than before.
    #[error("the pickle would become longer")]
    Longer,
    /// The pickle could not be written.
    #[error("the pickle cannot be written: {0}")]
    Write(#[from] PickleWriteError),
    /// The written frame cannot be read back.
    #[error("the erased frame is not understood")]
    Written,
}

impl Decoder {
    /// Erases the rows with these rids in a frame. A frame without such rows stays as it is, with 0 rows.
    pub fn erase(
        &mut self,
        frame: &Bytes,
        is_erased: impl Fn(&[u8]) -> bool,
    ) -> Result<ErasedFrame, EraseError> {
        let unchanged = || ErasedFrame { bytes: frame.clone(), rows: 0, left: Vec::new() };
        let decoded = self.decode(frame.clone());
        let batch = match &decoded {
            DecodedFrame::Batch(batch) => batch,
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
        let understood = |decoded: &DecodedFrame| match decoded {
            DecodedFrame::Batch(batch) => Some((batch.rows, true)),
            DecodedFrame::Barrier(barrier) => barrier.named_rows().map(|batch| (batch.rows, false)),
        };
        let again = self.decode(bytes.clone());
        match bytes.len() == frame.len() && understood(&again) == understood(&decoded) {
            true => Ok(ErasedFrame { bytes, rows: rows.len() as u32, left }),
            false => Err(EraseError::Written),
        }
    }
}
