//! TCP connections of weir's classes use the congestion control that rules say.
//!
//! One program, at the root of the cgroup v2 hierarchy, sees all sockets connect, wherever they
//! are; whose they are it knows by their network namespace's cookie, which a container cannot
//! change, and in the node's own namespace by their cgroup. Programs of others stay where they are.
//! To learn a namespace's cookie, and to visit the connections in it that are there already, a
//! thread joins it and ends right after; in the container nothing is run or changed.

pub mod shapes;

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socket, sockopt::TcpCongestion},
};
use weir_bpf::{
    Congestion as Programs, CongestionConfig, CongestionCounts, CongestionRecord, CongestionRule,
    CongestionTrial, EarlierCongestion, attach,
};
use weir_discovery::{NetnsRef, NsId, cgroup::CgroupError};

use crate::pacing::{DEAD_NS, PacingError, Root, in_each, namespaces, now_ns, visit};

/// Algorithms that this kernel has now.
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// Congestion control cannot be chosen.
#[derive(Debug, thiserror::Error)]
pub enum CongestionError {
    /// There is no hierarchy to attach to.
    #[error("cannot choose congestion control without cgroup v2")]
    Cgroup(#[source] CgroupError),
    /// Its root, or the own network namespace, cannot be opened.
    #[error("cannot choose congestion control: cannot open {path}")]
    Root {
        /// The path.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A BPF program or map.
    #[error(transparent)]
    Bpf(#[from] weir_bpf::Error),
    /// The program could not be attached.
    #[error("cannot attach weir's program for congestion control at the root of cgroup v2: {errno}")]
    Attach {
        /// The kernel's reason.
        errno: Errno,
    },
}

/// Finding the root tells of sockets that are paced.
impl From<PacingError> for CongestionError {
    fn from(error: PacingError) -> CongestionError {
        match error {
            PacingError::Cgroup(why) => CongestionError::Cgroup(why),
            PacingError::Root { path, source } => CongestionError::Root { path, source },
            PacingError::Bpf(why) => CongestionError::Bpf(why),
            PacingError::Attach { errno } => CongestionError::Attach { errno },
        }
    }
}

/// The sockets to tell apart, and by which key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SocketOwners {
    /// The class of the node's own sockets, by its handle.
    pub host: u32,
    /// Of all sockets in these network namespaces.
    pub namespaces: Vec<(NetnsRef, u32)>,
    /// Of sockets in the node's own namespace, by cgroup id.
    pub cgroups: BTreeMap<u64, u32>,
    /// Bit n: there are classes at depth n of the cgroup tree.
    pub levels: u32,
}

/// The names of the algorithms that the kernel has loaded.
#[must_use]
pub fn available() -> Vec<String> {
    let text = std::fs::read_to_string(AVAILABLE).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

/// The algorithm of connections without a rule or a choice of their application; none if it is not
/// to be read.
#[must_use]
pub fn system_default() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").ok()?;
    Some(text.trim().to_owned())
}

/// Whether the kernel has an algorithm, loading its module if need be, and lets it be set by a
/// program.
///
/// # Errors
/// `ENOENT`: it has none of that name. `cdg` is refused with `ENOTSUP`: no program may set it.
pub fn try_algorithm(name: &str) -> Result<(), Errno> {
    if name == "cdg" {
        return Err(Errno::ENOTSUP);
    }
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, TcpCongestion, &name.into())
}

/// The programs, attached as soon as there is something for them to do.
pub struct Congestion {
    programs: Programs,
    root: Root,
    config: CongestionConfig,
    /// The programs of an earlier agent: for socket events, and for what applications say.
    earlier: [Option<u32>; 2],
    /// And this one's, as soon as they are attached.
    attached: [Option<u32>; 2],
    /// Why applications cannot say how much they will send, if so.
    deaf: Option<String>,
    /// By cookie: the class of a namespace.
    owners: BTreeMap<u64, u32>,
    /// The namespaces, to visit them.
    known: Vec<NetnsRef>,
    cgroups: BTreeMap<u64, u32>,
    rules: Option<Vec<CongestionRule>>,
    /// By slot: the greatest number of draws, as written.
    limits: [u64; CongestionTrial::SLOTS],
}

impl Congestion {
    /// Loads the programs, with what an earlier agent of this network namespace has left.
    ///
    /// # Errors
    /// [`CongestionError`].
    pub fn open() -> Result<Congestion, CongestionError> {
        let (own, root) = Congestion::root()?;
        let earlier = EarlierCongestion::all(root.dir.as_fd()).into_iter().find(|e| e.owner == own.ino);
        let programs = Programs::load(earlier.as_ref())?;
        // Flows that an earlier agent has left are compared with the rules again.
        #[allow(clippy::cast_possible_truncation)]
        let generation = (now_ns() >> 20) as u32;
        let config = CongestionConfig {
            alive_ns: now_ns(),
            owner: own.ino,
            generation,
            ..CongestionConfig::default()
        };
        programs.configure(&config)?;
        Ok(Congestion {
            programs,
            root,
            config,
            earlier: earlier.map_or([None; 2], |e| [Some(e.program), e.hints]),
            attached: [None; 2],
            deaf: None,
            owners: BTreeMap::new(),
            known: Vec::new(),
            cgroups: BTreeMap::new(),
            rules: None,
            limits: [0; CongestionTrial::SLOTS],
        })
    }

