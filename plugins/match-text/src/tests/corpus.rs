//! A generated corpus: texts that a preset must find, and texts that look like them. The generators share no code
//! with the presets.

use super::random::Random;
use crate::Preset;

/// The number of positive and of negative samples for each preset.
pub const SAMPLES: usize = 500;

/// A text with one item.
#[derive(Clone, Debug)]
pub struct Sample {
    pub before: &'static str,
    pub item: String,
    pub after: &'static str,
    /// Whether the preset must find the item.
    pub is_positive: bool,
}

impl Sample {
    pub fn text(&self) -> String {
        format!("{}{}{}", self.before, self.item, self.after)
    }
}

const BEFORE: [&str; 12] = [
    "Sure, it is ",
    "",
    "Contact: ",
    "| a | ",
    "(",
    "She wrote \u{201c}",
    "\n- ",
    "value=\"",
    "见",
    "The answer: ",
    "é ",
    "1. ",
];
const AFTER: [&str; 12] = [
    "",
    ".",
    ", and so on",
    ")",
    "\u{201d} yesterday",
    "\n",
    " | b |",
    "\" />",
    "。好",
    "; done",
    " is right",
    "!",
];

const HEX: &str = "0123456789abcdef";
const DIGITS: &str = "0123456789";
const LOWER: &str = "abcdefghijklmnopqrstuvwxyz";
const UPPER_DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
const ALPHANUMERIC: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
const WORDS: [&str; 16] = [
    "anna", "miller", "support", "info", "data", "blue", "station", "paper", "river", "team", "sales",
    "north", "cloud", "model", "index", "value",
];

/// The samples of a preset, the same in each run.
pub fn samples(preset: Preset) -> Vec<Sample> {
    let mut random = Random::new(preset as u64 + 1);
    let mut samples = Vec::new();
    for is_positive in [true, false] {
        for _ in 0..SAMPLES {
            let item = match (preset, is_positive) {
                (Preset::Email, true) => email(&mut random),
                (Preset::Email, false) => no_email(&mut random),
                (Preset::Card, true) => card(&mut random),
                (Preset::Card, false) => no_card(&mut random),
                (Preset::Iban, true) => iban(&mut random),
                (Preset::Iban, false) => no_iban(&mut random),
                (Preset::Phone, true) => phone(&mut random),
                (Preset::Phone, false) => no_phone(&mut random),
                (Preset::ApiKey, true) => key(&mut random),
                (Preset::ApiKey, false) => no_key(&mut random),
                (Preset::Ip, true) => ip(&mut random),
                (Preset::Ip, false) => no_ip(&mut random),
            };
            let (before, after) = (random.pick(&BEFORE), random.pick(&AFTER));
            samples.push(Sample { before, item, after, is_positive });
        }
    }
    samples
}

fn word(random: &mut Random) -> &'static str {
    random.pick(&WORDS)
}

fn number(random: &mut Random, digits: usize) -> String {
    random.text(DIGITS, digits)
}

/// A number without a leading 0.
fn count(random: &mut Random, digits: usize) -> String {
    random.text("123456789", 1) + &random.text(DIGITS, digits - 1)
}

fn email(random: &mut Random) -> String {
    let local = match random.below(8) {
        0 => word(random).to_owned(),
        1 => format!("{}.{}", word(random), word(random)),
        2 => format!("{}_{}{}", word(random), word(random), number(random, 2)),
        3 => format!("{}+{}", word(random), word(random)),
        4 => format!("{}-{}", word(random), number(random, 4)),
        5 => word(random).to_uppercase(),
        6 => random.text(LOWER, 20),
        // Other letters than those of ASCII, and quotes, which the preset does not know.
        _ => match random.below(8) {
            0 => format!("j\u{fc}rgen.{}", word(random)),
            1 => format!("\"{} {}\"", word(random), word(random)),
            _ => number(random, 6),
        },
    };
    let domain = match random.below(5) {
        0 => format!("{}.com", word(random)),
        1 => format!("mail.{}.co.uk", word(random)),
        2 => format!("{}-{}.io", word(random), word(random)),
        3 => format!("{}{}.Example.ORG", word(random), number(random, 2)),
        _ => format!("a.b.{}.museum", word(random)),
    };
    format!("{local}@{domain}")
}

