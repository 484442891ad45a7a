//! The engines, and the ids that a request has besides its engine's rid.

/// The engine whose scheduler sends a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// SGLang, and what speaks as SGLang does.
    #[default]
    Sglang,
    /// vLLM's EngineCore.
    Vllm,
    /// SGLang's scheduler with SMG's plugin, which sends SMG's own messages to SMG.
    Smg,
}

/// The properties of an engine for which Afterbay does something else. Code outside of an engine's modules asks for these, and
/// for no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Whether its rows have the engine's own count of the request's tokens.
    pub counts_tokens: bool,
    /// Whether the scheduler answers an abort with a last row of the request.
    pub answers_aborts: bool,
    /// Whether the scheduler's frames have its load. Else the load is in a file of the scheduler.
    pub has_load_in_frames: bool,
    /// Whether its usual reader takes rows that are joined anywhere.
    pub joins_anywhere: bool,
    /// Whether a scheduler has one socket for each front end, and so a stream. Then several processes write one rendezvous file.
    pub has_stream_per_front_end: bool,
    /// Whether the scheduler takes aborts with a DEALER. Else it takes them with a PULL.
    pub takes_aborts_as_dealer: bool,
    /// Whether a detokenizer may stand between the scheduler and the reader: a second leg.
    pub has_second_leg: bool,
}

/// A step from an id of a request to the id that it was made of. `None` if the id has not this form.
type Step = fn(&str) -> Option<&str>;

impl Engine {
    /// The engines with their words in a configuration, a file and a command.
    pub const WORDS: [(&'static str, Engine); 3] =
        [("sglang", Engine::Sglang), ("vllm", Engine::Vllm), ("smg", Engine::Smg)];

    /// The engine as its project writes its name.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Sglang => "SGLang",
            Engine::Vllm => "vLLM",
            Engine::Smg => "SMG",
        }
    }

    /// The word for the engine.
    pub fn word(self) -> &'static str {
        Engine::WORDS[self as usize].0
    }

    /// The engine of a word.
    pub fn of_word(word: &str) -> Option<Engine> {
        Engine::WORDS.iter().find(|(known, _)| *known == word).map(|(_, engine)| *engine)
    }

    /// The engine's properties.
    pub const fn traits(self) -> Traits {
        match self {
            Engine::Sglang => Traits {
                counts_tokens: true,
                answers_aborts: true,
                has_load_in_frames: false,
                joins_anywhere: false,
                has_stream_per_front_end: false,
                takes_aborts_as_dealer: false,
                has_second_leg: true,
            },
            Engine::Vllm => Traits {
                counts_tokens: false,
                answers_aborts: false,
                has_load_in_frames: true,
                joins_anywhere: true,
                has_stream_per_front_end: true,
                takes_aborts_as_dealer: true,
                has_second_leg: false,
            },
            Engine::Smg => Traits {
                counts_tokens: true,
                answers_aborts: true,
                has_load_in_frames: true,
                joins_anywhere: true,
                has_stream_per_front_end: false,
                takes_aborts_as_dealer: true,
                has_second_leg: false,
            },
        }
    }

    /// The ids by which others know the request `rid`: the rid, then the ids that it was made of, down to the id that the client
    /// or its gateway chose.
    ///
    /// - vLLM: `[SAMPLE_]chatcmpl-ID[-8 hex]`, and `[SAMPLE_]cmpl-ID-PROMPT[-8 hex]`. The sample is there for n > 1.
    /// - SGLang: `ID_BATCH-n12 hex` for n > 1, which Afterbay's connector makes where SGLang takes a random id.
    pub fn ids(self, rid: &str) -> impl DoubleEndedIterator<Item = &str> {
        let steps: [Option<Step>; 4] = match self {
            Engine::Sglang if sample_of_sglang(rid).is_some() => {
                [Some(sample_of_sglang), Some(batch_index), None, None]
            }
            Engine::Sglang | Engine::Smg => [None; 4],
            Engine::Vllm => [Some(random_suffix), Some(sample_index), Some(prompt_index), Some(endpoint)],
        };
        let mut ids = [Some(rid), None, None, None, None];
        let mut last = rid;
        for (step, id) in steps.iter().zip(&mut ids[1..]) {
            *id = step.and_then(|step| step(last)).filter(|shorter| !shorter.is_empty());
            last = id.unwrap_or(last);
        }
        ids.into_iter().flatten()
    }

    /// Whether others know the request `rid` by this id.
    pub fn has_id(self, rid: &str, id: &str) -> bool {
        // Most ids of other requests end the comparison here.
        rid.contains(id) && self.ids(rid).any(|known| known == id)
    }

    /// Whether the request `rid` is one of several that may have been made of one id: a sample, or one of several prompts.
    pub fn is_numbered(self, rid: &str) -> bool {
        match self {
            Engine::Sglang => sample_of_sglang(rid).is_some(),
            Engine::Vllm => {
                let id = random_suffix(rid).unwrap_or(rid);
                sample_index(id).is_some() || prompt_index(id).is_some()
            }
            Engine::Smg => false,
        }
    }
}

