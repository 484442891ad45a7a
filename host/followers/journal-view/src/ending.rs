//! The end of a request on one stream: who ended it, what the reader got, and what the sender sent afterwards.
//! [`RequestEnd`](crate::request_end::RequestEnd) makes one answer of the legs.

use crate::content::{Absent, Content};
use crate::time::{json_time, local_time};
use crate::wording::{counted, short};
use afterbay_journal::reader::{JournalRow, OperatorAbort, RequestHistory, RequestInfo, RequestState};
use afterbay_journal::{PluginAction, Verdict, end_cause};
use afterbay_text::TokenBytes;
use afterbay_types::EndCause;
use afterbay_wire::RequestRecord;

/// The process that sends the rows of a first leg.
pub const SCHEDULER: &str = "scheduler";
/// The process that sends the rows of a second leg.
pub const DETOKENIZER: &str = "detokenizer";
/// The most characters of a text in a sentence; JSON has all.
const TEXT_SHOWN: usize = 400;

/// The way to name the tokenizer to whoever shows a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenizerHint {
    /// An option of the command.
    Option,
    /// A key of the configuration.
    Key,
}

impl TokenizerHint {
    fn words(self) -> &'static str {
        match self {
            TokenizerHint::Option => "--tokenizer FILE",
            TokenizerHint::Key => "the key tokenizer of a [[stream.sink]]",
        }
    }
}

/// The party that ended a request on one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedBy {
    /// The cause, as the counter of ends has it.
    pub cause: EndCause,
    /// The plugin of [`EndCause::Plugin`], [`EndCause::Watchdog`] and [`EndCause::Fault`].
    pub plugin: Option<String>,
}

impl EndedBy {
    /// The party that ended a request: by the verdict, the plugin and the text of the action that ended it before the sender did,
    /// or that dropped a row after that end; and by the totals. `None` for a live request.
    pub fn of(
        early: Option<(Verdict, &str, &str)>,
        info: &RequestInfo,
        is_second_leg: bool,
    ) -> Option<EndedBy> {
        let cause = match (early, info.state) {
            (Some((verdict, plugin, text)), _) => end_cause(verdict, plugin, text),
            (None, _) if info.ended_early => EndCause::Unknown,
            (None, RequestState::Finished) if is_second_leg => EndCause::FirstLeg,
            (None, RequestState::Finished) => EndCause::of_finish(&info.finish),
            (None, RequestState::Abandoned) => EndCause::Lost,
            (None, RequestState::Live) => return None,
        };
        let is_plugin = matches!(cause, EndCause::Plugin | EndCause::Watchdog | EndCause::Fault);
        let plugin = early.filter(|_| is_plugin).map(|(_, plugin, _)| plugin.to_owned());
        Some(EndedBy { cause, plugin })
    }
}

/// The rows that were received after a request had ended for its reader.
#[derive(Debug, Default)]
struct Swallowed {
    rows: usize,
    tokens: u64,
    ids: Vec<i64>,
    /// `None` without a tokenizer and without a text in the rows.
    text: Option<String>,
    /// Rows without content, and the reason for the first.
    absent: Option<(usize, Absent)>,
}

/// The end of a request on one stream.
pub struct LegEnd<'a> {
    stream: &'a str,
    /// The process that sends the stream's rows.
    sender: &'static str,
    life: &'a RequestHistory,
    /// `None` for a live request.
    by: Option<EndedBy>,
    /// The row and the action that ended the request for its reader before the sender did.
    early: Option<(&'a JournalRow, &'a PluginAction<'static>)>,
    swallowed: Swallowed,
    /// Rows that the journal counted and has no record of, and the reason.
    absent: Option<(u64, Absent)>,
}

