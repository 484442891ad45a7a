//! Checks the requests of a stream and decides what happens to their rows.

use afterbay_plugin::{
    Attributes, ConfigureError, FinishKind, Opened, RequestId, Requests, TokenId, bad_setting,
};

use crate::calls::{CallResult, ToolCalls};
use crate::grammar::GrammarLimits;
use crate::grammars::Grammars;
use crate::matcher::TOKEN_COSTS;
use crate::rules::{RequestGrammar, Rules};
use crate::settings::GRAMMARS_MAX;
use crate::{Compiler, Finding, Matcher, OnEarlyEnd, OnViolation, Settings, Tokenizer, Vocabulary};

/// The work of making a parser, in the units of [`TOKEN_COSTS`].
const NEW_PARSER_COSTS: usize = 4 * TOKEN_COSTS;
/// The work of beginning a JSON text or a text with a regex.
const NEW_STREAM_COSTS: usize = TOKEN_COSTS / 4;
/// The extra work of a parser's first token: it has no memory yet.
const FIRST_TOKEN_COSTS: usize = 4 * TOKEN_COSTS;
/// The work of asking for a request's attributes.
const ATTRIBUTES_COSTS: usize = TOKEN_COSTS;
/// The bytes of attributes that are read for one unit of work.
const ATTRIBUTE_BYTES: usize = 8;
/// The least work of compiling a grammar that a request brings.
const COMPILE_COSTS: usize = 16 * TOKEN_COSTS;
/// The work of a row without tokens.
const ROW_COSTS: usize = 1;
/// The work of a row whose tokens are stored for the next row.
const STORED_ROW_COSTS: usize = 2;
/// The work of reporting a finding.
const REPORT_COSTS: usize = 2 * TOKEN_COSTS;
/// Freeing a text costs as much as one token for each of this many tokens.
const TOKENS_FREED_PER_TOKEN_COST: u64 = 16;
/// The most tokens of all requests that wait for their check. Requests that exceed it are no longer checked.
const WAITING_MAX: usize = 1 << 16;
/// The most tokens of a request that are checked. Freeing a text cannot be split, so that it must fit into
/// one call.
pub const REQUEST_TOKENS_MAX: u64 = 16_384;

/// The requests of a stream, each with the matcher of its grammar.
pub struct GrammarCheck {
    vocabulary: Vocabulary,
    rules: Rules,
    grammars: Grammars,
    requests: Requests<RequestCheck>,
    /// Ended requests whose memory is not freed yet, with their numbers of tokens. Freeing takes so long that
    /// each call frees only some.
    ended: Vec<(Box<Matcher>, u64)>,
    /// The stored tokens of all requests, ended requests included.
    stored: u64,
    tokens_max: u64,
    /// The tokens of all requests that wait for their check.
    waiting: usize,
    work_per_call: usize,
    /// The work that this call may still do.
    left: WorkLeft,
    /// The work that may still be done before the next batch, as requests open.
    left_to_open: usize,
    calls: Option<ToolCalls>,
}

/// The work that a call may still do.
#[derive(Clone, Copy)]
struct WorkLeft {
    general: usize,
    /// Additional work for last rows.
    for_last_rows: usize,
}

impl WorkLeft {
    fn is_some(self, is_last: bool) -> bool {
        self.general > 0 || (is_last && self.for_last_rows > 0)
    }

    fn spend(&mut self, costs: usize) {
        self.for_last_rows = self.for_last_rows.saturating_sub(costs.saturating_sub(self.general));
        self.general = self.general.saturating_sub(costs);
    }
}

struct RequestCheck {
    rid: Box<str>,
    /// The index of the request's rule.
    rule: usize,
    stage: CheckStage,
    /// The number of received tokens.
    received: u64,
    /// The tokens received by this instance and still stored.
    stored: u64,
    /// The last received tokens, which wait for their check.
    waiting: Vec<TokenId>,
}

/// The progress of a request's check.
enum CheckStage {
    /// The rule is not known yet.
    Opened,
    /// No rule and no grammar applies.
    Unmatched,
    /// The request is not checked, for this reason, and its next row reports it.
    NotChecked(String),
    /// The request will be checked against the grammar of this index.
    Pending(usize),
    /// The request is checked against the grammar of this index.
    Checked(usize, Box<Matcher>),
}

