//! The formats of tool calls: the markers that begin a block, where the block ends and how it is read.
//!
//! The markers are those of the parsers of SGLang and vLLM.

use super::read::{
    Call, Calls, Conversions, DEEPSEEK_SEPARATOR, HARMONY_HEADER_MAX, HERMES_END, KIMI_CALL, Reading, Tags,
    behind_mistral, deepseek, granite, harmony, harmony_recipient, hermes, kimi, llama, mistral, pythonic,
    tagged,
};
use super::tools::NAME_BYTES_MAX;
use crate::settings::{Engine, ToolCallFormat};

/// The begin of a block.
pub(super) struct Begin {
    pub(super) marker: &'static str,
    /// Whether a call may stand behind the marker.
    pub(super) start: fn(&str) -> Start,
    pub(super) end: End,
    pub(super) read: fn(&Reading<'_>) -> Calls,
    /// Whether vLLM hands out calls with any text as their name.
    pub(super) vllm_takes_any_name: bool,
}

impl std::fmt::Debug for Begin {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.marker)
    }
}

/// The begin of a block, as far as its text shows it.
pub(super) enum Start {
    /// Too little.
    More,
    /// This is text.
    No,
    /// A call, which ends behind this place.
    At(usize),
    /// A call that cannot go on.
    Whole,
}

/// The end of a block.
pub(super) enum End {
    /// At the first of these markers. `false`: the marker belongs to what follows.
    Marker(&'static [(&'static str, bool)]),
    /// Behind the first value in brackets.
    Value,
}

/// A format: the begins of its blocks, and other markers, which may be special tokens without text.
pub(super) struct Format {
    pub(super) begins: &'static [Begin],
    pub(super) others: &'static [&'static str],
    /// The block that an output may begin with.
    pub(super) first: Option<&'static Begin>,
    /// The engine whose parser reads calls only behind this text.
    pub(super) section: Option<(Engine, &'static str)>,
}

const fn begin(marker: &'static str, end: End, read: fn(&Reading<'_>) -> Calls) -> Begin {
    Begin { marker, start: |_| Start::At(0), end, read, vllm_takes_any_name: false }
}

const PYTHON: Conversions = Conversions { sglang_takes_python: true, vllm_takes_scalars: false };
const CODER: Tags = Tags {
    open: "",
    name_ends: &[">"],
    key: "<parameter=",
    key_end: ">",
    value: "",
    value_ends: &["</parameter>", "<parameter=", "</function>"],
    close: "",
    trims: true,
    takes_json: false,
    is_validated: false,
    conversions: PYTHON,
    skips_angles: false,
};
const DSML: Tags = Tags {
    open: "",
    name_ends: &[">"],
    key: "<｜DSML｜parameter name=",
    key_end: ">",
    value: "",
    value_ends: &["</｜DSML｜parameter>"],
    close: "",
    trims: false,
    takes_json: true,
    is_validated: false,
    conversions: Conversions { sglang_takes_python: false, vllm_takes_scalars: false },
    skips_angles: false,
};
const MINIMAX: Tags = Tags {
    key: "<parameter name=",
    value_ends: &["</parameter>", "<parameter name="],
    trims: true,
    takes_json: false,
    is_validated: true,
    ..DSML
};
const STEP: Tags = Tags {
    open: "<steptml:invoke name=",
    key: "<steptml:parameter name=",
    value_ends: &["</steptml:parameter>"],
    close: "</steptml:invoke>",
    takes_json: false,
    conversions: Conversions { sglang_takes_python: false, vllm_takes_scalars: true },
    skips_angles: true,
    ..DSML
};
const GLM: Tags = Tags {
    open: "",
    name_ends: &["<arg_key>", "\n"],
    key: "<arg_key>",
    key_end: "</arg_key>",
    value: "<arg_value>",
    value_ends: &["</arg_value>"],
    close: "",
    trims: false,
    takes_json: false,
    is_validated: true,
    conversions: PYTHON,
    skips_angles: false,
};
const HUNYUAN: Tags = Tags { open: "<tool_call>", name_ends: &["<tool_sep>"], close: "</tool_call>", ..GLM };

