//! The state of the screen: what was answered, which view is open, and what a key changes.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::Value;
use std::time::{Duration, Instant};

use crate::top::fields::{Clock, safe};
use crate::top::grid::{self, Column, Theme};
use crate::top::plain::{list, version};
use crate::top::poll::{Answer, Question};

/// The requests of one page of the list.
const PAGE: usize = 200;

/// The time for which the replacement of the process is shown.
const NOTICE: Duration = Duration::from_secs(60);

/// Most characters of a filter.
const FILTER_CHARS_MAX: usize = 256;

/// The words that stand before a colon in a filter, each a parameter of `GET /v1/requests`.
const FILTERS: [&str; 11] =
    ["rid", "stream", "state", "finish", "plugin", "tenant", "model", "lora", "session", "since", "until"];

/// The views, in the order of their keys: the name, the list of the status, and the columns.
pub(crate) const VIEWS: [(&str, &str, &[Column]); 5] = [
    ("Streams", "streams", grid::STREAMS),
    ("Requests", "requests", grid::REQUESTS),
    ("Sinks", "sinks", grid::SINKS),
    ("Plugins", "plugins", grid::PLUGINS),
    ("Copies", "copies", grid::COPIES),
];

/// The number of the view of streams, and of requests.
pub(crate) const STREAMS: usize = 0;
pub(crate) const REQUESTS: usize = 1;

/// The next step of the terminal after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Draw,
    /// Draws every character again.
    Redraw,
    Suspend,
    Quit,
}

/// The state of the screen.
pub(crate) struct App {
    /// The admin address, safe for a terminal.
    pub(crate) address: String,
    pub(crate) theme: Theme,
    pub(crate) clock: Clock,
    /// The open view, by its number.
    pub(crate) view: usize,
    /// The last status. It stays on the screen while nobody answers.
    pub(crate) status: Option<Value>,
    /// The reason why nobody answers, and since when.
    pub(crate) lost: Option<(Instant, String)>,
    /// The replacement of the process, and when it was seen.
    pub(crate) replaced: Option<(Instant, String)>,
    /// The selected row of each view.
    selected: [usize; VIEWS.len()],
    pub(crate) requests: Requests,
    /// The open request.
    pub(crate) life: Option<Life>,
    pub(crate) help: bool,
    /// Rows that fit into the list, as drawn last.
    pub(crate) page_rows: usize,
}

/// The list of requests.
#[derive(Default)]
pub(crate) struct Requests {
    /// The filter in use.
    pub(crate) filter: String,
    /// The filter that is being typed.
    pub(crate) typed: Option<String>,
    /// The cursors of the open page and of those before it; the first page has none.
    pub(crate) cursors: Vec<String>,
    pub(crate) page: Option<Result<Value, String>>,
    /// The stream and the number of the selected request, which the list follows while new ones come in above it.
    follow: Option<(Value, Value)>,
}

/// The open request.
pub(crate) struct Life {
    pub(crate) rid: String,
    pub(crate) answer: Option<Result<Value, String>>,
    pub(crate) scroll: usize,
    /// The lines of the life, as drawn last.
    pub(crate) lines: usize,
}

impl App {
    pub(crate) fn new(address: &str, coloured: bool, clock: Clock) -> App {
        App {
            address: safe(address),
            theme: Theme { coloured },
            clock,
            view: STREAMS,
            status: None,
            lost: None,
            replaced: None,
            selected: Default::default(),
            requests: Requests::default(),
            life: None,
            help: false,
            page_rows: 10,
        }
    }

    /// The question that the open view has.
    pub(crate) fn question(&self) -> Option<Question> {
        match &self.life {
            Some(life) => Some(Question { rid: Some(life.rid.clone()), query: Vec::new() }),
            None if self.view != REQUESTS => None,
            None => {
                let after = self.requests.cursors.last().map(|cursor| ("after".to_owned(), cursor.clone()));
                let query =
                    query(&self.requests.filter).chain([("limit".to_owned(), PAGE.to_string())]).chain(after);
                Some(Question { rid: None, query: query.collect() })
            }
        }
    }

