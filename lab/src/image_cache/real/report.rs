//! The results of real deployments: a table, figures with verdicts, JSON, a plot.

use std::fmt::Write as _;

use anyhow::Result;
use comfy_table::CellAlignment;
use serde::{Deserialize, Serialize};
use weir_cache::simulate::Sharing;
use weir_netlab::stats;

use super::{
    scenario::{Client, Deployments, ImageCase, Missing, ReplayRow, Replays, Row, Store},
    traffic::{self, Use},
};

use crate::{
    image_cache::plot::{Panel, chart},
    report::{Figure, Head, Rule, Shown, table::new_table},
};

/// The parts of one run's bytes that are headers, acknowledgements' and manifests': an upper bound.
const OVERHEAD: f64 = 1.15;

/// The part of an image's bytes that a node may send while it finds the image: acknowledgements and requests.
const SENT: f64 = 0.15;

/// One run of one scenario; as JSON `{"scenario", "pass", "figures": [..], ..}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The beginning of every report.
    #[serde(flatten)]
    pub(crate) head: Head,
    /// Of images and traces.
    pub(crate) seed: u64,
    /// How it was run, and all of it.
    #[serde(flatten)]
    pub(crate) rows: Rows,
}

/// The measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "measures", rename_all = "kebab-case")]
pub(crate) enum Rows {
    /// Table III.
    Deployments {
        /// The scenario.
        settings: Deployments,
        /// All of it.
        rows: Vec<Row>,
        /// The parts that are missing here.
        missing: Vec<Missing>,
    },
    /// Fig. 7.
    Replay {
        /// The scenario.
        settings: Replays,
        /// All of it.
        rows: Vec<ReplayRow>,
    },
}

impl Report {
    pub(super) fn deployments(
        settings: &Deployments,
        seed: u64,
        rows: Vec<Row>,
        missing: Vec<Missing>,
    ) -> Report {
        let figures = settings
            .images
            .iter()
            .flat_map(|image| Client::BOTH.map(|client| (image, client)))
            .flat_map(|(image, client)| deployment_figures(settings, image, client, &rows))
            .collect();
        let head = Head::now(&settings.name, figures);
        Report { head, seed, rows: Rows::Deployments { settings: settings.clone(), rows, missing } }
    }

    pub(super) fn replay(settings: &Replays, seed: u64, rows: Vec<ReplayRow>) -> Report {
        let head = Head::now(&settings.name, replay_figures(settings, &rows));
        Report { head, seed, rows: Rows::Replay { settings: settings.clone(), rows } }
    }
}

impl Shown for Report {
    fn head(&self) -> &Head {
        &self.head
    }
    fn table(&self) -> String {
        match &self.rows {
            Rows::Deployments { settings, rows, missing } => deployment_table(settings, rows, missing),
            Rows::Replay { settings, rows } => replay_table(settings, rows),
        }
    }
    fn plot(&self) -> Result<String> {
        match &self.rows {
            Rows::Deployments { settings, rows, .. } => {
                chart(&settings.title, &settings.source, &deployment_panels(settings, rows))
            }
            Rows::Replay { settings, rows } => {
                chart(&settings.title, &settings.source, &rows.iter().map(replay_panel).collect::<Vec<_>>())
            }
        }
    }
    fn unjudged(&self) -> &'static str {
        "nothing is judged"
    }
}

/// Deployments of an image by one client through one store.
#[derive(Debug, Default)]
struct Times {
    first: Vec<f64>,
    later: Vec<f64>,
    again: Vec<f64>,
    upstream: Vec<f64>,
    /// Bytes that a node sent during its deployment: the first node, and the others.
    first_sent: Vec<f64>,
    later_sent: Vec<f64>,
    /// Bytes that a node but the first received during its deployment.
    later_received: Vec<f64>,
}

impl Times {
    fn of(rows: &[Row], image: &str, client: Client, store: Store) -> Option<Times> {
        let mut times = Times::default();
        for row in rows.iter().filter(|row| (&*row.image, row.client, row.store) == (image, client, store)) {
            let (first, later) = row.deployment_s.split_first()?;
            times.first.push(*first);
            times.later.extend(later);
            times.again.push(row.again_s);
            let (first, later) = row.network.split_first()?;
            times.first_sent.push(traffic::sent(first));
            times.later_sent.extend(later.iter().map(|seen| traffic::sent(seen)));
            times.later_received.extend(later.iter().map(|seen| traffic::received(seen)));
            times.upstream.push(row.upstream.0 as f64);
        }
        (!times.first.is_empty()).then_some(times)
    }
}

