//! Finds the blocks of tool calls in a text that arrives token by token.

use afterbay_plugin::{FinishKind, TokenId};

use super::block::{self, Block, CallFault, Progress, Step};
use super::tools::ToolsOf;
use crate::settings::ToolCallFormat;
use crate::{Tokenizer, Vocabulary};

/// The markers of a format: those that begin a block, with the step behind them, and all others.
fn markers(format: ToolCallFormat) -> (&'static [(&'static str, Step)], &'static [&'static str]) {
    match format {
        ToolCallFormat::Hermes => (&[("<tool_call>", Step::Hermes)], &["</tool_call>"]),
        ToolCallFormat::Llama => (&[("<|python_tag|>", Step::Llama)], &[]),
        ToolCallFormat::Mistral => (&[("[TOOL_CALLS]", Step::Mistral)], &["[ARGS]", "[CALL_ID]"]),
        ToolCallFormat::DeepSeek => (
            &[(block::DEEPSEEK_CALLS, Step::DeepSeek), (block::DEEPSEEK_CALL, Step::DeepSeekCall)],
            &[block::DEEPSEEK_SEPARATOR, block::DEEPSEEK_END, "<｜tool▁calls▁end｜>"],
        ),
        ToolCallFormat::Harmony => (
            &[
                ("<|start|>", Step::HarmonyHeader { first: false }),
                ("<|channel|>", Step::HarmonyHeader { first: false }),
            ],
            &["<|message|>", "<|constrain|>", "<|call|>", "<|end|>", "<|return|>"],
        ),
    }
}

/// The markers of a format over a model's tokens.
pub(crate) struct CallMarkers {
    format: ToolCallFormat,
    /// The special tokens that are markers. Their texts are not in the vocabulary.
    special: Vec<(TokenId, &'static str)>,
    /// For each token, whether it has no byte with which a marker begins.
    plain: Vec<bool>,
}

impl CallMarkers {
    pub(crate) fn new(format: ToolCallFormat, vocabulary: &Vocabulary, tokenizer: &impl Tokenizer) -> Self {
        let (begins, others) = markers(format);
        let texts = begins.iter().map(|(text, _)| *text).chain(others.iter().copied());
        let special = texts.filter_map(|text| Some((tokenizer.special_of(text)?, text))).collect();
        let firsts: Vec<u8> = begins.iter().map(|(text, _)| text.as_bytes()[0]).collect();
        let is_plain = |id: u32| {
            let bytes = vocabulary.bytes(TokenId::from(id));
            !bytes.is_empty() && !bytes.iter().any(|byte| firsts.contains(byte))
        };
        Self { format, special, plain: (0..vocabulary.size()).map(is_plain).collect() }
    }

    pub(crate) fn format(&self) -> ToolCallFormat {
        self.format
    }

    pub(crate) fn is_plain(&self, id: TokenId) -> bool {
        usize::try_from(id).ok().and_then(|id| self.plain.get(id)).is_some_and(|plain| *plain)
    }

    /// The text of a special token that is a marker.
    fn special_text(&self, id: TokenId) -> Option<&'static str> {
        self.special.iter().find(|(special, _)| *special == id).map(|(_, text)| *text)
    }
}

/// The place in a request's text.
pub(crate) struct CallScanner {
    begins: &'static [(&'static str, Step)],
    block: Option<Block>,
    /// The end of the free text, if a marker may begin there.
    tail: Vec<u8>,
    /// The number of times that a block or a possible marker has ended.
    closed: u64,
    valid: u32,
}

impl CallScanner {
    pub(crate) fn new(format: ToolCallFormat, from_start: bool) -> Self {
        let first = match format {
            _ if !from_start => None,
            ToolCallFormat::Llama => Some(Step::LlamaBare),
            ToolCallFormat::Harmony => Some(Step::HarmonyHeader { first: true }),
            _ => None,
        };
        Self {
            begins: markers(format).0,
            block: first.map(Block::new),
            tail: Vec::new(),
            closed: 0,
            valid: 0,
        }
    }

    /// Whether the text is free up to its end.
    pub(crate) fn is_free(&self) -> bool {
        self.block.is_none() && self.tail.is_empty()
    }

    /// Whether the text ends in a block or in a part of a marker.
    pub(crate) fn is_open(&self) -> bool {
        !self.tail.is_empty() || self.block.as_ref().is_some_and(Block::is_open)
    }

    pub(crate) fn closed(&self) -> u64 {
        self.closed
    }

    pub(crate) fn take_valid(&mut self) -> u32 {
        std::mem::take(&mut self.valid)
    }

    /// Adds a token. A special token that is no marker ends nothing at the end of a request.
    pub(crate) fn token(
        &mut self,
        (markers, vocabulary): (&CallMarkers, &Vocabulary),
        tools: ToolsOf<'_>,
        id: TokenId,
        is_last: bool,
    ) -> Result<(), CallFault> {
        let bytes = match markers.special_text(id) {
            Some(text) => text.as_bytes(),
            None => vocabulary.bytes(id),
        };
        if bytes.is_empty() {
            return self.no_text(is_last);
        }
        self.text(tools, bytes)
    }

    /// Handles a token without text, such as the end of a turn.
    fn no_text(&mut self, is_last: bool) -> Result<(), CallFault> {
        if is_last {
            return Ok(());
        }
        if !self.tail.is_empty() {
            self.tail.clear();
            self.closed += 1;
        }
        match &self.block {
            Some(block) if block.is_open() => Err(CallFault::invalid("has a special token in it")),
            _ => Ok(()),
        }
    }

    fn text(&mut self, tools: ToolsOf<'_>, bytes: &[u8]) -> Result<(), CallFault> {
        let mut rest = bytes.to_vec();
        loop {
            if let Some(block) = &mut self.block {
                let was_open = block.is_open();
                let progress = block.push(tools, &rest);
                self.valid += block.take_valid();
                match progress? {
                    Progress::More => {
                        if was_open && !block.is_open() {
                            self.closed += 1;
                        }
                        return Ok(());
                    }
                    Progress::Ended | Progress::NoCall => {
                        rest = block.rest();
                        (self.block, self.closed) = (None, self.closed + u64::from(was_open));
                    }
                }
                if rest.is_empty() {
                    return Ok(());
                }
            }
            let had_tail = !self.tail.is_empty();
            self.tail.append(&mut rest);
            let found = self.begins.iter().filter_map(|(marker, step)| {
                let windows = self.tail.windows(marker.len());
                let found = windows.enumerate().find(|(_, window)| *window == marker.as_bytes());
                found.map(|(at, _)| (at, marker.len(), *step))
            });
            if let Some((at, length, step)) = found.min_by_key(|(at, ..)| *at) {
                rest = self.tail.split_off(at + length);
                self.tail.clear();
                self.block = Some(Block::new(step));
                continue;
            }
            let keeps = (1..=self.tail.len()).rev().find(|length| {
                let end = &self.tail[self.tail.len() - length..];
                self.begins.iter().any(|(marker, _)| marker.as_bytes().starts_with(end))
            });
            let keeps = keeps.unwrap_or(0);
            self.closed += u64::from(had_tail && keeps == 0);
            self.tail.drain(..self.tail.len() - keeps);
            return Ok(());
        }
    }

    /// Ends the text. A request that is aborted may end anywhere.
    pub(crate) fn end(&mut self, tools: ToolsOf<'_>, finish: FinishKind) -> Result<(), CallFault> {
        match &mut self.block {
            Some(block) if finish != FinishKind::Abort => {
                let ended = block.end(tools);
                self.valid += block.take_valid();
                ended
            }
            _ => Ok(()),
        }
    }
}
