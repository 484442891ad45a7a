//! The parts of a pipeline that outlive a panic: the connections and the plugins.

use crate::pipeline::Pipeline;
use crate::poison::PoisonDetector;
use crate::pressure::Pressure;
use crate::receive::Receive;
use afterbay_chain::Chain;
use afterbay_delivery::{Sink, SinkSender, Tap};
use afterbay_ledger::UpstreamAborts;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The stages that a rebuild does not make anew.
pub(crate) struct LastingStages {
    pub(crate) receive: Receive,
    pub(crate) chain: Chain,
    pub(crate) taps: Vec<Tap>,
    pub(crate) pressure: Pressure,
    pub(crate) poison: PoisonDetector,
}

/// The parts of a pipeline that outlive a panic.
pub(crate) struct Rescued {
    pub(crate) lasting: LastingStages,
    pub(crate) aborts: UpstreamAborts,
    pub(crate) senders: Vec<SinkSender>,
}

/// Takes the pipeline apart after a panic with this message. The journal's writer writes its buffered records when dropped.
pub(crate) fn rescue(pipeline: Pipeline, why: &str) -> Rescued {
    let Pipeline { receive, persister, mut ledger, chain, delivery, pressure, poison, .. } = pipeline;
    // The writer's end may panic, too. The records that it held are then lost.
    let _ended = catch_unwind(AssertUnwindSafe(|| drop(persister)));
    // The rebuilt ledger does not know what this one has seen since the start.
    ledger.close_restart_gap();
    let poison = poison.after_panic(why);
    Rescued {
        lasting: LastingStages { receive, chain, taps: delivery.taps, pressure, poison },
        aborts: ledger.into_upstream_aborts(),
        senders: delivery.sinks.into_iter().map(Sink::into_sender).collect(),
    }
}