    pub(crate) fn selected(&self) -> usize {
        self.selected[self.view]
    }

    /// The rows of a view.
    pub(crate) fn rows(&self, view: usize) -> &[Value] {
        let answered = match view {
            REQUESTS => self.requests.page.as_ref().and_then(|page| page.as_ref().ok()),
            _ => self.status.as_ref(),
        };
        answered.map_or(&[], |answered| list(answered, VIEWS[view].1))
    }

    fn select(&mut self, row: usize) {
        self.selected[self.view] = row.min(self.rows(self.view).len().saturating_sub(1));
        let selected = self.rows(REQUESTS).get(self.selected[REQUESTS]);
        // The newest request stays the newest.
        self.requests.follow = selected.filter(|_| row > 0).map(number);
    }

    /// Takes an answer. `now` is the time of its arrival.
    pub(crate) fn answer(&mut self, (question, said): Answer, now: Instant) {
        match (question, said) {
            (None, Ok(status)) => self.status(status, now),
            (None, Err(why)) => {
                let since = self.lost.take().map_or(now, |(since, _)| since);
                self.lost = Some((since, safe(&why)));
            }
            // The view has changed since the question.
            (question, _) if question != self.question() => {}
            (Some(Question { rid: Some(_), .. }), said) => {
                self.life.iter_mut().for_each(|life| life.answer = Some(said.clone()));
            }
            (Some(_), said) => {
                self.requests.page = Some(said);
                let rows = self.rows(REQUESTS);
                let follow = self.requests.follow.as_ref();
                let followed = follow.and_then(|follow| rows.iter().position(|row| number(row) == *follow));
                let row = followed.unwrap_or(self.selected[REQUESTS]);
                self.selected[REQUESTS] = row.min(rows.len().saturating_sub(1));
            }
        }
    }

    fn status(&mut self, status: Value, now: Instant) {
        self.lost = None;
        self.replaced = self.replaced.take().filter(|(seen, _)| now.duration_since(*seen) < NOTICE);
        if let Some(before) = self
            .status
            .as_ref()
            .filter(|it| (&it["pid"], &it["started"]) != (&status["pid"], &status["started"]))
        {
            let words = format!(
                "a new process (hand-over or restart): pid {} to {}, version {} to {}",
                before["pid"],
                status["pid"],
                version(before),
                version(&status)
            );
            self.replaced = Some((now, words));
        }
        self.status = Some(status);
        for view in (0..VIEWS.len()).filter(|view| *view != REQUESTS) {
            self.selected[view] = self.selected[view].min(self.rows(view).len().saturating_sub(1));
        }
    }

