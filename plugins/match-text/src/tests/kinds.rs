//! Kinds of values that public suites have, and similar texts that are none.

use super::masks::Masker;
use crate::Preset;

/// The text with `#` in place of the matches of all presets.
fn masked(masker: &mut Masker, text: &str) -> String {
    let (mut masked, mut at) = (String::new(), 0);
    for (range, _) in masker.masks(text) {
        // A match that begins in another one or right behind it has the same mask.
        if range.start > at || at == 0 {
            masked.push_str(&text[at..range.start]);
            masked.push('#');
        }
        at = range.end.max(at);
    }
    masked + &text[at..]
}

/// Each text is masked as a whole, in a sentence, too.
fn all_are_found(presets: &[Preset], texts: &[&str]) {
    let mut masker = Masker::new(presets);
    for text in texts {
        assert_eq!(masked(&mut masker, text), "#", "{text}");
        assert_eq!(masked(&mut masker, &format!("It is {text}, says he.")), "It is #, says he.", "{text}");
    }
}

/// No text is masked, in a sentence neither.
fn none_is_found(presets: &[Preset], texts: &[&str]) {
    let mut masker = Masker::new(presets);
    for text in texts {
        for text in [(*text).to_owned(), format!("It is {text}, says he.")] {
            assert_eq!(masked(&mut masker, &text), text);
        }
    }
}

#[test]
fn phone_numbers_of_many_countries_are_found() {
    let texts = [
        // 00 before the country.
        "0031612345678",
        "00 49 30 1234567",
        "0049 (30) 123 45 67",
        "00353-1-234-5678",
        // Area codes of one digit.
        "(02) 5550 1234",
        "03-1234-5678",
        "02/212 345 67",
        "09 123 4567",
        "06 20 123 4567",
        "(08) 9164 1234",
        // Together.
        "055123456",
        "015123456789",
        "0612345678",
        // North America.
        "(415) 5550132",
        "(415)5550132",
        "415-5550132",
        "415.555.0132",
        "4155550132",
        "1-415-555-0132",
        "1 (415) 555-0132",
        // The 0 alone.
        "0 800 12 345 67",
        "0-532-123-45-67",
        "0 (532) 123 45 67",
        "(0)900-1 123 123",
        // Full width.
        "\u{ff14}\u{ff11}\u{ff15}-\u{ff15}\u{ff15}\u{ff15}-\u{ff10}\u{ff11}\u{ff13}\u{ff12}",
        "\u{ff0b}\u{ff14}\u{ff19} \u{ff13}\u{ff10} \u{ff11}\u{ff12}\u{ff13}\u{ff14}\u{ff15}\u{ff16}\u{ff17}",
        // Other separators.
        "+49\u{a0}30\u{a0}1234567",
        "030\u{a0}1234567",
        "415\u{2011}555\u{2011}0132",
        "+49.30.1234567",
        "+44 (0)20 7123 4567",
        "06.12.34.56.78",
    ];
    all_are_found(&[Preset::Phone], &texts);
    all_are_found(&Preset::ALL, &texts);
}

#[test]
fn coordinates_addresses_and_other_numbers_are_no_phone_numbers() {
    none_is_found(
        &[Preset::Phone],
        &[
            "+52.5200066, +13.4049540",
            "+48.8566969 -12.3522219",
            "(+40.7127753, -74.0059728)",
            "+1.4155550132",
            "+2020-01-01",
            "0012345678",
            "01-02-03-04-05-06",
            "01-02-03-04-05-ab",
            "01 02 03 04 05 06",
            "00-01-02-03-04-05",
            "01:02:03:04:05:06",
            "0102.0304.0506",
            "BE71 0961 2345 6760",
            "DE89 3704 0044 0532 0130 00",
            "NL91 ABNA 0417 1643 00",
            "078-05-1121",
            "05-2024-0001",
            "03.12.2020 10:30",
            "03-12-2020 10:30",
            "010111/1113",
            "08000-1234567-5",
            "0-306-40615-2",
            "0-8044-2957-X",
            "0 306 40615 2",
            "0 100 200 300 400",
            "6123456789",
            "1700000000",
            "2113456789",
        ],
    );
}

#[test]
fn addresses_of_international_domains_are_masked_as_a_whole_and_users_of_urls_are_none() {
    all_are_found(&[Preset::Email], &["a@b.xn--p1ai", "anna@xn--80ak6aa92e.xn--p1ai", "a@b.co.XN--P1AI"]);
    none_is_found(
        &[Preset::Email],
        &[
            "http://user:pass@www.example.org/",
            "https://user@example.org/a",
            "ftp://admin:p%40ss@ftp.example.com",
            "\"http:\\/\\/user:pass@www.example.org\\/\"",
        ],
    );
    let mut masker = Masker::new(&[Preset::Email]);
    for (text, wanted) in [
        ("https://example.org/u/anna@example.org", "https://example.org/u/#"),
        ("https://example.org?to=anna@example.org", "https://example.org?to=#"),
        ("mailto:anna@example.org", "mailto:#"),
    ] {
        assert_eq!(masked(&mut masker, text), wanted);
    }
}

