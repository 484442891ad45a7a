//! The requests of a stream, and what is to become of them.

use afterbay_plugin::{
    Attributes, ConfigureError, FinishKind, Opened, RequestId, Requests, TokenId, bad_setting,
};

use crate::grammar::Limits;
use crate::grammars::{Grammars, State};
use crate::matcher::TOKEN_COSTS;
use crate::rules::{Against, Rules};
use crate::settings::GRAMMARS_MAX;
use crate::{Compiler, Finding, Matcher, OnEarlyEnd, OnViolation, Settings, Tokenizer, Vocabulary};

/// Making a parser costs as much as so many tokens,
const MAKING_COSTS: usize = 4 * TOKEN_COSTS;
/// and its first token so much more, since it has no memory yet.
const FIRST_COSTS: usize = 4 * TOKEN_COSTS;
/// To ask for a request's attributes, and to read so many bytes of them.
const ATTRIBUTES_COSTS: usize = TOKEN_COSTS;
const ATTRIBUTE_BYTES: usize = 8;
/// A row, whatever it holds,
const ROW_COSTS: usize = 1;
/// and one of which the tokens are kept for the next.
const KEEPING_COSTS: usize = 2;
/// To say what was found of a request.
const TELLING_COSTS: usize = 2 * TOKEN_COSTS;
/// Forgetting a text costs as much as a token for so many of its own.
const FORGETTING_TOKENS: u64 = 16;
/// So many tokens of all requests wait at most: what comes on top, of a request that is behind, is not checked.
const WAITING_MAX: usize = 1 << 16;
/// The most tokens of a request that are checked: its text is forgotten in one go, which must fit into a call.
pub const REQUEST_TOKENS_MAX: u64 = 16_384;

/// The requests of a stream, each matched against its grammar.
pub struct GrammarCheck {
    vocabulary: Vocabulary,
    rules: Rules,
    grammars: Grammars,
    requests: Requests<Request>,
    /// What has ended and is not forgotten yet, with its tokens: they take long enough to be forgotten a few in a call.
    ended: Vec<(Box<Matcher>, u64)>,
    /// Tokens of all requests, also of those that have ended.
    kept: u64,
    tokens_max: u64,
    /// Tokens of all requests that wait to be checked.
    waiting: usize,
    work_per_call: usize,
    /// What may still be done in this call.
    left: Left,
    /// What may still be done before the next batch, where requests are opened.
    left_to_open: usize,
    /// A grammar was compiled since the last batch: one at most is, in a call.
    has_compiled: bool,
}

/// What may still be done in a call.
#[derive(Clone, Copy)]
struct Left {
    for_all: usize,
    /// For last rows on top.
    for_ends: usize,
}

impl Left {
    fn is_some(self, is_last: bool) -> bool {
        self.for_all > 0 || (is_last && self.for_ends > 0)
    }

    fn spend(&mut self, costs: usize) {
        self.for_ends = self.for_ends.saturating_sub(costs.saturating_sub(self.for_all));
        self.for_all = self.for_all.saturating_sub(costs);
    }
}

struct Request {
    rid: Box<str>,
    /// The rule by which it is checked.
    rule: usize,
    stage: Stage,
    /// Tokens that came.
    received: u64,
    /// Those of them that came to this instance and count as kept.
    kept: u64,
    /// The last of them, that wait to be checked.
    waiting: Vec<TokenId>,
}

/// How far the check of a request has come.
enum Stage {
    /// No rule was looked for.
    Opened,
    /// Nothing is for it.
    NotMeant,
    /// It is not checked, which is told with its next row.
    NotChecked(String),
    /// It is to be checked against the grammar of this place,
    Meant(usize),
    /// and is.
    Checked(usize, Box<Matcher>),
}

/// What is to become of a request's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It goes on; the log has why.
    Report,
    /// It is the request's last: its reader sees a stop.
    Finish,
    /// It is the request's last: its reader sees an abort.
    Abort,
}

/// What was found, for the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The output is not of the grammar.
    Violation,
    /// It ended too early.
    EarlyEnd,
    /// It is not checked, or no further: not its fault.
    GivenUp,
}

/// A row that is not what the grammar wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// What is to become of it.
    pub action: Action,
    /// What was found.
    pub kind: Kind,
    /// Why, for the log and the verdict: at most 256 bytes.
    pub reason: String,
    /// So many of the row's ids came before what is not allowed: all, where that is none of them.
    pub allowed: usize,
}

