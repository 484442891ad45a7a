//! Attributes of requests: written once known, carried over segments, and read back after a kill.

use crate::support::disk::SimDisk;
use crate::support::*;
use afterbay_journal::reader::{RequestFilter, RequestInfo, RequestRecord};
use afterbay_journal::*;

fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// Lets each request have the tenant that its rid begins with.
fn tenants(writer: &mut JournalWriter) {
    writer.set_attributes(Box::new(|rid, _| match rid.split_once('-') {
        Some((tenant, _)) => pairs(&[("tenant", tenant), ("model", "m")]),
        None => Vec::new(),
    }));
}

fn infos(disk: &SimDisk) -> Vec<RequestInfo> {
    stream(disk).requests(RequestFilter::default()).unwrap().map(Result::unwrap).collect()
}

fn tenant(info: &RequestInfo) -> String {
    info.attributes.iter().map(|(name, value)| format!("{name}={value} ")).collect()
}

#[test]
fn attributes_outlive_segments_and_kills_and_a_start_asks_for_none_again() {
    let disk = SimDisk::new(1);
    let small = JournalOptions { segment_bytes: 4096, ..options() };
    let (directory, mut writer, _) = begin(&disk, small.clone());
    tenants(&mut writer);
    let (live, plain) = (writer.open("acme-1"), writer.open("plain"));
    for round in 0..60 {
        let short = writer.open(format!("other-{round}"));
        step(&mut writer, &[live, plain, short], &[0; 100], round);
        last_step(&mut writer, &[short], 2, round);
        writer.tend();
    }
    writer.flush().unwrap();
    assert!(stream(&disk).segments().unwrap().len() > 3);
    disk.kill();
    drop((directory, writer));
    let (_directory, mut writer, recovered) = begin(&disk, small);
    let known: Vec<String> = recovered.live.iter().map(|live| tenant(&live.info)).collect();
    assert_eq!(known, ["model=m tenant=acme ", ""]);
    last_step(&mut writer, &[recovered.live[0].request], 61, 100);
    writer.finish().unwrap();
    for info in infos(&disk) {
        let expected = match info.rid.split_once('-') {
            Some((tenant, _)) => format!("model=m tenant={tenant} "),
            None => String::new(),
        };
        assert_eq!(tenant(&info), expected, "{}", info.rid);
        assert_eq!(info.attribute("tenant"), info.rid.split_once('-').map(|(tenant, _)| tenant));
    }
    assert!(stream(&disk).verify().unwrap().problems.is_empty());
    assert_eq!(stream(&disk).lives("acme-1").unwrap()[0].request.attributes.len(), 2);
}

#[test]
fn changed_attributes_are_written_again_and_the_last_ones_count_at_the_end() {
    let disk = SimDisk::new(1);
    let (_directory, mut writer, _) = begin(&disk, options());
    let at = std::sync::Arc::new(std::sync::Mutex::new(pairs(&[])));
    writer.set_attributes(Box::new({
        let at = at.clone();
        move |_, _| at.lock().unwrap().clone()
    }));
    let request = writer.open("r");
    step(&mut writer, &[request], b"one", 1);
    for tenant in ["early", "early", "late"] {
        *at.lock().unwrap() = pairs(&[("tenant", tenant)]);
        writer.refresh(request, "r", &[]);
    }
    last_step(&mut writer, &[request], 2, 2);
    writer.flush().unwrap();
    let stream = stream(&disk);
    let mut segment = stream.segment_requests(stream.segments().unwrap()[0]).unwrap().unwrap();
    let (mut told, mut ended) = (Vec::new(), Vec::new());
    let more = segment.read_records(1000, &mut |record| match record {
        RequestRecord::Attributes(number, attributes) => told.push((number, attributes.to_vec())),
        RequestRecord::Closed(info, _) => ended.push(info.attributes.clone()),
        _ => {}
    });
    assert!(!more.unwrap());
    let [early, late] = ["early", "late"].map(|tenant| pairs(&[("tenant", tenant)]));
    assert_eq!(told, [(request.number(), early), (request.number(), late.clone())], "once for each change");
    assert_eq!(ended, [late]);
    assert!(stream.verify().unwrap().problems.is_empty());
}