    /// Whether an earlier agent of this network namespace has left its program.
    #[must_use]
    pub fn is_left() -> bool {
        Congestion::root().is_ok_and(|(own, root)| {
            EarlierCongestion::all(root.dir.as_fd()).iter().any(|earlier| earlier.owner == own.ino)
        })
    }

    fn root() -> Result<(NsId, Root), CongestionError> {
        let own = NsId::own()
            .map_err(|source| CongestionError::Root { path: "/proc/self/ns/net".into(), source })?;
        Ok((own, Root::find(own)?))
    }

    /// Puts rules in force for the sockets of these classes, all of them at once. New connections
    /// follow them; a change that is still to come in a flow follows them too. Comes back with
    /// what could not be done.
    ///
    /// # Errors
    /// [`CongestionError`]: the old rules are in force.
    pub fn apply(
        &mut self,
        owners: &SocketOwners,
        rules: &[CongestionRule],
    ) -> Result<Vec<String>, CongestionError> {
        let mut failures = self.settle(owners)?;
        if self.rules.as_deref() != Some(rules) {
            let set = if self.config.set == 1 { 2 } else { 1 };
            self.programs.load_rules(set, rules)?;
            self.config.kinds = rules.iter().fold(0, |kinds, rule| kinds | 1 << rule.kind());
            self.config.set = set;
            self.config.generation = self.config.generation.wrapping_add(1);
            self.rules = Some(rules.to_vec());
        }
        self.beat()?;
        if self.attached[0].is_none() {
            self.attach()?;
        }
        failures.extend(self.deaf.clone());
        Ok(failures)
    }

    /// Has some of the connections that begin try other algorithms: these, and no others.
    ///
    /// # Errors
    /// [`CongestionError`]; what was tried is tried no more.
    pub fn try_out(&mut self, trials: &[CongestionTrial]) -> Result<(), CongestionError> {
        self.config.trials = 0;
        self.beat()?;
        self.programs.load_trials(trials)?;
        self.config.trials = u32::try_from(trials.len()).unwrap_or(0);
        self.beat()
    }

    /// How many connections were drawn in trials of a slot, since the programs were loaded.
    ///
    /// # Errors
    /// [`CongestionError`].
    pub fn drawn(&self, slot: u32) -> Result<u64, CongestionError> {
        Ok(self.programs.drawn(slot)?)
    }

    /// Has no connection of a slot be drawn beyond this number, since the programs were loaded.
    ///
    /// # Errors
    /// [`CongestionError`]: the limit before stays.
    pub fn limit_drawn(&mut self, slot: u32, most: u64) -> Result<(), CongestionError> {
        let Some(written) = self.limits.get_mut(slot as usize).filter(|written| **written != most) else {
            return Ok(());
        };
        self.programs.limit_drawn(slot, most)?;
        *written = most;
        Ok(())
    }

