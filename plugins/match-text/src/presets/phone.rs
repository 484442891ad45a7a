//! Phone numbers.
//!
//! The tables are facts from the metadata of libphonenumber (python-phonenumbers 8.13.48): the lengths of the numbers of
//! each country code, and the area codes of North America.

use super::{continues_number, digits};
use crate::patterns::{BEFORE_BYTES, Candidate};

/// A plus or 00, a country code and a number.
pub const INTERNATIONAL: &str = concat!(
    r"(?:\+|\b{start-half}00 ?)[1-9]",
    r"(?:[ ().\-/\u{a0}\u{2010}-\u{2013}\u{202f}]{0,3}[0-9]){6,14}\b{end-half}",
);

/// Area code, exchange and number, with or without a 1 before. Or all digits together: a tail is refused.
pub const NORTH_AMERICAN: &str = r"(?x)
    (?: \b{start-half} 1 [\ .\-]? )?
    (?: \( [2-9][0-9]{2} \) [\ .\-]? | \b{start-half} [2-9][0-9]{2} [\ .\-\u{a0}\u{2010}-\u{2013}\u{202f}] )
    [2-9][0-9]{2} [\ .\-\u{a0}\u{2010}-\u{2013}\u{202f}]? [0-9]{4} \b{end-half}
  | \b{start-half} [2-9][0-9]{2}[2-9][0-9]{6} (?: [./\-] [0-9]+ )? \b{end-half}";

/// A 0, the rest of the area code, and groups of digits. An area code of one digit has a longer group behind it, or
/// groups of 2, 3 and 3 or 4.
pub const NATIONAL: &str = r"(?x)
    (?: \( 0[1-9][0-9]{1,4} \) \ ? | \b{start-half} 0[1-9][0-9]{1,4} (?: \ ? [/\-] \ ? | [\ \u{a0}\u{2010}-\u{2013}\u{202f}] ) )
        [0-9]{1,8} (?: [\ \-\u{a0}\u{2010}-\u{2013}\u{202f}] [0-9]{2,7} | - [0-9] ){0,3} \b{end-half}
  | (?: \( 0[1-9] \) \ ? | \b{start-half} 0[1-9] [/\ \-\u{a0}\u{2010}-\u{2013}\u{202f}] )
        (?: [0-9]{3,8} (?: [\ \-\u{a0}\u{2010}-\u{2013}\u{202f}] [0-9]{2,5} ){0,2}
          | [0-9]{2} [\ \-] [0-9]{3} [\ \-] [0-9]{3,4}
        ) \b{end-half}";

/// Pairs of digits, as in France. More pairs are those of a hardware address.
pub const PAIRS: &str = r"(?x)
    \b{start-half} 0[1-9] (?: [\ .\-\u{a0}\u{202f}] [0-9]{2} ){4}
    (?: [.\-:] [0-9A-Fa-f]{2} | [\ ] [0-9][0-9A-Fa-f] )* \b{end-half}";

/// The 0 stands alone before the area code.
pub const TRUNK: &str = r"(?x)
    (?: \b{start-half} 0 (?: [\ \-] | [\ \-]? \( ) | \( 0 \) \ ? ) [1-9][0-9]{1,3} \)?
    (?: [\ \-] [0-9]{1,7} ){1,4} \b{end-half}";

/// A 0 and all digits together: a tail is refused.
pub const TOGETHER: &str = r"(?x) \b{start-half} 0[1-9][0-9]{7,10} (?: [./\-] [0-9]+ )? \b{end-half}";

