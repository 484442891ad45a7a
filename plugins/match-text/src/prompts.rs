//! The texts of prompts, read at the first match of a request: what stands in the prompt may pass.

use afterbay_plugin::text::Vocabulary;
use afterbay_plugin::{RequestId, Requests, prompt_ids};
use memchr::memmem;

use crate::escapes::plain;

/// The most bytes of a prompt's text. Nothing stands in a longer prompt.
pub const PROMPT_BYTES_MAX: usize = 4 << 20;
/// The most bytes of all texts that are kept. At this bound all of them are read again when they are needed.
const KEPT_BYTES_MAX: usize = 16 << 20;

/// The prompts of requests that had a match.
#[derive(Default)]
pub struct Prompts {
    /// Empty for a prompt that is not known.
    texts: Requests<Box<[u8]>>,
    bytes: usize,
}

impl Prompts {
    /// Whether a text stands in the request's prompt, as it is or with characters in place of its escapes.
    pub fn contain(&mut self, request: RequestId, text: &[u8], vocabulary: &Vocabulary) -> bool {
        if self.texts.get(request).is_none() {
            let prompt = read(request, vocabulary);
            if self.bytes + prompt.len() > KEPT_BYTES_MAX {
                *self = Self::default();
            }
            self.bytes += prompt.len();
            self.texts.insert(request, prompt);
        }
        let Some(prompt) = self.texts.get(request) else { return false };
        memmem::find(prompt, text).is_some() || memmem::find(prompt, &plain(text)).is_some()
    }

    /// Forgets a request that has ended.
    pub fn remove(&mut self, request: RequestId) {
        self.bytes -= self.texts.remove(request).map_or(0, |prompt| prompt.len());
    }
}

/// The text of a prompt. Empty if it is not known or too long.
fn read(request: RequestId, vocabulary: &Vocabulary) -> Box<[u8]> {
    let mut text = Vec::new();
    for id in prompt_ids(request).unwrap_or_default() {
        text.extend_from_slice(vocabulary.bytes(id));
        if text.len() > PROMPT_BYTES_MAX {
            return Box::default();
        }
    }
    text.into()
}