fn median(values: &[f64]) -> f64 {
    stats::median(values).unwrap_or(f64::NAN)
}

fn deployment_figures(
    settings: &Deployments,
    image: &ImageCase,
    client: Client,
    rows: &[Row],
) -> Vec<Figure> {
    let mut figures = Vec::new();
    let Some(none) = Times::of(rows, &image.name, client, Store::None) else { return figures };
    for &store in settings.stores.iter().filter(|store| **store != Store::None) {
        let Some(times) = Times::of(rows, &image.name, client, store) else { continue };
        let name = |what: &str| format!("{}, {}, {}: {what}", image.name, client.name(), store.name());
        // FUSE costs what it costs: what the paper found of it is shown.
        let is_judged = store != Store::Gluster;
        let mut ratio = |what: &str, value: f64, most: Option<f64>, paper: Option<f64>| {
            let figure = match most {
                Some(most) => Figure::judged(name(what), value, "times", most, Rule::AtMost),
                None => Figure::shown(name(what), value, "times"),
            };
            figures.push(Figure { paper, ..figure });
        };
        let (first, later) =
            (median(&times.first) / median(&none.first), median(&times.later) / median(&none.later));
        // Table III: 7.01 and 32.1 s of 5.2 where the image is missing, 1.23 and 2.54 where it is there.
        let paper = match store {
            Store::Local => [Some(7.01 / 5.2), Some(1.23 / 5.2)],
            Store::Gluster => [Some(32.1 / 5.2), Some(2.54 / 5.2)],
            Store::None | Store::Peer => [None, None],
        };
        ratio("first node, of no cache's time", first, image.first_at_most.filter(|_| is_judged), paper[0]);
        ratio("later nodes, of no cache's time", later, image.later_at_most.filter(|_| is_judged), paper[1]);
        ratio("first node again, of no cache's time", median(&times.again) / median(&none.again), None, None);
        // Each node fetched it there.
        let alone = median(&none.upstream) / settings.nodes as f64;
        ratio("uplink, of the image", median(&times.upstream) / alone, Some(OVERHEAD), None);
        // Fig. 6: a node that finds the image sends next to nothing.
        ratio("first node sent, of the image", median(&times.first_sent) / alone, None, None);
        ratio("later nodes received, of the image", median(&times.later_received) / alone, None, None);
        let most = Some(SENT).filter(|_| is_judged);
        ratio("later nodes sent, of the image", median(&times.later_sent) / alone, most, None);
    }
    figures
}

fn spread(values: &[f64]) -> String {
    let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
    format!("{:.2} s ({least:.2} to {most:.2})", median(values))
}

fn deployment_table(settings: &Deployments, rows: &[Row], missing: &[Missing]) -> String {
    let mut text = format!(
        "{}: {} ({})\n{} nodes, {} to the registry, {} repetitions; pull, start and end of a container: \
         median, and from the least to the most\n",
        settings.name, settings.title, settings.source, settings.nodes, settings.uplink, settings.repetitions
    );
    let mut table = new_table();
    table.set_header(["image", "client", "cache", "first node", "later nodes", "first again", "uplink"]);
    for image in &settings.images {
        for client in Client::BOTH {
            for &store in &settings.stores {
                let words = [image.name.as_str(), client.name(), store.name()].map(str::to_owned);
                let numbers = match Times::of(rows, &image.name, client, store) {
                    Some(times) => [
                        spread(&times.first),
                        spread(&times.later),
                        spread(&times.again),
                        format!("{:.1} MB", median(&times.upstream) / 1e6),
                    ],
                    None => ["not here".to_owned(), String::new(), String::new(), String::new()],
                };
                table.add_row(words.into_iter().chain(numbers));
            }
        }
    }
    for index in 3..7 {
        table.column_mut(index).expect("seven columns").set_cell_alignment(CellAlignment::Right);
    }
    let _ = write!(text, "{table}");
    for Missing { store, why } in missing {
        let _ = write!(text, "\n{} cannot be had here: {why}", store.name());
    }
    text
}

