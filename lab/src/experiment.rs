//! All experiments that `weir lab run` knows: shares, their cost, promises, completion times, the speed of
//! the scheduler in user space, and simulations of image caches.

use std::{fs, path::Path};

use crate::{
    agreements, cost, edge_cloud, image_cache,
    scenario::{self, Scenario, ScenarioError},
    user_htb,
};

/// The built-in experiments about costs.
const COSTS: [(&str, &str); 3] = [
    ("cpu", include_str!("../scenarios/cpu.toml")),
    ("cpu-even", include_str!("../scenarios/cpu-even.toml")),
    ("latency", include_str!("../scenarios/latency.toml")),
];

/// The built-in experiments about promised bandwidth.
const PROMISES: [(&str, &str); 7] = [
    ("sla-A", include_str!("../scenarios/sla-A.toml")),
    ("sla-B", include_str!("../scenarios/sla-B.toml")),
    ("sla-C", include_str!("../scenarios/sla-C.toml")),
    ("sla-D", include_str!("../scenarios/sla-D.toml")),
    ("sla-E", include_str!("../scenarios/sla-E.toml")),
    ("sla-sum", include_str!("../scenarios/sla-sum.toml")),
    ("sla-vm", include_str!("../scenarios/sla-vm.toml")),
];

/// The built-in experiments about completion times.
const COMPLETIONS: [(&str, &str); 11] = [
    ("ecc-cubic", include_str!("../scenarios/ecc-cubic.toml")),
    ("ecc-bbr", include_str!("../scenarios/ecc-bbr.toml")),
    ("ecc-mix", include_str!("../scenarios/ecc-mix.toml")),
    ("ecc-weir", include_str!("../scenarios/ecc-weir.toml")),
    ("ecc-shallow", include_str!("../scenarios/ecc-shallow.toml")),
    ("ecc-loss", include_str!("../scenarios/ecc-loss.toml")),
    ("ecc-access", include_str!("../scenarios/ecc-access.toml")),
    ("ecc-mice", include_str!("../scenarios/ecc-mice.toml")),
    ("ecc-mice-deep", include_str!("../scenarios/ecc-mice-deep.toml")),
    ("ecc-real", include_str!("../scenarios/ecc-real.toml")),
    ("ecc-sweep", include_str!("../scenarios/ecc-sweep.toml")),
];

/// The built-in experiments about advice.
const ADVICE: [(&str, &str); 1] = [("ecc-advice", include_str!("../scenarios/ecc-advice.toml"))];

/// The built-in experiments about the speed of the scheduler.
const PACKETS: [(&str, &str); 9] = [
    ("phtb-1", include_str!("../scenarios/phtb-1.toml")),
    ("phtb-2", include_str!("../scenarios/phtb-2.toml")),
    ("phtb-3", include_str!("../scenarios/phtb-3.toml")),
    ("phtb-4", include_str!("../scenarios/phtb-4.toml")),
    ("phtb-5", include_str!("../scenarios/phtb-5.toml")),
    ("phtb-6", include_str!("../scenarios/phtb-6.toml")),
    ("phtb-1600", include_str!("../scenarios/phtb-1600.toml")),
    ("phtb-few", include_str!("../scenarios/phtb-few.toml")),
    ("phtb-real", include_str!("../scenarios/phtb-real.toml")),
];

/// The built-in simulations of image caches.
const IMAGES: [(&str, &str); 3] = [
    ("pop-hits", include_str!("../scenarios/pop-hits.toml")),
    ("pop-macro", include_str!("../scenarios/pop-macro.toml")),
    ("pop-policies", include_str!("../scenarios/pop-policies.toml")),
];

/// The built-in experiments with image caches, real daemons and real pulls.
const SITES: [(&str, &str); 2] = [
    ("pop-micro", include_str!("../scenarios/pop-micro.toml")),
    ("pop-real", include_str!("../scenarios/pop-real.toml")),
];

/// A scenario file of any kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Experiment {
    /// The share of each container.
    Shares(Box<Scenario>),
    /// The cost of shaping: files with the key `measures`.
    Cost(Box<cost::Scenario>),
    /// Whether promises are kept: files with `measures = "transmission"`.
    Promise(Box<agreements::Scenario>),
    /// Completion times of flows and jobs: files with `measures = "completion"`.
    Completion(Box<edge_cloud::Scenario>),
    /// The quality of advice about congestion control: files with `measures = "advice"`.
    Advice(Box<edge_cloud::advice::Scenario>),
    /// The speed of the scheduler: files with `measures = "packets"`.
    Packets(Box<user_htb::Scenario>),
    /// The hits of an image cache: files with `measures = "image-..."`. Simulated; needs no rights.
    Images(Box<image_cache::Scenario>),
    /// Deployment times of Docker and containerd: files with `measures = "deployments"`.
    Deployments(Box<image_cache::real::Deployments>),
    /// The hits of real caches: files with `measures = "replay"`.
    Replay(Box<image_cache::real::Replayed>),
}