/// The codes of E.164, each with the shortest and the longest length of the numbers behind it.
#[rustfmt::skip] // One country a line would be 215 lines.
const COUNTRIES: [(u16, u8, u8); 215] = [
    (1, 10, 10), (7, 10, 14), (20, 8, 10), (27, 5, 10), (30, 10, 12), (31, 5, 11), (32, 8, 9), (33, 9, 9),
    (34, 9, 9), (36, 8, 9), (39, 6, 12), (40, 6, 9), (41, 9, 12), (43, 4, 13), (44, 7, 10), (45, 8, 8),
    (46, 6, 12), (47, 5, 8), (48, 6, 10), (49, 4, 15), (51, 8, 9), (52, 10, 11), (53, 6, 10), (54, 10, 11),
    (55, 8, 11), (56, 9, 11), (57, 10, 11), (58, 10, 10), (60, 8, 10), (61, 5, 12), (62, 7, 17), (63, 6, 13),
    (64, 5, 10), (65, 8, 11), (66, 8, 13), (81, 8, 17), (82, 5, 14), (84, 7, 10), (86, 7, 12), (90, 7, 13),
    (91, 8, 13), (92, 8, 12), (93, 9, 9), (94, 9, 9), (95, 6, 10), (98, 4, 10), (211, 9, 9), (212, 9, 9),
    (213, 8, 9), (216, 8, 8), (218, 9, 9), (220, 7, 7), (221, 9, 9), (222, 8, 8), (223, 8, 8), (224, 8, 9),
    (225, 10, 10), (226, 8, 8), (227, 8, 8), (228, 8, 8), (229, 8, 8), (230, 7, 10), (231, 7, 9), (232, 8, 8),
    (233, 8, 9), (234, 8, 14), (235, 8, 8), (236, 8, 8), (237, 8, 9), (238, 7, 7), (239, 7, 7), (240, 9, 9),
    (241, 7, 8), (242, 9, 9), (243, 7, 10), (244, 9, 9), (245, 7, 9), (246, 7, 7), (247, 5, 6), (248, 7, 7),
    (249, 9, 9), (250, 8, 9), (251, 9, 9), (252, 6, 9), (253, 8, 8), (254, 7, 10), (255, 9, 9), (256, 9, 9),
    (257, 8, 8), (258, 8, 9), (260, 9, 9), (261, 9, 9), (262, 9, 9), (263, 5, 10), (264, 8, 9), (265, 7, 9),
    (266, 8, 8), (267, 7, 10), (268, 8, 9), (269, 7, 7), (290, 4, 5), (291, 7, 7), (297, 7, 7), (298, 6, 6),
    (299, 6, 6), (350, 8, 8), (351, 9, 9), (352, 4, 11), (353, 7, 10), (354, 7, 9), (355, 6, 9), (356, 8, 8),
    (357, 8, 8), (358, 5, 12), (359, 6, 12), (370, 8, 8), (371, 8, 8), (372, 7, 10), (373, 8, 8), (374, 8, 8),
    (375, 6, 11), (376, 6, 9), (377, 8, 9), (378, 8, 10), (380, 9, 10), (381, 6, 12), (382, 8, 9), (383, 8, 12),
    (385, 6, 9), (386, 5, 8), (387, 8, 9), (389, 8, 8), (420, 9, 12), (421, 6, 9), (423, 7, 9), (500, 5, 5),
    (501, 7, 11), (502, 8, 11), (503, 7, 11), (504, 8, 11), (505, 8, 8), (506, 8, 10), (507, 7, 11),
    (508, 6, 9), (509, 8, 8), (590, 9, 9), (591, 8, 9), (592, 7, 7), (593, 8, 11), (594, 9, 9), (595, 6, 11),
    (596, 9, 9), (597, 6, 7), (598, 6, 13), (599, 7, 8), (670, 7, 8), (672, 6, 6), (673, 7, 7), (674, 7, 7),
    (675, 7, 8), (676, 5, 7), (677, 5, 7), (678, 5, 7), (679, 7, 11), (680, 7, 7), (681, 6, 9), (682, 5, 5),
    (683, 4, 7), (685, 5, 10), (686, 5, 8), (687, 6, 6), (688, 5, 7), (689, 6, 9), (690, 4, 7), (691, 7, 7),
    (692, 7, 7), (800, 8, 8), (808, 8, 8), (850, 8, 10), (852, 5, 11), (853, 7, 8), (855, 8, 10), (856, 8, 10),
    (870, 9, 12), (878, 12, 12), (880, 6, 10), (881, 9, 10), (882, 7, 12), (883, 8, 12), (886, 7, 11),
    (888, 11, 11), (960, 7, 10), (961, 7, 8), (962, 8, 9), (963, 8, 9), (964, 8, 10), (965, 7, 8), (966, 9, 10),
    (967, 7, 9), (968, 7, 9), (970, 8, 10), (971, 5, 12), (972, 7, 12), (973, 8, 8), (974, 7, 11), (975, 7, 8),
    (976, 8, 10), (977, 8, 11), (979, 9, 9), (992, 9, 9), (993, 8, 8), (994, 9, 9), (995, 9, 9), (996, 9, 10),
    (998, 9, 9),
];