/// The action on a request's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowAction {
    /// Leave the row unchanged; the log has the reason.
    Report,
    /// End the request with this row; its reader sees a stop.
    Finish,
    /// End the request with this row; its reader sees an abort.
    Abort,
}

/// The kind of a finding, for the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingKind {
    /// The output leaves the grammar.
    Violation,
    /// The output ended before the grammar was complete.
    EarlyEnd,
    /// The request is not or no longer checked, which is not its fault.
    NotChecked,
}

/// The result of checking a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The action on the row.
    pub action: RowAction,
    /// The kind of the finding.
    pub kind: FindingKind,
    /// The reason for the log and the verdict: at most 256 bytes.
    pub reason: String,
    /// The number of the row's ids before the first one that is not allowed.
    pub allowed: usize,
}

impl GrammarCheck {
    /// Reads the vocabulary and compiles the grammars of the settings.
    ///
    /// # Errors
    /// If the settings are invalid or the tokenizer is unusable.
    pub fn new(settings: &Settings, tokenizer: &impl Tokenizer) -> Result<Self, ConfigureError> {
        Self::within(GrammarLimits::OF_SETTINGS, settings, tokenizer)
    }

    pub(crate) fn within(
        of_settings: GrammarLimits,
        settings: &Settings,
        tokenizer: &impl Tokenizer,
    ) -> Result<Self, ConfigureError> {
        if settings.work_per_call == 0 {
            return Err(bad_setting("/work_per_call", "is 0, must be 1 or more"));
        }
        if !(1..=GRAMMARS_MAX).contains(&settings.grammars_max) {
            let wrong = format!("is {}, must be 1 to {GRAMMARS_MAX}", settings.grammars_max);
            return Err(bad_setting("/grammars_max", wrong));
        }
        let vocabulary = Vocabulary::read(tokenizer)?;
        let calls = ToolCalls::new(settings, &vocabulary, tokenizer)?;
        let compiler = Compiler::new(&vocabulary).with_formats(settings.formats);
        let mut grammars = Grammars::new(compiler, of_settings, settings.grammars_max as usize);
        let rules = Rules::compile(settings, tokenizer, &mut grammars)?;
        let work_per_call = settings.work_per_call as usize * TOKEN_COSTS;
        Ok(Self {
            vocabulary,
            rules,
            grammars,
            requests: Requests::new(),
            ended: Vec::new(),
            stored: 0,
            tokens_max: settings.tokens_max,
            waiting: 0,
            work_per_call,
            left: WorkLeft { general: work_per_call, for_last_rows: work_per_call },
            left_to_open: work_per_call,
            calls,
        })
    }

    /// Opens a request. Its rule is determined now or, if many requests open at once, with its first row.
    pub fn open(&mut self, request: &Opened) {
        if let Some(calls) = &mut self.calls {
            calls.open(request);
        }
        let opened = RequestCheck {
            rid: request.rid.as_str().into(),
            rule: 0,
            stage: CheckStage::Opened,
            received: request.received_tokens,
            stored: 0,
            waiting: Vec::new(),
        };
        self.requests.insert(request.request, opened);
        self.start(request.request);
    }

    /// Applies changed attributes to a request. A request without tokens is checked by its new attributes.
    /// Returns a warning if the request keeps its first grammar.
    pub fn attributes_changed(&mut self, request: RequestId) -> Option<String> {
        let state = self.requests.get_mut(request)?;
        if state.received == 0 {
            if let CheckStage::Pending(index) = std::mem::replace(&mut state.stage, CheckStage::Opened) {
                self.grammars.remove_user(index);
            }
            self.start(request);
            return None;
        }
        let brought = self.rules.brought(&Attributes::of(request))?;
        let received = state.received;
        match &state.stage {
            CheckStage::Unmatched => {
                let reason = format!("not checked: its grammar came after its first {received} tokens");
                state.stage = CheckStage::NotChecked(reason);
                None
            }
            CheckStage::Pending(index) | CheckStage::Checked(index, _)
                if brought.as_ref() != Ok(self.grammars.text(*index)) =>
            {
                Some(format!("keeps its first grammar: another one came after {received} tokens"))
            }
            _ => None,
        }
    }

    /// Determines a request's rule, if work is left before the batch.
    fn start(&mut self, request: RequestId) {
        if self.left_to_open > 0 {
            let costs = self.find_rule(request);
            self.left_to_open = self.left_to_open.saturating_sub(costs);
        }
    }

