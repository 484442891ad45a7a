//! The screen as a terminal of a fixed size shows it. `AFTERBAY_BLESS=1` writes the expected screens in `screens/` again.

use chrono::{Offset, Utc};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::top::app::{App, REQUESTS, Step};
use crate::top::draw::draw;
use crate::top::fields::Clock;
use crate::top::poll::{self, Admin, Desk, Question};

/// The sizes of the expected screens.
const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (40, 10)];

fn fixture(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn status() -> Value {
    fixture(include_str!("tests/status.json"))
}

fn utc() -> Clock {
    Clock(Utc.fix())
}

fn app(status: &Value) -> App {
    let mut app = App::new("unix:/var/lib/afterbay/ADMIN.sock", false, utc());
    take(&mut app, status);
    app
}

fn take(app: &mut App, status: &Value) {
    struct Fixed(Value);
    impl Admin for Fixed {
        fn get(&self, path: &[&str], _: &[(&str, String)]) -> Result<(bool, Value), String> {
            Ok((true, if path.len() == 1 { self.0.clone() } else { self.0["history"].clone() }))
        }
    }
    app.answer((None, poll::status(&Fixed(status.clone()))), Instant::now());
}

fn take_requests(app: &mut App, page: &Value) {
    app.answer((app.question(), Ok(page.clone())), Instant::now());
}

fn press(app: &mut App, keys: impl IntoIterator<Item = KeyCode>) -> Step {
    keys.into_iter().fold(Step::Draw, |_, key| app.key(KeyEvent::new(key, KeyModifiers::NONE)))
}

fn type_text(app: &mut App, text: &str) -> Step {
    press(app, text.chars().map(KeyCode::Char))
}

fn buffer(app: &mut App, (width, height): (u16, u16)) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(app, frame, Instant::now())).unwrap();
    terminal.backend().buffer().clone()
}

/// The screen as lines without blanks at their ends.
fn screen(app: &mut App, size: (u16, u16)) -> String {
    let buffer = buffer(app, size);
    let lines = buffer.content.chunks(size.0.into()).map(|cells| {
        let line: String = cells.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_owned() + "\n"
    });
    lines.collect()
}

/// Compares the screen with the expected one of this name at each of [`SIZES`].
fn expect(app: &mut App, name: &str) {
    for size in SIZES {
        let shown = screen(app, size);
        let file =
            format!("{}/src/top/tests/screens/{name}-{}x{}.txt", env!("CARGO_MANIFEST_DIR"), size.0, size.1);
        if std::env::var_os("AFTERBAY_BLESS").is_some() {
            std::fs::write(&file, &shown).unwrap();
        }
        let expected = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            shown == expected,
            "{file} differs; AFTERBAY_BLESS=1 writes it again. The screen is\n{shown}"
        );
    }
}

#[test]
fn each_view_fits_a_wide_a_usual_and_a_tiny_terminal() {
    let mut status = status();
    // A minute of tokens, so that there is a curve, with a hand-over in it.
    let points = (0..300).map(|at| (at >= 240 && !(270..273).contains(&at)).then(|| (at - 240) * 1700));
    status["history"] = json!({"streams": {"decode-0": {"tokens_received": points.collect::<Vec<_>>()}}});
    let mut app = app(&status);
    expect(&mut app, "streams");
    type_text(&mut app, "r");
    take_requests(&mut app, &fixture(include_str!("tests/requests.json")));
    expect(&mut app, "requests");
    press(&mut app, [KeyCode::Down, KeyCode::Enter]);
    app.answer((app.question(), Ok(fixture(include_str!("tests/life.json")))), Instant::now());
    expect(&mut app, "request");
    type_text(&mut app, "s");
    expect(&mut app, "sinks");
    type_text(&mut app, "pj");
    expect(&mut app, "plugins");
    type_text(&mut app, "?");
    expect(&mut app, "help");
}

