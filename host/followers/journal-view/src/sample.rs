//! A request and a row for the tests of this crate.

use afterbay_journal::reader::{JournalRow, OperatorAbort, RequestInfo, RequestState};
use afterbay_journal::{FrameNo, Passage, RequestNo};

/// A live request of one row with one token, received at `number` nanoseconds in the frame `number`.
pub(crate) fn request(number: u64, rid: &str) -> RequestInfo {
    RequestInfo {
        number: RequestNo(number),
        rid: rid.to_owned(),
        state: RequestState::Live,
        rows: 1,
        received: 1,
        forwarded: 1,
        dropped: 0,
        replaced: 0,
        gaps: 0,
        ended_early: false,
        ending: OperatorAbort::No,
        first_frame: FrameNo(number),
        last_frame: FrameNo(number),
        first_unix_ns: number,
        last_unix_ns: number,
        finish: String::new(),
        completion_tokens: None,
        attributes: Vec::new(),
        erased: None,
    }
}

/// An unchanged row of one token, received at `unix_ns`, which the journal does not store.
pub(crate) fn row(unix_ns: u64) -> JournalRow {
    JournalRow {
        frame: FrameNo(1),
        position: None,
        received_unix_ns: unix_ns,
        row: 0,
        tokens: 1,
        forwarded: 1,
        passage: Passage::Unchanged,
        finish: None,
        gap: None,
        actions: Vec::new(),
        plugins: Vec::new(),
        deliveries: Vec::new(),
    }
}