    /// Determines a request's rule. Returns the work done.
    fn find_rule(&mut self, request: RequestId) -> usize {
        let Some(state) = self.requests.get_mut(request) else { return 0 };
        let (rule, grammar) = self.rules.of(request, &state.rid, &Attributes::of(request));
        state.rule = rule;
        let mut costs = if self.rules.read_attributes() { ATTRIBUTES_COSTS } else { ROW_COSTS };
        let index = match grammar {
            RequestGrammar::None => {
                state.stage = CheckStage::Unmatched;
                self.stored -= std::mem::take(&mut state.stored);
                self.waiting -= std::mem::take(&mut state.waiting).len();
                // The request may still bring a grammar. Its received tokens must be known then.
                if !self.rules.may_be_brought() {
                    self.requests.remove(request);
                }
                return costs;
            }
            RequestGrammar::Compiled(index) => Ok(index),
            RequestGrammar::Brought(text) => {
                let length = text.len();
                let brought = self.grammars.bring(text);
                costs += match brought {
                    Ok((_, false)) => length / ATTRIBUTE_BYTES,
                    Ok((_, true)) | Err(_) => COMPILE_COSTS + length,
                };
                brought.map(|(index, _)| index)
            }
            RequestGrammar::Invalid(reason) => Err(reason),
        };
        state.stage = match index {
            Err(reason) => CheckStage::NotChecked(format!("not checked: {reason}")),
            Ok(_) if state.received > 0 => {
                let before = state.received;
                CheckStage::NotChecked(format!(
                    "not checked: its first {before} tokens came before this instance"
                ))
            }
            Ok(index) => {
                self.grammars.add_user(index);
                CheckStage::Pending(index)
            }
        };
        costs
    }

    /// Checks the tool calls of a row. `None` if the row has no part of a call.
    pub(crate) fn calls_row(
        &mut self,
        request: RequestId,
        ids: &[TokenId],
        waiting: u32,
        finish: FinishKind,
    ) -> Option<(CallResult, OnViolation)> {
        let calls = self.calls.as_mut()?;
        Some((calls.row(&self.vocabulary, request, ids, waiting, finish)?, calls.on_violation()))
    }

    /// Starts a batch with the work limit of the settings.
    pub fn begin_batch(&mut self) {
        if let Some(calls) = &mut self.calls {
            calls.begin_batch();
        }
        self.left = WorkLeft { general: self.work_per_call, for_last_rows: self.work_per_call };
    }

    /// Reserves the fixed work of the batch's rows, but at most three quarters of what is left.
    pub fn reserve_for(&mut self, rows: usize) {
        let left = self.left.general;
        self.left.general = left.saturating_sub(STORED_ROW_COSTS * rows).max(left / 4);
    }

    /// Ends a batch. The rest of its work limit goes to freeing ended requests.
    pub fn end_batch(&mut self) {
        self.left_to_open = self.work_per_call;
        let mut is_first = true;
        while let Some((_, tokens)) = self.ended.last() {
            let costs = TOKEN_COSTS * (1 + tokens / TOKENS_FREED_PER_TOKEN_COST) as usize;
            // Free at least one, so that each call makes progress.
            if costs > self.left.general && !is_first {
                return;
            }
            is_first = false;
            self.left.spend(costs);
            self.stored -= self.ended.pop().map_or(0, |(_, tokens)| tokens);
        }
    }

