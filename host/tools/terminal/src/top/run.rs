//! The terminal: keys, signals and answers come in, frames go out, and the terminal is restored at every end.

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, enable_raw_mode};
use ratatui::layout::{Position, Rect};
use rustix::process::{Signal, kill_current_process_group};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

use crate::top::admin::Admin;
use crate::top::app::{App, Step};
use crate::top::clock::Clock;
use crate::top::draw::draw;
use crate::top::poll::{Answer, Desk, EVERY, poll};

/// Messages that wait for the screen. The senders wait when it is full.
const MESSAGES_MAX: usize = 64;
/// The time in which a stop signal arrives at this process.
const STOP: Duration = Duration::from_millis(100);

/// The reason why the screen ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A key.
    Quit,
    /// A signal, by its number.
    Signal(i32),
}

/// The reason why there is no status.
#[derive(Debug, Error)]
pub enum TopError {
    /// The admin address does not answer.
    #[error("{0}")]
    Admin(String),
    /// The terminal, or standard output, failed.
    #[error(transparent)]
    Terminal(#[from] io::Error),
    /// The thread that asks the admin address panicked.
    #[error("the thread that asks the admin address ended")]
    Asking,
}

/// News for the screen.
enum Message {
    Answer(Box<Answer>),
    Terminal(io::Result<Event>),
    Signal(i32),
    /// The thread that asks has ended.
    Ended,
}

/// Sends [`Message::Ended`] when its thread ends, also by a panic.
struct Asking(SyncSender<Message>);

impl Drop for Asking {
    fn drop(&mut self) {
        // Without a receiver the screen has ended.
        let _sent = self.0.send(Message::Ended);
    }
}

/// Shows the status of a running Afterbay until a key or a signal ends it. `address` names the admin address on the screen;
/// without `coloured` no colour is written. The terminal is restored when this returns and after a panic.
///
/// # Errors
/// The terminal fails.
pub fn run(admin: impl Admin, address: &str, coloured: bool) -> Result<End, TopError> {
    let (sender, messages) = sync_channel(MESSAGES_MAX);
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGCONT])?;
    let desk = Desk::default();
    let mut app = App::new(address, coloured, Clock::local());
    let mut terminal = ratatui::try_init()?;
    start(admin, &desk, &sender, signals);
    let end = show(&mut terminal, &mut app, &desk, &messages);
    leave(&mut terminal)?;
    end
}

/// Starts the threads that wait for answers, keys and signals. They end with the process.
fn start(admin: impl Admin, desk: &Desk, sender: &SyncSender<Message>, mut signals: Signals) {
    let (to, desk) = (sender.clone(), desk.clone());
    thread::spawn(move || {
        let asking = Asking(to);
        poll(&admin, &desk, |answer| asking.0.send(Message::Answer(Box::new(answer))).is_ok());
    });
    let to = sender.clone();
    thread::spawn(move || {
        loop {
            let event = event::read();
            let is_last = event.is_err();
            if to.send(Message::Terminal(event)).is_err() || is_last {
                return;
            }
        }
    });
    let to = sender.clone();
    thread::spawn(move || signals.forever().try_for_each(|signal| to.send(Message::Signal(signal))));
}

fn show(
    terminal: &mut DefaultTerminal,
    app: &mut App,
    desk: &Desk,
    messages: &Receiver<Message>,
) -> Result<End, TopError> {
    loop {
        terminal.draw(|frame| draw(app, frame, Instant::now()))?;
        let first = match messages.recv_timeout(EVERY) {
            Ok(message) => Some(message),
            // The time since the last answer is drawn again.
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Err(TopError::Asking),
        };
        for message in first.into_iter().chain(messages.try_iter().take(MESSAGES_MAX)) {
            let step = match message {
                Message::Answer(answer) => {
                    app.answer(*answer, Instant::now());
                    Step::Draw
                }
                Message::Terminal(event) => match event? {
                    Event::Key(key) => app.key(key),
                    _ => Step::Draw,
                },
                Message::Signal(SIGCONT) => {
                    enter(terminal)?;
                    Step::Draw
                }
                Message::Signal(signal) => return Ok(End::Signal(signal)),
                Message::Ended => return Err(TopError::Asking),
            };
            match step {
                Step::Draw => {}
                Step::Redraw => redraw(terminal)?,
                Step::Suspend => suspend(terminal)?,
                Step::Quit => return Ok(End::Quit),
            }
        }
        desk.order(&app.detail());
    }
}

/// Gives the terminal back to the shell until the process is continued. Without a shell that could continue it, the kernel
/// ignores the signal, and the screen goes on.
fn suspend(terminal: &mut DefaultTerminal) -> io::Result<()> {
    leave(terminal)?;
    kill_current_process_group(Signal::TSTP)?;
    // Another thread may take the signal a little later.
    thread::sleep(STOP);
    enter(terminal)
}

fn leave(terminal: &mut DefaultTerminal) -> io::Result<()> {
    ratatui::try_restore()?;
    terminal.show_cursor()
}

fn enter(terminal: &mut DefaultTerminal) -> io::Result<()> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen)?;
    redraw(terminal)
}

/// Clears the screen, so that the next frame writes every character. `Terminal::clear` would ask the terminal where the
/// cursor is, and the thread that waits for keys would get the answer.
fn redraw(terminal: &mut DefaultTerminal) -> io::Result<()> {
    let size = terminal.size()?;
    terminal.resize(Rect::from((Position::ORIGIN, size)))
}
