//! Tool calls of every format, valid, invalid and cut, in rows that are split at every token.

use afterbay_plugin::{FinishKind, Opened, TokenId};
use serde_json::{Value, json};

use super::{CallAction, CallFault};
use crate::{GrammarCheck, Tokenizer};

mod engines;

/// Every marker of every format. In [`Tokens`] they are special tokens without bytes, or plain text.
const MARKERS: [&str; 38] = [
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|call|>",
    "<|end|>",
    "<|return|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<｜tool_calls_begin｜>",
    "<｜tool_calls_end｜>",
    "<｜tool_call_begin｜>",
    "<｜tool_call_end｜>",
    "<｜tool_sep｜>",
    "<|tool_call|>",
];
const WORDS: [&str; 16] = [
    "{\"",
    "name",
    "\":",
    " \"",
    "\", \"",
    "arguments",
    "get_",
    "weather",
    "city",
    "\"}}",
    "tool",
    "_call",
    ">\n",
    "function",
    "<",
    "I will",
];

/// 256 bytes, then words, then the markers.
struct Tokens {
    special: bool,
    words: bool,
}

impl Tokens {
    fn marker(&self, index: usize) -> TokenId {
        (256 + WORDS.len() + index) as TokenId
    }

    fn ids(&self, text: &str) -> Vec<TokenId> {
        let (mut ids, mut rest) = (Vec::new(), text);
        while let Some(byte) = rest.bytes().next() {
            let marker = MARKERS.iter().position(|marker| rest.starts_with(marker));
            let words = WORDS.iter().enumerate().filter(|(_, word)| self.words && rest.starts_with(**word));
            let (id, length) = match (marker, words.max_by_key(|(_, word)| word.len())) {
                (Some(index), _) if self.special => (self.marker(index), MARKERS[index].len()),
                (_, Some((index, word))) => (256 + index as TokenId, word.len()),
                _ if byte.is_ascii() => (TokenId::from(byte), 1),
                _ => {
                    let length = rest.chars().next().unwrap().len_utf8();
                    ids.extend(rest.bytes().take(length).map(TokenId::from));
                    rest = &rest[length..];
                    continue;
                }
            };
            ids.push(id);
            rest = &rest[length..];
        }
        ids
    }
}

impl Tokenizer for Tokens {
    fn size(&self) -> u32 {
        self.marker(MARKERS.len()) as u32
    }

    fn token_bytes(&self, first: TokenId, count: u32) -> Vec<Vec<u8>> {
        let of = |id: TokenId| match usize::try_from(id).unwrap() {
            byte @ 0..256 => vec![byte as u8],
            at if at < 256 + WORDS.len() => WORDS[at - 256].as_bytes().to_vec(),
            _ => Vec::new(),
        };
        (first..first + TokenId::from(count)).map(of).collect()
    }

    fn special(&self) -> Vec<TokenId> {
        (0..MARKERS.len()).map(|index| self.marker(index)).collect()
    }

    fn special_of(&self, text: &str) -> Option<TokenId> {
        let index = MARKERS.iter().position(|marker| *marker == text)?;
        self.special.then(|| self.marker(index))
    }
}

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "get_weather", "description": "…", "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
            },
            "required": ["city"],
            "additionalProperties": false,
        }}},
        {"type": "function", "function": {"name": "get_time"}},
        {"type": "function", "function": {"name": "function", "parameters": {"type": "object"}}},
    ])
}

/// The tokens that the reader of a request gets, and the end of the request.
#[derive(Debug, PartialEq)]
struct Received {
    ids: Vec<TokenId>,
    fault: Option<CallFault>,
    valid: u32,
    /// The reason why a call was not checked.
    unchecked: Option<String>,
    /// The most rows that were held at once.
    held: usize,
}

