//! What other threads ask of a running stream.

use crate::change::Change;
use afterbay_chain::PluginStatus;
use afterbay_journal::reader::OperatorAbort;
use afterbay_ledger::RequestStatus;
use afterbay_outbox::Joins;
use afterbay_runtime::{Plugin, ReloadError};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

/// What a stream is told from outside.
pub(crate) enum StreamCommand {
    /// A component has changed.
    Reload { plugin: String, result: Box<Result<Plugin, ReloadError>> },
    /// The attributes of a rid were set anew.
    AttributesChanged { rid: String },
    /// How its plugins stand.
    PluginStatuses { reply: Box<dyn FnOnce(Vec<PluginStatus>) + Send> },
    /// It is to be otherwise.
    Change { change: Box<Change>, reply: Box<dyn FnOnce() + Send> },
    /// A plugin is to come out of quarantine.
    Reinstate { plugin: String, reply: Box<dyn FnOnce(Option<bool>) + Send> },
    /// A shadow is to be live.
    Promote { plugin: String, reply: Box<dyn FnOnce(Option<bool>) + Send> },
    /// Where joined rows may end for a sink: it is known now who reads.
    Joins { sink: String, joins: Joins },
    /// What is known of a rid.
    RequestStatus { rid: String, reply: Box<dyn FnOnce(RequestStatus) + Send> },
    /// What becomes of a live request.
    End { rid: String, number: u64, ending: OperatorAbort, reply: Box<dyn FnOnce() + Send> },
    /// SinkSender what was received, then end; give up at the deadline.
    Stop { deadline: Instant },
}

/// Tells a running stream things, from any thread.
#[derive(Clone)]
pub struct StreamHandle {
    pub(crate) sender: Sender<StreamCommand>,
    pub(crate) waker: Arc<mio::Waker>,
}

impl StreamHandle {
    /// Hands over what became of a changed component.
    pub fn reload(&self, plugin: &str, result: Result<Plugin, ReloadError>) {
        self.send(StreamCommand::Reload { plugin: plugin.to_owned(), result: Box::new(result) });
    }

    /// The attributes of a rid were set anew: where it is live, plugins are told.
    pub fn attributes_changed(&self, rid: &str) {
        self.send(StreamCommand::AttributesChanged { rid: rid.to_owned() });
    }

    /// Asks how its plugins stand, in their order. Dropped unasked, `reply` says that the stream has ended.
    pub fn statuses(&self, reply: impl FnOnce(Vec<PluginStatus>) + Send + 'static) {
        self.send(StreamCommand::PluginStatuses { reply: Box::new(reply) });
    }

    /// Makes it otherwise, between two batches; `done` is called when it is so. Dropped unasked, it says that the stream has
    /// ended.
    pub fn change(&self, change: Change, done: impl FnOnce() + Send + 'static) {
        self.send(StreamCommand::Change { change: Box::new(change), reply: Box::new(done) });
    }

    /// Takes a plugin out of quarantine. The reply: `None`, there is none of that name; false, it was not in quarantine.
    /// Dropped unasked, it says that the stream has ended.
    pub fn reinstate(&self, plugin: &str, reply: impl FnOnce(Option<bool>) + Send + 'static) {
        self.send(StreamCommand::Reinstate { plugin: plugin.to_owned(), reply: Box::new(reply) });
    }

    /// Asks what is known of a rid. Dropped unasked, `reply` says that the stream has ended.
    pub fn request_status(&self, rid: &str, reply: impl FnOnce(RequestStatus) + Send + 'static) {
        self.send(StreamCommand::RequestStatus { rid: rid.to_owned(), reply: Box::new(reply) });
    }

    /// What becomes of a live request, as its number is in the journal. Its last row says `stop`, and what still comes of it is
    /// swallowed. It is `Expected` before the caller tells the scheduler, then `Due`, or `No` where that could not be told. `done`
    /// is called when the journal has it, or has refused it; dropped unasked, it says that the stream has ended.
    pub fn end(&self, rid: &str, number: u64, ending: OperatorAbort, done: impl FnOnce() + Send + 'static) {
        self.send(StreamCommand::End { rid: rid.to_owned(), number, ending, reply: Box::new(done) });
    }

    /// Makes a shadow live: in the place of the plugin it is a shadow of, which leaves the chain, else in its own.
    pub fn promote(&self, plugin: &str, reply: impl FnOnce(Option<bool>) + Send + 'static) {
        self.send(StreamCommand::Promote { plugin: plugin.to_owned(), reply: Box::new(reply) });
    }

    /// Where joined rows may end for this sink, once it is known who reads. A sink that is not there is passed over.
    pub fn joins(&self, sink: &str, joins: Joins) {
        self.send(StreamCommand::Joins { sink: sink.to_owned(), joins });
    }

    /// Sends what was received, then ends; gives up at the deadline.
    pub fn stop(&self, deadline: Instant) {
        self.send(StreamCommand::Stop { deadline });
    }

    fn send(&self, command: StreamCommand) {
        // Both fail only where the stream has ended already.
        let _told = self.sender.send(command);
        let _woken = self.waker.wake();
    }
}
