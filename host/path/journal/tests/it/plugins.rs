//! The components of plugins: which one a verdict is of, over swaps, segments, kills and a failed disk.

use crate::erase::Texts;
use crate::support::disk::SimDisk;
use crate::support::*;
use afterbay_journal::reader::{ErasedBy, Erasure, JournalRow, RequestRecord, StreamReader};
use afterbay_journal::*;

/// Names the components of the plugins: each with its version, which is also in its SHA-256.
fn components(writer: &mut JournalWriter, of: &[(&'static str, u8)]) -> bool {
    let versions = ["0", "1", "2", "3"];
    let sums: Vec<[u8; 32]> = of.iter().map(|(_, version)| [*version; 32]).collect();
    let all = of.iter().zip(&sums);
    writer.plugins(all.map(|((plugin, version), sum)| (*plugin, versions[usize::from(*version)], sum)))
}

/// A frame with a row of the request, on which these plugins act.
fn judged(writer: &mut JournalWriter, request: JournalRequest, plugins: &[&'static str], now: u64) {
    let frame = writer.append(&[7; 100], now).unwrap().frame;
    let action = |plugin: &&'static str| PluginAction {
        row: 0,
        plugin: (*plugin).into(),
        verdict: Verdict::Annotate,
        text: "note".into(),
        ids: (&[]).into(),
        forwarded: 1,
    };
    let actions: Vec<_> = plugins.iter().map(action).collect();
    writer.outcome(&Outcome { actions: actions.into(), ..plain_outcome(frame, &[request], &[1]) });
}

/// `PLUGIN VERSION` of each action of the request, row by row.
fn shown(stream: &StreamReader, rid: &str) -> Vec<String> {
    let lives = stream.lives(rid).unwrap();
    let rows = lives.iter().flat_map(|life| &life.rows);
    let component = |row: &JournalRow, action: &PluginAction<'_>| match row.component(action) {
        Some(component) => {
            assert_eq!(component.sha256_text(), format!("0{}", component.version).repeat(32));
            format!("{} {}", component.plugin, component.version)
        }
        None => format!("{} ?", action.plugin),
    };
    let of_row = |row: &JournalRow| {
        row.actions.iter().map(|action| component(row, action)).collect::<Vec<_>>().join(", ")
    };
    rows.map(of_row).collect()
}

#[test]
fn verdicts_have_the_component_of_their_time_over_swaps_segments_and_a_kill() {
    let disk = SimDisk::new(1);
    let small = JournalOptions { segment_bytes: 4096, ..options() };
    let (directory, mut writer, _) = begin(&disk, small.clone());
    let request = writer.open("r");
    // Before the first record.
    judged(&mut writer, request, &["a"], 1);
    assert!(components(&mut writer, &[("a", 1), ("b", 1)]));
    assert!(!components(&mut writer, &[("a", 1), ("b", 1)]));
    judged(&mut writer, request, &["a", "b", OPERATOR], 2);
    assert!(components(&mut writer, &[("a", 2), ("b", 1)]));
    judged(&mut writer, request, &["a", "b"], 3);
    for round in 0..60 {
        let other = writer.open(format!("other-{round}"));
        step(&mut writer, &[other], &[0; 200], 4 + round);
        writer.tend();
    }
    assert!(stream(&disk).segments().unwrap().len() > 3);
    judged(&mut writer, request, &["a", "b"], 100);
    writer.flush().unwrap();
    disk.kill();
    drop((directory, writer));
    let (_directory, mut writer, recovered) = begin(&disk, small);
    let request = recovered.live.iter().find(|live| live.info.rid == "r").unwrap().request;
    // `b` has left, and `a` is what it was.
    assert!(components(&mut writer, &[("a", 2)]));
    judged(&mut writer, request, &["a"], 101);
    assert!(components(&mut writer, &[("b", 3)]));
    judged(&mut writer, request, &["b"], 102);
    writer.finish().unwrap();
    let expected = ["a ?", "a 1, b 1, (operator) ?", "a 2, b 1", "a 2, b 1", "a 2", "b 3"];
    assert_eq!(shown(&stream(&disk), "r"), expected);
    assert!(stream(&disk).verify().unwrap().problems.is_empty());
}

#[test]
fn each_segment_begins_with_the_components_and_repeats_none_without_a_change() {
    let disk = SimDisk::new(1);
    let (_directory, mut writer, _) = begin(&disk, JournalOptions { segment_bytes: 4096, ..options() });
    let request = writer.open("r");
    step(&mut writer, &[request], b"begins a segment", 0);
    for round in 1..60 {
        components(&mut writer, &[("a", 1), ("b", 2)]);
        judged(&mut writer, request, &["a"], round);
        writer.tend();
    }
    writer.flush().unwrap();
    let stream = stream(&disk);
    let segments = stream.segments().unwrap();
    assert!(segments.len() > 3);
    for id in segments {
        let mut seen = Vec::new();
        let mut segment = stream.segment_requests(id).unwrap().unwrap();
        let more = segment.read_records(1000, &mut |record| match record {
            RequestRecord::Plugin(component) => seen.push(component.plugin.clone()),
            RequestRecord::Outcome(outcome, _) if !outcome.actions.is_empty() => {
                assert_eq!(seen, ["a", "b"], "before the first verdict of {id}");
            }
            _ => {}
        });
        assert!(!more.unwrap());
        assert_eq!(seen, ["a", "b"], "{id}");
    }
}

#[test]
fn an_excerpt_has_the_components_of_its_verdicts() {
    let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_directory, mut writer, _) = open_alone(dir.path(), options());
    let [mine, other] = ["mine", "other"].map(|rid| writer.open(rid));
    for (version, request) in [(0, other), (1, mine), (2, other), (3, mine)] {
        components(&mut writer, &[("a", version), ("b", 0)]);
        judged(&mut writer, request, &["a"], u64::from(version));
    }
    writer.finish().unwrap();
    let source = reader(dir.path());
    let erasure = Erasure { unix_ns: 7, by: ErasedBy::User(1000) };
    write_excerpt(&source, "mine", to.path(), erasure, &mut Texts, 1 << 20).unwrap().unwrap();
    let packed = reader(to.path());
    assert_eq!(shown(&packed, "mine"), ["a 1", "a 3"]);
    assert!(packed.verify().unwrap().problems.is_empty());
}
