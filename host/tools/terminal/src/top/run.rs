//! The terminal: keys, signals and answers come in, frames go out, and the terminal is restored at every end.

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use rustix::process::{Signal, kill_current_process_group};
use signal_hook::consts::{SIGCONT, SIGINT, SIGTERM};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use thiserror::Error;

use crate::top::app::{App, Step};
use crate::top::draw::draw;
use crate::top::fields::Clock;
use crate::top::poll::{Admin, Answer, Desk, poll};

/// Answers that wait for the screen. The thread that asks waits when it is full.
const ANSWERS_MAX: usize = 4;

/// The time in which an answer or a signal is noticed without a key.
const LOOK_EVERY: Duration = Duration::from_millis(100);

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

/// Shows the status of a running Afterbay until a key or a signal ends it. `address` names the admin address on the screen;
/// without `coloured` no colour is written. The terminal is restored when this returns and after a panic.
///
/// # Errors
/// The terminal fails.
pub fn run(admin: impl Admin, address: &str, coloured: bool) -> Result<End, TopError> {
    let signal = Arc::new(AtomicUsize::new(0));
    // SIGHUP ends the process at once: the terminal is gone, there is nothing to restore, and a look for keys would not return.
    for number in [SIGTERM, SIGINT, SIGCONT] {
        signal_hook::flag::register_usize(number, signal.clone(), number.unsigned_abs() as usize)?;
    }
    let (sender, answers) = sync_channel(ANSWERS_MAX);
    let desk = Desk::default();
    let asking = {
        let desk = desk.clone();
        thread::spawn(move || poll(&admin, &desk, |answer| sender.send(answer).is_ok()))
    };
    let mut app = App::new(address, coloured, Clock::local());
    loop {
        let mut terminal = ratatui::try_init()?;
        let end = show(&mut terminal, &mut app, (&desk, &asking, &answers), &signal);
        ratatui::try_restore()?;
        terminal.show_cursor()?;
        match end? {
            Shown::End(end) => return Ok(end),
            Shown::Suspend => {
                // Without a shell that could continue this process, the kernel ignores the signal, and the screen goes on.
                kill_current_process_group(Signal::TSTP).map_err(io::Error::from)?;
                // Another thread may take the signal a little later.
                thread::sleep(LOOK_EVERY);
                signal.store(0, Ordering::Relaxed);
            }
            Shown::Again => {}
        }
    }
}

/// The reason why a screen is left.
enum Shown {
    End(End),
    Suspend,
    /// Every character is drawn again.
    Again,
}

fn show(
    terminal: &mut DefaultTerminal,
    app: &mut App,
    (desk, asking, answers): (&Desk, &JoinHandle<()>, &Receiver<Answer>),
    signal: &AtomicUsize,
) -> Result<Shown, TopError> {
    loop {
        terminal.draw(|frame| draw(app, frame, Instant::now()))?;
        if event::poll(LOOK_EVERY)?
            && let Event::Key(key) = event::read()?
        {
            match app.key(key) {
                Step::Draw => {}
                Step::Redraw => return Ok(Shown::Again),
                Step::Suspend => return Ok(Shown::Suspend),
                Step::Quit => return Ok(Shown::End(End::Quit)),
            }
        }
        answers.try_iter().for_each(|answer| app.answer(answer, Instant::now()));
        match i32::try_from(signal.swap(0, Ordering::Relaxed)) {
            Ok(0) => {}
            Ok(SIGCONT) => return Ok(Shown::Again),
            number => return Ok(Shown::End(End::Signal(number.unwrap_or(SIGTERM)))),
        }
        if asking.is_finished() {
            return Err(TopError::Asking);
        }
        let question = app.question();
        let mut held = desk.lock().unwrap_or_else(PoisonError::into_inner);
        if *held != question {
            *held = question;
            asking.thread().unpark();
        }
    }
}