impl<'a> LegEnd<'a> {
    /// `tokens` gives the text of swallowed ids; `rows_absent` gives the reason if rows are in no record.
    pub fn new(
        stream: &'a str,
        sender: &'static str,
        life: &'a RequestHistory,
        contents: &[Result<Content, Absent>],
        tokens: Option<&TokenBytes>,
        rows_absent: impl FnOnce() -> Absent,
    ) -> LegEnd<'a> {
        let rows = life.rows.iter();
        let early =
            rows.filter_map(|row| Some((row, row.actions.iter().rfind(|it| it.ends_request())?))).next();
        let by = ended_by(life, early.map(|(_, action)| action), sender != SCHEDULER);
        let swallowed = swallowed(life, contents, tokens);
        let absent = life.request.rows.saturating_sub(life.rows.len() as u64);
        let absent = (absent > 0).then(|| (absent, rows_absent()));
        LegEnd { stream, sender, life, by, early, swallowed, absent }
    }

    /// Whether the request ended for its reader before the sender ended it.
    pub fn is_early(&self) -> bool {
        self.info().ended_early
    }

    /// The time of the last row that the reader gets, or else of the last row, in Unix nanoseconds.
    pub(crate) fn unix_ns(&self) -> u64 {
        self.last_row().map_or(self.info().last_unix_ns, |row| row.received_unix_ns)
    }

    fn info(&self) -> &RequestInfo {
        &self.life.request
    }

    /// The finish reason that the sender gave; `None` if none was received.
    fn said(&self) -> Option<&str> {
        Some(self.info().finish.as_str()).filter(|finish| !finish.is_empty())
    }

    /// Whether the sender ended the request, and no row says so. Unknown if rows are in no record.
    fn is_without_row(&self) -> bool {
        self.said().is_some()
            && self.absent.is_none()
            && self.life.rows.iter().all(|row| row.finish.is_none())
    }

    /// The finish reason that the reader got, and the text beside it.
    fn got(&self) -> Option<(&str, Option<&str>)> {
        match self.early {
            Some((_, action)) => {
                let text = Some(&*action.text).filter(|text| !text.is_empty());
                action.verdict.finish_reason().map(|reason| (reason, text))
            }
            None if self.is_early() || self.is_without_row() => None,
            None => self.said().map(|said| (said, None)),
        }
    }

    /// The last row that the reader gets.
    fn last_row(&self) -> Option<&JournalRow> {
        match self.early {
            Some((row, _)) => Some(row),
            None if self.is_early() => None,
            None => self.life.rows.iter().rfind(|row| row.finish.is_some()),
        }
    }

    /// The finish reasons, for the request's first line; empty if there is none.
    pub fn reasons(&self) -> String {
        match (self.is_early(), self.got(), self.said()) {
            (true, Some((got, _)), Some(said)) => format!(" (reader: {got}, {}: {said})", self.sender),
            (true, Some((got, _)), None) => format!(" (reader: {got})"),
            (_, _, Some(said)) => format!(" ({said})"),
            (_, _, None) => String::new(),
        }
    }

    /// The end in plain sentences. `tokenizer_hint` says how to get the text of ids; `of_stream` names the stream.
    pub(crate) fn cause(&self, tokenizer_hint: TokenizerHint, of_stream: &str) -> Vec<String> {
        let mut out = vec![self.who(of_stream)];
        out.extend(self.migrated());
        out.extend(self.client_left());
        out.extend(self.abort_progress().map(str::to_owned));
        if self.is_early() {
            out.push(self.afterwards());
        }
        if self.swallowed.rows > 0 {
            out.extend(self.swallowed_content(tokenizer_hint));
        }
        out
    }

    /// The readers of the last row.
    pub(crate) fn taken(&self) -> Option<String> {
        Some(match self.last_row()?.taken_by().as_slice() {
            [] => "No reader has acknowledged the last row.".to_owned(),
            readers => format!("The last row was taken by {}.", readers.join(", ")),
        })
    }

    /// The plugin that holds rows, and the rows that are not shown.
    pub fn remarks(&self, of_stream: &str) -> Vec<String> {
        let held = if self.by.is_none() { self.held() } else { None };
        let absent = self.absent.map(|(rows, why)| {
            format!("{rows} of {} rows{of_stream} are not shown: {}.", self.info().rows, why.reason())
        });
        held.into_iter().chain(absent).collect()
    }

    /// A sentence if the request has not ended on this stream, for a request that has ended on another one.
    pub(crate) fn unfinished(&self, of_stream: &str) -> Option<String> {
        let last = local_time(self.info().last_unix_ns);
        match self.info().state {
            RequestState::Finished => None,
            RequestState::Live => Some(format!(
                "The last row{of_stream} has not been received. The row before it came at {last}."
            )),
            RequestState::Abandoned => {
                Some(format!("The last row{of_stream} was never received. The row before it came at {last}."))
            }
        }
    }

    pub(crate) fn stream(&self) -> &str {
        self.stream
    }

    pub(crate) fn taken_by(&self) -> Option<Vec<&str>> {
        self.last_row().map(JournalRow::taken_by)
    }

    fn who(&self, of_stream: &str) -> String {
        let sender = self.sender;
        let row = self.last_row();
        let row = row.map_or_else(String::new, |row| {
            format!(" with row {} of frame {}{of_stream}", row.row, row.frame)
        });
        let got = match self.got() {
            Some((reason @ ("abort" | "error"), Some(message))) => {
                format!("finish reason {reason} (message: {message:?})")
            }
            Some((reason, Some(matched))) => format!("finish reason {reason} (matched: {matched:?})"),
            Some((reason, None)) => format!("finish reason {reason}"),
            None => "a finish reason that is no longer in the journal".to_owned(),
        };
        let last = || local_time(self.info().last_unix_ns);
        let Some(EndedBy { cause, plugin }) = &self.by else {
            return format!("The request has not ended. The last row was received at {}.", last());
        };
        let plugin = plugin.as_deref().unwrap_or_default();
        match cause {
            EndCause::Plugin | EndCause::Watchdog => {
                format!("Plugin {plugin:?} ended the request{row}: the reader got {got}.")
            }
            EndCause::Fault => format!(
                "Afterbay ended the request{row}, because plugin {plugin:?} failed (on_fault = \"terminate\"): \
                 the reader got {got}."
            ),
            EndCause::Operator => {
                format!("An operator ended the request{row} (`afterbay abort`): the reader got {got}.")
            }
            EndCause::Unknown => {
                format!("A plugin or an operator ended the request: the reader got {got}.")
            }
            EndCause::Lost => match self.engine_died() {
                Some(died) => format!(
                    "The engine died: another one began at {died}. The last row was received at {}.{}",
                    last(),
                    self.info()
                        .attribute(RequestRecord::NOT_MIGRATED)
                        .map_or(String::new(), |why| format!(" No engine went on with the request: {why}.")),
                ),
                None => format!(
                    "Nobody ended the request. The last row was received at {}. Then Afterbay stopped waiting for \
                     another row: none came for abandon_after, or there were too many live requests.",
                    last()
                ),
            },
            _ if self.is_without_row() => format!(
                "The {sender} ended the request without a row, because the engine's API server aborted it: the client \
                 left, or the API server found a stop string. The last row was received at {}.",
                last()
            ),
            _ if self.said() == Some("abort") => format!(
                "The {sender} aborted the request{row}. Before that, no plugin and no operator had ended the request: \
                 the client disconnected, or somebody sent an abort to the engine. If Afterbay sent the abort \
                 (`afterbay abort --reason abort`), its log has the event AbortSent."
            ),
            EndCause::FirstLeg => format!(
                "The {sender} ended the request{row}: {got}. Who ended it before is on the stream that the {sender} reads."
            ),
            EndCause::EngineError | EndCause::Client | EndCause::Model | EndCause::Limit => {
                format!("The {sender} ended the request{row}: {got}.")
            }
        }
    }

    /// The time of an attribute in Unix milliseconds.
    fn time_of(&self, name: &str) -> Option<String> {
        let ms: u64 = self.info().attribute(name)?.parse().ok()?;
        Some(local_time(ms.saturating_mul(1_000_000)))
    }

    fn engine_died(&self) -> Option<String> {
        self.time_of(RequestRecord::ENGINE_DIED)
    }

    /// The engine that went on with the request, or that is to do so.
    fn migrated(&self) -> Option<String> {
        let died = self.engine_died()?;
        Some(match (self.info().attribute(RequestRecord::MIGRATED_AT), self.info().state) {
            (Some(tokens), _) => {
                format!(
                    "Its engine had died ({died}), and another one went on with it behind {tokens} tokens."
                )
            }
            (None, RequestState::Live) => format!("Its engine has died ({died}). It waits for another one."),
            (None, _) => return None,
        })
    }

    /// The time at which the client of a request with a lease left, and what came of the lease.
    fn client_left(&self) -> Option<String> {
        let info = self.info();
        let (left, lease) =
            (self.time_of(RequestRecord::CLIENT_LEFT)?, info.attribute(RequestRecord::LEASE)?);
        let is_aborted = self.said() == Some("abort") && !self.is_early() && info.ending == OperatorAbort::No;
        Some(match info.state {
            RequestState::Live => {
                format!("Its client left at {left}. The engine goes on until the lease of {lease} ends.")
            }
            _ if is_aborted => format!("Its client left at {left}, and the lease of {lease} ended."),
            _ => format!("Its client had left at {left}, with a lease of {lease}."),
        })
    }

    /// The progress of an operator's abort that has not ended the request.
    fn abort_progress(&self) -> Option<&'static str> {
        match (self.info().ending, self.info().state) {
            _ if self.is_early() => None,
            (OperatorAbort::No, _) => None,
            (OperatorAbort::Expected, RequestState::Live) => Some(
                "An operator asked for an abort: the scheduler's own row for the abort will be the last row.",
            ),
            (OperatorAbort::Due, RequestState::Live) => Some(
                "An operator asked for an abort, and the scheduler was told: the next row will be the last row.",
            ),
            (_, RequestState::Abandoned) => {
                Some("An operator had asked for an abort, and no last row was received.")
            }
            (_, RequestState::Finished) => {
                Some("An operator had asked for an abort, which came too late to change anything.")
            }
        }
    }

    /// A sentence about the tokens that the sender sent after the request had ended for its reader.
    fn afterwards(&self) -> String {
        let (sender, Swallowed { rows, tokens, .. }) = (self.sender, &self.swallowed);
        let unread = format!(
            "{} in {}, which the reader did not get",
            counted(*tokens, "token"),
            counted(*rows as u64, "row")
        );
        let went_on = match tokens {
            0 => format!("The {sender} sent no more tokens"),
            _ => format!("The {sender} went on for {unread}"),
        };
        let same_row = self.early.is_some_and(|(row, _)| row.finish.is_some());
        match (self.said(), self.info().state) {
            (Some(said), _) if same_row => {
                format!("In the same row, the {sender} ended the request: {said}.")
            }
            (Some("abort"), _) => format!("{went_on}, and then aborted the request."),
            (Some(said), _) => format!("{went_on}, and then ended the request: {said}."),
            (None, RequestState::Abandoned) => {
                format!("{went_on}. It gave no finish reason, and Afterbay stopped waiting for one.")
            }
            (None, _) if *rows == 0 => {
                format!("The {sender} has not ended the request, and has sent no more rows.")
            }
            (None, _) => format!("The {sender} has not ended the request. It has sent {unread}."),
        }
    }

    fn swallowed_content(&self, tokenizer_hint: TokenizerHint) -> Vec<String> {
        let mut out = Vec::new();
        let Swallowed { ids, text, absent, .. } = &self.swallowed;
        match text {
            Some(text) => {
                let cut: String = text.chars().take(TEXT_SHOWN).collect();
                let more = if cut.len() < text.len() { " …" } else { "" };
                out.push(format!("The text that the reader did not get: {cut:?}{more}"));
            }
            None if !ids.is_empty() => out.push(format!(
                "The ids that the reader did not get: {} ({} shows their text)",
                short(ids),
                tokenizer_hint.words()
            )),
            None => {}
        }
        if let Some((rows, why)) = absent {
            let of = self.swallowed.rows;
            out.push(format!("{rows} of these {of} rows have no content here: {}.", why.reason()));
        }
        out
    }

    /// The plugin that holds the last rows of a live request.
    fn held(&self) -> Option<String> {
        let held = |row: &&JournalRow| row.actions.last().is_some_and(|last| last.verdict == Verdict::Hold);
        let rows = self.life.rows.iter().rev().take_while(held).count();
        let plugin = &self.life.rows.last()?.actions.last()?.plugin;
        (rows > 0).then(|| format!("Plugin {plugin:?} holds the last {}.", counted(rows as u64, "row")))
    }

    /// The end as JSON, without sentences.
    pub(crate) fn json(&self) -> serde_json::Value {
        let Swallowed { rows, tokens, ids, text, .. } = &self.swallowed;
        let row = self.last_row();
        serde_json::json!({
            "stream": self.stream,
            "by": self.by.as_ref().map(|by| by.cause.word()),
            "plugin": self.by.as_ref().and_then(|by| by.plugin.as_deref()),
            "frame": row.map(|row| row.frame.0),
            "row": row.map(|row| row.row),
            "time": row.and_then(|row| json_time(row.received_unix_ns)),
            "reader_got": self.got().map(|(reason, text)| serde_json::json!({"finish_reason": reason, "text": text})),
            "scheduler_said": self.said(),
            "operator_abort": match self.info().ending {
                OperatorAbort::No => None,
                OperatorAbort::Expected => Some("expected"),
                OperatorAbort::Due => Some("due"),
            },
            "swallowed": {"rows": rows, "tokens": tokens, "ids": ids, "text": text},
            "rows_missing": self.absent.map(|(rows, why)| serde_json::json!({"rows": rows, "why": why.words()})),
        })
    }
}