/// Sends rows and does with them what the host does.
fn receive(check: &mut GrammarCheck, request: u64, rows: &[&[TokenId]], finish: FinishKind) -> Received {
    let (rid, front_end, sink) = ("r".into(), String::new(), String::new());
    check.open(&Opened {
        request,
        rid,
        front_end,
        sink,
        arrived_ms: 0,
        prompt_tokens: 1,
        received_tokens: 0,
        resumed: false,
    });
    let mut received = Received { ids: Vec::new(), fault: None, valid: 0, unchecked: None, held: 0 };
    let mut held: Vec<&[TokenId]> = Vec::new();
    for (index, ids) in rows.iter().enumerate() {
        let finish = if index + 1 == rows.len() { finish } else { FinishKind::Running };
        check.begin_batch();
        let result = check.calls_row(request, ids, held.len() as u32, finish);
        let action = result.as_ref().map_or(CallAction::Pass, |(result, _)| result.action.clone());
        if let Some((result, _)) = result {
            received.valid += result.valid;
            received.unchecked = received.unchecked.or(result.unchecked);
        }
        match action {
            CallAction::Pass | CallAction::Hold
                if finish == FinishKind::Running && (!held.is_empty() || action == CallAction::Hold) =>
            {
                assert_eq!(action, CallAction::Hold, "a row behind held rows says what happens to it");
                held.push(ids);
            }
            CallAction::Pass | CallAction::Hold | CallAction::Release => {
                received.ids.extend(held.drain(..).flatten().chain(*ids));
            }
            CallAction::ReleaseAndHold => {
                received.ids.extend(held.drain(..).flatten());
                held.push(ids);
            }
            CallAction::End(fault, ids) => {
                received.ids.extend(ids);
                received.fault = Some(fault);
                return received;
            }
        }
        received.held = received.held.max(held.len());
    }
    received
}

/// Sends a text in rows of every kind, and checks that the reader always gets the same.
fn each_split(format: &str, text: &str, finish: FinishKind, each: impl Fn(&Tokens, &[TokenId], Received)) {
    for (special, words) in [(true, true), (false, false), (false, true)] {
        let tokens = Tokens { special, words };
        let settings = json!({"tool_calls": format, "tools": tools()});
        let settings = serde_json::from_value(settings).unwrap();
        let mut check = GrammarCheck::new(&settings, &tokens).unwrap();
        let ids = tokens.ids(text);
        let mut request = 0;
        let mut send = |rows: &[&[TokenId]]| {
            request += 1;
            let received = receive(&mut check, request, rows, finish);
            check.close(request);
            each(&tokens, &ids, received);
        };
        for length in [1, 2, 3, 7] {
            send(&ids.chunks(length).collect::<Vec<_>>());
        }
        for split in 0..=ids.len() {
            send(&[&ids[..split], &ids[split..]]);
        }
        // The last row has no tokens.
        send(&[&ids, &[]]);
    }
}

/// A text whose calls are all valid reaches the reader as it is.
fn passes(format: &str, text: &str, calls: u32) {
    for finish in [FinishKind::Stop, FinishKind::Length] {
        each_split(format, text, finish, |_, ids, received| {
            assert_eq!(received.fault, None, "{format}: {text}");
            assert_eq!((&received.ids[..], received.valid), (ids, calls), "{format}: {text}");
        });
    }
}

/// A request with an invalid or cut call ends before the call. `free` is the text before it.
fn stops(format: &str, free: &str, call: &str, why: Option<&str>) {
    let text = format!("{free}{call}");
    each_split(format, &text, FinishKind::Length, |tokens, _, received| {
        match (&received.fault, why) {
            (Some(CallFault::Cut), None) => {}
            (Some(CallFault::Invalid(found)), Some(why)) if found.contains(why) => {}
            (found, _) => panic!("{format}: {text}: {found:?} instead of {why:?}"),
        }
        // A token of the call may begin in the free text.
        let (free, got) = (tokens.ids(free), received.ids);
        assert!(free.starts_with(&got) && free.len() <= got.len() + 1, "{format}: {text}: {got:?}");
    });
}

const GOOD: &str = r#"{"city": "Paris \"}]</b>", "days": 3}"#;

