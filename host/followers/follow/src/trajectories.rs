//! A Parquet file of trajectories, which `afterbay journal trajectories` gives as lines of JSON: this process alone has the code for
//! Parquet.

use std::fs::File;
use std::io::BufRead;
use std::path::Path;

use afterbay_journal_view::ended::RowExperts;
use afterbay_journal_view::trajectory::{Trajectory, Turn, TurnAction};
use afterbay_wire::WeightSpan;
use arrow_array::types::{Float32Type, Int32Type, Int64Type};
use parquet::arrow::ArrowWriter;
use parquet::basic::Encoding;
use parquet::errors::ParquetError;
use serde::Serialize;
use thiserror::Error;

use crate::archive::columns::{self, Column};
use crate::archive::tables::file_properties;

/// The name of the table.
const TABLE: &str = "trajectories";
/// Trajectories that are handed to the writer at once, at most.
const ROWS_AT_ONCE: usize = 256;
/// Bytes of such trajectories as JSON at which they are handed over.
const BYTES_AT_ONCE: usize = 16 << 20;

/// The columns with a value a token.
const LONG_LISTS: [(&str, Encoding); 7] = [
    ("turns.list.element.prompt_ids", Encoding::DELTA_BINARY_PACKED),
    ("turns.list.element.ids", Encoding::DELTA_BINARY_PACKED),
    ("turns.list.element.ids_sent", Encoding::DELTA_BINARY_PACKED),
    ("turns.list.element.logprobs", Encoding::PLAIN),
    ("turns.list.element.mask_lengths", Encoding::DELTA_BINARY_PACKED),
    ("turns.list.element.mask_token_ids", Encoding::DELTA_BINARY_PACKED),
    ("turns.list.element.mask_logprobs", Encoding::PLAIN),
];