#[test]
fn no_stream_and_no_answer_say_so() {
    let mut before = App::new("127.0.0.1:9464", false, utc());
    assert!(screen(&mut before, (80, 24)).contains("asking …"));
    before.answer((None, Err("cannot be connected to: refused".to_owned())), Instant::now());
    let shown = screen(&mut before, (80, 24));
    assert!(shown.contains("no answer for 0 s: cannot be connected to: refused"), "{shown}");

    let mut empty = status();
    empty["streams"] = json!([]);
    empty["plugins"] = json!([]);
    let mut app = app(&empty);
    assert!(screen(&mut app, (80, 24)).contains("no stream"));
    type_text(&mut app, "s");
    assert!(screen(&mut app, (80, 24)).contains("no sink"));
    type_text(&mut app, "p");
    assert!(screen(&mut app, (80, 24)).contains("no plugin"));
}

#[test]
fn every_size_from_nothing_up_is_drawn() {
    let mut app = app(&status());
    for view in ["o", "r", "s", "p", "?", "/"] {
        type_text(&mut app, view);
        for width in [0, 1, 2, 5, 11, 19, 30, 47, 79] {
            for height in [0, 1, 2, 3, 4, 5, 6, 9, 30] {
                drop(buffer(&mut app, (width, height)));
            }
        }
        press(&mut app, [KeyCode::Esc]);
    }
}

#[test]
fn of_many_sinks_the_selected_one_is_in_sight() {
    let mut many = status();
    let sink = many["streams"][0]["sinks"][0].clone();
    many["streams"][0]["sinks"] = (0..300)
        .map(|number| {
            let mut sink = sink.clone();
            sink["name"] = json!(format!("reader-{number}"));
            sink
        })
        .collect();
    let mut app = app(&many);
    type_text(&mut app, "s");
    let shown = screen(&mut app, (80, 24));
    assert!(shown.contains("reader-0 ") && !shown.contains("reader-200 "), "{shown}");
    for _ in 0..200 {
        press(&mut app, [KeyCode::Down]);
    }
    assert!(screen(&mut app, (80, 24)).contains("reader-200 "));
    press(&mut app, [KeyCode::PageDown]);
    assert!(!screen(&mut app, (80, 24)).contains("reader-200 "));
    press(&mut app, [KeyCode::End]);
    assert!(screen(&mut app, (80, 24)).contains("tokenizer"));
    // Fewer sinks than the selected row.
    take(&mut app, &status());
    assert!(screen(&mut app, (80, 24)).contains("tokenizer"));
}

#[test]
fn a_hostile_name_writes_no_escape_sequence() {
    let hostile = "a\x1b]0;owned\x07\r\n\u{9b}31m\u{202e}b";
    let text = serde_json::to_string(&status()).unwrap();
    let escaped = serde_json::to_string(hostile).unwrap();
    let inner = &escaped[1..escaped.len() - 1];
    let text = ["decode-0", "detokenizer", "audit", "stop-loop", "is away", "e61ac84"]
        .iter()
        .fold(text, |text, name| text.replace(name, inner));
    let mut app = app(&fixture(&text));
    let mut page = fixture(include_str!("tests/requests.json"));
    for field in ["rid", "stream", "finish_reason"] {
        page["requests"][0][field] = json!(hostile);
    }
    page["requests"][0]["plugins"] = json!([hostile]);
    let mut life = fixture(include_str!("tests/life.json"));
    life["legs"][0]["rows_seen"][1]["text"] = json!(hostile);
    life["legs"][0]["rows_seen"][2]["actions"][0]["text"] = json!(hostile);
    life["neighbours"][0]["rid"] = json!(hostile);
    life["timeline"][4]["plugin"] = json!(hostile);
    let clean = |app: &mut App, what: &str| {
        let buffer = buffer(app, (200, 50));
        let symbols: String = buffer.content.iter().map(|cell| cell.symbol()).collect();
        assert!(!symbols.chars().any(|c| c.is_control() || c == '\u{202e}'), "{what}: {symbols:?}");
        assert!(symbols.contains("\\u{1b}]0;owned"), "{what}: {symbols}");
    };
    clean(&mut app, "streams");
    type_text(&mut app, "s");
    clean(&mut app, "sinks");
    type_text(&mut app, "p");
    clean(&mut app, "plugins");
    type_text(&mut app, "r");
    take_requests(&mut app, &page);
    clean(&mut app, "requests");
    press(&mut app, [KeyCode::Enter]);
    app.answer((app.question(), Ok(life)), Instant::now());
    clean(&mut app, "request");
    app.answer((app.question(), Err(hostile.to_owned())), Instant::now());
    clean(&mut app, "a refusal");
    app.answer((None, Err(hostile.to_owned())), Instant::now());
    clean(&mut app, "no answer");
}

