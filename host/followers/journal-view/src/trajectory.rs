//! Requests as training sees them: the turns of a session, each with its prompt, the sampled ids, and what is known of every id.

use std::collections::BTreeMap;

use afterbay_journal::reader::RequestState;
use afterbay_wire::{Grammar, Multimodal, RequestRecord, Sampling, SamplingMask, WeightSpan};
use serde::{Deserialize, Deserializer, Serialize};

use crate::ended::{Contents, EndedRequest, RowExperts, Training, UNKNOWN_ID};
use crate::wording::{counted, verdict};

/// The turns of one session, in the order in which their requests arrived.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trajectory {
    /// The value by which requests are turns of the same session. `None`: a request without such a value, which is alone.
    pub session: Option<String>,
    /// The turns.
    pub turns: Vec<Turn>,
}

/// One request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Name of the stream.
    pub stream: String,
    /// Number of the request in the stream.
    pub request: u64,
    /// Rid of the request.
    pub rid: String,
    /// The name of the model.
    pub model: Option<String>,
    /// The name of the LoRA adapter.
    pub lora: Option<String>,
    /// The attributes that the journal has.
    pub attributes: BTreeMap<String, String>,
    /// Arrival of the request at the scheduler, in Unix nanoseconds.
    pub arrived_unix_ns: Option<u64>,
    /// Receipt of the first row, in Unix nanoseconds; 0 without a row.
    pub first_unix_ns: u64,
    /// Receipt of the last row, in Unix nanoseconds.
    pub last_unix_ns: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// Token ids of the prompt.
    pub prompt_ids: Option<Vec<u32>>,
    /// The inputs of the prompt that are no text.
    pub multimodal: Vec<Multimodal>,
    /// Token ids as they were sampled. -1 for a token whose row the journal does not have.
    pub ids: Option<Vec<i64>>,
    /// Token ids as they were sent on. `None` if they are those sampled.
    pub ids_sent: Option<Vec<i64>>,
    /// The logprob of each sampled id. `None` unless the engine sent all of them.
    #[serde(deserialize_with = "logprobs")]
    pub logprobs: Option<Vec<f32>>,
    /// The versions of the weights, in the order of the sampled ids.
    pub weight_versions: Vec<WeightSpan>,
    /// The candidates of each sampled id. `None` unless the engine sent all of them.
    pub sampling_mask: Option<SamplingMask>,
    /// The experts, as the engine sent them.
    pub routed_experts: Vec<RowExperts>,
    /// How tokens were chosen.
    pub sampling: Option<Sampling>,
    /// The grammar that the answer had to match.
    pub grammar: Option<Grammar>,
    /// The engine's finish reason.
    pub finish_reason: Option<String>,
    /// `finished` or `abandoned`.
    pub state: String,
    /// The cause of the end.
    pub ended_by: String,
    /// The actions of plugins and operators, in order.
    pub actions: Vec<TurnAction>,
    /// Rows that are not in the journal any more, or past a bound on memory. Their ids are not in `ids`.
    pub rows_missing: u64,
    /// The parts of the request that the journal does not have, in words. Empty: it has everything.
    pub missing: Vec<String>,
    /// Whether the prompt begins with the ids of the turn before. `None` for the first turn, and if ids are missing.
    pub prefix: Option<Prefix>,
}

/// The action of a plugin or an operator on a row of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnAction {
    /// Name of the plugin; `(operator)` for an operator.
    pub plugin: String,
    /// SHA-256 of the plugin's component.
    pub digest: Option<String>,
    /// The verdict.
    pub verdict: String,
    /// Reason, finish reason, sink or note.
    pub reason: String,
    /// The index of the row's first id among the sampled ids.
    pub first_id: u64,
    /// Tokens of the row that went on after this action.
    pub tokens_forwarded: u32,
}

/// The comparison of a prompt with the turn before: its prompt, then its answer as it was sent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prefix {
    /// Whether the prompt begins with all ids of the turn before.
    pub is_kept: bool,
    /// Ids at the beginning that are equal: the index of the first other id.
    pub equal: u64,
    /// Ids of the turn before.
    pub of: u64,
    /// The id of the turn before at that index. `None` if the prefix is kept.
    pub expected: Option<i64>,
    /// The prompt's id at that index. `None` if the prompt ends there.
    pub got: Option<i64>,
}

/// JSON has no number for a logprob that is not finite.
fn logprobs<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<f32>>, D::Error> {
    let read: Option<Vec<Option<f32>>> = Option::deserialize(from)?;
    Ok(read.map(|all| all.into_iter().map(|it| it.unwrap_or(f32::NAN)).collect()))
}

