//! A request for the tests of this crate.

use afterbay_journal::reader::{OperatorAbort, RequestInfo, RequestState};
use afterbay_journal::{FrameNo, RequestNo};

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
    }
}