impl GrammarCheck {
    /// Reads the vocabulary and compiles the grammars.
    ///
    /// # Errors
    /// What is wrong with the settings, or with the tokenizer.
    pub fn new(settings: &Settings, tokenizer: &impl Tokenizer) -> Result<Self, ConfigureError> {
        Self::within(Limits::OF_SETTINGS, settings, tokenizer)
    }

    pub(crate) fn within(
        of_settings: Limits,
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
        let compiler = Compiler::new(&vocabulary)?;
        let mut grammars = Grammars::new(compiler, of_settings, settings.grammars_max as usize);
        let rules = Rules::compile(settings, tokenizer, &mut grammars)?;
        grammars.spare(usize::MAX);
        let work_per_call = settings.work_per_call as usize * TOKEN_COSTS;
        Ok(Self {
            vocabulary,
            rules,
            grammars,
            requests: Requests::new(),
            ended: Vec::new(),
            kept: 0,
            tokens_max: settings.tokens_max,
            waiting: 0,
            work_per_call,
            left: Left { for_all: work_per_call, for_ends: work_per_call },
            left_to_open: work_per_call,
            has_compiled: false,
        })
    }

    /// A request begins. Its rule is looked for now or, where many begin at once, with its first row.
    pub fn open(&mut self, request: &Opened) {
        let opened = Request {
            rid: request.rid.as_str().into(),
            rule: 0,
            stage: Stage::Opened,
            received: request.received_tokens,
            kept: 0,
            waiting: Vec::new(),
        };
        self.requests.insert(request.request, opened);
        self.begin(request.request);
    }

    /// The attributes of a request are others. It is checked as they say if it has no tokens yet; what goes on otherwise is
    /// said.
    pub fn changed(&mut self, request: RequestId) -> Option<String> {
        let state = self.requests.get_mut(request)?;
        if state.received == 0 {
            if let Stage::Meant(place) = std::mem::replace(&mut state.stage, Stage::Opened) {
                self.grammars.leave(place);
            }
            self.begin(request);
            return None;
        }
        let brought = self.rules.brought(&Attributes::of(request))?;
        let received = state.received;
        match &state.stage {
            Stage::NotMeant => {
                let why = format!("not checked: its grammar came after its first {received} tokens");
                state.stage = Stage::NotChecked(why);
                None
            }
            Stage::Meant(place) | Stage::Checked(place, _)
                if brought.as_ref() != Ok(self.grammars.text(*place)) =>
            {
                Some(format!("goes on with the grammar it began with: another came after {received} tokens"))
            }
            _ => None,
        }
    }

    /// Looks for a request's rule, and compiles a grammar that it brings, where that may still be done before the batch.
    fn begin(&mut self, request: RequestId) {
        if self.left_to_open == 0 {
            return;
        }
        let costs = self.meet(request);
        self.left_to_open = self.left_to_open.saturating_sub(costs);
        // It takes as long as a call may.
        if !self.has_compiled && self.left_to_open > self.work_per_call / 2 && self.grammars.compile_next() {
            (self.has_compiled, self.left_to_open) = (true, 0);
        }
    }

    /// Looks for a request's rule. What that costs.
    fn meet(&mut self, request: RequestId) -> usize {
        let Some(state) = self.requests.get_mut(request) else { return 0 };
        let (rule, against) = self.rules.of(&state.rid, &Attributes::of(request));
        state.rule = rule;
        let mut costs = if self.rules.read_attributes() { ATTRIBUTES_COSTS } else { ROW_COSTS };
        let place = match against {
            Against::Nothing => {
                state.stage = Stage::NotMeant;
                self.kept -= std::mem::take(&mut state.kept);
                self.waiting -= std::mem::take(&mut state.waiting).len();
                // It may yet bring one: then it is to be known how many tokens came before.
                if !self.rules.may_be_brought() {
                    self.requests.remove(request);
                }
                return costs;
            }
            Against::Place(place) => Ok(place),
            Against::Text(text) => {
                costs += text.len() / ATTRIBUTE_BYTES;
                self.grammars.bring(text)
            }
            Against::Wrong(why) => Err(why),
        };
        state.stage = match place {
            Err(why) => Stage::NotChecked(format!("not checked: {why}")),
            Ok(_) if state.received > 0 => {
                let before = state.received;
                Stage::NotChecked(format!("not checked: its first {before} tokens came before this instance"))
            }
            Ok(place) => {
                self.grammars.enter(place);
                Stage::Meant(place)
            }
        };
        costs
    }

    /// A batch begins: as much may be done in it as the settings say.
    pub fn begin_batch(&mut self) {
        self.left = Left { for_all: self.work_per_call, for_ends: self.work_per_call };
        // It takes as long as a call may.
        if self.grammars.compile_next() {
            self.left.for_all = 0;
        }
    }

