//! Writes the tables of every stream of a journal into a directory, and prints the bytes of the journal and of the tables for
//! each token received: `cargo run -p afterbay-follow --example tables -- JOURNAL DIR`

use std::path::Path;

use afterbay_follow::archive::schema::Table;
use afterbay_follow::archive::tables::{SegmentTables, StreamFacts, TableFiles};
use afterbay_journal::reader::JournalReader;
use afterbay_journal_view::ended::{EndedReader, FrameUse};
use afterbay_wire::Layouts;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(journal), Some(dir)) = (args.next(), args.next()) else {
        return Err("usage: tables JOURNAL DIR".into());
    };
    let journal = JournalReader::open(Path::new(&journal))?;
    for name in journal.streams()? {
        let dir = Path::new(&dir).join(&name);
        std::fs::create_dir_all(&dir)?;
        let stream = journal.stream(&name)?;
        let segments = stream.segments()?;
        let of_segment = |id: &_| std::fs::metadata(journal.dir().join(&name).join(format!("{id}")));
        let journal_bytes: u64 = segments.iter().filter_map(|id| Some(of_segment(id).ok()?.len())).sum();
        let reader = EndedReader::new(stream, FrameUse::Contents, &Layouts::builtin()).with_settled_frames();
        let mut tables = SegmentTables::new(reader);
        let facts = StreamFacts { instance: "example".to_owned(), stream: name.clone() };
        let mut files = TableFiles::create(&dir, &facts)?;
        let (mut requests, mut tokens, mut batches) = (0, 0, 0);
        for id in segments {
            if let Some(counts) = tables.read(id, Some(&mut files))? {
                requests += counts.requests;
                tokens += counts.tokens;
                batches += counts.batches;
            }
        }
        let estimate = files.bytes();
        println!("stream {name}: {requests} requests, {tokens} tokens, {batches} batches");
        let each = |bytes: u64| bytes as f64 / tokens.max(1) as f64;
        println!("  journal: {journal_bytes} bytes, {:.2} a token", each(journal_bytes));
        for file in files.close()? {
            println!("  {}: {} bytes, {:.3} a token", file.table.name(), file.bytes, each(file.bytes));
            if file.table == Table::Requests {
                println!("  requests, estimated before its end: {estimate} bytes");
            }
        }
    }
    Ok(())
}
