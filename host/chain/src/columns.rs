//! Requests as plugins see them, copied for an instance that opens them later.

use crate::attributes::RequestAttributes;
use afterbay_runtime::{Fault, Opened, Plugin};
use std::sync::Arc;

/// A request, as a plugin is told of it, kept.
#[derive(Clone, Debug)]
pub struct Begun {
    pub request: u64,
    pub rid: Box<str>,
    pub worker: Box<str>,
    pub sink: Box<str>,
    pub prompt_tokens: u64,
    pub received_tokens: u64,
    pub resumed: bool,
    pub attributes: Option<Arc<str>>,
}

impl Begun {
    pub fn new(opened: &Opened<'_>, attributes: &RequestAttributes) -> Begun {
        Begun {
            request: opened.request,
            rid: opened.rid.into(),
            worker: opened.http_worker_ipc.into(),
            sink: opened.sink.into(),
            prompt_tokens: opened.prompt_tokens,
            received_tokens: opened.received_tokens,
            resumed: opened.resumed,
            attributes: attributes.attributes(opened.request),
        }
    }

    /// Tells an instance of some.
    pub fn open(begun: &[Begun], plugin: &mut Plugin) -> Result<(), Fault> {
        begun.iter().for_each(|of| plugin.set_attributes(of.request, of.attributes.clone()));
        let opened: Vec<Opened<'_>> = begun.iter().map(Begun::opened).collect();
        plugin.open(&opened)
    }

    fn opened(&self) -> Opened<'_> {
        Opened {
            request: self.request,
            rid: &self.rid,
            http_worker_ipc: &self.worker,
            sink: &self.sink,
            prompt_tokens: self.prompt_tokens,
            received_tokens: self.received_tokens,
            resumed: self.resumed,
        }
    }
}
