//! Requests that the engine ends without a row: vLLM names them in a frame (`finished_requests`). Its API server has aborted such
//! a request, because the client left or the text had a stop string, or Afterbay has. SGLang ends such requests in its queue, and
//! its connector names them.

use super::Ledger;
use crate::hold::HeldRows;
use crate::records::Records;
use afterbay_events::HoldEnd;

/// The finish reason of such a request. vLLM's engine has the same word.
pub(super) const DEPARTED: &str = "abort";

impl Ledger {
    /// Notes the live requests among those that a frame says have ended. The frame may have their last rows, too.
    pub(super) fn note_departed<'a>(&mut self, rids: impl Iterator<Item = &'a str>) {
        for rid in rids {
            self.departed.extend(self.requests.find(rid.as_bytes()));
        }
    }

    /// Closes the requests that the last frame says have ended and that no row of it has closed. Returns their numbers. Their
    /// held rows are released first, and close them.
    pub fn close_departed(&mut self, held_rows: &mut HeldRows, records: &mut Records) -> Vec<u64> {
        let mut closed = Vec::new();
        for handle in std::mem::take(&mut self.departed) {
            let Some(request) = self.requests.get_mut(handle) else { continue };
            let number = request.number();
            request.is_departed = true;
            if held_rows.has(number) {
                request.is_finishing = true;
                held_rows.end_all_of(number, HoldEnd::Stop);
                continue;
            }
            closed.extend(self.close(handle, self.sender_cause(DEPARTED), records));
        }
        closed
    }
}
