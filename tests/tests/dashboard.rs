//! The dashboard in a real browser, on a real Afterbay. Without Chromium the tests are skipped, with a message.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use afterbay_tests::browser::Browser;
use afterbay_tests::components::{guest, install};
use afterbay_tests::frames::SynthRequest;
use afterbay_tests::{Afterbay, Config, Reader, Sandbox, Sender};
use afterbay_wire::BatchKind;
use afterbay_wire::synth::SynthWire::Msgpack;
use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow};
use serde_json::json;

/// Markup that would run as a script if the page did not show it as text.
const HOSTILE: &str = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";

/// An Afterbay between a sender and a reader, and a page of its dashboard.
struct Shown {
    browser: Browser,
    afterbay: Afterbay,
    sender: Sender,
    reader: Reader,
    sandbox: Sandbox,
}

impl Shown {
    /// `None` if there is no browser.
    fn open(configure: impl FnOnce(&Sandbox, Config) -> Config) -> Option<Shown> {
        let browser = Browser::start()?;
        let sandbox = Sandbox::new();
        std::fs::write(sandbox.path("token"), "s3cret\n").unwrap();
        let reader = Reader::bind(&sandbox.reader_side());
        let config = configure(&sandbox, sandbox.config().admin("token_file = \"token\""));
        let afterbay = Afterbay::run(&sandbox, &config);
        let sender = Sender::connect(&sandbox.scheduler_side());
        let mut shown = Shown { browser, afterbay, sender, reader, sandbox };
        shown.browser.go(&shown.address(""));
        shown.browser.until("document.querySelector('#connection').innerText.includes('live')");
        Some(shown)
    }

    fn address(&self, view: &str) -> String {
        format!("http://{}/{view}", self.afterbay.tcp())
    }

    /// Goes to a view of the page as a link does.
    fn view(&mut self, hash: &str) {
        self.browser.eval(&format!("location.hash = {}", json!(hash)));
    }

    /// Gives the token, which the page asks for at the first view of requests.
    fn unlock(&mut self) {
        self.view("#/requests");
        self.browser
            .until("document.querySelector('#token').open && document.activeElement.id === 'token-text'");
        self.browser.type_text("s3cret");
        self.browser.press("Enter");
        self.browser.until("!document.querySelector('#token').open");
        // Until the list is there, another question may not know the token.
        self.browser.until("document.querySelector('main .dim')?.innerText.includes('in the index')");
        // The answer 401 is in the browser's log.
        let problems = self.browser.problems();
        assert!(problems.len() == 1 && problems[0].contains("401"), "{problems:?}");
    }

    /// Sends rows with a text, which the reader takes.
    fn send(&mut self, rows: Vec<SynthRow>) {
        self.sender.send(&SynthBatch { rows }.encode(BatchKind::Str, Msgpack).unwrap());
        self.reader.frame();
    }

    fn end(mut self) {
        assert_eq!(self.browser.problems(), Vec::<String>::new());
        assert_eq!(self.afterbay.stop(), 0);
    }
}

fn text(row: SynthRow, text: &str) -> SynthRow {
    SynthRow { text: text.to_owned(), ..row }
}

/// Adds the bundled plugin `stop-loop` by this name.
fn loops(config: Config, name: &str) -> Config {
    config.plugin_with(name, "builtin:stop-loop", "", "deadline = \"10s\"")
}

/// The page's path of a request.
fn request_path(rid: &str) -> String {
    let encoded: String = rid.bytes().map(|byte| format!("%{byte:02X}")).collect();
    format!("#/requests/{encoded}")
}

#[test]
fn the_page_shows_each_stream_and_follows_it_without_a_reload() {
    let Some(mut shown) = Shown::open(|_, config| loops(config.usage(), "seen")) else {
        return;
    };
    shown.browser.until_shown("Tokens a second");
    let received = "[...document.querySelectorAll('.facts div')].find((it) => it.innerText.startsWith('received'))?.innerText";
    shown.browser.until(&format!("{received}.includes('0 tokens')"));
    let mut request = SynthRequest::new("first");
    shown.send(vec![text(request.row(&[1, 2, 3]), "abc")]);
    shown.browser.until(&format!("{received}.includes('3 tokens')"));
    shown.browser.until_shown("1 request live");
    shown.send(vec![text(request.last(&[4]), "d")]);
    shown.browser.until(&format!("{received}.includes('4 tokens')"));
    for words in
        ["0 requests live", "model", "every request balances", "keeping up", "seen", ".usage", "working"]
    {
        shown.browser.until_shown(words);
    }
    shown.end();
}

