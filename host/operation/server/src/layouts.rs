//! The layouts of a stream's frames: those that the connector introduced, in the rendezvous file, in the journal or in the stream.

use crate::requests::Requests;
use afterbay_config as config;
use afterbay_events::event::{EngineIntroduced, IntroductionRefused, JournalNotice};
use afterbay_events::{Event, Events};
use afterbay_journal::JournalDirectory;
use afterbay_wire::{Introduction, IntroductionError, Layouts};
use std::sync::{Arc, Mutex, PoisonError};

/// The text of a stream's layouts, in its journal and here.
#[derive(Clone)]
pub(crate) struct KnownLayouts {
    stream: String,
    engine: config::Engine,
    directory: Arc<JournalDirectory>,
    requests: Requests,
    events: Events,
    text: Arc<Mutex<String>>,
}

impl KnownLayouts {
    /// Begins with what the journal has.
    pub(crate) fn new(
        stream: &config::Stream,
        directory: &Arc<JournalDirectory>,
        requests: &Requests,
        events: &Events,
    ) -> KnownLayouts {
        let name = stream.name.to_string();
        let text = directory.layout(&name).unwrap_or_default();
        KnownLayouts {
            stream: name,
            engine: stream.engine,
            directory: directory.clone(),
            requests: requests.clone(),
            events: events.clone(),
            text: Arc::new(Mutex::new(text)),
        }
    }

    /// Adds an introduction, stores the text, and returns the layouts.
    pub(crate) fn add(&self, introduction: Option<&str>) -> Layouts {
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        *text = Layouts::text(self.engine, &text, introduction);
        if let Err(error) = self.directory.set_layout(&self.stream, &text) {
            let what = format!("its layout is not stored: {error}");
            self.events.publish(JournalNotice { stream: self.stream.as_str().into(), is_wrong: true, what });
        }
        Layouts::of_text(&text)
    }

    /// Reports a message of the connector that cannot be used.
    pub(crate) fn refuse(&self, why: String) {
        self.events.publish(IntroductionRefused { stream: self.stream.as_str().into(), why });
    }

    /// Takes an introduction that the stream received, and its bytes.
    pub(crate) fn receive(&self, introduction: Result<&Introduction, &IntroductionError>, bytes: &[u8]) {
        let stream = self.stream.as_str().into();
        let introduction = introduction.map_err(Clone::clone);
        let event: Event = match introduction.and_then(|it| Ok((it, Layouts::introduced(it)?))) {
            Ok((introduction, layouts)) => {
                self.add(std::str::from_utf8(bytes).ok());
                self.requests.set_layouts(&self.stream, layouts.clone());
                let unknown = layouts.unknown_fields();
                let unknown = match unknown.is_empty() {
                    true => "all of its columns are known".to_owned(),
                    false => format!("rows with a value in {} are not joined", unknown.join(", ")),
                };
                EngineIntroduced { stream, engine: introduction.name(), unknown }.into()
            }
            Err(error) => IntroductionRefused { stream, why: error.to_string() }.into(),
        };
        self.events.publish(event);
    }
}
