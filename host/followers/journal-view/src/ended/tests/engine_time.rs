//! The time for which the engine worked, divided over the requests of small journals.

use super::*;

struct Random(u64);

impl Random {
    fn below(&mut self, max: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % max
    }
}

impl Scene {
    /// The scheduler has got a request.
    fn record(&mut self, rid: &str, prompt_tokens: u64) {
        let record = wire::RequestRecord {
            rid: rid.into(),
            prompt_tokens: Some(prompt_tokens),
            // Every third request does not stream.
            stream: Some(!prompt_tokens.is_multiple_of(3)),
            ..Default::default()
        };
        let frame = self.writer.append(&record.to_frame(), self.now).unwrap().frame;
        let request = self.writer.open(rid);
        self.open.insert(rid.to_owned(), request);
        self.writer.outcome(&Outcome {
            requests: (&[request]).into(),
            tokens: (&[0]).into(),
            ..Outcome::new(frame, self.now, Passage::Barrier("request".into()))
        });
    }

    /// An hour of requests that come and go, with pauses. Each has a record and ends with a row. Returns the time for which at
    /// least one was open.
    fn random(&mut self, seed: u64) -> u64 {
        let mut random = Random(seed * 2 + 1);
        let (mut busy, mut live) = (0, Vec::<(String, u64)>::new());
        for number in 0..200 {
            for at in 0..random.below(3) {
                let wait = random.below(30 * MS);
                busy += if live.is_empty() { 0 } else { wait };
                self.now += wait;
                let rid = format!("r{number}-{at}");
                self.record(&rid, random.below(40_000));
                live.push((rid, 1 + random.below(20)));
            }
            if live.is_empty() {
                continue;
            }
            busy += 20 * MS;
            let mut rows: Vec<(String, usize, bool)> = Vec::new();
            live.retain_mut(|(rid, left)| {
                // A request without a row waits, does not stream, or its prompt takes several steps.
                if random.below(4) > 0 {
                    *left -= 1;
                    rows.push((rid.clone(), random.below(5) as usize, *left == 0));
                }
                *left > 0
            });
            let rows: Vec<Row<'_>> =
                rows.iter().map(|(rid, ids, ends)| (&**rid, &[7; 5][..*ids], *ends)).collect();
            match rows.is_empty() {
                true => self.now += 20 * MS,
                false => self.step(&rows),
            }
        }
        let rows: Vec<Row<'_>> = live.iter().map(|(rid, _)| (&**rid, &[7][..], true)).collect();
        busy += if rows.is_empty() { 0 } else { 20 * MS };
        self.step(&rows);
        busy
    }
}

#[test]
fn the_parts_of_all_requests_are_the_time_for_which_the_engine_had_one() {
    for seed in 0..30 {
        let mut scene = Scene::new(WIRES[seed as usize % 3], 1 << 20);
        let busy = scene.random(seed);
        let mut reader = scene.reader(FrameUse::Facts).with_steps().with_settled_frames();
        let all = ended(&mut reader, &scene.segments());
        let steps = reader.steps();
        assert_eq!(all.iter().map(|request| request.gpu_ns).sum::<u64>(), busy, "seed {seed}");
        assert_eq!(steps.iter().map(|step| step.gpu_ns).sum::<u64>(), busy, "seed {seed}");
        assert_eq!(reader.settled_frames().map(|frame| frame.gpu_ns).sum::<u64>(), busy, "seed {seed}");
        let rows = || steps.iter().flat_map(|step| &step.rows);
        for request in &all {
            let own = rows().filter(|row| row.request == request.info.number);
            assert_eq!(own.map(|row| row.gpu_ns).sum::<u64>(), request.gpu_ns, "seed {seed}");
        }
    }
}

#[test]
fn a_request_costs_the_same_for_a_reader_that_begins_at_a_later_segment() {
    for seed in 0..3 {
        let mut scene = Scene::new(WIRES[seed as usize], 16_384);
        scene.random(seed);
        let segments = scene.segments();
        assert!(segments.len() > 3, "{}", segments.len());
        let all = ended(&mut scene.reader(FrameUse::Facts), &segments);
        for at in (1..segments.len()).step_by(7) {
            let mut late = scene.reader(FrameUse::Facts);
            for request in ended(&mut late, &segments[at..]).iter().filter(|it| it.rows_missing == 0) {
                let whole = of(&all, &request.info.rid);
                // The record of one that arrived before is in an earlier segment.
                assert_eq!((whole.gpu_ns, &whole.info), (request.gpu_ns, &request.info), "seed {seed}");
            }
        }
    }
}

#[test]
fn a_long_prompt_pays_for_the_step_in_which_it_is_computed() {
    let mut scene = Scene::new(SynthWire::EngineCore, 1 << 20);
    scene.record("light", 17);
    scene.step(&[("light", &[1], false)]);
    scene.record("heavy", 8192);
    scene.now += 980 * MS;
    scene.step(&[("light", &[1], false), ("heavy", &[1], false)]);
    scene.step(&[("light", &[1], true), ("heavy", &[1], true)]);
    let all = scene.ended(FrameUse::Facts);
    let (light, heavy) = (of(&all, "light").gpu_ns, of(&all, "heavy").gpu_ns);
    assert_eq!(light + heavy, 1040 * MS);
    // 20 ms alone, next to nothing of the prompt's second, and a third of the last step: the other's context is 8192 tokens longer.
    assert!(light.abs_diff(26 * MS + 750_000) < MS, "{light}");
}

#[test]
fn a_step_counts_from_the_arrival_of_the_first_request_after_a_pause() {
    let mut scene = Scene::new(SynthWire::Msgpack, 1 << 20);
    scene.record("a", 5);
    scene.step(&[("a", &[1], true)]);
    scene.now += 3_600_000 * MS;
    scene.record("b", 5);
    scene.step(&[("b", &[1], true)]);
    // Without its record, nobody knows when it began.
    scene.now += 3_600_000 * MS;
    scene.step(&[("c", &[1], false)]);
    scene.step(&[("c", &[1], true)]);
    let all = scene.ended(FrameUse::Facts);
    assert_eq!(["a", "b", "c"].map(|rid| of(&all, rid).gpu_ns), [20 * MS; 3]);
}

#[test]
fn the_segments_of_an_ended_request_are_needed_while_it_waits_for_one_that_does_not_stream() {
    let mut scene = Scene::new(SynthWire::Msgpack, 4096);
    scene.record("first", 1);
    scene.fill(2);
    scene.record("whole", 3);
    scene.step(&[("first", &[1], true)]);
    let segments = scene.segments();
    let mut reader = scene.reader(FrameUse::Facts);
    ended(&mut reader, &segments[..segments.len() - 1]);
    assert!(reader.open(segments[segments.len() - 1]).unwrap());
    while reader.read(100).unwrap() {}
    assert!(reader.requests().all(|request| request.info.rid != "first"));
    assert_eq!(reader.needs(), Some(segments[0]));
    scene.step(&[("whole", &[1, 2], true)]);
    while reader.read(100).unwrap() {}
    let rids: Vec<String> = reader.requests().map(|request| request.info.rid).collect();
    assert_eq!(rids, ["first", "whole"]);
    assert!(reader.needs() > Some(segments[0]));
}