#[test]
fn a_search_finds_a_request_and_its_page_has_each_row_before_and_after_the_plugin() {
    let Some(mut shown) =
        Shown::open(|_, config| config.plugin("swap", &guest("judges"), "action = \"rewrite\""))
    else {
        return;
    };
    let [mut first, mut other] = ["chat-1", "other-2"].map(SynthRequest::new);
    shown.send(vec![text(first.row(&[1]), "one "), text(other.row(&[5]), "five ")]);
    first.lose(2);
    shown.send(vec![text(first.last(&[4]), "four")]);
    shown.unlock();
    shown.browser.until("document.querySelectorAll('tbody tr').length === 2");
    shown.browser.eval("document.querySelector('#rid').focus()");
    shown.browser.type_text("chat");
    shown.browser.until("document.querySelectorAll('tbody tr').length === 1");
    let row = shown.browser.text("document.querySelector('tbody tr').innerText");
    assert!(row.contains("chat-1") && row.contains("finished") && row.contains("1 gap"), "{row}");
    assert_eq!(shown.browser.eval("location.hash"), "#/requests?rid=chat");
    shown.browser.eval("document.querySelector('tbody a').click()");
    shown.browser.until("document.querySelectorAll('.rows tbody tr').length === 3");
    let rows = shown.browser.text("document.querySelector('.rows').innerText");
    for words in [
        "From the engine",
        "After swap",
        "To the reader",
        "one",
        "replace",
        "seven",
        "Gap: the scheduler had counted",
    ] {
        assert!(rows.contains(words), "{words:?}: {rows}");
    }
    let page = shown.browser.text("document.body.innerText");
    for words in ["received", "journaled", "sent", "Shared its batches with", "other-2"] {
        assert!(page.contains(words), "{words:?}: {page}");
    }
    shown.view("#/requests/no-such-rid");
    shown.browser.until_shown("afterbay journal show no-such-rid");
    // The browser reports each answer that is an error.
    let problems = shown.browser.problems();
    assert!(problems.len() == 1 && problems[0].contains("no-such-rid"), "{problems:?}");
    shown.end();
}

#[test]
fn a_step_leads_to_its_requests_and_a_request_to_its_steps() {
    let Some(mut shown) = Shown::open(|_, config| config) else { return };
    let [mut first, mut other] = ["chat-1", "other-2"].map(SynthRequest::new);
    shown.send(vec![text(first.row(&[1, 2]), "one "), text(other.row(&[5]), "five ")]);
    shown.send(vec![text(first.last(&[4]), "four")]);
    shown.unlock();
    shown.view("#/steps");
    shown.browser.until_shown("2 steps, in which the engine worked");
    shown.browser.until("document.querySelectorAll('.steps tbody tr').length === 2");
    shown
        .browser
        .eval("[...document.querySelectorAll('.steps a')].find((it) => it.innerText === '1').click()");
    shown.browser.until_shown("for 2 requests");
    let parts = shown.browser.text("document.querySelector('.parts').innerText");
    assert!(parts.contains("chat-1") && parts.contains("other-2"), "{parts}");
    shown
        .browser
        .eval("[...document.querySelectorAll('.parts a')].find((it) => it.innerText === 'chat-1').click()");
    shown.browser.until("document.querySelector('.rows tr[aria-current]')?.innerText.includes('one')");
    // Back by the row's frame, and by the request.
    assert_eq!(
        shown.browser.text("document.querySelector('.rows tbody a').hash"),
        "#/steps?stream=test&frame=1"
    );
    shown.browser.eval("document.querySelector('a[href^=\"#/steps?since\"]').click()");
    shown.browser.until("document.querySelectorAll('.steps tbody tr').length === 2");
    assert_eq!(shown.browser.text("document.querySelector('#rid').value"), "chat-1");
    shown.view("#/steps?rid=other-2");
    shown.browser.until_shown("1 step, in which");
    shown.view("#/steps?frame=99");
    shown.browser.until_shown("The journal has no step 99");
    shown.end();
}

