//! The way of plugins' calls to services, and of the outcomes back to the stream's thread.
//!
//! The service runs a call on another thread. Its outcome comes back through a channel and wakes the stream, and the chain
//! delivers it between two batches. The channel holds at most one message for each call that a slot has open.

use afterbay_events::Name;
use afterbay_runtime::{Answer, CallError, CallId, Response};
use bytes::Bytes;
use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Sends plugins' calls to the operator's services.
pub trait CallService: Send + Sync {
    /// Starts a POST of this body to the endpoint of this name. Must not block. `done` gets the outcome on any thread, and at
    /// once if the call is not made. Dropping the result cancels the call.
    fn send(&self, endpoint: &str, body: Bytes, done: CallDone) -> CallHandle;
}

/// Receives the outcome of a call.
pub type CallDone = Box<dyn FnOnce(CallOutcome) + Send>;
/// A call under way.
pub type CallHandle = Box<dyn Send>;

/// The outcome of a call.
pub struct CallOutcome {
    /// The answer, or the reason why there is none.
    pub result: Result<ServiceResponse, CallFailure>,
    /// The call's place among the calls under way, which its drop gives back.
    pub place: Box<dyn Any + Send>,
}

/// The answer of a service.
pub struct ServiceResponse {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// The reason why a call has no answer, as in the contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallFailure {
    /// The call cannot be made.
    Refused(String),
    /// Too many calls are under way, or the endpoint's circuit breaker is open.
    Overloaded,
    /// The answer did not arrive in time.
    TimedOut,
    /// The exchange failed.
    Failed(String),
    /// The instance that made the call does not exist, or made the call during a replay.
    Cancelled,
}

/// The contract's form of an outcome.
pub(crate) fn answer<'a>(
    call: CallId,
    request: u64,
    result: &'a Result<ServiceResponse, CallFailure>,
) -> Answer<'a> {
    let outcome = match result {
        Ok(ServiceResponse { status, body }) => Ok(Response { status: *status, body }),
        Err(CallFailure::Refused(why)) => Err(CallError::Refused(why)),
        Err(CallFailure::Overloaded) => Err(CallError::Overloaded),
        Err(CallFailure::TimedOut) => Err(CallError::TimedOut),
        Err(CallFailure::Failed(why)) => Err(CallError::Failed(why)),
        Err(CallFailure::Cancelled) => Err(CallError::Cancelled),
    };
    Answer { call, request, outcome }
}

/// The calls of a stream's plugins.
pub struct ChainCalls {
    service: Arc<dyn CallService>,
    wake: Arc<dyn Fn() + Send + Sync>,
    ended: (Sender<EndedCall>, Receiver<EndedCall>),
    last_ticket: u64,
}

/// A call that has ended, of the plugin with this name.
pub(crate) struct EndedCall {
    pub(crate) plugin: Name,
    /// The number of the call in the chain. It is never reused, whatever becomes of the plugin's instance.
    pub(crate) ticket: u64,
    pub(crate) outcome: CallOutcome,
}

impl ChainCalls {
    /// Sends calls by this service. `wake` wakes the stream's thread.
    pub fn new(service: Arc<dyn CallService>, wake: Arc<dyn Fn() + Send + Sync>) -> ChainCalls {
        ChainCalls { service, wake, ended: channel(), last_ticket: 0 }
    }

    /// Starts a call. Returns its ticket.
    pub(crate) fn send(&mut self, plugin: &Name, endpoint: &str, body: Bytes) -> (u64, CallHandle) {
        self.last_ticket += 1;
        let (ticket, plugin) = (self.last_ticket, plugin.clone());
        let (ended, wake) = (self.ended.0.clone(), self.wake.clone());
        let done = move |outcome| {
            // Fails only if the stream has ended.
            let _sent = ended.send(EndedCall { plugin, ticket, outcome });
            wake();
        };
        (ticket, self.service.send(endpoint, body, Box::new(done)))
    }

    /// Takes the next call that has ended.
    pub(crate) fn next_ended(&self) -> Option<EndedCall> {
        self.ended.1.try_recv().ok()
    }
}