/// The area codes of North America, of its islands, and the free ones.
const AREAS: [u16; 438] = [
    201, 202, 203, 204, 205, 206, 207, 208, 209, 210, 212, 213, 214, 215, 216, 217, 218, 219, 220, 223, 224,
    225, 226, 227, 228, 229, 231, 234, 235, 236, 239, 240, 242, 246, 248, 249, 250, 251, 252, 253, 254, 256,
    260, 262, 263, 264, 267, 268, 269, 270, 272, 276, 279, 281, 283, 284, 289, 301, 302, 303, 304, 305, 306,
    307, 308, 309, 310, 312, 313, 314, 315, 316, 317, 318, 319, 320, 321, 323, 325, 326, 329, 330, 331, 332,
    334, 336, 337, 339, 340, 341, 343, 345, 346, 347, 350, 351, 352, 354, 360, 361, 363, 364, 365, 367, 368,
    369, 380, 382, 385, 386, 401, 402, 403, 404, 405, 406, 407, 408, 409, 410, 412, 413, 414, 415, 416, 417,
    418, 419, 423, 424, 425, 428, 430, 431, 432, 434, 435, 437, 438, 440, 441, 442, 443, 445, 447, 448, 450,
    458, 463, 464, 468, 469, 470, 472, 473, 474, 475, 478, 479, 480, 484, 501, 502, 503, 504, 505, 506, 507,
    508, 509, 510, 512, 513, 514, 515, 516, 517, 518, 519, 520, 530, 531, 534, 539, 540, 541, 548, 551, 557,
    559, 561, 562, 563, 564, 567, 570, 571, 572, 573, 574, 575, 579, 580, 581, 582, 584, 585, 586, 587, 601,
    602, 603, 604, 605, 606, 607, 608, 609, 610, 612, 613, 614, 615, 616, 617, 618, 619, 620, 623, 626, 628,
    629, 630, 631, 636, 639, 640, 641, 645, 646, 647, 649, 650, 651, 656, 657, 658, 659, 660, 661, 662, 664,
    667, 669, 670, 671, 672, 678, 680, 681, 682, 683, 684, 689, 701, 702, 703, 704, 705, 706, 707, 708, 709,
    712, 713, 714, 715, 716, 717, 718, 719, 720, 721, 724, 725, 726, 727, 728, 730, 731, 732, 734, 737, 740,
    742, 743, 747, 753, 754, 757, 758, 760, 762, 763, 765, 767, 769, 770, 771, 772, 773, 774, 775, 778, 779,
    780, 781, 782, 784, 785, 786, 787, 800, 801, 802, 803, 804, 805, 806, 807, 808, 809, 810, 812, 813, 814,
    815, 816, 817, 818, 819, 820, 825, 826, 828, 829, 830, 831, 832, 833, 835, 838, 839, 840, 843, 844, 845,
    847, 848, 849, 850, 854, 855, 856, 857, 858, 859, 860, 862, 863, 864, 865, 866, 867, 868, 869, 870, 872,
    873, 876, 877, 878, 879, 888, 900, 901, 902, 903, 904, 905, 906, 907, 908, 909, 910, 912, 913, 914, 915,
    916, 917, 918, 919, 920, 925, 928, 929, 930, 931, 934, 936, 937, 938, 939, 940, 941, 943, 945, 947, 948,
    949, 951, 952, 954, 956, 959, 970, 971, 972, 973, 978, 979, 980, 983, 984, 985, 986, 989,
];

/// Whether the number has a length of its country, and is no decimal and no part of another number.
pub fn is_international(candidate: &Candidate<'_>) -> bool {
    let Candidate { text, before } = candidate;
    let first = before[BEFORE_BYTES - 1];
    let is_part = match text.first() {
        // A sum, or the exponent of a number.
        Some(b'+') => first.is_ascii_alphanumeric() || first == b'+',
        _ => continues_number(*before) || continues_groups(candidate),
    };
    let number: Vec<u8> = digits(text).map(|digit| digit + b'0').collect();
    let number = number.strip_prefix(b"00").unwrap_or(&number);
    !is_part && !is_decimal(text) && (8..=15).contains(&number.len()) && is_of_country(number)
}

/// Whether a point is the first separator: `+52.5200`. A number that has points between all groups is no decimal.
fn is_decimal(text: &[u8]) -> bool {
    let mut separators = text.iter().skip(1).filter(|byte| !byte.is_ascii_digit());
    let is_point = |byte: Option<&u8>| byte == Some(&b'.');
    is_point(separators.next()) && !(is_point(separators.next()) && separators.all(|byte| *byte == b'.'))
}

/// Whether numbers of this length begin with a country code. The 0 of national calls may stand behind the code.
fn is_of_country(number: &[u8]) -> bool {
    number.first() != Some(&b'0')
        && (1..=3).any(|length| {
            let Some((code, national)) = number.split_at_checked(length) else { return false };
            let code = code.iter().fold(0, |code, digit| 10 * code + u16::from(digit - b'0'));
            let Ok(found) = COUNTRIES.binary_search_by_key(&code, |country| country.0) else { return false };
            let (_, least, most) = COUNTRIES[found];
            let fits = |national: &[u8]| (least.into()..=most.into()).contains(&national.len());
            fits(national) || national.strip_prefix(b"0").is_some_and(fits)
        })
}

