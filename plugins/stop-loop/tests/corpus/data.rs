//! Long outputs of data, without a loop: as many rows as fill the bytes asked for. Each row differs from the row before in a
//! number at least, as in files that people ask a model for.

use crate::random::Random;
use crate::texts::{line, word};

type WriteData = fn(&mut Random, usize) -> String;

pub const DATA: [(&str, WriteData); 38] = [
    ("CSV of sensors, one status", |random, bytes| sensors(random, bytes, &["ok"])),
    ("CSV of sensors, some statuses", |random, bytes| {
        sensors(random, bytes, &["ok", "ok", "ok", "low", "fail"])
    }),
    ("CSV of orders", |random, bytes| {
        rows(bytes, "order,day,customer,item,count,price", |at| {
            let (day, item) = (at / 9 % 28 + 1, word(random));
            let (customer, count, price) =
                (random.from(100, 999), random.from(1, 9), random.from(100, 99_999));
            format!(
                "{},2026-10-{day:02},C{customer},{item},{count},{}.{:02}",
                5_000 + at,
                price / 100,
                price % 100
            )
        })
    }),
    ("SQL, a statement each row", |random, bytes| {
        rows(bytes, "BEGIN;", |at| {
            let (name, age) = (word(random), random.from(18, 80));
            format!(
                "INSERT INTO users (id, name, email, age, active) VALUES ({at}, '{name}', '{name}{at}@example.com', {age}, TRUE);"
            )
        })
    }),
    ("SQL, equal but for two numbers", |_, bytes| {
        rows(bytes, "", |at| {
            format!("INSERT INTO seats (id, label, state) VALUES ({at}, 'seat {at}', 'free');")
        })
    }),
    ("SQL, one statement of tuples", |random, bytes| {
        rows(bytes, "INSERT INTO scores (id, score, grade) VALUES", |at| {
            format!("({at}, {}, '{}'),", random.from(0, 100), random.of(&["A", "B", "C", "D"]))
        })
    }),
    ("Terraform subnets", |_, bytes| {
        rows(bytes, "", |at| {
            let zone = ["a", "b", "c"][at % 3];
            format!(
                "resource \"aws_subnet\" \"private_{at}\" {{\n  vpc_id            = aws_vpc.main.id\n  cidr_block        = \"10.{}.{}.0/24\"\n  \
                 availability_zone = \"eu-west-1{zone}\"\n\n  tags = {{\n    Name = \"private-{at}\"\n  }}\n}}\n",
                at / 256,
                at % 256,
            )
        })
    }),
    ("Terraform DNS records", |random, bytes| {
        rows(bytes, "", |at| {
            let (name, last) = (word(random), random.from(2, 254));
            format!(
                "resource \"aws_route53_record\" \"{name}_{at}\" {{\n  zone_id = var.zone_id\n  name    = \"{name}{at}.example.com\"\n  \
                 type    = \"A\"\n  ttl     = 300\n  records = [\"10.0.{}.{last}\"]\n}}\n",
                at % 256,
            )
        })
    }),
    ("JSON records", |random, bytes| {
        rows(bytes, "[", |at| {
            let (state, count) = (random.of(&["true", "false"]), random.from(0, 500));
            format!(
                "  {{\n    \"id\": {at},\n    \"name\": \"Item {at}\",\n    \"in_stock\": {state},\n    \"count\": {count}\n  }},"
            )
        })
    }),
    ("JSON lines of a log", |random, bytes| {
        rows(bytes, "", |at| {
            let (level, took) = (random.of(&["info", "info", "info", "warn"]), random.from(1, 900));
            let (minute, second) = (at / 60 % 60, at % 60);
            format!(
                "{{\"ts\":\"2026-11-28T09:{minute:02}:{second:02}Z\",\"level\":\"{level}\",\"msg\":\"request done\",\"ms\":{took}}}"
            )
        })
    }),
    ("YAML of Kubernetes", |_, bytes| {
        rows(bytes, "", |at| {
            format!(
                "apiVersion: v1\nkind: Service\nmetadata:\n  name: worker-{at}\n  namespace: jobs\nspec:\n  selector:\n    app: worker-{at}\n  \
                 ports:\n    - protocol: TCP\n      port: 80\n      targetPort: {}\n---",
                8_000 + at,
            )
        })
    }),
    ("access log", |random, bytes| {
        rows(bytes, "", |at| {
            let (host, path, size) = (random.from(1, 254), word(random), random.from(200, 9_999));
            let (minute, second) = (at / 60 % 60, at % 60);
            format!(
                "192.0.2.{host} - - [28/Nov/2026:09:{minute:02}:{second:02} +0000] \"GET /{path} HTTP/1.1\" 200 {size} \"-\" \"curl/8.5.0\""
            )
        })
    }),
    ("hosts", |_, bytes| rows(bytes, "", |at| format!("10.0.{}.{} node-{at:04}", at / 250, at % 250 + 1))),
    ("addresses of test users", |_, bytes| rows(bytes, "", |at| format!("user{at}@example.com"))),
    ("servers of a proxy", |_, bytes| {
        rows(bytes, "upstream backend {", |at| {
            format!("    server backend-{at:03}.internal:8080 max_fails=3;")
        })
    }),
    ("Markdown table of days", |random, bytes| {
        rows(bytes, "| Day | Visits | Sales | State |\n|---|---|---|---|", |at| {
            let (visits, sales) = (random.from(100, 9_999), random.from(0, 300));
            format!("| 2026-{:02}-{:02} | {visits} | {sales} | open |", at / 28 % 12 + 1, at % 28 + 1)
        })
    }),
    ("HTML rows", |random, bytes| {
        rows(bytes, "<table>", |at| {
            format!(
                "  <tr><td>{at}</td><td>{}</td><td>{}</td><td>Active</td></tr>",
                word(random),
                random.from(10, 99)
            )
        })
    }),
    ("HTML options", |_, bytes| {
        rows(bytes, "<select>", |at| format!("  <option value=\"{at}\">{at}</option>"))
    }),
    ("HTML links", |_, bytes| rows(bytes, "<ul>", |at| format!("  <li><a href=\"#\">Link {at}</a></li>"))),
    ("assertions", |random, bytes| {
        rows(bytes, "def test_square():", |at| {
            let number = at + random.from(0, 3);
            format!("    assert square({number}) == {}", number * number)
        })
    }),
    ("test functions", |_, bytes| {
        rows(bytes, "", |at| {
            format!(
                "def test_case_{at}(client):\n    response = client.get(\"/items/{at}\")\n    assert response.status_code == 200\n"
            )
        })
    }),
    ("bytes of C", |random, bytes| {
        rows(bytes, "static const uint8_t data[] = {", |_| {
            let values: Vec<String> = (0..12).map(|_| format!("0x{:02x},", random.from(0, 255))).collect();
            format!("    {}", values.join(" "))
        })
    }),
    ("constants", |_, bytes| rows(bytes, "enum item {", |at| format!("    ITEM_{at} = {at},"))),
    ("matrix of 0 and 1, with commas", |random, bytes| rows(bytes, "", |_| bits(random, 32, ","))),
    ("bitmap of 0 and 1", |random, bytes| rows(bytes, "", |_| bits(random, 64, ""))),
    ("table of yes and no", |random, bytes| {
        rows(bytes, "| a | b | c | d |\n|---|---|---|---|", |_| {
            let cells: Vec<&str> = (0..4).map(|_| random.of(&["yes", "no"])).collect();
            format!("| {} |", cells.join(" | "))
        })
    }),
    ("multiplication tables", |_, bytes| {
        rows(bytes, "", |at| format!("{} x {} = {}", at / 12 + 1, at % 12 + 1, (at / 12 + 1) * (at % 12 + 1)))
    }),
    ("numbers in a line", |_, bytes| rows(bytes, "", |at| format!("{at},")).replace('\n', " ")),
    ("translations", |random, bytes| {
        rows(bytes, "{", |at| format!("  \"item_{at}\": \"{} {at}\",", line(random, 1, 3)))
    }),
    ("labels", |_, bytes| rows(bytes, "{", |at| format!("  \"label_{at}\": \"Label {at}\","))),
    ("G-code", |random, bytes| {
        rows(bytes, "G28", |at| {
            let (x, y) = (random.from(1_000, 19_999), random.from(1_000, 19_999));
            format!(
                "G1 X{}.{:02} Y{}.{:02} E{}.{:02} F1800",
                x / 100,
                x % 100,
                y / 100,
                y % 100,
                at / 25,
                at % 25 * 4
            )
        })
    }),
    ("path of an SVG", |random, bytes| {
        rows(bytes, "<path d=\"M 0 0", |_| {
            format!(
                "L {}.{} {}.{}",
                random.from(0, 500),
                random.from(0, 9),
                random.from(0, 500),
                random.from(0, 9)
            )
        })
    }),
    ("timetable", |_, bytes| {
        rows(bytes, "", |at| {
            let minute = at % 96 * 15;
            let day = if at % 96 == 0 { format!("\nDay {}\n\n", at / 96) } else { String::new() };
            format!("{day}{:02}:{:02}  Line 4  Main Station  platform 2  on time", minute / 60, minute % 60)
        })
    }),
    ("repayments of a loan", |_, bytes| {
        rows(bytes, "month,payment,interest,rest", |at| {
            let rest = 90_000_000_usize.saturating_sub(at * 31_737);
            format!("{at},955.65,{}.{:02},{}.{:02}", rest / 24_000, rest / 240 % 100, rest / 100, rest % 100)
        })
    }),
    ("subtitles", |random, bytes| {
        rows(bytes, "", |at| {
            let (from, to) = (at * 3, at * 3 + 2);
            let time = |at: usize| format!("{:02}:{:02}:{:02},000", at / 3_600, at / 60 % 60, at % 60);
            format!("{at}\n{} --> {}\n{}\n", time(from), time(to), line(random, 3, 9))
        })
    }),
    ("points of a track", |random, bytes| {
        rows(bytes, "<trkseg>", |at| {
            let (lat, lon) = (at * 37 + random.from(0, 30), at * 53 + random.from(0, 30));
            format!(
                "<trkpt lat=\"52.{:06}\" lon=\"13.{:06}\"><ele>34.0</ele></trkpt>",
                500_000 + lat,
                400_000 + lon
            )
        })
    }),
    ("rules of a firewall", |random, bytes| {
        rows(bytes, "*filter", |at| {
            format!(
                "-A INPUT -p tcp -s 10.{}.{}.0/24 --dport {} -j ACCEPT",
                at / 256,
                at % 256,
                random.of(&["22", "80", "443"])
            )
        })
    }),
    ("events of a calendar", |_, bytes| {
        rows(bytes, "BEGIN:VCALENDAR", |at| {
            let (month, day) = (at / 28 % 12 + 1, at % 28 + 1);
            format!(
                "BEGIN:VEVENT\nUID:standup-{at}@example.com\nDTSTART:2026{month:02}{day:02}T090000Z\nDURATION:PT15M\n\
                 SUMMARY:Daily stand-up\nEND:VEVENT"
            )
        })
    }),
];

/// The rows that fill these bytes, from row 1 on.
fn rows(bytes: usize, head: &str, mut row: impl FnMut(usize) -> String) -> String {
    let mut text = format!("{head}\n");
    for at in 1.. {
        text += &row(at);
        text.push('\n');
        if text.len() >= bytes {
            break;
        }
    }
    text
}

fn sensors(random: &mut Random, bytes: usize, states: &[&str]) -> String {
    rows(bytes, "time,sensor,value,load,state", |at| {
        let (value, load) = (random.from(0, 299), random.from(10, 60));
        let (day, hour) = (at / 24 % 28 + 1, at % 24);
        let state = random.of(states);
        format!("2026-11-{day:02}T{hour:02}:00:00Z,sensor-01,{}.{},{load},{state}", value / 10, value % 10)
    })
}

/// A row of bits, of which about one in three is 1.
fn bits(random: &mut Random, count: usize, between: &str) -> String {
    let bits: Vec<&str> = (0..count).map(|_| if random.once_in(3) { "1" } else { "0" }).collect();
    bits.join(between)
}
