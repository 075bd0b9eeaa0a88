//! The links between clients, edge and cloud are what the scenario says, with real traffic: netem's, which
//! `weir-vm` and User-Mode Linux have, and those in user space. Needs root.

use std::path::PathBuf;

use weir_lab::{
    edge_cloud::{
        self, Algorithm, Backend, Generator, Scenario,
        guest::{netem, wires},
    },
    options::Options,
};

/// A link of 20 Mbit/s and 20 ms; at the access, if there is one, of 10 Mbit/s and 2 ms.
fn scenario(volume: u64, case: &str, access: bool) -> Scenario {
    let link = |rate, rtt| format!("{{ rate = \"{rate}\", rtt_ms = {rtt}, buffer_bdp = 4 }}");
    let shared = if access { format!("access = {}", link("10mbit", 2)) } else { String::new() };
    let (edge, cloud) = (link("20mbit", 20), link("20mbit", 60));
    let text = format!(
        "name = \"links\"\ntitle = \"\"\nsource = \"\"\nabout = \"\"\nmeasures = \"completion\"\n\
         algorithms = [\"cubic\"]\nseeds = 1\npaper_seeds = 1\nclients = 1\nvolume = [{volume}, {volume}]\n\
         {shared}\nedge = {edge}\ncloud = {cloud}\n[[case]]\nname = \"case\"\n{case}\n"
    );
    toml::from_str(&text).unwrap()
}

/// Of the only job, s.
fn seconds(scenario: &Scenario, backend: Backend) -> f64 {
    let options = Options { weir: "/nonexistent/weir".into(), seed: 1, link: String::new() };
    let report = edge_cloud::run(scenario, &options, Some(backend), Generator::Own, &mut |_, _| {}).unwrap();
    assert_eq!((report.rows.len(), report.rows[0].jobs.len()), (1, 1));
    report.rows[0].jobs[0].seconds
}

fn flows_take_the_time_of_their_bytes_and_of_their_round_trips(backend: Backend) {
    let seconds = |scenario| seconds(&scenario, backend);
    // A round trip for the connection, one for a byte and its answer. A busy machine is late, never early.
    for (case, rtt) in [("edge = { up = 1.0 }", 0.020), ("cloud = { up = 1.0 }", 0.060)] {
        let took = seconds(scenario(1, case, false));
        assert!(took >= 2.0 * rtt, "{case}: {took} s");
        assert!(took < 2.0 * rtt + 1.0, "{case}: {took} s");
    }
    // 1448 of 1514 bytes on the wire are payload.
    let wire = |bytes: f64, mbit: f64| bytes * 8.0 * 1514.0 / 1448.0 / (mbit * 1e6);
    let took = seconds(scenario(2_000_000, "edge = { up = 0.5, down = 0.5 }", false));
    let least = wire(2e6, 20.0);
    assert!((0.99 * least..3.0 * least).contains(&took), "{took} s, the wire alone takes {least}");
    // Half on each link at once: half of the time; behind one access link, all of it.
    let both = "edge = { up = 0.5 }\ncloud = { up = 0.5 }";
    let apart = seconds(scenario(2_000_000, both, false));
    let shared = seconds(scenario(2_000_000, both, true));
    let (half, all) = (wire(1e6, 20.0), wire(2e6, 10.0));
    assert!((0.99 * half..3.0 * half).contains(&apart), "{apart} s, the wires alone take {half}");
    assert!((0.99 * all..3.0 * all).contains(&shared), "{shared} s, the access alone takes {all}");
}

#[test]
fn flows_over_netem_take_the_time_of_their_bytes_and_of_their_round_trips() {
    match netem() {
        Ok(()) => flows_take_the_time_of_their_bytes_and_of_their_round_trips(Backend::Here),
        Err(why) => println!("SKIPPED: {why:#}"),
    }
}