impl Prefix {
    fn of(before: &Turn, turn: &Turn) -> Option<Prefix> {
        let prompt = turn.prompt_ids.as_ref()?;
        let answer = before.ids_sent.as_ref().or(before.ids.as_ref())?;
        let is_known = before.rows_missing == 0 && !answer.contains(&UNKNOWN_ID);
        let asked = before.prompt_ids.as_ref().filter(|_| is_known)?;
        let of = asked.iter().map(|id| i64::from(*id)).chain(answer.iter().copied());
        let equal = of.clone().zip(prompt).take_while(|(of, got)| *of == i64::from(**got)).count();
        let expected = of.clone().nth(equal);
        Some(Prefix {
            is_kept: expected.is_none(),
            equal: equal as u64,
            of: of.count() as u64,
            expected,
            got: prompt.get(equal).map(|id| i64::from(*id)).filter(|_| expected.is_some()),
        })
    }
}

impl Trajectory {
    /// The trajectory of these turns, in any order.
    pub fn new(session: Option<String>, mut turns: Vec<Turn>) -> Trajectory {
        turns.sort_by_key(|turn| (turn.arrived_unix_ns.unwrap_or(turn.first_unix_ns), turn.request));
        for at in 1..turns.len() {
            turns[at].prefix = Prefix::of(&turns[at - 1], &turns[at]);
        }
        Trajectory { session, turns }
    }
}

impl Turn {
    /// The turn that a request is, which was read with [`FrameUse::Contents`](crate::ended::FrameUse) and
    /// [`training`](crate::ended::EndedReader::with_training).
    pub fn new(ended: EndedRequest) -> Turn {
        let missing = missing(&ended);
        let by = ended.ended_by().cause.word().to_owned();
        let actions = actions(&ended);
        let EndedRequest { stream, info, rows_missing, facts, record, contents, .. } = ended;
        let has_record = record.is_some();
        let record = record.map_or_else(RequestRecord::default, |record| *record);
        let prompt_ids = if has_record { record.prompt_ids().map(Iterator::collect) } else { None };
        let attributes: BTreeMap<String, String> = info.attributes.into_iter().collect();
        let (ids, ids_sent, logprobs, training) = match contents {
            Some(Contents { received, sent, logprobs, training, .. }) => {
                (Some(received), sent, logprobs, training.unwrap_or_default())
            }
            None => (None, None, None, Training::default()),
        };
        Turn {
            stream: stream.to_string(),
            request: info.number.0,
            rid: info.rid,
            model: record.model.or_else(|| attributes.get("model").cloned()),
            lora: record.lora,
            attributes,
            arrived_unix_ns: record.arrived_unix_ns,
            first_unix_ns: if info.rows > 0 { info.first_unix_ns } else { 0 },
            last_unix_ns: info.last_unix_ns,
            prompt_tokens: record.prompt_tokens.or_else(|| facts?.prompt_tokens),
            prompt_ids,
            multimodal: record.multimodal,
            ids,
            ids_sent,
            logprobs,
            weight_versions: training.weight_versions,
            sampling_mask: training.sampling_mask,
            routed_experts: training.routed_experts,
            sampling: record.sampling,
            grammar: record.grammar,
            finish_reason: Some(info.finish).filter(|finish| !finish.is_empty()),
            state: match info.state {
                RequestState::Finished => "finished".to_owned(),
                RequestState::Abandoned | RequestState::Live => "abandoned".to_owned(),
            },
            ended_by: by,
            actions,
            rows_missing,
            missing,
            prefix: None,
        }
    }

    /// The bytes of the lists, about.
    pub fn bytes(&self) -> usize {
        let ids = self.ids.as_ref().map_or(0, Vec::len) + self.ids_sent.as_ref().map_or(0, Vec::len);
        let prompt = self.prompt_ids.as_ref().map_or(0, Vec::len);
        let mask =
            self.sampling_mask.as_ref().map_or(0, |mask| mask.lengths.len() + 2 * mask.token_ids.len());
        let experts: usize = self.routed_experts.iter().map(|row| row.experts.experts.len()).sum();
        let logprobs = self.logprobs.as_ref().map_or(0, Vec::len);
        size_of::<Turn>() + 8 * (ids + experts) + 4 * (prompt + mask + logprobs) + 128 * self.actions.len()
    }
}

