//! The plugin: counts the tokens of a batch, then cuts the rows that have too many.

use std::rc::Rc;

use afterbay_plugin::{
    Batch, Calls, Columns, ConfigureError, FinishReason, Opened, Plugin, RequestId, Requests, Row,
    StateError, Verdicts, asked, metrics,
};
use serde::Deserialize;

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
    /// The tokens that the request reserves with its first row. `None` after it.
    wanted: Option<u64>,
    /// The tokens of the tenant that are reserved for the request.
    reserved: u64,
    /// Set if the tenant had less than the request wants.
    is_refused: bool,
}

/// The record of a request, as far as it is read.
#[derive(Default, Deserialize)]
struct Asked {
    #[serde(default)]
    sampling: Sampling,
}

#[derive(Default, Deserialize)]
struct Sampling {
    max_tokens: Option<u64>,
}

impl Request {
    /// The tokens of the last row that are within the request's budget.
    fn within(&self, limit: u64) -> u64 {
        self.row_tokens.saturating_sub(self.tokens.saturating_sub(limit))
    }

    /// Reserves the wanted tokens with the first row, if the tenant has them.
    fn reserve(&mut self, tenants: &Tenants) {
        let Some(wanted) = self.wanted.take() else { return };
        match &self.tenant {
            Some(tenant) if wanted > tenants.unreserved(tenant) => self.is_refused = true,
            _ => self.set_reserved(wanted),
        }
    }

    fn set_reserved(&mut self, tokens: u64) {
        if let Some(tenant) = &self.tenant {
            tenant.change_reserved(self.reserved, tokens);
        }
        self.reserved = tokens;
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

    /// The tokens that a request may still have by its own limit. 0 if nothing is reserved, or the limit is not known.
    fn wanted(&self, request: &Opened) -> u64 {
        if !self.limits.reserve {
            return 0;
        }
        let asked = asked(request.request).and_then(|asked| serde_json::from_str::<Asked>(&asked).ok());
        let limit = asked.and_then(|asked| asked.sampling.max_tokens).unwrap_or(0);
        limit.min(self.limits.request_tokens).saturating_sub(request.received_tokens)
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
            request.reserve(&self.tenants);
            if request.is_refused {
                may_cut = true;
                continue;
            }
            request.set_reserved(request.reserved.saturating_sub(tokens));
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
            if request.is_refused {
                (kept, by) = (0, Some("reserve"));
            } else if let Some(tenant) = &request.tenant {
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
        let tokens = request.received_tokens;
        let wanted = self.wanted(request);
        let mut opened =
            Request { tokens, row_tokens: 0, tenant, wanted: Some(wanted), reserved: 0, is_refused: false };
        if request.resumed {
            opened.wanted = None;
            opened.set_reserved(wanted);
        }
        self.requests.insert(request.request, opened);
    }

    fn changed(&mut self, request: RequestId) {
        let tenant = self.tenants.of(request, &self.limits);
        let Some(known) = self.requests.get_mut(request) else { return };
        let reserved = known.reserved;
        known.set_reserved(0);
        let before = std::mem::replace(&mut known.tenant, tenant);
        known.set_reserved(reserved);
        if let Some(before) = before {
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
        let Some(mut request) = self.requests.remove(request) else { return };
        request.set_reserved(0);
        if let Some(tenant) = request.tenant {
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