    /// Checks a request's row: its new ids, and the reason if it is the last. A request gets at most one
    /// judgement; afterwards its rows are not checked.
    ///
    /// Work beyond the call's limit waits for the request's next row. A last row has none and may use the
    /// additional limit.
    pub fn row(&mut self, request: RequestId, ids: &[TokenId], finish: FinishKind) -> Option<Judgement> {
        let is_last = finish != FinishKind::Running;
        let mut state = self.requests.get_mut(request)?;
        if matches!(state.stage, CheckStage::Opened) && self.left.is_some(is_last) {
            let costs = self.find_rule(request);
            self.left.spend(costs);
            state = self.requests.get_mut(request)?;
        }
        // The tokens before the first unchecked one.
        let (received, allowed) = (state.received, ids.len());
        let before = received - state.waiting.len() as u64;
        state.received += ids.len() as u64;
        match &mut state.stage {
            CheckStage::Unmatched => return None,
            CheckStage::NotChecked(reason) => {
                // After a fault many requests report at once. Those beyond the limit report with their next
                // row.
                if !self.left.is_some(is_last) {
                    return None;
                }
                let reason = std::mem::take(reason);
                return Some(Judgement { allowed, ..self.not_checked(request, reason) });
            }
            CheckStage::Opened | CheckStage::Pending(_) | CheckStage::Checked(..) => {}
        }
        let stores = match &state.stage {
            CheckStage::Pending(index) | CheckStage::Checked(index, _) => self.grammars.stores_tokens(*index),
            _ => false,
        };
        let mut over_limit = None;
        if stores {
            state.stored += ids.len() as u64;
            self.stored += ids.len() as u64;
            if self.stored > self.tokens_max {
                over_limit = Some(format!("{} tokens are stored, the limit", self.tokens_max));
            } else if state.received > REQUEST_TOKENS_MAX {
                over_limit = Some(format!("the limit is {REQUEST_TOKENS_MAX}"));
            }
        }
        if let Some(why) = over_limit {
            return Some(Judgement { allowed, ..self.judge(request, Finding::GaveUp { why }, before, ids) });
        }
        let mut all = std::mem::take(&mut state.waiting);
        self.waiting -= all.len();
        if !all.is_empty() {
            all.extend_from_slice(ids);
        }
        let ids = if all.is_empty() { ids } else { &all };
        let mut done = 0;
        loop {
            if done == ids.len() && !is_last {
                return None;
            }
            if !self.left.is_some(is_last) {
                break;
            }
            let matcher = match &mut state.stage {
                CheckStage::Checked(_, matcher) => matcher,
                CheckStage::Pending(index) => {
                    let index = *index;
                    let options = self.rules.options(state.rule);
                    let matcher =
                        self.grammars.matcher(index, options.whitespace_max, options.begins_after.as_ref());
                    state.stage = CheckStage::Checked(index, Box::new(matcher));
                    self.left.spend(if stores {
                        NEW_PARSER_COSTS + FIRST_TOKEN_COSTS
                    } else {
                        NEW_STREAM_COSTS
                    });
                    continue;
                }
                CheckStage::Opened | CheckStage::Unmatched | CheckStage::NotChecked(_) => return None,
            };
            let now = &ids[done..(done + 1).min(ids.len())];
            let result = match is_last && done + now.len() == ids.len() {
                true => matcher.end(&self.vocabulary, now, finish),
                false => matcher.push(&self.vocabulary, now),
            };
            self.left.spend(ROW_COSTS + matcher.take_costs());
            if let Err(finding) = result {
                let before = before + done as u64;
                let allowed = match finding {
                    // The token may be in an earlier row.
                    Finding::CannotContinue { .. }
                    | Finding::EndsText { .. }
                    | Finding::Whitespace { .. } => before.saturating_sub(received) as usize,
                    Finding::TooEarly { .. } | Finding::GaveUp { .. } => allowed,
                };
                return Some(Judgement { allowed, ..self.judge(request, finding, before, now) });
            }
            done += now.len();
            if is_last && done == ids.len() {
                return None;
            }
        }
        let (before, rest) = (before + done as u64, &ids[done..]);
        if is_last || self.waiting + rest.len() > WAITING_MAX {
            let why = "too much work at once".to_owned();
            return Some(Judgement { allowed, ..self.judge(request, Finding::GaveUp { why }, before, rest) });
        }
        self.waiting += rest.len();
        state.waiting = if all.is_empty() {
            rest.to_vec()
        } else {
            all.drain(..done);
            all
        };
        None
    }

    fn not_checked(&mut self, request: RequestId, reason: String) -> Judgement {
        self.left.spend(REPORT_COSTS);
        self.stop(request);
        Judgement { action: RowAction::Report, kind: FindingKind::NotChecked, reason, allowed: 0 }
    }

    /// Closes a request.
    pub fn close(&mut self, request: RequestId) {
        if let Some(calls) = &mut self.calls {
            calls.close(request);
        }
        self.stop(request);
    }

    /// Stops checking a request against its grammar.
    fn stop(&mut self, request: RequestId) {
        let Some(RequestCheck { stage, stored, waiting, .. }) = self.requests.remove(request) else { return };
        self.waiting -= waiting.len();
        match stage {
            CheckStage::Checked(index, matcher) => {
                self.grammars.remove_user(index);
                if stored > 0 {
                    self.ended.push((matcher, stored));
                    return;
                }
            }
            CheckStage::Pending(index) => self.grammars.remove_user(index),
            CheckStage::Opened | CheckStage::Unmatched | CheckStage::NotChecked(_) => {}
        }
        self.stored -= stored;
    }

