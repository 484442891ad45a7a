//! Aborts by the id that a client or its gateway knows: of vLLM each sample of the request, of SGLang too if the connector is there.

use super::{ANSWER_MAX, Aborted, Aborts, NOT_LIVE, Reason, no_answer};
use crate::refusal::Refusal;
use serde::Serialize;
use tokio::sync::oneshot;

/// The answer to an abort.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum AbortAnswer {
    /// The id is a rid.
    Request(Aborted),
    /// The requests with the id, and the reasons why some continue.
    Requests { id: String, aborted: Vec<Aborted>, refused: Vec<String> },
}

impl Aborts {
    /// Aborts the live request with this rid, or else every live request with this id.
    pub(crate) async fn abort_by_id(&self, id: &str, reason: Reason) -> Result<AbortAnswer, Refusal> {
        let not_live = match self.abort(id, reason).await {
            Ok(aborted) => return Ok(AbortAnswer::Request(aborted)),
            Err(refused) if refused.code == NOT_LIVE => refused,
            Err(refused) => return Err(refused),
        };
        let (mut aborted, mut refused) = (Vec::new(), Vec::new());
        for rid in self.with_id(id).await? {
            match self.abort(&rid, reason).await {
                Ok(done) => aborted.push(done),
                // It has ended meanwhile.
                Err(refused) if refused.code == NOT_LIVE => {}
                Err(why) => refused.push(why),
            }
        }
        match refused.pop() {
            None if aborted.is_empty() => Err(not_live),
            Some(why) if aborted.is_empty() => Err(why),
            last => {
                let refused = refused.into_iter().chain(last).map(|why| why.to_string()).collect();
                Ok(AbortAnswer::Requests { id: id.to_owned(), aborted, refused })
            }
        }
    }

    /// The rids of the live requests with this id, in all streams.
    async fn with_id(&self, id: &str) -> Result<Vec<String>, Refusal> {
        let channels = self.lock().clone();
        let mut rids = Vec::new();
        for channel in channels {
            let (reply, answer) = oneshot::channel();
            // The send fails if nobody waits any more.
            channel.handle.requests_with_id(id, move |live| drop(reply.send(live)));
            match tokio::time::timeout(ANSWER_MAX, answer).await {
                Ok(live) => rids.extend(live.unwrap_or_default()),
                Err(_) => return Err(no_answer(&channel.stream)),
            }
        }
        // A request may have two legs.
        rids.sort();
        rids.dedup();
        Ok(rids)
    }
}
