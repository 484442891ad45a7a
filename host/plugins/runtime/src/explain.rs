//! The explanation of a trap: the guest's own lines, and the text of its panic or exception.
//!
//! Code that was compiled for WebAssembly (Rust, C) has its lines in [`SourceLines`]. An interpreter (JavaScript, Python) prints
//! its stack. Its own lines would say nothing to a plugin's author.

use wasmtime::{Trap, WasmBacktrace};

use crate::limits::FRAMES_MAX;
use crate::lines::{GuestFrame, SourceLines, is_foreign, short_name};
use crate::log::LogBook;

/// The text before the place and the text of a panic in Rust, as the SDK logs it.
const PANICKED: &str = "panicked at ";

/// The explanation of a trap.
pub(crate) struct Explanation {
    pub(crate) message: String,
    /// The guest's own lines, innermost first, at most [`FRAMES_MAX`].
    pub(crate) stack: Vec<GuestFrame>,
}

/// The guest's own lines at the end of a call, innermost first, at most [`FRAMES_MAX`].
pub(crate) fn stack(error: &wasmtime::Error, lines: &SourceLines) -> Vec<GuestFrame> {
    let trace = error.downcast_ref::<WasmBacktrace>();
    let frames = trace.into_iter().flat_map(|trace| trace.frames());
    let mut stack = Vec::new();
    for frame in frames {
        let own = frame.module_offset().map_or(&[][..], |offset| lines.at(offset));
        stack.extend_from_slice(own);
        // Line tables have no names of functions. The section of names has those of functions that are not inlined.
        if let (false, Some(last), Some(name)) = (own.is_empty(), stack.last_mut(), frame.func_name())
            && last.function.is_empty()
        {
            last.function = short_name(name).into();
        }
    }
    stack.truncate(FRAMES_MAX);
    stack
}

/// Explains a trap by its stack, and by what the guest logged and printed in the call.
pub(crate) fn trap(error: &wasmtime::Error, lines: &SourceLines, log: &LogBook) -> Explanation {
    let printed = log.printed();
    if let Some(exception) =
        printed.as_deref().and_then(|printed| python(printed).or_else(|| javascript(printed)))
    {
        return exception;
    }
    let stack = stack(error, lines);
    let trap = match error.downcast_ref::<Trap>() {
        Some(trap) => trap.to_string(),
        None => in_our_words(error.root_cause().to_string()),
    };
    let mut message = match log.last_error() {
        Some(error) if error.starts_with(PANICKED) => panic(error, &stack),
        Some(error) => format!("{trap}; it said: {error}"),
        None => trap,
    };
    if let Some(printed) = printed {
        let verb = if log.last_error().is_some() { "printed" } else { "said" };
        message += &format!("; it {verb}: {printed}");
    }
    Explanation { message, stack }
}

/// Replaces wasmtime's words about undefined imports by words about grants, which the operator knows.
fn in_our_words(message: String) -> String {
    match message.strip_prefix("unknown import: `").and_then(|rest| rest.split_once('`')) {
        Some((import, _)) => format!("called {import}, which is not granted"),
        None => message,
    }
}

/// A panic's text, without its place if the stack begins there, or if the place is not the author's.
fn panic(logged: &str, stack: &[GuestFrame]) -> String {
    let place_and_text = logged.strip_prefix(PANICKED).and_then(|logged| logged.split_once(": "));
    let (Some((place, text)), Some(frame)) = (place_and_text, stack.first()) else {
        return logged.to_owned();
    };
    match is_foreign(place) || place.starts_with(&format!("{}:{}:", frame.file, frame.line)) {
        true => format!("panicked: {text}"),
        false => logged.to_owned(),
    }
}

/// The last exception of Python in a printed text.
fn python(printed: &str) -> Option<Explanation> {
    let (_, trace) = printed.rsplit_once("Traceback (most recent call last):\n")?;
    let (mut stack, mut message) = (Vec::new(), String::new());
    for line in trace.lines().map(str::trim_end) {
        match python_frame(line) {
            Some(frame) => stack.push(frame),
            None if line.is_empty() => break,
            // A line of the source, or of marks below it.
            None if line.starts_with(' ') && message.is_empty() => {}
            None if message.is_empty() => message.push_str(line),
            None => message = format!("{message}\n{line}"),
        }
    }
    // Each directory of sources is mounted by its number, the standard library by its name.
    let is_own = |file: &str| {
        file.strip_prefix('/').and_then(|it| it.split_once('/')).is_some_and(|(dir, _)| is_number(dir))
    };
    let has_own = stack.iter().any(|frame| is_own(&frame.file));
    stack.retain(|frame| !has_own || is_own(&frame.file));
    for frame in &mut stack {
        let own =
            frame.file.strip_prefix('/').and_then(|it| it.split_once('/')).filter(|(dir, _)| is_number(dir));
        if let Some(file) = own.map(|(_, file)| file.into()) {
            frame.file = file;
        }
    }
    explanation(stack.into_iter().rev(), message)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Reads `  File "/0/plugin.py", line 50, in process`.
fn python_frame(line: &str) -> Option<GuestFrame> {
    let (file, rest) = line.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
    let (number, function) = rest.split_once(", in ").unwrap_or((rest, ""));
    let function = if function == "<module>" { "" } else { function };
    Some(GuestFrame { file: file.into(), line: number.parse().ok()?, function: function.into() })
}

/// The exception of JavaScript in a printed text. The interpreter's host prints it as Rust's `Debug`:
/// `Exception { message: Some("…"), stack: Some("    at process (/src/plugin.js:43:12)\n") }`.
fn javascript(printed: &str) -> Option<Explanation> {
    let (_, exception) = printed.rsplit_once("Exception { message: ")?;
    let (message, rest) = debug_text(exception)?;
    let (stack, _) = debug_text(rest.strip_prefix(", stack: ")?)?;
    explanation(stack.lines().filter_map(javascript_frame), message)
}

/// Reads `Some("text")` as `Debug` writes it. Returns the text and the rest; `None` is an empty text.
fn debug_text(written: &str) -> Option<(String, &str)> {
    if let Some(rest) = written.strip_prefix("None") {
        return Some((String::new(), rest));
    }
    let quoted = written.strip_prefix("Some(\"")?;
    let (mut text, mut chars) = (String::new(), quoted.char_indices());
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((text, quoted[at + 1..].strip_prefix(')')?)),
            '\\' => match chars.next()?.1 {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                'u' => {
                    let code: String = chars
                        .by_ref()
                        .map(|(_, char)| char)
                        .skip(1)
                        .take_while(|char| *char != '}')
                        .collect();
                    text.push(u32::from_str_radix(&code, 16).ok().and_then(char::from_u32)?);
                }
                other => text.push(other),
            },
            other => text.push(other),
        }
    }
    None
}