fn random_suffix(id: &str) -> Option<&str> {
    let (before, suffix) = id.rsplit_once('-')?;
    is_hex(suffix, 8).then_some(before)
}

fn sample_of_sglang(id: &str) -> Option<&str> {
    let (before, suffix) = id.rsplit_once("-n")?;
    is_hex(suffix, 12).then_some(before)
}

fn sample_index(id: &str) -> Option<&str> {
    let (index, after) = id.split_once('_')?;
    is_number(index).then_some(after)
}

fn batch_index(id: &str) -> Option<&str> {
    let (before, index) = id.rsplit_once('_')?;
    is_number(index).then_some(before)
}

fn prompt_index(id: &str) -> Option<&str> {
    let (before, index) = id.rsplit_once('-')?;
    (before.starts_with("cmpl-") && is_number(index)).then_some(before)
}

fn endpoint(id: &str) -> Option<&str> {
    ["chatcmpl-", "cmpl-", "generate-tokens-"].iter().find_map(|endpoint| id.strip_prefix(endpoint))
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(engine: Engine, rid: &str) -> Vec<&str> {
        engine.ids(rid).collect()
    }

    #[test]
    fn a_request_of_vllm_is_known_by_each_id_that_its_rid_was_made_of() {
        let of = |rid| ids(Engine::Vllm, rid);
        assert_eq!(of("chatcmpl-gw-7-1a2b3c4d"), ["chatcmpl-gw-7-1a2b3c4d", "chatcmpl-gw-7", "gw-7"]);
        assert_eq!(
            of("1_chatcmpl-b-9-aaaabbbb"),
            ["1_chatcmpl-b-9-aaaabbbb", "1_chatcmpl-b-9", "chatcmpl-b-9", "b-9"]
        );
        assert_eq!(
            of("0_cmpl-gw-7-3-aaaabbbb"),
            ["0_cmpl-gw-7-3-aaaabbbb", "0_cmpl-gw-7-3", "cmpl-gw-7-3", "cmpl-gw-7", "gw-7"]
        );
        // VLLM_DISABLE_REQUEST_ID_RANDOMIZATION.
        assert_eq!(of("0_chatcmpl-x"), ["0_chatcmpl-x", "chatcmpl-x", "x"]);
    }

    #[test]
    fn each_step_is_taken_once_and_leaves_an_id() {
        let of = |rid| ids(Engine::Vllm, rid);
        assert_eq!(of("x-aaaabbbb-ccccdddd"), ["x-aaaabbbb-ccccdddd", "x-aaaabbbb"]);
        assert_eq!(of("0_1_x"), ["0_1_x", "1_x"]);
        for rid in ["", "-aaaabbbb", "0_", "x-AAAABBBB", "x-aaaabbb", "é-aaaabbbé"] {
            assert_eq!(of(rid), [rid]);
        }
    }

    #[test]
    fn only_a_sample_of_sglang_has_another_id_than_its_rid() {
        let of = |rid| ids(Engine::Sglang, rid);
        assert_eq!(of("job_1_0-n0123456789ab"), ["job_1_0-n0123456789ab", "job_1_0", "job_1"]);
        for rid in ["job_1", "gw-7-1a2b3c4d", "0_x", "chatcmpl-x"] {
            assert_eq!(of(rid), [rid]);
        }
        assert!(Engine::Sglang.has_id("job_0-n0123456789ab", "job"));
        assert!(!Engine::Sglang.has_id("job_0", "job"));
        assert!(Engine::Sglang.is_numbered("job_0-n0123456789ab") && !Engine::Sglang.is_numbered("job_0"));
        for rid in ["1_chatcmpl-b-9-aaaabbbb", "cmpl-gw-7-0-aaaabbbb"] {
            assert!(Engine::Vllm.is_numbered(rid), "{rid}");
        }
        assert!(!Engine::Vllm.is_numbered("chatcmpl-gw-7-1a2b3c4d"));
    }
}
