//! Accounting the rows of a frame: each row is matched with a live request, or begins a request.
//!
//! Each row is accounted by itself: a row that cannot be read does not affect the other rows.

use super::{Ledger, Request};
use crate::records::Records;
use crate::{Accounted, AnyRow, Content, Decoded, Persisted, Row, Settled};
use afterbay_events::event::{RequestGap, RowsUnread};
use afterbay_journal::{self as journal, JournalRequest, stored_rid};
use afterbay_wire::{BarrierKind, Batch, FinishKind, is_health_check};
use std::borrow::Cow;

impl Ledger {
    /// Accounts each row of a batch to its request. Forwards barriers.
    #[expect(clippy::result_large_err, reason = "one per frame: a box costs more than the move")]
    pub fn account(&mut self, decoded: Decoded, records: &mut Records) -> Result<Accounted, Settled> {
        let decoded = match decoded {
            Decoded::Batch(decoded) => decoded,
            Decoded::Barrier(decoded) => {
                if let BarrierKind::Request { record: Ok(record) } = &decoded.barrier().kind {
                    self.account_record(record, &decoded, records);
                    return Err(decoded.into_settled(Content::Nothing.into()));
                }
                if let BarrierKind::Left { rid: Ok(rid) } = &decoded.barrier().kind {
                    self.note_left(rid, decoded.persisted(), records);
                }
                self.note_departed(decoded.barrier().finished_requests());
                return Err(self.forward_barrier(decoded, records));
            }
        };
        let (persisted, batch) = (decoded.persisted(), decoded.batch());
        self.links.abort_shape = Some(batch.abort_shape());
        self.last_batch = Some(batch.clone());
        self.note_departed(batch.finished_requests());
        let mut rows = self.begin_frame();
        // A column at a time: one loop over all columns would look up each one's form for every row.
        self.tokens.extend(batch.token_counts());
        batch.read_completion_counts(&mut self.completion_counts);
        match batch.may_end() {
            true => self.finishes.extend(batch.finishes().map(|finish| finish.kind())),
            false => self.finishes.resize(batch.rows() as usize, FinishKind::Running),
        }
        self.find_requests(persisted, batch, records);
        self.handles.extend_from_slice(self.requests.rows());
        let mut any = AnyRow::default();
        let mut received = 0;
        for index in 0..self.handles.len() {
            let (handle, mut tokens) = (self.handles[index], self.tokens[index]);
            let (counted, finish) = (self.completion_counts[index], self.finishes[index]);
            let Some(mut request) = self.requests.get_mut(handle) else { continue };
            let expected = request.scheduler_count + u64::from(tokens);
            if let Some(got) = counted.filter(|got| *got != expected) {
                let row = index as u32;
                tokens = self.reconcile(persisted, row, handle, tokens, got, batch.is_unread(row));
                self.tokens[index] = tokens;
                let Some(again) = self.requests.get_mut(handle) else { continue };
                request = again;
            }
            request.received += u64::from(tokens);
            // Without a count nothing was reconciled.
            request.scheduler_count = counted.unwrap_or(expected);
            request.last_row_at = persisted.at().instant;
            let first = !request.has_row;
            let opens = !std::mem::replace(&mut request.is_announced, true);
            if first {
                request.read_first_row(batch, index as u32);
            }
            let swallowed = request.is_finished_early();
            received += u64::from(tokens);
            let row = Row {
                request: handle,
                tokens,
                tokens_so_far: request.before + request.scheduler_count,
                is_counted: counted.is_some(),
                finish,
                first,
                opens,
                may_close: finish != FinishKind::Running || request.is_finishing,
                swallowed,
                unread: false,
                hidden: swallowed || request.is_health_check,
            };
            any.add(&row, request.count_shift != 0, request.skip_plugin.is_some());
            rows.push(row);
        }
        if !batch.unread().is_empty() || !self.single_frame.is_empty() {
            self.mark_unread(persisted, batch, &mut rows, &mut any);
        }
        let counts = rows.iter().map(|row| (row.number(), row.tokens));
        self.restart.batch(persisted.frame(), persisted.at().instant, counts);
        self.telemetry.counters.rows_received.add(rows.len() as u64);
        self.telemetry.counters.tokens_received.add(received);
        Ok(Accounted::new(decoded, rows, any))
    }

    /// Finds the live request of each row, or opens one.
    fn find_requests(&mut self, persisted: &Persisted, batch: &Batch, records: &mut Records) {
        self.requests.begin_batch();
        let (cells, rid_of) = (batch.rid_cells(), batch.rid_reader());
        let mut row = 0;
        loop {
            row += cells.map_or(0, |cells| self.requests.find_same(cells)) as u32;
            if row >= batch.rows() {
                break;
            }
            if self.requests.find_next(rid_of(row)).is_none() {
                let end = (self.tokens[row as usize], self.finishes[row as usize]);
                self.find_or_open(persisted, batch, row, end, records);
            }
            row += 1;
        }
        self.requests.end_batch(cells);
    }