fn ended_by(life: &RequestHistory, early: Option<&PluginAction<'_>>, is_second_leg: bool) -> Option<EndedBy> {
    let mut actions = life.rows.iter().flat_map(|row| &row.actions).filter(|_| life.request.ended_early);
    let early = early.or_else(|| actions.find(|action| action.is_swallowed()));
    let early = early.map(|action| (action.verdict, &*action.plugin, &*action.text));
    EndedBy::of(early, &life.request, is_second_leg)
}

fn swallowed(
    life: &RequestHistory,
    contents: &[Result<Content, Absent>],
    tokens: Option<&TokenBytes>,
) -> Swallowed {
    let mut out = Swallowed::default();
    let mut texts = Some(String::new());
    let rows = life.rows.iter().zip(contents);
    for (row, content) in rows.filter(|(row, _)| row.actions.iter().any(PluginAction::is_swallowed)) {
        out.rows += 1;
        out.tokens += u64::from(row.tokens);
        match content {
            Ok(content) => {
                out.ids.extend(&content.ids);
                texts = texts.zip(content.text.as_ref()).map(|(texts, text)| texts + text);
            }
            Err(why) => out.absent = Some((out.absent.map_or(1, |(rows, _)| rows + 1), *why)),
        }
    }
    let decoded = || Some(String::from_utf8_lossy(&tokens?.decode(&out.ids)).into_owned());
    out.text = texts.filter(|text| !text.is_empty()).or_else(decoded);
    out
}
