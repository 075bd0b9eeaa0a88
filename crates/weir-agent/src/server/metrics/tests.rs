use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use weir_agree::{Document, Language, Offer};
use weir_api::{DownloadStatus, InForce, NotEnforced};
use weir_cc::Interval;
use weir_fake_agent::{self as fake, FakeAgent};
use weir_image::{Mirror, Timing};
use weir_units::BitRate;

use super::*;
use crate::agent::{agree::Figure, queue_time::QueueTimes};

/// The answers of an agent that has something of each kind.
fn agent() -> OfAgent {
    let fake = FakeAgent::start();
    let xml = include_str!("../../../../agreements/docs/fig2.xml").replace(" 19 ", "5");
    fake.client().offer(&Offer::read(&xml, Language::Xml).unwrap()).unwrap();
    let mut agreements = fake.client().agreements().unwrap();
    for status in &mut agreements {
        status.in_force =
            Some(InForce { min: BitRate::mbit(5), max: BitRate::mbit(20), limited_until: None });
    }
    let mut classes = fake::classes();
    classes[1].unpromised = Some(BitRate::mbit(30));
    classes[1].demand = Some(BitRate::mbit(60));
    let mut download = fake::download(BitRate::mbit(16));
    download.demand = Some(BitRate::mbit(18));
    download.policy.min = Some(BitRate::mbit(4));
    download.unpromised = Some(BitRate::mbit(8));
    classes[1].down = Some(download);
    classes[1].on_links = vec![fake::on_link(&classes[1])];
    classes[1].moved_packets = 9;
    let mut advice = fake::advice();
    advice[0].arms[0].own = Interval { estimate: 0.25, least: Some(0.125), most: Some(0.5) };
    let mut stats = weir_cc::Stats::default();
    stats.add("10.1.2.0/24".parse().unwrap(), &fake::flow());
    OfAgent {
        status: Status {
            late: Some(1),
            late_us: Some(5),
            repairs: 7,
            configured_capacity: Some(BitRate::mbit(120)),
            follows: Some(fake::follows()),
            download: Some(DownloadStatus { follows: Some(fake::follows()), ..fake::download_status() }),
            other_links: vec![fake::other_link()],
            ..fake::status()
        },
        queue_times: vec![queue_times(&classes[1])],
        classes,
        agreements: Figures {
            in_force: agreements.len(),
            shown: agreements.iter().filter_map(Figure::of).collect(),
        },
        congestion: (fake::congestion_view(), stats.view()),
        advice,
    }
}

/// 30 looks at an empty queue, and one at a queue of 70 ms.
fn queue_times(class: &Class) -> ClassQueueTimes {
    let mut times = QueueTimes { sum: Duration::from_millis(70), ..QueueTimes::default() };
    (times.looks[0], times.looks[6]) = (30, 1);
    let (class, source) = (class.name.clone(), class.source.clone());
    ClassQueueTimes { class, source, sent: times, received: Some(times) }
}

fn images(directory: &Path) -> OfImages {
    let text = format!(
        "listen = \"127.0.0.1:0\"\ndirectory = \"{}\"\nbudget = \"64MiB\"\nkeep_free = \"0\"\nmax_rate = \"8mbit\"\n",
        directory.join("store").display()
    );
    let (mirror, _) = Mirror::open(toml::from_str(&text).unwrap(), Timing::default()).unwrap();
    let usage = mirror.store().usage(now_utc()).unwrap();
    OfImages {
        cache: Some((usage, mirror)),
        serves: Some(true),
        frozen: 2,
        runtime: Some(fake::runtime_images()),
    }
}

/// Every kind of metric, as OpenMetrics' text.
fn everything() -> String {
    let directory = tempfile::tempdir().unwrap();
    text(Some(&agent()), &images(directory.path()))
}

/// The samples: name and labels, then the value.
fn samples(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').unwrap()).collect()
}

/// The names of the families in a text of format 0.0.4.
fn families(text: &str) -> BTreeSet<&str> {
    text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect()
}

