//! Requests as JSON, for `afterbay journal ls --json` and for the admin address.

use crate::erase::erasure;
use crate::legs::{Leg, Request, Totals};
use crate::time::json_time;
use afterbay_journal::reader::{RequestInfo, RequestState};
use serde_json::{Value, json};

/// A request as JSON: the figures of its first leg, the state of the whole. If there are several legs, `legs` has all.
pub fn whole<T: Totals>(request: &Request<T>) -> Value {
    let totals = |leg: &Leg<T>| totals(&leg.stream, leg.of.info());
    let legs: Vec<Value> = request.0.iter().map(totals).collect();
    let mut whole = legs.first().cloned().unwrap_or_default();
    if legs.len() > 1 {
        whole["state"] = state(request.state()).into();
        whole["last_time"] = json_time(request.last_unix_ns()).into();
        whole["erased"] = request.erased().as_ref().map(erasure).into();
        whole["legs"] = legs.into();
    }
    whole
}

/// The word for a state.
pub fn state(state: RequestState) -> &'static str {
    match state {
        RequestState::Live => "live",
        RequestState::Finished => "finished",
        RequestState::Abandoned => "abandoned",
    }
}

/// The totals of a request on one stream. Times are RFC 3339.
pub fn totals(stream: &str, request: &RequestInfo) -> Value {
    let mut totals = json!({
        "stream": stream,
        "rid": request.rid,
        "request": request.number.0,
        "state": state(request.state),
        "rows": request.rows,
        "tokens_received": request.received,
        "tokens_forwarded": request.forwarded,
        "tokens_dropped": request.dropped,
        "tokens_replaced": request.replaced,
        "gaps": request.gaps,
        "first_frame": request.first_frame.0,
        "last_frame": request.last_frame.0,
        "record_time": json_time(request.record_unix_ns),
        "first_time": json_time(request.first_unix_ns),
        "last_time": json_time(request.last_unix_ns),
        "finish_reason": (!request.finish.is_empty()).then_some(&request.finish),
        "completion_tokens": request.completion_tokens,
        "erased": request.erased.as_ref().map(erasure),
    });
    if !request.attributes.is_empty() {
        let attributes = request.attributes.iter().map(|(name, value)| (name.clone(), value.as_str().into()));
        totals["attributes"] = Value::Object(attributes.collect());
    }
    totals
}