fn no_email(random: &mut Random) -> String {
    match random.below(14) {
        0 => format!("@{}", word(random)),
        1 => format!("{}@localhost", word(random)),
        2 => format!("{} @ {}.com", word(random), word(random)),
        3 => format!(
            "npm install {}@{}.{}.{}",
            word(random),
            random.below(20),
            random.below(20),
            random.below(20)
        ),
        4 => format!("@{}.route('/{}')", word(random), word(random)),
        5 => format!("{}@2x.png", word(random)),
        6 => format!("git@github.com:{}/{}.git", word(random), word(random)),
        7 => format!("{}.{}.{}", word(random), word(random), word(random)),
        8 => format!("{}[at]{}.com", word(random), word(random)),
        9 => format!("image@sha256:{}", random.text(HEX, 64)),
        10 => format!("@types/{}@{}.1.0", word(random), random.below(30)),
        11 => format!("ssh root@10.0.{}.{}", random.below(256), random.below(256)),
        12 => format!("{}@{}", word(random), word(random)),
        _ => format!("{}@.com", word(random)),
    }
}

/// The digits with the check digit of Luhn after them.
fn with_luhn(digits: &str) -> String {
    let sum: u32 = digits
        .bytes()
        .rev()
        .enumerate()
        .map(|(place, byte)| {
            let digit = u32::from(byte - b'0') * if place % 2 == 0 { 2 } else { 1 };
            digit / 10 + digit % 10
        })
        .sum();
    format!("{digits}{}", (10 - sum % 10) % 10)
}

fn card_number(random: &mut Random) -> String {
    let (prefix, length): (String, usize) = match random.below(9) {
        0 | 1 => ("4".into(), 16),
        2 => (format!("5{}", 1 + random.below(5)), 16),
        3 => (format!("2{}", 3 + random.below(4)), 16),
        4 => (random.pick(&["34", "37"]).into(), 15),
        5 => (random.pick(&["6011", "65", "644"]).into(), 16),
        6 => (random.pick(&["36", "301", "38"]).into(), 14),
        7 => (format!("35{}", 30 + random.below(50)), 16),
        _ => (random.pick(&["62", "4"]).into(), 19),
    };
    let rest = number(random, length - prefix.len() - 1);
    with_luhn(&format!("{prefix}{rest}"))
}

/// A card number with separators.
fn written(random: &mut Random, card: &str) -> String {
    let separator = random.pick(&["", " ", "-", " ", "\u{a0}"]);
    let groups: &[usize] = match card.len() {
        15 => &[4, 6, 5],
        14 => &[4, 6, 4],
        19 => &[4, 4, 4, 4, 3],
        _ => &[4, 4, 4, 4],
    };
    let mut rest = card;
    let mut parts = Vec::new();
    for group in groups {
        let (part, after) = rest.split_at(*group);
        parts.push(part);
        rest = after;
    }
    // Two spaces, which the preset does not know.
    let separator = if random.below(50) == 0 { "  " } else { separator };
    parts.join(separator)
}

fn card(random: &mut Random) -> String {
    let card = card_number(random);
    written(random, &card)
}

/// The number with one digit changed.
fn near(random: &mut Random, text: &str) -> String {
    let places: Vec<usize> =
        text.bytes().enumerate().filter(|(_, byte)| byte.is_ascii_digit()).map(|(at, _)| at).collect();
    let place = places[places.len() - 1 - random.below(4)];
    let digit = text.as_bytes()[place] - b'0';
    let other = (digit + 1 + random.below(8) as u8) % 10;
    format!("{}{other}{}", &text[..place], &text[place + 1..])
}

