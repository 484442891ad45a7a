//! The requests of a stream, and what is to become of them.

use afterbay_plugin::{
    Attributes, ConfigureError, FinishKind, Opened, RequestId, Requests, TokenId, bad_setting,
};

use crate::rules::Rules;
use crate::{Finding, LEXER_STATES_MAX, Matcher, OnEarlyEnd, OnViolation, Settings, Tokenizer, Vocabulary};

/// Making a matcher takes as long as so many tokens,
const MAKING_COSTS: usize = 4;
/// and its first token as long as so many more, since it has no memory yet.
const FIRST_COSTS: usize = 4;
/// After so many tokens of a row it is looked whether there may be more.
const AT_A_TIME: usize = 16;
/// A transition that the lexer learns takes as long as so many.
const LEARNING_COSTS: usize = 8;
/// Forgetting a text takes as long as one for so many of its tokens.
const FORGETTING_TOKENS: u64 = 16;
/// The most tokens of a request that are checked: its text is forgotten in one go, which must fit into a call.
pub const REQUEST_TOKENS_MAX: u64 = 16_384;

/// The requests of a stream, each matched against its grammar.
pub struct GrammarCheck {
    vocabulary: Vocabulary,
    rules: Rules,
    requests: Requests<Request>,
    /// What has ended and is not forgotten yet, with its tokens: they take long enough to be forgotten a few in a call.
    ended: Vec<(Matcher, u64)>,
    /// Tokens of all requests, also of those that have ended.
    kept: u64,
    tokens_max: u64,
    work_per_call: usize,
    /// What may still be done in this call: for all rows, and for last ones on top.
    left: usize,
    left_for_ends: usize,
}

struct Request {
    rule: usize,
    /// None: it has not begun.
    matcher: Option<Matcher>,
    /// Tokens that came.
    received: u64,
    /// The last of them, that wait to be checked.
    waiting: Vec<TokenId>,
}

/// Whether a request is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// It is.
    Checked,
    /// No grammar is for it.
    NotMeant,
    /// Its first tokens came before this instance, so that its place in the grammar is not known.
    Missed,
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
    /// It is checked no further: not its fault.
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
}

impl GrammarCheck {
    /// Reads the vocabulary and compiles the grammars.
    ///
    /// # Errors
    /// What is wrong with the settings, or with the tokenizer.
    pub fn new(settings: &Settings, tokenizer: &impl Tokenizer) -> Result<Self, ConfigureError> {
        Self::within(LEXER_STATES_MAX, settings, tokenizer)
    }

    pub(crate) fn within(
        lexer_states_max: usize,
        settings: &Settings,
        tokenizer: &impl Tokenizer,
    ) -> Result<Self, ConfigureError> {
        if settings.work_per_call == 0 {
            return Err(bad_setting("/work_per_call", "is 0, must be 1 or more"));
        }
        let vocabulary = Vocabulary::read(tokenizer)?;
        let mut rules = Rules::compile(lexer_states_max, settings, tokenizer, &vocabulary)?;
        rules.spare(usize::MAX);
        let work_per_call = settings.work_per_call as usize;
        Ok(Self {
            vocabulary,
            rules,
            requests: Requests::new(),
            ended: Vec::new(),
            kept: 0,
            tokens_max: settings.tokens_max,
            work_per_call,
            left: work_per_call,
            left_for_ends: work_per_call,
        })
    }

    /// A request begins. No more is done than to remember it.
    pub fn open(&mut self, request: &Opened) -> Opening {
        let Some(rule) = self.rules.of(&request.rid, &Attributes::of(request.request)) else {
            return Opening::NotMeant;
        };
        if request.received_tokens > 0 {
            return Opening::Missed;
        }
        let opened = Request { rule, matcher: None, received: 0, waiting: Vec::new() };
        self.requests.insert(request.request, opened);
        Opening::Checked
    }

    /// A batch begins: as much may be done in it as the settings say.
    pub fn begin_batch(&mut self) {
        (self.left, self.left_for_ends) = (self.work_per_call, self.work_per_call);
    }

    /// A batch has ended. With what is left of its measure ended requests are forgotten, then the next ones made ready.
    pub fn end_batch(&mut self) {
        let mut is_first = true;
        while let Some((_, tokens)) = self.ended.last() {
            let costs = 1 + (tokens / FORGETTING_TOKENS) as usize;
            // One at least, so that each call gets on.
            if costs > self.left && !is_first {
                return;
            }
            (is_first, self.left) = (false, self.left.saturating_sub(costs));
            self.kept -= self.ended.pop().map_or(0, |(_, tokens)| tokens);
        }
        self.rules.spare(self.left / MAKING_COSTS);
    }

