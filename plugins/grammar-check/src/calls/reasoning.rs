//! The reasoning before an answer, in which a call is no call.

use crate::settings::{ReasoningFormat, ToolCallFormat};

/// The markers of a model's reasoning, as the engines' reasoning parsers read them.
pub(super) struct Reasoning {
    pub(super) begin: &'static str,
    pub(super) end: &'static str,
    /// Whether the prompt opens the reasoning.
    pub(super) is_open: bool,
    pub(super) tools: ToolsInReasoning,
}

/// The meaning of a call in reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToolsInReasoning {
    /// Nothing: the reasoning goes on up to its end.
    Text,
    /// The reasoning has ended.
    End,
    /// The reasoning has ended, unless its end marker comes later.
    EndUnlessMarked,
}

static THINK: Reasoning =
    Reasoning { begin: "<think>", end: "</think>", is_open: false, tools: ToolsInReasoning::EndUnlessMarked };
static OPEN_THINK: Reasoning = Reasoning { is_open: true, tools: ToolsInReasoning::Text, ..THINK };
static THINK_OR_CALL: Reasoning = Reasoning { tools: ToolsInReasoning::End, ..THINK };
static OPEN_THINK_OR_CALL: Reasoning = Reasoning { is_open: true, ..THINK_OR_CALL };
static KIMI: Reasoning =
    Reasoning { begin: "◁think▷", end: "◁/think▷", tools: ToolsInReasoning::Text, ..THINK };
static MISTRAL: Reasoning =
    Reasoning { begin: "[THINK]", end: "[/THINK]", tools: ToolsInReasoning::Text, ..THINK };

impl Reasoning {
    /// `None` if the output has no reasoning. Without a setting, an output that begins with its marker has.
    pub(super) fn of(reasoning: Option<ReasoningFormat>, calls: ToolCallFormat) -> Option<&'static Self> {
        match reasoning {
            None if calls == ToolCallFormat::Mistral => Some(&MISTRAL),
            None => Some(&THINK),
            Some(ReasoningFormat::None) => None,
            Some(ReasoningFormat::DeepseekR1) => Some(&OPEN_THINK),
            Some(ReasoningFormat::Qwen3) => Some(&THINK_OR_CALL),
            Some(ReasoningFormat::Qwen3Thinking) => Some(&OPEN_THINK_OR_CALL),
            Some(ReasoningFormat::Kimi) => Some(&KIMI),
            Some(ReasoningFormat::Mistral) => Some(&MISTRAL),
        }
    }
}