fn no_card(random: &mut Random) -> String {
    match random.below(14) {
        0..=2 => {
            let card = card(random);
            near(random, &card)
        }
        // An order number: one of ten has the right check digit.
        3 => count(random, 16),
        4 => format!("17{}", number(random, 11)),
        5 => format!("17{}", number(random, 17)),
        6 => uuid(random),
        7 => format!("978-3-16-{}-{}", number(random, 6), random.below(10)),
        8 => format!("3.{}", number(random, 16)),
        9 => count(random, 25),
        10 => "2019 2020 2021 2022 2023 2024".into(),
        11 => random.text(HEX, 40),
        12 => format!("{} {} {} {}", count(random, 4), count(random, 3), count(random, 4), count(random, 2)),
        _ => format!("0x{}", random.text(HEX, 16)),
    }
}

fn uuid(random: &mut Random) -> String {
    let parts = [8, 4, 4, 4, 12].map(|length| random.text(HEX, length));
    parts.join("-")
}

/// An IBAN with the right check digits.
fn iban_number(random: &mut Random) -> String {
    let (country, bban) = match random.below(10) {
        0 => ("DE", number(random, 18)),
        1 => ("GB", format!("{}{}", random.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 4), number(random, 14))),
        2 => ("FR", format!("{}{}{}", number(random, 10), random.text(UPPER_DIGITS, 11), number(random, 2))),
        3 => ("NL", format!("{}{}", random.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 4), number(random, 10))),
        4 => ("ES", number(random, 20)),
        5 => ("NO", number(random, 11)),
        6 => (
            "MT",
            format!(
                "{}{}{}",
                random.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 4),
                number(random, 5),
                random.text(UPPER_DIGITS, 18)
            ),
        ),
        7 => ("CH", format!("{}{}", number(random, 5), random.text(UPPER_DIGITS, 12))),
        8 => ("PL", number(random, 24)),
        _ => ("SA", format!("{}{}", number(random, 2), random.text(UPPER_DIGITS, 18))),
    };
    let digits: String = format!("{bban}{country}00")
        .bytes()
        .map(|byte| match byte {
            b'0'..=b'9' => (byte - b'0').to_string(),
            byte => (byte - b'A' + 10).to_string(),
        })
        .collect();
    let rest = digits.bytes().fold(0_u32, |rest, byte| (rest * 10 + u32::from(byte - b'0')) % 97);
    format!("{country}{:02}{bban}", 98 - rest)
}

fn in_fours(text: &str, separator: &str) -> String {
    let bytes: Vec<&[u8]> = text.as_bytes().chunks(4).collect();
    bytes.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect::<Vec<_>>().join(separator)
}

fn iban(random: &mut Random) -> String {
    let iban = iban_number(random);
    match random.below(40) {
        // Lower case, which the preset does not know.
        0 => iban.to_lowercase(),
        1..20 => in_fours(&iban, " "),
        20..24 => in_fours(&iban, "-"),
        _ => iban,
    }
}

fn no_iban(random: &mut Random) -> String {
    match random.below(9) {
        0..=2 => {
            let iban = iban(random);
            near(random, &iban)
        }
        3 => iban_number(random) + &number(random, 2),
        4 => {
            let iban = iban_number(random);
            iban[..iban.len() - 4].to_owned()
        }
        5 => format!("DE{}", number(random, 9)),
        6 => format!("IT15 ROOM {} {}", count(random, 4), count(random, 4)),
        7 => random.text("0123456789ABCDEF", 32),
        _ => format!(
            "{}{} {}",
            random.pick(&["LH", "BA", "SK", "FR"]),
            count(random, 2),
            random.text(UPPER_DIGITS, 12)
        ),
    }
}

