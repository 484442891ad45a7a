//! Requests whose engine has died, sent to the engine that takes its place: as a prompt with the tokens so far, under the same rid.
//!
//! A stream says which requests wait for an engine. The prompt and the tokens are in the journal, which one pass reads for all that
//! wait. Each request then has a call of the engine's HTTP server, whose answer is read and dropped: the tokens come over the stream.
//! A request that cannot go on ends with the reason.

use crate::mutex::lock;
use crate::requests::Requests;
use afterbay_config as config;
use afterbay_events::Events;
use afterbay_events::event::{MigrationWaiting, RequestNotMigrated};
use afterbay_http::{Call, CallError, CapabilityKeys, ServerAddress, call};
use afterbay_journal::JournalDirectory;
use afterbay_journal_view::received::received;
use afterbay_stream::{Interrupted, Interruption, InterruptionSender, StreamHandle};
use afterbay_wire::MigrationCall;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::AbortHandle;

/// Time in which requests are collected, so that one pass over the journal serves them all.
const COLLECT: Duration = Duration::from_millis(250);
/// Time until an engine that does not answer is asked again. It may load its weights for minutes.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Time for which what is signed opens the engine's server.
const SIGNED_S: u64 = 60;
/// Bytes of an answer that may be in a reason.
const ANSWER_BYTES_MAX: usize = 4096;
/// Longest text of an attribute in the journal.
const WHY_BYTES_MAX: usize = 256;
/// The header with what is signed, and of an answer by a server that has understood it.
const HEADER: &str = "x-afterbay-migration";
/// The header with the rid.
const RID_HEADER: &str = "x-request-id";
/// Bytes of a rid that need no escape in a header.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The requests that wait for an engine, or go on in another one. Clones share them.
#[derive(Clone)]
pub(crate) struct Migrations(Arc<Inner>);

struct Inner {
    directory: Arc<JournalDirectory>,
    requests: Requests,
    events: Events,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// The engine that goes on with requests, by stream.
    targets: HashMap<String, Target>,
    key_file: Option<PathBuf>,
    handles: HashMap<String, StreamHandle>,
    /// Requests that wait for the pass over the journal, by stream.
    collected: HashMap<String, Vec<Interrupted>>,
    /// The reason why the next engine does not take requests, by stream, as it was said last.
    absent: HashMap<String, String>,
    /// The requests that wait, and those that go on and whose call has not ended, by stream and number.
    requests: HashMap<Key, Migration>,
    /// Most requests at once.
    max: usize,
    runtime: Option<tokio::runtime::Handle>,
}

/// The stream and the request's number in the stream's journal.
type Key = (String, u64);

/// A request that waits for an engine, or whose call has not ended.
#[derive(Default)]
struct Migration {
    /// `None`: its tokens are read.
    call: Option<AbortHandle>,
    /// Whether the engine goes on with it.
    is_taken: bool,
}

#[derive(Clone)]
struct Target {
    engine: config::Engine,
    migration: config::Migration,
}

/// Why a call is over.
enum Failure {
    /// The engine is not there yet.
    Absent(String),
    Refused(String),
}

/// The reason for requests that waited when a reload took `stream.migration` away.
const NO_TARGET: &str = "the configuration has no stream.migration any more";

impl Migrations {
    pub(crate) fn new(directory: &Arc<JournalDirectory>, requests: &Requests, events: &Events) -> Migrations {
        let (directory, requests, events) = (directory.clone(), requests.clone(), events.clone());
        Migrations(Arc::new(Inner { directory, requests, events, table: Mutex::default() }))
    }

    /// Follows a configuration: for requests that begin to wait from now on, and for calls that are tried again.
    pub(crate) fn follow(&self, config: &config::Config) {
        let mut table = lock(&self.0.table);
        let of_stream = |stream: &config::Stream| {
            let target = Target { engine: stream.engine, migration: stream.migration.clone()? };
            Some((stream.name.to_string(), target))
        };
        table.targets = config.streams.iter().filter_map(of_stream).collect();
        table.key_file = config.clients.as_ref().map(|clients| clients.key_file.clone());
        table.max = config.leases.max_count;
    }

    /// The function by which a stream says that requests wait for an engine, and that one ended before.
    pub(crate) fn sender(&self, stream: &config::Stream) -> InterruptionSender {
        let (migrations, stream) = (self.clone(), stream.name.to_string());
        Box::new(move |change| match change {
            Interruption::Began(interrupted) => migrations.take(&stream, interrupted),
            Interruption::Taken(number) => {
                let mut table = lock(&migrations.0.table);
                table.absent.remove(&stream);
                let request = table.requests.get_mut(&(stream.clone(), number));
                request.map(|request| request.is_taken = true).is_some()
            }
            Interruption::Ended(number) => {
                let request = lock(&migrations.0.table).requests.remove(&(stream.clone(), number));
                request.map(Migration::end).is_some()
            }
        })
    }