#[test]
fn without_colour_no_cell_has_one_and_with_colour_a_warning_does() {
    let colours = |coloured: bool| {
        let mut app = App::new("", coloured, utc());
        take(&mut app, &status());
        type_text(&mut app, "s");
        let buffer = buffer(&mut app, (80, 24));
        buffer.content.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert!(!colours(false));
    assert!(colours(true));
}

#[test]
fn a_new_process_is_named_once_and_a_missing_answer_until_it_comes() {
    let mut app = app(&status());
    take(&mut app, &status());
    assert!(!screen(&mut app, (160, 24)).contains("a new process"));
    app.answer((None, Err("refused".to_owned())), Instant::now() - Duration::from_secs(75));
    app.answer((None, Err("refused".to_owned())), Instant::now());
    let shown = screen(&mut app, (160, 24));
    assert!(shown.contains("no answer for 1 m 15 s, the figures are older: refused"), "{shown}");
    assert!(shown.contains("NO ANSWER") && shown.contains("decode-0"), "{shown}");
    let mut next = status();
    next["pid"] = json!(5000);
    next["version"] = json!("0.2.0");
    take(&mut app, &next);
    let shown = screen(&mut app, (160, 24));
    assert!(!shown.contains("no answer"), "{shown}");
    let words =
        "a new process (hand-over or restart): pid 4242 to 5000, version 0.1.0 (e61ac84) to 0.2.0 (e61ac84)";
    assert!(shown.contains(words), "{shown}");
    // The words go after a minute.
    app.answer((None, Ok(next)), Instant::now() + Duration::from_secs(61));
    assert!(!screen(&mut app, (160, 24)).contains("a new process"));
}

#[test]
fn conditions_take_at_most_a_quarter_of_the_screen() {
    let mut bad = status();
    bad["ready"] = json!(false);
    bad["conditions"] = (0..40)
        .map(|number| json!({"condition": "x", "text": format!("reason {number}"), "severity": "not_ready"}))
        .collect();
    let mut app = app(&bad);
    let shown = screen(&mut app, (80, 24));
    assert!(shown.contains("NOT READY"), "{shown}");
    assert_eq!(shown.lines().filter(|line| line.contains("not ready: reason")).count(), 5, "{shown}");
    assert!(shown.contains("35 messages do not fit"), "{shown}");
}

/// The question for a page of requests with this query.
fn listing(query: &[(&str, &str)]) -> Option<Question> {
    let query = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Some(Question { rid: None, query: query.collect() })
}

#[test]
fn a_filter_is_typed_and_asked_for_and_a_mistake_is_refused_in_the_servers_words() {
    let mut app = app(&status());
    // q is a letter while a filter is typed.
    assert_eq!(type_text(&mut app, "/chat state:live plugin:q"), Step::Draw);
    press(&mut app, [KeyCode::Enter]);
    let query = [("rid", "chat"), ("state", "live"), ("plugin", "q"), ("limit", "200")];
    assert_eq!(app.question(), listing(&query));
    take_requests(&mut app, &fixture(include_str!("tests/requests.json")));
    assert!(screen(&mut app, (100, 24)).contains("filter chat state:live plugin:q"));
    press(&mut app, [KeyCode::Esc]);
    assert_eq!(app.question(), listing(&[("limit", "200")]));
    type_text(&mut app, "/urn:uuid:7 rid:state:live state:done");
    press(&mut app, [KeyCode::Enter]);
    let query = [("rid", "urn:uuid:7"), ("rid", "state:live"), ("state", "done"), ("limit", "200")];
    assert_eq!(app.question(), listing(&query));
    app.answer((app.question(), Err("state: is \"done\"".to_owned())), Instant::now());
    assert!(screen(&mut app, (100, 24)).contains("state: is \"done\""));
}

#[test]
fn past_the_end_of_a_page_the_next_one_opens_and_back() {
    let mut app = app(&status());
    type_text(&mut app, "r");
    let page = fixture(include_str!("tests/requests.json"));
    take_requests(&mut app, &page);
    press(&mut app, [KeyCode::End, KeyCode::Down]);
    let second = listing(&[("limit", "200"), ("after", "7")]);
    assert_eq!(app.question(), second);
    // An answer to an earlier question changes nothing.
    let before = listing(&[("limit", "200")]);
    app.answer((before.clone(), Err("late".to_owned())), Instant::now());
    assert!(screen(&mut app, (80, 24)).contains("asking …"));
    let mut last = page.clone();
    last["next"] = Value::Null;
    take_requests(&mut app, &last);
    assert!(screen(&mut app, (80, 24)).contains("page 2, 3 requests"));
    press(&mut app, [KeyCode::End, KeyCode::PageDown]);
    assert_eq!(app.question(), second, "there is no third page");
    press(&mut app, [KeyCode::Home, KeyCode::Up]);
    assert_eq!(app.question(), before);
    take_requests(&mut app, &page);
    assert_eq!(app.selected(), 2, "the last request of the page before");
}

#[test]
fn the_selection_stays_with_its_request_while_new_ones_come() {
    let mut app = app(&status());
    type_text(&mut app, "r");
    let mut page = fixture(include_str!("tests/requests.json"));
    take_requests(&mut app, &page);
    press(&mut app, [KeyCode::Down]);
    let mut new = page["requests"][0].clone();
    new["request"] = json!(10);
    new["rid"] = json!("newest");
    page["requests"].as_array_mut().unwrap().insert(0, new);
    take_requests(&mut app, &page);
    press(&mut app, [KeyCode::Enter]);
    assert_eq!(app.question().unwrap().rid.unwrap(), "chatcmpl-0008");
    press(&mut app, [KeyCode::Esc, KeyCode::Home]);
    take_requests(&mut app, &page);
    press(&mut app, [KeyCode::Enter]);
    assert_eq!(app.question().unwrap().rid.unwrap(), "newest");
}

#[test]
fn keys_open_views_and_end() {
    let mut app = app(&status());
    press(&mut app, [KeyCode::Tab, KeyCode::Tab]);
    assert_eq!(app.view, 2);
    press(&mut app, [KeyCode::BackTab]);
    assert_eq!(app.view, REQUESTS);
    type_text(&mut app, "4");
    assert_eq!(app.view, 3);
    let control = |app: &mut App, c| app.key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL));
    assert_eq!(control(&mut app, 'z'), Step::Suspend);
    assert_eq!(control(&mut app, 'l'), Step::Redraw);
    type_text(&mut app, "/");
    assert_eq!(control(&mut app, 'c'), Step::Quit);
    press(&mut app, [KeyCode::Esc]);
    type_text(&mut app, "?");
    assert_eq!(type_text(&mut app, "q"), Step::Quit);
    assert_eq!(type_text(&mut app, "q"), Step::Quit);
}

