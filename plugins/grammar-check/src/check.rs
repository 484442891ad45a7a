//! The requests of a stream, and what is to become of them.

use afterbay_plugin::{FinishKind, Opened, RequestId, Requests, TokenId};

use crate::{
    Finding, Grammar, LEXER_STATES_MAX, Matcher, OnEarlyEnd, OnViolation, Settings, Tokenizer, Vocabulary,
};

/// The requests of a stream, each matched against the grammar.
pub struct GrammarCheck {
    settings: Settings,
    vocabulary: Vocabulary,
    grammar: Grammar,
    requests: Requests<Request>,
}

struct Request {
    matcher: Matcher,
    /// Tokens of the rows before.
    tokens: u64,
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

/// A row that is not what the grammar wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// What is to become of it.
    pub action: Action,
    /// Why, for the log and the verdict: at most 256 bytes.
    pub reason: String,
}

impl GrammarCheck {
    /// Reads the vocabulary and compiles the grammar. `read` has the files that settings name.
    ///
    /// # Errors
    /// What is wrong with the settings, or with the tokenizer, in words.
    pub fn new(
        settings: Settings,
        tokenizer: &impl Tokenizer,
        read: impl FnOnce(&str) -> Result<String, String>,
    ) -> Result<Self, String> {
        Self::within(LEXER_STATES_MAX, settings, tokenizer, read)
    }

    pub(crate) fn within(
        lexer_states_max: usize,
        settings: Settings,
        tokenizer: &impl Tokenizer,
        read: impl FnOnce(&str) -> Result<String, String>,
    ) -> Result<Self, String> {
        let text = settings.grammar.text(read)?;
        let vocabulary = Vocabulary::read(tokenizer)?;
        let grammar = Grammar::compile_within(lexer_states_max, &text, &vocabulary)?;
        Ok(Self { settings, vocabulary, grammar, requests: Requests::new() })
    }

    /// A request begins. False where it is not checked: its first tokens came before this instance, so that its place in
    /// the grammar is not known.
    pub fn open(&mut self, request: &Opened) -> bool {
        let known = request.received_tokens == 0;
        if known {
            let matcher = self.grammar.matcher(self.settings.whitespace_max);
            self.requests.insert(request.request, Request { matcher, tokens: 0 });
        }
        known
    }

    /// A request's row: its new ids, and whether and why it is the last. One judgement a request at most: after it, and
    /// for a request that is not checked, there is none.
    pub fn row(&mut self, request: RequestId, ids: &[TokenId], finish: FinishKind) -> Option<Judgement> {
        let Request { matcher, tokens } = self.requests.get_mut(request)?;
        let found = match finish {
            FinishKind::Running => matcher.push(&self.vocabulary, ids),
            _ => matcher.end(&self.vocabulary, ids, finish),
        };
        let before = *tokens;
        *tokens += ids.len() as u64;
        let finding = found.err()?;
        let all = *tokens;
        // What it keeps of the text is not needed any more.
        self.requests.remove(request);
        Some(self.judge(finding, before, all, ids))
    }

    /// A request has ended.
    pub fn close(&mut self, request: RequestId) {
        self.requests.remove(request);
    }

    fn judge(&mut self, finding: Finding, before: u64, all: u64, ids: &[TokenId]) -> Judgement {
        let violation = match self.settings.on_violation {
            OnViolation::Report => Action::Report,
            OnViolation::Finish => Action::Finish,
            OnViolation::Abort => Action::Abort,
        };
        let early_end = match self.settings.on_early_end {
            OnEarlyEnd::Report => Action::Report,
            OnEarlyEnd::Abort => Action::Abort,
        };
        // Counted from 1, in the request.
        let token = |at: usize| format!("token {} ({})", before + at as u64 + 1, self.shown(ids[at]));
        let (action, reason) = match finding {
            Finding::CannotContinue { at } => {
                (violation, format!("{}: not allowed by the grammar", token(at)))
            }
            Finding::Whitespace { at } => {
                let most = self.settings.whitespace_max;
                (violation, format!("{}: over {most} bytes of whitespace in a row", token(at)))
            }
            Finding::TooEarly { at: Some(at) } => {
                (early_end, format!("{}: ends the text before the grammar is complete", token(at)))
            }
            Finding::TooEarly { at: None } => {
                (early_end, format!("ended after {all} tokens, before the grammar is complete"))
            }
            Finding::GaveUp { why } => {
                // The lexer is shared: others would give up too.
                self.grammar.renew();
                let why: String = why.chars().take(48).collect();
                (Action::Report, format!("not checked any further after {before} tokens: {why}"))
            }
        };
        Judgement { action, reason }
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