/// All built-in experiments.
///
/// # Panics
/// If one of them does not parse; a test excludes it.
#[must_use]
pub fn built_in() -> Vec<Experiment> {
    let shares = scenario::built_in().into_iter().map(|s| Experiment::Shares(Box::new(s)));
    let others = COSTS.iter().chain(&PROMISES).chain(&COMPLETIONS).chain(&ADVICE).chain(&PACKETS);
    let others = others.chain(&IMAGES).chain(&SITES);
    let others = others.map(|(name, text)| {
        Experiment::parse(text, name).unwrap_or_else(|e| panic!("built-in scenario: {e}"))
    });
    shares.chain(others).collect()
}

/// Finds a built-in experiment by name, or reads one from the path of a `.toml` file.
///
/// # Errors
/// [`ScenarioError`].
pub fn find(name: &str) -> Result<Experiment, ScenarioError> {
    if Path::new(name).extension().is_some_and(|e| e == "toml") {
        let text = fs::read_to_string(name)
            .map_err(|source| ScenarioError::Read { path: name.to_owned(), source })?;
        return Experiment::parse(&text, name);
    }
    let all = built_in();
    match all.iter().find(|experiment| experiment.name() == name) {
        Some(found) => Ok(found.clone()),
        None => Err(ScenarioError::Unknown {
            name: name.to_owned(),
            known: all.iter().map(|experiment| experiment.name().to_owned()).collect(),
        }),
    }
}

impl Experiment {
    fn parse(text: &str, origin: &str) -> Result<Experiment, ScenarioError> {
        let syntax = |source| ScenarioError::Syntax { origin: origin.to_owned(), source: Box::new(source) };
        let table: toml::Table = toml::from_str(text).map_err(syntax)?;
        if !table.contains_key("measures") {
            return Ok(Experiment::Shares(Box::new(Scenario::parse(text, origin)?)));
        }
        if table["measures"].as_str().is_some_and(|what| what.starts_with("image-")) {
            let images: image_cache::Scenario = toml::from_str(text).map_err(syntax)?;
            return match images.fault() {
                Some(what) => Err(ScenarioError::Shape { scenario: images.name, what }),
                None => Ok(Experiment::Images(Box::new(images))),
            };
        }
        if table["measures"].as_str() == Some("deployments") {
            let real: image_cache::real::Deployments = toml::from_str(text).map_err(syntax)?;
            return match real.fault() {
                Some(what) => Err(ScenarioError::Shape { scenario: real.name, what }),
                None => Ok(Experiment::Deployments(Box::new(real))),
            };
        }
        if table["measures"].as_str() == Some("replay") {
            let real: image_cache::real::Replayed = toml::from_str(text).map_err(syntax)?;
            return match real.fault() {
                Some(what) => Err(ScenarioError::Shape { scenario: real.name, what }),
                None => Ok(Experiment::Replay(Box::new(real))),
            };
        }
        if table["measures"].as_str() == Some("transmission") {
            let promise: agreements::Scenario = toml::from_str(text).map_err(syntax)?;
            return match promise.fault() {
                Some(what) => Err(ScenarioError::Shape { scenario: promise.name, what }),
                None => Ok(Experiment::Promise(Box::new(promise))),
            };
        }
        if table["measures"].as_str() == Some("completion") {
            let completion: edge_cloud::Scenario = toml::from_str(text).map_err(syntax)?;
            return match completion.fault() {
                Some(what) => Err(ScenarioError::Shape { scenario: completion.name, what }),
                None => Ok(Experiment::Completion(Box::new(completion))),
            };
        }
        if table["measures"].as_str() == Some("advice") {
            let advice: edge_cloud::advice::Scenario = toml::from_str(text).map_err(syntax)?;
            return match advice.fault() {
                Some(what) => Err(ScenarioError::Shape { scenario: advice.name, what }),
                None => Ok(Experiment::Advice(Box::new(advice))),
            };
        }
        if table["measures"].as_str() == Some("packets") {
            let packets: user_htb::Scenario = toml::from_str(text).map_err(syntax)?;
            return match packets.fault() {
                Some(what) => Err(ScenarioError::Shape { scenario: packets.name, what }),
                None => Ok(Experiment::Packets(Box::new(packets))),
            };
        }
        let cost: cost::Scenario = toml::from_str(text).map_err(syntax)?;
        if cost.busy.is_empty() || cost.busy.contains(&0) || cost.controls.is_empty() || cost.seconds == 0 {
            let what =
                "busy, controls and seconds say what is measured: none may be empty or zero".to_owned();
            return Err(ScenarioError::Shape { scenario: cost.name, what });
        }
        Ok(Experiment::Cost(Box::new(cost)))
    }

