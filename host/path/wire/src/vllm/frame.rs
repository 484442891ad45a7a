//! The fields of a frame beside its rows.

use super::fields::{ENGINE_INDEX, FINISHED_REQUESTS, FRAME, FrameJoin, SCHEDULER_STATS, WEIGHT_VERSION};
use super::outputs::Outputs;
use crate::batch::EngineLoad;
use crate::pack::{self, LIST, MAP, PackValue, TYPES};

const NIL: u8 = 0xc0;

impl Outputs {
    /// Whether the frame has a value that may be in one frame only, so that the frame is joined with no other. A field
    /// that no known version has is such a value if it is an array or a map.
    pub(crate) fn is_alone(&self) -> bool {
        self.control().is_some() || self.has_unknown_container()
    }

    /// Whether a field that is not known is an array or a map.
    pub(super) fn has_unknown_container(&self) -> bool {
        self.unknown().any(|value| TYPES[value[0] as usize] & (LIST | MAP) != 0)
    }

    /// The first field with a value that makes a frame without rows more than statistics.
    pub(crate) fn control(&self) -> Option<&'static str> {
        let mut alone = FRAME.iter().enumerate().filter(|(_, field)| field.join == FrameJoin::Alone);
        alone.find(|(at, _)| self.field(*at)[0] != NIL).map(|(_, field)| field.name)
    }

    /// Whether the frame has something besides rows, a time, and values that each frame of the engine has.
    pub(crate) fn has_frame_fields(&self) -> bool {
        self.is_alone() || self.field(SCHEDULER_STATS)[0] != NIL || self.field(FINISHED_REQUESTS)[0] != NIL
    }

    /// The requests that the engine says have ended: also those whose client left.
    pub(super) fn ended_requests(&self) -> impl Iterator<Item = &str> {
        let (count, body) = match pack::item(self.field(FINISHED_REQUESTS)) {
            Some(PackValue::Array(count, body)) => (count, body),
            _ => (0, &[][..]),
        };
        pack::items(body, count).filter_map(|rid| std::str::from_utf8(pack::str_bytes(rid)?).ok())
    }

    /// The load that the frame's statistics tell.
    pub(super) fn engine_load(&self) -> Option<EngineLoad> {
        let stats = self.field(SCHEDULER_STATS);
        let count = |name| u64::try_from(pack::int(map_value(stats, name)?)?).ok();
        let kv_cache_usage = match pack::item(map_value(stats, "kv_cache_usage")?)? {
            PackValue::Float(usage) => usage,
            PackValue::Int(usage) => usage as f64,
            _ => return None,
        };
        let (running, waiting) = (count("num_running_reqs")?, count("num_waiting_reqs")?);
        Some(EngineLoad { engine: self.index()?, running, waiting, kv_cache_usage })
    }

    /// The version of the weights, in frames since 0.32.
    pub(super) fn weights(&self) -> Option<&str> {
        std::str::from_utf8(pack::str_bytes(self.field(WEIGHT_VERSION))?).ok()
    }

    /// The engine's number among those that send to the same front end.
    pub(super) fn index(&self) -> Option<u64> {
        u64::try_from(pack::int(self.field(ENGINE_INDEX))?).ok()
    }
}

/// The value of a key of the map at the start of `bytes`.
pub(super) fn map_value<'a>(bytes: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let PackValue::Map(len, body) = pack::item(bytes)? else { return None };
    let mut values = pack::items(body, 2 * len);
    while let (Some(name), Some(value)) = (values.next(), values.next()) {
        if pack::str_bytes(name) == Some(key.as_bytes()) {
            return Some(value);
        }
    }
    None
}