const HERMES: Format = Format {
    begins: &[
        begin("<tool_call>", End::Marker(&[(HERMES_END, true), ("<function=", false)]), hermes),
        // Both engines read a function without `<tool_call>`.
        Begin {
            vllm_takes_any_name: true,
            ..begin(
                "<function=",
                End::Marker(&[("</function>", true), ("</tool_call>", true)]),
                // The end of the function ends its last value too.
                |reading| tagged(&CODER, &Reading { body: &reading.text["<function=".len()..], ..*reading }),
            )
        },
    ],
    others: &["</tool_call>"],
    first: None,
    section: None,
};
const LLAMA: Format = Format {
    begins: &[Begin {
        start: |text| match text[1..].trim_start().chars().next() {
            None => Start::More,
            Some('"' | '\'') => Start::At(0),
            Some(_) => Start::No,
        },
        ..begin("{", End::Value, llama)
    }],
    others: &["<|python_tag|>"],
    first: None,
    section: None,
};
const MISTRAL: Format = Format {
    begins: &[Begin { start: start_of_mistral, ..begin("[TOOL_CALLS", End::Value, mistral) }],
    others: &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
    first: None,
    section: None,
};
const DEEPSEEK: Format = Format {
    begins: &[begin("<｜tool▁call▁begin｜>", End::Marker(&[("<｜tool▁call▁end｜>", true)]), deepseek)],
    others: &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>", DEEPSEEK_SEPARATOR],
    first: None,
    section: Some((Engine::Vllm, "<｜tool▁calls▁begin｜>")),
};
const HARMONY_MESSAGE: Begin = Begin {
    start: |text| match text.find("<|message|>") {
        None if text.len() > HARMONY_HEADER_MAX => Start::No,
        None => Start::More,
        Some(at) => harmony_recipient(&text[..at]).map_or(Start::No, |_| Start::At(at)),
    },
    ..begin(
        "<|channel|>",
        End::Marker(&[("<|call|>", true), ("<|end|>", true), ("<|return|>", true)]),
        harmony,
    )
};
const HARMONY: Format = Format {
    begins: &[HARMONY_MESSAGE, Begin { marker: "<|start|>", ..HARMONY_MESSAGE }],
    others: &["<|message|>", "<|constrain|>", "<|call|>", "<|end|>", "<|return|>"],
    // The prompt ends with the begin of a message.
    first: Some(&Begin {
        marker: "",
        start: |text| {
            let text = text.trim_start();
            match "to=".starts_with(text) || text.starts_with("to=") {
                true => (HARMONY_MESSAGE.start)(text),
                false => Start::No,
            }
        },
        ..HARMONY_MESSAGE
    }),
    section: None,
};
const PYTHONIC: Format = Format {
    begins: &[Begin {
        start: |text| {
            let rest = text[1..].trim_start();
            let behind = rest.trim_start_matches(|char: char| char.is_alphanumeric() || "_.".contains(char));
            let name = &rest[..rest.len() - behind.len()];
            match behind.trim_start().chars().next() {
                None if name.len() <= NAME_BYTES_MAX => Start::More,
                Some('(') if name.starts_with(|char: char| char.is_alphabetic() || char == '_') => {
                    Start::At(0)
                }
                _ => Start::No,
            }
        },
        ..begin("[", End::Value, pythonic)
    }],
    others: &["<|python_start|>", "<|python_end|>"],
    first: None,
    section: None,
};
const DEEPSEEK_V32: Format = Format {
    begins: &[Begin {
        vllm_takes_any_name: true,
        ..begin(
            "<｜DSML｜invoke name=",
            End::Marker(&[("</｜DSML｜invoke>", true), ("/>", true), ("</｜DSML｜function_calls>", true)]),
            |reading| match reading.text.ends_with("/>") {
                // A function without parameters.
                true if !reading.body.contains('>') => Some(vec![Call::without_arguments(reading.body)]),
                true => None,
                false => tagged(&DSML, reading),
            },
        )
    }],
    others: &["｜DSML｜", "<｜DSML｜function_calls>", "</｜DSML｜function_calls>"],
    first: None,
    section: None,
};
const GLM_FORMAT: Format = Format {
    begins: &[begin("<tool_call>", End::Marker(&[("</tool_call>", true)]), |reading| tagged(&GLM, reading))],
    others: &["</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    first: None,
    section: None,
};
const KIMI: Format = Format {
    begins: &[begin(
        KIMI_CALL,
        End::Marker(&[("<|tool_call_end|>", true), ("<|tool_calls_section_end|>", true)]),
        kimi,
    )],
    others: &[
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    ],
    first: None,
    section: Some((Engine::Vllm, "<|tool_calls_section_begin|>")),
};
const MINIMAX_FORMAT: Format = Format {
    begins: &[begin(
        "<invoke name=",
        End::Marker(&[("</invoke>", true), ("</minimax:tool_call>", true)]),
        |reading| tagged(&MINIMAX, reading),
    )],
    others: &["<minimax:tool_call>", "</minimax:tool_call>"],
    first: None,
    section: Some((Engine::Sglang, "<minimax:tool_call>")),
};
const STEP3: Format = Format {
    begins: &[begin(
        "<｜tool_calls_begin｜>",
        End::Marker(&[("<｜tool_calls_end｜>", true)]),
        |reading| tagged(&STEP, reading),
    )],
    others: &["<｜tool_calls_end｜>", "<｜tool_call_begin｜>", "<｜tool_call_end｜>", "<｜tool_sep｜>"],
    first: None,
    section: None,
};
const HUNYUAN_FORMAT: Format = Format {
    begins: &[begin("<tool_calls>", End::Marker(&[("</tool_calls>", true)]), |reading| {
        match (reading.body.contains("<tool_sep>"), reading.engine) {
            (true, None | Some(Engine::Sglang)) => tagged(&HUNYUAN, reading),
            (false, None | Some(Engine::Vllm)) => granite(reading).or(Some(Vec::new())),
            _ => Some(Vec::new()),
        }
    })],
    others: &[
        "</tool_calls>",
        "<tool_call>",
        "</tool_call>",
        "<tool_sep>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ],
    first: None,
    section: None,
};
const GRANITE_CALL: Begin = Begin {
    start: |text| match text.split_once('>').map(|(_, rest)| rest.trim_start()) {
        None | Some("") => Start::More,
        Some(rest) if rest.starts_with('[') => Start::At(0),
        Some(_) => Start::No,
    },
    ..begin("<|tool_call|>", End::Value, |reading| granite(reading).or(Some(Vec::new())))
};
const GRANITE: Format = Format {
    begins: &[GRANITE_CALL, Begin { marker: "<tool_call>", ..GRANITE_CALL }],
    others: &[],
    first: None,
    section: None,
};

/// Whether a call stands behind `[TOOL_CALLS`: JSON, or a name with its arguments.
fn start_of_mistral(text: &str) -> Start {
    let rest = behind_mistral(text);
    if "[TOOL_CALLS]".starts_with(rest) {
        return Start::More;
    }
    if rest.starts_with(['{', '[']) {
        return Start::At(text.len() - rest.len());
    }
    let end = rest.find(['[', '{']).unwrap_or(rest.len());
    let (name, behind) = (rest[..end].trim_end(), &rest[end..]);
    let is_name = |char: char| char.is_alphanumeric() || "_-./:".contains(char);
    if name.len() > NAME_BYTES_MAX || !name.chars().all(is_name) {
        return Start::No;
    }
    let arguments = match behind.split_once("[ARGS]") {
        Some(("", arguments)) => arguments,
        Some((id, arguments)) if id.starts_with("[CALL_ID]") => arguments,
        _ if behind.starts_with('{') => behind,
        _ if "[ARGS]".starts_with(behind) || "[CALL_ID]".starts_with(behind) => return Start::More,
        _ if behind.starts_with("[CALL_ID]") && behind.len() <= NAME_BYTES_MAX => return Start::More,
        _ => return Start::No,
    };
    let value = arguments.trim_start();
    match value.chars().next() {
        None => Start::More,
        Some('{' | '[') => Start::At(text.len() - value.len()),
        Some(_) => Start::Whole,
    }
}

/// The formats with the names of their settings.
pub(super) static FORMATS: [(ToolCallFormat, &str, Format); 13] = [
    (ToolCallFormat::Hermes, "hermes", HERMES),
    (ToolCallFormat::Llama, "llama", LLAMA),
    (ToolCallFormat::Mistral, "mistral", MISTRAL),
    (ToolCallFormat::DeepSeek, "deepseek", DEEPSEEK),
    (ToolCallFormat::Harmony, "harmony", HARMONY),
    (ToolCallFormat::Pythonic, "pythonic", PYTHONIC),
    (ToolCallFormat::DeepSeekV32, "deepseekv32", DEEPSEEK_V32),
    (ToolCallFormat::Glm, "glm", GLM_FORMAT),
    (ToolCallFormat::KimiK2, "kimi_k2", KIMI),
    (ToolCallFormat::MinimaxM2, "minimax-m2", MINIMAX_FORMAT),
    (ToolCallFormat::Step3, "step3", STEP3),
    (ToolCallFormat::Hunyuan, "hunyuan", HUNYUAN_FORMAT),
    (ToolCallFormat::Granite, "granite", GRANITE),
];