    fn attach(&mut self) -> Result<(), CongestionError> {
        let error = |errno| CongestionError::Attach { errno };
        let dir = self.root.dir.as_fd();
        let (events, hints) = (self.programs.program(), self.programs.hints());
        attach::attach_sock_ops(&events, dir, self.earlier[0].take()).map_err(error)?;
        self.attached[0] = Some(attach::program_id(&events).map_err(error)?);
        // Without it rules are in force all the same.
        let heard = attach::attach_socket_options(&hints, dir, self.earlier[1].take());
        self.attached[1] = heard.and_then(|()| attach::program_id(&hints)).ok();
        self.deaf = heard.err().map(|errno| {
            format!("applications cannot say how much they will send: weir's program for that cannot be attached: {errno}")
        });
        // Programs that agents of vanished namespaces left.
        let living = namespaces();
        for left in EarlierCongestion::all(dir) {
            if !living.contains(&left.owner) && now_ns().saturating_sub(left.alive_ns) > DEAD_NS {
                // Another agent may have been quicker.
                let _ = attach::detach_sock_ops(left.program, dir);
                let _ = left.hints.map(|hints| attach::detach_socket_options(hints, dir));
            }
        }
        Ok(())
    }

    /// Tells the programs whose sockets are whose.
    fn settle(&mut self, owners: &SocketOwners) -> Result<Vec<String>, CongestionError> {
        let own = NetnsRef { path: "/proc/self/ns/net".into(), id: self.root.owner };
        let all: Vec<(&NetnsRef, u32)> = [(&own, owners.host)]
            .into_iter()
            .chain(owners.namespaces.iter().map(|(netns, handle)| (netns, *handle)))
            .collect();
        let places: Vec<&NetnsRef> = all.iter().map(|(netns, _)| *netns).collect();
        let mut failures = Vec::new();
        let mut wanted = BTreeMap::new();
        for ((netns, handle), found) in
            all.iter().zip(in_each(&places, || cookie().map_err(|e| e.to_string())))
        {
            match found {
                Ok(cookie) => {
                    if netns.id == self.root.owner {
                        self.config.host_cookie = cookie;
                    }
                    wanted.insert(cookie, *handle);
                }
                Err(why) => failures.push(format!(
                    "rules of congestion control do not reach {}: {why}",
                    netns.path.display()
                )),
            }
        }
        self.known = owners.namespaces.iter().map(|(netns, _)| netns.clone()).collect();
        for cookie in self.owners.keys().filter(|cookie| !wanted.contains_key(cookie)) {
            self.programs.set_home(*cookie, None)?;
        }
        for (cookie, handle) in wanted.iter().filter(|(cookie, h)| self.owners.get(cookie) != Some(h)) {
            self.programs.set_home(*cookie, Some(*handle))?;
        }
        self.owners = wanted;
        for id in self.cgroups.keys().filter(|id| !owners.cgroups.contains_key(id)) {
            self.programs.set_cgroup(*id, None)?;
        }
        for (id, handle) in owners.cgroups.iter().filter(|(id, h)| self.cgroups.get(id) != Some(h)) {
            self.programs.set_cgroup(*id, Some(*handle))?;
        }
        self.cgroups.clone_from(&owners.cgroups);
        self.config.cgroup_levels = owners.levels;
        Ok(failures)
    }

    /// The generation of the rules in force: grows with each change of them.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.config.generation
    }

    /// Says that the agent lives.
    ///
    /// # Errors
    /// [`CongestionError`].
    pub fn beat(&mut self) -> Result<(), CongestionError> {
        self.config.alive_ns = now_ns();
        Ok(self.programs.configure(&self.config)?)
    }

    /// The connections that have ended since the last call.
    ///
    /// # Errors
    /// [`CongestionError`].
    pub fn records(&self) -> Result<Vec<CongestionRecord>, CongestionError> {
        Ok(self.programs.records()?)
    }

    /// The counters of the programs.
    ///
    /// # Errors
    /// [`CongestionError`].
    pub fn counts(&self) -> Result<CongestionCounts, CongestionError> {
        Ok(self.programs.counts()?)
    }