    fn take(&self, stream: &str, interrupted: Interrupted) -> bool {
        let mut table = lock(&self.0.table);
        let key = (stream.to_owned(), interrupted.number);
        match table.requests.get(&key) {
            // The ledger was made again after a panic, or after a hand-over that failed.
            Some(known) if !known.is_taken => return true,
            _ => {}
        }
        if !table.targets.contains_key(stream) || table.requests.len() >= table.max {
            return false;
        }
        if let Some(earlier) = table.requests.insert(key.clone(), Migration::default()) {
            // The engine that went on with it has died, too.
            earlier.end();
        }
        let collected = table.collected.entry(key.0).or_default();
        let is_first = collected.is_empty();
        collected.push(interrupted);
        if let (true, Some(runtime)) = (is_first, &table.runtime) {
            runtime.spawn(self.clone().start(stream.to_owned()));
        }
        true
    }

    /// Says how a stream is reached, and sends what has waited for that.
    pub(crate) fn add(&self, stream: &str, handle: StreamHandle) {
        let mut table = lock(&self.0.table);
        table.handles.insert(stream.to_owned(), handle);
        table.runtime = tokio::runtime::Handle::try_current().ok();
        if table.collected.get(stream).is_some_and(|collected| !collected.is_empty()) {
            tokio::spawn(self.clone().start(stream.to_owned()));
        }
    }

    /// Forgets the requests of a stream that has ended. The journal has them for the next start.
    pub(crate) fn remove(&self, stream: &str) {
        lock(&self.0.table).forget(|of| of == stream);
    }

    /// Forgets all requests, after all streams have ended.
    pub(crate) fn clear(&self) {
        lock(&self.0.table).forget(|_| true);
    }

    /// Reads the tokens of the requests that were collected, and calls the engine.
    async fn start(self, stream: String) {
        tokio::time::sleep(COLLECT).await;
        let collected = lock(&self.0.table).collected.remove(&stream).unwrap_or_default();
        let inner = self.0.clone();
        let name = stream.clone();
        let read = tokio::task::spawn_blocking(move || inner.read(&name, collected)).await;
        for (interrupted, made) in read.unwrap_or_default() {
            let mut table = lock(&self.0.table);
            // It may have ended since.
            if let Some(request) = table.requests.get_mut(&(stream.clone(), interrupted.number)) {
                let task = tokio::spawn(self.clone().migrate(stream.clone(), interrupted, made));
                request.call = Some(task.abort_handle());
            }
        }
    }

    /// Calls the engine until it takes the request, and until its answer has ended.
    async fn migrate(self, stream: String, interrupted: Interrupted, made: Result<MigrationCall, String>) {
        let Interrupted { rid, number, .. } = interrupted;
        let key = (stream, number);
        let why = match made {
            Err(why) => why,
            Ok(made) => loop {
                let failure = self.call(&key.0, &rid, &made).await;
                if lock(&self.0.table).requests.get(&key).is_none_or(|request| request.is_taken) {
                    lock(&self.0.table).requests.remove(&key);
                    return;
                }
                match failure {
                    Err(Failure::Absent(why)) => {
                        self.say_absent(&key.0, why);
                        tokio::time::sleep(RETRY_AFTER).await;
                    }
                    Err(Failure::Refused(why)) => break why,
                    Ok(()) => break "the engine answered, and sent nothing to Afterbay".to_owned(),
                }
            },
        };
        let handle = lock(&self.0.table).handles.get(&key.0).cloned();
        // The request's end takes it out of the table.
        if let Some(handle) = handle {
            let (events, text) = (self.0.events.clone(), shortened(&why));
            handle.not_migrated(number, text, move |has_waited| {
                if has_waited {
                    events.publish(RequestNotMigrated { stream: key.0.as_str().into(), rid, why });
                }
            });
        }
    }

    /// Says once why the requests of a stream wait.
    fn say_absent(&self, stream: &str, why: String) {
        let before = lock(&self.0.table).absent.insert(stream.to_owned(), why.clone());
        if before.as_ref() != Some(&why) {
            self.0.events.publish(MigrationWaiting { stream: stream.into(), why });
        }
    }

