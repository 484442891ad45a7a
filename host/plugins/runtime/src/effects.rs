//! The effects of an instance outside of it: calls to services, and the mark of the stream's health.
//!
//! An instance that is not on the path (a replay, a tool, an instance that is being prepared) changes no store, and its
//! calls are never sent. The stream takes the calls and the health mark after each call of the plugin.

use crate::columns::RequestId;
use crate::limits::{CALL_BODY_BYTES_MAX, CALLS_WAITING_MAX, ENDPOINT_BYTES_MAX, UNSENT_CALLS_MAX};

/// The number of a plugin's call, unique in its instance.
pub type CallId = u64;

/// A call that a plugin made (`call.send`), for the stream to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentCall {
    /// The number of the call. The answer names it.
    pub call: CallId,
    /// The request that the call is about. It may not be open.
    pub request: RequestId,
    /// The endpoint's name, as the plugin gives it.
    pub endpoint: String,
    /// The body, or the reason why the call cannot be sent.
    pub body: Result<Vec<u8>, Unsent>,
}

/// The reason why a call is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsent {
    /// The instance was not on the path when it made the call, so the call is cancelled.
    #[error("made during a replay")]
    NotOnPath,
    /// The body or the endpoint's name is too long.
    #[error("the {what} has {bytes} bytes, at most {limit} are allowed")]
    TooLong {
        /// `body` or `name of the endpoint`.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Too many calls wait for the stream.
    #[error("{CALLS_WAITING_MAX} calls were made at once, the limit")]
    TooMany,
}

/// The effects of an instance that wait for the stream.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Whether the instance is on the path: its effects take place.
    pub(crate) are_enabled: bool,
    /// Whether calls keep their bodies although the instance is not on the path.
    pub(crate) keeps_calls: bool,
    calls: Vec<SentCall>,
    pub(crate) last_call: CallId,
    /// The reason why the stream is not ready, as the plugin says.
    pub(crate) not_ready: Option<String>,
    /// Whether the plugin has set or removed the mark since the stream has read it.
    pub(crate) has_health_changed: bool,
}

impl Effects {
    /// Whether the body of a call is needed.
    pub(crate) fn has_bodies(&self) -> bool {
        self.are_enabled || self.keeps_calls
    }

    pub(crate) fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    pub(crate) fn drain_calls(&mut self) -> Vec<SentCall> {
        std::mem::take(&mut self.calls)
    }

    /// Records a call. `endpoint` is its name, cut to the limit, and the name's full length; `body` is the body or the length of
    /// one that is too long. The error ends the guest.
    pub(crate) fn send(
        &mut self,
        endpoint: (String, usize),
        request: RequestId,
        body: Result<Vec<u8>, usize>,
    ) -> wasmtime::Result<CallId> {
        if self.calls.len() >= UNSENT_CALLS_MAX {
            wasmtime::bail!("made more than {UNSENT_CALLS_MAX} calls at once, the limit");
        }
        let too_long = |what, bytes, limit| Unsent::TooLong { what, bytes, limit };
        let body = match (endpoint.1, body) {
            _ if !self.has_bodies() => Err(Unsent::NotOnPath),
            (bytes, _) if bytes > ENDPOINT_BYTES_MAX => {
                Err(too_long("name of the endpoint", bytes, ENDPOINT_BYTES_MAX))
            }
            (_, Err(bytes)) => Err(too_long("body", bytes, CALL_BODY_BYTES_MAX)),
            (_, Ok(_)) if self.calls.len() >= CALLS_WAITING_MAX => Err(Unsent::TooMany),
            (_, Ok(body)) => Ok(body),
        };
        self.last_call += 1;
        self.calls.push(SentCall { call: self.last_call, request, endpoint: endpoint.0, body });
        Ok(self.last_call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_past_the_bound_are_not_sent_and_far_past_it_end_the_guest() {
        let mut effects = Effects { are_enabled: true, ..Effects::default() };
        let send = |effects: &mut Effects, body| effects.send(("moderation".into(), 10), 7, body);
        for call in 1..=UNSENT_CALLS_MAX as u64 {
            assert_eq!(send(&mut effects, Ok(vec![1])).unwrap(), call);
        }
        assert!(send(&mut effects, Ok(vec![1])).is_err());
        let calls = effects.drain_calls();
        let unsent = calls.iter().filter(|call| call.body == Err(Unsent::TooMany)).count();
        assert_eq!(unsent, UNSENT_CALLS_MAX - CALLS_WAITING_MAX);
        send(&mut effects, Err(CALL_BODY_BYTES_MAX + 1)).unwrap();
        assert!(matches!(effects.drain_calls()[0].body, Err(Unsent::TooLong { what: "body", .. })));
        effects.are_enabled = false;
        send(&mut effects, Ok(Vec::new())).unwrap();
        assert_eq!(effects.drain_calls()[0].body, Err(Unsent::NotOnPath));
    }
}
