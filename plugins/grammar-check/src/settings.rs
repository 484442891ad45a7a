//! The settings of the plugin.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::GrammarText;

/// The maximum number of rules.
pub const RULES_MAX: usize = 64;
/// The largest allowed value of `grammars_max`.
pub const GRAMMARS_MAX: u32 = 64;

/// Checks the outputs of requests against grammars.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The grammar of requests that no rule matches. Without it, only requests that a rule matches are
    /// checked.
    pub grammar: Option<GrammarText>,
    /// The attribute in which a request may bring its own grammar, an object like `grammar` of at most 4 KiB.
    /// It replaces the grammars of the settings. By default, requests bring none.
    pub grammar_attribute: Option<String>,
    /// Whether a request is checked by the grammar that it asked its engine for, a JSON schema or a regex, if the engine does not
    /// hold the output to it. The engine's connector says so.
    #[serde(default)]
    pub grammar_asked: bool,
    /// The number of grammars of requests that stay compiled.
    #[serde(default = "grammars_max")]
    #[schemars(range(min = 1, max = 64))]
    pub grammars_max: u32,
    /// Rules that select requests and change how they are checked. The first rule that a request matches
    /// applies. At most 64.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// The format of the tool calls that are checked. By default, none are.
    pub tool_calls: Option<ToolCallFormat>,
    /// The engine that reads the outputs. By default, a call is judged that SGLang or vLLM reads.
    pub engine: Option<Engine>,
    /// The reasoning of the model, in which a call is no call: `none`, or the name of the engine's reasoning parser.
    /// By default, an output that begins with `<think>` reasons up to `</think>`.
    pub reasoning: Option<ReasoningFormat>,
    /// The tools of requests that bring none in their attribute `tools`: a list in OpenAI's format, or its JSON
    /// text. A request without tools is not checked for calls.
    pub tools: Option<serde_json::Value>,
    /// Whether JSON schemas, also those of tools, check `format`: `date-time`, `date`, `time`, `email`, `uri`, `uuid`,
    /// `ipv4` and `ipv6`. By default, `format` says nothing.
    #[serde(default)]
    pub formats: bool,
    /// The action at the first token that the grammar does not allow, at a loop of whitespace, and at an invalid
    /// or cut tool call. By default, `report` for grammars and `abort` for tool calls.
    pub on_violation: Option<OnViolation>,
    /// The action if a request ends before the grammar is complete.
    #[serde(default)]
    pub on_early_end: OnEarlyEnd,
    /// The most bytes of whitespace in a row, also where the grammar allows more; 0 removes the limit.
    #[serde(default = "whitespace_max")]
    pub whitespace_max: u32,
    /// A text such as `</think>`. The grammar applies to the output after it; the output before it may be
    /// anything.
    pub begins_after: Option<String>,
    /// The number of tokens stored for all live requests, about 100 bytes each. A request that exceeds it is
    /// no longer checked.
    #[serde(default = "tokens_max")]
    pub tokens_max: u64,
    /// The work of one call. A token counts 1, a lexeme that it completes 2 or more, and the start of a
    /// request about 10. Work beyond the limit waits for the request's next row. 512 take 0.5 to 1 ms.
    #[serde(default = "work_per_call")]
    #[schemars(range(min = 1))]
    pub work_per_call: u32,
}

/// A rule: the requests that it selects, and its changes to the settings. A setting that the rule leaves out
/// has the general value.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Selects requests whose rid starts with this text.
    pub rid_prefix: Option<String>,
    /// Selects requests whose rid contains a match of this regular expression; `^` and `$` match its ends.
    pub rid_pattern: Option<String>,
    /// Selects requests that have the attribute of this name.
    pub attribute: Option<String>,
    /// The value of the attribute; `true` by default.
    pub equals: Option<serde_json::Value>,
    /// The grammar of these requests. Without it they are not checked.
    pub grammar: Option<GrammarText>,
    /// Replaces the general setting.
    pub on_violation: Option<OnViolation>,
    /// Replaces the general setting.
    pub on_early_end: Option<OnEarlyEnd>,
    /// Replaces the general setting.
    pub whitespace_max: Option<u32>,
    /// Replaces the general setting. An empty text applies the grammar to the whole output.
    pub begins_after: Option<String>,
}

fn grammars_max() -> u32 {
    16
}

fn whitespace_max() -> u32 {
    256
}

fn tokens_max() -> u64 {
    262_144
}

fn work_per_call() -> u32 {
    512
}

