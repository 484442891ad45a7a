//! Outputs without a loop. Many of them repeat themselves, as real outputs do.

use std::fmt::Write;

use crate::random::Random;

type WriteText = fn(&mut Random) -> String;

pub const FAMILIES: [(&str, WriteText); 16] = [
    ("prose", prose),
    ("code", code),
    ("tables", tables),
    ("tables of equal rows", equal_rows),
    ("lists", lists),
    ("poetry", poetry),
    ("chants", chants),
    ("base64", base64),
    ("numbers", numbers),
    ("matrices", matrices),
    ("JSON", json),
    ("CSV", csv),
    ("SQL", sql),
    ("rules and ASCII art", art),
    ("hex dumps and logs", dumps),
    ("bottles of beer", bottles),
];

const WORDS: [&str; 96] = [
    "the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "was", "on", "with", "as", "are", "be",
    "this", "have", "from", "or", "one", "had", "by", "word", "but", "not", "what", "all", "were", "we",
    "when", "your", "can", "said", "there", "use", "an", "each", "which", "she", "do", "how", "their", "if",
    "will", "up", "other", "about", "out", "many", "then", "them", "these", "so", "some", "her", "would",
    "make", "like", "him", "into", "time", "has", "look", "two", "more", "write", "go", "see", "number",
    "no", "way", "could", "people", "my", "than", "first", "water", "been", "call", "who", "oil", "its",
    "now", "find", "long", "down", "day", "did", "get", "come", "made", "may", "part", "river", "stone",
];

pub fn word(random: &mut Random) -> &'static str {
    random.of(&WORDS)
}

pub fn sentence(random: &mut Random) -> String {
    let words: Vec<&str> = (0..random.from(4, 16)).map(|_| word(random)).collect();
    let mut text = words.join(" ");
    text[..1].make_ascii_uppercase();
    text + random.of(&[".", ".", ".", "?", "!"])
}

pub fn line(random: &mut Random, least: usize, most: usize) -> String {
    let words: Vec<&str> = (0..random.from(least, most)).map(|_| word(random)).collect();
    words.join(" ")
}

pub fn prose(random: &mut Random) -> String {
    let mut text = String::new();
    for _ in 0..random.from(2, 8) {
        for _ in 0..random.from(2, 7) {
            text += &sentence(random);
            text.push(' ');
        }
        text += "\n\n";
    }
    text
}

pub fn code(random: &mut Random) -> String {
    let mut text = "```python\n".to_owned();
    for _ in 0..random.from(2, 8) {
        let (name, argument) = (word(random), word(random));
        let _ = writeln!(text, "def {name}_{argument}(self, {argument}):");
        match random.from(0, 5) {
            // A table of values.
            0 => {
                for _ in 0..random.from(1, 12) {
                    text += "        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,\n";
                }
            }
            1 => {
                for number in 0..random.from(3, 40) {
                    let _ = writeln!(text, "    self.assertEqual({name}({number}), {})", random.from(0, 99));
                }
            }
            2 => {
                for number in 0..random.from(3, 30) {
                    let _ = writeln!(
                        text,
                        "    elif {argument} == {number}:\n        return \"{}\"",
                        word(random)
                    );
                }
            }
            3 => (0..random.from(1, 6)).for_each(|_| text += "    print()\n"),
            4 => {
                for _ in 0..random.from(4, 20) {
                    let (one, other) = (word(random), word(random));
                    let _ = writeln!(text, "    self.{one} = {other}");
                }
            }
            _ => {
                let _ = writeln!(text, "    for {name} in range(len({argument})):");
                let _ = writeln!(text, "        if {argument}[{name}] > {}:", random.from(0, 999));
                let _ = writeln!(text, "            {name} += {argument}[{name}]\n    return {name}");
            }
        }
        text.push('\n');
    }
    text + "```\n"
}