    /// Clears the state of the frame before. Returns an empty vector for the rows.
    pub(super) fn begin_frame(&mut self) -> Vec<Row> {
        let mut rows = std::mem::take(&mut self.rows);
        rows.clear();
        self.handles.clear();
        self.tokens.clear();
        self.completion_counts.clear();
        self.finishes.clear();
        self.gaps.clear();
        self.begun_and_ended = 0;
        rows
    }

    /// Returns the live request of a row, or opens one.
    pub(super) fn find_or_open(
        &mut self,
        persisted: &Persisted,
        batch: &Batch,
        row: u32,
        (tokens, finish): (u32, FinishKind),
        records: &mut Records,
    ) -> JournalRequest {
        let rid = batch.rid_of(row);
        let name = match rid {
            Some(rid) => stored_rid(rid),
            None => Cow::Owned(format!("(row {row} of frame {} has no rid)", persisted.frame())),
        };
        let is_hashed = rid.is_some() && matches!(name, Cow::Owned(_));
        if is_hashed && let Some(handle) = self.requests.find_next(name.as_bytes()) {
            return handle;
        }
        let ends = finish != FinishKind::Running;
        let is_over = !ends && self.requests.len() >= self.bound.max + self.begun_and_ended;
        self.bound.is_full |= is_over;
        let handle = records.open_request(&name, &[]);
        let request = Request {
            // SGLang's health checks have at most one token. A client's rid may look like the rid of a health check.
            is_health_check: ends && tokens <= 1 && is_health_check(name.as_bytes()),
            is_rid_hashed: is_hashed,
            trusts_next_count: self.bound.is_full,
            attributes: self.links.attributes.as_ref().and_then(|of| of(&name, &[])),
            ..Request::new(handle, persisted.at())
        };
        self.telemetry.counters.requests_opened.add(1);
        self.requests.insert(handle, &name, request);
        self.requests.begin_row(handle);
        self.begun_and_ended += usize::from(ends);
        if !ends && (is_over || rid.is_none()) {
            self.single_frame.push(handle);
        }
        handle
    }

    /// Handles a row after which the scheduler's count is not the expected count. Returns how many tokens the row has.
    #[cold]
    fn reconcile(
        &mut self,
        persisted: &Persisted,
        row: u32,
        handle: JournalRequest,
        tokens: u32,
        got: u64,
        is_unread: bool,
    ) -> u32 {
        let Some(request) = self.requests.get_mut(handle) else { return tokens };
        let expected = request.scheduler_count + u64::from(tokens);
        if is_unread || request.trusts_next_count {
            // The scheduler's count is the only source for a row that cannot be read.
            let counted = u32::try_from(got.saturating_sub(request.scheduler_count)).unwrap_or(0);
            let tokens = if is_unread && !request.trusts_next_count { counted } else { tokens };
            let expected = request.scheduler_count + u64::from(tokens);
            request.unaccounted = request.unaccounted.wrapping_add(got.wrapping_sub(expected) as i64);
            request.trusts_next_count = false;
            return tokens;
        }
        self.gaps.push(journal::TokenGap { row, expected, got });
        self.telemetry.counters.request_gaps.add(1);
        let (is_first, missing) = (request.received == 0, got.saturating_sub(expected));
        if self.restart.add_gap(persisted.frame(), request.number(), is_first, missing) {
            request.missing += missing;
            return tokens;
        }
        let rid = self.requests.rid(handle).unwrap_or_default().to_owned();
        let (stream, frame) = (self.telemetry.stream.clone(), persisted.frame().0);
        // In the event, the scheduler's count is the expected count, and the count received is what the event calls `got`.
        self.telemetry.publish(RequestGap { stream, rid, frame, expected: got, got: expected });
        tokens
    }

    /// Marks the rows that plugins cannot see.
    #[cold]
    fn mark_unread(&mut self, persisted: &Persisted, batch: &Batch, rows: &mut [Row], any: &mut AnyRow) {
        let mut mark = |row: &mut Row| {
            (row.unread, row.hidden) = (true, true);
            (any.unread, any.hidden) = (true, true);
        };
        for unread in batch.unread() {
            let Some(row) = rows.get_mut(unread.row as usize) else { continue };
            mark(row);
            if !row.is_counted
                && let Some(request) = self.requests.get_mut(row.request)
            {
                request.trusts_next_count = true;
            }
        }
        if let Some(first) = batch.unread().first() {
            let why = format!("column {:?} cannot be read, first in row {}", first.column, first.row);
            self.report_unread(persisted, batch.unread().len(), why);
        }
        self.single_frame.sort_unstable();
        let is_over = |row: &&mut Row| !row.unread && self.single_frame.binary_search(&row.request).is_ok();
        let over = rows.iter_mut().filter(is_over).map(mark).count();
        if over > 0 {
            let why = format!("live requests: {}, the limit", self.bound.max);
            self.report_unread(persisted, over, why);
        }
    }

    fn report_unread(&self, persisted: &Persisted, rows: usize, why: String) {
        let rows = rows as u64;
        self.telemetry.counters.rows_unread.add(rows);
        let stream = self.telemetry.stream.clone();
        self.telemetry.publish(RowsUnread { stream, frame: persisted.frame().0, rows, why });
    }
}
