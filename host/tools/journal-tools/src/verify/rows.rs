//! Checks of a stream whose engine sends no token count against its own rows: the counts are made again from the stored frames.
//!
//! - A request's first row with ids has `prefill_stats`, and no later row has. Otherwise rows before it never arrived, or two
//!   requests share an id. Of a session, whose turns are requests with one id, only the first turn has it.
//! - No row follows the row with the finish reason.
//! - The ids of its rows are as many as the ledger counted.
//! - The ids that left are as many as the ledger counted: the `usage.completion_tokens` that the API server reports.

use afterbay_journal::reader::{
    ReadFrom, RequestFilter, RequestInfo, RequestState, StoredFrame, StreamReader,
};
use afterbay_journal::{Outcome, Passage, RequestNo, stored_rid};
use afterbay_wire::{Batch, DecodedFrame, Finish, Layouts, RequestRecord};
use std::collections::{HashMap, HashSet};

/// The counts of a stream, made again from its frames.
#[derive(Debug, Default)]
pub(super) struct Recount {
    /// Requests of which every row is stored, from the first to the end.
    pub requests: u64,
    /// The lengths of their prompts in tokens, as the engine gave them.
    pub prompt_tokens: u64,
    /// The ids of theirs that left: the sum of `usage.completion_tokens`.
    pub completion_tokens: u64,
    /// The differences, each as a sentence.
    pub problems: Vec<String>,
}

/// A request that has ended, and the counts so far.
struct Counted {
    info: RequestInfo,
    /// Whether the request may be a later turn of a session: the connector says that it is one, or an earlier request has the
    /// same id. Other ids are unique.
    continues: bool,
    /// Whether another engine went on with the request, and began with a first row of its own.
    is_migrated: bool,
    rows: u64,
    received: u64,
    sent: u64,
    prompt_tokens: Option<u64>,
    is_over: bool,
    /// Set if a row cannot be read, so that the counts say nothing.
    is_unread: bool,
}

/// Counts a stream's rows again. `None` if their engine counts.
pub(super) fn recount(stream: &StreamReader) -> anyhow::Result<Option<Recount>> {
    // The requests first: every row of a request that has ended is in the journal by then.
    let mut requests = HashMap::new();
    let mut rids = HashSet::new();
    for info in stream.requests(RequestFilter::default())? {
        let info = info?;
        let is_session = info.attribute(RequestRecord::RESUMABLE) == Some("true");
        let continues = !rids.insert(info.rid.clone()) || is_session;
        if info.state != RequestState::Live && info.erased.is_none() {
            requests.insert(info.number.0, Counted::new(info, continues));
        }
    }
    let layouts = Layouts::of_text(&stream.layout()?);
    let mut recount = Recount::default();
    let mut is_known = false;
    for frame in stream.frames(ReadFrom::Start)? {
        let (frame, outcome) = frame?;
        let Some(outcome) = outcome.filter(|outcome| !outcome.requests.is_empty() && !outcome.is_record())
        else {
            continue;
        };
        if frame.is_release_marker() {
            for request in outcome.requests.iter() {
                requests.entry(request.0).and_modify(|counted| counted.rows += 1);
            }
            count_sent(&outcome, None, &mut requests, &layouts);
            continue;
        }
        let batch = match afterbay_wire::decode(frame.bytes.clone().into(), &layouts) {
            DecodedFrame::Batch(batch) if !batch.engine().traits().counts_tokens => batch,
            _ if !is_known => return Ok(None),
            _ => {
                skip(&outcome, &mut requests);
                continue;
            }
        };
        is_known = true;
        recount.count_received(&frame, &outcome, &batch, &mut requests);
        count_sent(&outcome, Some(&batch), &mut requests, &layouts);
    }
    if !is_known {
        return Ok(None);
    }
    let mut requests: Vec<Counted> = requests.into_values().collect();
    requests.sort_by_key(|request| request.info.number);
    requests.iter().for_each(|request| recount.compare(request));
    Ok(Some(recount))
}

impl Counted {
    fn new(info: RequestInfo, continues: bool) -> Counted {
        let is_migrated = info.attribute(RequestRecord::MIGRATED_AT).is_some();
        Counted {
            info,
            continues,
            is_migrated,
            rows: 0,
            received: 0,
            sent: 0,
            prompt_tokens: None,
            is_over: false,
            is_unread: false,
        }
    }
}