pub fn tables(random: &mut Random) -> String {
    let columns = random.from(2, 9);
    let mut text = String::from("|");
    (0..columns).for_each(|_| text += &format!(" {} |", word(random)));
    text += "\n|";
    (0..columns).for_each(|_| text += "---|");
    let states = [word(random), word(random), word(random)];
    let sorts: Vec<usize> = (0..columns).map(|_| random.from(0, 5)).collect();
    for row in 1..=random.from(3, 40) {
        let _ = write!(text, "\n| {row} |");
        for sort in &sorts[1..] {
            match sort {
                0 => text += " 0 |",
                1 => text += &format!(" {} |", random.from(0, 9_999)),
                2 => text += &format!(" {} |", random.of(&states)),
                3 => text += " N/A |",
                4 => text += &format!(" {}.{} |", random.from(0, 99), random.from(10, 99)),
                _ => text += &format!(" {} |", line(random, 1, 3)),
            }
        }
    }
    text + "\n"
}

/// Rows without a difference: a table to fill in, a table of zeros, a calendar, a blank form.
fn equal_rows(random: &mut Random) -> String {
    let cell =
        random.of(&[" 0 |", " - |", "   |", " 0.00 |", " n/a |", " [ ] |", " 0 | 0.0 |", " none | 0 |"]);
    let mut text = sentence(random) + "\n\n";
    let columns = random.from(2, 12);
    let row = format!("|{}\n", cell.repeat(columns));
    let rows_max = (1_800 / (columns * cell.len())).clamp(3, 30);
    for _ in 0..random.from(3, rows_max) {
        text += &row;
    }
    text + "\n" + &sentence(random)
}

fn lists(random: &mut Random) -> String {
    let mut text = sentence(random) + "\n";
    let same = line(random, 2, 5);
    let sort = random.from(0, 5);
    for number in 1..=random.from(5, 50) {
        match sort {
            0 => writeln!(text, "- {}", line(random, 2, 9)),
            1 => writeln!(text, "{number}. {}", line(random, 2, 9)),
            2 => writeln!(text, "- [ ] {}", line(random, 1, 4)),
            3 => writeln!(text, "{number}. {same}"),
            4 => writeln!(text, "Step {number}: {same} {}", word(random)),
            _ => writeln!(text, "* **{}**: {}", word(random), sentence(random)),
        }
        .unwrap_or_default();
    }
    text
}

fn poetry(random: &mut Random) -> String {
    let refrain: Vec<String> = (0..random.from(1, 4)).map(|_| line(random, 4, 8)).collect();
    let refrain = refrain.join("\n");
    let anaphora = line(random, 2, 4);
    let mut text = String::new();
    for _ in 0..random.from(3, 8) {
        for _ in 0..random.from(2, 6) {
            let begin = if random.once_in(3) { anaphora.as_str() } else { word(random) };
            let _ = writeln!(text, "{begin} {},", line(random, 3, 7));
        }
        // At the end of a song the refrain comes several times.
        for _ in 0..random.from(1, 4) {
            let _ = writeln!(text, "{refrain}\n");
        }
    }
    text
}

/// A few words over and over: "na na na na, hey hey hey", "om mani padme hum", laughter, a cheer.
fn chants(random: &mut Random) -> String {
    let mut text = sentence(random) + "\n\n";
    for _ in 0..random.from(1, 4) {
        let first = word(random);
        let words = [first, word(random), word(random), word(random)];
        let words = &words[..random.from(1, 4)];
        let part = words.iter().map(|word| format!("{word} ").repeat(random.from(1, 6))).collect::<String>();
        // One word for itself ends in a loop sooner than several.
        let most = if words.iter().all(|word| *word == first) {
            120 / part.split(' ').count()
        } else {
            600 / part.split(' ').count()
        };
        let end = random.of(&["\n", "!\n", ",\n", " "]);
        (0..random.from(1, most.clamp(1, 40))).for_each(|_| text += &format!("{}{end}", part.trim_end()));
        let _ = writeln!(text, "\n{}", sentence(random));
    }
    text
}

