//! Accounting the rows of a frame: each finds its request, or begins one.
//!
//! A row is accounted by itself. What cannot be read of it is not known of it, and of no other row.

use super::{Ledger, Request, finish_kind};
use afterbay_batch::{Accounted, AnyRow, Decoded, Persisted, RequestSlot, Row, Settled};
use afterbay_events::event::{RequestGap, RowsUnread};
use afterbay_journal::{self as journal, RequestError, stored_rid};
use afterbay_persist::Persister;
use afterbay_runtime::FinishKind;
use afterbay_wire::{Batch, is_health_check};
use std::borrow::Cow;

impl Ledger {
    /// Accounts each row of a batch to its request. What has no rows that can be read goes on whole.
    #[expect(clippy::result_large_err, reason = "one a frame: a box would cost more than the move")]
    pub fn account(&mut self, decoded: Decoded, persister: &mut Persister) -> Result<Accounted, Settled> {
        let (persisted, batch) = match decoded {
            Decoded::Batch(persisted, batch) => (persisted, batch),
            Decoded::Barrier(persisted, barrier) => {
                return Err(self.settle_barrier(persisted, &barrier, persister));
            }
        };
        self.abort_shape = Some(batch.abort_shape());
        let mut rows = std::mem::take(&mut self.rows);
        rows.clear();
        self.handles.clear();
        self.tokens.clear();
        self.gaps.clear();
        self.requests.begin_batch();
        self.begun_and_ended = 0;
        let mut any = AnyRow::default();
        let mut received = 0;
        let mut refused = None;
        let (counts, finishes) = (batch.completion_counts(), batch.finishes());
        let columns = batch.rid_bytes().zip(batch.token_counts()).zip(counts.zip(finishes));
        for (index, ((rid, mut tokens), (completion_tokens, finish))) in (0..).zip(columns) {
            let finish = finish_kind(&finish);
            let (slot, first) = match self.requests.find_next(rid) {
                Some(slot) => (slot, false),
                None => match self.meet(&persisted, &batch, index, (tokens, finish), persister) {
                    Ok(met) => met,
                    Err(error) => {
                        refused = Some(error);
                        break;
                    }
                },
            };
            let Some(request) = self.requests.get(slot) else { continue };
            let expected = request.counted + u64::from(tokens);
            if let Some(got) = completion_tokens.filter(|got| *got != expected) {
                tokens = self.reconcile(&persisted, index, slot, tokens, got, batch.is_unread(index));
            }
            let Some(request) = self.requests.get_mut(slot) else { continue };
            request.received += u64::from(tokens);
            request.counted = completion_tokens.unwrap_or(request.counted + u64::from(tokens));
            request.last_row = persisted.at.instant;
            let swallowed = request.ended_early();
            received += u64::from(tokens);
            self.handles.push(request.handle);
            self.tokens.push(tokens);
            let row = Row {
                slot,
                number: request.handle.number().0,
                tokens,
                completion_tokens,
                finish,
                first,
                ends: finish != FinishKind::Running || request.lingers,
                swallowed,
                unread: false,
                unseen: swallowed || request.is_health_check,
            };
            any.count(&row, request.shift != 0, request.skips_by.is_some());
            rows.push(row);
        }
        if let Some(error) = refused {
            self.rows = rows;
            self.end_brief(persister);
            return Err(self.carry_whole(persisted, batch, error.to_string(), persister));
        }
        if !batch.unread().is_empty() || !self.brief.is_empty() {
            self.note_unread(&persisted, &batch, &mut rows, &mut any);
        }
        self.restart.batch(
            persisted.frame,
            persisted.at.instant,
            rows.iter().map(|row| (row.number, row.tokens)),
        );
        self.telemetry.counters.rows_received.add(rows.len() as u64);
        self.telemetry.counters.tokens_received.add(received);
        Ok(Accounted { persisted, batch, rows, any, is_released: false })
    }