fn deployment_panels(settings: &Deployments, rows: &[Row]) -> Vec<Panel> {
    let mut panels = Vec::new();
    for image in &settings.images {
        for client in Client::BOTH {
            let mark = |x: f64| format!("node {x:.0}");
            let title = format!("{} by {}, s", image.name, client.name());
            let mut panel = Panel { title, below: "in this order", log: false, mark, lines: Vec::new() };
            for &store in &settings.stores {
                for node in 0..settings.nodes {
                    let of =
                        rows.iter().filter(|r| (&r.image, r.client, r.store) == (&image.name, client, store));
                    let times: Vec<f64> = of.map(|row| row.deployment_s[node]).collect();
                    if !times.is_empty() {
                        panel.add(store.name(), ((node + 1) as f64, median(&times)));
                    }
                }
            }
            panels.push(panel);
        }
    }
    panels.extend(network_panels(settings, rows));
    panels
}

/// Fig. 6: the first image by Docker, where no node has it and where the site has it.
fn network_panels(settings: &Deployments, rows: &[Row]) -> Vec<Panel> {
    /// One direction, and its rate.
    type Direction = (&'static str, fn(&Use) -> f64);
    const DIRECTIONS: [Direction; 2] = [("download", |seen| seen.download), ("upload", |seen| seen.upload)];
    let Some(image) = settings.images.first() else { return Vec::new() };
    let mut panels = Vec::new();
    for (node, words) in [(0, "first node"), (1, "second node")] {
        for (direction, rate) in DIRECTIONS {
            let title = format!("{} by docker, {words}: {direction}, Mbit/s", image.name);
            let mark = |x: f64| format!("{x:.1} s");
            let mut panel =
                Panel { title, below: "since the deployment began", log: false, mark, lines: Vec::new() };
            for &store in &settings.stores {
                let wanted = (image.name.as_str(), Client::Docker, store);
                let row = rows.iter().find(|row| (&*row.image, row.client, row.store) == wanted);
                for seen in row.iter().filter_map(|row| row.network.get(node)).flatten() {
                    panel.add(store.name(), (seen.at_s, rate(seen)));
                }
            }
            panels.push(panel);
        }
    }
    panels
}

fn replay_figures(settings: &Replays, rows: &[ReplayRow]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for row in rows {
        let name = |what: &str| format!("{}, {}, {}: {what}", row.zone, row.policy, row.sharing.name());
        let points = settings.tolerance * 100.0;
        let off = (row.hits - row.simulated).abs() * 100.0;
        figures.push(Figure::shown(name("images found"), row.hits * 100.0, "%"));
        figures.push(Figure::shown(name("simulated"), row.simulated * 100.0, "%"));
        figures.push(Figure::judged(name("off the simulation"), off, "points", points, Rule::AtMost));
        let off = (row.byte_hits - row.simulated_bytes).abs() * 100.0;
        figures.push(Figure::judged(name("bytes off the simulation"), off, "points", points, Rule::AtMost));
        let alone = rows.iter().find(|alone| {
            (alone.sharing, &alone.zone, alone.policy) == (Sharing::PerNode, &row.zone, row.policy)
        });
        if let (Sharing::Shared, Some(alone)) = (row.sharing, alone) {
            let gain = (row.hits - alone.hits) * 100.0;
            let what = name("images found more than per node");
            figures.push(Figure::judged(what, gain, "points", settings.gain * 100.0, Rule::AtLeast));
        }
    }
    figures
}

fn replay_table(settings: &Replays, rows: &[ReplayRow]) -> String {
    let mut text = format!(
        "{}: {} ({})\nreal pulls by {} nodes in turn; layers have 1/{} of the bytes, and so have caches\n",
        settings.name, settings.title, settings.source, settings.nodes, settings.scale
    );
    let mut table = new_table();
    table.set_header([
        "zone",
        "MB",
        "pulls",
        "policy",
        "cache",
        "images",
        "simulated",
        "bytes",
        "simulated",
        "a pull",
    ]);
    let percent = |ratio: f64| format!("{:.1} %", ratio * 100.0);
    for row in rows {
        table.add_row([
            row.zone.clone(),
            format!("{:.0}", row.working_set.0 as f64 / 1e6),
            row.deployments.to_string(),
            row.policy.to_string(),
            row.sharing.name().to_owned(),
            percent(row.hits),
            percent(row.simulated),
            percent(row.byte_hits),
            percent(row.simulated_bytes),
            format!("{:.0} ms", row.pull_ms),
        ]);
    }
    for index in [1, 2, 5, 6, 7, 8, 9] {
        table.column_mut(index).expect("ten columns").set_cell_alignment(CellAlignment::Right);
    }
    let _ = write!(text, "{table}\nMB: all that was deployed, once; images, bytes: found in a cache");
    text
}

fn replay_panel(row: &ReplayRow) -> Panel {
    let title = format!("{}, {}, {}: part that finds its image", row.zone, row.policy, row.sharing.name());
    let mark = |x: f64| format!("{x:.0}");
    let mut panel = Panel { title, below: "deployments", log: false, mark, lines: Vec::new() };
    for (nth, (measured, simulated)) in (1..).zip(&row.bins) {
        panel.add("measured", (f64::from(nth) * 50.0, *measured));
        panel.add("simulated", (f64::from(nth) * 50.0, *simulated));
    }
    panel
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_units::Bytes;

    const IMAGE: f64 = 26.7e6;

    fn settings() -> Deployments {
        toml::from_str(include_str!("../../../scenarios/pop-micro.toml")).unwrap()
    }

    /// Steps of a tenth of a second that carry these bytes in all.
    fn steps(received: f64, sent: f64) -> Vec<Use> {
        let rate = |bytes: f64| bytes * 8e-6 / 1.0;
        (1..=10)
            .map(|nth| Use { at_s: f64::from(nth) * 0.1, download: rate(received), upload: rate(sent) })
            .collect()
    }

    /// Three nodes that deploy `ubuntu` by Docker; a later node finds the image with `peer` and sends these bytes.
    fn rows(later_sent: f64) -> Vec<Row> {
        let row = |store, later_s: f64, upstream: f64, later_sent: f64| Row {
            image: "ubuntu".to_owned(),
            client: Client::Docker,
            store,
            deployment_s: vec![4.0, later_s, later_s],
            again_s: 0.5,
            network: vec![steps(IMAGE, 1e5), steps(IMAGE, later_sent), steps(IMAGE, later_sent)],
            upstream: Bytes(upstream as u64),
        };
        vec![row(Store::None, 4.0, 3.0 * IMAGE, 1e5), row(Store::Peer, 2.0, IMAGE, later_sent)]
    }

    fn report(later_sent: f64) -> Report {
        Report::deployments(&settings(), 1, rows(later_sent), Vec::new())
    }

    fn failed(report: &Report) -> Vec<&str> {
        report.head.figures.iter().filter(|f| f.pass == Some(false)).map(|f| f.name.as_str()).collect()
    }

    #[test]
    fn node_that_finds_an_image_and_sends_much_falls_short() {
        assert_eq!(failed(&report(0.14 * IMAGE)), Vec::<&str>::new());
        assert_eq!(failed(&report(0.16 * IMAGE)), ["ubuntu, docker, peer: later nodes sent, of the image"]);
    }

    #[test]
    fn table_has_the_first_node_the_others_and_the_first_again() {
        let table = report(0.0).table();
        let line = table.lines().find(|line| line.contains("peer")).unwrap();
        for words in ["4.00 s", "2.00 s", "0.50 s", "26.7 MB"] {
            assert!(line.contains(words), "{words}: {line}");
        }
    }

    #[test]
    fn figure_6_has_four_panels_with_a_line_for_each_store() {
        let panels = network_panels(&settings(), &rows(1e6));
        let titles: Vec<&str> = panels.iter().map(|panel| panel.title.as_str()).collect();
        assert_eq!(titles.len(), 4, "{titles:?}");
        assert!(titles[0].contains("first node: download") && titles[3].contains("second node: upload"));
        for panel in &panels {
            let names: Vec<&str> = panel.lines.iter().map(|line| line.name.as_str()).collect();
            assert_eq!(names, ["none", "peer"], "{}", panel.title);
        }
        assert!((panels[3].lines[1].points[0].1 - 8.0).abs() < 1e-9, "{:?}", panels[3].lines);
    }
}