    async fn call(&self, stream: &str, rid: &str, made: &MigrationCall) -> Result<(), Failure> {
        let (target, key_file) = {
            let table = lock(&self.0.table);
            (table.targets.get(stream).cloned(), table.key_file.clone())
        };
        let (Some(Target { migration, .. }), Some(key_file)) = (target, key_file) else {
            return Err(Failure::Refused(NO_TARGET.to_owned()));
        };
        let in_file = |file: &Path, why: String| Failure::Refused(format!("{}: {why}", file.display()));
        let keys = CapabilityKeys::read(&key_file).map_err(|why| in_file(&key_file, why))?;
        let token = match &migration.api_key_file {
            Some(file) => Some(crate::token(file).map_err(|why| in_file(file, why))?),
            None => None,
        };
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let signed = keys.mint_migration(rid, now_s + SIGNED_S);
        let escaped = utf8_percent_encode(rid, PLAIN).to_string();
        let mut all = vec![(HEADER, signed.as_str()), (RID_HEADER, escaped.as_str())];
        all.extend(made.headers.iter().map(|(name, value)| (*name, value.as_str())));
        let server = ServerAddress::Tcp(migration.front_end.clone());
        let answer = call(
            &server,
            Call {
                path: made.path,
                token: token.as_deref(),
                json: Some(&made.body.to_string()),
                headers: &all,
                // The stream ends the call when the request ends.
                within: Duration::MAX,
                bytes_max: ANSWER_BYTES_MAX,
                drops_rest_with: Some(HEADER),
            },
        )
        .await;
        match answer {
            Ok((status, _)) if status.is_success() => Ok(()),
            Ok((status, body)) => {
                let text = String::from_utf8_lossy(&body);
                let why = format!("the engine answered {}: {}", status.as_u16(), text.trim());
                Err(if status.as_u16() == 503 { Failure::Absent(why) } else { Failure::Refused(why) })
            }
            // The engine begins, or has died again.
            Err(error @ (CallError::Unreachable(_) | CallError::NoAnswer(_))) => {
                Err(Failure::Absent(format!("{}: {error}", migration.front_end)))
            }
            Err(error @ CallError::Other(_)) => Err(Failure::Refused(error.to_string())),
        }
    }
}

impl Inner {
    /// Makes the calls for requests of a stream, whose tokens it reads in one pass.
    fn read(
        &self,
        stream: &str,
        requests: Vec<Interrupted>,
    ) -> Vec<(Interrupted, Result<MigrationCall, String>)> {
        let numbers: Vec<u64> = requests.iter().map(|request| request.number).collect();
        let first = requests.iter().filter_map(|request| request.record.frame()).min();
        let layouts = self.requests.layouts(stream);
        let reader = afterbay_journal::reader::JournalReader::open(self.directory.path());
        let read = reader.and_then(|journal| journal.stream(stream));
        let target = lock(&self.table).targets.get(stream).cloned();
        let mut all = match read.and_then(|stream| received(&stream, &layouts, first, &numbers)) {
            Ok(all) => all,
            Err(error) => {
                let why = format!("the journal cannot be read: {error}");
                return requests.into_iter().map(|request| (request, Err(why.clone()))).collect();
            }
        };
        let mut made = |request: &Interrupted| {
            let Target { engine, migration } = target.as_ref().ok_or(NO_TARGET)?;
            let record = request.record.read().ok_or("the journal does not have its record any more")?;
            let begun = request.record.frame().unwrap_or_default();
            if let Some(frame) = all.not_understood.filter(|frame| *frame > begun) {
                return Err(format!("frame {frame} was not understood, and may have its tokens"));
            }
            let ids = all.ids.remove(&request.number).unwrap_or_default();
            if ids.len() as u64 != request.received {
                let (has, all) = (ids.len(), request.received);
                return Err(format!("the journal has {has} of its {all} tokens"));
            }
            MigrationCall::new(*engine, &record, &ids, migration.resample).map_err(|why| why.to_string())
        };
        requests
            .into_iter()
            .map(|request| {
                let made = made(&request);
                (request, made)
            })
            .collect()
    }
}

impl Table {
    fn forget(&mut self, is_gone: impl Fn(&str) -> bool) {
        self.collected.retain(|stream, _| !is_gone(stream));
        self.handles.retain(|stream, _| !is_gone(stream));
        self.absent.retain(|stream, _| !is_gone(stream));
        let gone = self.requests.extract_if(|(stream, _), _| is_gone(stream));
        gone.for_each(|(_, request)| request.end());
    }
}

impl Migration {
    fn end(self) {
        if let Some(call) = self.call {
            call.abort();
        }
    }
}

/// A reason as an attribute in the journal.
fn shortened(why: &str) -> String {
    let end = why.floor_char_boundary(WHY_BYTES_MAX);
    why[..end].to_owned()
}