    /// Has the connections that are there already follow the rules too. Failures come back.
    ///
    /// # Errors
    /// [`CongestionError`].
    pub fn move_all(&mut self) -> Result<Vec<String>, CongestionError> {
        self.visit(CongestionConfig::MOVE)
    }

    fn visit(&mut self, what: u32) -> Result<Vec<String>, CongestionError> {
        self.config.visit = what;
        self.beat()?;
        let own = NetnsRef { path: "/proc/self/ns/net".into(), id: self.root.owner };
        let places: Vec<&NetnsRef> = [&own].into_iter().chain(&self.known).collect();
        let visitor = match self.programs.visitor() {
            Ok(visitor) => visitor,
            Err(why) => {
                return Ok(vec![format!(
                    "connections that are there already were not reached: this kernel has no iterator over \
                     sockets (CONFIG_BPF_EVENTS): {why}"
                )]);
            }
        };
        let failed = places.iter().zip(visit(visitor, &places)).filter_map(|(netns, result)| {
            Some(format!("connections in {} were not reached: {}", netns.path.display(), result.err()?))
        });
        Ok(failed.collect())
    }

    /// Puts the program back if someone took it away: true if so.
    ///
    /// # Errors
    /// [`CongestionError`].
    pub fn repair(&mut self) -> Result<bool, CongestionError> {
        let dir = self.root.dir.as_fd();
        let mut left = [None; 2];
        for (i, there) in [attach::sock_ops(dir), attach::socket_options(dir)].into_iter().enumerate() {
            let there = there.map_err(|errno| CongestionError::Attach { errno })?;
            left[i] = self.attached[i].filter(|program| there.contains(program));
        }
        if left == self.attached {
            return Ok(false);
        }
        // A program that is still there is replaced.
        self.earlier = left;
        self.attach()?;
        Ok(true)
    }

    /// The same as [`remove`](Congestion::remove), also for connections in these namespaces.
    ///
    /// # Errors
    /// As [`remove`](Congestion::remove).
    pub(crate) fn remove_also_in(mut self, namespaces: &[NetnsRef]) -> Result<(), CongestionError> {
        self.known = namespaces.to_vec();
        self.remove()
    }

    /// Takes the program away, and gives connections back the algorithm that they had before
    /// weir; flows go on.
    ///
    /// # Errors
    /// [`CongestionError`]; what could be done is.
    pub fn remove(mut self) -> Result<(), CongestionError> {
        self.config.set = 0;
        self.config.generation = self.config.generation.wrapping_add(1);
        let left = self.visit(CongestionConfig::LEAVE);
        let dir = self.root.dir.as_fd();
        let ([events, hints], [old_events, old_hints]) = (self.attached, self.earlier);
        let hints = [hints, old_hints].into_iter().flatten();
        let events = [events, old_events].into_iter().flatten();
        let detached: Vec<_> = hints
            .map(|program| attach::detach_socket_options(program, dir))
            .chain(events.map(|program| attach::detach_sock_ops(program, dir)))
            .collect();
        // A program that someone else detached is gone.
        let failed = detached.into_iter().filter_map(Result::err).find(|errno| *errno != Errno::ENOENT);
        if let Some(errno) = failed {
            return Err(CongestionError::Attach { errno });
        }
        for why in left? {
            tracing::debug!("{why}");
        }
        Ok(())
    }
}

/// Tells the calling thread's network namespace from all others, past and future.
fn cookie() -> Result<u64, Errno> {
    let socket: OwnedFd = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let mut cookie = 0u64;
    let mut len = libc::socklen_t::try_from(size_of_val(&cookie)).unwrap_or(0);
    // SAFETY: the socket is open; the kernel writes at most `len` bytes, the size of `cookie`.
    let code = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    Errno::result(code).map(|_| cookie)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_cgroups_are_told_in_words_of_congestion_control() {
        let error = CongestionError::from(PacingError::Cgroup(CgroupError::NotMounted));
        let told = weir_units::chain(&error);
        assert!(
            told.starts_with("cannot choose congestion control without cgroup v2: no cgroup v2"),
            "{told}"
        );
    }
}
