//! Simulated clients that lose their connection again and again, and read on behind the last token that they have.

use crate::machine::{JOURNAL, STREAM};
use crate::peers::engine::{Request, token};
use afterbay_journal::reader::{JournalReader, ReadFrom, RequestState};
use afterbay_journal_view::sent_rows::SentReader;
use afterbay_sim_disk::{Random, SimDisk};
use afterbay_wire::Layouts;
use std::path::Path;
use std::sync::Arc;

/// The clients of an engine's requests.
pub struct Clients {
    disk: SimDisk,
    random: Random,
    clients: Vec<Client>,
}

struct Client {
    request: Request,
    /// The tokens so far.
    place: u64,
}

impl Clients {
    pub fn new(requests: &[Request], disk: &SimDisk, seed: u64) -> Clients {
        let clients = requests.iter().map(|request| Client { request: request.clone(), place: 0 });
        Clients { disk: disk.clone(), random: Random(seed ^ 0xc11e), clients: clients.collect() }
    }

    /// Some clients come, read some tokens, and leave.
    pub fn come_and_go(&mut self) -> Result<(), String> {
        for at in 0..self.clients.len() {
            if self.random.once_in(8) {
                let most = 1 + self.random.below(20);
                self.read(at, most)?;
            }
        }
        Ok(())
    }

    /// Each client reads what is left. A request with a lease has all its tokens.
    pub fn end(&mut self) -> Result<(), String> {
        for at in 0..self.clients.len() {
            // An engine that dies may not have said anything of a request.
            let Some(state) = self.read(at, u64::MAX)? else { continue };
            let Client { request, place } = &self.clients[at];
            let is_whole = *place == request.tokens && state == RequestState::Finished;
            if request.has_lease && !is_whole {
                return Err(format!("a client has {place} tokens of {request:?}, which is {state:?}"));
            }
            if state == RequestState::Live {
                return Err(format!("{request:?} never ended"));
            }
        }
        Ok(())
    }

    /// A client reads up to this many tokens behind its place. Each is the next one.
    fn read(&mut self, at: usize, most: u64) -> Result<Option<RequestState>, String> {
        let failed = |error: afterbay_journal::ReadError| error.to_string();
        let Ok(journal) = JournalReader::open_on(Arc::new(self.disk.clone()), Path::new(JOURNAL)) else {
            return Ok(None);
        };
        let Ok(stream) = journal.stream(STREAM) else { return Ok(None) };
        let Client { request, place } = &mut self.clients[at];
        let mut lives = stream.lives(&request.rid).map_err(failed)?;
        // A process that died had opened it, and recorded nothing of it.
        lives.retain(|life| life.request.first_frame.0 > 0);
        let [life] = &lives[..] else {
            let infos = || lives.iter().map(|life| &life.request).collect::<Vec<_>>();
            return if lives.is_empty() {
                Ok(None)
            } else {
                Err(format!("{request:?} has several lives: {:?}", infos()))
            };
        };
        let number = life.request.number.0;
        let mut reader = SentReader::new(&stream, Layouts::builtin());
        let (mut so_far, last) = (0, place.saturating_add(most));
        for frame in stream.frames(ReadFrom::Frame(life.request.first_frame)).map_err(failed)? {
            let (frame, Some(outcome)) = frame.map_err(failed)? else { continue };
            let rid_of = |of: u64| (of == number).then_some(&*request.rid);
            let rows = reader.outcome(&outcome, Some(&frame.position), rid_of).map_err(failed)?;
            for id in rows.into_iter().flat_map(|(_, row)| row.ids) {
                so_far += 1;
                if so_far <= *place || so_far > last {
                    continue;
                }
                if id != token(&request.rid, so_far - 1) {
                    return Err(format!("token {so_far} of {request:?} is another, or comes again"));
                }
                *place = so_far;
            }
        }
        if so_far < *place {
            return Err(format!("a client had {place} tokens of {request:?}, the journal has {so_far}"));
        }
        Ok(Some(life.request.state))
    }
}
