//! Local Parquet files that the segments of a stream are written into, off the path.
//!
//! [`SegmentTables`] reads the segments of a stream in order. [`TableFiles`] are the files that are open. The store closes them
//! when they are large enough, and uploads them.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::path::{Path, PathBuf};

use afterbay_journal::SegmentId;
use afterbay_journal::reader::StreamReader;
use afterbay_journal_view::ended::{EndedReader, EndedRequest, SettledFrame};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;

use crate::archive::columns::{self, Column};
pub use crate::archive::schema::StreamFacts;
use crate::archive::schema::{self, SCHEMA_VERSION, SCHEMA_VERSION_KEY, TABLE_KEY, Table};
use crate::consumer::{Failure, RECORDS_AT_ONCE};

/// Bytes of a row group at which the next one begins. The row group is in memory until then.
const ROW_GROUP_BYTES: usize = 32 << 20;
/// Rows that are handed to the writer at once, at most.
const ROWS_AT_ONCE: usize = 1024;
/// Bytes of the lists of such rows at which they are handed over.
const BYTES_AT_ONCE: usize = 4 << 20;
/// The level of zstd.
const ZSTD_LEVEL: i32 = 3;

/// The rows of one segment that were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentCounts {
    /// Requests that ended in the segment.
    pub requests: u64,
    /// Tokens that these requests received.
    pub tokens: u64,
    /// Frames with an outcome in the segment; 0 without the table of batches.
    pub batches: u64,
    /// Time at which the segment was begun, unix nanoseconds.
    pub begun_unix_ns: u64,
    /// Bytes of the segment that are no record.
    pub corrupt_bytes: u64,
}

/// A file that was closed: its rows are on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedFile {
    /// The table.
    pub table: Table,
    /// The file.
    pub path: PathBuf,
    /// Rows of the file.
    pub rows: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Reads the segments of one stream, in order, and writes the requests that ended in each. After an error, make it anew with a
/// reader that begins at an earlier [`SegmentTables::needs`].
pub struct SegmentTables {
    reader: EndedReader,
}

impl SegmentTables {
    /// Reads with this reader, which has the contents of frames
    /// ([`FrameUse::Contents`](afterbay_journal_view::ended::FrameUse)) and, for the table of batches, gives settled frames.
    pub fn new(reader: EndedReader) -> SegmentTables {
        SegmentTables { reader }
    }

    /// Reads a segment that has a successor to its end, and writes its rows into `files`. `None`: the segment is in the archive
    /// already, and is read only for the requests that are live at its end.
    ///
    /// Returns `None` if retention removed the segment or its header cannot be read.
    ///
    /// # Errors
    /// The journal or the local disk.
    pub fn read(
        &mut self,
        segment: SegmentId,
        mut files: Option<&mut TableFiles>,
    ) -> Result<Option<SegmentCounts>, Failure> {
        if !self.reader.open(segment)? {
            return Ok(None);
        }
        let mut counts = SegmentCounts {
            begun_unix_ns: self.reader.begun_unix_ns().unwrap_or_default(),
            ..SegmentCounts::default()
        };
        loop {
            let has_more = self.reader.read(RECORDS_AT_ONCE)?;
            if !has_more {
                self.reader.finish_segment();
            }
            for request in self.reader.requests() {
                counts.requests += 1;
                counts.tokens += request.info.received;
                if let Some(files) = &mut files {
                    let bytes = bytes_of(&request);
                    files.requests.push(request, bytes)?;
                }
            }
            for frame in self.reader.settled_frames() {
                counts.batches += 1;
                if let Some(files) = &mut files {
                    files.batches.push(frame, 0)?;
                }
            }
            if !has_more {
                counts.corrupt_bytes = self.reader.corrupt_bytes();
                return Ok(Some(counts));
            }
        }
    }

    /// The stream.
    pub fn stream(&self) -> &StreamReader {
        self.reader.stream()
    }

    /// The oldest segment that is needed for requests that are live, as [`EndedReader::needs`].
    pub fn needs(&self) -> Option<SegmentId> {
        self.reader.needs()
    }
}

/// The open files of one stream: `requests.parquet` and, if there is a batch to write, `batches.parquet`.
pub struct TableFiles {
    requests: TableFile<EndedRequest>,
    batches: TableFile<SettledFrame>,
}

impl TableFiles {
    /// Makes the files in a directory. Files there are overwritten.
    ///
    /// # Errors
    /// The local disk.
    pub fn create(dir: &Path, facts: &StreamFacts) -> Result<TableFiles, Failure> {
        let mut requests = TableFile::new(dir, Table::Requests, schema::requests(facts));
        requests.writer()?;
        Ok(TableFiles { requests, batches: TableFile::new(dir, Table::Batches, schema::batches(facts)) })
    }

    /// Estimate of the size of the file of requests, in bytes, if it were closed now.
    pub fn bytes(&self) -> u64 {
        let writer = self.requests.writer.as_ref();
        writer.map_or(0, |writer| (writer.bytes_written() + writer.in_progress_size()) as u64)
    }

    /// Closes the files, and syncs them. A file without rows is removed.
    ///
    /// # Errors
    /// The local disk.
    pub fn close(self) -> Result<Vec<ClosedFile>, Failure> {
        let closed = [self.requests.close()?, self.batches.close()?];
        Ok(closed.into_iter().flatten().collect())
    }
}