/// Reads `    at process (/src/plugin.js:43:12)`.
fn javascript_frame(line: &str) -> Option<GuestFrame> {
    let frame = line.trim_start().strip_prefix("at ")?;
    let (function, place) = match frame.rsplit_once(" (") {
        Some((function, place)) => (function, place.strip_suffix(')')?),
        None => ("", frame),
    };
    let (place, _column) = place.rsplit_once(':')?;
    let (file, number) = place.rsplit_once(':')?;
    let file = file.trim_start_matches('/');
    Some(GuestFrame { file: file.into(), line: number.parse().ok()?, function: function.into() })
}

/// `None` without a frame: the printed text then says more.
fn explanation(stack: impl Iterator<Item = GuestFrame>, message: String) -> Option<Explanation> {
    let stack: Vec<GuestFrame> = stack.take(FRAMES_MAX).collect();
    (!stack.is_empty()).then_some(Explanation { message, stack })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(explanation: &Explanation) -> (Vec<String>, &str) {
        (explanation.stack.iter().map(GuestFrame::to_string).collect(), &explanation.message)
    }

    #[test]
    fn an_exception_of_python_is_explained_by_its_own_lines() {
        let printed = "Traceback (most recent call last):\n  File \"/0/plugin.py\", line 50, in process\n  File \"/0/words/split.py\", \
                       line 25, in helper\n    len(value)\n    ~~~^^^^^^^\n  File \"/python/json/decoder.py\", line 3, in decode\nTypeError: \
                       object of type 'NoneType'\nhas no len()\n\nthread '<unnamed>' (1) panicked at runtime/src/lib.rs:1280:25:\n";
        let own = ["words/split.py:25 in helper".to_owned(), "plugin.py:50 in process".to_owned()];
        let explained = python(printed).unwrap();
        assert_eq!(shown(&explained), (own.to_vec(), "TypeError: object of type 'NoneType'\nhas no len()"));
        let twice = format!(
            "Traceback (most recent call last):\n  File \"/0/a.py\", line 1, in a\nKeyError: 1\n\n{printed}"
        );
        assert_eq!(
            shown(&python(&twice).unwrap()),
            (own.to_vec(), "TypeError: object of type 'NoneType'\nhas no len()")
        );
        assert!(python("Traceback (most recent call last):\nno frame").is_none());
    }

    #[test]
    fn an_exception_of_javascript_is_explained_by_its_own_lines() {
        let printed = "noise\nthread '<unnamed>' (1) panicked at crates/runtime/src/interpreter.rs:51:31:\nFailed to call 'process': \
                       Exception(Exception { message: Some(\"no \\\"length\\\" of \\u{7f}\"), stack: Some(\"    at helper \
                       (/src/plugin.js:14:10)\\n    at <anonymous> (native)\\n    at process (/src/plugin.js:43:12)\\n\") })\nnote: run";
        let own = ["src/plugin.js:14 in helper".to_owned(), "src/plugin.js:43 in process".to_owned()];
        assert_eq!(shown(&javascript(printed).unwrap()), (own.to_vec(), "no \"length\" of \u{7f}"));
        for cut in 0..printed.len() {
            let _ends = javascript(&printed[..cut]);
        }
    }

    #[test]
    fn a_panics_place_is_shown_once() {
        let frame = |line| GuestFrame { file: "src/lib.rs".into(), line, function: "a::b".into() };
        let logged = "panicked at src/lib.rs:42:5: index: 1";
        assert_eq!(panic(logged, &[frame(42)]), "panicked: index: 1");
        assert_eq!(panic(logged, &[frame(4)]), logged);
        assert_eq!(panic(logged, &[]), logged);
        let inside = "panicked at /rustc/abc/library/core/src/option.rs:7:1: no value";
        assert_eq!(
            (panic(inside, &[frame(4)]).as_str(), panic(inside, &[]).as_str()),
            ("panicked: no value", inside)
        );
    }
}
