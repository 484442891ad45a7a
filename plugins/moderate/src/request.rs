//! The text of one request that its reader does not have, and the windows that the service judges.

use std::collections::VecDeque;

use afterbay_plugin::call::CallId;
use afterbay_plugin::text::Vocabulary;
use afterbay_plugin::{Row, TokenId};

/// Windows of one request that the service has at once. Further text waits and makes the next window longer. The
/// last window of a request does not wait.
const WINDOWS_MAX: usize = 4;

/// The service's judgement of a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// The text may pass.
    Allowed,
    /// The text may not pass, with the service's reason.
    Blocked(Option<String>),
}

/// The text of one request.
pub struct RequestText {
    rid: String,
    /// The end of the prompt.
    prompt: Option<String>,
    /// The end of the text that is in windows, as context for the next window.
    context: Vec<u8>,
    /// The held rows that are in no window.
    next: HeldText,
    windows: VecDeque<Window>,
    is_ended: bool,
}

/// A window that the service has.
struct Window {
    call: CallId,
    held: HeldText,
    judgement: Option<Judgement>,
}

/// The content of held rows.
#[derive(Default)]
struct HeldText {
    ids: Vec<TokenId>,
    text: Vec<u8>,
    /// The numbers of ids and bytes of each row.
    rows: VecDeque<(usize, usize)>,
}

/// The consequence of judgements for a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Settled {
    /// The first window is not judged yet.
    Nothing,
    /// This many rows may pass.
    Release(u32),
    /// The request ends. The reader may have these ids and this text of the held rows.
    Blocked { ids: Vec<TokenId>, text: Vec<u8>, reason: Option<String> },
}

impl HeldText {
    fn append(&mut self, other: HeldText) {
        self.ids.extend(other.ids);
        self.text.extend(other.text);
        self.rows.extend(other.rows);
    }

    /// Removes the first rows. Returns how many rows are left to remove.
    fn remove_first(&mut self, rows: usize) -> usize {
        let (mut ids, mut bytes, mut left) = (0, 0, rows);
        while left > 0
            && let Some((of_ids, of_bytes)) = self.rows.pop_front()
        {
            (ids, bytes, left) = (ids + of_ids, bytes + of_bytes, left - 1);
        }
        self.ids.drain(..ids);
        self.text.drain(..bytes);
        left
    }
}

impl RequestText {
    pub fn new(rid: &str, prompt: Option<String>) -> Self {
        Self {
            rid: rid.to_owned(),
            prompt,
            context: Vec::new(),
            next: HeldText::default(),
            windows: VecDeque::new(),
            is_ended: false,
        }
    }

    /// Whether the plugin has ended the request.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    fn held(&mut self) -> impl Iterator<Item = &mut HeldText> {
        self.windows.iter_mut().map(|window| &mut window.held).chain([&mut self.next])
    }

    /// Forgets the first rows if the host holds fewer rows than the plugin knows: they left unjudged.
    pub fn forget_rows_that_left(&mut self, waiting: usize) {
        let known: usize = self.held().map(|held| held.rows.len()).sum();
        let mut left = known.saturating_sub(waiting);
        for held in self.held() {
            left = held.remove_first(left);
        }
    }

    /// Forgets all rows: none is held any more.
    pub fn rows_left(&mut self) {
        self.forget_rows_that_left(0);
    }

    /// Adds a row that is to be held. Returns false if the row may pass at once: it has no text, and no row waits.
    pub fn add(&mut self, row: Row<'_>, vocabulary: &Vocabulary) -> bool {
        let before = self.next.text.len();
        vocabulary.append(row, &mut self.next.text);
        let bytes = self.next.text.len() - before;
        if bytes == 0 && self.held().all(|held| held.rows.is_empty()) {
            return false;
        }
        self.next.ids.extend_from_slice(row.ids());
        self.next.rows.push_back((row.ids().len(), bytes));
        true
    }

    /// Whether the service is to be asked about the rows that are in no window.
    pub fn is_due(&self, window: usize, is_last: bool) -> bool {
        let text = &self.next.text;
        if is_last {
            return !text.is_empty();
        }
        self.windows.len() < WINDOWS_MAX && characters(text) >= window
    }

    /// The text for the service, with this much context before it, the rid, and the end of the prompt.
    pub fn question(&mut self, overlap: usize) -> (String, &str, Option<&str>) {
        let mut text = std::mem::take(&mut self.context);
        text.extend_from_slice(&self.next.text);
        let question = String::from_utf8_lossy(&text).into_owned();
        let from = last_characters(&text, overlap);
        self.context = text.split_off(from);
        (question, &self.rid, self.prompt.as_deref())
    }

    /// Makes a window of the rows that are in none.
    pub fn asked(&mut self, call: CallId) {
        self.windows.push_back(Window { call, held: std::mem::take(&mut self.next), judgement: None });
    }

    /// Records the judgement of a window.
    pub fn judge(&mut self, call: CallId, judgement: Judgement) {
        if let Some(window) = self.windows.iter_mut().find(|window| window.call == call) {
            window.judgement = Some(judgement);
        }
    }

    /// Applies the judgements of the first windows, in the order of the text.
    pub fn settle(&mut self) -> Settled {
        let mut allowed = HeldText::default();
        while let Some(window) = self.windows.pop_front_if(|window| window.judgement.is_some()) {
            match window.judgement {
                Some(Judgement::Blocked(reason)) => {
                    self.is_ended = true;
                    let HeldText { ids, text, .. } = allowed;
                    return Settled::Blocked { ids, text, reason };
                }
                _ => allowed.append(window.held),
            }
        }
        if self.windows.is_empty() && self.next.text.is_empty() {
            // Rows without text that wait behind the text.
            allowed.append(std::mem::take(&mut self.next));
        }
        match u32::try_from(allowed.rows.len()).unwrap_or(u32::MAX) {
            0 => Settled::Nothing,
            rows => Settled::Release(rows),
        }
    }
}

fn is_first_byte(byte: &u8) -> bool {
    byte & 0b1100_0000 != 0b1000_0000
}

/// The number of characters that begin in the text.
fn characters(text: &[u8]) -> usize {
    text.iter().filter(|byte| is_first_byte(byte)).count()
}

/// The index at which the last characters of the text begin.
pub fn last_characters(text: &[u8], count: usize) -> usize {
    if count == 0 {
        return text.len();
    }
    let firsts = text.iter().enumerate().rev().filter(|(_, byte)| is_first_byte(byte));
    firsts.map(|(at, _)| at).nth(count - 1).unwrap_or(0)
}
