//! The tokens with which a request's first tool call may begin.
//!
//! Some parsers of tool calls read each chunk as one step, so that a chunk of several tokens loses arguments. Before such a reader,
//! rows stay single from here on. A call begins with a marker, which is an added token of the model, or with a bracket at the start
//! of the text. Too many starts cost joins; a missed one costs a client its call.

use hashbrown::HashMap;

use crate::file::TokenizerFiles;
use crate::spelling::Spelling;

/// Parts of markers, in lower case: `<tool_call>`, `<｜tool▁calls▁begin｜>`, `[TOOL_CALLS]`, `<|python_tag|>`, `<|action_start|>`.
const MARKERS: [&str; 6] = ["tool", "function", "call", "python", "action", "dsml"];
/// The most bytes of a token that are looked at.
const TOKEN_BYTES_MAX: usize = 256;

/// The meaning of a token for the start of a tool call. Other tokens are text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallRole {
    /// A tool call begins.
    Marker,
    /// Another added token, such as `</think>`: the text starts again.
    Start,
    /// White space.
    Blank,
    /// Text that begins with a bracket.
    Bracket,
}

pub(crate) type CallRoles = HashMap<u32, CallRole, foldhash::fast::RandomState>;

impl TokenizerFiles {
    pub(crate) fn call_roles(&self, spelling: &Spelling) -> CallRoles {
        let mut roles = CallRoles::default();
        for (token, id) in &self.written.model.vocab.kept {
            let mut bytes = Vec::new();
            let fits = spelling.append(token, TOKEN_BYTES_MAX, &mut bytes);
            let role = match bytes.trim_ascii_start().first() {
                None if fits => CallRole::Blank,
                Some(b'{' | b'[' | b'<') => CallRole::Bracket,
                _ => continue,
            };
            roles.insert(*id, role);
        }
        for added in self.added() {
            let name = added.token.content.to_lowercase();
            let is_marker = MARKERS.iter().any(|part| name.contains(part));
            roles.insert(added.id, if is_marker { CallRole::Marker } else { CallRole::Start });
        }
        roles
    }
}