impl Recount {
    /// Counts the rows of a frame as it arrived, and checks their order.
    fn count_received(
        &mut self,
        frame: &StoredFrame,
        outcome: &Outcome<'_>,
        batch: &Batch,
        requests: &mut HashMap<u64, Counted>,
    ) {
        let number = frame.position.frame;
        for (row, request) in (0..).zip(outcome.requests.iter()) {
            let Some(counted) = requests.get_mut(&request.0) else { continue };
            let rid = &counted.info.rid;
            counted.is_unread |= batch.is_unread(row) || row >= batch.rows();
            let tokens = batch.tokens(row);
            // The engine ends a request that it could not begin with an empty row.
            match (batch.is_first(row), counted.rows) {
                (false, 0) if number == counted.info.first_frame && tokens > 0 && !counted.continues => {
                    self.problems.push(format!(
                        "request {request} {rid:?}: frame {number} row {row} is its first row, and has no prefill_stats: \
                         the rows before it never arrived"
                    ));
                }
                (true, 1..) if !counted.is_migrated => self.problems.push(format!(
                    "request {request} {rid:?}: frame {number} row {row} has prefill_stats again: two requests have this id"
                )),
                _ => {}
            }
            if counted.is_over {
                self.problems.push(format!(
                    "request {request} {rid:?}: frame {number} row {row} is after its last row"
                ));
            }
            counted.is_over |= batch.finish(row) != Finish::Running;
            counted.rows += 1;
            counted.received += u64::from(tokens);
            counted.prompt_tokens = counted.prompt_tokens.or(batch.prompt_tokens(row));
        }
    }

    /// Compares the counts of a request with the ledger's, if every row is stored.
    fn compare(&mut self, counted: &Counted) {
        let Counted { info, rows, received, sent, prompt_tokens, .. } = counted;
        if counted.is_unread || *rows == 0 || *rows != info.rows {
            return;
        }
        self.requests += 1;
        self.prompt_tokens += prompt_tokens.unwrap_or(0);
        self.completion_tokens += sent;
        let request = format!("request {} {:?}", info.number, info.rid);
        if *received != info.received {
            let counted = info.received;
            self.problems
                .push(format!("{request}: its rows have {received} ids, the ledger counted {counted}"));
        }
        if *sent != info.forwarded {
            let counted = info.forwarded;
            self.problems.push(format!("{request}: {sent} ids left, the ledger counted {counted}"));
        }
    }
}

/// Counts the ids of a frame that left. `received` is the frame as it arrived; `None` for a release marker, which does not leave
/// itself.
fn count_sent(
    outcome: &Outcome<'_>,
    received: Option<&Batch>,
    requests: &mut HashMap<u64, Counted>,
    layouts: &Layouts,
) {
    match (&outcome.passage, &outcome.changed, received) {
        (Passage::Unchanged, _, Some(batch)) => {
            for (row, request) in (0..).zip(outcome.requests.iter()) {
                if let Some(counted) = requests.get_mut(&request.0) {
                    counted.sent += u64::from(batch.tokens(row));
                }
            }
        }
        (_, Some(changed), _) => {
            let DecodedFrame::Batch(batch) = afterbay_wire::decode(changed.clone(), layouts) else {
                return skip(outcome, requests);
            };
            // A frame has one row of a request.
            let of_rid: HashMap<String, RequestNo> = outcome
                .requests
                .iter()
                .filter_map(|request| Some((requests.get(&request.0)?.info.rid.clone(), *request)))
                .collect();
            for row in 0..batch.rows() {
                let rid = batch.rid_of(row).map(stored_rid);
                let request = rid.and_then(|rid| of_rid.get(rid.as_ref()));
                if let Some(counted) = request.and_then(|request| requests.get_mut(&request.0)) {
                    counted.sent += u64::from(batch.tokens(row));
                }
            }
        }
        (Passage::Dropped, None, _) => {}
        _ => skip(outcome, requests),
    }
}

/// Makes no statement about the requests of a frame that cannot be read.
fn skip(outcome: &Outcome<'_>, requests: &mut HashMap<u64, Counted>) {
    for request in outcome.requests.iter() {
        if let Some(counted) = requests.get_mut(&request.0) {
            counted.is_unread = true;
        }
    }
}

#[cfg(test)]
mod tests;