/// An admin address that answers from fixtures, and writes down what it was asked.
#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Vec<String>>>);

impl Admin for Scripted {
    fn get(&self, path: &[&str], query: &[(&str, String)]) -> Result<(bool, Value), String> {
        let query: String = query.iter().map(|(name, value)| format!(" {name}={value}")).collect();
        self.0.lock().unwrap().push(path.join("/") + &query);
        match path {
            ["status"] => Ok((true, status())),
            ["requests"] => Ok((true, json!({"requests": "none"}))),
            _ => Ok((false, json!({"error": "there is no request \"x\""}))),
        }
    }
}

#[test]
fn a_new_question_is_asked_at_once_and_a_refusal_has_its_own_words() {
    let (admin, desk) = (Scripted::default(), Desk::default());
    let answers = RefCell::new(Vec::new());
    *desk.lock().unwrap() = listing(&[("rid", "a")]);
    poll::poll(&admin, &desk, |(question, said)| {
        let is_life = question.is_some_and(|question| question.rid.is_some());
        answers.borrow_mut().push(said.map_or_else(|why| why, |status| status["version"].to_string()));
        *desk.lock().unwrap() = Some(Question { rid: Some("x".to_owned()), query: Vec::new() });
        !is_life
    });
    // The first question was replaced before it was asked.
    let curve = "status/history by=second last=300 figure=tokens_received";
    assert_eq!(*admin.0.lock().unwrap(), ["status", curve, "requests/x"]);
    assert_eq!(*answers.borrow(), ["\"0.1.0\"", "there is no request \"x\""]);
}