/// The parts of a request that the journal does not have, in words.
fn missing(ended: &EndedRequest) -> Vec<String> {
    let mut missing = Vec::new();
    if ended.info.erased.is_some() {
        return vec!["the request was erased".to_owned()];
    }
    match &ended.record {
        None => missing.push("the request's record".to_owned()),
        Some(record) => {
            if record.prompt_ids().is_none() {
                missing.push("the ids of the prompt".to_owned());
            }
            let fields = record.left_out.iter().filter(|field| *field != "prompt_ids");
            missing.extend(fields.map(|field| format!("{field} of the request's record, over the limit")));
        }
    }
    if ended.rows_missing > 0 {
        missing.push(format!("{}: removed, or past a bound on memory", counted(ended.rows_missing, "row")));
    }
    let Some(contents) = &ended.contents else { return missing };
    if contents.rows_absent > 0 {
        missing.push(format!("the ids of {}", counted(contents.rows_absent, "row")));
    }
    if ended.info.gaps > 0 {
        missing.push(format!("tokens that the engine counted: {}", counted(ended.info.gaps.into(), "gap")));
    }
    let asked = ended.record.as_ref().is_some_and(|record| record.logprobs.is_some());
    if asked && contents.logprobs.is_none() && !contents.received.is_empty() {
        missing.push("the logprobs of some ids".to_owned());
    }
    missing
}

fn actions(ended: &EndedRequest) -> Vec<TurnAction> {
    let tokens = ended.rows.tokens.iter().map(|tokens| u64::from(*tokens));
    let first_ids: Vec<u64> = tokens
        .scan(0, |sum, tokens| {
            let first = *sum;
            *sum += tokens;
            Some(first)
        })
        .collect();
    let action = |it: &crate::ended::RowVerdict| TurnAction {
        plugin: it.plugin.to_string(),
        digest: it.digest.as_deref().map(str::to_owned),
        verdict: verdict(it.verdict).to_owned(),
        reason: it.reason.to_string(),
        first_id: first_ids.get(it.row as usize).copied().unwrap_or_default(),
        tokens_forwarded: it.forwarded,
    };
    ended.verdicts.iter().map(action).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(request: u64, prompt: &[u32], answer: &[i64]) -> Turn {
        Turn {
            request,
            arrived_unix_ns: Some(request),
            prompt_ids: Some(prompt.to_vec()),
            ids: Some(answer.to_vec()),
            ..Turn::default()
        }
    }

    fn prefixes(turns: Vec<Turn>) -> Vec<Option<Prefix>> {
        Trajectory::new(Some("s".into()), turns).turns.into_iter().map(|turn| turn.prefix).collect()
    }

    #[test]
    fn a_prompt_that_begins_with_the_turn_before_keeps_the_prefix() {
        let turns = vec![turn(2, &[1, 2, 3, 4], &[5]), turn(1, &[1, 2], &[3])];
        let kept = Prefix { is_kept: true, equal: 3, of: 3, expected: None, got: None };
        assert_eq!(prefixes(turns), [None, Some(kept)]);
    }

    #[test]
    fn a_prompt_that_was_tokenised_again_says_at_which_id_it_differs() {
        let turns = vec![turn(1, &[1, 2], &[30, 31]), turn(2, &[1, 2, 3031, 4], &[5]), turn(3, &[1, 2], &[])];
        let other = Prefix { is_kept: false, equal: 2, of: 4, expected: Some(30), got: Some(3031) };
        let short = Prefix { is_kept: false, equal: 2, of: 5, expected: Some(3031), got: None };
        assert_eq!(prefixes(turns), [None, Some(other), Some(short)]);
    }

    #[test]
    fn the_prefix_is_compared_with_what_was_sent_on_and_not_at_all_with_ids_that_are_missing() {
        let replaced = Turn { ids_sent: Some(vec![9]), ..turn(1, &[1], &[2]) };
        let holds = |turns| prefixes(turns).pop().flatten().map(|prefix| prefix.is_kept);
        assert_eq!(holds(vec![replaced, turn(2, &[1, 9, 3], &[])]), Some(true));
        let absent = turn(1, &[1], &[UNKNOWN_ID]);
        let removed = Turn { rows_missing: 1, ..turn(1, &[1], &[2]) };
        for unknown in [absent, removed] {
            assert_eq!(holds(vec![unknown, turn(2, &[1, 2, 3], &[])]), None);
        }
        assert_eq!(
            holds(vec![Turn { prompt_ids: None, ..turn(1, &[1], &[2]) }, turn(2, &[1, 2], &[])]),
            None
        );
    }

    #[test]
    fn a_turn_is_read_from_json_as_it_was_written_also_with_a_logprob_that_is_not_finite() {
        let turn = Turn { logprobs: Some(vec![-0.5, f32::NEG_INFINITY]), ..turn(1, &[1], &[2, 3]) };
        let json = serde_json::to_string(&turn).unwrap();
        let read: Turn = serde_json::from_str(&json).unwrap();
        let logprobs = read.logprobs.clone().unwrap();
        assert!(logprobs[0] == -0.5 && logprobs[1].is_nan(), "{logprobs:?}");
        assert_eq!(Turn { logprobs: None, ..read }, Turn { logprobs: None, ..turn });
    }
}
