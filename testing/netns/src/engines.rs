//! The engines, one set of tests for all of them, and what each is held to.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use weir_netlab::topology::Spec;
use weir_units::BitRate;

use crate::{Agent, Config, Need, Node, can_run, containers, needs::WANTED};

pub use weir_datapath::engine::EngineKind;

/// The bounds that tests hold an engine to.
pub trait EngineBounds: Copy {
    /// How far a share may be from section 3's, as a fraction of it; `tso`: with super-packets.
    #[must_use]
    fn tolerance(self, tso: bool) -> f64;

    /// The error that a class may have beside that, for any share.
    ///
    /// HTB gives every class at least a packet a turn: of 95 Mbit/s, a share of 0.1 Mbit/s comes
    /// out as 0.3 beside a class that has 800 times its weight. Departure times have no class
    /// slower than 1000 bytes a second, or its packets would not leave in any time.
    #[must_use]
    fn grain(self) -> BitRate;

    /// The least part of what the capacity allows that must arrive.
    #[must_use]
    fn least_total(self) -> f64;

    /// After this time a change of policies or of demands is in force: at once where the data
    /// path sees who sends, and where the agent must see it, some of its ticks of 100 ms and its
    /// memory of 0.5 s for demands.
    #[must_use]
    fn settles(self) -> Duration;

    /// Whether a packet leaves when the rate of its arrival said, whatever changes while it
    /// waits: then a change is felt behind what is queued.
    #[must_use]
    fn stamps(self) -> bool;

    /// Whether senders wait for their queue instead of losing what it cannot take.
    #[must_use]
    fn holds_back(self) -> bool;

    /// Whether tests of this engine are to run. If not, says why: `SKIPPED` with what this
    /// kernel lacks, or that others were asked for.
    ///
    /// # Panics
    /// If it was asked for by name and cannot run.
    #[must_use]
    fn is_here(self) -> bool;
}

impl EngineBounds for EngineKind {
    fn tolerance(self, tso: bool) -> f64 {
        match (self, tso) {
            (EngineKind::Bpf | EngineKind::Edt, false) => 0.01,
            (EngineKind::Bpf | EngineKind::Edt, true) | (EngineKind::Htb | EngineKind::User, _) => 0.02,
            // One pass gives who has a minimum a part of what a maximum leaves to the others.
            (EngineKind::BpfCredit | EngineKind::PaperCredit, _) => 0.1,
            (EngineKind::Pacing | EngineKind::CreditExperiment, _) => 0.05,
        }
    }

    fn grain(self) -> BitRate {
        match self {
            EngineKind::Htb | EngineKind::User => BitRate::kbit(250),
            EngineKind::Edt => BitRate::kbit(8),
            EngineKind::Bpf
            | EngineKind::BpfCredit
            | EngineKind::PaperCredit
            | EngineKind::Pacing
            | EngineKind::CreditExperiment => BitRate::ZERO,
        }
    }

    fn least_total(self) -> f64 {
        match self {
            EngineKind::Htb | EngineKind::User | EngineKind::Bpf | EngineKind::Edt => 0.99,
            EngineKind::BpfCredit
            | EngineKind::PaperCredit
            | EngineKind::Pacing
            | EngineKind::CreditExperiment => 0.95,
        }
    }

    fn settles(self) -> Duration {
        Duration::from_millis(match self {
            EngineKind::Bpf => 50,
            EngineKind::BpfCredit | EngineKind::PaperCredit => 150,
            EngineKind::Edt => 300,
            EngineKind::Htb | EngineKind::User | EngineKind::Pacing | EngineKind::CreditExperiment => 1000,
        })
    }

    fn stamps(self) -> bool {
        matches!(self, EngineKind::Edt)
    }

    fn holds_back(self) -> bool {
        !matches!(self, EngineKind::Pacing | EngineKind::CreditExperiment)
    }

    fn is_here(self) -> bool {
        let wanted = std::env::var(WANTED).ok();
        let named = wanted.as_ref().map(|list| list.split(',').any(|name| name.trim() == self.name()));
        if named == Some(false) {
            println!("not run: {WANTED} does not name {self}");
            return false;
        }
        if named.is_none() && !can_run(&Need::TRAFFIC) {
            return false;
        }
        match (tried(self), named) {
            (Ok(()), _) => true,
            (Err(why), None) => {
                println!("SKIPPED: engine {self}: {why}");
                false
            }
            (Err(why), Some(_)) => panic!("{WANTED} names {self}, which cannot run here: {why}"),
        }
    }
}

/// Starts an agent with it, once a process: what its logs say if it cannot.
fn tried(engine: EngineKind) -> Result<(), String> {
    static FOUND: Mutex<Option<HashMap<EngineKind, Result<(), String>>>> = Mutex::new(None);
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let found = found.get_or_insert_default();
    found.entry(engine).or_insert_with(|| start_once(engine)).clone()
}

fn start_once(engine: EngineKind) -> Result<(), String> {
    let node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let config = node.config().link(&engine.to_toml());
    let agent = Agent::start(node.topology.node(), &config).map_err(|e| {
        let text = format!("{e:#}");
        text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it did not start").to_owned()
    })?;
    let status = agent.client().status().map_err(|e| e.to_string())?;
    if status.engine == engine.name() {
        Ok(())
    } else {
        Err(format!("the agent uses {} instead: {}", status.engine, status.warnings.join("; ")))
    }
}

impl Config {
    /// The same with that engine.
    #[must_use]
    pub fn engine(self, engine: EngineKind) -> Config {
        self.link(&engine.to_toml())
    }
}

/// Makes tests of functions that take an [`EngineKind`]: one for each engine, in a module of its
/// name, which returns at once where the engine cannot run. After `queues:`, only for those
/// that keep minima and maxima exactly with a queue: `htb`, `bpf` and `edt`.
#[macro_export]
macro_rules! for_each_engine {
    (@in $module:ident $engine:ident $($test:ident),+) => {
        mod $module {
            $(#[test]
            fn $test() {
                if $crate::EngineBounds::is_here($crate::EngineKind::$engine) {
                    super::$test($crate::EngineKind::$engine);
                }
            })+
        }
    };
    (queues: $($test:ident),+ $(,)?) => {
        $crate::for_each_engine!(@in htb Htb $($test),+);
        $crate::for_each_engine!(@in bpf Bpf $($test),+);
        $crate::for_each_engine!(@in edt Edt $($test),+);
    };
    ($($test:ident),+ $(,)?) => {
        $crate::for_each_engine!(queues: $($test),+);
        $crate::for_each_engine!(@in bpf_credit BpfCredit $($test),+);
        $crate::for_each_engine!(@in pacing Pacing $($test),+);
        $crate::for_each_engine!(@in user User $($test),+);
    };
}
