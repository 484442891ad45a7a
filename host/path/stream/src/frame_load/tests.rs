//! The loads that are read in frames of one or several engines, by their time.

use super::*;
use afterbay_batch::{FrameDecoder, Location, Persisted, Received, Timestamp};
use afterbay_journal::FrameNo;
use afterbay_wire::Engine;
use afterbay_wire::Layouts;
use afterbay_wire::vllm::{SynthOutput, SynthOutputs};
use std::sync::{Arc, Mutex};

/// A reader, and the loads that it has handed on.
struct Scene {
    reader: FrameLoadReader,
    loads: Arc<Mutex<Vec<FrameLoad>>>,
    begun: Instant,
}

impl Scene {
    fn new() -> Scene {
        let loads = Arc::new(Mutex::new(Vec::new()));
        let taken = loads.clone();
        let reader = FrameLoadReader::new(Some(Box::new(move |load| taken.lock().unwrap().push(load))), None);
        Scene { reader, loads, begun: Instant::now() }
    }

    /// A frame of an engine at a time in milliseconds, with this many requests that run and wait. Returns what is handed on.
    fn frame(
        &mut self,
        at_ms: u64,
        engine: u32,
        rows: usize,
        stats: Option<(u32, u32, f64)>,
    ) -> Option<FrameLoad> {
        let rows =
            (0..rows).map(|row| SynthOutput { request_id: format!("r{row}"), ..SynthOutput::default() });
        let frame =
            SynthOutputs { engine_index: engine, rows: rows.collect(), stats, ..SynthOutputs::default() };
        let at = Timestamp { instant: self.begun + Duration::from_millis(at_ms), unix_ns: at_ms };
        let persisted = Persisted::new(Received { bytes: frame.encode(), at }, FrameNo(1), Location::Nowhere);
        self.reader.observe(&FrameDecoder::new(Layouts::of(Engine::Vllm)).decode(persisted));
        self.loads.lock().unwrap().pop()
    }
}

fn load(running: u64, waiting: u64, kv_cache_usage: f64) -> Option<FrameLoad> {
    Some(FrameLoad { running, waiting, kv_cache_usage })
}

#[test]
fn an_engines_load_is_read_once_in_100_ms_and_at_every_frame_without_rows() {
    let mut scene = Scene::new();
    assert_eq!(scene.frame(0, 0, 2, Some((2, 1, 0.25))), load(2, 1, 0.25));
    assert_eq!(scene.frame(99, 0, 2, Some((2, 9, 0.25))), None);
    assert_eq!(scene.frame(100, 0, 2, Some((2, 3, 0.5))), load(2, 3, 0.5));
    assert_eq!(scene.frame(101, 0, 0, Some((0, 0, 0.0))), load(0, 0, 0.0), "the engine is idle");
    assert_eq!(scene.frame(300, 0, 2, None), None, "the engine sends no statistics");
}

#[test]
fn the_loads_of_several_engines_are_added_and_the_fullest_cache_counts() {
    let mut scene = Scene::new();
    scene.frame(0, 0, 1, Some((2, 1, 0.25)));
    assert_eq!(scene.frame(1, 1, 1, Some((3, 4, 0.75))), load(5, 5, 0.75), "each engine has its own time");
    assert_eq!(scene.frame(200, 1, 1, Some((1, 0, 0.1))), load(3, 1, 0.25));
}

#[test]
fn the_load_of_an_engine_past_the_bound_is_left_out() {
    let mut scene = Scene::new();
    let engines = ENGINES_MAX as u32;
    for engine in 0..engines {
        scene.frame(0, engine, 1, Some((1, 0, 0.5)));
    }
    assert_eq!(scene.frame(1, engines, 1, Some((1, 0, 0.5))), None);
    assert_eq!(scene.frame(200, 0, 1, Some((2, 0, 0.5))), load(u64::from(engines) + 1, 0, 0.5));
}

#[test]
fn nothing_is_read_if_nobody_takes_the_load() {
    let mut scene = Scene::new();
    scene.reader.loads = None;
    assert_eq!(scene.frame(0, 0, 1, Some((1, 0, 0.5))), None);
    assert!(scene.reader.engines.is_empty());
}