    /// Does what a key says.
    pub(crate) fn key(&mut self, key: KeyEvent) -> Step {
        if key.kind == KeyEventKind::Release {
            return Step::Draw;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Step::Quit,
                KeyCode::Char('z') => Step::Suspend,
                KeyCode::Char('l') => Step::Redraw,
                KeyCode::Char('u') => {
                    self.requests.typed.iter_mut().for_each(String::clear);
                    Step::Draw
                }
                _ => Step::Draw,
            };
        }
        if self.requests.typed.is_some() {
            self.type_filter(key.code);
            return Step::Draw;
        }
        if std::mem::take(&mut self.help) {
            return if key.code == KeyCode::Char('q') { Step::Quit } else { Step::Draw };
        }
        match key.code {
            KeyCode::Char('q') => return Step::Quit,
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Esc | KeyCode::Backspace => {
                if self.life.take().is_none() && self.view == REQUESTS {
                    self.filter(String::new());
                }
            }
            KeyCode::Char('1' | 'o') => self.open(STREAMS),
            KeyCode::Char('2' | 'r') => self.open(REQUESTS),
            KeyCode::Char('3' | 's') => self.open(2),
            KeyCode::Char('4' | 'p') => self.open(3),
            KeyCode::Char('5' | 'c') => self.open(4),
            KeyCode::Tab | KeyCode::Right => self.open(self.view + 1),
            KeyCode::BackTab | KeyCode::Left => self.open(self.view + VIEWS.len() - 1),
            KeyCode::Char('/') => {
                self.open(REQUESTS);
                self.requests.typed = Some(self.requests.filter.clone());
            }
            KeyCode::Enter if self.view == REQUESTS && self.life.is_none() => {
                let rid =
                    self.rows(REQUESTS).get(self.selected()).and_then(|request| request["rid"].as_str());
                self.life = rid.map(|rid| Life { rid: rid.to_owned(), answer: None, scroll: 0, lines: 0 });
            }
            code => self.scroll(code),
        }
        Step::Draw
    }

    fn open(&mut self, view: usize) {
        self.view = view % VIEWS.len();
        self.life = None;
    }

    fn type_filter(&mut self, code: KeyCode) {
        let Some(typed) = &mut self.requests.typed else { return };
        match code {
            KeyCode::Esc => self.requests.typed = None,
            KeyCode::Enter => {
                let typed = std::mem::take(typed);
                self.filter(typed);
            }
            KeyCode::Backspace => _ = typed.pop(),
            KeyCode::Char(c) if typed.chars().count() < FILTER_CHARS_MAX => typed.push(c),
            _ => {}
        }
    }

    /// Uses a filter, and opens the first page.
    fn filter(&mut self, filter: String) {
        self.requests = Requests { filter: filter.trim().to_owned(), ..Requests::default() };
        self.selected[REQUESTS] = 0;
    }

    fn scroll(&mut self, code: KeyCode) {
        let page = self.page_rows.max(1);
        let (at, last) = match &self.life {
            Some(life) => (life.scroll, life.lines.saturating_sub(page)),
            None => (self.selected(), self.rows(self.view).len().saturating_sub(1)),
        };
        let to = match code {
            KeyCode::Up | KeyCode::Char('k') => at.checked_sub(1),
            KeyCode::Down | KeyCode::Char('j') => Some(at + 1),
            KeyCode::PageUp => at.checked_sub(1).map(|_| at.saturating_sub(page)),
            KeyCode::PageDown | KeyCode::Char(' ') if at == last => Some(at + 1),
            KeyCode::PageDown | KeyCode::Char(' ') => Some((at + page).min(last)),
            KeyCode::Home | KeyCode::Char('g') => Some(0),
            KeyCode::End | KeyCode::Char('G') => Some(last),
            _ => return,
        };
        if let Some(life) = &mut self.life {
            life.scroll = to.unwrap_or(0).min(last);
            return;
        }
        match to {
            Some(to) if to <= last => self.select(to),
            // Past an end of the page of requests, the next page or the one before opens.
            Some(_) if self.view == REQUESTS => {
                let page = self.requests.page.as_ref().and_then(|page| page.as_ref().ok());
                if let Some(next) = page.and_then(|page| page["next"].as_str()).map(str::to_owned) {
                    self.requests.cursors.push(next);
                    self.turned(0);
                }
            }
            None if self.view == REQUESTS && self.requests.cursors.pop().is_some() => self.turned(PAGE - 1),
            _ => {}
        }
    }

    /// Another page of requests opens, with this row selected.
    fn turned(&mut self, row: usize) {
        self.requests.page = None;
        self.requests.follow = None;
        self.selected[REQUESTS] = row;
    }
}

/// A request's number in its stream, by which the list follows it.
fn number(request: &Value) -> (Value, Value) {
    (request["stream"].clone(), request["request"].clone())
}

/// The parameters of a filter such as `chatcmpl- state:live plugin:redact`. A word without a name is the beginning of the rid, which
/// may have a colon.
fn query(filter: &str) -> impl Iterator<Item = (String, String)> {
    filter.split_whitespace().map(|word| {
        let named = word.split_once(':').filter(|(name, _)| FILTERS.contains(name));
        let (name, value) = named.unwrap_or(("rid", word));
        (name.to_owned(), value.to_owned())
    })
}
