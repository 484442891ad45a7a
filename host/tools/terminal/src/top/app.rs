//! The state of the screen: what was answered, which view is open, and what a key changes.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::top::clock::Clock;
use crate::top::filter;
use crate::top::life::LifeText;
use crate::top::poll::{Answer, Detail};
use crate::top::status::{Cursor, RequestPage, Status, Stream, version};
use crate::top::text::safe;
use crate::top::theme::Theme;

/// The requests of one page of the list.
const PAGE: usize = 200;
/// The seconds of a stream that are kept for the curve.
const HISTORY: usize = 300;
/// The time for which the replacement of the process is shown.
const NOTICE: Duration = Duration::from_secs(60);

/// The views, in the order of their keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum View {
    #[default]
    Streams,
    Requests,
    Sinks,
    Plugins,
}

impl View {
    pub(crate) const ALL: [(View, &'static str); 4] = [
        (View::Streams, "Streams"),
        (View::Requests, "Requests"),
        (View::Sinks, "Sinks"),
        (View::Plugins, "Plugins"),
    ];

    fn after(self, step: usize) -> View {
        View::ALL[(self as usize + step) % View::ALL.len()].0
    }
}

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
    pub(crate) view: View,
    /// The last status. It stays on the screen while nobody answers.
    pub(crate) status: Option<Status>,
    /// The reason why nobody answers, and since when.
    pub(crate) lost: Option<(Instant, String)>,
    /// The replacement of the process, and when it was seen.
    pub(crate) replaced: Option<(Instant, String)>,
    /// The tokens that each stream received in its last seconds, the latest last.
    pub(crate) history: BTreeMap<String, VecDeque<u64>>,
    /// The selected row of each view.
    selected: [usize; View::ALL.len()],
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
    /// The mistake in the typed filter.
    pub(crate) mistake: Option<String>,
    query: Vec<(&'static str, String)>,
    /// The cursors of the open page and of those before it; the first page has none.
    cursors: Vec<Cursor>,
    pub(crate) page: Option<Result<RequestPage, String>>,
    /// The selected request, which the list follows while new ones come in above it.
    follow: Option<(String, u64)>,
}

/// The open request.
pub(crate) struct Life {
    pub(crate) rid: String,
    pub(crate) answer: Option<Result<LifeText, String>>,
    pub(crate) scroll: usize,
    /// The lines of the life, as drawn last.
    pub(crate) lines: usize,
}

impl Requests {
    /// The number of the open page, from 1.
    pub(crate) fn page_number(&self) -> usize {
        self.cursors.len() + 1
    }

    fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = self.query.clone();
        query.push(("limit", PAGE.to_string()));
        if let Some(cursor) = self.cursors.last() {
            query.push((
                "after",
                match cursor {
                    Cursor::Number(number) => number.to_string(),
                    Cursor::Text(text) => text.clone(),
                },
            ));
        }
        query
    }

    fn listed(&self) -> &[crate::top::status::Request] {
        match &self.page {
            Some(Ok(page)) => &page.requests,
            _ => &[],
        }
    }

    fn next(&self) -> Option<Cursor> {
        self.page.as_ref()?.as_ref().ok()?.next.clone()
    }
}

impl App {
    pub(crate) fn new(address: &str, coloured: bool, clock: Clock) -> App {
        App {
            address: safe(address),
            theme: Theme::new(coloured),
            clock,
            view: View::default(),
            status: None,
            lost: None,
            replaced: None,
            history: BTreeMap::new(),
            selected: Default::default(),
            requests: Requests::default(),
            life: None,
            help: false,
            page_rows: 10,
        }
    }

    /// The answer that the open view needs.
    pub(crate) fn detail(&self) -> Detail {
        match (&self.life, self.view) {
            (Some(life), _) => Detail::Life(life.rid.clone()),
            (None, View::Requests) => Detail::Requests(self.requests.query()),
            _ => Detail::Nothing,
        }
    }

    pub(crate) fn selected(&self) -> usize {
        self.selected[self.view as usize]
    }

    /// The selected stream.
    pub(crate) fn stream(&self) -> Option<&Stream> {
        self.status.as_ref()?.streams.get(self.selected[View::Streams as usize])
    }

    /// The rows of the open view.
    fn rows(&self) -> usize {
        self.rows_of(self.view)
    }

    fn rows_of(&self, view: View) -> usize {
        let status = self.status.as_ref();
        match view {
            View::Streams => status.map_or(0, |status| status.streams.len()),
            View::Requests => self.requests.listed().len(),
            View::Sinks => status.map_or(0, |s| s.streams.iter().map(|stream| stream.sinks.len()).sum()),
            View::Plugins => status.map_or(0, |status| status.plugins.len()),
        }
    }

    fn select(&mut self, row: usize) {
        self.selected[self.view as usize] = row.min(self.rows().saturating_sub(1));
        if self.view == View::Requests {
            let selected = self.requests.listed().get(self.selected());
            let follow = selected.map(|request| (request.stream.clone(), request.request));
            // The newest request stays the newest.
            self.requests.follow = follow.filter(|_| row > 0);
        }
    }