#[test]
fn flows_in_user_space_take_the_time_of_bytes_and_round_trips() {
    match wires() {
        Ok(()) => flows_take_the_time_of_their_bytes_and_of_their_round_trips(Backend::Wires),
        Err(why) => println!("SKIPPED: {why:#}"),
    }
}

/// A fresh server for each direction of a flow, or the first one's algorithm would be the next one's.
#[test]
fn iperf3_uses_the_asked_algorithm_and_at_least_the_time_of_bytes() {
    let has_iperf3 = std::process::Command::new("iperf3").arg("--version").output().is_ok();
    if let Some(why) =
        wires().err().map(|why| format!("{why:#}")).or((!has_iperf3).then(|| "no iperf3".into()))
    {
        println!("SKIPPED: {why}");
        return;
    }
    let mut scenario = scenario(400_000, "edge = { up = 0.5, down = 0.5 }", false);
    scenario.algorithms = vec![Algorithm::Cubic, Algorithm::Bbr];
    scenario.clients = 2;
    let options = Options { weir: "/nonexistent/weir".into(), seed: 1, link: String::new() };
    let run = |backend| edge_cloud::run(&scenario, &options, backend, Generator::Iperf3, &mut |_, _| {});
    let report = run(Some(Backend::Wires)).unwrap();
    assert!(report.backend.ends_with("by iperf3") && report.rows.len() == 2, "{}", report.backend);
    for row in &report.rows {
        // Each client's 200 kB, up and then down. That two share the link takes twice as long if they begin
        // together, which on a busy machine they do not.
        let least = 400_000.0 * 8.0 / 20e6;
        for flow in &row.flows {
            let (seconds, by) = (flow.seconds, &row.algorithm);
            assert!((0.9 * least..20.0 * least).contains(&seconds), "{seconds} s by {by}");
        }
    }
    assert!(run(Some(Backend::Uml)).unwrap_err().to_string().contains("iperf3 is for real time"));
}

/// The weir program that runs in guests: `WEIR_BIN`, or where cargo puts it beside these tests.
fn weir() -> Result<PathBuf, String> {
    let beside = || Some(std::env::current_exe().ok()?.parent()?.parent()?.join("weir"));
    let path = std::env::var_os("WEIR_BIN").map(PathBuf::from).or_else(beside).unwrap_or_default();
    if path.is_file() { Ok(path) } else { Err(format!("no weir program at {} (WEIR_BIN)", path.display())) }
}

/// Two seeds of CUBIC and of BBR on all links, with weir's rule beside them, twice.
#[test]
fn virtual_time_repeats_for_a_seed_and_differs_for_another() {
    let (kernel, weir) = (edge_cloud::guest::uml().map_err(|why| format!("{why:#}")), weir());
    if let Some(why) = kernel.err().or(weir.clone().err()) {
        println!("SKIPPED: {why}");
        return;
    }
    let text = "edge = { up = 0.25, down = 0.25 }\ncloud = { up = 0.25, down = 0.25 }";
    let mut scenario = scenario(1_000_000, text, false);
    scenario.algorithms = vec![Algorithm::Cubic, Algorithm::Bbr, Algorithm::Weir];
    (scenario.clients, scenario.seeds) = (4, 2);
    scenario.volume[1].0 = 4_000_000;
    scenario.cloud.loss = 0.01;
    let options = Options { weir: weir.unwrap_or_default(), seed: 1, link: String::new() };
    let run =
        || edge_cloud::run(&scenario, &options, Some(Backend::Uml), Generator::Own, &mut |_, _| {}).unwrap();
    let (first, again) = (run(), run());
    assert!(first.missing.is_empty(), "{:?}", first.missing);
    assert_eq!(first.rows.len(), 6);
    assert_eq!(first.rows, again.rows);
    let of = |seed| first.rows.iter().filter(move |row| row.seed == seed);
    for (one, other) in of(1).zip(of(2)) {
        assert_ne!(one.flows, other.flows, "{} with {}", one.case, one.algorithm);
    }
}