#[test]
fn the_usual_rows_of_a_long_request_are_folded_and_the_page_stays_small() {
    let Some(mut shown) = Shown::open(|_, config| config) else { return };
    let rows = "const rows = (count, acts) => Array.from({length: count}, (_, at) => ({row: {frame: at + 1, tokens: 1}, steps: acts(at) ? [{action: {plugin: 'p', verdict: acts(at)}}] : []}));
        const shape = (each, opened = [], frame = null) => folded(each, opened, frame).map((it) => it.fold ? `${it.fold.from}-${it.fold.to}:${it.fold.acted}` : it.row.frame);
        const folds = (...args) => shape(...args).filter((it) => typeof it === 'string');";
    let folded = shown.browser.eval(&format!(
        "import('/ui/request.js').then(({{folded}}) => {{ {rows} return [
            folds(rows(44, () => false)),
            folds(rows(45, () => false)),
            folds(rows(10000, (at) => at === 5000 && 'drop')),
            folds(rows(10000, () => false), [[20, 220]], '9001'),
            shape(rows(10000, () => 'replace')).length,
            folds(rows(10000, (at) => at >= 500 && at < 900 && 'hold')),
        ]; }})",
    ));
    assert_eq!(
        folded,
        json!([
            [],
            ["20-25:0"],
            ["20-4999:0", "5002-9980:0"],
            ["220-8998:0", "9003-9980:0"],
            // The first 100 rows with a verdict, the last 20 rows, and the row beside them.
            122,
            // The first of the held rows.
            ["20-499:0", "502-9980:398"],
        ])
    );
    let mut request = SynthRequest::new("long-1");
    let count: i64 = 300;
    for step in 1..=count {
        let row = if step == count { request.last(&[step]) } else { request.row(&[step]) };
        shown.send(vec![text(row, "x")]);
    }
    shown.unlock();
    shown.view("#/requests/long-1");
    let painted = "document.querySelectorAll('.rows tbody tr:not(.fold)').length";
    shown
        .browser
        .until("document.querySelector('.rows .fold button')?.innerText.startsWith('Show 200 of 260 rows')");
    assert_eq!(shown.browser.eval(painted), 40);
    shown.browser.eval("document.querySelector('.rows .fold button').click()");
    shown.browser.until("document.querySelector('.rows .fold button')?.innerText.startsWith('Show 60 rows')");
    assert_eq!(shown.browser.eval(painted), 240);
    shown.end();
}

#[test]
fn hostile_names_and_texts_are_shown_as_text_and_inline_code_does_not_run() {
    let Some(mut shown) = Shown::open(|_, config| config) else { return };
    let mut request = SynthRequest::new(HOSTILE);
    shown.send(vec![text(request.row(&[1]), HOSTILE)]);
    let end = SynthFinish::Abort(HOSTILE.to_owned());
    shown.send(vec![SynthRow { finish: Some(end), ..text(request.row(&[2]), HOSTILE) }]);
    shown.unlock();
    for hash in ["#/requests".to_owned(), request_path(HOSTILE), "#/plugins".to_owned(), "#/now".to_owned()] {
        shown.view(&hash);
        if hash.starts_with("#/requests") {
            shown.browser.until_shown(HOSTILE);
        }
        let made = shown.browser.eval("document.querySelectorAll('main img, main script').length");
        assert_eq!(made, 0, "{hash}");
        assert_ne!(shown.browser.eval("document.title"), "owned", "{hash}");
    }
    let links = format!("#/requests?rid={}", "%3Cimg");
    shown.view(&links);
    shown.browser.until_shown(HOSTILE);
    assert_eq!(shown.browser.problems(), Vec::<String>::new());
    // Even if some markup came into the page.
    shown.browser.eval(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'document.title = \"owned\"'}))",
    );
    assert_ne!(shown.browser.eval("document.title"), "owned");
    let refused = shown.browser.problems();
    assert!(refused.iter().any(|why| why.contains("Content Security Policy")), "{refused:?}");
    shown.end();
}