    /// A request's row: its new ids, and whether and why it is the last. One judgement a request at most: after it, and
    /// for a request that is not checked, there is none.
    ///
    /// What is over the call's measure waits for the request's next row. A last row has none: it may take as much again.
    pub fn row(&mut self, request: RequestId, ids: &[TokenId], finish: FinishKind) -> Option<Judgement> {
        let state = self.requests.get_mut(request)?;
        let checked = self.rules.checked(state.rule)?;
        state.received += ids.len() as u64;
        self.kept += ids.len() as u64;
        let rule = state.rule;
        let is_last = finish != FinishKind::Running;
        let full = if self.kept > self.tokens_max {
            Some(format!("{} tokens are kept already, the limit", self.tokens_max))
        } else if state.received > REQUEST_TOKENS_MAX {
            Some(format!("the limit is {REQUEST_TOKENS_MAX}"))
        } else {
            None
        };
        if let Some(why) = full {
            let before = state.received - (state.waiting.len() + ids.len()) as u64;
            return Some(self.judge(request, rule, Finding::GaveUp { why }, before, ids));
        }
        let mut all = std::mem::take(&mut state.waiting);
        let mut ids = if all.is_empty() {
            ids
        } else {
            all.extend_from_slice(ids);
            &all
        };
        while !ids.is_empty() || is_last {
            if self.left == 0 && (!is_last || self.left_for_ends == 0) {
                break;
            }
            let mut costs = 0;
            let matcher = state.matcher.get_or_insert_with(|| {
                let (matcher, made) = checked.matcher();
                costs = FIRST_COSTS + if made { MAKING_COSTS } else { 0 };
                matcher
            });
            let (now, later) = ids.split_at(ids.len().min(AT_A_TIME));
            let (learned, work) = (checked.learned(), matcher.work());
            let found = match later.is_empty() {
                true => matcher.end(&self.vocabulary, now, finish),
                false => matcher.push(&self.vocabulary, now),
            };
            costs += now.len() + matcher.work().saturating_sub(work);
            costs += LEARNING_COSTS * checked.learned().saturating_sub(learned);
            self.left_for_ends = self.left_for_ends.saturating_sub(costs.saturating_sub(self.left));
            self.left = self.left.saturating_sub(costs);
            if let Err(finding) = found {
                if matches!(finding, Finding::GaveUp { .. }) {
                    // The lexer is shared: others would give up too.
                    checked.renew();
                }
                let before = state.received - ids.len() as u64;
                return Some(self.judge(request, rule, finding, before, now));
            }
            ids = later;
            if is_last && ids.is_empty() {
                return None;
            }
        }
        if is_last {
            let before = state.received - ids.len() as u64;
            let why = "too much at once".to_owned();
            return Some(self.judge(request, rule, Finding::GaveUp { why }, before, ids));
        }
        state.waiting.extend_from_slice(ids);
        None
    }

    /// A request has ended.
    pub fn close(&mut self, request: RequestId) {
        match self.requests.remove(request) {
            Some(Request { matcher: Some(matcher), received, .. }) => self.ended.push((matcher, received)),
            Some(Request { matcher: None, received, .. }) => self.kept -= received,
            None => {}
        }
    }

    /// What is to become of a request: it is checked no further. `before` tokens of it came before these.
    fn judge(
        &mut self,
        request: RequestId,
        rule: usize,
        finding: Finding,
        before: u64,
        ids: &[TokenId],
    ) -> Judgement {
        self.close(request);
        let all = before + ids.len() as u64;
        let most = self.rules.checked(rule).map_or(0, |checked| checked.whitespace_max);
        // Counted from 1, in the request.
        let token = |at: usize| format!("token {} ({})", before + at as u64 + 1, self.shown(ids[at]));
        let (kind, reason) = match finding {
            Finding::CannotContinue { at } => {
                (Kind::Violation, format!("{}: not allowed by the grammar", token(at)))
            }
            Finding::Whitespace { at } => {
                (Kind::Violation, format!("{}: over {most} bytes of whitespace in a row", token(at)))
            }
            Finding::TooEarly { at: Some(at) } => {
                (Kind::EarlyEnd, format!("{}: ends the text before the grammar is complete", token(at)))
            }
            Finding::TooEarly { at: None } => {
                (Kind::EarlyEnd, format!("ended after {all} tokens, before the grammar is complete"))
            }
            Finding::GaveUp { why } => {
                let why: String = why.chars().take(48).collect();
                (Kind::GivenUp, format!("not checked any further after {before} tokens: {why}"))
            }
        };
        let Some(checked) = self.rules.checked(rule) else {
            return Judgement { action: Action::Report, kind, reason };
        };
        let action = match kind {
            Kind::Violation => match checked.on_violation {
                OnViolation::Report => Action::Report,
                OnViolation::Finish => Action::Finish,
                OnViolation::Abort => Action::Abort,
            },
            Kind::EarlyEnd => match checked.on_early_end {
                OnEarlyEnd::Report => Action::Report,
                OnEarlyEnd::Abort => Action::Abort,
            },
            Kind::GivenUp => Action::Report,
        };
        Judgement { action, kind, reason }
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
        let (rid, http_worker_ipc) = ("r".to_owned(), String::new());
        let opened =
            Opened { request: 1, rid, http_worker_ipc, prompt_tokens: 5, received_tokens: 0, resumed: false };
        let many = words.ids(&"ab".repeat(20));
        let (row, last) = ((&many[..], FinishKind::Running), (&many[..], FinishKind::Length));
        for (request, rows, why) in [(1, &[last][..], "too much at once"), (2, &[row, row], "kept already")] {
            check.open(&Opened { request, ..opened.clone() });
            let learned = check.rules.checked(0).unwrap().learned();
            let judged = rows.iter().find_map(|(ids, finish)| {
                check.begin_batch();
                let judged = check.row(request, ids, *finish);
                check.end_batch();
                judged
            });
            assert!(judged.unwrap().reason.contains(why));
            assert!(check.rules.checked(0).unwrap().learned() >= learned, "{why}");
        }
    }
}