#[test]
fn cards_of_uatp_and_unionpay_are_found() {
    let texts = ["122000000000003", "1220 00000 000003", "8171999927660000", "8171 9999 2766 0000"];
    all_are_found(&[Preset::Card], &texts);
    none_is_found(&[Preset::Card], &["122000000000004", "1700000000000000", "8272999927660000"]);
}

/// Letters and digits that no service gave out.
const RANDOM: &str = "q7Rt2Yb9Wc4Xd6Zf1Kg3Mh8Np5Sv0Lj7Qr2Ts9Uw4Vy6Ax1Bz3Ce8Dg5Fi0Hk2Jm4Lo6Nq8Ps1Ru3Tw5";
const HEX: &str = "3fa85f6457174562b3fc2c963f66afa63fa85f6457174562b3fc2c963f66afa6";

#[test]
fn the_kinds_of_keys_of_each_service_are_found() {
    let capitals = RANDOM.to_uppercase();
    let mut keys: Vec<String> = Vec::new();
    for kind in ["pat", "rt", "ptt", "dt", "cbt", "ft", "imt", "agent", "oas", "soat", "ffct"] {
        keys.push(format!("gl{kind}-{}", &RANDOM[..20]));
    }
    keys.push(format!("glpat-{}.01.1a2b3c4d5", &RANDOM[..27]));
    keys.push(format!("glcbt-64_{}", &RANDOM[..20]));
    keys.push(format!("GR1348941{}", &RANDOM[..20]));
    keys.push(format!("xapp-1-A0123456789-1234567890123-{HEX}"));
    keys.push(format!("xoxe.xoxb-1-{}", &capitals[..60]));
    keys.push(format!("xoxe-1-{}", &capitals[..60]));
    keys.push(format!("xoxa-2-{}", &RANDOM[..20]));
    keys.push(format!("https://hooks.slack.com/services/T0A1B2C3D/B0E1F2G3H/{}", &RANDOM[..24]));
    for prefix in ["ABIA", "ACCA", "AKIA", "A3TX"] {
        keys.push(format!("{prefix}{}", &capitals[..16]));
    }
    keys.push(format!("ABSK{RANDOM}{RANDOM}="));
    for prefix in ["ghp", "gho", "ghu", "ghs", "ghr"] {
        keys.push(format!("{prefix}_{}", &RANDOM[..36]));
        keys.push(format!("{prefix}_{}_{}", &RANDOM[..5], &RANDOM[..50]));
    }
    keys.push(format!("ghs_12345_eyJhbGciOiJI{}.eyJ{}.{}", &RANDOM[..20], &RANDOM[..30], &RANDOM[..43]));
    keys.push("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".to_owned());
    keys.push("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".to_owned());
    keys.extend(["dop", "doo", "dor"].map(|kind| format!("{kind}_v1_{HEX}")));
    for kind in ["sk_live", "rk_live", "sk_test", "sk_prod", "rk_prod"] {
        keys.push(format!("{kind}_{}", &RANDOM[..24]));
    }
    let header = "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,3FA85F6457174562B3FC2C963F66AFA6\n\n";
    keys.push(format!("-----BEGIN RSA PRIVATE KEY-----\n{header}{RANDOM}\n-----END RSA PRIVATE KEY-----"));
    keys.push(format!(
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2.0 (GNU/Linux)\n\n{RANDOM}\n=Ab1d\n-----END PGP PRIVATE KEY BLOCK-----"
    ));
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    all_are_found(&[Preset::ApiKey], &keys);
}

#[test]
fn names_behind_the_prefix_of_a_key_are_no_keys() {
    none_is_found(
        &[Preset::ApiKey],
        &[
            "hf_requiredCharacteristicTypesForDisplayMetadata",
            "hf_getItemsOfTheListInOrderByName",
            "api_org_listAllMembersOfTheOrganizationByName",
            "sk-loadAnimationPresetWithDefaultParameters",
            "npm_configurationLoaderForWorkspacePackages",
            "glrt-runner-token-of-the-project-goes-here",
            "xoxb-your-slack-bot-token-goes-right-here",
            "https://hooks.slack.com/services/T00000000/B00000000/YOURTOKENYOURTOKENYOURTO",
            "sk_prod_environment_of_the_shop_is_ready",
        ],
    );
}