#[test]
fn a_shadow_is_promoted_with_the_token_which_the_page_does_not_store() {
    let Some(mut shown) = Shown::open(|_, config| {
        loops(loops(config, "live"), "next").plugin_line("mode = \"shadow\"\nshadow_of = \"live\"")
    }) else {
        return;
    };
    shown.view("#/plugins");
    let promote = "[...document.querySelectorAll('button')].find((it) => it.innerText === 'Promote next' && it.checkVisibility())";
    shown.browser.until(promote);
    for token in ["wrong", "s3cret"] {
        if token == "wrong" {
            shown.browser.eval(&format!("{promote}.click()"));
        }
        shown
            .browser
            .until("document.querySelector('#token').open && document.activeElement.id === 'token-text'");
        shown.browser.type_text(token);
        shown.browser.press("Enter");
        if token == "wrong" {
            shown.browser.until_shown("The last token was refused.");
        }
    }
    shown.browser.until_shown("next is live.");
    let kept = shown
        .browser
        .text("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])");
    assert!(!kept.contains("s3cret"), "{kept}");
    // The answers 401 are in the browser's log.
    let problems = shown.browser.problems();
    assert!(problems.len() == 2 && problems.iter().all(|why| why.contains("401")), "{problems:?}");
    shown.end();
}

#[test]
fn the_link_of_a_launcher_shows_requests_without_a_question_and_no_address_keeps_the_token() {
    let Some(mut shown) = Shown::open(|_, config| config) else { return };
    shown.send(vec![text(SynthRequest::new("first").last(&[1]), "a")]);
    // Another document, or the browser would only move within this one.
    shown.browser.go("about:blank");
    let link = shown.address("#token=s3cret");
    shown.browser.go(&link);
    shown.browser.until("document.querySelector('#connection').innerText.includes('live')");
    shown.view("#/requests");
    shown.browser.until_shown("first");
    assert_eq!(shown.browser.text("String(document.querySelector('#token').open)"), "false");
    assert_eq!(shown.browser.text("location.href"), shown.address("#/requests"));
    shown.end();
}

#[test]
fn a_reload_and_the_rows_on_which_a_shadow_differs_are_seen() {
    let Some(mut shown) = Shown::open(|sandbox, config| {
        let component = sandbox.path("plugin.wasm");
        install(&guest("judges"), 0, &component);
        config
            .plugin("live", &component, "action = \"annotate\"")
            .plugin("next", &guest("judges"), "action = \"drop\"")
            .plugin_line("mode = \"shadow\"\nshadow_of = \"live\"")
    }) else {
        return;
    };
    shown.view("#/plugins");
    shown.browser.until_shown("Promote next");
    let mut request = SynthRequest::new("differs-1");
    shown.send(vec![text(request.row(&[1]), "one")]);
    let show = "[...document.querySelectorAll('button')].find((it) => it.innerText === 'Show the rows of next' && it.checkVisibility())";
    shown.browser.until(show);
    shown.browser.eval(&format!("{show}.click()"));
    shown
        .browser
        .until("document.querySelector('#token').open && document.activeElement.id === 'token-text'");
    shown.browser.type_text("s3cret");
    shown.browser.press("Enter");
    shown.browser.until_shown("Rows on which next differs from the live chain");
    shown.browser.until_shown("differs-1");
    shown.browser.until_shown("dropped by judges");
    install(&guest("judges"), 1, &shown.sandbox.path("plugin.wasm"));
    shown.browser.until_shown("Reloads of live");
    shown.browser.until_shown("took over");
    shown.end();
}

#[test]
fn a_lost_connection_is_shown_with_its_time_and_the_page_reconnects_by_itself() {
    let Some(shown) = Shown::open(|_, config| config) else { return };
    let address = shown.afterbay.tcp().to_string();
    let Shown { mut browser, afterbay, reader, sandbox, .. } = shown;
    assert_eq!(afterbay.stop(), 0);
    browser.until_shown("not connected since");
    let config = sandbox.config().admin(&format!("listen = {:?}", [address]));
    let afterbay = Afterbay::run(&sandbox, &config);
    browser.until("document.querySelector('#connection').innerText.includes('live')");
    drop(reader);
    assert_eq!(afterbay.stop(), 0);
}