fn phone(random: &mut Random) -> String {
    match random.below(14) {
        0 => format!("+49 {} {}", count(random, 3), number(random, 7)),
        1 => format!("+1 ({}) {}-{}", area(random), area(random), number(random, 4)),
        2 => format!("({}) {}-{}", area(random), area(random), number(random, 4)),
        3 => format!("{}-{}-{}", area(random), area(random), number(random, 4)),
        4 => format!("030 {}", count(random, 7)),
        5 => format!("017{}/{}", random.below(10), count(random, 7)),
        6 => format!("020 7{} {}", number(random, 3), number(random, 4)),
        7 => format!(
            "0{} {} {} {} {}",
            1 + random.below(9),
            number(random, 2),
            number(random, 2),
            number(random, 2),
            number(random, 2)
        ),
        8 => format!("+44{}", count(random, 10)),
        9 => format!("+86 1{} {} {}", number(random, 2), number(random, 4), number(random, 4)),
        10 => format!("07{}", number(random, 9)),
        11 => format!("0049 {} {}", count(random, 2), count(random, 7)),
        12 => format!("1-{}-{}-{}", area(random), area(random), number(random, 4)),
        _ => match random.below(3) {
            // Without an area code, which the preset does not know.
            0 => format!("{}-{}", area(random), number(random, 4)),
            _ => format!("{}.{}.{}", area(random), area(random), number(random, 4)),
        },
    }
}

fn area(random: &mut Random) -> String {
    random.text("23456789", 1) + &number(random, 2)
}

fn no_phone(random: &mut Random) -> String {
    let below = |random: &mut Random, end: usize| format!("{:02}", 1 + random.below(end));
    match random.below(17) {
        0 => format!("2024-{}-{} 10:30", below(random, 12), below(random, 28)),
        1 => format!("{}.{}.2024", below(random, 28), below(random, 12)),
        2 => format!("{}/{}/2024", below(random, 12), below(random, 28)),
        3 => format!("10.0.{}.{}", count(random, 5), count(random, 4)),
        4 => format!("{},{},{}", count(random, 1), number(random, 3), number(random, 3)),
        5 => format!("{}-{}", count(random, 3), count(random, 3)),
        6 => format!("978-3-16-{}-0", number(random, 6)),
        7 => format!("x+{}", count(random, 8)),
        8 => format!("+{}", count(random, 6)),
        9 => format!("192.168.{}.{}", random.below(256), random.below(256)),
        // A serial number in groups: some have the shape of a national number.
        10 => format!("{}-{}-{}", number(random, 4), number(random, 4), number(random, 4)),
        11 => format!("{}-{}-{}", count(random, 3), number(random, 2), number(random, 4)),
        12 => format!("52.{}, 13.{}", number(random, 6), number(random, 6)),
        13 => uuid(random),
        14 => count(random, 12),
        15 => format!("0.{}", number(random, 10)),
        _ => {
            format!("{}:{}:{}.{}", below(random, 23), below(random, 59), below(random, 59), number(random, 6))
        }
    }
}

fn key(random: &mut Random) -> String {
    let random_text = |random: &mut Random, length| random.text(ALPHANUMERIC, length);
    match random.below(13) {
        0 => format!("sk-{}", random_text(random, 48)),
        1 => format!("sk-proj-{}", random_text(random, 64)),
        2 => format!("sk-ant-api03-{}", random_text(random, 80)),
        3 => format!("AKIA{}", random.text(UPPER_DIGITS, 16)),
        4 => format!("ghp_{}", random_text(random, 36)),
        5 => format!("github_pat_{}_{}", random_text(random, 22), random_text(random, 59)),
        6 => format!("glpat-{}", random_text(random, 20)),
        7 => format!("xoxb-{}-{}-{}", count(random, 12), count(random, 12), random_text(random, 24)),
        8 => format!("AIza{}", random_text(random, 35)),
        9 => format!("hf_{}", random_text(random, 34)),
        10 => format!("sk_live_{}", random_text(random, 24)),
        11 => format!(
            "eyJ{}.eyJ{}.{}",
            random_text(random, 33),
            random_text(random, 80),
            random_text(random, 43)
        ),
        // A service that the preset does not know, or a private key.
        _ => match random.below(3) {
            0 => format!("zk1{}", random_text(random, 40)),
            _ => format!(
                "-----BEGIN PRIVATE KEY-----\n{}\n{}\n-----END PRIVATE KEY-----",
                random_text(random, 64),
                random_text(random, 40)
            ),
        },
    }
}

