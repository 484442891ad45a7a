//! The handle of a running stream: commands from other threads.

use crate::change::Change;
use crate::hand_over::StreamState;
use afterbay_batch::Joins;
use afterbay_batch::ledger::RequestStatus;
use afterbay_chain::PluginStatus;
use afterbay_journal::reader::OperatorAbort;
use afterbay_runtime::{Plugin, ReloadError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// A command for a running stream. [`StreamHandle`] has a method for each, with the description.
pub(crate) enum StreamCommand {
    Reload { plugin: String, result: Box<Result<Plugin, ReloadError>> },
    AttributesChanged { id: String, reply: Box<dyn FnOnce() + Send> },
    PluginStatuses { reply: Box<dyn FnOnce(Vec<PluginStatus>) + Send> },
    Change { change: Box<Change>, reply: Box<dyn FnOnce() + Send> },
    Reinstate { plugin: String, reply: Box<dyn FnOnce(Option<bool>) + Send> },
    Promote { plugin: String, reply: Box<dyn FnOnce(Option<bool>) + Send> },
    Joins { sink: String, joins: Joins },
    RequestsWithId { id: String, reply: Box<dyn FnOnce(Vec<String>) + Send> },
    RequestStatus { rid: String, reply: Box<dyn FnOnce(RequestStatus) + Send> },
    RecordAbort { rid: String, number: u64, abort: OperatorAbort, reply: Box<dyn FnOnce() + Send> },
    NotMigrated { number: u64, why: String, reply: Box<dyn FnOnce(bool) + Send> },
    Stop { deadline: Instant },
    HandOver { reply: Box<dyn FnOnce(Result<StreamState, String>) + Send> },
    Resume,
    Leave,
}

/// Sends commands to a running stream, from any thread. A stream that has ended drops the command and its reply function
/// without calling the function.
#[derive(Clone)]
pub struct StreamHandle {
    pub(crate) sender: Sender<StreamCommand>,
    pub(crate) waker: Arc<mio::Waker>,
    /// The number of turns that the stream has made. Its owner is the stream.
    pub(crate) turns: Weak<AtomicU64>,
}

impl StreamHandle {
    /// Hands over the result of loading a changed component.
    pub fn reload(&self, plugin: &str, result: Result<Plugin, ReloadError>) {
        self.send(StreamCommand::Reload { plugin: plugin.to_owned(), result: Box::new(result) });
    }

    /// Reports that the attributes of an id have changed. The plugins and the journal get the new ones of each live request that
    /// is known by this id. Then calls `done`.
    pub fn attributes_changed(&self, id: &str, done: impl FnOnce() + Send + 'static) {
        self.send(StreamCommand::AttributesChanged { id: id.to_owned(), reply: Box::new(done) });
    }

    /// Asks for the status of each plugin, in their order.
    pub fn statuses(&self, reply: impl FnOnce(Vec<PluginStatus>) + Send + 'static) {
        self.send(StreamCommand::PluginStatuses { reply: Box::new(reply) });
    }

    /// Changes the stream between two batches, then calls `done`.
    pub fn change(&self, change: Change, done: impl FnOnce() + Send + 'static) {
        self.send(StreamCommand::Change { change: Box::new(change), reply: Box::new(done) });
    }

    /// Takes a plugin out of quarantine. Replies whether it was in quarantine; `None` if there is no plugin of that name.
    pub fn reinstate(&self, plugin: &str, reply: impl FnOnce(Option<bool>) + Send + 'static) {
        self.send(StreamCommand::Reinstate { plugin: plugin.to_owned(), reply: Box::new(reply) });
    }

    /// Makes a shadow live. It takes the place of the plugin that it shadows, which leaves the chain. Replies whether the
    /// plugin was a shadow; `None` if there is no plugin of that name.
    pub fn promote(&self, plugin: &str, reply: impl FnOnce(Option<bool>) + Send + 'static) {
        self.send(StreamCommand::Promote { plugin: plugin.to_owned(), reply: Box::new(reply) });
    }

    /// Sets the rule for the ends of joined rows for a sink, once its reader is known. Ignored if no sink has that name.
    pub fn joins(&self, sink: &str, joins: Joins) {
        self.send(StreamCommand::Joins { sink: sink.to_owned(), joins });
    }

    /// Asks for the rids of the live requests that are known by this id.
    pub fn requests_with_id(&self, id: &str, reply: impl FnOnce(Vec<String>) + Send + 'static) {
        self.send(StreamCommand::RequestsWithId { id: id.to_owned(), reply: Box::new(reply) });
    }

    /// Asks for the status of a request.
    pub fn request_status(&self, rid: &str, reply: impl FnOnce(RequestStatus) + Send + 'static) {
        self.send(StreamCommand::RequestStatus { rid: rid.to_owned(), reply: Box::new(reply) });
    }

    /// Records the progress of an operator's abort of the live request with this number in the journal. The request's next row
    /// becomes its last, and Afterbay swallows later ones. The caller records `Expected` before it asks the scheduler to abort,
    /// then `Due`, or `No` if it could not ask. Calls `done` when the journal has the record or has refused it.
    pub fn record_abort(
        &self,
        rid: &str,
        number: u64,
        abort: OperatorAbort,
        done: impl FnOnce() + Send + 'static,
    ) {
        let (rid, reply) = (rid.to_owned(), Box::new(done));
        self.send(StreamCommand::RecordAbort { rid, number, abort, reply });
    }

    /// Ends the request with this number with this reason, if it waits for an engine to go on with it. Replies whether it waited.
    pub fn not_migrated(&self, number: u64, why: String, reply: impl FnOnce(bool) + Send + 'static) {
        self.send(StreamCommand::NotMigrated { number, why, reply: Box::new(reply) });
    }

    /// The number of turns that the stream has made. It grows at least twice a second, unless the stream is stuck. `None` once
    /// the stream has ended.
    pub fn turns(&self) -> Option<u64> {
        Some(self.turns.upgrade()?.load(Ordering::Relaxed))
    }

    /// Drains the stream: sends what was received, then ends the thread, at the latest at the deadline.
    pub fn stop(&self, deadline: Instant) {
        self.send(StreamCommand::Stop { deadline });
    }

    /// Stops the stream between two frames, so that another process can take it over: ends the journal and replies with the
    /// rest of the state. The stream then waits for [`StreamHandle::resume`] or [`StreamHandle::leave`]; other commands wait,
    /// too. Replies with the reason if the stream cannot be handed over now. The stream then goes on.
    pub fn hand_over(&self, reply: impl FnOnce(Result<StreamState, String>) + Send + 'static) {
        self.send(StreamCommand::HandOver { reply: Box::new(reply) });
    }

    /// Continues a stream that no other process took over, on the same connections and with the same plugin instances. Ignored
    /// if the stream does not wait.
    pub fn resume(&self) {
        self.send(StreamCommand::Resume);
    }

    /// Ends the thread of a stream that another process has taken over. The connections stay open in that process. Ignored if
    /// the stream does not wait.
    pub fn leave(&self) {
        self.send(StreamCommand::Leave);
    }

    fn send(&self, command: StreamCommand) {
        // Both fail only if the stream has ended.
        let _sent = self.sender.send(command);
        let _woken = self.waker.wake();
    }
}
