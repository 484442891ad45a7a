//! Verdict lists that the token ids of a batch spell, for the guest `says` and for whoever checks the host's treatment of the answer.

/// The longest text that the contract allows, in bytes.
const TEXT_BYTES_MAX: usize = 256;
/// Most verdicts of an answer.
const VERDICTS_MAX: u8 = 16;

/// A verdict without the types of the contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spelled {
    /// May be past the last row, and may have a verdict already.
    pub row: u32,
    pub action: Action,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Replace(Tokens),
    Drop(String),
    Stop(String, Option<Tokens>),
    Length(Option<Tokens>),
    Abort(String, Option<Tokens>),
    Annotate(String),
    Route(String),
    SkipText,
    Hold(u32),
    Release,
    ReleaseAs(Tokens),
    ReleaseAndHold(u32),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    pub ids: Vec<i64>,
    pub text: Option<String>,
}

/// Reads bytes; zeros follow the last one.
struct Letters<'a>(&'a [i64]);

impl Letters<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first as u8
    }

    fn flag(&mut self) -> bool {
        self.next() & 1 == 1
    }

    fn row(&mut self) -> u32 {
        match self.next() {
            u8::MAX => u32::MAX,
            letter => u32::from(letter % 10),
        }
    }

    fn text(&mut self) -> String {
        let length = match self.next() {
            u8::MAX => TEXT_BYTES_MAX + 1,
            254 => TEXT_BYTES_MAX,
            letter => usize::from(letter % 8),
        };
        "x".repeat(length)
    }

    fn millis(&mut self) -> u32 {
        match self.next() {
            u8::MAX => u32::MAX,
            letter => u32::from(letter) * 20,
        }
    }

    fn tokens(&mut self) -> Tokens {
        let count = self.next() % 5;
        let ids = (0..count).map(|_| match self.next() {
            u8::MAX => i64::MAX,
            254 => i64::MIN,
            253 => -1,
            letter => i64::from(letter),
        });
        let ids = ids.collect();
        let text = self.flag().then(|| self.text());
        Tokens { ids, text }
    }

    fn some_tokens(&mut self) -> Option<Tokens> {
        self.flag().then(|| self.tokens())
    }

    fn action(&mut self) -> Action {
        match self.next() % 12 {
            0 => Action::Replace(self.tokens()),
            1 => Action::Drop(self.text()),
            2 => Action::Stop(self.text(), self.some_tokens()),
            3 => Action::Length(self.some_tokens()),
            4 => Action::Abort(self.text(), self.some_tokens()),
            5 => Action::Annotate(self.text()),
            6 if self.flag() => Action::Route("other".to_owned()),
            6 => Action::Route(self.text()),
            7 => Action::SkipText,
            8 => Action::Hold(self.millis()),
            9 => Action::Release,
            10 => Action::ReleaseAs(self.tokens()),
            _ => Action::ReleaseAndHold(self.millis()),
        }
    }
}

/// The verdicts that these ids spell.
pub fn spelled(ids: &[i64]) -> Vec<Spelled> {
    let mut letters = Letters(ids);
    let count = letters.next() % (VERDICTS_MAX + 1);
    (0..count).map(|_| Spelled { row: letters.row(), action: letters.action() }).collect()
}

impl Action {
    fn text(&self) -> &str {
        match self {
            Action::Drop(text)
            | Action::Stop(text, _)
            | Action::Abort(text, _)
            | Action::Annotate(text)
            | Action::Route(text) => text,
            _ => "",
        }
    }
}

/// Whether the contract allows this answer to a batch of `rows` rows.
pub fn is_allowed(verdicts: &[Spelled], rows: usize) -> bool {
    verdicts.iter().enumerate().all(|(at, verdict)| {
        (verdict.row as usize) < rows
            && verdict.action.text().len() <= TEXT_BYTES_MAX
            && verdicts[..at].iter().all(|earlier| earlier.row != verdict.row)
    })
}
