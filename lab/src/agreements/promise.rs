//! Agreements with a running agent, made in a customer's way: an offer in XML for each consumer. The offer is
//! the paper's Fig. 2 with the consumer's port.

use std::{fmt::Write as _, fs, time::Duration, time::Instant};

use anyhow::{Context as _, Result, bail};
use weir_agree::{Context, Document, Language, Name, Offer, Protocol, Selector, Service, Terms};
use weir_netlab::{
    interrupt,
    topology::{Proc, Topology, command, last_words},
};
use weir_units::BitRate;

use super::scenario::{Case, Scenario};

use crate::{
    control::{self, Agent, AgentSetup, kind::ControlKind},
    options::Options,
};

/// Time limit for agreements to come into force.
const READY_TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);
/// A class's queue holds a whole answer, like tc's 1000 packets. Slow start fills more than the default of 50
/// ms, and a loss at an answer's end costs a time-out.
const QUEUES: &str = "delay_ms = 200\n";

/// The offer of the consumer at a port, with this rate as floor and ceiling.
///
/// # Errors
/// If a name is invalid, which does not happen.
pub(crate) fn offer(port: u16, rate: BitRate) -> Result<Offer> {
    let selector = Selector { protocol: Some(Protocol::Tcp), source_port: Some(port), ..Selector::default() };
    Ok(Offer {
        id: None,
        name: None,
        context: Context {
            initiator: Name::new(&format!("consumer-{port}"))?,
            responder: None,
            expiration: None,
            template_id: None,
            template_name: None,
        },
        service: Service::new(Name::new("server_parameters")?, Name::new("httpd")?),
        terms: Terms { selector, ..Terms::new(rate, rate) },
    })
}

/// An agent that has accepted the agreements of a case and enforces them. A case without promises has no
/// agreements.
pub(super) fn agree(
    topology: &Topology,
    scenario: &Scenario,
    case: &Case,
    kind: ControlKind,
    options: &Options,
) -> Result<Agent> {
    let sections = if case.agreements.is_empty() { String::new() } else { section(scenario, case) };
    let setup = AgentSetup::new(&options.weir, topology, scenario.divided())
        .link(&format!("{QUEUES}{}", control::link(kind, options)))
        .sections(&sections);
    let agent = Agent::start(&setup)?;
    let dir = tempfile::tempdir().context("cannot create a directory for offers")?;
    for (port, rate) in case.promised() {
        let file = dir.path().join(format!("offer-{port}.xml"));
        fs::write(&file, offer(port, rate)?.write(Language::Xml)).context("cannot write an offer")?;
        let mut customer = command(&options.weir.to_string_lossy());
        customer.arg("--socket").arg(agent.client().address()).args(["agree", "offer"]).arg(&file);
        let mut customer = Proc::start(customer)?;
        let deadline = Instant::now() + READY_TIMEOUT;
        if let Err(error) = customer.finish(deadline) {
            let words = customer.output().map(|output| last_words(&output)).unwrap_or_default();
            return Err(error.context(format!("the offer of {rate} at port {port} is not accepted: {words}")));
        }
    }
    wait_until_in_force(&agent, case.agreements.len())?;
    Ok(agent)
}

/// The section of the configuration. U_res is the promised part and U_oth the others' part; together they may
/// be the whole line.
fn section(scenario: &Scenario, case: &Case) -> String {
    let part = |rate: u64| rate as f64 / scenario.divided().bits_per_sec() as f64;
    let promised = part(case.agreements.iter().map(|rate| rate.bits_per_sec()).sum());
    let mut text = format!("[agreements]\nreservable = {promised}\ntogether = 1.0\n");
    let _ = match case.other {
        Some(other) => {
            let other = part(other.bits_per_sec());
            writeln!(text, "other = {other}\nother_is_ceiling = true")
        }
        None => writeln!(text, "other = 0.0"),
    };
    text
}

fn wait_until_in_force(agent: &Agent, count: usize) -> Result<()> {
    let deadline = Instant::now() + READY_TIMEOUT;
    loop {
        interrupt::check()?;
        let agreements = if count == 0 { Vec::new() } else { agent.client().agreements()? };
        let lacking = agreements.iter().find_map(|one| match &one.not_enforced_because {
            Some(why) => Some(why.clone()),
            None => one.class.is_none().then(|| format!("agreement {} has no class", one.agreement.id)),
        });
        if agreements.len() == count && lacking.is_none() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let why = lacking.unwrap_or_else(|| format!("there are {} of {count}", agreements.len()));
            bail!("agreements are not enforced after {} s: {why}", READY_TIMEOUT.as_secs());
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_is_the_papers_figure_2_and_a_port() {
        let text = offer(8001, BitRate::mbit(19)).unwrap().write(Language::Xml);
        for words in ["unit=\"Mbps\"", ">19</qos:NetMinBandwidth>", "<weir:SourcePort>8001</weir:SourcePort>"]
        {
            assert!(text.replace(' ', "").contains(&words.replace(' ', "")), "{words}: {text}");
        }
        let read = Offer::read(&text, Language::Xml).unwrap();
        assert_eq!(read, offer(8001, BitRate::mbit(19)).unwrap());
        assert_eq!((read.terms.min, read.terms.max), (BitRate::mbit(19), BitRate::mbit(19)));
    }

    #[test]
    fn promises_and_the_rest_are_parts_of_the_line() {
        let text = include_str!("../../scenarios/sla-C.toml");
        let mut scenario: Scenario = toml::from_str(text).unwrap();
        let said = section(&scenario, &scenario.cases[0]);
        assert_eq!(
            said,
            "[agreements]\nreservable = 0.95\ntogether = 1.0\nother = 0.05\nother_is_ceiling = true\n"
        );
        scenario.cases[0].other = None;
        assert!(section(&scenario, &scenario.cases[0]).ends_with("other = 0.0\n"));
    }
}
