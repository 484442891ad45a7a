//! A request and a row for the tests of this crate.

use afterbay_journal::reader::{JournalRow, RequestInfo};
use afterbay_journal::{FrameNo, Passage, RequestNo};

/// A live request of one row with one token, received at `number` nanoseconds in the frame `number`.
pub(crate) fn request(number: u64, rid: &str) -> RequestInfo {
    RequestInfo {
        number: RequestNo(number),
        rid: rid.to_owned(),
        rows: 1,
        received: 1,
        forwarded: 1,
        first_frame: FrameNo(number),
        last_frame: FrameNo(number),
        first_unix_ns: number,
        last_unix_ns: number,
        ..RequestInfo::default()
    }
}

/// An unchanged row of one token, received at `unix_ns`, which the journal does not store.
pub(crate) fn row(unix_ns: u64) -> JournalRow {
    JournalRow {
        frame: FrameNo(1),
        position: None,
        changed: None,
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
