//! The engines, one set of tests for all of them, and what each is held to.

use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use weir_netlab::topology::Spec;
use weir_units::BitRate;

use crate::{Agent, Config, Need, Node, can_run, containers, needs::WANTED};

/// An engine, as `[link] engine` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Engine {
    /// HTB.
    Htb,
    /// The BPF qdisc.
    Bpf,
    /// The BPF qdisc in qCon's own form: turns, as long as there is credit.
    BpfCredit,
    /// Earliest departure times and fq.
    Edt,
    /// Paced sockets, and credits for what is not TCP; no queue of its own.
    Pacing,
    /// The token bucket tree in the agent's process.
    User,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Engine {
    /// All of them.
    pub const ALL: [Engine; 6] =
        [Engine::Htb, Engine::Bpf, Engine::BpfCredit, Engine::Edt, Engine::Pacing, Engine::User];

    /// As the configuration writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Engine::Htb => "htb",
            Engine::Bpf => "bpf",
            Engine::BpfCredit => "bpf-credit",
            Engine::Edt => "edt",
            Engine::Pacing => "pacing",
            Engine::User => "user",
        }
    }

    /// How far a share may be from section 3's, as a fraction of it; `tso`: with super-packets.
    #[must_use]
    pub const fn tolerance(self, tso: bool) -> f64 {
        match (self, tso) {
            (Engine::Bpf | Engine::Edt, false) => 0.01,
            (Engine::Bpf | Engine::Edt, true) | (Engine::Htb | Engine::User, _) => 0.02,
            // One pass gives who has a minimum a part of what a maximum leaves to the others.
            (Engine::BpfCredit, _) => 0.1,
            (Engine::Pacing, _) => 0.05,
        }
    }

    /// The error that a class may have beside that, for any share.
    ///
    /// HTB gives every class at least a packet a turn: of 95 Mbit/s, a share of 0.1 Mbit/s comes
    /// out as 0.3 beside a class that has 800 times its weight. Departure times have no class
    /// slower than 1000 bytes a second, or its packets would not leave in any time.
    #[must_use]
    pub const fn grain(self) -> BitRate {
        match self {
            Engine::Htb | Engine::User => BitRate::kbit(250),
            Engine::Edt => BitRate::kbit(8),
            Engine::Bpf | Engine::BpfCredit | Engine::Pacing => BitRate::ZERO,
        }
    }

    /// The least part of what the capacity allows that must arrive.
    #[must_use]
    pub const fn least_total(self) -> f64 {
        match self {
            Engine::Htb | Engine::User | Engine::Bpf | Engine::Edt => 0.99,
            Engine::BpfCredit | Engine::Pacing => 0.95,
        }
    }

    /// After this time a change of policies or of demands is in force: at once where the data
    /// path sees who sends, and where the agent must see it, some of its ticks of 100 ms and its
    /// memory of 0.5 s for demands.
    #[must_use]
    pub const fn settles(self) -> Duration {
        Duration::from_millis(match self {
            Engine::Bpf => 50,
            Engine::BpfCredit => 150,
            Engine::Edt => 300,
            Engine::Htb | Engine::User | Engine::Pacing => 1000,
        })
    }

    /// Whether a packet leaves when the rate of its arrival said, whatever changes while it
    /// waits: then a change is felt behind what is queued.
    #[must_use]
    pub const fn stamps(self) -> bool {
        matches!(self, Engine::Edt)
    }

    /// Whether it goes on without an agent. The one that is a part of the agent ends with it, and
    /// traffic flows on unshared.
    #[must_use]
    pub const fn outlives_agent(self) -> bool {
        !matches!(self, Engine::User)
    }

    /// Whether senders wait for their queue instead of losing what it cannot take.
    #[must_use]
    pub const fn holds_back(self) -> bool {
        !matches!(self, Engine::Pacing)
    }

    /// The line of `[link]` that chooses it.
    #[must_use]
    pub fn to_toml(self) -> String {
        format!("engine = \"{self}\"")
    }

    /// Whether tests of this engine are to run. If not, says why: `SKIPPED` with what this
    /// kernel lacks, or that others were asked for.
    ///
    /// # Panics
    /// If it was asked for by name and cannot run.
    #[must_use]
    pub fn is_here(self) -> bool {
        let wanted = std::env::var(WANTED).ok();
        let named = wanted.as_ref().map(|list| list.split(',').any(|name| name.trim() == self.name()));
        if named == Some(false) {
            println!("not run: {WANTED} does not name {self}");
            return false;
        }
        if named.is_none() && !can_run(&Need::TRAFFIC) {
            return false;
        }
        match (self.tried(), named) {
            (Ok(()), _) => true,
            (Err(why), None) => {
                println!("SKIPPED: engine {self}: {why}");
                false
            }
            (Err(why), Some(_)) => panic!("{WANTED} names {self}, which cannot run here: {why}"),
        }
    }

    /// Starts an agent with it, once a process: what its logs say if it cannot.
    fn tried(self) -> Result<(), String> {
        static FOUND: Mutex<Option<HashMap<Engine, Result<(), String>>>> = Mutex::new(None);
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        let found = found.get_or_insert_default();
        found.entry(self).or_insert_with(|| self.start_once()).clone()
    }

    fn start_once(self) -> Result<(), String> {
        let node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
        let config = node.config().link(&self.to_toml());
        let agent = Agent::start(node.topology.node(), &config).map_err(|e| {
            let text = format!("{e:#}");
            text.lines()
                .map(str::trim)
                .rfind(|line| !line.is_empty())
                .unwrap_or("it did not start")
                .to_owned()
        })?;
        let status = agent.client().status().map_err(|e| e.to_string())?;
        if status.engine == self.name() {
            Ok(())
        } else {
            Err(format!("the agent uses {} instead: {}", status.engine, status.warnings.join("; ")))
        }
    }
}

impl Config {
    /// The same with that engine.
    #[must_use]
    pub fn engine(self, engine: Engine) -> Config {
        self.link(&engine.to_toml())
    }
}

/// Makes tests of functions that take an [`Engine`]: one for each engine, in a module of its
/// name, which returns at once where the engine cannot run. After `queues:`, only for those
/// that keep minima and maxima exactly with a queue: `htb`, `bpf` and `edt`.
#[macro_export]
macro_rules! for_each_engine {
    (@in $module:ident $engine:ident $($test:ident),+) => {
        mod $module {
            $(#[test]
            fn $test() {
                if $crate::Engine::$engine.is_here() {
                    super::$test($crate::Engine::$engine);
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