fn base64(random: &mut Random) -> String {
    const SIGNS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = "```\ndata:image/png;base64,".to_owned();
    for _ in 0..random.from(2, 30) {
        // Zero bytes are runs of the letter A.
        if random.once_in(4) {
            text += &"A".repeat(random.from(4, 300));
        }
        (0..random.from(20, 120)).for_each(|_| text.push(char::from(SIGNS[random.from(0, 63)])));
        if random.once_in(2) {
            text.push('\n');
        }
    }
    text + "==\n```"
}

fn numbers(random: &mut Random) -> String {
    let mut text = sentence(random) + " ";
    match random.from(0, 7) {
        0 => (1..random.from(20, 400)).for_each(|number| text += &format!("{number}, ")),
        1 => (0..random.from(20, 900)).for_each(|_| text += &random.from(0, 9).to_string()),
        // A decimal expansion of a fraction.
        2 => {
            let (divisor, mut rest) = (random.from(3, 13), 1);
            text += "0.";
            for _ in 0..random.from(10, 200) {
                rest *= 10;
                text += &(rest / divisor).to_string();
                rest %= divisor;
            }
        }
        3 => {
            let base = random.from(2, 19);
            (1..=random.from(10, 60)).for_each(|at| text += &format!("{base} x {at} = {}\n", base * at));
        }
        4 => (0..random.from(50, 1_500)).for_each(|_| text += &random.from(0, 1).to_string()),
        5 => text += &format!("1{}", "0".repeat(random.from(3, 200))),
        6 => (0..random.from(10, 200))
            .for_each(|_| text += &format!("{}.{}\n", random.from(0, 99), random.from(0, 99))),
        _ => {
            let (mut one, mut other) = (0_u128, 1_u128);
            for _ in 0..random.from(10, 150) {
                (one, other) = (other, one + other);
                text += &format!("{one} ");
            }
        }
    }
    text
}

/// Grids of digits, as in puzzles; matrices of zeros and ones.
fn matrices(random: &mut Random) -> String {
    let (size, between) = (random.from(2, 14), random.of(&[" ", ", ", ","]));
    let full = random.from(0, 4) as u64;
    let mut text = "[\n".to_owned();
    for row in 0..size {
        text += "  [";
        for column in 0..size {
            let digit = match full {
                0 => 0,
                1 => usize::from(row == column),
                _ if random.once_in(full * 2) => random.from(1, 9),
                _ => 0,
            };
            text += &format!("{digit}{}", if column + 1 < size { between } else { "" });
        }
        text += "],\n";
    }
    text + "]\n"
}

fn json(random: &mut Random) -> String {
    let keys: Vec<&str> = (0..random.from(1, 6)).map(|_| word(random)).collect();
    let sorts: Vec<usize> = keys.iter().map(|_| random.from(0, 5)).collect();
    let is_equal = random.once_in(4);
    // Equal records: a few, or small ones.
    let count = if is_equal { random.from(2, 4) } else { random.from(2, 40) };
    let mut text = "[\n".to_owned();
    for number in 0..count {
        text += "  {";
        if !is_equal {
            let _ = write!(text, "\"id\": {number}, ");
        }
        for (key, sort) in keys.iter().zip(&sorts) {
            let _ = match sort {
                0 => write!(text, "\"{key}\": 0, "),
                1 => write!(text, "\"{key}\": null, "),
                2 => write!(text, "\"{key}\": true, "),
                3 => write!(text, "\"{key}\": [], "),
                4 if !is_equal => write!(text, "\"{key}\": \"{}\", ", line(random, 1, 3)),
                _ if !is_equal => write!(text, "\"{key}\": {}, ", random.from(0, 9_999)),
                _ => write!(text, "\"{key}\": \"\", "),
            };
        }
        text += "},\n";
    }
    text += "]\n";
    if random.once_in(3) {
        let empty = random.of(&["[]", "{}", "0", "null", "\"\""]);
        text += &format!("[{}]\n", vec![empty; random.from(2, 200)].join(", "));
    }
    text
}