fn no_key(random: &mut Random) -> String {
    match random.below(12) {
        0 => format!("sk-{}-based-{}-pipeline-{}", word(random), word(random), word(random)),
        1 => random.text(HEX, 40),
        2 => uuid(random),
        3 => format!("AKIA{}", random.text(UPPER_DIGITS, 8)),
        4 => format!("ghp_{}", word(random)),
        5 => format!("hf_{}_for_testing_{}_{}", word(random), word(random), word(random)),
        6 => format!("eyJ{}.{}", random.text(ALPHANUMERIC, 30), random.text(ALPHANUMERIC, 30)),
        7 => {
            format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----", random.text(ALPHANUMERIC, 64))
        }
        8 => random.text(ALPHANUMERIC, 64),
        9 => format!("sk-{}-v{}-with-cross-validation-{}", word(random), random.below(9), random.below(9)),
        10 => format!("task-{}", random.text(ALPHANUMERIC, 40)),
        _ => format!("{}_{}_{}_{}", word(random), word(random), word(random), word(random)),
    }
}

fn ip(random: &mut Random) -> String {
    let group = |random: &mut Random| {
        let length = 1 + random.below(4);
        random.text("123456789abcdef", 1) + &random.text(HEX, length - 1)
    };
    let four = |random: &mut Random| {
        let first = [5, 8, 31, 46, 52, 77, 91, 104, 151, 185, 203, 212][random.below(12)];
        let second = if first == 203 { 7 } else { random.below(256) };
        format!("{first}.{second}.{}.{}", random.below(256), random.below(256))
    };
    match random.below(7) {
        0 | 1 => four(random),
        2 => format!("{}:{}", four(random), count(random, 4)),
        3 => format!("http://{}/", four(random)),
        4 => format!("2a{}:{}", random.text(HEX, 2), [(); 7].map(|()| group(random)).join(":")),
        5 => format!("2606:{}::{}", group(random), group(random)),
        _ => format!("2001:4860:{}::{}:{}", group(random), group(random), group(random)),
    }
}

fn no_ip(random: &mut Random) -> String {
    let byte = |random: &mut Random| random.below(256);
    match random.below(19) {
        0 => format!("10.{}.{}.{}", byte(random), byte(random), byte(random)),
        1 => format!("192.168.{}.{}", byte(random), byte(random)),
        2 => format!("172.{}.{}.{}", 16 + random.below(16), byte(random), byte(random)),
        3 => random.pick(&["127.0.0.1", "0.0.0.0", "255.255.255.0", "169.254.10.1", "224.0.0.251"]).into(),
        4 => format!("203.0.113.{}", byte(random)),
        5 => format!("{}.{}.{}", random.below(20), random.below(20), random.below(20)),
        6 => format!("{}.{}.{}.{}", byte(random), byte(random), byte(random), 256 + random.below(9000)),
        7 => format!("1.3.6.1.4.1.{}", count(random, 4)),
        8 => format!("v{}.{}.{}.{}", random.below(9), random.below(9), random.below(9), random.below(9)),
        // A version or a section of four numbers is an address, too.
        9 if random.below(4) == 0 => {
            format!(
                "version {}.{}.{}.{}",
                1 + random.below(9),
                random.below(9),
                random.below(9),
                random.below(9)
            )
        }
        9 | 10 => format!("{:02}:{:02}:{:02}", random.below(24), random.below(60), random.below(60)),
        11 => [(); 6].map(|()| random.text(HEX, 2)).join(":"),
        12 => format!("{}::{}", word(random), word(random)),
        13 => "std::net::Ipv4Addr".into(),
        14 => format!("2001:db8::{}", random.text("123456789abcdef", 3)),
        15 => format!("fe80::{}", random.text("123456789abcdef", 3)),
        16 => format!("2{}:{}", random.text(HEX, 3), count(random, 4)),
        17 => {
            format!("{}.{}.{}.{}", count(random, 1), number(random, 3), number(random, 3), number(random, 3))
        }
        _ => format!("{}.5.2.1.3", byte(random)),
    }
}
