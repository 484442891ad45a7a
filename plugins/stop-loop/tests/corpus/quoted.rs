//! Loops as people quote them in public threads, in words of our own: the same shape, not the same text.

use crate::random::Random;
use crate::texts::{line, prose, sentence};

/// Writes a turn of a loop, from its number.
type WriteTurn = fn(&mut Random, &Parts, usize) -> String;

/// Texts that stay the same in all turns.
pub struct Parts {
    sentences: Vec<String>,
    paragraph: String,
    name: String,
}

impl Parts {
    pub fn new(random: &mut Random) -> Self {
        let sentences = (0..9).map(|_| sentence(random)).collect();
        let mut paragraph = String::new();
        while paragraph.split(' ').count() < 430 {
            paragraph += &prose(random).replace("\n\n", "");
        }
        Self { sentences, paragraph, name: line(random, 2, 2) }
    }
}

/// The thread, the shape, and the turns.
pub const QUOTED: [(&str, &str, WriteTurn); 35] = [
    ("anthropics/claude-code#82803", "one word", |_, _, _| " river".to_owned()),
    ("microsoft/vscode#301818", "one short word", |_, _, _| " it".to_owned()),
    ("tonyd2wild/DeepSeek-V4.1-Flash-vLLM-DGX-Spark#2", "one token without a blank", |_, _, _| {
        "care".to_owned()
    }),
    ("vllm-project/vllm#53717", "empty lines", |_, _, _| "\n".to_owned()),
    ("jundot/omlx#2990", "blanks within JSON", |_, _, _| " ".repeat(8)),
    ("sgl-project/sglang#12824", "a special token, cut into ids", |_, _, _| "<|begin|>".to_owned()),
    ("anthropics/claude-code#71945", "two words", |_, _, _| " not used".to_owned()),
    ("google-gemini/cookbook#327", "a word and a sign", |_, _, _| " Misc;".to_owned()),
    ("tuirk/Kompl#7", "an entry of a list", |_, _, _| "\"LLM\",".to_owned()),
    ("wassgha/rescript#14", "four words", |_, _, _| " big piece of a".to_owned()),
    ("ollama/ollama#2805", "a part of a word and a dash", |_, _, _| "ASIS-".to_owned()),
    ("Blaizzy/mlx-vlm#549", "a number and a dash", |_, _, _| " -3".to_owned()),
    ("ggml-org/llama.cpp#6762", "two words and brackets", |_, _, _| " Tell us ( Tell us )".to_owned()),
    ("vllm-project/vllm-ascend#15166", "a short sentence", |_, _, _| {
        "I'll go with \\boxed{72}.\n".to_owned()
    }),
    ("google-gemini/gemini-cli#16416", "three sentences of a word", |_, _, _| {
        "(Fine). Write. Test.\n\n".to_owned()
    }),
    ("Tylogi/TyloQuant#12", "two lines in turn", |_, _, turn| {
        ["*   Wait, I must not use a list.\n", "*   Okay.\n"][turn % 2].to_owned()
    }),
    ("1CatAI/1Cat-vLLM#569", "sentences and the end of the reasoning", |_, _, _| {
        "I have to look at this. Let me copy the text.\n</think>\n".to_owned()
    }),
    ("anthropics/claude-code#90268", "a line", |_, parts, _| parts.sentences[0].clone() + "\n"),
    ("osaurus-ai/vmlx-swift#229", "two sentences", |_, parts, _| {
        format!("{} {} ", parts.sentences[0], parts.sentences[1])
    }),
    ("anomalyco/opencode#262", "a sentence with blanks that change", |random, parts, _| {
        format!("{}{}", parts.sentences[2], " ".repeat(random.from(1, 3)))
    }),
    ("jhj0517/Whisper-WebUI#534", "thanks at the end of a film", |_, _, _| {
        " Thanks for watching.".to_owned()
    }),
    ("QwenLM/Qwen3#1553", "signs of a face", |_, _, turn| {
        ["😀", "😃", "😄", "😁", "😆", "😅"][turn % 6].to_owned()
    }),
    ("deepseek-ai/DeepSeek-OCR-2#28", "the head of a letter", |_, parts, _| {
        format!("{}\n{} Street 7\n10115 Berlin\n{}\n\n", parts.name, parts.name, parts.sentences[3])
    }),
    ("meta-llama/codellama#204", "a paragraph", |_, parts, _| parts.sentences.join(" ") + "\n\n"),
    ("gsuuon/model.nvim#81", "questions and two answers, with more and more end marks", |_, _, turn| {
        let verb = ["help", "assist"][turn % 2];
        format!(
            "<|user|>\nhello</s>\n\n<|assistant|>\nHi! How can I {verb} you now?{}\n\n",
            "</s>".repeat(turn + 1)
        )
    }),
    ("ggml-org/llama.cpp#19585", "a question and a number that counts", |_, _, turn| {
        format!("say something of yourself<|im_end|>\n<|im_start|>assistant{turn}\n")
    }),
    ("suites E4", "a list of one name", |_, parts, turn| format!("{turn}. {}\n", parts.name)),
    ("suites E3", "empty entries of a list", |_, _, turn| format!("{turn}. \n")),
    ("suites E5", "a paragraph of 430 words", |_, parts, _| parts.paragraph.clone() + "\n\n"),
    ("suites E2", "sentences of a set in any order", |random, parts, _| {
        format!("{} ", parts.sentences[random.from(0, 8)])
    }),
    ("ggml-org/llama.cpp#21365", "a letter, a dash and a blank in any order", |random, _, _| {
        random.of(&["-a", " a", "-a-a", " a a"]).to_owned()
    }),
    ("Blaizzy/mlx-vlm#549", "a number once or twice, in any order", |random, _, _| {
        random.of(&[" -3", " -33", " -33"]).to_owned()
    }),
    ("microsoft/vscode-copilot-release#1339", "rows of a digit that get longer", |_, _, turn| {
        format!("    \"{}\",\n", (turn % 10).to_string().repeat(16 + turn / 10))
    }),
    ("ROCm/vllm#496", "a few words in any order", |random, _, _| {
        format!(
            " {}",
            random.of(&["request", "and", "of", "information", "the", "service", "description", "to", ","])
        )
    }),
    ("QwenLM/Qwen#2282", "the same in other words", |random, _, _| sentence(random) + " "),
];