/// Runs promtool with this input. `None` without promtool, which the output says.
fn promtool(arguments: &[&str], input: &str) -> Option<String> {
    let command = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = command else {
        println!("SKIPPED: there is no promtool (Debian's package prometheus)");
        return None;
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
    Some(said)
}

#[test]
fn each_kind_of_object_has_its_metrics() {
    let text = everything();
    let samples = samples(&text);
    for (sample, value) in [
        ("weir_build_info{version=\"0.1.0\"}", "1"),
        ("weir_link_capacity_bytes_per_second{device=\"eth0\"}", "12500000.0"),
        ("weir_link_configured_bytes_per_second{device=\"eth0\"}", "15000000.0"),
        ("weir_ready", "0.0"),
        ("weir_config_last_reload_successful", "1.0"),
        ("weir_config_last_reload_success_timestamp_seconds", "1700000000.0"),
        ("weir_repairs_total", "7"),
        ("weir_class_enforced{class=\"camera\",source=\"config\",reason=\"sender\"}", "0.0"),
        ("weir_class_enforced{class=\"web\",source=\"docker\",reason=\"\"}", "1.0"),
        ("weir_class_policy_weight{class=\"web\",source=\"docker\"}", "2.0"),
        ("weir_class_policy_min_bytes_per_second{class=\"web\",source=\"docker\"}", "2500000.0"),
        ("weir_class_policy_max_bytes_per_second{class=\"web\",source=\"docker\"}", "6250000.0"),
        ("weir_class_allocation_bytes_per_second{class=\"web\",source=\"docker\"}", "5000000.0"),
        ("weir_class_unpromised_min_bytes_per_second{class=\"video\",source=\"docker\"}", "3750000.0"),
        ("weir_class_backpressured_seconds_total{class=\"video\",source=\"docker\"}", "81.5"),
        ("weir_link_capacity_bytes_per_second{device=\"wwan0\"}", "1125000.0"),
        ("weir_link_main{device=\"eth0\"}", "1.0"),
        ("weir_link_main{device=\"wwan0\"}", "0.0"),
        ("weir_link_here{device=\"wwan0\"}", "1.0"),
        (
            "weir_link_class_rate_bytes_per_second{link=\"wwan0\",class=\"video\",source=\"docker\"}",
            "500000.0",
        ),
        ("weir_link_class_dropped_packets_total{link=\"eth0\",class=\"video\",source=\"docker\"}", "12"),
        ("weir_link_class_dropped_packets_total{link=\"wwan0\",class=\"video\",source=\"docker\"}", "2"),
        ("weir_class_moved_packets_total{class=\"video\",source=\"docker\"}", "9"),
        // Sums over both links.
        ("weir_class_dropped_packets_total{class=\"video\",source=\"docker\"}", "14"),
        ("weir_download_capacity_bytes_per_second{device=\"eth0\"}", "6250000.0"),
        ("weir_download_configured_bytes_per_second{device=\"eth0\"}", "6250000.0"),
        ("weir_download_capacity_min_bytes_per_second{device=\"eth0\"}", "250000.0"),
        ("weir_download_capacity_max_bytes_per_second{device=\"eth0\"}", "15000000.0"),
        ("weir_class_receive_rate_bytes_per_second{class=\"video\",source=\"docker\"}", "2000000.0"),
        ("weir_class_receive_demand_bytes_per_second{class=\"video\",source=\"docker\"}", "2250000.0"),
        ("weir_class_receive_policy_min_bytes_per_second{class=\"video\",source=\"docker\"}", "500000.0"),
        (
            "weir_class_receive_unpromised_min_bytes_per_second{class=\"video\",source=\"docker\"}",
            "1000000.0",
        ),
        ("weir_class_receive_policy_max_bytes_per_second{class=\"video\",source=\"docker\"}", "2500000.0"),
        ("weir_class_receive_dropped_packets_total{class=\"video\",source=\"docker\"}", "6"),
        ("weir_class_receive_charged_bytes_per_second{class=\"video\",source=\"docker\"}", "125000.0"),
        ("weir_download_charged_bytes_per_second{device=\"eth0\"}", "250000.0"),
        ("weir_class_receive_enforced{class=\"video\",source=\"docker\",reason=\"\"}", "1.0"),
        ("weir_left_out{kind=\"downloads\"}", "0.0"),
        ("weir_agreements_in_force", "1.0"),
        ("weir_left_out{kind=\"classes\"}", "0.0"),
        ("weir_images_budget_bytes", "67108864.0"),
        ("weir_images_max_rate_bytes_per_second", "1000000.0"),
        ("weir_images_frozen_total", "2"),
        ("weir_runtime_images_used_bytes", "9663676416.0"),
        ("weir_runtime_images_removed_bytes_total", "1073741824"),
        ("weir_cc_trial_effect_ratio{to=\"10.1.2.0/24\",algorithm=\"bbr\",of=\"own\"}", "0.25"),
        ("weir_cc_trial_share_ratio{to=\"10.1.2.0/24\",algorithm=\"bbr\",of=\"own\"}", "0.0"),
    ] {
        assert_eq!(samples.get(sample), Some(&value), "{sample} in\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
    // A value that does not exist is missing, and is not 0.
    assert!(!text.contains("weir_class_policy_max_bytes_per_second{class=\"host\""));
    assert!(!text.contains("weir_images_oldest_check_timestamp_seconds "));
}

#[test]
fn completion_times_are_a_histogram_of_the_flows() {
    let text = everything();
    let samples = samples(&text);
    let flows = "to=\"10.1.2.0/24\",below=\"10000000\",algorithm=\"bbr>cubic\"";
    // The flow took 250 ms, between 2^16 and 2^18 us.
    for (bound, count) in [("0.065536", "0"), ("0.262144", "1"), ("67.108864", "1"), ("+Inf", "1")] {
        let bucket = format!("weir_cc_completion_seconds_bucket{{le=\"{bound}\",{flows}}}");
        assert_eq!(samples.get(bucket.as_str()), Some(&count), "{bucket} in\n{text}");
    }
    assert_eq!(samples[format!("weir_cc_completion_seconds_sum{{{flows}}}").as_str()], "0.25");
}

#[test]
fn queue_times_are_a_histogram_of_both_directions() {
    let agent = agent();
    let class = format!("class=\"{}\",source=\"{}\"", agent.classes[1].name, agent.classes[1].source);
    let text = text(Some(&agent), &OfImages::default());
    let samples = samples(&text);
    for name in ["weir_class_queue_seconds", "weir_class_receive_queue_seconds"] {
        for (bound, count) in [("0.001", "30"), ("0.05", "30"), ("0.1", "31"), ("+Inf", "31")] {
            let bucket = format!("{name}_bucket{{le=\"{bound}\",{class}}}");
            assert_eq!(samples.get(bucket.as_str()), Some(&count), "{bucket} in\n{text}");
        }
        assert_eq!(samples[format!("{name}_sum{{{class}}}").as_str()], "0.07");
    }
}

#[test]
fn a_refused_configuration_and_a_ready_link_are_told() {
    let mut agent = agent();
    agent.status.config_error = Some("no such key".to_owned());
    agent.status.not_ready.clear();
    let text = text(Some(&agent), &OfImages::default());
    let samples = samples(&text);
    assert_eq!(samples["weir_config_last_reload_successful"], "0.0");
    assert_eq!(samples["weir_ready"], "1.0");
    assert!(!text.contains("images"), "a node without images has metrics of them:\n{text}");
}

#[test]
fn series_are_bounded_and_the_faulty_class_is_kept() {
    let mut agent = agent();
    let class = |i: usize| fake::class(&format!("c{i:05}"), BitRate::mbit(1), BitRate::ZERO);
    agent.classes = (0..5_000).map(class).collect();
    let last = agent.classes.last_mut().unwrap();
    (last.enforced, last.not_enforced) = (false, Some(NotEnforced::Scheduler));
    let text = text(Some(&agent), &OfImages::default());
    let of_classes =
        text.lines().filter(|line| line.starts_with("weir_class_rate_bytes_per_second{")).count();
    assert_eq!(of_classes, classes::MAX_CLASSES);
    let samples = samples(&text);
    assert_eq!(samples["weir_left_out{kind=\"classes\"}"], "4000.0");
    assert_eq!(samples["weir_classes"], "5000.0");
    assert_eq!(
        samples["weir_class_enforced{class=\"c04999\",source=\"docker\",reason=\"scheduler\"}"],
        "0.0"
    );
}

#[test]
fn promtool_finds_no_fault_in_names_types_and_help() {
    let text = Format::Text.of(everything());
    if let Some(said) = promtool(&["check", "metrics"], &text) {
        assert_eq!(said, "", "{text}");
        // The check itself sees a fault.
        let bad = Command::new("sh")
            .args(["-c", "printf '# TYPE a counter\\na 1\\n' | promtool check metrics"])
            .output()
            .unwrap();
        assert!(!bad.status.success());
    }
}

/// `promtool check metrics` reads only format 0.0.4. Prometheus' own parser of OpenMetrics is behind
/// `promtool tsdb create-blocks-from`, which wants a time for each sample.
#[test]
fn prometheus_reads_the_same_series_from_openmetrics() {
    let text = everything();
    let directory = tempfile::tempdir().unwrap();
    let timed = text.lines().map(|line| match line.starts_with('#') {
        true => format!("{line}\n"),
        false => format!("{line} 1700000000\n"),
    });
    let (input, output) = (directory.path().join("metrics"), directory.path().join("blocks"));
    fs::write(&input, timed.collect::<String>()).unwrap();
    let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
    if promtool(&["tsdb", "create-blocks-from", "openmetrics", input, output], "").is_none() {
        return;
    }
    // The dump opens a log of writes too.
    fs::create_dir(Path::new(output).join("wal")).unwrap();
    let dump = promtool(&["tsdb", "dump", output], "").unwrap();
    let stored = dump.lines().filter(|line| line.starts_with("{__name__=\"weir_")).count();
    let plain = Format::Text.of(text.clone());
    assert_eq!(stored, samples(&plain).len(), "{dump}");
    assert_eq!(samples(&text), samples(&plain));
}

/// The names of the labels of a sample, but for that of a histogram's bucket.
fn labels(sample: &str) -> Vec<&str> {
    let Some((_, labels)) = sample.split_once('{') else { return Vec::new() };
    let names = labels.split("=\"").filter_map(|part| part.rsplit(['{', ',', '"']).next());
    names.filter(|name| !name.is_empty() && !["}", "le"].contains(name)).collect()
}

/// The text leaves out a family without a sample, and so would the reference.
#[test]
fn each_family_has_a_sample() {
    let directory = tempfile::tempdir().unwrap();
    let page = page(Some(&agent()), &images(directory.path()));
    let text = page.openmetrics();
    let samples = samples(&text);
    let is_of = |sample: &str, family: &str| {
        let suffix = sample.split('{').next().unwrap_or_default().strip_prefix(family);
        suffix.is_some_and(|suffix| ["", "_total", "_info", "_bucket"].contains(&suffix))
    };
    let has_none = |family: &&String| !samples.keys().any(|sample| is_of(sample, family));
    let without: Vec<&String> = page.families.iter().filter(has_none).collect();
    assert!(without.is_empty(), "families without a sample: {without:?}");
    assert!(page.families.len() > 80, "{:?}", page.families);
}

/// Name, type, labels and help of each family.
#[test]
fn the_reference_lists_each_metric() {
    let text = Format::Text.of(everything());
    let samples = samples(&text);
    let mut table = "| name | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
    let mut help = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, about)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            help.insert(name, about.trim_end_matches('.'));
        }
        let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) else {
            continue;
        };
        let own = |sample: &&&str| {
            let suffix = sample.split('{').next().unwrap_or_default().strip_prefix(name);
            suffix.is_some_and(|suffix| ["", "_bucket"].contains(&suffix))
        };
        let sample = samples.keys().find(own).unwrap_or_else(|| panic!("{name} has no sample"));
        let labels = labels(sample).join(", ");
        table += &format!("| `{name}` | {kind} | {labels} | {} |\n", help[name]);
    }
    assert!(table.lines().count() > 80, "{table}");
    weir_testkit::assert_generated("docs/book/reference/metrics.md", "metrics", &table);
}

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/prometheus");