/// A format of tool calls. The names of the engines' parsers are allowed too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ToolCallFormat {
    /// `<tool_call>…</tool_call>` with JSON (Hermes, Qwen) or with `<function=…>` (Qwen3-Coder).
    #[serde(
        alias = "qwen",
        alias = "qwen25",
        alias = "qwen3_coder",
        alias = "qwen3_json",
        alias = "qwen3_xml"
    )]
    #[serde(alias = "granite4", alias = "mimo", alias = "step3p5")]
    Hermes,
    /// JSON with a name and parameters, also behind `<|python_tag|>` (Llama 3).
    #[serde(alias = "llama3", alias = "llama3_json", alias = "llama4_json")]
    Llama,
    /// `[TOOL_CALLS][{…}]` or `[TOOL_CALLS]name[ARGS]{…}`.
    Mistral,
    /// `<｜tool▁calls▁begin｜>…` (DeepSeek V3, R1 and V3.1).
    #[serde(rename = "deepseek")]
    #[serde(alias = "deepseekv3", alias = "deepseekv31", alias = "deepseek_v3", alias = "deepseek_v31")]
    DeepSeek,
    /// `<|channel|>commentary to=functions.name…<|call|>` (gpt-oss).
    #[serde(alias = "gpt-oss", alias = "openai")]
    Harmony,
    /// `[name(key="value")]` (Llama 4).
    #[serde(alias = "llama4_pythonic")]
    Pythonic,
    /// `<｜DSML｜invoke name="name">…` (DeepSeek V3.2).
    #[serde(rename = "deepseekv32", alias = "deepseek_v32")]
    DeepSeekV32,
    /// `<tool_call>name<arg_key>…` (GLM 4.5 and later).
    #[serde(alias = "glm45", alias = "glm47")]
    Glm,
    /// `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}` (Kimi K2).
    #[serde(rename = "kimi_k2")]
    KimiK2,
    /// `<invoke name="name"><parameter name="key">…` (MiniMax M2).
    #[serde(rename = "minimax-m2", alias = "minimax_m2")]
    MinimaxM2,
    /// `<steptml:invoke name="name">…` (Step 3).
    Step3,
    /// `<tool_calls><tool_call>name<tool_sep>…`, or a list in JSON (Hunyuan).
    #[serde(alias = "hunyuan_a13b")]
    Hunyuan,
    /// `<|tool_call|>[{…}]` (Granite 3).
    Granite,
}

/// An engine, whose parser hands the calls to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// SGLang.
    Sglang,
    /// vLLM.
    Vllm,
}

/// How a model reasons. The names are those of the engines' reasoning parsers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReasoningFormat {
    /// The engine has no reasoning parser: every call is one.
    None,
    /// From the begin of the output to `</think>`. Calls do not end it.
    #[serde(rename = "deepseek-r1", alias = "deepseek_r1", alias = "step3")]
    DeepseekR1,
    /// From `<think>` to `</think>` or to a call.
    #[serde(alias = "glm45", alias = "kimi_k2", alias = "deepseek-v3", alias = "hunyuan")]
    Qwen3,
    /// From the begin of the output to `</think>` or to a call.
    #[serde(alias = "minimax", alias = "minimax_m2")]
    Qwen3Thinking,
    /// From `◁think▷` to `◁/think▷`.
    Kimi,
    /// From `[THINK]` to `[/THINK]`.
    Mistral,
}

/// The action at a violation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnViolation {
    /// The request continues; the log and the journal record the violation.
    #[default]
    Report,
    /// The request ends with this row; its reader sees a stop.
    Finish,
    /// The request ends with this row; its reader sees an abort.
    Abort,
}

/// The action at an early end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnEarlyEnd {
    /// The request ends as the scheduler ended it; the log and the journal record the early end.
    #[default]
    Report,
    /// The request's reader sees an abort.
    Abort,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(settings: &str) -> Result<Settings, serde_json::Error> {
        serde_json::from_str(settings)
    }

    #[test]
    fn a_grammar_is_the_only_required_setting() {
        let settings = read(r#"{"grammar": {"regex": "a+"}}"#).unwrap();
        assert_eq!(settings.grammar, Some(GrammarText::Regex("a+".into())));
        assert_eq!((settings.on_violation, settings.on_early_end), (None, OnEarlyEnd::Report));
        assert_eq!((settings.whitespace_max, settings.tokens_max), (256, 262_144));
        assert!(settings.rules.is_empty() && settings.begins_after.is_none());
    }

    #[test]
    fn formats_and_reasoning_have_the_names_of_the_engines_parsers() {
        for (name, format) in [
            ("hermes", ToolCallFormat::Hermes),
            ("qwen25", ToolCallFormat::Hermes),
            ("qwen3_coder", ToolCallFormat::Hermes),
            ("llama3_json", ToolCallFormat::Llama),
            ("deepseekv31", ToolCallFormat::DeepSeek),
            ("gpt-oss", ToolCallFormat::Harmony),
            ("glm47", ToolCallFormat::Glm),
            ("minimax_m2", ToolCallFormat::MinimaxM2),
        ] {
            assert_eq!(read(&format!(r#"{{"tool_calls": {name:?}}}"#)).unwrap().tool_calls, Some(format));
        }
        let settings = read(r#"{"reasoning": "deepseek_r1", "engine": "vllm"}"#).unwrap();
        let found = (settings.reasoning, settings.engine);
        assert_eq!(found, (Some(ReasoningFormat::DeepseekR1), Some(Engine::Vllm)));
        assert!(read(r#"{"tool_calls": "no-such-parser"}"#).is_err());
    }

    #[test]
    fn two_grammars_and_unknown_values_are_refused() {
        for settings in [
            r#"{"grammar": {}}"#,
            r#"{"grammar": {"regex": "a", "lark": "start: \"a\""}}"#,
            r#"{"grammar": {"xml": "a"}}"#,
            r#"{"grammar": {"regex": "a"}, "on_violation": "drop"}"#,
            r#"{"grammar": {"regex": "a"}, "on_early_end": "finish"}"#,
            r#"{"grammar": {"regex": "a"}, "whitespace_max": -1}"#,
            r#"{"grammar": {"regex": "a"}, "whitespace": 1}"#,
            r#"{"rules": [{"prefix": "a"}]}"#,
        ] {
            assert!(read(settings).is_err(), "{settings}");
        }
    }
}
