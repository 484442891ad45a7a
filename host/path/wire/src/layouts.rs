//! The layouts by which frames are read: those that engines introduced, or else those that come with Afterbay.

use afterbay_types::Engine;

use crate::introduction::{Introduction, IntroductionError};
use crate::sglang::Messages;
use crate::smg::SlimLayouts;
use crate::vllm::OutputsLayouts;

/// The most introductions that a text of layouts has. Older ones are left out.
const INTRODUCTIONS_MAX: usize = 16;

/// The engine whose frames are read, and the layouts of its frames. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Layouts {
    /// `None`: each frame shows its engine.
    pub(crate) engine: Option<Engine>,
    pub(crate) messages: Messages,
    pub(crate) outputs: OutputsLayouts,
    pub(crate) slim: SlimLayouts,
}

impl Layouts {
    /// The layouts that come with Afterbay, of every engine.
    pub fn builtin() -> Layouts {
        let (messages, slim) = (Messages::builtin(), SlimLayouts::builtin());
        Layouts { engine: None, messages, outputs: OutputsLayouts::default(), slim }
    }

    /// The layouts of an engine that come with Afterbay.
    pub fn of(engine: Engine) -> Layouts {
        Layouts { engine: Some(engine), ..Layouts::builtin() }
    }

    /// The layouts that an engine introduced, and no others.
    ///
    /// # Errors
    /// A field that Afterbay needs is missing.
    pub fn introduced(introduction: &Introduction) -> Result<Layouts, IntroductionError> {
        Layouts::of_all(std::slice::from_ref(introduction))
    }

    /// The layouts of several introductions, the newest last, of which one is of each frame.
    fn of_all(introductions: &[Introduction]) -> Result<Layouts, IntroductionError> {
        let Some(newest) = introductions.last() else { return Ok(Layouts::builtin()) };
        let engine = newest.engine()?;
        let of_engine = || introductions.iter().rev().filter(|it| it.engine() == Ok(engine));
        let mut layouts = Layouts::of(engine);
        match engine {
            Engine::Sglang => layouts.messages = Messages::introduced(of_engine())?,
            Engine::Vllm => layouts.outputs = OutputsLayouts::introduced(of_engine())?,
            Engine::Smg => layouts.slim = SlimLayouts::introduced(of_engine())?,
        }
        Ok(layouts)
    }

    /// The layouts that a [text](Layouts::text) names. Lines that this version does not understand count for nothing.
    pub fn of_text(text: &str) -> Layouts {
        let read = |line: &str| Introduction::read(line.as_bytes()).ok();
        let introductions: Vec<_> = text.lines().filter_map(read).collect();
        let engine = text.lines().next().and_then(Engine::of_word);
        match Layouts::of_all(&introductions) {
            Ok(layouts) if !introductions.is_empty() => layouts,
            _ => engine.map_or_else(Layouts::builtin, Layouts::of),
        }
    }

    /// The tokenizer that the newest introduction in this text names.
    pub fn tokenizer_in(text: &str) -> Option<String> {
        text.lines().rev().find_map(|line| Introduction::read(line.as_bytes()).ok())?.tokenizer
    }

    /// The text by which a journal names layouts: the engine, and a line for each introduction, the newest last. `before` is the
    /// text so far.
    pub fn text(engine: Engine, before: &str, introduction: Option<&str>) -> String {
        let introduction = introduction.map(|line| line.replace('\n', " "));
        let is_other = |line: &&str| line.starts_with('{') && Some(*line) != introduction.as_deref();
        let mut lines: Vec<&str> = before.lines().filter(is_other).collect();
        lines.extend(introduction.as_deref());
        let from = lines.len().saturating_sub(INTRODUCTIONS_MAX);
        let mut text = format!("{}\n", engine.word());
        lines[from..].iter().for_each(|line| text += &format!("{line}\n"));
        text
    }

    /// The fields of the engine's rows that this version does not know. Rows with a value in one are not joined.
    pub fn unknown_fields(&self) -> Vec<String> {
        let mut unknown = self.messages.unknown_fields();
        unknown.extend(self.outputs.unknown_fields());
        unknown.extend(self.slim.unknown_fields());
        unknown
    }
}
