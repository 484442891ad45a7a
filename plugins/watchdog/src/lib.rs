//! Ends requests that get nothing: no first token, no further token, or no end within a time.
//!
//! Each request has one timer, at its earliest deadline. A row moves the deadline and leaves the timer: when the timer is
//! due too early, it is set again.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod settings;
#[cfg(test)]
mod tests;

use afterbay_plugin::window::Length;
use afterbay_plugin::{
    Attributes, Batch, Calls, Columns, ConfigureError, Failure, FinishReason, Opened, Plugin, RequestId,
    RequestVerdicts, Requests, StateError, Verdicts, metrics, timer,
};

use settings::{End, Limits, Rules};

/// The plugin.
pub struct Watchdog {
    rules: Rules,
    end: End,
    status: u16,
    requests: Requests<Request>,
}

/// The state of a request.
struct Request {
    limits: Limits,
    arrived_ms: u64,
    last_row: LastRow,
    /// The time for which the timer is set.
    timer_ms: Option<u64>,
}

/// The last row of a request.
#[derive(Clone, Copy)]
enum LastRow {
    /// There is none.
    None,
    /// An instance before this one saw it.
    Unknown,
    /// At this time.
    At(u64),
}

/// A deadline: the time, the name of its limit, and the limit in seconds.
type Deadline = (u64, &'static str, u64);

impl Request {
    /// The earliest deadline. A row at an unknown time counts as one of `now`.
    fn deadline(&self, now: u64) -> Option<Deadline> {
        let after = |since: u64, name, limit: Option<Length>| {
            limit.map(|limit| (since + limit.as_ms(), name, limit.as_ms() / 1000))
        };
        let progress = match self.last_row {
            LastRow::None => after(self.arrived_ms, "first_token", self.limits.first_token),
            LastRow::Unknown => after(now, "token", self.limits.token),
            LastRow::At(at) => after(at, "token", self.limits.token),
        };
        let total = after(self.arrived_ms, "total", self.limits.total);
        progress.into_iter().chain(total).min_by_key(|(at, ..)| *at)
    }

    /// Sets the timer if it would be late.
    fn arm(&mut self, request: RequestId, now: u64) {
        let Some((at, ..)) = self.deadline(now) else { return };
        if self.timer_ms.is_none_or(|timer| timer > at) {
            self.timer_ms = Some(at);
            timer::set(request, at);
        }
    }
}

impl Watchdog {
    fn reason(&self, name: &str, seconds: u64) -> FinishReason {
        let what = match name {
            "first_token" => "no first token",
            "token" => "no further token",
            _ => "no end",
        };
        match self.end {
            End::Length => FinishReason::Length,
            End::Error => {
                let message = format!("afterbay: {what} in {seconds} s");
                FinishReason::Error(Failure { status: self.status, message })
            }
        }
    }
}

impl Plugin for Watchdog {
    type Settings = settings::Settings;
    const COLUMNS: Columns = Columns::empty();
    /// The state is empty: the next instance knows the arrival of a request, and waits for its next row anew. Without this
    /// call, Afterbay would replay the requests.
    const WANTS: Calls = Calls::TIMER.union(Calls::CHANGED).union(Calls::STATE);

    fn new(settings: Self::Settings) -> Result<Self, ConfigureError> {
        let (end, status) = (settings.end, settings.status);
        let rules = Rules::new(settings)?;
        Ok(Self { rules, end, status, requests: Requests::new() })
    }

    fn opened(&mut self, opened: &Opened) {
        let last_row = if opened.received_tokens > 0 { LastRow::Unknown } else { LastRow::None };
        let mut request = Request {
            limits: self.rules.limits(&Attributes::of(opened.request)),
            arrived_ms: opened.arrived_ms,
            last_row,
            timer_ms: None,
        };
        request.arm(opened.request, opened.arrived_ms);
        self.requests.insert(opened.request, request);
    }

    fn process(&mut self, batch: &Batch<'_>, _: &mut Verdicts) {
        for row in batch {
            let Some(request) = self.requests.get_mut(row.request()) else { continue };
            request.last_row = LastRow::At(batch.time_ms());
            request.arm(row.request(), batch.time_ms());
        }
    }

    fn changed(&mut self, id: RequestId) {
        if let Some(request) = self.requests.get_mut(id) {
            request.limits = self.rules.limits(&Attributes::of(id));
            request.arm(id, request.arrived_ms);
        }
    }

    fn due(&mut self, time_ms: u64, due: &[RequestId], verdicts: &mut RequestVerdicts) {
        for &id in due {
            let Some(request) = self.requests.get_mut(id) else { continue };
            request.timer_ms = None;
            let deadline = request.deadline(time_ms);
            if matches!(request.last_row, LastRow::Unknown) {
                request.last_row = LastRow::At(time_ms);
            }
            match deadline {
                Some((at, name, seconds)) if at <= time_ms => {
                    metrics::counter_add("watchdog_requests_ended", &[("limit", name)], 1);
                    verdicts.finish(id, self.reason(name, seconds));
                }
                _ => request.arm(id, time_ms),
            }
        }
    }

    fn closed(&mut self, request: RequestId) {
        self.requests.remove(request);
    }

    fn export_state(&mut self) -> Vec<u8> {
        Vec::new()
    }

    fn import_state(&mut self, _: &str, _: &[u8]) -> Result<(), StateError> {
        Ok(())
    }
}

afterbay_plugin::export!(Watchdog);
