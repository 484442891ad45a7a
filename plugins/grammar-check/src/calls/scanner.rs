//! Finds the blocks of tool calls in a text that arrives token by token.

use afterbay_plugin::{FinishKind, TokenId};

use super::block::{Block, CallFault, Progress};
use super::format::{Begin, FORMATS, Format};
use super::reasoning::{Reasoning, ToolsInReasoning};
use super::tools::ToolsOf;
use crate::settings::{Engine, ReasoningFormat, ToolCallFormat};
use crate::{Tokenizer, Vocabulary};

/// The markers of a format over a model's tokens.
pub(crate) struct CallMarkers {
    format: &'static Format,
    reasoning: Option<&'static Reasoning>,
    engine: Option<Engine>,
    /// The special tokens that are markers. Their texts are not in the vocabulary.
    special: Vec<(TokenId, &'static str)>,
    /// The tokens that are markers of other formats, with the name of the format.
    unread: Vec<(TokenId, &'static str)>,
    /// For each token, whether it has no byte with which a marker begins.
    plain: Vec<bool>,
}

impl CallMarkers {
    pub(crate) fn new(
        format: ToolCallFormat,
        (reasoning, engine): (Option<ReasoningFormat>, Option<Engine>),
        vocabulary: &Vocabulary,
        tokenizer: &impl Tokenizer,
    ) -> Self {
        let texts = |format: &'static Format| {
            let begins = format.begins.iter().map(|begin| begin.marker);
            begins.chain(format.others.iter().copied())
        };
        let reasoning = Reasoning::of(reasoning, format);
        // The table holds every format.
        let at = FORMATS.iter().position(|(one, ..)| *one == format).unwrap_or(0);
        let (_, _, format) = &FORMATS[at];
        let of_reasoning = reasoning.map_or([""; 2], |reasoning| [reasoning.begin, reasoning.end]);
        let own: Vec<&'static str> =
            texts(format).chain(of_reasoning).filter(|text| !text.is_empty()).collect();
        let special = own.iter().filter_map(|text| Some((tokenizer.special_of(text)?, *text))).collect();
        let begins = format.begins.iter().map(|begin| begin.marker).chain(of_reasoning);
        let firsts: Vec<u8> = begins.filter_map(|text| text.bytes().next()).collect();
        let others = FORMATS.iter().flat_map(|(_, name, format)| texts(format).map(|text| (text, *name)));
        let others: Vec<_> = others.filter(|(text, _)| text.len() > 1 && !own.contains(text)).collect();
        let mut unread: Vec<(TokenId, &'static str)> =
            others.iter().filter_map(|(text, name)| Some((tokenizer.special_of(text)?, *name))).collect();
        let mut plain = Vec::new();
        for id in (0..vocabulary.size()).map(TokenId::from) {
            let bytes = vocabulary.bytes(id);
            let is_marker = bytes.len() > 3 && matches!(bytes[0], b'<' | b'[' | b'\xef');
            let other = others.iter().find(|(text, _)| is_marker && text.as_bytes() == bytes);
            unread.extend(other.map(|(_, name)| (id, *name)));
            plain.push(
                !bytes.is_empty() && other.is_none() && !bytes.iter().any(|byte| firsts.contains(byte)),
            );
        }
        unread.sort_unstable();
        Self { format, reasoning, engine, special, unread, plain }
    }

    pub(crate) fn is_plain(&self, id: TokenId) -> bool {
        usize::try_from(id).ok().and_then(|id| self.plain.get(id)).is_some_and(|plain| *plain)
    }

    /// The format that a token is a marker of, if it is another one than the format that is read.
    pub(crate) fn unread(&self, id: TokenId) -> Option<&'static str> {
        self.unread.binary_search_by_key(&id, |(id, _)| *id).ok().map(|at| self.unread[at].1)
    }

    /// The text of a special token that is a marker.
    fn special_text(&self, id: TokenId) -> Option<&'static str> {
        self.special.iter().find(|(special, _)| *special == id).map(|(_, text)| *text)
    }
}

/// The place in the reasoning of an output.
#[derive(Debug)]
enum Place {
    /// Nothing but whitespace has come.
    Begin,
    /// In the reasoning. A call that is invalid if the reasoning has no end.
    Reasoning(Option<CallFault>),
    /// In the answer.
    Answer,
}