/// Whether the number does not continue another one. With less than two separators, its area code is in use.
pub fn is_north_american(candidate: &Candidate<'_>) -> bool {
    let number: Vec<u8> = digits(candidate.text).collect();
    let separators = candidate.text.split(u8::is_ascii_digit).filter(|between| !between.is_empty()).count();
    let number = number.strip_prefix(&[1]).unwrap_or(&number);
    let area = number.iter().take(3).fold(0, |area, digit| 10 * area + u16::from(*digit));
    let is_in_use = AREAS.binary_search(&area).is_ok();
    // 6123456789
    let counts_up = number.windows(8).any(|digits| digits.windows(2).all(|pair| pair[0] + 1 == pair[1]));
    number.len() == 10 && (separators > 1 || is_in_use) && !counts_up && !continues_number(candidate.before)
}

/// Whether the number has as many digits as a national number, and is no date and no other number in groups.
pub fn is_national(candidate: &Candidate<'_>) -> bool {
    let text = candidate.text;
    let groups = groups(text);
    let is_year = |group: &[u8]| matches!(group, [b'1', b'9', _, _] | [b'2', b'0', _, _]);
    let is_other = match &groups[..] {
        // A date. An area code of one digit in brackets is none.
        [day, year, ..] if day.len() == 2 && is_year(year) => text.first() != Some(&b'('),
        // Numbers of the social security in the USA.
        [area, group, serial] => [area, group, serial].map(|group| group.len()) == [3, 2, 4],
        // Birth numbers: a date, and 3 or 4 digits.
        [date, serial] => date.len() == 6 && matches!(serial.len(), 3 | 4) && text.contains(&b'/'),
        _ => false,
    };
    !is_other && has_national_length(candidate) && !continues_groups(candidate)
}

/// Whether there are as many pairs as in one or more numbers.
pub fn is_in_pairs(candidate: &Candidate<'_>) -> bool {
    let is_of_digits = !candidate.text.iter().any(u8::is_ascii_alphabetic) && !candidate.text.contains(&b':');
    let pairs = groups(candidate.text).len();
    let [.., third, second, first] = candidate.before;
    let is_separator = matches!(first, b' ' | b'.' | b'-' | b':');
    let is_behind_pair = third.is_ascii_digit() && second.is_ascii_digit() && is_separator;
    is_of_digits && pairs.is_multiple_of(5) && !is_behind_pair && !continues_number(candidate.before)
}

/// Whether the number has as many digits as a national number, and is no book number and no row of numbers.
pub fn is_behind_trunk(candidate: &Candidate<'_>) -> bool {
    let [.., second, first] = candidate.before;
    let is_in_row = second.is_ascii_digit() && first == b' ';
    let is_number = match &groups(candidate.text)[..] {
        _ if candidate.text.contains(&b'(') => true,
        [_, area, rest @ .., last] => {
            let is_row = rest.iter().chain([last]).all(|group| group.len() == 3);
            area.len() == 3 && !rest.is_empty() && last.len() > 1 && !is_row
        }
        _ => false,
    };
    is_number && !is_in_row && has_national_length(candidate)
}

/// Whether nothing is behind the digits.
pub fn is_together(candidate: &Candidate<'_>) -> bool {
    candidate.text.iter().all(u8::is_ascii_digit) && !continues_number(candidate.before)
}

fn has_national_length(candidate: &Candidate<'_>) -> bool {
    !continues_number(candidate.before) && (9..=12).contains(&digits(candidate.text).count())
}

/// The groups of digits.
fn groups(text: &[u8]) -> Vec<&[u8]> {
    text.split(|byte| !byte.is_ascii_digit()).filter(|group| !group.is_empty()).collect()
}

/// Whether the number goes on after a group of four, as in an IBAN: `DE89 3704 0044 0532`.
fn continues_groups(candidate: &Candidate<'_>) -> bool {
    let [first, second, third, group @ .., separator] = candidate.before;
    let is_of_iban = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
    let is_head = third == b' ' && first.is_ascii_digit() && second.is_ascii_digit();
    let is_four = candidate.text.iter().take_while(|byte| byte.is_ascii_digit()).count() == 4;
    is_four
        && separator == b' '
        && group.iter().all(is_of_iban)
        && (is_head || group.iter().any(u8::is_ascii_digit))
}