/// The reason why a file was not written.
#[derive(Debug, Error)]
pub enum TrajectoriesError {
    /// The input ended, or the file cannot be written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A line is no trajectory.
    #[error("trajectory {line}: {error}")]
    Line {
        /// The number of the line, from 1.
        line: u64,
        /// The reason.
        error: serde_json::Error,
    },
    /// The table cannot be written.
    #[error(transparent)]
    Table(#[from] ParquetError),
}

/// Writes the trajectories, one a line, into a Parquet file. Its name appears with its last byte.
///
/// # Errors
/// A line is no trajectory, or the disk refuses the file.
pub fn write(lines: impl BufRead, file: &Path) -> Result<u64, TrajectoriesError> {
    let mut part = file.as_os_str().to_owned();
    part.push(".part");
    let columns = columns();
    let properties = file_properties(TABLE, &LONG_LISTS)?;
    let mut writer = ArrowWriter::try_new(File::create(&part)?, columns::schema(&columns), Some(properties))?;
    let (mut rows, mut bytes, mut written) = (Vec::new(), 0, 0);
    for (line, text) in (1..).zip(lines.lines()) {
        let text = text?;
        rows.push(serde_json::from_str(&text).map_err(|error| TrajectoriesError::Line { line, error })?);
        bytes += text.len();
        written = line;
        if rows.len() >= ROWS_AT_ONCE || bytes >= BYTES_AT_ONCE {
            writer.write(&columns::batch(&columns, &rows).map_err(ParquetError::from)?)?;
            (rows, bytes) = (Vec::new(), 0);
        }
    }
    writer.write(&columns::batch(&columns, &rows).map_err(ParquetError::from)?)?;
    writer.into_inner()?.sync_all()?;
    std::fs::rename(&part, file)?;
    Ok(written)
}

fn columns() -> Vec<Column<Trajectory>> {
    type Of = Column<Trajectory>;
    vec![
        Of::maybe_text("session", "", |it| it.session.as_deref().map(Into::into)),
        Of::structs("turns", "", |it| &it.turns, turns()),
    ]
}

fn turns() -> Vec<Column<Turn>> {
    type Of = Column<Turn>;
    vec![
        Of::text("stream", "", |it| (&*it.stream).into()),
        Of::count("request", "", |it| it.request),
        Of::text("rid", "", |it| (&*it.rid).into()),
        Of::maybe_text("model", "", |it| it.model.as_deref().map(Into::into)),
        Of::maybe_text("lora", "", |it| it.lora.as_deref().map(Into::into)),
        Of::maybe_text("attributes", "", |it| json(&it.attributes)),
        Of::maybe_count("arrived_unix_ns", "", |it| it.arrived_unix_ns),
        Of::count("first_unix_ns", "", |it| it.first_unix_ns),
        Of::count("last_unix_ns", "", |it| it.last_unix_ns),
        Of::maybe_count("prompt_tokens", "", |it| it.prompt_tokens),
        Of::maybe_list::<Int64Type>("prompt_ids", "", |it| {
            Some(it.prompt_ids.as_ref()?.iter().map(|id| i64::from(*id)).collect::<Vec<_>>().into())
        }),
        Of::maybe_text("multimodal", "", |it| json(&it.multimodal)),
        Of::maybe_list::<Int64Type>("ids", "", |it| it.ids.as_deref().map(Into::into)),
        Of::maybe_list::<Int64Type>("ids_sent", "", |it| it.ids_sent.as_deref().map(Into::into)),
        Of::maybe_list::<Float32Type>("logprobs", "", |it| it.logprobs.as_deref().map(Into::into)),
        Of::structs("weight_versions", "", |it| &it.weight_versions, weight_versions()),
        Of::maybe_list::<Int32Type>("mask_lengths", "", |it| {
            Some(signed(&it.sampling_mask.as_ref()?.lengths).into())
        }),
        Of::maybe_list::<Int32Type>("mask_token_ids", "", |it| {
            Some(signed(&it.sampling_mask.as_ref()?.token_ids).into())
        }),
        Of::maybe_list::<Float32Type>("mask_logprobs", "", |it| {
            Some(it.sampling_mask.as_ref()?.logprobs.as_slice().into())
        }),
        Of::structs("routed_experts", "", |it| &it.routed_experts, routed_experts()),
        Of::maybe_text("sampling", "", |it| json(it.sampling.as_ref()?)),
        Of::maybe_text("grammar", "", |it| json(it.grammar.as_ref()?)),
        Of::maybe_text("finish_reason", "", |it| it.finish_reason.as_deref().map(Into::into)),
        Of::text("state", "", |it| (&*it.state).into()),
        Of::text("ended_by", "", |it| (&*it.ended_by).into()),
        Of::structs("actions", "", |it| &it.actions, actions()),
        Of::count("rows_missing", "", |it| it.rows_missing),
        Of::text("missing", "", |it| it.missing.join("; ").into()),
        Of::maybe_flag("prefix_is_kept", "", |it| Some(it.prefix?.is_kept)),
        Of::maybe_count("prefix_equal", "", |it| Some(it.prefix?.equal)),
        Of::maybe_count("prefix_of", "", |it| Some(it.prefix?.of)),
        Of::maybe_count("prefix_expected", "", |it| Some(it.prefix?.expected? as u64)),
        Of::maybe_count("prefix_got", "", |it| Some(it.prefix?.got? as u64)),
    ]
}

fn weight_versions() -> Vec<Column<WeightSpan>> {
    type Of = Column<WeightSpan>;
    vec![
        Of::text("version", "", |it| (&*it.version).into()),
        Of::count("start", "", |it| it.start),
        Of::count("end", "", |it| it.end),
    ]
}

fn routed_experts() -> Vec<Column<RowExperts>> {
    type Of = Column<RowExperts>;
    vec![
        Of::count("first_id", "", |it| it.first_id),
        Of::list::<Int64Type>("shape", "", |it| {
            it.experts.shape.iter().map(|size| *size as i64).collect::<Vec<_>>().into()
        }),
        Of::list::<Int64Type>("experts", "", |it| it.experts.experts.as_slice().into()),
    ]
}

fn actions() -> Vec<Column<TurnAction>> {
    type Of = Column<TurnAction>;
    vec![
        Of::text("plugin", "", |it| (&*it.plugin).into()),
        Of::maybe_text("digest", "", |it| it.digest.as_deref().map(Into::into)),
        Of::text("verdict", "", |it| (&*it.verdict).into()),
        Of::text("reason", "", |it| (&*it.reason).into()),
        Of::count("first_id", "", |it| it.first_id),
        Of::small_count("tokens_forwarded", "", |it| it.tokens_forwarded),
    ]
}

fn signed(numbers: &[u32]) -> Vec<i32> {
    numbers.iter().map(|number| *number as i32).collect()
}

/// A value as a text of JSON.
fn json(value: &impl Serialize) -> Option<std::borrow::Cow<'static, str>> {
    serde_json::to_string(value).ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterbay_journal_view::trajectory::Prefix;
    use afterbay_wire::{RoutedExperts, SamplingMask};
    use serde_json::{Value, json};
    use std::process::Command;