/// The place in a request's text.
pub(crate) struct CallScanner {
    format: &'static Format,
    reasoning: Option<&'static Reasoning>,
    engine: Option<Engine>,
    /// The text without which no call begins, until it has come.
    section: Option<&'static str>,
    place: Place,
    block: Option<Block>,
    /// The end of the free text, if a marker may begin there.
    tail: Vec<u8>,
    /// The number of times that a block or a possible marker has ended.
    closed: u64,
    valid: u32,
    /// The reason why a call was not checked.
    unchecked: Option<String>,
}

/// A marker in the free text.
#[derive(Clone, Copy)]
enum Found {
    Call(&'static Begin),
    ReasoningBegin,
    ReasoningEnd,
    Section,
}

impl CallScanner {
    pub(crate) fn new(markers: &CallMarkers, from_start: bool) -> Self {
        let CallMarkers { format, reasoning, engine, .. } = *markers;
        let place = match reasoning {
            Some(reasoning) if from_start && reasoning.is_open => Place::Reasoning(None),
            Some(_) if from_start => Place::Begin,
            _ => Place::Answer,
        };
        let first = format.first.filter(|_| from_start);
        let block = first.map(|begin| Block::new(begin, engine));
        let section =
            format.section.filter(|(of, _)| from_start && Some(*of) == engine).map(|(_, text)| text);
        let tail = Vec::new();
        Self { format, reasoning, engine, section, place, block, tail, closed: 0, valid: 0, unchecked: None }
    }

    /// Whether the text is free up to its end.
    pub(crate) fn is_free(&self) -> bool {
        self.block.is_none() && self.tail.is_empty() && !matches!(self.place, Place::Begin)
    }

    /// Whether the text ends in a block or in a part of a marker.
    pub(crate) fn is_open(&self) -> bool {
        !self.tail.is_empty()
            || matches!(self.place, Place::Reasoning(Some(_)))
            || self.block.as_ref().is_some_and(Block::is_open)
    }

    pub(crate) fn closed(&self) -> u64 {
        self.closed
    }

    pub(crate) fn take_valid(&mut self) -> u32 {
        std::mem::take(&mut self.valid)
    }

    pub(crate) fn take_unchecked(&mut self) -> Option<String> {
        self.unchecked.take()
    }