    /// The request of a row that is not the one expected: one that lives, and is then not new, or one that begins.
    pub fn meet(
        &mut self,
        persisted: &Persisted,
        batch: &Batch,
        row: u32,
        (tokens, finish): (u32, FinishKind),
        persister: &mut Persister,
    ) -> Result<(RequestSlot, bool), RequestError> {
        let rid = batch.rid_of(row);
        let name = match rid {
            Some(rid) => stored_rid(rid),
            None => Cow::Owned(format!("(row {row} of frame {} has no rid)", persisted.frame)),
        };
        let is_hashed = rid.is_some() && matches!(name, Cow::Owned(_));
        if is_hashed && let Some(slot) = self.requests.find_next(name.as_bytes()) {
            return Ok((slot, false));
        }
        let ends = finish != FinishKind::Running;
        let is_over = !ends && self.requests.len() >= self.bound.most() + self.begun_and_ended;
        self.bound.is_full |= is_over;
        let mut request = Request {
            // SGLang's own have one token. A client's rid may look like one of theirs.
            is_health_check: ends && tokens <= 1 && is_health_check(name.as_bytes()),
            is_rid_hashed: is_hashed,
            is_uncounted: self.bound.is_full,
            ..Request::new(persister.open_request(&name)?, persisted.at.instant)
        };
        request.first_row(batch, row);
        self.telemetry.counters.requests_opened.add(1);
        let slot = self.requests.insert(&name, request);
        self.begun_and_ended += usize::from(ends);
        if !ends && (is_over || rid.is_none()) {
            self.brief.push(slot);
        }
        Ok((slot, true))
    }

    /// The scheduler has counted otherwise than came. How many tokens the row has.
    #[cold]
    fn reconcile(
        &mut self,
        persisted: &Persisted,
        row: u32,
        slot: RequestSlot,
        tokens: u32,
        got: u64,
        is_unread: bool,
    ) -> u32 {
        let Some(request) = self.requests.get_mut(slot) else { return tokens };
        let expected = request.counted + u64::from(tokens);
        if is_unread || request.is_uncounted {
            // Of a row that cannot be read the scheduler's word is all there is.
            let said = u32::try_from(got.saturating_sub(request.counted)).unwrap_or(0);
            let tokens = if is_unread && !request.is_uncounted { said } else { tokens };
            let expected = request.counted + u64::from(tokens);
            request.unaccounted = request.unaccounted.wrapping_add(got.wrapping_sub(expected) as i64);
            request.is_uncounted = false;
            return tokens;
        }
        self.gaps.push(journal::TokenGap { row, expected, got });
        self.telemetry.counters.request_gaps.add(1);
        let (is_first, lacks) = (request.received == 0, got.saturating_sub(expected));
        if self.restart.lacks(persisted.frame, request.handle.number().0, is_first, lacks) {
            request.missing += lacks;
            return tokens;
        }
        let rid = self.requests.rid(slot).unwrap_or_default().to_owned();
        let (stream, frame) = (self.telemetry.stream.clone(), persisted.frame.0);
        // The scheduler's count is what was to be expected; what came is what this row brings it to.
        self.telemetry.publish(RequestGap { stream, rid, frame, expected: got, got: expected });
        tokens
    }

    /// Marks the rows that no plugin can be shown.
    #[cold]
    fn note_unread(&mut self, persisted: &Persisted, batch: &Batch, rows: &mut [Row], any: &mut AnyRow) {
        let mut mark = |row: &mut Row| {
            (row.unread, row.unseen) = (true, true);
            (any.unread, any.unseen) = (true, true);
        };
        for unread in batch.unread() {
            let Some(row) = rows.get_mut(unread.row as usize) else { continue };
            mark(row);
            if row.completion_tokens.is_none()
                && let Some(request) = self.requests.get_mut(row.slot)
            {
                request.is_uncounted = true;
            }
        }
        if let Some(first) = batch.unread().first() {
            let why = format!("column {:?} cannot be read, first in row {}", first.column, first.row);
            self.tell_unread(persisted, batch.unread().len(), why);
        }
        self.brief.sort_unstable();
        let is_brief = |slot| self.brief.binary_search(&slot).is_ok();
        let over = rows.iter_mut().filter(|row| !row.unread && is_brief(row.slot));
        let over = over.map(mark).count();
        if over > 0 {
            let why = format!("live requests: {}, the limit", self.bound.most());
            self.tell_unread(persisted, over, why);
        }
    }

    fn tell_unread(&self, persisted: &Persisted, rows: usize, why: String) {
        let rows = rows as u64;
        self.telemetry.counters.rows_unread.add(rows);
        let stream = self.telemetry.stream.clone();
        self.telemetry.publish(RowsUnread { stream, frame: persisted.frame.0, rows, why });
    }
}