    /// Judges a finding and stops checking the request. `before` is the number of its tokens before `ids`.
    fn judge(&mut self, request: RequestId, finding: Finding, before: u64, ids: &[TokenId]) -> Judgement {
        let rule = self.requests.get(request).map_or(0, |state| state.rule);
        if let (Finding::GaveUp { .. }, Some(CheckStage::Checked(index, matcher))) =
            (&finding, self.requests.get(request).map(|state| &state.stage))
            && matcher.is_past_limits()
        {
            // The lexer is shared: other requests would fail too.
            self.grammars.renew(*index);
        }
        self.left.spend(REPORT_COSTS);
        self.stop(request);
        let all = before + ids.len() as u64;
        let options = self.rules.options(rule);
        let most = options.whitespace_max;
        // The token's number in the request, from 1.
        let token = |at: usize| format!("token {} ({})", before + at as u64 + 1, self.shown(ids[at]));
        let ends = |at: usize| format!("{}: ends the text before the grammar is complete", token(at));
        let (kind, reason) = match finding {
            Finding::CannotContinue { at } => {
                (FindingKind::Violation, format!("{}: not allowed by the grammar", token(at)))
            }
            Finding::Whitespace { at } => {
                (FindingKind::Violation, format!("{}: over {most} bytes of whitespace in a row", token(at)))
            }
            Finding::EndsText { at } => (FindingKind::Violation, ends(at)),
            Finding::TooEarly { at: Some(at) } => (FindingKind::EarlyEnd, ends(at)),
            Finding::TooEarly { at: None } => {
                (FindingKind::EarlyEnd, format!("ended after {all} tokens, before the grammar is complete"))
            }
            Finding::GaveUp { why } => {
                let why: String = why.chars().take(48).collect();
                (FindingKind::NotChecked, format!("no longer checked after {before} tokens: {why}"))
            }
        };
        let action = match kind {
            FindingKind::Violation => match options.on_violation {
                OnViolation::Report => RowAction::Report,
                OnViolation::Finish => RowAction::Finish,
                OnViolation::Abort => RowAction::Abort,
            },
            FindingKind::EarlyEnd => match options.on_early_end {
                OnEarlyEnd::Report => RowAction::Report,
                OnEarlyEnd::Abort => RowAction::Abort,
            },
            FindingKind::NotChecked => RowAction::Report,
        };
        Judgement { action, kind, reason, allowed: 0 }
    }

    /// A token as a reason shows it: at most about 100 bytes.
    fn shown(&self, id: TokenId) -> String {
        let text = String::from_utf8_lossy(self.vocabulary.bytes(id));
        if text.is_empty() {
            return format!("id {id}");
        }
        let start: String = text.chars().take(12).collect();
        let more = if start.len() < text.len() { "…" } else { "" };
        format!("id {id}, {start:?}{more}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::tests::Words;

    #[test]
    fn a_request_over_a_limit_does_not_reset_what_its_grammar_has_learned() {
        let settings =
            r#"{"grammar": {"lark": "start: /(a|b){0,100}/"}, "work_per_call": 2, "tokens_max": 50}"#;
        let words = Words(&[]);
        let mut check = GrammarCheck::new(&serde_json::from_str(settings).unwrap(), &words).unwrap();
        let (rid, front_end, sink) = ("r".to_owned(), String::new(), String::new());
        let opened = Opened {
            request: 1,
            rid,
            front_end,
            sink,
            arrived_ms: 0,
            prompt_tokens: 5,
            received_tokens: 0,
            resumed: false,
        };
        let many = words.ids(&"ab".repeat(20));
        let (row, last) = ((&many[..], FinishKind::Running), (&many[..], FinishKind::Length));
        for (request, rows, why) in
            [(1, &[last][..], "too much work at once"), (2, &[row, row], "are stored")]
        {
            check.open(&Opened { request, ..opened.clone() });
            let learned = check.grammars.learned(0);
            let judged = rows.iter().find_map(|(ids, finish)| {
                check.begin_batch();
                let judged = check.row(request, ids, *finish);
                check.end_batch();
                judged
            });
            assert!(judged.unwrap().reason.contains(why));
            assert!(check.grammars.learned(0) >= learned, "{why}");
        }
    }
}