fn packaged(name: &str) -> String {
    fs::read_to_string(Path::new(PACKAGING).join(name)).unwrap()
}

/// Words that begin with `weir_`, as in a query.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_name(c)).filter(|word| word.starts_with("weir_")).collect()
}

#[test]
fn alerts_and_dashboard_name_only_metrics_that_exist() {
    let text = Format::Text.of(everything());
    let mut known: BTreeSet<String> = families(&text).into_iter().map(str::to_owned).collect();
    for histogram in ["cc_completion", "class_queue", "class_receive_queue"] {
        for suffix in ["bucket", "sum", "count"] {
            known.insert(format!("weir_{histogram}_seconds_{suffix}"));
        }
    }
    for file in ["weir.rules.yml", "weir.dashboard.json"] {
        let used = packaged(file);
        let used = metrics_in(&used);
        assert!(used.len() >= 10, "{file}: {used:?}");
        for name in used {
            assert!(known.contains(name), "{file}: there is no {name}");
        }
    }
}

#[test]
fn promtool_tests_every_alert() {
    let (rules, tests) = (packaged("weir.rules.yml"), packaged("weir.rules.test.yml"));
    let alerts: BTreeSet<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 14, "{alerts:?}");
    // An alert is tested if a test expects it to fire, and another one not to.
    let (mut fires, mut is_quiet) = (BTreeSet::new(), BTreeSet::new());
    let lines: Vec<&str> = tests.lines().map(str::trim).collect();
    for pair in lines.windows(2) {
        if let Some(name) = pair[0].strip_prefix("alertname: ") {
            if pair[1] == "exp_alerts: []" {
                is_quiet.insert(name)
            } else {
                fires.insert(name)
            };
        }
    }
    assert_eq!(fires, alerts, "alerts that no test expects");
    assert_eq!(is_quiet, alerts, "alerts that no test expects to be quiet");
    let file = format!("{PACKAGING}/weir.rules.test.yml");
    if let Some(said) = promtool(&["test", "rules", &file], "") {
        assert!(said.contains("SUCCESS"), "{said}");
    }
    let file = format!("{PACKAGING}/weir.rules.yml");
    if let Some(said) = promtool(&["check", "rules", &file], "") {
        assert!(said.contains(&format!("{} rules found", alerts.len())), "{said}");
    }
}