/// The visible controls that no press of Tab reaches.
const UNREACHED: &str = "[...document.querySelectorAll('a, button, input, select, [tabindex=\"0\"]')]
    .filter((it) => it.checkVisibility() && !it.disabled && !window.reached.has(it)).map((it) => it.outerHTML)";

#[test]
fn every_control_is_reached_by_tab_and_has_a_name() {
    let Some(mut shown) = Shown::open(|_, config| loops(config, "seen")) else {
        return;
    };
    let mut request = SynthRequest::new("keys-1");
    shown.send(vec![text(request.row(&[1]), "one")]);
    shown.unlock();
    for hash in [
        "#/now".to_owned(),
        "#/requests".to_owned(),
        "#/steps".to_owned(),
        "#/plugins".to_owned(),
        request_path("keys-1"),
    ] {
        shown.view(&hash);
        shown.browser.until("document.querySelector('main table tbody tr, main .plugin')?.checkVisibility()");
        shown.browser.eval("window.reached = new Set(); document.activeElement.blur(); 0");
        let mut presses = 0;
        while shown.browser.eval(UNREACHED) != json!([]) {
            assert!(presses < 100, "{hash}: {}", shown.browser.eval(UNREACHED));
            shown.browser.press("Tab");
            shown.browser.eval("window.reached.add(document.activeElement); 0");
            presses += 1;
        }
        let nameless = shown.browser.eval(
            "[...document.querySelectorAll('a, button, input, select, [role=region], table')].filter((it) => it.checkVisibility()
                && !(it.innerText || it.getAttribute('aria-label') || it.labels?.length || it.caption)).map((it) => it.outerHTML)",
        );
        assert_eq!(nameless, json!([]), "{hash}");
    }
    shown.end();
}

/// The texts whose contrast is below that of WCAG AA: 4.5, or 3 for great letters.
const FAINT: &str = r"(() => {
    const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
    const painted = (colour) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = (colour) => painted(colour).slice(0, 3).map((part) => part / 255)
        .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
    const ground = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if (painted(colour)[3] === 255) return colour;
        }
        return 'white';
    };
    const texts = [...document.querySelectorAll('body *')].filter((it) => it.checkVisibility({ opacityProperty: true })
        && [...it.childNodes].some((child) => child.nodeType === 3 && child.data.trim()) && !it.closest('button:disabled, noscript'));
    return texts.map((it) => {
        const style = getComputedStyle(it);
        const [a, b] = [light(style.color), light(ground(it))].sort((one, other) => other - one);
        const least = parseFloat(style.fontSize) >= 24 ? 3 : 4.5;
        return (a + 0.05) / (b + 0.05) < least ? `${it.innerText}: ${style.color} on ${ground(it)}` : null;
    }).filter(Boolean);
})()";

#[test]
fn every_view_fits_a_phone_and_has_enough_contrast_in_light_and_dark() {
    let Some(mut shown) = Shown::open(|_, config| {
        loops(config.usage(), "seen").another_sink(
            "absent",
            "ipc:///tmp/no-reader-of-the-dashboard",
            "kind = \"routed\"",
        )
    }) else {
        return;
    };
    let rid = format!("phone-{}", "0123456789abcdef".repeat(8));
    let mut request = SynthRequest::new(&rid);
    shown.send(vec![text(request.row(&[1]), &"longword".repeat(100))]);
    request.lose(1);
    shown.send(vec![text(request.last(&[2]), "end")]);
    shown.unlock();
    for hash in [
        "#/now".to_owned(),
        "#/requests".to_owned(),
        "#/steps".to_owned(),
        "#/plugins".to_owned(),
        request_path(&rid),
    ] {
        shown.view(&hash);
        shown.browser.until("document.querySelector('main table tbody tr, main .plugin')?.checkVisibility()");
        for scheme in ["light", "dark"] {
            shown.browser.prefer("prefers-color-scheme", scheme);
            let dark = shown.browser.eval("getComputedStyle(document.body).backgroundColor");
            assert_eq!(dark == "rgb(16, 20, 21)", scheme == "dark", "{dark}");
            assert_eq!(shown.browser.eval(FAINT), json!([]), "{hash}, {scheme}");
        }
        for width in [390, 320] {
            shown.browser.resize(width, 844);
            let wide = shown.browser.eval("document.documentElement.scrollWidth");
            assert_eq!(wide, width, "{hash}");
            assert_eq!(shown.browser.eval(FAINT), json!([]), "{hash}, {width}");
        }
        shown.browser.resize(1280, 900);
    }
    shown.end();
}

