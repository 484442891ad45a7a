//! The calls of plugins, passed to the services of the configuration.

use afterbay_plugin_services::calls::{CallError, CallOutcome, Calls, ServiceAnswer};
use afterbay_stream::{
    CallDone, CallFailure, CallHandle, CallOutcome as ChainOutcome, CallService, ServiceResponse,
};
use bytes::Bytes;

/// The services of a process, for plugins.
pub(crate) struct PluginCalls(pub(crate) Calls);

impl CallService for PluginCalls {
    fn send(&self, endpoint: &str, body: Bytes, done: CallDone) -> CallHandle {
        let done = move |CallOutcome { result, place }: CallOutcome| {
            let result = match result {
                Ok(ServiceAnswer { status, body }) => Ok(ServiceResponse { status, body }),
                Err(CallError::Refused(why)) => Err(CallFailure::Refused(why)),
                Err(CallError::Overloaded) => Err(CallFailure::Overloaded),
                Err(CallError::TimedOut) => Err(CallFailure::TimedOut),
                Err(CallError::Failed(why)) => Err(CallFailure::Failed(why)),
            };
            done(ChainOutcome { result, place: Box::new(place) });
        };
        Box::new(self.0.send(endpoint, body, done))
    }
}