/// Every valid call of each format, with the text before it, and the number of calls.
fn valid_calls() -> Vec<(&'static str, &'static str, String, u32)> {
    let named = format!(r#"{{"name": "get_weather", "arguments": {GOOD}}}"#);
    let time = r#"{"name": "get_time", "arguments": {}}"#;
    let parameters = named.replace("arguments", "parameters");
    vec![
        ("hermes", "I will <b>ask</b> <tool.\n", format!("<tool_call>\n{named}\n</tool_call>"), 1),
        ("hermes", "", format!("<tool_call>{named}</tool_call>\n<tool_call>{time}</tool_call>"), 2),
        ("hermes", "", r#"<tool_call>{"name": "get_time", "arguments": {"x": "</tool_call>"}}</tool_call>"#.into(), 1),
        ("hermes", "", r#"<tool_call>{"arguments": {"city": "a"}, "name": "get_weather"}</tool_call>"#.into(), 1),
        ("hermes", "", r#"<tool_call>{"name": "get_time"}</tool_call><|im_end|>"#.into(), 1),
        (
            "hermes",
            "Now:\n",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nNew <York>\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
                .into(),
            1,
        ),
        ("hermes", "", "<tool_call><function=get_time></function></tool_call>".into(), 1),
        ("llama", "<|python_tag|>", parameters.clone(), 1),
        ("llama", "", parameters.clone(), 1),
        ("llama", "I will ask. <|python_tag|>", format!("{named}; {parameters}<|im_end|>"), 2),
        ("llama", "[", format!("{parameters}, {parameters}]"), 2),
        ("mistral", "Yes. ", format!("[TOOL_CALLS][{named}, {time}]"), 2),
        ("mistral", "[1] ", format!("[TOOL_CALLS] [{}]", named.replacen('{', r#"{"id": "abc123def", "#, 1)), 1),
        ("mistral", "", format!("[TOOL_CALLS]get_weather[ARGS]{GOOD}[TOOL_CALLS]get_time[ARGS]{{}}"), 2),
        ("mistral", "", format!("[TOOL_CALLS]get_weather[CALL_ID]abc123def[ARGS]{GOOD}"), 1),
        ("mistral", "", format!("[TOOL_CALLS]get_weather{GOOD}"), 1),
        (
            "deepseek",
            "Gut. <｜tool▁calls▁begin｜>",
            format!(
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{GOOD}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{{}}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            ),
            2,
        ),
        (
            "deepseek",
            "<｜tool▁calls▁begin｜>",
            format!(
                "<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{GOOD}<｜tool▁call▁end｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            ),
            2,
        ),
        (
            "deepseek",
            "Gut. <｜tool▁calls▁begin｜>",
            format!(
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{GOOD}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            ),
            1,
        ),
        ("deepseek", "", format!("<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{GOOD}<｜tool▁call▁end｜>"), 1),
        (
            "harmony",
            "<|channel|>analysis<|message|>I will ask < or <| it.<|end|>",
            format!(
                "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{GOOD}<|call|>"
            ),
            1,
        ),
        ("harmony", "", format!("<|channel|>commentary to=functions.get_weather<|constrain|>json<|message|>{GOOD}"), 1),
        ("harmony", "", " to=functions.get_time<|channel|>commentary<|message|>{}<|call|>".into(), 1),
        (
            "harmony",
            "<|channel|>commentary<|message|>The plan<|end|>",
            "<|start|>assistant to=functions.get_time<|channel|>commentary json<|message|><|call|>".into(),
            1,
        ),
    ]
}

#[test]
fn every_valid_call_reaches_the_reader_at_every_split() {
    for (format, free, calls, count) in valid_calls() {
        passes(format, &format!("{free}{calls}"), count);
    }
}

#[test]
fn every_cut_call_ends_the_request_before_the_call() {
    for (format, free, calls, count) in valid_calls().into_iter().filter(|(.., count)| *count == 1) {
        assert_eq!(count, 1);
        // The call's name is complete and its JSON is not: the engines stream the name. Before it, this is text.
        let name = if calls.contains("get_weather") { "get_weather" } else { "get_time" };
        let begin = match format {
            "harmony" => calls.find("<|message|>").unwrap(),
            _ if calls.contains("```json") => calls.find("```json").unwrap() + 7,
            "deepseek" => calls.find("sep｜>").unwrap() + "sep｜>".len(),
            _ => calls.find(name).unwrap() + name.len() + 1,
        };
        let end = calls.rfind('}').or(calls.rfind("</function")).unwrap_or(calls.len());
        for cut in (begin..end).filter(|cut| calls.is_char_boundary(*cut)).step_by(5) {
            stops(format, free, &calls[..cut], None);
        }
    }
}

#[test]
fn every_invalid_call_ends_the_request_before_the_call() {
    let faults = [
        (r#"{"days": 3}"#, "get_weather: the property city is missing"),
        (r#"{"city": 3}"#, "get_weather: /city 3 is not string"),
        (r#"{"city": "a", "days": 15}"#, "get_weather: /days 15 is out of bounds"),
        (
            r#"{"city": "a", "unit": "kelvin"}"#,
            "get_weather: /unit \"kelvin\" is not one of the allowed values",
        ),
        (r#"{"city": "a", "x": 1}"#, "get_weather: /x is not allowed"),
        (r#"{"city": "a",}"#, "is no JSON: "),
        (r#"{"city": 'a'}"#, "is no JSON: "),
    ];
    for (arguments, why) in faults {
        for (format, free, calls, _) in valid_calls() {
            if calls.contains(GOOD) {
                stops(format, free, &calls.replacen(GOOD, arguments, 1), Some(why));
            }
        }
    }
    for (format, free, calls, _) in valid_calls() {
        if calls.contains(GOOD) {
            let unknown = calls.replacen("get_weather", "get_news", 1);
            stops(format, free, &unknown, Some("no tool has the name \"get_news\""));
        }
    }
    let xml = |text: &str| format!("<function=get_weather>{text}</function></tool_call>");
    for (format, call, why) in [
        (
            "hermes",
            r#"<tool_call>{"name": "get_time", "arguments": "{}"}</tool_call>"#.to_owned(),
            "the arguments are no object",
        ),
        ("hermes", r#"<tool_call>{"name": "get_time"} then</tool_call>"#.into(), "has text behind it"),
        ("hermes", xml("<parameter=days>3</parameter>"), "the property city is missing"),
        (
            "hermes",
            xml("<parameter=city>a</parameter><parameter=days>many</parameter>"),
            "/days \"many\" is not integer",
        ),
        ("hermes", xml("city: a"), "the property city is missing"),
        ("hermes", "<function=get_news></function>".into(), "no tool has the name \"get_news\""),
        (
            "deepseek",
            "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>now<｜tool▁call▁end｜>".into(),
            "has no JSON behind its name",
        ),
        (
            "harmony",
            "<|channel|>commentary to=functions.get_time<|message|>now<|call|>".into(),
            "has no JSON behind its name",
        ),
        (
            "harmony",
            "<|channel|>commentary to=functions.get_time<|message|>{} and<|call|>".into(),
            "has text behind its arguments",
        ),
        // A recipient with dots is the function behind the last one, and the last recipient counts.
        (
            "harmony",
            "<|channel|>commentary to=browser.get_weather<|message|>{}<|call|>".into(),
            "city is missing",
        ),
        (
            "harmony",
            "<|channel|>commentary to=assistant to=functions.get_weather<|message|>{}<|call|>".into(),
            "city is missing",
        ),
        (
            "llama",
            r#"{"type": "function", "name": "get_weather", "parameters": {}}"#.into(),
            "city is missing",
        ),
    ] {
        stops(format, "", &call, Some(why));
    }
    // The first call is valid and reaches the reader.
    let first = r#"<|python_tag|>{"name": "get_time", "parameters": {}}"#;
    let second = r#"{"name": "get_news", "parameters": {}}"#;
    stops("llama", &format!("{first}; "), second, Some("no tool has the name"));
    let first = r#"<tool_call>{"name": "get_time"}</tool_call>"#;
    stops("hermes", first, r#"<tool_call>{"name": "get_news"}</tool_call>"#, Some("no tool has the name"));
}

#[test]
fn text_without_calls_is_free_and_a_row_is_held_only_if_a_marker_may_begin_in_it() {
    for (format, text) in [
        ("hermes", "a < b, <tool>, <tool_calls> and </tool_call>; {\"name\": 1}"),
        ("llama", "{\"answer\": {\"name\": \"get_news\"}}"),
        ("llama", "{\"name\": \"Bob\", \"age\": 3}"),
        ("llama", "fn f() { let it = \"{\"; }"),
        ("llama", "<|python_tag|>print(get_news.call(x=1))"),
        ("hermes", "Qwen wraps each call in `<tool_call>` and `</tool_call>` tags."),
        ("hermes", "Put the call between <tool_call> and its end tag."),
        ("hermes", "<tool_call>get_weather()</tool_call>"),
        ("hermes", r#"<tool_call>{"arguments": {}}</tool_call>"#),
        ("hermes", r#"<tool_call>{"na"#),
        ("hermes", "<think>\nThe tag <tool_call> starts a call.\n</think>\n\nThe answer is 4."),
        ("hermes", r#"<think><tool_call>{"name": "A", "arguments": {}}</tool_call></think>Four."#),
        ("mistral", "The marker [TOOL_CALLS] starts a call."),
        ("mistral", "[TOOL_CALLS][]"),
        ("deepseek", "The marker <｜tool▁calls▁begin｜> begins <｜tool▁call▁begin｜>."),
        ("mistral", "[1] [TOOL] and [TOOL_CALL] {"),
        ("deepseek", "<｜tool > and <｜tool▁sep｜>"),
        ("harmony", "<|channel|>final<|message|>to=functions.get_news < <|return|>"),
        ("harmony", "<|channel|>analysis to=python code<|message|>print(1)<|call|>"),
        ("harmony", "Plain text without a header."),
    ] {
        passes(format, text, 0);
    }
    let draft = r#"<think>Plan: <tool_call>{"name": "A", "arguments": {}}</tool_call> first.</think>"#;
    let call = r#"<tool_call>{"name": "get_time"}</tool_call>"#;
    passes("hermes", &format!("{draft}\n{call}"), 1);
    // Both engines take a call for the end of reasoning that has none.
    let call = r#"<tool_call>{"name": "get_news"}</tool_call>"#;
    stops("hermes", "<think>Plan: ", call, Some("no tool has the name"));
    let tokens = Tokens { special: false, words: false };
    let settings = serde_json::from_value(json!({"tool_calls": "hermes", "tools": tools()})).unwrap();
    let mut check = GrammarCheck::new(&settings, &tokens).unwrap();
    let ids = tokens.ids("free text, then <tool and more");
    let rows: Vec<&[TokenId]> = ids.chunks(1).collect();
    assert_eq!(receive(&mut check, 1, &rows, FinishKind::Stop).held, "<tool".len());
}

#[test]
fn a_marker_that_no_setting_reads_is_reported_once() {
    let tokens = Tokens { special: true, words: true };
    let settings = serde_json::from_value(json!({"tool_calls": "hermes", "tools": tools()})).unwrap();
    let mut check = GrammarCheck::new(&settings, &tokens).unwrap();
    let (rid, front_end, sink) = ("r".to_owned(), String::new(), String::new());
    let (request, prompt_tokens) = (1, 1);
    check.open(&Opened {
        request,
        rid,
        front_end,
        sink,
        arrived_ms: 0,
        prompt_tokens,
        received_tokens: 0,
        resumed: false,
    });
    let mut row = |text: &str| {
        let result = check.calls_row(1, &tokens.ids(text), 0, FinishKind::Running);
        result.and_then(|(result, _)| result.unread)
    };
    assert_eq!(row("I will ask. "), None);
    assert_eq!(row("<|tool_call_begin|>functions.get_time:0"), Some("kimi_k2"));
    assert_eq!(row("<|tool_call_begin|>"), None);
}

#[test]
fn a_call_that_cannot_be_checked_passes_and_is_reported() {
    let tokens = Tokens { special: true, words: true };
    // Each level doubles the work.
    let two = |level: u32| json!({"allOf": [{"$ref": format!("#/$defs/{level}")}, {"$ref": format!("#/$defs/{level}")}]});
    let levels = (0..40).map(|level| (level.to_string(), two(level + 1))).chain([("40".into(), json!(true))]);
    let slow = json!({"$ref": "#/$defs/0", "$defs": levels.collect::<serde_json::Map<_, _>>()});
    let tools = json!([{"name": "slow", "parameters": slow}, {"name": "get_time"}]);
    let settings = serde_json::from_value(json!({"tool_calls": "hermes", "tools": tools})).unwrap();
    let mut check = GrammarCheck::new(&settings, &tokens).unwrap();
    let call = |name: &str, text: &str| {
        format!("<tool_call>{{\"name\": {name:?}, \"arguments\": {{\"a\": {text:?}}}}}</tool_call>")
    };
    for (request, call, unchecked) in [
        (1, call("slow", ""), Some("the check of its arguments takes too long")),
        (2, call("get_time", &"x".repeat(260 << 10)), Some("it is over 256 KiB")),
        (3, call("get_time", &",".repeat(33_000)), Some("it has over 32,768 values")),
        (4, call("get_time", "x"), None),
    ] {
        let ids = tokens.ids(&call);
        let received = receive(&mut check, request, &[&ids], FinishKind::Stop);
        let valid = u32::from(unchecked.is_none());
        assert_eq!((received.unchecked.as_deref(), received.fault, received.valid), (unchecked, None, valid));
        assert_eq!(received.ids, ids);
    }
}

#[test]
fn a_request_without_tools_is_not_checked() {
    let tokens = Tokens { special: true, words: true };
    let settings = serde_json::from_value(json!({"tool_calls": "hermes"})).unwrap();
    let mut check = GrammarCheck::new(&settings, &tokens).unwrap();
    let ids = tokens.ids("x <tool_call>nothing</tool_call> <tool_call>");
    for length in [1, 4, 100] {
        let rows: Vec<&[TokenId]> = ids.chunks(length).collect();
        let received = receive(&mut check, length as u64, &rows, FinishKind::Length);
        assert_eq!((received.fault, received.ids, received.held), (None, ids.clone(), 0));
    }
}

#[test]
fn a_request_that_is_aborted_may_end_in_a_call() {
    each_split("hermes", "<tool_call>{\"name\":", FinishKind::Abort, |_, ids, received| {
        assert_eq!((received.fault, &received.ids[..]), (None, ids));
    });
}

#[test]
fn a_call_whose_rows_were_released_too_early_is_still_judged() {
    let tokens = Tokens { special: true, words: true };
    let settings = serde_json::from_value(json!({"tool_calls": "hermes", "tools": tools()})).unwrap();
    let mut check = GrammarCheck::new(&settings, &tokens).unwrap();
    let (rid, front_end, sink) = ("r".to_owned(), String::new(), String::new());
    let opened = Opened {
        request: 1,
        rid,
        front_end,
        sink,
        arrived_ms: 0,
        prompt_tokens: 1,
        received_tokens: 0,
        resumed: false,
    };
    for request in [1, 2] {
        check.open(&Opened { request, ..opened.clone() });
        let mut row = |text: &str, waiting| {
            let (result, _) =
                check.calls_row(request, &tokens.ids(text), waiting, FinishKind::Running).unwrap();
            (result.action, result.leaked)
        };
        assert_eq!(row("a <tool_call>{\"name\": ", 0), (CallAction::Hold, false));
        // The host has released the row.
        assert_eq!(row("\"get_", 0), (CallAction::Pass, true));
        if request == 1 {
            assert_eq!(row("time\"}</tool_call>", 0), (CallAction::Pass, false));
            assert_eq!(row("<tool_call>", 0), (CallAction::Hold, false), "the next call is held again");
        } else {
            let unknown = CallFault::Invalid("no tool has the name \"get_x\"".into());
            assert_eq!(row("x\"}</tool_call>", 0), (CallAction::End(unknown, vec![]), false));
        }
    }
}