    /// The name for `weir lab run`.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Experiment::Shares(s) => &s.name,
            Experiment::Cost(s) => &s.name,
            Experiment::Promise(s) => &s.name,
            Experiment::Completion(s) => &s.name,
            Experiment::Advice(s) => &s.name,
            Experiment::Packets(s) => &s.name,
            Experiment::Images(s) => &s.name,
            Experiment::Deployments(s) => &s.name,
            Experiment::Replay(s) => &s.name,
        }
    }

    /// A title of one line, and the source of the experiment.
    #[must_use]
    pub fn title(&self) -> (&str, &str) {
        match self {
            Experiment::Shares(s) => (&s.title, &s.source),
            Experiment::Cost(s) => (&s.title, &s.source),
            Experiment::Promise(s) => (&s.title, &s.source),
            Experiment::Completion(s) => (&s.title, &s.source),
            Experiment::Advice(s) => (&s.title, &s.source),
            Experiment::Packets(s) => (&s.title, &s.source),
            Experiment::Images(s) => (&s.title, &s.source),
            Experiment::Deployments(s) => (&s.title, &s.source),
            Experiment::Replay(s) => (&s.title, &s.source),
        }
    }

    /// The purpose of the experiment.
    #[must_use]
    pub fn about(&self) -> &str {
        match self {
            Experiment::Shares(s) => s.about.trim(),
            Experiment::Cost(s) => s.about.trim(),
            Experiment::Promise(s) => s.about.trim(),
            Experiment::Completion(s) => s.about.trim(),
            Experiment::Advice(s) => s.about.trim(),
            Experiment::Packets(s) => s.about.trim(),
            Experiment::Images(s) => s.about.trim(),
            Experiment::Deployments(s) => s.about.trim(),
            Experiment::Replay(s) => s.about.trim(),
        }
    }

    /// The number of cases and the seconds of each; 0 s if the machine decides or there is no such time.
    #[must_use]
    pub fn cases(&self) -> (usize, u64) {
        match self {
            Experiment::Shares(s) => (s.cases.len(), s.seconds),
            Experiment::Cost(s) => (s.steps() / s.controls.len(), s.seconds),
            Experiment::Promise(s) => (s.cases.len(), s.seconds),
            Experiment::Completion(s) => (s.cases.len() * s.points().len(), 0),
            Experiment::Advice(s) => (s.links.len(), 0),
            Experiment::Packets(_) => (1, 0),
            Experiment::Images(s) => (s.zones.len(), 0),
            Experiment::Deployments(s) => (s.stores.len() * s.images.len(), 0),
            Experiment::Replay(s) => (s.zones.len(), 0),
        }
    }

    /// The number of measurements.
    #[must_use]
    pub fn steps(&self) -> usize {
        match self {
            Experiment::Shares(s) => s.cases.len() * s.controls.len(),
            Experiment::Cost(s) => s.steps(),
            Experiment::Promise(s) => s.steps(),
            Experiment::Completion(s) => s.steps(),
            Experiment::Advice(s) => s.steps(),
            Experiment::Packets(s) => s.steps(),
            Experiment::Images(s) => s.steps(),
            Experiment::Deployments(s) => s.steps(),
            Experiment::Replay(s) => s.steps(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_experiments_are_found_under_their_names() {
        for experiment in built_in() {
            assert_eq!(find(experiment.name()).unwrap(), experiment);
        }
        assert!(matches!(find("cpu").unwrap(), Experiment::Cost(_)));
        assert!(matches!(find("pop-hits").unwrap(), Experiment::Images(_)));
        let error = find("lattency").unwrap_err().to_string();
        assert!(error.contains("weights-3") && error.contains("cpu, cpu-even, latency, sla-A"), "{error}");
    }

    #[test]
    fn an_experiment_about_nothing_is_refused() {
        let text = COSTS[0].1.replace("\nseconds = 1", "\nseconds = 0");
        let error = Experiment::parse(&text, "cpu").unwrap_err().to_string();
        assert!(error.contains("none may be empty or zero"), "{error}");
        let error = Experiment::parse(&COSTS[0].1.replace("judged =", "jugded ="), "cpu").unwrap_err();
        assert!(error.to_string().contains("jugded"), "{error}");
        let text = PROMISES[2].1.replacen("\"19mbit\",", "\"79mbit\",", 1);
        let error = Experiment::parse(&text, "sla-C").unwrap_err().to_string();
        assert!(error.contains("promises 160") && error.contains("a line of 100"), "{error}");
        let text = COMPLETIONS[0].1.replacen("up = 0.5", "up = 0.9", 1);
        let error = Experiment::parse(&text, "ecc-cubic").unwrap_err().to_string();
        assert!(error.contains("of the volume"), "{error}");
        let text = ADVICE[0].1.replacen("share = 0.25", "share = 0.9", 1);
        let error = Experiment::parse(&text, "ecc-advice").unwrap_err().to_string();
        assert!(error.contains("share = 0.9 is not between"), "{error}");
        let text = IMAGES[0].1.replacen("name = \"fra\"", "name = \"par\"", 1);
        let error = Experiment::parse(&text, "pop-hits").unwrap_err().to_string();
        assert!(error.contains("no zone par"), "{error}");
    }
}