#[test]
fn figures_have_their_units_and_three_digits() {
    let Some(mut shown) = Shown::open(|_, config| config) else { return };
    for (call, expected) in [
        ("seconds(0)", "0 s"),
        ("seconds(3.1e-7)", "310 ns"),
        ("seconds(0.000184)", "184 µs"),
        ("seconds(0.0009999)", "1.00 ms"),
        ("seconds(0.00231)", "2.31 ms"),
        ("seconds(59.996)", "59 s"),
        ("seconds(245)", "4 min 5 s"),
        ("seconds(null)", "–"),
        ("duration(11520)", "3 h 12 min"),
        ("duration(0.4)", "0 s"),
        ("bytes(1023)", "1,023 B"),
        ("bytes(1024 ** 3 * 1.5)", "1.50 GiB"),
        ("rate(0.04)", "<0.1"),
        ("rate(9.96)", "10.0"),
        ("rate(1234567)", "1.23 M"),
        ("short(999999)", "999,999"),
        ("percent(0.414)", "41 %"),
        ("counts({hold: 12, release: 0, finish: 3})", "hold 12, finish 3"),
        (
            "String(between('2026-11-25T10:00:00.000000100Z', '2026-11-25T11:00:00.000000350+01:00'))",
            "2.5e-7",
        ),
        ("clock('nonsense')", "–"),
        ("moment('2026-11-25T10:00:00')", "2026-11-25 10:00:00"),
        ("clock('2026-11-25T10:00:00', new Date('2026-11-25T12:00:00'))", "10:00:00"),
        ("digest('sha256:0123456789abcdef')", "0123456789ab"),
    ] {
        let value = shown.browser.text(
            &format!("import('/ui/format.js').then((it) => it.{call})")
                .replace("it.String(between", "String(it.between"),
        );
        assert_eq!(value, expected, "{call}");
    }
    let scales =
        shown.browser.eval("import('/ui/chart.js').then(({nice}) => [0, 0.3, 1, 1.1, 2.2, 4, 72].map(nice))");
    assert_eq!(scales, json!([1, 0.5, 1, 2, 2.5, 5, 100]));
    shown.end();
}

#[test]
fn held_rows_continue_with_the_row_that_releases_them() {
    let Some(mut shown) = Shown::open(|_, config| config) else { return };
    let passed = shown.browser.eval(
        "import('/ui/request.js').then(({passed}) => passed([
            {ids: [1], text: 'a', actions: [{plugin: 'p', verdict: 'hold', after: {ids: [], text: ''}}]},
            {ids: [2], text: 'b', actions: [{plugin: 'p', verdict: 'release', after: null}]},
            {ids: [3], text: 'c', actions: [{plugin: 'p', verdict: 'replace', after: {ids: [9], text: 'C'}}, {plugin: 'q', verdict: 'drop', after: {ids: [], text: ''}}]},
            {ids: [4], text: null, actions: [{plugin: 'p', verdict: 'replace', after: {ids: [5, 6], text: null}}]},
            {ids: [7], text: 'd', actions: [{plugin: 'p', verdict: 'finish', after: null}]},
        ]).map(({out, gone}) => [out.ids, out.text, gone]))",
    );
    assert_eq!(
        passed,
        json!([
            [[], "", "held"],
            [[1, 2], "ab", null],
            [[], "", "dropped"],
            [[5, 6], null, null],
            [[7], "d", null]
        ])
    );
    shown.end();
}