    fn turn(request: u64, prompt: &[u32], ids: &[i64], logprobs: Option<&[f32]>) -> Turn {
        Turn {
            stream: "s".into(),
            request,
            rid: format!("r-{request}"),
            arrived_unix_ns: Some(request),
            prompt_tokens: Some(prompt.len() as u64),
            prompt_ids: Some(prompt.to_vec()),
            ids: Some(ids.to_vec()),
            logprobs: logprobs.map(<[f32]>::to_vec),
            weight_versions: vec![WeightSpan { version: "v1".into(), start: 0, end: ids.len() as u64 }],
            ..Turn::default()
        }
    }

    fn file(trajectories: &[Trajectory]) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.parquet");
        let lines: Vec<_> = trajectories.iter().map(|it| serde_json::to_string(it).unwrap()).collect();
        assert_eq!(
            write(
                lines
                    .join(
                        "
"
                    )
                    .as_bytes(),
                &path
            )
            .unwrap(),
            trajectories.len() as u64
        );
        (dir, path)
    }

    #[test]
    fn polars_reads_the_turns_of_a_session_and_numpy_makes_a_batch_of_tensors_of_them() {
        let given = std::env::var_os("AFTERBAY_TEST_PYTHON");
        let python = given.clone().unwrap_or_else(|| "python3".into());
        let imports = Command::new(&python).args(["-c", "import numpy, polars"]).output();
        if given.is_none() && !imports.is_ok_and(|imports| imports.status.success()) {
            eprintln!("SKIPPED: python3 has no numpy and polars (tests/queries.txt)");
            return;
        }
        let masked = Turn {
            sampling_mask: Some(SamplingMask {
                lengths: vec![2, 1],
                token_ids: vec![5, 7, 6],
                logprobs: vec![-0.5, -1.0, 0.0],
            }),
            routed_experts: vec![RowExperts {
                first_id: 0,
                experts: RoutedExperts { shape: vec![2, 1, 2], experts: vec![0, 3, 1, 2] },
            }],
            ..turn(1, &[1, 2, 3], &[5, 6], Some(&[-0.25, -0.5]))
        };
        let sessions = [
            Trajectory::new(
                Some("a".into()),
                vec![masked, turn(2, &[1, 2, 3, 56, 4], &[7, 8, 9], Some(&[-1.0; 3]))],
            ),
            Trajectory::new(None, vec![turn(3, &[9], &[-1], None)]),
        ];
        let other = Prefix { is_kept: false, equal: 3, of: 5, expected: Some(5), got: Some(56) };
        assert_eq!(sessions[0].turns[1].prefix, Some(other));
        let (_dir, path) = file(&sessions);
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/trajectories.py");
        let output = Command::new(&python).arg(script).arg(&path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let read: Value = serde_json::from_slice(&output.stdout).unwrap();
        let expected = json!({
            "sessions": ["a", null],
            "prefix": [[null, null], [false, 3], [null, null]],
            // A turn without logprobs for each id is in no batch.
            "ids": [[1, 2, 3, 5, 6, 0, 0, 0], [1, 2, 3, 56, 4, 7, 8, 9]],
            "is_sampled": [[0, 0, 0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1]],
            "logprobs": [[0.0, 0.0, 0.0, -0.25, -0.5, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, -1.0, -1.0, -1.0]],
            "weights": [["v1", 0, 2], ["v1", 0, 3]],
            "candidates": [[5, 7], [6]],
            "experts": [[[0, 3]], [[1, 2]]],
        });
        assert_eq!(read, expected);
    }

    #[test]
    fn a_line_that_is_no_trajectory_is_named_and_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.parquet");
        let good = serde_json::to_string(&Trajectory::default()).unwrap();
        let error = write(
            format!(
                "{good}
7
"
            )
            .as_bytes(),
            &path,
        )
        .unwrap_err()
        .to_string();
        assert!(error.starts_with("trajectory 2: invalid type"), "{error}");
        assert!(!path.exists());
    }
}
