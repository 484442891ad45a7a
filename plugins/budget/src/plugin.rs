//! The plugin: counts the tokens of a batch, then cuts the rows that have too many.

use std::rc::Rc;

use afterbay_plugin::{
    Batch, Calls, Columns, ConfigureError, FinishReason, Opened, Plugin, RequestId, Requests, Row,
    StateError, Verdicts, metrics,
};

use crate::settings::{Limits, Settings};
use crate::tenant::{Tenant, Tenants};

/// The plugin that ends requests without budget.
pub struct Budget {
    limits: Limits,
    tenants: Tenants,
    requests: Requests<Request>,
    /// The tenants of the batch. Empty between two batches.
    of_batch: Vec<Rc<Tenant>>,
}

struct Request {
    /// The tokens received, those of the last row included.
    tokens: u64,
    /// The tokens of the last row.
    row_tokens: u64,
    /// `None` if the tenant has no budget.
    tenant: Option<Rc<Tenant>>,
}

impl Request {
    /// The tokens of the last row that are within the request's budget.
    fn within(&self, limit: u64) -> u64 {
        self.row_tokens.saturating_sub(self.tokens.saturating_sub(limit))
    }
}

impl Budget {
    /// The new tokens of a row. After the detokenizer, a row has no ids of its own: the scheduler's count says it.
    fn tokens(row: Row<'_>, before: u64) -> u64 {
        match (row.text(), row.completion_tokens()) {
            (Some(_), Some(count)) => count.saturating_sub(before),
            _ => row.ids().len() as u64,
        }
    }

    /// Counts the batch. Returns whether a row may have to be cut.
    fn count(&mut self, batch: &Batch<'_>) -> bool {
        let mut may_cut = false;
        for row in batch {
            let Some(request) = self.requests.get_mut(row.request()) else { continue };
            request.row_tokens = Self::tokens(row, request.tokens);
            request.tokens += request.row_tokens;
            may_cut |= request.tokens >= self.limits.request_tokens;
            let tokens = request.within(self.limits.request_tokens);
            let Some(tenant) = &request.tenant else { continue };
            if tenant.is_used_up() {
                may_cut = true;
            } else if tokens > 0 && tenant.receive(tokens) {
                self.of_batch.push(tenant.clone());
            }
        }
        for tenant in self.of_batch.drain(..) {
            self.tenants.count(&tenant, batch.time_ms());
            may_cut |= tenant.is_used_up();
        }
        may_cut
    }

    /// Ends the requests that have nothing left.
    fn cut(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        for row in batch {
            let Some(request) = self.requests.get(row.request()) else { continue };
            let mut kept = request.within(self.limits.request_tokens);
            let mut by = (request.tokens >= self.limits.request_tokens).then_some("request");
            if let Some(tenant) = &request.tenant {
                kept = tenant.take(kept);
                if tenant.is_used_up() {
                    by = Some("tenant");
                }
            }
            let Some(by) = by else { continue };
            metrics::counter_add("budget_requests_ended", &[("by", by)], 1);
            match row.text() {
                _ if kept == request.row_tokens => verdicts.finish(row, FinishReason::Length),
                // The cast is safe: the row has more ids than that.
                None => verdicts.finish_with(row, FinishReason::Length, &row.ids()[..kept as usize]),
                Some(_) if kept == 0 => verdicts.finish_with_text(row, FinishReason::Length, [], ""),
                // A text cannot be cut at a token.
                Some(_) => verdicts.finish(row, FinishReason::Length),
            }
        }
    }
}

impl Plugin for Budget {
    type Settings = Settings;
    const COLUMNS: Columns = Columns::OUTPUT_IDS.union(Columns::COMPLETION_TOKENS).union(Columns::TEXTS);
    /// The state is empty: the next instance reads the tokens of each request from `received_tokens`. Without this
    /// call, Afterbay would replay the requests.
    const WANTS: Calls = Calls::STATE.union(Calls::CHANGED);

    fn new(settings: Settings) -> Result<Self, ConfigureError> {
        let limits = Limits::new(settings)?;
        let tenants = Tenants::new(&limits);
        Ok(Self { limits, tenants, requests: Requests::new(), of_batch: Vec::new() })
    }

    fn opened(&mut self, request: &Opened) {
        let tenant = self.tenants.of(request.request, &self.limits);
        self.requests
            .insert(request.request, Request { tokens: request.received_tokens, row_tokens: 0, tenant });
    }

    fn changed(&mut self, request: RequestId) {
        let tenant = self.tenants.of(request, &self.limits);
        if let Some(known) = self.requests.get_mut(request)
            && let Some(before) = std::mem::replace(&mut known.tenant, tenant)
        {
            self.tenants.release(before);
        }
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        if self.limits.has_tenants() {
            self.tenants.advance(batch.time_ms());
        }
        if self.count(batch) {
            self.cut(batch, verdicts);
        }
    }

    fn closed(&mut self, request: RequestId) {
        if let Some(Request { tenant: Some(tenant), .. }) = self.requests.remove(request) {
            self.tenants.release(tenant);
        }
    }

    fn export_state(&mut self) -> Vec<u8> {
        Vec::new()
    }

    fn import_state(&mut self, _: &str, _: &[u8]) -> Result<(), StateError> {
        Ok(())
    }
}
