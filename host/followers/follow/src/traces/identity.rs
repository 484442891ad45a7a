//! The choice of requests and the ids of spans. Both follow from the request alone, so that every instance chooses the same
//! requests, and a trace that is exported twice has the same ids.

use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use sha2::{Digest as _, Sha256};

/// The W3C header, and the request's attribute with its value.
pub(crate) const TRACEPARENT: &str = "traceparent";

/// Selects a share of the requests, by a hash of the rid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampler {
    /// Hashes below this number are selected. 2^64 selects all.
    below: u128,
}

impl Sampler {
    /// Selects this share, 0 to 1.
    pub(crate) fn new(share: f64) -> Sampler {
        Sampler { below: (share.clamp(0.0, 1.0) * 2f64.powi(64)) as u128 }
    }

    pub(crate) fn selects(self, rid: &str) -> bool {
        u128::from(u64::from_be_bytes(digest(&[b"sample", rid.as_bytes()]))) < self.below
    }
}

/// The trace of a request, and the parent of its first span.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parent {
    pub(crate) trace: TraceId,
    /// `SpanId::INVALID` for the first span of a trace.
    pub(crate) span: SpanId,
    /// Whether another process made the parent.
    pub(crate) is_remote: bool,
    pub(crate) state: TraceState,
}

impl Parent {
    /// A trace of its own for a request that began at this time.
    pub(crate) fn own(rid: &str, begun_unix_ns: u64) -> Parent {
        let trace = digest(&[b"trace", rid.as_bytes(), &begun_unix_ns.to_be_bytes()]);
        let trace = TraceId::from_bytes(trace);
        Parent { trace, span: SpanId::INVALID, is_remote: false, state: TraceState::NONE }
    }

    /// The span of another process.
    pub(crate) fn remote(context: &SpanContext) -> Parent {
        Parent {
            trace: context.trace_id(),
            span: context.span_id(),
            is_remote: true,
            state: context.trace_state().clone(),
        }
    }

    /// A span of the same trace as the parent.
    pub(crate) fn child(&self, span: SpanId) -> Parent {
        Parent { span, is_remote: false, ..self.clone() }
    }

    /// The context of a span in this trace.
    pub(crate) fn context(&self, span: SpanId) -> SpanContext {
        SpanContext::new(self.trace, span, TraceFlags::SAMPLED, false, self.state.clone())
    }
}

/// The first span of a request's leg. `number` is the request's number in its stream.
pub(crate) fn leg_span(stream: &str, number: u64, begun_unix_ns: u64) -> SpanId {
    let parts: [&[u8]; 4] = [b"leg", stream.as_bytes(), &number.to_be_bytes(), &begun_unix_ns.to_be_bytes()];
    SpanId::from_bytes(digest(&parts))
}

/// A span below another one.
pub(crate) fn child_span(of: SpanId, index: u64) -> SpanId {
    SpanId::from_bytes(digest(&[b"child", &of.to_bytes(), &index.to_be_bytes()]))
}

/// Reads a `traceparent` as the W3C defines it. `None` if it is not valid.
pub(crate) fn span_context(traceparent: &str) -> Option<SpanContext> {
    let context =
        TraceContextPropagator::new().extract_with_context(&Context::new(), &OneHeader(traceparent));
    Some(context.span().span_context().clone()).filter(SpanContext::is_valid)
}

struct OneHeader<'a>(&'a str);

impl Extractor for OneHeader<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        (key == TRACEPARENT).then_some(self.0)
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACEPARENT]
    }
}

/// The first bytes of a hash of these parts.
fn digest<const BYTES: usize>(parts: &[&[u8]]) -> [u8; BYTES] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut first = [0; BYTES];
    first.iter_mut().zip(hash.finalize()).for_each(|(to, from)| *to = from);
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instance_selects_the_same_requests_and_a_larger_share_has_those_of_a_smaller_one() {
        let rids: Vec<String> = (0..10_000).map(|number| format!("chatcmpl-{number}")).collect();
        let selected = |share: f64| {
            let sampler = Sampler::new(share);
            rids.iter().filter(|rid| sampler.selects(rid)).collect::<Vec<_>>()
        };
        let (few, many) = (selected(0.01), selected(0.1));
        assert!((50..200).contains(&few.len()) && (800..1200).contains(&many.len()));
        assert!(few.iter().all(|rid| many.contains(rid)));
        // The hash is part of the contract between instances of different versions.
        assert_eq!(few[..3], ["chatcmpl-60", "chatcmpl-141", "chatcmpl-179"]);
        assert_eq!((selected(0.0).len(), selected(1.0).len()), (0, rids.len()));
    }

    #[test]
    fn a_traceparent_is_read_as_the_w3c_defines_it() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = span_context(good).unwrap();
        assert_eq!(context.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(context.span_id().to_string(), "b7ad6b7169203331");
        assert!(context.is_sampled() && context.is_remote());
        let unsampled = span_context(&good.replace("-01", "-00")).unwrap();
        assert!(!unsampled.is_sampled());
        for bad in [
            "",
            "00",
            "hello",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert!(span_context(bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn ids_follow_from_the_request_and_differ_between_requests_legs_and_spans() {
        assert_eq!(Parent::own("r", 1), Parent::own("r", 1));
        assert_ne!(Parent::own("r", 1).trace, Parent::own("r", 2).trace);
        assert_ne!(leg_span("a", 1, 1), leg_span("b", 1, 1));
        assert_ne!(child_span(leg_span("a", 1, 1), 1), child_span(leg_span("a", 1, 1), 2));
    }
}