    /// The batch has so many rows: what they cost by themselves is not left, but a quarter is.
    pub fn expect(&mut self, rows: usize) {
        let all = self.left.for_all;
        self.left.for_all = all.saturating_sub(KEEPING_COSTS * rows).max(all / 4);
    }

    /// A batch has ended. With what is left of its measure ended requests are forgotten, then the next ones made ready.
    pub fn end_batch(&mut self) {
        (self.left_to_open, self.has_compiled) = (self.work_per_call, false);
        let mut is_first = true;
        while let Some((_, tokens)) = self.ended.last() {
            let costs = TOKEN_COSTS * (1 + tokens / FORGETTING_TOKENS) as usize;
            // One at least, so that each call gets on.
            if costs > self.left.for_all && !is_first {
                return;
            }
            is_first = false;
            self.left.spend(costs);
            self.kept -= self.ended.pop().map_or(0, |(_, tokens)| tokens);
        }
        self.grammars.spare(self.left.for_all / MAKING_COSTS);
    }

    /// A request's row: its new ids, and whether and why it is the last. One judgement a request at most: after it, and
    /// for a request that is not checked, there is none.
    ///
    /// What is over the call's measure waits for the request's next row. A last row has none: it may take as much again.
    pub fn row(&mut self, request: RequestId, ids: &[TokenId], finish: FinishKind) -> Option<Judgement> {
        let is_last = finish != FinishKind::Running;
        if matches!(self.requests.get(request)?.stage, Stage::Opened) && self.left.is_some(is_last) {
            let costs = self.meet(request);
            self.left.spend(costs);
        }
        let state = self.requests.get_mut(request)?;
        // Of those that are yet to be checked.
        let (came, allowed) = (state.received, ids.len());
        let before = came - state.waiting.len() as u64;
        state.received += ids.len() as u64;
        match &mut state.stage {
            Stage::NotMeant => return None,
            Stage::NotChecked(why) => {
                // After a fault many are to be told of at once: those that are over go unsaid until their next row.
                if !self.left.is_some(is_last) {
                    return None;
                }
                let reason = std::mem::take(why);
                return Some(Judgement { allowed, ..self.not_checked(request, reason) });
            }
            Stage::Opened | Stage::Meant(_) | Stage::Checked(..) => {}
        }
        state.kept += ids.len() as u64;
        self.kept += ids.len() as u64;
        let full = if self.kept > self.tokens_max {
            Some(format!("{} tokens are kept already, the limit", self.tokens_max))
        } else if state.received > REQUEST_TOKENS_MAX {
            Some(format!("the limit is {REQUEST_TOKENS_MAX}"))
        } else {
            None
        };
        if let Some(why) = full {
            return Some(Judgement { allowed, ..self.judge(request, Finding::GaveUp { why }, before, ids) });
        }
        let mut all = std::mem::take(&mut state.waiting);
        self.waiting -= all.len();
        if !all.is_empty() {
            all.extend_from_slice(ids);
        }
        let ids = if all.is_empty() { ids } else { &all };
        let mut done = 0;
        let why_not = loop {
            if done == ids.len() && !is_last {
                return None;
            }
            if !self.left.is_some(is_last) {
                break "too much at once";
            }
            let matcher = match &mut state.stage {
                Stage::Checked(_, matcher) => matcher,
                Stage::Meant(place) => {
                    let place = *place;
                    match self.grammars.state(place) {
                        State::Compiled(_) => {}
                        State::New => break "its grammar was yet to be compiled",
                        State::Wrong(why) => {
                            let reason = format!("not checked: its grammar cannot be compiled: {why}");
                            return Some(Judgement { allowed, ..self.not_checked(request, reason) });
                        }
                    }
                    let (matcher, is_made) = self.grammars.matcher(place, self.rules.how(state.rule))?;
                    state.stage = Stage::Checked(place, Box::new(matcher));
                    self.left.spend(FIRST_COSTS + if is_made { MAKING_COSTS } else { 0 });
                    continue;
                }
                Stage::Opened | Stage::NotMeant | Stage::NotChecked(_) => return None,
            };
            let now = &ids[done..(done + 1).min(ids.len())];
            let found = match is_last && done + now.len() == ids.len() {
                true => matcher.end(&self.vocabulary, now, finish),
                false => matcher.push(&self.vocabulary, now),
            };
            self.left.spend(ROW_COSTS + matcher.take_costs());
            if let Err(finding) = found {
                let before = before + done as u64;
                let allowed = match finding {
                    // It may stand in an earlier row.
                    Finding::CannotContinue { .. }
                    | Finding::EndsText { .. }
                    | Finding::Whitespace { .. } => before.saturating_sub(came) as usize,
                    Finding::TooEarly { .. } | Finding::GaveUp { .. } => allowed,
                };
                return Some(Judgement { allowed, ..self.judge(request, finding, before, now) });
            }
            done += now.len();
            if is_last && done == ids.len() {
                return None;
            }
        };
        let (before, rest) = (before + done as u64, &ids[done..]);
        if is_last || self.waiting + rest.len() > WAITING_MAX {
            let why = why_not.to_owned();
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
        self.left.spend(TELLING_COSTS);
        self.close(request);
        Judgement { action: Action::Report, kind: Kind::GivenUp, reason, allowed: 0 }
    }

    /// A request has ended.
    pub fn close(&mut self, request: RequestId) {
        let Some(Request { stage, kept, waiting, .. }) = self.requests.remove(request) else { return };
        self.waiting -= waiting.len();
        match stage {
            Stage::Checked(place, matcher) => {
                self.grammars.leave(place);
                self.ended.push((matcher, kept));
                return;
            }
            Stage::Meant(place) => self.grammars.leave(place),
            Stage::Opened | Stage::NotMeant | Stage::NotChecked(_) => {}
        }
        self.kept -= kept;
    }

    /// What is to become of a request: it is checked no further. `before` tokens of it came before these.
    fn judge(&mut self, request: RequestId, finding: Finding, before: u64, ids: &[TokenId]) -> Judgement {
        let rule = self.requests.get(request).map_or(0, |state| state.rule);
        if let (Finding::GaveUp { .. }, Some(Stage::Checked(place, matcher))) =
            (&finding, self.requests.get(request).map(|state| &state.stage))
            && matcher.is_past_limits()
        {
            // The lexer is shared: others would give up too.
            self.grammars.renew(*place);
        }
        self.left.spend(TELLING_COSTS);
        self.close(request);
        let all = before + ids.len() as u64;
        let how = self.rules.how(rule);
        let most = how.whitespace_max;
        // Counted from 1, in the request.
        let token = |at: usize| format!("token {} ({})", before + at as u64 + 1, self.shown(ids[at]));
        let ends = |at: usize| format!("{}: ends the text before the grammar is complete", token(at));
        let (kind, reason) = match finding {
            Finding::CannotContinue { at } => {
                (Kind::Violation, format!("{}: not allowed by the grammar", token(at)))
            }
            Finding::Whitespace { at } => {
                (Kind::Violation, format!("{}: over {most} bytes of whitespace in a row", token(at)))
            }
            Finding::EndsText { at } => (Kind::Violation, ends(at)),
            Finding::TooEarly { at: Some(at) } => (Kind::EarlyEnd, ends(at)),
            Finding::TooEarly { at: None } => {
                (Kind::EarlyEnd, format!("ended after {all} tokens, before the grammar is complete"))
            }
            Finding::GaveUp { why } => {
                let why: String = why.chars().take(48).collect();
                (Kind::GivenUp, format!("not checked any further after {before} tokens: {why}"))
            }
        };
        let action = match kind {
            Kind::Violation => match how.on_violation {
                OnViolation::Report => Action::Report,
                OnViolation::Finish => Action::Finish,
                OnViolation::Abort => Action::Abort,
            },
            Kind::EarlyEnd => match how.on_early_end {
                OnEarlyEnd::Report => Action::Report,
                OnEarlyEnd::Abort => Action::Abort,
            },
            Kind::GivenUp => Action::Report,
        };
        Judgement { action, kind, reason, allowed: 0 }
    }

    /// A token as a reason shows it: at most some 100 bytes.
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
    fn what_was_learned_of_a_grammar_stays_where_a_request_is_given_up_for_want_of_room() {
        let settings = r#"{"grammar": {"regex": "(a|b){0,100}"}, "work_per_call": 2, "tokens_max": 50}"#;
        let words = Words(&[]);
        let mut check = GrammarCheck::new(&serde_json::from_str(settings).unwrap(), &words).unwrap();
        let (rid, http_worker_ipc, sink) = ("r".to_owned(), String::new(), String::new());
        let opened = Opened {
            request: 1,
            rid,
            http_worker_ipc,
            sink,
            prompt_tokens: 5,
            received_tokens: 0,
            resumed: false,
        };
        let many = words.ids(&"ab".repeat(20));
        let (row, last) = ((&many[..], FinishKind::Running), (&many[..], FinishKind::Length));
        for (request, rows, why) in [(1, &[last][..], "too much at once"), (2, &[row, row], "kept already")] {
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
