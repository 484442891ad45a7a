//! The end of a request over its legs: one answer for `journal show`, `top` and the dashboard.

use crate::ending::{LegEnd, TokenizerHint};
use serde_json::Value;

/// The end of a request over its legs.
pub struct RequestEnd<'v, 'a> {
    /// The end on the leg where the request ended first.
    cause: &'v LegEnd<'a>,
    legs: &'v [&'v LegEnd<'a>],
}

impl<'v, 'a> RequestEnd<'v, 'a> {
    /// The end of a request with these legs, in their order. `None` without a leg.
    pub fn of(legs: &'v [&'v LegEnd<'a>]) -> Option<RequestEnd<'v, 'a>> {
        // A plugin or an operator ends a request on one leg. The next leg only passes that end on.
        let early = legs.iter().filter(|leg| leg.is_early()).min_by_key(|leg| leg.unix_ns());
        Some(RequestEnd { cause: early.or(legs.first())?, legs })
    }

    /// The end in plain sentences, the most important first. `tokenizer_hint` says how to get the text of ids.
    pub fn sentences(&self, tokenizer_hint: TokenizerHint) -> Vec<String> {
        let of_stream = |leg: &LegEnd<'_>| match self.legs {
            [_] => String::new(),
            _ => format!(" of stream {}", leg.stream()),
        };
        let mut out = self.cause.cause(tokenizer_hint, &of_stream(self.cause));
        let others = self.legs.iter().filter(|leg| !std::ptr::eq(**leg, self.cause));
        out.extend(others.filter_map(|leg| leg.unfinished(&of_stream(leg))));
        out.extend(self.legs.last().and_then(|last| last.taken()));
        out.extend(self.legs.iter().flat_map(|leg| leg.remarks(&of_stream(leg))));
        out
    }

    /// The end as JSON.
    pub fn json(&self, tokenizer_hint: TokenizerHint) -> Value {
        let mut json = self.cause.json();
        json["taken_by"] = self.legs.last().and_then(|last| last.taken_by()).into();
        json["sentences"] = self.sentences(tokenizer_hint).into();
        json
    }
}
