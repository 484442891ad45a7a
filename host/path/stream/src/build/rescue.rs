//! The parts of a pipeline that outlive a panic: the connections and the plugins.

use crate::delivery::{Sink, SinkSender};
use crate::frame_load::FrameLoadReader;
use crate::pipeline::Pipeline;
use crate::poison::PoisonDetector;
use crate::pressure::Pressure;
use crate::receive::Receive;
use crate::stages::Stages;
use afterbay_batch::hold::HoldTimes;
use afterbay_batch::ledger::LedgerLinks;
use afterbay_chain::Chain;
use afterbay_wire::Layouts;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The stages that a rebuild does not make anew.
pub(crate) struct LastingStages {
    pub(crate) receive: Receive,
    pub(crate) pressure: Pressure,
    pub(crate) frame_load: FrameLoadReader,
    pub(crate) poison: PoisonDetector,
}

/// The parts of a pipeline that outlive a panic, or a hand-over that failed.
pub(crate) struct Rescued {
    pub(crate) lasting: LastingStages,
    /// The layouts of the frames that come next.
    pub(crate) layouts: Layouts,
    pub(crate) chain: Chain,
    /// After a hand-over that failed: the times of the rows that the plugins hold. After a panic, the plugins' instances and
    /// holds are lost.
    pub(crate) holds: Option<Vec<HoldTimes>>,
    pub(crate) links: LedgerLinks,
    pub(crate) senders: Vec<SinkSender>,
}

/// Takes the pipeline apart after a panic with this message, or after a hand-over that failed. After a panic, the journal's
/// writer writes its buffered records when dropped.
pub(crate) fn rescue(pipeline: Pipeline, panic: Option<&str>, holds: Option<Vec<HoldTimes>>) -> Rescued {
    let Pipeline { receive, stages, delivery, pressure, poison, live_requests: _ } = pipeline;
    let Stages { frame_log, decoder, mut ledger, chain, frame_load, .. } = stages;
    // The writer's end may panic, too. The records that it held are then lost.
    let _ended = catch_unwind(AssertUnwindSafe(|| drop(frame_log)));
    // The rebuilt ledger does not know what this one has seen since the start.
    ledger.close_restart_gap();
    let poison = panic.map_or_else(PoisonDetector::default, |why| poison.after_panic(why));
    Rescued {
        lasting: LastingStages { receive, pressure, frame_load, poison },
        layouts: decoder.layouts().clone(),
        chain,
        holds,
        links: ledger.into_links(),
        senders: delivery.sinks.into_iter().map(Sink::into_sender).collect(),
    }
}