/// The bytes of a request's lists, about.
fn bytes_of(request: &EndedRequest) -> usize {
    let ids =
        request.contents.as_ref().map_or(0, |it| it.received.len() + it.sent.as_ref().map_or(0, Vec::len));
    let prompt = request.record.as_ref().and_then(|record| record.prompt_ids()).map_or(0, |ids| ids.len());
    12 * request.rows.tokens.len() + 8 * (ids + prompt) + 96 * request.verdicts.len() + request.info.rid.len()
}

/// The bytes of a file without rows.
///
/// # Errors
/// The schema cannot be written, which no schema of this crate causes.
pub(crate) fn empty(table: Table) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let written = properties(table)
        .and_then(|properties| ArrowWriter::try_new(&mut bytes, table.schema(), Some(properties)))
        .and_then(ArrowWriter::close);
    match written {
        Ok(_) => Ok(bytes),
        Err(error) => Err(Failure::of_stream(error)),
    }
}

/// One Parquet file, and the rows that wait for it.
struct TableFile<R> {
    table: Table,
    path: PathBuf,
    columns: Vec<Column<R>>,
    waiting: Vec<R>,
    /// Bytes of the lists of the rows that wait, about.
    waiting_bytes: usize,
    /// `None` before the first row that is written.
    writer: Option<ArrowWriter<File>>,
    rows: u64,
}

impl<R> TableFile<R> {
    fn new(dir: &Path, table: Table, columns: Vec<Column<R>>) -> TableFile<R> {
        let path = dir.join(format!("{}.parquet", table.name()));
        TableFile { table, path, columns, waiting: Vec::new(), waiting_bytes: 0, writer: None, rows: 0 }
    }

    fn push(&mut self, row: R, bytes: usize) -> Result<(), Failure> {
        self.waiting.push(row);
        self.waiting_bytes += bytes;
        match self.waiting.len() >= ROWS_AT_ONCE || self.waiting_bytes >= BYTES_AT_ONCE {
            true => self.write(),
            false => Ok(()),
        }
    }

    /// The writer of the file, which is made if it is missing.
    fn writer(&mut self) -> Result<&mut ArrowWriter<File>, Failure> {
        match &mut self.writer {
            Some(writer) => Ok(writer),
            none => {
                let made = File::create(&self.path).map_err(ParquetError::from).and_then(|file| {
                    ArrowWriter::try_new(file, columns::schema(&self.columns), Some(properties(self.table)?))
                });
                Ok(none.insert(made.map_err(|error| Failure::local(&self.path, error))?))
            }
        }
    }

    /// Writes the rows that wait.
    fn write(&mut self) -> Result<(), Failure> {
        let rows = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        let batch = columns::batch(&self.columns, &rows).map_err(ParquetError::from);
        let writer = self.writer()?;
        let written = batch.and_then(|batch| writer.write(&batch));
        self.rows += rows.len() as u64;
        written.map_err(|error| Failure::local(&self.path, error))
    }

    /// `None`: the file had no rows.
    fn close(mut self) -> Result<Option<ClosedFile>, Failure> {
        if !self.waiting.is_empty() {
            self.write()?;
        }
        let TableFile { table, path, writer, rows, .. } = self;
        let Some(writer) = writer else { return Ok(None) };
        let closed = writer.into_inner().and_then(|file| {
            if rows == 0 {
                std::fs::remove_file(&path)?;
                return Ok(0);
            }
            file.sync_all()?;
            Ok(file.metadata()?.len())
        });
        match closed {
            Ok(bytes) => Ok((rows > 0).then_some(ClosedFile { table, path, rows, bytes })),
            Err(error) => Err(Failure::local(&path, error)),
        }
    }
}

/// The columns of lists with a value a token or a row, and their encodings: no dictionary and no statistics help there. Token ids
/// need 22 % less so than with plain numbers. Times repeat between the requests of a batch, so that zstd finds them if they are plain.
const LONG_LISTS: [(&str, Encoding); 6] = [
    ("row_tokens", Encoding::PLAIN),
    ("row_delta_ns", Encoding::PLAIN),
    ("prompt_ids", Encoding::DELTA_BINARY_PACKED),
    ("ids", Encoding::DELTA_BINARY_PACKED),
    ("ids_sent", Encoding::DELTA_BINARY_PACKED),
    ("logprobs", Encoding::PLAIN),
];

fn properties(table: Table) -> Result<WriterProperties, ParquetError> {
    let lists = if table == Table::Requests { &LONG_LISTS[..] } else { &[] };
    file_properties(table.name(), lists)
}

/// The properties of the file of a table. `lists` are the columns with a value a token, each with the path of the structs that it is in.
pub(crate) fn file_properties(
    table: &str,
    lists: &[(&str, Encoding)],
) -> Result<WriterProperties, ParquetError> {
    let metadata = [(SCHEMA_VERSION_KEY, SCHEMA_VERSION.to_string()), (TABLE_KEY, table.to_owned())];
    let metadata = metadata.into_iter().map(|(key, value)| KeyValue::new(key.to_owned(), value));
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
        .set_created_by(concat!("afterbay version ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_max_row_group_bytes(Some(ROW_GROUP_BYTES))
        .set_key_value_metadata(Some(metadata.collect()));
    for (column, encoding) in lists {
        let parts = column.split('.').chain(["list", "element"]).map(str::to_owned);
        let path = ColumnPath::from(parts.collect::<Vec<_>>());
        properties = properties
            .set_column_dictionary_enabled(path.clone(), false)
            .set_column_encoding(path.clone(), *encoding)
            .set_column_statistics_enabled(path, EnabledStatistics::None);
    }
    Ok(properties.build())
}