fn csv(random: &mut Random) -> String {
    let columns = random.from(2, 10);
    let constants: Vec<String> = (0..columns).map(|_| word(random).to_owned()).collect();
    let sorts: Vec<usize> = (0..columns).map(|_| random.from(0, 4)).collect();
    let mut text = constants.join(",") + "\n";
    for row in 0..random.from(5, 120) {
        let _ = write!(text, "2026-{:02}-{:02}", row / 28 % 12 + 1, row % 28 + 1);
        for (sort, constant) in sorts.iter().zip(&constants) {
            let _ = match sort {
                0 => write!(text, ",0"),
                1 => write!(text, ",{constant}"),
                2 => write!(text, ",{}", random.from(0, 999)),
                3 => write!(text, ",{}", word(random)),
                _ => write!(text, ",{}", if random.once_in(5) { "yes" } else { "no" }),
            };
        }
        text.push('\n');
    }
    text
}

fn sql(random: &mut Random) -> String {
    let (table, state) = (word(random), word(random));
    let mut text = "```sql\n".to_owned();
    for row in 1..=random.from(3, 100) {
        let _ = write!(text, "INSERT INTO {table} (id, name, state, total) VALUES ({row}, ");
        let _ = match random.from(0, 2) {
            0 => writeln!(text, "'user{row}', '{state}', 0);"),
            1 => writeln!(text, "'{}', '{state}', 0);", word(random)),
            _ => writeln!(text, "'{} {}', '{state}', {});", word(random), word(random), random.from(1, 999)),
        };
    }
    text + "```\n"
}

fn art(random: &mut Random) -> String {
    let mut text = String::new();
    for _ in 0..random.from(1, 10) {
        let sign = random.of(&["-", "=", "*", "#", "_", "~", "- ", "=-", "*~"]);
        let _ = writeln!(text, "{}\n{}", sign.repeat(random.from(3, 120)), line(random, 1, 6));
    }
    text += "```\n";
    let (width, height) = (random.from(4, 60), random.from(3, 24));
    let (ink, paper) = (random.of(&["#", "*", "@", "X", "█"]), random.of(&[" ", ".", " "]));
    let sort = random.from(0, 3);
    for row in 0..height {
        for column in 0..width {
            let is_ink = match sort {
                0 => row == 0 || column == 0 || row + 1 == height || column + 1 == width,
                1 => (row + column) % 2 == 0,
                2 => column >= height.saturating_sub(row) && column <= height + row,
                _ => random.once_in(3),
            };
            text += if is_ink { ink } else { paper };
        }
        text.push('\n');
    }
    text + "```\n"
}

fn dumps(random: &mut Random) -> String {
    let mut text = "```\n".to_owned();
    let is_dump = random.once_in(2);
    let (one, other) = (line(random, 3, 6), line(random, 3, 6));
    for row in 0..random.from(4, 60) {
        if is_dump {
            let _ = write!(text, "{:08x}: ", row * 16);
            let is_zero = !random.once_in(4);
            for _ in 0..8 {
                let _ = write!(text, "{:04x} ", if is_zero { 0 } else { random.from(0, 65_535) });
            }
            text += if is_zero { " ................\n" } else { " .a..B.%..x.....,\n" };
        } else {
            let (second, level) = (row % 60, random.of(&["INFO", "INFO", "WARN"]));
            let message = if random.once_in(4) { &other } else { &one };
            let _ = writeln!(text, "2026-11-24T14:{:02}:{second:02} {level} {message}", row / 60);
        }
    }
    text + "```\n"
}

fn bottles(random: &mut Random) -> String {
    let (thing, place) = (line(random, 1, 3), line(random, 2, 3));
    let mut text = String::new();
    for number in (1..=random.from(5, 99)).rev() {
        let _ = writeln!(text, "{number} {thing} on {place}, {number} {thing}.");
        let _ = writeln!(text, "Take one down, pass it around, {} {thing} on {place}.\n", number - 1);
    }
    text
}
