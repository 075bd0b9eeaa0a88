use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use weir_units::BitRate;

use super::{Report, Rule};
use crate::control::Kind;

/// Every case and container, expected beside measured.
#[must_use]
pub fn table(report: &Report) -> String {
    let settings = &report.settings;
    let mut text = format!(
        "{}: {} ({})\n\
         payload that arrived, Mbit/s; {} of {} wire, {}, {}, TSO {}, {} s a case\n",
        report.scenario,
        report.title,
        report.source,
        settings.capacity,
        settings.wire,
        settings.mode,
        settings.family,
        if settings.tso { "on" } else { "off" },
        settings.seconds,
    );
    let mut table = new_table();
    let weir = report.controls.contains(&Kind::Weir);
    let others: Vec<Kind> = report.controls.iter().copied().filter(|k| *k != Kind::Weir).collect();
    let mut header = vec!["case", "container", "weight", "min", "max", "sends", "expected"];
    if weir {
        header.extend(["weir", "error"]);
    }
    header.extend(others.iter().map(|kind| kind.name()));
    header.push("paper");
    table.set_header(&header);

    let rate = |rate: Option<BitRate>| rate.map_or(String::new(), |r| r.to_string());
    for case in &report.cases {
        for (index, container) in case.containers.iter().enumerate() {
            let number = |kind: Kind| {
                container.measured.get(&kind).map_or(String::new(), |m| format!("{:.2}", m.goodput))
            };
            let mut row = vec![
                if index == 0 { case.name.clone() } else { String::new() },
                container.name.clone(),
                container.setting.weight.to_string(),
                rate(container.setting.min),
                rate(container.setting.max),
                container.setting.send.to_string(),
                if container.expected > 0.0 { format!("{:.2}", container.expected) } else { String::new() },
            ];
            if weir {
                row.push(number(Kind::Weir));
                let error = container.measured.get(&Kind::Weir).map(|m| m.error);
                row.push(error.map_or(String::new(), |e| format!("{:.1} %", e * 100.0)));
            }
            row.extend(others.iter().map(|kind| number(*kind)));
            row.push(container.setting.paper.map_or(String::new(), |p| format!("{p}")));
            table.add_row(row);
        }
        let mut row = vec![String::new(), "link use".to_owned()];
        row.resize(6, String::new());
        row.push(format!(">= {:.3}", case.want_link_use));
        let used = |kind: Kind| case.link_use.get(&kind).map_or(String::new(), |u| format!("{u:.3}"));
        if weir {
            row.extend([used(Kind::Weir), String::new()]);
        }
        row.extend(others.iter().map(|kind| used(*kind)));
        row.push(String::new());
        table.add_row(row);
    }
    let columns = header.len();
    for index in 2..columns {
        if index != 5 {
            table.column_mut(index).expect("it has a header").set_cell_alignment(CellAlignment::Right);
        }
    }
    let _ = write!(text, "{table}");
    text
}

/// Pass, or what falls short and by how much.
#[must_use]
pub fn verdict(report: &Report) -> String {
    let Some(pass) = report.pass else {
        return format!("{}: no verdict, since weir was not among the controls", report.scenario);
    };
    let judged = report.figures.iter().filter(|f| f.pass.is_some()).count();
    if pass {
        let worst = report.figures.iter().find(|f| f.name == "largest error of a share, weir");
        let worst = worst.map_or(String::new(), |f| format!("; largest error of a share {:.1} %", f.value));
        return format!("{}: pass, {judged} figures{worst}", report.scenario);
    }
    let mut text = String::new();
    let failed: Vec<_> = report.figures.iter().filter(|f| f.pass == Some(false)).collect();
    let _ = write!(text, "{}: falls short in {} of {judged} figures", report.scenario, failed.len());
    for figure in failed {
        let want = figure.want.unwrap_or(f64::NAN);
        let rule = match figure.rule {
            Some(Rule::Within(fraction)) => format!("{want:.2} +- {:.1} %", fraction * 100.0),
            Some(Rule::AtLeast) => format!("at least {want:.3}"),
            Some(Rule::AtMost) => format!("at most {want:.3}"),
            None => String::new(),
        };
        let _ = write!(text, "\n  {}: {:.3} {}, wanted {rule}", figure.name, figure.value, figure.unit);
    }
    text
}

/// The look of all of the lab's tables.
pub(crate) fn new_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Disabled);
    table
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn the_table_shows_expected_measured_and_the_papers_figure() {
        let text = table(&sample("weights-3", 1.01));
        let line = text.lines().find(|l| l.contains("C3") && l.contains("43")).unwrap();
        assert!(line.contains("45.43") && line.contains("45.88") && line.contains("1.0 %"), "{line}");
        let widths: Vec<usize> = text.lines().skip(2).map(|l| l.chars().count()).collect();
        assert!(widths.windows(2).all(|w| w[0] == w[1]), "{text}");
    }

    #[test]
    fn the_verdict_names_what_falls_short_and_by_how_much() {
        let text = verdict(&sample("weights-3", 1.05));
        assert!(text.contains("falls short in 10 of 13"), "{text}");
        assert!(text.contains("1:2:3: C3: 47.701 Mbit/s, wanted 45.43 +- 3.0 %"), "{text}");
        assert!(verdict(&sample("weights-3", 1.0)).contains("pass"));
    }
}