    /// Takes an answer. `now` is the time of its arrival.
    pub(crate) fn answer(&mut self, answer: Answer, now: Instant) {
        match answer {
            Answer::Status(Ok(status)) => self.status(status, now),
            Answer::Status(Err(why)) => {
                let since = self.lost.take().map_or(now, |(since, _)| since);
                self.lost = Some((since, safe(&why)));
            }
            Answer::Requests(detail, page) if detail == self.detail() => {
                self.requests.page = Some(page);
                let followed = self.requests.follow.clone().and_then(|(stream, number)| {
                    let is_it =
                        |it: &crate::top::status::Request| it.stream == stream && it.request == number;
                    self.requests.listed().iter().position(is_it)
                });
                let row = followed.unwrap_or(self.selected[View::Requests as usize]);
                self.selected[View::Requests as usize] =
                    row.min(self.requests.listed().len().saturating_sub(1));
            }
            Answer::Life(detail, answer) if detail == self.detail() => {
                if let Some(life) = &mut self.life {
                    life.answer = Some(answer.map(|answer| LifeText::new(&answer, self.clock)));
                }
            }
            // The view has changed since the question.
            Answer::Requests(..) | Answer::Life(..) => {}
        }
    }

    fn status(&mut self, status: Status, now: Instant) {
        self.lost = None;
        self.replaced = self.replaced.take().filter(|(seen, _)| now.duration_since(*seen) < NOTICE);
        if let Some(before) = &self.status
            && (before.pid, &before.started) != (status.pid, &status.started)
        {
            let version = match before.version == status.version && before.commit == status.commit {
                true => String::new(),
                false => format!(", version {} to {}", version(before), version(&status)),
            };
            let time = self.clock.time(Some(&status.time));
            let words = format!(
                "a new process since {time} (hand-over or restart): pid {} to {}{version}",
                before.pid, status.pid
            );
            self.replaced = Some((now, words));
        }
        self.history.retain(|name, _| status.streams.iter().any(|stream| stream.name == *name));
        for stream in &status.streams {
            let history = self.history.entry(stream.name.clone()).or_default();
            if history.len() == HISTORY {
                history.pop_front();
            }
            history.push_back(stream.rates.tokens_received.max(0.0) as u64);
        }
        self.status = Some(status);
        for view in [View::Streams, View::Sinks, View::Plugins] {
            let last = self.rows_of(view).saturating_sub(1);
            self.selected[view as usize] = self.selected[view as usize].min(last);
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
                    if let Some(typed) = &mut self.requests.typed {
                        typed.clear();
                    }
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
                if self.life.take().is_none() && self.view == View::Requests {
                    self.filter("");
                }
            }
            KeyCode::Char('1' | 'o') => self.open(View::Streams),
            KeyCode::Char('2' | 'r') => self.open(View::Requests),
            KeyCode::Char('3' | 's') => self.open(View::Sinks),
            KeyCode::Char('4' | 'p') => self.open(View::Plugins),
            KeyCode::Tab | KeyCode::Right => self.open(self.view.after(1)),
            KeyCode::BackTab | KeyCode::Left => self.open(self.view.after(View::ALL.len() - 1)),
            KeyCode::Char('/') => {
                self.open(View::Requests);
                self.requests.typed = Some(self.requests.filter.clone());
            }
            KeyCode::Enter => self.enter(),
            code => self.scroll(code),
        }
        Step::Draw
    }

    fn open(&mut self, view: View) {
        self.view = view;
        self.life = None;
    }

    fn enter(&mut self) {
        let request = self.requests.listed().get(self.selected());
        if let (None, View::Requests, Some(request)) = (&self.life, self.view, request) {
            let rid = request.rid.clone();
            self.life = Some(Life { rid, answer: None, scroll: 0, lines: 0 });
        }
    }

    fn type_filter(&mut self, code: KeyCode) {
        let Some(typed) = &mut self.requests.typed else { return };
        match code {
            KeyCode::Esc => {
                self.requests.typed = None;
                self.requests.mistake = None;
            }
            KeyCode::Enter => {
                let typed = typed.clone();
                self.filter(&typed);
            }
            KeyCode::Backspace => {
                typed.pop();
            }
            KeyCode::Char(c) if typed.chars().count() < filter::CHARS_MAX => typed.push(c),
            _ => {}
        }
    }

    /// Uses a filter, and opens the first page. A filter with a mistake stays open.
    fn filter(&mut self, text: &str) {
        match filter::parse(text) {
            Ok(query) => {
                self.requests = Requests { filter: text.trim().to_owned(), query, ..Requests::default() };
                self.selected[View::Requests as usize] = 0;
            }
            Err(mistake) => self.requests.mistake = Some(mistake),
        }
    }

    fn scroll(&mut self, code: KeyCode) {
        let page = self.page_rows.max(1);
        let (at, last) = match &self.life {
            Some(life) => (life.scroll, life.lines.saturating_sub(page)),
            None => (self.selected(), self.rows().saturating_sub(1)),
        };
        let to = match code {
            KeyCode::Up | KeyCode::Char('k') => at.checked_sub(1),
            KeyCode::Down | KeyCode::Char('j') => Some(at + 1),
            KeyCode::PageUp => {
                if at == 0 {
                    None
                } else {
                    Some(at.saturating_sub(page))
                }
            }
            KeyCode::PageDown | KeyCode::Char(' ') => {
                if at == last {
                    Some(at + 1)
                } else {
                    Some((at + page).min(last))
                }
            }
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
            Some(_) if self.view == View::Requests => {
                if let Some(next) = self.requests.next() {
                    self.requests.cursors.push(next);
                    self.turned(0);
                }
            }
            None if self.view == View::Requests && self.requests.cursors.pop().is_some() => {
                self.turned(PAGE - 1);
            }
            _ => {}
        }
    }

    /// Another page of requests opens, with this row selected.
    fn turned(&mut self, row: usize) {
        self.requests.page = None;
        self.requests.follow = None;
        self.selected[View::Requests as usize] = row;
    }
}