    /// Adds a token.
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
            return self.no_text(tools, is_last);
        }
        self.text(tools, bytes)
    }

    /// Handles a token without text, such as the end of a turn: the block ends with it, or with its request.
    fn no_text(&mut self, tools: ToolsOf<'_>, is_last: bool) -> Result<(), CallFault> {
        if is_last {
            return Ok(());
        }
        if !self.tail.is_empty() {
            self.tail.clear();
            self.closed += 1;
        }
        match self.block.take() {
            Some(block) if block.is_open() => self.ended(tools, block),
            _ => Ok(()),
        }
    }

    fn text(&mut self, tools: ToolsOf<'_>, bytes: &[u8]) -> Result<(), CallFault> {
        let mut rest = bytes.to_vec();
        loop {
            if let Some(mut block) = self.block.take() {
                let mut was_open = block.is_open();
                match block.push(tools, &rest) {
                    Ok(Progress::More) => {
                        self.block = Some(block);
                        return Ok(());
                    }
                    Ok(Progress::Ended) => self.valid += block.valid(),
                    Err(fault) => self.fault(fault)?,
                }
                self.unchecked = block.take_unchecked().or(self.unchecked.take());
                let is_empty = block.valid() == 0;
                rest = block.rest();
                // The next block belongs to this one: `<tool_call><function=`.
                let goes_on =
                    self.format.begins.iter().any(|begin| rest.starts_with(begin.marker.as_bytes()));
                let waits = matches!(self.place, Place::Reasoning(Some(_)));
                was_open &= !(waits || is_empty && goes_on);
                self.closed += u64::from(was_open);
                if rest.is_empty() {
                    return Ok(());
                }
            }
            let had_tail = !self.tail.is_empty();
            self.tail.append(&mut rest);
            if let Some((at, length, found)) = self.find() {
                rest = self.tail.split_off(at + length);
                let is_begin = matches!(self.place, Place::Begin) && self.tail[..at].trim_ascii().is_empty();
                self.tail.clear();
                match found {
                    Found::ReasoningBegin if is_begin => self.place = Place::Reasoning(None),
                    Found::ReasoningBegin => self.place = Place::Answer,
                    Found::ReasoningEnd => self.place = Place::Answer,
                    Found::Section => self.section = None,
                    Found::Call(begin) => {
                        let ends = self.reasoning.is_some_and(|one| one.tools == ToolsInReasoning::End);
                        if ends || matches!(self.place, Place::Begin) {
                            self.place = Place::Answer;
                        }
                        self.block = Some(Block::new(begin, self.engine));
                        continue;
                    }
                }
                self.closed += 1;
                if rest.is_empty() {
                    return Ok(());
                }
                continue;
            }
            let keeps = self.markers().filter_map(|(marker, _)| {
                let longest = marker.len().min(self.tail.len() + 1) - 1;
                (1..=longest).rev().find(|length| self.tail.ends_with(&marker.as_bytes()[..*length]))
            });
            let keeps = keeps.max().unwrap_or(0);
            self.closed += u64::from(had_tail && keeps == 0);
            let gone = self.tail.len() - keeps;
            if matches!(self.place, Place::Begin) && !self.tail[..gone].trim_ascii().is_empty() {
                self.place = Place::Answer;
            }
            self.tail.drain(..gone);
            return Ok(());
        }
    }

    /// The markers that may come next.
    fn markers(&self) -> impl Iterator<Item = (&'static str, Found)> {
        let in_reasoning = matches!(self.place, Place::Reasoning(_));
        let begins = self.reasoning.filter(|_| matches!(self.place, Place::Begin));
        let ends = self.reasoning.filter(|_| in_reasoning);
        // One invalid call is enough, and in some reasoning calls are text.
        let has_calls = match (&self.place, ends) {
            (Place::Reasoning(fault), Some(reasoning)) => {
                fault.is_none() && reasoning.tools != ToolsInReasoning::Text
            }
            _ => true,
        };
        let section = self.section.filter(|_| has_calls);
        let calls = self.format.begins.iter().filter(move |_| has_calls && section.is_none());
        calls
            .map(|begin| (begin.marker, Found::Call(begin)))
            .chain(begins.map(|reasoning| (reasoning.begin, Found::ReasoningBegin)))
            .chain(ends.map(|reasoning| (reasoning.end, Found::ReasoningEnd)))
            .chain(section.map(|text| (text, Found::Section)))
    }

    /// The first marker in the tail: its place, its length and what it is.
    fn find(&self) -> Option<(usize, usize, Found)> {
        let found = self.markers().filter_map(|(marker, found)| {
            let at = self.tail.windows(marker.len()).position(|window| window == marker.as_bytes())?;
            Some((at, marker.len(), found))
        });
        found.min_by_key(|(at, ..)| *at)
    }

    /// Takes a fault. In reasoning, it waits for the end of the reasoning.
    fn fault(&mut self, fault: CallFault) -> Result<(), CallFault> {
        match &mut self.place {
            Place::Reasoning(waiting) => {
                waiting.get_or_insert(fault);
                Ok(())
            }
            _ => Err(fault),
        }
    }

    /// Ends a block with its text.
    fn ended(&mut self, tools: ToolsOf<'_>, mut block: Block) -> Result<(), CallFault> {
        let ended = block.end(tools);
        self.valid += block.valid();
        self.unchecked = block.take_unchecked().or(self.unchecked.take());
        self.closed += 1;
        ended.or_else(|fault| self.fault(fault))
    }

    /// Ends the text. A request that is aborted may end anywhere.
    pub(crate) fn end(&mut self, tools: ToolsOf<'_>, finish: FinishKind) -> Result<(), CallFault> {
        if finish == FinishKind::Abort {
            return Ok(());
        }
        if let Some(block) = self.block.take() {
            self.ended(tools, block)?;
        }
        match &mut self.place {
            Place::Reasoning(fault) => fault.take().map_or(Ok(()), Err),
            _ => Ok(()),
        }
    }
}
